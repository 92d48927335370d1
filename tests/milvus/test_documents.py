"""Documents on a Milvus server: what is written is read, and each document is whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from attend import Collection, Data, Document
from attend.core.errors import (
    Conflict,
    InvalidRequest,
    LimitExceeded,
    Unavailable,
    UnknownCollection,
    UnknownDocument,
    Unsupported,
)
from attend_milvus import writing
from attend_milvus.tables import Tables, row_of
from tests.index.helpers import embeddings_of
from tests.milvus.server import MilvusServer, wait_until

DIMENSION = 8


def vector(seed: int) -> list[float]:
    return [float(each) for each in np.random.default_rng(seed).standard_normal(DIMENSION)]


def document(at: int, **more: Any) -> dict[str, Any]:
    return {"id": f"d{at}", "vector": vector(at), "value": at, "payload": {"at": at}} | more


@pytest.fixture(scope="module")
def data(milvus_server: MilvusServer) -> Iterator[Data]:
    opened = Data(f"{milvus_server.engine}/documents?consistency=strong")
    yield opened
    for name in opened.names():
        opened.drop(name)
    opened.close()


@pytest.fixture(scope="module")
def made(data: Data) -> Collection:
    return data.create("made", dimension=DIMENSION)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody searches meanwhile."""
    monkeypatch.setattr(writing, "GRACE_SECONDS", 0.0)


@pytest.fixture
def collection(made: Collection) -> Collection:
    """Empty before every test; making one takes seconds."""
    made.delete(sorted(made.ids()))
    return made


def tables(collection: Collection) -> Tables:
    return collection.store._tables  # type: ignore[attr-defined,no-any-return]


def test_what_was_written_is_read(collection: Collection) -> None:
    given = [document(at, value={"n": [1, None, "é\n"], "deep": {"x": 0.1}}) for at in range(20)]
    assert collection.upsert(given).added == 20
    assert collection.upsert(given).unchanged == 20
    assert collection.store.counts() == (20, 20)
    found = collection.document("d3")
    assert (found.id, found.value, found.payload) == ("d3", given[3]["value"], {"at": 3})
    assert np.array_equal(
        embeddings_of(collection.store, found.row), np.array([vector(3)], dtype=np.float32)
    )
    assert collection.ids() == {f"d{at}" for at in range(20)}


def test_pages_hold_every_document_once(collection: Collection) -> None:
    collection.upsert([document(at) for at in range(23)])
    seen, cursor = [], None
    while True:
        page = collection.page({"at": {"gte": 3}}, cursor=cursor, limit=7)
        assert page.total == 20
        seen += [each.id for each in page.documents]
        cursor = page.next
        if cursor is None:
            break
    assert sorted(seen) == sorted(f"d{at}" for at in range(3, 23))


def test_another_text_takes_the_keys_of_the_one_before_along(collection: Collection) -> None:
    collection.upsert([document(1)])
    before = tables(collection).heads(["d1"])["d1"]
    assert collection.upsert([document(1, vector=vector(99))]).updated == 1
    after = tables(collection).heads(["d1"])["d1"]
    assert after.version > before.version
    asked = before.key_ids() + after.key_ids()
    assert wait_until(lambda: list(tables(collection).vectors(asked)) == after.key_ids(), 60)
    assert collection.search(vector(99), k=1).hits[0].score == pytest.approx(
        float(np.array(vector(99)) @ np.array(vector(99))) / np.sqrt(DIMENSION), rel=1e-5
    )


def test_a_new_value_keeps_the_keys(collection: Collection) -> None:
    collection.upsert([document(1)])
    assert collection.upsert([document(1, value="other")]).revised == 1
    assert collection.search(vector(1), k=1).hits[0].value == "other"
    revised = collection.revise("d1", {"payload": {"at": None, "more": True}})
    assert (revised.value, revised.payload) == ("other", {"more": True})
    assert collection.document("d1") == revised
    assert collection.search(vector(1), k=1, filter={"more": True}).hits[0].id == "d1"
    assert collection.search(vector(1), k=1, filter={"at": 1}).hits == []


def test_what_is_deleted_is_found_no_more(collection: Collection) -> None:
    collection.upsert([document(at) for at in range(10)])
    assert collection.delete(["d1", "d2", "none"]) == 2
    assert collection.delete_matching({"at": {"in": [3, 4]}}) == 2
    assert {hit.id for hit in collection.search(vector(1)).hits} == {
        f"d{at}" for at in (0, 5, 6, 7, 8, 9)
    }
    assert wait_until(lambda: collection.store.counts() == (6, 6), 60)
    with pytest.raises(UnknownDocument, match="has no document 'd1'"):
        collection.document("d1")


