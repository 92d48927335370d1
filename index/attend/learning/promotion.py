"""The promotion test: what was learned answers only if held-out units leave no doubt.

A gain is proved by the paired randomisation test (Smucker, Allan and Carterette 2007). Safety is
proved, too: a loss larger than the tolerance must be ruled out by the bound of an interval
(non-inferiority; Schuirmann 1987). Units of one group, such as questions in other words or the
ratings of one user, are one observation: they gain and lose together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from attend.core.types import Float64, Int64, Json
from attend.learning.held_out import Split
from attend.learning.selection import Outcome, mixed
from attend.measure.statistics import (
    LEVEL,
    Interval,
    by_group,
    difference_intervals,
    paired_randomisation,
)

SIGNIFICANCE = 0.05
"""The chance of a promotion without a gain, and of one with a larger loss than is tolerated, over
all trainings against one active version."""

MOST_TESTS = 30
"""Trainings after which the share of each next one no longer shrinks: a p-value of 10,000 draws
could not get below it."""

POWER = 0.8
"""The chance that the number of units in a sentence shows a true difference (Cohen 1988)."""

TOLERANCE = 0.01
"""The loss, in units of the measure, that has to be ruled out."""

LEAST_GAIN = 0.005
"""The gain in nDCG that a ranking must show. Where labels are shuffled, so that no document is
nearer to its question than any other, more of the questions' side of the collection is found: a
significant 0.001, for which all that the embeddings mean is given up."""

QUESTION_LABELS = {
    "random": "random questions",
    "unseen": "unseen documents",
    "new": "new documents among new ones",
    "mix": "the mix",
}


def significance_of(tests: int) -> float:
    """Return the significance level of a training by the number of those that were tested against
    the same active version, itself included.

    Levels fall with the square of the number, so that all of them together have one budget of
    errors (alpha spending; Foster and Stine 2008, "α-investing").

    >>> [round(significance_of(tests), 4) for tests in (1, 2, 10)]
    [0.0304, 0.0076, 0.0003]
    """
    return SIGNIFICANCE * 6 / (math.pi * min(tests, MOST_TESTS)) ** 2


class PromotionVerdict(NamedTuple):
    """Whether to promote, why, and the figures of each comparison."""

    promote: bool
    reason: str
    views: Mapping[str, Mapping[str, Json]]


@dataclass(frozen=True)
class Criterion:
    """Values of held-out units before and after, (h,) each, and what they must show.

    Attributes:
        label: the name in a sentence.
        groups: (h,) the group of each unit; None where each is its own.
        errors: whether less is better.
        squares: whether values are squared errors, shown by the roots of their means.
        gain: whether a significant gain is needed, and `least` how large it must be.
        tolerance: the loss that has to be ruled out; of errors, which have units of their own, as a
            share of the one before. None where any loss may be.
        significance: the chance of an error that the test may have.
    """

    name: str
    label: str
    before: Float64
    after: Float64
    groups: Int64 | None = None
    errors: bool = False
    squares: bool = False
    gain: bool = False
    least: float = 0.0
    tolerance: float | None = TOLERANCE
    significance: float = SIGNIFICANCE

    @cached_property
    def figures(self) -> dict[str, Any]:
        """The label, both means, their difference with its interval, and the p-value."""
        before, after = self._observations
        interval, _ = self._intervals
        means = [float(side.mean()) for side in (self.before, self.after)]
        if self.squares:
            means = [float(np.sqrt(mean)) for mean in means]
        bounds = [float(bound) / self._unit for bound in (interval.low, interval.high)]
        return {
            "label": self.label,
            "before": means[0],
            "after": means[1],
            "difference": means[1] - means[0] if self.squares else float(interval.mean),
            "interval": None if np.isnan(bounds).any() else bounds,
            "p": float(paired_randomisation(after, before)),
            "queries": len(self.before),
            "groups": len(before),
        }

    @property
    def change(self) -> float:
        """The difference of the means, above zero where what was learned is better."""
        difference: float = self.figures["difference"]
        return -difference if self.errors else difference

    @cached_property
    def _intervals(self) -> list[Interval]:
        """Return the usual interval of the difference, and the one that the test looks at."""
        before, after = self._observations
        return difference_intervals(after, before, [LEVEL, 1 - 2 * self.significance])

    @cached_property
    def _observations(self) -> tuple[Float64, Float64]:
        """Values before and after, (n,) each: one of each group."""
        if self.groups is None:
            return self.before, self.after
        return by_group(self.before, self.groups), by_group(self.after, self.groups)

    @property
    def _unit(self) -> float:
        """Return the divisor of an interval: a² − b² = (a − b)(a + b) gives that of roots."""
        if not self.squares:
            return 1.0
        return max(float(np.sqrt(self.before.mean()) + np.sqrt(self.after.mean())), 1e-12)

    @property
    def gained(self) -> bool:
        """True where the gain leaves no doubt, however small it is."""
        return bool(self.figures["p"] < self.significance and self.change > 0)

    @cached_property
    def worst(self) -> float:
        """The largest change for the worse that is not ruled out, as a change: NaN of one group."""
        _, interval = self._intervals
        return (-interval.high if self.errors else interval.low) / self._unit

    @property
    def limit(self) -> float:
        """The loss that has to be ruled out, in units of the measure."""
        if self.tolerance is None:
            return math.inf
        return self.tolerance * (float(self.figures["before"]) if self.errors else 1.0)

    @property
    def safe(self) -> bool:
        """True where a larger loss than the limit is ruled out."""
        return math.isinf(self.limit) or bool(self.worst > -self.limit)

    @property
    def lost(self) -> bool:
        """True where a loss leaves no doubt, and more than the limit is not ruled out."""
        return not self.safe and self.change < 0 and self.figures["p"] < SIGNIFICANCE

    def units_for(self, difference: float) -> int | None:
        """Return about how many units show a true mean difference with a power of 0.8; None where
        the measured ones cannot tell (topic set size design: Webber, Moffat and Zobel 2008; Sakai
        2016).

        Args:
            difference: for a gain from zero, two-sided; else from the limit, one-sided.
        """
        error = self.detectable
        if difference <= 0 or not error > 0:
            return None
        return int(float(f"{math.ceil(len(self.before) * (error / difference) ** 2):.2g}"))

    @property
    def detectable(self) -> float:
        """The true difference that as many units as there are show with a power of 0.8."""
        before, after = self._observations
        if len(before) < 2:
            return math.nan
        level = NormalDist().inv_cdf(1 - self.significance / (2 if self.gain else 1))
        spread = float((after - before).std(ddof=1)) / self._unit
        return (level + NormalDist().inv_cdf(POWER)) * spread / math.sqrt(len(before))

    def sentence(self) -> str:
        """Name both means, and what the test looks at: the p-value, or the loss ruled out."""
        before, after, p = (self.figures[name] for name in ("before", "after", "p"))
        tested = f"p = {p:.4f}"
        if not self.gain and not np.isnan(self.worst):
            tested = "no loss" if self.worst >= 0 else f"loss at most {-self.worst:.4f}"
        return f"{self.label} {before:.4f} → {after:.4f} ({tested})"


def decide(
    criteria: Sequence[Criterion], *, measure: str, units: str, note: str = ""
) -> PromotionVerdict:
    """Promote by a significant gain where one is needed, and a loss that is ruled out elsewhere.

    Args:
        measure: the name of what has to gain; units: of what was held out, in the plural.
        note: what could not be measured, for the reason of a promotion.
    """
    needed = [criterion for criterion in criteria if criterion.gain]
    lost = [criterion.label for criterion in criteria if criterion.lost]
    unsafe = [criterion for criterion in criteria if not criterion.safe]
    gained = all(criterion.gained for criterion in needed)
    small = [criterion for criterion in needed if criterion.change < criterion.least]
    significant = f"The gain in {measure} is significant at the level {needed[0].significance:.4f}"
    if lost:
        why = f"It loses on {' and '.join(lost)}"
    elif gained and small:
        least = small[0].least
        why = f"{significant}, but below {least:g}: labels without meaning can do that"
    elif gained and unsafe:
        why = f"{significant}, but {_untold(unsafe, units)}"
    elif gained:
        guarded = [criterion.label for criterion in criteria if criterion.tolerance is not None]
        safe = f", and a loss is ruled out on {' and '.join(guarded)}" if guarded else ""
        why = f"{significant}{safe}{note}"
    else:
        unproved = next(criterion for criterion in needed if not criterion.gained)
        why = _unproved(unproved, measure, units)
        why += f". Besides, {_untold(unsafe, units)}" if unsafe else ""
    summary = "; ".join(criterion.sentence() for criterion in criteria)
    if measure not in [criterion.label for criterion in criteria]:
        summary = f"{measure}: {summary}"
    views = {criterion.name: criterion.figures for criterion in criteria}
    promote = gained and not (lost or unsafe or small)
    return PromotionVerdict(promote, f"{why} ({summary}).", views)


def _unproved(criterion: Criterion, measure: str, units: str) -> str:
    """Return a sentence on a gain that is not shown, and on how many units would show it."""
    count = f"{len(criterion.before):,} held-out {units}"
    if criterion.change <= criterion.least:
        least = f" by more than {criterion.least:g}" if criterion.least else ""
        detectable = criterion.detectable
        shown = f", which would show a gain of about {detectable:.2g}" if detectable > 0 else ""
        return f"Nothing was found that is better{least} on {count}{shown}"
    p, level = criterion.figures["p"], criterion.significance
    enough = criterion.units_for(criterion.change)
    more = "more" if enough is None else f"about {enough:,}"
    return (
        f"The gain in {measure} may be chance: p is {p:.4f} on {count}, and has to be below "
        f"{level:.4f}; {more} would show such a gain"
    )


def _untold(unsafe: Sequence[Criterion], units: str) -> str:
    """Return a clause on the losses that held-out units do not rule out yet."""
    label, limit = " and ".join(item.label for item in unsafe), unsafe[0].limit
    fewest = min(len(item.before) for item in unsafe)
    enough = [item.units_for(item.limit + max(item.change, 0.0)) for item in unsafe]
    number = "many more" if None in enough else f"about {max(n for n in enough if n):,}"
    return (
        f"a loss of more than {limit:.3g} is not ruled out on {label}: that takes {number} "
        f"held-out {units} if nothing is lost, and there are {fewest:,}"
    )


def compare_splits(
    outcomes: Mapping[Split, Outcome],
    share_seen: float,
    *,
    groups: Int64 | None = None,
    labels: Mapping[str, str] = QUESTION_LABELS,
    tolerance: float = TOLERANCE,
    significance: float = SIGNIFICANCE,
    least: float = 0.0,
) -> list[Criterion]:
    """Compare each split, where a loss has to be ruled out, and their mix, which needs a
    significant gain.

    Args:
        groups: (q,) of all units; None where each is its own.
        tolerance: the loss on a split that has to be ruled out.
        significance: the chance of an error that each test may have.
        least: the gain of the mix that is needed.
    """
    mix = mixed(outcomes, share_seen)
    scaled = Outcome(mix.units, mix.before * len(mix.units), mix.after * len(mix.units))

    def criterion(name: str, outcome: Outcome, **test: Any) -> Criterion:
        members = None if groups is None else groups[outcome.units]
        sides = outcome.before, outcome.after
        return Criterion(name, labels[name], *sides, members, significance=significance, **test)

    splits = [criterion(split, outcome, tolerance=tolerance) for split, outcome in outcomes.items()]
    return [*splits, criterion("mix", scaled, gain=True, least=least, tolerance=None)]
