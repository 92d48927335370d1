"""Comparing two projection versions of one collection on the same judged queries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from attend.collection import Collection
from attend.errors import InvalidRequest
from attend.measure.changes import Changes, changes
from attend.measure.rankings import MEASURES, Qrels, Ranked, judged, measure, rank
from attend.measure.sides import Side, side
from attend.measure.statistics import mean_intervals, paired_randomisation
from attend.types import QueryInput

MEASURE = "ndcg@10"
"""By which gains are told unless another is asked for."""

EXAMPLES = 5
"""Queries told of those that gained most, and of those that lost most."""

Version = int | Literal["active"]


class Difference(NamedTuple):
    """A mean difference, its 95 % interval, and how easily chance makes one as large."""

    mean: float
    low: float
    high: float
    p: float


@dataclass(frozen=True)
class Comparison:
    """Two versions side by side; every difference and gain is after less before.

    Attributes:
        measure: the one by which changes are told.
        differences: measure → difference.
    """

    measure: str
    before: Side
    after: Side
    differences: Mapping[str, Difference]
    changes: Changes

    @property
    def disturbed(self) -> bool:
        """Whether the collection changed while the two were ranking."""
        return len({*self.before.ranked.generations, *self.after.ranked.generations}) > 1


def compare(
    collection: Collection,
    queries: Mapping[str, QueryInput],
    qrels: Qrels,
    versions: tuple[Version, Version],
    *,
    by: str = MEASURE,
    examples: int = EXAMPLES,
    on_progress: Callable[[int], object] = lambda queries: None,
    **options: Any,
) -> Comparison:
    """Rank the judged queries with both versions and tell what changed.

    Args:
        queries: query id → text or vector (d,).
        versions: before and after, each a projection version or "active".
        by: a name of MEASURES, by which gains are told.
        on_progress: called with the number of queries ranked since; each is ranked twice.
        options: fields of `SearchOptions`, the same for both.

    Raises:
        InvalidRequest: the measure is not known.
        UnknownProjection: there is no such version.
        SourceError: no query is judged.
    """
    _check_measure(by)
    asked = judged(queries, qrels)
    active = collection.store.state().projection
    wanted = [active if version == "active" else version for version in versions]
    for version in wanted:
        collection.views.current(version)  # one that is not there is told before any is ranked
    before, after = (
        rank(collection, asked, on_progress=on_progress, projection=version, **options)
        for version in wanted
    )
    return compare_rankings(collection, asked, qrels, (before, after), by=by, examples=examples)


def compare_rankings(
    collection: Collection,
    queries: Mapping[str, QueryInput],
    qrels: Qrels,
    ranked: tuple[Ranked, Ranked],
    *,
    by: str = MEASURE,
    examples: int = EXAMPLES,
) -> Comparison:
    """As `compare`, of rankings that are there; every query is judged and ranked."""
    _check_measure(by)
    grades = {id: qrels[id] for id in queries}
    evaluations = [measure(grades, each.run(), collection) for each in ranked]
    before, after = (each.columns() for each in evaluations)  # (q, m) each
    # One drawing of queries serves both versions and their difference.
    intervals = mean_intervals(np.hstack([before, after, after - before]))
    width = len(MEASURES)
    differences = {
        name: Difference(*interval, paired_randomisation(after[:, at], before[:, at]))
        for at, (name, interval) in enumerate(zip(MEASURES, intervals[2 * width :], strict=True))
    }
    place = list(MEASURES).index(by)
    return Comparison(
        measure=by,
        before=side(ranked[0], evaluations[0], grades, intervals[:width]),
        after=side(ranked[1], evaluations[1], grades, intervals[width : 2 * width]),
        differences=differences,
        changes=changes(
            collection, queries, grades, ranked, (before[:, place], after[:, place]), examples
        ),
    )


def _check_measure(name: str) -> None:
    if name not in MEASURES:
        raise InvalidRequest(
            f"{name!r} is no measure; choose of {', '.join(MEASURES)}.", field="measure"
        )
