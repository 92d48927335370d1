"""The gateway under granian: what waits, what is refused, what arrives slowly, late or never."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import pytest

from attend_service.gateway import DISCARDED, SPOOL_BYTES, Threads
from attend_service.wsgi import RETRY_SECONDS, variable_of
from tests import warm
from tests.service.gateway_server import HEADER_SECONDS, LIMIT, MAX_BODY, QUEUE, THREADS

LARGE = 30_000_000
"""Bytes; more than the system's buffers take."""


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


class Server(NamedTuple):
    port: int

    def get(self, path: str) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT)
        connection.request("GET", path)
        response = connection.getresponse()
        reply = Reply(response.status, dict(response.getheaders()), response.read())
        connection.close()
        return reply

    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads(self.get("/metrics").body)
        return state

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=LIMIT)


@contextmanager
def started(**environment: str) -> Iterator[Server]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    module = "tests.service.gateway_server"
    process = warm.start(
        *("-m", module, port), environment=os.environ | environment, stdout=None, stderr=None
    )
    server = Server(port)
    try:
        until(lambda: answers(server))
        yield server
    finally:
        process.terminate()
        assert process.wait(LIMIT) == 0


def answers(server: Server) -> bool:
    try:
        return server.get("/healthz").status == 200
    except OSError:
        return False


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with started() as server:
        yield server


# -- more requests than threads -----------------------------------------------------------------


def test_a_full_queue_refuses_while_health_and_metrics_answer() -> None:
    with started() as server, ThreadPoolExecutor(THREADS + QUEUE) as pool:
        admitted: list[Future[Reply]] = [
            pool.submit(server.get, f"/v1/wait/{n}") for n in range(THREADS + QUEUE)
        ]
        until(lambda: server.state()["waiting"] == QUEUE)
        assert len(server.state()["begun"]) == THREADS

        refused = server.get("/v1/wait/late")
        assert refused.status == 429
        assert refused.headers["retry-after"] == str(RETRY_SECONDS)
        assert refused.headers["content-type"] == "application/problem+json"
        assert refused.headers["x-content-type-options"] == "nosniff"
        problem = json.loads(refused.body)
        assert (problem["status"], problem["instance"]) == (429, "/v1/wait/late")
        assert f"{QUEUE} requests wait already" in problem["detail"]
        for path in ("/healthz", "/readyz", "/metrics"):
            assert server.get(path).status == 200
        assert (server.state()["refused"], server.state()["waiting"]) == (1, QUEUE)

        server.get("/healthz?open")
        assert [each.result(LIMIT).status for each in admitted] == [200] * (THREADS + QUEUE)
        assert server.get("/v1/wait/later").status == 200
        assert "/v1/wait/late" not in server.state()["answered"]
        assert server.state()["waiting"] == 0


def test_a_client_is_answered_at_its_deadline_while_the_work_keeps_its_place() -> None:
    with started(ANSWER_SECONDS="1") as server, ThreadPoolExecutor(THREADS + 1) as pool:
        late = list(pool.map(server.get, [f"/v1/wait/{n}" for n in range(THREADS + 1)]))
        assert [reply.status for reply in late] == [503] * (THREADS + 1)
        assert json.loads(late[0].body)["type"] == "/docs#over-time"
        assert late[0].headers["server"] == "attend"
        assert server.state()["waiting"] == 1, "threads are taken until their work ends"
        server.get("/healthz?open")
        until(lambda: server.state()["waiting"] == 0)
        assert server.get("/v1/wait/later").status == 200


# -- clients that are slow, or leave ------------------------------------------------------------


@pytest.mark.parametrize(
    "head",
    [
        b"POST /v1/echo/0 HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\n",
        b"POST /v1/echo/0 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5000\r\n",
    ],
    ids=["body", "chunks"],
)
def test_a_body_that_trickles_is_answered_408(server: Server, head: bytes) -> None:
    answer = trickle(server, head)
    assert answer.startswith(b"HTTP/1.1 408")
    problem = json.loads(answer.partition(b"\r\n\r\n")[2])
    assert problem["status"] == 408
    assert "did not arrive" in problem["detail"]
    assert answers(server)


def test_headers_that_trickle_end_the_connection(server: Server) -> None:
    assert trickle(server, b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Filler: ") == b""


def trickle(server: Server, head: bytes) -> bytes:
    """Send a byte now and then; return what comes back before the connection ends."""
    with server.connect() as client:
        client.settimeout(0.1)
        client.sendall(head)
        answer = b""
        until = time.monotonic() + LIMIT
        while time.monotonic() < until:
            try:
                client.sendall(b"x")
                received = client.recv(10_000)
            except TimeoutError:
                continue
            except OSError:  # closed, and the last bytes are thrown back
                return answer
            if not received:
                return answer
            answer += received
    raise AssertionError("the connection stays open")


def test_bodies_that_never_end_hold_no_thread(server: Server) -> None:
    head = b"POST /v1/echo/0 HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\n"
    clients = [server.connect() for _ in range(50)]
    for client in clients:
        client.sendall(head)
    assert server.get("/v1/echo/7").body == b"x" * 7
    for client in clients:
        assert client.recv(20).startswith(b"HTTP/1.1 408")
        client.close()


def test_idle_connections_are_closed(server: Server) -> None:
    clients = [server.connect() for _ in range(50)]
    asked = server.connect()
    asked.sendall(b"GET /v1/echo/0 HTTP/1.1\r\nHost: x\r\n\r\n")
    assert asked.recv(1000).startswith(b"HTTP/1.1 200")
    for client in [*clients, asked]:
        assert client.recv(1) == b""
        client.close()


def test_a_connection_may_rest_between_requests(server: Server) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=LIMIT)
    for _ in range(3):
        connection.request("GET", "/healthz")
        assert connection.getresponse().read() == b"ok"
        time.sleep(HEADER_SECONDS / 4)
    connection.close()


