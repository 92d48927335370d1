"""Scale, null key and threshold, against plain loops and against what data was drawn from."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import approx_fprime, minimize

from attend.learning.calibration import (
    UNANSWERED,
    Calibration,
    Loss,
    RankingScores,
    confidence,
    null_logits,
    threshold_at,
)
from attend.measure.statistics import calibration_error

SCALE, NULL = 12.0, 7.5


def held(scores, relevant, attend=100, **options) -> RankingScores:
    return RankingScores.of(scores, relevant, attend=attend, **options)


def calibrate(scores, relevant, **options) -> Calibration:
    return held(scores, relevant, **options).fit()


def sides_of(scores, relevant, attend=100):
    both = held(scores, relevant, attend)
    return both.as_is, both.hidden


def fixed(scale, null) -> Calibration:
    return Calibration(scale, null, None, 0.05)


def drawn(
    questions: int,
    candidates: int = 150,
    attend: int = 100,
    seed: int = 0,
    scale: float = SCALE,
    null: float = NULL,
):
    """Scores whose relevant document was drawn by a softmax at a scale, with a null key.

    Only the attended may be drawn; where the null is drawn, nothing is relevant.
    """
    rng = np.random.default_rng(seed)
    scores = rng.normal(0.1, 0.12, (questions, candidates)).clip(-1, 1)
    relevant = np.zeros(scores.shape, dtype=bool)
    for row in range(questions):
        best = np.argsort(-scores[row])[:attend]
        z = np.append(scale * scores[row, best], null)
        p = np.exp(z - z.max())
        at = rng.choice(attend + 1, p=p / p.sum())
        if at < attend:
            relevant[row, best[at]] = True
    return scores, relevant


def plain_loss(scores, relevant, attend, scale, null) -> float:
    """The objective as it is told: one question and one view after the other."""
    total = 0.0
    for row, marks in zip(scores.tolist(), relevant.tolist(), strict=True):
        for hide, share in ((False, 1 - UNANSWERED), (True, UNANSWERED)):
            pairs = [
                (s, m and not hide)
                for s, m in zip(row, marks, strict=True)
                if s > -math.inf and not (hide and m)
            ]
            pairs = sorted(pairs, key=lambda pair: -pair[0])[:attend]
            whole = sum(math.exp(scale * s) for s, _ in pairs) + math.exp(null)
            right = sum(math.exp(scale * s) for s, m in pairs if m)
            total -= share * math.log((right or math.exp(null)) / whole)
    return total / len(scores)


def nulls_of(fit, scores):
    """The no-answer logit of each question under a fit."""
    best = -np.sort(-scores, axis=1)[:, :100]
    return null_logits(fit.scale * best, fit.null, fit.levels)


def matrices(low: float = -1.0):
    return st.tuples(st.integers(1, 12), st.integers(1, 9), st.integers(0, 10**6)).map(
        lambda shape: made(*shape, low)
    )


def made(questions: int, candidates: int, seed: int, low: float = -1.0):
    rng = np.random.default_rng(seed)
    scores = rng.uniform(low, 1, (questions, candidates))
    scores[rng.random(scores.shape) < 0.15] = -np.inf
    return scores, rng.random(scores.shape) < 0.3


@given(matrices(), st.integers(1, 10), st.floats(0.5, 30), st.floats(-5, 15))
def test_likelihood_against_a_plain_loop(pair, attend, scale, null):
    scores, relevant = pair
    found = held(scores, relevant, attend).loss(fixed(scale, null))
    assert found == pytest.approx(plain_loss(scores, relevant, attend, scale, null), abs=1e-9)


@given(matrices(), st.floats(math.log(2), math.log(80)), st.floats(-3, 3))
def test_gradient_against_finite_differences(pair, log_scale, shift):
    as_is, hidden = sides_of(*pair, 5)
    if not np.isfinite(as_is.scores).any():
        return
    loss = Loss(as_is, hidden, 20.0)
    at = np.array([log_scale, shift])
    expected = approx_fprime(at, lambda x: loss(x)[0], 1e-7)
    np.testing.assert_allclose(loss(at)[1], expected, atol=2e-4)


def test_parameters_are_recovered():
    """Where the hidden view is left out of the drawing, it is fitted by nobody's parameters."""
    scores, relevant = drawn(4000)
    as_is, _ = sides_of(scores, relevant)
    # Both views as drawn: the second has no relevant document hidden from it.
    again, _ = sides_of(*drawn(4000, seed=1))
    scale, null = Loss(as_is, again, 20.0).best()
    assert scale == pytest.approx(SCALE, rel=0.1)
    assert null == pytest.approx(NULL, rel=0.1)


