"""Rows of sets that cannot gain: how often the gate lets a loss through."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from common import Row, progress, row_of
from learning_answers import auroc
from learning_sets import TITLES, Bench, Contest, Judged, RankingSet, taught, trained, variant
from scipy.stats import binomtest, norm, sem

from attend import Collection
from attend.api.answers import Answer
from attend.core.settings import UNFITTED_WORDS
from attend.core.types import Bool, Float64
from attend.learning import selection
from attend.learning.calibration import ERROR_RATE, SHARES
from attend.learning.task import Look
from attend.measure.statistics import calibration_error, mean_interval

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


TAUGHT, TIMED_FACTS = 1000, 300
"""Questions that are taught, and facts in two versions each, of made collections with times."""


def superseded(bench: Bench) -> Iterator[Row]:
    """Train made collections whose later documents supersede earlier ones by a known half-life, and
    others whose times say nothing."""
    from tests.index.learning.superseded import (
        HALF_LIFE,
        WIDTH,
        right_at_first,
        stored,
    )
    from tests.index.learning.superseded import superseded as draw

    half_lives: list[float] = []
    before, after, noise = list[float](), list[float](), 0
    for seed in bench.options.seeds:
        for is_noise in (False, True):
            facts = draw(TIMED_FACTS, TAUGHT + 300, seed, noise=is_noise)
            name = f"superseded-{seed}{'-noise' * is_noise}"

            def fill(collection: Collection, facts: Any = facts) -> None:
                stored(collection, facts, TAUGHT)

            with bench.workshop.copy(name, fill, dimension=WIDTH, normalize=True) as collection:
                plain = right_at_first(collection, facts, TAUGHT, memory=0)
                report = trained(collection).report
                if is_noise:
                    noise += bool(report["chosen"]["recency"])
                    continue
                learned = report["calibration"].get("recency") or {"half_life": np.nan}
                half_lives.append(learned["half_life"])
                before.append(plain)
                after.append(right_at_first(collection, facts, TAUGHT))
    count = len(bench.options.seeds)
    near = int(sum(abs(days / HALF_LIFE - 1) <= 0.2 for days in half_lives))
    what = f"half-life of {HALF_LIFE:g} days: share of {count} seeds within 20 %"
    yield _share("superseded.half-life", what, near, count).wanted(">=", 0.95)
    yield row_of(
        "superseded.plain", "  right at first without times", mean_interval(np.array(before))
    )
    right = mean_interval(np.array(after))
    yield row_of("superseded.right", "  right at first, trained", right).wanted(">=", 0.9)
    row = _share("superseded.noise", "  times that say nothing: share chosen", noise, count)
    yield row.wanted("<=", 0.05)


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


def rare_losses(bench: Bench) -> Iterator[Row]:
    """Tell how often a true loss of .02, of 2 % of the questions that lose all, is called safe."""
    random = np.random.default_rng(len(bench.options.seeds))
    runs = 100 if bench.options.quick else SIMULATED
    for questions in (20, 50, 100, 300):
        before, safe = np.ones(questions), 0
        for _ in range(runs):
            after = (random.random(questions) >= 0.02).astype(np.float64)
            safe += selection.Criterion("unseen", "unseen documents", before, after).safe
        name = f"simulated.rare-losses.{questions}"
        yield _share(name, f"rare losses of {questions}: called safe", safe, runs).wanted(
            "<=", 0.05
        )


NIGHTS = 50 + 20 * np.arange(40)
"""The questions of forty nightly trainings."""

TRUTHS: Mapping[str, tuple[tuple[float, float, float], str, float]] = {
    "gain.2-2-2": ((0.02, 0.02, 0.02), ">=", 0.94),
    "gain.4-1-1": ((0.04, 0.01, 0.01), ">=", 0.80),
    "null": ((0.0, 0.0, 0.0), "<=", 0.05),
    "loss.6-2-2": ((0.06, -0.02, -0.02), "<=", 0.01),
}
"""True changes on random questions, unseen and new documents; the share promoted asked for."""

ALIKE = np.array([[1.0, 0.5, 0.5], [0.5, 1.0, 0.8], [0.5, 0.8, 1.0]])
"""Correlations of a question's changes in the three splits."""

CHANGED_NIGHTLY = 0.4
"""The share of questions that change in any of the three."""


def nightly(bench: Bench) -> Iterator[Row]:
    """Train each night on growing feedback, and tell how often anything is ever promoted.

    The test's bounds are taken as normal: a bootstrap of each night would take a day.
    """
    random = np.random.default_rng(len(bench.options.seeds))
    runs = 200 if bench.options.quick else 1500
    for name, (truth, sign, most) in TRUTHS.items():
        promoted = sum(_ever_promoted(truth, random) for _ in range(runs))
        what = f"40 nightly trainings, true change {truth}: ever promoted"
        yield _share(f"nightly.{name}", what, promoted, runs).wanted(sign, most)


