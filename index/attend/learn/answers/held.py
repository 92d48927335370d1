"""Held-out documents as queries, and what they attend to among the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from attend.learn.answers.fit import Matrices
from attend.learn.answers.targets import Answers
from attend.learn.data import BLOCK, Memory, unit_vectors
from attend.learn.heads import ATTEND
from attend.types import Bool, Float32, Float64, Int64


class Words(NamedTuple):
    """The lexical term λ · c(q) · lex(d), c(q) = coverage ** γ, but for λ and γ.

    Attributes:
        shares: (h, m), lex(d): BM25 over the query's best among those documents.
        coverage: (h,) that best over what could be reached, from 0 to 1.
    """

    shares: NDArray[np.float16]
    coverage: Float32

    def term(self, part: slice, lexical: float, coverage: float) -> Float32:
        """(b, m): the term of some of the queries."""
        factors = np.float32(lexical) * self.coverage[part] ** np.float32(coverage)
        return self.shares[part] * factors[:, None]


class Fold(NamedTuple):
    """Documents that are held out (h,), and those that answer them (m,), ascending.

    `words` is what their texts have in common; None where there are none.
    """

    held: Int64
    members: Int64
    words: Words | None = None


class Held(NamedTuple):
    """What held-out queries attend to.

    Attributes:
        queries: (q,) documents that are the queries.
        documents: (q, a), scores: (q, a): what is attended to, best first; -inf where padded.
        right: (q, a), the share of each one's value that answers the query.
        hidden: (q, a), the scores of what is attended to once all that is right is taken out.
        known: (q,) whether anything in the memory answers the query.
    """

    queries: Int64
    documents: Int64
    scores: Float64
    right: Float64
    hidden: Float64
    known: Bool


class Scores(Protocol):
    """How some of a fold's queries (b,) score its members (m,): (b, m)."""

    def __call__(self, fold: Fold, part: slice) -> Float32: ...


def compared(
    answers: Answers, matrices: Matrices, lexical: float = 0.0, coverage: float = 0.0
) -> Scores:
    """Documents as queries and keys under two matrices, and λ and γ of the words they share."""
    memory = answers.memory
    queries = _unit(answers.queries @ matrices.w_q.T, memory)
    keys = _unit(memory.embeddings @ matrices.w_k.T, memory)

    def scores(fold: Fold, part: slice) -> Float32:
        by_key = queries[fold.held[part]] @ keys[memory.positions(fold.members)].T
        found = best_keys(by_key, memory, fold.members)
        if lexical and fold.words is not None:
            found = found + fold.words.term(part, lexical, coverage)
        return found

    return scores


def best_keys(by_key: Float32, memory: Memory, documents: Int64) -> Float32:
    """(b, m') scores of the documents' keys, one document after the other: (b, m) the best."""
    if memory.single:
        return by_key
    counts = memory.counts[documents]
    best: Float32 = np.maximum.reduceat(by_key, np.cumsum(counts) - counts, axis=1)
    return best


def attended(answers: Answers, scores: Scores, fold: Fold, attend: int = ATTEND) -> Held:
    """What the queries of a fold attend to among its members."""
    step = max(1, BLOCK // max(1, int(answers.memory.counts[fold.members].sum())))
    blocks = [
        _block(answers, scores(fold, slice(at, at + step)), fold, slice(at, at + step), attend)
        for at in range(0, len(fold.held), step)
    ]
    return Held(fold.held, *(np.concatenate(each) for each in zip(*blocks, strict=True)))


def joined(parts: Sequence[Held]) -> Held:
    """The queries of several folds, as wide as the widest."""
    width = max(part.scores.shape[1] for part in parts)
    blank = {"scores": -np.inf, "hidden": -np.inf, "right": 0.0, "documents": 0}
    columns = {
        name: np.concatenate([_widened(getattr(part, name), width, blank[name]) for part in parts])
        for name in blank
    }
    queries, known = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("queries", "known")
    )
    return Held(queries=queries, known=known, **columns)


def _block(
    answers: Answers, scores: Float32, fold: Fold, part: slice, attend: int
) -> tuple[Int64, Float64, Float64, Float64, Bool]:
    right = answers.targets.agreement(fold.held[part], fold.members)
    top = _top(scores, attend)
    hidden = np.where(right > 0, -np.inf, scores)
    rest = np.take_along_axis(hidden, _top(hidden, attend), axis=1)
    return (
        fold.members[top],
        np.take_along_axis(scores, top, axis=1).astype(np.float64),
        np.take_along_axis(right, top, axis=1).astype(np.float64),
        rest.astype(np.float64),
        np.asarray((right > 0).any(axis=1), dtype=np.bool_),
    )


def _top(scores: Float32, count: int) -> Int64:
    """(b, a) the columns of the largest scores, in descending order."""
    count = min(count, scores.shape[1])
    top = np.argpartition(-scores, count - 1, axis=1)[:, :count]
    order = np.argsort(-np.take_along_axis(scores, top, axis=1), axis=1, kind="stable")
    return np.take_along_axis(top, order, axis=1)


def _unit(vectors: Float32, memory: Memory) -> Float32:
    return unit_vectors(vectors) if memory.unit else vectors


def _widened(array: Float64, width: int, blank: float) -> Float64:
    return np.pad(array, ((0, 0), (0, width - array.shape[1])), constant_values=blank)
