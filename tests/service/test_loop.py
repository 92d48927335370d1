"""The loop around waitress's channels: all is received and sent, in whatever order it comes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from waitress import wasyncore
from waitress.server import create_server

from attend_service.channel import Channel
from attend_service.loop import Loop

LIMIT = 30.0
LARGE = 30_000_000
"""Bytes; more than the kernel takes in at once, and than waitress holds without waiting."""


def application(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
    """As many bytes as the path says, after those that were sent."""
    sent = environ["wsgi.input"].read()
    size = int(environ["PATH_INFO"].strip("/"))
    start("200 OK", [("Content-Length", str(len(sent) + size))])
    yield sent
    for at in range(0, size, 100_000):
        yield b"x" * min(100_000, size - at)


@pytest.fixture
def port() -> Iterator[int]:
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = create_server(application, sockets=[listener], threads=4, recv_bytes=65_536)
        server.channel_class = Channel
        loop = Loop(server)

        def run() -> None:
            while not stop.is_set():
                loop.turn(0.05)

        thread = threading.Thread(target=run)
        thread.start()
        yield listener.getsockname()[1]
        stop.set()
        thread.join()
        server.task_dispatcher.shutdown()
        wasyncore.close_all(server._map)


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=LIMIT)


def asked(size: int, body: bytes = b"") -> bytes:
    head = f"POST /{size} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def answer(connection: Any) -> bytes:
    """The body of the next answer of a connection's file."""
    length = 0
    while (line := connection.readline()) != b"\r\n":
        assert line, "the connection was closed"
        if line.lower().startswith(b"content-length:"):
            length = int(line.split(b":")[1])
    return bytes(connection.read(length))


def test_many_connections_ask_again_and_again(port: int) -> None:
    def ask(number: int) -> None:
        with connected(port) as connection, connection.makefile("rb") as answers:
            for turn in range(20):
                body = b"%d %d " % (number, turn) * 2000  # more than is received at once
                connection.sendall(asked(turn, body))
                assert answer(answers) == body + b"x" * turn

    with ThreadPoolExecutor(40) as pool:
        for each in [pool.submit(ask, number) for number in range(40)]:
            each.result(LIMIT)


def test_headers_and_body_leave_together(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[bytes] = []
    send = Channel.send

    def noted(channel: Channel, data: bytes, do_close: bool = True) -> Any:
        sent.append(bytes(data))
        return send(channel, data, do_close)

    monkeypatch.setattr(Channel, "send", noted)
    with connected(port) as connection, connection.makefile("rb") as answers:
        connection.sendall(asked(0, b"body"))
        assert answer(answers) == b"body"
        connection.sendall(asked(0))
        assert answer(answers) == b""
    assert [data.rpartition(b"\r\n")[2] for data in sent] == [b"body", b""]
    assert all(data.startswith(b"HTTP/1.1 200 OK\r\n") for data in sent)


def test_who_reads_late_gets_all_and_holds_nobody_up(port: int) -> None:
    with connected(port) as late, connected(port) as other:
        late.sendall(asked(LARGE, b"late"))
        with other.makefile("rb") as answers:
            for _ in range(50):
                other.sendall(asked(1))
                assert answer(answers) == b"x"
        with late.makefile("rb") as answers:
            assert answer(answers) == b"late" + b"x" * LARGE
            late.sendall(asked(2))
            assert answer(answers) == b"xx"


def test_requests_sent_ahead_are_answered_in_order(port: int) -> None:
    with connected(port) as connection, connection.makefile("rb") as answers:
        connection.sendall(b"".join(asked(0, b"%d" % at) for at in range(30)))
        assert [answer(answers) for _ in range(30)] == [b"%d" % at for at in range(30)]


def test_a_connection_that_goes_away_takes_nothing_with_it(port: int) -> None:
    for _ in range(20):
        with connected(port) as gone:
            gone.sendall(asked(LARGE)[:-3])
        with connected(port) as gone:
            gone.sendall(asked(LARGE))
    with connected(port) as connection, connection.makefile("rb") as answers:
        connection.sendall(asked(3))
        assert answer(answers) == b"xxx"
