"""Fitting how far off predictions may be, to errors on held-out ratings."""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize

from attend.ratings.spread import BOUND
from attend.types import Float64

RIDGE = 1.0
"""On what is not the constant: as if one more rating were against it."""


def fit_spread(telling: Float64, errors: Float64) -> Float64:
    """(f,) by the likelihood of a normal distribution of errors (n,), given what tells (n, f).

    Zeros, which is a deviation of one, where there are no errors.
    """
    if not len(errors):
        return np.zeros(telling.shape[1])
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
