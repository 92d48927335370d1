"""Malformed requests: each is answered by a sentence that names the field and the remedy."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from flask.testing import FlaskClient

from attend import Data
from attend_service.app import create_app
from tests.service.conftest import BOOKS

HOME = "/v1/collections/books"
QUERY = {"query": [1, 0, 0]}
JARGON = ("Input should be a valid", "valid dictionary", "instance of", "pattern", "Field required")


class Malformed(NamedTuple):
    """A request with the field and the words that its error has."""

    path: str
    body: Any
    field: str
    words: str
    method: str = "POST"


def search(field: str, words: str, **body: Any) -> Malformed:
    return Malformed(f"{HOME}/search", {**QUERY, **body}, field, words)


def filtered(words: str, **filter: Any) -> Malformed:
    return search("filter", words, filter=filter)


def documents(field: str, words: str, body: Any) -> Malformed:
    return Malformed(f"{HOME}/documents", body, field, words)


def recommend(field: str, words: str, **body: Any) -> Malformed:
    return Malformed(f"{HOME}/recommend", body, field, words)


MALFORMED = [
    # Names that callers of other systems use.
    search("top_k", "did you mean 'k'?", top_k=3),
    search("n_results", "did you mean 'k'?", n_results=3),
    search("limit", "did you mean 'k'?", limit=3),
    search("size", "did you mean 'k'?", size=3),
    search("where", "did you mean 'filter'?", where={"year": 1851}),
    search("query_filter", "did you mean 'filter'?", query_filter={"year": 1851}),
    search("score_threshold", "did you mean 'min_score'?", score_threshold=0.5),
    search("with_payload", "did you mean 'fields'?", with_payload=True),
    search("aggs", "did you mean 'facets'?", aggs=["year"]),
    search("metric", "did you mean 'scorer'?", metric="cosine"),
    search("alpha", "did you mean 'lexical'?", alpha=0.5),
    search("from", "did you mean 'offset'?", **{"from": 10}),
    search("atend", "did you mean 'attend'?", atend=5),
    search("mask.onli", "did you mean 'only'?", mask={"onli": []}),
    search("query.blend.0.wieght", "did you mean 'weight'?",
           query={"blend": [{"id": "emma", "wieght": 2}]}),
    Malformed(f"{HOME}/search", {"k": 3}, "query", "it is required, but was not sent"),
    Malformed(f"{HOME}/search", {"vector": [1, 0, 0]}, "vector", "a query that is a text"),
    documents("documents.0.metadata", "did you mean 'payload'?",
              [{"id": "a", "vector": [1, 0, 0], "metadata": {}}]),
    documents("documents.0.embedding", "did you mean 'vector'?",
              [{"id": "a", "embedding": [1, 0, 0]}]),
    documents("documents.0._id", "did you mean 'id'?", [{"_id": "a", "vector": [1, 0, 0]}]),
    documents("points", "did you mean 'documents'?", {"points": [{"id": "a"}]}),
    Malformed("/v1/collections/new", {"dim": 3}, "dim", "did you mean 'dimension'?", "PUT"),
    Malformed("/v1/collections/new", {"model": "x"}, "model", "did you mean 'encoder'?", "PUT"),
    recommend("likes", "did you mean 'positive'?", likes=["emma"]),
    recommend("top_k", "did you mean 'k'?", history=["emma"], top_k=3),
    Malformed(f"{HOME}/interactions", {"items": [{"user_id": "a", "id": "emma"}]},
              "items.0.user_id", "did you mean 'user'?"),
    Malformed(f"{HOME}/feedback", {"items": [{"query": [1, 0, 0], "id": "emma", "rating": 1}]},
              "items.0.rating", "did you mean 'label'?"),
    # Filters.
    filtered("did you mean 'gte'?", year={"$gte": 1851}),
    filtered("did you mean 'ne'?", year={"!=": 1851}),
    filtered("did you mean 'nin'?", year={"not_in": [1851]}),
    filtered("did you mean '$and'?", must=[{"year": 1851}]),
    filtered("did you mean '$or'?", should=[{"year": 1851}]),
    filtered("'near', which is not known; known are eq, ne,", year={"near": 3}),
    filtered("'year' gte takes a number or text, but True was given", year={"gte": True}),
    # Values of a wrong type, and out of range.
    search("k", "a whole number was expected, but 'ten' was given", k="ten"),
    search("k", "a whole number was expected, but a list was given", k=[10]),
    search("fields", "a list was expected, but 'year' was given", fields="year"),
    search("filter", "an object was expected, but 'year' was given", filter="year"),
    search("explain", "true or false was expected, but 'yes' was given", explain="yes"),
    search("include.0", "'text' or 'passage'", include=["documents"]),
    search("query", "2 dimensions, but this collection's have 3. Send 3 numbers", query=[1, 0]),
    search("min_confidence", "Train first", min_confidence=0.9),
    search("mode", "'hard' or 'soft'", mode="loud"),
    documents("documents.0.id", "it is required, but was not sent", {}) ,
    documents("documents.0.vector", "Send 3 numbers", {"id": "a", "vector": [1, 0]}),
    # Requests as a whole.
    Malformed(f"{HOME}/documents/emma", {}, "value", "neither was given", "PATCH"),
    Malformed(HOME, {"recal": 0.9}, "recal", "did you mean 'recall'", "PATCH"),
    Malformed(HOME, {"recall": 2}, "recall", "1 or less was expected", "PATCH"),
    Malformed(HOME, {"values": "numbr"}, "values", "numbr", "PATCH"),
    Malformed(f"{HOME}/documents/delete", {}, "ids", "send exactly one of ids and filter"),
    search("k", "lower k or raise attend", k=200),
    Malformed(f"{HOME}/feedback",
              {"items": [{"query": {"text": "a", "vector": [1, 0, 0]}, "id": "emma"}]},
              "items.0.query", "both were given, send one"),
    search("cursor", "send a cursor or an offset, not both", cursor="x", offset=2),
    Malformed(f"{HOME}/interactions", {"all": True, "user": "a"}, "user", "alone", "DELETE"),
]  # fmt: skip


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlaskClient]:
    data = Data(tmp_path_factory.mktemp("malformed"))
    data.create("books", dimension=3).upsert(BOOKS)
    yield create_app(data).test_client()
    data.close()


@pytest.mark.parametrize("malformed", MALFORMED, ids=lambda each: f"{each.field} {each.words}")
def test_the_error_names_the_field_and_the_remedy(
    client: FlaskClient, malformed: Malformed
) -> None:
    response = client.open(malformed.path, method=malformed.method, json=malformed.body)
    problem = json.loads(response.data)
    assert response.status_code == 422, problem
    wrong = {error["field"]: error["reason"] for error in problem["errors"]}
    assert malformed.field in wrong
    assert malformed.words in wrong[malformed.field]
    assert malformed.words in problem["detail"]
    assert not [words for words in JARGON if words in problem["detail"]]
    assert "" not in wrong


def test_there_are_at_least_forty() -> None:
    assert len(MALFORMED) >= 40


def test_a_byte_that_is_no_utf8_is_located(client: FlaskClient) -> None:
    raw = b'{"k": 1,\n"query": "\xff"}'
    response = client.post(f"{HOME}/search", data=raw, content_type="application/json")
    assert response.status_code == 400
    assert "0xff at line 2, byte 11 is not UTF-8" in response.get_json()["detail"]


def test_a_single_document_is_taken(client: FlaskClient) -> None:
    one = {"id": "single", "vector": [0, 0, 1]}
    assert client.post(f"{HOME}/documents", json=one).get_json()["added"] == 1
    assert client.get(f"{HOME}/documents/single").status_code == 200
    assert client.delete(f"{HOME}/documents/single").status_code == 204


def test_a_filter_on_a_field_of_no_document_is_hinted_at(client: FlaskClient) -> None:
    found = client.post(f"{HOME}/search", json={**QUERY, "filter": {"yaer": 1851}}).get_json()
    assert found["hits"] == []
    assert found["hints"] == [
        "No document looked at (3) has the field 'yaer' of the filter; did you mean 'year'?"
    ]
    for known in ({"year": 1}, {"@id": "nobody"}):
        found = client.post(f"{HOME}/search", json={**QUERY, "filter": known}).get_json()
        assert (found["hits"], "hints" in found) == ([], False)


def test_a_listing_hints_at_a_field_of_no_document(client: FlaskClient) -> None:
    def listed(filter: dict[str, Any]) -> Any:
        query = {"filter": json.dumps(filter), "limit": 0}
        return client.get(f"{HOME}/documents", query_string=query).get_json()

    page = listed({"yaer": 1851})
    assert (page["total"], page["hints"]) == (
        0,
        ["No document looked at (3) has the field 'yaer' of the filter; did you mean 'year'?"],
    )
    assert "hints" not in listed({"year": 1})
    assert "hints" not in listed({"year": {"gt": 0}})