def test_fit_is_at_least_as_good_as_another_optimiser():
    scores, relevant = drawn(300)
    fitted = calibrate(scores, relevant)
    other = minimize(
        lambda x: plain_loss(scores, relevant, 100, math.exp(x[0]), x[1]),
        [math.log(5), 3.0],
        method="Nelder-Mead",
        options={"maxfev": 150},
    )
    # The pull towards the start is worth one question of 300.
    assert fitted.nll_after <= other.fun + 0.01
    assert fitted.scale == pytest.approx(math.exp(other.x[0]), rel=0.1)


def test_before_and_after():
    scores, relevant = drawn(500)
    found = calibrate(scores, relevant, start=60.0)
    assert found.nll_after < found.nll_before
    assert found.ece_after < found.ece_before
    assert (found.questions, found.note) == (500, None)
    assert found.answerable == int(sides_of(scores, relevant)[0].answerable.sum())


@pytest.mark.parametrize("factor", [0.01, 1.0, 300.0])
def test_units_of_scores_do_not_matter(factor):
    """Raw vectors have scores of any size; the start comes in the same unit."""
    scores, relevant = drawn(200)
    one = calibrate(scores, relevant)
    other = calibrate(scores * factor, relevant, start=20.0 / factor)
    assert other.scale * factor == pytest.approx(one.scale, rel=1e-2)
    assert other.threshold == pytest.approx(one.threshold, abs=1e-2)


def test_shift_of_scores_moves_the_null_with_it():
    scores, relevant = drawn(200)
    one, other = calibrate(scores, relevant), calibrate(scores + 50, relevant)
    assert other.scale == pytest.approx(one.scale, rel=1e-2)
    nulls, moved = (nulls_of(fit, by) for fit, by in ((one, scores), (other, scores + 50)))
    np.testing.assert_allclose(moved - 50 * other.scale, nulls, atol=0.2)


@given(matrices(), st.floats(1, 30), st.floats(-5, 15))
def test_confidence_is_what_the_null_leaves(pair, scale, null):
    as_is, _ = sides_of(*pair, 4)
    for row, found in zip(as_is.scores, confidence(as_is.scores, scale, null), strict=True):
        mass = sum(math.exp(scale * s) for s in row if s > -math.inf)
        assert found == pytest.approx(mass / (mass + math.exp(null)), rel=1e-9)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=60), st.floats(0, 0.99))
def test_threshold_refuses_no_more_than_stated(confidences, rate):
    values = np.array(confidences)
    threshold = threshold_at(values, rate)
    assert (values < threshold).mean() <= rate + 1e-9
    # The largest such for one more: it is as high as the place of that one allows.
    assert (values <= threshold).sum() >= math.floor(rate * (len(values) + 1) + 1e-9)


def test_threshold_counts_whole_questions():
    assert threshold_at(np.arange(60) / 60, 0.05) == 2 / 60  # the third of 61 places
    assert threshold_at(np.array([])) is None


def test_threshold_of_a_calibration():
    scores, relevant = drawn(400)
    found = calibrate(scores, relevant, error_rate=0.1)
    as_is, _ = sides_of(scores, relevant)
    known = confidence(as_is.scores, found.scale, found.null, found.levels)[as_is.answerable]
    assert 0.09 < (known < found.threshold).mean() <= 0.1


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=40))
def test_expected_error_against_a_plain_loop(pairs):
    total = 0.0
    for low in range(10):
        inside = [
            (p, c) for p, c in pairs if int(p * 10) == low or (low == 9 and int(p * 10) == 10)
        ]
        total += abs(sum(p - c for p, c in inside))
    predicted, correct = (np.array(each, dtype=float) for each in zip(*pairs, strict=True))
    assert calibration_error(predicted, correct) == pytest.approx(total / len(pairs), abs=1e-12)


