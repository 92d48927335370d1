"""What can go wrong around a server, and what its users see: a sentence, and nothing is lost."""

from __future__ import annotations

import datetime as clock
import errno
import resource
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flask.testing import FlaskClient

from attend import Data
from attend.projection import given, identity
from attend_service.app import create_app
from attend_service.jobs import Jobs
from tests.service.conftest import LIMIT
from tests.service.test_jobs import reached
from tests.service.test_server import Server, finished, running, wait_until_ready

WIDTH = 64
COLLECTION = "/v1/collections/books"
DOCUMENTS = f"{COLLECTION}/documents"
ROOM = 2_000_000
"""Bytes: enough for a thousand vectors, and soon full."""


def documents(name: str, count: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    return [
        {"id": f"{name}-{at}", "vector": rng.standard_normal(WIDTH).round(3).tolist(), "value": at}
        for at in range(count)
    ]


@contextmanager
def served(folder: Path) -> Iterator[FlaskClient]:
    data = Data(folder)
    try:
        yield create_app(data).test_client()
    finally:
        data.close()


def total(client: FlaskClient) -> int:
    found: int = client.get(DOCUMENTS, query_string={"limit": 0}).get_json()["total"]
    return found


def best(client: FlaskClient, document: dict[str, Any]) -> Any:
    """What a search for a document's own vector answers."""
    body = {"query": document["vector"], "k": 1, "scorer": "cosine"}
    return client.post(f"{COLLECTION}/search", json=body)


def finds(client: FlaskClient, document: dict[str, Any]) -> bool:
    answer = best(client, document)
    assert answer.status_code == 200, answer.text
    return bool(answer.get_json()["hits"][0]["id"] == document["id"])


def filled(folder: Path, count: int = 50) -> list[dict[str, Any]]:
    """A folder with a collection whose index is published, and what is in it."""
    folder.mkdir(exist_ok=True)
    given_documents = documents("old", count)
    data = Data(folder)
    books = data.create("books", dimension=WIDTH)
    books.upsert(given_documents)
    books.publish()
    data.close()
    return given_documents


# -- the disk -------------------------------------------------------------------------------


@contextmanager
def small_disk(folder: Path) -> Iterator[Callable[[], None]]:
    """A disk of `ROOM` bytes; what is yielded makes it larger."""
    size = ["mount", "-t", "tmpfs", "-o", f"size={ROOM}", "tmpfs", str(folder)]
    if subprocess.run(size, capture_output=True, check=False).returncode != 0:
        pytest.skip("nobody but root can mount a small disk")
    larger = ["mount", "-o", f"remount,size={20 * ROOM}", str(folder)]
    try:
        yield lambda: subprocess.run(larger, check=True) and None
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@contextmanager
def small_files(_: Path) -> Iterator[Callable[[], None]]:
    """No file may grow beyond `ROOM` bytes, until it may again."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    heeded = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, before[1]))
    try:
        yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, before)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, heeded)


@pytest.mark.parametrize("limit", [small_disk, small_files])
def test_a_full_disk_loses_nothing_and_is_told(tmp_path: Path, limit: Any) -> None:
    with limit(tmp_path) as make_room:
        with served(tmp_path) as client:
            assert client.put(COLLECTION, json={"dimension": WIDTH}).status_code == 201
            stored: list[dict[str, Any]] = []
            while len(stored) < 10_000:
                batch = documents(f"batch-{len(stored)}", 100)
                answer = client.post(DOCUMENTS, json=batch)
                if answer.status_code != 200:
                    break
                stored += batch
            assert (answer.status_code, answer.mimetype) == (507, "application/problem+json")
            assert "nothing was stored" in answer.get_json()["detail"]
            # What was acknowledged is there and is found; of what was refused, there is nothing.
            assert total(client) == len(stored) > 0
            assert all(finds(client, each) for each in stored[::100])
            make_room()
            assert client.post(DOCUMENTS, json=batch).get_json()["added"] == len(batch)
            assert finds(client, batch[0])
        with served(tmp_path) as client:
            assert total(client) == len(stored) + len(batch)


def test_a_disk_that_is_full_is_told_by_every_write(tmp_path: Path) -> None:
    with small_disk(tmp_path) as make_room, served(tmp_path) as client:
        assert client.put(COLLECTION, json={"dimension": WIDTH}).status_code == 201
        assert client.post(DOCUMENTS, json=documents("old", 10)).status_code == 200
        with suppress(OSError), (tmp_path / "ballast").open("wb", buffering=0) as ballast:
            while True:
                ballast.write(bytes(4096))
        names = {path.name for path in tmp_path.iterdir()}
        snapshot = f"{COLLECTION}/snapshot"
        label = {"query": documents("new", 1)[0]["vector"], "id": "old-0"}
        for method, path, body in (
            ("PUT", "/v1/collections/other", {"dimension": WIDTH}),
            ("POST", snapshot, None),
            ("POST", DOCUMENTS, documents("new", 500)),
            ("POST", f"{COLLECTION}/feedback", [label] * 500),
            ("POST", f"{COLLECTION}/train", {"objective": "answers"}),
            ("PUT", "/v1/aliases/name", {"collection": "books"}),
        ):
            answer = client.open(path, method=method, json=body)
            assert answer.status_code in (200, 201, 507), (path, answer.text)
            if path in (snapshot, "/v1/collections/other"):
                assert answer.status_code == 507
                assert str(tmp_path) not in answer.text
        assert client.get("/v1/collections/other").status_code == 404
        assert {path.name for path in tmp_path.iterdir()} <= names | {"jobs.db", "jobs.lock"}
        make_room()
        assert client.post(DOCUMENTS, json=documents("new", 10)).status_code == 200


def test_memory_that_is_missing_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> Any:
        raise MemoryError

    filled(tmp_path)
    with served(tmp_path) as client:
        monkeypatch.setattr("attend.Collection.search_many", fail)
        answer = best(client, documents("old", 1)[0])
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
    assert "no memory left" in answer.get_json()["detail"]
    assert "Traceback" not in caplog.text


def test_a_merge_that_the_disk_does_not_take_fails_no_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    filled(tmp_path, 100)
    monkeypatch.setattr("attend.engines.snapshots.MERGE_KEYS", 100)
    fresh = documents("fresh", 200)
    with served(tmp_path) as client:
        monkeypatch.setattr("attend.keys.files.write_keys", refuse_to_write)
        answer = client.post(DOCUMENTS, json=fresh)
        assert (answer.status_code, answer.get_json()["added"]) == (200, 200), answer.text
        assert "The index was not merged, and will be at the next write" in caplog.text
        assert finds(client, fresh[-1])
    # Nor does it keep another process from answering.
    with served(tmp_path) as client:
        assert finds(client, fresh[-1])
        monkeypatch.undo()
        assert total(client) == 300


def refuse_to_write(path: Path, *_: object) -> None:
    """As the system does it where the disk is full."""
    raise OSError(errno.ENOSPC, "No space left on device", str(path))


def test_a_folder_that_cannot_be_written_to_is_one_sentence(tmp_path: Path) -> None:
    filled(tmp_path)
    with read_only(tmp_path):
        done = finished("--data", str(tmp_path), "--port", "0")
    assert done.returncode == 1
    assert "cannot be written to" in done.stderr
    assert "--read-only" in done.stderr
    assert done.stderr.count("\n") == 1


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """For everybody, root too."""
    made = subprocess.run(
        ["mount", "--bind", str(folder), str(folder)], capture_output=True, check=False
    )
    if made.returncode != 0:
        pytest.skip("nobody but root can mount a folder read-only")
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(folder)], check=True)
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


# -- another process has the lock -----------------------------------------------------------

LOCKED_SECONDS = 10.0
"""Less than a write waits for."""

LOCK = """
import sqlite3, sys, time
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("BEGIN EXCLUSIVE")
print("locked", flush=True)
time.sleep(float(sys.argv[2]))
db.execute("COMMIT")
"""


@contextmanager
def locked(folder: Path, seconds: float) -> Iterator[None]:
    """Another process holds the lock for writing, for some seconds."""
    database = str(folder / "collections" / "books" / "documents.db")
    command = [sys.executable, "-I", "-S", "-c", LOCK, database, str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        try:
            yield
        finally:
            process.kill()


def test_a_lock_of_ten_seconds_delays_writes_and_no_search(tmp_path: Path) -> None:
    stored, new = filled(tmp_path), documents("new", 3)
    with served(tmp_path) as client, ThreadPoolExecutor(1) as writer:
        assert finds(client, stored[0])
        with locked(tmp_path, LOCKED_SECONDS):
            began = time.monotonic()
            writing = writer.submit(lambda: client.post(DOCUMENTS, json=new).status_code)
            searches = []
            while not writing.done():
                asked = time.monotonic()
                assert finds(client, stored[len(searches)])
                searches.append(time.monotonic() - asked)
                time.sleep(LOCKED_SECONDS / len(stored))
        assert writing.result() == 200
        assert time.monotonic() - began > LOCKED_SECONDS - 1, "the write met no lock"
        assert max(searches) < LOCKED_SECONDS / 2, "a search waited for the lock"
        assert finds(client, new[0])


def test_a_lock_that_stays_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored, new = filled(tmp_path), documents("new", 3)
    monkeypatch.setattr("attend.store.connections.BUSY_SECONDS", 0.2)
    with served(tmp_path) as client:
        with locked(tmp_path, LIMIT):
            judgement = {"query": new[0]["vector"], "id": "old-0"}
            for answer in (
                client.post(DOCUMENTS, json=new),
                client.delete(f"{DOCUMENTS}/old-0"),
                client.patch(f"{DOCUMENTS}/old-0", json={"value": 7}),
                client.post(f"{DOCUMENTS}/delete", json={"filter": {"@value": 1}}),
                client.post(f"{COLLECTION}/feedback", json=judgement),
            ):
                assert answer.status_code == 409, answer.text
                assert "another process is writing" in answer.get_json()["detail"]
            assert finds(client, stored[0])
        assert total(client) == len(stored)
        assert client.post(DOCUMENTS, json=new).status_code == 200


# -- damage ---------------------------------------------------------------------------------


def truncate(content: bytes) -> bytes:
    return content[: len(content) // 2]


def flip(content: bytes) -> bytes:
    at = len(content) * 2 // 3
    return content[:at] + bytes([content[at] ^ 0x20]) + content[at + 1 :]


@pytest.mark.parametrize("damage", [truncate, flip])
@pytest.mark.parametrize("name", ["vectors.npy", "keys.npy", "documents.npy", "manifest.json"])
def test_a_damaged_index_is_built_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, damage: Callable[[bytes], bytes]
) -> None:
    stored = filled(tmp_path)
    path = tmp_path / "collections" / "books" / "keys" / "raw" / "1" / name
    path.write_bytes(damage(path.read_bytes()))
    with served(tmp_path) as client:
        assert all(finds(client, each) for each in stored)
        assert total(client) == len(stored)
        assert client.post(DOCUMENTS, json=documents("new", 3)).status_code == 200
    assert name in caplog.text
    assert "The index is built again from the database." in caplog.text


@pytest.mark.parametrize("damage", [truncate, flip])
def test_a_damaged_projection_is_named_and_another_can_answer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[bytes], bytes]
) -> None:
    stored = filled(tmp_path)
    data = Data(tmp_path)
    rotation, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((WIDTH, WIDTH)))
    books = data.collection("books")
    books.activate(books.add_projection(given(rotation, rotation)))
    data.close()
    with closing(sqlite3.connect(tmp_path / "collections/books/documents.db")) as db, db:
        weights = db.execute("SELECT weights FROM projections WHERE version = 2").fetchone()[0]
        db.execute("UPDATE projections SET weights = ? WHERE version = 2", [damage(weights)])
    with served(tmp_path) as client:
        answer = best(client, stored[0])
        assert (answer.status_code, answer.mimetype) == (500, "application/problem+json")
        assert "data on the server's disk" in answer.get_json()["detail"]
        assert "projection" in caplog.text
        assert total(client) == len(stored)  # what needs no projection is there
        assert client.post(f"{COLLECTION}/projections/rollback").status_code == 200
        assert all(finds(client, each) for each in stored)


@pytest.mark.parametrize("content", [b"", b"no database", b"SQLite format 3\0" + bytes(5000)])
def test_a_file_that_is_no_database_hides_nothing_else(tmp_path: Path, content: bytes) -> None:
    stored = filled(tmp_path)
    broken = tmp_path / "collections" / "broken" / "documents.db"
    broken.parent.mkdir()
    broken.write_bytes(content)
    with served(tmp_path) as client:
        answer = client.get("/v1/collections/broken")
        assert answer.status_code == 500
        assert "data on the server's disk" in answer.get_json()["detail"]
        listed = client.get("/v1/collections").get_json()["collections"]
        assert [each.get("error") for each in listed] == [None, "Damaged"]
        assert finds(client, stored[0])


# -- the clock ------------------------------------------------------------------------------

CLOCKS = ("attend.store.sql", "attend_service.jobs")
"""Modules that write down when something was done."""


class Earlier(clock.datetime):
    """A clock that was set back by ten years."""

    @classmethod
    def now(cls, tz: clock.tzinfo | None = None) -> clock.datetime:
        return clock.datetime.now(tz) - clock.timedelta(days=3650)


def test_a_clock_set_back_changes_no_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def trainer(*_: object, **__: object) -> dict[str, Any]:
        return {"promoted": False, "reason": "Nothing was learned."}

    stored, new = filled(tmp_path), documents("new", 3)
    for step in range(2):
        data = Data(tmp_path)
        jobs = Jobs(data, trainer, limit=4)
        client = create_app(data, jobs=jobs).test_client()
        changed = [each | {"value": -step} for each in new]
        assert client.post(DOCUMENTS, json=changed).status_code == 200
        assert [finds(client, each) for each in (*stored, *new)] == [True] * (len(stored) + 3)
        assert client.get(f"{DOCUMENTS}/new-0").get_json()["value"] == -step
        job = client.post(f"{COLLECTION}/train", json={"objective": "answers"}).get_json()["id"]
        reached(jobs, job, "done")
        listed = [each["id"] for each in client.get("/v1/jobs").get_json()["jobs"]]
        assert listed == sorted(listed, reverse=True), "not the newest first"
        data.collection("books").activate(
            data.collection("books").add_projection(identity(WIDTH, normalize=bool(step)))
        )
        versions = client.get(f"{COLLECTION}/projections").get_json()["projections"]
        assert [each["version"] for each in versions if each["active"]] == [2 + step]
        jobs.stop(LIMIT)
        data.close()
        # From here on it is ten years ago.
        for module in CLOCKS:
            monkeypatch.setattr(f"{module}.datetime", Earlier)
    with served(tmp_path) as client:
        undone = client.post(f"{COLLECTION}/projections/rollback").get_json()
        assert undone["projection"] == 2


# -- two servers, and a stop ----------------------------------------------------------------


def test_two_servers_on_one_folder_see_each_others_writes(tmp_path: Path) -> None:
    filled(tmp_path)
    with running(tmp_path) as one, running(tmp_path) as other:
        for server in (one, other):
            wait_until_ready(server)
        for at, (writer, reader) in enumerate([(one, other), (other, one)] * 10):
            (document,) = documents(f"turn-{at}", 1)
            assert writer.request("POST", DOCUMENTS, [document])[0] == 200
            search = {"query": document["vector"], "k": 1, "scorer": "cosine"}
            assert found(reader.request("POST", f"{COLLECTION}/search", search)) == document["id"]
            path = f"{DOCUMENTS}/{document['id']}"
            assert reader.request("PATCH", path, {"value": at})[0] == 200
            assert writer.request("GET", path)[1]["value"] == at
            assert writer.request("DELETE", path)[0] == 204
            assert found(reader.request("POST", f"{COLLECTION}/search", search)) != document["id"]
        both_write_at_once([one, other])
        assert one.stop() == other.stop() == 0


def both_write_at_once(servers: list[Server]) -> None:
    def write(number: int) -> None:
        for at in range(20):
            batch = documents(f"both-{number}-{at}", 5)
            statuses.append(servers[number].request("POST", DOCUMENTS, batch)[0])

    statuses: list[int] = []
    threads = [threading.Thread(target=write, args=[number]) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == [200] * 40
    counts = [server.request("GET", f"{DOCUMENTS}?limit=0")[1]["total"] for server in servers]
    assert counts == [250, 250]


def found(answer: tuple[int, Any]) -> str:
    status, body = answer
    assert status == 200, body
    return str(body["hits"][0]["id"])
