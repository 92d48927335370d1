"""A segment: an immutable run of keys, searched exactly or by FAISS.

Inside a segment a key is a position and a document an ordinal; the ids that the rest of
the package speaks of stand beside them in arrays. A document's keys lie side by side.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Protocol

import faiss
import numpy as np

from attend.types import Bool, Float32, Int64


class Nearest(NamedTuple):
    """Keys found for each query, best first; `-1` fills up where there were too few."""

    scores: Float32  # (q, k)
    positions: Int64  # (q, k)


class Keys(NamedTuple):
    """Keys as a version makes them, in the order (document row, key id)."""

    vectors: Float32  # (m, d)
    ids: Int64  # (m,) SQLite ids
    documents: Int64  # (m,) rows


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
        k = min(k, scores.shape[1])
        top = np.argpartition(-scores, k - 1, axis=1)[:, :k]
        found = np.take_along_axis(scores, top, axis=1)
        order = np.argsort(-found, axis=1, kind="stable")
        positions = np.take_along_axis(top, order, axis=1).astype(np.int64)
        ordered = np.take_along_axis(found, order, axis=1)
        positions[np.isneginf(ordered)] = -1
        return Nearest(ordered, positions)


@dataclass(frozen=True)
class Segment:
    """Keys of whole documents, in the order (document row, key id).

    Attributes:
        vectors: n keys of width d, as the projection made them.
        key_ids: (n,) SQLite ids.
        rows: (D,) document rows, ascending.
        starts: (D + 1,) first position of each document's keys, then n.
        alive: (D,) false where the document has been deleted or has newer keys elsewhere.
    """

    vectors: Vectors
    key_ids: Int64
    rows: Int64
    starts: Int64
    alive: Bool

    @classmethod
    def of(cls, vectors: Vectors, key_ids: Int64, documents: Int64) -> Segment:
        """From the document row of each key, (n,) ascending."""
        rows, starts = np.unique(documents, return_index=True)
        starts = np.append(starts, len(documents)).astype(np.int64)
        return cls(vectors, key_ids, rows.astype(np.int64), starts, np.ones(len(rows), dtype=bool))

    @property
    def keys(self) -> int:
        return len(self.key_ids)

    @cached_property
    def living(self) -> int:
        """Documents alive."""
        return int(np.count_nonzero(self.alive))

    @cached_property
    def ordinals(self) -> Int64:
        """(n,) the ordinal of each key's document."""
        return np.repeat(np.arange(len(self.rows)), np.diff(self.starts))

    def released(self, removed: Int64, documents: Int64) -> tuple[Segment, Keys]:
        """Let go of the documents that lost a key of `removed`, or are among `documents`.

        Returns: the segment with these documents masked, and what is left of their keys.
        """
        touched = self.find(documents)
        if len(removed):
            touched = np.union1d(touched, self.ordinals[np.isin(self.key_ids, removed)])
        touched = touched[self.alive[touched]]
        left = self._taken(touched)
        if not len(touched):
            return self, left
        alive = self.alive.copy()
        alive[touched] = False
        kept = np.isin(left.ids, removed, invert=True)
        remaining = Keys(left.vectors[kept], left.ids[kept], left.documents[kept])
        return replace(self, alive=alive), remaining

    def living_keys(self) -> Keys:
        """The keys of every living document."""
        return self._taken(np.flatnonzero(self.alive))

    def find(self, rows: Int64) -> Int64:
        """Ordinals of the documents of `rows` that are here, ascending."""
        wanted = np.unique(rows)
        at = np.searchsorted(self.rows, wanted)
        at, wanted = at[at < len(self.rows)], wanted[at < len(self.rows)]
        found: Int64 = at[self.rows[at] == wanted]
        return found

    def allowed(self, rows: Int64 | None) -> Bool | None:
        """(D,) documents alive and among `rows` (ascending); None where that is all of them."""
        if rows is None:
            return None if self.living == len(self.rows) else self.alive
        return self.alive & np.isin(self.rows, rows, assume_unique=True)

    def positions(self, ordinals: Int64) -> tuple[Int64, Int64]:
        """All keys of some documents: positions (m,), and where each document's begin (D',)."""
        counts = self.starts[ordinals + 1] - self.starts[ordinals]
        begins = np.cumsum(counts) - counts
        offsets = np.arange(counts.sum()) - np.repeat(begins, counts)
        return np.repeat(self.starts[ordinals], counts) + offsets, begins

    def _taken(self, ordinals: Int64) -> Keys:
        positions, _ = self.positions(ordinals)
        documents = self.rows[self.ordinals[positions]]
        return Keys(self.vectors.all()[positions], self.key_ids[positions], documents)
