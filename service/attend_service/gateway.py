"""The gateway between granian and Flask: it receives requests whole, and limits how many run.

granian parses requests, one at a time for each connection, and limits connections and headers. It
calls `Gateway` on its event loop, which receives the body, hands the request to a thread, and
sends the answer in pieces, each within a time limit. So no client, however slow, holds a thread,
and what exceeds the queue is refused at once, since a request that waits longer than its client
is work for nobody.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from functools import lru_cache, partial
from io import SEEK_END, BytesIO
from queue import SimpleQueue
from tempfile import SpooledTemporaryFile
from typing import IO, Any, NamedTuple, TypeVar

from granian.rsgi import HTTPProtocol, ProtocolClosed, Scope

from attend_service.operations import ARRIVED
from attend_service.problems import (
    BUSY,
    HEADERS_TOO_LARGE,
    NO_PATH,
    TOO_SLOW,
    UNREADABLE,
    Kind,
)
from attend_service.replies import PROBLEM, to_json
from attend_service.security.browsers import ALWAYS, FOR_PROGRAMS
from attend_service.security.limits import (
    BYTES_PER_SECOND,
    IDLE_SECONDS,
    MAX_HEADERS,
    MAX_UNSENT,
    REQUEST_SECONDS,
)
from attend_service.sockets import Connection
from attend_service.static_files import PREFIX, static_files

Result = TypeVar("Result")
Environ = dict[str, Any]
Application = Callable[[Environ, Any], Iterable[bytes]]
Headers = list[tuple[str, str]]

RETRY_SECONDS = 1
"""A queue of a hundred searches is done in less."""

SAFE = frozenset({"GET", "HEAD"})

HEALTH = frozenset({"/healthz", "/readyz"})

OPERATIONAL = HEALTH | {"/metrics"}
"""Answered by a thread of their own however long the queue is: they are asked when it is long."""

SPOOL_BYTES = 512 * 1024
"""A longer body waits in a temporary file."""

DISCARDED = 4
"""A body over its limit is received up to this multiple of it, so that its client reads why."""

WHOLE_BYTES = 1024 * 1024
"""A longer answer is sent in pieces, of which so much may be untaken; granian has no limit."""

PIECE_BYTES = 256 * 1024

LOOK_SECONDS = 0.002, 0.5
"""How often a sender looks whether its client has taken more: more seldom while it has not."""


class Refusal(Exception):
    """A request that the gateway answers itself, with a problem."""

    def __init__(self, kind: Kind, detail: str) -> None:
        super().__init__(detail)
        self.kind, self.problem = kind, kind.problem(detail)

    def answer(self, path: str) -> HttpAnswer:
        headers = [("Content-Type", PROBLEM), ("Cache-Control", "no-store"), *ALWAYS.items()]
        if self.kind is UNREADABLE:  # where the next request begins is uncertain
            headers.append(("Connection", "close"))
        if self.kind is BUSY:
            headers.append(("Retry-After", str(RETRY_SECONDS)))
        content = to_json(replace(self.problem, instance=path))
        return HttpAnswer(self.problem.status, headers, content)


class HttpAnswer(NamedTuple):
    """An answer of the application: its beginning, and the rest where it is long."""

    status: int
    headers: Headers
    content: bytes
    rest: Generator[bytes] | None = None
    connection: Connection | None = None

    @property
    def length(self) -> int:
        lengths = [value for name, value in self.headers if name.lower() == "content-length"]
        return int(lengths[0]) if lengths else len(self.content)


class Unsent:
    """Long answers on the way to their clients, whose memory is limited together.

    Where they exceed it, the answer of which nothing was taken for the longest time is dropped.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._sizes: dict[asyncio.Task[Any], int] = {}  # the one that stands longest is first

    @contextmanager
    def hold(self, size: int) -> Iterator[Callable[[], None]]:
        """Count an answer of the current task; yields a function to call for each sent piece."""
        task = asyncio.current_task()
        assert task is not None

        def progress() -> None:
            if task in self._sizes:
                self._sizes[task] = self._sizes.pop(task)

        while self._sizes and sum(self._sizes.values()) + size > self._limit:
            slowest = next(iter(self._sizes))
            del self._sizes[slowest]
            slowest.cancel()
        self._sizes[task] = size
        try:
            yield progress
        finally:
            self._sizes.pop(task, None)


