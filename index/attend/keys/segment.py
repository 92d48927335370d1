"""A segment: an immutable run of keys, searched exactly or by FAISS.

Inside a segment a key is a position and a document an ordinal; the ids that the rest of
the package speaks of stand beside them in arrays. A document's keys lie side by side.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Protocol

import faiss
import numpy as np

from attend.arrays import top
from attend.key_table import KeyTable
from attend.types import Bool, Float32, Int64


class Nearest(NamedTuple):
    """Keys found for each query, best first; `-1` fills up where there were too few."""

    scores: Float32  # (q, k)
    positions: Int64  # (q, k)


BLOCK_KEYS = 8192
"""Keys in one block of a scan: 12 MB at 384 dimensions, which the cache hierarchy likes."""

FEW = 8
"""Rows that are fewer than one document in so many are looked up, not marked among all."""


class Vectors(Protocol):
    """Key vectors that can be searched by inner product, and read."""

    def search(
        self, queries: Float32, k: int, allowed: Bool | None, recall: float | None = None
    ) -> Nearest:
        """The k allowed keys with the largest inner product. queries (q, d); allowed (n,).

        `recall` is the share of the true ones that is to be found; None for what was promised.
        """

    def propose(
        self, queries: Float32, k: int, allowed: Bool | None, recall: float | None = None
    ) -> Nearest:
        """About the k nearest: of many, few are worth ordering better than the codes do."""

    def promises(self, recall: float | None) -> float:
        """The share that a search finds which was asked for so much: 1 where it is exact."""

    def cheaper(self, queries: int, fetch: int, keys: int, per_document: float) -> bool:
        """Whether a search for so many keys costs less than the product with `keys` of them."""

    def all(self) -> Float32:
        """(n, d), a view where possible; not to be written to."""


class Exact:
    """What exact kinds have in common: they find everything, and read everything for it."""

    FETCH_SHARE = 8
    """A fetch of more than one key in so many costs as much as a scan, which finds documents."""

    CROWDED = 32
    """Queries at once, times keys a document, from which on a scan is faster than fetches: it
    reads the keys once for many queries, and ranks documents instead of thousands of keys."""

    def __init__(self, vectors: Float32) -> None:
        self.vectors = vectors

    def propose(
        self, queries: Float32, k: int, allowed: Bool | None, recall: float | None = None
    ) -> Nearest:
        return self.search(queries, k, allowed, recall)

    def search(
        self, queries: Float32, k: int, allowed: Bool | None, recall: float | None = None
    ) -> Nearest:
        raise NotImplementedError

    def promises(self, recall: float | None) -> float:
        return 1.0

    def cheaper(self, queries: int, fetch: int, keys: int, per_document: float) -> bool:
        few = fetch * self.FETCH_SHARE < len(self.vectors)
        return few and queries * per_document < self.CROWDED

    def all(self) -> Float32:
        return self.vectors


class FlatVectors(Exact):
    """FAISS's exact inner products over a matrix that may lie in a mapped file."""

    def search(
        self, queries: Float32, k: int, allowed: Bool | None, recall: float | None = None
    ) -> Nearest:
        queries = np.ascontiguousarray(queries, dtype=np.float32)
        n, width = self.vectors.shape
        found = Nearest(
            np.empty((len(queries), k), np.float32), np.empty((len(queries), k), np.int64)
        )
        masked = None if allowed is None else Selector(allowed)
        faiss.knn_inner_product(
            faiss.swig_ptr(queries),
            faiss.swig_ptr(self.vectors),
            width,
            len(queries),
            n,
            k,
            faiss.swig_ptr(found.scores),
            faiss.swig_ptr(found.positions),
            None if masked is None else masked.faiss,
        )
        return found


class Selector:
    """A mask over positions (n,) as FAISS takes it; keep it while the call lasts."""

    def __init__(self, allowed: Bool) -> None:
        # FAISS points into these bits: both must outlive the call.
        self._bits = np.packbits(allowed, bitorder="little")
        self.faiss = faiss.IDSelectorBitmap(len(allowed), faiss.swig_ptr(self._bits))


