"""Every kind of mistake: a clear 4xx as problem+json that names what was given."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest
from flask import Flask
from flask.testing import FlaskClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from attend.core import errors
from attend_service.replies import DOMAIN, KINDS, MAX_ERRORS, problem_of

SEARCH = "/v1/collections/books/search"
DOCUMENTS = "/v1/collections/books/documents"


class Mistake(NamedTuple):
    """A request, the status it gets, and words of the problem."""

    status: int
    words: str
    path: str
    body: Any = None
    raw: bytes | None = None
    method: str = "POST"
    type: str = "application/json"


def search(status: int, words: str, **body: Any) -> Mistake:
    return Mistake(status, words, SEARCH, {"query": [1, 0, 0], **body})


MISTAKES = [
    search(422, "k: 1 or more was expected, but 0", k=0),
    search(422, "but 10001 was given", k=10_001),
    search(422, "only 100 documents are attended", k=101),
    search(422, "temperature", temperature=-1),
    search(422, "temperature", temperature=0),
    search(422, "scorer", scorer="euclid"),
    search(422, "'colour'", value="colour"),
    search(422, "colour: unknown field", colour=1),
    search(422, "2 dimensions, but this collection's have 3", query=[1, 0]),
    search(422, "The query is text", query="words"),
    search(422, "exactly one of text, vector, id, ids, blend and mixture", query={}),
    search(422, "but 'x' was given", query=[1, "x", 0]),
    search(422, "operator", filter={"year": {"near": 3}}),
    search(422, "mode", mode="loud"),
    search(422, "but 'ten' was given", k="ten"),
    search(404, "no projection 9", projection=9),
    search(404, "'nobody'", query={"id": "nobody"}),
    search(404, "'nobody'", mask={"exclude": ["nobody"]}),
    Mistake(404, "no collection 'films'", "/v1/collections/films/search", {"query": "x"}),
    Mistake(404, "no document 'nobody'", f"{DOCUMENTS}/nobody", method="GET"),
    Mistake(404, "no document 'nobody'", f"{DOCUMENTS}/nobody", method="DELETE"),
    Mistake(404, "/v2/nothing", "/v2/nothing", method="GET"),
    Mistake(405, "takes GET, but POST was sent", "/v1/collections", {}),
    Mistake(409, "dimension is 3, not 4", "/v1/collections/books", {"dimension": 4}, method="PUT"),
    Mistake(422, "'a!b'", "/v1/collections/a!b", {"dimension": 4}, method="PUT"),
    Mistake(422, "both were given", "/v1/collections/b", {"dimension": 4, "encoder": "x"},
            method="PUT"),
    Mistake(422, "'no-such-model'", "/v1/collections/b", {"encoder": "no-such-model"},
            method="PUT"),
    Mistake(422, "a list", SEARCH, [1, 2]),
    Mistake(422, "has text or fields; both were given", DOCUMENTS,
            [{"id": "a", "text": "b", "fields": {"c": "d"}}]),
    Mistake(422, "is empty", DOCUMENTS, [{"id": "a", "text": "  "}]),
    Mistake(422, "at most 10000", DOCUMENTS, [{}] * 10_001),
    Mistake(422, "limit", f"{DOCUMENTS}?limit=1001", method="GET"),
    Mistake(422, "cursor", f"{DOCUMENTS}?cursor={2**63}", method="GET"),
    Mistake(400, "line 1, column 2", SEARCH, raw=b"{query"),
    Mistake(400, "line 2, column 11", SEARCH, raw=b'{"k": 1,\n"query": [NaN]}'),
    Mistake(400, "not JSON", SEARCH, raw=b'{"query": [1e999, 0, 0]}'),
    Mistake(400, "not JSON", SEARCH, raw=b'{"query": "\\ud800"}'),
    Mistake(400, "not JSON", SEARCH, raw=b'{"query": "\xff"}'),
    Mistake(400, "not JSON", DOCUMENTS, raw=b"[" * 2000 + b"]" * 2000),
    Mistake(400, "empty", SEARCH, raw=b""),
    Mistake(413, "100,000 bytes", SEARCH, raw=b" " * 100_001),
    Mistake(415, "text/plain", SEARCH, raw=b"{}", type="text/plain"),
    Mistake(415, "application/x-www-form-urlencoded", SEARCH, raw=b"{}",
            type="application/x-www-form-urlencoded"),
]  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda each: f"{each.status} {each.words}")
def test_mistake(books: FlaskClient, mistake: Mistake) -> None:
    raw = json.dumps(mistake.body).encode() if mistake.raw is None else mistake.raw
    has_body = mistake.method in ("POST", "PUT")
    response = books.open(
        mistake.path,
        method=mistake.method,
        data=raw if has_body else None,
        content_type=mistake.type if has_body else None,
    )
    assert response.status_code == mistake.status, response.text
    assert response.content_type == "application/problem+json"
    problem = json.loads(response.data)
    assert problem["status"] == mistake.status
    assert mistake.words in problem["detail"]
    assert problem["instance"] == mistake.path.split("?")[0]
    assert problem["type"].removeprefix("/docs#") in {kind.slug for kind in KINDS}
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert "default-src 'none'" in response.headers["Content-Security-Policy"]


def test_a_compressed_body_is_refused(books: FlaskClient) -> None:
    response = books.post(SEARCH, json={}, headers={"Content-Encoding": "gzip"})
    assert response.status_code == 415


def test_a_method_that_is_not_taken_is_told_those_that_are(client: FlaskClient) -> None:
    response = client.post("/v1/collections/books", json={})
    assert response.status_code == 405
    assert {"GET", "PUT", "DELETE"} <= set(response.headers["Allow"].split(", "))


def test_thousands_of_wrong_fields_are_cut_short(books: FlaskClient) -> None:
    problem = books.post(DOCUMENTS, json=[{}] * 500).get_json()
    assert len(problem["errors"]) == MAX_ERRORS


def test_every_error_of_the_package_has_a_place() -> None:
    """A new branch of the tree must be given a status, or fall to 500 on purpose."""
    placed = {domain for domain, _ in DOMAIN}
    branches = set(errors.AttendError.__subclasses__())
    assert branches - placed == {errors.SourceError, errors.Damaged}


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.UnknownField("x"), 422),
        (errors.UnknownProjection("x"), 404),
        (errors.ManifestMismatch("x"), 409),
        (errors.LimitExceeded("x"), 413),
        (errors.EncoderError("secret"), 503),
        (errors.Damaged("secret"), 500),
        (RuntimeError("secret"), 500),
    ],
)
def test_status_of_each_error(app: Flask, error: Exception, status: int) -> None:
    with app.test_request_context("/"):
        app.preprocess_request()
        problem = problem_of(error)
    assert problem.status == status
    assert "secret" not in problem.detail


def test_a_failure_is_logged_and_its_inside_is_not_told(
    app: Flask, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise RuntimeError("/secret/path")

    app.add_url_rule("/fail", "fail", fail)
    response = app.test_client().get("/fail", headers={"X-Request-Id": "find-me"})
    assert response.status_code == 500
    assert response.content_type == "application/problem+json"
    assert "secret" not in response.text
    assert "find-me" in response.text
    assert "find-me" in caplog.text
    assert "/secret/path" in caplog.text


NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=12,
)
CONDITIONS = st.sampled_from(["$and", "$or", "$not", "year", "@id", "a.b", "'", '"', "$.x", "%"])
OPERATORS = st.sampled_from(["eq", "ne", "in", "nin", "exists", "gt", "lt", "near"])
FILTERS = st.dictionaries(CONDITIONS, JSON | st.dictionaries(OPERATORS, JSON), max_size=3)
SETTINGS = settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "query": JSON | st.just([1, 0, 0]),
        "k": JSON,
        "filter": FILTERS | JSON,
        "mask": JSON | st.just({"only": ["whale"]}),
        "value": JSON,
        "temperature": JSON,
        "attend": JSON | st.just("all"),
        "mode": st.sampled_from(["hard", "soft"]),
        "heads": JSON | st.just([1.0]),
        "scorer": st.sampled_from(["dot", "cosine", "laplace", "additive"]),
    },
)


@SETTINGS
@given(body=FIELDS)
def test_no_search_makes_the_server_fail(books: FlaskClient, body: dict[str, Any]) -> None:
    response = books.post(SEARCH, json={"query": [1, 0, 0], **body})
    assert response.status_code in (200, 400, 404, 422), response.text


@SETTINGS
@given(value=JSON, payload=JSON, id=JSON)
def test_what_is_stored_is_given_back(
    books: FlaskClient, value: Any, payload: Any, id: Any
) -> None:
    document = {"id": id, "vector": [1, 1, 1], "value": value, "payload": payload}
    response = books.post(DOCUMENTS, json=[document])
    assert response.status_code in (200, 422), response.text
    if response.status_code == 200:
        search = {"query": [1, 1, 1], "k": 1, "mask": {"only": [id]}}
        hit = books.post(SEARCH, json=search).get_json()["hits"][0]
        assert (hit["id"], hit["value"], hit["payload"]) == (str(id), value, payload)


def test_a_vector_beyond_float32_is_refused_where_versions_are_compared(books: FlaskClient) -> None:
    """An overflow is a warning of NumPy, which tests take for an error."""
    items = [{"query": {"vector": [1e39] * 3}, "id": "moby-dick", "label": 1}]
    body = {"before": 1, "items": items}
    response = books.post("/v1/collections/books/compare", json=body)
    assert response.status_code == 422
    assert "a number beyond 1e+15" in response.get_json()["detail"]
