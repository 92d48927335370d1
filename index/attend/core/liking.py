"""Likes: which values of interactions are a sign of what a user wants."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from attend.core.types import Bool, Float64, Json
from attend.values.kinds import as_number

SCALES = (3, 5, 10)
"""The highest numbers of the rating scales that begin at 1."""

ENOUGH = 20
"""Numbers from which on the shape of their distribution says something."""


class Liking(NamedTuple):
    """The threshold of likes.

    Attributes:
        liked_from: numbers from here up are likes; None: all above zero are.
        source: set by a caller, or chosen from the data; None where no numbers are stored.
    """

    liked_from: float | None = None
    source: Literal["set", "data"] | None = None

    def __str__(self) -> str:
        if self.liked_from is None:
            return "each value above zero is a like"
        origin = "" if self.source == "set" else ", chosen from the data"
        return f"values of {self.liked_from:g} and more are likes{origin}"


def chosen_liking(values: ArrayLike) -> Liking:
    """Return the threshold that numbers (n,) suggest; those that are not finite say nothing.

    Numbers from 1 up to 3, 5 or 10 are ratings, and likes are those above the middle of their
    scale. Where zero or negative numbers occur, they are what is not liked. Where most numbers are
    the smallest, or they go beyond 10, they are counts, and each is a like.

    >>> chosen_liking([5, 1, 4, 3]).liked_from
    4.0
    >>> str(chosen_liking([1, 1, 2, 0]))
    'each value above zero is a like'
    """
    every: Float64 = np.asarray(values, dtype=np.float64)
    numbers, counts = np.unique(every[np.isfinite(every)], return_counts=True)
    if not len(numbers):
        return Liking()
    total, high = int(counts.sum()), float(numbers[-1])
    counted = total >= ENOUGH and 2 * counts[0] > total
    if numbers[0] <= 0 or not 2 < high <= SCALES[-1] or counted:
        return Liking(None, "data")
    top = next(scale for scale in SCALES if high <= scale)
    above = numbers[numbers > (1 + top) / 2]
    return Liking(float(above[0]) if len(above) else math.ceil((2 + top) / 2), "data")


def is_liked(value: Json, liked_from: float | None = None) -> bool:
    """Return true if a document with this value is a sign of what a user wants.

    False is not, nor is a number below the threshold; every other value is, and so is no value.

    >>> is_liked(1, 4), is_liked(4, 4), is_liked(0), is_liked(1), is_liked(None, 4)
    (False, True, False, True, True)
    """
    number = as_number(value)  # NaN for what is not a number
    return value is not False and not (number <= 0 if liked_from is None else number < liked_from)


def liked_mask(values: Float64, allowed: Bool, liked_from: float | None) -> Bool:
    """Return which of some values (n,) are likes; NaN stands for what is not a number.

    Args:
        allowed: (n,) false where the value is false.
    """
    below: Bool = values <= 0 if liked_from is None else values < liked_from
    return allowed & ~below
