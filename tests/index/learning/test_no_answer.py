"""The no-answer logit: its fit, and that it follows what a question scores behind its best."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit, logsumexp

from attend.learning.calibration import confidence, fit_null, null_logits
from attend.measure.statistics import auroc


def questions(count=600, candidates=60, seed=0):
    """Logits of questions that score everything higher or lower; half have one that stands out."""
    rng = np.random.default_rng(seed)
    answers = np.arange(count) % 2 == 0
    z = rng.normal(0, 1, (count, candidates)) + rng.normal(0, 5, (count, 1))
    z[:, 0] += np.where(answers, 6.0, 0.0)
    return -np.sort(-z, axis=1), answers


def plain_null(row, null, levels):
    z = [value for value in row if value > -np.inf]
    near, far = z[1:10] or z[-1:], z[10:100] or z[-1:]
    return null + levels[0] * np.mean(near) + levels[1] * np.mean(far)


def test_a_null_follows_the_runners_up_as_a_plain_loop_says():
    z, _ = questions(20)
    z[3, 4:], z[4, 1:], z[5, 12:], z[6] = -np.inf, -np.inf, -np.inf, -np.inf
    logits = null_logits(z, 2.0, (0.5, 0.25))
    for row, logit in zip(z, logits, strict=True):
        expected = plain_null(row, 2.0, (0.5, 0.25)) if row[0] > -np.inf else 2.0
        assert logit == pytest.approx(expected)
    assert (null_logits(z, 2.0) == 2.0).all()


def test_the_fit_is_that_of_another_optimiser():
    z, answers = questions()
    null, levels = fit_null(z, answers, np.ones(len(z)))
    behind = np.stack([z[:, 1:10].mean(axis=1), z[:, 10:].mean(axis=1)], axis=1)
    sign = np.where(answers, 1, -1)

    def loss(point):
        margin = sign * (logsumexp(z, axis=1) - point[0] - behind @ point[1:])
        return -np.log(expit(margin)).mean() + (point[1:] ** 2).sum() / 2 / len(z)

    bounds = [(None, None), (0, 1), (0, 1)]
    starts = [0.0, 0.5, 0.5], [5.0, 0.1, 0.9]
    others = [minimize(loss, start, bounds=bounds, method="Nelder-Mead") for start in starts]
    assert loss(np.array([null, *levels])) <= min(other.fun for other in others) + 1e-6
    assert loss(np.array([null, *levels])) < loss(np.array([null, 0.0, 0.0])) - 0.1


def test_what_stands_out_is_told_where_the_best_score_alone_does_not_tell():
    z, answers = questions()
    null, levels = fit_null(z, answers, np.ones(len(z)))
    assert sum(levels) > 0.8
    fresh, truth = questions(seed=1)
    alone, beside = confidence(fresh, 1.0, 0.0), confidence(fresh, 1.0, null, levels)
    assert auroc(alone[truth], alone[~truth]) < 0.85
    assert auroc(beside[truth], beside[~truth]) > 0.98


def test_levels_that_are_given_stay():
    z, answers = questions()
    null, levels = fit_null(z, answers, np.ones(len(z)), (0.25, 0.5))
    assert levels == (0.25, 0.5)
    right = answers.mean()  # a logistic regression with a constant is right on average
    assert confidence(z, 1.0, null, levels).mean() == pytest.approx(right, abs=1e-3)


def test_few_questions_move_the_levels_little():
    z, answers = questions(4)
    _, levels = fit_null(z, answers, np.ones(4))
    assert all(0 <= level <= 1 for level in levels)
