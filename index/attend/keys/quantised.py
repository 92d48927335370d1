"""Keys as codes: inverted lists of product-quantised keys, refined by bytes.

A search reads the lists whose centroids are nearest, compares their 4-bit codes (Jégou, Douze
and Schmid 2011; André, Kermarrec and Le Scouarnec 2017 for codes in registers), and orders the
best of these by one byte per number. Attention scores these candidates again by the keys
themselves. The numbers of lists and of candidates travel with each call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import faiss
import numpy as np

from attend.core.arrays import top
from attend.core.errors import Damaged
from attend.core.types import Bool, Float32, Float64, Int64
from attend.keys.vectors import FETCH_SHARE, FlatVectors, NearestKeys, Selector

LISTS, CODES = "lists.faiss", "codes.faiss"

SAMPLE = 40
"""Keys that a list is trained on."""

BLOCK = 8192
"""Keys quantised at a time."""

KEY_BYTES = 32
"""A key is 32 times as long as its 4-bit code: 4 bytes a number, and 1 for eight."""

RARE = 2
"""Where allowed keys are more than this factor rarer near a query than everywhere, the query is
answered exactly."""


class Point(NamedTuple):
    """Search parameters, and their measured results.

    Attributes:
        probes: lists that are read.
        factor: candidates by their codes, for each key that is fetched.
        recall: the share of the true ten nearest in the results.
        seconds: of one query.
    """

    probes: int
    factor: int
    recall: float
    seconds: float


class QuantisedVectors(FlatVectors):
    """Codes in memory, bytes and keys in mapped files.

    Attributes:
        lists, codes: an IndexIVFPQFastScan and an IndexScalarQuantizer; FAISS's own types lack
            some of their attributes.
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
        super().__init__(vectors)
        self.lists, self.codes = lists, codes
        self.points, self.target = tuple(points), target
        self._refined = faiss.IndexRefine(lists, codes)

    def point(self, recall: float | None) -> Point | None:
        """Return the fastest parameters that found the share; None where none did."""
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
        codes = self._keys_in(point.probes) * n / keys
        return bool(keys * KEY_BYTES > codes)

    def search(
        self,
        queries: Float32,
        k: int,
        allowed: Bool | None = None,
        recall: float | None = None,
    ) -> NearestKeys:
        point = self.point(recall)
        if point is None:
            return super().search(queries, k, allowed)
        return self.search_at(point, queries, k, allowed)

    def search_at(
        self, point: Point, queries: Float32, k: int, allowed: Bool | None = None
    ) -> NearestKeys:
        """Search with these parameters; `-1` fills up where the lists read hold too few keys."""
        queries = np.ascontiguousarray(queries, dtype=np.float32)
        if allowed is not None:
            return self._masked(point, queries, k, allowed)
        parameters = faiss.IndexRefineSearchParameters(
            k_factor=point.factor,  # type: ignore[call-arg] # SWIG adds it
            base_index_params=_probing(point.probes),
        )
        return NearestKeys(*self._refined.search(queries, k, params=parameters))

    def _masked(self, point: Point, queries: Float32, k: int, allowed: Bool) -> NearestKeys:
        """Search by codes where allowed keys are near a query as elsewhere; else by the keys.

        Keys that are all far off lie about equally far, and codes do not tell them apart.
        """
        counts = np.bincount(self._list_of[allowed], minlength=self.lists.nlist)
        products = queries @ self._centroids.T  # (q, d) @ (d, lists) -> (q, lists)
        rarer = self._rarer(point, products, counts)
        far = rarer > RARE
        results = NearestKeys.empty(len(queries), k)
        if far.any():
            exact = super().search(queries[far], k, allowed)
            results.scores[far], results.positions[far] = exact
        if not far.all():
            lists = self._probed(point, products[~far], counts, rarer[~far])
            near = self._by_codes(queries[~far], k, point.factor, lists, allowed)
            results.scores[~far], results.positions[~far] = near
        return results

    def _rarer(self, point: Point, products: Float32, counts: Int64) -> Float64:
        """(q,) how many times rarer allowed keys are near a query than everywhere; at least 1."""
        near = top(products, point.probes)
        share = counts[near].sum(axis=1) / np.maximum(1, self._sizes[near].sum(axis=1))
        overall = counts.sum() / self.lists.ntotal
        quotient: Float64 = overall / np.maximum(share, 1 / self.lists.ntotal)
        return np.maximum(1, quotient)

    def _probed(
        self, point: Point, products: Float32, counts: Int64, rarer: Float64
    ) -> NearestKeys:
        """Return the nearest lists with the number of allowed keys that an unmasked search reads.

        A masked search is as fine as one over all, and finer where allowed keys are rare.
        """
        masked = np.where(counts == 0, -np.inf, products)
        order = np.argsort(-masked, axis=1)
        read = np.cumsum(counts[order], axis=1)  # (q, lists)
        enough = np.minimum(self._keys_in(point.probes) * rarer**2, counts.sum())
        probes = int((read < enough[:, None]).sum(axis=1).max(initial=0)) + 1
        lists = np.ascontiguousarray(order[:, :probes], dtype=np.int64)
        nearness = np.ascontiguousarray(np.take_along_axis(masked, lists, axis=1))
        lists[np.isneginf(nearness)] = -1
        return NearestKeys(nearness.astype(np.float32), lists)

    def _by_codes(
        self, queries: Float32, k: int, factor: int, lists: NearestKeys, allowed: Bool
    ) -> NearestKeys:
        masked, results = Selector(allowed), NearestKeys.empty(len(queries), k * factor)
        # By its pointers: the wrapper in Python takes no parameters here.
        self.lists.search_preassigned_c(
            len(queries),
            faiss.swig_ptr(queries),
            k * factor,
            faiss.swig_ptr(lists.positions),
            faiss.swig_ptr(lists.scores),
            faiss.swig_ptr(results.scores),
            faiss.swig_ptr(results.positions),
            False,
            _probing(lists.positions.shape[1], masked),
        )
        return self._by_bytes(queries, results.positions, k)

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

    def _keys_in(self, probes: int) -> int:
        """Return the average number of keys in some lists."""
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
        """(lists,) the number of keys in each."""
        return np.bincount(self._list_of, minlength=self.lists.nlist)

    @cached_property
    def _bytes(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """(n, d) as they lie in the file; this object keeps it open."""
        size = self.codes.ntotal * self.codes.code_size
        flat = faiss.rev_swig_ptr(self.codes.codes.data(), size)
        return np.asarray(flat.reshape(self.codes.ntotal, self.codes.code_size))


def _probing(probes: int, masked: Selector | None = None) -> Any:
    """Return the parameters of a call that reads this number of lists."""
    selected = {} if masked is None else {"sel": masked.faiss}
    return faiss.SearchParametersIVF(nprobe=probes, **selected)  # type: ignore[call-arg] # SWIG's


def train(vectors: Float32) -> Any:
    """Return empty lists whose centroids and codes fit a sample of keys (n, d)."""
    keys, width = vectors.shape
    # The power of two next to 2 √n: reading centroids and reading lists both stay a small part
    # of reading all.
    lists = int(2 ** max(4, round(np.log2(2 * np.sqrt(keys)))))
    sample = np.random.default_rng(keys).choice(keys, min(keys, lists * SAMPLE), replace=False)
    numbers = next(size for size in (4, 3, 5, 2, 1) if width % size == 0)
    index: Any = faiss.index_factory(
        width, f"IVF{lists},PQ{width // numbers}x4fs", faiss.METRIC_INNER_PRODUCT
    )
    # A tenth of FAISS's own effort: the rest gains less than half a point.
    index.cp.niter = index.pq.cp.niter = 10
    index.cp.min_points_per_centroid = index.pq.cp.min_points_per_centroid = 1
    index.cp.max_points_per_centroid = SAMPLE
    index.train(np.ascontiguousarray(vectors[np.sort(sample)]))
    return index


def write(folder: Path, lists: Any, vectors: Float32) -> Iterator[int]:
    """Quantise keys (n, d), write `LISTS` and `CODES`, and yield the number done by block.

    Of the bytes only a block is in memory at once.
    """
    codes = faiss.IndexScalarQuantizer(
        lists.d, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT
    )
    # Keys from all over tell the range of each number.
    codes.train(np.ascontiguousarray(vectors[:: max(1, len(vectors) // 100_000)]))
    with open(folder / CODES, "wb") as file:
        file.write(_head(bytes(faiss.serialize_index(codes)), len(vectors)))
        for start in range(0, len(vectors), BLOCK):
            block = np.ascontiguousarray(vectors[start : start + BLOCK])
            lists.add(block)
            file.write(codes.sa_encode(block).tobytes())
            yield start + len(block)
    faiss.write_index(lists, str(folder / LISTS))


def _head(empty: bytes, keys: int) -> bytes:
    """Return the head of a file of codes, from the bytes of an index without any.

    FAISS has no way to write codes block by block. It puts the number of keys behind the four
    letters of the type and the width, and the number of bytes in front of the first.
    """
    head = bytearray(empty)
    head[8:16] = np.int64(keys).tobytes()
    width = int.from_bytes(head[4:8], "little")
    head[-8:] = np.int64(keys * width).tobytes()
    return bytes(head)


def read(
    folder: Path, vectors: Float32, points: Sequence[Point] = (), target: float = 1.0
) -> QuantisedVectors:
    """Read the files that `write` wrote; the bytes stay in theirs, and processes share them.

    Raises:
        Damaged: a file is no index, or they are not of the same keys.
    """
    lists = _read(folder / LISTS, 0)
    codes = _read(folder / CODES, faiss.IO_FLAG_MMAP_IFC)
    if not lists.ntotal == codes.ntotal == len(vectors):
        raise Damaged(
            f"{folder} holds {len(vectors)} vectors, but {lists.ntotal} codes and {codes.ntotal} "
            f"rows of bytes."
        )
    widths = (vectors.shape[1], lists.d, codes.d, codes.code_size)
    if len(set(widths)) > 1 or codes.codes.size() != vectors.size:
        raise Damaged(f"{folder} holds vectors and codes of other widths: {widths}.")
    return QuantisedVectors(lists, codes, vectors, points, target)


def _read(path: Path, flags: int) -> Any:
    try:
        return faiss.read_index(str(path), flags)
    except RuntimeError as error:
        raise Damaged(f"{path} cannot be read as an index ({error}).") from error
