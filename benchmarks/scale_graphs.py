"""The graphs that `scale` measures beside: hnswlib, usearch and FAISS's HNSW."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import faiss
import numpy as np
from threadpoolctl import threadpool_limits

from attend.core.types import Float32, Int64


class Graph(NamedTuple):
    """A graph over vectors, from a library: how to add some, search and store it."""

    add: Callable[[Float32], Any]
    search: Callable[[Float32, int, int], Int64]  # (queries, k, ef) -> positions
    save: Callable[[str], Any]


def hnswlib(shape: tuple[int, ...], links: int, breadth: int, threads: int) -> Graph:
    import hnswlib as peer

    index = peer.Index("ip", shape[1])
    index.init_index(shape[0], M=links, ef_construction=breadth)

    def search(queries: Float32, k: int, ef: int) -> Int64:
        index.set_ef(ef)
        found: Int64 = index.knn_query(queries, k, num_threads=1)[0].astype(np.int64)
        return found

    return Graph(partial(index.add_items, num_threads=threads), search, index.save_index)


def usearch(shape: tuple[int, ...], links: int, breadth: int, threads: int) -> Graph:
    from usearch.index import Index

    index = Index(
        ndim=shape[1], metric="ip", dtype="f32", connectivity=links, expansion_add=breadth
    )

    def add(block: Float32) -> None:
        index.add(np.arange(len(index), len(index) + len(block)), block, threads=threads)

    def search(queries: Float32, k: int, ef: int) -> Int64:
        index.expansion_search = ef
        found: Int64 = index.search(queries, k, threads=1).keys.astype(np.int64)
        return found.reshape(len(queries), k)

    return Graph(add, search, index.save)


def faiss_hnsw(shape: tuple[int, ...], links: int, breadth: int, threads: int) -> Graph:
    index = faiss.IndexHNSWFlat(shape[1], links, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = breadth

    def add(block: Float32) -> None:
        with threadpool_limits(threads, "openmp"):
            index.add(block)

    def search(queries: Float32, k: int, ef: int) -> Int64:
        index.hnsw.efSearch = ef
        found: Int64 = index.search(queries, k)[1]
        return found

    return Graph(add, search, partial(faiss.write_index, index))


GRAPHS: dict[str, tuple[Callable[..., Graph], int]] = {
    "hnswlib_16": (hnswlib, 16),
    "hnswlib_32": (hnswlib, 32),
    "usearch_16": (usearch, 16),
    "faiss_hnsw_32": (faiss_hnsw, 32),
}
"""By library and links of a key."""
