"""What a Milvus server of one's own takes for a key: memory, disk, seconds in, seconds a search.

A real `milvus==2.3.5` standalone server, started as the tests do. Seconds are those of its process
on all processors together, which neighbours disturb less than the clock: divided by cores they are
what a server takes that has nothing else to do.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from common import progress

from attend.core.types import Float32, Int64
from attend.keys.vectors import FlatVectors

NEAREST = 10
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
        self._pids = [pid, *children(pid)]

    def seconds(self) -> float:
        ticks = 0
        for pid in self._pids:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])  # utime and stime, proc(5)
        return ticks / os.sysconf("SC_CLK_TCK")

    def resident(self) -> int:
        pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in self._pids]
        return sum(pages) * os.sysconf("SC_PAGE_SIZE")


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


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
        **searched(client, process, kind, queries, truth, recall),
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


def searched(
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
