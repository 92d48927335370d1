"""Attention over a history by centred texts, against SciPy's softmax."""

from __future__ import annotations

import numpy as np
from scipy.special import softmax

from attend.recommend.ratings import NULL_COSINE, SCALE, attended, shrunk


def given(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    weights = rng.random(6) + 0.2
    return (
        rng.normal(size=(3, 8)).astype(np.float32),
        rng.normal(size=(6, 8)).astype(np.float32),
        rng.normal(size=8),
        weights / weights.mean(),
    )


def test_weights_are_a_softmax_with_a_null_key() -> None:
    targets, history, center, weights = given()
    found = attended(targets, history, center, weights, np.zeros((3, 6), dtype=bool))
    for at in range(3):
        q = targets[at].astype(np.float64) - center
        k = history.astype(np.float64) - center
        cosines = k @ q / np.linalg.norm(k, axis=1) / np.linalg.norm(q)
        logits = SCALE * cosines + np.log(weights)
        expected = softmax(np.append(logits, SCALE * NULL_COSINE + np.log(weights.sum())))
        np.testing.assert_allclose(found.weights[at], expected[:-1], atol=1e-6)
        np.testing.assert_allclose(found.null_weight[at], expected[-1], atol=1e-6)


def test_numbers_are_blended_with_the_users_mean_in_the_null_keys_place() -> None:
    targets, history, center, weights = given(1)
    values = np.array([1.0, 2, 3, 4, 5, 1])
    same = np.zeros((3, 6), dtype=bool)
    same[0, 2] = True
    found = attended(targets, history, center, weights, same)
    mean, _, baseline = shrunk(found, values, weights, same)
    others = np.arange(6) != 2
    usual = np.average(values[others], weights=weights[others])
    np.testing.assert_allclose(baseline[0], usual)
    np.testing.assert_allclose(
        mean[0], found.weights[0] @ values + found.null_weight[0] * usual, rtol=1e-12
    )


def test_the_targets_own_value_changes_nothing() -> None:
    targets, history, center, weights = given(2)
    same = np.zeros((3, 6), dtype=bool)
    same[1, 4] = True
    found = attended(targets, history, center, weights, same)
    assert found.weights[1, 4] == 0
    values = np.arange(6.0)
    before, after = (shrunk(found, v, weights, same) for v in (values, values + 9 * same[1]))
    assert before[0][1] == after[0][1]
    assert before[1][1] == after[1][1]
    assert before[0][0] != after[0][0]


def test_a_history_of_nothing_but_the_target_is_its_own_mean() -> None:
    targets, history, center, _ = given(3)
    same = np.ones((1, 1), dtype=bool)
    found = attended(targets[:1], history[:1], center, np.ones(1), same)
    assert found.null_weight[0] == 1
    assert shrunk(found, np.array([4.0]), np.ones(1), same)[0][0] == 4


def test_what_is_like_nothing_stays_with_the_null_key() -> None:
    q = np.array([[1.0, 0, 0]], dtype=np.float32)
    away = np.array([[0.0, 1, 0], [0, 0, 1]], dtype=np.float32)
    found = attended(q, away, np.zeros(3), np.ones(2), np.zeros((1, 2), dtype=bool))
    assert found.null_weight[0] > 0.99
    near = attended(q, np.vstack([away, q]), np.zeros(3), np.ones(3), np.zeros((1, 3), dtype=bool))
    assert near.weights[0, 2] > 0.95
