"""Rows, as every source yields them: with a place, or a problem with a place and a reason."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from attend.core.errors import SourceError
from attend.core.types import Json

SAMPLE_ROWS = 100
"""Rows that are read before columns and their types are chosen."""

LOOKAHEAD_ROWS = 10_000
"""Rows that are searched for usable ones, for a column that the caller names, and for a vector."""

Item = TypeVar("Item")


class Unusable(Exception):
    """A row cannot be used; the message is a sentence for the user. `read_rows` catches it."""


@dataclass(frozen=True, slots=True)
class RowProblem:
    """A row, or a part of the source, that cannot be used.

    `place` is where to look (`books.csv:17`); `reason` is a sentence for the user. A notice
    (`rejects` is false) loses no row: every row is read, without a part of it. A file of a folder
    that is skipped (`skips`) is no row, unless it `rejects`: then it would be one if it could be
    read.
    """

    place: str
    reason: str
    rejects: bool = True
    skips: bool = False

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Row:
    """One record of a source, before its columns have a role."""

    place: str
    cells: Mapping[str, Json]

    def get(self, name: str) -> Json:
        """Return the cell of a column, or where dots lead within objects; None if missing.

        >>> Row("a.jsonl:1", {"user": {"id": 7}}).get("user.id")
        7
        """
        if name in self.cells or "." not in name:
            return self.cells.get(name)
        cell: Json = dict(self.cells)
        for part in name.split("."):
            cell = cell.get(part) if isinstance(cell, dict) else None
        return cell


class RowItem(NamedTuple, Generic[Item]):
    """An item read from a row, and the place of that row."""

    place: str
    item: Item


class Source(ABC):
    """A table of rows that can be read repeatedly without holding it in memory.

    Attributes:
        name: what places begin with, such as a file's name.
        natural_id: the column that the format declares to be the id, such as a primary key.
        natural_text: the text columns that the layout prescribes; then neither text nor value is
            guessed.
        natural_vector: the column that holds vectors as bytes; it is no payload.
        faults: column → the sentence that says why it is not read.
        text_note: how the format makes its text, for the line that describes the columns.
        untyped: every cell is text, since the format has no types (CSV, TSV).
    """

    name: str
    natural_id: str | None = None
    natural_text: tuple[str, ...] = ()
    natural_vector: str | None = None
    faults: Mapping[str, str] = {}
    text_note: str = ""
    untyped: bool = False

    @abstractmethod
    def rows(self) -> Iterator[Row | RowProblem]:
        """Read from the beginning. Raises SourceError if the source as a whole is unreadable."""

    def detected(self) -> str:
        """Describe what was detected of the source's format, with options to choose; or nothing."""
        return ""


class Replay(Generic[Item]):
    """Items that come once, such as lines of standard input; the first can be read repeatedly.

    Once the reading is past them they are dropped, and a second reading raises SourceError.
    """

    def __init__(self, items: Iterator[Item], limit: int, fault: str) -> None:
        self._rest = items
        self._limit = limit
        self._fault = fault
        self._head: list[Item] = []
        self._spent = False

    def __iter__(self) -> Iterator[Item]:
        if self._spent:
            raise SourceError(self._fault)
        yield from self._head
        for item in self._rest:
            if len(self._head) < self._limit and not self._spent:
                self._head.append(item)
            else:
                self._spent = True
                self._head.clear()
            yield item


class FileSource(Source):
    """A source in one file or folder, named like it."""

    def __init__(self, path: Path, name: str | None = None) -> None:
        self.path = path
        self.name = name or path.name


def read_rows(
    rows: Iterable[Row | RowProblem], read: Callable[[Row], Item]
) -> Iterator[RowItem[Item] | RowProblem]:
    """Apply `read` to every row; a row for which it raises Unusable becomes a problem."""
    for row in rows:
        if isinstance(row, RowProblem):
            yield row
            continue
        try:
            yield RowItem(row.place, read(row))
        except Unusable as reason:
            yield RowProblem(row.place, str(reason))


def sample(source: Source) -> tuple[Row, ...]:
    """Return the first 100 usable rows, of the first 10,000.

    Raises:
        SourceError: no row is usable; it names the first problem.
    """
    rows: list[Row] = []
    problems: list[RowProblem] = []
    for item in islice(source.rows(), LOOKAHEAD_ROWS):
        if isinstance(item, RowProblem):
            problems.append(item)
            continue
        rows.append(item)
        if len(rows) == SAMPLE_ROWS:
            break
    if rows:
        return tuple(rows)
    rejected = [problem for problem in problems if problem.rejects]
    if rejected:
        count = len(rejected)
        no_row = f"None of the first {count} rows can" if count > 1 else "The only row cannot"
        raise SourceError(f"{no_row} be used. {rejected[0]}")
    notices = "".join(f" {notice}" for notice in problems[:1])
    raise SourceError(f"{source.name} has no rows. Give a source with at least one.{notices}")


def column_names(rows: Iterable[Row]) -> tuple[str, ...]:
    """Return every column of the rows, in the order of first appearance."""
    return tuple(dict.fromkeys(name for row in rows for name in row.cells))


def listed(names: Sequence[str], limit: int = 12) -> str:
    """Join names for a sentence; of many, only the first few are spelled out.

    >>> listed(["a", "b", "c"], limit=2)
    'a, b and 1 more'
    """
    # Anything that a terminal cannot print is written as an escape.
    parts = [name if name.isprintable() else repr(name)[1:-1] for name in names[:limit]]
    line = ", ".join(parts)
    return line if len(names) <= limit else f"{line} and {len(names) - limit} more"


def unreadable(path: Path, error: Exception, remedy: str = "") -> SourceError:
    """Return the error for a file that exists but cannot be opened or parsed."""
    reason = getattr(error, "strerror", None) or str(error)
    advice = f" {remedy}" if remedy and not isinstance(error, OSError) else ""
    return SourceError(f"{path} cannot be read: {reason.rstrip('.')}.{advice}")
