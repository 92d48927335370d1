"""Readings that begin again when a document is deleted during them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from attend.errors import Conflict

ATTEMPTS = 5
"""Attempts at a reading, each over a newer snapshot."""

Result = TypeVar("Result")


class Vanished(Exception):
    """A document was deleted between the search and the reading of its value."""


def until_stable(read: Callable[[], Result]) -> Result:
    """Return what a reading finds; it begins again while documents are deleted during it."""
    for _ in range(ATTEMPTS):
        try:
            return read()
        except Vanished:
            continue
    raise Conflict("The documents change faster than they can be read; try again.")
