"""The model of ratings as bytes."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import load, save

from attend.core.errors import Damaged
from attend.recommend.ratings import Own, RatingModel
from tests.index.ratings.rated_world import HEADS, model, own


def test_a_model_comes_back_as_it_was() -> None:
    made = model(low=0.1, high=0.7)
    again = RatingModel.from_bytes(made.to_bytes())
    assert (again.low, again.high) == (0.1, 0.7)  # no float32: users send these very numbers
    np.testing.assert_allclose(again.text_keys, made.text_keys, rtol=1e-6)
    assert again.to_bytes() == made.to_bytes()
    assert again.fingerprint == made.fingerprint != model(1).fingerprint


def test_what_is_a_documents_own_comes_back() -> None:
    given = own(4, np.random.default_rng(0))
    packed = given.packed()
    assert packed.shape == (4, model().width)
    for one, other in zip(given, Own.unpacked(packed, HEADS), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda arrays: arrays.pop("gates"), "it holds"),
        (lambda arrays: arrays.update(more=np.zeros(1)), "it holds"),
        (lambda arrays: arrays.update(gates=np.full(HEADS, np.nan)), "NaN"),
        (lambda arrays: arrays.update(null=np.zeros(HEADS + 1)), "null is of shape"),
        (lambda arrays: arrays.update(text_keys=np.zeros(3)), "shape"),
        (lambda arrays: arrays.update(spread=np.zeros(2)), "spread is of shape"),
    ],
)
def test_other_arrays_are_damage(change: object, said: str) -> None:
    arrays = load(model().to_bytes())
    change(arrays)  # type: ignore[operator]
    with pytest.raises(Damaged, match=said):
        RatingModel.from_bytes(save(arrays))


def test_other_bytes_are_damage() -> None:
    with pytest.raises(Damaged, match="no saved model of ratings"):
        RatingModel.from_bytes(b"something else")
