"""Keys that killed writers left are found and deleted, and those of living ones are not."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from attend import Collection, Data
from attend.collection.verify import verify
from attend_milvus import writing
from attend_milvus.tables import Tables, row_of
from attend_milvus.writing import UNFINISHED_SECONDS, version_at, version_now
from tests.milvus.server import MilvusServer

DIMENSION, DOCUMENTS = 4, 12
OLD = version_at(time.time() - UNFINISHED_SECONDS - 60)


@pytest.fixture(scope="module")
def collection(milvus_server: MilvusServer) -> Iterator[Collection]:
    """Keys are made unit vectors for their search: two tables have some."""
    data = Data(f"{milvus_server.engine}/sweeping?consistency=strong")
    yield data.create("swept", dimension=DIMENSION, scorer="cosine")
    data.drop("swept")
    data.close()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody searches meanwhile."""
    monkeypatch.setattr(writing, "GRACE_SECONDS", 0.2)


def vector(seed: int) -> list[float]:
    return np.random.default_rng(seed).standard_normal(DIMENSION).astype(np.float32).tolist()


def tables(collection: Collection) -> Tables:
    return collection.store._tables  # type: ignore[attr-defined,no-any-return]


def left(key: int, id: str, version: int) -> dict[str, Any]:
    """A key as a writer leaves it that is killed before the document."""
    row = row_of(id)
    place = '["vector", 0, 0]'
    made = np.array(vector(key), dtype=np.float32)
    named = {"key": key, "document": row, "version": version, "id": id}
    return {**named, "place": place, "facts": {}, "vector": made}


def test_keys_that_no_document_names_are_swept(collection: Collection) -> None:
    documents = [{"id": f"d{at}", "vector": vector(at)} for at in range(DOCUMENTS)]
    collection.upsert(documents)
    asked = tables(collection)
    assert len(asked.of_keys()) == 2
    assert verify(collection).findings == []
    for at, table in enumerate(asked.of_keys()):
        rows = [left(100 + at, "d1", OLD), left(200, "never", OLD)]
        table.upsert([*rows, left(300, "d2", version_now())])

    found = verify(collection)
    assert [each.check for each in found.findings] == ["strays", "strays"]
    assert [each.problem[:7] for each in found.findings] == ["2 keys "] * 2
    assert not found.mended
    mended = verify(collection, mend=True)
    assert mended.mended
    assert mended.left == []
    for table in asked.of_keys():
        ids = table.query("key > 0", ["key"], None, "strong")
        # What a writer may be about to name is left to it.
        assert len(ids) == DOCUMENTS + 1
        assert {each["key"] for each in ids} >= {300}
        table.delete([300])
    assert len(collection.search(vector(1), k=100).hits) == DOCUMENTS


def test_documents_without_their_keys_are_told(collection: Collection) -> None:
    collection.upsert([{"id": "bare", "vector": vector(50)}])
    asked = tables(collection)
    table = asked.of_keys()[1]
    table.delete(asked.heads(["bare"])["bare"].key_ids())
    found = verify(collection, mend=True)
    assert [each.check for each in found.findings] == ["keys"]
    assert "1 documents lack keys in" in found.problems[0]
    assert "'bare' first" in found.problems[0]
    assert not found.mended
    collection.delete(["bare"])
    assert verify(collection).problems == []


def test_a_build_that_ends_leaves_no_keys_of_versions_before(collection: Collection) -> None:
    collection.upsert([{"id": "again", "vector": vector(60)}])
    collection.upsert([{"id": "again", "vector": vector(61)}])
    collection.publish(only_fresh=True)
    assert collection.store.counts() == (DOCUMENTS + 1, DOCUMENTS + 1)
