"""Bodies in chunks that break off: none of one is stored, whichever route takes it."""

from __future__ import annotations

import io
import json
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from attend import Data
from attend_service.keys import KeyFile
from attend_service.operations import ARROW
from attend_service.security import FREE_CHUNKS
from tests.service.test_server import LIMIT, Server, running, wait_until_ready

BOOKS = "/v1/collections/books"
LAST = b"0\r\n\r\n"


def arrow() -> tuple[bytes, int]:
    """Return a stream of two batches of documents, and the place where the second begins."""
    schema = pa.schema([("id", pa.string()), ("vector", pa.list_(pa.float32(), 3))])
    sink, ends = io.BytesIO(), []
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in (1, 2):
            ids = pa.array([f"new {batch} {n}" for n in range(500)])
            vectors = pa.array([[1.0, n, batch] for n in range(500)], schema.field(1).type)
            writer.write_batch(pa.record_batch([ids, vectors], schema=schema))
            ends.append(sink.tell())
    return sink.getvalue(), ends[0]


STREAM, SECOND = arrow()
DOCUMENTS = json.dumps([{"id": f"new {n}", "vector": [1, n, 0]} for n in range(3)]).encode()
LABELS = json.dumps([{"query": {"vector": [1, 0, 0]}, "id": "a", "label": 1}]).encode()
SEEN = json.dumps([{"user": "u", "id": "a"}]).encode()

