"""The gateway between granian and Flask: it receives requests whole, and limits how many run.

granian parses requests, one at a time for each connection, and limits connections and headers. It
calls `Gateway` on its event loop, which receives the body, hands the request to a thread, and
sends the answer in pieces, each within a time limit. So no client, however slow, holds a thread,
and what exceeds the queue is refused at once, since a request that waits longer than its client
is work for nobody.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import cache, partial
from io import SEEK_END, BytesIO
from pathlib import Path
from queue import SimpleQueue
from tempfile import SpooledTemporaryFile
from typing import IO, Any, TypeVar

from granian.rsgi import HTTPProtocol, ProtocolClosed, Scope

from attend_service import operations, replies, security, wsgi
from attend_service.settings import ServerSettings
from attend_service.wsgi import Connection, Environ, HttpAnswer, Refusal

log = logging.getLogger("attend")

Result = TypeVar("Result")
Application = Callable[[Environ, Any], Iterable[bytes]]

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

ROOM_SECONDS = 0.02
"""How often a long answer looks whether there is room for it."""

STANDING_SECONDS = 10.0
"""The time after which a client that takes nothing makes room for others' answers."""

LATE = (
    "The request takes longer than the server allows, and its answer is not waited for. Where "
    "it writes, look before you send it again: it may be stored. Ask for less at once, or "
    "start the server with a larger --deadline."
)

MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1
"""Parameters of glibc's `mallopt`."""

LARGE_BLOCK = 8 * 1024 * 1024
"""Bytes of memory that go back to the system as soon as they are free."""