class BodyMemory:
    """Bytes of long bodies that are worked on at once: more wait, first come, first served."""

    def __init__(self, total: int) -> None:
        self._total = self._free = total
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def hold(self, size: int) -> AsyncIterator[None]:
        size = min(size, self._total)
        if self._waiting or size > self._free:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append((size, turn))
            await turn
        else:
            self._free -= size
        try:
            yield
        finally:
            self._free += size
            while self._waiting and self._waiting[0][0] <= self._free:
                following, turn = self._waiting.popleft()
                self._free -= following
                turn.set_result(None)


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
        body_limit: Callable[[Environ], int] | None = None,
        request_seconds: float = REQUEST_SECONDS,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        """Start `threads` threads; `queue` more requests may wait for one of them.

        Args:
            body_limit: returns the bytes to keep of a request's long body; `max_body` if absent.
        """
        self.refused = 0
        self._application = application
        self._running_limit = threads
        self._queue_limit = queue
        self._max_body = max_body
        self._body_limit = body_limit or (lambda environ: max_body)
        self._request_seconds = request_seconds
        self._idle_seconds = idle_seconds
        self._admitted = 0
        self._threads = Threads(threads, "request")
        self._operational = Threads(1, "operational")
        self._health = Threads(1, "health")
        self._unsent = Unsent(MAX_UNSENT)
        self._memory = BodyMemory(max_body)

    @property
    def waiting(self) -> int:
        """Requests that wait for a thread."""
        return max(0, self._admitted - self._running_limit)

    def close(self, seconds: float) -> bool:
        """End the threads; return whether all requests were finished in time."""
        self._operational.close(1.0)
        self._health.close(1.0)
        return self._threads.close(seconds)

    async def __rsgi__(self, scope: Scope, protocol: HTTPProtocol) -> None:
        is_operational = scope.path in OPERATIONAL
        threads = self._operational if is_operational else self._threads
        try:
            if scope.path.startswith(PREFIX) and scope.method in SAFE:
                answer = static_answer(scope)
            else:
                environ = environ_of(scope)
                environ["wsgi.input"] = await self._receive(environ, protocol)
                environ[ARRIVED] = time.monotonic()
                call = partial(self._call, environ)
                answer = await (threads.run(call) if is_operational else self._admit(call, environ))
        except Refusal as refusal:
            answer = refusal.answer(scope.path)
        answer.headers.append(("Server", "attend"))
        if "transfer-encoding" in scope.headers:
            # A proxy that goes by a length could take what follows for another's (RFC 9112 6.1).
            answer.headers.append(("Connection", "close"))
        if answer.rest is None:
            protocol.response_bytes(answer.status, answer.headers, answer.content)
            return
        try:
            await self._send(answer, answer.rest, protocol, threads)
        finally:
            await threads.run(answer.rest.close)

    async def health(self, path: str) -> tuple[int, bytes]:
        """Return the status and the content of a health check that came by a port of its own."""
        if path not in HEALTH:
            return 404, b""
        environ: Environ = {
            "REQUEST_METHOD": "GET",
            "PATH_INFO": path,
            "SERVER_NAME": "localhost",
            "SERVER_PORT": "80",
            "wsgi.url_scheme": "http",
            "wsgi.input": BytesIO(),
        }
        answer = await self._health.run(partial(self._call, environ))
        return answer.status, answer.content

    async def _receive(self, environ: Environ, protocol: HTTPProtocol) -> IO[bytes]:
        """Receive the body, of which no more is kept than the application needs to refuse it."""
        if "CONTENT_LENGTH" not in environ and "HTTP_TRANSFER_ENCODING" not in environ:
            return BytesIO()
        body: IO[bytes]
        length = int(environ.get("CONTENT_LENGTH", SPOOL_BYTES + 1))  # granian checks its form
        limit = self._max_body if length <= SPOOL_BYTES else self._body_limit(environ)
        try:
            async with asyncio.timeout(self._request_seconds):
                if length <= SPOOL_BYTES:
                    content = await protocol()
                    received, body = len(content), BytesIO(content)
                else:
                    received, body = await _receive_long(protocol, limit, self._max_body)
        except TimeoutError:
            detail = (
                f"The body did not arrive within {self._request_seconds:g} s; send it faster, or "
                f"in smaller parts."
            )
            raise Refusal(TOO_SLOW, detail) from None
        except ProtocolClosed:
            received, body = -1, BytesIO()
        if received < min(length, limit) and "CONTENT_LENGTH" in environ:
            detail = f"The body ended before the {length:,} bytes that Content-Length says."
            raise Refusal(UNREADABLE, detail)
        return body

    async def _admit(self, call: Callable[[], HttpAnswer], environ: Environ) -> HttpAnswer:
        """Run a request in a thread, once there is one, and memory for its body."""
        if self._admitted >= self._running_limit + self._queue_limit:
            self.refused += 1
            raise Refusal(
                BUSY,
                f"{self._queue_limit} requests wait already, which is the limit. Send this one "
                f"again after {RETRY_SECONDS} s.",
            )
        body = environ["wsgi.input"]
        size = body.seek(0, SEEK_END)
        body.seek(0)
        self._admitted += 1
        try:
            if size <= SPOOL_BYTES:
                return await self._threads.run(call)
            async with self._memory.hold(size):
                return await self._threads.run(call)
        finally:
            self._admitted -= 1

    async def _send(
        self, answer: HttpAnswer, rest: Iterator[bytes], protocol: HTTPProtocol, threads: Threads
    ) -> None:
        """Send a long answer in pieces; close the connection if the client reads too slowly."""
        transport = protocol.response_stream(answer.status, answer.headers)
        connection, content, sent = answer.connection, answer.content, 0
        seconds = self._idle_seconds + answer.length / BYTES_PER_SECOND
        try:
            with self._unsent.hold(len(content)) as progress:
                async with asyncio.timeout(seconds):
                    while content:
                        for begin in range(0, len(content), PIECE_BYTES):
                            piece = content[begin : begin + PIECE_BYTES]
                            await transport.send_bytes(piece)
                            sent += len(piece)
                            if connection is not None:
                                await self._until_taken(connection, sent - WHOLE_BYTES)
                                progress()
                        content = await threads.run(partial(next, rest, b""))
        except ProtocolClosed:
            return  # the client left
        except (TimeoutError, asyncio.CancelledError):
            if connection is not None:
                connection.shut()
        finally:
            if connection is not None:
                connection.close()

    async def _until_taken(self, connection: Connection, size: int) -> None:
        """Return once the client has taken so much of its answer.

        Raises:
            TimeoutError: it takes nothing for the time that is allowed.
        """
        before, pause, since = -1, LOOK_SECONDS[0], 0.0
        while (taken := connection.taken()) < size:
            if taken > before:
                before, pause, since = taken, LOOK_SECONDS[0], time.monotonic()
            elif time.monotonic() - since > self._idle_seconds:
                raise TimeoutError
            await asyncio.sleep(pause)
            pause = min(2 * pause, LOOK_SECONDS[1])

    def _call(self, environ: Environ) -> HttpAnswer:
        """Run the application in this thread."""
        started: list[tuple[int, Headers]] = []

        def start_response(status: str, headers: Headers, _error: object = None) -> None:
            started.append((int(status[:3]), headers))

        rest = _pieces(self._application(environ, start_response), environ["wsgi.input"])
        content = next(rest, b"")
        if len(content) >= WHOLE_BYTES:
            client = environ["REMOTE_ADDR"], int(environ["REMOTE_PORT"])
            return HttpAnswer(*started[-1], content, rest, Connection.of(*client))
        rest.close()
        return HttpAnswer(*started[-1], content)


