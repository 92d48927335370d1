"""Measure rankings against judgements, by the measures of trec_eval.

`ir_measures` computes all of them (github.com/terrierteam/ir_measures) but nDCG, for which it takes
whole grades only. Ranking and measuring are separate: rankings of any origin can be measured.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from attend.api.answers import Answer
from attend.api.base import parse
from attend.api.search import MAX_BATCH, SearchRequest
from attend.collection.collection import Collection
from attend.core.errors import InvalidRequest, SourceError
from attend.core.types import Float64, QueryInput
from attend.measure.statistics import Interval, dcg, mean_intervals, ndcg
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
    """The documents of one query, best first, the weight of the best, and the confidence."""

    documents: tuple[str, ...]
    weight: float
    confidence: float


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
        return dict(zip(MEASURES, mean_intervals(self.columns()), strict=True))


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
    _check_widths(queries, collection.settings.dimension)
    ids = list(queries)
    answers: list[Answer] = []
    for start in range(0, len(ids), MAX_BATCH):
        batch = [_request(queries[id], options) for id in ids[start : start + MAX_BATCH]]
        answers += collection.search_many(batch)
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


def _check_widths(queries: Mapping[str, QueryInput], width: int) -> None:
    """Raise InvalidRequest with the id of a query of another width, which a search cannot name."""
    for id, query in queries.items():
        if not isinstance(query, str) and len(query) != width:
            raise InvalidRequest(
                f"The query {id!r} has {len(query)} dimensions, but this collection's have "
                f"{width}; give it {width} numbers.",
                field="query",
            )


def _request(query: QueryInput, options: Mapping[str, Any]) -> SearchRequest:
    attended = options.get("attend")
    depth = min(DEPTH, attended) if isinstance(attended, int) else DEPTH
    return parse(SearchRequest, {"query": query, "k": depth, **options})


def _ranking(answer: Answer) -> Ranking:
    weight = answer.hits[0].weight if answer.hits else 0.0
    confidence = answer.confidence
    # Without a no-answer score everything is answered, as if it were certain; that a query is like
    # the collection's own passages is no probability of an answer.
    if confidence is None or answer.calibrated == "collection":
        confidence = float(answer.attended > 0)
    return Ranking(tuple(hit.id for hit in answer.hits), weight, confidence)
