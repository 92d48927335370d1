"""The baseline, where a fit begins, its batches, and the fit itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from attend.learning import rating_net
from attend.learning.data import Ratings
from attend.learning.rating_net import (
    ITEM_SHRINK,
    RECIPES,
    USER_SHRINK,
    Baseline,
    RatingBatches,
    RatingNet,
    Shape,
    knots_of,
    leading,
    residual_factors,
)
from attend.learning.ratings import predictions
from attend.recommend.ratings import Rated, predict
from tests.index.learning.rated import planted

SHAPE = Shape(heads=2, width=4, factors=3, directions=8, scale=2.0)
RECIPE = replace(RECIPES["usual"], steps=(60, 60))


def fit_ratings(ratings, embeddings, recipe, **options):
    return rating_net.fit_ratings(ratings, embeddings, recipe, shape=SHAPE, **options)


def rmse(errors) -> float:
    return float(np.sqrt((errors**2).mean()))


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def split(ratings: Ratings, seed: int = 1) -> tuple[Ratings, Ratings]:
    held = np.random.default_rng(seed).random(len(ratings)) < 0.2
    return ratings.some(~held), ratings.some(held)


def test_the_baseline_is_the_least_of_its_penalised_squares() -> None:
    ratings, _ = planted()
    found = Baseline(ratings)
    count, users, items = len(ratings), ratings.user_count, ratings.item_count
    design = np.zeros((count, users + items))
    design[np.arange(count), ratings.users] = 1
    design[np.arange(count), users + ratings.items] = 1
    penalty = np.diag([USER_SHRINK] * users + [ITEM_SHRINK] * items)
    left = ratings.values - ratings.values.mean()
    best = np.linalg.solve(design.T @ design + penalty, design.T @ left)
    np.testing.assert_allclose(np.append(found.users, found.items), best, atol=1e-4)


def test_factors_are_the_singular_vectors_of_what_is_left() -> None:
    ratings, _ = planted()
    base = Baseline(ratings)
    dense = np.zeros((ratings.user_count, ratings.item_count))
    dense[ratings.users, ratings.items] = ratings.values - base(ratings.users, ratings.items)
    _, sizes, right = np.linalg.svd(dense)
    counts = np.bincount(ratings.items, minlength=ratings.item_count)
    expected = right[:4].T * sizes[:4] / np.sqrt(counts + 2 * ITEM_SHRINK)[:, None]
    found = residual_factors(ratings, base, 4)
    # Singular vectors have no sign.
    likeness = found @ found.T / (found**2).sum() - expected @ expected.T / (expected**2).sum()
    assert np.abs(likeness).max() < 1e-6
    assert (found**2).sum(axis=1).mean() == pytest.approx(1)


def test_factors_that_cannot_be_filled_are_zero() -> None:
    few = Ratings(np.array([0, 1, 0]), np.array([0, 0, 1]), np.array([1.0, 5.0, 4.0]), 2, 2)
    found = residual_factors(few, Baseline(few), 5)
    assert found.shape == (2, 5)
    assert (found[:, 1:] == 0).all()
    same = replace(few, values=np.full(3, 2.0))
    assert (residual_factors(same, Baseline(same), 5) == 0).all()


def test_batches_hide_the_target_and_the_padding_and_no_more() -> None:
    ratings, _ = planted(each=7)
    short = ratings.some(
        np.flatnonzero((ratings.users % 3 > 0) | (np.arange(len(ratings)) % 7 < 3))
    )
    batches = RatingBatches(short, 5, 100, 0.6, np.random.default_rng(0))
    seen = set()
    for batch in batches.drawn(batches.in_epoch):
        targets, history = batch.items[batch.targets], batch.items[batch.history]
        same = targets[:, :, None] == history[:, None, :]
        np.testing.assert_array_equal(batch.out, same | ~batch.there[:, None, :])
        assert batch.guessed.any(axis=1).all()
        assert batch.there.any(axis=1).all()
        assert len(batch.there) <= 5
        for row in range(len(targets)):
            rated = {
                *zip(
                    targets[row][batch.guessed[row]],
                    batch.truth[row][batch.guessed[row]],
                    strict=True,
                )
            }
            known = {
                *zip(
                    history[row][batch.there[row]], batch.values[row][batch.there[row]], strict=True
                )
            }
            assert known <= rated
            seen.add(frozenset(rated))
    whole = {
        frozenset(
            zip(short.items[short.of_user(user)], short.values[short.of_user(user)], strict=True)
        )
        for user in range(short.user_count)
    }
    assert seen == whole  # every user, once in an epoch


def test_users_with_one_rating_are_passed_over_and_long_ones_cut() -> None:
    users = np.array([0, 1, 1, *[2] * 30])
    ratings = Ratings(users, np.arange(33), np.ones(33), 3, 33)
    batches = RatingBatches(ratings, 4, 10, 0.0, np.random.default_rng(0))
    batch = next(iter(batches.drawn(1)))
    assert batch.guessed.sum(axis=1).tolist() == [2, 10]
    with pytest.raises(ValueError, match="two ratings"):
        RatingBatches(ratings.some(np.array([0])), 4, 10, 0.0, np.random.default_rng(0))


def _trained_net() -> tuple[RatingNet, Ratings, np.ndarray]:
    """A net in which everything is something."""
    ratings, embeddings = planted()
    net = RatingNet(ratings, embeddings, SHAPE, 0.0, seed=0)
    rng = np.random.default_rng(0)
    with torch.no_grad():
        for each in net.tensors.values():
            each += torch.from_numpy(rng.normal(0, 0.3, tuple(each.shape)).astype(np.float32))
    return net, ratings, embeddings


def test_what_is_fitted_predicts_as_it_is_served() -> None:
    net, _, embeddings = _trained_net()
    model, own = net.fitted()
    items = model.items(embeddings, own)
    batches = RatingBatches(net.ratings, 4, 100, 0.8, np.random.default_rng(0))
    for batch in batches.drawn(3):
        with torch.no_grad():
            fitted = net.predicted(batch).numpy()
        for row in range(len(fitted)):
            asked, there = batch.guessed[row], batch.there[row]
            targets = batch.items[batch.targets[row][asked]]
            history = batch.items[batch.history[row][there]]
            found = predict(
                model,
                items.some(targets),
                Rated.evenly(
                    items.some(history), batch.values[row][there].astype(float) * net.size
                ),
                targets[:, None] == history[None, :],
            )
            np.testing.assert_allclose(found.raw / net.size, fitted[row][asked], atol=2e-4)


def test_in_training_a_target_never_sees_its_own_rating() -> None:
    net, _, _ = _trained_net()
    batch = next(iter(RatingBatches(net.ratings, 3, 100, 0.0, np.random.default_rng(0)).drawn(1)))
    with torch.no_grad():
        before = net.predicted(batch).numpy()
        row, at = 1, 2
        place = np.flatnonzero(batch.history[row] == batch.targets[row, at])[0]
        values = batch.values.copy()
        values[row, place] += 1
        after = net.predicted(batch._replace(values=values)).numpy()
    assert before[row, at] == after[row, at]
    others = np.arange(before.shape[1]) != at
    assert (before[row, others] != after[row, others]).mean() > 0.9


def test_a_planted_taste_is_learned() -> None:
    ratings, embeddings = planted()
    known, asked = split(ratings)
    fitted = fit_ratings(known, embeddings, replace(RECIPE, steps=(150, 150)))
    base = rmse(Baseline(known)(asked.users, asked.items) - asked.values)
    found = predictions(fitted, embeddings, known, asked)
    assert rmse(found.raw - asked.values) < 0.75 * base


def test_a_user_whom_training_never_saw_is_predicted_as_well() -> None:
    ratings, embeddings = planted(users=120)
    old = ratings.some(ratings.users < 90)
    fitted = fit_ratings(old, embeddings, replace(RECIPE, steps=(150, 150)))
    known, asked = split(ratings.some(ratings.users >= 90))
    found = predictions(fitted, embeddings, known, asked)
    assert rmse(found.raw - asked.values) < 0.8 * rmse(found.baseline - asked.values)


def test_the_unit_of_ratings_does_not_matter() -> None:
    ratings, embeddings = planted()
    known, asked = split(ratings)
    # A power of two: no rounding for the steps to make more of.
    larger = replace(known, values=known.values * 16)
    one, other = (fit_ratings(each, embeddings, RECIPE) for each in (known, larger))
    assert (other[0].low, other[0].high) == (16, 80)
    first = predictions(one, embeddings, known, asked).raw
    second = predictions(other, embeddings, larger, asked).raw
    np.testing.assert_allclose(second, first * 16, rtol=1e-6)


def test_a_seed_gives_the_same_fit_and_another_seed_another() -> None:
    ratings, embeddings = planted()
    recipe = replace(RECIPE, steps=(10, 10))
    bytes_of = [
        fit_ratings(ratings, embeddings, recipe, seed=seed)[0].to_bytes() for seed in (3, 3, 4)
    ]
    assert bytes_of[0] == bytes_of[1] != bytes_of[2]


def test_a_stop_stops() -> None:
    ratings, embeddings = planted()

    def stop(done: float) -> None:
        if done > 0.3:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        fit_ratings(ratings, embeddings, RECIPE, watch=stop)


def test_few_texts_and_texts_that_are_alike_can_be_learned_from() -> None:
    ratings, _ = planted()
    fitted = fit_ratings(
        ratings, np.ones((ratings.item_count, 3), dtype=np.float32), replace(RECIPE, steps=(5, 5))
    )
    assert np.isfinite(
        predictions(fitted, np.ones((50, 3), dtype=np.float32), ratings, ratings).raw
    ).all()


def test_levels_are_the_ratings_there_are_or_their_quantiles() -> None:
    np.testing.assert_array_equal(knots_of(np.array([3.0, 1, 5, 3])), [1, 3, 5])
    many = knots_of(np.random.default_rng(0).random(1000))
    assert len(many) == 10
    assert (np.diff(many) > 0).all()


def test_texts_are_seen_along_the_directions_in_which_they_vary_most() -> None:
    texts = np.random.default_rng(0).normal(size=(40, 6)) * [5, 4, 3, 2, 1, 0.1]
    reduced, directions = leading(texts, 3)
    np.testing.assert_allclose(texts @ directions.T, reduced)
    _, sizes, _ = np.linalg.svd(texts, full_matrices=False)
    share = (reduced**2).sum(axis=0) / (reduced**2).sum()
    np.testing.assert_allclose(share, sizes[:3] ** 2 / (sizes[:3] ** 2).sum())
    assert (reduced**2).sum(axis=1).mean() == pytest.approx(1)
