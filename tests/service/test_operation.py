"""A server that is left alone: snapshots, reading only, stopping under load."""

from __future__ import annotations

import http.client
import io
import json
import logging
import os
import shutil
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from flask.testing import FlaskClient

from attend import Data
from attend.core.errors import ReadOnly
from attend.exchange.backup import restore_backup
from attend_service.app import create_app
from attend_service.jobs import Jobs
from attend_service.settings import ServerSettings
from tests import warm

LIMIT = 60.0
PROGRAM = ("-m", "service", "--port", "0", "--json", "--log-format", "json")
SNAPSHOT = "/v1/collections/books/snapshot"
TAR = "application/x-tar"
JSON = "application/json"


@pytest.fixture
def roomy(data: Data, jobs: Jobs, books: FlaskClient) -> FlaskClient:
    """A client of a service that takes bodies as large as a snapshot."""
    return create_app(data, jobs=jobs).test_client()


def snapshot_of(client: FlaskClient) -> bytes:
    with closing(client.post(SNAPSHOT)) as taken:
        assert (taken.status_code, taken.mimetype) == (200, TAR)
        assert taken.content_length == len(taken.data)
        assert "filename=books-" in taken.headers["Content-Disposition"]
        return taken.data


def ids(client: FlaskClient, collection: str) -> list[str]:
    found = client.post(f"/v1/collections/{collection}/search", json={"query": [1, 0.5, 0.2]})
    return [hit["id"] for hit in found.get_json()["hits"]]


# -- snapshots ------------------------------------------------------------------------------


def test_a_snapshot_goes_out_and_comes_back(roomy: FlaskClient, data: Data) -> None:
    taken = snapshot_of(roomy)
    assert not list(data.folder.glob("making-*"))
    sent = roomy.put("/v1/collections/copy/snapshot", data=taken, content_type=TAR)
    assert sent.status_code == 201
    assert sent.get_json()["documents"] == 3
    assert ids(roomy, "copy") == ids(roomy, "books")
    clash = roomy.put(SNAPSHOT, data=taken, content_type=TAR)
    assert clash.status_code == 409
    assert "nothing was restored" in clash.get_json()["detail"]


def test_a_snapshot_may_be_larger_than_other_bodies(books: FlaskClient, data: Data) -> None:
    taken = snapshot_of(books)
    assert len(taken) > books.application.config["MAX_CONTENT_LENGTH"]
    body = books.post("/v1/collections/books/documents", data=taken, content_type=JSON)
    assert body.status_code == 413
    assert "--max-body" in body.get_json()["detail"]
    sent = books.put("/v1/collections/copy/snapshot", data=taken, content_type=TAR)
    assert sent.status_code == 201
    few = create_app(data, ServerSettings(max_snapshot=1)).test_client()
    padded = taken + bytes(1 << 20)
    sent = few.put("/v1/collections/other/snapshot", data=padded, content_type=TAR)
    assert sent.status_code == 413
    assert sent.get_json()["detail"].startswith("The body is larger than 1,048,576 bytes")


def test_what_is_downloaded_is_what_the_command_restores(
    books: FlaskClient, tmp_path: Path
) -> None:
    other = Data(tmp_path / "other")
    restore_backup(io.BytesIO(snapshot_of(books)), other)
    assert other.names() == ["books"]
    other.close()


def test_an_index_is_neither_sent_nor_missed(roomy: FlaskClient, data: Data) -> None:
    data.collection("books").publish()
    taken = snapshot_of(roomy)
    with tarfile.open(fileobj=io.BytesIO(taken)) as archive:
        assert archive.getnames() == ["manifest.json", "collections/books/documents.db"]
    path = "/v1/collections/copy"
    assert roomy.put(f"{path}/snapshot", data=taken, content_type=TAR).status_code == 201
    found = roomy.post(f"{path}/search", json={"query": [0, 1, 0]}).get_json()
    assert found["hits"][0]["id"] == "emma"


@pytest.mark.parametrize(
    ("sent", "media", "status", "said"),
    [
        (b"nothing of the kind", TAR, 422, "not a backup"),
        (b"", TAR, 422, "not a backup"),
        (b"{}", "application/json", 415, "sent as application/x-tar"),
        (b"x" * 200_000, TAR, 422, "not a backup"),
    ],
)
def test_what_is_no_snapshot_is_refused(
    books: FlaskClient, data: Data, sent: bytes, media: str, status: int, said: str
) -> None:
    answer = books.put("/v1/collections/new/snapshot", data=sent, content_type=media)
    assert answer.status_code == status, answer.data
    assert said in answer.get_json()["detail"]
    assert data.names() == ["books"]


