"""`attend evaluate --interactions`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm

from attend.api.answers import Recommended
from attend.cli.common import show, table
from attend.cli.interactions import InteractionFile
from attend.collection import Collection
from attend.measure.interactions import (
    CUT,
    Protocol,
    RatingErrors,
    TopNEvaluation,
    UserHistory,
    evaluate,
    numbers_by_user,
    protocol_of,
    rating_errors,
    read_ids,
)
from attend.measure.report import bounds, span
from attend.store import Interaction

PAGE = 10_000
"""Stored interactions read at once."""


def evaluate_interactions(
    collection: Collection,
    test: InteractionFile,
    history: str | None,
    cold: Path | None,
    projection: int | None,
    as_json: bool,
) -> None:
    """Recommend to the users of a test, and show how much of what they met was found."""
    later = test.read(collection).entries
    before = _stored(collection) if history is None else test.beside(history).read(collection)
    withheld = None if cold is None else _known(collection, cold)
    earlier = before if isinstance(before, list) else before.entries
    protocol = protocol_of(later, earlier, withheld)
    catalogue = collection.store.counts()[0] if withheld is None else len(withheld)

    def recommend(user: str, met: UserHistory) -> Sequence[str]:
        history = [{"id": each.document, "value": each.value} for each in met]
        fields: dict[str, Any] = {"history": history, "k": CUT}
        if withheld is not None:
            fields["filter"] = {"@id": {"in": withheld}}
        if projection is not None:
            fields["projection"] = projection
        found = collection.recommend(**fields)
        assert isinstance(found, Recommended)  # as no target was named
        return [hit.id for hit in found.hits]

    with tqdm(total=len(protocol.relevant), unit="user", file=sys.stderr) as progress:
        found = evaluate(protocol, recommend, catalogue, progress.update)
    asked = [each for each in later if withheld is None or each.document in withheld]
    raters = numbers_by_user(asked)
    # None of them, as after plain meetings, is nothing to show progress of.
    with tqdm(
        total=len(raters), unit="user", desc="predicting", file=sys.stderr, disable=not raters
    ) as progress:
        ratings = rating_errors(collection, protocol.histories, raters, progress.update)
    _show(found, protocol, ratings, as_json)


def _known(collection: Collection, cold: Path) -> list[str]:
    """The withheld documents that there are."""
    ids = read_ids(cold)
    rows = collection.store.rows_of(ids)
    if len(rows) < len(ids):
        click.echo(f"{len(ids) - len(rows)} ids of {cold} are not in the collection.", err=True)
    return list(rows)


def _stored(collection: Collection) -> list[Interaction]:
    found: list[Interaction] = []
    after: tuple[int, int] | None = (0, 0)
    while after is not None:
        page = collection.store.interaction_page(after, PAGE)
        found += page.interactions
        after = page.next
    return found


def _show(
    found: TopNEvaluation, protocol: Protocol, ratings: RatingErrors | None, as_json: bool
) -> None:
    intervals, measures = found.intervals(), found.measures
    if ratings is not None:
        intervals, measures = intervals | ratings.intervals(), measures | ratings.measures
    measures = {name: round(value, 5) for name, value in measures.items()}
    beside = {"coverage": round(found.coverage, 5), "novelty": round(found.novelty, 5)}
    counts = {
        "users": len(found.by_user),
        "users_without_history": protocol.without_history,
        "left_out": protocol.left_out,
        "ratings": 0 if ratings is None else len(ratings.errors),
    }
    told = {"intervals": {name: bounds(each) for name, each in intervals.items()}}
    rows: list[tuple[str, object]] = [
        *((name, f"{value:.4f}  {span(intervals[name])}") for name, value in measures.items()),
        ("coverage", f"{found.coverage:.4f}"),
        ("novelty", f"{found.novelty:.2f} bits"),
        *((name.replace("_", " "), count) for name, count in counts.items()),
    ]
    text = f"{table(rows)}\nIn brackets: 95 % intervals over users."
    show(as_json, {**measures, **beside, **told, **counts}, text)
