"""What each path does, through the test client."""

from __future__ import annotations

import io
import json
import math
import threading
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pytest
from flask import Flask
from flask.testing import FlaskClient
from scipy.special import softmax

from attend import Data
from attend.core.errors import InvalidRequest
from attend_service.app import create_app
from attend_service.readiness import Readiness
from attend_service.settings import ServerSettings

DOCUMENTS = "/v1/collections/books/documents"
SEARCH = "/v1/collections/books/search"


def post(client: FlaskClient, path: str, body: Any, status: int = 200) -> Any:
    response = client.post(path, json=body)
    assert response.status_code == status, response.text
    return response.get_json()


def get(client: FlaskClient, path: str, status: int = 200) -> Any:
    response = client.get(path)
    assert response.status_code == status, response.text
    return response.get_json()


def test_collection_life(client: FlaskClient) -> None:
    path = "/v1/collections/films"
    made = client.put(path, json={"dimension": 2})
    again = client.put(path, json={"dimension": 2})
    assert (made.status_code, again.status_code) == (201, 200)
    assert made.get_json() == again.get_json() == get(client, path)
    assert get(client, "/v1/collections") == {
        "collections": [{"name": "films", "documents": 0, "dimension": 2, "encoder": None}]
    }
    assert client.put(path, json={"dimension": 3}).status_code == 409
    gone = client.delete(path)
    assert (gone.status_code, gone.data) == (204, b"")
    assert client.get(path).status_code == client.delete(path).status_code == 404


def test_settings_change_and_other_processes_see_them(books: FlaskClient, data: Data) -> None:
    other = Data(data.folder).collection("books")
    query = {"query": [1, 0, 0], "mode": "soft"}
    before = other.search([1.0, 0.0, 0.0]).hits[0].score
    change = {"recall": 0.99, "scale": 7.0, "values": "text"}
    changed = books.patch("/v1/collections/books", json=change).get_json()
    assert {name: changed["settings"][name] for name in change} == change
    after = other.search([1.0, 0.0, 0.0])
    assert after.hits[0].score == pytest.approx(before * 7 * 3**0.5)  # before: 1/sqrt(3)
    assert other.settings.recall == 0.99
    assert books.post("/v1/collections/books/search", json=query).get_json()["answer"]["type"] == (
        "text"
    )
    again = books.patch("/v1/collections/books", json={"scale": None}).get_json()
    assert again["settings"]["scale"] is None
    assert books.patch("/v1/collections/nothing", json=change).status_code == 404
    fixed = books.patch("/v1/collections/books", json={"dimension": 4})
    assert fixed.status_code == 422, "only settings that may change are taken"
    other.close()


def test_a_collection_says_what_it_holds(client: FlaskClient, data: Data) -> None:
    path, about = "/v1/collections/books", {"title": "Books", "licence": "CC0"}
    created = client.put(path, json={"dimension": 3, "about": about})
    assert created.get_json()["settings"]["about"] == about
    # A description makes no other collection, unless it names another one.
    assert client.put(path, json={"dimension": 3}).status_code == 200
    assert client.put(path, json={"dimension": 3, "about": {"title": "B"}}).status_code == 409
    changed = client.patch(path, json={"about": {"description": "Three novels."}})
    assert changed.get_json()["settings"]["about"] == {"description": "Three novels."}
    assert data.collection("books").settings.about == {"description": "Three novels."}
    for wrong in ({"subtitle": "x"}, {"title": ""}, {"title": 3}, {"source": "x" * 2001}):
        refused = client.patch(path, json={"about": wrong})
        assert refused.status_code == 422
        assert "about" in refused.get_json()["detail"]
    assert client.patch(path, json={"about": None}).get_json()["settings"]["about"] is None


