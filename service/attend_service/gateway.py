"""The gateway between granian and Flask: it receives requests whole, and limits how many run.

granian parses requests, sends answers and limits connections and headers. It calls `Gateway` on
its event loop, which receives the body and hands the request to a thread. So no client, however
slow, holds a thread (granian's WSGI interface reads bodies in the threads, without a time limit),
and what exceeds the queue is refused at once, since a request that waits longer than its client
is work for nobody.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import lru_cache, partial
from io import BytesIO
from queue import SimpleQueue
from tempfile import SpooledTemporaryFile
from typing import IO, Any, NamedTuple, TypeVar

from granian.rsgi import HTTPProtocol, ProtocolClosed, Scope

from attend_service.problems import (
    BUSY,
    HEADERS_TOO_LARGE,
    TOO_SLOW,
    UNREADABLE,
    Kind,
)
from attend_service.replies import PROBLEM, to_json
from attend_service.security.browsers import ALWAYS
from attend_service.security.limits import IDLE_SECONDS, MAX_HEADERS, REQUEST_SECONDS

Result = TypeVar("Result")
Environ = dict[str, Any]
Application = Callable[[Environ, Any], Iterable[bytes]]
Headers = list[tuple[str, str]]

RETRY_SECONDS = 1
"""A queue of a hundred searches is done in less."""

OPERATIONAL = frozenset({"/healthz", "/readyz", "/metrics"})
"""Answered by a thread of their own however long the queue is: they are asked when it is long."""

SPOOL_BYTES = 512 * 1024
"""A longer body waits in a temporary file."""

DISCARDED = 4
"""A body over its limit is received up to this multiple of it, so that its client reads why."""

WHOLE_BYTES = 1024 * 1024
"""A longer answer is sent in pieces while it is made."""


class Refusal(Exception):
    """A request that the gateway answers itself, with a problem."""

    def __init__(self, kind: Kind, detail: str) -> None:
        super().__init__(detail)
        self.kind, self.problem = kind, kind.problem(detail)

    def answer(self, path: str) -> HttpAnswer:
        headers = [("Content-Type", PROBLEM), ("Cache-Control", "no-store"), *ALWAYS.items()]
        if self.kind is BUSY:
            headers.append(("Retry-After", str(RETRY_SECONDS)))
        content = to_json(replace(self.problem, instance=path))
        return HttpAnswer(self.problem.status, headers, content)


class HttpAnswer(NamedTuple):
    """An answer of the application: its beginning, and the rest where it is long."""

    status: int
    headers: Headers
    content: bytes
    rest: Iterator[bytes] | None = None


class Threads:
    """Threads that run calls in order, and hand the results to the event loop.

    `ThreadPoolExecutor` does the same for 0.1 ms more of processor time a call.
    """

    def __init__(self, count: int, name: str) -> None:
        self._calls: SimpleQueue[Any] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, name=f"{name}-{n}", daemon=True)
            for n in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def run(self, call: Callable[[], Result]) -> asyncio.Future[Result]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()
        self._calls.put((call, future, loop))
        return future

    def close(self, seconds: float) -> bool:
        """Finish the calls that wait and run; return whether they finished in time."""
        for _ in self._threads:
            self._calls.put(None)
        for thread in self._threads:
            thread.join(seconds)
        return not any(thread.is_alive() for thread in self._threads)

    def _work(self) -> None:
        while (entry := self._calls.get()) is not None:
            call, future, loop = entry
            try:
                settle = partial(future.set_result, call())
            except Exception as error:
                settle = partial(future.set_exception, error)
            if not loop.is_closed():  # else the client left and the server stopped meanwhile
                loop.call_soon_threadsafe(settle)


class Gateway:
    """An RSGI application around a WSGI application.

    Attributes:
        refused: requests that found the queue full so far.
    """

    def __init__(
        self,
        application: Application,
        *,
        threads: int,
        queue: int,
        max_body: int,
        request_seconds: float = REQUEST_SECONDS,
    ) -> None:
        """Start `threads` threads; `queue` more requests may wait for one of them."""
        self.refused = 0
        self._application = application
        self._running_limit = threads
        self._queue_limit = queue
        self._max_body = max_body
        self._request_seconds = request_seconds
        self._admitted = 0
        self._threads = Threads(threads, "request")
        self._operational = Threads(1, "operational")

    @property
    def waiting(self) -> int:
        """Requests that wait for a thread."""
        return max(0, self._admitted - self._running_limit)

    def close(self, seconds: float) -> bool:
        """End the threads; return whether all requests were finished in time."""
        self._operational.close(1.0)
        return self._threads.close(seconds)

    async def __rsgi__(self, scope: Scope, protocol: HTTPProtocol) -> None:
        try:
            environ = environ_of(scope)
            environ["wsgi.input"] = await self._receive(environ, protocol)
            if scope.path in OPERATIONAL:
                await self._run(self._operational, environ, protocol)
            else:
                await self._admit(environ, protocol)
        except Refusal as refusal:
            await self._send(refusal.answer(scope.path), protocol)

    async def _receive(self, environ: Environ, protocol: HTTPProtocol) -> IO[bytes]:
        """Receive the body, of which no more is kept than the application needs to refuse it."""
        if "CONTENT_LENGTH" not in environ and "HTTP_TRANSFER_ENCODING" not in environ:
            return BytesIO()
        body: IO[bytes]
        length = int(environ.get("CONTENT_LENGTH", SPOOL_BYTES + 1))  # granian checks its form
        try:
            async with asyncio.timeout(self._request_seconds):
                if length <= SPOOL_BYTES:
                    content = await protocol()
                    received, body = len(content), BytesIO(content)
                else:
                    received, body = await self._receive_long(protocol)
        except TimeoutError:
            detail = (
                f"The body did not arrive within {self._request_seconds:g} s; send it faster, or "
                f"in smaller parts."
            )
            raise Refusal(TOO_SLOW, detail) from None
        except ProtocolClosed:
            received, body = -1, BytesIO()
        if received < min(length, self._max_body) and "CONTENT_LENGTH" in environ:
            detail = f"The body ended before the {length:,} bytes that Content-Length says."
            raise Refusal(UNREADABLE, detail)
        return body

    async def _receive_long(self, protocol: HTTPProtocol) -> tuple[int, IO[bytes]]:
        body = SpooledTemporaryFile(SPOOL_BYTES)  # noqa: SIM115, `_pieces` closes it
        received = 0
        async for chunk in protocol:
            if received <= self._max_body:
                body.write(chunk)
            received += len(chunk)
            if received > DISCARDED * self._max_body:
                break
        body.seek(0)
        return received, body

    async def _admit(self, environ: Environ, protocol: HTTPProtocol) -> None:
        if self._admitted >= self._running_limit + self._queue_limit:
            self.refused += 1
            raise Refusal(
                BUSY,
                f"{self._queue_limit} requests wait already, which is the limit. Send this one "
                f"again after {RETRY_SECONDS} s.",
            )
        self._admitted += 1
        try:
            await self._run(self._threads, environ, protocol)
        finally:
            self._admitted -= 1

    async def _run(self, threads: Threads, environ: Environ, protocol: HTTPProtocol) -> None:
        answer = await threads.run(partial(self._call, environ))
        try:
            await self._send(answer, protocol, threads)
        finally:
            if answer.rest is not None:
                await threads.run(getattr(answer.rest, "close", lambda: None))

    async def _send(
        self, answer: HttpAnswer, protocol: HTTPProtocol, threads: Threads | None = None
    ) -> None:
        status, headers, content, rest = answer
        headers.append(("Server", "attend"))
        if rest is None or threads is None:
            protocol.response_bytes(status, headers, content)
            return
        transport = protocol.response_stream(status, headers)
        try:
            while content:
                async with asyncio.timeout(IDLE_SECONDS):
                    await transport.send_bytes(content)
                content = await threads.run(partial(next, rest, b""))
        except (ProtocolClosed, TimeoutError):
            return  # the client left, or reads no more

    def _call(self, environ: Environ) -> HttpAnswer:
        """Run the application in this thread."""
        started: list[tuple[int, Headers]] = []

        def start_response(status: str, headers: Headers, _error: object = None) -> None:
            started.append((int(status[:3]), headers))

        pieces = self._application(environ, start_response)
        content, rest = b"", _pieces(pieces, environ["wsgi.input"])
        for piece in rest:
            content += piece
            if len(content) > WHOLE_BYTES:
                return HttpAnswer(*started[-1], content, rest)
        return HttpAnswer(*started[-1], content)


def _pieces(pieces: Iterable[bytes], body: IO[bytes]) -> Iterator[bytes]:
    """Yield an answer piece by piece, and close it and the request's body at the end."""
    try:
        yield from filter(None, pieces)
    finally:
        body.close()
        if hasattr(pieces, "close"):
            pieces.close()


