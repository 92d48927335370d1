"""The whole path at scale: a vector in, weights and values out, beside what a user would pick.

Every contestant holds the same vectors, each with a value, and is asked one query at a time for
the ten nearest with their values; weights are the softmax of 20 times the products, which only
ours computes by itself. Each is tuned, with other queries, to the least effort that finds 0.95 of
the exact ten, by the parameters that its documentation names for that. Seconds are this process's
on all of its threads, which neighbours disturb less than the clock.

- ours: `Collection.search`, the index as it was chosen.
- Chroma: a persistent client, HNSW with its usual M and construction, `ef_search` tuned.
- LanceDB: IVF_PQ with one byte for 8 numbers, `nprobes` and `refine_factor` tuned.
- Qdrant: local mode in memory, which compares a query with every vector: recall 1.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from common import progress
from scale_data import NEAREST, RECALL, WIDTH, Asked

from attend import Data
from attend.core.types import Document, Float32

BATCH = 5000
TUNING = 200
SCALE = 20.0

Search = Callable[[Float32], list["Hit"]]
"""Of one query (d,): its hits, best first."""


class Hit(NamedTuple):
    """What the path ends in."""

    position: int
    weight: float
    value: float


class Contestant(NamedTuple):
    """What holds the vectors and answers.

    Attributes:
        settings: tried in turn, the cheapest first, until enough is found.
    """

    settings: list[Any]
    search: Callable[[Any], Search]


def whole_path(
    folder: Path, vectors: Float32, tuning: Asked, asked: Asked, names: tuple[str, ...]
) -> dict[str, dict[str, Any]]:
    """Figures of each contestant, ours among them."""
    figures = {}
    for name in names:
        progress(f"whole path: {name} takes {len(vectors)} vectors")
        started = time.process_time()
        try:
            contestant = CONTESTANTS[name](folder, vectors)
        except MemoryError as error:
            figures[name] = {"could not hold them": str(error)}
            continue
        built = time.process_time() - started
        setting, search = _tuned(contestant, tuning)
        figures[name] = {
            **_measured(search, asked, SLOW if name == "qdrant" else len(asked.queries)),
            "setting": setting,
            "build_seconds": round(built, 1),
        }
        progress(f"{name}: {figures[name]}")
    return figures


SLOW = 30
"""Queries are enough where each reads everything."""


def ratios(figures: dict[str, dict[str, Any]]) -> dict[str, float]:
    ours = figures["ours"]["queries_a_second"]
    return {
        f"path_qps_over_{name}": round(ours / each["queries_a_second"], 2)
        for name, each in figures.items()
        if name != "ours" and "queries_a_second" in each
    }


def _tuned(contestant: Contestant, tuning: Asked) -> tuple[Any, Search]:
    """The first setting that finds enough, or else the last."""
    some = Asked(tuning.queries[:TUNING], tuning.truth[:TUNING])
    for setting in contestant.settings:
        search = contestant.search(setting)
        if len(contestant.settings) == 1:
            break
        found = [[hit.position for hit in search(query)] for query in some.queries]
        if some.recall(np.array(found)) >= RECALL:
            break
    return setting, search


def _measured(search: Search, asked: Asked, count: int) -> dict[str, Any]:
    search(asked.queries[0])
    started = time.process_time()
    found = [search(query) for query in asked.queries[:count]]
    seconds = time.process_time() - started
    positions = np.array([[hit.position for hit in hits] for hits in found])
    return {
        "recall": Asked(asked.queries[:count], asked.truth[:count]).recall(positions),
        "queries_a_second": round(count / seconds, 1),
    }


def _weighed(positions: list[int], products: list[float], values: list[float]) -> list[Hit]:
    logits = SCALE * np.asarray(products)
    shares = np.exp(logits - logits.max())
    return [Hit(*hit) for hit in zip(positions, shares / shares.sum(), values, strict=True)]


def _value(position: int) -> float:
    return float(position % 100)


def _batches(vectors: Float32) -> Iterator[tuple[range, Float32]]:
    for at in range(0, len(vectors), BATCH):
        part = np.asarray(vectors[at : at + BATCH])
        yield range(at, at + len(part)), part


# -- the contestants ----------------------------------------------------------------------------


def ours(folder: Path, vectors: Float32) -> Contestant:
    data = Data(folder / "ours")
    # At equal recall: 100,000 keys would otherwise be searched exactly, in ten times the time.
    collection = data.create("path", dimension=WIDTH, scorer="dot", exact_below=1)
    for positions, part in _batches(vectors):
        rows = zip(positions, part.tolist(), strict=True)
        collection.write(
            [Document(str(at), vectors={"v": vector}, value=_value(at)) for at, vector in rows]
        )
    collection.publish()

    def answer(query: Float32) -> list[Hit]:
        found = collection.search(query.tolist(), k=NEAREST, attend=NEAREST, scale=SCALE)
        return [Hit(int(hit.id), hit.weight, hit.value) for hit in found.hits]

    return Contestant([collection.info().index["type"]], lambda _: answer)


def chroma(folder: Path, vectors: Float32) -> Contestant:
    held = _opened_chroma(folder)
    for positions, part in _batches(vectors):
        held.add(
            ids=[str(at) for at in positions],
            embeddings=part,
            metadatas=[{"value": _value(at)} for at in positions],
        )

    def search(ef: int) -> Search:
        held.modify(configuration={"hnsw": {"ef_search": ef}})
        opened = _opened_chroma(folder)  # what is open goes on with the `ef_search` it began with

        def answer(query: Float32) -> list[Hit]:
            found = opened.query(
                query_embeddings=[query], n_results=NEAREST, include=["metadatas", "distances"]
            )
            products = [1 - distance for distance in found["distances"][0]]
            values = [each["value"] for each in found["metadatas"][0]]
            return _weighed([int(id) for id in found["ids"][0]], products, values)

        return answer

    return Contestant([20, 40, 60, 80, 100, 140, 200, 300, 500], search)


def _opened_chroma(folder: Path) -> Any:
    import chromadb
    from chromadb.api.shared_system_client import SharedSystemClient

    SharedSystemClient.clear_system_cache()  # which would give the client that is open
    settings = chromadb.Settings(anonymized_telemetry=False)
    return chromadb.PersistentClient(
        str(folder / "chroma"), settings=settings
    ).get_or_create_collection(
        "path", embedding_function=None, configuration={"hnsw": {"space": "ip"}}
    )


def lancedb(folder: Path, vectors: Float32) -> Contestant:
    import lancedb as peer
    import pyarrow as pa

    kinds = pa.schema(
        [("id", pa.int64()), ("value", pa.float64()), ("vector", pa.list_(pa.float32(), WIDTH))]
    )

    def batches() -> Iterator[pa.RecordBatch]:
        for positions, part in _batches(vectors):
            rows = pa.FixedSizeListArray.from_arrays(pa.array(part.ravel()), WIDTH)
            values = pa.array([_value(at) for at in positions])
            yield pa.RecordBatch.from_arrays([pa.array(positions), values, rows], schema=kinds)

    table: Any = peer.connect(str(folder / "lance")).create_table("path", batches(), schema=kinds)
    lists = max(16, int(np.sqrt(len(vectors))))
    table.create_index("dot", num_partitions=lists, num_sub_vectors=WIDTH // 8)

    def search(effort: tuple[int, int]) -> Search:
        probes, refined = effort

        def answer(query: Float32) -> list[Hit]:
            asked = table.search(query).distance_type("dot").limit(NEAREST)
            found = (
                asked.nprobes(probes).refine_factor(refined).select(["id", "value", "_distance"])
            )
            rows = found.to_arrow()
            products = [1 - distance for distance in rows["_distance"].to_pylist()]
            return _weighed(rows["id"].to_pylist(), products, rows["value"].to_pylist())

        return answer

    efforts = [
        (5, 5),
        (10, 5),
        (10, 10),
        (20, 10),
        (30, 10),
        (30, 20),
        (50, 20),
        (80, 30),
        (150, 50),
    ]
    return Contestant(efforts, search)


def qdrant(folder: Path, vectors: Float32) -> Contestant:
    from qdrant_client import QdrantClient, models

    warnings.filterwarnings("ignore", message="Local mode is not recommended")
    client = QdrantClient(":memory:")
    kind = models.VectorParams(size=WIDTH, distance=models.Distance.DOT)
    client.create_collection("path", vectors_config=kind)
    for positions, part in _batches(vectors):
        payloads = [{"value": _value(at)} for at in positions]
        batch = models.Batch(ids=list(positions), vectors=part.tolist(), payloads=payloads)
        client.upsert("path", batch)

    def answer(query: Float32) -> list[Hit]:
        found = client.query_points("path", query=query.tolist(), limit=NEAREST).points
        products = [point.score for point in found]
        values = [(point.payload or {})["value"] for point in found]
        return _weighed([point.id for point in found], products, values)

    return Contestant(["exact"], lambda _: answer)


CONTESTANTS = {"ours": ours, "lancedb": lancedb, "qdrant": qdrant, "chroma": chroma}
