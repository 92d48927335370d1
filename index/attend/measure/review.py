"""The active version against the one before it, by what was used since; and back where it is worse.

Each search that the active version answered is put to the version before, too. Whether that one
has the used hits further up, among those that were shown, is one difference; a test that holds
whenever one looks says when they are too many for chance.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from attend.api.learning import Review
from attend.core.types import Float64, Int64, Json
from attend.learning.evidence import ROLLED_BACK
from attend.learning.task import SIGNIFICANCE
from attend.learning.used import LEAST, examination
from attend.measure.rankings import rank
from attend.measure.statistics import anytime_p
from attend.store.searches import SearchEntry

if TYPE_CHECKING:
    from attend.collection.collection import Collection

MOST_SEARCHES = 20_000
"""The latest searches with a report from which the chance of a look is estimated."""

MOST_REVIEWED = 1000
"""The first searches of a version that are put to the one before: a version that did no worse in as
many is left alone."""


def review(collection: Collection) -> Review | None:
    """Compare the active version with the one before by the use since, and go back if it is worse.

    Only a version that a training has promoted is reviewed. Of two equal versions the active one
    is sent back with a chance of at most .05, however often it is reviewed.

    Returns: None where nothing was used since, or no version was promoted over another.

    Raises:
        Conflict: another version was activated meanwhile.
    """
    active, log = collection.store.active("search"), collection.log
    if log is None or active is None or not active.report.get("promoted"):
        return None
    if collection.settings.encoder is None:  # of queries by vector the log has nothing
        return None
    sent_back: dict[str, Json] = dict(collection.store.settings().get(ROLLED_BACK) or {})
    if not active.parent or str(active.parent) in sent_back:
        return None
    entries = log.latest(MOST_SEARCHES, judged=True)
    looks = examination(entries, max((len(entry.rows) for entry in entries), default=1))
    since = [
        entry
        for entry in reversed(entries)
        if entry.version == active.version and entry.query and entry.used and entry.draft is None
    ][:MOST_REVIEWED]
    if not since:
        return None
    places = [_places(collection, number, since) for number in (active.parent, active.version)]
    gains = _gains(since, looks, *places)
    p = float(anytime_p(gains, greater=True)[-1])
    worse = p <= SIGNIFICANCE
    reason = (
        f"Of {len(since)} searches whose use was reported since, version {active.parent} has the "
        f"used hits {'further up' if gains.mean() > 0 else 'no further up'} than version "
        f"{active.version} (p = {p:.4f})"
    )
    if worse:
        reason += f": version {active.parent} answers again."
        figures = {"to": active.parent, "time": time.time(), "searches": len(since), "p": p}
        sent_back[str(active.version)] = figures
        collection.activate(
            active.parent, active.version, force=True, settings={ROLLED_BACK: sent_back}
        )
    else:
        reason += "; nothing shows that it is worse."
    return Review(active.version, active.parent, len(since), float(gains.mean()), p, worse, reason)


def _places(collection: Collection, version: int, entries: Sequence[SearchEntry]) -> list[Int64]:
    """Return the place of each shown hit among those of its search, as a version ranks them.

    Feedback moves no query: by now it may be what these very searches gave.
    """
    rows = np.array(sorted({row for entry in entries for row in entry.rows}), dtype=np.int64)
    documents = collection.store.documents(rows, texts=False)
    queries = {entry.id: entry.query or "" for entry in entries}
    rankings = rank(collection, queries, projection=version, memory=0.0).rankings
    places = []
    for entry in entries:
        listed = {id: place for place, id in enumerate(rankings[entry.id].documents)}
        names = [documents[row].id if row in documents else "" for row in entry.rows]
        order = np.argsort([listed.get(name, len(listed)) for name in names], kind="stable")
        places.append(np.argsort(order, kind="stable"))
    return places


def _gains(
    entries: Sequence[SearchEntry], looks: Float64, before: list[Int64], after: list[Int64]
) -> Float64:
    """Return how much higher the version before ranks the used hits of each search (n,), as a
    share of the most that it could lose: -1 or more."""
    weights, discounts = 1 / np.maximum(looks, LEAST), 1 / np.log2(np.arange(len(looks)) + 2)
    most = max(float(((discounts - discounts[-1]) * weights).max()), 1e-9)
    gains = np.zeros(len(entries))
    for number, entry in enumerate(entries):
        used = np.array(sorted(entry.used or ()))
        first, second = (discounts[side[number][used]] for side in (before, after))
        gains[number] = ((first - second) * weights[used]).mean() / most
    return gains
