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
import math
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import faiss
import numpy as np
import psutil
from common import DATA, parser, progress, tell
from scale import grown, real
from scipy import stats

from attend.core.arrays import KeyTable
from attend.core.types import Float32, Float64, Int64
from attend.keys import IndexOrigin, IndexTarget, Progress, PublishedIndexes
from attend.keys.vectors import FETCHED, FlatVectors, share_found

HOUR = 3600.0
GIB = 2**30


# -- merging ------------------------------------------------------------------------------------


def merged_recall(by_rank: Sequence[float] | Float64, shards: int) -> float:
    """The expected share of the k nearest that is among the best of what all shards list.

    Keys are spread over shards at random, as a hash of the id spreads them. So of the g − 1 that
    are nearer than the g-th nearest, B(g − 1, 1/n) lie on its shard and rank before it there. As a
    shard misses its far neighbours more often than its near ones, and the k nearest of all are near
    ones on every shard, the merged answer has more of them than any shard has of its own.

    Args:
        by_rank: (k,) how often a shard finds its own nearest, second nearest, …; 0 from the rank on
            that it does not list.

    >>> merged_recall([1.0] * 10, 16)
    1.0
    >>> round(merged_recall([1.0, 1.0] + [0.0] * 8, 16), 3)  # each shard lists two
    0.962
    """
    found, k = np.asarray(by_rank, dtype=np.float64), len(by_rank)
    before = np.arange(k)
    # (g, j): the chance that the g-th nearest ranks j-th on its shard
    chance = stats.binom.pmf(before[None, :], before[:, None], 1 / shards)
    return float((chance @ found).mean())


def slowest(latencies: Sequence[float] | Float64, shards: int, quantile: float) -> float:
    """A quantile of the slowest of n shards whose latencies are those measured of one.

    Where shards are slow independently, P(max ≤ t) = F(t)^n; the quantile q of the slowest is the
    quantile q^(1/n) of one (Dean and Barroso 2013, "The tail at scale"). Queries that are hard are
    so on every shard, for which this is an upper bound.

    >>> slowest([1.0, 2.0, 3.0, 4.0], 1, 0.5)
    2.0
    """
    return float(np.quantile(latencies, quantile ** (1 / shards), method="inverted_cdf"))


# -- the plan -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """What was measured, of keys with one width.

    Attributes:
        memory_bytes, disk_bytes: a key, in memory where it is searched and on disk.
        segment_keys: how many keys a segment has, which is searched as one.
        search_seconds: of one processor, for a search of one segment.
        store_seconds: of one processor, to take in and index a million keys.
        encoded_a_second: texts, on a machine of `encoder_cores`.
        latencies: seconds of one search each, of one segment.
    """

    memory_bytes: float
    disk_bytes: float
    segment_keys: int
    search_seconds: float
    store_seconds: float
    encoded_a_second: float
    encoder_cores: int = 2


@dataclass(frozen=True)
class Node:
    """A machine for searching. Of its memory a share is for keys: the rest is for what is fresh,
    for a segment that is being replaced, and for the system."""

    memory: float = 64 * GIB
    cores: int = 16
    share: float = 0.7


class Plan(NamedTuple):
    """What `keys` keys need, with `replicas` copies in memory."""

    keys: int
    replicas: int
    memory: float
    nodes_a_replica: int
    shards: int
    disk: float
    searches_a_second: float
    store_hours: float
    encoding_hours: float


CHANNEL_KEYS = 50_000_000
"""A write channel's keys: its log is read again when its node is lost."""


def plan(keys: int, measured: Measured, node: Node, replicas: int = 2) -> Plan:
    """Nodes by memory; searches a second by the seconds that all processors together have.

    A search reads every segment once, on one replica; a store keeps one copy on disk, for object
    storage makes its own. Hours are those of one node; n nodes divide them by n.
    """
    memory = keys * measured.memory_bytes * replicas
    nodes = math.ceil(memory / replicas / (node.memory * node.share))
    segments = math.ceil(keys / measured.segment_keys)
    return Plan(
        keys,
        replicas,
        memory,
        nodes,
        max(2, math.ceil(keys / CHANNEL_KEYS)),
        keys * measured.disk_bytes,
        replicas * nodes * node.cores / (segments * measured.search_seconds),
        keys / 1e6 * measured.store_seconds / node.cores / HOUR,
        keys / measured.encoded_a_second * measured.encoder_cores / node.cores / HOUR,
    )


INSERTED = 5000
"""Rows at once: 8 MB of 384 numbers each."""


class Kind(NamedTuple):
    """An index type of Milvus with its parameters, and how widely it may be searched."""

    name: str
    build: dict[str, int]
    breadth: str | None
    tried: tuple[int, ...] = (0,)


KINDS = (
    Kind("FLAT", {}, None),
    Kind("IVF_SQ8", {"nlist": 1024}, "nprobe", (8, 16, 32, 64, 128, 256)),
    Kind("HNSW", {"M": 16, "efConstruction": 200}, "ef", (16, 32, 48, 64, 96, 128, 192, 256)),
)


