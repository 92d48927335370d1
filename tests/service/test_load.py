"""A server with more requests than threads: what waits, what is refused, and what never waits."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest
from waitress.server import create_server

from attend_service.loop import Loop
from attend_service.queueing import RETRY_SECONDS, BoundedDispatcher

LIMIT = 30.0
"""Seconds that anything here may take on a busy machine."""

THREADS, QUEUE = 2, 3


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


class Gate:
    """An application whose answers are held until it is opened; health is answered at once."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.begun = threading.Semaphore(0)
        self.served: list[str] = []

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path.startswith("/v1"):
            self.begun.release()
            assert self.open.wait(LIMIT)
        self.served.append(path)
        start("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "2")])
        return [b"ok"]


class Loaded(NamedTuple):
    """A server whose threads are all busy and whose queue is full."""

    gate: Gate
    dispatcher: BoundedDispatcher
    port: int
    waiting: list[Future[Reply]]

    def get(self, path: str) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT)
        connection.request("GET", path)
        response = connection.getresponse()
        reply = Reply(response.status, dict(response.getheaders()), response.read())
        connection.close()
        return reply


@pytest.fixture
def loaded() -> Iterator[Loaded]:
    gate, dispatcher, stop = Gate(), BoundedDispatcher(THREADS, QUEUE), threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = create_server(gate, _dispatcher=dispatcher, sockets=[listener])
        loop = threading.Thread(target=_loop, args=[server, stop])
        loop.start()
        pool = ThreadPoolExecutor(THREADS + QUEUE)
        loaded = Loaded(gate, dispatcher, listener.getsockname()[1], [])
        try:
            until(lambda: dispatcher.active_count == 0)  # threads on their way count as busy
            for at in range(THREADS + QUEUE):
                loaded.waiting.append(pool.submit(loaded.get, f"/v1/{at}"))
            for _ in range(THREADS):
                assert gate.begun.acquire(timeout=LIMIT)
            until(lambda: dispatcher.waiting == QUEUE)
            yield loaded
        finally:
            gate.open.set()
            pool.shutdown()
            until(lambda: not server.active_channels)
            stop.set()
            loop.join()
            dispatcher.shutdown(timeout=LIMIT)
            server.close()


def _loop(server: Any, stop: threading.Event) -> None:
    loop = Loop(server)
    while not stop.is_set():
        loop.turn(0.05)


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_one_too_many_is_told_to_come_back(loaded: Loaded) -> None:
    reply = loaded.get("/v1/collections")
    assert reply.status == 429
    assert reply.headers["Retry-After"] == str(RETRY_SECONDS)
    assert reply.headers["Content-Type"] == "application/problem+json"
    problem = json.loads(reply.body)
    assert problem["status"] == 429
    assert problem["instance"] == "/v1/collections"
    assert f"{QUEUE} requests wait already" in problem["detail"]
    assert loaded.dispatcher.refused == 1
    assert loaded.dispatcher.waiting == QUEUE


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
def test_health_is_answered_however_many_wait(loaded: Loaded, path: str) -> None:
    assert loaded.get(path).body == b"ok"
    assert loaded.gate.served == [path]


def test_whoever_waited_is_answered_and_then_there_is_room(loaded: Loaded) -> None:
    assert loaded.get("/v1/late").status == 429
    loaded.gate.open.set()
    assert [each.result(LIMIT).status for each in loaded.waiting] == [200] * (THREADS + QUEUE)
    assert loaded.get("/v1/later").status == 200
    assert "/v1/late" not in loaded.gate.served
    assert loaded.dispatcher.waiting == 0


def test_an_idle_thread_takes_a_request_though_none_may_wait() -> None:
    dispatcher = BoundedDispatcher(THREADS, 0)
    try:
        until(lambda: dispatcher.active_count == 0)
        assert not dispatcher.is_full
        assert dispatcher.waiting == 0
    finally:
        dispatcher.shutdown(timeout=LIMIT)
    assert dispatcher.is_full
