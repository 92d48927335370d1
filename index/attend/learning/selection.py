"""Cross-validation of a parameter grid, the choice it leads to, and nested selection.

Each fold's units are judged by what the other folds would choose: a choice made on the same
units that judge it looks better than it is (Cawley and Talbot 2010).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from attend.core.types import Bool, Float64, Int64
from attend.learning.fit import Watch, run_parallel
from attend.learning.held_out import FAMILIAR, SPLITS, Split

PART_COST = 0.0005
"""The gain in nDCG that each further part of the mechanism must be worth."""

DOUBT = 2.0
"""Standard errors by which a choice must be clear of the largest loss that is tolerated."""

LEAD = 0.5
"""Standard errors by which a choice must be ahead of the best plain one: a fit has more numbers to
follow chance with (after the rule of one standard error, Breiman et al. 1984)."""

Fold = TypeVar("Fold")
Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
Selected = TypeVar("Selected")


class Choice(Protocol):
    """A point of a parameter grid."""

    @property
    def cost(self) -> float:
        """The gain that its parts must be worth together."""

    @property
    def plain(self) -> bool:
        """A simple choice, which any other has to lead."""

    def __hash__(self) -> int: ...


C = TypeVar("C", bound=Choice)


class Judged(NamedTuple, Generic[C]):
    """The held-out units of one fold: values of what answers now, and under every choice."""

    split: Split
    units: Int64  # (h,)
    before: Float64  # (h,)
    after: Mapping[C, Float64]  # (h,) each

    @classmethod
    def of(cls, split: Split, units: Int64, values: Mapping[C | None, Float64]) -> Judged[C]:
        """Return a fold by the values of every choice, and of what answers now by None."""
        after = {choice: value for choice, value in values.items() if choice is not None}
        return cls(split, units, values[None], after)

    def some(self, places: Bool | Int64) -> Judged[C]:
        """Return some of the units."""
        after = {choice: values[places] for choice, values in self.after.items()}
        return Judged(self.split, self.units[places], self.before[places], after)


class Outcome(NamedTuple):
    """The units of a split, and their values before and after."""

    units: Int64
    before: Float64
    after: Float64


def cross_validate(
    folds: Sequence[Fold],
    tries: Sequence[Callable[[Fold, Watch], Mapping[Key, Value]]],
    watch: Watch,
) -> list[dict[Key, Value]]:
    """Run every try on every fold in parallel; return what they give by key, for each fold."""
    jobs = [partial(attempt, fold) for attempt in tries for fold in folds]
    results = run_parallel(jobs, watch)
    by_fold: list[dict[Key, Value]] = [{} for _ in folds]
    for index, result in enumerate(results):
        by_fold[index % len(folds)].update(result)
    return by_fold


def select_nested(
    folds: int,
    select: Callable[[list[int]], Selected],
    judge: Callable[[int, Selected], Value],
) -> list[Value]:
    """Judge each fold by what `select` chooses on all the others."""
    return [
        judge(index, select([other for other in range(folds) if other != index]))
        for index in range(folds)
    ]


def best(judged: Sequence[Judged[C]], share_seen: float, tolerance: float = math.inf) -> C:
    """Return the choice with the best mix of all splits; a loss on new documents counts twice.

    New documents come unannounced, and who adds them did not choose to lose by it. A choice that
    may lose more than the tolerance on a split is taken only where no safe one gains anything: the
    promotion test then says how many more questions could tell. One that loses more than the
    tolerance on known documents against a plain one is taken only where no other gains anything: a
    gain on new documents is no reason to lose where most of the use is. One that is not plain has
    to lead the best that is by half a standard error.
    """
    choices = list(judged[0].after)
    samples = {split: _values(judged, split, choices) for split in _splits(judged)}
    shares = weights(samples, share_seen)
    costs = [choice.cost for choice in choices]
    totals = -np.array(costs)
    now, safe, level = 0.0, np.ones(len(choices), dtype=bool), np.ones(len(choices), dtype=bool)
    plain = np.array([choice.plain for choice in choices])
    for split, (before, after) in samples.items():
        now += shares[split] * before.mean()
        totals += shares[split] * after.mean(axis=1)
        if split not in FAMILIAR:
            totals -= shares[split] * np.maximum(0.0, before.mean() - after.mean(axis=1))
        elif plain.any():
            behind = after[plain][after[plain].mean(axis=1).argmax()] - after
            level &= behind.mean(axis=1) <= tolerance
        gains = after - before
        safe &= gains.mean(axis=1) - DOUBT * _errors(gains) > -tolerance
    for allowed in (safe & level, safe):
        if allowed.any() and totals[allowed].max() > now:
            totals[~allowed] = -np.inf
            break
    order = sorted(range(len(choices)), key=lambda index: (-totals[index], costs[index]))
    first = order[0]
    rival = next((index for index in order if plain[index]), first)
    least = LEAD * _error(judged, choices[rival], choices[first], share_seen)
    return choices[first if totals[first] - totals[rival] >= least else rival]


def nested_outcomes(
    judged: Sequence[Judged[C]], share_seen: float, tolerance: float = math.inf
) -> dict[Split, Outcome]:
    """Return each split's held-out values, each fold under the choice of all other units.

    All splits hold out the same units: those of a fold have no say in it by way of another split
    either.
    """

    def select(others: list[int]) -> list[Judged[C]]:
        return [judged[index] for index in others]

    def judge(index: int, others: list[Judged[C]]) -> Float64:
        apart = [_without(other, judged[index].units) for other in others]
        apart = [other for other in apart if len(other.units)] or list(judged)
        return judged[index].after[best(apart, share_seen, tolerance)]

    return outcomes_of(judged, select_nested(len(judged), select, judge))


def outcomes_of(judged: Sequence[Judged[C]], after: Sequence[Float64]) -> dict[Split, Outcome]:
    """Return each split's values before, and after by fold: (h,) each."""
    outcomes: dict[Split, Outcome] = {}
    for split in _splits(judged):
        of_split = [index for index, fold in enumerate(judged) if fold.split == split]
        outcomes[split] = Outcome(
            np.concatenate([judged[index].units for index in of_split]),
            np.concatenate([judged[index].before for index in of_split]),
            np.concatenate([after[index] for index in of_split]),
        )
    return outcomes


