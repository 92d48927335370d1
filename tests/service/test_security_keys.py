"""API keys: made, stored as hashes, recognised, and their scopes kept to by every operation."""

from __future__ import annotations

import base64
import hashlib
import json
import resource
import stat
import threading
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from flask.testing import FlaskClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from werkzeug.test import TestResponse

from attend import Data
from attend.core.errors import Damaged, NotFound
from attend_service.cli import keys as command
from attend_service.context import Operation
from attend_service.keys import FILE, SCOPES, KeyFile, KeyRing, Scope
from attend_service.routes import all_operations
from attend_service.wsgi import PREFIX, revision
from tests.service.test_openapi import filled

OPERATIONS = all_operations()

NEEDS: Mapping[str, str] = {
    "list_collections": "read",
    "make_collection": "admin",
    "show_collection": "read",
    "change_settings": "admin",
    "drop_collection": "admin",
    "list_aliases": "read",
    "set_alias": "admin",
    "show_alias": "read",
    "delete_alias": "admin",
    "upsert_documents": "write",
    "list_documents": "read",
    "show_document": "read",
    "revise_document": "write",
    "delete_document": "write",
    "delete_documents": "write",
    "count_values": "read",
    "search": "read",
    "search_batch": "read",
    "plain_search": "read",
    "search_collections": "read",
    "give_feedback": "write",
    "show_feedback": "read",
    "use_hits": "write",
    "show_searches": "write",
    "delete_searches": "write",
    "delete_feedback": "write",
    "recommend": "read",
    "add_interactions": "write",
    "list_interactions": "write",
    "list_users": "write",
    "delete_interactions": "write",
    "start_training": "admin",
    "list_jobs": "read",
    "show_job": "read",
    "cancel_job": "admin",
    "list_projections": "read",
    "show_projection": "read",
    "show_changed_questions": "write",
    "activate_projection": "admin",
    "roll_back_projection": "admin",
    "review_projection": "admin",
    "metrics": "read",
    "take_snapshot": "admin",
    "restore_snapshot": "admin",
    "health": "open",
    "readiness": "open",
    "show_progress": "read",
    "openapi_document": "read",
    "docs": "read",
    "home": "read",
    "attention_page": "read",
    "compare_page": "read",
    "teach_page": "read",
    "recommend_page": "read",
    "map_page": "read",
    "add_page": "read",
    "operate_page": "read",
    "document_page": "read",
    "collection_page": "read",
    "user_page": "read",
    "map_keys": "read",
    "map_columns": "read",
    "compare_projections": "read",
    "list_by_filter": "read",
    "list_models": "read",
    "embed": "read",
    "rank": "read",
    "rank_again": "read",
    "upload_file": "write",
    "list_files": "read",
    "show_file": "read",
    "delete_file": "write",
    "create_vector_store": "admin",
    "list_vector_stores": "read",
    "show_vector_store": "read",
    "delete_vector_store": "admin",
    "search_vector_store": "read",
    "attach_file": "write",
    "list_attached": "read",
    "show_attached": "read",
    "detach_file": "write",
    "attach_files": "write",
    "show_batch": "read",
    "retrieve_knowledge": "read",
    "list_qdrant_collections": "read",
    "show_qdrant_collection": "read",
    "exists_in_qdrant": "read",
    "query_points": "read",
    "query_points_batch": "read",
    "scroll_points": "read",
    "count_points": "read",
    "retrieve_points": "read",
}
"""What each operation needs, said a second time on purpose: whoever adds one decides, and what a
key opens is never a matter of chance. An operation that changes something is not `read`."""

OWN = {
    "list_collections", "plain_search", "list_jobs", "show_job", "cancel_job",
    "list_aliases", "show_alias", "search_collections", "openapi_document", "docs", "home",
    "attention_page", "compare_page", "recommend_page", "teach_page", "map_page",
    "add_page", "operate_page", "document_page", "collection_page", "user_page",
    "list_models", "embed", "rank", "rank_again",
    "upload_file", "list_files", "show_file", "delete_file", "list_vector_stores",
    "retrieve_knowledge", "list_qdrant_collections", "show_progress",
}  # fmt: skip
"""Those that name no collection in their path, and keep to a key's collections by themselves."""

