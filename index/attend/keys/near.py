"""The documents near many queries at once, by the scores that an index itself has of their keys."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from attend.keys.nearest import FETCHED, QUERIES
from attend.keys.segment import Segment
from attend.types import Bool, Float32, Int64

NONE = -1
"""No row: those of documents begin at 1."""


class Near(NamedTuple):
    """Documents near each query, best first, by the scores that the index itself has of them.

    `NONE` fills up where there are too few, with a score of -inf.
    """

    rows: Int64  # (q, k)
    scores: Float32  # (q, k) inner products with the best key, of quantised keys by their bytes


def near_in(
    segment: Segment,
    queries: Float32,
    rows: Int64 | None,
    keys: int,
    recall: float | None,
    roughly: bool,
) -> Near:
    """Those of one segment, by so many keys or all that it has."""
    of_keys = segment.allowed_keys(segment.allowed(rows))
    k = min(keys, segment.keys if of_keys is None else int(np.count_nonzero(of_keys)))
    if not k:
        return Near(np.empty((len(queries), 0), np.int64), np.empty((len(queries), 0), np.float32))
    step = max(1, min(QUERIES, FETCHED // k))
    search = segment.vectors.propose if roughly else segment.vectors.search
    found = [
        search(queries[at : at + step], k, of_keys, recall) for at in range(0, len(queries), step)
    ]
    scores, positions = (np.concatenate(each) for each in zip(*found, strict=True))
    near = np.where(positions >= 0, segment.rows[segment.table.ordinals[positions]], NONE)
    if segment.keys > len(segment.rows):
        near[_repeated(near)] = NONE
    scores[near == NONE] = -np.inf
    return Near(near, scores)


def _repeated(rows: Int64) -> Bool:
    """Where a row stands a second time among those of its query (q, k)."""
    order = np.argsort(rows, axis=1, kind="stable")
    ascending = np.take_along_axis(rows, order, axis=1)
    found = np.zeros(rows.shape, dtype=bool)
    again = ascending[:, 1:] == ascending[:, :-1]
    np.put_along_axis(found, order[:, 1:], again, axis=1)
    return found
