"""Compare two projection versions of one collection on the same judged queries.

The comparison has the measures of both with intervals, the difference and the chance of one as
large, the reliability of their confidence, and the queries that gained and lost most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from attend.api.feedback import FeedbackItem
from attend.api.learning import (
    ComparedVersion,
    ComparisonAnswer,
    Difference,
    QueryDifference,
    RankedDocument,
)
from attend.collection.collection import Collection
from attend.core.errors import InvalidRequest
from attend.core.types import Float64, QueryInput, same_question
from attend.measure.rankings import (
    MEASURES,
    Evaluation,
    Qrels,
    RankedQueries,
    judged_queries,
    measure,
    rank,
)
from attend.measure.statistics import (
    UNCHANGED,
    Interval,
    count_gains,
    mean_intervals,
    paired_randomisation,
    reliability,
)

MEASURE = "ndcg@10"
"""The measure that orders gains and losses by default."""

EXAMPLES = 5
"""Queries shown of those that gained most, and of those that lost most."""

SHOWN = 3
"""Documents shown of each ranking."""

SNIPPET = 120
"""Characters shown of a document's text."""

NUMBERS = 4
"""Numbers shown of a query that is a vector."""

MAX_QUERIES = 500
"""Queries compared in one request: each is ranked twice, and somebody waits."""

MAX_EXAMPLES = 10_000
"""Stored examples read for the newest queries."""

VersionName = int | Literal["active"]


def compare(
    collection: Collection,
    queries: Mapping[str, QueryInput],
    qrels: Qrels,
    versions: tuple[VersionName, VersionName],
    *,
    by: str = MEASURE,
    examples: int = EXAMPLES,
    on_progress: Callable[[int], object] = lambda queries: None,
    **options: Any,
) -> ComparisonAnswer:
    """Rank the judged queries with both versions and compare the rankings.

    Args:
        queries: query id → text or vector (d,).
        versions: before and after, each a projection version or "active".
        by: the measure of the gains, a name of MEASURES.
        on_progress: called with the number of queries ranked since; each is ranked twice.
        options: fields of `SearchOptions`, the same for both.

    Raises:
        InvalidRequest: the measure is not known.
        UnknownProjection: a version does not exist.
        SourceError: no query is judged.
    """
    if by not in MEASURES:
        raise InvalidRequest(
            f"Unknown measure {by!r}; choose one of {', '.join(MEASURES)}.", field="measure"
        )
    judged = judged_queries(queries, qrels)
    active = collection.store.state().projection
    numbers = [active if version == "active" else version for version in versions]
    for number in numbers:
        collection.views.current(number)  # an unknown one raises before any query is ranked
    before, after = (
        rank(collection, judged, on_progress=on_progress, projection=number, **options)
        for number in numbers
    )
    return compare_rankings(collection, judged, qrels, (before, after), by=by, examples=examples)


def compare_rankings(
    collection: Collection,
    queries: Mapping[str, QueryInput],
    qrels: Qrels,
    ranked: tuple[RankedQueries, RankedQueries],
    *,
    by: str = MEASURE,
    examples: int = EXAMPLES,
) -> ComparisonAnswer:
    """Compare two rankings, as `compare` does; every query is judged and ranked."""
    grades = {id: qrels[id] for id in queries}
    evaluations = [measure(grades, version.run(), collection) for version in ranked]
    before, after = (evaluation.columns() for evaluation in evaluations)  # (q, m) each
    # The same draws of queries serve both versions and their difference.
    intervals = mean_intervals(np.hstack([before, after, after - before]))
    width = len(MEASURES)
    column = list(MEASURES).index(by)
    gains = after[:, column] - before[:, column]
    counts = count_gains(gains)
    rising = np.argsort(gains, kind="stable")
    lost = [row for row in rising if gains[row] < -UNCHANGED][:examples]
    gained = [row for row in rising[::-1] if gains[row] > UNCHANGED][:examples]
    values = np.stack([before[:, column], after[:, column]], axis=1)  # (q, 2)
    revisions = {revision for version in ranked for revision in version.revisions}
    return ComparisonAnswer(
        before=_version(ranked[0], evaluations[0], grades, intervals[:width]),
        after=_version(ranked[1], evaluations[1], grades, intervals[width : 2 * width]),
        differences={
            name: Difference(
                interval.mean, interval.bounds, paired_randomisation(after[:, i], before[:, i])
            )
            for i, (name, interval) in enumerate(zip(MEASURES, intervals[2 * width :], strict=True))
        },
        measure=by,
        gained=counts.gained,
        lost=counts.lost,
        unchanged=counts.unchanged,
        most_gained=_differences(collection, queries, grades, ranked, values, gained),
        most_lost=_differences(collection, queries, grades, ranked, values, lost),
        histogram={"edges": counts.edges, "counts": counts.counts},
        queries=len(queries),
        unknown_documents=evaluations[0].unknown_documents,
        disturbed=len(revisions) > 1,
    )


