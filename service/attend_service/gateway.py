"""The gateway between granian and Flask: it receives requests whole, and limits how many run.

granian parses requests, one at a time for each connection, and limits connections and headers. It
calls `Gateway` on its event loop, which receives the body, hands the request to a thread, and
sends the answer in pieces, each within a time limit. So no client, however slow, holds a thread,
and what exceeds the queue is refused at once, since a request that waits longer than its client
is work for nobody.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from functools import partial
from io import SEEK_END, BytesIO
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import IO, Any, NamedTuple

from granian.rsgi import HTTPProtocol, ProtocolClosed, Scope

from attend_service.operations import ANSWERED_SHARE, ARRIVED, DEADLINE, WORKING_SHARE
from attend_service.problems import BUSY, NO_ROOM, OVER_TIME, TOO_SLOW, UNREADABLE
from attend_service.security.limits import (
    BYTES_PER_CHUNK,
    BYTES_PER_SECOND,
    FREE_CHUNKS,
    IDLE_SECONDS,
    MAX_UNSENT,
    REQUEST_SECONDS,
)
from attend_service.security.memory import GRANTED, MAX_MEMORY, MAX_WAITING
from attend_service.shared import (
    NeedsMemory,
    NoRoom,
    Threads,
    TimeLimit,
    Unsent,
    WorkingMemory,
    trim_heap,
)
from attend_service.sockets import Connection
from attend_service.static_files import PREFIX, static_answer
from attend_service.wsgi import (
    RETRY_SECONDS,
    WHOLE_BYTES,
    Environ,
    Headers,
    HttpAnswer,
    Refusal,
    add_headers,
    close_after,
    environ_of,
    pieces_of,
    refusal_of,
    send_late,
)

log = logging.getLogger("attend")

Application = Callable[[Environ, Any], Iterable[bytes]]

SAFE = frozenset({"GET", "HEAD"})

HEALTH = frozenset({"/healthz", "/readyz"})

OPERATIONAL = HEALTH | {"/metrics"}
"""Answered by a thread of their own however long the queue is: they are asked when it is long."""

SPOOL_BYTES = 512 * 1024
"""A longer body waits in a temporary file."""

DISCARDED = 4
"""A body over its limit is received up to this multiple of it, so that its client reads why."""

PIECE_BYTES = 256 * 1024

NO_ROOM_LEFT = (
    "The request was worked on, but the long answers of other clients leave no room for its own. "
    "What it writes is stored. Ask for less at once, or send it again later."
)

LOOK_SECONDS = 0.002, 0.5
"""How often a sender looks whether its client has taken more: more seldom while it has not."""


class Patience(NamedTuple):
    """Seconds for a client to send a body, to take a byte of an answer, and to be answered."""

    body: float = REQUEST_SECONDS
    idle: float = IDLE_SECONDS
    answer: float = 60


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
        body_limit: Callable[[Environ], int],
        folder: Path | None = None,
        patience: Patience = Patience(),  # noqa: B008, it cannot be changed
    ) -> None:
        """Start `threads` threads; `queue` more requests may wait for one of them.

        Args:
            body_limit: returns the bytes to keep of a request's long body.
            folder: the place of bodies above `max_body`.
        """
        self.refused = 0
        self._application = application
        self._running_limit = threads
        self._queue_limit = queue
        self._max_body = max_body
        self._body_limit = body_limit
        self._folder = folder
        self._patience = patience
        self._admitted = 0
        self._threads = Threads(threads, "request")
        self._operational = Threads(1, "operational")
        self._health = Threads(1, "health")
        self._unsent = Unsent(MAX_UNSENT)
        self._memory = WorkingMemory(MAX_MEMORY)

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
        is_unread = False
        try:
            if scope.path.startswith(PREFIX) and scope.method in SAFE:
                answer = static_answer(scope)
            else:
                environ = environ_of(scope)
                body = await self._receive(environ, protocol)
                is_unread = body is None
                environ["wsgi.input"] = BytesIO() if body is None else body
                environ[ARRIVED] = time.monotonic()
                if is_operational:
                    answer = await threads.run(partial(self._call, environ))
                else:
                    late = partial(send_late, scope, protocol)
                    admitted = await self._admit(environ, late)
                    if admitted is None:
                        return
                    answer = admitted
        except (Refusal, OSError) as error:
            answer = refusal_of(error).answer(scope.path)
        add_headers(answer, scope)
        if is_unread:
            close_after(answer)
        if answer.rest is None:
            protocol.response_bytes(answer.status, answer.headers, answer.content)
            if is_unread:
                await self._discard(protocol)
            return
        rest = answer.rest
        try:
            await self._send(answer, rest, scope, protocol, threads)
        finally:
            answer = answer._replace(content=b"", rest=None)
            await threads.run(partial(_end, rest))

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

    async def _receive(self, environ: Environ, protocol: HTTPProtocol) -> IO[bytes] | None:
        """Receive the body, of which no more is kept than the application needs to refuse it.

        Returns:
            None for a long body of a request that is refused without it, which is not received.
        """
        if "CONTENT_LENGTH" not in environ and "HTTP_TRANSFER_ENCODING" not in environ:
            return BytesIO()
        body: IO[bytes]
        length = int(environ.get("CONTENT_LENGTH", SPOOL_BYTES + 1))  # granian checks its form
        limit = self._max_body if length <= SPOOL_BYTES else self._body_limit(environ)
        if not limit or ("CONTENT_LENGTH" in environ and length > limit):
            return None
        try:
            async with asyncio.timeout(self._patience.body) as patience:
                if length <= SPOOL_BYTES:
                    content = await protocol()
                    received, is_whole, body = len(content), True, BytesIO(content)
                else:
                    # A larger one is a snapshot, beside the data that it is going to be.
                    folder = str(self._folder) if self._folder and limit > self._max_body else None
                    body = SpooledTemporaryFile(SPOOL_BYTES, dir=folder)  # noqa: SIM115, later
                    received, is_whole = await self._receive_long(protocol, body, limit, patience)
        except TimeoutError:
            detail = (
                f"The body did not arrive within {self._patience.body:g} s; send it faster, or "
                f"in smaller parts."
            )
            raise Refusal(TOO_SLOW, detail) from None
        except ProtocolClosed:
            received, body = -1, BytesIO()
        if "CONTENT_LENGTH" in environ:
            if received < min(length, limit):
                detail = f"The body ended before the {length:,} bytes that Content-Length says."
                raise Refusal(UNREADABLE, detail)
        elif not is_whole:
            raise Refusal(
                UNREADABLE,
                "The body ended before its last chunk, or has trailers, and nothing of it was "
                "stored. Send it whole, and without trailers.",
            )
        return body

    async def _discard(self, protocol: HTTPProtocol) -> None:
        """Receive a body whose request is answered: a client that still sends reads the answer."""
        with suppress(TimeoutError, ProtocolClosed, Refusal):
            async with asyncio.timeout(self._patience.body) as patience:
                await self._receive_long(protocol, BytesIO(), 0, patience)

    async def _receive_long(
        self, protocol: HTTPProtocol, body: IO[bytes], limit: int, patience: asyncio.Timeout
    ) -> tuple[int, bool]:
        """Receive a body, and store no more of it than shows that it exceeds the limit.

        Args:
            patience: extended for what the limit allows above `max_body`.

        Returns:
            The number of bytes, and whether the body came to its end.

        Raises:
            Refusal: it comes in so small pieces that they take more time than its bytes.
        """
        received = pieces = ends = 0
        most, until = DISCARDED * self._max_body, patience.when() or 0.0
        async for chunk in protocol:
            # At its end a body has one empty piece. One that breaks off, or whose chunks are out
            # of order, has two, and so has one with trailers; granian raises no error.
            ends += not chunk
            pieces += 1
            if pieces > FREE_CHUNKS + received // BYTES_PER_CHUNK:
                raise Refusal(
                    UNREADABLE,
                    f"The body came in {pieces:,} pieces of {received / pieces:.1f} bytes on "
                    f"average; send it in larger ones.",
                )
            if received <= limit:
                body.write(chunk)
            received += len(chunk)
            if received > max(most, limit):
                break
            if limit > most:
                patience.reschedule(until + received / BYTES_PER_SECOND)
        body.seek(0)
        return received, ends == 1

    async def _admit(self, environ: Environ, late: Callable[[], None]) -> HttpAnswer | None:
        """Run a request in a thread, once there is one, and the memory that it takes.

        Args:
            late: called where there is no answer in time; the answer is None then.
        """
        if self._admitted >= self._running_limit + self._queue_limit:
            raise self._busy(self._queue_limit, "")
        body = environ["wsgi.input"]
        size = body.seek(0, SEEK_END)
        deadline = environ[ARRIVED] + WORKING_SHARE * self._patience.answer
        if not SPOOL_BYTES < size <= self._max_body:  # a longer one is not read at once
            size = 0
        self._admitted += 1
        try:
            while True:
                body.seek(0)
                environ[GRANTED] = size
                try:
                    return await self._run(environ, size, deadline, late)
                except NeedsMemory as needs:
                    size, deadline = needs.size, needs.deadline
        finally:
            self._admitted -= 1

    async def _run(
        self, environ: Environ, size: int, deadline: float, late: Callable[[], None]
    ) -> HttpAnswer | None:
        """Run a request in a thread, with so much memory.

        Raises:
            NeedsMemory: it takes more.
        """
        if not size:
            return await self._in_time(environ, late)
        if self._memory.waiting >= MAX_WAITING:
            raise self._busy(MAX_WAITING, " for memory")
        try:
            async with self._memory.hold(size, deadline):
                return await self._in_time(environ, late)
        except TimeoutError:
            detail = (
                "The request waited for memory until its deadline, while others worked. Ask for "
                "less at once, or send it again later."
            )
            raise Refusal(OVER_TIME, detail) from None

    async def _in_time(self, environ: Environ, late: Callable[[], None]) -> HttpAnswer | None:
        """Run a request in a thread; where it is late, return None once the thread is free."""
        latest = environ[ARRIVED] + ANSWERED_SHARE * self._patience.answer
        # Some operations may take longer.
        limit = TimeLimit(latest, lambda: environ.get(DEADLINE, latest), late)
        try:
            answer = await self._threads.run(partial(self._call, environ))
        except (Exception, NeedsMemory):
            if limit.passed:
                return None
            raise
        finally:
            limit.end()
        if limit.passed:
            if answer.rest is not None:
                await self._threads.run(answer.rest.close)
            return None
        if answer.rest is not None:
            size, has_memory = len(answer.content), environ[GRANTED] > 0
            try:
                await self._unsent.make_room(size, has_memory=has_memory, deadline=limit.latest)
            except NoRoom:
                await self._threads.run(answer.rest.close)
                raise Refusal(NO_ROOM, NO_ROOM_LEFT) from None
        return answer

    def _busy(self, waiting: int, reason: str) -> Refusal:
        self.refused += 1
        return Refusal(
            BUSY,
            f"{waiting} requests wait already{reason}, which is the limit. Send this one again "
            f"after {RETRY_SECONDS} s.",
        )

    async def _send(
        self,
        answer: HttpAnswer,
        rest: Iterator[bytes],
        scope: Scope,
        protocol: HTTPProtocol,
        threads: Threads,
    ) -> None:
        """Send a long answer in pieces; close the connection if the client reads too slowly."""
        transport = protocol.response_stream(answer.status, answer.headers)
        connection, content, sent = answer.connection, answer.content, 0
        seconds = self._patience.idle + answer.length / BYTES_PER_SECOND
        try:
            with self._unsent.hold(len(content)) as progress:
                async with asyncio.timeout(seconds):
                    while content:
                        for begin in range(0, len(content), PIECE_BYTES):
                            piece = content[begin : begin + PIECE_BYTES]
                            await transport.send_bytes(piece)
                            sent += len(piece)
                            if connection is not None:
                                await self._until_taken(connection, sent - WHOLE_BYTES, progress)
                        content = await threads.run(partial(next, rest, b""))
        except ProtocolClosed:
            return  # the client left
        except (TimeoutError, asyncio.CancelledError) as error:
            taken = sent if connection is None else connection.taken()
            reason = "it reads too slowly" if isinstance(error, TimeoutError) else "it stood still"
            log.warning(
                "An answer was cut off, %d of %d bytes to %s: %s (%s %s).",
                taken, answer.length, scope.client, reason, scope.method, scope.path[:200],
            )  # fmt: skip
            if connection is not None:
                connection.shut()
        finally:
            if connection is not None:
                connection.close()

    async def _until_taken(
        self, connection: Connection, size: int, progress: Callable[[], None]
    ) -> None:
        """Return once the client has taken so much of its answer.

        Args:
            progress: called where it has taken more than before.

        Raises:
            TimeoutError: it takes nothing for the time that is allowed.
        """
        before, pause, since = -1, LOOK_SECONDS[0], time.monotonic()
        while True:
            taken = connection.taken()
            if taken > before:
                before, pause, since = taken, LOOK_SECONDS[0], time.monotonic()
                progress()
            elif time.monotonic() - since > self._patience.idle:
                raise TimeoutError
            if taken >= size:
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, LOOK_SECONDS[1])

    def _call(self, environ: Environ) -> HttpAnswer:
        """Run the application in this thread."""
        started: list[tuple[int, Headers]] = []

        def start_response(status: str, headers: Headers, _error: object = None) -> None:
            started.append((int(status[:3]), headers))

        try:
            rest = pieces_of(self._application(environ, start_response), environ["wsgi.input"])
            content = next(rest, b"")
        except NeedsMemory as needs:
            # Its traceback has the body and what was read, and a future would be kept with it.
            needs.__traceback__ = None
            trim_heap()
            raise needs from None
        if environ.get(GRANTED):
            trim_heap()
        if len(content) >= WHOLE_BYTES:
            client = environ["REMOTE_ADDR"], int(environ["REMOTE_PORT"])
            return HttpAnswer(*started[-1], content, rest, Connection.of(*client))
        rest.close()
        return HttpAnswer(*started[-1], content)


def _end(rest: Generator[bytes]) -> None:
    """Close a long answer, and give its memory back to the system."""
    rest.close()
    trim_heap()
