"""Requests that ask for much: large and bracketed bodies, long work, many names."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flask import Response
from flask.testing import FlaskClient

from attend import Data
from attend.api.search import (
    MAX_BATCH_CONDITIONS,
    MAX_BATCH_HITS,
    MAX_BATCH_MASKED,
    MAX_BATCH_PARTS,
)
from attend.core.deadline import deadline
from attend_service.context import MAX_BODY, Operation
from attend_service.keys import KeyFile
from attend_service.operations import WORKING_SHARE, call
from attend_service.security import MAX_BATCH_BODY
from tests.service.test_hostile_connections import memory
from tests.service.test_server import LIMIT, Server, running, wait_until_ready
from tests.workers import workers_of

SEARCH = "/v1/collections/books/search"
BATCH = f"{SEARCH}/batch"
DOCUMENTS = "/v1/collections/books/documents"
QUERY = {"query": [1, 0, 0]}
DEADLINE = 1


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents whose payloads take long to look through."""
    folder = tmp_path_factory.mktemp("hostile") / "library"
    payload = {f"field {number}": "x" * 100 for number in range(100)}
    with closing(Data(folder)) as data:
        data.create("books", dimension=3).upsert(
            [{"id": str(n), "vector": [1, n, 0], "payload": payload} for n in range(3000)]
        )
    return folder


@pytest.fixture(scope="module")
def server(library: Path) -> Iterator[Server]:
    with running(library, "--deadline", str(DEADLINE)) as server:
        wait_until_ready(server)
        yield server


@pytest.fixture(scope="module")
def patient(library: Path) -> Iterator[Server]:
    """A server with the usual deadline, for what is refused and must not be late."""
    with running(library) as server:
        wait_until_ready(server)
        yield server


