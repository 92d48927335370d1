"""A calibration is judged by questions outside of its fit, and not taken where it loses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from attend.learning.calibration import FEWEST, RankingScores, confidence, threshold_at
from tests.index.learning.test_calibration import drawn


def halves_of(questions: int):
    return np.arange(questions) % 2


def checked(scores, relevant, start=20.0, **options):
    return RankingScores.of(scores, relevant, start=start, **options).checked(
        halves_of(len(scores))
    )


def test_figures_are_those_of_the_other_half():
    scores, relevant = drawn(200)
    found = checked(scores, relevant)
    whole = RankingScores.of(scores, relevant).fit()
    assert (found.scale, found.null, found.threshold) == (whole.scale, whole.null, whole.threshold)
    refused, losses = [], []
    for half in (0, 1):
        judged = halves_of(200) == half
        fit = RankingScores.of(scores[~judged], relevant[~judged]).fit()
        as_is = RankingScores.of(scores[judged], relevant[judged]).as_is
        fitted = fit.scale, fit.null, fit.levels
        known = confidence(as_is.scores, *fitted)[as_is.answerable]
        refused += (known < fit.threshold).tolist()
        losses.append(fit.nll_after)
    assert found.refused == pytest.approx(np.mean(refused))
    assert found.nll_after != pytest.approx(np.mean(losses), abs=1e-9)  # not those of the fits
    assert found.nll_after < found.nll_before


def test_a_fit_that_is_worse_outside_of_it_is_not_taken():
    """One half is flat and the other sharp: of both, the scale in use lies in the middle."""
    pairs = [drawn(80, seed=half, scale=scale) for half, scale in enumerate((3.0, 40.0))]
    scores, relevant = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
    held = RankingScores.of(scores, relevant, start=12.0, error_rate=0.1)
    found = held.checked(np.arange(160) // 80)
    assert found.scale == 12.0
    assert "which stays" in found.note
    as_is = held.as_is
    known = confidence(as_is.scores, 12.0, found.null)[as_is.answerable]
    assert found.threshold == threshold_at(known, 0.1)
    assert (found.ece_after, found.nll_after) == (found.ece_before, found.nll_before)


def test_few_questions_are_not_checked():
    scores, relevant = drawn(2 * FEWEST - 2)
    found = checked(scores, relevant)
    assert found.refused is None
    assert replace(found, inclusion=None) == RankingScores.of(scores, relevant).fit()


def test_the_stated_error_rate_holds_for_questions_that_were_not_there():
    """By simulation: the mean share refused of new answerable questions is at most as stated."""
    shares = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        known, new = rng.beta(4, 1, 30), rng.beta(4, 1, 400)
        shares.append((new < threshold_at(known, 0.1)).mean())
    spread = np.std(shares) / np.sqrt(len(shares))
    assert np.mean(shares) <= 0.1 + 2 * spread
    assert np.mean(shares) >= 0.05  # not by refusing nothing
