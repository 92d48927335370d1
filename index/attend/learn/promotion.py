"""The promotion test: what was learned answers only if held-out units leave no doubt.

Significance is that of the paired randomisation test (Smucker, Allan and Carterette 2007) at 5 %.
Units of one group, such as questions in other words or the ratings of one user, are one
observation: they gain and lose together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

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

    @cached_property
    def figures(self) -> dict[str, Any]:
        """Both means, their difference with its interval, and the p-value."""
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

    @property
    def significant(self) -> bool:
        """True where the difference leaves no doubt."""
        return bool(self.figures["p"] < SIGNIFICANCE)

    @property
    def lost(self) -> bool:
        """True for a significant loss of more than may be lost."""
        if self.loss is None or not self.significant:
            return False
        return bool(-self.change > self.loss * abs(self.figures["before"]))

    def sentence(self) -> str:
        """Name both means and the p-value."""
        before, after, p = (self.figures[name] for name in ("before", "after", "p"))
        return f"{self.label} {before:.4f} → {after:.4f} (p = {p:.4f})"


def decide(
    criteria: Sequence[Criterion], *, measure: str, units: str, note: str = ""
) -> PromotionVerdict:
    """Promote by a significant gain where one is needed, and no significant loss elsewhere.

    Args:
        measure: the name of what is measured; units: of what was held out, in the plural.
        note: what could not be measured, for the reason of a promotion.
    """
    needed = [criterion for criterion in criteria if criterion.gain]
    lost = [criterion.label for criterion in criteria if criterion.lost]
    gained = all(criterion.significant and criterion.change > 0 for criterion in needed)
    if lost:
        why = f"It loses on {' and '.join(lost)}"
    elif gained:
        guarded = [criterion.label for criterion in criteria if criterion.loss is not None]
        why = f"The gain is significant, and nothing is lost on {' and '.join(guarded)}{note}"
    elif needed[0].change > 0:
        why = f"The gain may be chance; more {units} may show it"
    else:
        why = f"Nothing was found that is better on held-out {units}"
    summary = "; ".join(criterion.sentence() for criterion in criteria)
    views = {criterion.name: criterion.figures for criterion in criteria}
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

    def criterion(name: str, outcome: Outcome, **test: Any) -> Criterion:
        members = None if groups is None else groups[outcome.units]
        return Criterion(name, labels[name], outcome.before, outcome.after, members, **test)

    splits = [criterion(split, outcome) for split, outcome in outcomes.items()]
    return [*splits, criterion("mix", scaled, gain=True, loss=None)]