def test_documents_are_listed_with_their_titles(books: FlaskClient) -> None:
    path = "/v1/collections/books/documents"
    plain = books.get(path).get_json()["documents"]
    titled = books.post(f"{path}/list", json={"title": True}).get_json()["documents"]
    assert all("title" not in each for each in plain)
    assert [each | {"title": ""} for each in titled] == [each | {"title": ""} for each in plain]
    hits = books.post(
        "/v1/collections/books/search", json={"query": [1, 0, 0], "k": 3, "title": True}
    ).get_json()["hits"]
    assert {each["id"]: each["title"] for each in titled} == {
        each["id"]: each["title"] for each in hits
    }
    one = books.get(f"{path}/{titled[0]['id']}?title=true").get_json()
    assert one["title"] == titled[0]["title"]


def test_feedback_about_one_document(books: FlaskClient) -> None:
    path = "/v1/collections/books/feedback"
    ids = [
        each["id"] for each in books.get("/v1/collections/books/documents").get_json()["documents"]
    ]
    queries = [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    items = [{"query": {"vector": query}, "id": ids[0]} for query in queries]
    items.append({"query": {"vector": queries[0]}, "id": ids[1]})
    assert books.post(path, json=items).status_code == 200
    first = books.get(f"{path}?limit=2&document={ids[0]}").get_json()
    assert [each["document"] for each in first["items"]] == [ids[0]] * 2
    assert first["examples"] == 4
    rest = books.get(f"{path}?limit=2&document={ids[0]}&before={first['next']}").get_json()
    assert (len(rest["items"]), rest["next"]) == (1, None)
    assert books.get(f"{path}?limit=2&document=nil").get_json()["items"] == []


def test_a_damaged_collection_does_not_hide_the_others(books: FlaskClient, data: Data) -> None:
    damaged = data.folder / "collections" / "broken"
    damaged.mkdir()
    (damaged / "documents.db").write_bytes(b"no database" * 100)
    listed = get(books, "/v1/collections")["collections"]
    assert [(each["name"], "error" in each) for each in listed] == [
        ("books", False),
        ("broken", True),
    ]


def test_upsert_counts_what_became_of_each(books: FlaskClient) -> None:
    revised = {"id": "whale", "vector": [1, 0, 0], "value": 5.0, "payload": {"year": 1851}}
    updated = {"id": "emma", "vector": [0, 2, 0], "value": 3.0, "payload": {"year": 1815}}
    unchanged = {"id": "https://x.example//a/b", "vector": [0, 0, 1]}
    added = {"id": 7, "vector": [1, 1, 1]}
    body = {"documents": [revised, updated, unchanged, added]}
    assert post(books, DOCUMENTS, body) == {
        "added": 1,
        "updated": 1,
        "revised": 1,
        "unchanged": 1,
        "encoded": 0,
    }
    assert get(books, f"{DOCUMENTS}/7")["id"] == "7"


def test_a_wrong_document_names_itself_and_nothing_is_written(books: FlaskClient) -> None:
    body = [
        {"id": "good", "vector": [1, 1, 1]},
        {"id": "short", "vector": [1]},
        {"id": "text", "text": "words"},
        {"id": "good", "vector": [1, 2, 3]},
    ]
    problem = post(books, DOCUMENTS, body, 422)
    fields = [error["field"] for error in problem["errors"]]
    assert sorted(fields) == ["documents.1.vector", "documents.2.text", "documents.3.id"]
    assert get(books, f"{DOCUMENTS}?limit=0")["total"] == 3


def test_a_malformed_document_names_itself(books: FlaskClient) -> None:
    body = [{"id": "a", "vector": [1, 0, 0]}, {"id": "b", "vector": [1, "x", 0], "colour": 1}]
    problem = post(books, DOCUMENTS, body, 422)
    assert [error["field"] for error in problem["errors"]] == [
        "documents.1.vector.1",
        "documents.1.colour",
    ]


def patch(client: FlaskClient, id: str, body: Any, status: int = 200) -> Any:
    response = client.patch(f"{DOCUMENTS}/{quote(id, safe='')}", json=body)
    assert response.status_code == status, response.text
    return response.get_json()


STRANGE_IDS = ["https://x.example//a/b", "/etc/x", "//", "a/", "a/../b", "delete", "é ?#%2F"]


@pytest.mark.parametrize("id", ["whale", *STRANGE_IDS])
@pytest.mark.parametrize("safe", ["", "/"])
def test_document_by_id(books: FlaskClient, id: str, safe: str) -> None:
    post(books, DOCUMENTS, [{"id": id, "vector": [1, 2, 3]}])
    path = f"{DOCUMENTS}/{quote(id, safe=safe)}"
    assert get(books, path)["id"] == id
    revised = books.patch(path, json={"value": 1})
    assert (revised.status_code, revised.get_json()["id"]) == (200, id)
    assert books.delete(path).status_code == 204
    assert books.get(path).status_code == books.delete(path).status_code == 404


def test_a_post_to_delete_is_no_document(books: FlaskClient) -> None:
    post(books, DOCUMENTS, [{"id": "delete", "vector": [1, 2, 3]}])
    assert post(books, f"{DOCUMENTS}/delete", {"ids": ["emma"]}) == {"deleted": 1}
    assert get(books, f"{DOCUMENTS}/delete")["id"] == "delete"
    assert books.get(f"{DOCUMENTS}/").status_code == 404


def test_a_revision_is_answered_kept_and_found(books: FlaskClient) -> None:
    revised = patch(books, "whale", {"value": 5.0, "payload": {"lent": True}})
    expected = {"id": "whale", "fields": {}, "value": 5.0}
    assert revised == {**expected, "payload": {"year": 1851, "lent": True}}
    assert get(books, f"{DOCUMENTS}/whale") == revised
    search = {"query": [1, 0, 0], "k": 1, "attend": 1, "mode": "soft", "filter": {"lent": True}}
    assert post(books, SEARCH, search)["answer"]["mean"] == 5.0


@pytest.mark.parametrize(
    ("body", "value"), [({"value": None}, None), ({"payload": {}}, 4.0), ({"value": [0]}, [0])]
)
def test_a_value_changes_only_where_one_is_given(
    books: FlaskClient, body: dict[str, Any], value: Any
) -> None:
    assert patch(books, "whale", body)["value"] == value
    assert get(books, f"{DOCUMENTS}/whale")["payload"] == {"year": 1851}


# RFC 7396, appendix A: its cases of which both sides are objects.
MERGES: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ({"a": "b"}, {"a": "c"}, {"a": "c"}),
    ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
    ({"a": "b"}, {"a": None}, {}),
    ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
    ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
    ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
    ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
    ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
    ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
    ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
]


