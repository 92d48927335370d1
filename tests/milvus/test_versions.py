"""Versions of a projection on a Milvus server: folded ones move no key, others rewrite all."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from attend import Collection, Data
from attend.core.errors import Conflict, InvalidRequest, UnknownProjection, Unsupported
from attend.projection import Projection
from tests.milvus.server import MilvusServer

DIMENSION, WIDTH, DOCUMENTS = 12, 6, 60
EMBEDDINGS = np.random.default_rng(3).standard_normal((DOCUMENTS, DIMENSION))
EMBEDDINGS /= np.linalg.norm(EMBEDDINGS, axis=1, keepdims=True)
W_Q, W_K = np.random.default_rng(4).standard_normal((2, 1, WIDTH, DIMENSION))
QUERY = EMBEDDINGS[7] + 0.1


def projection(**settings: bool) -> Projection:
    return Projection(kind="given", d_in=DIMENSION, gates=np.ones(1), w_q=W_Q, w_k=W_K, **settings)


@pytest.fixture(scope="module")
def collection(milvus_server: MilvusServer) -> Iterator[Collection]:
    data = Data(f"{milvus_server.engine}/versions?consistency=strong")
    made = data.create("versions", dimension=DIMENSION, normalize=True)
    made.upsert([{"id": f"d{at}", "vector": each.tolist()} for at, each in enumerate(EMBEDDINGS)])
    yield made
    data.drop("versions")
    data.close()


def tables(collection: Collection) -> set[str]:
    store: Any = collection.store
    return set(store._tables.client.call(lambda client: client.list_collections()))


def order(scores: np.ndarray) -> list[str]:
    return [f"d{at}" for at in np.argsort(-scores)[:10]]


def found(collection: Collection, **options: Any) -> list[str]:
    return [hit.id for hit in collection.search(QUERY.tolist(), k=10, **options).hits]


def unit(given: np.ndarray) -> np.ndarray:
    return given / np.linalg.norm(given, axis=-1, keepdims=True)


def test_a_folded_version_moves_no_key(collection: Collection) -> None:
    before = tables(collection)
    version = collection.add_projection(projection())
    assert collection.search(QUERY.tolist()).projection == 1
    collection.activate(version, expected=1)
    assert tables(collection) == before
    query = W_Q[0] @ unit(QUERY)
    assert found(collection) == order(EMBEDDINGS @ W_K[0].T @ query)
    assert collection.search(QUERY.tolist()).projection == version
    assert found(collection, projection=1) == order(EMBEDDINGS @ QUERY)
    assert collection.rollback() == 1
    assert found(collection) == order(EMBEDDINGS @ QUERY)


def test_another_version_has_keys_of_its_own(collection: Collection) -> None:
    version = collection.add_projection(projection(normalize_queries=True, normalize_keys=True))
    with pytest.raises(InvalidRequest, match="activate it first"):
        found(collection, projection=version)
    writer = threading.Thread(
        target=collection.upsert, args=[[{"id": "new", "vector": (-EMBEDDINGS[7]).tolist()}]]
    )
    writer.start()  # what is written meanwhile is found under both
    collection.activate(version)
    writer.join()
    keys, query = unit(EMBEDDINGS @ W_K[0].T), unit(W_Q[0] @ unit(QUERY))
    assert found(collection) == order(keys @ query)
    scores = {hit.id: hit.score for hit in collection.search(QUERY.tolist(), k=61).hits}
    assert len(scores) == DOCUMENTS + 1
    for at in range(DOCUMENTS):
        assert scores[f"d{at}"] == pytest.approx(20 * float(keys[at] @ query), abs=1e-4)
    own = unit(W_K[0] @ -EMBEDDINGS[7])
    assert scores["new"] == pytest.approx(20 * float(own @ query), abs=1e-4)
    collection.delete(["new"])
    assert len(collection.search(QUERY.tolist(), k=100).hits) == DOCUMENTS
    assert collection.rollback() == 1
    collection.upsert([{"id": "new", "vector": EMBEDDINGS[7].tolist()}])
    collection.activate(version)
    scores = {hit.id: hit.score for hit in collection.search(QUERY.tolist(), k=61).hits}
    assert scores["new"] == pytest.approx(scores["d7"], abs=1e-5)
    collection.delete(["new"])


def test_every_process_sees_the_versions(
    collection: Collection, milvus_server: MilvusServer
) -> None:
    other = Data(f"{milvus_server.engine}/versions?consistency=strong").collection("versions")
    mine = [(each.version, each.active, each.fingerprint) for each in collection.projections()]
    assert mine == [(each.version, each.active, each.fingerprint) for each in other.projections()]
    assert found(other) == found(collection)


def test_what_cannot_be_done_is_told(collection: Collection) -> None:
    with pytest.raises(UnknownProjection, match="no projection 99"):
        collection.activate(99)
    with pytest.raises(Conflict, match="where 77 was expected"):
        collection.activate(1, expected=77)
    made = projection()
    with pytest.raises(Unsupported, match="Versions that move single keys"):
        collection.store.add_projection(
            "given", made.to_bytes(), made.fingerprint, {}, tuning={"examples": 1.0}
        )
