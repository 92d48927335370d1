"""Cells that are vectors."""

from __future__ import annotations

import json
from collections.abc import Sequence

from attend.types import Json

FLOAT32_MAX = 3.4028234663852886e38
"""Keys are float32: a larger number would become infinite there."""


def as_vector(cell: Json) -> list[float] | None:
    """The cell as a list of finite float32 numbers, shape (d,), d > 0; None where it is none.

    CSV and SQLite have no lists, so a JSON list written as text counts.

    >>> as_vector([1, 0.5]), as_vector("[1, 0.5]"), as_vector([1, True]), as_vector([])
    ([1.0, 0.5], [1.0, 0.5], None, None)
    """
    if isinstance(cell, str):
        cell = _parsed(cell)
    if not isinstance(cell, Sequence) or isinstance(cell, str) or not cell:
        return None
    vector: list[float] = []
    for number in cell:
        # bool is an int to Python, but `true` is no coordinate.
        if isinstance(number, bool) or not isinstance(number, int | float):
            return None
        if not -FLOAT32_MAX <= number <= FLOAT32_MAX:  # false for NaN too
            return None
        vector.append(float(number))
    return vector


def _parsed(text: str) -> Json:
    try:
        found: Json = json.loads(text) if text.startswith("[") else None
    except (ValueError, RecursionError):
        return None
    return found
