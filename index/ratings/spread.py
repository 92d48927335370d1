"""How far off a prediction may be: a standard deviation, fitted to held-out ratings.

log σ is linear in what tells: how much weight is on the null key, how far the ratings that were
attended to lie apart, how far the user's ratings do, how near the end of the range the prediction
is, how many ratings the user and the item have.
"""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
from scipy.optimize import minimize

from index.types import Float64

FEATURES = 7
"""Columns of `Predicted.spread`."""

LEVELS = (0.5, 0.8, 0.95)

RIDGE = 1.0
"""On what is not the constant: as if one more rating were against it."""

BOUND = 12.0
"""Of log σ, so that what was never seen gives no infinity."""


def deviations(spread: Float64, telling: Float64) -> Float64:
    """(t,) σ, from what was fitted (f,) and what tells (t, f)."""
    return np.asarray(np.exp(np.clip(telling @ spread, -BOUND, BOUND)))


def fit_spread(telling: Float64, errors: Float64) -> Float64:
    """(f,) by the likelihood of a normal distribution of errors (n,), given what tells (n, f)."""
    squares = errors**2
    constant = 0.5 * np.log(max(float(squares.mean()), 1e-12))

    def loss(free: Float64) -> tuple[float, Float64]:
        log_sigma = np.clip(telling @ free, -BOUND, BOUND)
        scaled = squares * np.exp(-2 * log_sigma)
        value = float((log_sigma + scaled / 2).sum() + RIDGE / 2 * (free[1:] ** 2).sum())
        slope = telling.T @ (1 - scaled)
        slope[1:] += RIDGE * free[1:]
        return value, slope

    start = np.zeros(telling.shape[1])
    start[0] = constant
    found = minimize(loss, start, jac=True, method="L-BFGS-B")
    return np.asarray(found.x, dtype=np.float64)


def coverage(sigmas: Float64, errors: Float64) -> dict[str, float]:
    """The share of errors (n,) within the central interval of each level, which it should be."""
    normal = NormalDist()
    within = {}
    for level in LEVELS:
        half = normal.inv_cdf((1 + level) / 2)
        within[f"{level:g}"] = float((np.abs(errors) <= half * sigmas).mean())
    return within
