"""Rows of the plain ways: what one gets from the same examples without this project's training.

Each way has what ours has: the same keys, BM25, and the example queries as keys. Its numbers are
chosen on a part of the training queries, by the mean over all documents and among new ones, as
ours are; the test split is read once for each way.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from common import progress
from learning_contest import Contest, difference, unit, variant
from learning_peers import Rows
from learning_rows import Row, ahead, difference_row
from learning_sets import DISJOINT, TITLES, Bench, RankingSet, divided, encoder, taught

from attend import Collection
from attend.core.settings import DEFAULT_COVERAGE, Tuning
from attend.encoder import DEFAULT
from attend.measure.rankings import DEPTH, RankedQueries, Ranking
from attend.projection import given as projection_of
from attend.search.queries import rows_by_id

EPOCHS, BATCH, SCALE = 8, 128, 20.0
"""Of the query adapter: cross-entropy over cosines times SCALE, within batches."""

DEEP = 1000
"""Documents of which those with a constant taken off are ranked again."""

TUNINGS = tuple(
    Tuning(examples=examples, lexical=lexical, coverage=DEFAULT_COVERAGE if lexical else 0.0)
    for examples in (0.0, 1.0)
    for lexical in (0.0, 0.2, 0.5)
)

Fit = Callable[[Rows, Rows, float], Rows]
"""Queries (e, d), their documents (e, d) and a strength, as a matrix (d, d) on queries."""


class Way(NamedTuple):
    """A plain way: a matrix on queries and a constant on labelled documents, or neither.

    Attributes:
        strengths: of the fit, of which validation chooses one.
        penalties: taken from the cosine of each document that has an example.
    """

    name: str
    what: str
    fit: Fit | None = None
    strengths: tuple[float, ...] = (0.0,)
    penalties: tuple[float, ...] = (0.0,)
    tunings: tuple[Tuning, ...] = TUNINGS


class Choice(NamedTuple):
    strength: float
    penalty: float
    tuning: Tuning

    def note(self, way: Way) -> str:
        parts = {
            "strength": self.strength if way.fit else None,
            "constant": self.penalty or None,
            "λ": self.tuning.lexical,
            "examples": self.tuning.examples,
        }
        return ", ".join(f"{name} {value:g}" for name, value in parts.items() if value is not None)


def ridge(queries: Rows, documents: Rows, strength: float) -> Rows:
    """Fit documents ≈ q + W q by ridge regression, in closed form."""
    gram = queries.T @ queries + strength * np.eye(queries.shape[1])
    moves = np.linalg.solve(gram, queries.T @ (documents - queries))  # (d, d)
    matrix: Rows = (np.eye(queries.shape[1]) + moves.T).astype(np.float32)
    return matrix


def adapter(queries: Rows, documents: Rows, rate: float) -> Rows:
    """Fit a matrix on queries by AdamW, as adapters do, at a rate that moves it."""
    import torch
    from torch.nn.functional import cross_entropy, normalize

    torch.manual_seed(0)
    asked, meant = torch.from_numpy(queries), normalize(torch.from_numpy(documents))
    weight = torch.nn.Parameter(torch.eye(queries.shape[1]))
    optimizer = torch.optim.AdamW([weight], lr=rate)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(asked)).split(BATCH):
            cosines = normalize(asked[batch] @ weight.T) @ meant[batch].T  # (b, d) @ (d, b)
            loss = cross_entropy(cosines * SCALE, torch.arange(len(batch)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    matrix: Rows = weight.detach().numpy()
    return matrix


WAYS = (
    Way("words", "BM25 and examples as keys"),
    Way("constant", "the same, less a constant on labelled documents", penalties=(0.05, 0.1, 0.2)),
    Way("ridge", "the same with ridge regression of queries", ridge, (1.0, 10.0, 100.0)),
    Way("query_adapter", "the same with a query adapter", adapter, (1e-4, 3e-4, 1e-3)),
)


@dataclass
class Arena:
    """One division of a set: a collection that is taught its training queries, and the judges.

    Attributes:
        new: the documents that no training query is about, and the queries that only they answer.
    """

    collection: Collection
    given: RankingSet
    everything: Contest = field(init=False)
    new: Contest = field(init=False)
    mask: Mapping[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        taught(self.collection, self.given.train)
        labelled = self.given.train.documents()
        self.everything = Contest(self.collection, self.given.test)
        fresh = [
            id for id in self.given.test.queries if not self.given.test.relevant(id) & labelled
        ]
        self.new = Contest(self.collection, self.given.test.some(fresh))
        self.mask = {"mask": {"exclude": sorted(labelled)}}

    def pairs(self) -> tuple[Rows, Rows]:
        """Return training queries (e, d), and the mean key of each one's document (e, d)."""
        train = self.given.train
        pairs = [(id, document) for id in train.queries for document in train.relevant(id)]
        rows = rows_by_id(self.collection.store, sorted(train.documents()), "query")
        queries = encoder(DEFAULT).encode_queries(list(train.queries.values()))
        place = {id: at for at, id in enumerate(train.queries)}
        keys = self.collection.store.own_keys(np.unique(list(rows.values())))
        at = np.searchsorted(keys.rows, [rows[document] for _, document in pairs])
        means = np.asarray(keys.means(), dtype=np.float32)
        return queries[[place[id] for id, _ in pairs]], unit(means[at])

    def version(self, way: Way, strength: float) -> int:
        """Store the way's matrix as a version, once for all of its tunings."""
        if way.fit is None:
            return self.collection.store.projections()[0].version
        matrix = way.fit(*self.pairs(), strength)
        return self.collection.add_projection(
            projection_of(matrix, None, normalize_queries=True, normalize_keys=True)
        )

    def enter(self, way: Way, version: int, choice: Choice) -> str:
        """Let a choice rank all queries, over all documents and among new ones; return its name."""
        name = f"{way.name} {choice}"
        tuned = variant(self.collection, version, choice.tuning)
        if choice.penalty:
            self.everything.enter(name, self._penalised(tuned, choice.penalty))
        else:
            self.everything.search(name, projection=tuned, memory=0.0)
        self.new.search(name, projection=tuned, memory=0.0, **self.mask)
        return name

    def value(self, name: str) -> float:
        """Return the mean over both splits, by which choices are made."""
        return float((self.everything.values(name).mean() + self.new.values(name).mean()) / 2)

    def _penalised(self, version: int, penalty: float) -> RankedQueries:
        labelled = self.given.train.documents()
        rankings = {}
        options = {"projection": version, "k": DEEP, "attend": DEEP, "memory": 0.0}
        search = partial(self.collection.search, **options)
        for id, query in self.given.test.queries.items():
            hits = search(query).hits
            scores = {hit.id: hit.score - SCALE * penalty * (hit.id in labelled) for hit in hits}
            best = sorted(scores, key=scores.__getitem__, reverse=True)[:DEPTH]
            rankings[id] = Ranking(tuple(best), 0.0, 1.0)
        return RankedQueries(rankings, version, False, (0, 0))


