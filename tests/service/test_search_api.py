"""Pages, facets, groups, passages, aliases and several collections at once, over HTTP."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient

from attend import Data
from attend_service.jobs import Jobs
from tests.service.conftest import LIMIT, SlowTrainer
from tests.service.test_api import DOCUMENTS, SEARCH, get, post
from tests.service.test_jobs import reached

ALIAS = "/v1/aliases/live"


def put(client: FlaskClient, path: str, body: Any, status: int) -> Any:
    response = client.put(path, json=body)
    assert response.status_code == status, response.text
    return response.get_json()


def test_scrolling_is_not_disturbed_by_writes(books: FlaskClient) -> None:
    post(books, DOCUMENTS, [{"id": str(at), "vector": [at, 1, 0]} for at in range(20)])
    seen, page = [], get(books, f"{DOCUMENTS}?limit=5")
    while True:
        seen += [document["id"] for document in page["documents"]]
        post(books, f"{DOCUMENTS}/delete", {"ids": seen[-5:-3]})
        if page["next"] is None:
            break
        page = get(books, f"{DOCUMENTS}?limit=5&cursor={page['next']}")
    assert len(seen) == len(set(seen)) == 23


def test_a_cursor_is_of_one_filter(books: FlaskClient) -> None:
    page = get(books, f"{DOCUMENTS}?limit=1")
    problem = get(books, f'{DOCUMENTS}?cursor={page["next"]}&filter={{"year":1815}}', 422)
    assert problem["errors"][0]["field"] == "cursor"
    assert get(books, f"{DOCUMENTS}?limit=0")["next"] is None


def test_facets_of_documents_and_of_a_search(books: FlaskClient) -> None:
    counted = post(books, f"{DOCUMENTS}/facets", {"fields": ["year"]})
    values = [{"value": 1815, "documents": 1}, {"value": 1851, "documents": 1}]
    assert counted == {
        "facets": {"year": {"values": values, "distinct": 2, "missing": 1}},
        "total": 3,
    }
    old = {"fields": ["year"], "filter": {"year": {"lt": 1850}}, "limit": 1}
    assert post(books, f"{DOCUMENTS}/facets", old)["facets"]["year"]["distinct"] == 1
    found = post(books, SEARCH, {"query": [1, 0, 0], "k": 1, "facets": ["year"]})
    assert found["facets"] == counted["facets"]
    assert "facets" not in post(books, SEARCH, {"query": [1, 0, 0]})
    assert post(books, f"{DOCUMENTS}/facets", {"fields": []}, 422)["errors"]


def test_a_search_page_by_page_grouped_and_cut(books: FlaskClient) -> None:
    first = post(books, SEARCH, {"query": [3, 2, 1], "k": 2, "fields": ["year"]})
    assert first["hits"][0]["payload"] == {"year": 1851}
    assert "group_size" not in first["hits"][0]
    body = {"query": [3, 2, 1], "k": 2, "cursor": first["next"]}
    second = post(books, SEARCH, body)
    assert [hit["id"] for hit in second["hits"]] == ["https://x.example//a/b"]
    assert second["next"] is None
    grouped = post(books, SEARCH, {"query": [3, 2, 1], "group_by": "@value"}, 200)
    assert len(grouped["hits"]) == 3
    least = first["hits"][1]["score"]
    cut = post(books, SEARCH, {"query": [3, 2, 1], "min_score": least})
    assert [hit["id"] for hit in cut["hits"]] == ["whale", "emma"]
    plain = get(books, "/search?q=x&collection=books&facets=[]&fields=[1]", 422)
    assert plain["errors"][0]["field"] == "fields.0"


def test_a_passage_is_marked_by_offsets(tiny_encoder_folder: Any, client: FlaskClient) -> None:
    put(client, "/v1/collections/notes", {"encoder": str(tiny_encoder_folder)}, 201)
    text = "<i>White</i> whales & a whale"
    post(client, "/v1/collections/notes/documents", [{"id": "a", "text": text}])
    body = {"query": "a whale", "highlight": True}
    marked = post(client, "/v1/collections/notes/search", body)["hits"][0]["highlight"]
    assert marked["passage"] == text
    words = [marked["passage"][start:stop] for start, stop in marked["spans"]]
    assert words == ["whales", "whale"]  # "a" alone tells nothing


def test_a_batch_bounds_the_documents_to_rerank(client: FlaskClient) -> None:
    put(client, "/v1/collections/notes", {"dimension": 2}, 201)
    searches = [{"query": "a whale", "k": 1, "rerank": 20}] * 150
    problem = post(client, "/v1/collections/notes/search/batch", {"searches": searches}, 422)
    assert problem["errors"][0]["field"] == "searches"
    assert "the searches have 3,000 documents to rerank" in problem["detail"]


def test_hits_have_titles_when_asked(tiny_encoder_folder: Any, client: FlaskClient) -> None:
    put(client, "/v1/collections/notes", {"encoder": str(tiny_encoder_folder)}, 201)
    wanted = {
        "payload": "Of the payload",
        "value": "Of the value",
        "texts": "Of the texts",
        "none": "The first line of a text",
        "long": "w" * 119 + "…",
        "blank": "a whale",
    }
    documents = [
        {"id": "payload", "text": "a whale", "payload": {"title": wanted["payload"]}},
        {"id": "value", "text": "a whale", "value": {"name": wanted["value"], "n": 1}},
        {"id": "texts", "fields": {"body": "a whale", "headline": wanted["texts"]}},
        {"id": "none", "text": f"  {wanted['none']}\nand a whale", "payload": {"title": 7}},
        {"id": "long", "text": "w" * 5000},
        {"id": "blank", "text": "a whale", "payload": {"title": " "}},
    ]
    post(client, "/v1/collections/notes/documents", documents)
    for more in ({}, {"mode": "soft"}, {"value": "n", "fields": []}):
        body = {"query": "a whale", "title": True, **more}
        hits = post(client, "/v1/collections/notes/search", body)["hits"]
        assert {hit["id"]: hit["title"] for hit in hits} == wanted
    plain = post(client, "/v1/collections/notes/search", {"query": "a whale"})["hits"]
    assert not any("title" in hit for hit in plain)
    body = {"positive": ["none"], "title": True}
    liked = post(client, "/v1/collections/notes/recommend", body)["hits"]
    assert {hit["id"]: hit["title"] for hit in liked} == {
        id: title for id, title in wanted.items() if id != "none"
    }
    points = post(client, "/v1/collections/notes/map", {})["points"]
    assert {each["id"]: each["title"] for each in points} == wanted


def test_a_vector_without_a_title_goes_by_its_id(books: FlaskClient) -> None:
    hits = post(books, SEARCH, {"query": [1, 0, 0], "title": True})["hits"]
    assert [hit["title"] for hit in hits] == [hit["id"] for hit in hits]


def test_the_life_of_an_alias(books: FlaskClient) -> None:
    put(books, "/v1/collections/films", {"dimension": 3}, 201)
    assert put(books, ALIAS, {"collection": "books"}, 201) == {
        "alias": "live",
        "collection": "books",
    }
    assert get(books, "/v1/collections/live/documents")["total"] == 3
    assert get(books, "/v1/collections/live")["name"] == "books"
    post(books, "/v1/collections/live/documents", [{"id": "new", "vector": [0, 0, 9]}])
    assert get(books, f"{DOCUMENTS}/new")
    put(books, ALIAS, {"collection": "films"}, 200)
    assert get(books, "/v1/collections/live/documents")["total"] == 0
    assert get(books, "/v1/aliases") == {"aliases": [get(books, ALIAS)]}
    assert [each["name"] for each in get(books, "/v1/collections")["collections"]] == [
        "books",
        "films",
    ]
    for path in ("films", "live"):
        assert books.delete(f"/v1/collections/{path}").status_code == 409
    assert put(books, "/v1/collections/live", {"dimension": 3}, 409)["errors"]
    assert put(books, "/v1/aliases/books", {"collection": "films"}, 409)["errors"]
    assert books.delete(ALIAS).status_code == 204
    assert books.delete(ALIAS).status_code == books.get(ALIAS).status_code == 404
    assert books.delete("/v1/collections/films").status_code == 204


def test_a_refused_drop_cancels_nothing(
    books: FlaskClient, jobs: Jobs, trainer: SlowTrainer
) -> None:
    """A training through an alias is its collection's, and goes on while that cannot be dropped."""
    put(books, ALIAS, {"collection": "books"}, 201)
    job = post(books, "/v1/collections/live/train", {"objective": "answers"}, 202)
    assert job["collection"] == "books"
    reached(jobs, job["id"], "running")
    assert books.delete("/v1/collections/books").status_code == 409
    trainer.may_finish.set()
    reached(jobs, job["id"], "done")


