"""JSON numbers as arrays: conversion, weighted moments, and the vector nearest to another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self, TypeGuard

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attend.core.types import Float64, Json

_BELOW_ONE = float(np.nextafter(1.0, 0.0))

_ROWS = 4096  # differences are taken for so many candidates at a time, to bound memory


def as_number(value: Json) -> float:
    """Return the value as a float64, or NaN where it is no finite number.

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
    """Return the values as numbers (n,), NaN as in `as_number`.

    >>> as_numbers([3, 0.5, None]).tolist()
    [3.0, 0.5, nan]
    """
    # At once where all are plain numbers: several times faster than one by one.
    if {value.__class__ for value in values} <= {int, float}:
        try:
            numbers = np.array(values, dtype=np.float64)
        except OverflowError:
            pass
        else:
            return np.where(np.isfinite(numbers), numbers, np.nan)
    return np.fromiter(map(as_number, values), np.float64, len(values))


def is_list(value: Json) -> TypeGuard[Sequence[Json]]:
    """Return whether a value is a JSON array; a string is a sequence to Python, and none here."""
    return isinstance(value, (list, tuple))


def is_numbers(value: Json) -> TypeGuard[Sequence[float]]:
    """Return whether a value is a non-empty list of numbers, some of which may not be finite."""
    # By the few types that occur: several times faster than asking every element.
    return (
        is_list(value)
        and len(value) > 0
        and all(issubclass(t, (int, float)) and t is not bool for t in set(map(type, value)))
    )


def as_matrix(rows: Sequence[Sequence[float]]) -> Float64:
    """Turn lists of numbers of one length into rows, (n, d); what no float64 holds becomes NaN."""
    try:
        return np.array(rows, dtype=np.float64)
    except OverflowError:
        return np.array([[as_number(item) for item in row] for row in rows], dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Moments:
    """Moments of weighted rows (n, d), n >= 1; arrays are (d,), in units of 2**exponent."""

    weight: float  # W = Σw
    concentration: float  # Σ(w/W)², the inverse of the effective sample size
    exponent: NDArray[np.int32]
    anchor: Float64  # one of the rows
    shift: Float64  # mean - anchor
    variance: Float64

    @classmethod
    def of(cls, rows: Float64, weights: Float64) -> Self | None:
        """Return the moments of the finite rows among (n, d) under positive weights (n,)."""
        finite = np.isfinite(rows).all(axis=1)  # (n,)
        if not finite.any():
            return None
        rows, weights = rows[finite], weights[finite]
        weight = float(weights.sum())
        shares = weights / weight  # (n,)
        exponent = np.frexp(np.abs(rows).max(axis=0))[1]  # (d,)
        scaled = np.ldexp(rows, -exponent)  # (n, d)
        anchor = scaled[weights.argmax()]
        offsets = scaled - anchor
        shift = shares @ offsets  # (n,) @ (n, d) -> (d,)
        variance = shares @ (offsets - shift) ** 2
        return cls(weight, float(shares @ shares), exponent, anchor, shift, variance)

    def joined(self, other: Self) -> Self:
        """Return the moments of the rows of both together."""
        exponent = np.maximum(self.exponent, other.exponent)
        a, b = self._at(exponent), other._at(exponent)
        weight = a.weight + b.weight
        of_a, of_b = a.weight / weight, b.weight / weight
        # Anchors first: rows of one size differ exactly, their means would not.
        apart = (b.anchor - a.anchor) + (b.shift - a.shift)
        return replace(
            a,
            weight=weight,
            concentration=of_a**2 * a.concentration + of_b**2 * b.concentration,
            shift=a.shift + of_b * apart,
            variance=of_a * a.variance + of_b * b.variance + of_a * of_b * apart**2,
        )

    def _at(self, exponent: NDArray[np.int32]) -> Self:
        down = self.exponent - exponent
        return replace(
            self,
            exponent=exponent,
            anchor=np.ldexp(self.anchor, down),
            shift=np.ldexp(self.shift, down),
            variance=np.ldexp(self.variance, 2 * down),
        )

    @property
    def mean(self) -> Float64:
        """Weighted mean, (d,)."""
        return self._unscaled(self.anchor + self.shift)

    @property
    def std(self) -> Float64:
        """Weighted population standard deviation, (d,)."""
        return self._unscaled(np.sqrt(self.variance))

    def _unscaled(self, scaled: Float64) -> Float64:
        # Rounding may carry the largest float64 up to 1.0, and that would become infinite.
        result: Float64 = np.ldexp(np.clip(scaled, -_BELOW_ONE, _BELOW_ONE), self.exponent)
        return result


class Nearest(NamedTuple):
    """The candidate nearest to a vector; `cosine` is 0 where one of the two has no length."""

    place: int
    cosine: float
    distance: float


def nearest(vector: ArrayLike, candidates: ArrayLike) -> Nearest:
    """Return the row of (n, d) candidates at the least Euclidean distance from a (d,) vector.

    Of equal distances the first counts.

    >>> nearest([1.0, 0.9], [[3.0, 3.0], [1.0, 0.0]])
    Nearest(place=1, cosine=0.7432941462471663, distance=0.9)
    """
    query, rows = np.asarray(vector, np.float64), np.asarray(candidates, np.float64)
    blocks = range(0, len(rows), _ROWS)
    distances = np.concatenate(
        [np.linalg.norm(rows[start : start + _ROWS] - query, axis=1) for start in blocks]
    )  # (n,)
    place = int(distances.argmin())
    lengths = float(np.linalg.norm(query) * np.linalg.norm(rows[place]))
    cosine = float(np.clip(query @ rows[place] / lengths, -1.0, 1.0)) if lengths > 0 else 0.0
    return Nearest(place, cosine, float(distances[place]))
