"""Scorers against SciPy's distances, and settings against what they must refuse."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from attend import attention as scorers
from attend.attention import SCORERS, Additive, default_scale
from attend.core.errors import InvalidRequest
from tests.index.attention.single import mechanism

shapes = st.tuples(
    st.integers(1, 4), st.integers(1, 3), st.integers(1, 9), st.integers(1, 6), st.booleans()
)


def drawn(shape, seed=0):
    """Queries (q, H, d) and keys (m, Hk, d)."""
    q, heads, m, d, shared = shape
    rng = np.random.default_rng(seed)
    return rng.normal(size=(q, heads, d)), rng.normal(size=(m, 1 if shared else heads, d))


def by_head(queries, keys, pairs):
    """(q, H, m) from `pairs` of (q, d) and (m, d), a head at a time."""
    heads = range(queries.shape[1])
    columns = [keys[:, h if keys.shape[1] > 1 else 0] for h in heads]
    return np.stack([pairs(queries[:, h], columns[h]) for h in heads], axis=1)


ORACLES = {
    "dot": lambda a, b: a @ b.T,
    "cosine": lambda a, b: 1 - cdist(a, b, "cosine"),
    "laplace": lambda a, b: -cdist(a, b, "cityblock"),
}


@pytest.mark.parametrize("name", ORACLES)
@settings(max_examples=30, deadline=None)
@given(shape=shapes)
def test_a_scorer_is_its_formula(name: str, shape):
    queries, keys = drawn(shape)
    found = SCORERS[name](queries, keys)
    np.testing.assert_allclose(found, by_head(queries, keys, ORACLES[name]), atol=1e-12)


@settings(max_examples=30, deadline=None)
@given(shape=shapes)
def test_the_additive_scorer_is_its_formula(shape):
    queries, keys = drawn(shape)
    w, u, v = np.random.default_rng(1).normal(size=(3, 5, shape[3]))
    found = mechanism("additive", additive=Additive(w, u, v[:, 0])).score(queries, keys)

    def pairs(a, b):
        return np.array([[v[:, 0] @ np.tanh(w @ x + u @ y) for y in b] for x in a])

    np.testing.assert_allclose(found, by_head(queries, keys, pairs), atol=1e-12)


def test_chunks_change_nothing(monkeypatch):
    queries, keys = drawn((3, 2, 11, 4, False))
    whole = SCORERS["laplace"](queries, keys)
    monkeypatch.setattr(scorers, "PAIR_VALUES", 24)  # three keys at a time
    np.testing.assert_array_equal(SCORERS["laplace"](queries, keys), whole)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_finer_precision_of_both_sides_is_worked_in(dtype):
    queries, keys = drawn((2, 1, 3, 4, True))
    for name in ORACLES:
        assert SCORERS[name](queries.astype(dtype), keys.astype(np.float32)).dtype == dtype


def test_the_cosine_of_a_zero_vector_is_zero():
    keys = np.array([[0.0, 0.0], [3.0, 4.0]])[:, None, :]
    assert SCORERS["cosine"](np.zeros((1, 1, 2)), keys).tolist() == [[[0, 0]]]
    assert SCORERS["cosine"](np.array([[[3.0, 4.0]]]), keys).tolist() == [[[0, 1]]]


def test_additive_needs_parameters():
    with pytest.raises(InvalidRequest, match="parameters of its own"):
        mechanism("additive").score(np.ones((1, 1, 3)), np.ones((1, 1, 3)))


def test_default_scales():
    assert default_scale("dot", True, 384) == default_scale("cosine", False, 384) == 20
    assert default_scale("dot", False, 64) == 1 / 8
    assert default_scale("laplace", True, 64) == default_scale("additive", True, 64) == 1


@pytest.mark.parametrize("bad", [0, -1, np.nan, np.inf, 1e-300])
def test_a_temperature_that_is_no_temperature_is_refused(bad: float):
    with pytest.raises(InvalidRequest, match="temperature"):
        mechanism(temperature=bad)


@pytest.mark.parametrize("queries", [1, 2, 16, 50, 300])
@pytest.mark.parametrize("keys", [4095, 4096, 5003])
@pytest.mark.parametrize("width", [3, 384])
def test_a_product_in_tiles_is_the_product(queries, keys, width):
    """Whatever is left over of the last tile, and where no tile is small enough."""
    rng = np.random.default_rng(keys)
    asked = rng.normal(size=(queries, 1, width)).astype(np.float32)
    offered = rng.normal(size=(keys, 1, width)).astype(np.float32)
    exact = asked[:, 0].astype(np.float64) @ offered[:, 0].astype(np.float64).T
    found = SCORERS["dot"](asked, offered)
    assert found.shape == (queries, 1, keys)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found[:, 0], exact, atol=1e-4)
