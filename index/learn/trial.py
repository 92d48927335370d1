"""Trying ways to answer on held-out questions: one fit for each recipe and fold."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from index.learn.choose import Choice, Judged
from index.learn.data import Memory, Pool, Questions, answerable
from index.learn.fit import Fitted, Recipe, Watch, fit, unlearned
from index.learn.folds import Fold
from index.learn.ranking import FACTORS, Parts, Weights, ndcg, parts, scores
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


@dataclass(frozen=True)
class Before:
    """What answers now.

    Attributes:
        choice: the way it came about, to be tried on each fold as all others are.
        start: (d_k, d), where its matrices began.
        fitted: its matrices, where no example went into them; else None.
        known: which questions and judgements (q, n) it learned from, where it did.
    """

    choice: Choice
    start: Float32
    fitted: Fitted | None = None
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


class Stopped(Exception):
    """Another task of the same trial went wrong, or was stopped."""


@contextmanager
def one_thread_each() -> Iterator[ThreadPoolExecutor]:
    """A worker for each core, each with one thread of its own.

    A fit's products are small: two threads that wait for each other at every one of them take
    longer than one, and three times as long beside other work.
    """
    import torch  # here: seconds to import

    before = torch.get_num_threads()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    try:
        with ThreadPoolExecutor(cores, initializer=partial(torch.set_num_threads, 1)) as workers:
            yield workers
    finally:
        # Threads that are there keep their number; those begun later take the last one set.
        torch.set_num_threads(before)


@dataclass
class Trial:
    """Held-out questions under every choice.

    Attributes:
        judged: one for each fold.
        seconds: of each recipe, the mean time of a fit.
    """

    memory: Memory
    questions: Questions
    start: Float32
    before: Before
    seed: int
    judged: list[Judged] = field(default_factory=list)
    kept: dict[tuple[int, str | None, float], Parts] = field(default_factory=dict)

    def run(self, folds: Sequence[Fold], watch: Watch) -> None:
        """Judge every choice on every fold."""
        tasks = [(at, name) for at in range(len(folds)) for name in (None, *RECIPES)]
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

    def held_out(self, choice: Choice) -> tuple[Float64, Bool]:
        """All held-out questions of both views under a choice: scores (q, c), and relevant ones."""
        found = [
            part for (_, name, share), part in self.kept.items() if (name, share) == choice[:2]
        ]
        width = max(part.documents.shape[1] for part in found)
        weights = Weights(*choice[2:])
        scored = [_widened(scores(part, weights), width, -np.inf) for part in found]
        grades = [_widened(part.grades, width, 0) for part in found]
        everything = np.concatenate(scored).astype(np.float64)
        return np.where(everything < -1e6, -np.inf, everything), np.concatenate(grades) > 0

    def _try(self, at: int, fold: Fold, name: str | None, watch: Watch) -> dict[Choice, Float64]:
        """One recipe on one fold."""
        fitted = self._fit(fold.training, name, self.start, watch)
        held = _sampled(fold.held_out, self.seed)
        judged: dict[Choice, Float64] = {}
        for share in SHARES if name is not None else SHARES[-1:]:
            found = self._parts(fold.training, held, fitted.mixed(self.start, share))
            self.kept[at, name, share] = found
            for examples, pool in EXAMPLES:
                for lexical in LEXICAL if found.lexical.any() else LEXICAL[:1]:
                    weights = Weights(examples, *lexical, pool)
                    judged[Choice(name, share, *weights)] = ndcg(found, scores(found, weights))
        watch(1.0)
        return judged

    def _before(self, fold: Fold, watch: Watch) -> Float64:
        """What answers now, as it would on questions that it has not seen either."""
        choice, known = self.before.choice, self.before.known
        training = fold.training
        fitted = self.before.fitted
        if known is not None:
            then = known.without(fold.blocked)
            training = then.some(fold.trained & answerable(then))
            recipe = choice.recipe if training.count else None
            fitted = self._fit(training, recipe, self.before.start, watch)
            fitted = fitted.mixed(self.before.start, choice.share)
        held = _sampled(fold.held_out, self.seed)
        answers = fitted or unlearned(self.memory, self.before.start)
        found = self._parts(training, held, answers, (choice.examples or 1.0,))
        return ndcg(found, scores(found, Weights(*choice[2:])))

    def _fit(self, training: Questions, name: str | None, start: Float32, watch: Watch) -> Fitted:
        if name is None:
            return unlearned(self.memory, start)
        recipe = RECIPES[name]
        return fit(self.memory, training, recipe, start=start, seed=self.seed, watch=watch)

    def _parts(
        self,
        training: Questions,
        held: Int64,
        fitted: Fitted,
        factors: tuple[float, ...] = FACTORS,
    ) -> Parts:
        asked = self.questions.some(held)
        return parts(self.memory, fitted, training, asked, asked.relevant, factors)


def _sampled(held: Int64, seed: int) -> Int64:
    if len(held) <= MOST_HELD:
        return held
    return np.sort(np.random.default_rng(seed).choice(held, MOST_HELD, replace=False))


def _widened(array: Float32, width: int, blank: float) -> Float32:
    more = width - array.shape[1]
    return np.pad(array, ((0, 0), (0, more)), constant_values=blank)
