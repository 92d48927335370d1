"""Kinds of key vectors that can be searched by inner product: exact by numpy or by FAISS."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import faiss
import numpy as np

from attend.arrays import top
from attend.types import Bool, Float32, Int64


class NearestKeys(NamedTuple):
    """Keys found for each query, best first; `-1` fills up where there were too few."""

    scores: Float32  # (q, k)
    positions: Int64  # (q, k)


class Vectors(Protocol):
    """Key vectors that can be searched by inner product, and read."""

    def search(
        self, queries: Float32, k: int, allowed: Bool | None, recall: float | None = None
    ) -> NearestKeys:
        """The k allowed keys with the largest inner product. queries (q, d); allowed (n,).

        `recall` is the share of the true ones that is to be found; None for what was promised.
        """

    def propose(
        self, queries: Float32, k: int, allowed: Bool | None, recall: float | None = None
    ) -> NearestKeys:
        """About the k nearest: of many, few are worth ordering better than the codes do."""

    def promises(self, recall: float | None) -> float:
        """The share that a search finds which was asked for so much: 1 where it is exact."""

    def cheaper(self, queries: int, fetch: int, keys: int, per_document: float) -> bool:
        """Return whether a search for `fetch` keys costs less than scoring `keys` of them."""

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
    ) -> NearestKeys:
        return self.search(queries, k, allowed, recall)

    def search(
        self, queries: Float32, k: int, allowed: Bool | None, recall: float | None = None
    ) -> NearestKeys:
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
    ) -> NearestKeys:
        queries = np.ascontiguousarray(queries, dtype=np.float32)
        n, width = self.vectors.shape
        results = NearestKeys(
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
            faiss.swig_ptr(results.scores),
            faiss.swig_ptr(results.positions),
            None if masked is None else masked.faiss,
        )
        return results


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
    ) -> NearestKeys:
        if len(self.vectors) == 0:
            nothing = (len(queries), 0)
            return NearestKeys(np.empty(nothing, np.float32), np.empty(nothing, np.int64))
        scores = queries @ self.vectors.T  # (q, d) @ (d, n) -> (q, n)
        if allowed is not None:
            scores[:, ~allowed] = -np.inf
        positions = top(scores, k)
        ordered = np.take_along_axis(scores, positions, axis=1)
        positions[np.isneginf(ordered)] = -1
        return NearestKeys(ordered, positions)
