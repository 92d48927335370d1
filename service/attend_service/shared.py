"""Resources that all requests of a process share: threads and their time, and memory for bodies
and answers."""

from __future__ import annotations

import asyncio
import ctypes
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import cache, partial
from queue import SimpleQueue
from typing import Any, TypeVar

Result = TypeVar("Result")


STANDING_SECONDS = 10.0
"""The time after which a client that takes nothing makes room for others' answers."""

LOOK_SECONDS = 0.02
"""How often an answer looks whether there is room for it."""


class NoRoom(Exception):
    """A long answer has no room among those that wait for their clients."""


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

    async def make_room(self, size: int, *, has_memory: bool, deadline: float) -> None:
        """Wait until an answer fits; drop those whose clients stand still.

        Raises:
            NoRoom: it does not fit by the deadline, or too many wait; clients that take their
                answers keep them.
        """
        uncounted = 0 if has_memory else size
        self._waiting += uncounted
        try:
            while self._answers and self._total() + size > self._limit:
                slowest, (_, since) = next(iter(self._answers.items()))
                now = time.monotonic()
                if now - since >= STANDING_SECONDS:
                    del self._answers[slowest]
                    slowest.cancel()
                elif self._waiting <= self._limit // 2 and now < deadline:
                    await asyncio.sleep(LOOK_SECONDS)
                else:
                    raise NoRoom
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

    def _total(self) -> int:
        return sum(size for size, _ in self._answers.values())


class NeedsMemory(BaseException):
    """A request takes more memory than it has been granted, and is to be run again once it has.

    No `Exception`: it passes through the application, which answers and logs nothing.

    Attributes:
        size: bytes, together with what was granted.
        deadline: of the request, by `time.monotonic`.
    """

    def __init__(self, size: int, deadline: float) -> None:
        super().__init__(size)
        self.size, self.deadline = size, deadline


class WorkingMemory:
    """Bytes of memory that requests work in: more wait, first come, first served.

    What is larger than the total works alone.
    """

    def __init__(self, total: int) -> None:
        self._total = self._free = total
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def waiting(self) -> int:
        """The number of requests that wait."""
        return len(self._waiting)

    @asynccontextmanager
    async def hold(self, size: int, deadline: float | None = None) -> AsyncIterator[None]:
        """Hold some bytes.

        Raises:
            TimeoutError: they are not free by the deadline.
        """
        size = min(size, self._total)
        if size and (self._waiting or size > self._free):
            await self._wait(size, deadline)
        else:
            self._free -= size
        try:
            yield
        finally:
            self._give_back(size)

    async def _wait(self, size: int, deadline: float | None) -> None:
        turn = asyncio.get_running_loop().create_future()
        entry = size, turn
        self._waiting.append(entry)
        try:
            async with asyncio.timeout_at(deadline):  # the loop's clock is `time.monotonic`
                await turn
        except BaseException:
            self._waiting = deque(other for other in self._waiting if other is not entry)
            self._give_back(size if turn.done() and not turn.cancelled() else 0)
            raise

    def _give_back(self, size: int) -> None:
        self._free += size
        while self._waiting and self._waiting[0][0] <= self._free:
            following, turn = self._waiting.popleft()
            if not turn.cancelled():
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
            except BaseException as error:
                settle = partial(future.set_exception, error)
            if not loop.is_closed():  # else the client left and the server stopped meanwhile
                loop.call_soon_threadsafe(settle)
            # An idle thread would keep the last request and its answer.
            del entry, call, future, settle


class TimeLimit:
    """Answers a request that is late, while its thread still works.

    `asyncio.timeout` and `shield` do the same for two more turns of the event loop a request.

    Attributes:
        latest: the time, by `time.monotonic`, until which there is to be an answer.
        passed: whether it has passed.
    """

    def __init__(
        self, latest: float, extended: Callable[[], float], late: Callable[[], None]
    ) -> None:
        """Call `late` on the event loop unless `end` is called by then.

        Args:
            extended: returns another `latest`, asked for when the first has passed.
        """
        self.latest, self.passed = latest, False
        self._extended, self._late = extended, late
        # The loop's clock is `time.monotonic`, too.
        self._timer = asyncio.get_running_loop().call_at(latest, self._pass)

    def end(self) -> None:
        self._timer.cancel()

    def _pass(self) -> None:
        latest = self._extended()
        if latest > self.latest:
            self.latest = latest
            self._timer = asyncio.get_running_loop().call_at(latest, self._pass)
        else:
            self.passed = True
            self._late()


MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1
"""Parameters of glibc's `mallopt`."""

LARGE_BLOCK = 8 * 1024 * 1024
"""Bytes of memory that go back to the system as soon as they are free."""


def limit_heap() -> None:
    """Have large blocks given back as they are freed.

    By default glibc keeps, for each of up to eight threads a core, twice the largest block that it
    has seen, up to 64 MiB, and `malloc_trim` does not reach it.
    """
    mallopt = _glibc("mallopt")
    if mallopt is not None:
        mallopt(MMAP_THRESHOLD, LARGE_BLOCK)
        mallopt(TRIM_THRESHOLD, LARGE_BLOCK)


def trim_heap() -> None:
    """Give free memory back to the system.

    glibc keeps what a thread frees for that thread, so that a few large requests in each would
    hold the memory of all of them together.
    """
    trim = _glibc("malloc_trim")
    if trim is not None:
        trim(0)


@cache
def _glibc(name: str) -> Callable[..., int] | None:
    """Return a function of glibc; None where the system has another library."""
    return getattr(ctypes.CDLL(None), name, None)