class Process:
    """What one process and its children have used so far."""

    def __init__(self, pid: int) -> None:
        process = psutil.Process(pid)
        self._all = [process, *process.children(recursive=True)]

    def seconds(self) -> float:
        return sum(sum(each.cpu_times()[:2]) for each in self._all)

    def resident(self) -> int:
        return sum(each.memory_info().rss for each in self._all)


def measure(folder: Path, vectors: Float32, queries: Float32, recall: float) -> dict[str, Any]:
    """Figures by index type, each with the narrowest search that reaches the recall."""
    from tests.milvus.server import running

    truth = FlatVectors(vectors).search(queries, NEAREST, None).positions
    with running(folder) as server:
        return {kind.name: of_kind(server, kind, vectors, queries, truth, recall) for kind in KINDS}


def of_kind(
    server: Any, kind: Kind, vectors: Float32, queries: Float32, truth: Int64,
    recall: float,
) -> dict[str, Any]:  # fmt: skip
    from pymilvus import MilvusClient

    progress(f"{kind.name}: {len(vectors)} keys in")
    client, process = MilvusClient(server.address, timeout=600), Process(server.pid)
    disk, started = used(server.folder / "data" / "data"), process.seconds()
    clock = time.monotonic()
    make(client, vectors.shape[1])
    for rows in batches(vectors):
        client.insert("sizing", rows)
    client.flush("sizing")
    stored, stored_clock = process.seconds() - started, time.monotonic() - clock
    client.create_index("sizing", index_of(client, kind))
    wait_for_index(client, len(vectors))
    built = process.seconds() - started - stored
    process = restarted(server)  # what was used for writing is not given back
    before = process.resident()
    client = MilvusClient(server.address, timeout=600)
    load(client)
    client.search("sizing", list(queries[:1]), limit=NEAREST)
    loaded = process.resident() - before
    figures = {
        "keys": len(vectors),
        "store_seconds": round(stored, 1),
        "store_clock_seconds": round(stored_clock, 1),
        "index_seconds": round(built, 1),
        "memory_bytes_a_key": round(loaded / len(vectors)),
        "disk_bytes_a_key": round((used(server.folder / "data" / "data") - disk) / len(vectors)),
        **milvus_searched(client, process, kind, queries, truth, recall),
    }
    client.drop_collection("sizing")
    client.close()
    return figures


def load(client: Any) -> None:
    """Soon after a start there may be nobody yet to load it."""
    from pymilvus import MilvusException

    for _ in range(10):
        try:
            return client.load_collection("sizing")
        except MilvusException as error:
            progress(f"  again: {error.message}")
            time.sleep(3)
    raise SystemExit("The server did not load what it had stored.")


def restarted(server: Any) -> Process:
    server.kill()
    server.start()
    server.wait_until_ready(300)
    return Process(server.pid)


def make(client: Any, width: int) -> None:
    from pymilvus import DataType

    if client.has_collection("sizing"):
        client.drop_collection("sizing")
    schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
    schema.add_field("key", DataType.INT64, is_primary=True)
    schema.add_field("document", DataType.INT64)
    schema.add_field("vector", DataType.FLOAT_VECTOR, dim=width)
    client.create_collection("sizing", schema=schema, num_shards=1)


def index_of(client: Any, kind: Kind) -> Any:
    params = client.prepare_index_params()
    params.add_index("vector", index_type=kind.name, metric_type="IP", params=kind.build)
    return params


def batches(vectors: Float32) -> Iterator[list[dict[str, Any]]]:
    for at in range(0, len(vectors), INSERTED):
        block = vectors[at : at + INSERTED]
        yield [
            {"key": key, "document": key, "vector": each}
            for key, each in enumerate(block, start=at)
        ]


def wait_for_index(client: Any, keys: int) -> None:
    while int(client.describe_index("sizing", "vector")["indexed_rows"]) < keys:
        time.sleep(0.5)


def milvus_searched(
    client: Any, process: Process, kind: Kind, queries: Float32, truth: Int64, recall: float
) -> dict[str, Any]:
    """The narrowest search that finds enough: queries one by one, as a service sends them."""
    for breadth in kind.tried:
        asked = {} if kind.breadth is None else {kind.breadth: breadth}
        started, latencies, found = process.seconds(), [], []
        for query in queries:
            clock = time.perf_counter()
            hits = client.search(
                "sizing", [query], limit=NEAREST, search_params={"params": asked},
                consistency_level="Eventually",
            )[0]  # fmt: skip
            latencies.append(time.perf_counter() - clock)
            found.append(list(hits.ids))
        share = np.mean([len({*a} & {*b}) for a, b in zip(found, truth.tolist(), strict=True)])
        if share / NEAREST >= recall:
            break
    return {
        **asked,
        "recall": round(float(share / NEAREST), 4),
        "seconds_a_search": round((process.seconds() - started) / len(queries), 6),
        "latency_ms": {
            str(q): round(float(np.quantile(latencies, q)) * 1000, 2) for q in (0.5, 0.95, 0.99)
        },
    }


def used(folder: Path) -> int:
    """Bytes of all files below a folder; some go while they are counted."""
    found = 0
    for path in folder.rglob("*"):
        try:
            found += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return found


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
