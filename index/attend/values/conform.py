"""Which Python objects count as which JSON value: asked by inference and by blends alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeGuard

import numpy as np

from attend.types import Float64, Json


def as_number(value: Json) -> float:
    """The value as a float64, or NaN where it is no finite number.

    >>> as_number(3), as_number(True), as_number("3"), as_number(10**400)
    (3.0, nan, nan, nan)
    """
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return math.nan
    try:
        number = float(value)
    except OverflowError:
        return math.nan
    return number if math.isfinite(number) else math.nan


def as_numbers(values: Sequence[Json]) -> Float64:
    """The values as numbers (n,), NaN as in `as_number`; at once where all are plain numbers.

    >>> as_numbers([3, 0.5, None]).tolist()
    [3.0, 0.5, nan]
    """
    if {value.__class__ for value in values} <= {int, float}:
        try:
            numbers = np.array(values, dtype=np.float64)
        except OverflowError:
            pass
        else:
            return np.where(np.isfinite(numbers), numbers, np.nan)
    return np.fromiter(map(as_number, values), np.float64, len(values))


def is_list(value: Json) -> TypeGuard[Sequence[Json]]:
    """A JSON array; a string is a sequence to Python, and none here."""
    return isinstance(value, (list, tuple))


def is_numbers(value: Json) -> TypeGuard[Sequence[float]]:
    """A non-empty list of numbers, some of which may not be finite."""
    # By the few types that occur: several times faster than asking every element.
    return (
        is_list(value)
        and len(value) > 0
        and all(issubclass(t, (int, float)) and t is not bool for t in set(map(type, value)))
    )


def is_strings(value: Json) -> TypeGuard[Sequence[str]]:
    """A non-empty list of strings."""
    return is_list(value) and len(value) > 0 and all(isinstance(item, str) for item in value)


def as_matrix(rows: Sequence[Sequence[float]]) -> Float64:
    """Lists of numbers of one length as rows, (n, d); what no float64 holds becomes NaN."""
    try:
        return np.array(rows, dtype=np.float64)
    except OverflowError:
        return np.array([[as_number(item) for item in row] for row in rows], dtype=np.float64)


def is_missing(value: Json) -> bool:
    """No value: null, an empty list, or a number (or a list of them) that is not finite."""
    if value is None:
        return True
    if is_list(value):
        return len(value) == 0 or (is_numbers(value) and not np.isfinite(as_matrix([value])).all())
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and math.isnan(as_number(value))


def is_sendable(value: Json) -> bool:
    """Whether JSON can carry the value: no float in it is infinite or NaN."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(is_sendable, value.values()))
    return all(map(is_sendable, value)) if is_list(value) else True
