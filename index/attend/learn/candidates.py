"""The candidates of held-out questions, scored in parts by the code of a search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attend.arrays import best, kth_largest, top
from attend.attention import Mechanism
from attend.learn.data import BLOCK, Memory, Questions
from attend.learn.residual import Fitted
from attend.measure.statistics import CUT, dcg, ndcg
from attend.types import Float32, Float64, Int64

DEPTH = 100
"""Documents taken by each of: keys, example queries as keys, words."""

NEVER = -1e9
"""The score of a document that has no key of this sort."""

PRODUCT = Mechanism("dot", scale=np.ones(1), gates=np.ones(1))
"""The scorer as it is, for logits that are scaled later."""


class Candidates(NamedTuple):
    """Each question's candidates with the parts of their scores, padded to one width.

    Attributes:
        documents: (q, c), ascending, -1 where padded.
        dense: (q, c) by keys, NEVER where padded.
        examples: (q, c) by example queries, NEVER without one.
        lexical, grades: (q, c), 0 where padded; `ideal` (q,) is the best possible DCG.
    """

    documents: Int64
    dense: Float32
    examples: Float32
    lexical: Float32
    grades: Float32
    ideal: Float64
    coverage: Float32

    def scores(self, examples: float, lexical: float, coverage: float = 0.0) -> Float32:
        """max(dense, α·examples) + λ·coverage^γ·lexical: (q, c), NEVER or so where padded."""
        scores = self.dense
        if examples > 0:
            there = self.examples > NEVER
            scores = np.where(there, np.maximum(scores, examples * self.examples), scores)
        if lexical == 0:
            return scores
        strength = np.float32(lexical) * self.coverage ** np.float32(coverage)
        return scores + strength[:, None] * self.lexical

    def ndcg(self, scores: Float32) -> Float64:
        """nDCG at 10 of scores (q, c): (q,)."""
        gains = np.take_along_axis(self.grades, top_places(scores, CUT), axis=1)
        return ndcg(gains, self.ideal)


def find_candidates(
    memory: Memory, fitted: Fitted, training: Questions, questions: Questions
) -> Candidates:
    """Return the candidates of questions, at least one, under a fit.

    Args:
        training: the questions whose examples are keys.
    """
    queries, keys = fitted.queries(memory, questions.embeddings), fitted.keys(memory)
    stored = fitted.queries(memory, training.embeddings)
    step = max(1, BLOCK // (4 * max(1, len(keys), training.relevant.nnz)))
    rows: list[_Row] = []
    for index in range(0, questions.count, step):
        part = slice(index, index + step)
        dense = best(products(queries[part], keys), memory.starts[:-1])
        examples = _by_example(products(queries[part], stored), training, len(memory))
        others = questions.lexical[part].toarray(), questions.relevant[part].toarray()
        rows += [_row(*columns) for columns in zip(dense, examples, *others, strict=True)]
    return _padded(rows, questions)


def products(queries: Float32, keys: Float32) -> Float32:
    """Score queries (q, d) against keys (m, d) as a search does: (q, m)."""
    scores: Float32 = PRODUCT.score_keys(queries[:, None], keys[:, None])[:, 0]
    return scores


def top_places(scores: NDArray[Any], count: int) -> Int64:
    """Return the columns of the largest scores (q, c), best first, equals by the lower column."""
    if 4 * count < scores.shape[1]:
        # A superset by value first, so that equals at its end still go by column.
        scores = np.where(scores >= kth_largest(scores, count), scores, -np.inf)
    return np.argsort(-scores, axis=1, kind="stable")[:, :count]


def ideal_dcg(grades: NDArray[Any]) -> Float64:
    """Return the best DCG of each question's grades (q, c), in any order: (q,)."""
    return dcg(-np.sort(-grades.astype(np.float64), axis=-1))


def widened(columns: NDArray[Any], width: int, blank: float) -> NDArray[Any]:
    """Pad (q, c) to a width, so that blocks of several can be joined."""
    more = width - columns.shape[1]
    return np.pad(columns, ((0, 0), (0, more)), constant_values=blank)


class _Row(NamedTuple):
    """One question's candidates (c,), ascending, and the columns of `Candidates`."""

    documents: Int64
    columns: tuple[Float32, ...]


def _row(dense: Float32, examples: Float32, lexical: Float32, grades: Float32) -> _Row:
    """Return one question's candidates, of all documents (n,)."""
    nearest = [_nearest(column) for column in (dense, examples, lexical)]
    documents = np.unique(np.concatenate([*nearest, np.flatnonzero(grades)]))
    return _Row(documents, tuple(part[documents] for part in (dense, examples, lexical, grades)))


def _nearest(scores: Float32) -> Int64:
    columns = top(scores, DEPTH)
    return columns[scores[columns] > NEVER]


def _by_example(similar: Float32, training: Questions, documents: int) -> Float32:
    """(b, n): the score of the most similar question that each document is known to answer."""
    labels = training.relevant.tocsc()
    nearest = np.full((len(similar), documents), NEVER, dtype=np.float32)
    labelled = np.flatnonzero(np.diff(labels.indptr))
    if len(labelled):
        starts = labels.indptr[:-1][labelled]
        nearest[:, labelled] = best(similar[:, labels.indices], starts)
    return nearest


def _padded(rows: Sequence[_Row], questions: Questions) -> Candidates:
    there = (
        np.arange(max(len(row.documents) for row in rows))
        < np.array([len(row.documents) for row in rows])[:, None]
    )

    def column(parts: Sequence[NDArray[Any]], blank: float) -> Any:
        padded = np.full(there.shape, blank, dtype=parts[0].dtype)
        padded[there] = np.concatenate(parts)
        return padded

    documents = column([row.documents for row in rows], -1)
    columns = zip(*(row.columns for row in rows), strict=True)
    dense, examples, lexical, grades = (
        column(parts, blank) for parts, blank in zip(columns, (NEVER, NEVER, 0, 0), strict=True)
    )
    ideal = ideal_dcg(grades)
    return Candidates(documents, dense, examples, lexical, grades, ideal, questions.coverage)
