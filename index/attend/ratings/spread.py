"""How far off a prediction may be: a standard deviation (`attend.learn.ratings.spread` fits it).

log σ is linear in what tells: how much weight is on the null key, how far the ratings that were
attended to lie apart, how far the user's ratings do, how near the end of the range the prediction
is, how many ratings the user and the item have.
"""

from __future__ import annotations

from statistics import NormalDist

import numpy as np

from attend.types import Float64

FEATURES = 7
"""Columns of `Predicted.spread`."""

LEVELS = (0.5, 0.8, 0.95)

BOUND = 12.0
"""Of log σ, so that what was never seen gives no infinity."""


def deviations(spread: Float64, telling: Float64) -> Float64:
    """(t,) σ, from what was fitted (f,) and what tells (t, f)."""
    return np.asarray(np.exp(np.clip(telling @ spread, -BOUND, BOUND)))


def coverage(sigmas: Float64, errors: Float64) -> dict[str, float]:
    """The share of errors (n,) within the central interval of each level, which it should be."""
    normal = NormalDist()
    within = {}
    for level in LEVELS:
        half = normal.inv_cdf((1 + level) / 2)
        within[f"{level:g}"] = float((np.abs(errors) <= half * sigmas).mean())
    return within
