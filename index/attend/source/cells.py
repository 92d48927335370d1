"""Types for formats that have none: numbers and booleans in CSV, decided by column."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from attend.source.rows import Row, field_names
from attend.types import Json

_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?", re.ASCII)  # JSON's grammar
_BOOLEAN = {"true": True, "false": False}
MAX_DIGITS = 18
"""Longer whole numbers stay text: they would not fit into 64 bits."""


def scalar(text: str) -> bool | int | float | None:
    """The number or boolean that the text wholly is, else None.

    `007` is none, since JSON numbers have no leading zero: it is a code, not a count.

    >>> scalar("4.5"), scalar("True"), scalar("007"), scalar("")
    (4.5, True, None, None)
    """
    if (found := _NUMBER.fullmatch(text)) is None:
        return _BOOLEAN.get(text.lower())
    if found[1] is None and found[2] is None:
        return int(text) if len(text) <= MAX_DIGITS else None
    number = float(text)
    return number if math.isfinite(number) else None


def scalar_columns(rows: Sequence[Row]) -> frozenset[str]:
    """The columns whose every sampled cell that is not empty is a number or a boolean."""
    return frozenset(name for name in field_names(rows) if is_scalar_column(rows, name))


def is_scalar_column(rows: Sequence[Row], name: str) -> bool:
    """Whether all texts of a column read as numbers or booleans, and there is at least one."""
    texts = [cell for row in rows if isinstance(cell := row.cells.get(name), str) and cell]
    return bool(texts) and all(scalar(text) is not None for text in texts)


def typed(cells: Mapping[str, Json], scalars: frozenset[str]) -> dict[str, Json]:
    """The cells of an untyped row with types: an empty one is null, a later misfit stays text.

    >>> typed({"year": "1977", "zip": "01234", "tag": ""}, frozenset({"year"}))
    {'year': 1977, 'zip': '01234', 'tag': None}
    """
    return {name: _typed(cell, name in scalars) for name, cell in cells.items()}


def _typed(cell: Json, is_scalar: bool) -> Json:
    if cell == "":
        return None
    if not is_scalar or not isinstance(cell, str):
        return cell
    found = scalar(cell)
    return cell if found is None else found