def environ_of(scope: Scope) -> Environ:
    """Return a request as WSGI (PEP 3333) has it, without its body.

    Raises:
        Refusal: the headers are larger than the limit.
    """
    host, _, port = scope.server.rpartition(":")
    client, _, client_port = scope.client.rpartition(":")
    environ: Environ = {
        "REQUEST_METHOD": scope.method,
        "SCRIPT_NAME": "",
        # WSGI has bytes as Latin-1.
        "PATH_INFO": scope.path.encode().decode("latin-1"),
        "QUERY_STRING": scope.query_string,
        "REMOTE_ADDR": client.strip("[]"),
        "REMOTE_PORT": client_port,
        "SERVER_NAME": host.strip("[]"),
        "SERVER_PORT": port,
        "SERVER_PROTOCOL": f"HTTP/{scope.http_version}",
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": scope.scheme,
        "wsgi.errors": sys.stderr,
        "wsgi.input_terminated": True,
        "wsgi.multithread": True,
        "wsgi.multiprocess": True,
        "wsgi.run_once": False,
    }
    size = len(scope.path) + len(scope.query_string)
    for name, value in scope.headers.items():
        size += len(name) + len(value) + 4
        variable = variable_of(name)
        if variable is not None:
            before = environ.get(variable)
            environ[variable] = value if before is None else f"{before},{value}"
    if size > MAX_HEADERS:
        detail = f"The headers have {size:,} bytes, but at most {MAX_HEADERS:,} are read."
        raise Refusal(HEADERS_TOO_LARGE, detail)
    return environ


@lru_cache(maxsize=1024)
def variable_of(header: str) -> str | None:
    """Return the variable of a header; none of `X_Api_Key`, which would pass for `X-Api-Key`."""
    if "_" in header:
        return None
    name = header.upper().replace("-", "_")
    return name if name in ("CONTENT_TYPE", "CONTENT_LENGTH") else f"HTTP_{name}"
