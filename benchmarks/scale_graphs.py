"""The indexes that `scale` measures beside: graphs of six libraries, and lists of RaBitQ codes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import faiss
import numpy as np
from threadpoolctl import threadpool_limits

from attend.core.types import Float32, Int64

BLOCK = 50_000

EFS = (10, 20, 30, 40, 60, 80, 100, 120, 140, 160, 200, 300, 500, 800)
"""Candidates of a graph's search."""

LISTS = (4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Inverted lists that a search reads."""

RADII = (0.0, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.4)
"""By how much NGT searches wider than the nearest that it has."""


class Graph(NamedTuple):
    """An index over vectors, from a library: how to fill it, search it and store it.

    Attributes:
        settings: how much a search reads, from little to much.
    """

    fill: Callable[[Float32], Any]
    search: Callable[[Float32, int, float], Int64]  # (queries, k, setting) -> positions
    save: Callable[[str], Any]
    settings: Sequence[float] = EFS


def blocks(vectors: Float32, add: Callable[[Float32], Any]) -> None:
    for at in range(0, len(vectors), BLOCK):
        add(vectors[at : at + BLOCK])


def hnswlib(folder: Path, shape: tuple[int, ...], links: int, breadth: int, threads: int) -> Graph:
    import hnswlib as peer

    index = peer.Index("ip", shape[1])
    index.init_index(shape[0], M=links, ef_construction=breadth)

    def search(queries: Float32, k: int, ef: float) -> Int64:
        index.set_ef(int(ef))
        positions: Int64 = index.knn_query(queries, k, num_threads=1)[0].astype(np.int64)
        return positions

    fill = partial(blocks, add=partial(index.add_items, num_threads=threads))
    return Graph(fill, search, index.save_index)


def usearch(folder: Path, shape: tuple[int, ...], links: int, breadth: int, threads: int) -> Graph:
    from usearch.index import Index

    index = Index(
        ndim=shape[1], metric="ip", dtype="f32", connectivity=links, expansion_add=breadth
    )

    def add(block: Float32) -> None:
        index.add(np.arange(len(index), len(index) + len(block)), block, threads=threads)

    def search(queries: Float32, k: int, ef: float) -> Int64:
        index.expansion_search = int(ef)
        positions: Int64 = index.search(queries, k, threads=1).keys.astype(np.int64)
        return positions.reshape(len(queries), k)

    return Graph(partial(blocks, add=add), search, index.save)


def faiss_hnsw(
    folder: Path, shape: tuple[int, ...], links: int, breadth: int, threads: int
) -> Graph:
    index = faiss.IndexHNSWFlat(shape[1], links, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = breadth

    def add(block: Float32) -> None:
        with threadpool_limits(threads, "openmp"):
            index.add(block)

    def search(queries: Float32, k: int, ef: float) -> Int64:
        index.hnsw.efSearch = int(ef)
        positions: Int64 = index.search(queries, k)[1]
        return positions

    return Graph(partial(blocks, add=add), search, partial(faiss.write_index, index))


def svs_lvq(folder: Path, shape: tuple[int, ...], links: int, breadth: int, threads: int) -> Graph:
    """Vamana over keys of 4 bits a number, with 8 more to order what was reached."""
    import svs

    index: Any = None

    def fill(vectors: Float32) -> None:
        nonlocal index
        path = str(folder / "keys.fvecs")
        svs.write_vecs(np.asarray(vectors), path)
        keys = svs.VectorDataLoader(path, svs.DataType.float32, shape[1])
        building = svs.VamanaBuildParameters(graph_max_degree=links, window_size=breadth)
        index = svs.Vamana.build(
            building, svs.LVQLoader(keys, 4, 8, 32), svs.DistanceType.MIP, num_threads=threads
        )
        index.num_threads = 1

    def search(queries: Float32, k: int, ef: float) -> Int64:
        index.search_window_size = int(ef)
        positions: Int64 = index.search(queries, k)[0].astype(np.int64)
        return positions

    def save(path: str) -> None:
        index.save(f"{path}-search", f"{path}-graph", f"{path}-keys")

    return Graph(fill, search, save)


def symphony(folder: Path, shape: tuple[int, ...], links: int, breadth: int, threads: int) -> Graph:
    """SymphonyQG: each key with the codes of its neighbours beside it."""
    import rabitqlib

    index = rabitqlib.SymqgIndex(shape[1], links, metric="ip")
    return Graph(
        lambda vectors: index.build(np.asarray(vectors), breadth, num_threads=threads),
        partial(_by_rabitq_graph, index),
        index.save,
    )


def rabitq_hnsw(
    folder: Path, shape: tuple[int, ...], links: int, breadth: int, threads: int
) -> Graph:
    """HNSW over RaBitQ's codes of 8 bits a number."""
    import rabitqlib

    index = rabitqlib.HnswIndex(shape[1], shape[0], links, breadth, 8, "ip")

    def fill(vectors: Float32) -> None:
        centroids, lists = _clusters(vectors, 16)
        index.build(np.asarray(vectors), centroids, lists, threads, True)

    return Graph(fill, partial(_by_rabitq_graph, index), index.save)


def rabitq_lists(
    folder: Path, shape: tuple[int, ...], bits: int, breadth: int, threads: int
) -> Graph:
    """Inverted lists of RaBitQ's codes, as many as its documentation counsels."""
    import rabitqlib

    count = int(2 ** round(np.log2(4 * np.sqrt(shape[0]))))
    index = rabitqlib.IvfIndex(shape[1], shape[0], count, bits, "ip")

    def fill(vectors: Float32) -> None:
        centroids, lists = _clusters(vectors, count)
        index.build(np.asarray(vectors), centroids, lists, threads, True)

    return Graph(fill, partial(_by_rabitq, index), index.save, LISTS)


def _clusters(vectors: Float32, count: int) -> tuple[Float32, Any]:
    """Centroids (count, d), and the nearest one of each vector (n,)."""
    means = faiss.Kmeans(vectors.shape[1], count, niter=10, max_points_per_centroid=40)
    means.train(np.ascontiguousarray(vectors[:: max(1, len(vectors) // (40 * count))]))
    nearest: list[Int64] = []
    blocks(vectors, lambda block: nearest.append(means.index.search(block, 1)[1][:, 0]))
    centroids = np.asarray(means.centroids)
    return centroids, np.concatenate(nearest).astype(np.uint32)


def _by_rabitq(index: Any, queries: Float32, k: int, setting: float) -> Int64:
    positions, _ = index.search(queries, k, int(setting), num_threads=1)
    return np.asarray(positions, np.int64)


def _by_rabitq_graph(index: Any, queries: Float32, k: int, ef: float) -> Int64:
    return _by_rabitq(index, queries, k, max(ef, k))


def ngt(folder: Path, shape: tuple[int, ...], links: int, breadth: int, threads: int) -> Graph:
    """NGT's graph and tree (ANNG), which has no breadth of construction."""
    import ngtpy

    place = str(folder / "ngt")
    ngtpy.create(place, shape[1], links, 2 * links, "Normalized Cosine")
    index = ngtpy.Index(place, log_disabled=True)

    def search(queries: Float32, k: int, radius: float) -> Int64:
        rows = [index.search(query, k, radius, with_distance=False) for query in queries]
        return np.array([[int(at) for at in row] for row in rows], np.int64)

    def save(path: str) -> None:
        index.save()
        Path(place).rename(path)

    fill = partial(blocks, add=partial(index.batch_insert, num_threads=threads))
    return Graph(fill, search, save, RADII)


GRAPHS: dict[str, tuple[Callable[..., Graph], int]] = {
    "hnswlib_16": (hnswlib, 16),
    "hnswlib_32": (hnswlib, 32),
    "usearch_16": (usearch, 16),
    "faiss_hnsw_32": (faiss_hnsw, 32),
    "svs_lvq_64": (svs_lvq, 64),
    "symphony_32": (symphony, 32),
    "rabitq_hnsw_16": (rabitq_hnsw, 16),
    "rabitq_lists_4": (rabitq_lists, 4),
    "ngt_20": (ngt, 20),
}
"""By library and links of a key, or bits of a number."""
