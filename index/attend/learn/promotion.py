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
from typing import Any, NamedTuple

import numpy as np

from attend.learn.held_out import Split
from attend.learn.selection import Outcome, mixed
from attend.measure.statistics import (
    LEVEL,
    Interval,
    by_group,
    difference_intervals,
    paired_randomisation,
)
from attend.types import Float64, Int64, Json

SIGNIFICANCE = 0.05
"""The chance of a promotion without a gain, and of one with a larger loss than is tolerated, over
all trainings between two promotions."""

MOST_TESTS = 30
"""Trainings after which the share of each next one no longer shrinks: a p-value of 10,000 draws
could not get below it."""

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
    """Return the significance level of a training by the number of those since the last promotion,
    itself included.

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
        """Both means, their difference with its interval, and the p-value."""
        before, after = self._observations
        interval, _ = self._intervals
        means = [float(side.mean()) for side in (self.before, self.after)]
        if self.squares:
            means = [float(np.sqrt(mean)) for mean in means]
        bounds = [float(bound) / self._unit for bound in (interval.low, interval.high)]
        return {
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
        """True where it is likelier than not that more than the limit is lost, or any of it for
        certain."""
        certain = self.change < 0 and self.figures["p"] < SIGNIFICANCE
        return not self.safe and (self.change <= -self.limit or certain)

    @property
    def missing(self) -> int | None:
        """About how many more units would rule the loss out, if the change stays; None where one
        cannot tell: the error falls with the root of their number."""
        room = self.change + self.limit
        if room <= 0 or np.isnan(self.worst):
            return None
        count = len(self.before)
        return max(1, math.ceil(count * ((self.change - self.worst) / room) ** 2) - count)

    def sentence(self) -> str:
        """Name both means and the p-value."""
        before, after, p = (self.figures[name] for name in ("before", "after", "p"))
        return f"{self.label} {before:.4f} → {after:.4f} (p = {p:.4f})"


def decide(
    criteria: Sequence[Criterion], *, measure: str, units: str, note: str = ""
) -> PromotionVerdict:
    """Promote by a significant gain where one is needed, and a loss that is ruled out elsewhere.

    Args:
        measure: the name of what is measured; units: of what was held out, in the plural.
        note: what could not be measured, for the reason of a promotion.
    """
    needed = [criterion for criterion in criteria if criterion.gain]
    lost = [criterion.label for criterion in criteria if criterion.lost]
    unsafe = [criterion for criterion in criteria if not criterion.safe]
    gained = all(criterion.gained for criterion in needed)
    small = [criterion for criterion in needed if criterion.change < criterion.least]
    if lost:
        why = f"It loses on {' and '.join(lost)}"
    elif gained and small:
        least = small[0].least
        why = f"The gain is significant, but below {least:g}: labels without meaning can do that"
    elif gained and unsafe:
        why = _untold(unsafe, units)
    elif gained:
        guarded = [criterion.label for criterion in criteria if criterion.tolerance is not None]
        why = (
            f"The gain is significant, and a loss is ruled out on {' and '.join(guarded)}{note}"
            if guarded
            else f"The gain is significant{note}"
        )
    elif needed[0].change > 0:
        why = f"The gain may be chance; more {units} may show it"
    else:
        why = f"Nothing was found that is better on held-out {units}"
    summary = "; ".join(criterion.sentence() for criterion in criteria)
    views = {criterion.name: criterion.figures for criterion in criteria}
    promote = gained and not (lost or unsafe or small)
    return PromotionVerdict(promote, f"{why} ({measure}: {summary}).", views)


def _untold(unsafe: Sequence[Criterion], units: str) -> str:
    """Return a sentence on the losses that held-out units do not rule out yet."""
    label, limit = " and ".join(item.label for item in unsafe), unsafe[0].limit
    more = [item.missing for item in unsafe]
    number = "many more" if None in more else f"about {max(n for n in more if n):,} more"
    return (
        f"The gain is significant, but it cannot be told yet that no more than {limit:.3g} is "
        f"lost on {label}: {number} {units} would tell"
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
