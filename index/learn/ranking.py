"""How held-out questions are ranked: the parts of each logit, and what weights make of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from index.learn.data import BLOCK, Labels, Memory, Pool, Questions, Sparse, row
from index.learn.fit import Fitted
from index.types import Bool, Float32, Float64, Int64

DEPTH = 100
"""Documents taken from each way of being found: dense, by examples, by words."""

CUT = 10
"""nDCG is measured at 10."""

NEVER = -1e9
"""The score of a document that has no key of this sort."""


FACTORS = (0.7, 0.8, 0.9, 1.0)
"""What example keys may be multiplied by."""


class Parts(NamedTuple):
    """Each question's candidates with the parts of their scores, padded to one width.

    `grades` are 0 for what is not relevant; `ideal` is each question's best possible DCG.
    """

    documents: Int64  # (q, c), -1 where padded
    dense: Float32  # (q, c), NEVER where padded
    examples: Float32  # (q, c), NEVER without an example key
    summed: Float32  # (q, c, f), the log-sum-exp of all keys, by factor on example keys
    lexical: Float32  # (q, c)
    grades: Float32  # (q, c)
    ideal: Float64  # (q,)
    coverage: Float32  # (q,)
    factors: tuple[float, ...] = FACTORS


class Weights(NamedTuple):
    """How the parts are put together: pool(dense, α·examples) + λ·coverage^γ·lexical."""

    examples: float
    lexical: float
    coverage: float = 0.0
    pool: Pool = "max"


def scores(parts: Parts, weights: Weights) -> Float32:
    """(q, c), on the scorer's scale; NEVER or so where padded."""
    found = parts.dense
    if weights.examples > 0 and weights.pool == "sum":
        found = parts.summed[:, :, parts.factors.index(weights.examples)]
    elif weights.examples > 0:
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


class Space(NamedTuple):
    """Where queries meet keys.

    Attributes:
        keys: (m, w).
        queries: takes raw embeddings (q, d) to (q, w).
    """

    keys: Float32
    queries: Callable[[Float32], Float32]


