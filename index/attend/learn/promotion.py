"""The promotion test: what was learned answers only if held-out units leave no doubt.

Significance is that of the paired randomisation test (Smucker, Allan and Carterette 2007) at 5 %.
Units of one group, such as questions in other words or the ratings of one user, are one
observation: they gain and lose together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from attend.learn.held_out import Split
from attend.learn.selection import Outcome, mixed
from attend.measure.statistics import by_group, difference_interval, paired_randomisation
from attend.types import Float64, Int64, Json

SIGNIFICANCE = 0.05

QUESTION_LABELS = {
    "random": "random questions",
    "unseen": "unseen documents",
    "mix": "the mix",
}

Figures = Mapping[str, Json]


class PromotionVerdict(NamedTuple):
    """Whether to promote, why, and the figures of each comparison."""

    promote: bool
    reason: str
    views: Mapping[str, Figures]


class Criterion(NamedTuple):
    """Values of held-out units before and after, (h,) each.

    Attributes:
        label: the name in a sentence.
        groups: (h,) the group of each unit; None where each is its own.
        errors: whether less is better.
        squares: whether values are squared errors, shown by the roots of their means.
        gain: whether a significant gain is needed.
        loss: the share of the mean that may be lost significantly; None for any.
    """

    name: str
    label: str
    before: Float64
    after: Float64
    groups: Int64 | None = None
    errors: bool = False
    squares: bool = False
    gain: bool = False
    loss: float | None = 0.0

    def figures(self) -> dict[str, Json]:
        """Return both means, their difference with its interval, and the p-value."""
        before, after = self.before, self.after
        if self.groups is not None:
            before, after = (by_group(side, self.groups) for side in (before, after))
        interval = difference_interval(after, before)
        means = [float(side.mean()) for side in (self.before, self.after)]
        size = 1.0
        if self.squares:
            # a² − b² = (a − b)(a + b): the interval of mean squares in units of the root's.
            means = [float(np.sqrt(mean)) for mean in means]
            size = max(sum(means), 1e-12)
        bounds = [float(bound) / size for bound in (interval.low, interval.high)]
        return {
            "before": means[0],
            "after": means[1],
            "difference": means[1] - means[0] if self.squares else float(interval.mean),
            "interval": None if np.isnan(bounds).any() else list(bounds),
            "p": float(paired_randomisation(after, before)),
            "queries": len(self.before),
            "groups": len(before),
        }


class _Result(NamedTuple):
    """A comparison with its figures; the gain is positive where what was learned is better."""

    comparison: Criterion
    figures: dict[str, Json]
    gain: float
    significant: bool

    @classmethod
    def of(cls, comparison: Criterion) -> _Result:
        figures = comparison.figures()
        p, difference = figures["p"], figures["difference"]
        assert isinstance(p, float)
        assert isinstance(difference, float)
        gain = -difference if comparison.errors else difference
        return cls(comparison, figures, gain, p < SIGNIFICANCE)

    @property
    def lost(self) -> bool:
        before, allowed = self.figures["before"], self.comparison.loss
        assert isinstance(before, float)
        return allowed is not None and self.significant and -self.gain > allowed * abs(before)

    def sentence(self) -> str:
        figures = self.figures
        return (
            f"{self.comparison.label} {figures['before']:.4f} → {figures['after']:.4f} "
            f"(p = {figures['p']:.4f})"
        )


def decide(
    comparisons: Sequence[Criterion], *, measure: str, units: str, note: str = ""
) -> PromotionVerdict:
    """Promote by a significant gain where one is needed, and no significant loss elsewhere.

    Args:
        measure: the name of what is measured; units: of what was held out, in the plural.
        note: what could not be measured, for the reason of a promotion.
    """
    results = [_Result.of(comparison) for comparison in comparisons]
    needed = [result for result in results if result.comparison.gain]
    lost = [result.comparison.label for result in results if result.lost]
    gained = all(result.significant and result.gain > 0 for result in needed)
    if lost:
        why = f"It loses on {' and '.join(lost)}"
    elif gained:
        guarded = [other.label for other in comparisons if other.loss is not None]
        why = f"The gain is significant, and nothing is lost on {' and '.join(guarded)}{note}"
    elif needed[0].gain > 0:
        why = f"The gain may be chance; more {units} may show it"
    else:
        why = f"Nothing was found that is better on held-out {units}"
    summary = "; ".join(result.sentence() for result in results)
    views = {result.comparison.name: result.figures for result in results}
    return PromotionVerdict(gained and not lost, f"{why} ({measure}: {summary}).", views)


def compare_splits(
    outcomes: Mapping[Split, Outcome],
    share_seen: float,
    *,
    groups: Int64 | None = None,
    labels: Mapping[str, str] = QUESTION_LABELS,
) -> list[Criterion]:
    """Compare each split, and their mix, which needs a significant gain.

    Args:
        groups: (q,) of all units; None where each is its own.
    """
    mix = mixed(outcomes, share_seen)
    scaled = Outcome(mix.units, mix.before * len(mix.units), mix.after * len(mix.units))
    everything: list[tuple[str, Outcome]] = [*outcomes.items(), ("mix", scaled)]
    return [
        Criterion(
            name,
            labels[name],
            outcome.before,
            outcome.after,
            None if groups is None else groups[outcome.units],
            gain=name == "mix",
            loss=None if name == "mix" else 0.0,
        )
        for name, outcome in everything
    ]
