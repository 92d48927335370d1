"""Two versions compared by what people used: interleaved pages, and lists of what was shown.

A hit gains 1/log2(rank + 1) where a version ranks it, among the hits of its page alone (condensed
lists, Sakai 2007): what was not shown could not be used, and speaks for neither version.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from attend.api.base import parse
from attend.api.learning import Difference, LogComparison, LoggedVersion
from attend.api.search import MAX_BATCH, SearchRequest
from attend.core.types import Float64
from attend.measure.statistics import (
    CUT,
    LEVEL,
    Interval,
    anytime_interval,
    anytime_p,
    ratio_intervals,
)
from attend.search.answer import Answered
from attend.store.searches import SearchEntry

MAX_USED = 20_000
"""Used searches that are read, the newest."""

MAX_TEXTS = 500
"""Texts that are ranked in one request: each is ranked twice, and somebody waits."""

DEPTH = 100
"""Documents ranked for each text."""

LEAST_EXAMINED = 0.05
"""Propensities are clipped here: a use counts 20 times at most."""

NEEDED = 25.0
"""Searches that name the better one in 95 % of runs, times (mean / standard deviation)²."""

Lists = Callable[[Sequence[str], int], Sequence[Sequence[int]]]
"""Returns the rows that a version lists for each of some texts, best first."""


def compare_uses(
    entries: Sequence[SearchEntry],
    versions: tuple[int, int],
    lists: Lists,
    examined: Float64,
    *,
    queries: int,
) -> LogComparison:
    """Compare two versions by logged searches of which somebody said what served.

    Interleaved pages tell which version is better: each gives the mean gain of its used hits under
    the second version less that under the first, and a test that holds at any time tells whether
    these differ. All pages tell how much a used hit gains under either (SNIPS; Swaminathan and
    Joachims 2015; for rankings Joachims, Swaminathan and Schnabel 2017).

    Args:
        entries: the newest first.
        lists: see `Lists`; called for texts of queries.
        examined: (ranks,), the chance that somebody looks at each rank of a page.
        queries: the largest number of different texts that are ranked, the newest.
    """
    served = [entry for entry in entries if any((entry.used or {}).values())]
    drafted = [
        _measured(entry, [entry.draft[version] for version in versions], examined)
        for entry in reversed(served)
        if entry.draft is not None and entry.draft.keys() == set(versions)
    ]
    scores = np.array([page[0] for page in drafted])
    advantage, better = None, None
    if len(scores):
        interval, p = anytime_interval(scores), float(anytime_p(scores)[-1])
        advantage = Difference(interval.mean, interval.bounds, p)
        better = versions[int(interval.mean > 0)] if p <= 1 - LEVEL else None
    wins = int((scores < 0).sum()), int((scores > 0).sum())
    pages = np.array(list(_listed(served, versions, lists, examined, queries)))  # (n, 6)
    gains: list[Interval] = []
    figures: list[tuple[Any, Any, Any]] = [(None, None, None)] * 2
    if len(pages):
        sums = pages[:, 1:3]
        gains = ratio_intervals(np.column_stack([sums, sums[:, 1] - sums[:, 0]]), pages[:, 3])
        coverage = pages[:, 4:6].mean(axis=0).tolist()
        figures = [(gains[side].mean, gains[side].bounds, coverage[side]) for side in (0, 1)]
    sides = [LoggedVersion(versions[side], wins[side], *figures[side]) for side in (0, 1)]
    more = _more(scores) if better is None else None
    return LogComparison(
        before=sides[0],
        after=sides[1],
        better=better,
        sentence=_sentence(versions, better, wins, advantage, more),
        interleaved=len(scores),
        advantage=advantage,
        more=more,
        searches=len(pages),
        gain=gains[2].mean if gains else None,
        gain_interval=gains[2].bounds if gains else None,
    )


def rows_listed(
    answered: Callable[[Sequence[SearchRequest]], Sequence[Answered]],
    texts: Sequence[str],
    version: int,
) -> list[list[int]]:
    """Return the rows that a version lists for each text, without stored feedback: what was used
    may be among it."""
    fields = {"k": DEPTH, "projection": version, "memory": 0.0}
    requests = [parse(SearchRequest, {"query": text, **fields}) for text in texts]
    return [
        result.rows.tolist()
        for start in range(0, len(requests), MAX_BATCH)
        for result in answered(requests[start : start + MAX_BATCH])
    ]


def condensed(ranks: Sequence[int]) -> Float64:
    """Return the gains (k,) of the hits of a page, by their ranks in a version's list.

    The page is ordered as that list, in which the hits above and between that are not on the page
    are left out. Hits that the list does not have (rank 0) share what is left.

    >>> condensed([3, 0, 1]).round(3).tolist()
    [0.631, 0.5, 1.0]
    """
    places = np.array(ranks)
    discounts = np.where(np.arange(len(places)) < CUT, 1 / np.log2(np.arange(len(places)) + 2), 0)
    order = np.argsort(np.where(places > 0, places, np.iinfo(np.int64).max), kind="stable")
    listed = int((places > 0).sum())
    discounts[listed:] = discounts[listed:].mean() if listed < len(places) else 0
    gains = np.empty(len(places))
    gains[order] = discounts
    return gains


def _measured(
    entry: SearchEntry, ranks: Sequence[Sequence[int]], examined: Float64
) -> tuple[float, ...]:
    """Measure a used page by the ranks of its hits under either version.

    Returns: how much better the second version ranks what was used, from -1 to 1; the sums of gains
        under both and of weights, for SNIPS; the shares of both versions' first hits on the page.
    """
    values = np.array([(entry.used or {}).get(rank, 0.0) for rank in range(len(entry.rows))])
    values /= values.max()
    chances = np.maximum(examined[: len(values)], LEAST_EXAMINED)
    before, after = (condensed(side) for side in ranks)
    # √(1/p) is between 1/p, which has no bias, and 1, which has the least variance.
    score = np.clip(values @ ((after - before) / np.sqrt(chances)), -1, 1)
    weights = values / chances
    shown = [np.mean([0 < rank <= len(values) for rank in side]) for side in ranks]
    numbers = score, weights @ before, weights @ after, weights.sum(), *shown
    return tuple(map(float, numbers))


def _listed(
    served: Sequence[SearchEntry],
    versions: tuple[int, int],
    lists: Lists,
    examined: Float64,
    queries: int,
) -> Iterator[tuple[float, ...]]:
    """Measure the used pages of texts, ranked by both versions as they are now."""
    newest = dict.fromkeys(entry.query for entry in served if entry.query is not None)
    texts = list(newest)[:queries]
    ranked = [
        {
            text: {row: rank for rank, row in enumerate(rows, start=1)}
            for text, rows in zip(texts, lists(texts, version), strict=True)
        }
        for version in versions
    ]
    for entry in served:
        if entry.query in ranked[0]:
            ranks = [[side[entry.query].get(row, 0) for row in entry.rows] for side in ranked]
            yield _measured(entry, ranks, examined)


def _more(scores: Float64) -> int | None:
    """Return about how many more searches would tell; None where that cannot be told."""
    if not len(scores):
        return None
    mean, spread = float(scores.mean()), float(scores.std())
    if not spread or abs(mean) * math.sqrt(len(scores)) < spread:
        return None
    needed = NEEDED * (spread / mean) ** 2
    return max(1, math.ceil(needed) - len(scores))


def _sentence(
    versions: tuple[int, int],
    better: int | None,
    wins: tuple[int, int],
    advantage: Difference | None,
    more: int | None,
) -> str:
    before, after = versions
    if advantage is None:
        return (
            f"No search was used yet that interleaved versions {before} and {after}; set "
            f"interleave to [{before}, {after}] while one of them is active."
        )
    counted = f"interleaved searches ({before}: {wins[0]:,} wins, {after}: {wins[1]:,})"
    if better is not None:
        return f"Version {better} is better, by {counted}; p = {advantage.p:.4f}."
    needed = f"About {more:,} more may tell." if more else "How many more it takes is not clear."
    return f"Not told apart by {counted}; p = {advantage.p:.3f}. {needed}"
