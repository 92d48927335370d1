"""Where lists end that cover: against a plain count, and for questions that were not there."""

from __future__ import annotations

import numpy as np
import pytest

from attend.attention import inclusion
from attend.learning.calibration import COVERAGES, RankingScores, inclusion_levels
from attend.learning.data import UNIT_SCALE


def test_levels_are_the_ranked_values_of_the_questions():
    values = np.arange(99.0)
    levels = inclusion_levels(np.random.default_rng(0).permutation(values), np.ones(99))
    assert levels == tuple(values[round(100 * rate) - 1] for rate in COVERAGES)


def test_levels_end_at_what_lists_reach():
    values = np.array([0.0] * 80 + [np.inf] * 20)
    assert len(inclusion_levels(values, np.ones(100))) == len([r for r in COVERAGES if r <= 0.79])


def test_few_questions_tell_no_high_rates():
    levels = inclusion_levels(np.zeros(9), np.ones(9))
    assert len(levels) == 41  # of 0.5 to 0.9: the next question may be beyond all nine


def test_questions_count_as_they_are_weighed():
    values, counts = np.array([0.0, 1.0]), np.array([99.0, 1.0])
    assert inclusion_levels(values, counts)[:15] == (0.0,) * 15


def easy_and_hard(questions: int, seed: int):
    """Scores that differ much for one half of the questions and little for the other, by which one
    document of each is drawn as relevant."""
    rng = np.random.default_rng(seed)
    spread = np.where(np.arange(questions) % 2, 0.6, 0.15)[:, None]
    scores = spread * rng.normal(size=(questions, 100))
    relevant = np.zeros(scores.shape, dtype=bool)
    best = (UNIT_SCALE * scores + rng.gumbel(size=scores.shape)).argmax(axis=1)
    relevant[np.arange(questions), best] = True
    return scores, relevant


@pytest.mark.parametrize("rate", [0.7, 0.8, 0.9])
def test_the_rate_holds_for_new_questions_with_shorter_lists_than_one_length_for_all(rate):
    reached, lengths, fixed = [], [], []
    for seed in range(60):
        held = RankingScores.of(*easy_and_hard(400, seed)).as_is
        levels = inclusion(UNIT_SCALE * held.scores)
        best, known = levels[held.relevant], np.arange(400) < 200
        end = inclusion_levels(best[known], np.ones(200))[round(100 * rate) - 50]
        reached.append((best <= end)[~known].mean())
        lengths.append((levels[~known] <= end).sum(axis=1).mean())
        ranks = np.sort(held.relevant.argmax(axis=1)[known] + 1)
        fixed.append(ranks[round(rate * 200)])
    assert np.mean(reached) == pytest.approx(rate, abs=0.012)
    assert np.mean(lengths) < 0.8 * np.mean(fixed)


def test_a_report_has_what_lists_of_one_half_do_in_the_other():
    scores, relevant = easy_and_hard(400, 0)
    found = RankingScores.of(scores, relevant).checked(np.arange(400) // 2 % 2)
    assert found.lists.keys() == {"0.8", "0.9", "0.95"}
    for rate, figures in found.lists.items():
        assert figures["rate"] == pytest.approx(float(rate), abs=0.05)
        assert 1 < figures["documents"] < 100
    assert found.tuning("dot").inclusion == found.inclusion
    assert "inclusion" not in found.figures


def test_a_list_is_long_where_weights_are_alike():
    sure, unsure = inclusion(np.array([[9.0, 3.0, 2.0, 1.0], [3.0, 2.9, 2.8, 2.7]]))
    assert (sure <= 2).sum() == 1
    assert (unsure <= 2).sum() == 4
