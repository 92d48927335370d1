"""The promotion test between two encoders of one collection, on its stored examples."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attend.api.base import parse
from attend.api.learning import TrainRequest
from attend.collection.collection import Collection
from attend.core.types import Float64
from attend.learning.data import Questions
from attend.learning.held_out import SPLITS, QuestionFold, Split
from attend.learning.material import read_questions
from attend.learning.promotion import PromotionVerdict, compare_splits, decide
from attend.learning.ranking import MEASURE, UNMEASURED, RankingObjective
from attend.learning.selection import Outcome, cross_validate
from attend.learning.task import StageWatch, Task
from attend.learning.version import ServedVersion, active_version


def compare_encoders(before: Collection, after: Collection, watch: StageWatch) -> PromotionVerdict:
    """Put a collection with another encoder to the promotion test, as a trained version is.

    The collection before answers as its active version would that had not seen the held-out
    questions; the one after as it does.

    Raises:
        NothingToLearn: the questions with texts are too few, or too alike, to tell.
    """
    request = parse(TrainRequest, {})
    objective = RankingObjective(Task(before, request, watch), with_texts=True)
    objective.moves = False  # feedback moves the queries of either
    objective.read()
    task = Task(after, request, watch)
    material = read_questions(after, -1, request.seed, with_texts=True)
    served = ServedVersion(active_version(task), after.settings, material.memory)
    folds = objective.folds
    current = cross_validate(folds, [objective.rank_as_now], lambda done: watch("trying", done))
    outcomes: dict[Split, Outcome] = {}
    for split in SPLITS:
        parts = [
            (fold.held_out, result[split, None], _ndcg(served, material.questions, fold, split))
            for fold, result in zip(folds, current, strict=True)
            if split in fold.splits
        ]
        if parts:
            outcomes[split] = Outcome(*map(np.concatenate, zip(*parts, strict=True)))
    return decide(
        compare_splits(outcomes, objective.request.share_seen, groups=objective.groups),
        measure=MEASURE,
        units="questions",
        note="" if "unseen" in outcomes else UNMEASURED,
    )


def _ndcg(served: ServedVersion, questions: Questions, fold: QuestionFold, split: Split) -> Float64:
    """Return nDCG@10 of a fold's held-out questions in another collection of the same examples."""
    blocked = np.zeros(questions.relevant.shape[1], dtype=bool)
    if "random" not in fold.splits:
        # A question is left out of training where all its documents are blocked.
        blocked[questions.relevant[np.flatnonzero(~fold.trained)].indices] = True
    training = questions.without(blocked).some(fold.trained)
    there = replace(fold, training=training, blocked=blocked)
    return served.ndcg(questions.some(fold.held_out), there.ranked(split))
