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

import math
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import faiss
import numpy as np
import psutil
from common import parser, progress, tell, timed
from scale import NEAREST, RECALL, grown, nearest, published, real
from scipy import stats

from attend.core.types import Float32, Float64, Int64
from attend.keys.vectors import FlatVectors, share_found

HOUR = 3600.0
GIB = 2**30


# -- the model of merging -----------------------------------------------------------------------


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


QUERIES = 500
SIZES = (10_000_000, 100_000_000, 1_000_000_000)
ENCODED_A_SECOND = 1400.0
"""Short texts at batch 64 on two cores, all-MiniLM-L6-v2 in bfloat16 (benchmarks/build.py)."""


def plans(kind: str, figures: dict[str, Any]) -> list[dict[str, Any]]:
    """What SIZES need of an index type, from its figures."""
    keys = figures["keys"]
    measured = Measured(
        memory_bytes=figures["memory_bytes_a_key"],
        disk_bytes=figures["disk_bytes_a_key"],
        segment_keys=keys,
        search_seconds=figures["seconds_a_search"],
        store_seconds=(figures["store_seconds"] + figures["index_seconds"]) / keys * 1e6,
        encoded_a_second=ENCODED_A_SECOND,
    )
    made = [plan(size, measured, Node()) for size in SIZES]
    for each in made:
        progress(
            f"{kind}: {each.keys:,} keys: {each.memory / GIB:,.0f} GiB in memory for "
            f"{each.replicas} replicas, {each.nodes_a_replica} nodes each, {each.shards} shards, "
            f"{each.disk / GIB:,.0f} GiB on disk, {each.searches_a_second:,.0f} searches a second; "
            f"on one node {each.store_hours:.1f} hours to store and {each.encoding_hours:.1f} to "
            f"encode"
        )
    return [each._asdict() for each in made]


# -- merging, measured --------------------------------------------------------------------------


QUANTILES = (0.5, 0.95, 0.99)


class Shard(NamedTuple):
    """What one shard lists for each query, best first, and how long each took.

    Attributes:
        found: (k,) how often it finds its own nearest, second nearest and so on.

    Shapes: keys (q, k) and scores (q, k); seconds (q,).
    """

    keys: Int64
    scores: Float32
    seconds: Float64
    found: Float64


def merged(folder: Path, pool: Float32, count: int, shards: int) -> dict[str, Any]:
    vectors = np.concatenate(list(grown(pool, count, 0)))
    tuning, queries = np.split(next(grown(pool, 2 * QUERIES, 1)), 2)
    truth = FlatVectors(vectors).search(queries, NEAREST, None).positions
    of = np.random.default_rng(2).integers(shards, size=count)  # as a hash of the id
    listed = []
    for number in range(shards):
        progress(f"shard {number + 1} of {shards}")
        own = np.flatnonzero(of == number)
        listed.append(searched(folder / str(number), vectors[own], own, tuning, queries))
    keys = np.hstack([each.keys for each in listed])
    scores = np.hstack([each.scores for each in listed])
    best = np.argsort(-scores, axis=1)[:, :NEAREST]  # of what all shards list
    recall = share_found(np.take_along_axis(keys, best, axis=1), truth)
    seconds = np.stack([each.seconds for each in listed])  # (n, q)
    by_rank = np.mean([each.found for each in listed], axis=0)
    return {
        "keys": count,
        "shards": shards,
        "shard_recall": [round(float(each.found.mean()), 4) for each in listed],
        "shard_recall_by_rank": by_rank.round(4).tolist(),
        "merged_recall": round(float(recall.mean()), 4),
        "merged_recall_by_model": round(merged_recall(by_rank, shards), 4),
        "shard_ms": in_ms(lambda q: np.quantile(seconds, q)),
        "slowest_shard_ms": in_ms(lambda q: np.quantile(seconds.max(axis=0), q)),
        "slowest_shard_ms_by_model": in_ms(lambda q: slowest(seconds.ravel(), shards, q)),
    }


def in_ms(quantile: Callable[[float], float], digits: int = 3) -> dict[str, float]:
    """Milliseconds by quantile, from a function that returns seconds."""
    return {str(q): round(1000 * float(quantile(q)), digits) for q in QUANTILES}


def searched(
    folder: Path, vectors: Float32, ids: Int64, tuning: Float32, queries: Float32
) -> Shard:
    """One shard with an index of its own, asked one query after another."""
    made = published(folder, vectors, tuning).keys
    # Seconds of this thread: neighbours are no part of it.
    results = [timed(partial(nearest, made, each[None]), time.thread_time) for each in queries]
    keys = np.concatenate([positions for (positions, _), _ in results])
    scores = np.concatenate([products for (_, products), _ in results])
    seconds = np.array([taken for _, taken in results])
    exact = FlatVectors(vectors).search(queries, NEAREST, None).positions
    found = (exact[:, :, None] == keys[:, None, :]).any(axis=2).mean(axis=0)
    return Shard(ids[keys], scores, seconds, found)


