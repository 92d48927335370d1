"""Key vectors that are searched by inner product: exactly, or as codes; and the choice of the two.

Quantised keys are inverted lists of product-quantised keys, refined by bytes. A search reads the
lists whose centroids are nearest, compares their 4-bit codes (Jégou, Douze and Schmid 2011; André,
Kermarrec and Le Scouarnec 2017 for codes in registers), and orders the best of these by one byte
per number. Attention scores these candidates again by the keys themselves. The numbers of lists
and of candidates travel with each call: those for many keys are measured apart from those for few.

The kind of index that a collection gets is measured on its own keys. Exact search answers as long
as it is fast enough on this machine. Beyond that keys are quantised, and the parameters are those
that find the required share of the ten nearest, measured against exact search with held-out
queries: questions of the examples, or else keys moved away from where they lie.
"""

from __future__ import annotations

import logging
import time
import timeit
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import faiss
import numpy as np

from attend.attention import Softmax
from attend.core.arrays import top, unit
from attend.core.errors import Damaged
from attend.core.types import Bool, Float32, Float64, Int64, Json, OnStage

FETCH_SHARE = 8
"""A fetch of more than one key in eight costs what a scan does, which finds documents."""

SELECTED = 2
"""A mask that leaves less than one key in two is selective: a fetch reads these in place, while a
scan copies them."""

CROWDED = 4
"""Queries at once, times keys per document, from which on a scan is faster all the same: it
reads the keys once for all queries, and ranks documents instead of thousands of keys."""

EVEN = 0.1
"""The share of a sample that is drawn evenly from all keys, since a list may hold keys that weigh
more than its centroid."""


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

    def drawn(
        self, queries: Float32, gates: Float64, most: int, allowed: Bool | None = None
    ) -> tuple[Int64, Float64]:
        """Draw allowed keys to estimate each query's sum of exponentials over all of them.

        A list is drawn by the softmax weight of its centroid, mixed over the queries, and keys
        evenly within the list (importance sampling). What a key adds to a sum is divided by its
        rate: Horvitz and Thompson 1952. Equal queries draw the same keys.

        Args:
            queries: (p, d) scaled, so that products with keys are logits.
            gates: (p,) summing to one.
            most: keys to draw for queries that agree; for p that do not, up to p times as many.

        Returns: positions (m,), and rates (m,): how often each is drawn, which may be above one.
        """
        positions, sizes = self._by_list, self._sizes
        if allowed is not None:
            positions = positions[allowed[positions]]
            sizes = np.bincount(self._list_of[positions], minlength=len(sizes))
        filled = np.flatnonzero(sizes)
        sizes = sizes[filled]
        shares = Softmax.of(queries @ self._centroids[filled].T + np.log(sizes)).weights
        mixed = (1 - EVEN) * gates @ shares + EVEN * sizes / len(positions)  # (p,) @ (p, lists)
        count = min(len(positions), int(most * (gates @ shares**2 @ (1 / mixed))) + 1)
        ends = np.cumsum(mixed)
        points = (np.arange(count) + 0.5) / max(count, 1)
        lists = np.searchsorted(ends, points)
        within = (points - ends[lists]) / mixed[lists]  # from -1 to 0
        places = np.cumsum(sizes)[lists] + np.floor(within * sizes[lists]).astype(np.int64)
        return positions[places], (count * mixed / sizes)[lists]

    @cached_property
    def _centroids(self) -> Float32:
        """(lists, d) of length one; here of one list with all keys."""
        return np.zeros((1, self.vectors.shape[1]), dtype=np.float32)

    @cached_property
    def _list_of(self) -> np.ndarray[Any, np.dtype[np.int32]]:
        """(n,) the list of each key."""
        return np.zeros(len(self.vectors), dtype=np.int32)

    @cached_property
    def _sizes(self) -> Int64:
        """(lists,) the number of keys in each."""
        return np.bincount(self._list_of, minlength=len(self._centroids))

    @cached_property
    def _by_list(self) -> Int64:
        """(n,) the positions of keys, list by list."""
        return np.argsort(self._list_of, kind="stable")

    def promises(self, recall: float | None) -> float:
        """Return the share that a search for `recall` finds: 1 where it is exact."""
        return 1.0

    def cheaper(self, queries: int, fetch: int, keys: int, per_document: float) -> bool:
        """Return whether a search for `fetch` keys costs less than scoring `keys` of them."""
        few = fetch * FETCH_SHARE < len(self.vectors) and keys * SELECTED < len(self.vectors)
        return few and queries * per_document < CROWDED


