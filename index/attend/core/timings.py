"""Seconds by stage of a search, for `explain` and for listeners.

Stations record how long they took with `timed`; the scheduler collects the seconds of a request,
and passes them once to the listeners that `listen` has named.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

STAGES = ("queue", "tokenise", "encode", "search", "attend", "fetch")
"""Waiting for the model or for a search that is shared, the model's two parts, finding candidates
by filter, words and keys, scoring and weighing them, and reading what is listed and blended. Each
without the others."""

Listener = Callable[[Mapping[str, float]], None]

_thread = threading.local()
_listeners: list[Listener] = []


@contextmanager
def timed(stage: str) -> Iterator[None]:
    """Record how long the block takes, less the stages within it; also where it fails."""
    outer: float = getattr(_thread, "inner", 0.0)
    _thread.inner = 0.0
    began = time.perf_counter()
    try:
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
