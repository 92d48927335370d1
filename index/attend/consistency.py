"""Consistency of reads: how fresh they must be, set once for all reads of a request.

A context variable, since the stations between a request and its reads need not know of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, NamedTuple, TypeAlias

Consistency: TypeAlias = Literal["bounded", "strong"]
"""bounded: what others wrote in the last seconds may be missing; strong: nothing that was
acknowledged is. A data folder is always strong."""


class Moment(NamedTuple):
    """An engine's own mark of a moment.

    Attributes:
        began: by `time.monotonic`, before it was asked for.
    """

    mark: int
    began: float


class ReadBlock:
    """The consistency of a block of reads.

    Attributes:
        moments: the moment that strong reads of the block wait for, by engine; only the first
            of them waits long.
    """

    def __init__(self, consistency: Consistency) -> None:
        self.consistency = consistency
        self.moments: dict[object, Moment] = {}


_present: ContextVar[ReadBlock | None] = ContextVar("consistency", default=None)


@contextmanager
def reading(consistency: Consistency | None) -> Iterator[None]:
    """Give reads of this thread in the block a consistency; None changes nothing."""
    if consistency is None:
        yield
        return
    token = _present.set(ReadBlock(consistency))
    try:
        yield
    finally:
        _present.reset(token)


def present_block() -> ReadBlock | None:
    """Return the consistency of the present block; None for the engine's default."""
    return _present.get()
