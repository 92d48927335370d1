"""Judging predictions of held-out ratings: which recipe, how far to trust it, how far off it is.

What is chosen or fitted by held-out ratings is judged on those of the other half of users.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from attend.learn.folds import VIEWS, View
from attend.learn.gate import SIGNIFICANCE, Verdict
from attend.learn.ratings.spread import fit_spread
from attend.learn.ratings.trial import Said
from attend.measure.statistics import by_group, difference_interval, paired_randomisation
from attend.ratings import RatingModel, coverage, deviations
from attend.types import Bool, Float64, Int64, Json

FEWEST = 10
"""Held-out ratings of a view; fewer say nothing of how far to trust what was learned."""


NEGLIGIBLE = 0.005
"""Of the error where documents are new: with thousands of ratings a loss of a thousandth is
significant, and is no reason to do without what is gained elsewhere."""


class HeldOut(NamedTuple):
    """One view: who gave held-out ratings (h,), which, and what was said of them.

    Attributes:
        before: (h,) what answers until now says; baseline: (h,) μ + b_i + b_u.
        said: one for each recipe.
    """

    users: Int64
    truth: Float64
    before: Float64
    baseline: Float64
    said: Sequence[Said]


class Chosen(NamedTuple):
    """A recipe by its place, and how far to trust it by view."""

    recipe: int
    trust: Mapping[View, float]


class Judgement(NamedTuple):
    """Honest errors by view, and what to go by when everything is fitted again.

    Attributes:
        after: (h,) predictions, each by a choice in which its user had no part.
        coverage: of the central intervals of each level, measured likewise.
    """

    chosen: Chosen
    after: Mapping[View, Float64]
    spread: Float64
    coverage: Mapping[str, float]


def judged(held: Mapping[View, HeldOut], model: RatingModel, seed: int) -> Judgement:
    """Choose on all held-out ratings, and judge by choices made on half of them."""
    half = {view: halves(each.users, seed) for view, each in held.items()}
    after = {view: np.empty(len(each.truth)) for view, each in held.items()}
    telling = {view: np.empty_like(each.said[0].telling) for view, each in held.items()}
    for side in (True, False):
        choice = chosen(held, {view: half[view] == side for view in held})
        for view, each in held.items():
            other = half[view] != side
            after[view][other] = predicted(each, choice, view, model)[other]
            telling[view][other] = each.said[choice.recipe].telling[other]
    errors = {view: after[view] - each.truth for view, each in held.items()}
    sigmas, spread = _spread(telling, errors, half)
    everything = {view: np.ones(len(each.truth), dtype=bool) for view, each in held.items()}
    covered = coverage(sigmas, np.concatenate([*errors.values()]))
    return Judgement(chosen(held, everything), after, spread, covered)


def _spread(
    telling: Mapping[View, Float64], errors: Mapping[View, Float64], half: Mapping[View, Bool]
) -> tuple[Float64, Float64]:
    """Deviations of all held-out ratings, each fitted to the other half; and the fit to all."""
    tells, left = (np.concatenate([*each.values()]) for each in (telling, errors))
    first = np.concatenate([*half.values()])
    sigmas = np.empty(len(left))
    for part in (first, ~first):
        sigmas[~part] = deviations(fit_spread(tells[part], left[part]), tells[~part])
    return sigmas, fit_spread(tells, left)


def chosen(held: Mapping[View, HeldOut], some: Mapping[View, Bool]) -> Chosen:
    """The recipe of the least squared error on some ratings of documents that others rated."""
    seen, part = held["random"], some["random"]
    if not part.any():  # as where all users are in the other half
        return Chosen(0, dict.fromkeys(held, 0.0))
    losses = []
    for said in seen.said:
        share, truth = _trust(said, seen.truth, part), seen.truth[part]
        losses.append(float(((said.trusted(share)[part] - truth) ** 2).mean()))
    best = int(np.argmin(losses))
    trust: dict[View, float] = {
        name: _trust(each.said[best], each.truth, some[name]) for name, each in held.items()
    }
    return Chosen(best, trust)


def predicted(held: HeldOut, choice: Chosen, view: View, model: RatingModel) -> Float64:
    """(h,) what a choice says of held-out ratings."""
    raw = held.said[choice.recipe].trusted(choice.trust[view])
    return np.asarray(np.clip(raw, model.low, model.high))


def completed(model: RatingModel, judgement: Judgement) -> RatingModel:
    """A model with what held-out ratings say of it."""
    trust = [judgement.chosen.trust.get(view, 0.0) for view in ("unseen", "random")]
    return replace(model, trust=np.array(trust), spread=judgement.spread)


def decided(held: Mapping[View, HeldOut], judgement: Judgement) -> Verdict:
    """A significant gain over what answers now and over the baseline, and no significant loss
    (but for a negligible one) where documents are new.

    Significance is that of the paired randomisation test at 5 %, on squared errors summed by
    user: a user's ratings are no independent observations.
    """
    views: dict[str, Mapping[str, Json]] = {}
    for view, each in held.items():
        views[view] = _figures(each.users, each.truth, each.before, judgement.after[view])
    first = next(view for view in VIEWS if view in held)
    each = held[first]
    views["baseline"] = _figures(each.users, each.truth, each.baseline, judgement.after[first])
    lost = "unseen" in views and _lost(views["unseen"])
    gained = all(
        _significant(views[name]) and _moved(views[name]) < 0 for name in (first, "baseline")
    )
    if lost:
        why = "It loses where documents are new"
    elif gained:
        why = "The gain is significant, and nothing is lost where documents are new"
    elif _moved(views[first]) < 0:
        why = "The gain may be chance; more ratings may show it"
    else:
        why = "Nothing was found that predicts held-out ratings better"
    told = "; ".join(
        f"{_NAMES[name]} {figures['before']:.4f} → {figures['after']:.4f} (p = {figures['p']:.4f})"
        for name, figures in views.items()
    )
    return Verdict(gained and not lost, f"{why} (RMSE: {told}).", views)


def halves(users: Int64, seed: int) -> Bool:
    """(h,) which half of all users each is in."""
    most = int(users.max(initial=0)) + 1
    return np.asarray(np.random.default_rng(seed).random(most) < 0.5)[users]


def rmse(errors: Float64) -> float:
    """The root of the mean square."""
    return float(np.sqrt((errors**2).mean()))


def _trust(said: Said, truth: Float64, part: Bool) -> float:
    """How far to go from the baseline to what was said, 0 to 1: least squares on some ratings."""
    moved = (said.raw - said.baseline)[part]
    size = float(moved @ moved)
    if size == 0 or part.sum() < FEWEST:
        return 0.0
    return float(np.clip(moved @ (truth - said.baseline)[part] / size, 0.0, 1.0))


def _figures(users: Int64, truth: Float64, before: Float64, after: Float64) -> dict[str, Json]:
    """Errors before and after. The interval is that of the difference of mean squares, in units
    of the root's: a² − b² = (a − b)(a + b)."""
    own, others = (by_group((side - truth) ** 2, users) for side in (after, before))
    roots = rmse(after - truth), rmse(before - truth)
    interval = difference_interval(own, others)
    size = max(sum(roots), 1e-12)
    bounds = [float(each) / size for each in (interval.low, interval.high)]
    return {
        "before": roots[1],
        "after": roots[0],
        "difference": roots[0] - roots[1],
        "interval": None if np.isnan(bounds).any() else list(bounds),
        "p": float(paired_randomisation(own, others)),
        "mae_before": float(np.abs(before - truth).mean()),
        "mae_after": float(np.abs(after - truth).mean()),
        "queries": len(truth),
        "users": len(own),
    }


def _significant(figures: Mapping[str, Json]) -> bool:
    p = figures["p"]
    return isinstance(p, float) and p < SIGNIFICANCE


def _lost(figures: Mapping[str, Json]) -> bool:
    before = figures["before"]
    assert isinstance(before, float)
    return _significant(figures) and _moved(figures) > NEGLIGIBLE * before


def _moved(figures: Mapping[str, Json]) -> float:
    moved = figures["difference"]
    return moved if isinstance(moved, float) else 0.0


_NAMES = {
    "random": "documents that others rated",
    "unseen": "unrated documents",
    "baseline": "against μ + b_i + b_u",
}