def test_switching_while_searches_run(app: Flask, books: FlaskClient) -> None:
    put(books, "/v1/collections/films", {"dimension": 3}, 201)
    post(books, "/v1/collections/films/documents", [{"id": "film", "vector": [1, 0, 0]}])
    put(books, ALIAS, {"collection": "books"}, 201)
    statuses, stop = [], threading.Event()

    def search() -> None:
        client = app.test_client()
        while not stop.is_set():
            body = {"query": [1, 0, 0], "k": 1}
            found = client.post("/v1/collections/live/search", json=body)
            statuses.append((found.status_code, found.get_json()["hits"][0]["id"]))

    threads = [threading.Thread(target=search) for _ in range(2)]
    for thread in threads:
        thread.start()
    for at in range(40):
        put(books, ALIAS, {"collection": ("films", "books")[at % 2]}, 200)
    stop.set()
    for thread in threads:
        thread.join(LIMIT)
    assert {status for status, _ in statuses} == {200}
    assert {id for _, id in statuses} <= {"film", "whale"}


def test_several_collections_at_once(books: FlaskClient, data: Data) -> None:
    data.create("films", dimension=3).upsert([{"id": "film", "vector": [2, 0, 0]}])
    body = {"query": [1, 0, 0], "collections": ["books", "films"], "k": 2}
    found = post(books, "/v1/search", body)
    assert [(hit["collection"], hit["id"]) for hit in found["hits"]] == [
        ("films", "film"),
        ("books", "whale"),
    ]
    assert found["merged"]
    assert sum(found["shares"].values()) == pytest.approx(1)
    assert set(found["answers"]) == {"books", "films"}
    data.create("unit", dimension=3, normalize=True)
    apart = post(books, "/v1/search", {**body, "collections": ["books", "unit"]})
    assert (apart["merged"], apart["hits"], apart["shares"]) == (False, [], None)
    assert post(books, "/v1/search", {**body, "collections": ["nope"]}, 404)


