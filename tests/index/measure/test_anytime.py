"""P-values that hold whenever one looks, against a calculation of another kind."""

from __future__ import annotations

import numpy as np
import pytest

from attend.core.errors import InvalidRequest
from attend.measure.statistics import STAKES, anytime_p


def test_is_one_over_the_largest_capital_of_a_player_who_bets() -> None:
    differences = np.random.default_rng(3).uniform(-0.6, 1.0, 200)
    for greater in (True, False):
        stakes = STAKES if greater else np.concatenate([STAKES, -STAKES])
        capital = np.ones(len(stakes))
        most, expected = 1.0, []
        for difference in differences:
            capital = capital * (1 + stakes * difference)
            most = max(most, capital.mean())
            expected.append(1 / most)
        np.testing.assert_allclose(anytime_p(differences, greater=greater), expected, rtol=1e-9)


@pytest.mark.parametrize("share", [0.05, 0.5, 1.0])
def test_equal_sides_are_told_apart_at_any_look_in_at_most_one_of_twenty_runs(share: float) -> None:
    rng = np.random.default_rng(5)
    signs = rng.choice([-1.0, 1.0], (400, 2000)) * (rng.random((400, 2000)) < share)
    for greater in (True, False):
        assert np.mean([anytime_p(run, greater=greater)[-1] <= 0.05 for run in signs]) <= 0.05


def test_a_lasting_difference_is_named_and_by_its_sign() -> None:
    signs = np.random.default_rng(7).choice([-1.0, 1.0], (100, 2000), p=[0.43, 0.57])
    assert np.mean([anytime_p(run)[-1] <= 0.05 for run in signs]) >= 0.98
    assert np.mean([anytime_p(run, greater=True)[-1] <= 0.05 for run in signs]) >= 0.98
    assert all(anytime_p(-run, greater=True)[-1] > 0.05 for run in signs)


def test_a_difference_out_of_bounds_is_an_error() -> None:
    with pytest.raises(InvalidRequest, match="outside -1 to 1"):
        anytime_p([0.0, 1.5])
