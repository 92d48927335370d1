"""Names that mean two things: aliases that are switched, and encoders that clients name."""

from __future__ import annotations

import http.client
import json
import os
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from attend import Data
from attend.api.answers import AcrossAnswer
from attend.api.search import AcrossRequest
from attend.encoder import DEFAULT
from attend_service import operations
from attend_service.app import create_app
from attend_service.context import Context, Operation, context
from attend_service.jobs import Jobs
from attend_service.keys import KeyFile
from attend_service.routes import all_operations, learning
from attend_service.settings import ServerSettings
from tests.service.test_gateway import until
from tests.service.test_server import running, wait_until_ready

TRIES = 600
ROUTES = [
    operation
    for operation in all_operations()
    if "{collection}" in operation.path or operation.name == "search_collections"
    if operation.name != "start_training"  # whose own test is below
]
ONE = {"query": [1, 0, 0]}


def test_no_switched_alias_leads_a_key_to_another_collection(tmp_path: Path) -> None:
    with closing(Data(tmp_path)) as data:
        for name in ("mine", "theirs"):
            document = {"id": "one", "vector": [1, 0, 0], "payload": {"owner": name}}
            data.create(name, dimension=3).upsert([document])
        data.set_alias("current", "mine")
    key = KeyFile(tmp_path).add(scope="admin", collections=["mine"])[1]
    stopped = threading.Event()
    with running(tmp_path, "--require-keys") as server:
        wait_until_ready(server)
        switching = threading.Thread(target=switch, args=(tmp_path, stopped))
        switching.start()
        try:
            with closing(http.client.HTTPConnection(server.host, server.port)) as connection:
                statuses = [
                    attempt(connection, key, ROUTES[number % len(ROUTES)])
                    for number in range(TRIES)
                ]
        finally:
            stopped.set()
            switching.join()
    assert {200, 403} <= set(statuses), "either is missing: nothing was tried"
    assert max(statuses) < 500
    with closing(Data(tmp_path, read_only=True)) as data:
        theirs = data.collection("theirs")
        assert theirs.ids() == {"one"}
        assert theirs.document("one").payload == {"owner": "theirs"}
        assert theirs.store.example_count() == 0
        assert theirs.store.interaction_counts()[0] == 0


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/collections/mine/search", ONE),
        ("POST", "/v1/collections/mine/search/batch", {"searches": [ONE]}),
        ("POST", "/v1/search", {**ONE, "collections": ["mine"]}),
        ("POST", "/v1/collections/mine/documents", [{"id": "n", "vector": [1, 0, 0]}]),
        ("GET", "/v1/collections/mine/documents", None),
        ("GET", "/v1/collections/mine", None),
        ("POST", "/v1/collections/mine/snapshot", None),
        ("POST", "/v1/collections/mine/train", {}),
    ],
)
def test_an_alias_in_the_place_of_a_collection_is_not_followed(
    data: Data, monkeypatch: pytest.MonkeyPatch, method: str, path: str, body: Any
) -> None:
    """The collection is dropped between the check of the key and the view."""
    for name in ("mine", "theirs"):
        data.create(name, dimension=3).upsert([{"id": name, "vector": [1, 0, 0]}])
    key = KeyFile(data.folder).add(scope="admin", collections=["mine"])[1]
    app = create_app(data)

    def replace() -> Context:
        if "mine" in data.names():
            data.drop("mine")
            data.set_alias("mine", "theirs")
        with app.app_context():
            return context()

    def search(self: Data, request: AcrossRequest) -> AcrossAnswer:
        replace()
        return across(self, request)

    across = Data.search
    if path == "/v1/search":  # whose body names the collections
        monkeypatch.setattr(Data, "search", search)
    else:
        monkeypatch.setattr(operations, "context", replace)  # called once the key is checked
    answer = app.test_client().open(path, method=method, json=body, headers={"X-Api-Key": key})
    assert answer.status_code == 409, answer.data
    assert b"theirs" not in answer.data
    assert data.collection("theirs").ids() == {"theirs"}


