"""Sizing: what 10 million, 100 million and a billion keys need, from what is measured here.

- `merged_recall`: keys of one set spread over shards, each with an index of its own that promises
  0.95; the ten best of what all shards list, against the exact ten of the whole. Beside it the
  model's figure, from how often a shard finds its own nearest, second nearest and so on.
- `slowest_shard_ms`: the median and the tail of the slowest shard, query by query, and of the
  model, from the latencies of one shard. Its bound is not to be exceeded but by noise.
- `--milvus` (with requirements-milvus.txt): bytes and seconds a key, and seconds a search, of a
  Milvus server, by index type; then the plan, with its arithmetic.

`merged_recall_over_model` and `slowest_over_model` are ratios of measured to modelled.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import faiss
import numpy as np
from common import DATA, parser, progress, tell
from scale_data import grown, real
from sizing_model import GIB, Measured, Node, Plan, merged_recall, plan, slowest

from attend.core.arrays import KeyTable
from attend.core.types import Float32, Float64, Int64
from attend.keys import IndexOrigin, IndexTarget, Progress, PublishedIndexes
from attend.keys.choose import FETCHED, share_found
from attend.keys.vectors import FlatVectors

RECALL, NEAREST, WIDTH = 0.95, 10, 384
QUERIES = 500
SIZES = (10_000_000, 100_000_000, 1_000_000_000)
ENCODED_A_SECOND = 1400.0
"""Short texts at batch 64 on two cores, all-MiniLM-L6-v2 in bfloat16 (benchmarks/build.py)."""

QUANTILES = (0.5, 0.95, 0.99)


class Shard(NamedTuple):
    """What one shard lists for each query, best first, and how long each took.

    Shapes: keys (q, k) and scores (q, k); seconds (q,).
    """

    keys: Int64
    scores: Float32
    seconds: Float64


def main() -> None:
    options = _options()
    faiss.omp_set_num_threads(1)
    pool = real(options.sets)
    keys, shards = (100_000, 4) if options.quick else (400_000, 8)
    with tempfile.TemporaryDirectory(dir=options.data) as folder:
        figures: dict[str, Any] = {"merge": merged(Path(folder), pool, keys, shards)}
    if options.milvus:
        figures["milvus"] = of_milvus(pool, options.milvus)
        figures["plans"] = {kind: plans(kind, each) for kind, each in figures["milvus"].items()}
    tell(ratios(figures["merge"]), figures, options.json)


def _options() -> argparse.Namespace:
    made = parser(__doc__.splitlines()[0])
    made.add_argument("--data", type=Path, help="where to write (2 GB)")
    made.add_argument("--milvus", type=int, metavar="KEYS", help="measure a server with so many")
    made.add_argument("--folder", "--sets", dest="sets", type=Path, default=DATA)
    return made.parse_args()


def ratios(figures: dict[str, Any]) -> dict[str, float]:
    found, model = figures["slowest_shard_ms"], figures["slowest_shard_ms_by_model"]
    return {
        "merged_recall_over_model": round(
            figures["merged_recall"] / figures["merged_recall_by_model"], 4
        ),
        "slowest_over_model": round(found["0.5"] / model["0.5"], 3),
    }


# -- merging ------------------------------------------------------------------------------------


def merged(folder: Path, pool: Float32, count: int, shards: int) -> dict[str, Any]:
    vectors = np.concatenate(list(grown(pool, count, 0)))
    tuning, queries = np.split(next(grown(pool, 2 * QUERIES, 1)), 2)
    truth = FlatVectors(vectors).search(queries, NEAREST, None).positions
    of = np.random.default_rng(2).integers(shards, size=count)  # as a hash of the id
    found, alone = [], []
    for number in range(shards):
        progress(f"shard {number + 1} of {shards}")
        own = np.flatnonzero(of == number)
        found.append(searched(folder / str(number), vectors[own], own, tuning, queries))
        exact = own[FlatVectors(vectors[own]).search(queries, NEAREST, None).positions]
        alone.append((exact[:, :, None] == found[-1].keys[:, None, :]).any(axis=2).mean(axis=0))
    seconds = np.stack([each.seconds for each in found])  # (n, q)
    recall = share_found(best(found), truth)
    return {
        "keys": count,
        "shards": shards,
        "shard_recall": [round(float(each.mean()), 4) for each in alone],
        "shard_recall_by_rank": np.mean(alone, axis=0).round(4).tolist(),
        "merged_recall": round(float(recall.mean()), 4),
        "merged_recall_by_model": round(merged_recall(np.mean(alone, axis=0), shards), 4),
        "shard_ms": in_ms([float(np.quantile(seconds, q)) for q in QUANTILES]),
        "slowest_shard_ms": in_ms([float(np.quantile(seconds.max(axis=0), q)) for q in QUANTILES]),
        "slowest_shard_ms_by_model": in_ms(
            [slowest(seconds.ravel(), shards, q) for q in QUANTILES]
        ),
    }


def in_ms(seconds: list[float]) -> dict[str, float]:
    return {str(q): round(1000 * each, 3) for q, each in zip(QUANTILES, seconds, strict=True)}


def best(found: list[Shard]) -> Int64:
    """The best of what all shards list, by their scores. (q, NEAREST)"""
    keys = np.concatenate([each.keys for each in found], axis=1)
    scores = np.concatenate([each.scores for each in found], axis=1)
    order = np.argsort(-scores, axis=1)[:, :NEAREST]
    return np.take_along_axis(keys, order, axis=1)


def searched(
    folder: Path, vectors: Float32, ids: Int64, tuning: Float32, queries: Float32
) -> Shard:
    """One shard with an index of its own, asked one query after another."""
    made = published(folder, vectors, tuning)
    keys = np.empty((len(queries), NEAREST), np.int64)
    scores = np.empty((len(queries), NEAREST), np.float32)
    seconds = np.empty(len(queries))
    for at, query in enumerate(queries):
        started = time.thread_time()  # of this thread: neighbours are no part of it
        positions = made.search(query[None], FETCHED, None).positions[0]
        own = vectors[positions] @ query  # (c, d) @ (d,) -> (c,)
        order = np.argsort(-own)[:NEAREST]
        seconds[at] = time.thread_time() - started
        keys[at], scores[at] = ids[positions[order]], own[order]
    return Shard(keys, scores, seconds)


def published(folder: Path, vectors: Float32, tuning: Float32) -> Any:
    """The index that Attend chooses for these keys."""
    ids, known = np.arange(len(vectors)), list[str]()
    indexes = PublishedIndexes(folder, IndexOrigin("benchmark", "none", WIDTH, "raw"))
    parts = [slice(at, at + 8192) for at in range(0, len(vectors), 8192)]
    rows = (KeyTable.of_keys(vectors[part], ids[part], ids[part]) for part in parts)
    wanted = IndexTarget(RECALL, exact_below=1, questions=tuning)
    indexes.publish(rows, len(vectors), 0, known.append, wanted)
    loaded = indexes.load(lambda: Progress(len(vectors), 0, known))
    assert loaded is not None
    return loaded[0].vectors


# -- the plan -----------------------------------------------------------------------------------


def of_milvus(pool: Float32, count: int) -> dict[str, Any]:
    from sizing_milvus import measure

    vectors = np.concatenate(list(grown(pool, count, 0)))
    queries = next(grown(pool, QUERIES, 1))
    with tempfile.TemporaryDirectory() as folder:
        return measure(Path(folder), vectors, queries, RECALL)


def plans(kind: str, figures: dict[str, Any]) -> list[dict[str, Any]]:
    made = [plan(keys, measured_of(figures), Node()) for keys in SIZES]
    for each in made:
        progress(f"{kind}: {told(each)}")
    return [json.loads(json.dumps(each._asdict())) for each in made]


def measured_of(figures: dict[str, Any]) -> Measured:
    stored = figures["store_seconds"] + figures["index_seconds"]
    return Measured(
        memory_bytes=figures["memory_bytes_a_key"],
        disk_bytes=figures["disk_bytes_a_key"],
        segment_keys=figures["keys"],
        search_seconds=figures["seconds_a_search"],
        store_seconds=stored / figures["keys"] * 1e6,
        encoded_a_second=ENCODED_A_SECOND,
    )


def told(each: Plan) -> str:
    return (
        f"{each.keys:,} keys: {each.memory / GIB:,.0f} GiB in memory for {each.replicas} "
        f"replicas, {each.nodes_a_replica} nodes each, {each.shards} shards, "
        f"{each.disk / GIB:,.0f} GiB on disk, {each.searches_a_second:,.0f} searches a second; on "
        f"one node {each.store_hours:.1f} hours to store and {each.encoding_hours:.1f} to encode"
    )


if __name__ == "__main__":
    main()
