"""Coalescing: calls of many threads become few calls with many items; the callers do the work.

A caller that comes while nobody works begins at once. Others wait in a queue, and the first of them
then takes along all that wait with the same key: first in, first out. A search costs little more
for many queries than for one, so that a crowd is answered in the time of a few (flat combining:
Hendler, Incze, Shavit and Tzafrir 2010).

Callers that were answered tend to return. So after a call of several the next leader waits until as
many callers are there, or until no other thread wants the interpreter, for which they would compete
with it anyway. A wait that went on regardless doubled the latency of independent users.

Stations record with `timed` how long they took, by stage, for `explain` and for listeners. What a
leader collects is each follower's too; a search passes its seconds once to the listeners. Whoever
traces requests opens a span for each stage (`trace`), in the leader alone.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Generic, TypeVar

from attend.core.deadline import limits, until

STAGES = ("queue", "tokenise", "encode", "search", "attend", "fetch")
"""Waiting for the model or for a search that is shared, the model's two parts, finding candidates
by filter, words and keys, scoring and weighing them, and reading what is listed and blended. Each
without the others."""

Listener = Callable[[Mapping[str, float]], None]

_thread = threading.local()
_listeners: list[Listener] = []

Spans = Callable[[str, Mapping[str, str | int]], AbstractContextManager[object]]
"""Opens a span by its name and attributes."""

_spans: list[Spans] = []
_UNTRACED = nullcontext()


def span(name: str, **attributes: str | int) -> AbstractContextManager[object]:
    """Return a span of whoever traces, for a `with` block; else nothing that costs time."""
    return _spans[-1](name, attributes) if _spans else _UNTRACED


def trace(spans: Spans) -> Callable[[], None]:
    """Open spans for each search and each of its stages from now on.

    Returns: a function that ends it.
    """
    _spans.append(spans)
    return lambda: _spans.remove(spans)


@contextmanager
def timed(stage: str) -> Iterator[None]:
    """Record how long the block takes, less the stages within it; also where it fails."""
    outer: float = getattr(_thread, "inner", 0.0)
    _thread.inner = 0.0
    began = time.perf_counter()
    try:
        with span(stage) if _spans else _UNTRACED:  # a call less where nobody traces
            yield
    finally:
        took = time.perf_counter() - began
        collected: dict[str, float] | None = getattr(_thread, "collected", None)
        if collected is not None:
            collected[stage] = collected.get(stage, 0.0) + took - _thread.inner
        _thread.inner = outer + took


def record(spent: Mapping[str, float]) -> None:
    """Add seconds by stage to what this thread collects, if it does."""
    collected: dict[str, float] | None = getattr(_thread, "collected", None)
    if collected is not None:
        for stage, seconds in spent.items():
            collected[stage] = collected.get(stage, 0.0) + seconds


@contextmanager
def collecting() -> Iterator[dict[str, float]]:
    """Collect the seconds by stage of this thread in the block; an enclosing one gets none."""
    outer = getattr(_thread, "collected", None)
    _thread.collected = collected = dict[str, float]()
    try:
        yield collected
    finally:
        _thread.collected = outer


def listen(listener: Listener) -> Callable[[], None]:
    """Call a listener with the seconds by stage of every search, in the thread that searched.

    Returns: a function that removes the listener.
    """
    _listeners.append(listener)
    return lambda: _listeners.remove(listener)


def tell(spent: Mapping[str, float]) -> None:
    """Pass one search's seconds by stage on to the listeners."""
    for listener in tuple(_listeners):
        listener(spent)


Item = TypeVar("Item")
Result = TypeVar("Result")


TICK, BUSY, QUIET, LONGEST = 0.0002, 0.0004, 4, 0.05
"""Seconds that a leader sleeps between two looks at the queue; where a sleep takes more than `BUSY`
seconds, other threads held the interpreter; after `QUIET` short ones in a row none wants it. The
wait lasts at most `LONGEST` seconds, and no longer than the call before took."""


class _Request(Generic[Item, Result]):
    """The item of one caller, and its result."""

    def __init__(self, item: Item) -> None:
        self.item = item
        self.since = time.perf_counter()
        self.deadline = limits.moment
        self.leads = False
        self.result: Result | None = None
        self.error: BaseException | None = None
        self.spent: dict[str, float] = {}
        self.called = threading.Lock()  # one lock costs a third of what an Event does
        self.called.acquire()


