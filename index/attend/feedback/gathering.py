"""Collecting the usable rows of a file of feedback, one for each pair that they are about."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from attend.errors import SourceError
from attend.source import RowItem, RowProblem
from attend.store import Interaction
from attend.types import Example, same_question

Entry = TypeVar("Entry", Example, Interaction)


@dataclass(frozen=True)
class Gathered(Generic[Entry]):
    """The usable rows of a file.

    Attributes:
        entries: one for each query and document, or user and document.
        skipped: rows that could not be used, contradicted labels included.
        repeated: rows that another replaces without a contradiction.
    """

    entries: Sequence[Entry]
    skipped: int
    repeated: int


def gather(
    items: Iterable[RowItem[Entry] | RowProblem],
    unfit: Callable[[Sequence[Entry]], Mapping[int, Exception]],
    *,
    strict: bool = False,
    on_problem: Callable[[RowProblem], None] = lambda problem: None,
) -> Gathered[Entry]:
    """Collect the entries that a collection takes, one for each pair that they are about.

    Of several labels for one query and document the last counts, of several interactions of one
    user and document the latest.

    Args:
        unfit: the collection's errors about entries, by their positions.
        strict: stop at the first row that cannot be used.
        on_problem: called with every row that cannot be used, and with every notice.

    Raises:
        SourceError: a row could not be used, and `strict` was set.
    """
    skipped = repeated = 0

    def report(problem: RowProblem) -> None:
        nonlocal skipped
        on_problem(problem)
        skipped += problem.rejects
        if strict and problem.rejects:
            raise SourceError(f"Stopped at {problem} Nothing was stored, because of --strict.")

    rows: list[RowItem[Entry]] = []
    for item in items:
        report(item) if isinstance(item, RowProblem) else rows.append(item)
    errors = unfit([row.item for row in rows])
    last: dict[tuple[str | bytes, str], RowItem[Entry]] = {}
    for position, row in enumerate(rows):
        if position in errors:
            report(RowProblem(row.place, str(errors[position])))
            continue
        identity = _identity(row.item)
        earlier = last.pop(identity, row)
        last[identity] = earlier if _is_earlier(row.item, earlier.item) else row
        contradiction = _contradiction(earlier, row)
        if contradiction:
            report(contradiction)
        elif earlier is not row:
            repeated += 1
    return Gathered([row.item for row in last.values()], skipped, repeated)


def _identity(entry: Example | Interaction) -> tuple[str | bytes, str]:
    if isinstance(entry, Example):
        return same_question(entry.query), entry.document
    return entry.user, entry.document


def _is_earlier(entry: Example | Interaction, other: Example | Interaction) -> bool:
    """Return whether both are interactions with a time, and the first is the earlier one."""
    if not (isinstance(entry, Interaction) and isinstance(other, Interaction)):
        return False
    return entry.time is not None and other.time is not None and entry.time < other.time


def _contradiction(earlier: RowItem[Entry], row: RowItem[Entry]) -> RowProblem | None:
    """Return the problem of a label that a later row of the same pair changes."""
    one, other = earlier.item, row.item
    if not (isinstance(one, Example) and isinstance(other, Example)) or one.weight == other.weight:
        return None
    return RowProblem(
        earlier.place,
        f"The label {one.weight:g} of {one.document!r} is contradicted by {other.weight:g} at "
        f"{row.place}, for the same query. The later one counts.",
    )
