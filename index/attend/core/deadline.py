"""The limits of a thread's work: its deadline, and the memory of the documents that it reads.

A thread has none unless its caller sets them: a server does for each request, the command line does
not. SQLite checks the deadline inside long statements (`attend.store.connections`).
"""

from __future__ import annotations

import math
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from typing import TypeVar

from attend.core.errors import Opening, OverTime

NO_DEADLINE = math.inf

PATIENT = 4
"""Threads with a deadline that wait for the same slow work of another."""

Item = TypeVar("Item")
Result = TypeVar("Result")


class _Limits(threading.local):
    """The limits of each thread: its deadline, by `time.monotonic`, and bytes of documents."""

    moment = NO_DEADLINE
    bytes_read = 0
    most = math.inf
    beyond: Callable[[int], None] | None = None


limits = _Limits()


@contextmanager
def until(
    moment: float, most: float = math.inf, beyond: Callable[[int], None] | None = None
) -> Iterator[None]:
    """Set the deadline of this thread; `NO_DEADLINE` for work that must not be left half done.

    Args:
        most: bytes of the large documents that it may read.
        beyond: called with their bytes, as long as these are above `most`, before more is read.

    Raises:
        OverTime: SQLite stopped a statement because the deadline passed.
    """
    before, limits.moment = limits.moment, moment
    if beyond is not None:
        limits.bytes_read, limits.most, limits.beyond = 0, most, beyond
    try:
        yield
    except sqlite3.OperationalError as error:
        # Python's own errors, as of a text that is not UTF-8, have no code.
        if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_INTERRUPT:
            raise over_time() from error
        raise
    finally:
        limits.moment = before
        if beyond is not None:
            limits.bytes_read, limits.most, limits.beyond = 0, math.inf, None


def deadline() -> float:
    """Return the deadline of this thread, by `time.monotonic`."""
    return limits.moment


def is_over() -> bool:
    """Return whether the deadline of this thread has passed."""
    return time.monotonic() > limits.moment


def check_deadline(ahead: float = 0.0) -> None:
    """Raise OverTime if the deadline of this thread has passed, or does within `ahead` seconds."""
    if time.monotonic() + ahead > limits.moment:
        raise over_time()


def checked(items: Iterable[Item]) -> Iterator[Item]:
    """Yield items, and check the deadline before each."""
    for item in items:
        check_deadline()
        yield item


def under_deadline(call: Callable[[Item], Result]) -> Callable[[Item], Result]:
    """Return `call` for other threads, where it has the deadline and the context of this one.

    What waited there until the deadline passed raises OverTime, and is not begun.
    """
    latest, context = deadline(), copy_context()

    def run(item: Item) -> Result:
        with until(latest):
            check_deadline()
            return context.copy().run(call, item)

    return run


class SlowLock:
    """A lock for work that may take minutes, by one thread at a time.

    Of the threads with a deadline `PATIENT` wait for it: a server has few, and all of them would
    soon wait here instead of serving something else.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._places = threading.Semaphore(PATIENT)

    @contextmanager
    def held(self, subject: str) -> Iterator[None]:
        """Hold the lock.

        Args:
            subject: the subject of the sentence that refuses whoever cannot wait.

        Raises:
            Opening: others wait already, or the work takes longer than the deadline allows.
        """
        if limits.moment == NO_DEADLINE:
            self._lock.acquire()
        elif not (self._lock.acquire(blocking=False) or self._waits()):
            raise Opening(f"{subject}, which takes a while; try again.")
        try:
            yield
        finally:
            self._lock.release()

    def _waits(self) -> bool:
        """Wait for the lock in one of the few places; return whether it came."""
        if not self._places.acquire(blocking=False):
            return False
        try:
            return self._lock.acquire(timeout=max(0.0, limits.moment - time.monotonic()))
        finally:
            self._places.release()


def count_read(size: int) -> None:
    """Count a document that is going to be read."""
    limits.bytes_read += size
    if limits.beyond is not None and limits.bytes_read > limits.most:
        limits.beyond(limits.bytes_read)


@contextmanager
def forgetting() -> Iterator[None]:
    """Count what is read inside as given back at its end."""
    before = limits.bytes_read
    try:
        yield
    finally:
        limits.bytes_read = before


def over_time() -> OverTime:
    """Return the error of work that its deadline stopped."""
    return OverTime(
        "The request takes longer than the server allows, and was stopped. Ask for less at once, "
        "or start the server with a larger --deadline."
    )
