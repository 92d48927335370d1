"""Two versions compared by what people used: interleaved pages, and lists of what was shown.

Of an interleaved page both versions' ranks of every hit are known. Of any other page a hit gains
1/log2(rank + 1) where a version ranks it, among the hits of its page alone (condensed lists, Sakai
2007): what was not shown could not be used, and speaks for neither version.
"""

from __future__ import annotations

import math
from collections import defaultdict
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

PRIOR = (0.3, 1.0)
"""Uses of a hit, and looks at it, before any is known."""

LIKELY = 0.5
"""Uses a look from which on a hit is taken to be right."""

DOUBLINGS = 4.0
"""How many times the rank is halved for an advantage of 1: nearly all of a page of ten."""

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
    one_sided: bool = False,
) -> LogComparison:
    """Compare two versions by logged searches of which somebody said what served.

    Interleaved pages tell which version is better: each tells how much further up the second one
    ranks what was used (`advantages`), and a test that holds at any time tells whether the mean
    differs from 0. All pages tell how much a used hit gains under either (SNIPS; Swaminathan and
    Joachims 2015; for rankings Joachims, Swaminathan and Schnabel 2017).

    Args:
        entries: the newest first.
        lists: see `Lists`; called for texts of queries.
        examined: (ranks,), the chance that somebody looks at each rank of a page.
        queries: the largest number of different texts that are ranked, the newest.
        one_sided: name each version with a chance of .05 where it is no better than the other; else
            either of them.
    """
    served = [entry for entry in entries if any((entry.used or {}).values())]
    scores = advantages(entries, versions, examined)
    advantage, better = None, None
    if len(scores):
        second, first = (anytime_p(sign * scores, greater=True)[-1] for sign in (1, -1))
        p = float(min(first, second) if one_sided else anytime_p(scores)[-1])
        interval = anytime_interval(scores)
        advantage = Difference(interval.mean, interval.bounds, p)
        better = versions[int(second < first)] if p <= 1 - LEVEL else None
    wins = int((scores < 0).sum()), int((scores > 0).sum())
    pages = np.array(list(_listed(served, versions, lists, examined, queries)))  # (n, 5)
    gains: list[Interval] = []
    figures: list[tuple[Any, Any, Any]] = [(None, None, None)] * 2
    if len(pages):
        sums = pages[:, :2]
        gains = ratio_intervals(np.column_stack([sums, sums[:, 1] - sums[:, 0]]), pages[:, 2])
        coverage = pages[:, 3:].mean(axis=0).tolist()
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


def advantages(
    entries: Sequence[SearchEntry], versions: tuple[int, int], examined: Float64
) -> Float64:
    """Return how much further up the second version ranks what was used of each page (n,) that
    interleaves two, the oldest first.

    A use counts log2 of one rank over the other, in units of DOUBLINGS, and less where the hit was
    used for the same query before less often than LIKELY of the times that it was looked at: what
    many passed over is used by mistake. More would count questions by chance, and name one of two
    versions that win as much as they lose.

    Args:
        entries: the newest first.
        examined: see `compare_uses`.
    """
    past: dict[tuple[str, int], Float64] = defaultdict(lambda: np.array(PRIOR))
    scores = []
    for entry in reversed([entry for entry in entries if entry.used is not None]):
        before = [past[entry.query or entry.id, row] for row in entry.rows]
        values, draft = _values(entry), entry.draft or {}
        if values.any() and draft.keys() == set(versions):
            trust = np.array([min(uses / looks / LIKELY, 1.0) for uses, looks in before])
            first, second = (np.array(draft[version]) for version in versions)
            first[first == 0] = second[second == 0] = 2 * len(values)  # not listed
            scores.append(values @ (trust * np.log2(first / second)) / DOUBLINGS)
        for counts, value, look in zip(before, values, examined, strict=False):
            counts += value, look
    return np.asarray(np.clip(scores, -1, 1))


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


def _values(entry: SearchEntry) -> Float64:
    """Return how much each hit of a page served (k,), 1 for the one that served most."""
    used = entry.used or {}
    most = max(used.values(), default=0) or 1.0
    return np.array([used.get(rank, 0.0) / most for rank in range(len(entry.rows))])


def _listed(
    served: Sequence[SearchEntry],
    versions: tuple[int, int],
    lists: Lists,
    examined: Float64,
    queries: int,
) -> Iterator[tuple[float, ...]]:
    """Measure the used pages of texts, ranked by both versions as they are now.

    Yields: the sums of gains under both and of weights, for SNIPS; the shares of both versions'
        first hits on the page.
    """
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
            values = _values(entry)
            weights = values / np.maximum(examined[: len(values)], LEAST_EXAMINED)
            sums = [float(weights @ condensed(side)) for side in ranks]
            shown = [sum(0 < rank <= len(side) for rank in side) / len(side) for side in ranks]
            yield *sums, float(weights.sum()), *shown


def _more(scores: Float64) -> int | None:
    """Return about how many more searches would tell; None where that cannot be told."""
    spread = float(scores.std()) if len(scores) else 0.0
    strength = abs(float(scores.mean())) / spread if spread else 0.0
    if strength * math.sqrt(len(scores)) < 1:
        return None
    return max(1, math.ceil(NEEDED / strength**2) - len(scores))


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