def send(server: Server, path: str, body: bytes, headers: str = "") -> tuple[int, Any]:
    """Send a body that may be no JSON; return the status and the problem."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Connection: close\r\n{headers}Content-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection((server.host, server.port), timeout=LIMIT) as client:
        client.sendall(head.encode() + body)
        answer = client.makefile("rb").read()
    return int(answer.split()[1]), json.loads(answer.partition(b"\r\n\r\n")[2])


# -- bodies -----------------------------------------------------------------------------------


def test_a_search_has_a_smaller_body_than_an_upload(server: Server) -> None:
    padding = b'{"query":[1,0,0],' + b" " * MAX_BODY
    status, problem = send(server, SEARCH, padding + b'"k":1}')
    assert status == 413
    assert f"{MAX_BODY:,}" in problem["detail"]
    batch = b'{"searches":[],' + b" " * MAX_BODY + b'"matrix":false}'
    assert send(server, BATCH, batch)[0] == 200
    assert send(server, BATCH, batch + b" " * MAX_BATCH_BODY)[0] == 413
    document = json.dumps([{"id": "large", "vector": [1, 0, 0]}]).encode()
    assert send(server, DOCUMENTS, document + b" " * MAX_BODY)[0] == 200


def test_brackets_are_counted_before_they_are_parsed(server: Server) -> None:
    worker = workers_of(server.process)[0]
    before = memory(worker)
    lists = b'{"query":[1,0,0],"filter":{"a":{"in":[' + b"[]," * 1_300_000 + b"[]]}}}"
    status, problem = send(server, SEARCH, lists)
    assert status == 422
    assert re.search(r"1,300,00\d lists and objects", problem["detail"])
    objects = b'{"query":[1,0,0],"filter":{"$or":[' + b"{}," * 1_300_000 + b"{}]}}"
    assert send(server, SEARCH, objects)[0] == 422
    assert memory(worker) < before + 60
    # Brackets in texts count as well, where a body has few texts of this kind.
    harmless = json.dumps([{"id": "b", "vector": [1, 0, 0], "payload": {"t": "[" * 90_000}}])
    assert send(server, DOCUMENTS, harmless.encode())[0] == 200


def test_no_body_is_kept_for_a_key_that_is_refused(library: Path, tmp_path: Path) -> None:
    with closing(Data(tmp_path)) as data:
        data.create("books", dimension=3)
    KeyFile(tmp_path).add()
    with running(tmp_path, "--max-body", "2") as server:
        wait_until_ready(server)
        body = b"[" + b" " * 6_000_000 + b"]"
        assert send(server, DOCUMENTS, body)[0] == 401
        assert send(server, DOCUMENTS, body, "X-Api-Key: wrong\r\n")[0] == 401


# -- sums over a batch ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("search", "limit"),
    [
        (lambda n: {**QUERY, "k": 10_000, "attend": 10_000}, MAX_BATCH_HITS),
        (
            lambda n: {**QUERY, "mask": {"only": [f"{n} {i}" for i in range(1000)]}},
            MAX_BATCH_MASKED,
        ),
        (
            lambda n: {**QUERY, "filter": {f"f{n} {i}": 1 for i in range(200)}},
            MAX_BATCH_CONDITIONS,
        ),
        (lambda n: {**QUERY, "k": 100, "value": "@key"}, MAX_BATCH_HITS),
        (lambda n: {"query": {"ids": [str(i) for i in range(100)]}}, MAX_BATCH_PARTS),
        (lambda n: {"query": {"blend": [[1, 0, i] for i in range(100)]}}, MAX_BATCH_PARTS),
    ],
    ids=["hits", "masks", "conditions", "embeddings", "ids", "blends"],
)
def test_a_batch_is_bounded_as_a_whole(patient: Server, search: Any, limit: int) -> None:
    status, problem = patient.request("POST", BATCH, {"searches": [search(n) for n in range(101)]})
    assert status == 422
    assert f"at most {limit:,} are taken" in problem["detail"]


def test_one_filter_for_a_whole_batch_counts_once(patient: Server) -> None:
    conditions = [{"@id": str(n)} for n in range(MAX_BATCH_CONDITIONS // 64 + 1)]
    search = {**QUERY, "k": 1, "filter": {"$or": conditions}}
    status, answer = patient.request("POST", BATCH, {"searches": [search] * 64})
    assert (status, len(answer["answers"])) == (200, 64)


# -- deadlines --------------------------------------------------------------------------------


def slow_filter(seed: int) -> dict[str, Any]:
    """A filter of fields that no document has, and no index: each is looked for in each."""
    return {"$or": [{f"nothing {seed} {number}": "a"} for number in range(250)]}


def test_a_search_that_takes_too_long_is_stopped(server: Server) -> None:
    searches = [{**QUERY, "filter": slow_filter(seed)} for seed in range(4)]
    begun = time.monotonic()
    status, problem = server.request("POST", BATCH, {"searches": searches})
    assert time.monotonic() - begun < 20 * DEADLINE
    assert status == 503
    assert problem["type"] == "/docs#over-time"
    assert "--deadline" in problem["detail"]
    # On a busy machine a search may take as long, too: it is refused so, and the next is answered.
    while (status := server.request("POST", SEARCH, QUERY)[0]) != 200:
        assert status == 503
        assert time.monotonic() - begun < 20 * DEADLINE


@pytest.mark.parametrize("patience", [1, 10])
def test_an_operation_may_take_several_deadlines(client: FlaskClient, patience: int) -> None:
    def show() -> Response:
        left.append(deadline() - time.monotonic())
        return Response(status=204)

    left: list[float] = []
    with client.application.test_request_context("/"):
        call(Operation("GET", "/", "", show, {204: None}, patience=patience))
    assert left[0] == pytest.approx(WORKING_SHARE * patience * 60, abs=5)


def test_work_ends_at_the_deadline_where_the_client_has_left(library: Path) -> None:
    with running(library, "--deadline", str(DEADLINE), "--threads", "1") as server:
        wait_until_ready(server)
        searches = [{**QUERY, "filter": slow_filter(10 + seed)} for seed in range(4)]
        body = json.dumps({"searches": searches}).encode()
        for _ in range(3):
            with socket.create_connection((server.host, server.port)) as client:
                client.sendall(
                    f"POST {BATCH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json"
                    f"\r\nContent-Length: {len(body)}\r\n\r\n".encode()
                    + body
                )
        begun = time.monotonic()
        while (status := server.request("POST", SEARCH, QUERY)[0]) != 200:
            assert status == 503
            assert time.monotonic() - begun < 20 * DEADLINE


def test_a_write_that_takes_too_long_stores_nothing(library: Path) -> None:
    with running(library, "--deadline", "0.05") as server:
        wait_until_ready(server)
        batch = [{"id": f"new {n}", "vector": [1, n, 1], "payload": {"a": n}} for n in range(9000)]
        status, problem = server.request("POST", DOCUMENTS, batch)
        assert (status, problem["type"]) == (503, "/docs#over-time")
    with closing(Data(library, read_only=True)) as data:
        assert not [id for id in data.collection("books").ids() if id.startswith("new")]


# -- memory -----------------------------------------------------------------------------------


HEAVIEST = 1500
"""MiB that 30 of the heaviest requests may take together, above an idle server."""


def test_the_heaviest_requests_share_their_memory_and_keep_nobody_else_waiting(
    tmp_path: Path,
) -> None:
    numbers = np.random.default_rng(0).standard_normal((4000, 128)).tolist()
    with closing(Data(tmp_path)) as data:
        documents = [
            {"id": str(n), "vector": vector, "payload": {"text": "x" * 1000}}
            for n, vector in enumerate(numbers)
        ]
        data.create("books", dimension=128).upsert(documents)
    searches = [{"query": vector} for vector in numbers[:250]]
    heavy = {"k": 4000, "attend": 4000, "mode": "soft", "value": "@key"}
    history = [str(n) for n in range(100_000)]
    requests: list[tuple[str, dict[str, Any]]] = [
        (SEARCH, {"query": numbers[0], **heavy}),
        (BATCH, {"searches": searches, "matrix": True}),
        (
            "/v1/collections/books/recommend",
            {"history": history, "on_missing": "skip", "exclude_seen": False, "k": 4000},
        ),
    ]
    # What waits for memory is told so at the deadline, and the rest is answered long before.
    with running(tmp_path, "--deadline", "15") as server, ThreadPoolExecutor(30) as pool:
        wait_until_ready(server)
        worker = workers_of(server.process)[0]
        light = {"query": numbers[1]}
        assert server.request("POST", SEARCH, light)[0] == 200
        before = most = memory(worker)
        answers = [pool.submit(server.request, "POST", path, body) for path, body in 10 * requests]
        while not all(answer.done() for answer in answers):
            assert server.request("POST", SEARCH, light)[0] == 200
            assert server.request("GET", "/healthz")[0] == 200
            most = max(most, memory(worker))
            time.sleep(0.02)
        assert most < before + HEAVIEST
        statuses = [answer.result()[0] for answer in answers]
        assert set(statuses) <= {200, 503}  # 503: it waited for memory until its deadline
        assert 200 in statuses
