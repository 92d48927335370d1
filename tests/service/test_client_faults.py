"""The client of a server where the network, or the server, fails: nothing lost, nothing doubled."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attend
from attend.connect import transport
from attend.connect.client import RemoteLibrary
from attend.core import errors
from tests.served import served
from tests.service.test_server import Server, running, wait_until_ready

Answer = Callable[[socket.socket, bytes], None]

FOUND = {"collections": [{"name": "books"}]}
WRITTEN = {"added": 1, "updated": 0, "revised": 0, "unchanged": 0, "encoded": 0}
BUSY = {"type": "/docs#too-many-requests", "title": "", "status": 429, "detail": "Wait a little."}


def says(status: int, body: Any, **headers: str) -> Answer:
    content = json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} x", f"Content-Length: {len(content)}", "Connection: close"]
    headers.setdefault("Content_Type", "application/json")
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return lambda client, request: client.sendall("\r\n".join([*lines, "", ""]).encode() + content)


def resets(client: socket.socket, request: bytes) -> None:
    """Close at once, with what was received unanswered: the client sees a reset."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")


def hangs(client: socket.socket, request: bytes) -> None:
    client.settimeout(5)
    client.recv(1)  # until the client has had enough


@contextmanager
def scripted(answers: Sequence[Answer]) -> Iterator[tuple[str, list[bytes]]]:
    """A server that treats each request by the next answer; its address, and what it received."""
    received: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def run() -> None:
            for answer in answers:
                try:
                    client, _ = listener.accept()
                except OSError:  # closed: the test has ended
                    return
                with client:
                    received.append(whole(client))
                    with suppress(OSError):
                        answer(client, received[-1])

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", received


