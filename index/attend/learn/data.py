"""What is learned from: a memory of keys, and questions with their relevant documents."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from scipy import sparse

from attend.types import Bool, Float32, Int64

Sparse: TypeAlias = Any
"""A `scipy.sparse.csr_array`: SciPy has no types."""

Pool = Literal["max", "sum"]
"""How a document's keys make its score: its best one, or their log-sum-exp."""

Part = Literal["matrices", "offsets", "examples", "words", "additive"]

PARTS: tuple[Part, ...] = ("matrices", "offsets", "examples", "words")
"""What may take part in an answer where nothing else is said: W_Q and W_K, key offsets, example
keys, shared words. The additive scorer takes part where it is asked for: it looks at each pair."""

UNIT_SCALE = 20.0
"""The scale of logits before any was fitted, for embeddings of length one."""

SAMPLED = 10_000
"""Embeddings that tell how long they are."""

TINY = 1e-12
"""Embeddings whose squares are smaller on average are all zero, but for rounding."""

TWIN_COSINE = 0.88
"""Questions nearer than this, the mean question taken away, are one question in other words: they
share a fold. Some encoders place all texts near each other, and only what differs can tell."""

SAME_COSINE = 0.99
"""Nearer than this as they are, texts are one in any encoder, however little else there is."""

PAIRS = 1 << 22
"""Pairs of questions looked at in one block."""

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
        judged: sparse (q, n), what was said of a pair: how much a document competes that was
            called not relevant, 1 or more; 1 for one that was called relevant.
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
    count = len(embeddings)
    groups = np.arange(count)
    if not count:
        return groups
    unit = unit_vectors(embeddings)
    away = unit_vectors(unit - unit.mean(axis=0))
    step = max(1, PAIRS // count)
    for at in range(0, count, step):
        block = slice(at, at + step)
        near = (away[block] @ away.T > cosine) | (unit[block] @ unit.T > SAME_COSINE)
        first, second = np.nonzero(near)
        groups = _joined(groups, first + at, second)
    return groups


def _joined(groups: Int64, first: Int64, second: Int64) -> Int64:
    """Groups (q,), joined wherever a pair of questions (p,) says so."""
    count = len(groups)
    pairs = groups[first], groups[second]
    edges = sparse.coo_array((np.ones(len(first), dtype=bool), pairs), shape=(count, count))
    _, labels = sparse.csgraph.connected_components(edges, directed=False)
    return np.asarray(labels, dtype=np.int64)[groups]


def unit_vectors(vectors: Float32) -> Float32:
    """(..., d) at length one; what has none stays as it is."""
    length = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.divide(vectors, np.where(length == 0, 1, length), dtype=np.float32)


def _pruned(matrix: Sparse, kept: Sparse) -> Sparse:
    product = (matrix @ kept).tocsr()
    product.eliminate_zeros()
    return product
