"""The arrays that objectives learn from: a memory of keys, questions, histories, ratings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from attend.attention import Mechanism
from attend.core.arrays import KeyTable, top_mask, unit
from attend.core.types import Bool, Float32, Float64, Floats, Int64
from attend.measure.statistics import dcg

Sparse: TypeAlias = Any
"""A `scipy.sparse.csr_array`: SciPy has no types."""

UNIT_SCALE = 20.0
"""The scale of logits before any was fitted, for embeddings of length one."""

SAMPLED = 10_000
"""Embeddings by which the usual length is measured."""

TINY = 1e-12
"""Embeddings whose squares are smaller on average are all zero, but for rounding."""

TWIN_COSINE = 0.88
"""Questions nearer than this, the mean question subtracted, are one question in other words: they
share a fold. Some encoders place all texts near each other, and only what differs can tell."""

SAME_COSINE = 0.99
"""Nearer than this as they are, texts are one in any encoder, however little else there is."""

PAIRS = 1 << 22
"""Pairs of questions compared in one block."""

BLOCK = 1 << 24
"""Numbers in a block of a large product: 64 MB."""

PRODUCT = Mechanism("dot", scale=np.ones(1), gates=np.ones(1))
"""The scorer as it is, for logits that are scaled later."""


@dataclass(frozen=True, eq=False)
class Memory(KeyTable):
    """Documents with the raw embeddings of their keys, to learn from.

    Attributes:
        unit: whether queries and keys are compared at length one.
    """

    unit: bool = True

    @cached_property
    def scale(self) -> float:
        """The scale of logits before any was fitted: as if embeddings had length one."""
        if self.unit:
            return UNIT_SCALE
        sample = self.vectors[:: max(1, len(self.vectors) // SAMPLED)].astype(np.float64)
        return UNIT_SCALE / max(float((sample**2).sum(axis=1).mean()), TINY)

    def document_embeddings(self) -> Floats:
        """Return documents as queries by id (n, d): the mean of their keys, at length one if
        these are."""
        means = self.means()
        return unit(means) if self.unit and not self.single else means


@dataclass(frozen=True)
class Questions:
    """Questions, and how well documents answer them.

    Attributes:
        embeddings: (q, d) raw query embeddings.
        relevant: sparse (q, n), grades above zero.
        judged: sparse (q, n), the labels of pairs: how much a document competes that was labelled
            not relevant, 1 or more; 1 for one that was labelled relevant.
        lexical: sparse (q, n), lex(d): BM25 over the question's maximum; empty without texts.
        coverage: (q,) maximum / ideal of each question, from 0 to 1.
    """

    embeddings: Float32
    relevant: Sparse
    judged: Sparse
    lexical: Sparse
    coverage: Float32

    @property
    def count(self) -> int:
        """q."""
        return len(self.embeddings)

    def without(self, documents: Bool) -> Questions:
        """Return the same questions without the labels of these documents (n,)."""
        left = sparse.diags_array((~documents).astype(np.float32))
        return replace(
            self, relevant=_pruned(self.relevant, left), judged=_pruned(self.judged, left)
        )

    def without_words(self) -> Questions:
        """Return the same questions as if they had no texts, in less memory."""
        return replace(self, lexical=sparse.csr_array(self.lexical.shape, dtype=np.float32))

    def some(self, members: Bool | Int64) -> Questions:
        """Return some of the questions."""
        index = np.flatnonzero(members) if members.dtype == bool else members
        relevant, judged, lexical = (
            matrix[index] for matrix in (self.relevant, self.judged, self.lexical)
        )
        return Questions(self.embeddings[index], relevant, judged, lexical, self.coverage[index])


def answerable(questions: Questions) -> Bool:
    """(q,) whether a question has a relevant document."""
    return lengths(questions.relevant) > 0


def twins(embeddings: Float32, cosine: float = TWIN_COSINE) -> Int64:
    """Return groups (q,) of questions that are near-duplicates, directly or by way of others."""
    count = len(embeddings)
    groups = np.arange(count)
    if not count:
        return groups
    direct = unit(embeddings)
    away = unit(direct - direct.mean(axis=0))
    step = max(1, PAIRS // count)
    for index in range(0, count, step):
        block = slice(index, index + step)
        near = (away[block] @ away.T > cosine) | (direct[block] @ direct.T > SAME_COSINE)
        first, second = np.nonzero(near)
        groups = _joined(groups, first + index, second)
    return groups


def _joined(groups: Int64, first: Int64, second: Int64) -> Int64:
    """Join groups (q,) that a pair of questions (p,) connects."""
    count = len(groups)
    pairs = groups[first], groups[second]
    edges = sparse.coo_array((np.ones(len(first), dtype=bool), pairs), shape=(count, count))
    _, labels = sparse.csgraph.connected_components(edges, directed=False)
    return np.asarray(labels, dtype=np.int64)[groups]


def _pruned(matrix: Sparse, left: Sparse) -> Sparse:
    product = (matrix @ left).tocsr()
    product.eliminate_zeros()
    return product


# -- scores ----------------------------------------------------------------------------------------


def products(queries: Float32, keys: Float32) -> Float32:
    """Score queries (q, d) against keys (m, d) as a search does: (q, m)."""
    scores: Float32 = PRODUCT.score_keys(queries[:, None], keys[:, None])[:, 0]
    return scores


def top_places(scores: NDArray[Any], count: int) -> Int64:
    """Return the columns of the largest scores (q, c), best first, equals by the lower column."""
    if 4 * count >= scores.shape[1]:
        return np.argsort(-scores, axis=1, kind="stable")[:, :count]
    # Marks first, so that only a few are sorted.
    places = np.nonzero(top_mask(scores, count))[1].reshape(-1, count)
    order = np.argsort(-np.take_along_axis(scores, places, axis=1), axis=1, kind="stable")
    return np.take_along_axis(places, order, axis=1)


def ideal_dcg(grades: NDArray[Any]) -> Float64:
    """Return the best DCG of each question's grades (q, c), in any order: (q,)."""
    return dcg(-np.sort(-grades.astype(np.float64), axis=-1))


