"""Rows of learning from use: simulated users search, use what serves them, and label nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from clicks import Cascade, Position
from common import Row, progress
from learning_sets import SEED, TITLES, Bench, Contest, RankingSet, taught, trained

from attend import Collection
from attend.core.types import Bool, Float64
from attend.learning import FEWEST_QUESTIONS
from attend.learning.task import GROWTH
from attend_service.learner import DOUBTED, is_promising

ROUNDS, SEARCHES, K = 20, 100, 10

NOISE = 0.1
MALICIOUS = 0.2
"""The share of searches that others make, who use the last hit whatever was asked."""

SOURCES = 10
"""Honest ones, and a fifth as many others."""

LOSS = 0.005
"""The loss on test questions from which a promoted version counts as worse."""

Users = Callable[[np.random.Generator], Position | Cascade]
USERS: dict[str, Users] = {
    "position": lambda random: Position(1.0, NOISE, random),
    "cascade": lambda random: Cascade(NOISE, random),
}


def used(name: str) -> Callable[[Bench], Iterator[Row]]:
    """Return the section of a set: what use gains over 20 rounds of 100 searches, beside what all
    labels gain."""

    def section(bench: Bench) -> Iterator[Row]:
        dataset = bench.ranking_set(name)
        what = TITLES.get(name, name)
        full = _full(bench, dataset)
        start, gain = full["start"], full["full"] - full["start"]
        yield Row(f"used.{name}_start", f"{what}, nothing learned", start)
        yield Row(f"used.{name}_labels", "  all labels", full["full"])
        for users in USERS if not bench.options.quick else ("position",):
            with bench.workshop.beir(dataset) as collection:
                curve, promotions = simulated(bench, collection, dataset, users)
            note = f"{promotions} promoted; by round " + ", ".join(
                f"{place}: {value:.4f}" for place, value in curve
            )
            end = curve[-1][1]
            yield Row(f"used.{name}_{users}", f"  by use, {users}", end, note=note)
            share = (end - start) / gain if gain > 0 else None
            row = Row(f"used.{name}_{users}_share", "    of the gain of all labels", share)
            yield row.wanted(">=", 0.5)

    return section


def attacked(kind: str) -> Callable[[Bench], Iterator[Row]]:
    """Return the section of clicks that are malicious, or shuffled over the hits of searches."""

    def section(bench: Bench) -> Iterator[Row]:
        dataset, promoted, worse = bench.ranking_set("conala"), 0, 0
        for seed in bench.options.seeds:
            with bench.workshop.beir(dataset) as collection:
                curve, count = simulated(bench, collection, dataset, "position", kind, seed)
            promoted += count > 0
            worse += count > 0 and curve[-1][1] < curve[0][1] - LOSS
            progress(f"   {kind}, seed {seed}: {count} promoted, {curve}")
        runs, what = len(bench.options.seeds), f"CoNaLa, {kind} clicks: runs with a promotion"
        yield Row(f"used.{kind}", what, promoted / runs, note=f"{promoted} of {runs}").wanted(
            "<=", 0
        )
        what = f"  of these worse by {LOSS} or more"
        yield Row(f"used.{kind}_worse", what, worse / runs, note=f"{worse}").wanted("<=", 0)

    return section


def simulated(
    bench: Bench,
    collection: Collection,
    dataset: RankingSet,
    users: str,
    kind: str = "honest",
    seed: int = 0,
) -> tuple[list[tuple[int, float]], int]:
    """Search, use and train as `attend serve --learn` does.

    Returns: nDCG@10 of test questions by round, where a training followed it or use has told which
        version is better, and the number of promotions.
    """
    random = np.random.default_rng(SEED + seed)
    click = USERS[users](random)
    collection.configure(log=True)
    curve, promotions, last = [(0, _judged(bench, collection, dataset))], 0, 0
    ids = sorted(dataset.train.queries)
    for place in range(1, ROUNDS + 1):
        drawn = [ids[at] for at in random.integers(len(ids), size=SEARCHES)]
        answers = collection.search_many(
            [{"query": dataset.train.queries[id], "k": K, "mode": "hard"} for id in drawn]
        )
        relevance = np.zeros((SEARCHES, K))
        for row, (id, answer) in enumerate(zip(drawn, answers, strict=True)):
            relevant = dataset.train.relevant(id)
            relevance[row, : len(answer.hits)] = [hit.id in relevant for hit in answer.hits]
        use = _uses(kind, click.clicks(relevance), random)
        for answer, clicks, source in zip(answers, use, _sources(kind, random), strict=True):
            ids_used = [hit.id for hit, one in zip(answer.hits, clicks, strict=False) if one]
            collection.used(str(answer.search), ids_used, source=source)
        result = collection.review()
        if result is not None:
            progress(f"   round {place}: {result.comparison.sentence}")
            promotions += result.event == "promoted"
        count = place * SEARCHES
        growth = DOUBTED if collection.settings.interleave else GROWTH
        if count >= max(FEWEST_QUESTIONS, growth * last):
            last = count
            report = trained(collection).report
            promotions += report["promoted"]
            progress(f"   {report['chosen']} {report['reason']}")
            if is_promising(report):
                collection.configure(interleave=[report["previous"], report["version"]])
        elif result is None or result.event is None:
            continue
        curve.append((place, _judged(bench, collection, dataset)))
        progress(f"   {dataset.name}, {users}, {kind}, round {place}: {curve[-1][1]:.4f}")
    return curve, promotions


def _uses(kind: str, clicks: Bool, random: np.random.Generator) -> Bool:
    """Return who used what (n, k): as they clicked, or as attackers and chance have it."""
    if kind == "shuffled":
        return np.asarray(clicks[random.permutation(len(clicks))])
    if kind == "malicious":
        clicks = clicks.copy()
        clicks[: round(MALICIOUS * len(clicks))] = np.arange(clicks.shape[1]) == K - 1
    return clicks


def _sources(kind: str, random: np.random.Generator) -> Sequence[str]:
    others = round(MALICIOUS * SEARCHES) if kind == "malicious" else 0
    names = [f"other {at}" for at in random.integers(round(SOURCES * MALICIOUS), size=others)]
    return names + [f"user {at}" for at in random.integers(SOURCES, size=SEARCHES - others)]


def _full(bench: Bench, dataset: RankingSet) -> dict[str, float]:
    with bench.workshop.beir(dataset) as collection:
        start = _judged(bench, collection, dataset)
        taught(collection, dataset.train)
        trained(collection)
        return {"start": start, "full": _judged(bench, collection, dataset)}


def _judged(bench: Bench, collection: Collection, dataset: RankingSet) -> float:
    """nDCG@10 of test questions; of CoNaLa those about documents that no training question is
    about, among such documents."""
    labelled, options = dataset.train.documents(), {}
    test = dataset.test
    if dataset.name == "conala":
        test = test.some([id for id in test.queries if not test.relevant(id) & labelled])
        options = {"mask": {"exclude": sorted(labelled)}}
    contest = Contest(collection, test)
    contest.search("now", **options)
    values: Float64 = contest.values("now")
    return float(values.mean())


SECTIONS = {
    **{f"used-{name}": used(name) for name in ("conala", "scifact", "nfcorpus")},
    **{f"used-{kind}": attacked(kind) for kind in ("malicious", "shuffled")},
}
