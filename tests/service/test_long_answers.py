"""Long answers: who reads one gets all of it, and what large documents weigh is waited for."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import NamedTuple

import pytest
from flask.testing import FlaskClient

from attend import Data
from attend_service import operations as limits
from tests.service.test_hostile_connections import connect, memory, with_few_files
from tests.service.test_server import LIMIT, Server, wait_until_ready
from tests.workers import workers_of

SEARCH = "/v1/collections/books/search"
SIZE = 8 << 20
"""Bytes of a document; ten make an answer."""

CROWD = 14
GROWTH = 600
"""MiB that a crowd may take, where each answer has 80 and takes as much again while it is made."""


class Reply(NamedTuple):
    status: int
    retry_after: str | None
    length: int
    received: int


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("long") / "library"
    with closing(Data(folder)) as data:
        books = data.create("books", dimension=3)
        for number in range(10):
            payload = {"text": "x" * SIZE}
            books.upsert([{"id": str(number), "vector": [1, number, 0], "payload": payload}])
    return folder


@pytest.fixture
def server(library: Path, tmp_path: Path) -> Iterator[Server]:
    with with_few_files(library, tmp_path / "log", "--log-level", "warning") as server:
        wait_until_ready(server)
        yield server


def ask(server: Server, k: int = 10) -> Reply:
    """Search, and read the answer as fast as it comes."""
    connection = http.client.HTTPConnection(server.host, server.port, timeout=LIMIT)
    body = json.dumps({"query": [1, 0, 0], "k": k})
    connection.request("POST", SEARCH, body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    length, received = int(response.headers["Content-Length"]), 0
    try:
        while part := response.read(1 << 20):
            received += len(part)
    except http.client.IncompleteRead as error:
        received += len(error.partial)
    connection.close()
    return Reply(response.status, response.headers["Retry-After"], length, received)


def test_who_reads_an_answer_gets_all_of_it_and_large_documents_take_turns(server: Server) -> None:
    worker = workers_of(server.process)[0]
    assert ask(server, k=1).status == 200
    before = most = memory(worker)
    with ThreadPoolExecutor(CROWD) as pool:
        asked = [pool.submit(ask, server) for _ in range(CROWD)]
        while not all(reply.done() for reply in asked):
            most = max(most, memory(worker))
            assert server.request("GET", "/healthz")[0] == 200
            time.sleep(0.02)
    replies = [reply.result() for reply in asked]
    assert [reply for reply in replies if reply.received != reply.length] == []
    assert {reply.status for reply in replies} <= {200, 503}
    assert [reply for reply in replies if reply.status == 503 and not reply.retry_after] == []
    assert sum(reply.status == 200 for reply in replies) > 3
    assert most < before + GROWTH
    deadline = time.monotonic() + 10
    while memory(worker) > before + 150:
        assert time.monotonic() < deadline, "the memory is not given back"
        time.sleep(0.1)


def test_an_answer_that_stands_still_is_cut_for_others_and_logged(
    server: Server, tmp_path: Path
) -> None:
    body = json.dumps({"query": [1, 0, 0], "k": 10}).encode()
    asked = (
        f"POST {SEARCH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode() + body
    with ExitStack() as crowd:
        for _ in range(3):  # each has a third of the room
            client = crowd.enter_context(connect(server))
            client.sendall(asked)
            assert client.recv(12) == b"HTTP/1.1 200"
        reply = ask(server)
        assert (reply.status, reply.received) == (200, reply.length)
    log = (tmp_path / "log").read_text()
    assert "An answer was cut off" in log
    assert "it stood still" in log


def test_no_request_reads_documents_without_end(
    books: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    payload = {"text": "x" * 30_000}
    document = {"id": "large", "vector": [1, 1, 1], "payload": payload}
    assert books.post("/v1/collections/books/documents", json=[document]).status_code == 200
    for name in ("LIGHT", "MAX_MEMORY", "MAX_READ"):
        monkeypatch.setattr(limits, name, 50_000)
    for method, path, body in (
        ("POST", "search", {"query": [1, 1, 1]}),
        ("GET", "documents?limit=10", None),
        ("GET", "documents/large", None),
        ("POST", "recommend", {"history": ["whale"]}),
    ):
        answer = books.open(f"/v1/collections/books/{path}", method=method, json=body)
        assert answer.status_code == 413, path
        assert "k, limit or attend" in answer.json["detail"]
