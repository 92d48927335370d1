"""What a request may be: its size and depth, its origin, its names; and what every answer says."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from flask.testing import FlaskClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from attend import Data
from attend.core.errors import InvalidRequest
from attend_service.app import create_app
from attend_service.keys import KeyFile
from attend_service.operations import MAX_DEPTH, parse_json
from attend_service.security import MAX_QUERY_STRING
from attend_service.settings import ServerSettings, check_origin
from tests.places import ROOT

SEARCH = "/v1/collections/books/search"
DOCUMENTS = "/v1/collections/books/documents"
OURS = "http://localhost"
LISTED = "https://app.example"
BROWSER = {"Accept": "text/html"}


def make_client(folder: Path, **settings: Any) -> FlaskClient:
    data = Data(folder)
    return create_app(data, ServerSettings(**settings)).test_client()


# -- size and depth ---------------------------------------------------------------------------


def nested(depth: int, leaf: str = "1") -> str:
    """JSON with lists and objects in turn, `depth` of them."""
    text = leaf
    for at in range(depth):
        text = f"[{text}]" if at % 2 else f'{{"a": {text}}}'
    return text


@pytest.mark.parametrize("depth", [0, 1, 2, 63, 64, 65, 66, 300])
def test_depth_is_what_a_recursive_count_says(depth: int) -> None:
    # Brackets in texts do not count, and wide is not deep.
    beside = json.dumps({"text": "[" * 300, "wide": [[]] * 300})
    for text in (nested(depth), f"[{beside}, 1, {nested(depth)}]"):
        parsed = json.loads(text)
        if count(parsed) <= MAX_DEPTH:
            parse_json(text.encode())
            continue
        with pytest.raises(InvalidRequest, match="more than 64 deep"):
            parse_json(text.encode())


def count(given: Any) -> int:
    if not isinstance(given, dict | list):
        return 0
    values = given.values() if isinstance(given, dict) else given
    return 1 + max((count(each) for each in values), default=0)


@pytest.mark.parametrize("place", ["value", "payload"])
def test_a_deep_document_is_refused_whole(books: FlaskClient, place: str) -> None:
    fits = nested(40)
    for inner, status in ((fits, 200), (nested(100), 422), (nested(900), 422)):
        content = f'{{"a": {inner}}}'
        body = f'[{{"id": "deep", "vector": [1, 0, 0], "{place}": {content}}}]'
        response = books.post(DOCUMENTS, data=body, content_type="application/json")
        assert response.status_code == status, response.text
    assert "nested more than 64 deep" in response.get_json()["detail"]
    assert books.get(f"{DOCUMENTS}/deep").get_json()[place] == {"a": json.loads(fits)}


def test_a_deep_parameter_is_refused(books: FlaskClient) -> None:
    deep = quote('{"$not":' * 100 + "{}" + "}" * 100)
    response = books.get(f"{DOCUMENTS}?filter={deep}")
    assert response.status_code == 422
    assert response.get_json()["errors"][0]["field"] == "filter"


def test_a_long_address_is_refused(books: FlaskClient) -> None:
    fits = books.get(f"{DOCUMENTS}?limit=0&x={'a' * (MAX_QUERY_STRING - 10)}")
    assert fits.status_code == 422  # x is not known
    response = books.get(f"{DOCUMENTS}?limit=0&x={'a' * MAX_QUERY_STRING}")
    assert response.status_code == 414
    assert "16,384" in response.get_json()["detail"]


RECOMMEND = "/v1/collections/books/recommend"
VECTOR = [1, 0, 0]
WORDS = " ".join(f"w{number}" for number in range(65))
BEYOND: dict[str, tuple[str, Any]] = {
    "k": (SEARCH, {"query": VECTOR, "k": 10_001}),
    "offset": (SEARCH, {"query": VECTOR, "offset": 10_001, "attend": "all"}),
    "attend": (SEARCH, {"query": VECTOR, "attend": 100_001}),
    "text": (SEARCH, {"query": "x" * 1_000_001}),
    "dimensions": (SEARCH, {"query": [0] * 65_537}),
    "id": (SEARCH, {"query": {"id": "x" * 513}}),
    "ids of a query": (SEARCH, {"query": {"ids": ["a"] * 1001}}),
    "parts of a blend": (SEARCH, {"query": {"blend": [VECTOR] * 1001}}),
    "parts of a mixture": (SEARCH, {"query": {"mixture": [VECTOR] * 1001}}),
    "heads": (SEARCH, {"query": VECTOR, "heads": [1] * 257}),
    "value": (SEARCH, {"query": VECTOR, "value": "x" * 257}),
    "facets": (SEARCH, {"query": VECTOR, "facets": ["a"] * 33}),
    "mask": (SEARCH, {"query": VECTOR, "mask": {"only": ["a"] * 100_001}}),
    "listed": (SEARCH, {"query": VECTOR, "filter": {"a": {"in": list(range(100_001))}}}),
    "conditions": (SEARCH, {"query": VECTOR, "filter": {"$or": [{"a": n} for n in range(257)]}}),
    "depth": (SEARCH, {"query": VECTOR, "filter": json.loads('{"$not":' * 13 + "{}" + "}" * 13)}),
    "words": (
        SEARCH,
        {"query": VECTOR, "filter": {"a": {"match": " ".join(f"w{n}" for n in range(65))}}},
    ),
    "searches": (f"{SEARCH}/batch", {"searches": [{"query": VECTOR}] * 257}),
    "collections": ("/v1/search", {"query": VECTOR, "collections": ["books"] * 33}),
    "a map": ("/v1/collections/books/map", {"limit": 3001}),
    "a map in columns": ("/v1/collections/books/map/columns", {"limit": 100_001}),
    "documents": (DOCUMENTS, [{"id": "a", "vector": VECTOR}] * 10_001),
    "text of a document": (DOCUMENTS, [{"id": "a", "text": "x" * 1_000_001}]),
    "text fields": (DOCUMENTS, [{"id": "a", "fields": {str(n): "x" for n in range(65)}}]),
    "id of a document": (DOCUMENTS, [{"id": "x" * 513, "vector": VECTOR}]),
    "ids in a deletion": (f"{DOCUMENTS}/delete", {"ids": ["a"] * 10_001}),
    "history": (RECOMMEND, {"history": ["a"] * 100_001}),
    "examples": (RECOMMEND, {"positive": ["a"] * 1001}),
    "facts": (RECOMMEND, {"facts": [{"field": "a", "value": 1}] * 1001}),
    "targets": (RECOMMEND, {"history": ["a"], "target": ["a"] * 257}),
    "diversity": (RECOMMEND, {"history": ["a"], "k": 1001, "diversity": 0.5}),
    "interactions": (
        "/v1/collections/books/interactions",
        [{"user": "u", "id": "a"}] * 10_001,
    ),
    "user": ("/v1/collections/books/interactions", [{"user": "x" * 513, "id": "a"}]),
    "name": (f"/v1/collections/{'x' * 64}/search", {"query": VECTOR}),
}


@pytest.mark.parametrize("limit", BEYOND)
def test_every_stated_limit_is_kept_with_a_sentence(tmp_path: Path, limit: str) -> None:
    path, body = BEYOND[limit]
    client = make_client(tmp_path)
    client.put("/v1/collections/books", json={"dimension": 3})
    response = client.post(path, json=body)
    assert response.status_code == 422, response.text
    detail = response.get_json()["detail"]
    assert any(character.isdigit() for character in detail)
    assert len(detail) < 1500, "the whole of it is sent back"
    assert client.get(f"{DOCUMENTS}?limit=0").get_json()["total"] == 0


def test_a_page_has_a_limit(books: FlaskClient) -> None:
    refused = books.get(f"{DOCUMENTS}?limit=1001")
    assert refused.status_code == 422
    assert "1000" in refused.get_json()["detail"]


def test_each_limit_of_the_document_names_a_test_that_there_is() -> None:
    text = (ROOT / "SECURITY.md").read_text()
    tests = set()
    for path in (ROOT / "tests").rglob("*.py"):
        tests |= set(re.findall(r"def (test_\w+)", path.read_text()))
    assert set(re.findall(r"`(test_\w+)`", text)) <= tests
    rows = text.partition("## Limits")[2].split("|---|---|---|---|---|\n")[1].split("\n\n")[0]
    for row in rows.splitlines():
        assert re.search(r"`test_\w+` \|$", row), row


def test_no_more_collections_than_allowed(tmp_path: Path) -> None:
    client = make_client(tmp_path, max_collections=2)
    for name in ("a", "b"):
        assert client.put(f"/v1/collections/{name}", json={"dimension": 1}).status_code == 201
    refused = client.put("/v1/collections/c", json={"dimension": 1})
    assert refused.status_code == 409
    assert "--max-collections" in refused.get_json()["detail"]
    assert client.put("/v1/collections/a", json={"dimension": 1}).status_code == 200
    assert client.delete("/v1/collections/b").status_code == 204
    assert client.put("/v1/collections/c", json={"dimension": 1}).status_code == 201


# -- names ------------------------------------------------------------------------------------

NASTY = [
    "..", ".", "../x", "..%2fx", "%2e%2e", "/etc/passwd", "//x", "\\x", "..\\x", "C:x", "a/../../x",
    "a\x00b", "a\nb", "x" * 64, "x" * 5000, "-x", " x", "x ", "x.", "~", "~root", "*", "a?b", "é",
    "\u202ex", "ａ", "\ud800", "con", "NUL", "aux", "Com1", "lpt9", ".git", "a.b", "$x", "`x`",
    "a;b", "'", '"',
]  # fmt: skip


@pytest.fixture(scope="module")
def fenced(tmp_path_factory: pytest.TempPathFactory) -> tuple[FlaskClient, Path]:
    """A client of a data folder beside which nothing else is."""
    around = tmp_path_factory.mktemp("around")
    (around / "data").mkdir()
    return make_client(around / "data"), around


def send_names(client: FlaskClient, around: Path, name: str) -> None:
    """Send a name wherever one is taken, and look for what came of it."""
    part = quote(name.encode("utf-8", "surrogatepass"), safe="")
    made = client.put(f"/v1/collections/{part}", json={"dimension": 1})
    statuses = {made.status_code}
    for raw in (part, quote(name.encode("utf-8", "surrogatepass"))):
        for path in (
            f"/v1/collections/{raw}",
            f"/v1/collections/{raw}/documents",
            f"/static/{raw}",
        ):
            with client.get(path) as response:
                statuses.add(response.status_code)
        statuses.add(client.delete(f"/v1/collections/{raw}").status_code)
        found = client.get(f"/search?q=x&collection={part}")
        statuses.add(found.status_code)
    assert max(statuses) < 500
    assert [each.name for each in around.iterdir()] == ["data"]
    inside = {each.name for each in (around / "data").iterdir()}
    assert inside <= {"collections", "jobs.db", "jobs.lock", "jobs.db-wal", "jobs.db-shm"}, inside


@pytest.mark.parametrize("name", NASTY, ids=lambda each: ascii(each)[:20])
def test_no_nasty_name_is_taken(fenced: tuple[FlaskClient, Path], name: str) -> None:
    client, around = fenced
    part = quote(name.encode("utf-8", "surrogatepass"), safe="")
    made = client.put(f"/v1/collections/{part}", json={"dimension": 1})
    assert made.status_code in (404, 405, 422), made.text
    send_names(client, around, name)


@given(name=st.text(max_size=70))
@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_no_name_leaves_the_data_folder(fenced: tuple[FlaskClient, Path], name: str) -> None:
    send_names(*fenced, name)


def test_names_that_differ_in_capitals_only_are_refused(tmp_path: Path) -> None:
    client = make_client(tmp_path)
    assert client.put("/v1/collections/Books", json={"dimension": 1}).status_code == 201
    refused = client.put("/v1/collections/bOOKS", json={"dimension": 1})
    assert refused.status_code == 409
    assert "capitals" in refused.get_json()["detail"]
    assert client.put("/v1/collections/Books", json={"dimension": 1}).status_code == 200


def test_a_link_out_of_the_folder_is_not_followed_by_a_deletion(tmp_path: Path) -> None:
    client = make_client(tmp_path / "data")
    client.put("/v1/collections/books", json={"dimension": 1})
    client.application.extensions["attend"].data.close()
    outside = tmp_path / "outside"
    shutil.move(tmp_path / "data" / "collections" / "books", outside)
    (tmp_path / "data" / "collections" / "books").symlink_to(outside)
    client.delete("/v1/collections/books")
    assert (outside / "documents.db").exists()


# -- origins ----------------------------------------------------------------------------------

FOREIGN = [
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://localhost.evil.example"},
    {"Origin": "http://["},
    {"Origin": "http://localhost:81"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site", "Origin": "http://localhost:3000"},
    {"Sec-Fetch-Site": "cross-site", "Origin": OURS},
]


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
def test_pages_of_other_origins_change_nothing(books: FlaskClient, headers: dict[str, str]) -> None:
    for method, path in (
        ("POST", "/v1/collections/books/projections/rollback"),
        ("POST", SEARCH),
        ("DELETE", "/v1/collections/books"),
        ("PUT", "/v1/collections/new"),
        ("PATCH", f"{DOCUMENTS}/whale"),
    ):
        response = books.open(path, method=method, headers=headers)
        assert response.status_code == 403, (method, path)
        assert "--cors-origin" in response.get_json()["detail"]
    assert books.get(f"{DOCUMENTS}?limit=0", headers=headers).get_json()["total"] == 3


@pytest.mark.parametrize(
    "headers",
    [
        {}, {"Origin": OURS}, {"Origin": "https://localhost"}, {"Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "none"}, {"Sec-Fetch-Site": "same-origin", "Origin": "https://proxy"},
    ],
    ids=str,
)  # fmt: skip
def test_our_own_pages_and_programs_may(books: FlaskClient, headers: dict[str, str]) -> None:
    assert books.delete(f"{DOCUMENTS}/emma", headers=headers).status_code == 204


def test_no_origin_may_read_unless_listed(books: FlaskClient) -> None:
    for origin in (OURS, "https://evil.example", "null"):
        response = books.get("/v1/collections", headers={"Origin": origin})
        assert not [name for name, _ in response.headers if name.startswith("Access-Control")]
    asked = {"Origin": "https://evil.example", "Access-Control-Request-Method": "DELETE"}
    preflight = books.options("/v1/collections/books", headers=asked)
    assert not [name for name, _ in preflight.headers if name.startswith("Access-Control")]


def test_a_listed_origin_may_read_and_write(tmp_path: Path) -> None:
    client = make_client(tmp_path, cors_origin=(LISTED,))
    KeyFile(tmp_path).add()
    asked = {"Origin": LISTED, "Access-Control-Request-Method": "PUT"}
    preflight = client.options("/v1/collections/books", headers=asked)
    assert preflight.status_code == 204, "a preflight comes without a key"
    assert preflight.headers["Access-Control-Allow-Origin"] == LISTED
    assert "PUT" in preflight.headers["Access-Control-Allow-Methods"]
    assert "Authorization" in preflight.headers["Access-Control-Allow-Headers"]
    key = KeyFile(tmp_path).add(scope="admin")[1]
    sent = {"Origin": LISTED, "Sec-Fetch-Site": "cross-site", "X-Api-Key": key}
    made = client.put("/v1/collections/books", json={"dimension": 1}, headers=sent)
    assert made.status_code == 201
    for response in (made, client.get("/v1/collections", headers={"Origin": LISTED})):
        assert response.headers["Access-Control-Allow-Origin"] == LISTED
        assert "Origin" in response.headers["Vary"]
    assert response.status_code == 401
    other = client.get("/v1/collections", headers={**sent, "Origin": "https://app.example.org"})
    assert "Access-Control-Allow-Origin" not in other.headers
    assert "Origin" in other.headers["Vary"]
    for each in (preflight, made, other):
        assert "Access-Control-Allow-Credentials" not in each.headers


@pytest.mark.parametrize(
    "origin",
    ["*", "null", "", "example.org", "https://", "https://a.example/", "https://*.example",
     "https://u@a.example", "javascript:x", "https://a.example\n"],
)  # fmt: skip
def test_what_is_no_origin_is_refused(origin: str) -> None:
    with pytest.raises(ValueError, match="is not an origin"):
        check_origin(origin)


@pytest.mark.parametrize("origin", [LISTED, "http://localhost:3000", "http://[::1]:8000"])
def test_what_is_an_origin_is_taken(origin: str) -> None:
    check_origin(origin)


# -- headers ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/", BROWSER), ("/docs", BROWSER), ("/search", BROWSER), ("/nothing", BROWSER),
        ("/v1/collections", {}), ("/nothing", {}), ("/healthz", {}), ("/openapi.json", {}),
        ("/static/attend.css", {}),
    ],
)  # fmt: skip
def test_every_response_has_its_security_headers(
    client: FlaskClient, path: str, headers: dict[str, str]
) -> None:
    with client.get(path, headers=headers) as response:
        said = response.headers
    assert said["X-Content-Type-Options"] == "nosniff"
    assert said["X-Frame-Options"] == "DENY"
    assert said["Referrer-Policy"] == "no-referrer"
    assert said["Cross-Origin-Opener-Policy"] == "same-origin"
    assert said["Cross-Origin-Resource-Policy"] == "same-origin"
    assert "geolocation=()" in said["Permissions-Policy"]
    policy = dict(part.split(maxsplit=1) for part in said["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["frame-ancestors"] == "'none'"
    assert not any("unsafe" in text or "*" in text for text in policy.values())
    # Pages run the scripts of this server, and talk to it alone; what is no page runs nothing.
    assert policy.get("script-src", "'self'") == policy.get("connect-src", "'self'") == "'self'"
    assert ("script-src" in policy) == said["Content-Type"].startswith("text/html")
    assert "Strict-Transport-Security" not in said  # the proxy's, who speaks TLS
    assert "Set-Cookie" not in said


def test_pictures_of_another_origin_only_where_it_was_named(tmp_path: Path) -> None:
    client = make_client(tmp_path, picture_origin=("https://pictures.example",))
    page = client.get("/search", headers=BROWSER)
    policy = page.headers["Content-Security-Policy"].split("; ")
    assert "img-src 'self' data: https://pictures.example" in policy
    assert 'data-pictures="https://pictures.example"' in page.text
    plain = make_client(tmp_path).get("/search", headers=BROWSER)
    assert "img-src 'self' data:" in plain.headers["Content-Security-Policy"].split("; ")
    assert "data-pictures" not in plain.text
