"""W_V by ridge regression, against least squares and against the map that data was made by."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from attend.learning.answer_model import fit_output

W = np.array([[1.2, -0.3, 0.0], [0.4, 0.7, 0.1], [0.0, 0.2, 0.9]])
B = np.array([1.0, -2.0, 0.5])


def made(count: int, noise: float):
    rng = np.random.default_rng(4)
    blends = rng.normal(size=(count, 3)) @ np.diag([1.0, 2.0, 0.5]) + [3.0, 0.0, 1.0]
    return blends, blends @ W.T + B + noise * rng.normal(size=(count, 3))


def test_a_map_is_recovered():
    found = fit_output(*made(5000, 0.3), 1e-6)
    np.testing.assert_allclose(found.w, W, atol=0.03)
    np.testing.assert_allclose(found.b, B, atol=0.08)
    blends, wanted = made(60, 0.5)
    with_ones = np.column_stack([blends, np.ones(60)])
    least = np.linalg.lstsq(with_ones, wanted, rcond=None)[0]
    found = fit_output(blends, wanted, 1e-9)
    np.testing.assert_allclose(found.of(blends), with_ones @ least, atol=1e-6)


@pytest.mark.parametrize("ridge", [0.1, 3.0])
def test_it_is_the_least_of_error_and_distance_from_the_identity(ridge):
    blends, wanted = made(40, 0.5)
    penalty = ridge * ((blends - blends.mean(axis=0)) ** 2).sum() / 3

    def loss(x: np.ndarray) -> float:
        w, b = x[:9].reshape(3, 3), x[9:]
        error = ((blends @ w.T + b - wanted) ** 2).sum()
        return float(error + penalty * ((w - np.eye(3)) ** 2).sum())

    best = minimize(loss, np.append(np.eye(3), np.zeros(3)), method="BFGS").x
    found = fit_output(blends, wanted, ridge)
    np.testing.assert_allclose(found.w, best[:9].reshape(3, 3), atol=1e-4)
    np.testing.assert_allclose(found.b, best[9:], atol=1e-3)


def test_held_hard_it_stays_the_identity():
    blends, wanted = made(40, 0.5)
    found = fit_output(blends, wanted, 1e9)
    np.testing.assert_allclose(found.w, np.eye(3), atol=1e-6)
    np.testing.assert_allclose(found.b, (wanted - blends).mean(axis=0), atol=1e-5)


def test_a_map_of_scaled_vectors_is_one_of_the_vectors_themselves():
    center, spread = np.array([1.0, -4.0, 2.0]), 2.5
    blends, wanted = made(50, 0.1)
    scaled = fit_output((blends - center) / spread, (wanted - center) / spread, 0.1)
    own = scaled.unscaled(center, spread)
    expected = scaled.of((blends - center) / spread) * spread + center
    np.testing.assert_allclose(own.of(blends), expected)
    again = own.scaled(center, spread)
    np.testing.assert_allclose(again.b, scaled.b)
    np.testing.assert_allclose(again.w, scaled.w)


def test_blends_that_are_all_the_same_tell_nothing():
    found = fit_output(np.ones((5, 2)), np.arange(10.0).reshape(5, 2), 0.1)
    np.testing.assert_allclose(found.of(np.ones((1, 2))), [[4.0, 5.0]])
