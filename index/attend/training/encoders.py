"""The promotion test between two encoders of one collection, on its stored examples."""

from __future__ import annotations

import numpy as np

from attend.api.base import parse
from attend.api.learning import TrainRequest
from attend.collection import Collection
from attend.learn.held_out import SPLITS, Split
from attend.learn.promotion import PromotionVerdict, compare_splits, decide
from attend.learn.selection import Outcome, cross_validate
from attend.training.material import read_questions
from attend.training.ranking import MEASURE, UNMEASURED, RankingObjective
from attend.training.task import StageWatch, Task
from attend.training.version import ServedVersion, active_version


def compare_encoders(before: Collection, after: Collection, watch: StageWatch) -> PromotionVerdict:
    """Put a collection with another encoder to the promotion test, as a trained version is.

    The collection before answers as its active version would that had not seen the held-out
    questions; the one after as it does.

    Raises:
        NothingToLearn: the questions with texts are too few, or too alike, to tell.
    """
    request = parse(TrainRequest, {})
    objective = RankingObjective(Task(before, request, watch), with_texts=True)
    objective.read()
    task = Task(after, request, watch)
    material = read_questions(after, -1, request.seed, with_texts=True)
    served = ServedVersion(active_version(task), after.settings, material.memory)
    values = served.ndcg(material.questions)  # (q,)
    folds = objective.folds
    current = cross_validate(folds, [objective.rank_as_now], lambda done: watch("trying", done))
    outcomes: dict[Split, Outcome] = {}
    for split in SPLITS:
        pairs = [
            (fold.held_out, result[None])
            for fold, result in zip(folds, current, strict=True)
            if fold.split == split
        ]
        if pairs:
            units = np.concatenate([held_out for held_out, _ in pairs])
            answers = np.concatenate([ranked for _, ranked in pairs])
            outcomes[split] = Outcome(units, answers, values[units])
    return decide(
        compare_splits(outcomes, objective.request.share_seen, groups=objective.groups),
        measure=MEASURE,
        units="questions",
        note="" if "unseen" in outcomes else UNMEASURED,
    )
