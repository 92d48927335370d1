"""Listing: which of the attended documents a page shows, one of each group, page by page."""

from __future__ import annotations

import base64
import hashlib
import json
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attend.api.search import SearchRequest
from attend.attention import Attended
from attend.errors import InvalidRequest
from attend.types import Float64, Int64, Json

PAGE = {"k", "offset", "cursor", "fields", "facets", "title", "highlight", "explain"}
"""Options of the page, which may change from one page to the next."""

DIGEST = 8
"""Bytes of the fingerprint; it guards against mistakes and not against attacks."""


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


def fingerprint(*parts: str | bytes) -> str:
    """Return what a cursor belongs to: the same for the same request."""
    digest = hashlib.blake2b(digest_size=DIGEST)
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        # With its length, so that no two lists of parts read the same.
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


def cursor(request: str, place: Sequence[float]) -> str:
    """Return the end of a page as a text for an address line.

    It holds the place of the last item in the order of the list. It is no position: what comes or
    goes before that place moves nothing.

    Args:
        request: the fingerprint of the request.
        place: of the last item; numbers.
    """
    text = json.dumps([request, *place], separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(text).decode().rstrip("=")


def place(cursor: str, request: str, length: int) -> list[float]:
    """Return the place that a cursor holds, `length` numbers.

    Raises:
        InvalidRequest: it is not a cursor, or one of another request.
    """
    try:
        data = base64.urlsafe_b64decode(cursor.encode() + b"=" * (-len(cursor) % 4))
        belongs_to, *numbers = json.loads(data)
    except (ValueError, TypeError):
        belongs_to, numbers = None, []
    # Python's JSON reads NaN and Infinity, and integers of any length.
    sound = all(isinstance(number, int | float) and abs(number) < 2**63 for number in numbers)
    if not isinstance(belongs_to, str) or len(numbers) != length or not sound:
        raise InvalidRequest(
            f"{cursor[:40]!r} is no cursor; send `next` of the page before, as it is.",
            field="cursor",
        )
    if belongs_to != request:
        raise InvalidRequest(
            "The cursor belongs to another request, or to another projection version; send the "
            "request as before, or begin again without it.",
            field="cursor",
        )
    return [float(number) if isinstance(number, float) else number for number in numbers]