def test_keys_without_their_document_are_passed_over(collection: Collection) -> None:
    """What a writer leaves that is killed after the keys, and before the document."""
    collection.upsert([document(at) for at in range(5)])
    rows = [
        {
            "key": 77 + at,
            "document": row,
            "version": 2**61,
            "id": "d1",
            "place": '["vector", 0, 0]',
            "facts": {},
            "vector": np.array(vector(50), dtype=np.float32),
        }
        for at, row in enumerate([row_of("d1"), row_of("never")])
    ]
    tables(collection).keys().upsert(rows)
    answer = collection.search(vector(50), k=10)
    assert sorted(hit.id for hit in answer.hits) == [f"d{at}" for at in range(5)]
    by_id = {hit.id: hit.score for hit in answer.hits}
    for at in range(5):
        score = float(np.array(vector(at)) @ np.array(vector(50))) / np.sqrt(DIMENSION)
        assert by_id[f"d{at}"] == pytest.approx(score, rel=1e-5)
    tables(collection).keys().delete([77, 78])


def test_what_no_row_can_hold_is_refused_before_anything_is_written(
    collection: Collection,
) -> None:
    with pytest.raises(LimitExceeded, match="value and payload of 'big' take"):
        collection.upsert([document(1), document(2, id="big", payload={"text": "x" * 70_000})])
    assert collection.ids() == set()
    with pytest.raises(InvalidRequest, match="occurs more than once"):
        collection.upsert([document(1), document(1)])


def test_ids_values_and_payloads_may_hold_anything_else(collection: Collection) -> None:
    strange = {
        'quo"te\\': {"a.b": 1, 'c"d': "x"},
        "new line": ["\ud800", "\x00", 2**70, -0.0, 1e-320],
        "ключ 鍵": None,
        "x" * 512: {"nested": [[1], {"deep": []}]},
    }
    collection.upsert(
        [{"id": id, "vector": vector(1), "value": value} for id, value in strange.items()]
    )
    for id, value in strange.items():
        assert collection.document(id).value == value


def test_two_processes_see_each_other(data: Data, made: Collection, collection: Collection) -> None:
    other = Data(f"{data._engine.address}?consistency=strong")  # type: ignore[attr-defined]
    theirs = other.collection("made")
    collection.upsert([document(1)])
    assert theirs.document("d1").value == 1
    theirs.upsert([document(1, value="theirs")])
    assert collection.document("d1").value == "theirs"
    assert collection.search(vector(1), k=1).hits[0].value == "theirs"
    other.close()


def test_collections_and_aliases(data: Data, made: Collection) -> None:
    assert data.names() == ["made"]
    assert data.create("made", dimension=DIMENSION) is made
    with pytest.raises(UnknownCollection, match="the collections are made"):
        data.collection("none")
    assert data.set_alias("other", "made")
    assert data.aliases() == {"other": "made"}
    assert data.collection("other") is made
    data.drop_alias("other")
    assert data.aliases() == {}
    with pytest.raises(UnknownCollection):
        data.collection("other")


def test_a_collection_that_another_process_dropped_is_told(data: Data, made: Collection) -> None:
    data.create("brief", dimension=DIMENSION)
    other = Data(f"{data._engine.address}?consistency=strong")  # type: ignore[attr-defined]
    theirs = other.collection("brief")
    theirs.upsert([document(1)])
    data.drop("brief")
    with pytest.raises((UnknownCollection, Conflict), match="dropped meanwhile"):
        theirs.search(vector(1))
    with pytest.raises((UnknownCollection, Conflict), match="dropped meanwhile"):
        theirs.upsert([document(2)])
    other.close()


def test_a_document_with_several_keys_is_scored_by_all(collection: Collection) -> None:
    vectors = {"one": vector(1), "two": vector(2)}
    collection.write([Document("d", vectors=vectors), Document("e", vectors={"one": vector(3)})])
    query = np.array(vector(7))
    scores = {name: float(np.array(each) @ query) for name, each in vectors.items()}
    scale = 1 / np.sqrt(DIMENSION)
    best = collection.search(vector(7), pool="max", k=2)
    found = {hit.id: hit.score for hit in best.hits}
    assert found["d"] == pytest.approx(scale * max(scores.values()), rel=1e-5)
    summed = collection.search(vector(7), pool="sum", k=2)
    expected = np.log(np.exp(scale * np.array(list(scores.values()))).sum())
    assert {hit.id: hit.score for hit in summed.hits}["d"] == pytest.approx(expected, rel=1e-5)


def test_what_the_engine_lacks_is_refused_with_a_sentence(collection: Collection) -> None:
    collection.upsert([document(1)])
    for asked in (
        {"attend": "all"},
        {"attend": 20_000, "k": 10},
        {"lexical": True},
        {"facets": ["at"]},
        {"decode": True},
        {"filter": {"@text": {"match": "word"}}},
    ):
        with pytest.raises(Unsupported, match="engine milvus"):
            collection.search(vector(1), **asked)
    with pytest.raises(Unsupported, match="Facets"):
        collection.facets(["at"])
    with pytest.raises(Unsupported, match="Recommendations"):
        collection.recommend(history=["d1"])
    with pytest.raises(Unsupported, match="no folder"):
        _ = Data("milvus://127.0.0.1:1/library").folder


def test_a_server_that_is_not_there_is_told_in_time() -> None:
    from attend_milvus.client import Client, Table
    from attend_milvus.server import Address

    client = Client(Address.of("milvus://127.0.0.1:1?patience=1"))
    with pytest.raises(Unavailable, match="does not answer"):
        Table(client, "any", "x").query("", ["x"])
