"""What verification asks of an engine."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Finding(NamedTuple):
    """One thing wrong.

    Attributes:
        check: the invariant that it breaks.
        problem: a sentence.
        remedy: what mending it does, or what the user can do where `can_mend` is false.
    """

    check: str
    problem: str
    can_mend: bool
    remedy: str


class Checks(Protocol):
    """What must be true of one collection."""

    def find(self) -> list[Finding]:
        """What is wrong; reads everything, while others may write."""

    def mend(self, names: set[str]) -> None:
        """Put right what the checks of these names have found, where that can be."""