def parts(
    memory: Memory,
    fitted: Fitted | Space,
    known: Questions,
    asked: Questions,
    relevant: Sparse,
    factors: tuple[float, ...] = FACTORS,
) -> Parts:
    """The candidates of held-out questions under a fit.

    Args:
        known: the questions whose examples are keys.
        asked: the questions to be ranked, at least one.
        relevant: sparse (q, n), how they are judged: all that is known of them.
    """
    space = fitted if isinstance(fitted, Space) else space_of(memory, fitted)
    keys, queries, stored = (
        space.keys,
        space.queries(asked.embeddings),
        space.queries(known.embeddings),
    )
    step = max(1, BLOCK // max(1, len(factors) * len(keys)))
    rows: list[_Row] = []
    for at in range(0, asked.count, step):
        block = queries[at : at + step]
        ways = _ways(memory, known, block @ keys.T, block @ stored.T, factors)
        rows += _rows(asked.lexical[at : at + step], relevant[at : at + step], ways)
    ideal = [_ideal(row(relevant, at).grades) for at in range(asked.count)]
    return _padded(rows, np.array(ideal), asked.coverage, factors)


def space_of(memory: Memory, fitted: Fitted) -> Space:
    """What was fitted, as a space."""
    return Space(keys_of(memory, fitted), lambda given: projected(memory, fitted.w_q, given))


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


class _Sums(NamedTuple):
    """Sums of exp(logit) by document (b, n), over exp(peak) (b, 1) to keep them in range."""

    sums: Float32
    peaks: Float32

    def logs(self, at: int, documents: Int64) -> Float64:
        """Of one question, (c,); -inf for a document with nothing to sum."""
        with np.errstate(divide="ignore"):
            logs: Float64 = np.log(self.sums[at, documents]) + self.peaks[at]
        return logs


class _Ways(NamedTuple):
    """How some questions meet every document, by keys and by examples."""

    dense: Float32  # (b, n)
    examples: Float32  # (b, n)
    keys: _Sums
    votes: Sequence[_Sums]
    factors: Sequence[float]
    scale: float

    def summed(self, at: int, documents: Int64) -> Float32:
        """Of one question, by factor on example keys: (c, f), on the scorer's scale."""
        # A sum is no less than its largest part, also where float32 lost both.
        own = np.maximum(self.keys.logs(at, documents), self.scale * self.dense[at, documents])
        examples = self.scale * self.examples[at, documents]
        both = [
            np.logaddexp(own, np.maximum(votes.logs(at, documents), factor * examples))
            for factor, votes in zip(self.factors, self.votes, strict=True)
        ]
        return np.stack(both, axis=1).astype(np.float32) / np.float32(self.scale)


class _Row(NamedTuple):
    documents: Int64
    dense: Float32
    examples: Float32
    summed: Float32
    lexical: Float32
    grades: Float32


def _ways(
    memory: Memory,
    known: Questions,
    dense: Float32,
    similar: Float32,
    factors: tuple[float, ...],
) -> _Ways:
    """From scores of keys (b, m) and of known questions (b, k)."""
    shares, peaks = _raised(memory.scale * dense)
    holders = (known.relevant.T.tocsr() > 0).astype(np.float32)  # (n, k)
    votes = []
    for factor in factors:
        raised, highest = _raised(memory.scale * factor * similar)
        votes.append(_Sums((holders @ raised.T).T, highest))
    return _Ways(
        np.maximum.reduceat(dense, memory.starts, axis=1),
        _by_example(similar, known, memory.documents),
        _Sums(np.add.reduceat(shares, memory.starts, axis=1), peaks),
        votes,
        factors,
        memory.scale,
    )


def _raised(logits: Float32) -> tuple[Float32, Float32]:
    """exp(logit - peak) of each row's logits (b, m), and the peaks (b, 1)."""
    peaks: Float32 = logits.max(axis=1, keepdims=True, initial=NEVER)
    return np.exp(logits - peaks), peaks


def _rows(lexical: Sparse, relevant: Sparse, ways: _Ways) -> Iterator[_Row]:
    for at in range(len(ways.dense)):
        words, grades = (_filled(row(each, at), each.shape[1]) for each in (lexical, relevant))
        dense, examples = ways.dense[at], ways.examples[at]
        chosen = _candidates(dense, examples, words, *(each.sums[at] for each in ways.votes[-1:]))
        chosen = np.union1d(chosen, np.flatnonzero(grades))
        found = (each[chosen] for each in (words, grades))
        yield _Row(chosen, dense[chosen], examples[chosen], ways.summed(at, chosen), *found)


def _filled(labels: Labels, documents: int) -> Float32:
    whole = np.zeros(documents, dtype=np.float32)
    whole[labels.documents] = labels.grades
    return whole


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
        best.append(top[each[top] > NEVER])
    return np.unique(np.concatenate(best))


def _padded(
    rows: Sequence[_Row], ideal: Float64, coverage: Float32, factors: tuple[float, ...]
) -> Parts:
    width = max(len(each.documents) for each in rows)
    filled = np.zeros((len(rows), width), dtype=bool)
    for number, each in enumerate(rows):
        filled[number, : len(each.documents)] = True
    dense = _column([each.dense for each in rows], filled, NEVER)
    examples = _column([each.examples for each in rows], filled, NEVER)
    summed = _column([each.summed for each in rows], filled, NEVER)
    lexical = _column([each.lexical for each in rows], filled, 0.0)
    grades = _column([each.grades for each in rows], filled, 0.0)
    documents = np.full(filled.shape, -1, dtype=np.int64)
    documents[filled] = np.concatenate([each.documents for each in rows])
    return Parts(documents, dense, examples, summed, lexical, grades, ideal, coverage, factors)


def _column(rows: Sequence[Float32], filled: Bool, blank: float) -> Float32:
    column = np.full((*filled.shape, *rows[0].shape[1:]), blank, dtype=np.float32)
    column[filled] = np.concatenate(rows)
    return column


def _ideal(grades: Float32) -> float:
    best = np.sort(grades.astype(np.float64))[::-1][:CUT]
    return float(best @ _discounts(len(best)))


def _discounts(count: int) -> Float64:
    return 1 / np.log2(np.arange(2, count + 2))
