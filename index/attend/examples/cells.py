"""Cells as queries, labels, positions and clicks; `Unusable` says why one is none."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from attend.api.base import MAX_TEXT
from attend.examples.types import MAX_WEIGHT
from attend.source.files import kind
from attend.source.mapping import Unusable
from attend.source.vectors import as_vector
from attend.types import Float32, Json

_WORDS = {"true": 1.0, "false": 0.0}


def query_of(cell: Json, field: str, *, vectors: bool) -> str | Float32:
    """A query's text, or its vector (d,).

    Args:
        vectors: the collection has no encoder, so that a text can only be a vector written down.
    """
    if vectors or not isinstance(cell, str | None):
        return _vector(cell, field)
    if cell is None or not cell.strip():
        raise Unusable(f"The query in {field!r} is empty. Give its text.")
    if len(cell) > MAX_TEXT:
        raise Unusable(
            f"The query in {field!r} has {len(cell)} characters, but at most {MAX_TEXT} are taken."
        )
    if not is_unicode(cell):
        raise Unusable(f"The query in {field!r} is not valid UTF-8. Save the file as UTF-8.")
    return cell


def weight_of(cell: Json, field: str) -> float:
    """A label as a finite number; true is 1 and false 0.

    >>> weight_of("0.5", "label"), weight_of(True, "label"), weight_of("-1", "label")
    (0.5, 1.0, -1.0)
    """
    if cell is None or (isinstance(cell, str) and not cell.strip()):
        raise Unusable(f"The label in {field!r} is missing. Give a number.")
    number = _number(cell)
    if number is None:
        raise Unusable(f"The label in {field!r} is {_shown(cell)}, but a number is expected.")
    if not abs(number) <= MAX_WEIGHT:  # true for NaN too
        raise Unusable(
            f"The label in {field!r} is {number:g}, but a finite number between {-MAX_WEIGHT:g} "
            f"and {MAX_WEIGHT:g} is expected."
        )
    return number


def position_of(cell: Json, field: str) -> int | None:
    """A rank from 1; None for an empty cell.

    >>> position_of("3", "rank"), position_of(2.0, "rank"), position_of("", "rank")
    (3, 2, None)
    """
    if cell is None or cell == "":
        return None
    number = None if isinstance(cell, bool) else _number(cell)
    if number is None or not math.isfinite(number) or number < 1 or number != int(number):
        raise Unusable(
            f"The position in {field!r} is {_shown(cell)}, but a whole number from 1 is expected."
        )
    return int(number)


def clicked_of(cell: Json, field: str) -> bool:
    """Whether a shown document was clicked: 0 or 1, false or true."""
    number = _number(cell)
    if number not in (0, 1):
        raise Unusable(f"The click in {field!r} is {_shown(cell)}, but 0 or 1 is expected.")
    return number == 1


def is_unicode(text: str) -> bool:
    """Whether the text is free of lone surrogates, by which readers mark undecodable bytes."""
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def _vector(cell: Json, field: str) -> Float32:
    vector = as_vector(cell)
    if vector is None:
        raise Unusable(
            f"The query in {field!r} is {_shown(cell)}, but a list of finite numbers is expected."
        )
    return np.asarray(vector, dtype=np.float32)


def _number(cell: Json) -> float | None:
    """The cell as a float, which may be NaN or infinite; None where it is no number."""
    if isinstance(cell, str):
        text = cell.strip().lower()
        try:
            return _WORDS[text] if text in _WORDS else float(text)
        except ValueError:
            return None
    if not isinstance(cell, int | float):  # bool is an int
        return None
    try:
        return float(cell)
    except OverflowError:  # a whole number of hundreds of digits
        return math.inf if cell > 0 else -math.inf


def _shown(cell: Json) -> str:
    if isinstance(cell, str):
        return repr(cell if len(cell) <= 40 else f"{cell[:39]}…")
    listed = isinstance(cell, Sequence)
    return repr(cell) if isinstance(cell, int | float) and not listed else kind(cell)