BODIES = [
    ("POST", "/documents", "application/json", DOCUMENTS),
    ("POST", "/documents/delete", "application/json", b'{"ids":["a"]}'),
    ("PATCH", "/documents/a", "application/json", b'{"payload":{"new":true}}'),
    ("POST", "/feedback", "application/json", LABELS),
    ("POST", "/interactions", "application/json", SEEN),
]
ENDS = ["closed", "reset", "half closed", "half closed in the last chunk", "out of order"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("broken")
    with closing(Data(folder)) as data:
        data.create("books", dimension=3).upsert([{"id": "a", "vector": [1, 0, 0]}])
    with running(folder) as server:
        wait_until_ready(server)
        yield server


def chunk(content: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(content), content)


def head(method: str, path: str, media: str) -> bytes:
    return (
        f"{method} {BOOKS}{path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {media}\r\n"
        f"Transfer-Encoding: chunked\r\n\r\n"
    ).encode()


def broken(server: Server, begun: bytes, end: str) -> bytes:
    """Send the beginning of a request; return the answer, where there is somebody to have it."""
    rest = {"half closed in the last chunk": b"0\r\n", "out of order": b"zz\r\n"}.get(end, b"")
    with socket.create_connection((server.host, server.port), timeout=LIMIT) as client:
        client.sendall(begun + rest)
        if end == "reset":
            time.sleep(0.1)  # what is thrown back would not be read
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if end in ("closed", "reset"):
            return b""
        if end.startswith("half"):
            client.shutdown(socket.SHUT_WR)
        return client.makefile("rb").read()


def stored(server: Server) -> list[Any]:
    paths = ("/documents?limit=100", "/feedback", "/interactions")
    return [server.request("GET", f"{BOOKS}{path}") for path in paths]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize(
    ("method", "path", "media", "body"), BODIES, ids=[path for _, path, _, _ in BODIES]
)
def test_json_without_its_last_chunk_is_refused(
    server: Server, method: str, path: str, media: str, body: bytes, end: str
) -> None:
    """The text is whole, so that only the end of the chunks is missing."""
    before = stored(server)
    answer = broken(server, head(method, path, media) + chunk(body), end)
    assert answer[:12] in (b"", b"HTTP/1.1 400")
    assert not answer or b"before its last chunk" in answer
    time.sleep(0.2 if not answer else 0)
    assert stored(server) == before


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("size", [SECOND, SECOND + 200, len(STREAM) - 8, len(STREAM)])
def test_a_stream_that_breaks_off_is_refused(server: Server, size: int, end: str) -> None:
    before = stored(server)
    parts = chunk(STREAM[:100]) + chunk(STREAM[100:size])
    answer = broken(server, head("POST", "/documents", ARROW) + parts, end)
    assert answer[:12] in (b"", b"HTTP/1.1 400")
    time.sleep(0.2 if not answer else 0)
    assert stored(server) == before


def test_a_snapshot_that_breaks_off_makes_no_collection(server: Server) -> None:
    snapshot = b"x" * 1_000_000
    request = head("PUT", "/snapshot", "application/x-tar").replace(b"/books/", b"/copy/")
    assert broken(server, request + chunk(snapshot), "half closed").startswith(b"HTTP/1.1 400")
    assert server.request("GET", "/v1/collections/copy")[0] == 404


def test_whole_bodies_in_chunks_are_stored(server: Server) -> None:
    for media, body in (("application/json", DOCUMENTS), (ARROW, STREAM)):
        answer = broken(server, head("POST", "/documents", media) + chunk(body) + LAST, "whole")
        assert answer.startswith(b"HTTP/1.1 200"), answer
    assert server.request("GET", f"{BOOKS}/documents?limit=0")[1]["total"] == 1004


def test_a_body_with_trailers_is_refused(server: Server) -> None:
    request = head("POST", "/search", "application/json") + chunk(b'{"query":[1,0,0]}')
    answer = broken(server, request + b"0\r\nX-Api-Key: a\r\n\r\n", "whole")
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"trailers" in answer


@pytest.mark.parametrize("coding", ["gzip, chunked", "chunked, chunked"])
def test_another_transfer_coding_is_refused(server: Server, coding: str) -> None:
    request = head("POST", "/search", "application/json").replace(b"chunked", coding.encode())
    answer = broken(server, request + chunk(b'{"query":[1,0,0]}') + LAST, "whole")
    assert answer.startswith(b"HTTP/1.1 501")
    assert b"Transfer-Encoding" in answer


def test_a_request_without_a_host_is_refused(server: Server) -> None:
    with socket.create_connection((server.host, server.port), timeout=LIMIT) as client:
        client.sendall(b"GET /v1/collections HTTP/1.1\r\n\r\n")
        assert client.recv(12) == b"HTTP/1.1 400"
    with socket.create_connection((server.host, server.port), timeout=LIMIT) as client:
        client.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert client.recv(12) == b"HTTP/1.0 200"


def test_a_flood_of_tiny_chunks_is_ended(server: Server) -> None:
    request = head("POST", "/search", "application/json")
    with socket.create_connection((server.host, server.port), timeout=LIMIT) as client:
        client.sendall(request + b"1\r\n \r\n" * (2 * FREE_CHUNKS))
        answer = client.recv(10_000)
        assert answer.startswith(b"HTTP/1.1 400")
        assert b"1.0 bytes on average" in answer
    # Lines of a generator are no flood, however many.
    body = b"[" + b",".join(b'{"id":"%d","vector":[1,0,0],"payload":{"text":"%032d"}}' % (n, n)
                            for n in range(100)) + b" " * 64 * FREE_CHUNKS + b"]"  # fmt: skip
    lines = b"".join(chunk(body[n : n + 64]) for n in range(0, len(body), 64))
    answer = broken(server, head("POST", "/documents", "application/json") + lines + LAST, "whole")
    assert answer.startswith(b"HTTP/1.1 200")


def test_a_refused_key_is_answered_before_the_body(tmp_path: Path) -> None:
    with closing(Data(tmp_path)) as data:
        data.create("books", dimension=3)
    KeyFile(tmp_path).add()
    with running(tmp_path) as server:
        wait_until_ready(server)
        for begun in (
            head("POST", "/documents", "application/json"),
            head("POST", "/documents", "application/json").replace(
                b"Transfer-Encoding: chunked", b"Content-Length: 9000000"
            ),
        ):
            with socket.create_connection((server.host, server.port), timeout=LIMIT) as client:
                client.sendall(begun)
                answer = client.recv(10_000)
                assert answer.startswith(b"HTTP/1.1 401")
                assert b"connection: close" in answer.lower()
                assert b"www-authenticate" in answer.lower()
