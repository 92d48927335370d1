"""Evaluation: rankings against judgements, by the measures of trec_eval.

`ir_measures` computes them (github.com/terrierteam/ir_measures); relevance may be graded.
Ranking and measuring are apart: whatever gives rankings can be measured.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from index.answers import Answer
from index.collection import Collection
from index.errors import SourceError
from index.requests import MAX_BATCH, SearchRequest, parse
from index.statistics import Interval, mean_intervals
from index.types import Float64

DEPTH = 100
"""Documents ranked for each query."""

MEASURES = {
    "ndcg@10": "nDCG@10",
    "mrr@10": "RR@10",
    "recall@10": "R@10",
    "recall@100": "R@100",
    "map@100": "AP@100",
    "precision@1": "P@1",
    "precision@10": "P@10",
}

Qrels = Mapping[str, Mapping[str, int]]
"""query id → document id → grade (0 or less is judged and not relevant)."""


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
    collection: Collection, queries: Mapping[str, str], qrels: Qrels, **options: Any
) -> Evaluation:
    """Rank the documents for every judged query and measure.

    Args:
        queries: query id → text.
        options: fields of `SearchOptions`, such as scorer or projection.

    Raises:
        SourceError: no query is judged.
    """
    asked = judged(queries, qrels)
    ranked = rank(collection, asked, **options)
    return measure({id: qrels[id] for id in asked}, ranked.run(), collection)


def judged(queries: Mapping[str, str], qrels: Qrels) -> dict[str, str]:
    """The queries with a judgement; raises SourceError if there is none."""
    found = {id: text for id, text in queries.items() if id in qrels}
    if not found:
        raise SourceError(
            f"None of the {len(queries)} queries has a judgement among the {len(qrels)} queries "
            f"of the qrels; do the two files belong together?"
        )
    return found


def rank(
    collection: Collection,
    queries: Mapping[str, str],
    *,
    on_progress: Callable[[int], object] = lambda queries: None,
    **options: Any,
) -> Ranked:
    """The first DEPTH documents for each query.

    Args:
        on_progress: called with the number of queries that were answered since.
        options: fields of `SearchOptions`; where fewer than DEPTH are attended, those are ranked.
    """
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
    """Measure a run (query id → document id → score); a grade below 0 counts as 0."""
    import ir_measures

    grades = {query: {id: max(0, each) for id, each in of.items()} for query, of in qrels.items()}
    names = {ir_measures.parse_measure(measure): name for name, measure in MEASURES.items()}
    # A query without an answer is left out by the library: here it counts with zeros.
    by_query = {query: dict.fromkeys(MEASURES, 0.0) for query in grades}
    for metric in ir_measures.iter_calc(list(names), grades, run):
        by_query[metric.query_id][names[metric.measure]] = metric.value
    means = {
        name: sum(values[name] for values in by_query.values()) / len(by_query) for name in MEASURES
    }
    relevant = sorted({id for of in grades.values() for id, grade in of.items() if grade > 0})
    unknown = len(relevant) - len(collection.store.hashes(relevant))
    return Evaluation(means, by_query, len(by_query), unknown)


def read_queries(path: Path) -> dict[str, str]:
    """Queries in BEIR's layout: JSON lines with `_id` (or `id`) and `text`."""
    queries: dict[str, str] = {}
    for number, line in _lines(path):
        id, text = _query(line)
        if id is None or not isinstance(text, str):
            raise SourceError(
                f"{path}:{number} is no query: expected a JSON object with _id and text, but it "
                f"says {line[:80]!r}."
            )
        if id in queries:
            raise SourceError(f"{path}:{number} has the id {id!r} again; give each query its own.")
        queries[id] = text
    if not queries:
        raise SourceError(f"{path} has no queries.")
    return queries


def read_qrels(path: Path) -> dict[str, dict[str, int]]:
    """Judgements: `query document grade` (BEIR, with a header) or TREC's four columns."""
    qrels: dict[str, dict[str, int]] = defaultdict(dict)
    for number, line in _lines(path):
        cells = line.split("\t") if "\t" in line else line.split()
        try:
            query, document, grade = cells if len(cells) == 3 else _without_iteration(cells)
            if number == 1 and grade.isidentifier():  # the header's name for the grade
                continue
            qrels[query][document] = _whole(grade)
        except ValueError:
            raise SourceError(
                f"{path}:{number} is no judgement: expected query id, document id and a whole "
                f"number, separated by tabs, but it says {line[:80]!r}."
            ) from None
    if not qrels:
        raise SourceError(f"{path} has no judgements.")
    return dict(qrels)


def _query(line: str) -> tuple[str | None, object]:
    """Id and text, as far as they are there."""
    try:
        row = json.loads(line)
    except ValueError:
        return None, None
    if not isinstance(row, dict):
        return None, None
    id = row.get("_id", row.get("id"))
    return None if id is None else str(id), row.get("text")


def _without_iteration(cells: list[str]) -> list[str]:
    """TREC's four columns without the second, which nobody uses; ValueError if not four."""
    query, _, document, grade = cells
    return [query, document, grade]


def _whole(grade: str) -> int:
    """A grade, which may be written as 1.0; ValueError if it is no whole number."""
    number = float(grade)
    if not number.is_integer():
        raise ValueError(grade)
    return int(number)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, line.rstrip()
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"{path} cannot be read: {error}.") from error


def _request(query: str, options: Mapping[str, Any]) -> SearchRequest:
    attended = options.get("attend")
    depth = min(DEPTH, attended) if isinstance(attended, int) else DEPTH
    return parse(SearchRequest, {"query": query, "k": depth, **options})


def _ranking(answer: Answer) -> Ranking:
    weight = answer.hits[0].weight if answer.hits else 0.0
    return Ranking(tuple(hit.id for hit in answer.hits), weight, answer.confidence)