def _pieces(pieces: Iterable[bytes], body: IO[bytes]) -> Generator[bytes]:
    """Yield an answer in pieces of `WHOLE_BYTES` or more; close it and the body at the end."""
    parts: list[bytes] = []
    try:
        for piece in pieces:
            parts.append(piece)
            if sum(map(len, parts)) >= WHOLE_BYTES:
                yield b"".join(parts)
                parts = []
        if parts:
            yield b"".join(parts)
    finally:
        body.close()
        if hasattr(pieces, "close"):
            pieces.close()


async def _receive_long(protocol: HTTPProtocol, limit: int, max_body: int) -> tuple[int, IO[bytes]]:
    """Receive a body, and store no more of it than shows that it exceeds the limit."""
    body = SpooledTemporaryFile(SPOOL_BYTES)  # noqa: SIM115, `_pieces` closes it
    received = 0
    async for chunk in protocol:
        if received <= limit:
            body.write(chunk)
        received += len(chunk)
        if received > DISCARDED * max_body:
            break
    body.seek(0)
    return received, body


def static_answer(scope: Scope) -> HttpAnswer:
    """Answer a request of a style or script.

    Raises:
        Refusal: there is no such file.
    """
    file = static_files().get(scope.path)
    if file is None:
        raise Refusal(NO_PATH, f"There is nothing at {scope.path}; /docs lists every path.")
    headers = [*file.headers.items(), *FOR_PROGRAMS]
    if file.is_known(scope.headers.get("if-none-match", "")):
        return HttpAnswer(304, headers, b"")
    headers.append(("Content-Length", str(len(file.content))))
    return HttpAnswer(200, headers, b"" if scope.method == "HEAD" else file.content)


def environ_of(scope: Scope) -> Environ:
    """Return a request as WSGI (PEP 3333) has it, without its body.

    Raises:
        Refusal: the headers are larger than the limit, or describe two bodies.
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
    if "HTTP_TRANSFER_ENCODING" in environ and "CONTENT_LENGTH" in environ:
        detail = "The request has Content-Length and Transfer-Encoding; send one of them."
        raise Refusal(UNREADABLE, detail)
    if "HTTP_HOST" in environ:
        environ["HTTP_HOST"] = environ["HTTP_HOST"].lower()
    return environ


@lru_cache(maxsize=1024)
def variable_of(header: str) -> str | None:
    """Return the variable of a header; none of `X_Api_Key`, which would pass for `X-Api-Key`."""
    if "_" in header:
        return None
    name = header.upper().replace("-", "_")
    return name if name in ("CONTENT_TYPE", "CONTENT_LENGTH") else f"HTTP_{name}"
