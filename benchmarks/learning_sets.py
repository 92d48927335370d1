"""What learning is measured on: sets, how they are divided, and collections of them."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from common import data_set, progress
from learning_rows import Results

from attend import Collection, Data
from attend.core.types import Example
from attend.encoder import Encoder, load
from attend.feedback import add_feedback
from attend.measure.rankings import Qrels, read_qrels, read_queries
from attend.source import guess, open_source, sample
from attend.training import train
from attend.write.build import Mapped, build

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
    """`attend.training.train`, timed."""
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
