"""Two encoders: put to the promotion test, as two versions are, and mapped onto each other.

Keys that are mapped stand for those of the other encoder until their texts are encoded. An
orthogonal map turns the space (Schönemann 1966, "A generalized solution of the orthogonal
Procrustes problem"); the kernel map adds a correction by kernel ridge regression, which reproduces
the texts that it was fitted on and mixes the corrections of similar ones elsewhere (Drift-Adapter,
arXiv 2509.23471, fits affine maps and small networks, of queries; on CoNaLa this was better).
The orthogonal one is taken unless the other proves better on texts that it was not fitted on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from attend.api.base import parse
from attend.api.learning import TrainRequest
from attend.core.arrays import FloatArray, top_mask, unit
from attend.core.types import Float32, Float64, Int64
from attend.engines.engine import StoredCollection
from attend.learning import data, ranking_model, selection
from attend.learning.data import Memory, Questions, ServedVersion
from attend.learning.ranking import MEASURE, UNMEASURED, RankingChoice, RankingTrainer
from attend.learning.ranking_model import QuestionFold
from attend.learning.selection import LEAST_GAIN, Judged, Split
from attend.learning.task import Progress, PromotionVerdict, Task

FOLDS = 5

NEAREST = 10
"""Neighbours of a query whose share is the recall of a map."""

RIDGE = 0.003
"""Of the kernel map, whose kernel of a text with itself is 1."""

BETTER = 0.01
"""The gain in recall from which on the kernel map is taken."""

SEED = 20170612


def compare_encoders(
    before: StoredCollection, after: StoredCollection, progress: Progress, *, counts: bool = True
) -> PromotionVerdict:
    """Put a collection with another encoder to the promotion test, as a trained version is.

    The collection before answers as its active version would that had not seen the held-out
    questions; the one after as it does.

    Args:
        counts: whether it is a look at the held-out questions, of which each makes the next harder.

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
    if counts:
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


# -- maps ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EmbeddingMap:
    """A map of embeddings (n, d) to those of another encoder (n, e), at length one.

    Attributes:
        matrix: (d, e), with orthonormal rows or columns.
        anchors: (m, d) embeddings of unit length that the correction was fitted on; none of an
            orthogonal map.
        weights: (m, e) of their kernels, exp(cosine - 1).

    >>> quarter, none = np.array([[0, 1], [-1, 0]], np.float32), np.empty((0, 2), np.float32)
    >>> turn = EmbeddingMap("orthogonal", quarter, none, none)
    >>> turn(np.array([[1.0, 0.0]], np.float32)).tolist()
    [[0.0, 1.0]]
    """

    kind: Literal["orthogonal", "kernel"]
    matrix: Float32
    anchors: Float32
    weights: Float32

    def __call__(self, embeddings: Float32) -> Float32:
        correction = _kernel(embeddings, self.anchors) @ self.weights
        return unit(embeddings @ self.matrix + correction)


def _kernel(embeddings: FloatArray, anchors: FloatArray) -> FloatArray:
    return np.exp(unit(embeddings) @ anchors.T - 1)  # type: ignore[return-value]


def orthogonal_map(before: Float32, after: Float32) -> EmbeddingMap:
    """Return the matrix with orthonormal rows or columns that best turns (n, d) into (n, e)."""
    left, _, right = np.linalg.svd(before.astype(np.float64).T @ after, full_matrices=False)
    return EmbeddingMap("orthogonal", (left @ right).astype(np.float32), before[:0], after[:0])


def kernel_map(turn: EmbeddingMap, before: Float32, after: Float32) -> EmbeddingMap:
    """Return an orthogonal map plus a kernel ridge regression of what it leaves over."""
    anchors = unit(before.astype(np.float64))
    gram = _kernel(anchors, anchors) + RIDGE * np.eye(len(anchors))
    weights = np.linalg.solve(gram, after - before @ turn.matrix).astype(np.float32)
    return replace(turn, kind="kernel", anchors=anchors.astype(np.float32), weights=weights)


def fit_map(
    before: Float32, after: Float32, queries: Float32
) -> tuple[EmbeddingMap, dict[str, float]]:
    """Fit a map, and measure it on texts that were left out.

    Args:
        before, after: (n, d) and (n, e) keys of the same texts by either encoder.
        queries: (q, e) by the other encoder.

    Returns: the map, and the recall of each kind: the share of a query's ten nearest keys that are
        among its ten nearest mapped ones, as a mean over queries.
    """
    folds = np.random.default_rng(SEED).permutation(len(before)) % FOLDS
    nearest = top_mask(queries @ after.T, NEAREST)
    mapped = {"orthogonal": np.empty_like(after), "kernel": np.empty_like(after)}
    for fold in range(FOLDS):
        out = folds == fold
        turn = orthogonal_map(before[~out], after[~out])
        for to_after in (turn, kernel_map(turn, before[~out], after[~out])):
            mapped[to_after.kind][out] = to_after(before[out])
    hits = {kind: top_mask(queries @ keys.T, NEAREST) & nearest for kind, keys in mapped.items()}
    recalls = {kind: float(hit.sum() / nearest.sum()) for kind, hit in hits.items()}
    turn = orthogonal_map(before, after)
    is_better = recalls["kernel"] - recalls["orthogonal"] >= BETTER
    return kernel_map(turn, before, after) if is_better else turn, recalls