def compare_judged(
    collection: Collection,
    versions: tuple[VersionName, VersionName],
    items: Sequence[FeedbackItem] | None = None,
    *,
    by: str = MEASURE,
) -> ComparisonAnswer:
    """Compare two versions on these judgements, or on the newest examples of the collection.

    A version knows what it learned from: only judgements that are new to both show the better one.
    Stored feedback moves no query here, as the examples would find themselves.

    Args:
        by: the measure of the gains.

    Raises:
        InvalidRequest: no query, or too many.
        UnknownProjection: a version does not exist.
    """
    examples = _stored(collection) if items is None else _sent(items)
    ids: dict[str | bytes, str] = {}
    queries: dict[str, QueryInput] = {}
    qrels: dict[str, dict[str, float]] = {}
    for query, document, label in examples:
        id = ids.setdefault(same_question(query), str(len(ids) + 1))
        queries[id] = query
        qrels.setdefault(id, {})[document] = label
    if not queries:
        raise InvalidRequest(
            "No judged query was given, and none is stored; send items, each a query with the id "
            "of a document that answers it, or teach some first.",
            field="items",
        )
    if len(queries) > MAX_QUERIES:
        raise InvalidRequest(
            f"{len(queries)} queries were given, and at most {MAX_QUERIES} are compared at once; "
            f"send fewer, or use attend evaluate --compare.",
            field="items",
        )
    return compare(collection, queries, qrels, versions, by=by, memory=0.0)


def query_text(query: QueryInput) -> str:
    """Write a query for people.

    >>> query_text("a whale hunt"), query_text([1.0, 0.5]), query_text([0.25] * 9)
    ('a whale hunt', '[1, 0.5]', '[0.25, 0.25, 0.25, 0.25, …]')
    """
    if isinstance(query, str):
        return query
    numbers = [f"{number:g}" for number in query[:NUMBERS]]
    return f"[{', '.join([*numbers, '…'] if len(query) > NUMBERS else numbers)}]"


def _sent(items: Iterable[FeedbackItem]) -> list[tuple[QueryInput, str, float]]:
    examples = [item.example() for item in items]
    return [(example.query, example.document, example.weight) for example in examples]


def _stored(collection: Collection) -> list[tuple[QueryInput, str, float]]:
    """Read the newest examples; queries that are vectors are left out, as they have no name."""
    stored = collection.store.latest_examples(MAX_EXAMPLES)
    queries = dict.fromkeys(example.query for example in stored if example.query is not None)
    newest = set(list(queries)[:MAX_QUERIES])
    return [
        (example.query, example.document, example.label)
        for example in stored
        if example.query is not None and example.query in newest
    ]


def _version(
    ranked: RankedQueries, evaluation: Evaluation, qrels: Qrels, intervals: Sequence[Interval]
) -> ComparedVersion:
    """Describe one version; `intervals` are in the order of MEASURES."""
    rankings = ranked.rankings.items()
    relevant = [[qrels[query].get(id, 0) > 0 for id in r.documents] for query, r in rankings]
    # A sum of weights leaves 0 to 1 by its last bit.
    weights = np.clip([ranking.weight for _, ranking in rankings], 0, 1)
    confidences = np.clip([ranking.confidence for _, ranking in rankings], 0, 1)
    return ComparedVersion(
        ranked.projection,
        ranked.calibrated,
        evaluation.measures,
        {name: interval.bounds for name, interval in zip(MEASURES, intervals, strict=True)},
        {
            "weight": reliability(weights, [any(flags[:1]) for flags in relevant]),
            "confidence": reliability(confidences, [any(flags) for flags in relevant]),
        },
    )


def _differences(
    collection: Collection,
    queries: Mapping[str, QueryInput],
    qrels: Qrels,
    ranked: tuple[RankedQueries, RankedQueries],
    values: Float64,
    rows: Sequence[int],
) -> list[QueryDifference]:
    """Describe some queries, by their rows in `values` (q, 2)."""
    ids = list(queries)
    first = {
        ids[row]: [version.rankings[ids[row]].documents[:SHOWN] for version in ranked]
        for row in rows
    }
    shown = {id for rankings in first.values() for ranking in rankings for id in ranking}
    texts = {
        id: _beginning(document.fields.values() or map(str, document.payload.values()))
        for id, document in collection.store.find(list(shown)).items()
    }
    described = []
    for row in rows:
        query, (before, after) = ids[row], values[row].tolist()
        documents = [
            [RankedDocument(id, texts.get(id, ""), qrels[query].get(id)) for id in ranking]
            for ranking in first[query]
        ]
        text = query_text(queries[query])
        described.append(QueryDifference(query, text, before, after, after - before, *documents))
    return described


def _beginning(texts: Iterable[str]) -> str:
    words = " ".join(" ".join(texts).split())
    return words if len(words) <= SNIPPET else f"{words[: SNIPPET - 1]}…"