# -- a Milvus server ----------------------------------------------------------------------------


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


def of_milvus(pool: Float32, count: int) -> dict[str, dict[str, Any]]:
    """Figures by index type, each with the narrowest search that reaches the recall."""
    from tests.milvus.server import running

    vectors = np.concatenate(list(grown(pool, count, 0)))
    queries = next(grown(pool, QUERIES, 1))
    truth = FlatVectors(vectors).search(queries, NEAREST, None).positions
    with tempfile.TemporaryDirectory() as folder, running(Path(folder)) as server:
        return {kind.name: of_kind(server, kind, vectors, queries, truth) for kind in KINDS}


def of_kind(
    server: Any, kind: Kind, vectors: Float32, queries: Float32, truth: Int64
) -> dict[str, Any]:
    from pymilvus import MilvusClient

    progress(f"{kind.name}: {len(vectors)} keys in")
    client, process = MilvusClient(server.address, timeout=600), Process(server.pid)
    disk, started = used(server.folder / "data" / "data"), process.seconds()
    _, stored_clock = timed(lambda: store(client, vectors), time.monotonic)
    stored = process.seconds() - started
    params = client.prepare_index_params()
    params.add_index("vector", index_type=kind.name, metric_type="IP", params=kind.build)
    client.create_index("sizing", params)
    while int(client.describe_index("sizing", "vector")["indexed_rows"]) < len(vectors):
        time.sleep(0.5)
    built = process.seconds() - started - stored
    server.kill()  # what was used for writing is not given back
    server.start()
    server.wait_until_ready(300)
    process = Process(server.pid)
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
        **milvus_searched(client, process, kind, queries, truth),
    }
    client.drop_collection("sizing")
    client.close()
    return figures


def store(client: Any, vectors: Float32) -> None:
    """Put vectors (n, d) into a new collection."""
    from pymilvus import DataType

    if client.has_collection("sizing"):
        client.drop_collection("sizing")
    schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
    schema.add_field("key", DataType.INT64, is_primary=True)
    schema.add_field("document", DataType.INT64)
    schema.add_field("vector", DataType.FLOAT_VECTOR, dim=vectors.shape[1])
    client.create_collection("sizing", schema=schema, num_shards=1)
    for at in range(0, len(vectors), INSERTED):
        block = enumerate(vectors[at : at + INSERTED], at)
        rows = [{"key": key, "document": key, "vector": each} for key, each in block]
        client.insert("sizing", rows)
    client.flush("sizing")


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


def milvus_searched(
    client: Any, process: Process, kind: Kind, queries: Float32, truth: Int64
) -> dict[str, Any]:
    """The narrowest search that finds enough: queries one by one, as a service sends them."""
    for breadth in kind.tried:
        asked = {} if kind.breadth is None else {kind.breadth: breadth}
        options = {"search_params": {"params": asked}, "consistency_level": "Eventually"}
        search = partial(client.search, "sizing", limit=NEAREST, **options)
        started = process.seconds()
        answers = [timed(partial(search, [query])) for query in queries]
        spent = process.seconds() - started
        recall = share_found([list(hits[0].ids) for hits, _ in answers], truth).mean()
        if recall >= RECALL:
            break
    latencies = [seconds for _, seconds in answers]
    return {
        **asked,
        "recall": round(float(recall), 4),
        "seconds_a_search": round(spent / len(queries), 6),
        "latency_ms": in_ms(lambda q: np.quantile(latencies, q), digits=2),
    }


def used(folder: Path) -> int:
    """Bytes of all files below a folder; some go while they are counted."""
    found = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            found += path.stat().st_size if path.is_file() else 0
    return found


# -- the run ------------------------------------------------------------------------------------


def main() -> None:
    made = parser(__doc__.splitlines()[0])
    made.add_argument("--data", type=Path, help="where to write (2 GB)")
    made.add_argument("--milvus", type=int, metavar="KEYS", help="measure a server with so many")
    options = made.parse_args()
    faiss.omp_set_num_threads(1)
    pool = real(options.folder)
    keys, shards = (100_000, 4) if options.quick else (400_000, 8)
    with tempfile.TemporaryDirectory(dir=options.data) as folder:
        merge = merged(Path(folder), pool, keys, shards)
    figures: dict[str, Any] = {"merge": merge}
    if options.milvus:
        figures["milvus"] = of_milvus(pool, options.milvus)
        figures["plans"] = {kind: plans(kind, each) for kind, each in figures["milvus"].items()}
    recall = merge["merged_recall"] / merge["merged_recall_by_model"]
    found, model = merge["slowest_shard_ms"], merge["slowest_shard_ms_by_model"]
    ratios = {
        "merged_recall_over_model": round(recall, 4),
        "slowest_over_model": round(found["0.5"] / model["0.5"], 3),
    }
    tell(ratios, figures, options.json)


if __name__ == "__main__":
    main()