@pytest.mark.parametrize(("stored", "given", "merged"), MERGES)
def test_a_payload_is_merged_as_the_rfc_has_it(
    books: FlaskClient, stored: Any, given: Any, merged: Any
) -> None:
    post(books, DOCUMENTS, [{"id": "new", "vector": [1, 1, 1], "payload": stored}])
    assert patch(books, "new", {"payload": given})["payload"] == merged
    assert get(books, f"{DOCUMENTS}/new")["payload"] == merged


def test_what_is_no_revision_is_refused(books: FlaskClient) -> None:
    before = get(books, f"{DOCUMENTS}/whale")
    for body in (
        {},
        {"payload": None},
        {"payload": [1]},
        {"vector": [1, 2, 3]},
        {"value": 1, "x": 1},
    ):
        patch(books, "whale", body, 422)
    deep: Any = 1
    for _ in range(400):
        deep = {"a": deep}
    patch(books, "whale", {"payload": deep}, 422)
    for raw in (b'{"value": NaN}', b'{"payload": {"x": 1e999}}'):
        refused = books.patch(f"{DOCUMENTS}/whale", data=raw, content_type="application/json")
        assert refused.status_code == 400
    assert get(books, f"{DOCUMENTS}/whale") == before
    assert "'nobody'" in patch(books, "nobody", {"value": 1}, 404)["detail"]


