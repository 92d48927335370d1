"""Comparing on judgements as they are taught: of a request, or those that are stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from attend.api.learning import FeedbackItem
from attend.collection import Collection
from attend.errors import InvalidRequest
from attend.measure.compare import MEASURE, Comparison, Version, compare
from attend.measure.rankings import Qrels
from attend.types import QueryInput, same_question

MAX_QUERIES = 500
"""Queries compared at once: each is ranked twice, and somebody waits."""

READ = 10_000
"""Stored examples looked through for the newest queries."""


class Judged(NamedTuple):
    """Queries with their judgements, both by an id of the query."""

    queries: Mapping[str, QueryInput]
    qrels: Qrels


def compare_judged(
    collection: Collection,
    versions: tuple[Version, Version],
    items: Sequence[FeedbackItem] | None = None,
    *,
    by: str = MEASURE,
) -> Comparison:
    """Compare two versions on what is judged here, or on the newest examples of the collection.

    What a version learned from it knows: only judgements that are new to both say which is better.

    Args:
        by: the measure by which gains are told.

    Raises:
        InvalidRequest: no query, or too many.
        UnknownProjection: there is no such version.
    """
    judged = _stored(collection) if items is None else _given(items)
    if not judged.queries:
        raise InvalidRequest(
            "There is nothing judged to compare by: send items, each a query with the id of a "
            "document that answers it, or teach some first.",
            field="items",
        )
    if len(judged.queries) > MAX_QUERIES:
        raise InvalidRequest(
            f"{len(judged.queries)} queries are judged, and at most {MAX_QUERIES} are compared at "
            f"once; send fewer, or use attend evaluate --compare.",
            field="items",
        )
    return compare(collection, judged.queries, judged.qrels, versions, by=by)


def _given(items: Iterable[FeedbackItem]) -> Judged:
    examples = [each.example() for each in items]
    return _gathered((each.query, each.document, each.weight) for each in examples)


def _stored(collection: Collection) -> Judged:
    """The newest; questions that are vectors are left out, since a list of them names none."""
    found = collection.store.latest_examples(READ)
    newest = dict.fromkeys(each.query for each in found if each.query is not None)
    kept = set(list(newest)[:MAX_QUERIES])
    return _gathered(
        (each.query, each.document, each.label)
        for each in found
        if each.query is not None and each.query in kept
    )


def _gathered(said: Iterable[tuple[QueryInput, str, float]]) -> Judged:
    ids: dict[str | bytes, str] = {}
    queries: dict[str, QueryInput] = {}
    qrels: dict[str, dict[str, float]] = {}
    for query, document, label in said:
        id = ids.setdefault(same_question(query), str(len(ids) + 1))
        queries[id] = query
        qrels.setdefault(id, {})[document] = label
    return Judged(queries, qrels)