def test_a_body_that_is_cut_off_is_not_taken_for_a_whole_one(server: Server) -> None:
    for length in (50, SPOOL_BYTES + 50):
        with server.connect() as client:
            head = f"POST /v1/echo/0 HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n"
            client.sendall(head.encode() + b"x" * (length - 10))
            client.shutdown(socket.SHUT_WR)
            answer = client.makefile("rb").read()
        assert answer.startswith(b"HTTP/1.1 400")
        assert f"before the {length:,} bytes" in answer.decode()


def test_clients_that_leave_take_nothing_with_them() -> None:
    with started() as server:
        for _ in range(20):
            with server.connect() as gone:
                gone.sendall(post(LARGE)[:-3])
            with server.connect() as gone:
                gone.sendall(post(LARGE))
        until(lambda: server.get("/v1/echo/3").body == b"xxx")


# -- bodies and answers -------------------------------------------------------------------------


def post(size: int, body: bytes = b"") -> bytes:
    head = f"POST /v1/echo/{size} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def next_answer(connection: Any) -> bytes:
    """The body of the next answer of a connection's file."""
    length = 0
    while (line := connection.readline()) != b"\r\n":
        assert line, "the connection was closed"
        if line.lower().startswith(b"content-length:"):
            length = int(line.split(b":")[1])
    return bytes(connection.read(length))


def test_many_connections_ask_again_and_again(server: Server) -> None:
    def ask(number: int) -> None:
        with server.connect() as connection, connection.makefile("rb") as answers:
            for turn in range(20):
                body = b"%d %d " % (number, turn) * 2000  # more than is received at once
                connection.sendall(post(turn, body))
                assert next_answer(answers) == body + b"x" * turn

    with ThreadPoolExecutor(THREADS + QUEUE) as pool:
        for each in [pool.submit(ask, number) for number in range(THREADS + QUEUE)]:
            each.result(LIMIT)


@pytest.mark.parametrize("size", [0, 1, SPOOL_BYTES, SPOOL_BYTES + 1, MAX_BODY])
def test_bodies_arrive_whole_with_a_length_and_in_chunks(server: Server, size: int) -> None:
    body = b"y" * size
    with server.connect() as connection, connection.makefile("rb") as answers:
        connection.sendall(post(2, body))
        assert next_answer(answers) == body + b"xx"
        connection.sendall(
            b"POST /v1/echo/2 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
            + (b"%x\r\n%b\r\n" % (size, body) if body else b"")
            + b"0\r\n\r\n"
        )
        assert next_answer(answers) == body + b"xx"


def test_no_more_of_a_body_is_kept_than_shows_that_it_is_too_large(server: Server) -> None:
    with server.connect() as connection, connection.makefile("rb") as answers:
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body := b"y" * MAX_BODY * (DISCARDED - 1)), body)
        connection.sendall(
            b"POST /v1/echo/0 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + body
        )
        assert MAX_BODY < len(next_answer(answers)) < 2 * MAX_BODY


def test_who_reads_late_gets_all_and_holds_nobody_up(server: Server) -> None:
    with server.connect() as late, server.connect() as other:
        late.sendall(post(LARGE, b"late"))
        with other.makefile("rb") as answers:
            for _ in range(50):
                other.sendall(post(1))
                assert next_answer(answers) == b"x"
        with late.makefile("rb") as answers:
            assert next_answer(answers) == b"late" + b"x" * LARGE
            late.sendall(post(2))
            assert next_answer(answers) == b"xx"


def test_requests_sent_ahead_are_answered_in_order(server: Server) -> None:
    with server.connect() as connection, connection.makefile("rb") as answers:
        connection.sendall(b"".join(post(0, b"%d" % n) for n in range(30)))
        assert [next_answer(answers) for _ in range(30)] == [b"%d" % n for n in range(30)]


def test_a_header_with_an_underscore_does_not_pass_for_another() -> None:
    assert variable_of("x-api-key") == "HTTP_X_API_KEY"
    assert variable_of("x_api_key") is None
    assert variable_of("content-type") == "CONTENT_TYPE"


def test_calls_one_after_another_stay_with_the_threads_that_were_busy_last() -> None:
    async def run() -> list[int]:
        numbers = []
        for _ in range(40):
            numbers.append(await threads.run(threading.get_ident))
            await asyncio.sleep(0.005)  # the thread comes to rest
        return numbers

    threads = Threads(8, "tested")
    assert len(set(asyncio.run(run()))) < 4
    assert threads.close(LIMIT)


def test_calls_beyond_the_threads_are_run_in_order() -> None:
    order: list[str] = []

    async def run() -> None:
        calls = [threads.run(held.acquire), *(threads.run(partial(order.append, n)) for n in "abc")]
        await asyncio.sleep(0.05)
        assert order == []
        held.release()
        await asyncio.gather(*calls)

    threads, held = Threads(1, "tested"), threading.Lock()
    held.acquire()
    asyncio.run(run())
    assert order == ["a", "b", "c"]
    assert threads.close(LIMIT)
