"""What every source yields: rows with a place, and problems with a place and a reason."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol

from attend.errors import SourceError
from attend.types import Json

SAMPLE_ROWS = 100
"""How many rows are looked at before fields and column types are chosen."""

LOOKAHEAD_ROWS = 10_000
"""How far to look for usable rows, for a field that was named, and for a vector."""

ID_NAMES = ("_id", "id", "doc_id", "document_id", "uid", "uuid", "key", "pk")
"""Field names that are taken for an id, the most telling first; case does not matter."""

COUNTED_BYTES = 4 << 30
"""Above this size, reading a file only to count its lines costs too much."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A row, or a part of the source, that cannot be used.

    `place` is where to look (`books.csv:17`); `reason` is a sentence for the user.
    `refuses` is whether a row is lost. A problem that refuses none is a notice: every row
    is read, without a part of it.
    """

    place: str
    reason: str
    refuses: bool = True

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Row:
    """One record as it was found, before anything is known about its fields."""

    place: str
    cells: Mapping[str, Json]


class Source(Protocol):
    """Anything that can be read as rows, again and again, without holding it in memory."""

    @property
    def name(self) -> str:
        """What places begin with, such as a file's name."""

    @property
    def natural_id(self) -> str | None:
        """The field that the source itself declares to be the id, such as a primary key."""

    @property
    def natural_text(self) -> tuple[str, ...]:
        """The text fields that the layout prescribes; then no text and no value is guessed."""

    @property
    def untyped(self) -> bool:
        """Whether every cell is text for want of types in the format (CSV, TSV)."""

    def rows(self) -> Iterator[Row | Problem]:
        """Read from the beginning. Raises SourceError where the source cannot be read at all."""

    def size_hint(self) -> int | None:
        """About how many rows there are, where that is cheap to know."""


def sample(source: Source) -> tuple[Row, ...]:
    """The first 100 usable rows, of the first 10,000.

    Raises SourceError where there is none, with the first problem that was met.
    """
    rows: list[Row] = []
    problems: list[Problem] = []
    for item in islice(source.rows(), LOOKAHEAD_ROWS):
        if isinstance(item, Problem):
            problems.append(item)
            continue
        rows.append(item)
        if len(rows) == SAMPLE_ROWS:
            break
    if not rows:
        raise _nothing_in(source.name, problems)
    return tuple(rows)


def _nothing_in(name: str, problems: Sequence[Problem]) -> SourceError:
    refused = [problem for problem in problems if problem.refuses]
    if refused:
        return SourceError(f"None of the first {len(refused)} rows can be used. {refused[0]}")
    notices = "".join(f" {notice}" for notice in problems[:1])
    return SourceError(f"{name} has no rows. Give a source with at least one.{notices}")


class Seen(NamedTuple):
    """The fields of so many rows, in the order of first appearance."""

    names: Sequence[str]
    rows: int


def look_for(wanted: Collection[str], rows: Iterable[Row | Problem]) -> Seen:
    """Read rows until each wanted field has been met, or the rows are at their end."""
    names: dict[str, None] = {}
    count = 0
    for row in rows:
        if isinstance(row, Row):
            names.update(dict.fromkeys(row.cells))
            count += 1
            if all(name in names for name in wanted):
                break
    return Seen(tuple(names), count)


def field_names(rows: Sequence[Row]) -> tuple[str, ...]:
    """Every field of the rows, in the order of first appearance."""
    return tuple(dict.fromkeys(name for row in rows for name in row.cells))


def listed(names: Sequence[str], limit: int = 12) -> str:
    """Names for a sentence, the first few of many.

    >>> listed(["a", "b", "c"], limit=2)
    'a, b and 1 more'
    """
    shown = ", ".join(printable(name) for name in names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"


def printable(text: str) -> str:
    """The text with anything that a terminal cannot print written as an escape."""
    return text if text.isprintable() else repr(text)[1:-1]


def open_bytes(path: Path) -> BinaryIO:
    """Open a file for reading; raises SourceError with the system's reason."""
    try:
        return path.open("rb")
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: Exception) -> SourceError:
    """The error for a file that is there but does not open, or is not what its name says."""
    reason = getattr(error, "strerror", None) or str(error)
    return SourceError(f"{path} cannot be read: {reason.rstrip('.')}.")


def count_lines(path: Path) -> int | None:
    """How many lines a file has, or None where it is too large to read for that alone."""
    if path.stat().st_size > COUNTED_BYTES:
        return None
    lines, last = 0, b"\n"
    with open_bytes(path) as file:
        while chunk := file.read(1 << 20):
            lines += chunk.count(b"\n")
            last = chunk[-1:]
    return lines if last == b"\n" else lines + 1