def test_error_of_weights_that_are_right():
    """One relevant of two equal documents, far above the null: each weighs a half."""
    scores = np.array([[0.9, 0.9], [0.9, 0.9]])
    relevant = np.array([[True, False], [False, True]])
    both, fit = held(scores, relevant), fixed(10.0, -100.0)
    as_is, hidden = (replace(both, as_is=side, hidden=side) for side in (both.as_is, both.hidden))
    assert calibration_error(*as_is.sureness(fit)) == pytest.approx(0.0, abs=1e-12)
    # Hidden, the other document has all the weight, and is wrong.
    assert calibration_error(*hidden.sureness(fit)) == pytest.approx(1.0)


@settings(max_examples=60, deadline=None)
@given(matrices(), st.integers(1, 10), st.sampled_from([0.0, 0.05, 0.5]))
def test_whatever_comes_the_numbers_are_sound(pair, attend, rate):
    found = calibrate(*pair, attend=attend, error_rate=rate)
    assert math.isfinite(found.scale)
    assert found.scale > 0
    assert (found.null is None) == (found.threshold is None) == (found.note is not None)
    if found.null is not None:
        assert math.isfinite(found.null)
        assert 0 <= found.threshold <= 1
        # The pull towards the start never makes the whole worse than the start.
        assert found.nll_after <= found.nll_before
    assert found == calibrate(*pair, attend=attend, error_rate=rate)


def test_order_of_candidates_does_not_matter():
    scores, relevant = drawn(50)
    order = np.random.default_rng(5).permutation(scores.shape[1])
    one, other = calibrate(scores, relevant), calibrate(scores[:, order], relevant[:, order])
    assert other.scale == pytest.approx(one.scale)
    assert other.null == pytest.approx(one.null)


def test_hidden_view_moves_the_next_best_up():
    scores = np.array([[0.9, 0.8, 0.7, 0.6]])
    relevant = np.array([[True, False, False, False]])
    as_is, hidden = sides_of(scores, relevant, 2)
    assert as_is.scores.tolist() == [[0.9, 0.8]]
    assert hidden.scores.tolist() == [[0.8, 0.7]]
    assert not hidden.relevant.any()


def test_a_relevant_document_that_is_not_attended_to_is_no_answer():
    scores = np.array([[0.9, 0.8, 0.1]])
    as_is, _ = sides_of(scores, np.array([[False, False, True]]), 2)
    assert as_is.answerable.tolist() == [False]


def test_questions_that_are_all_right_stay_near_the_start():
    scores = np.tile([0.9, 0.3, 0.2], (5, 1))
    relevant = np.tile([True, False, False], (5, 1))
    found = calibrate(scores, relevant)
    assert 5 < found.scale < 100
    assert confidence(scores, found.scale, found.null).min() >= 0.9


def test_equal_scores_keep_the_scale():
    found = calibrate(np.full((8, 120), 0.5), np.arange(120) < np.ones((8, 1)))
    assert found.scale == pytest.approx(20.0, rel=1e-3)
    assert math.isfinite(found.null)


@pytest.mark.parametrize(
    ("scores", "relevant", "words"),
    [
        (np.zeros((0, 10)), np.zeros((0, 10), bool), "no held-out questions"),
        (np.ones((3, 4)), np.zeros((3, 4), bool), "None of 3"),
        (np.ones((3, 4)), np.ones((3, 4), bool), "Every document"),
        (np.full((2, 4), -np.inf), np.ones((2, 4), bool), "None of 2"),
        (np.zeros((2, 0)), np.zeros((2, 0), bool), "None of 2"),
    ],
)
def test_nothing_to_fit_to(scores, relevant, words):
    found = calibrate(scores, relevant)
    assert (found.scale, found.null, found.threshold) == (20.0, None, None)
    assert words in found.note


def test_a_question_that_counts_twice_counts_as_two():
    scores, relevant = drawn(120)
    counts = np.random.default_rng(2).integers(0, 4, 120).astype(float)
    at = np.repeat(np.arange(120), counts.astype(int))
    one = calibrate(scores, relevant, counts=counts)
    # The pull towards the start is worth one question, of 120 or of as many as there are now.
    other = calibrate(scores[at], relevant[at])
    assert one.scale == pytest.approx(other.scale, rel=0.02)
    np.testing.assert_allclose(nulls_of(one, scores), nulls_of(other, scores), rtol=0.02)
    assert one.threshold == pytest.approx(other.threshold, abs=0.02)
    assert one.nll_after == pytest.approx(other.nll_after, abs=0.01)
    assert one.ece_after == pytest.approx(other.ece_after, abs=0.02)
