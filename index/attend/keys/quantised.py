"""Keys as codes: inverted lists of product-quantised keys, refined by bytes.

A search reads the lists whose centroids are nearest, compares their 4-bit codes (Jégou, Douze
and Schmid 2011; André, Kermarrec and Le Scouarnec 2017 for codes in registers), and orders the
best of these by one byte a number. What it proposes, attention scores again by the keys
themselves. How many lists and how many candidates travel with each call.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import faiss
import numpy as np

from attend.arrays import top
from attend.keys.vectors import FlatVectors, NearestKeys, Selector
from attend.types import Bool, Float32, Float64, Int64

KEY_BYTES = 32
"""A key is so many times as long as its 4-bit code: 4 bytes a number, and 1 for eight."""

FETCH_SHARE = 8
"""A fetch of more than one key in so many costs as much as a scan, which finds documents."""

RARE = 2
"""Allowed keys so many times rarer near a query than everywhere are searched exactly."""


class Point(NamedTuple):
    """Search parameters, and what was measured with them.

    Attributes:
        probes: lists that are read.
        factor: candidates by their codes, for each key that is fetched.
        recall: the share of the true ten nearest among what was found.
        seconds: of one query.
    """

    probes: int
    factor: int
    recall: float
    seconds: float


class Probed(NamedTuple):
    """Lists to read for each query, nearest first, and -1 where there are no more."""

    lists: Int64  # (q, p)
    nearness: Float32  # (q, p) inner products with their centroids


class QuantisedVectors:
    """Codes in memory, bytes and keys in mapped files.

    Attributes:
        lists, codes: an IndexIVFPQFastScan and an IndexScalarQuantizer; FAISS's types say less
            than there is.
        points: the measured parameters, the fastest first; each next one finds more.
        target: the share to find where a call asks for none.
    """

    def __init__(
        self,
        lists: Any,
        codes: Any,
        vectors: Float32,
        points: Sequence[Point] = (),
        target: float = 1.0,
    ) -> None:
        self.lists, self.codes = lists, codes
        self.exact = FlatVectors(vectors)
        self.points, self.target = tuple(points), target
        self._refined = faiss.IndexRefine(lists, codes)

    def all(self) -> Float32:
        return self.exact.all()

    def point(self, recall: float | None) -> Point | None:
        """The fastest parameters that found so much; None where none did."""
        target = self.target if recall is None else recall
        return next((point for point in self.points if point.recall >= target), None)

    def promises(self, recall: float | None) -> float:
        """Return the share asked for, not the one measured: other queries may find less."""
        share = self.target if recall is None else recall
        return 1.0 if self.point(recall) is None else share

    def cheaper(self, queries: int, fetch: int, keys: int, per_document: float) -> bool:
        point, n = self.point(self.target), self.lists.ntotal
        if point is None or fetch * FETCH_SHARE >= min(keys, n):
            return False
        # A scan reads the allowed keys; a search the codes of as many lists as hold enough of them.
        codes = self._enough(point.probes) * n / keys
        return bool(keys * KEY_BYTES > codes)

    def search(
        self, queries: Float32, k: int, allowed: Bool | None, recall: float | None = None
    ) -> NearestKeys:
        point = self.point(recall)
        if point is None:
            return self.exact.search(queries, k, allowed)
        return self.search_at(point, queries, k, allowed)

    def propose(
        self, queries: Float32, k: int, allowed: Bool | None, recall: float | None = None
    ) -> NearestKeys:
        """As many candidates by their codes as are asked for, in the order of their bytes."""
        point = self.point(recall)
        if point is None:
            return self.exact.search(queries, k, allowed)
        return self.search_at(point._replace(factor=1), queries, k, allowed)

    def search_at(
        self, point: Point, queries: Float32, k: int, allowed: Bool | None = None
    ) -> NearestKeys:
        """With these parameters. `-1` fills up where the lists that were read hold too few."""
        queries = np.ascontiguousarray(queries, dtype=np.float32)
        if allowed is not None:
            return self._masked(point, queries, k, allowed)
        parameters = faiss.IndexRefineSearchParameters(
            k_factor=point.factor,  # type: ignore[call-arg] # SWIG adds it
            base_index_params=_reading(point.probes),
        )
        return NearestKeys(*self._refined.search(queries, k, params=parameters))

    def _masked(self, point: Point, queries: Float32, k: int, allowed: Bool) -> NearestKeys:
        """By codes where the mask leaves as much near a query as elsewhere; else by the keys.

        What is far off all lies about equally far, and codes do not tell it apart.
        """
        counts = np.bincount(self._list_of[allowed], minlength=self.lists.nlist)
        products = queries @ self._centroids.T  # (q, d) @ (d, lists) -> (q, lists)
        rarer = self._rarer(point, products, counts)
        far = rarer > RARE
        results = NearestKeys(
            np.empty((len(queries), k), np.float32), np.empty((len(queries), k), np.int64)
        )
        if far.any():
            results.scores[far], results.positions[far] = self.exact.search(
                queries[far], k, allowed
            )
        if not far.all():
            probed = self._probed(point, products[~far], counts, rarer[~far])
            near = queries[~far]
            results.scores[~far], results.positions[~far] = self._by_codes(
                near, k, point.factor, probed, allowed
            )
        return results

    def _rarer(self, point: Point, products: Float32, counts: Int64) -> Float64:
        """(q,) how many times rarer allowed keys are near a query than everywhere; at least 1."""
        near = top(products, point.probes)
        share = counts[near].sum(axis=1) / np.maximum(1, self._sizes[near].sum(axis=1))
        overall = counts.sum() / self.lists.ntotal
        quotient: Float64 = overall / np.maximum(share, 1 / self.lists.ntotal)
        return np.maximum(1, quotient)

    def _probed(self, point: Point, products: Float32, counts: Int64, rarer: Float64) -> Probed:
        """The nearest lists that hold as many allowed keys as an unmasked search reads keys.

        What a mask leaves is searched as finely as the whole is, and more so where it is rare.
        """
        masked = np.where(counts == 0, -np.inf, products)
        order = np.argsort(-masked, axis=1)
        read = np.cumsum(counts[order], axis=1)  # (q, lists)
        enough = np.minimum(self._enough(point.probes) * rarer**2, counts.sum())
        probes = int((read < enough[:, None]).sum(axis=1).max(initial=0)) + 1
        lists = np.ascontiguousarray(order[:, :probes], dtype=np.int64)
        nearness = np.ascontiguousarray(np.take_along_axis(masked, lists, axis=1))
        lists[np.isneginf(nearness)] = -1
        return Probed(lists, nearness.astype(np.float32))

    def _by_codes(
        self, queries: Float32, k: int, factor: int, probed: Probed, allowed: Bool
    ) -> NearestKeys:
        masked, shape = Selector(allowed), (len(queries), k * factor)
        distances, proposed = np.empty(shape, np.float32), np.empty(shape, np.int64)
        # By its pointers: the wrapper in Python takes no parameters here.
        self.lists.search_preassigned_c(
            len(queries),
            faiss.swig_ptr(queries),
            shape[1],
            faiss.swig_ptr(probed.lists),
            faiss.swig_ptr(probed.nearness),
            faiss.swig_ptr(distances),
            faiss.swig_ptr(proposed),
            False,
            _reading(probed.lists.shape[1], masked),
        )
        return self._by_bytes(queries, proposed, k)

    def _by_bytes(self, queries: Float32, proposed: Int64, k: int) -> NearestKeys:
        scores = np.full((len(queries), k), -np.inf, dtype=np.float32)
        positions = np.full((len(queries), k), -1, dtype=np.int64)
        for number, (query, row) in enumerate(zip(queries, proposed, strict=True)):
            valid = row[row >= 0]
            by_bytes = self.codes.sa_decode(self._bytes[valid]) @ query  # (m, d) @ (d,) -> (m,)
            best = np.argsort(-by_bytes, kind="stable")[:k]
            scores[number, : len(best)] = by_bytes[best]
            positions[number, : len(best)] = valid[best]
        return NearestKeys(scores, positions)

    def _enough(self, probes: int) -> int:
        """Keys in so many lists."""
        return max(1, probes * int(self.lists.ntotal) // int(self.lists.nlist))

    @cached_property
    def _centroids(self) -> Float32:
        centroids: Float32 = self.lists.quantizer.reconstruct_n(0, self.lists.nlist)
        return centroids

    @cached_property
    def _list_of(self) -> np.ndarray[Any, np.dtype[np.int32]]:
        """(n,) the list of each key."""
        lists = np.empty(self.lists.ntotal, dtype=np.int32)
        inverted = self.lists.invlists
        for number in range(self.lists.nlist):
            size = inverted.list_size(number)
            if size:
                lists[faiss.rev_swig_ptr(inverted.get_ids(number), size)] = number
        return lists

    @cached_property
    def _sizes(self) -> Int64:
        """(lists,) how many keys each holds."""
        return np.bincount(self._list_of, minlength=self.lists.nlist)

    @cached_property
    def _bytes(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """(n, d) as they lie in the file; this object keeps it open."""
        size = self.codes.ntotal * self.codes.code_size
        flat = faiss.rev_swig_ptr(self.codes.codes.data(), size)
        return np.asarray(flat.reshape(self.codes.ntotal, self.codes.code_size))


def _reading(probes: int, masked: Selector | None = None) -> Any:
    """Parameters of a call that reads so many lists."""
    selected = {} if masked is None else {"sel": masked.faiss}
    return faiss.SearchParametersIVF(nprobe=probes, **selected)  # type: ignore[call-arg] # SWIG's
