"""Readings that begin again when a document is deleted during them."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from attend.errors import Conflict

ATTEMPTS = 5
"""Attempts at a reading, each over a newer snapshot."""

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Vanished(Exception):
    """A document was deleted between the search and the reading of its value."""


def until_stable(read: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Let a reading begin again, over a newer snapshot, while it raises Vanished."""

    @wraps(read)
    def reading(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        for _ in range(ATTEMPTS):
            try:
                return read(*args, **kwargs)
            except Vanished:
                continue
        raise Conflict("The documents change faster than they can be read; try again.")

    return reading
