"""Temperature and null key of several heads, against what data was drawn from and against one."""

from __future__ import annotations

import numpy as np
import pytest

from attend.learn.calibrate import calibrate
from attend.learn.calibrate_heads import calibrate_heads

TEMPERATURE, NULL = 0.5, 4.0


def drawn(questions: int, gates: np.ndarray, seed: int = 0):
    """Logits of heads, with a relevant document drawn from their mixture at TEMPERATURE."""
    rng = np.random.default_rng(seed)
    z = rng.normal(1.0, 1.2, (len(gates), questions, 40))
    relevant = np.zeros(z.shape[1:], dtype=bool)
    for row in range(questions):
        shares = []
        for head in z[:, row]:
            weights = np.exp(np.append(head, NULL) / TEMPERATURE)
            shares.append(weights / weights.sum())
        at = rng.choice(41, p=gates @ np.array(shares))
        if at < 40:
            relevant[row, at] = True
    return z, relevant


def test_what_data_was_drawn_from_is_found_again():
    gates = np.array([0.6, 0.4])
    z, relevant = drawn(6000, gates)

    found = calibrate_heads(z, gates, relevant, counts=np.ones(6000))
    assert 1 / found.scale == pytest.approx(TEMPERATURE, rel=0.15)
    assert found.nll_after is not None
    assert found.nll_before is not None
    assert found.nll_after < found.nll_before
    assert found.ece_after is not None
    assert found.ece_before is not None
    assert found.ece_after < found.ece_before / 2


def test_heads_that_are_the_same_are_calibrated_as_one():
    z, relevant = drawn(800, np.ones(1), seed=2)
    counts = np.random.default_rng(1).uniform(0.5, 2, 800)
    one = calibrate(z[0], relevant, start=1.0, counts=counts)
    same = calibrate_heads(np.repeat(z, 3, axis=0), np.full(3, 1 / 3), relevant, counts=counts)
    for name in ("scale", "threshold", "ece_after", "nll_before", "nll_after"):
        assert getattr(same, name) == pytest.approx(getattr(one, name), rel=2e-2), name
    # Of several heads it stands before the temperature, of one beside scaled scores.
    assert same.scale * same.null == pytest.approx(one.null, rel=2e-2)
    assert (same.questions, same.answerable) == (one.questions, one.answerable)


@pytest.mark.parametrize("everything", [True, False])
def test_nothing_to_fit_to(everything):
    z = np.random.default_rng(0).normal(size=(2, 5, 6))
    relevant = np.full((5, 6), everything)
    found = calibrate_heads(z, np.full(2, 0.5), relevant, counts=np.ones(5))
    assert (found.scale, found.null, found.threshold) == (1.0, None, None)
    assert found.note