OF_FILES = {"upload_file", "list_files", "show_file", "delete_file", "attach_file", "attach_files"}
"""Those that take a key to the collection of uploaded files, besides or alone."""


@pytest.fixture
def file(data: Data) -> KeyFile:
    return KeyFile(data.folder)


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def call(client: FlaskClient, operation: Operation, headers: Mapping[str, str]) -> TestResponse:
    sent: dict[str, Any] = {"json": operation.example} if operation.body is not None else {}
    query = {"q": "whales", "collection": "books"} if operation.name == "plain_search" else {}
    path = filled(operation.path)
    return client.open(
        path, method=operation.method, query_string=query, headers=dict(headers), **sent
    )


def test_every_operation_has_its_need_written_down() -> None:
    assert {each.name: each.need for each in OPERATIONS} == dict(NEEDS)
    assert {each.name for each in OPERATIONS if each.checks_collections} == OWN
    assert {each.name for each in OPERATIONS if each.to_all} == {"restore_snapshot"}


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: each.name)
def test_every_operation_keeps_to_scope_and_collection(
    operation: Operation, client: FlaskClient, file: KeyFile
) -> None:
    need = NEEDS[operation.name]
    elsewhere = ("plain_search", "search_collections", "retrieve_knowledge")
    names_books = "collection" in operation.parameters or operation.name in elsewhere
    names_books = names_books and not operation.to_all
    for scope in SCOPES:
        for collections in ((), ("books",), ("films",)):
            _, text = file.add(scope=scope, collections=collections)
            response = call(client, operation, bearer(text))
            enough = need == "open" or SCOPES.index(scope) >= SCOPES.index(need)  # type: ignore[arg-type]
            if collections == ("films",) and names_books:
                enough = False
            if collections and operation.name in OF_FILES:
                enough = False
            if collections and not names_books and operation.name not in OWN and need != "open":
                enough = False
            assert response.status_code != 401
            assert (response.status_code != 403) == enough, (scope, collections, response.text)
    assert (call(client, operation, {}).status_code != 401) == (need == "open")
    wrong = bearer(f"attend_{'0' * 12}_{'x' * 43}")
    assert (call(client, operation, wrong).status_code != 401) == (need == "open")


def test_without_keys_everything_is_open(books: FlaskClient) -> None:
    assert books.get("/v1/collections").status_code == 200
    assert books.get("/v1/collections", headers=bearer("anything")).status_code == 200


def test_all_ways_to_send_a_key(books: FlaskClient, file: KeyFile) -> None:
    key = file.add()[1]
    basic = base64.b64encode(f"me:{key}".encode()).decode()
    for headers in (
        bearer(key), {"X-Api-Key": key}, {"api-key": key}, {"Authorization": f"bearer {key}"},
        {"Authorization": f"Basic {basic}"}, {"X-Api-Key": key, "Authorization": "Basic cHJveHk6"},
    ):  # fmt: skip
        assert books.get("/v1/collections", headers=headers).status_code == 200, headers
    assert books.get(f"/v1/collections?api_key={key}").status_code == 401
    # A browser sends a password by itself: with one, nothing is changed or even posted, unless the
    # browser says that a page of this server asks.
    write = file.add(scope="admin")[1]
    basic = base64.b64encode(f"me:{write}".encode()).decode()
    gone = books.delete("/v1/collections/books", headers={"Authorization": f"Basic {basic}"})
    assert gone.status_code == 401
    sent = {"Authorization": f"Basic {basic}"}
    search = "/v1/collections/books/search"
    for said, status in (
        ({}, 401), ({"Sec-Fetch-Site": "none"}, 401), ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Origin": "http://localhost"}, 200), ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "http://localhost", "Sec-Fetch-Site": "cross-site"}, 403),
    ):  # fmt: skip
        asked = books.post(search, json={"query": [1, 0, 0]}, headers=sent | said)
        assert asked.status_code == status, said
    assert books.delete("/v1/collections/books", headers=bearer(write)).status_code == 204