def plain(name: str) -> Callable[[Bench], Iterator[Row]]:
    """The plain ways on a set, and how far the trained version is ahead of each."""

    def section(bench: Bench) -> Iterator[Row]:
        given = bench.ranking_set(name)
        parts = divided(given.train, disjoint=name in DISJOINT)
        with ExitStack() as stack:
            validation, test = (
                Arena(stack.enter_context(bench.workshop.beir(given)), division)
                for division in (given._replace(train=parts[0], test=parts[1]), given)
            )
            for way in WAYS:
                choice = _choose(validation, way)
                entered = test.enter(way, test.version(way, choice.strength), choice)
                yield from _rows(bench, test, name, way, entered, choice)

    return section


def _choose(arena: Arena, way: Way) -> Choice:
    """Return the strength, constant and tuning that are best in validation."""
    values = dict[Choice, float]()
    for strength in way.strengths:
        version = arena.version(way, strength)
        for penalty, tuning in itertools.product(way.penalties, way.tunings):
            choice = Choice(strength, penalty, tuning)
            values[choice] = arena.value(arena.enter(way, version, choice))
    best = max(values, key=values.__getitem__)
    progress(f"-- {way.name}: {best.note(way)} of {len(values)} ({values[best]:.4f} in validation)")
    return best


def _rows(
    bench: Bench, test: Arena, set: str, way: Way, entered: str, choice: Choice
) -> Iterator[Row]:
    for short, contest in (("", test.everything), ("_new", test.new)):
        kind = "" if not short else f", {len(contest.judged.queries)} new among new"
        row = contest.row(f"{set}.{way.name}{short}", f"{TITLES[set]}, {way.what}{kind}", entered)
        yield row._replace(note=choice.note(way))
        ours = bench.results.rows.get(f"{set}.trained{short}")
        if ours is not None and len(ours.values) == len(row.values):
            gain = difference(np.array(ours.values), np.array(row.values))
            name = f"{set}.over_{way.name}{short}"
            yield ahead(difference_row(name, "  ours less that", gain), gain.p)
