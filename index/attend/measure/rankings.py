"""Evaluation: rankings against judgements, by the measures of trec_eval.

`ir_measures` computes them (github.com/terrierteam/ir_measures); all but nDCG, of which it knows
whole grades only. Ranking and measuring are apart: whatever gives rankings can be measured.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from attend import feedback
from attend.api.base import parse
from attend.api.search import MAX_BATCH, SearchRequest
from attend.collection import Collection
from attend.errors import InvalidRequest, SourceError
from attend.measure.statistics import Interval, dcg, mean_intervals, ndcg
from attend.search.answers import Answer
from attend.source import RowProblem
from attend.types import MAX_WEIGHT, Float64, QueryInput

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
    """What one query got: documents best first, the best one's weight, and the confidence."""

    documents: tuple[str, ...]
    weight: float
    confidence: float


@dataclass(frozen=True)
class Ranked:
    """What every query got from one projection version.

    Attributes:
        rankings: query id → ranking.
        generations: the collection's state at the first answer and at the last.
    """

    rankings: Mapping[str, Ranking]
    projection: int
    calibrated: bool
    generations: tuple[int, int]

    def run(self) -> dict[str, dict[str, float]]:
        """query id → document id → score, by rank.

        What is measured is the list as it was returned, equal scores included.
        """
        return {
            query: {id: float(-rank) for rank, id in enumerate(each.documents)}
            for query, each in self.rankings.items()
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
        """Values (queries, measures), in the order of `by_query` and of MEASURES."""
        rows = [[values[name] for name in MEASURES] for values in self.by_query.values()]
        return np.array(rows, dtype=np.float64)

    def intervals(self) -> dict[str, Interval]:
        """name → mean with its 95 % bootstrap interval over the queries."""
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
        InvalidRequest: a query that the collection cannot be asked.
    """
    asked = judged(queries, qrels)
    ranked = rank(collection, asked, **options)
    return measure({id: qrels[id] for id in asked}, ranked.run(), collection)


def judged(queries: Mapping[str, QueryInput], qrels: Qrels) -> dict[str, QueryInput]:
    """The queries with a judgement; raises SourceError if there is none."""
    found = {id: query for id, query in queries.items() if id in qrels}
    if not found:
        raise SourceError(
            f"None of the {len(queries)} queries has a judgement among the {len(qrels)} queries "
            f"of the qrels; do the two files belong together?"
        )
    return found


def rank(
    collection: Collection,
    queries: Mapping[str, QueryInput],
    *,
    on_progress: Callable[[int], object] = lambda queries: None,
    **options: Any,
) -> Ranked:
    """The first DEPTH documents for each query.

    Args:
        on_progress: called with the number of queries that were answered since.
        options: fields of `SearchOptions`; where fewer than DEPTH are attended, those are ranked.
    """
    _check_widths(queries, collection.settings.dimension)
    ids = list(queries)
    answers: list[Answer] = []
    for at in range(0, len(ids), MAX_BATCH):
        batch = [_request(queries[id], options) for id in ids[at : at + MAX_BATCH]]
        answers += collection.search_many(batch)
        on_progress(len(batch))
    rankings = {id: _ranking(answer) for id, answer in zip(ids, answers, strict=True)}
    first, last = answers[0], answers[-1]
    return Ranked(rankings, last.projection, last.calibrated, (first.generation, last.generation))


def measure(
    qrels: Qrels, run: Mapping[str, Mapping[str, float]], collection: Collection
) -> Evaluation:
    """Measure a run (query id → document id → score).

    A grade may be any number; one below 0 counts as 0. Of the measures only nDCG asks how large
    it is: to the others a document is relevant or not.
    """
    import ir_measures

    relevance = {
        query: {id: int(each > 0) for id, each in of.items()} for query, of in qrels.items()
    }
    names = {ir_measures.parse_measure(MEASURES[name]): name for name in MEASURES if name != GRADED}
    # A query without an answer is left out by the library: here it counts with zeros.
    by_query = {query: dict.fromkeys(MEASURES, 0.0) for query in qrels}
    for metric in ir_measures.iter_calc(list(names), relevance, run):
        by_query[metric.query_id][names[metric.measure]] = metric.value
    for query, grades in qrels.items():
        by_query[query][GRADED] = _graded(run.get(query, {}), grades)
    means = {
        name: sum(values[name] for values in by_query.values()) / len(by_query) for name in MEASURES
    }
    relevant = sorted({id for of in relevance.values() for id, grade in of.items() if grade})
    unknown = len(relevant) - len(collection.store.hashes(relevant))
    return Evaluation(means, by_query, len(by_query), unknown)


def read_queries(path: Path, *, vectors: bool = False) -> dict[str, QueryInput]:
    """Queries as they are taught: JSON lines (or another table) with `_id` and `text` or `vector`.

    Args:
        vectors: queries are vectors, be they written as texts.

    Raises:
        SourceError: a row is no query, or repeats another's id.
    """
    queries: dict[str, QueryInput] = {}
    for item in feedback.read_queries(path, vectors=vectors):
        if isinstance(item, RowProblem):
            raise SourceError(f"{path.parent / item.place} is no query: {item.reason}")
        place, (id, query) = item
        if id in queries:
            raise SourceError(
                f"{path.parent / place} has the id {id!r} again; give each query its own."
            )
        queries[id] = query
    if not queries:
        raise SourceError(f"{path} has no queries.")
    return queries


def read_qrels(path: Path) -> dict[str, dict[str, float]]:
    """Judgements: `query document grade` (BEIR, with a header) or TREC's four columns."""
    qrels: dict[str, dict[str, float]] = defaultdict(dict)
    for number, line in _lines(path):
        cells = line.split("\t") if "\t" in line else line.split()
        try:
            query, document, grade = cells if len(cells) == 3 else _without_iteration(cells)
            if number == 1 and grade.isidentifier():  # the header's name for the grade
                continue
            qrels[query][document] = _grade(grade)
        except ValueError:
            raise SourceError(
                f"{path}:{number} is no judgement: expected query id, document id and a number "
                f"from {-MAX_WEIGHT:g} to {MAX_WEIGHT:g}, separated by tabs, but it says "
                f"{line[:80]!r}."
            ) from None
    if not qrels:
        raise SourceError(f"{path} has no judgements.")
    return dict(qrels)


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
    """Before any is asked, and by name: which of thousands it was, a search does not know."""
    for id, query in queries.items():
        if not isinstance(query, str) and len(query) != width:
            raise InvalidRequest(
                f"The query {id!r} has {len(query)} dimensions, but this collection's have "
                f"{width}; give it {width} numbers.",
                field="query",
            )


def _without_iteration(cells: list[str]) -> list[str]:
    """TREC's four columns without the second, which nobody uses; ValueError if not four."""
    query, _, document, grade = cells
    return [query, document, grade]


def _grade(written: str) -> float:
    """A grade, a whole one as such however it is written; ValueError if it is none."""
    number = float(written)
    if not abs(number) <= MAX_WEIGHT:  # true for NaN too
        raise ValueError(written)
    return int(number) if number.is_integer() else number


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        with open(path, encoding="utf-8-sig") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, line.rstrip()
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"{path} cannot be read: {error}.") from error


def _request(query: QueryInput, options: Mapping[str, Any]) -> SearchRequest:
    attended = options.get("attend")
    depth = min(DEPTH, attended) if isinstance(attended, int) else DEPTH
    return parse(SearchRequest, {"query": query, "k": depth, **options})


def _ranking(answer: Answer) -> Ranking:
    weight = answer.hits[0].weight if answer.hits else 0.0
    return Ranking(tuple(hit.id for hit in answer.hits), weight, answer.confidence)
