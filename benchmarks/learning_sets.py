"""What learning is measured on: sets, how they are divided, and collections of them."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from common import Difference, Results, Row, data_set, difference, progress, row_of

from attend import Collection, Data
from attend.api.base import parse
from attend.api.search import MAX_BATCH, SearchRequest
from attend.core.settings import Tuning
from attend.core.types import Example, Float32, Float64
from attend.encoder import Encoder, load
from attend.learning import train
from attend.measure.rankings import (
    DEPTH,
    Qrels,
    RankedQueries,
    Ranking,
    measure,
    rank,
    read_qrels,
    read_queries,
)
from attend.measure.statistics import mean_interval
from attend.source import guess, open_source, sample
from attend.write.build import Mapped, build
from attend.write.feedback import add_feedback

HELD_OUT = 0.2
"""Of the training queries, in a rehearsal."""

DISJOINT = frozenset({"conala", "bilingual-en-fr"})
"""Sets whose test documents training does not know: so it is in their rehearsals."""

TITLES = {"conala": "CoNaLa", "scifact": "SciFact", "bilingual-en-fr": "bilingual-en-fr"}

QUICK_QUERIES = 600

SEED = 20170612


class Judged(NamedTuple):
    """Queries by id, and judgements of every one of them."""

    queries: Mapping[str, str]
    qrels: Qrels

    def some(self, ids: Sequence[str]) -> Judged:
        return Judged({id: self.queries[id] for id in ids}, {id: self.qrels[id] for id in ids})

    def relevant(self, id: str) -> set[str]:
        return {document for document, grade in self.qrels[id].items() if grade > 0}

    def documents(self) -> set[str]:
        """All that are relevant to any query."""
        return set().union(*map(self.relevant, self.queries))


class RankingSet(NamedTuple):
    """A set in BEIR's layout; `test` are training queries in a rehearsal."""

    name: str
    folder: Path
    train: Judged
    test: Judged

    def texts(self) -> dict[str, str]:
        """Document id → title and text."""
        with (self.folder / "corpus.jsonl").open(encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        return {row["_id"]: f"{row.get('title', '')} {row['text']}".strip() for row in rows}


def ranking_set(sets: Path, name: str, *, rehearse: bool, most: int | None = None) -> RankingSet:
    """A set, divided as published or, to rehearse, its training part divided again.

    Args:
        most: so many training queries, drawn; all if None.
    """
    folder = data_set(sets, name)
    queries = read_queries(folder / "queries.jsonl")
    given = judged(queries, read_qrels(folder / "qrels" / "train.tsv"))
    if rehearse:
        learned, held = divided(given, disjoint=name in DISJOINT)
    else:
        learned, held = given, judged(queries, read_qrels(folder / "qrels" / "test.tsv"))
    return RankingSet(name, folder, _drawn(learned, most), held)


def judged(queries: Mapping[str, str], qrels: Qrels) -> Judged:
    ids = [id for id in queries if id in qrels]
    return Judged({id: queries[id] for id in ids}, {id: qrels[id] for id in ids})


def divided(given: Judged, *, disjoint: bool, share: float = HELD_OUT) -> tuple[Judged, Judged]:
    """Training and held-out queries; disjoint: that have no relevant document in common."""
    random = np.random.default_rng(SEED)
    ids = sorted(given.queries)
    if not disjoint:
        held = set(random.permutation(ids)[: round(share * len(ids))].tolist())
        return given.some([id for id in ids if id not in held]), given.some(sorted(held))
    documents = sorted(given.documents())
    hidden = set(random.permutation(documents)[: round(share * len(documents))].tolist())
    held = {id for id in ids if given.relevant(id) & hidden}
    hidden = given.some(sorted(held)).documents()
    kept = [id for id in ids if id not in held and not given.relevant(id) & hidden]
    return given.some(kept), given.some(sorted(held))


def _drawn(given: Judged, most: int | None) -> Judged:
    if most is None or len(given.queries) <= most:
        return given
    drawn = np.random.default_rng(SEED).permutation(sorted(given.queries))[:most]
    return given.some(sorted(drawn.tolist()))


# -- collections ----------------------------------------------------------------------------


@cache
def encoder(name: str) -> Encoder:
    return load(name)


@dataclass(frozen=True)
class Workshop:
    """Collections with real embeddings, each built once, and copied for whoever changes it."""

    folder: Path

    @contextmanager
    def copy(
        self, name: str, fill: Callable[[Collection], object], **settings: Any
    ) -> Iterator[Collection]:
        """A copy of the collection that `fill` makes; it goes at the end."""
        kept = self._kept(name, fill, settings)
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            shutil.copytree(kept, folder, dirs_exist_ok=True)
            with opened(Path(folder)) as collection:
                yield collection

    def beir(self, given: RankingSet) -> Any:
        """A copy of the collection of a set's documents, built as `python -m index build` does."""

        def fill(collection: Collection) -> None:
            source = open_source(str(given.folder))
            build(collection, [Mapped(source, guess(sample(source), source=source))])

        return self.copy(given.name, fill)

    def _kept(
        self, name: str, fill: Callable[[Collection], object], settings: Mapping[str, Any]
    ) -> Path:
        kept = self.folder / name
        if not kept.exists():
            progress(f"building {name}")
            making = Path(tempfile.mkdtemp(dir=self.folder, prefix=f"making-{name}-"))
            with opened(making, **settings) as collection:
                fill(collection)
            making.rename(kept)
        return kept


@contextmanager
def opened(folder: Path, **settings: Any) -> Iterator[Collection]:
    """The collection of a folder, made if it is not there."""
    data = Data(folder, load_encoder=encoder)
    try:
        yield data.ensure(**settings)
    finally:
        data.close()


def taught(collection: Collection, given: Judged) -> None:
    """Teach all judgements."""
    add_feedback(
        collection,
        [
            Example(given.queries[id], document, float(grade))
            for id, of in given.qrels.items()
            for document, grade in of.items()
        ],
    )


class Trained(NamedTuple):
    """A training's report, and its seconds: all of them, and of one recipe on all questions."""

    report: Mapping[str, Any]
    seconds: float
    recipe_seconds: float | None

    @property
    def said(self) -> str:
        """What it decided, for a note."""
        chosen = self.report.get("chosen") or {}
        parts = ", ".join(f"{name} {each}" for name, each in chosen.items() if each is not None)
        return f"{'promoted' if self.report['promoted'] else 'not promoted'}; {parts}"


def trained(collection: Collection, **fields: Any) -> Trained:
    """`attend.learning.train`, timed."""
    began, entered = time.perf_counter(), dict[str, float]()

    def report(stage: str, done: float) -> None:
        if stage not in entered:
            entered[stage] = time.perf_counter()
            progress(f"   training: {stage}, {entered[stage] - began:.0f} s so far")

    found = train(collection, progress=report, **fields)
    seconds = time.perf_counter() - began
    after = entered.get("calibrating")
    recipe = after - entered["fitting"] if after and "fitting" in entered else None
    return Trained(found, seconds, recipe)


@dataclass(frozen=True)
class Options:
    """What a run was asked for; see `python benchmarks/learning.py --help`."""

    quick: bool
    rehearse: bool
    peers: bool
    minutes: float
    seeds: range
    keys: int
    sets: Path

    @property
    def extent(self) -> str:
        """How much is measured, as the ledger names it."""
        return "quick" if self.quick else "full"

    def setting(self) -> dict[str, Any]:
        """What rows depend on."""
        named = {name: value for name, value in vars(self).items() if name != "sets"}
        return named | {"seeds": list(self.seeds)}


@dataclass(frozen=True)
class Bench:
    """What every section of the table is given."""

    options: Options
    workshop: Workshop
    results: Results

    def ranking_set(self, name: str) -> RankingSet:
        """A set; when quick, with QUICK_QUERIES of its training queries."""
        most = QUICK_QUERIES if self.options.quick else None
        return ranking_set(self.options.sets, name, rehearse=self.options.rehearse, most=most)


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
