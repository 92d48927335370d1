"""How held-out questions are ranked: the parts of each logit, and what weights make of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from index.learn.data import BLOCK, Memory, Questions, Sparse, row
from index.learn.fit import Fitted
from index.types import Bool, Float32, Float64, Int64

DEPTH = 100
"""Documents taken from each way of being found: dense, by examples, by words."""

CUT = 10
"""nDCG is measured at 10."""

NEVER = -1e9
"""The score of a document that has no key of this sort."""


class Parts(NamedTuple):
    """Each question's candidates with the parts of their scores, padded to one width.

    `grades` are 0 for what is not relevant; `ideal` is each question's best possible DCG.
    """

    documents: Int64  # (q, c), -1 where padded
    dense: Float32  # (q, c), NEVER where padded
    examples: Float32  # (q, c), NEVER without an example key
    lexical: Float32  # (q, c)
    grades: Float32  # (q, c)
    ideal: Float64  # (q,)
    coverage: Float32  # (q,)


class Weights(NamedTuple):
    """How the parts are put together: max(dense, α·examples) + λ·coverage^γ·lexical."""

    examples: float
    lexical: float
    coverage: float = 0.0


def scores(parts: Parts, weights: Weights) -> Float32:
    """(q, c), on the scorer's scale; NEVER or so where padded."""
    found = parts.dense
    if weights.examples > 0:
        known = parts.examples > NEVER
        found = np.where(known, np.maximum(found, weights.examples * parts.examples), found)
    if weights.lexical == 0:
        return found
    strength = np.float32(weights.lexical) * parts.coverage ** np.float32(weights.coverage)
    return found + strength[:, None] * parts.lexical


def ndcg(parts: Parts, scored: Float32) -> Float64:
    """(q,) nDCG at 10 with linear gains (Järvelin and Kekäläinen 2002); 0 without relevant ones.

    Equal scores are broken by the lower document, as in a search.
    """
    # Candidates ascend by document, and a stable sort keeps that order among equals.
    order = np.argsort(-scored, axis=1, kind="stable")[:, :CUT]
    gains = np.take_along_axis(parts.grades, order, axis=1)
    dcg = gains @ _discounts(gains.shape[1])
    return np.divide(dcg, parts.ideal, out=np.zeros(len(dcg)), where=parts.ideal > 0)


def parts(
    memory: Memory, fitted: Fitted, known: Questions, asked: Questions, relevant: Sparse
) -> Parts:
    """The candidates of held-out questions under a fit.

    Args:
        known: the questions whose examples are keys.
        asked: the questions to be ranked, at least one.
        relevant: sparse (q, n), how they are judged: all that is known of them.
    """
    keys = keys_of(memory, fitted)  # (m, d_k)
    queries = projected(memory, fitted.w_q, asked.embeddings)  # (q, d_k)
    stored = projected(memory, fitted.w_q, known.embeddings)  # (k, d_k)
    step = max(1, BLOCK // max(1, len(keys)))
    rows = [
        found
        for at in range(0, asked.count, step)
        for found in _block(memory, keys, stored, known, asked, queries, relevant, at, step)
    ]
    ideal = [_ideal(row(relevant, at).grades) for at in range(asked.count)]
    return _padded(rows, np.array(ideal), asked.coverage)


def keys_of(memory: Memory, fitted: Fitted) -> Float32:
    """All keys (m, d_k) of a memory under a fit."""
    embeddings = memory.embeddings
    if len(fitted.offset_keys):
        embeddings = embeddings.copy()
        embeddings[fitted.offset_keys] += fitted.offsets
    return projected(memory, fitted.w_k, embeddings)


def projected(memory: Memory, weight: Float32, embeddings: Float32) -> Float32:
    """(n, d) to (n, d_k), at length one where the memory is."""
    found: Float32 = embeddings @ weight.T
    if not memory.unit:
        return found
    length = np.linalg.norm(found, axis=1, keepdims=True)
    return np.divide(found, np.where(length == 0, 1, length), dtype=np.float32)


class _Row(NamedTuple):
    documents: Int64
    dense: Float32
    examples: Float32
    lexical: Float32
    grades: Float32


def _block(
    memory: Memory,
    keys: Float32,
    stored: Float32,
    known: Questions,
    asked: Questions,
    queries: Float32,
    relevant: Sparse,
    at: int,
    step: int,
) -> Iterator[_Row]:
    block = queries[at : at + step]
    dense = np.maximum.reduceat(block @ keys.T, memory.starts, axis=1)  # (b, n)
    examples = _by_example(block @ stored.T, known, memory.documents)  # (b, n)
    for number in range(len(block)):
        labels = row(relevant, at + number)
        words = row(asked.lexical, at + number)
        lexical = np.zeros(memory.documents, dtype=np.float32)
        lexical[words.documents] = words.grades
        grades = np.zeros(memory.documents, dtype=np.float32)
        grades[labels.documents] = labels.grades
        chosen = _candidates(dense[number], examples[number], lexical)
        chosen = np.union1d(chosen, labels.documents)
        found = (dense[number], examples[number], lexical, grades)
        yield _Row(chosen, *(each[chosen] for each in found))


def _by_example(similar: Float32, known: Questions, documents: int) -> Float32:
    """(b, n): for each document, the most similar question that it is known to answer."""
    order = known.relevant.tocsc()
    best = np.full((len(similar), documents), NEVER, dtype=np.float32)
    filled = np.flatnonzero(np.diff(order.indptr))
    if len(filled):
        best[:, filled] = np.maximum.reduceat(
            similar[:, order.indices], order.indptr[:-1][filled], axis=1
        )
    return best


def _candidates(*found: Float32) -> Int64:
    best = []
    for each in found:
        count = min(DEPTH, len(each))
        top = np.argpartition(-each, count - 1)[:count]
        best.append(top[(each[top] > NEVER) & (each[top] != 0)])
    return np.unique(np.concatenate(best))


def _padded(rows: Sequence[_Row], ideal: Float64, coverage: Float32) -> Parts:
    width = max(len(each.documents) for each in rows)
    filled = np.zeros((len(rows), width), dtype=bool)
    for number, each in enumerate(rows):
        filled[number, : len(each.documents)] = True
    dense = _column([each.dense for each in rows], filled, NEVER)
    examples = _column([each.examples for each in rows], filled, NEVER)
    lexical = _column([each.lexical for each in rows], filled, 0.0)
    grades = _column([each.grades for each in rows], filled, 0.0)
    documents = np.full(filled.shape, -1, dtype=np.int64)
    documents[filled] = np.concatenate([each.documents for each in rows])
    return Parts(documents, dense, examples, lexical, grades, ideal, coverage)


def _column(rows: Sequence[Float32], filled: Bool, blank: float) -> Float32:
    column = np.full(filled.shape, blank, dtype=np.float32)
    column[filled] = np.concatenate(rows)
    return column


def _ideal(grades: Float32) -> float:
    best = np.sort(grades.astype(np.float64))[::-1][:CUT]
    return float(best @ _discounts(len(best)))


def _discounts(count: int) -> Float64:
    return 1 / np.log2(np.arange(2, count + 2))
