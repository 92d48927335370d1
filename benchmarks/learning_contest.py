"""Contestants on one test set: what each ranks, and how they differ."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from learning_rows import Difference, Row, row_of
from learning_sets import Judged

from attend import Collection
from attend.api.base import parse
from attend.api.search import MAX_BATCH, SearchRequest
from attend.core.settings import Tuning
from attend.core.types import Float32, Float64
from attend.measure.rankings import DEPTH, RankedQueries, Ranking, measure, rank
from attend.measure.statistics import (
    LEVEL,
    difference_intervals,
    mean_interval,
    paired_randomisation,
)

Measure = Callable[[Mapping[str, float]], float]


def ndcg(values: Mapping[str, float]) -> float:
    return values["ndcg@10"]


def first(values: Mapping[str, float]) -> float:
    return values["precision@1"]


def found(values: Mapping[str, float]) -> float:
    """Whether any relevant document is among the first ten."""
    return float(values["recall@10"] > 0)


class Contest:
    """What several contestants ranked for the queries of one test set."""

    def __init__(self, collection: Collection, judged: Judged) -> None:
        self.collection, self.judged = collection, judged
        self.by_query: dict[str, Mapping[str, Mapping[str, float]]] = {}

    def search(self, contestant: str, **options: Any) -> None:
        """Enter what the collection ranks by these options."""
        self.enter(contestant, rank(self.collection, self.judged.queries, **options))

    def enter(self, contestant: str, ranked: RankedQueries) -> None:
        measured = measure(self.judged.qrels, ranked.run(), self.collection)
        self.by_query[contestant] = measured.by_query

    def values(
        self, contestant: str, ids: Sequence[str] | None = None, by: Measure = ndcg
    ) -> Float64:
        """(q,) of these queries, or of all in their order."""
        values = self.by_query[contestant]
        return np.array([by(values[id]) for id in (ids or self.judged.queries)])

    def row(
        self,
        name: str,
        what: str,
        contestant: str,
        ids: Sequence[str] | None = None,
        by: Measure = ndcg,
    ) -> Row:
        values = self.values(contestant, ids, by)
        return row_of(name, what, mean_interval(values), values.tolist())

    def difference(self, after: str, before: str, ids: Sequence[str] | None = None) -> Difference:
        return difference(self.values(after, ids), self.values(before, ids))


def difference(after: Float64, before: Float64) -> Difference:
    return Difference(
        *difference_intervals(after, before, [LEVEL])[0], paired_randomisation(after, before)
    )


def variant(
    collection: Collection, version: int, tuning: Tuning | None = None, **changes: Any
) -> int:
    """A version like another but for its tuning, stored and not activated."""
    stored = collection.store.version(version)
    row = next(each for each in collection.store.projections() if each.version == version)
    tuning = (tuning or Tuning.of(stored.tuning)).model_copy(update=changes)
    return collection.store.add_projection(
        row.kind,
        stored.weights,
        row.fingerprint,
        {"variant of": version},
        tuning=tuning.stored(),
        offsets=stored.offsets if len(stored.offsets[0]) else None,
    )


def by_vectors(
    collection: Collection, ids: Sequence[str], rows: Float32, left_out: Iterable[str] = ()
) -> RankedQueries:
    """What queries (q, d) rank among the collection's untrained keys, but those of some."""
    version = collection.store.projections()[0].version
    mask = {"exclude": sorted(left_out)}
    options = {"k": DEPTH, "projection": version, "memory": 0.0, "mask": mask}
    requests = [parse(SearchRequest, {"query": {"vector": row}, **options}) for row in rows]
    answers = [
        answer
        for at in range(0, len(requests), MAX_BATCH)
        for answer in collection.search_many(requests[at : at + MAX_BATCH])
    ]
    return _ranked(ids, [[hit.id for hit in answer.hits] for answer in answers])


def by_rows(
    documents: Sequence[str], document_rows: Float32, ids: Sequence[str], rows: Float32
) -> RankedQueries:
    """What queries (q, d) rank among documents (n, d) by cosine."""
    scores = unit(rows) @ unit(document_rows).T  # (q, d) @ (d, n) -> (q, n)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :DEPTH]
    return _ranked(ids, [[documents[at] for at in best] for best in order])


def _ranked(ids: Sequence[str], documents: Sequence[Sequence[str]]) -> RankedQueries:
    pairs = zip(ids, documents, strict=True)
    return RankedQueries(
        {id: Ranking(tuple(each), 0.0, 1.0) for id, each in pairs}, 0, False, (0, 0)
    )


def unit(rows: Float32) -> Float32:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.where(lengths > 0, lengths, 1), dtype=np.float32)