class Gateway:
    """An RSGI application around a WSGI application.

    Attributes:
        refused: requests that found the queue full so far.
    """

    def __init__(
        self,
        application: Application,
        settings: ServerSettings,
        body_limit: Callable[[Environ], int],
        *,
        folder: Path | None = None,
        body_seconds: float = security.REQUEST_SECONDS,
        idle_seconds: float = security.IDLE_SECONDS,
    ) -> None:
        """Start as many threads as the settings say.

        Args:
            body_limit: returns the bytes to keep of a request's long body.
            folder: the place of bodies above the settings' `max_body`.
            body_seconds: for a client to send a body.
            idle_seconds: for a client to take the next byte of an answer.
        """
        self.refused = 0
        self._application = application
        self._settings = settings
        self._max_body = settings.max_body_bytes
        self._body_limit = body_limit
        self._folder = folder
        self._body_seconds = body_seconds
        self._idle_seconds = idle_seconds
        self._admitted = 0
        self._threads = Threads(settings.threads, "request")
        self._operational = Threads(1, "operational")
        self._health = Threads(1, "health")
        self._unsent = Unsent(security.MAX_UNSENT)
        self._memory = WorkingMemory(operations.MAX_MEMORY)

    @property
    def waiting(self) -> int:
        """Requests that wait for a thread."""
        return max(0, self._admitted - self._settings.threads)

    def close(self, seconds: float) -> bool:
        """End the threads; return whether all requests were finished in time."""
        self._operational.close(1.0)
        self._health.close(1.0)
        return self._threads.close(seconds)

    async def __rsgi__(self, scope: Scope, protocol: HTTPProtocol) -> None:
        threads = self._operational if scope.path in OPERATIONAL else self._threads
        is_unread = False
        try:
            if scope.path.startswith(wsgi.PREFIX) and scope.method in ("GET", "HEAD"):
                answer: HttpAnswer | None = wsgi.static_answer(scope)
            else:
                environ = wsgi.environ_of(scope)
                body = await self._receive(environ, protocol)
                is_unread = body is None
                environ["wsgi.input"] = BytesIO() if body is None else body
                environ[operations.ARRIVED] = time.monotonic()
                if scope.path in OPERATIONAL:
                    answer = await threads.run(partial(self._call, environ))
                else:
                    answer = await self._admit(environ, partial(self._send_late, scope, protocol))
        except (Refusal, OSError) as error:
            answer = wsgi.refused(error, scope.path)
        if answer is None:  # it was late
            return
        wsgi.add_headers(answer, scope, closes=is_unread)
        rest = answer.rest
        if rest is None:
            protocol.response_bytes(answer.status, answer.headers, answer.content)
            if is_unread:
                await self._discard(protocol)
            return
        try:
            await self._send(answer, rest, scope, protocol, threads)
        finally:
            del answer
            await threads.run(partial(_end, rest))

    async def health(self, path: str) -> tuple[int, bytes]:
        """Return the status and the content of a health check that came by a port of its own."""
        if path not in HEALTH:
            return 404, b""
        from werkzeug.test import create_environ  # here: few servers have a port for this

        answer = await self._health.run(partial(self._call, create_environ(path)))
        return answer.status, answer.content

    def _send_late(self, scope: Scope, protocol: HTTPProtocol) -> None:
        """Answer a client whose request has not ended by its deadline."""
        answer = wsgi.refused(Refusal(replies.OVER_TIME, LATE), scope.path)
        wsgi.add_headers(answer, scope)
        protocol.response_bytes(answer.status, answer.headers, answer.content)

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
            async with asyncio.timeout(self._body_seconds) as patience:
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
                f"The body did not arrive within {self._body_seconds:g} s; send it faster, or "
                f"in smaller parts."
            )
            raise Refusal(replies.TOO_SLOW, detail) from None
        except ProtocolClosed:
            received, body = -1, BytesIO()
        if "CONTENT_LENGTH" in environ:
            if received < min(length, limit):
                detail = f"The body ended before the {length:,} bytes that Content-Length says."
                raise Refusal(replies.UNREADABLE, detail)
        elif not is_whole:
            raise Refusal(
                replies.UNREADABLE,
                "The body ended before its last chunk, or has trailers, and nothing of it was "
                "stored. Send it whole, and without trailers.",
            )
        return body

    async def _discard(self, protocol: HTTPProtocol) -> None:
        """Receive a body whose request is answered: a client that still sends reads the answer."""
        with suppress(TimeoutError, ProtocolClosed, Refusal):
            async with asyncio.timeout(self._body_seconds) as patience:
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
            if pieces > security.FREE_CHUNKS + received // security.BYTES_PER_CHUNK:
                raise Refusal(
                    replies.UNREADABLE,
                    f"The body came in {pieces:,} pieces of {received / pieces:.1f} bytes on "
                    f"average; send it in larger ones.",
                )
            if received <= limit:
                body.write(chunk)
            received += len(chunk)
            if received > max(most, limit):
                break
            if limit > most:
                patience.reschedule(until + received / security.BYTES_PER_SECOND)
        body.seek(0)
        return received, ends == 1

    async def _admit(self, environ: Environ, late: Callable[[], None]) -> HttpAnswer | None:
        """Run a request in a thread, once there is one, and the memory that it takes.

        Args:
            late: called where there is no answer in time; the answer is None then.
        """
        queue = self._settings.queue
        if self._admitted >= self._settings.threads + queue:
            raise self._busy(queue, "")
        body = environ["wsgi.input"]
        size = body.seek(0, SEEK_END)
        deadline = environ[operations.ARRIVED] + operations.WORKING_SHARE * self._settings.deadline
        if not SPOOL_BYTES < size <= self._max_body:  # a longer one is not read at once
            size = 0
        self._admitted += 1
        try:
            while True:
                if size and self._memory.waiting >= operations.MAX_WAITING:
                    raise self._busy(operations.MAX_WAITING, " for memory")
                body.seek(0)
                environ[operations.GRANTED] = size
                try:
                    async with self._memory.hold(size, deadline):
                        return await self._in_time(environ, late)
                except operations.NeedsMemory as needs:
                    size, deadline = needs.size, needs.deadline
        except TimeoutError:
            detail = (
                "The request waited for memory until its deadline, while others worked. Ask for "
                "less at once, or send it again later."
            )
            raise Refusal(replies.OVER_TIME, detail) from None
        finally:
            self._admitted -= 1

    async def _in_time(self, environ: Environ, late: Callable[[], None]) -> HttpAnswer | None:
        """Run a request in a thread; where it is late, return None once the thread is free.

        `asyncio.timeout` and `shield` do the same for two more turns of the event loop a request.

        Raises:
            NeedsMemory: it takes more than it was granted.
        """
        loop = asyncio.get_running_loop()  # its clock is `time.monotonic`, too
        latest = environ[operations.ARRIVED] + operations.ANSWERED_SHARE * self._settings.deadline
        is_late = False
        timer: asyncio.TimerHandle

        def check() -> None:
            nonlocal is_late, latest, timer
            extended = environ.get(operations.DEADLINE, latest)  # some operations may take longer
            if extended > latest:
                latest, timer = extended, loop.call_at(extended, check)
            else:
                is_late = True
                late()

        timer = loop.call_at(latest, check)
        try:
            answer = await self._threads.run(partial(self._call, environ))
        except (Exception, operations.NeedsMemory):
            if is_late:
                return None
            raise
        finally:
            timer.cancel()
        if answer.rest is None:
            return None if is_late else answer
        if not is_late:
            size, has_memory = len(answer.content), environ[operations.GRANTED] > 0
            if await self._unsent.make_room(size, has_memory=has_memory, deadline=latest):
                return answer
        await self._threads.run(answer.rest.close)
        if not is_late:
            raise Refusal(replies.NO_ROOM, NO_ROOM_LEFT)
        return None

    def _busy(self, waiting: int, reason: str) -> Refusal:
        self.refused += 1
        return Refusal(
            replies.BUSY,
            f"{waiting} requests wait already{reason}, which is the limit. Send this one again "
            f"after {wsgi.RETRY_SECONDS} s.",
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
        described = {name.lower(): value for name, value in answer.headers}
        length = int(described.get("content-length", len(content)))
        seconds = self._idle_seconds + length / security.BYTES_PER_SECOND
        try:
            with self._unsent.hold(len(content)) as progress:
                async with asyncio.timeout(seconds):
                    while content:
                        for begin in range(0, len(content), PIECE_BYTES):
                            piece = content[begin : begin + PIECE_BYTES]
                            await transport.send_bytes(piece)
                            sent += len(piece)
                            if connection is not None:
                                await self._until_taken(
                                    connection, sent - wsgi.WHOLE_BYTES, progress
                                )
                        content = await threads.run(partial(next, rest, b""))
        except ProtocolClosed:
            return  # the client left
        except (TimeoutError, asyncio.CancelledError) as error:
            taken = sent if connection is None else connection.taken()
            reason = "it reads too slowly" if isinstance(error, TimeoutError) else "it stood still"
            log.warning(
                "An answer was cut off, %d of %d bytes to %s: %s (%s %s).",
                taken, length, scope.client, reason, scope.method, scope.path[:200],
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
            elif time.monotonic() - since > self._idle_seconds:
                raise TimeoutError
            if taken >= size:
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, LOOK_SECONDS[1])

    def _call(self, environ: Environ) -> HttpAnswer:
        """Run the application in this thread."""
        started: list[tuple[int, wsgi.Headers]] = []

        def start_response(status: str, headers: wsgi.Headers, _error: object = None) -> None:
            started.append((int(status[:3]), headers))

        try:
            rest = wsgi.pieces_of(self._application(environ, start_response), environ["wsgi.input"])
            content = next(rest, b"")
        except operations.NeedsMemory as needs:
            # Its traceback has the body and what was read, and a future would be kept with it.
            needs.__traceback__ = None
            trim_heap()
            raise needs from None
        if environ.get(operations.GRANTED):
            trim_heap()
        if len(content) >= wsgi.WHOLE_BYTES:
            client = environ["REMOTE_ADDR"], int(environ["REMOTE_PORT"])
            return HttpAnswer(*started[-1], content, rest, Connection.of(*client))
        rest.close()
        return HttpAnswer(*started[-1], content)


def _end(rest: Generator[bytes]) -> None:
    """Close a long answer, and give its memory back to the system."""
    rest.close()
    trim_heap()


class Unsent:
    """Long answers on the way to their clients, whose memory is limited together.

    An answer waits for room in the working memory that it has. What has none may wait with half
    as much again.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting = 0  # bytes of answers without working memory
        # Size and last progress; the one that stands longest is first.
        self._answers: dict[asyncio.Task[Any], tuple[int, float]] = {}

    async def make_room(self, size: int, *, has_memory: bool, deadline: float) -> bool:
        """Wait until an answer fits; drop those whose clients stand still.

        Returns: false where it does not fit by the deadline, or too many wait; clients that take
            their answers keep them.
        """
        uncounted = 0 if has_memory else size
        self._waiting += uncounted
        try:
            while (
                self._answers
                and size + sum(other for other, _ in self._answers.values()) > self._limit
            ):
                slowest, (_, since) = next(iter(self._answers.items()))
                now = time.monotonic()
                if now - since >= STANDING_SECONDS:
                    del self._answers[slowest]
                    slowest.cancel()
                elif self._waiting <= self._limit // 2 and now < deadline:
                    await asyncio.sleep(ROOM_SECONDS)
                else:
                    return False
            return True
        finally:
            self._waiting -= uncounted

    @contextmanager
    def hold(self, size: int) -> Iterator[Callable[[], None]]:
        """Count an answer of the current task; yields a function to call as its client reads."""
        task = asyncio.current_task()
        assert task is not None

        def progress() -> None:
            if self._answers.pop(task, None) is not None:
                self._answers[task] = size, time.monotonic()

        self._answers[task] = size, time.monotonic()
        try:
            yield progress
        finally:
            self._answers.pop(task, None)


class WorkingMemory:
    """Bytes of memory that requests work in: more wait, first come, first served.

    What is larger than the total works alone.

    Attributes:
        waiting: the number of requests that wait.
    """

    def __init__(self, total: int) -> None:
        self.waiting = 0
        self._total = self._free = total
        self._turn = asyncio.Lock()  # its waiters take turns
        self._freed = asyncio.Event()

    @asynccontextmanager
    async def hold(self, size: int, deadline: float) -> AsyncIterator[None]:
        """Hold some bytes.

        Raises:
            TimeoutError: they are not free by the deadline.
        """
        size = min(size, self._total)
        if size:
            self.waiting += 1
            try:  # the loop's clock is `time.monotonic`
                async with asyncio.timeout_at(deadline), self._turn:
                    while size > self._free:
                        self._freed.clear()
                        await self._freed.wait()
                    self._free -= size
            finally:
                self.waiting -= 1
        try:
            yield
        finally:
            self._free += size
            self._freed.set()


class Threads:
    """Threads that run calls in order, and hand the results to the event loop.

    The thread that was busy last is called first, as its memory and that of its database are at
    hand: over 8 connections 1.16 times as many requests as by the thread that has slept longest,
    which `ThreadPoolExecutor` calls, for 0.1 ms more of processor time.
    """

    def __init__(self, count: int, name: str) -> None:
        self._lock = threading.Lock()
        self._calls: deque[Any] = deque()  # that wait for a thread
        self._idle: list[SimpleQueue[Any]] = []
        self._threads = [
            threading.Thread(target=self._work, name=f"{name}-{n}", daemon=True)
            for n in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def run(self, call: Callable[[], Result]) -> asyncio.Future[Result]:
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._put((call, future))
        return future

    def close(self, seconds: float) -> bool:
        """Finish the calls that wait and run; return whether they finished in time."""
        for _ in self._threads:
            self._put(None)
        for thread in self._threads:
            thread.join(seconds)
        return not any(thread.is_alive() for thread in self._threads)

    def _put(self, entry: Any) -> None:
        with self._lock:
            (self._idle.pop().put if self._idle else self._calls.append)(entry)

    def _work(self) -> None:
        mine: SimpleQueue[Any] = SimpleQueue()
        while True:
            with self._lock:
                if self._calls:
                    mine.put(self._calls.popleft())
                else:
                    self._idle.append(mine)
            if (entry := mine.get()) is None:
                return
            call, future = entry
            try:
                settle = partial(future.set_result, call())
            except BaseException as error:
                settle = partial(future.set_exception, error)
            loop = future.get_loop()
            if not loop.is_closed():  # else the client left and the server stopped meanwhile
                loop.call_soon_threadsafe(settle)
            # An idle thread would keep the last request and its answer.
            del entry, call, future, settle


def limit_heap() -> None:
    """Have large blocks given back as they are freed.

    By default glibc keeps, for each of up to eight threads a core, twice the largest block that it
    has seen, up to 64 MiB, and `malloc_trim` does not reach it.
    """
    for parameter in (MMAP_THRESHOLD, TRIM_THRESHOLD):
        _glibc("mallopt")(parameter, LARGE_BLOCK)


def trim_heap() -> None:
    """Give free memory back to the system.

    glibc keeps what a thread frees for that thread, so that a few large requests in each would
    hold the memory of all of them together.
    """
    _glibc("malloc_trim")(0)


@cache
def _glibc(name: str) -> Callable[..., Any]:
    """Return a function of glibc; one that does nothing where the system has another library."""
    return getattr(ctypes.CDLL(None), name, lambda *_: None)