LISTS, CODES = "lists.faiss", "codes.faiss"

SAMPLED = 40
"""Keys that a list is trained on."""

CODED = 8192
"""Keys quantised at a time."""

KEY_BYTES = 16
"""A key is 16 times as long as its 4-bit code: 4 bytes a number, and 1 for four."""

RARE = 2
"""Where allowed keys are more than this factor rarer near a query than everywhere, the query is
answered exactly."""


NEAREST, FETCHED = 10, 23
MANY, MANY_FETCHED = 100, 136
"""The nearest keys of which a share is promised, and the keys that are fetched to find them: what a
search that attends to ten, or to a hundred, documents fetches and scores again by the keys."""


class Point(NamedTuple):
    """Search parameters, and their measured results.

    Attributes:
        probes: lists that are read.
        factor: candidates by their codes, for each key that is fetched.
        recall: the share of the true ten nearest in the results; where many are fetched, also of
            the hundred nearest, whichever is less.
        seconds: of one query that comes alone.
        fetched: the keys that were fetched: `FETCHED` or `MANY_FETCHED`.
    """

    probes: int
    factor: int
    recall: float
    seconds: float
    fetched: int = FETCHED


class QuantisedVectors(FlatVectors):
    """Codes in memory, bytes and keys in mapped files.

    Attributes:
        lists, codes: an IndexIVFPQFastScan and an IndexScalarQuantizer; FAISS's own types lack
            some of their attributes.
        points: the measured parameters: first those where few keys are fetched, of which the
            fastest is the first and each next one finds more, then those where many are.
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

    def point(self, recall: float | None, fetch: int = FETCHED) -> Point | None:
        """Return the fastest parameters that found the share; None where none did.

        They were measured with at most as many keys as are fetched: fewer are found less well.
        """
        target = self.target if recall is None else recall
        enough = [point for point in self.points if point.recall >= target]
        many = [point for point in enough if FETCHED < point.fetched <= fetch]
        few = [point for point in enough if point.fetched == FETCHED]
        return next(iter(many or few), None)

    def promises(self, recall: float | None) -> float:
        """Return the share asked for, not the one measured: other queries may find less."""
        share = self.target if recall is None else recall
        return 1.0 if self.point(recall) is None else share

    def cheaper(self, queries: int, fetch: int, keys: int, per_document: float) -> bool:
        point, n = self.point(None, fetch), self.lists.ntotal
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
        point = self.point(recall, k)
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
            results.scores[far], results.positions[far] = super().search(queries[far], k, allowed)
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
        """Return the best by bytes of what is best by codes."""
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
        scores = np.full((len(queries), k), -np.inf, dtype=np.float32)
        positions = np.full((len(queries), k), -1, dtype=np.int64)
        for number, (query, row) in enumerate(zip(queries, results.positions, strict=True)):
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
        return np.asarray(self.lists.quantizer.reconstruct_n(0, self.lists.nlist))

    @cached_property
    def _list_of(self) -> np.ndarray[Any, np.dtype[np.int32]]:
        lists = np.empty(self.lists.ntotal, dtype=np.int32)
        inverted = self.lists.invlists
        for number in range(self.lists.nlist):
            size = inverted.list_size(number)
            if size:
                lists[faiss.rev_swig_ptr(inverted.get_ids(number), size)] = number
        return lists

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


def train_lists(vectors: Float32) -> Any:
    """Return empty lists whose centroids and codes fit a sample of keys (n, d)."""
    keys, width = vectors.shape
    # The power of two next to 2 √n: reading centroids and reading lists both stay a small part
    # of reading all.
    lists = int(2 ** max(4, round(np.log2(2 * np.sqrt(keys)))))
    sample = np.random.default_rng(keys).choice(keys, min(keys, lists * SAMPLED), replace=False)
    # Codes of four numbers ask for 4 to 8 times as many candidates, and twice the time.
    numbers = next(size for size in (2, 3, 5, 1) if width % size == 0)
    index: Any = faiss.index_factory(
        width, f"IVF{lists},PQ{width // numbers}x4fs", faiss.METRIC_INNER_PRODUCT
    )
    # A tenth of FAISS's own effort: the rest gains less than half a point.
    index.cp.niter = index.pq.cp.niter = 10
    index.cp.min_points_per_centroid = index.pq.cp.min_points_per_centroid = 1
    index.cp.max_points_per_centroid = SAMPLED
    index.train(np.ascontiguousarray(vectors[np.sort(sample)]))
    return index


def write_codes(folder: Path, lists: Any, vectors: Float32) -> Iterator[int]:
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
        for start in range(0, len(vectors), CODED):
            block = np.ascontiguousarray(vectors[start : start + CODED])
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


def read_codes(
    folder: Path, vectors: Float32, points: Sequence[Point] = (), target: float = 1.0
) -> QuantisedVectors:
    """Read the files that `write_codes` wrote; the bytes stay in theirs, and processes share them.

    Raises:
        Damaged: a file is no index, or they are not of the same keys.
    """
    lists = _read_index(folder / LISTS, 0)
    codes = _read_index(folder / CODES, faiss.IO_FLAG_MMAP_IFC)
    if not lists.ntotal == codes.ntotal == len(vectors):
        raise Damaged(
            f"{folder} holds {len(vectors)} vectors, but {lists.ntotal} codes and {codes.ntotal} "
            f"rows of bytes."
        )
    widths = (vectors.shape[1], lists.d, codes.d, codes.code_size)
    if len(set(widths)) > 1 or codes.codes.size() != vectors.size:
        raise Damaged(f"{folder} holds vectors and codes of other widths: {widths}.")
    _halve_centroids(lists)
    return QuantisedVectors(lists, codes, vectors, points, target)


def _halve_centroids(lists: Any) -> None:
    """Let a search compare centroids in half precision, which takes half the time of one query.

    Half of a search of 1,000,000 keys for one query was the comparison with 2,048 centroids.
    """
    halved: Any = faiss.IndexScalarQuantizer(
        lists.d, faiss.ScalarQuantizer.QT_bf16, faiss.METRIC_INNER_PRODUCT
    )
    halved.add(lists.quantizer.reconstruct_n(0, lists.nlist))
    # Each belongs to the index that points to it.
    before, lists.quantizer = lists.quantizer, halved
    before.thisown, halved.thisown = True, False


def _read_index(path: Path, flags: int) -> Any:
    try:
        return faiss.read_index(str(path), flags)
    except RuntimeError as error:
        raise Damaged(f"{path} cannot be read as an index ({error}).") from error


log = logging.getLogger("attend")

FEW_KEYS = 20_000
"""Below this number of keys nothing is measured: exact search takes a millisecond or two."""

LEAST_KEYS = 1000
"""Fewer keys train no index, whatever the target says."""

EXACT_SECONDS = 0.005
"""The most seconds that one exact search may take."""

QUERIES, TIMED = 256, 64
"""Held-out queries, and those of them that are timed, one by one."""

FACTORS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
"""Candidates by their codes for each key fetched. By codes of four numbers, 64 times as many found
0.942 of the nearest of a million keys, 128 times 0.965; of ten millions 256 times found 0.946."""

USUAL = 256
"""Beyond this factor none is measured once one has found as much as is required."""

SHARE = 8
"""Candidates that are more than one key in eight cost the same as an exact search."""

ENOUGH = 0.995
"""Beyond this share no further parameters are measured, unless the target is higher."""

LEVEL = 0.002
"""A gain below this is not worth twice the lists, or twice the candidates."""

AMID = 8
"""Keys that a query lies amid. With noise of half its length, questions of SciFact, CoNaLa,
banking77 and goodbooks were found as well as they to a hundredth, wherever they were found well
enough; amid fewer keys, or without noise, not always."""

NOISE = 0.5


@dataclass(frozen=True)
class IndexTarget:
    """The requirements on an index.

    Attributes:
        recall: share of the ten nearest keys that a search finds at least; 1 for exact search.
        exact_below: fewer keys than this are searched exactly; None for the number that this
            machine searches in `EXACT_SECONDS`.
        questions: queries (q, d) in the space of the keys, to measure with; None for some that
            are made of the keys.
    """

    recall: float = 0.95
    exact_below: int | None = None
    questions: Float32 | None = None


FLAT: dict[str, Json] = {"type": "flat", "recall": 1.0}


def choose(
    folder: Path, vectors: Float32, target: IndexTarget, on_stage: OnStage
) -> tuple[dict[str, Json], tuple[str, ...]]:
    """Choose the index of keys (n, d), and write its files, if it has any, into the folder.

    Returns: the index as its manifest describes it, and the names of its files.
    """
    exact, why = _exact_suffices(vectors, target)
    if exact:
        return _flat(vectors, why), ()
    started = time.perf_counter()
    index = _quantise(folder, vectors, on_stage)
    index.points = tuple(tune(index, target.recall, target.questions, on_stage))
    files = LISTS, CODES
    fit = index.point(target.recall)
    if fit is None:
        for file in files:
            (folder / file).unlink()
        best = max(point.recall for point in index.points if point.fetched == FETCHED)
        reason = f"quantised, at most {best:.3f} of the nearest are found, and not {target.recall}"
        return _flat(vectors, reason), ()
    size = sum((folder / file).stat().st_size for file in files)
    description: dict[str, Json] = {
        "type": f"IVF{index.lists.nlist},PQ{index.lists.pq.M}x4fs,Refine(SQ8)",
        "why": why,
        "recall": fit.recall,
        "target": target.recall,
        "measured_on": "keys" if target.questions is None else "questions",
        "bytes_per_key": round(size / len(vectors), 1),
        "seconds": round(time.perf_counter() - started, 1),
        "points": [list(point) for point in index.points],
    }
    return description, files


def _flat(vectors: Float32, why: str) -> dict[str, Json]:
    return {**FLAT, "why": why, "bytes_per_key": 4 * vectors.shape[1]}


def open_index(folder: Path, vectors: Float32, description: Mapping[str, Any]) -> FlatVectors:
    """Open the index that was chosen for keys (n, d).

    Raises:
        Damaged: its files are not what was written.
    """
    if description["type"] == FLAT["type"]:
        return FlatVectors(vectors)
    points = [Point(*numbers) for numbers in description["points"]]
    return read_codes(folder, vectors, points, float(description["target"]))


def _exact_suffices(vectors: Float32, target: IndexTarget) -> tuple[bool, str]:
    """Return whether the keys are searched exactly, and why."""
    keys, least = len(vectors), target.exact_below
    if target.recall >= 1:
        return True, "all of the nearest are to be found"
    few = FEW_KEYS if least is None else max(least, LEAST_KEYS)
    if keys < few:
        return True, f"fewer than {few} keys"
    if least is not None:
        return False, f"not fewer than {least} keys"
    seconds = exact_seconds(vectors)
    return seconds <= EXACT_SECONDS, f"an exact search takes {seconds * 1000:.1f} ms"


def exact_seconds(vectors: Float32) -> float:
    """Return the processor time of one exact search among keys (n, d), the best of three."""
    search = partial(FlatVectors(vectors).search, vectors[:1], NEAREST)
    return min(timeit.repeat(search, timer=time.thread_time, number=1, repeat=3))


def _quantise(folder: Path, vectors: Float32, on_stage: OnStage) -> QuantisedVectors:
    keys = len(vectors)
    log.info("quantising %d keys", keys)
    on_stage("training lists", 0.0)
    for done in write_codes(folder, train_lists(vectors), vectors):
        on_stage("quantising", done / keys)
    return read_codes(folder, vectors)


def tune(
    index: QuantisedVectors, recall: float, questions: Float32 | None, on_stage: OnStage
) -> list[Point]:
    """Measure search parameters, and return the useful ones, the fastest first.

    The recall of each is one to rely on.

    Args:
        recall: the target; beyond it, and beyond `ENOUGH`, nothing is measured.
        questions: queries (q, d) to measure with; None for some made of the keys.
    """
    queries = held_out(index.vectors, questions)
    truth = FlatVectors(index.vectors).search(queries, MANY).positions
    lists, useful = int(index.lists.nlist), list[Point]()
    for depth, fetched in enumerate((FETCHED, MANY_FETCHED)):
        points, last = list[Point](), dict[int, Point]()
        worth = [2**power for power in range(2, lists.bit_length()) if 2**power <= lists]
        factors = [factor for factor in FACTORS if factor * fetched * SHARE <= index.lists.ntotal]
        for number, factor in enumerate(factors or FACTORS[:1]):
            on_stage("measuring", (number / max(len(factors), 1) + depth) / 2)
            for probes in list(worth):
                point = Point(probes, factor, 0.0, 0.0, fetched)
                points.append(_measured(index, point, queries, truth))
                # More candidates find nothing more where the lists are what loses it,
                if probes in last and _levelled(last[probes], points[-1]):
                    worth.remove(probes)
                last[probes] = points[-1]
                # and more lists find nothing more where the codes are.
                if len(points) > 1 and points[-2].factor == factor and _levelled(*points[-2:]):
                    break
            if points[-1].recall >= (recall if factor >= USUAL else max(ENOUGH, recall)):
                break
        most = -1.0
        for point in sorted(points, key=lambda point: (point.seconds, -point.recall)):
            useful += [point] if point.recall > most else []
            most = max(most, point.recall)
    return useful


def held_out(vectors: Float32, questions: Float32 | None) -> Float32:
    """Return queries (q, d) to measure parameters with.

    Those made of keys (n, d) are harder than questions: they lie amid several keys, where many
    lists are equally near, and have noise, which asks much of the codes. Keys moved a little
    would promise a recall that no question gets.
    """
    rng = np.random.default_rng(len(vectors))
    if questions is not None:
        places = rng.permutation(len(questions))[:QUERIES]
        return np.ascontiguousarray(questions[places], dtype=np.float32)
    sample = vectors[np.sort(rng.integers(len(vectors), size=AMID * QUERIES))]
    amid = sample[rng.permutation(len(sample))].reshape(AMID, QUERIES, -1).mean(axis=0)
    noise = rng.standard_normal(amid.shape, dtype=np.float32)
    lengths = np.linalg.norm(amid, axis=1)[:, None]
    moved: Float32 = amid + NOISE * lengths * unit(noise)
    return moved


def share_found(results: Int64, truth: Int64) -> Float32:
    """(q,) the share of each query's true nearest in its results (q, k)."""
    shares = [np.isin(true, row).mean() for true, row in zip(truth, results, strict=True)]
    return np.array(shares, dtype=np.float32)


def _measured(index: QuantisedVectors, point: Point, queries: Float32, truth: Int64) -> Point:
    results = index.search_at(point, queries, point.fetched).positions
    depths = (NEAREST, MANY)[: 1 if point.fetched == FETCHED else 2]
    shares = [share_found(results, truth[:, :nearest]) for nearest in depths]
    started = time.thread_time()
    for query in queries[:TIMED]:
        index.search_at(point, query[None], point.fetched)
    seconds = (time.thread_time() - started) / len(queries[:TIMED])
    # One standard error less: a promise must hold.
    relied = min(float(one.mean() - one.std() / np.sqrt(len(one))) for one in shares)
    return point._replace(recall=round(relied, 4), seconds=round(seconds, 7))


def _levelled(before: Point, after: Point) -> bool:
    return after.recall - before.recall < LEVEL