@dataclass(slots=True)
class _Queue(Generic[Item, Result]):
    """The callers with one key: the number of leaders that work, and those who wait."""

    leaders: int = 0
    waiting: deque[_Request[Item, Result]] = field(default_factory=deque)


class Coalescer(Generic[Item, Result]):
    """Answers many callers by one function of many items; any thread may join.

    Calls of other keys go on beside each other.
    """

    def __init__(
        self,
        run: Callable[[Sequence[Item]], Sequence[Result]],
        size: Callable[[Item], int],
        most: int,
        leaders: int = 1,
    ) -> None:
        """
        Args:
            run: turns the items of callers with the same key into a result for each.
            size: the size of one item.
            most: the size of one call, unless a single item is larger.
            leaders: calls of one key at a time.
        """
        self._run = run
        self._size, self._most = size, most
        self._leaders = leaders
        # Of the last call, if it was of several: how many came by its end, and until when to wait.
        self._last: dict[Hashable, tuple[int, float]] = {}
        self._queues: dict[Hashable, _Queue[Item, Result]] = {}  # of keys with a leader
        self._lock = threading.Lock()

    def join(self, key: Hashable, item: Item) -> Result:
        """Return one caller's result, as if it had called alone; so is what is raised."""
        request: _Request[Item, Result] = _Request(item)
        with self._lock:
            queue = self._queues.get(key)
            if queue is None:
                queue = self._queues[key] = _Queue()
            request.leads = queue.leaders < self._leaders
            if request.leads:
                queue.leaders += 1
            else:
                queue.waiting.append(request)
        taken = [request]
        try:
            if not request.leads:
                request.called.acquire()
            if request.leads:
                if self._last or queue.waiting:
                    self._gather(taken, key, queue)
                began = time.perf_counter()
                self._answer(taken)
                ended, came = time.perf_counter(), len(taken) + len(queue.waiting)
                self._last = {key: (came, ended + min(ended - began, LONGEST))} if came > 1 else {}
        except BaseException:  # Ctrl-C, in this thread alone: the others go on
            self._leave(queue, request, taken[1:])
            taken = [request]
            raise
        finally:
            if request.leads:
                self._hand_over(key, queue)
            for other in taken[1:]:
                other.called.release()
        record(request.spent)
        error, request.error = request.error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # with its traceback it would keep what was read until it is collected
        return request.result  # type: ignore[return-value]  # no error means a result

    def waiting(self, key: Hashable) -> int:
        """Return the number of callers that wait with a key; -1 where nobody works."""
        queue = self._queues.get(key)
        return -1 if queue is None else len(queue.waiting)

    def _gather(
        self, taken: list[_Request[Item, Result]], key: Hashable, queue: _Queue[Item, Result]
    ) -> None:
        """Take from those who wait, or come soon, as many as fit into one call with the first."""
        waiting, quiet = queue.waiting, 0
        came, latest = self._last.get(key, (1, 0.0))
        while 1 + len(waiting) < came and quiet < QUIET and (now := time.perf_counter()) < latest:
            time.sleep(TICK)
            quiet = 0 if time.perf_counter() - now > BUSY else quiet + 1
        with self._lock:
            spent = self._size(taken[0].item)
            while waiting and spent + self._size(waiting[0].item) <= self._most:
                taken.append(waiting.popleft())
                spent += self._size(taken[-1].item)

    def _leave(
        self,
        queue: _Queue[Item, Result],
        request: _Request[Item, Result],
        others: Sequence[_Request[Item, Result]],
    ) -> None:
        """Take a caller out of the queue, and put back those whom it was about to answer."""
        with self._lock:
            if request in queue.waiting:
                queue.waiting.remove(request)
            queue.waiting.extendleft(reversed(others))

    def _hand_over(self, key: Hashable, queue: _Queue[Item, Result]) -> None:
        with self._lock:
            if not queue.waiting:
                queue.leaders -= 1
                if not queue.leaders:
                    del self._queues[key]
                return
            following = queue.waiting.popleft()
            following.leads = True
        following.called.release()

    def _answer(self, requests: Sequence[_Request[Item, Result]]) -> None:
        began = time.perf_counter()
        try:
            latest = max(map(attrgetter("deadline"), requests))
            with until(latest), collecting() as spent:
                results = self._run([request.item for request in requests])
            for request, result in zip(requests, results, strict=True):
                request.result = result
                request.spent = {**spent, "queue": began - request.since}
        except Exception as error:
            if len(requests) == 1:
                requests[0].error = error
                return
            # One of them is at fault, and alone each shows whether it was that one.
            for request in requests:
                self._answer([request])
