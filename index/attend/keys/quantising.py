"""Training, writing and reading quantised keys (`attend.keys.quantised`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from attend.errors import Damaged
from attend.keys.quantised import Point, QuantisedVectors
from attend.types import Float32

LISTS, CODES = "lists.faiss", "codes.faiss"

SAMPLE = 40
"""Keys a list is trained on."""

BLOCK = 8192
"""Keys quantised at a time."""


def list_count(keys: int) -> int:
    """Lists for so many keys: the power of two next to 2 √n, so that both reading centroids and
    reading lists stay a small part of reading all."""
    return int(2 ** max(4, round(np.log2(2 * np.sqrt(max(keys, 1))))))


def trained(sample: Float32, lists: int) -> Any:
    """Empty lists, whose centroids and codes fit a sample of keys (m, d)."""
    width = sample.shape[1]
    numbers = next(size for size in (4, 3, 5, 2, 1) if width % size == 0)
    index: Any = faiss.index_factory(
        width, f"IVF{lists},PQ{width // numbers}x4fs", faiss.METRIC_INNER_PRODUCT
    )
    # A tenth of FAISS's own effort: what is worth measuring of the rest is under half a point.
    index.cp.niter = index.pq.cp.niter = 10
    index.cp.min_points_per_centroid = index.pq.cp.min_points_per_centroid = 1
    index.cp.max_points_per_centroid = SAMPLE
    index.train(np.ascontiguousarray(sample))
    return index


def write(folder: Path, lists: Any, vectors: Float32) -> Iterator[int]:
    """Quantise keys (n, d) and write `LISTS` and `CODES`; yields how many were, block by block.

    Of the bytes only a block is in memory at once.
    """
    codes = faiss.IndexScalarQuantizer(
        lists.d, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT
    )
    codes.train(_sample(vectors))
    empty = bytes(faiss.serialize_index(codes))
    with open(folder / CODES, "wb") as file:
        file.write(_counted(empty, len(vectors)))
        for start in range(0, len(vectors), BLOCK):
            block = np.ascontiguousarray(vectors[start : start + BLOCK])
            lists.add(block)
            file.write(codes.sa_encode(block).tobytes())
            yield start + len(block)
    faiss.write_index(lists, str(folder / LISTS))


def _sample(vectors: Float32) -> Float32:
    """Keys from all over, that the range of each number is told by."""
    step = max(1, len(vectors) // 100_000)
    return np.ascontiguousarray(vectors[::step])


def _counted(empty: bytes, keys: int) -> bytes:
    """The head of a file of so many codes, made of an index that has none.

    FAISS has no way to write codes bit by bit. It puts the number of keys behind the four
    letters of the type and the width, and the number of bytes in front of the first.
    """
    head = bytearray(empty)
    head[8:16] = np.int64(keys).tobytes()
    width = int.from_bytes(head[4:8], "little")
    head[-8:] = np.int64(keys * width).tobytes()
    return bytes(head)


def read(
    folder: Path, vectors: Float32, points: Sequence[Point], target: float
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
    return QuantisedVectors(lists, codes, vectors, points, target)


def _read(path: Path, flags: int) -> Any:
    try:
        return faiss.read_index(str(path), flags)
    except RuntimeError as error:
        raise Damaged(f"{path} cannot be read as an index ({error}).") from error
