"""Rows of sets that cannot gain: how often the gate lets a loss through."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
from common import progress
from learning_contest import Contest, variant
from learning_rows import Row
from learning_sets import Bench, Judged, RankingSet, taught, trained
from scipy.stats import binomtest

from attend.learn import promotion, selection

MANY = 300
"""Questions that are taught, and as many that judge."""

FEW = 5

LOSSES = (0.0, 0.01, 0.02, 0.03)
QUESTIONS = (100, 300, 1000)
"""The true losses on new documents, and the numbers of questions, of simulated trainings."""

SIMULATED = 400

CHANGED, SPREAD = 0.3, 0.25
"""The share of questions that a training changes the ranking of, and the standard deviation of
their nDCG@10: those of SciFact and CoNaLa."""

Draw = Callable[[RankingSet, np.random.Generator], tuple[Judged, Judged]]
"""What is taught, and what judges it."""


class Outcome(NamedTuple):
    """One seed: whether it was promoted, and whether it then was significantly worse."""

    promoted: bool
    worse: bool


def shuffled(given: RankingSet, random: np.random.Generator) -> tuple[Judged, Judged]:
    """Every question taught with the documents of another; judged by true ones."""
    train = _some(given.train, random, MANY)
    ids = list(train.queries)
    order = random.permutation(len(ids))
    wrong = {id: train.qrels[ids[at]] for id, at in zip(ids, order, strict=True)}
    return Judged(train.queries, wrong), given.test


def few(given: RankingSet, random: np.random.Generator) -> tuple[Judged, Judged]:
    return _some(given.train, random, FEW), given.test


def ceiling(given: RankingSet, random: np.random.Generator) -> tuple[Judged, Judged]:
    """Questions that are their documents' own texts: nothing can find them better."""
    texts = given.texts()
    ids = random.permutation(sorted(texts))[: 2 * MANY].tolist()
    parts = [ids[: len(ids) // 2], ids[len(ids) // 2 :]]
    taught, judge = (
        Judged({id: texts[id] for id in part}, {id: {id: 1} for id in part}) for part in parts
    )
    return taught, judge


def full(given: RankingSet, random: np.random.Generator) -> tuple[Judged, Judged]:
    """All questions, each taught with the documents of another; judged by true ones."""
    ids = list(given.train.queries)
    order = random.permutation(len(ids))
    wrong = {id: given.train.qrels[ids[at]] for id, at in zip(ids, order, strict=True)}
    return Judged(given.train.queries, wrong), given.test


KINDS: Mapping[str, tuple[str, Draw]] = {
    "shuffled": ("shuffled labels", shuffled),
    "full": ("shuffled labels of all queries", full),
    "few": (f"{FEW} examples", few),
    "ceiling": ("a collection at its ceiling", ceiling),
}


def cannot_gain(kind: str) -> Callable[[Bench], Iterator[Row]]:
    named, draw = KINDS[kind]

    def section(bench: Bench) -> Iterator[Row]:
        seeds = bench.options.seeds
        found = [_tried(bench, draw, seed, named) for seed in seeds]
        promoted = sum(each.promoted for each in found)
        worse = sum(each.worse for each in found)
        count, which = len(seeds), f"seeds {seeds.start} to {seeds.stop - 1}"
        what = f"{named}: share of {count} seeds promoted"
        yield _share(f"{kind}.promoted", what, promoted, count)._replace(note=which)
        row = _share(f"{kind}.worse", "  promoted and significantly worse", worse, count)
        note = f"{worse} of {which}"
        yield row._replace(asked="<= 1 seed", holds=worse <= 1, note=note)

    return section


def simulated_losses(bench: Bench) -> Iterator[Row]:
    """Promote trainings with a clear gain on random questions and a true loss on new documents."""
    random = np.random.default_rng(len(bench.options.seeds))
    runs = 100 if bench.options.quick else SIMULATED
    for questions in QUESTIONS:
        for loss in LOSSES:
            count = sum(promoted_by_chance(loss, questions, random) for _ in range(runs))
            name = f"simulated.{round(100 * loss)}-points.{questions}"
            what = f"true loss of {round(100 * loss)} points, {questions} questions: promoted"
            row = _share(name, what, count, runs)
            yield row.wanted("<=", 0.05) if loss >= 0.02 else row


def promoted_by_chance(loss: float, questions: int, random: np.random.Generator) -> bool:
    """Return the verdict on one simulated training that gains .1 where documents are known."""

    def outcome(gain: float) -> selection.Outcome:
        changed = random.random(questions) < CHANGED
        gains = gain + np.where(changed, random.normal(0, SPREAD, questions), 0.0)
        before = np.full(questions, 0.5)
        return selection.Outcome(np.arange(questions), before, before + gains)

    outcomes: dict[selection.Split, selection.Outcome] = {
        "random": outcome(0.1),
        "new": outcome(-loss),
    }
    criteria = promotion.compare_splits(
        outcomes, share_seen=0.5, significance=promotion.significance_of(1)
    )
    return promotion.decide(criteria, measure="ndcg@10", units="questions").promote


def _tried(bench: Bench, draw: Draw, seed: int, named: str) -> Outcome:
    given = bench.ranking_set("conala")
    teaching, judging = draw(given, np.random.default_rng(seed))
    with bench.workshop.beir(given) as collection:
        untrained = collection.store.state().projection
        taught(collection, teaching)
        # Else leaving wrong feedback out would be a gain.
        collection.activate(variant(collection, untrained, memory=0.0))
        run = trained(collection, seed=seed)
        progress(f"{named}, seed {seed}: {run.said}")
        if not run.report["promoted"]:
            return Outcome(False, False)
        contest = Contest(collection, judging)
        contest.search("frozen", projection=untrained, lexical=False, memory=0.0)
        contest.search("trained")
        change = contest.difference("trained", "frozen")
        return Outcome(True, change.mean < 0 and change.p < 0.05)


def _share(name: str, what: str, count: int, seeds: int) -> Row:
    interval = binomtest(count, seeds).proportion_ci()
    return Row(name, what, count / seeds, float(interval.low), float(interval.high))


def _some(given: Judged, random: np.random.Generator, count: int) -> Judged:
    return given.some(random.permutation(sorted(given.queries))[:count].tolist())