def _ever_promoted(truth: tuple[float, float, float], random: np.random.Generator) -> bool:
    count = int(NIGHTS[-1])
    noise = SPREAD * random.normal(size=(count, 3)) @ np.linalg.cholesky(ALIKE).T
    changes = np.where(random.random((count, 1)) < CHANGED_NIGHTLY, noise, 0.0) + truth
    mix = changes @ (0.5, 0.25, 0.25)
    looks: list[int] = []
    for questions in NIGHTS.tolist():
        look = Look.after(looks, questions)
        if not look.counts:
            continue
        looks.append(questions)
        clear = norm.isf(look.level)
        gain, splits = mix[:questions], changes[:questions]
        more = np.vstack([splits, np.full(3, -selection.UNSEEN_LOSS)])
        safe = more.mean(axis=0) - clear * sem(more) > -selection.TOLERANCE
        gained = gain.mean() >= selection.LEAST_GAIN and gain.mean() > clear * sem(gain)
        if gained and safe.all():
            return True
    return False


def promoted_by_chance(loss: float, questions: int, random: np.random.Generator) -> bool:
    """Return the verdict on one simulated training that gains .1 where documents are known."""

    def outcome(gain: float) -> selection.Outcome:
        changed = random.random(questions) < CHANGED
        gains = gain + np.where(changed, random.normal(0, SPREAD, questions), 0.0)
        before = np.full(questions, 0.5)
        return selection.Outcome(np.arange(questions), before, before + gains)

    outcomes: dict[selection.Split, selection.Outcome] = {
        "random": outcome(0.1),
        "unseen": outcome(-loss),
        "new": outcome(-loss),
    }
    criteria = selection.compare_splits(outcomes, share_seen=0.5)
    return selection.decide(criteria, Look(questions), measure="ndcg@10", units="questions").promote


def _tried(bench: Bench, draw: Draw, seed: int, named: str) -> Outcome:
    given = bench.ranking_set("conala")
    teaching, judging = draw(given, np.random.default_rng(seed))
    with bench.workshop.beir(given) as collection:
        untrained = collection.store.state().projection
        taught(collection, teaching)
        # Else leaving wrong feedback out would be a gain.
        collection.activate(variant(collection, untrained, UNFITTED_WORDS, memory=0.0))
        run = trained(collection, seed=seed)
        progress(f"{named}, seed {seed}: {run.said}")
        if not run.report["promoted"]:
            return Outcome(False, False)
        contest = Contest(collection, judging)
        contest.search("before", projection=untrained, memory=0.0)
        contest.search("trained")
        change = contest.difference("trained", "before")
        return Outcome(True, change.mean < 0 and change.p < 0.05)


def _share(name: str, what: str, count: int, seeds: int) -> Row:
    interval = binomtest(count, seeds).proportion_ci()
    return Row(name, what, count / seeds, float(interval.low), float(interval.high))


def _some(given: Judged, random: np.random.Generator, count: int) -> Judged:
    return given.some(random.permutation(sorted(given.queries))[:count].tolist())


ASKED_OF = {"scifact": 0.80}
"""The AUROC that was asked for."""

MOST = 0.07
"""Own questions refused at a stated 5 %."""

NEXT = 10
"""Documents up to which the margin of the best looks."""


class Side(NamedTuple):
    """What questions are answered.

    Attributes:
        scores: (q, a) of the best documents, best first.
        weight, null: (q,) of the best document, and of no answer.
        correct: (q,) the share of what is right that the best document has.
        answered: (q,) whether a relevant document is among the best.
        refused: (q,) whether the collection says that nothing answers.
    """

    scores: Float64
    weight: Float64
    null: Float64
    correct: Float64
    answered: Bool
    refused: Bool

    @property
    def largest(self) -> tuple[Float64, Float64]:
        """The largest weight of each question, no answer included, and how right its holder is."""
        right = np.where(self.weight >= self.null, self.correct, ~self.answered)
        return np.maximum(self.weight, self.null), right

    @property
    def confidence(self) -> Float64:
        return 1 - self.null


class Asked(NamedTuple):
    """The same questions with their answers, and without them."""

    with_answers: Side
    without: Side

    def told(self, values: Callable[[Side], Float64]) -> tuple[Float64, Float64]:
        """Values of questions that something answers, and of those with the answers removed."""
        there = self.with_answers.answered
        return values(self.with_answers)[there], values(self.without)[there]

    def error(self, pairs: Callable[[Side], tuple[Float64, Float64]]) -> float:
        """The calibration error where one question in ten has lost its answers."""
        columns = [
            (*pairs(side), np.full(len(side.weight), share))
            for share, side in zip(SHARES, self, strict=True)
        ]
        return calibration_error(*(np.concatenate(each) for each in zip(*columns, strict=True)))


