"""Documents that are written again and again, and searched meanwhile: none is ever missed."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from attend import Collection, Data
from attend_milvus import writing
from attend_milvus.keys import RemoteKeys
from attend_milvus.tables import Tables
from tests.many import some
from tests.milvus.load import BOUND_SECONDS
from tests.milvus.server import MilvusServer, wait_until

DIMENSION, DOCUMENTS, WRITERS = 4, 40, 4
PAUSE_SECONDS = 0.3
"""Between two rewrites: old keys stay for half a minute, and every search reads past them."""

REWRITES = 10
"""Of each document, meanwhile, at least."""

IDS = [f"d{at}" for at in range(DOCUMENTS)]


@pytest.fixture(scope="module")
def libraries(milvus_server: MilvusServer) -> Iterator[list[Data]]:
    """Two processes' worth: they share nothing but the server."""
    made = [Data(f"{milvus_server.engine}/rewriting") for _ in range(2)]
    yield made
    for name in made[0].names():
        made[0].drop(name)
    for each in made:
        each.close()


def vector(seed: int) -> list[float]:
    return np.random.default_rng(seed).standard_normal(DIMENSION).astype(np.float32).tolist()


def document(id: str, version: int) -> dict[str, Any]:
    """Its value tells its vector."""
    return {"id": id, "vector": vector(version), "value": version}


class Rewriting:
    """Writers that write their share of the documents anew, again and again, from entering until
    leaving a `with`."""

    def __init__(self, collection: Collection) -> None:
        self._collection = collection
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=[at]) for at in range(WRITERS)]
        self.acknowledged = dict.fromkeys(IDS, 0)
        self.failed: list[str] = []
        collection.upsert([document(id, 0) for id in IDS])

    def __enter__(self) -> Rewriting:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, at: int) -> None:
        own, version = IDS[at::WRITERS], 0
        while not self._stop.is_set():
            version += 1
            try:
                self._collection.upsert([document(id, version) for id in own])
            except Exception as error:
                self.failed.append(repr(error))
                raise
            self.acknowledged |= dict.fromkeys(own, version)
            self._stop.wait(PAUSE_SECONDS)


@pytest.fixture(scope="module")
def collections(libraries: list[Data]) -> list[Collection]:
    """One collection, as the writer has it and as the reader."""
    return [libraries[0].create("many", dimension=DIMENSION), libraries[1].collection("many")]


@pytest.mark.parametrize(
    ("consistency", "searches"), [("bounded", some(200)), ("strong", some(40))]
)
def test_a_document_that_is_rewritten_is_found_by_every_search(
    collections: list[Collection], consistency: str, searches: int
) -> None:
    writer, reader = collections
    wrong: list[str] = []
    with Rewriting(writer) as rewriting:
        time.sleep(BOUND_SECONDS)
        for at in itertools.count():
            if at >= searches and min(rewriting.acknowledged.values()) > REWRITES:
                break
            assert rewriting.failed == []
            before = dict(rewriting.acknowledged)
            query = vector(10_000 + at)
            answer = reader.search(query, k=DOCUMENTS, consistency=consistency)
            found = {hit.id: hit for hit in answer.hits}
            wrong += [f"search {at} misses {id}" for id in IDS if id not in found]
            for id, hit in found.items():
                score = float(np.dot(vector(hit.value), query)) / np.sqrt(DIMENSION)
                assert hit.score == pytest.approx(score, abs=1e-5)
                if consistency == "strong" and hit.value < before[id]:
                    wrong.append(f"search {at}: {id} is {hit.value} after {before[id]}")
    assert rewriting.failed == []
    assert wrong == []


def test_the_key_before_is_found_until_no_search_can_need_it(
    collections: list[Collection],
) -> None:
    """A search that met the shard of the new key before it came, and that of the old one after."""
    collection = collections[0]
    collection.upsert([document("moving", 1)])
    before = tables(collection).heads(["moving"])["moving"]
    collection.upsert([document("moving", 2)])
    keys = found_by(collection, before.key_ids())
    assert [read.document.value for read in keys.documents_read.values()] == [2]
    candidates = keys.lookup(np.array([before.row], dtype=np.int64))
    assert candidates.vectors.tolist() == [vector(2)]
    collection.delete(["moving"])


def test_keys_go_some_time_after_they_are_retired(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "GRACE_SECONDS", 0.2)
    deleted: list[tuple[float, list[int]]] = []
    made = writing.ExpiredKeys(lambda keys: deleted.append((time.monotonic(), list(keys))))
    began = time.monotonic()
    for keys in ([1, 2], [], [3]):
        made.add(keys)
    assert wait_until(lambda: sum(len(keys) for _, keys in deleted) == 3, 60)
    assert [key for _, keys in deleted for key in keys] == [1, 2, 3]
    assert all(when - began >= 0.2 for when, _ in deleted)
    monkeypatch.setattr(writing, "GRACE_SECONDS", 1000.0)
    made.add([4])
    made.close()  # at once
    assert len([key for _, keys in deleted for key in keys]) == 3


def test_keys_of_versions_before_take_nobodys_place(collections: list[Collection]) -> None:
    collection = collections[0]
    query, crowd = [1.0, 0.0, 0.0, 0.0], [f"crowd{at}" for at in range(60)]
    payload = {"crowd": True}
    near = [{"id": id, "vector": query, "payload": payload} for id in crowd]
    collection.upsert(near)
    collection.upsert([{**each, "vector": [-1.0, 0.0, 0.0, 0.0]} for each in near])
    collection.upsert([{"id": "nearest", "vector": [0.5, 0, 0, 0], "payload": payload}])
    answer = collection.search(query, k=1, attend=1, filter=payload)
    assert [hit.id for hit in answer.hits] == ["nearest"]


def tables(collection: Collection) -> Tables:
    return collection.store._tables  # type: ignore[attr-defined,no-any-return]


def found_by(collection: Collection, keys: list[int]) -> RemoteKeys:
    """What a search reads of the documents that it meets by these keys alone."""
    views: Any = collection.views
    made = views.current().keys
    made._of_keys = f"key in {keys}"
    query = np.ones((1, 1, DIMENSION), dtype=np.float32)
    assert len(made.search(query, None, 10).rows[0]) == 1
    return made  # type: ignore[no-any-return]