class DenseVectors(Exact):
    """A plain matrix: for the delta, which changes too often to be indexed."""

    def search(
        self, queries: Float32, k: int, allowed: Bool | None, recall: float | None = None
    ) -> Nearest:
        if len(self.vectors) == 0:
            nothing = (len(queries), 0)
            return Nearest(np.empty(nothing, np.float32), np.empty(nothing, np.int64))
        scores = queries @ self.vectors.T  # (q, d) @ (d, n) -> (q, n)
        if allowed is not None:
            scores[:, ~allowed] = -np.inf
        positions = top(scores, k)
        ordered = np.take_along_axis(scores, positions, axis=1)
        positions[np.isneginf(ordered)] = -1
        return Nearest(ordered, positions)


def largest_block(most_keys: int) -> int:
    """Keys that a block may have: it ends with a whole document, of at most so many keys."""
    return BLOCK_KEYS + most_keys


@dataclass(frozen=True)
class Segment:
    """Documents with their keys, in the order (document row, key id), and their index.

    Attributes:
        table: the documents with their keys.
        vectors: the index of the table's keys.
        alive: (n,) false where the document has been deleted or has newer keys elsewhere.
    """

    table: KeyTable
    vectors: Vectors
    alive: Bool

    @classmethod
    def of(cls, vectors: Vectors, key_ids: Int64, documents: Int64) -> Segment:
        """Make a segment from the document row of each key, (m,) ascending."""
        table = KeyTable.of_keys(vectors.all(), key_ids, documents)
        return cls(table, vectors, np.ones(len(table), dtype=bool))

    @property
    def rows(self) -> Int64:
        """(n,) document rows."""
        return self.table.rows

    @property
    def keys(self) -> int:
        """The number of keys, of dead documents too."""
        return len(self.table.ids)

    @cached_property
    def living(self) -> int:
        """The number of documents alive."""
        return int(np.count_nonzero(self.alive))

    def released(self, removed: Int64, documents: Int64) -> tuple[Segment, KeyTable]:
        """Let go of the documents that lost a key of `removed`, or are among `documents`.

        Returns: the segment with these documents masked, and what is left of their keys.
        """
        touched = self.table.places(documents)
        if len(removed):
            lost = np.isin(self.table.ids, removed)
            touched = np.union1d(touched, self.table.ordinals[lost])
        touched = touched[self.alive[touched]]
        left = self.table.some(touched)
        if not len(touched):
            return self, left
        alive = self.alive.copy()
        alive[touched] = False
        kept = np.isin(left.ids, removed, invert=True)
        remaining = KeyTable.of_keys(left.vectors[kept], left.ids[kept], left.documents[kept])
        return replace(self, alive=alive), remaining

    def living_keys(self) -> KeyTable:
        """The living documents with their keys."""
        return self.table.some(np.flatnonzero(self.alive))

    def allowed(self, rows: Int64 | None) -> Bool | None:
        """(n,) documents alive and among `rows` (ascending); None where that is all of them."""
        if rows is None:
            return None if self.living == len(self.rows) else self.alive
        return self.alive & np.isin(self.rows, rows, assume_unique=True)

    def blocks(self, places: Int64) -> Iterator[KeyTable]:
        """Documents (ascending places) with their keys, in blocks of about `BLOCK_KEYS` keys."""
        return self.table.blocks(BLOCK_KEYS, places)

    def allowed_keys(self, allowed: Bool | None) -> Bool | None:
        """(m,) the keys of documents (n,) that are allowed; None for all."""
        if allowed is None or self.table.single:
            return allowed
        return allowed[self.table.ordinals]

    def places(self, rows: Int64 | None) -> Int64:
        """Places of the living documents of `rows` (ascending; all if None), ascending."""
        if rows is not None and len(rows) * FEW < len(self.rows):
            places = self.table.places(rows)
            return places[self.alive[places]]
        allowed = self.allowed(rows)
        return np.arange(len(self.rows)) if allowed is None else np.flatnonzero(allowed)