def stacked(parts: Sequence[NDArray[Any]], blank: float) -> NDArray[Any]:
    """Join rows (q, c) of several blocks, padded to the width of the widest."""
    width = max(part.shape[1] for part in parts)
    padded = [
        np.pad(part, ((0, 0), (0, width - part.shape[1])), constant_values=blank) for part in parts
    ]
    return np.concatenate(padded)


# -- histories -------------------------------------------------------------------------------------


def histories_of(users: Int64, documents: Int64, shape: tuple[int, int]) -> Sparse:
    """Return sparse ones (u, n) in canonical form; a repeated interaction is one."""
    ones = np.ones(len(users), dtype=np.float32)
    histories = sparse.csr_array((ones, (users, documents)), shape=shape)
    histories.sum_duplicates()
    histories.data[:] = 1
    return histories


def without(histories: Sparse, left_out: Bool) -> Sparse:
    """Return histories without some of the interactions (those of `histories.data`, in order)."""
    rows = np.repeat(np.arange(histories.shape[0]), lengths(histories))
    left = ~left_out
    return histories_of(rows[left], histories.indices[left].astype(np.int64), histories.shape)


def lengths(matrix: Sparse) -> Int64:
    """(u,) entries of each row, such as the documents in each history."""
    counts: Int64 = np.diff(matrix.indptr).astype(np.int64)
    return counts


# -- ratings ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ratings:
    """Ratings of items by users.

    Attributes:
        users, items: (r,) from 0 to `user_count` and to `item_count`.
        values: (r,).
    """

    users: Int64
    items: Int64
    values: Float64
    user_count: int
    item_count: int

    def __len__(self) -> int:
        return len(self.values)

    def some(self, members: Bool | Int64) -> Ratings:
        """Return some of them, of as many users and items."""
        return replace(
            self,
            users=self.users[members],
            items=self.items[members],
            values=self.values[members],
        )

    @cached_property
    def by_user(self) -> tuple[Int64, Int64]:
        """Places ordered by user, (r,), and where each user's begin, (user_count + 1,)."""
        order = np.argsort(self.users, kind="stable")
        starts = np.searchsorted(self.users[order], np.arange(self.user_count + 1))
        return order, starts

    @property
    def several(self) -> int:
        """The number of users with two ratings or more, of which one can be predicted."""
        return int((np.diff(self.by_user[1]) > 1).sum())

    def of_user(self, user: int) -> Int64:
        """Return the places of one user's ratings."""
        order, starts = self.by_user
        return order[starts[user] : starts[user + 1]]
