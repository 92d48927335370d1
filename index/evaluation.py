"""Evaluation: rankings against judgements, by the measures of trec_eval.

`ir_measures` computes them (github.com/terrierteam/ir_measures); relevance may be graded.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from index.collection import Collection
from index.errors import SourceError
from index.requests import MAX_BATCH, SearchRequest, parse

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
"""query id → document id → grade (0 is judged and not relevant)."""


@dataclass(frozen=True)
class Evaluation:
    """Means over the judged queries.

    Attributes:
        measures: name → mean.
        by_query: query id → name → value.
        unknown_documents: judged documents that the collection does not have; they count
            as not found.
    """

    measures: Mapping[str, float]
    by_query: Mapping[str, Mapping[str, float]]
    queries: int
    unknown_documents: int


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
    judged = {id: text for id, text in queries.items() if id in qrels}
    if not judged:
        raise SourceError(
            f"None of the {len(queries)} queries has a judgement among the {len(qrels)} queries "
            f"of the qrels; do the two files belong together?"
        )
    return measure({id: qrels[id] for id in judged}, _run(collection, judged, options), collection)


def measure(
    qrels: Qrels, run: Mapping[str, Mapping[str, float]], collection: Collection
) -> Evaluation:
    """Measure a run (query id → document id → score)."""
    import ir_measures

    names = {ir_measures.parse_measure(measure): name for name, measure in MEASURES.items()}
    by_query: dict[str, dict[str, float]] = defaultdict(dict)
    for metric in ir_measures.iter_calc(list(names), qrels, run):
        by_query[metric.query_id][names[metric.measure]] = metric.value
    means = {
        name: sum(values.get(name, 0.0) for values in by_query.values()) / len(qrels)
        for name in MEASURES
    }
    judged = sorted({id for grades in qrels.values() for id, grade in grades.items() if grade > 0})
    unknown = len(judged) - len(collection.store.hashes(judged))
    return Evaluation(means, by_query, len(qrels), unknown)


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
            qrels[query][document] = int(grade)
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


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, line.rstrip()
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"{path} cannot be read: {error}.") from error


def _run(
    collection: Collection, queries: Mapping[str, str], options: Mapping[str, Any]
) -> dict[str, dict[str, float]]:
    run: dict[str, dict[str, float]] = {}
    ids = list(queries)
    for at in range(0, len(ids), MAX_BATCH):
        batch = ids[at : at + MAX_BATCH]
        requests: Sequence[SearchRequest] = [
            parse(SearchRequest, {"query": queries[id], "k": DEPTH, **options}) for id in batch
        ]
        for id, answer in zip(batch, collection.search_many(requests), strict=True):
            # By rank: what is measured is the list as it was returned, equal scores included.
            run[id] = {hit.id: float(-rank) for rank, hit in enumerate(answer.hits)}
    return run
