"""`python -m index evaluate --interactions`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm

from index.cli.common import show, table
from index.cli.interactions import InteractionFile
from index.collection import Collection
from index.comparing.report import bounds, span
from index.evaluating import (
    Errors,
    Evaluation,
    Predict,
    Protocol,
    Recommend,
    errors,
    evaluate,
    is_liked,
    protocol_of,
    read_ids,
)
from index.evaluating.interactions import CUT, History
from index.recommend.answers import Predicted, Recommended
from index.recommend.requests import MAX_TARGETS
from index.store import Interaction

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
    later = test.read(collection).interactions
    before = _before(collection, test, history)
    withheld = None if cold is None else _known(collection, cold)
    protocol = protocol_of(later, before, withheld)
    catalogue = collection.store.counts()[0] if withheld is None else len(withheld)
    with tqdm(total=len(protocol.asked), unit="user", file=sys.stderr) as progress:
        recommend = _recommending(collection, withheld, projection)
        found = evaluate(protocol, recommend, catalogue, progress.update)
    numbers = None
    if withheld is None and projection is None:
        numbers = errors(later, before, _predicting(collection))
    _show(found, protocol, numbers, as_json)


def _recommending(
    collection: Collection, withheld: Sequence[str] | None, projection: int | None
) -> Recommend:
    options: dict[str, Any] = {"k": CUT}
    if withheld is not None:
        options["filter"] = {"@id": {"in": withheld}}
    if projection is not None:
        options["projection"] = projection

    def recommend(user: str, met: History) -> Sequence[str]:
        # What was not liked asks for nothing, but is not to be recommended again.
        history = [{"id": each.document, "weight": float(is_liked(each))} for each in met]
        found = collection.recommend(history=history, **options)
        assert isinstance(found, Recommended)  # as no target was asked for
        return [hit.id for hit in found.hits]

    return recommend


def _predicting(collection: Collection) -> Predict:
    def predict(met: History, documents: Sequence[str]) -> Sequence[float]:
        history = [{"id": each.document, "value": each.value, "time": each.time} for each in met]
        told: list[float] = []
        for at in range(0, len(documents), MAX_TARGETS):
            part = list(documents[at : at + MAX_TARGETS])
            found = collection.recommend(history=history, target=part)
            assert isinstance(found, Predicted)
            told += [float(each["mean"]) for each in found.predictions]  # type: ignore[arg-type]
        return told

    return predict


def _before(
    collection: Collection, test: InteractionFile, history: str | None
) -> Sequence[Interaction]:
    """What users met before: by a file, or what is stored of them."""
    if history is not None:
        return test.beside(history).read(collection).interactions
    found: list[Interaction] = []
    after: tuple[int, int] | None = (0, 0)
    while after is not None:
        page = collection.store.interaction_page(after, PAGE)
        found += page.interactions
        after = page.next
    return found


def _known(collection: Collection, cold: Path) -> list[str]:
    """The withheld documents that there are."""
    ids = read_ids(cold)
    rows = collection.store.rows_of(ids)
    if len(rows) < len(ids):
        click.echo(f"{len(ids) - len(rows)} ids of {cold} are not in the collection.", err=True)
    return list(rows)


def _show(found: Evaluation, protocol: Protocol, numbers: Errors | None, as_json: bool) -> None:
    intervals = found.intervals()
    measures = {name: round(value, 5) for name, value in found.measures.items()}
    beside = {"coverage": round(found.coverage, 5), "novelty": round(found.novelty, 5)}
    if numbers is not None:
        beside |= {"rmse": round(numbers.rmse, 5), "mae": round(numbers.mae, 5)}
    counts = {
        "users": len(found.by_user),
        "users_without_history": protocol.without_history,
        "left_out": protocol.left_out,
        **({} if numbers is None else {"ratings": len(numbers.differences)}),
    }
    told = {"intervals": {name: bounds(each) for name, each in intervals.items()}}
    rows: list[tuple[str, object]] = [
        *((name, f"{value:.4f}  {span(intervals[name])}") for name, value in measures.items()),
        *((name, f"{value:.4f}") for name, value in beside.items()),
        *((name.replace("_", " "), count) for name, count in counts.items()),
    ]
    text = f"{table(rows)}\nIn brackets: 95 % intervals over users."
    show(as_json, {**measures, **beside, **told, **counts}, text)