def test_a_browser_is_asked_for_its_key_and_a_program_told(
    client: FlaskClient, file: KeyFile
) -> None:
    file.add()
    asked = client.get("/", headers={"Accept": "text/html"})
    assert asked.status_code == 401
    assert asked.content_type.startswith("text/html")
    challenges = asked.headers.getlist("WWW-Authenticate")
    assert [each.split()[0] for each in challenges] == ["Bearer", "Basic"]
    told = client.get("/v1/collections")
    assert told.content_type == "application/problem+json"
    assert [each.split()[0] for each in told.headers.getlist("WWW-Authenticate")] == ["Bearer"]
    assert "Authorization: Bearer" in told.get_json()["detail"]
    with client.get(f"{PREFIX}{revision()}/css/base.css") as style:
        assert style.status_code == 200
    assert client.get("/nothing/here").status_code == 401
    assert client.post("/healthz").status_code == 401


def test_wrong_keys_cannot_be_told_apart(client: FlaskClient, file: KeyFile) -> None:
    key = file.add()[1]
    over = file.add(expires=datetime.now(UTC) - timedelta(seconds=1))[1]
    id = key.split("_")[1]
    tries = [
        key[:-1] + ("x" if key[-1] != "x" else "y"), over, f"attend_{id}_{'A' * 43}", key.upper(),
        f"attend_{'f' * 12}_{'A' * 43}", "attend", "x" * 10_000, "ü\xff",
    ]  # fmt: skip
    answers = []
    for each in tries:
        response = client.get("/v1/collections", headers=bearer(each))
        headers = {name: text for name, text in response.headers if name != "X-Request-Id"}
        answers.append((response.status_code, response.get_json(), headers))
    assert answers[0][0] == 401
    assert all(each == answers[0] for each in answers)


def test_a_refused_key_is_logged_without_it(
    client: FlaskClient, file: KeyFile, caplog: pytest.LogCaptureFixture
) -> None:
    key = file.add()[1]
    wrong = key[:-2] + "zz"
    response = client.get("/v1/collections/books/documents/a%0ab", headers=bearer(wrong))
    assert response.status_code == 401
    assert response.headers["X-Request-Id"] in caplog.text
    assert "a key was refused: GET /v1/collections/<collection>/documents/" in caplog.text
    assert wrong[:20] not in caplog.text
    assert len(caplog.text.splitlines()) == 1
    assert wrong not in response.text


def test_what_a_key_does_not_open_cannot_be_told_from_what_is_not_there(
    books: FlaskClient, file: KeyFile
) -> None:
    key = bearer(file.add(scope="admin", collections=["films"])[1])
    there = books.get("/v1/collections/books", headers=key)
    not_there = books.get("/v1/collections/boots", headers=key)
    assert there.status_code == not_there.status_code == 403
    assert there.get_json()["detail"].replace("books", "boots") == not_there.get_json()["detail"]
    assert books.get("/v1/collections", headers=key).get_json() == {"collections": []}
    unmade = books.get("/v1/collections/films", headers=key)
    assert unmade.status_code == 404
    assert "books" not in unmade.text
    for page in ("/", "/search?collection=films"):
        shown = books.get(page, headers={**key, "Accept": "text/html"})
        assert shown.status_code == 200
        assert "books" not in shown.text
    made = books.put("/v1/collections/films", json={"dimension": 2}, headers=key)
    assert made.status_code == 201
    names = books.get("/v1/collections", headers=key).get_json()["collections"]
    assert [each["name"] for each in names] == ["films"]


