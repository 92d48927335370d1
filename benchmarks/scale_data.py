"""What scale is measured on: real embeddings grown to size, queries, and how both are timed."""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from common import data_set, progress

from attend.core.types import Float32, Int64
from attend.encoder import DEFAULT, load
from attend.keys.choose import share_found
from attend.keys.vectors import FlatVectors

RECALL, NEAREST, WIDTH = 0.95, 10, 384
QUERIES = 1000
NOISE = 0.02
BLOCK = 50_000
POOL = 4000


class Asked(NamedTuple):
    """Queries with the positions of their ten nearest keys."""

    queries: Float32
    truth: Int64

    def recall(self, found: Int64) -> float:
        """The share of the ten nearest among what was found (q, k)."""
        return round(float(share_found(found, self.truth).mean()), 4)


def real(sets: Path) -> Float32:
    """Embeddings of SciFact's abstracts, CoNaLa's snippets and banking77's questions."""
    texts = [json.loads(line)["text"] for name in ("scifact", "conala") for line in
             (data_set(sets, name) / "corpus.jsonl").read_text().splitlines()]  # fmt: skip
    with open(data_set(sets, "banking77") / "train.csv", newline="") as file:
        texts += [row["text"] for row in csv.DictReader(file)]
    chosen = np.random.default_rng(0).permutation(len(texts))[:POOL].tolist()
    progress(f"encoding {len(chosen)} texts")
    return load(DEFAULT).encode_documents([texts[at][:300] for at in chosen])


def grown(pool: Float32, count: int, seed: int) -> Iterator[Float32]:
    """Blocks of vectors (m, d) that lie as those of the pool do."""
    rng = np.random.default_rng(seed)
    for at in range(0, count, BLOCK):
        size = min(BLOCK, count - at)
        one, other = pool[rng.integers(len(pool), size=(2, size))]
        share = rng.random((size, 1), dtype=np.float32)
        noise = rng.standard_normal(one.shape, dtype=np.float32)
        mixed = share * one + (1 - share) * other + np.float32(NOISE) * noise
        yield mixed / np.linalg.norm(mixed, axis=1, keepdims=True)


def grow(pool: Float32, count: int, path: Path) -> Float32:
    """Vectors (count, d) in a mapped file."""
    written = np.lib.format.open_memmap(path, "w+", np.float32, (count, WIDTH))
    at = 0
    for block in grown(pool, count, 0):
        written[at : at + len(block)] = block
        at += len(block)
    written.flush()
    vectors: Float32 = np.load(path, mmap_mode="r")
    return vectors


def asked(vectors: Float32, queries: Float32) -> tuple[Asked, Asked]:
    """Half of the queries to tune with, and the others to measure with."""
    truth = FlatVectors(vectors).search(queries, NEAREST, None).positions
    half = len(queries) // 2
    return Asked(queries[:half], truth[:half]), Asked(queries[half:], truth[half:])


def timed(call: Callable[[], Any], repeats: int = 3) -> tuple[Any, float]:
    """What a call returns, and the fewest seconds of this processor that it took."""
    seconds = []
    for _ in range(repeats):
        started = time.process_time()
        found = call()
        seconds.append(time.process_time() - started)
    return found, min(seconds)
