"""Which recipe, how far to trust it, and whether to promote what was learned."""

from __future__ import annotations

import numpy as np
import pytest

from attend.learning.ratings import HeldOutRatings, Predictions, choose, judge_ratings, rating_fold
from attend.learning.ratings import decide_ratings as decide
from attend.learning.task import Look
from attend.recommend.ratings import FEATURES
from tests.index.learning.rated import planted
from tests.index.ratings.rated_world import model

USERS, EACH = 60, 10
ENDS = model().low, model().high


def judged(held: HeldOutRatings, seed: int = 0):
    return judge_ratings(held, seed)


def decide_ratings(held: HeldOutRatings, **options):
    return decide(held, judged(held).after, Look(USERS), **options)


def rmse(errors) -> float:
    return float(np.sqrt((errors**2).mean()))


def held(shift: float, noise: float = 0.5, seed: int = 0, split: int = 0) -> HeldOutRatings:
    """Ratings of one split; a model says `shift` of what is beyond the baseline, and noise."""
    rng = np.random.default_rng(seed)
    users = np.repeat(np.arange(USERS), EACH)
    truth = np.clip(rng.normal(3, 1, len(users)), 1, 5)
    plain = np.full(len(users), 3.0)
    moved = shift * (truth - plain) + rng.normal(0, noise, len(users))
    telling = np.concatenate([np.ones((len(users), 1)), rng.random((len(users), FEATURES - 1))], 1)
    good = Predictions(plain + moved, plain, telling)
    bad = Predictions(plain + rng.normal(0, 1, len(users)), plain, telling)
    places, after = np.full(len(users), split), {"bad": bad, "good": good}
    return HeldOutRatings(places, users, truth, plain, plain, after, ENDS)


def both(random: HeldOutRatings, unseen: HeldOutRatings) -> HeldOutRatings:
    """The same held-out ratings of both splits."""
    after = {
        name: Predictions(*map(np.concatenate, zip(part, unseen.after[name], strict=True)))
        for name, part in random.after.items()
    }
    columns = [*map(np.concatenate, zip(random[:5], unseen[:5], strict=True))]
    return HeldOutRatings(*columns, after, ENDS)


def everything(held: HeldOutRatings) -> np.ndarray:
    return np.ones(len(held.truth), dtype=bool)


def test_the_recipe_of_the_least_error_is_chosen_and_trusted_by_least_squares() -> None:
    given = held(0.8)
    found = choose(given, everything(given))
    moved, left = given.after["good"].raw - 3, given.truth - 3
    expected = np.linalg.lstsq(moved[:, None], left, rcond=None)[0][0]
    assert found.recipe == "good"
    assert found.trust["random"] == pytest.approx(expected)


def test_trust_stays_between_nothing_and_everything() -> None:
    for shift, expected in ((-1.0, 0.0), (0.2, 1.0)):
        given = held(shift, noise=0.01)
        given = given._replace(after={"good": given.after["good"]})
        assert choose(given, everything(given)).trust["random"] == expected


def test_a_true_gain_is_promoted_and_noise_is_not() -> None:
    verdict = decide_ratings(both(held(0.8), held(0.3, seed=1, split=1)))
    assert verdict.promote
    assert "RMSE" in verdict.reason
    assert not decide_ratings(both(held(0.0), held(0.0, seed=1, split=1))).promote


def test_better_than_the_baseline_but_not_than_what_predicts_now_is_not_promoted() -> None:
    given = held(0.8)
    verdict = decide_ratings(given._replace(before=given.truth + 0.01))
    assert not verdict.promote
    assert verdict.views["baseline"]["difference"] < 0


def test_a_loss_where_documents_are_new_forbids() -> None:
    unseen = held(0.3, seed=1, split=1)
    verdict = decide_ratings(both(held(0.8), unseen._replace(before=unseen.truth + 0.01)))
    assert not verdict.promote
    assert "It loses on unrated documents" in verdict.reason


def test_a_negligible_loss_where_documents_are_new_does_not_forbid() -> None:
    unseen = held(0.0, noise=0.0, seed=1, split=1)
    before = unseen.baseline + 0.003 * (unseen.truth - unseen.baseline)
    verdict = decide_ratings(both(held(0.8), unseen._replace(before=before)), tolerance=0.03)
    assert verdict.views["unseen"]["p"] < 0.05
    assert verdict.views["unseen"]["difference"] > 0
    assert verdict.promote


def test_what_is_judged_had_no_part_in_the_choice() -> None:
    given = held(0.5)
    lied = given.truth.copy()
    lied[:EACH] = 5 - lied[:EACH]  # the first user says otherwise
    first, other = judged(given).after, judged(given._replace(truth=lied)).after
    np.testing.assert_array_equal(first[:EACH], other[:EACH])
    assert (first != other).any()


def test_users_who_are_all_in_one_half_are_judged_by_the_baseline() -> None:
    """By nobody's choice nothing is trusted; and no mean is taken of nothing, which would warn."""
    given = held(0.5)
    alone = given._replace(users=np.zeros_like(given.users))
    judgement = judged(alone)
    np.testing.assert_allclose(judgement.after, np.clip(given.baseline, *ENDS))
    assert np.isfinite(judgement.spread).all()
    assert not decide_ratings(alone).promote


def test_figures_are_those_of_the_errors() -> None:
    given = held(0.8)
    figures = decide_ratings(given).views["random"]
    after = judged(given).after - given.truth
    assert figures["after"] == pytest.approx(rmse(after))
    assert figures["before"] == pytest.approx(rmse(given.before - given.truth))
    low, high = figures["interval"]
    assert low < figures["difference"] < high < 0


def test_documents_are_held_out_whole_and_ratings_of_others_by_chance() -> None:
    ratings, _ = planted(users=200, items=100, each=30)
    training, held_out = rating_fold(ratings, seed=0)
    seen, unseen = held_out["random"], held_out["unseen"]
    assert (training.astype(int) + seen + unseen == 1).all()
    gone = np.unique(ratings.items[unseen])
    assert not np.isin(ratings.items[~unseen], gone).any()
    assert 0.05 < seen.mean() < 0.15
    assert 0.03 < unseen.mean() < 0.2
