"""The candidates of held-out questions: what a search would look at, with its scores in parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from attend.learn.data import BLOCK, Labels, Memory, Questions, Sparse, row
from attend.learn.fit import Fitted
from attend.learn.rankings.ranking import FACTORS, NEVER, Parts, ideal
from attend.learn.space import Space, space_of
from attend.types import Bool, Float32, Float64, Int64

DEPTH = 100
"""Documents taken from each way of being found, by each head: dense, by examples, by words."""


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
    queries, stored = space.queries(asked.embeddings), space.queries(known.embeddings)
    step = max(1, BLOCK // max(1, len(factors) * space.keys.shape[1] * len(space.keys)))
    scales, rows = space.heads.scales.tolist(), list[_Row]()
    for at in range(0, asked.count, step):
        heads = [
            _ways(memory, known, block @ keys.T, block @ own.T, scale, factors)
            for block, keys, own, scale in zip(
                queries[:, at : at + step], space.keys, stored, scales, strict=True
            )
        ]
        rows += _rows(asked.lexical[at : at + step], relevant[at : at + step], heads)
    best = [ideal(row(relevant, at).grades) for at in range(asked.count)]
    return _padded(rows, np.array(best), asked.coverage, factors)._replace(heads=space.heads)


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
    """How some questions meet every document under one head, by keys and by examples."""

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
    documents: Int64  # (c,)
    dense: Float32  # (H, c)
    examples: Float32  # (H, c)
    summed: Float32  # (H, c, f)
    lexical: Float32  # (c,)
    grades: Float32  # (c,)


def _ways(
    memory: Memory,
    known: Questions,
    dense: Float32,
    similar: Float32,
    scale: float,
    factors: tuple[float, ...],
) -> _Ways:
    """From scores of keys (b, m) and of known questions (b, k)."""
    shares, peaks = _raised(scale * dense)
    holders = (known.relevant.T.tocsr() > 0).astype(np.float32)  # (n, k)
    votes = []
    for factor in factors:
        raised, highest = _raised(scale * factor * similar)
        votes.append(_Sums((holders @ raised.T).T, highest))
    return _Ways(
        np.maximum.reduceat(dense, memory.starts, axis=1),
        _by_example(similar, known, memory.documents),
        _Sums(np.add.reduceat(shares, memory.starts, axis=1), peaks),
        votes,
        factors,
        scale,
    )


def _raised(logits: Float32) -> tuple[Float32, Float32]:
    """exp(logit - peak) of each row's logits (b, m), and the peaks (b, 1)."""
    peaks: Float32 = logits.max(axis=1, keepdims=True, initial=NEVER)
    return np.exp(logits - peaks), peaks


def _rows(lexical: Sparse, relevant: Sparse, heads: Sequence[_Ways]) -> Iterator[_Row]:
    for at in range(lexical.shape[0]):
        words, grades = (_filled(row(each, at), each.shape[1]) for each in (lexical, relevant))
        chosen = np.union1d(_candidates(words, *_found(heads, at)), np.flatnonzero(grades))
        yield _Row(
            chosen,
            np.stack([each.dense[at, chosen] for each in heads]),
            np.stack([each.examples[at, chosen] for each in heads]),
            np.stack([each.summed(at, chosen) for each in heads]),
            words[chosen],
            grades[chosen],
        )


def _found(heads: Sequence[_Ways], at: int) -> Iterator[Float32]:
    for ways in heads:
        yield ways.dense[at]
        yield ways.examples[at]
        yield from (each.sums[at] for each in ways.votes[-1:])


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
    rows: Sequence[_Row], best: Float64, coverage: Float32, factors: tuple[float, ...]
) -> Parts:
    width = max(len(each.documents) for each in rows)
    filled = np.zeros((len(rows), width), dtype=bool)
    for number, each in enumerate(rows):
        filled[number, : len(each.documents)] = True
    documents = np.full(filled.shape, -1, dtype=np.int64)
    documents[filled] = np.concatenate([each.documents for each in rows])
    dense, examples, summed = (
        np.stack([_column(list(head), filled, NEVER) for head in zip(*column, strict=True)])
        for column in (
            [each.dense for each in rows],
            [each.examples for each in rows],
            [each.summed for each in rows],
        )
    )
    lexical = _column([each.lexical for each in rows], filled, 0.0)
    grades = _column([each.grades for each in rows], filled, 0.0)
    return Parts(documents, dense, examples, summed, lexical, grades, best, coverage, factors)


def _column(rows: Sequence[Float32], filled: Bool, blank: float) -> Float32:
    column = np.full((*filled.shape, *rows[0].shape[1:]), blank, dtype=np.float32)
    column[filled] = np.concatenate(rows)
    return column