def whole(client: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        data += client.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    size = next(
        (int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length")), 0
    )
    while len(body) < size:
        body += client.recv(65536)
    return head + b"\r\n\r\n" + body


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "FIRST_WAIT", 0.01)


@pytest.mark.parametrize("fault", [resets, says(503, {}), says(502, {}), says(429, BUSY)])
def test_a_read_is_sent_again_until_it_is_answered(fault: Answer) -> None:
    with scripted([fault, fault, says(200, FOUND)]) as (url, received):
        assert RemoteLibrary(url).names() == ["books"]
    assert len(received) == 3


@pytest.mark.parametrize("fault", [resets, says(503, {}), says(500, {})])
def test_a_write_that_may_have_landed_is_sent_once(fault: Answer) -> None:
    with scripted([fault, says(200, WRITTEN)]) as (url, received):
        library = RemoteLibrary(url)
        with pytest.raises(errors.AttendError) as error:
            library.server.write("POST", "/v1/collections/books/documents", {"documents": []})
    assert len(received) == 1
    if fault is resets:
        assert isinstance(error.value, errors.Unconfirmed)
        assert "may have been stored. Look before you send it again" in str(error.value)


def test_a_write_that_was_refused_is_sent_again_and_waits_as_long_as_it_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(transport.time, "sleep", waits.append)
    with scripted([says(429, BUSY, Retry_After="7"), says(200, WRITTEN)]) as (url, received):
        reply = RemoteLibrary(url).server.write("POST", "/v1/collections/books/documents", {})
    assert reply == WRITTEN
    assert len(received) == 2
    assert waits == [7.0]


def test_a_server_that_asks_for_an_hour_is_not_waited_for() -> None:
    with (
        scripted([says(429, BUSY, Retry_After="3600")]) as (url, received),
        pytest.raises(errors.Unavailable, match="Wait a little"),
    ):
        RemoteLibrary(url).names()
    assert len(received) == 1


def test_a_slow_answer_ends_with_a_sentence() -> None:
    with scripted([hangs, hangs]) as (url, received):
        library = RemoteLibrary(url, timeout=0.2)
        with pytest.raises(errors.OverTime, match="had no answer in time"):
            library.names()
        with pytest.raises(errors.Unconfirmed, match="may have been stored"):
            library.drop("books")
    assert len(received) == 2


def test_nobody_there_and_somebody_else_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(errors.Unavailable, match=r"No server answers at .* 'attend serve'"):
        RemoteLibrary(f"http://127.0.0.1:{port}").names()
    with (
        scripted([says(404, ["another program"])]) as (url, _),
        pytest.raises(errors.NotFound, match="no reply of an Attend server"),
    ):
        RemoteLibrary(url).names()
    with (
        scripted([says(200, "<html>", Content_Type="text/html")]) as (url, _),
        pytest.raises(errors.AttendError, match="answered 200 and no reply of an Attend server"),
    ):
        RemoteLibrary(url).names()
    for wrong in ("http:/127.0.0.1:8000", "http://"):
        with pytest.raises(errors.InvalidRequest, match="not the address of a server"):
            attend.open(wrong).names()
    with pytest.raises(errors.InvalidRequest, match="a key of the scope read"):
        attend.open("http://127.0.0.1:8000", read_only=True)


def test_ten_thousand_documents_at_once_and_as_a_table(tmp_path: Path, tiny_encoder: Any) -> None:
    pa = pytest.importorskip("pyarrow")
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((10_000, 16), dtype=np.float32)
    ids = [f"d{at}" for at in range(len(vectors))]
    stages: list[float] = []
    with served(tmp_path, tiny_encoder) as library:
        books = library.create("books", dimension=16)
        documents = [{"id": id, "vector": row} for id, row in zip(ids, vectors, strict=True)]
        written = books.upsert(documents, progress=lambda stage, share: stages.append(share))
        assert (written.added, stages[-1]) == (10_000, 1.0)
        table = pa.table({"id": ids, "vector": list(vectors), "year": [1851] * len(ids)})
        again = books.upsert(table)
        assert (again.added, again.revised) == (0, 10_000)
        assert books.ids() == set(ids)
        assert books.search(vectors[77], k=1).hits[0].id == "d77"
        assert books.delete(sorted(ids)) == 10_000


def test_a_server_that_is_killed_keeps_what_it_acknowledged(tmp_path: Path) -> None:
    """Writes go on one after the other while the server is killed; then another one starts."""
    acknowledged: list[str] = []
    with running(tmp_path, cold=True) as server:
        wait_until_ready(server)
        threading.Timer(1.0, server.process.kill).start()
        with RemoteLibrary(address_of(server)) as library, pytest.raises(errors.Unavailable):
            write_forever(library.create("books", dimension=4), acknowledged)
    assert acknowledged
    with running(tmp_path) as server:
        wait_until_ready(server)
        with RemoteLibrary(address_of(server)) as library:
            stored = library.collection("books").ids()
    # The last one had no answer: it may be stored.
    assert stored - {f"d{len(acknowledged)}"} == set(acknowledged)


def write_forever(books: Any, acknowledged: list[str]) -> None:
    while True:
        id = f"d{len(acknowledged)}"
        books.upsert([{"id": id, "vector": [1, 0, 0, len(acknowledged)]}])
        acknowledged.append(id)


def address_of(server: Server) -> str:
    return f"http://{server.host}:{server.port}"


def test_a_snapshot_moves_a_collection_and_is_whole_or_not_there(
    tmp_path: Path, tiny_encoder: Any
) -> None:
    file, stages = tmp_path / "books.tar", list[float]()
    with served(tmp_path / "one", tiny_encoder) as library:
        books = library.create("books", dimension=4)
        books.upsert([{"id": "a", "vector": [1, 0, 0, 0], "value": 3}])
        library.save_snapshot("books", file)
        with pytest.raises(errors.UnknownCollection):
            library.save_snapshot("nobody", tmp_path / "nobody.tar")
    with served(tmp_path / "two", tiny_encoder) as library:
        library.restore_snapshot("again", file, progress=lambda stage, share: stages.append(share))
        assert library.collection("again").document("a").value == 3
    assert stages[-1] == 1.0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["books.tar", "one", "two"]


ALONE = """
import sys

class Missing:
    def find_spec(self, name, *rest):
        if name.partition(".")[0] in MISSING:
            raise ImportError(name + " is not installed")

MISSING = {"numpy", "torch", "faiss", "scipy", "pyarrow", "sqlite_utils"}
sys.meta_path.insert(0, Missing())
import attend
with attend.open(sys.argv[1]) as library:
    books = library.create("alone", dimension=2)
    books.upsert([{"id": "a", "vector": [1.0, 0.0], "value": 3}])
    answer = books.search([1.0, 0.1], mode="soft")
    print(answer.hits[0].id, answer.answer["mean"], books.info().documents)
"""


def test_a_client_needs_no_numpy(tmp_path: Path, tiny_encoder: Any) -> None:
    with served(tmp_path, tiny_encoder) as library:
        command = [sys.executable, "-c", ALONE, library.server.url]
        done = subprocess.run(command, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("a 3.0 1\n", "")
