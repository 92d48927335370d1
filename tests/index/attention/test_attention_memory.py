"""Attention over all keys holds one block at a time, however many there are."""

from __future__ import annotations

import tracemalloc

import numpy as np

from attend.attention import Block, Blocks, mechanism
from tests.index.attention.single import attend_all

WIDTH, ROWS = 32, 2000


def generated(keys: int):
    """Blocks made when they are read, and forgotten after."""
    rng = np.random.default_rng(3)
    for start in range(0, keys, ROWS):
        documents = np.arange(start, start + ROWS, dtype=np.int64)
        block = rng.normal(size=(ROWS, 1, WIDTH)).astype(np.float32)
        yield Block(documents, documents - start, block)


def peak(keys: int, heads: int) -> int:
    how = mechanism(d_k=WIDTH, normalized=False, gates=np.full(heads, 1 / heads))
    query = np.random.default_rng(1).normal(size=(heads, WIDTH)).astype(np.float32)
    blocks = Blocks(lambda: generated(keys)) if heads > 1 else generated(keys)
    tracemalloc.start()
    try:
        found = attend_all(query, blocks, how, keep=100)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        assert found.total_documents == keys


def test_memory_is_flat_in_the_number_of_keys():
    for heads in (1, 2):
        few, many = peak(10_000, heads), peak(1_000_000, heads)
        assert many < few * 1.1, (heads, few, many)
