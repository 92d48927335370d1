"""Two encoders put to the promotion test, as two versions are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attend.api.base import parse
from attend.api.learning import TrainRequest
from attend.core.types import Float64, Int64
from attend.engines.engine import StoredCollection
from attend.learning import data, ranking_model, selection
from attend.learning.data import Memory, Questions, ServedVersion
from attend.learning.ranking import MEASURE, UNMEASURED, RankingChoice, RankingTrainer
from attend.learning.ranking_model import QuestionFold
from attend.learning.selection import LEAST_GAIN, Judged, Split
from attend.learning.task import Progress, PromotionVerdict, Task


def compare_encoders(
    before: StoredCollection, after: StoredCollection, progress: Progress
) -> PromotionVerdict:
    """Put a collection with another encoder to the promotion test, as a trained version is.

    The collection before answers as its active version would that had not seen the held-out
    questions; the one after as it does.

    Raises:
        NothingToLearn: the questions with texts are too few, or too alike, to tell.
    """
    request = parse(TrainRequest, {})
    task = Task(before, request, progress)
    # Feedback moves the queries of either.
    trainer = RankingTrainer(task, with_texts=True, moves=False)
    material = ranking_model.read_questions(after, -1, request.seed, with_texts=True)
    version = data.active_version(Task(after, request))
    served = ServedVersion(version, after.settings, material.memory, data.times_of(after, version))
    folds, columns = trainer.folds, _columns(trainer, after, material.memory)
    current = selection.cross_validate(folds, [trainer.rank_as_now], task.watching("trying"))
    rows: list[tuple[Judged[RankingChoice], Float64]] = [
        (
            Judged(split, fold.held_out, ranked[None].ndcg[split], {}),
            _ndcg_elsewhere(served, material.questions, fold, split, columns),
        )
        for fold, ranked in zip(folds, current, strict=True)
        for split in fold.splits
    ]
    outcomes = selection.outcomes_of(*zip(*rows, strict=True))
    tried = f"encoder {after.settings.encoder}"
    look = task.look(len(np.unique(trainer.groups)), tried)
    before.store.put_settings(task.counted(look, tried))
    return selection.decide(
        selection.compare_splits(
            outcomes,
            request.share_seen,
            groups=trainer.groups,
            significance=look.level,
            least=LEAST_GAIN,
        ),
        look,
        measure=MEASURE,
        units="questions",
        note="" if "unseen" in outcomes else UNMEASURED,
    )


def _columns(before: RankingTrainer, after: StoredCollection, there: Memory) -> Int64:
    """Return where documents (n,) of a training are in another collection's; -1 without a label."""
    columns = np.full(len(before.memory), -1, dtype=np.int64)
    labelled = np.unique(before.material.questions.relevant.indices)
    documents = before.collection.store.documents(before.memory.rows[labelled], texts=False)
    counterparts = after.store.find([document.id for document in documents.values()])
    for place in labelled.tolist():
        document = documents.get(int(before.memory.rows[place]))
        if document is not None and document.id in counterparts:
            columns[place] = np.searchsorted(there.rows, counterparts[document.id].row)
    return columns


def _ndcg_elsewhere(
    served: ServedVersion, questions: Questions, fold: QuestionFold, split: Split, columns: Int64
) -> Float64:
    """Return nDCG@10 of a fold's held-out questions in another collection of the same examples.

    Args:
        columns: where the documents (n,) of the fold are there.
    """
    blocked = np.zeros(questions.relevant.shape[1], dtype=bool)
    blocked[columns[fold.blocked & (columns >= 0)]] = True
    training = questions.without(blocked).some(fold.trained)
    there = replace(fold, training=training, blocked=blocked)
    return served.ndcg(there.judging(questions), there.ranked(split))
