"""Trying ways to answer on held-out documents: one fit for each fold."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from attend.learn.answers.blended import fit_scale, gains, guards, output_for
from attend.learn.answers.fit import Matrices, Recipe, fit
from attend.learn.answers.held import Fold, Held, attended, compared, joined
from attend.learn.answers.output import Output
from attend.learn.answers.targets import Answers
from attend.learn.fit import Watch
from attend.learn.together import together
from attend.training.answer_material import sampled
from attend.types import Float32, Float64, Int64

MOST_HELD = 2500
"""Documents by which a fold is judged."""

RECIPE = Recipe("leave one out")

SHARES = (0.5, 1.0)
"""How far from the start to what was learned."""

LEXICAL = (0.0, 0.1, 0.2)
"""λ, tried where documents have texts; with a γ of 0, which was never worse on a training set."""

RIDGES = (None, 1.0, 0.1, 0.01)
"""How much W_V is held to the identity, tried where values are vectors; None learns none."""

VALUE_GAIN = 0.002
"""Of the variance: what W_V must be worth, for which v x v numbers are learned."""


class Choice(NamedTuple):
    """How far from the start to what the recipe learns, 0 for not at all; and λ."""

    share: float
    lexical: float = 0.0


class Best(NamedTuple):
    """A choice, the scale that goes with it, and how W_V is learned, if it is."""

    choice: Choice
    scale: float
    ridge: float | None


class Before(NamedTuple):
    """How one fold is answered now: what is attended to, by which scale, by which W_V.

    Attributes:
        ridge: how that was learned, where it was learned from the same values.
    """

    held: Held
    scale: float
    output: Output | None = None
    ridge: float | None = None


class Judged(NamedTuple):
    """Every held-out document, by the active version and by what the other folds would choose."""

    before: Float64
    after: Float64
    guard_before: Float64
    guard_after: Float64


class Trial:
    """Held-out documents under every choice.

    Attributes:
        held: of each choice, what every fold's documents attend to.
    """

    def __init__(self, answers: Answers, start: Float32, seed: int) -> None:
        self.answers, self.start, self.seed = answers, start, seed
        self.frozen = Matrices(start, start)
        self.held: dict[Choice, list[Held]] = {}

    def run(self, divided: Sequence[Fold], watch: Watch) -> None:
        """One fit for each fold, looked at under every choice; and none."""
        tries = (self._untrained, self._trained)
        jobs = [partial(each, fold) for each in tries for fold in divided]
        for found in together(jobs, watch):
            for choice, held in found.items():
                self.held.setdefault(choice, []).append(held)

    def final(self, choice: Choice, watch: Watch) -> Matrices:
        """The choice, fitted to all documents."""
        if choice.share == 0:
            return self.frozen
        everything = np.arange(self.answers.memory.documents)
        fitted = together([partial(self._fitted, everything)], watch)[0]
        return fitted.mixed(self.start, choice.share)

    def best(self, by: Sequence[int]) -> Best:
        """The choice under which the documents of some folds are answered best."""
        found = {}
        for choice, held in self.held.items():
            scale, gain = fit_scale(
                joined([held[at] for at in by]), self.answers.targets, self.answers.memory.scale
            )
            found[choice] = gain, scale
        fewest = {each: (each.share == 0) + (each.lexical == 0) for each in found}
        choice = max(found, key=lambda each: (found[each][0], fewest[each]))
        scale = found[choice][1]
        return Best(choice, scale, self._ridge(choice, scale, by))

    def output(self, best: Best, by: Sequence[int]) -> Output | None:
        """W_V by the documents of some folds, each answered by those of the others."""
        if best.ridge is None:
            return None
        held = joined([self.held[best.choice][at] for at in by])
        return output_for(held, self.answers.targets, best.scale, best.ridge)

    def _ridge(self, choice: Choice, scale: float, by: Sequence[int]) -> float | None:
        """How W_V is learned best, each of the folds answered by the W_V of the others."""
        numbers = self.answers.targets.numbers
        if numbers is None or numbers.shape[1] < 2 or len(by) < 2:
            return None
        gained = {ridge: self._gain(Best(choice, scale, ridge), by) for ridge in RIDGES}
        best = max(RIDGES, key=lambda ridge: gained[ridge])
        return best if gained[best] > gained[None] + VALUE_GAIN else None

    def _gain(self, best: Best, by: Sequence[int]) -> float:
        found = [
            gains(
                self.held[best.choice][at],
                self.answers.targets,
                best.scale,
                self.output(best, [other for other in by if other != at]),
            )
            for at in by
        ]
        return float(np.concatenate(found).mean())

    def judged(self, before: Sequence[Before]) -> Judged:
        """Each fold by the choice and the scale of the others: what a choice looks like on the
        documents that it was made by is better than it is."""
        targets = self.answers.targets
        columns: list[tuple[Float64, ...]] = []
        for at, now in enumerate(before):
            others = [other for other in range(len(before)) if other != at]
            best = self.best(others)
            held = (now.held, targets, now.scale, self._output_now(before, others, now))
            chosen = (
                self.held[best.choice][at],
                targets,
                best.scale,
                self.output(best, others),
            )
            columns.append((gains(*held), gains(*chosen), guards(*held), guards(*chosen)))
        return Judged(*(np.concatenate(each) for each in zip(*columns, strict=True)))

    def _output_now(
        self, before: Sequence[Before], others: Sequence[int], now: Before
    ) -> Output | None:
        """The active version's W_V; learned without the fold that judges, if from these values."""
        if now.ridge is None:
            return now.output
        held = joined([before[at].held for at in others])
        return output_for(held, self.answers.targets, now.scale, now.ridge)

    def _untrained(self, fold: Fold, watch: Watch) -> dict[Choice, Held]:
        found = self._looked_at(0.0, self.frozen, fold)
        watch(1.0)
        return found

    def _trained(self, fold: Fold, watch: Watch) -> dict[Choice, Held]:
        matrices = self._fitted(fold.members, watch)
        found: dict[Choice, Held] = {}
        for share in SHARES:
            found |= self._looked_at(share, matrices.mixed(self.start, share), fold)
        return found

    def _fitted(self, members: Int64, watch: Watch) -> Matrices:
        return fit(self.answers, members, RECIPE, start=self.start, seed=self.seed, watch=watch)

    def _looked_at(self, share: float, matrices: Matrices, fold: Fold) -> dict[Choice, Held]:
        """One fold under every λ."""
        tried = LEXICAL if fold.words is not None else LEXICAL[:1]
        return {
            Choice(share, each): attended(
                self.answers, compared(self.answers, matrices, each), fold
            )
            for each in tried
        }


def folds(groups: Int64, count: int, seed: int) -> list[Fold]:
    """Documents in folds as large as each other; those of one group are never divided."""
    random = np.random.default_rng(seed)
    names, of = np.unique(groups, return_inverse=True)
    sizes = np.bincount(of)
    order = random.permutation(len(names))
    fold_of = np.empty(len(names), dtype=np.int64)
    fold_of[order] = (np.cumsum(sizes[order]) - 1) * count // max(1, sizes.sum())
    by_document = fold_of[of]
    found = []
    for at in range(count):
        held = np.flatnonzero(by_document == at)
        members = np.flatnonzero(by_document != at)
        if len(held) and len(members):
            found.append(Fold(sampled(held, MOST_HELD, random), members))
    return found