def test_python_refuses_numbers_that_are_none(books: FlaskClient, data: Data) -> None:
    for broken in ({"value": math.nan}, {"payload": {"x": [math.inf]}}):
        with pytest.raises(InvalidRequest, match="finite numbers"):
            data.collection("books").revise("whale", broken)
    assert get(books, f"{DOCUMENTS}/whale")["value"] == 4.0


def test_revisions_of_different_members_at_once_all_survive(app: Flask, books: FlaskClient) -> None:
    statuses: list[int] = []

    def revise(mine: int) -> None:
        client = app.test_client()
        for at in range(10):
            body = {"payload": {f"m{mine}": {f"n{at}": at}}}
            statuses.append(client.patch(f"{DOCUMENTS}/emma", json=body).status_code)

    threads = [threading.Thread(target=revise, args=(mine,)) for mine in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == [200] * 40
    whole = {f"m{mine}": {f"n{at}": at for at in range(10)} for mine in range(4)}
    assert get(books, f"{DOCUMENTS}/emma")["payload"] == {"year": 1815, **whole}


def test_scrolling_meets_every_document_once(books: FlaskClient) -> None:
    post(books, DOCUMENTS, [{"id": str(at), "vector": [at, 1, 0]} for at in range(20)])
    seen, cursor = [], ""
    while cursor is not None:
        page = get(books, f"{DOCUMENTS}?limit=7&cursor={cursor}")
        assert page["total"] == 23
        seen += [document["id"] for document in page["documents"]]
        cursor = page["next"]
    assert len(seen) == len(set(seen)) == 23


def test_listing_by_filter(books: FlaskClient) -> None:
    old = quote(json.dumps({"year": {"lt": 1850}}))
    page = get(books, f"{DOCUMENTS}?filter={old}")
    assert [document["id"] for document in page["documents"]] == ["emma"]
    assert (page["total"], page["next"]) == (1, None)


def test_delete_by_ids_and_by_filter(books: FlaskClient) -> None:
    delete = f"{DOCUMENTS}/delete"
    assert post(books, delete, {"ids": ["whale", "nobody"]}) == {"deleted": 1}
    assert post(books, delete, {"filter": {"year": 1815}}) == {"deleted": 1}
    assert get(books, f"{DOCUMENTS}?limit=0")["total"] == 1
    for body in ({}, {"ids": [], "filter": {}}, {"filter": {}}):
        post(books, delete, body, 422)
    assert get(books, f"{DOCUMENTS}?limit=0")["total"] == 1


def test_soft_search_blends_by_softmax(books: FlaskClient) -> None:
    answer = post(books, SEARCH, {"query": [3.0, 1.0, 2.0], "mode": "soft", "k": 3})
    weights = softmax(np.array([3.0, 2.0, 1.0]) / math.sqrt(3))
    np.testing.assert_allclose([hit["weight"] for hit in answer["hits"]], weights, atol=1e-6)
    valued = weights[[0, 2]] / weights[[0, 2]].sum()
    assert answer["answer"]["mean"] == pytest.approx(valued @ [4.0, 3.0], abs=1e-6)
    assert answer["answer"]["coverage"] == pytest.approx(weights[[0, 2]].sum(), abs=1e-6)


def test_a_write_is_found_by_the_next_search(books: FlaskClient) -> None:
    post(books, DOCUMENTS, [{"id": "new", "vector": [0, 0, 9]}])
    assert post(books, SEARCH, {"query": [0, 0, 1], "k": 1})["hits"][0]["id"] == "new"
    books.delete(f"{DOCUMENTS}/new")
    assert post(books, SEARCH, {"query": [0, 0, 1], "k": 1})["hits"][0]["id"] != "new"


def test_batch_equals_single_searches(books: FlaskClient) -> None:
    searches = [{"query": [1, 0, 0], "k": 2}, {"query": {"id": "emma"}, "k": 1}]
    batch = post(books, f"{SEARCH}/batch", {"searches": searches})["answers"]
    for one, many in zip(searches, batch, strict=True):
        assert many["hits"] == post(books, SEARCH, one)["hits"]


def test_batch_says_which_search_failed(books: FlaskClient) -> None:
    searches = [{"query": [1, 0, 0]}, {"query": [1, 0]}, {"query": {"id": "nobody"}}]
    answers = post(books, f"{SEARCH}/batch", {"searches": searches})["answers"]
    assert answers[0]["hits"][0]["id"] == "whale"
    assert [answers[at]["error"]["status"] for at in (1, 2)] == [422, 404]
    malformed = post(books, f"{SEARCH}/batch", {"searches": [searches[0], {"k": 1}]}, 422)
    assert malformed["errors"][0]["field"] == "searches.1.query"


def test_search_in_the_address_line(tiny_encoder_folder: Any, client: FlaskClient) -> None:
    made = client.put("/v1/collections/default", json={"encoder": str(tiny_encoder_folder)})
    assert made.status_code == 201
    texts = ["a white whale at sea", "a matchmaker in a village", "stone upon stone"]
    documents = [
        {"id": str(at), "text": text, "value": text[::-1], "payload": {"at": at}}
        for at, text in enumerate(texts)
    ]
    post(client, "/v1/collections/default/documents", documents)
    plain = get(client, "/search?q=white+whale&k=2&value=at&attend=3&explain=true")
    body = {"query": "white whale", "k": 2, "value": "at", "attend": 3, "explain": True}
    full = post(client, "/v1/collections/default/search", body)
    assert plain["hits"] == full["hits"]
    assert plain["hits"][0]["id"] == "0"
    masked = get(client, '/search?q=white+whale&mask={"exclude":["0"]}')
    assert "0" not in [hit["id"] for hit in masked["hits"]]
    for query in ("", "?q=x&k=0", "?q=x&filter={", "?q=x&q=y", "?q=x&nonsense=1"):
        assert client.get(f"/search{query}").status_code == 422


def test_projections(books: FlaskClient) -> None:
    path = "/v1/collections/books/projections"
    listed = get(books, path)
    assert listed["active"] == 1
    assert [each["version"] for each in listed["projections"]] == [1]
    assert post(books, f"{path}/1/activate", None) == {"active": 1}
    for version in (0, 2, 10**30):
        assert books.post(f"{path}/{version}/activate").status_code == 404


def test_values_that_json_can_hold_but_not_every_writer(books: FlaskClient, data: Data) -> None:
    big = {"id": "big", "vector": [1, 1, 1], "value": {"n": 2**80, "half": "\ud800"}}
    data.collection("books").upsert([big])
    assert get(books, f"{DOCUMENTS}/big")["value"] == big["value"]


def test_readiness_follows_the_server(data: Data) -> None:
    data.create("books", dimension=3)
    readiness = Readiness()
    client = create_app(data, None, readiness).test_client()
    get(client, "/healthz")
    assert get(client, "/readyz", 503)["status"] == "warming"
    readiness.warm(data)
    assert get(client, "/readyz") == {
        "status": "ready",
        "failed": {},
        "rebuilt": [],
        "precisions": {},
    }
    readiness.drain()
    assert get(client, "/readyz", 503)["status"] == "draining"
    readiness.warm(data)
    assert get(client, "/readyz", 503)["status"] == "draining"


def test_what_cannot_be_warmed_is_named_and_the_rest_served(data: Data) -> None:
    data.create("books", dimension=3)
    broken = data.folder / "collections" / "broken"
    broken.mkdir()
    (broken / "documents.db").write_bytes(b"no database" * 100)
    readiness = Readiness()
    readiness.warm(data)
    assert readiness.state == "ready"
    assert list(readiness.failed) == ["broken"]


def test_request_id_is_given_or_kept(app: Flask) -> None:
    client = app.test_client()
    kept = client.get("/healthz", headers={"X-Request-Id": "abc-1"})
    made = client.get("/healthz", headers={"X-Request-Id": "two words"})
    assert kept.headers["X-Request-Id"] == "abc-1"
    assert made.headers["X-Request-Id"] not in ("", "two words")


def test_a_batch_of_documents_over_their_collection_is_self_attention(books: FlaskClient) -> None:
    """The identity as vectors: every document attends to itself most, and weights mirror."""
    ids = [book["id"] for book in get(books, DOCUMENTS)["documents"]]
    searches = [{"query": {"id": id}, "k": 3, "scale": 2.0} for id in ids]
    matrix = post(books, f"{SEARCH}/batch", {"searches": searches, "matrix": True})["matrix"]
    assert matrix["documents"] == ids
    expected = softmax(2.0 * np.eye(3), axis=1)  # logits are 2 · δ
    np.testing.assert_allclose(matrix["weights"], expected, atol=1e-6)
    np.testing.assert_allclose(np.array(matrix["logits"])[:, 0], 2.0 * np.eye(3), atol=1e-6)
    np.testing.assert_allclose(np.array(matrix["head_weights"])[:, 0], expected, atol=1e-6)


def test_a_matrix_has_one_set_of_options(books: FlaskClient) -> None:
    searches = [{"query": {"id": "emma"}}, {"query": {"id": "emma"}, "scale": 3.0}]
    problem = post(books, f"{SEARCH}/batch", {"searches": searches, "matrix": True}, 422)
    assert "one set of options" in problem["detail"]


def test_the_server_says_what_indexes_must_do_where_clients_do_not(tmp_path):
    data = Data(tmp_path)
    settings = ServerSettings(recall=0.99, exact_below=5000)
    client = create_app(data, settings).test_client()
    own = {"dimension": 2, "recall": 0.8}
    assert client.put("/v1/collections/usual", json={"dimension": 2}).status_code == 201
    assert client.put("/v1/collections/own", json=own).status_code == 201
    usual, other = data.collection("usual"), data.collection("own")
    assert (usual.settings.recall, usual.settings.exact_below) == (0.99, 5000)
    assert (other.settings.recall, other.settings.exact_below) == (0.8, 5000)
    # Tuned meanwhile, or of another server: what exists is no conflict for who says nothing of it.
    usual.configure(recall=0.9)
    assert client.put("/v1/collections/usual", json={"dimension": 2}).status_code == 200
    assert client.put("/v1/collections/usual", json=own).status_code == 409
    data.close()


def test_upserts_take_a_stream_of_arrow(client: FlaskClient) -> None:
    client.put("/v1/collections/own", json={"dimension": 2})
    table = pa.table(
        {
            "id": ["a", "b"],
            "text": ["a whale", "a village"],
            "vector": [[0.6, 0.8], [1.0, 0.0]],
            "year": [1851, 1815],
        }
    )
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    path, kind = "/v1/collections/own/documents", "application/vnd.apache.arrow.stream"
    written = client.post(path, data=sink.getvalue(), content_type=kind)
    assert written.get_json()["added"] == 2
    assert get(client, f"{path}/a")["payload"] == {"year": 1851}
    query = {"query": "whale", "vector": [0.6, 0.8], "lexical": True, "highlight": True}
    batch = {"searches": [query, {"query": {"text": "village", "vector": [1, 0]}}]}
    first, second = post(client, "/v1/collections/own/search/batch", batch)["answers"]
    assert (first["hits"][0]["id"], second["hits"][0]["id"]) == ("a", "b")
    assert first["hits"][0]["highlight"]["spans"] == [[2, 7]]
    across = post(client, "/v1/search", query | {"collections": ["own"]})
    assert across["hits"][0]["id"] == "a"
    for body in (b"ARROW1", b""):
        assert client.post(path, data=body, content_type=kind).status_code == 422
    assert client.post(SEARCH, data=sink.getvalue(), content_type=kind).status_code in (404, 415)


def test_what_has_no_content_has_no_type(books: FlaskClient) -> None:
    deleted = books.delete("/v1/collections/books/documents/emma")
    assert (deleted.status_code, deleted.data) == (204, b"")
    assert "Content-Type" not in deleted.headers
