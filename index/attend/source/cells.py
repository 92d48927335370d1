"""Cells as numbers, vectors, times, ids and texts: the only parser of all tables."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal

import numpy as np

from attend.source.rows import Row, Unusable
from attend.types import Json, id_fault

MAX_DIGITS = 18
"""Longer whole numbers stay text: they would not fit into 64 bits."""

MILLISECONDS = 1e11
"""Times beyond are milliseconds: as seconds they would lie after the year 5000."""

FLOAT32_MAX = 3.4028234663852886e38
"""Keys are float32: a larger number would become infinite there."""

_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?", re.ASCII)  # JSON's grammar
_BOOLEAN = {"true": True, "false": False}


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


def is_scalar_column(rows: Sequence[Row], name: str) -> bool:
    """Return whether a column has texts and all of them read as numbers or booleans."""
    texts = [cell for row in rows if isinstance(cell := row.cells.get(name), str) and cell]
    return bool(texts) and all(scalar(text) is not None for text in texts)


def typed(cells: Mapping[str, Json], scalars: frozenset[str]) -> dict[str, Json]:
    """Give the cells of an untyped row their types: an empty one is null, a misfit stays text.

    >>> typed({"year": "1977", "zip": "01234", "tag": ""}, frozenset({"year"}))
    {'year': 1977, 'zip': '01234', 'tag': None}
    """
    parsed: dict[str, Json] = {}
    for name, cell in cells.items():
        number = scalar(cell) if name in scalars and isinstance(cell, str) else None
        parsed[name] = (cell or None) if number is None else number
    return parsed


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
        numbers = np.array(cell, dtype=np.float64)
    except OverflowError:  # a whole number of hundreds of digits
        return None
    # False for NaN too.
    return numbers.tolist() if np.abs(numbers).max() <= FLOAT32_MAX else None


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