def test_a_training_is_of_the_collection_that_its_alias_stood_for_at_first(
    data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The alias is switched once the collection is opened."""
    for name in ("mine", "theirs"):
        data.create(name, dimension=3).upsert([{"id": name, "vector": [1, 0, 0]}])
    data.set_alias("current", "mine")
    monkeypatch.setattr(learning, "check_material", lambda *_: data.set_alias("current", "theirs"))
    trained: list[str] = []
    jobs = Jobs(data, lambda collection, **_: trained.append(collection.name) or {})
    client = create_app(data, jobs=jobs).test_client()
    try:
        job = client.post("/v1/collections/current/train", json={}).get_json()
        assert job["collection"] == "mine"
        until(lambda: client.get(f"/v1/jobs/{job['id']}").get_json()["state"] == "done")
    finally:
        jobs.stop()
    assert trained == ["mine"]


def switch(folder: Path, stopped: threading.Event) -> None:
    with closing(Data(folder)) as data:
        while not stopped.is_set():
            for name in ("theirs", "mine"):
                data.set_alias("current", name)


def attempt(connection: http.client.HTTPConnection, key: str, operation: Operation) -> int:
    """Send one of several requests by the alias; nothing of `theirs` may come back."""
    body = {"query": [1, 0, 0], "collections": ["current"]}
    example = body if operation.name == "search_collections" else operation.example
    # A long body leaves time between the check of the key and the view.
    content = None if operation.body is None else json.dumps(example) + " " * 300_000
    headers = {"X-Api-Key": key, "Content-Type": operation.upload or "application/json"}
    path = operation.path.format(
        collection="current", id="one", version=1, file="one", batch="vsfb_1_1"
    )
    connection.request(operation.method, path, content, headers)
    response = connection.getresponse()
    answer = response.read()
    assert b"theirs" not in answer, (path, answer)
    return response.status


def test_the_files_of_a_library_are_their_owners(tmp_path: Path) -> None:
    folder = tmp_path / "library"
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    with running(folder) as server:
        wait_until_ready(server)
        assert server.request("PUT", "/v1/collections/books", {"dimension": 3})[0] == 201
        document = [{"id": "a", "vector": [1, 0, 0]}]
        assert server.request("POST", "/v1/collections/books/documents", document)[0] == 200
        assert server.request("GET", "/v1/jobs")[0] == 200
        for path in (folder, *folder.rglob("*")):
            assert not path.stat().st_mode & 0o077, path


def test_a_library_that_is_made_without_a_server_is_its_owners(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        with closing(Data(tmp_path / "library")) as data:
            data.create("books", dimension=3).upsert([{"id": "a", "vector": [1, 0, 0]}])
    finally:
        os.umask(before)
    assert (tmp_path / "library").stat().st_mode & 0o777 == 0o700
    database = tmp_path / "library" / "collections" / "books" / "documents.db"
    assert database.stat().st_mode & 0o777 == 0o600


# -- encoders ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["/etc", "/nowhere", ".", "..", "~root", "x" * 1024, "a\x00b"])
def test_a_client_names_no_encoder_that_is_not_offered(client: FlaskClient, name: str) -> None:
    """The sentence is the same for folders that exist and others."""
    refused = client.put("/v1/collections/texts", json={"encoder": name})
    assert refused.status_code == 422
    detail = refused.get_json()["detail"]
    assert detail.replace(repr(name[:80]), "NAME") == (
        f"The encoder NAME is not one that this server offers to its clients. Use {DEFAULT}, or "
        f"have its operator add it with --allow-encoder."
    )
    assert client.get("/v1/collections").get_json() == {"collections": []}


def test_an_encoder_is_loaded_once_however_its_folder_is_written(
    tmp_path: Path, tiny_encoder_folder: Path
) -> None:
    loaded: list[str] = []

    def load(name: str) -> Any:
        from attend.encoder import load

        loaded.append(name)
        return load(name)

    data = Data(tmp_path, load_encoder=load)
    folder = str(tiny_encoder_folder)
    client = create_app(data, ServerSettings(allow_encoder=(folder,))).test_client()
    spellings = (
        folder,
        f"{folder}/",
        folder.replace("/", "//"),
        f"{folder}/../{Path(folder).name}",
    )
    for number, spelling in enumerate(spellings):
        made = client.put(f"/v1/collections/c{number}", json={"encoder": spelling})
        assert made.status_code == 201, made.text
    assert loaded == [folder]
    data.close()
