"""Listing: which of the attended documents a page shows, one of each group, page by page."""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attend.api.search import SearchRequest
from attend.attention import Attended
from attend.search.paging import cursor, fingerprint, place
from attend.types import Float64, Int64, Json

PAGE = {"k", "offset", "cursor", "fields", "facets", "title", "highlight", "explain"}
"""Options of the page, which may change from one page to the next."""


@dataclass(frozen=True)
class Groups:
    """Attended documents (n,) by a value that they share.

    Attributes:
        labels: (n,) each document's value; None where it has none.
        numbers: (n,) the number of each document's group.
        leaders: (g,) the position of the best document of each group, best first.
        sizes: (g,) its documents among the attended that are ranked.
        weights: (g,) the sum of their weights.
    """

    labels: Sequence[Json]
    numbers: Int64
    leaders: Int64
    sizes: Int64
    weights: Float64

    @classmethod
    def of(cls, labels: Sequence[Json], weights: Float64) -> Groups:
        """Group documents, best first; one without a label is a group of its own."""
        numbered: dict[str, int] = {}
        keys = (group_key(label, rank) for rank, label in enumerate(labels))
        numbers = np.array(
            [numbered.setdefault(key, len(numbered)) for key in keys], dtype=np.int64
        )
        leaders = np.unique(numbers, return_index=True)[1].astype(np.int64)
        sizes = np.bincount(numbers, minlength=len(numbered)).astype(np.int64)
        sums = np.bincount(numbers, weights, len(numbered)).astype(np.float64)
        return cls(labels, numbers, leaders, sizes, sums)

    def extra(self, rank: int) -> dict[str, Any]:
        """Return what a hit says of its group."""
        number = int(self.numbers[rank])
        return {
            "group": self.labels[rank],
            "group_size": int(self.sizes[number]),
            "group_weight": float(self.weights[number]),
        }


def group_key(label: Json, rank: int) -> str:
    """Return the same key for what is one group.

    It is JSON, in which 1 and true are two values, and objects with the same members one.
    """
    return f"#{rank}" if label is None else json.dumps(label, sort_keys=True)


@dataclass(frozen=True)
class Listing:
    """A page of the attended.

    Attributes:
        ranks: (k,) positions among the attended, best first.
        next: the cursor of the following page; None on the last.
    """

    ranks: Int64
    next: str | None
    groups: Groups | None = None


def listed(
    attended: Attended, request: SearchRequest, version: int, labels: Sequence[Json] | None
) -> Listing:
    """Return the page that a request wants of its attended documents.

    Args:
        version: the projection that answers; a cursor belongs to one.
        labels: each attended document's value of `group_by`; None where nothing is grouped.

    Raises:
        InvalidRequest: a cursor of another request.
    """
    groups = None if labels is None else Groups.of(labels, attended.weights)
    ranks = np.arange(len(attended.documents)) if groups is None else groups.leaders
    if request.min_score is not None:
        ranks = ranks[attended.scores[ranks] >= request.min_score]
    if request.cursor is not None:
        score, row = place(request.cursor, _fingerprint(request, version), 2)
        scores, rows = attended.scores[ranks], attended.documents[ranks]
        # Of equal scores the lower row comes first.
        ranks = ranks[(scores < score) | ((scores == score) & (rows > row))]
    page = ranks[request.offset : request.offset + request.k]
    if not len(page) or len(ranks) <= request.offset + request.k:
        return Listing(page, None, groups)
    last = page[-1]
    end = (float(attended.scores[last]), int(attended.documents[last]))
    return Listing(page, cursor(_fingerprint(request, version), end), groups)


def _fingerprint(request: SearchRequest, version: int) -> str:
    """Return what a cursor belongs to: the request but for the page, and the version."""
    vector = request.query.vector
    if vector is None:
        return fingerprint(str(version), request.model_dump_json(exclude=PAGE))
    # As JSON a vector takes more time than most searches for it.
    options = request.model_dump_json(exclude=PAGE | {"query"})
    return fingerprint(str(version), options, array("d", vector).tobytes())
