"""Rows of a table as interactions, with a reason for each row that is none."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from attend.errors import SourceError
from attend.interactions.columns import Columns, describe_columns, guess_columns
from attend.source import Problem, Row, Source, open_source, sample
from attend.source.mapping import Unusable, document_id
from attend.store import Interaction
from attend.times import seconds_of
from attend.types import Json

Known = Callable[[Sequence[str]], Mapping[str, int]]
"""Rows of documents by the ids that there are: `Store.rows_of`."""


class Placed(NamedTuple):
    """An interaction and where it was read."""

    place: str
    interaction: Interaction


@dataclass(frozen=True)
class Gathered:
    """What can be used of a file, and what was left out.

    Attributes:
        interactions: each user and document once, the latest.
        skipped: rows that could not be used.
        repeated: rows of a user and document that have a later one.
    """

    interactions: Sequence[Interaction]
    skipped: int
    repeated: int


def read_file(
    path: str,
    known: Known,
    *,
    strict: bool = False,
    on_problem: Callable[[Problem], None] = lambda problem: None,
    on_columns: Callable[[str], None] = lambda told: None,
    **columns: str | None,
) -> Gathered:
    """A file's interactions with documents that there are.

    Args:
        strict: stop at the first row that cannot be used.
        on_problem: told of every row that cannot be used.
        on_columns: told in one line which columns were taken.
        columns: user, item, value, time: their names where they are not to be guessed.

    Raises:
        SourceError: it cannot be read, no row can be used, or one cannot and `strict` was set.
    """
    source = open_source(path)
    chosen = guess_columns(source, **columns)
    on_columns(f"{source.name}: {describe_columns(chosen)}")
    found = gather(read_interactions(source, chosen), known, strict=strict, on_problem=on_problem)
    if not found.interactions:
        raise SourceError(
            f"No row of {source.name} can be used, and nothing was changed. Check that it is about "
            f"this collection's documents, and the problems reported above."
        )
    return found


def read_interactions(source: Source, columns: Columns) -> Iterator[Placed | Problem]:
    """Read from the beginning: each row gives an interaction or a problem."""
    numeric = columns.value is not None and _is_numeric(sample(source), columns.value)
    for row in source.rows():
        if isinstance(row, Problem):
            yield row
            continue
        try:
            yield Placed(row.place, _interaction(row, columns, numeric))
        except Unusable as reason:
            yield Problem(row.place, str(reason))


def gather(
    items: Iterable[Placed | Problem],
    known: Known,
    *,
    strict: bool = False,
    on_problem: Callable[[Problem], None] = lambda problem: None,
) -> Gathered:
    """Keep the interactions with documents that there are; of a user with one of them the latest.

    Raises:
        SourceError: a row could not be used, and `strict` was set.
    """
    skipped = 0

    def tell(problem: Problem) -> None:
        nonlocal skipped
        on_problem(problem)
        skipped += problem.refuses
        if strict and problem.refuses:
            raise SourceError(
                f"Stopped at {problem} Nothing was stored: --strict takes no such row."
            )

    read: list[Placed] = []
    for item in items:
        tell(item) if isinstance(item, Problem) else read.append(item)
    rows = known(list({each.interaction.document for each in read}))
    latest: dict[tuple[str, str], Interaction] = {}
    usable = 0
    for place, each in read:
        if each.document not in rows:
            tell(Problem(place, f"No document has the id {each.document!r}."))
            continue
        usable += 1
        pair = each.user, each.document
        if pair not in latest or not _is_before(each, latest[pair]):
            latest[pair] = each
    return Gathered(list(latest.values()), skipped, usable - len(latest))


def _interaction(row: Row, columns: Columns, numeric: bool) -> Interaction:
    return Interaction(
        user=document_id(row.cells.get(columns.user), columns.user),
        document=document_id(row.cells.get(columns.item), columns.item),
        value=None if columns.value is None else _value(row, columns.value, numeric),
        time=None if columns.time is None else _time(row, columns.time),
    )


def _value(row: Row, field: str, numeric: bool) -> Json:
    cell = row.cells.get(field)
    if cell is None or cell == "":
        return None
    number = _number(cell)
    if number is None and not numeric:
        return cell
    if number is None or not math.isfinite(number):
        raise Unusable(
            f"The value in {field!r} is {str(cell)[:40]!r}, but a finite number is expected, as "
            f"most rows have."
        )
    return int(number) if number == int(number) else number


def _time(row: Row, field: str) -> float | None:
    try:
        return seconds_of(row.cells.get(field))
    except ValueError as error:
        raise Unusable(f"The time in {field!r}: {error}.") from None


def _is_numeric(rows: Sequence[Row], field: str) -> bool:
    """Whether most of the values that are there are numbers."""
    cells = [cell for row in rows if (cell := row.cells.get(field)) not in (None, "")]
    return sum(_number(cell) is not None for cell in cells) * 2 > len(cells)


def _number(cell: Json) -> float | None:
    if isinstance(cell, bool) or not isinstance(cell, str | int | float):
        return None
    try:
        return float(cell)
    except (ValueError, OverflowError):
        return None


def _is_before(one: Interaction, other: Interaction) -> bool:
    return one.time is not None and other.time is not None and one.time < other.time