def test_an_alias_opens_nothing_new(books: FlaskClient, data: Data, file: KeyFile) -> None:
    books.put("/v1/collections/films", json={"dimension": 2})
    data.set_alias("current", "books")
    by_name, by_alias, other = (
        bearer(file.add(collections=[each])[1]) for each in ("books", "current", "films")
    )
    assert books.get("/v1/collections/current", headers=by_name).status_code == 200
    assert books.get("/v1/collections/current", headers=by_alias).status_code == 200
    assert books.get("/v1/collections/books", headers=by_alias).status_code == 403
    assert books.get("/v1/collections/current", headers=other).status_code == 403
    assert books.get("/v1/aliases", headers=other).get_json() == {"aliases": []}
    assert books.get("/v1/aliases/current", headers=other).status_code == 404
    mine = bearer(file.add(scope="admin", collections=["films"])[1])
    moved = books.put("/v1/aliases/x", json={"collection": "films"}, headers=mine)
    assert moved.status_code == 403


def test_jobs_of_other_collections_are_as_if_they_were_not(
    books: FlaskClient, file: KeyFile, trainer: Any
) -> None:
    books.put("/v1/collections/films", json={"dimension": 2})
    assert (
        books.post("/v1/collections/books/train", json={"objective": "answers"}).status_code == 202
    )
    films = bearer(file.add(scope="admin", collections=["films"])[1])
    both = bearer(file.add(scope="admin", collections=["films", "books"])[1])
    assert books.get("/v1/jobs", headers=films).get_json() == {"jobs": []}
    hidden, none = (books.get(f"/v1/jobs/{n}", headers=films) for n in (1, 7))
    assert hidden.status_code == none.status_code == 404
    assert hidden.get_json()["detail"].replace("job 1", "job 7") == none.get_json()["detail"]
    assert books.delete("/v1/jobs/1", headers=films).status_code == 404
    assert books.get("/v1/jobs/1", headers=both).get_json()["state"] in ("queued", "running")
    assert books.delete("/v1/jobs/1", headers=both).status_code in (200, 202)
    trainer.may_finish.set()


def test_readiness_names_no_collection_to_who_has_no_key(
    client: FlaskClient, data: Data, file: KeyFile
) -> None:
    readiness = client.application.extensions["attend"].readiness
    readiness.failed = {"secret-plans": "Damaged"}
    assert "secret-plans" in client.get("/readyz").text
    file.add()
    assert client.get("/readyz").get_json() == {"status": "ready", "failed": {}, "rebuilt": []}


# -- the file ---------------------------------------------------------------------------------


def test_only_a_hash_is_stored_and_only_for_its_owner_to_read(tmp_path: Path) -> None:
    file = KeyFile(tmp_path)
    key, text = file.add("ci", "write", ["books", "books"])
    stored = json.loads((tmp_path / FILE).read_text())["keys"][0]
    secret = text.split("_", 2)[2]
    assert secret not in (tmp_path / FILE).read_text()
    assert stored["hash"] == hashlib.sha256((stored["salt"] + secret).encode()).hexdigest()
    assert stored["collections"] == ["books"]
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600
    again, _ = file.add("ci", "write", ["books"])
    assert again.salt != key.salt
    assert not [each for each in tmp_path.iterdir() if each.name not in (FILE, f"{FILE}.lock")]


@pytest.mark.parametrize("scope", SCOPES)
def test_a_key_is_recognised_until_it_is_removed_or_over(tmp_path: Path, scope: Scope) -> None:
    file, ring = KeyFile(tmp_path), KeyRing(tmp_path)
    assert not ring.asks()
    key, text = file.add(scope=scope, expires=datetime.now(UTC) + timedelta(hours=1))
    other, other_text = file.add()
    assert ring.asks()
    assert ring.owner(text) == key
    file.remove(key.id)
    assert ring.owner(text) is None
    assert ring.owner(other_text) == other
    file.remove(other.id)
    assert ring.owner(other_text) is None
    assert ring.asks(), "an exchange of keys opens the server to everyone"
    assert not KeyRing(tmp_path).asks()
    assert KeyRing(tmp_path, always=True).asks()
    with pytest.raises(NotFound, match="no key with the id"):
        file.remove(other.id)


