"""Measure rankings against judgements, by the measures of trec_eval.

`ir_measures` computes all of them (github.com/terrierteam/ir_measures) but nDCG, for which it takes
whole grades only. Ranking and measuring are separate: rankings of any origin can be measured.

Two projection versions of one collection are compared on the same judged queries: the measures of
both with intervals, the difference and the chance of one as large, the reliability of their
confidence, and the queries that gained and lost most.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from attend.api.answers import Answer
from attend.api.base import parse
from attend.api.feedback import FeedbackItem
from attend.api.learning import (
    ComparedVersion,
    ComparisonAnswer,
    Difference,
    QueryDifference,
    RankedDocument,
)
from attend.api.search import MAX_BATCH, SearchRequest
from attend.collection.collection import Collection
from attend.core.arrays import same_question
from attend.core.errors import InvalidRequest, SourceError
from attend.core.types import Float64, QueryInput
from attend.measure import statistics
from attend.measure.statistics import Interval, dcg, ndcg, paired_randomisation
from attend.source import RowItem, RowProblem
from attend.source.rows import Item
from attend.write import labels

DEPTH = 100
"""Documents ranked for each query."""

GRADED = "ndcg@10"
"""The measure to which the size of a grade matters."""

MEASURES = {
    "ndcg@10": "nDCG@10",
    "mrr@10": "RR@10",
    "recall@10": "R@10",
    "recall@100": "R@100",
    "map@100": "AP@100",
    "precision@1": "P@1",
    "precision@10": "P@10",
}

Qrels = Mapping[str, Mapping[str, float]]
"""query id → document id → grade (above 0: relevant; 0 or less: judged and not relevant)."""


class Ranking(NamedTuple):
    """The documents of one query, best first, with their scores, the weight of the best, and the
    confidence."""

    documents: tuple[str, ...]
    weight: float
    confidence: float
    scores: tuple[float, ...] = ()


@dataclass(frozen=True)
class RankedQueries:
    """The rankings of all queries under one projection version.

    Attributes:
        rankings: query id → ranking.
        revisions: the collection's state at the first answer and at the last.
    """

    rankings: Mapping[str, Ranking]
    projection: int
    calibrated: bool
    revisions: tuple[int, int]

    def run(self) -> dict[str, dict[str, float]]:
        """Return query id → document id → score by rank: lists are measured in their order."""
        return {
            query: {id: float(-rank) for rank, id in enumerate(ranking.documents)}
            for query, ranking in self.rankings.items()
        }

    def write(self, path: Path) -> None:
        """Write a run file of TREC, `query Q0 document rank score tag`, which trec_eval, ranx and
        others measure; scores fall from rank to rank.

        Raises:
            InvalidRequest: an id has a space, at which the format ends it.
        """
        lines = []
        for query, ranking in self.rankings.items():
            scored = zip(ranking.documents, falling(ranking.scores), strict=True)
            for rank, (id, score) in enumerate(scored, start=1):
                for name in (query, id):
                    if len(name.split()) != 1 or name.strip() != name:
                        raise InvalidRequest(
                            f"The id {name!r} has a space, which a run file of TREC cannot hold. "
                            f"Evaluate without --run, or give it another id.",
                            field="run",
                        )
                lines.append(f"{query} Q0 {id} {rank} {score!r} attend-{self.projection}\n")
        path.write_text("".join(lines), encoding="utf-8")


def falling(scores: Sequence[float]) -> list[float]:
    """Return scores, best first, of which each is below the one before also in single precision.

    trec_eval compares in that, and takes equals in the order of their ids.

    >>> falling([0.5, 0.5, 0.25])
    [0.5, 0.4999999701976776, 0.25]
    """
    lowered: list[float] = []
    for score in scores:
        most = np.nextafter(np.float32(lowered[-1]), np.float32(-np.inf)) if lowered else np.inf
        lowered.append(float(min(np.float32(score), most)))
    return lowered


@dataclass(frozen=True)
class Evaluation:
    """Means over the judged queries.

    Attributes:
        measures: name → mean.
        by_query: query id → name → value, for every judged query.
        unknown_documents: judged documents that the collection does not have; they count
            as not found.
    """

    measures: Mapping[str, float]
    by_query: Mapping[str, Mapping[str, float]]
    queries: int
    unknown_documents: int

    def columns(self) -> Float64:
        """Return the values (queries, measures), in the order of `by_query` and of MEASURES."""
        rows = [[values[name] for name in MEASURES] for values in self.by_query.values()]
        return np.array(rows, dtype=np.float64)

    def intervals(self) -> dict[str, Interval]:
        """Return name → mean with its 95 % bootstrap interval over the queries."""
        return dict(zip(MEASURES, statistics.mean_intervals(self.columns()), strict=True))


def evaluate(
    collection: Collection, queries: Mapping[str, QueryInput], qrels: Qrels, **options: Any
) -> Evaluation:
    """Rank the documents for every judged query and measure.

    Args:
        queries: query id → text or vector (d,).
        options: fields of `SearchOptions`, such as scorer or projection.

    Raises:
        SourceError: no query is judged.
        InvalidRequest: a query does not fit the collection.
    """
    judged = judged_queries(queries, qrels)
    ranked = rank(collection, judged, **options)
    return measure({id: qrels[id] for id in judged}, ranked.run(), collection)


def judged_queries(queries: Mapping[str, QueryInput], qrels: Qrels) -> dict[str, QueryInput]:
    """Return the queries with a judgement; raise SourceError if no query has one."""
    judged = {id: query for id, query in queries.items() if id in qrels}
    if not judged:
        raise SourceError(
            f"None of the {len(queries)} queries has a judgement among the {len(qrels)} queries "
            f"of the qrels; do the two files belong together?"
        )
    return judged


def rank(
    collection: Collection,
    queries: Mapping[str, QueryInput],
    *,
    on_progress: Callable[[int], object] = lambda queries: None,
    **options: Any,
) -> RankedQueries:
    """Rank the first DEPTH documents for each query.

    Args:
        on_progress: called with the number of queries that were answered since.
        options: fields of `SearchOptions`; where fewer than DEPTH are attended, those are ranked.
    """
    width = collection.settings.dimension
    for id, query in queries.items():  # a search cannot name it
        if not isinstance(query, str) and len(query) != width:
            raise InvalidRequest(
                f"The query {id!r} has {len(query)} dimensions, but this collection's have "
                f"{width}; give it {width} numbers.",
                field="query",
            )
    ids = list(queries)
    attended = options.get("attend")
    fields = {"k": min(DEPTH, attended) if isinstance(attended, int) else DEPTH, **options}
    answers: list[Answer] = []
    for start in range(0, len(ids), MAX_BATCH):
        part = ids[start : start + MAX_BATCH]
        batch = [parse(SearchRequest, {"query": queries[id], **fields}) for id in part]
        answers += [result.answer for result in collection.answered(batch, live=False)]
        on_progress(len(batch))
    rankings = {id: _ranking(answer) for id, answer in zip(ids, answers, strict=True)}
    first, last = answers[0], answers[-1]
    return RankedQueries(
        rankings,
        last.projection,
        last.calibrated == "examples",
        (first.generation, last.generation),
    )


def measure(
    qrels: Qrels, run: Mapping[str, Mapping[str, float]], collection: Collection
) -> Evaluation:
    """Measure a run (query id → document id → score).

    A grade may be any number; one below 0 counts as 0. Only nDCG uses its size: to the other
    measures a document is relevant or not.
    """
    import ir_measures

    relevance = {
        query: {id: int(grade > 0) for id, grade in grades.items()}
        for query, grades in qrels.items()
    }
    names = {ir_measures.parse_measure(MEASURES[name]): name for name in MEASURES if name != GRADED}
    # The library leaves a query without an answer out: here it counts with zeros.
    by_query = {query: dict.fromkeys(MEASURES, 0.0) for query in qrels}
    for metric in ir_measures.iter_calc(list(names), relevance, run):
        by_query[metric.query_id][names[metric.measure]] = metric.value
    for query, grades in qrels.items():
        by_query[query][GRADED] = _graded(run.get(query, {}), grades)
    means = {
        name: sum(values[name] for values in by_query.values()) / len(by_query) for name in MEASURES
    }
    relevant = sorted({id for flags in relevance.values() for id, flag in flags.items() if flag})
    unknown = len(relevant) - len(collection.store.hashes(relevant))
    return Evaluation(means, by_query, len(by_query), unknown)


def read_queries(
    path: Path, *, vectors: bool = False, encoding: str | None = None
) -> dict[str, QueryInput]:
    """Read queries as `teach` does: a table such as JSON lines with `_id` and `text` or `vector`.

    Args:
        vectors: queries are vectors, also where they are written as texts.
        encoding: of the file, where it is not to be detected.

    Raises:
        SourceError: a row is not a query, or repeats an id.
    """
    queries: dict[str, QueryInput] = {}
    for place, (id, query) in _usable(
        path, labels.read_queries(path, vectors=vectors, encoding=encoding)
    ):
        if id in queries:
            raise SourceError(f"{place} has the id {id!r} again; give each query its own.")
        queries[id] = query
    if not queries:
        raise SourceError(f"{path} has no queries.")
    return queries


def read_qrels(path: Path, encoding: str | None = None) -> dict[str, dict[str, float]]:
    """Read judgements as `teach` does: `query document grade` (BEIR, with a header) or TREC's.

    Raises:
        SourceError: a row is not a judgement.
    """
    qrels: dict[str, dict[str, float]] = defaultdict(dict)
    for _, (query, document, grade) in _usable(path, labels.read_qrels(path, encoding=encoding)):
        qrels[query][document] = int(grade) if grade.is_integer() else grade
    if not qrels:
        raise SourceError(f"{path} has no judgements.")
    return dict(qrels)


def _usable(path: Path, rows: Iterable[RowItem[Item] | RowProblem]) -> Iterator[RowItem[Item]]:
    """Yield rows with their whole place; raise SourceError at the first that cannot be used."""
    for row in rows:
        place = str(path.parent / row.place)
        if isinstance(row, RowItem):
            yield row._replace(place=place)
        elif row.rejects:
            raise SourceError(f"{place} cannot be used: {row.reason}")


def _graded(scores: Mapping[str, float], grades: Mapping[str, float]) -> float:
    """Return nDCG at 10 of one query's documents by their scores; a grade below 0 counts as 0.

    >>> round(_graded({"a": 2.0, "b": 1.0}, {"b": 0.5}), 9)  # 1 / log2(3)
    0.630929754
    """
    gains = {id: max(0.0, grade) for id, grade in grades.items()}
    ranked = sorted(scores, key=lambda id: -scores[id])
    ideal = dcg(sorted(gains.values(), reverse=True))
    return float(ndcg([gains.get(id, 0.0) for id in ranked], ideal))


def _ranking(answer: Answer) -> Ranking:
    weight = answer.hits[0].weight if answer.hits else 0.0
    confidence = answer.confidence
    # Without a no-answer score everything is answered, as if it were certain; that a query is like
    # the collection's own passages is no probability of an answer.
    if confidence is None or answer.calibrated == "collection":
        confidence = float(answer.attended > 0)
    ids, scores = (tuple(getattr(hit, name) for hit in answer.hits) for name in ("id", "score"))
    return Ranking(ids, weight, confidence, scores)


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
    intervals = statistics.mean_intervals(np.hstack([before, after, after - before]))
    width = len(MEASURES)
    column = list(MEASURES).index(by)
    gains = after[:, column] - before[:, column]
    rising = np.argsort(gains, kind="stable")
    lost = [row for row in rising if gains[row] < -statistics.UNCHANGED][:examples]
    gained = [row for row in rising[::-1] if gains[row] > statistics.UNCHANGED][:examples]
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
        most_gained=_differences(collection, queries, grades, ranked, values, gained),
        most_lost=_differences(collection, queries, grades, ranked, values, lost),
        queries=len(queries),
        unknown_documents=evaluations[0].unknown_documents,
        disturbed=len(revisions) > 1,
        **statistics.count_gains(gains),
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
    if items is None:
        examples = _stored(collection)
    else:
        sent = [item.example() for item in items]
        examples = [(example.query, example.document, example.weight) for example in sent]
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
            "weight": statistics.reliability(weights, [any(flags[:1]) for flags in relevant]),
            "confidence": statistics.reliability(confidences, [any(flags) for flags in relevant]),
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
