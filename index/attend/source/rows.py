"""Rows, as every source yields them: with a place, or a problem with a place and a reason."""

from __future__ import annotations

import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from attend.core.errors import SourceError
from attend.core.types import Json, id_fault

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
        sampled: the rows of its sample, once it was read.
    """

    name: str
    natural_id: str | None = None
    natural_text: tuple[str, ...] = ()
    natural_vector: str | None = None
    faults: Mapping[str, str] = {}
    text_note: str = ""
    untyped: bool = False
    sampled: tuple[Row, ...] = ()

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
    """Return the first 100 usable rows, of the first 10,000; a source is read for it once.

    Raises:
        SourceError: no row is usable; it names the first problem.
    """
    if source.sampled:
        return source.sampled
    rows: list[Row] = []
    problems: list[RowProblem] = []
    for item in islice(source.rows(), LOOKAHEAD_ROWS):
        if isinstance(item, RowProblem):
            problems.append(item)
        else:
            rows.append(item)
        if len(rows) == SAMPLE_ROWS:
            break
    if rows:
        source.sampled = tuple(rows)
        return source.sampled
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


MAX_DIGITS = 18
"""Longer whole numbers stay text: they would not fit into 64 bits."""

MILLISECONDS = 1e11
"""Times beyond are milliseconds: as seconds they would lie after the year 5000."""

FLOAT32_MAX = 3.4028234663852886e38
"""Keys are float32: a larger number would become infinite there."""

_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?", re.ASCII)  # JSON's grammar
_BOOLEAN = {"true": True, "false": False}
_POINT_GROUPS = re.compile(r"-?(\d{1,3}([.'\u2019 \u00a0\u202f]\d{3})+|\d+)(,\d+)?", re.ASCII)
_COMMA_GROUPS = re.compile(r"-?(\d{1,3}(,\d{3})+|\d+)(\.\d+)?", re.ASCII)
_EITHER = re.compile(r"-?[1-9]\d{0,2},\d{3}", re.ASCII)  # 1,200 is 1.2, or one thousand two hundred
_DATE = re.compile(r"(\d{1,4})([./-])(\d{1,2})\2(\d{1,4})([ T]+\d\d?:\d\d(?::\d\d)?)?", re.ASCII)
_ORDERS = {"dmy": "day, month, year", "mdy": "month, day, year", "ymd": "year, month, day"}


def kind(item: object) -> str:
    """Name the JSON type of a value, for a sentence.

    >>> kind([1, 2]), kind(True), kind(4.5)
    ('a list', 'a boolean', 'a number')
    """
    if item is None:
        return "null"
    if isinstance(item, bool):
        return "a boolean"
    if isinstance(item, int | float):
        return "a number"
    if isinstance(item, str):
        return "a string"
    return "a list" if isinstance(item, list | tuple) else "an object"


def shown(cell: Json) -> str:
    """Quote a cell in a sentence: a short text or a number itself, else its type."""
    if isinstance(cell, str):
        return repr(cell if len(cell) <= 40 else f"{cell[:39]}…")
    return repr(cell) if isinstance(cell, int | float) else kind(cell)


def unexpected(subject: str, column: str, cell: Json, expected: str) -> Unusable:
    """Return the error of a row whose cell is not what is expected.

    >>> print(unexpected("position", "rank", "first", "a whole number from 1"))
    The position in 'rank' is 'first', but a whole number from 1 is expected.
    """
    return Unusable(f"The {subject} in {column!r} is {shown(cell)}, but {expected} is expected.")


def is_unicode(text: str) -> bool:
    """Return whether the text has no lone surrogates, which stand for undecodable bytes."""
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def number_of(cell: Json) -> float | None:
    """Return a number, or a text of one, as a float, which may be NaN or infinite; else None.

    >>> number_of("0.5"), number_of(3), number_of(True), number_of("many")
    (0.5, 3.0, None, None)
    """
    if isinstance(cell, bool) or not isinstance(cell, int | float | str):
        return None
    try:
        return float(cell)
    except ValueError:
        return None
    except OverflowError:  # a whole number of hundreds of digits
        return math.inf if isinstance(cell, int) and cell > 0 else -math.inf


def scalar(text: str) -> bool | int | float | None:
    """Return the number or boolean that the whole text spells in JSON's grammar, else None.

    `007` stays text, since JSON numbers have no leading zero: it is a code, not a count.

    >>> scalar("4.5"), scalar("True"), scalar("007"), scalar("")
    (4.5, True, None, None)
    """
    if (match := _NUMBER.fullmatch(text)) is None:
        return _BOOLEAN.get(text.lower())
    if match[1] is None and match[2] is None:
        return int(text) if len(text) <= MAX_DIGITS else None
    number = float(text)
    return number if math.isfinite(number) else None


def type_of(cell: Json, *, untyped: bool = True) -> str:
    """Return "number", "boolean" or "text", or "other" for lists and objects.

    Args:
        untyped: a text may spell a number or a boolean.

    >>> type_of("7.5"), type_of(True), type_of("n/a"), type_of([1])
    ('number', 'boolean', 'text', 'other')
    """
    if isinstance(cell, str):
        cell = scalar(cell) if untyped else None
    if cell is None:
        return "text"
    if isinstance(cell, bool):
        return "boolean"
    return "number" if isinstance(cell, int | float) else "other"


def common_type(cells: Iterable[Json], *, untyped: bool = True) -> str | None:
    """Return the type of a column by its cells; None where all are empty.

    Args:
        untyped: texts may spell numbers, and one that spells none makes all of them "text"; else
            cells of several types are "mixed".

    >>> common_type(["3", "4.5", ""]), common_type(["3", "true"]), common_type(["3", "n/a"])
    ('number', 'mixed', 'text')
    >>> common_type([3, "4.5"], untyped=False)
    'mixed'
    """
    types = {type_of(cell, untyped=untyped) for cell in cells if cell not in (None, "")}
    if len(types) > 1:
        return "text" if untyped and "text" in types else "mixed"
    return next(iter(types), None)


SCALARS = ("number", "boolean")


CellFormat: TypeAlias = tuple[str, Callable[[str], str]]
"""How the cells of a column spell numbers or dates: a description, and the plain spelling."""


def cell_format(cells: Iterable[str], *, decimal_comma: bool = False) -> CellFormat | None:
    """Return how a column spells its numbers or dates; None where it is plain, or no such column.

    Only what some cell proves is taken: neither 1,200 nor 01/02/2020 says which number or day it
    is. Then the cells stay as they are, and the note says so.

    Args:
        decimal_comma: take 1,200 for 1.2, as tables with semicolons have it.

    >>> cell_format(["3,50", "1.200,00", "", "free"])[1]("1.200,00")
    '1200.00'
    >>> cell_format(["9", "1,200.50"])[1]("1,200.50")
    '1200.50'
    >>> cell_format(["17.05.2024"])[1]("17.05.2024 9:30")
    '2024-05-17T09:30'
    >>> cell_format(["1,200", "3,400"])[0], cell_format(["3,50", "a", "b"])
    ('commas may be decimal or group thousands: cells stay text', None)
    """
    filled = [cell for cell in cells if cell]
    points = [cell for cell in filled if _POINT_GROUPS.fullmatch(cell)]
    commas = [cell for cell in filled if _COMMA_GROUPS.fullmatch(cell)]
    is_decimal = any("," in c and (decimal_comma or not _EITHER.fullmatch(c)) for c in points)
    # Lists of numbers such as 101,202,303 have groups of three throughout.
    groups = any(c.count(",") > 1 for c in commas) and any(c.find(",") in (1, 2) for c in commas)
    is_grouped = groups or any("," in cell and "." in cell for cell in commas)
    if is_decimal and not is_grouped and _most(points, filled):
        return "numbers have a decimal comma", partial(_plain, _POINT_GROUPS)
    if is_grouped and not is_decimal and _most(commas, filled):
        return "numbers have commas between thousands", partial(_plain, _COMMA_GROUPS)
    if any("," in cell for cell in commas) and _most(commas, filled):
        return "commas may be decimal or group thousands: cells stay text", str
    return _date_format(filled)


def _most(some: Sequence[str], filled: Sequence[str]) -> bool:
    """Return whether some cells are nine in ten of a column, or all but one of at least three."""
    odd = len(filled) - len(some)
    return len(some) > odd and (odd <= 1 or odd <= 0.1 * len(filled))


def _plain(spelling: re.Pattern[str], cell: str) -> str:
    """Return a number of a spelling as JSON has it; other cells as they are."""
    if not spelling.fullmatch(cell):
        return cell
    if spelling is _COMMA_GROUPS:
        return cell.replace(",", "")
    return re.sub(r"[^\d,-]", "", cell).replace(",", ".")


def _date_format(filled: Sequence[str]) -> CellFormat | None:
    dates = [cell for cell in filled if _DATE.fullmatch(cell)]
    if not dates or not _most(dates, filled) or all(_iso(cell, "ymd") == cell for cell in dates):
        return None
    orders = [order for order in _ORDERS if all(_iso(cell, order) for cell in dates)]
    if len(orders) > 1 and all(re.fullmatch(r"[\d.]+", cell.split()[0]) for cell in dates):
        orders = ["dmy"]  # nobody writes the month first before a point
    if len(orders) == 1:
        order = orders[0]
        note = f"dates are {_ORDERS[order]}, and stored as {_iso(dates[0], order)}"
        return note, lambda cell: _iso(cell, order) or cell
    if not orders:
        return None
    return f"dates are text, as {dates[0]} may be either day: write 2024-05-17", str


def _iso(cell: str, order: str) -> str | None:
    """Return a date whose parts stand in an order in ISO 8601, or None for what is none."""
    match = _DATE.fullmatch(cell)
    if match is None:
        return None
    parts = dict(zip(order, (match[1], match[3], match[4]), strict=True))
    if len(parts["y"]) != 4 or max(len(parts["m"]), len(parts["d"])) > 2:
        return None
    hour = (match[5] or "").strip(" T")
    hour = hour.zfill(2 + 3 * hour.count(":")) if hour else ""
    with suppress(ValueError):
        day = date(int(parts["y"]), int(parts["m"]), int(parts["d"]))
        return f"{day}T{hour}" if hour and time.fromisoformat(hour) is not None else str(day)
    return None


def as_vector(cell: Json) -> list[float] | None:
    """Return a list of finite float32 numbers, shape (d,), d > 0; None for anything else.

    CSV and SQLite have no lists, so a JSON list written as text counts.

    >>> as_vector([1, 0.5]), as_vector("[1, 0.5]"), as_vector([1, True]), as_vector([])
    ([1.0, 0.5], [1.0, 0.5], None, None)
    """
    if isinstance(cell, str):
        try:
            cell = json.loads(cell) if cell.startswith("[") else None
        except (ValueError, RecursionError):
            return None
    if not isinstance(cell, Sequence) or isinstance(cell, str) or not cell:
        return None
    # bool is an int to Python, but `true` is no coordinate.
    kinds = set(map(type, cell))
    if not all(issubclass(kind, int | float) and kind is not bool for kind in kinds):
        return None
    try:
        numbers = [float(number) for number in cell]  # type: ignore[arg-type] # by the check above
    except OverflowError:  # a whole number of hundreds of digits
        return None
    # False for NaN too.
    return numbers if all(-FLOAT32_MAX <= number <= FLOAT32_MAX for number in numbers) else None


def seconds_of(cell: Json) -> float | None:
    """Return a number or an ISO date as seconds since 1970; None for an empty cell.

    Dates without a zone are UTC.

    Raises:
        ValueError: it is neither.

    >>> seconds_of("1970-01-02"), seconds_of("86400"), seconds_of(1_700_000_000_000)
    (86400.0, 86400.0, 1700000000.0)
    """
    if cell is None or cell == "":
        return None
    number = number_of(cell)
    if number is not None and math.isfinite(number):
        seconds = number / 1000 if abs(number) > MILLISECONDS else number
        if abs(seconds) <= MILLISECONDS:
            return seconds
        raise ValueError(f"{number:g} is beyond any time; give seconds since 1970")
    try:
        date = datetime.fromisoformat(str(cell).strip())
    except ValueError:
        raise ValueError(
            f"{str(cell)[:40]!r} is no time; give seconds since 1970, or a date such as "
            f"2024-05-17T12:30:00Z"
        ) from None
    return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()


def document_id(cell: Json, column: str) -> str:
    """Return a string or a whole number as an id; raises Unusable for anything else.

    Control characters (Unicode category Cc) and lone surrogates are rejected.
    """
    if cell is None or cell == "":
        raise Unusable(f"The row has no id: its field {column!r} is missing or empty. Give it one.")
    if isinstance(cell, bool) or not isinstance(cell, str | int):
        raise Unusable(
            f"The id in {column!r} is {kind(cell)}, but a string or a whole number is expected."
        )
    identity = str(cell)
    if fault := id_fault(identity):
        raise Unusable(f"The id in {column!r} {fault}.")
    return identity


def joined(cell: object) -> object:
    """Join a list of strings, such as tags, by commas; return anything else as it is.

    >>> joined(["crime", "classics"])
    'crime, classics'
    """
    if isinstance(cell, list | tuple) and all(isinstance(item, str) for item in cell):
        return ", ".join(cell)
    return cell


def text_of(cell: Json, column: str) -> str:
    """Return a cell as text: a list of strings, such as tags, is joined by commas; null is empty.

    Numbers and booleans raise Unusable: a text of bare numbers is a mistaken choice of columns.

    >>> text_of(["crime", "classics"], "tags")
    'crime, classics'
    """
    if cell is None:
        return ""
    text = joined(cell)
    if isinstance(text, str):
        return text
    raise Unusable(
        f"The text field {column!r} holds {kind(cell)}, but a string or a list of strings "
        "is expected."
    )


def to_json(cell: object) -> Json:
    """Convert a Python value from Arrow or YAML to JSON: times in ISO 8601, durations in seconds.

    NaN becomes null, since data frames write missing numbers as NaN.

    >>> to_json({"on": date(2024, 2, 29), "paid": Decimal("1.50")})
    {'on': '2024-02-29', 'paid': 1.5}
    """
    if isinstance(cell, datetime | date | time):
        return cell.isoformat()
    if isinstance(cell, timedelta):
        return cell.total_seconds()
    if isinstance(cell, float | Decimal):
        return None if math.isnan(cell) else float(cell)
    if isinstance(cell, Mapping):
        return {str(name): to_json(item) for name, item in cell.items()}
    if isinstance(cell, list | tuple):
        return [to_json(item) for item in cell]
    if cell is None or isinstance(cell, bool | int | str):
        return cell
    return str(cell)  # such as a UUID
