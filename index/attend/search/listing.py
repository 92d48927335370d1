"""Which of the attended documents are listed: from a score, one of each group, page by page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attend.api.search import SearchOptions
from attend.attention import Attended
from attend.search.paging import cursor, place
from attend.types import Float64, Int64, Json


@dataclass(frozen=True)
class Groups:
    """Attended documents (n,) by a value that they share.

    Attributes:
        labels: (n,) each document's value; None where it has none.
        of: (n,) the number of each document's group.
        leaders: (g,) the position of the best document of each group, best first.
        sizes: (g,) its documents among the attended that are ranked.
        weights: (g,) their weights together.
    """

    labels: Sequence[Json]
    of: Int64
    leaders: Int64
    sizes: Int64
    weights: Float64


@dataclass(frozen=True)
class Listed:
    """A page of the attended.

    Attributes:
        at: (k,) positions among the attended, best first.
        next: the cursor of the following page; None on the last.
    """

    at: Int64
    next: str | None
    groups: Groups | None = None


def listed(
    found: Attended, options: SearchOptions, asked: str, labels: Sequence[Json] | None = None
) -> Listed:
    """The page that the options ask for.

    Args:
        asked: the fingerprint of what was asked, which cursors carry.
        labels: each attended document's value of `group_by`; None where nothing is grouped.

    Raises:
        InvalidRequest: a cursor of something else.
    """
    groups = None if labels is None else grouped(labels, found.weights)
    at = np.arange(len(found.documents)) if groups is None else groups.leaders
    if options.min_score is not None:
        at = at[found.scores[at] >= options.min_score]
    if options.cursor is not None:
        score, row = place(options.cursor, asked, 2)
        at = at[_after(found.scores[at], found.documents[at], score, row)]
    page = at[options.offset : options.offset + options.k]
    if not len(page) or len(at) <= options.offset + options.k:
        return Listed(page, None, groups)
    last = page[-1]
    end = (float(found.scores[last]), int(found.documents[last]))
    return Listed(page, cursor(asked, end), groups)


def grouped(labels: Sequence[Json], weights: Float64) -> Groups:
    """Documents, best first, by their labels; one without is a group of its own."""
    numbers: dict[str, int] = {}
    of = np.array(
        [numbers.setdefault(group_key(label, at), len(numbers)) for at, label in enumerate(labels)],
        dtype=np.int64,
    )
    leaders = np.unique(of, return_index=True)[1].astype(np.int64)
    return Groups(
        labels=labels,
        of=of,
        leaders=leaders,
        sizes=np.bincount(of, minlength=len(numbers)).astype(np.int64),
        weights=np.bincount(of, weights, len(numbers)).astype(np.float64),
    )


def group_key(label: Json, at: int) -> str:
    """The same for what is one group.

    It is JSON, in which 1 and true are two values, and objects with the same members one.
    """
    return f"#{at}" if label is None else json.dumps(label, sort_keys=True)


def _after(scores: Float64, rows: Int64, score: float, row: float) -> np.ndarray:
    """Which rank after a place; of equal scores the lower row comes first."""
    after: np.ndarray = (scores < score) | ((scores == score) & (rows > row))
    return after
