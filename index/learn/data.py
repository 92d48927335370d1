"""What is learned from: a memory of keys, and questions with their relevant documents."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from scipy import sparse

from index.types import Bool, Float32, Int64

Sparse: TypeAlias = Any
"""A `scipy.sparse.csr_array`: SciPy has no types."""

Pool = Literal["max", "sum"]
"""How a document's keys make its score: its best one, or their log-sum-exp."""

UNIT_SCALE = 20.0
"""The scale of logits before any was fitted, for embeddings of length one."""

SAMPLED = 10_000
"""Embeddings that tell how long they are."""

TINY = 1e-12
"""Embeddings whose squares are smaller on average are all zero, but for rounding."""

TWIN_COSINE = 0.9
"""Questions nearer than this are one question in other words: they share a fold."""

BLOCK = 1 << 24
"""Numbers in a block of a large product: 64 MB."""


@dataclass(frozen=True)
class Memory:
    """Documents with their keys, as raw embeddings.

    Attributes:
        embeddings: (m, d), a document's keys side by side.
        starts: (n,) the first key of each document.
        key_ids: (m,), rows: (n,): what the store calls them.
        unit: whether queries and keys are compared at length one.
    """

    embeddings: Float32
    starts: Int64
    key_ids: Int64
    rows: Int64
    unit: bool

    @property
    def documents(self) -> int:
        """n."""
        return len(self.starts)

    @cached_property
    def scale(self) -> float:
        """Of logits, before any was fitted: as if embeddings had length one, whatever theirs."""
        if self.unit:
            return UNIT_SCALE
        some = self.embeddings[:: max(1, len(self.embeddings) // SAMPLED)].astype(np.float64)
        return UNIT_SCALE / max(float((some**2).sum(axis=1).mean()), TINY)

    @cached_property
    def counts(self) -> Int64:
        """(n,) keys of each document."""
        return np.diff(np.append(self.starts, len(self.embeddings)))

    @cached_property
    def single(self) -> bool:
        """Whether every document has one key."""
        return len(self.embeddings) == self.documents

    def positions(self, documents: Int64) -> Int64:
        """The keys of some documents, one document after the other."""
        counts = self.counts[documents]
        begins = np.cumsum(counts) - counts
        within = np.arange(counts.sum()) - np.repeat(begins, counts)
        positions: Int64 = np.repeat(self.starts[documents], counts) + within
        return positions


@dataclass(frozen=True)
class Questions:
    """Questions, and how well documents answer them.

    Attributes:
        embeddings: (q, d) raw query embeddings.
        relevant: sparse (q, n), grades above zero.
        judged: sparse (q, n), one wherever anything was said of a pair, negative or not.
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
        """The same questions, as if nothing had been said of these documents (n,)."""
        kept = sparse.diags_array((~documents).astype(np.float32))
        return replace(
            self, relevant=_pruned(self.relevant, kept), judged=_pruned(self.judged, kept)
        )

    def some(self, chosen: Bool | Int64) -> Questions:
        """Some of the questions."""
        at = np.flatnonzero(chosen) if chosen.dtype == bool else chosen
        relevant, judged, lexical = (
            each[at] for each in (self.relevant, self.judged, self.lexical)
        )
        return Questions(self.embeddings[at], relevant, judged, lexical, self.coverage[at])


class Labels(NamedTuple):
    """One row of a sparse matrix."""

    documents: Int64
    grades: Float32


def row(matrix: Sparse, at: int) -> Labels:
    """A row of a sparse matrix in canonical form."""
    part = slice(matrix.indptr[at], matrix.indptr[at + 1])
    return Labels(matrix.indices[part].astype(np.int64), matrix.data[part])


def answerable(questions: Questions) -> Bool:
    """(q,) whether a question has a relevant document."""
    some: Bool = np.diff(questions.relevant.indptr) > 0
    return some


def twins(embeddings: Float32, cosine: float = TWIN_COSINE) -> Int64:
    """(q,) groups of questions that are near-duplicates, directly or by way of others."""
    length = np.linalg.norm(embeddings, axis=1, keepdims=True)
    unit = embeddings / np.where(length == 0, 1, length)
    step = max(1, BLOCK // max(1, len(unit)))
    pairs = [
        np.argwhere(unit[at : at + step] @ unit.T > cosine) + np.array([at, 0])
        for at in range(0, len(unit), step)
    ]
    first, second = np.concatenate(pairs).T if pairs else np.empty((2, 0), dtype=np.int64)
    near = sparse.coo_array((np.ones(len(first)), (first, second)), shape=(len(unit),) * 2)
    _, groups = sparse.csgraph.connected_components(near, directed=False)
    return np.asarray(groups, dtype=np.int64)


def _pruned(matrix: Sparse, kept: Sparse) -> Sparse:
    product = (matrix @ kept).tocsr()
    product.eliminate_zeros()
    return product
