"""Documents of hundreds of examples: the same hits as by dense matrices, in bounded memory."""

from __future__ import annotations

import tracemalloc
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from attend.api.base import parse
from attend.api.search import SearchRequest
from attend.collection.data import Data
from attend.core.settings import Tuning
from attend.keys import segment, snapshot, vectors
from attend.projection import identity
from attend.search import attend as attending
from attend.search.attend import attend
from attend.search.queries import Queries
from attend.search.scoring import AttentionOptions
from attend.store import NewExample, Question
from tests.index.helpers import vector_data
from tests.index.world import check_weights, expected

WIDTH, DOCUMENTS, CROWDED, EACH = 16, 300, 20, 250
SCALE, STRENGTH = 12.0, 0.9


@dataclass
class Crowd:
    """Twenty of the documents have 250 examples each, near one place; the others have none."""

    data: Data
    keys: dict[str, np.ndarray]  # each document's, (m, d) in float64
    queries: np.ndarray  # (q, d)

    @property
    def collection(self) -> Any:
        return self.data.collection()

    def logits(self, query: np.ndarray, pool: str, colour: str | None) -> dict[str, np.ndarray]:
        reduce = np.max if pool == "max" else np.logaddexp.reduce
        return {
            id: np.array([reduce(SCALE * keys @ query)])
            for id, keys in self.keys.items()
            if colour is None or colour_of(id) == colour
        }


def colour_of(id: str) -> str:
    return "red" if int(id[1:]) % 3 else "blue"


def unit(vectors: np.ndarray) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="module")
def crowd(tmp_path_factory):
    rng = np.random.default_rng(8)
    data = vector_data(tmp_path_factory.mktemp("crowd"))
    collection = data.create("default", dimension=WIDTH, normalize=True)
    own = unit(rng.normal(size=(DOCUMENTS, WIDTH)))
    ids = [f"d{n}" for n in range(DOCUMENTS)]
    collection.upsert(
        [
            {"id": id, "vector": vector.tolist(), "payload": {"c": colour_of(id)}}
            for id, vector in zip(ids, own, strict=True)
        ]
    )
    place = unit(rng.normal(size=WIDTH))
    asked = unit(place + rng.normal(scale=0.1, size=(CROWDED * EACH, WIDTH)))
    collection.store.add_examples(
        [Question(None, each) for each in asked],
        [NewExample(at, ids[at % CROWDED], 1.0) for at in range(len(asked))],
    )
    p = identity(WIDTH)
    tuning = Tuning(examples=STRENGTH, scale=(SCALE,)).stored()
    collection.activate(
        collection.store.add_projection(p.kind, p.to_bytes(), p.fingerprint, {}, tuning=tuning)
    )
    collection.publish()
    keys = {id: own[at : at + 1] for at, id in enumerate(ids)}
    for at, id in enumerate(ids[:CROWDED]):
        keys[id] = np.concatenate([keys[id], STRENGTH * asked[at::CROWDED]])
    queries = np.concatenate([place + rng.normal(scale=0.1, size=(6, WIDTH)), own[:6]])
    yield Crowd(data, {id: each.astype(float) for id, each in keys.items()}, unit(queries))
    data.close()


def fetch_always(patch: pytest.MonkeyPatch) -> None:
    """Keys from the index, and a scan only where these are of too few documents."""
    patch.setattr(vectors, "CROWDED", 10**9)
    patch.setattr(vectors, "FETCH_SHARE", 0)
    patch.setattr(vectors, "SELECTED", 0)


def answers(crowd: Crowd, queries: np.ndarray, **options: Any) -> list[Any]:
    requests = [parse(SearchRequest, {"query": each.tolist(), **options}) for each in queries]
    return crowd.collection.search_many(requests)


@pytest.mark.parametrize("colour", [None, "red"])
@pytest.mark.parametrize("pool", ["max", "sum"])
@pytest.mark.parametrize("attended", [8, 15, 100, "all"])
@pytest.mark.parametrize("way", ["small", "large", "fetch"])
def test_hits_are_those_of_dense_matrices(crowd, monkeypatch, way, attended, pool, colour):
    if way != "small":
        monkeypatch.setattr(attending, "SCAN_FLOATS", 0)
    if way == "fetch":
        fetch_always(monkeypatch)
    options = {"attend": attended, "pool": pool, "k": DOCUMENTS if attended == "all" else attended}
    if colour is not None:
        options["filter"] = {"c": colour}
    for query, answer in zip(crowd.queries, answers(crowd, crowd.queries, **options), strict=True):
        weights, _ = expected(crowd.logits(query.astype(float), pool, colour), attended)
        check_weights(answer, weights, atol=1e-5)
        # Beyond a scan a sum is proposed by its documents' best keys.
        assert answer.exact == (pool == "max" or way == "small" or attended == "all")


# -- how much is held at once ------------------------------------------------------------------


def batch(crowd: Crowd, count: int, **options: Any) -> Any:
    """A search of the core, without what answers are made of."""
    collection = crowd.collection
    queries = np.resize(crowd.queries, (count, WIDTH))
    chosen = AttentionOptions(**{"attend": 15, "best": 11, **options})
    return attend(collection.views.current(), collection.settings, Queries(queries), chosen)


def test_few_keys_are_gathered_for_a_query_and_fewer_at_once(crowd, monkeypatch):
    """Of the 20 documents that are near the query, with 251 keys each, 15 are attended to."""
    monkeypatch.setattr(attending, "SCAN_FLOATS", 0)
    fetch_always(monkeypatch)
    monkeypatch.setattr(segment, "BLOCK_KEYS", 1000)
    view = crowd.collection.views.current()
    read: list[int] = []
    logits = attending._logits

    def counted(scoring, documents):
        blocks = [len(found.ids) for found in view.keys.blocks(documents)]
        assert max(blocks) <= 1000 + EACH + 1
        read.append(sum(blocks))
        return logits(scoring, documents)

    monkeypatch.setattr(attending, "_logits", counted)
    batch(crowd, len(crowd.queries))
    assert len(read) == len(crowd.queries)
    assert 15 * (EACH + 1) <= max(read) <= (15 + snapshot.EXTRA) * (EACH + 1)


@pytest.mark.parametrize("pool", ["max", "sum"])
@pytest.mark.parametrize("way", ["scan", "fetch", "all"])
def test_a_batch_holds_little_more_than_a_query(crowd, monkeypatch, way, pool):
    """What grows with the batch is the result: 15 documents of some numbers each."""
    monkeypatch.setattr(attending, "MAX_SCORES", 64_000)
    monkeypatch.setattr(snapshot, "SCANNED", 64_000)
    monkeypatch.setattr(segment, "BLOCK_KEYS", 1000)
    if way == "fetch":
        monkeypatch.setattr(attending, "SCAN_FLOATS", 0)
        fetch_always(monkeypatch)
        monkeypatch.setattr(snapshot, "FETCHED", 64_000)

    def peak(count: int) -> int:
        tracemalloc.start()
        try:
            batch(crowd, count, pool=pool, attend="all" if way == "all" else 15)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(1)  # what is made once
    assert peak(512) - peak(64) < 448 * 6000
