"""Key vectors that are searched by inner product: exactly, by FAISS."""

from __future__ import annotations

from typing import NamedTuple

import faiss
import numpy as np

from attend.core.types import Bool, Float32, Int64

FETCH_SHARE = 8
"""A fetch of more than one key in eight costs what a scan does, which finds documents."""

CROWDED = 32
"""Queries at once, times keys per document, from which on a scan is faster than a fetch: it
reads the keys once for many queries, and ranks documents instead of thousands of keys."""


class NearestKeys(NamedTuple):
    """The nearest keys of each query, best first; `-1` fills up where there are too few."""

    scores: Float32  # (q, k)
    positions: Int64  # (q, k)

    @classmethod
    def empty(cls, queries: int, k: int) -> NearestKeys:
        """Return memory for the results of some queries."""
        return cls(np.empty((queries, k), np.float32), np.empty((queries, k), np.int64))


class Selector:
    """A mask over positions (n,) as FAISS takes it; keep it while the call lasts."""

    def __init__(self, allowed: Bool) -> None:
        # FAISS points into these bits: both must outlive the call.
        self._bits = np.packbits(allowed, bitorder="little")
        self.faiss = faiss.IDSelectorBitmap(len(allowed), faiss.swig_ptr(self._bits))


class FlatVectors:
    """A matrix (n, d), which may lie in a mapped file and is not written to.

    A search finds the true nearest and reads every key for it.
    """

    def __init__(self, vectors: Float32) -> None:
        self.vectors = vectors

    def search(
        self,
        queries: Float32,
        k: int,
        allowed: Bool | None = None,
        recall: float | None = None,
    ) -> NearestKeys:
        """Return the k allowed keys with the largest inner products. queries (q, d); allowed (n,).

        Args:
            recall: the share of the true nearest that the results must have; None for the share
                that the index was built for.
        """
        queries = np.ascontiguousarray(queries, dtype=np.float32)
        n, width = self.vectors.shape
        results = NearestKeys.empty(len(queries), k)
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

    def promises(self, recall: float | None) -> float:
        """Return the share that a search for `recall` finds: 1 where it is exact."""
        return 1.0

    def cheaper(self, queries: int, fetch: int, keys: int, per_document: float) -> bool:
        """Return whether a search for `fetch` keys costs less than scoring `keys` of them."""
        few = fetch * FETCH_SHARE < len(self.vectors)
        return few and queries * per_document < CROWDED