def removed(name: str) -> Callable[[Bench], Iterator[Row]]:
    """Return the section of a set whose answers are removed from its collection."""

    def section(bench: Bench) -> Iterator[Row]:
        given = bench.ranking_set(name)
        with bench.workshop.beir(given) as collection:
            taught(collection, given.train)
            version = collection.store.projections()[0].version
            progress(f"removed: asking {name} untrained")
            # Stored questions would move a query: what is frozen has no labels.
            plain = {"projection": version, "lexical": False, "memory": 0.0}
            labelled = _fitted(
                Asked(
                    *(_asked(collection, given.train, masked, **plain) for masked in (False, True))
                )
            )
            first = _asked(collection, given.test, **plain)
            run = trained(collection)
            second = _asked(collection, given.test)
            collection.delete(sorted(given.test.documents()))
            before = Asked(first, _asked(collection, given.test, **plain))
            after = Asked(second, _asked(collection, given.test))
        yield from _told_apart(given, before, after, labelled, run.said)
        yield from _calibration(name, TITLES[name], before, after)

    return section


def _asked(collection: Collection, judged: Judged, masked: bool = False, **options: Any) -> Side:
    answers = []
    for id, text in judged.queries.items():
        relevant = judged.relevant(id)
        mask = {"mask": {"exclude": sorted(relevant)}} if masked else {}
        answer = collection.search(text, k=100, fields=[], **mask, **options)
        answers.append((answer, relevant))
    return _side(answers)


def _side(answers: Sequence[tuple[Answer, set[str]]]) -> Side:
    width = max(len(answer.hits) for answer, _ in answers)
    scores = np.full((len(answers), width), np.nan)
    rows = []
    for place, (answer, relevant) in enumerate(answers):
        scores[place, : len(answer.hits)] = [hit.score for hit in answer.hits]
        flags = [hit.id in relevant for hit in answer.hits]
        # Without a no-answer score everything is answered, as if it were certain.
        null = 1 - (answer.confidence or 0.0) if answer.calibrated == "examples" else 0.0
        correct = flags[0] / max(1, sum(flags))
        rows.append((answer.hits[0].weight, null, correct, any(flags), not answer.answered))
    return Side(scores, *(np.array(column) for column in zip(*rows, strict=True)))


# -- telling apart --------------------------------------------------------------------------


def _features(side: Side) -> Float64:
    """(q, 3): the best score, its margin over the next, and the spread of all."""
    best = side.scores[:, 0]
    margin = best - np.nanmean(side.scores[:, 1:NEXT], axis=1)
    return np.stack([best, margin, np.nanstd(side.scores, axis=1)], axis=1)


def _sum(side: Side, usual: Side) -> Float64:
    """The sum of the features, each in units of its spread over questions as they come."""
    features = _features(usual)
    return ((_features(side) - features.mean(axis=0)) / features.std(axis=0)).sum(axis=1)


def _fitted(asked: Asked) -> Callable[[Side], Float64]:
    """Logistic regression of the features on training questions, as they are and removed."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    sides = asked.told(lambda side: side.weight)
    there = asked.with_answers.answered
    features = np.concatenate([_features(side)[there] for side in asked])
    model = make_pipeline(StandardScaler(), LogisticRegression())
    model.fit(features, np.repeat([1, 0], [len(side) for side in sides]))
    return lambda side: np.asarray(model.decision_function(_features(side)))


def _told_apart(
    given: RankingSet, before: Asked, after: Asked, labelled: Callable[[Side], Float64], note: str
) -> Iterator[Row]:
    name = f"removed.{given.name}"
    what = f"{TITLES[given.name]}, answers removed, AUROC: "
    ways: dict[str, tuple[str, Asked, Callable[[Side], Float64]]] = {
        "cosine": ("best cosine", before, lambda side: side.scores[:, 0]),
        "spread": (
            "with margin and spread, no labels",
            before,
            lambda side: _sum(side, before.with_answers),
        ),
        "labelled": ("the same by logistic regression", before, labelled),
        "confidence": ("confidence after a training", after, lambda side: -np.log(side.null)),
    }
    for short, (way, asked, values) in ways.items():
        row = row_of(f"{name}.{short}", what + way, auroc(*asked.told(values)))
        if short == "confidence":
            row = row._replace(note=note)
            least = ASKED_OF.get(given.name)
            row = row if least is None else row.wanted(">=", least)
        yield row
    own, foreign = after.told(lambda side: side.refused.astype(np.float64))
    row = row_of(f"{name}.own", f"  at {ERROR_RATE:.0%}: own questions refused", mean_interval(own))
    yield row.wanted("<=", MOST)
    what = "  questions whose answers are removed refused"
    yield row_of(f"{name}.recognised", what, mean_interval(foreign))


# -- calibration ----------------------------------------------------------------------------


def _calibration(name: str, title: str, before: Asked, after: Asked) -> Iterator[Row]:
    """The errors before and after, where one question in ten has lost its answers."""
    for short, what, pairs in (
        ("weight", "best weight", lambda side: side.largest),
        ("confidence", "confidence", lambda side: (side.confidence, side.answered)),
    ):
        errors = before.error(pairs), after.error(pairs)
        what = f"{title}, calibration error of the {what}"
        yield Row(f"calibration.{name}.{short}_before", f"{what} before", errors[0])
        row = Row(f"calibration.{name}.{short}_after", "  after a training", errors[1])
        yield row.wanted("<=", errors[0])
