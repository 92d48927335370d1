"""Array operations that several rooms need, each written once."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import numpy as np

from attend.types import Bool, Floats, Int64

FloatArray = TypeVar("FloatArray", bound=Floats)


def unit(vectors: FloatArray) -> FloatArray:
    """Scale vectors (..., d) to length one, in their own precision; zeros stay zeros.

    >>> unit(np.array([[3.0, 4.0], [0.0, 0.0]])).tolist()
    [[0.6, 0.8], [0.0, 0.0]]
    """
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.where(lengths == 0, 1, lengths)  # type: ignore[return-value]


def top(scores: Floats, k: int) -> Int64:
    """Columns of the k largest of each row (..., n), best first; all columns if n is below k.

    >>> top(np.array([0.2, 0.9, 0.5]), 2).tolist()
    [1, 2]
    """
    count = min(k, scores.shape[-1])
    columns: Int64 = np.argpartition(-scores, count - 1, axis=-1)[..., :count]
    order = np.argsort(-np.take_along_axis(scores, columns, axis=-1), axis=-1, kind="stable")
    return np.take_along_axis(columns, order, axis=-1)


def kth_largest(scores: FloatArray, k: int) -> FloatArray:
    """The k-th largest of each row (..., n), k at most n: (..., 1).

    >>> kth_largest(np.array([0.2, 0.9, 0.5]), 2).tolist()
    [0.5]
    """
    return np.partition(scores, -k, axis=-1)[..., -k, None]  # type: ignore[return-value]


def best(scores: FloatArray, starts: Int64) -> FloatArray:
    """The largest score of each document's keys: (..., m) -> (..., n).

    `starts` (n,) says where each document's keys begin; no document is without keys. Where every
    document has one key, the array itself comes back.

    >>> best(np.array([[1.0, 3.0, 2.0]]), np.array([0, 2])).tolist()
    [[3.0, 2.0]]
    """
    if len(starts) == scores.shape[-1]:
        return scores
    return np.maximum.reduceat(scores, starts, axis=-1)  # type: ignore[return-value]


def ranges(begins: Int64, counts: Int64) -> Int64:
    """Count up from each begin, one range after the other.

    >>> ranges(np.array([7, 2]), np.array([2, 3])).tolist()
    [7, 8, 2, 3, 4]
    """
    shifts = np.cumsum(counts) - counts
    positions: Int64 = np.repeat(begins - shifts, counts) + np.arange(counts.sum())
    return positions


class Located(NamedTuple):
    """Places of values in an ascending array; where `present` is false the place means nothing."""

    places: Int64
    present: Bool


def locate(ascending: Int64, values: Int64) -> Located:
    """Look values of any shape up in an ascending array, which may be empty.

    >>> locate(np.array([2, 5, 9]), np.array([5, 7])).present.tolist()
    [True, False]
    """
    if not len(ascending):
        return Located(np.zeros(values.shape, np.int64), np.zeros(values.shape, dtype=bool))
    places = np.minimum(np.searchsorted(ascending, values), len(ascending) - 1)
    return Located(places, ascending[places] == values)
