"""A gateway with few threads and little patience, around an application that tests hold up.

`/v1/wait` answers once `/healthz?open` was called; `/v1/echo/SIZE` answers the body and so many
bytes more; `/metrics` reports the gateway's state and the paths that were answered.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import threading
from asyncio import AbstractEventLoop
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from granian import Granian
from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP1Settings

from attend_service.gateway import Gateway
from attend_service.server import end_process
from attend_service.settings import MEBIBYTE, ServerSettings
from attend_service.wsgi import limit_sending

LIMIT = 60.0
"""Seconds that anything here may take on a busy machine."""

THREADS, QUEUE = 2, 3
MAX_BODY = MEBIBYTE
HEADER_SECONDS, REQUEST_SECONDS, IDLE_SECONDS = 1.0, 2.0, 1.0
ANSWER_SECONDS = float(os.environ.get("ANSWER_SECONDS", "60"))


class Application:
    def __init__(self) -> None:
        self.opened = threading.Event()
        self.begun: list[str] = []
        self.answered: list[str] = []

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path.startswith("/v1/echo/"):
            return self.echo(environ, start, int(path.rpartition("/")[2]))
        if path.startswith("/v1/wait"):
            self.begun.append(path)
            assert self.opened.wait(LIMIT)
        self.answered.append(path)
        if environ["QUERY_STRING"] == "open":
            self.opened.set()
        state = {
            "waiting": gateway.waiting, "refused": gateway.refused,
            "begun": self.begun, "answered": self.answered,
        }  # fmt: skip
        content = json.dumps(state).encode() if path == "/metrics" else b"ok"
        start("200 OK", [("Content-Length", str(len(content)))])
        return [content]

    def echo(
        self, environ: dict[str, Any], start: Callable[..., Any], size: int
    ) -> Iterator[bytes]:
        body = environ["wsgi.input"].read()
        start("200 OK", [("Content-Length", str(len(body) + size))])
        yield body
        for begin in range(0, size, 100_000):
            yield b"x" * min(100_000, size - begin)


class StoppingGateway(Gateway):
    def __rsgi_init__(self, loop: AbstractEventLoop) -> None:
        self.limiting = loop.create_task(limit_sending(int(sys.argv[1]), IDLE_SECONDS))

    def __rsgi_del__(self, _loop: AbstractEventLoop) -> None:
        end_process()


gateway = StoppingGateway(
    Application(),
    ServerSettings(threads=THREADS, queue=QUEUE, max_body=1, deadline=ANSWER_SECONDS),
    lambda environ: MAX_BODY,
    body_seconds=REQUEST_SECONDS,
    idle_seconds=IDLE_SECONDS,
)

if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    Granian(
        "tests.service.gateway_server:gateway",
        "127.0.0.1",
        int(sys.argv[1]),
        interface=Interfaces.RSGI,
        http=HTTPModes.http1,
        http1_settings=HTTP1Settings(header_read_timeout=int(HEADER_SECONDS * 1000)),
        websockets=False,
        log_enabled=False,
    ).serve()
