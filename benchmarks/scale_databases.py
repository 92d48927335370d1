"""The vector databases of the scale benchmark: each is filled, and searched by one of its settings,
from a vector to weights and values."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attend.core.types import Float32

NEAREST, BATCH, SCALE = 10, 5000, 20.0

Hits = tuple[Sequence[int], Sequence[float], Sequence[float]]
"""What the path ends in: positions, weights and values, the best first."""

Search = Callable[[Float32], Hits]
"""Of one query (d,)."""

Contestant = tuple[Sequence[Any], Callable[[Any], Search]]
"""Settings, the cheapest first, and a search with one of them: the first that finds enough."""


def _weighed(positions: list[int], products: list[float], values: list[float]) -> Hits:
    logits = SCALE * np.asarray(products)
    shares = np.exp(logits - logits.max())
    return positions, (shares / shares.sum()).tolist(), values


def value_of(position: int) -> float:
    return float(position % 100)


def batches(vectors: Float32) -> Iterator[tuple[range, Float32]]:
    for at in range(0, len(vectors), BATCH):
        part = np.asarray(vectors[at : at + BATCH])
        yield range(at, at + len(part)), part


def chroma(folder: Path, vectors: Float32) -> Contestant:
    held = _opened_chroma(folder)
    for positions, part in batches(vectors):
        held.add(
            ids=[str(at) for at in positions],
            embeddings=part,
            metadatas=[{"value": value_of(at)} for at in positions],
        )

    def search(ef: int) -> Search:
        held.modify(configuration={"hnsw": {"ef_search": ef}})
        opened = _opened_chroma(folder)  # what is open goes on with the `ef_search` it began with

        def answer(query: Float32) -> Hits:
            found = opened.query(
                query_embeddings=[query], n_results=NEAREST, include=["metadatas", "distances"]
            )
            products = [1 - distance for distance in found["distances"][0]]
            values = [each["value"] for each in found["metadatas"][0]]
            return _weighed([int(id) for id in found["ids"][0]], products, values)

        return answer

    return [20, 40, 60, 80, 100, 140, 200, 300, 500], search


def _opened_chroma(folder: Path) -> Any:
    import chromadb
    from chromadb.api.shared_system_client import SharedSystemClient

    SharedSystemClient.clear_system_cache()  # which would give the client that is open
    settings = chromadb.Settings(anonymized_telemetry=False)
    client = chromadb.PersistentClient(str(folder / "chroma"), settings=settings)
    options = {"embedding_function": None, "configuration": {"hnsw": {"space": "ip"}}}
    return client.get_or_create_collection("path", **options)


EFFORTS = ((5, 5), (10, 5), (10, 10), (20, 10), (30, 10), (30, 20), (50, 20), (80, 30), (150, 50))
"""Of LanceDB: lists that are read, and how many times ten are scored again by the vectors."""


def lancedb(folder: Path, vectors: Float32) -> Contestant:
    import lancedb as peer
    import pyarrow as pa

    width = vectors.shape[1]
    kinds = pa.schema(
        [("id", pa.int64()), ("value", pa.float64()), ("vector", pa.list_(pa.float32(), width))]
    )

    def records() -> Iterator[pa.RecordBatch]:
        for positions, part in batches(vectors):
            rows = pa.FixedSizeListArray.from_arrays(pa.array(part.ravel()), width)
            values = pa.array([value_of(at) for at in positions])
            yield pa.RecordBatch.from_arrays([pa.array(positions), values, rows], schema=kinds)

    table: Any = peer.connect(str(folder / "lance")).create_table("path", records(), schema=kinds)
    lists = max(16, int(np.sqrt(len(vectors))))
    table.create_index("dot", num_partitions=lists, num_sub_vectors=width // 8)

    def search(effort: tuple[int, int]) -> Search:
        probes, refined = effort

        def answer(query: Float32) -> Hits:
            asked = table.search(query).distance_type("dot").limit(NEAREST)
            found = (
                asked.nprobes(probes).refine_factor(refined).select(["id", "value", "_distance"])
            )
            rows = found.to_arrow()
            products = [1 - distance for distance in rows["_distance"].to_pylist()]
            return _weighed(rows["id"].to_pylist(), products, rows["value"].to_pylist())

        return answer

    return EFFORTS, search


def qdrant(folder: Path, vectors: Float32) -> Contestant:
    from qdrant_client import QdrantClient, models

    warnings.filterwarnings("ignore", message="Local mode is not recommended")
    client = QdrantClient(":memory:")
    kind = models.VectorParams(size=vectors.shape[1], distance=models.Distance.DOT)
    client.create_collection("path", vectors_config=kind)
    for positions, part in batches(vectors):
        payloads = [{"value": value_of(at)} for at in positions]
        batch = models.Batch(ids=list(positions), vectors=part.tolist(), payloads=payloads)
        client.upsert("path", batch)

    def answer(query: Float32) -> Hits:
        found = client.query_points("path", query=query.tolist(), limit=NEAREST).points
        products = [point.score for point in found]
        values = [(point.payload or {})["value"] for point in found]
        return _weighed([int(point.id) for point in found], products, values)

    return ["exact"], lambda _: answer


DATABASES = {"lancedb": lancedb, "qdrant": qdrant, "chroma": chroma}
