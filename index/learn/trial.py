"""Trying ways to answer on held-out questions: one fit for each recipe and fold."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from index.learn.choose import Choice, Judged, weights
from index.learn.data import PARTS, Memory, Part, Pool, Questions, answerable
from index.learn.fit import Fitted, Recipe, Watch, fit, unlearned
from index.learn.folds import Fold, View
from index.learn.ranking import FACTORS, Parts, Space, Weights, ndcg, parts, scores, space_of
from index.learn.together import one_thread_each
from index.types import Bool, Float32, Float64, Int64

RECIPES: Mapping[str, Recipe] = {
    each.name: each
    for each in (
        Recipe("known documents", unlabelled=0.0),
        Recipe("known documents, far", unlabelled=0.0, batch=256, rate=3e-3, offset_rate=1e-2),
        Recipe("all documents", unlabelled=1.0),
    )
}
"""What is tried. The first pushes nothing away that no example speaks of, the second does."""

SHARES = (0.3, 0.6, 1.0)
EXAMPLES: tuple[tuple[float, Pool], ...] = (
    (0.0, "max"),
    *((factor, "max") for factor in FACTORS),
    *((factor, "sum") for factor in FACTORS),
)
LEXICAL = (
    *((0.0, 0.0), (0.1, 0.0), (0.2, 0.0), (0.3, 0.0), (0.5, 0.0)),
    *((0.25, 1.0), (0.5, 1.0), (0.75, 1.0), (1.0, 1.0), (1.5, 1.0)),
)
"""The grid: how far from the start to what was learned, α with its pool, and λ with γ."""

MOST_HELD = 1500
"""Questions by which a fold is judged: more make its figures no truer than they need to be."""


Number = TypeVar("Number", bound=np.generic)


@dataclass(frozen=True)
class Before:
    """What answers now.

    Attributes:
        choice: the way it came about, to be tried on each fold as all others are.
        start: (d_k, d), where its matrices began, if examples went into them.
        parts: what took part in learning it.
        fitted: where its queries and keys meet, if no example went into that; else None.
        known: which questions and judgements (q, n) it learned from, where it did.
    """

    choice: Choice
    start: Float32
    parts: Collection[Part] = PARTS
    fitted: Space | None = None
    known: Questions | None = None


class _Steady:
    """The progress of many tasks at once, as one number that only grows; and their stop."""

    def __init__(self, watch: Watch, tasks: int) -> None:
        self._watch, self._tasks = watch, tasks
        self._lock = threading.Lock()
        self._done: list[float] = []
        self._stopped = False

    def part(self) -> Watch:
        with self._lock:
            at = len(self._done)
            self._done.append(0.0)

        def watch(done: float) -> None:
            if self._stopped:
                raise Stopped
            with self._lock:
                self._done[at] = max(self._done[at], done)
                self._watch(min(1.0, sum(self._done) / self._tasks))

        return watch

    def stop(self) -> None:
        self._stopped = True


class HeldOut(NamedTuple):
    """Scores of candidates (q, c), which of them are relevant, and how much each question (q,)
    counts."""

    scores: Float64
    relevant: Bool
    counts: Float64


class Stopped(Exception):
    """Another task of the same trial went wrong, or was stopped."""


@dataclass
class Trial:
    """Held-out questions under every choice.

    Attributes:
        parts: what may take part.
        judged: one for each fold.
    """

    memory: Memory
    questions: Questions
    start: Float32
    before: Before
    seed: int
    parts: Collection[Part] = PARTS
    judged: list[Judged[Choice]] = field(default_factory=list)
    kept: dict[tuple[int, str | None, float], Parts] = field(default_factory=dict)

    def run(self, folds: Sequence[Fold], watch: Watch) -> None:
        """Judge every choice on every fold."""
        names = (None, *RECIPES) if "matrices" in self.parts else (None,)
        tasks = [(at, name) for at in range(len(folds)) for name in names]
        steady = _Steady(watch, len(tasks))
        with one_thread_each() as workers:
            running = [
                workers.submit(self._try, at, folds[at], name, steady.part()) for at, name in tasks
            ]
            try:
                found = [each.result() for each in running]
            except BaseException:
                steady.stop()
                raise
            held = [workers.submit(self._before, fold, steady.part()) for fold in folds]
            before = [each.result() for each in held]
        for at, fold in enumerate(folds):
            after = {
                choice: values
                for (task, _), judged in zip(tasks, found, strict=True)
                if task == at
                for choice, values in judged.items()
            }
            held_out = _sampled(fold.held_out, self.seed)
            self.judged.append(Judged(fold.view, held_out, before[at], after))

    def held_out(self, choice: Choice, share_seen: float) -> HeldOut:
        """All held-out questions under a choice, each view counting as much as in use."""
        found = {
            at: part for (at, name, share), part in self.kept.items() if (name, share) == choice[:2]
        }
        views = [self.judged[at].view for at in found]
        shares = weights(dict.fromkeys(views), share_seen)
        sizes: dict[View, int] = dict.fromkeys(views, 0)
        for view, part in zip(views, found.values(), strict=True):
            sizes[view] += len(part.documents)
        width = max(part.documents.shape[1] for part in found.values())
        how = Weights(*choice[2:])
        scored, relevant, counts = [], [], []
        for view, part in zip(views, found.values(), strict=True):
            alone = np.where(part.documents < 0, -np.inf, scores(part, how)).astype(np.float64)
            scored.append(_widened(alone, width, -np.inf))
            relevant.append(_widened(part.grades, width, 0) > 0)
            counts.append(np.full(len(alone), shares[view] / sizes[view]))
        return HeldOut(*(np.concatenate(each) for each in (scored, relevant, counts)))

    def _try(self, at: int, fold: Fold, name: str | None, watch: Watch) -> dict[Choice, Float64]:
        """One recipe on one fold."""
        fitted = self._fit(fold.training, name, self.start, self.parts, watch)
        held = _sampled(fold.held_out, self.seed)
        judged: dict[Choice, Float64] = {}
        for share in SHARES if name is not None else SHARES[-1:]:
            found = self._parts(fold.training, held, fitted.mixed(self.start, share))
            self.kept[at, name, share] = found
            worded = "words" in self.parts and found.lexical.any()
            for examples, pool in EXAMPLES if "examples" in self.parts else EXAMPLES[:1]:
                for lexical in LEXICAL if worded else LEXICAL[:1]:
                    how = Weights(examples, *lexical, pool)
                    judged[Choice(name, share, *how)] = ndcg(found, scores(found, how))
        watch(1.0)
        return judged

    def _before(self, fold: Fold, watch: Watch) -> Float64:
        """What answers now, as it would on questions that it has not seen either."""
        choice, known = self.before.choice, self.before.known
        held, factors = _sampled(fold.held_out, self.seed), (choice.examples or 1.0,)
        if known is None:
            space = self.before.fitted or space_of(
                self.memory, unlearned(self.memory, self.before.start)
            )
            return self._ndcg(choice, self._parts(fold.training, held, space, factors))
        then = known.without(fold.blocked)
        training = then.some(fold.trained & answerable(then))
        recipe = choice.recipe if training.count else None
        fitted = self._fit(training, recipe, self.before.start, self.before.parts, watch)
        fitted = fitted.mixed(self.before.start, choice.share)
        return self._ndcg(choice, self._parts(training, held, fitted, factors))

    def _ndcg(self, choice: Choice, found: Parts) -> Float64:
        return ndcg(found, scores(found, Weights(*choice[2:])))

    def _fit(
        self,
        training: Questions,
        name: str | None,
        start: Float32,
        parts: Collection[Part],
        watch: Watch,
    ) -> Fitted:
        if name is None:
            return unlearned(self.memory, start)
        recipe = recipe_of(name, parts)
        return fit(self.memory, training, recipe, start=start, seed=self.seed, watch=watch)

    def _parts(
        self,
        training: Questions,
        held: Int64,
        fitted: Fitted | Space,
        factors: tuple[float, ...] = FACTORS,
    ) -> Parts:
        asked = self.questions.some(held)
        return parts(self.memory, fitted, training, asked, asked.relevant, factors)


def recipe_of(name: str, parts: Collection[Part]) -> Recipe:
    """A recipe, without offsets where they may not take part."""
    recipe = RECIPES[name]
    return replace(recipe, offsets=recipe.offsets and "offsets" in parts)


def _sampled(held: Int64, seed: int) -> Int64:
    if len(held) <= MOST_HELD:
        return held
    return np.sort(np.random.default_rng(seed).choice(held, MOST_HELD, replace=False))


def _widened(array: NDArray[Number], width: int, blank: float) -> NDArray[Number]:
    more = width - array.shape[1]
    return np.pad(array, ((0, 0), (0, more)), constant_values=blank)