@given(text=st.text() | st.from_regex(r"attend_[0-9a-f]{12}_[\w-]{43}", fullmatch=True))
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_text_is_a_key_by_chance(tmp_path: Path, text: str) -> None:
    file = KeyFile(tmp_path)
    known = {each.id for each in file.all()} or {file.add()[0].id}
    ring = KeyRing(tmp_path)
    assert ring.owner(text) is None
    assert all(ring.owner(f"attend_{id}_{text}") is None for id in known)


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"[]", b'{"keys": [{}]}', b'{"keys": 3}', b"\xff\xfe",
        b'{"keys": [{"id": "a", "name": "", "scope": "god", "collections": null, "created": "",'
        b' "expires": null, "salt": "", "hash": ""}]}',
    ],
)  # fmt: skip
def test_a_damaged_file_lets_nobody_in(client: FlaskClient, data: Data, content: bytes) -> None:
    key = KeyFile(data.folder).add(scope="admin")[1]
    assert client.get("/v1/collections", headers=bearer(key)).status_code == 200
    (data.folder / FILE).write_bytes(content)
    with pytest.raises(Damaged, match="no request is accepted"):
        KeyFile(data.folder).all()
    assert client.get("/v1/collections", headers=bearer(key)).status_code == 500
    assert client.get("/v1/collections").status_code == 500
    assert client.get("/healthz").status_code == 200


def test_keys_made_at_once_are_all_there(tmp_path: Path) -> None:
    threads = [threading.Thread(target=KeyFile(tmp_path).add) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(KeyFile(tmp_path).all()) == 8


# -- the command ------------------------------------------------------------------------------


def run(*arguments: str) -> Any:
    return CliRunner().invoke(command, arguments)


def test_the_command_makes_lists_and_removes(tmp_path: Path) -> None:
    on = ["--data", str(tmp_path)]
    added = run("add", *on, "--name", "ci", "--scope", "write", "--collection", "books",
                "--expires", "30d", "--json")  # fmt: skip
    made = json.loads(added.stdout)
    key = KeyRing(tmp_path).owner(made["key"])
    assert key is not None
    assert (key.name, key.scope, key.collections) == ("ci", "write", ("books",))
    left = datetime.fromisoformat(str(key.expires)) - datetime.now(UTC)
    assert timedelta(days=29, hours=23) < left <= timedelta(days=30)
    listed = run("list", *on)
    assert key.id in listed.stdout
    assert "books" in listed.stdout
    for told in (listed.stdout, run("list", *on, "--json").stdout):
        assert made["key"].split("_", 2)[2] not in told
        assert key.hash not in told
    plain = run("add", *on)
    assert KeyRing(tmp_path).owner(plain.stdout.strip()) is not None
    assert json.loads(run("remove", made["id"], *on, "--json").stdout)["left"] == 1
    assert run("remove", made["id"], *on).exit_code == 1
    assert KeyRing(tmp_path).owner(made["key"]) is None


@pytest.mark.parametrize(
    "arguments",
    [
        ["--scope", "god"], ["--expires", "soon"], ["--expires", "2001-01-01"],
        ["--collection", "../x"], ["--name", "a\nb"], ["--name", "x" * 101],
    ],
    ids=" ".join,
)  # fmt: skip
def test_wrong_usage_makes_no_key(tmp_path: Path, arguments: list[str]) -> None:
    assert run("add", "--data", str(tmp_path), *arguments).exit_code == 2
    assert not (tmp_path / FILE).exists()


@pytest.mark.parametrize("name", ["add", "list", "remove"])
def test_help_has_an_example(name: str) -> None:
    assert f"Example: attend keys {name}" in run(name, "--help").stdout


def test_a_key_that_the_disk_does_not_take_leaves_no_file(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            KeyFile(tmp_path).add()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.glob(f"{FILE}.[0-9a-f]*"))
