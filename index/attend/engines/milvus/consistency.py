"""The consistency of reads, set once for all reads of a request.

A context variable, since the stations between a request and its reads do not know it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from attend.types import Consistency


class Moment(NamedTuple):
    """The server's timestamp of a moment.

    Attributes:
        began: by `time.monotonic`, before the call.
    """

    mark: int
    began: float


class ReadBlock:
    """The consistency of a block of reads.

    Attributes:
        moments: the moments that strong reads of the block wait for, by engine: all reads see that
            moment or a later one, and only the first of them waits long.
    """

    def __init__(self, consistency: Consistency) -> None:
        self.consistency = consistency
        self.moments: dict[object, Moment] = {}


_block: ContextVar[ReadBlock | None] = ContextVar("consistency", default=None)


@contextmanager
def reading(consistency: Consistency | None) -> Iterator[None]:
    """Let reads of this thread within the block have a consistency; None changes nothing."""
    if consistency is None:
        yield
        return
    token = _block.set(ReadBlock(consistency))
    try:
        yield
    finally:
        _block.reset(token)


def read_block() -> ReadBlock | None:
    """Return the consistency of the current block; None for the engine's default."""
    return _block.get()