def test_there_is_no_snapshot_of_nothing(client: FlaskClient) -> None:
    assert client.post(SNAPSHOT).status_code == 404


# -- reading only ---------------------------------------------------------------------------


@pytest.fixture
def reader(books: FlaskClient, data: Data) -> Iterator[FlaskClient]:
    """A client of a server that only reads what another writes."""
    own = Data(data.folder, read_only=True)
    yield create_app(own, ServerSettings(read_only=True), jobs=Jobs(own, fails)).test_client()
    own.close()


def fails(*_: Any, **__: Any) -> Any:
    raise AssertionError("nothing is trained here")


WRITES: list[tuple[str, str, Any]] = [
    ("PUT", "/v1/collections/new", {"dimension": 2}),
    ("PATCH", "/v1/collections/books", {"recall": 0.99}),
    ("DELETE", "/v1/collections/books", None),
    ("POST", "/v1/collections/books/documents", [{"id": "x", "vector": [1, 0, 0]}]),
    ("PATCH", "/v1/collections/books/documents/emma", {"value": 1}),
    ("DELETE", "/v1/collections/books/documents/emma", None),
    ("POST", "/v1/collections/books/documents/delete", {"ids": ["emma"]}),
    ("POST", "/v1/collections/books/train", {}),
    ("POST", "/v1/collections/books/projections/1/activate", None),
    ("PUT", "/v1/collections/new/snapshot", None),
]


@pytest.mark.parametrize(("method", "path", "body"), WRITES)
def test_writes_are_refused_with_a_sentence(
    reader: FlaskClient, data: Data, method: str, path: str, body: Any
) -> None:
    refused = reader.open(path, method=method, json=body)
    assert refused.status_code == 403
    assert "read-only" in refused.get_json()["detail"]
    assert data.names() == ["books"]
    assert len(data.collection("books").ids()) == 3


def test_there_are_no_jobs_where_nothing_is_written(reader: FlaskClient) -> None:
    assert reader.get("/v1/jobs").get_json() == {"jobs": []}
    unknown = reader.get("/v1/jobs/1")
    assert unknown.status_code == 404
    assert "There is no job 1" in unknown.get_json()["detail"]


def test_what_others_write_is_read(reader: FlaskClient, books: FlaskClient) -> None:
    assert len(ids(reader, "books")) == 3
    books.post("/v1/collections/books/documents", json=[{"id": "new", "vector": [1, 0.5, 0.2]}])
    assert ids(reader, "books")[0] == "new"
    books.delete("/v1/collections/books/documents/new")
    assert len(ids(reader, "books")) == 3
    for path in ("/metrics", "/v1/collections", "/search?collection=books", "/docs"):
        assert reader.get(path, headers={"Accept": "text/html"}).status_code == 200
    assert snapshot_of(reader)


