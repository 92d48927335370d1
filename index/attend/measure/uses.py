"""Two versions compared by what people used: interleaved pages, and lists of what was shown.

A hit gains 1/log2(rank + 1) where a version ranks it, among the hits of its page alone (condensed
lists, Sakai 2007): what was not shown could not be used, and speaks for neither version.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

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


class Page(NamedTuple):
    """A used page.

    Attributes:
        gains: (k, 2), what each hit gains under either version.
        used: (k,) how much each served, 1 for the one that served most.
        coverage: (2,) the share of either version's first hits that the page shows.
    """

    gains: Float64
    used: Float64
    coverage: Float64


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
    served = [entry for entry in entries if entry.used]
    chances = np.maximum(examined, LEAST_EXAMINED)
    drafted = [
        page
        for entry in reversed(served)
        if entry.draft is not None and set(entry.draft.versions) == set(versions)
        if (page := _drafted(entry, versions)) is not None
    ]
    # √(1/p) is between 1/p, which has no bias, and 1, which has the least variance.
    scores = np.array([_score(page, np.sqrt(chances)) for page in drafted])
    test = anytime_p(scores) if len(scores) else np.ones(1)
    interval = anytime_interval(scores) if len(scores) else None
    better = None
    if interval is not None and test[-1] <= 1 - LEVEL:
        better = versions[int(interval.mean > 0)]
    pages = _listed(served, versions, lists, queries)
    gains, coverage = _gains(pages, chances), np.full(2, np.nan)
    if pages:
        coverage = np.mean([page.coverage for page in pages], axis=0)
    wins = [int((scores < 0).sum()), int((scores > 0).sum())]
    more = _more(scores) if better is None else None
    sides = [
        LoggedVersion(
            versions[side],
            wins[side],
            gains[side].mean if gains else None,
            gains[side].bounds if gains else None,
            float(coverage[side]) if pages else None,
        )
        for side in (0, 1)
    ]
    return LogComparison(
        before=sides[0],
        after=sides[1],
        better=better,
        sentence=_sentence(versions, better, wins, len(scores), float(test[-1]), more),
        interleaved=len(scores),
        advantage=None
        if interval is None
        else Difference(interval.mean, interval.bounds, float(test[-1])),
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


def _drafted(entry: SearchEntry, versions: tuple[int, int]) -> Page | None:
    """Return an interleaved page, by the ranks that were logged."""
    assert entry.draft is not None  # the caller chose it
    sides = (0, 1) if entry.draft.versions == versions else (1, 0)
    return _page(entry, [[ranks[side] for ranks in entry.draft.ranks] for side in sides])


def _page(entry: SearchEntry, ranks: Sequence[Sequence[int]]) -> Page | None:
    """Return a page by the ranks of its hits under either version; None for want of use."""
    assert entry.used is not None  # the caller chose it
    values = np.array([entry.used.get(rank, 0.0) for rank in range(len(entry.rows))])
    if not values.any():
        return None
    shown = [[0 < rank <= len(values) for rank in side] for side in ranks]
    gains = np.stack([condensed(side) for side in ranks], axis=1)
    return Page(gains, values / values.max(), np.mean(shown, axis=1))


def _score(page: Page, chances: Float64) -> float:
    """Return how much better the second version ranks what was used, from -1 to 1."""
    gain = page.gains[:, 1] - page.gains[:, 0]
    return float(np.clip((page.used * gain / chances[: len(gain)]).sum(), -1, 1))


def _listed(
    served: Sequence[SearchEntry], versions: tuple[int, int], lists: Lists, queries: int
) -> list[Page]:
    """Return the used pages of texts, ranked by both versions as they are now."""
    newest = dict.fromkeys(entry.query for entry in served if entry.query is not None)
    texts = [text for text in newest if text is not None][:queries]
    ranked = [
        {
            text: {row: rank for rank, row in enumerate(rows, start=1)}
            for text, rows in zip(texts, lists(texts, version), strict=True)
        }
        for version in versions
    ]
    pages = []
    for entry in served:
        if entry.query in ranked[0]:
            ranks = [[side[entry.query].get(row, 0) for row in entry.rows] for side in ranked]
            pages.append(_page(entry, ranks))
    return [page for page in pages if page is not None]


def _gains(pages: Sequence[Page], chances: Float64) -> list[Interval] | None:
    """Return the mean gain of a use under both versions, and the difference."""
    if not pages:
        return None
    weights = [page.used / chances[: len(page.used)] for page in pages]
    sums = np.array([weight @ page.gains for weight, page in zip(weights, pages, strict=True)])
    columns = np.column_stack([sums, sums[:, 1] - sums[:, 0]])  # (n, 3)
    return ratio_intervals(columns, [weight.sum() for weight in weights])


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
    wins: Sequence[int],
    searches: int,
    p: float,
    more: int | None,
) -> str:
    before, after = versions
    if not searches:
        return (
            f"No search was used yet that interleaved versions {before} and {after}; set "
            f"interleave to [{before}, {after}] while one of them is active."
        )
    counted = f"{searches:,} used searches ({before}: {wins[0]:,} wins, {after}: {wins[1]:,})"
    if better is not None:
        return f"Version {better} is better, by {counted}; p = {p:.4f}."
    needed = f"About {more:,} more may tell." if more else "How many more it takes is not clear."
    return f"Not told apart by {counted}; p = {p:.3f}. {needed}"
