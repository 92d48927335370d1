"""The spread of predictions, fitted to errors of a known spread."""

from __future__ import annotations

import numpy as np
import pytest

from attend.learning.ratings import fit_spread
from attend.recommend.ratings import coverage, deviations


def drawn(count: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What tells, the true log of σ, and errors."""
    rng = np.random.default_rng(seed)
    telling = np.column_stack([np.ones(count), rng.random((count, 2))])
    log_sigma = telling @ np.array([-0.5, 0.8, 0.0])
    return telling, log_sigma, rng.normal(size=count) * np.exp(log_sigma)


def test_a_planted_spread_is_found() -> None:
    telling, log_sigma, errors = drawn(20_000, 0)
    found = fit_spread(telling, errors)
    np.testing.assert_allclose(np.log(deviations(found, telling)), log_sigma, atol=0.05)


def test_intervals_cover_as_often_as_they_say() -> None:
    telling, _, errors = drawn(20_000, 1)
    found = fit_spread(telling, errors)
    telling, _, errors = drawn(20_000, 2)
    for level, share in coverage(deviations(found, telling), errors).items():
        assert share == pytest.approx(float(level), abs=0.015)


def test_twice_the_spread_covers_too_much() -> None:
    _, log_sigma, errors = drawn(5000, 3)
    assert coverage(2 * np.exp(log_sigma), errors)["0.5"] > 0.75


def test_errors_of_zero_give_no_infinity() -> None:
    telling, _, _ = drawn(50, 4)
    assert np.isfinite(deviations(fit_spread(telling, np.zeros(50)), telling)).all()