def test_nothing_is_written_where_only_reading_is_meant(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = Data(tmp_path)
    made = data.create("books", dimension=2)
    made.upsert([{"id": "a", "vector": [1, 0]}])
    made.publish()
    data.close()
    (made.folder / "keys" / "raw" / "1" / "vectors.npy").write_bytes(b"damaged")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    own = Data(tmp_path, read_only=True)
    caplog.set_level(logging.WARNING)
    assert [hit.id for hit in own.collection("books").search([1, 0]).hits] == ["a"]
    for write in (
        lambda: own.create("new", dimension=2),
        lambda: own.drop("books"),
        lambda: own.collection("books").upsert([{"id": "b", "vector": [1, 0]}]),
        lambda: own.collection("books").publish(),
    ):
        with pytest.raises(ReadOnly, match="read only"):
            write()
    own.close()
    after = {path: path.stat().st_mtime_ns for path in before}
    assert after == before


READ = """
import os, sys
from attend import Data
from attend_service.app import create_app
from attend_service.settings import ServerSettings

def use(folder):
    data = Data(folder, read_only=True)
    client = create_app(data, ServerSettings(read_only=True)).test_client()
    found = client.post("/v1/collections/books/search", json={"query": [1, 0]})
    snapshot = client.post("/v1/collections/books/snapshot").data
    return [found.get_json()["hits"][0]["id"], client.get("/metrics").status_code,
            client.get("/v1/jobs").status_code, len(snapshot) > 10_000]

use(sys.argv[1])  # all is imported by now: nobody may not read Python's own folder
os.setgid(65534)
os.setuid(65534)
try:
    open(sys.argv[2] + "/collections/books/x", "w")
    sys.exit("the folder can be written to")
except PermissionError:
    print(*use(sys.argv[2]))
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_a_folder_that_cannot_be_written_to() -> None:
    folder = Path(tempfile.mkdtemp())  # where anybody can come, unlike tmp_path
    try:
        data = Data(folder / "own")
        data.create("books", dimension=2).upsert([{"id": "a", "vector": [1, 0]}])
        data.close()
        shutil.copytree(folder / "own", folder / "others")
        for path in (folder, *(folder / "others").rglob("*"), folder / "others"):
            path.chmod(0o555 if path.is_dir() else 0o444)
        done = warm.run("-c", READ, folder / "own", folder / "others")
        assert done.stdout.split() == ["a", "200", "200", "True"], done.stderr
        names = {path.name for path in (folder / "others").rglob("*") if path.is_file()}
        assert names == {"documents.db"}
    finally:
        shutil.rmtree(folder)


# -- stopping -------------------------------------------------------------------------------


@contextmanager
def running(folder: Path, *arguments: str) -> Iterator[tuple[Any, Any]]:
    with open(folder.with_suffix(".log"), "w") as errors:
        process = warm.start(*PROGRAM, "--data", folder, *arguments, stderr=errors)
    try:
        line = process.stdout.readline()
        assert line, folder.with_suffix(".log").read_text()
        yield process, urlsplit(json.loads(line)["address"])
    finally:
        process.kill()
        process.communicate()


def connect(address: Any) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(address.hostname, address.port, timeout=LIMIT)


def ask(connection: http.client.HTTPConnection, method: str, path: str, body: Any = None) -> Any:
    headers = {"Content-Type": "application/json"}
    connection.request(method, path, None if body is None else json.dumps(body), headers)
    response = connection.getresponse()
    content = response.read()
    return response.status, json.loads(content) if content else None


def once(address: Any, *arguments: Any) -> Any:
    with closing(connect(address)) as connection:
        return ask(connection, *arguments)


def wait_until_ready(address: Any) -> None:
    deadline = time.monotonic() + LIMIT
    while once(address, "GET", "/readyz")[0] != 200:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_stop_under_load_loses_nothing_that_was_answered(tmp_path: Path) -> None:
    """Writers on connections that they keep: each acknowledged write is there after the stop."""
    acknowledged: list[str] = []
    broken: list[Exception] = []
    with running(tmp_path) as (process, address):
        wait_until_ready(address)
        assert once(address, "PUT", "/v1/collections/books", {"dimension": 3})[0] == 201

        def write(writer: int) -> None:
            with closing(connect(address)) as connection:
                for n in range(100_000):
                    id = f"{writer}-{n}"
                    documents = [{"id": id, "vector": [1, n, writer]}]
                    path = "/v1/collections/books/documents"
                    try:
                        status, _ = ask(connection, "POST", path, documents)
                    except (OSError, http.client.HTTPException) as error:
                        broken.append(error)
                        return
                    assert status == 200
                    acknowledged.append(id)

        writers = [threading.Thread(target=write, args=[n]) for n in range(4)]
        for each in writers:
            each.start()
        while len(acknowledged) < 40:
            time.sleep(0.01)
        process.terminate()
        began = time.monotonic()
        assert process.wait(LIMIT) == 0
        assert time.monotonic() - began < 15  # a client that always asks again holds nothing up
        for each in writers:
            each.join(LIMIT)
        with pytest.raises(ConnectionRefusedError):
            once(address, "GET", "/healthz")
        logged = tmp_path.with_suffix(".log").read_text().splitlines()
        lines = [json.loads(line) for line in logged]
    assert len(broken) == 4
    answered = [line for line in lines if "status" in line and line["route"] != "/readyz"]
    assert len(answered) > 40
    assert all(line["status"] < 500 for line in answered)
    assert not [line for line in lines if line["level"] == "error"]
    data = Data(tmp_path)
    stored = data.collection("books").ids()
    data.close()
    assert set(acknowledged) <= stored
    assert len(stored) <= len(acknowledged) + 4


def test_a_server_that_only_reads(tmp_path: Path) -> None:
    data = Data(tmp_path)
    data.create("books", dimension=2).upsert([{"id": "a", "vector": [1, 0]}])
    data.close()
    with running(tmp_path, "--read-only") as (process, address):
        wait_until_ready(address)
        found = once(address, "POST", "/v1/collections/books/search", {"query": [1, 0]})
        assert found[0] == 200
        refused = once(address, "DELETE", "/v1/collections/books")
        assert refused[0] == 403
        assert "--read-only" in refused[1]["detail"]
        process.terminate()
        assert process.wait(LIMIT) == 0
    assert not list(tmp_path.glob("jobs*"))
