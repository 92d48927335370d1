"""Predictions against the formula as a loop, and what must not change them."""

from __future__ import annotations

import numpy as np
import pytest

from attend.core.errors import DimensionMismatch
from attend.recommend.ratings import Own, Rated, predict
from tests.index.ratings.rated_world import DIMENSION, HEADS, asked, looped, model, own


@pytest.mark.parametrize("seed", range(5))
def test_predictions_are_those_of_the_formula(seed: int) -> None:
    made, given = model(seed), asked(seed)
    found = predict(made, given.items(made, given.targets), given.rated(made), given.same)
    for at, expected in enumerate(looped(made, given)):
        assert found.raw[at] == pytest.approx(expected["raw"], abs=1e-9)
        assert found.baseline[at] == pytest.approx(expected["baseline"], abs=1e-9)
        assert found.null[at] == pytest.approx(expected["null"], abs=1e-9)
        by_rating = [expected["weights"].get(j, 0.0) for j in range(len(given.history))]
        np.testing.assert_allclose(found.weights[at], by_rating, atol=1e-9)


def test_weights_sum_to_one_with_the_null_key_and_shares_to_the_prediction() -> None:
    made, given = model(3), asked(3)
    found = predict(made, given.items(made, given.targets), given.rated(made), given.same)
    np.testing.assert_allclose(found.weights.sum(axis=1) + found.null, 1)
    np.testing.assert_allclose(found.baseline + found.shares.sum(axis=1), found.raw)
    assert ((found.mean >= made.low) & (found.mean <= made.high)).all()


def test_the_targets_own_rating_changes_nothing() -> None:
    made, given = model(), asked()
    assert given.same[0].any()
    before = predict(made, given.items(made, given.targets), given.rated(made), given.same)
    values = np.where(given.same[0], given.values % 5 + 1, given.values)
    changed = given._replace(values=values)
    after = predict(made, given.items(made, given.targets), changed.rated(made), given.same)
    assert (values != given.values).any()
    np.testing.assert_array_equal(before.raw[0], after.raw[0])
    np.testing.assert_array_equal(before.features[0], after.features[0])
    assert (before.raw[1:] != after.raw[1:]).all()  # to the others it matters


def test_what_weighs_nothing_is_as_good_as_not_there() -> None:
    made, given = model(), asked()
    weights = given.weights.copy()
    weights[3] = 0
    without = np.arange(len(weights)) != 3
    items = given.items(made, given.targets)
    some = predict(made, items, given._replace(weights=weights).rated(made), given.same)
    less = given._replace(
        history=given.history[without], values=given.values[without], weights=weights[without]
    )
    fewer = predict(made, items, less.rated(made), less.same)
    np.testing.assert_allclose(some.raw, fewer.raw)
    assert (some.weights[:, 3] == 0).all()


def test_an_empty_history_gives_the_baseline_and_all_weight_to_the_null_key() -> None:
    made, given = model(), asked()
    none = np.empty(0, dtype=np.int64)
    rated = Rated.evenly(given.items(made, none), np.empty(0))
    found = predict(made, given.items(made, given.targets), rated, np.empty((5, 0), dtype=bool))
    np.testing.assert_allclose(found.raw, made.mean + given.own.bias[given.targets])
    np.testing.assert_allclose(found.null, 1)


def test_a_null_key_above_all_others_leaves_the_baseline() -> None:
    made, given = model(null=np.full(HEADS, 1e3)), asked()
    found = predict(made, given.items(made, given.targets), given.rated(made), given.same)
    np.testing.assert_allclose(found.raw, found.baseline)


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    made, given = model(), asked(targets=8, history=20)
    items = given.items(made, given.targets)
    whole = predict(made, items, given.rated(made), given.same)
    monkeypatch.setattr("attend.recommend.ratings.BLOCK", 1)
    for one, other in zip(whole, predict(made, items, given.rated(made), given.same), strict=True):
        np.testing.assert_allclose(one, other)


def test_of_an_unknown_document_nothing_but_its_text_counts() -> None:
    known = own(3, np.random.default_rng(0))
    found = known.at(np.array([2, -1]))
    np.testing.assert_array_equal(found.votes[0], known.votes[2])
    assert all((each[1] == 0).all() for each in found)
    none = Own(*(each[:0] for each in known)).at(np.array([-1]))
    assert none.votes.shape == (1, HEADS)


def test_embeddings_of_another_width_are_refused() -> None:
    made = model()
    with pytest.raises(DimensionMismatch, match=f"have {DIMENSION}"):
        made.items(np.zeros((1, 3), dtype=np.float32), own(1, np.random.default_rng(0)))
