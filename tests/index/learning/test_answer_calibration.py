"""A calibration of answers is judged by documents outside of its fit, and left where it loses."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse
from scipy.special import expit, logsumexp

from attend.learning.answer_model import AnswerScores, AnswerTargets, Blends, Held, fit_scale
from attend.learning.calibration import FEWEST, threshold_at
from attend.measure.statistics import calibration_error
from tests.index.learning.test_learn_answers import drawn


def both(*scales: float, count: int) -> tuple[Held, AnswerTargets]:
    """As many queries of each scale, one after the other."""
    parts = [drawn(np.random.default_rng(at), count, scale) for at, scale in enumerate(scales)]
    width = parts[0][0].scores.shape[1]
    columns = [np.concatenate(column) for column in zip(*(held for held, _ in parts), strict=True)]
    documents = np.tile(np.arange(width), (count * len(scales), 1))
    shares = sparse.vstack([targets.shares[held.queries] for held, targets in parts])
    stored = sparse.csr_array(np.eye(width, dtype=np.float32))
    targets = AnswerTargets(shares=sparse.csr_array(sparse.vstack([stored, shares])))
    held = Held(*columns)._replace(
        documents=documents, queries=width + np.arange(len(documents), dtype=np.int64)
    )
    return held, targets


def some(held: Held, members) -> Held:
    return Held(*(column[members] for column in held))


def test_figures_are_those_of_the_other_half():
    held, targets = both(9.0, count=300)
    halves = np.arange(300) % 2
    found = AnswerScores(held, targets, 20.0, 0.1).checked(halves)
    whole = AnswerScores(held, targets, 20.0, 0.1).fit()
    assert (found.scale, found.null, found.threshold) == (whole.scale, whole.null, whole.threshold)
    shares, correct, refused = [], [], []
    for half in (0, 1):
        others, judged = some(held, halves != half), some(held, halves == half)
        scale, _ = fit_scale(others, targets, 20.0)
        share, right = Blends(judged, targets, scale).likeliest()
        shares.append(share)
        correct.append(right)
        least = threshold_at(logsumexp(scale * others.scores, axis=1), 0.1)
        refused.append(logsumexp(scale * judged.scores, axis=1) < least)
    expected = calibration_error(np.concatenate(shares), np.concatenate(correct))
    assert found.ece_after == pytest.approx(expected)
    assert found.ece_after < found.ece_before
    assert found.refused == pytest.approx(np.concatenate(refused).mean())
    assert found.note is None


def test_a_fit_that_is_worse_outside_of_it_is_not_taken():
    """One half is flat and the other sharp: of both, the scale until now lies in the middle."""
    held, targets = both(2.0, 30.0, count=100)
    halves = np.arange(200) // 100
    found = AnswerScores(held, targets, 8.0, 0.1).checked(halves)
    assert found.scale == 8.0
    assert "which stays" in found.note
    assert (found.ece_after, found.nll_after) == (found.ece_before, found.nll_before)
    answered = logsumexp(8.0 * held.scores, axis=1)
    assert (expit(answered - found.null) < found.threshold).mean() == pytest.approx(0.1, abs=0.01)


def test_few_queries_are_not_checked():
    held, targets = both(9.0, count=2 * FEWEST - 2)
    halves = np.arange(len(held.queries)) % 2
    found = AnswerScores(held, targets, 20.0, 0.1).checked(halves)
    assert found.refused is None
    assert found == AnswerScores(held, targets, 20.0, 0.1).fit()