def test_times_count_in_each_kind_of_search(books: FlaskClient) -> None:
    post(
        books,
        DOCUMENTS,
        [
            {"id": id, "vector": [1, 0, 0], "payload": {"day": day}}
            for id, day in (("early", "2024-01-01"), ("late", "2024-01-31"))
        ],
    )
    timed = {"query": [1, 0, 0], "k": 2, "filter": {"day": {"exists": True}}, "now": "2024-03-01"}
    plain = post(books, SEARCH, timed)
    assert [hit["weight"] for hit in plain["hits"]] == pytest.approx([1 / 2, 1 / 2])
    timed["recency"] = {"field": "day", "half_life": 30}
    reply = post(books, SEARCH, {**timed, "explain": True})
    assert [hit["id"] for hit in reply["hits"]] == ["late", "early"]
    assert [hit["weight"] for hit in reply["hits"]] == pytest.approx([2 / 3, 1 / 3])
    parts = [hit["explanation"]["parts"] for hit in reply["hits"]]
    ages = [30, 60]
    assert [part["recency"] for part in parts] == pytest.approx([-0.0231049 * day for day in ages])
    for part, hit in zip(parts, reply["hits"], strict=True):
        assert sum(part.values()) == pytest.approx(hit["score"], abs=1e-4)
    [again, off] = post(
        books, f"{SEARCH}/batch", {"searches": [timed, {**timed, "recency": False}]}
    )["answers"]
    assert [hit["weight"] for hit in again["hits"]] == pytest.approx([2 / 3, 1 / 3])
    assert [hit["weight"] for hit in off["hits"]] == pytest.approx([1 / 2, 1 / 2])
    across = {**timed, "collections": ["books"]}
    [merged] = post(books, "/v1/search", across)["answers"].values()
    assert [hit["id"] for hit in merged["hits"]] == ["late", "early"]
    problem = post(books, SEARCH, {**timed, "recency": {"field": "day", "half_life": "a"}}, 422)
    assert problem["errors"][0]["field"] == "recency"
    assert "half_life" in problem["errors"][0]["reason"]
