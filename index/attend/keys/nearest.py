"""The documents of a segment whose best keys are nearest: by its index, or by a scan."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np

from attend.core.arrays import kth_largest
from attend.core.types import Bool, Float32, Int64
from attend.keys.segment import Segment

OVERFETCH = 1.25
"""Keys fetched for each attended document, times keys per document: most documents are
found by more than one of their keys, so a fetch asks for some more."""

EXTRA = 8
"""Documents found beyond those requested: what engines round may change places with the last."""

FETCHED = 1_000_000
"""Keys fetched at once for a block of queries: some 50 MB with what sorts them."""

QUERIES = 64
"""Queries searched at once at most: enough to share what they read of the keys."""

SCANNED = 4_000_000
"""Scores held at once where keys are scanned for a block of queries: 16 MB, twice over."""


class Proposals(NamedTuple):
    """Documents for each query, ascending, and the share of the true nearest among them."""

    rows: list[Int64]
    recall: float


def nearest(
    segment: Segment, queries: Float32, rows: Int64 | None, attend: int, recall: float | None
) -> Proposals:
    """Return the best documents of one segment for each of the queries (q, d)."""
    allowed = segment.allowed(rows)
    available = len(segment.rows) if allowed is None else int(np.count_nonzero(allowed))
    count = min(attend + EXTRA, available)
    if count == 0:
        return Proposals([np.empty(0, dtype=np.int64)] * len(queries), 1.0)
    crowd = segment.keys / len(segment.rows)
    fetch = int(count * crowd * OVERFETCH) + 1
    results: list[Int64 | None] = [None] * len(queries)
    if segment.vectors.cheaper(len(queries), fetch, int(available * crowd), crowd):
        results = _fetched(segment, queries, allowed, count, fetch, recall)
    # Where a few documents have most of the near keys, fetching more of them ends nowhere.
    short = [place for place, result in enumerate(results) if result is None]
    scanned = _scanned(segment, queries[short], allowed, count) if short else []
    for place, best in zip(short, scanned, strict=True):
        results[place] = best
    best_rows = [result for result in results if result is not None]
    exact = len(short) == len(queries)
    return Proposals(best_rows, 1.0 if exact else segment.vectors.promises(recall))


def _fetched(
    segment: Segment,
    queries: Float32,
    allowed: Bool | None,
    count: int,
    fetch: int,
    recall: float | None,
) -> list[Int64 | None]:
    """Return the `count` best documents by the `fetch` best keys; None for too few."""
    keys = segment.allowed_keys(allowed)
    step = max(1, min(QUERIES, FETCHED // fetch))
    results = []
    for start in range(0, len(queries), step):
        nearest = segment.vectors.search(queries[start : start + step], fetch, keys, recall)
        for scores, positions in zip(*nearest, strict=True):
            ordinals = segment.table.ordinals[positions[positions >= 0]]
            results.append(_first(segment, ordinals, scores, count))
    return results


def _first(segment: Segment, ordinals: Int64, scores: Float32, count: int) -> Int64 | None:
    """Return the best documents of keys by rank; None where more keys must be fetched."""
    if segment.keys == len(segment.rows):  # each is distinct already
        places = np.argsort(ordinals)
        documents = ordinals[places]
    else:
        documents, places = np.unique(ordinals, return_index=True)
    if len(documents) < count:
        return None
    # The worst key that was fetched may have equals that were not.
    more = len(ordinals) == len(scores) and scores[np.sort(places)[count - 1]] == scores[-1]
    return None if more else _best(segment.rows[documents], scores[places], count)


def _best(rows: Int64, scores: Float32, count: int) -> Int64:
    """Return the `count` documents of the largest scores; of equals those of the lowest rows.

    Equals are common: one question is an example of all that answers it.
    """
    if np.isnan(scores.max(initial=-np.inf)):  # proposed, so that it is refused by who scores it
        scores = np.where(np.isnan(scores), np.float32(np.inf), scores)
    last = kth_largest(scores, count)
    selected: Bool = scores > last
    equal = np.flatnonzero(scores == last)
    room = count - np.count_nonzero(selected)
    if room < len(equal):
        equal = equal[np.argsort(rows[equal], kind="stable")[:room]]
    selected[equal] = True
    return rows[selected]


def _scanned(segment: Segment, queries: Float32, allowed: Bool | None, count: int) -> list[Int64]:
    """Return the `count` best documents for each query, by the product with all keys."""
    ordinals = np.arange(len(segment.rows))
    if allowed is not None and np.count_nonzero(allowed) * 2 < len(allowed):
        ordinals = np.flatnonzero(allowed)
    step = max(1, min(QUERIES, SCANNED // max(len(ordinals), segment.table.most_keys)))
    results: list[Int64] = []
    for start in range(0, len(queries), step):
        part = queries[start : start + step]
        # (q, d) @ (d, m) -> (q, m) -> (q, documents)
        with np.errstate(over="ignore", invalid="ignore"):  # who scores these refuses them
            products = [block.best(part @ block.vectors.T) for block in segment.blocks(ordinals)]
        best = products[0] if len(products) == 1 else np.concatenate(products, axis=1)
        if allowed is not None and len(ordinals) == len(allowed):
            best[:, ~allowed] = -np.inf  # a product with a few more is cheaper than a copy
        results += map(partial(_best, segment.rows[ordinals], count=count), best)
    return results
