"""The gate: what was learned answers only if held-out questions leave no doubt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from index.learn.choose import Outcome, mixed
from index.learn.folds import View
from index.statistics import difference_interval, paired_randomisation
from index.types import Json

SIGNIFICANCE = 0.05


class Verdict(NamedTuple):
    """Whether to promote, why, and the figures of each view and of the mix."""

    promote: bool
    reason: str
    views: Mapping[str, Mapping[str, Json]]


def decide(outcomes: Mapping[View, Outcome], share_seen: float, measure: str) -> Verdict:
    """A significant gain on the mix that mirrors use, and no significant loss on any view.

    Significance is that of the paired randomisation test (Smucker, Allan and Carterette 2007)
    at 5 %.
    """
    mix = mixed(outcomes, share_seen)
    scaled = Outcome(mix.questions, mix.before * len(mix.before), mix.after * len(mix.after))
    views = {name: _figures(each) for name, each in (*outcomes.items(), ("mix", scaled))}
    lost = [name for name in outcomes if _significant(views[name]) and _gain(views[name]) < 0]
    gained = _significant(views["mix"]) and _gain(views["mix"]) > 0
    reason = _reason(views, lost, gained, measure)
    return Verdict(gained and not lost, reason, views)


def _figures(outcome: Outcome) -> dict[str, Json]:
    interval = difference_interval(outcome.after, outcome.before)
    bounds = [None if np.isnan(each) else float(each) for each in (interval.low, interval.high)]
    return {
        "before": float(outcome.before.mean()),
        "after": float(outcome.after.mean()),
        "difference": float(interval.mean),
        "interval": None if None in bounds else bounds,
        "p": float(paired_randomisation(outcome.after, outcome.before)),
        "queries": len(outcome.before),
    }


def _significant(figures: Mapping[str, Json]) -> bool:
    p = figures["p"]
    return isinstance(p, float) and p < SIGNIFICANCE


def _gain(figures: Mapping[str, Json]) -> float:
    gain = figures["difference"]
    return gain if isinstance(gain, float) else 0.0


def _reason(
    views: Mapping[str, Mapping[str, Json]], lost: list[View], gained: bool, measure: str
) -> str:
    said = "; ".join(f"{_NAMES[name]} {_said(figures)}" for name, figures in views.items())
    if lost:
        why = f"It loses on {' and '.join(_NAMES[name] for name in lost)}"
    elif gained:
        why = "The gain is significant and nothing is lost where documents are new"
    elif _gain(views["mix"]) > 0:
        why = "The gain may be chance; more examples may show it"
    else:
        why = "Nothing was found that is better on held-out questions"
    return f"{why} ({measure}: {said})."


def _said(figures: Mapping[str, Json]) -> str:
    return f"{figures['before']:.3f} → {figures['after']:.3f} (p = {figures['p']:.4f})"


_NAMES = {"random": "random questions", "unseen": "unseen documents", "mix": "the mix"}
