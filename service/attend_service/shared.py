"""Resources that all requests of a process share: threads, and memory for bodies and answers."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

Result = TypeVar("Result")


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