def weights(outcomes: Mapping[Split, object], share_seen: float) -> dict[Split, float]:
    """Return how much each split counts in the mix: those of new documents share the rest evenly,
    and all of it where there is one split only."""
    others = max(1, len([split for split in outcomes if split not in FAMILIAR]))
    shares: dict[Split, float] = {
        split: share_seen if split in FAMILIAR else (1 - share_seen) / others for split in outcomes
    }
    total = sum(shares.values())
    return {split: share / total if total else 1 / len(shares) for split, share in shares.items()}


def mixed(outcomes: Mapping[Split, Outcome], share_seen: float) -> Outcome:
    """Return the mix that mirrors use, by unit: sums of (before, after) are the mixed means.

    A unit that several splits hold out counts once, with all of its values: its differences are not
    independent.
    """
    units = np.unique(np.concatenate([outcome.units for outcome in outcomes.values()]))
    before, after = np.zeros(len(units)), np.zeros(len(units))
    for split, weight in weights(outcomes, share_seen).items():
        outcome = outcomes[split]
        index = np.searchsorted(units, outcome.units)
        np.add.at(before, index, weight * outcome.before / len(outcome.before))
        np.add.at(after, index, weight * outcome.after / len(outcome.after))
    return Outcome(units, before, after)


def _error(judged: Sequence[Judged[C]], one: C, other: C, share_seen: float) -> float:
    """Return the standard error of the difference between two choices in the mix."""
    against = [fold._replace(before=fold.after[one]) for fold in judged]
    mix = mixed(outcomes_of(against, [fold.after[other] for fold in judged]), share_seen)
    return float(len(mix.units) * _errors(mix.after - mix.before))


def _errors(gains: Float64) -> Float64:
    """Return the standard errors of means over the last axis: (..., h) to (...)."""
    return np.asarray(gains.std(axis=-1) / math.sqrt(max(1, gains.shape[-1] - 1)))


def _splits(judged: Sequence[Judged[C]]) -> list[Split]:
    return [split for split in SPLITS if any(fold.split == split for fold in judged)]


def _values(
    judged: Sequence[Judged[C]], split: Split, choices: Sequence[C]
) -> tuple[Float64, Float64]:
    """Return a split's values before (h,), and after under each choice (c, h)."""
    folds = [fold for fold in judged if fold.split == split]
    before = np.concatenate([fold.before for fold in folds])
    after = [np.stack([fold.after[choice] for choice in choices]) for fold in folds]
    return before, np.concatenate(after, axis=1)


def _without(judged: Judged[C], units: Int64) -> Judged[C]:
    left = ~np.isin(judged.units, units)
    return judged if left.all() else judged.some(left)
