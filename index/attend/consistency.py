"""How fresh reads are to be, said once for all that a request reads.

A context variable, since between a request and its reads lie stations that need not know of it.
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


class Asked:
    """What was said for a block of reads.

    Attributes:
        moments: what strong reads of the block wait for, by engine: all of them are of that
            moment or later, and only the first of them waits long.
    """

    def __init__(self, consistency: Consistency) -> None:
        self.consistency = consistency
        self.moments: dict[object, Moment] = {}


_asked: ContextVar[Asked | None] = ContextVar("consistency", default=None)


@contextmanager
def reading(consistency: Consistency | None) -> Iterator[None]:
    """Within the block, reads of this thread have this consistency; None leaves what was said."""
    if consistency is None:
        yield
        return
    token = _asked.set(Asked(consistency))
    try:
        yield
    finally:
        _asked.reset(token)


def asked() -> Asked | None:
    """What was said, None for the engine's default."""
    return _asked.get()
