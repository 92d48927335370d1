"""The gate: what was learned answers only if held-out questions leave no doubt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from attend.learn.choose import Outcome, mixed
from attend.learn.folds import View
from attend.measure.statistics import difference_interval, paired_randomisation
from attend.types import Float64, Int64, Json

SIGNIFICANCE = 0.05


class Verdict(NamedTuple):
    """Whether to promote, why, and the figures of each view and of the mix."""

    promote: bool
    reason: str
    views: Mapping[str, Mapping[str, Json]]


def decide(
    outcomes: Mapping[View, Outcome],
    share_seen: float,
    measure: str,
    groups: Int64 | None = None,
    names: Mapping[str, str] | None = None,
) -> Verdict:
    """A significant gain on the mix that mirrors use, and no significant loss on any view.

    Significance is that of the paired randomisation test (Smucker, Allan and Carterette 2007)
    at 5 %. Questions of one group (q,), by default each its own, are one observation: a question
    in other words gains or loses as the first one does, and says little more.

    Args:
        names: what the views are called in the reason; `NAMES` if None.
    """
    mix = mixed(outcomes, share_seen)
    scaled = Outcome(mix.questions, mix.before * len(mix.before), mix.after * len(mix.after))
    everything = (*outcomes.items(), ("mix", scaled))
    views = {name: _figures(each, groups) for name, each in everything}
    lost = [name for name in outcomes if _significant(views[name]) and _gain(views[name]) < 0]
    gained = _significant(views["mix"]) and _gain(views["mix"]) > 0
    reason = _reason(views, lost, gained, measure, names or NAMES)
    return Verdict(gained and not lost, reason, views)


def _figures(outcome: Outcome, groups: Int64 | None) -> dict[str, Json]:
    grouped = outcome if groups is None else _by_group(outcome, groups[outcome.questions])
    interval = difference_interval(grouped.after, grouped.before)
    bounds = [None if np.isnan(each) else float(each) for each in (interval.low, interval.high)]
    return {
        "before": float(outcome.before.mean()),
        "after": float(outcome.after.mean()),
        "difference": float(interval.mean),
        "interval": None if None in bounds else bounds,
        "p": float(paired_randomisation(grouped.after, grouped.before)),
        "queries": len(outcome.before),
        "groups": len(grouped.before),
    }


def _by_group(outcome: Outcome, groups: Int64) -> Outcome:
    """One value for each group, such that the mean over groups is that over questions."""
    names, at = np.unique(groups, return_inverse=True)
    share = len(names) / len(at)

    def summed(values: Float64) -> Float64:
        return np.bincount(at, weights=values).astype(np.float64, copy=False) * share

    return Outcome(names, summed(outcome.before), summed(outcome.after))


def _significant(figures: Mapping[str, Json]) -> bool:
    p = figures["p"]
    return isinstance(p, float) and p < SIGNIFICANCE


def _gain(figures: Mapping[str, Json]) -> float:
    gain = figures["difference"]
    return gain if isinstance(gain, float) else 0.0


def _reason(
    views: Mapping[str, Mapping[str, Json]],
    lost: list[View],
    gained: bool,
    measure: str,
    names: Mapping[str, str],
) -> str:
    said = "; ".join(f"{names[name]} {_said(figures)}" for name, figures in views.items())
    if lost:
        why = f"It loses on {' and '.join(names[name] for name in lost)}"
    elif gained and "unseen" in views:
        why = "The gain is significant and nothing is lost where documents are new"
    elif gained:
        why = (
            "The gain is significant; what happens where documents are new could not be measured, "
            "as all questions share theirs"
        )
    elif _gain(views["mix"]) > 0:
        why = "The gain may be chance; more examples may show it"
    else:
        why = "Nothing was found that is better on held-out questions"
    return f"{why} ({measure}: {said})."


def _said(figures: Mapping[str, Json]) -> str:
    return f"{figures['before']:.3f} → {figures['after']:.3f} (p = {figures['p']:.4f})"


NAMES = {"random": "random questions", "unseen": "unseen documents", "mix": "the mix"}
