"""How fresh reads are to be, said once for all that a request reads.

A context variable, since between a request and its reads lie stations that need not know of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, TypeAlias

Consistency: TypeAlias = Literal["bounded", "strong"]
"""bounded: what others wrote in the last seconds may be missing; strong: nothing that was
acknowledged is. A data folder is always strong."""

_asked: ContextVar[Consistency | None] = ContextVar("consistency", default=None)


@contextmanager
def reading(consistency: Consistency | None) -> Iterator[None]:
    """Within the block, reads of this thread have this consistency; None leaves what was said."""
    if consistency is None:
        yield
        return
    token = _asked.set(consistency)
    try:
        yield
    finally:
        _asked.reset(token)


def asked() -> Consistency | None:
    """What was said, None for the engine's default."""
    return _asked.get()
