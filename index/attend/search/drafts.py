"""Pages that are changed a little, so that their use says more: neighbours swapped, lists drafted.

Weights, confidence and the value of an answer stay as they are; the list alone is changed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from attend.api.search import SearchRequest
from attend.search.answer import Answered
from attend.search.hits import cursor_at
from attend.store.searches import Draft


def is_plain(request: SearchRequest) -> bool:
    """Return whether a request wants the first page of the active version's list, by score alone.

    >>> is_plain(SearchRequest(query="whales")), is_plain(SearchRequest(query="whales", offset=10))
    (True, False)
    """
    others = request.projection, request.cursor, request.group_by, request.coverage
    return not (any(others) or request.offset or request.diversity) and request.k > 1


def swapped(result: Answered) -> tuple[Answered, int | None]:
    """Draw two neighbouring hits, and exchange them with chance 1/2.

    Returns: the answer, and the rank of the upper one, from 0; None for fewer than two hits.
    """
    hits, rows = list(result.answer.hits), result.rows.copy()
    if len(hits) < 2:
        return result, None
    pair = random.randrange(len(hits) - 1)
    if random.getrandbits(1):
        hits[pair], hits[pair + 1] = hits[pair + 1], hits[pair]
        rows[[pair, pair + 1]] = rows[[pair + 1, pair]]
        result = result._replace(answer=replace(result.answer, hits=hits), rows=rows)
    return result, pair


def interleaved(result: Answered, other: Answered) -> tuple[Answered, Draft | None]:
    """Return an answer with a list of both versions, drafted as two captains choose teams.

    A hit that the answer's own version does not list has the other version's score and weight. The
    cursor lies after the last hit above which nothing of the own list is missing: no document is
    missing on the next pages, and one that was drafted early may come again.

    Returns: None where a list could not be drafted without losing a document for good.
    """
    lists = [answered.rows.tolist() for answered in (result, other)]
    page = team_draft(*lists, size=len(result.answer.hits))
    contained = next((at for at, row in enumerate(lists[0]) if row not in page), len(lists[0]))
    following = result.answer.next
    if contained < len(lists[0]):
        if following is None:
            return result, None
        last = result.answer.hits[contained - 1], lists[0][contained - 1]
        following = cursor_at(following, [last[0].score, last[1]])
    hits = dict(zip(lists[1], other.answer.hits, strict=True))
    hits |= dict(zip(lists[0], result.answer.hits, strict=True))
    answer = replace(result.answer, hits=[hits[row] for row in page], next=following)
    ranks = [{row: rank for rank, row in enumerate(rows, start=1)} for rows in lists]
    draft = Draft(
        (result.answer.projection, other.answer.projection),
        [(ranks[0].get(row, 0), ranks[1].get(row, 0)) for row in page],
    )
    return result._replace(answer=answer, rows=np.array(page, dtype=np.int64)), draft


def team_draft(first: Sequence[int], second: Sequence[int], *, size: int) -> list[int]:
    """Interleave two lists (Radlinski, Kurup and Joachims 2008): in each round both choose their
    best that is not on the page yet, in an order by lot.

    >>> team_draft([1, 2, 3], [1, 2, 4], size=2)
    [1, 2]
    """
    page: dict[int, None] = {}
    lists = [list(reversed(rows)) for rows in (first, second)]
    while len(page) < size and any(lists):
        random.shuffle(lists)
        for rows in lists:
            while rows and rows[-1] in page:
                rows.pop()
            if rows and len(page) < size:
                page[rows.pop()] = None
    return list(page)
