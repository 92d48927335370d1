"""Attention over all keys holds one block at a time, however many there are."""

from __future__ import annotations

import tracemalloc

import numpy as np

from attend.attention import attend_many
from tests.index.attention.single import mechanism, table

WIDTH, ROWS = 32, 2000


def generated(keys: int):
    """Blocks made when they are read, and forgotten after."""
    rng = np.random.default_rng(3)
    for start in range(0, keys, ROWS):
        documents = np.arange(start, start + ROWS, dtype=np.int64)
        block = rng.normal(size=(ROWS, 1, WIDTH)).astype(np.float32)
        yield table(block, documents)


def peak(keys: int, heads: int) -> int:
    how = mechanism(d_k=WIDTH, gates=np.full(heads, 1 / heads))
    query = np.random.default_rng(1).normal(size=(heads, WIDTH)).astype(np.float32)
    tracemalloc.start()
    try:
        found = attend_many(query[None], lambda: generated(keys), how, keep=100)[0]
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        assert found.total_documents == keys


def test_memory_is_flat_in_the_number_of_keys():
    for heads in (1, 2):
        few, many = peak(10_000, heads), peak(1_000_000, heads)
        assert many < few * 1.1, (heads, few, many)
