"""Scorers against SciPy's distances, and settings against what they must refuse."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from attend.attention import SCORERS, Additive, default_scale, mechanism, scorer, scorers
from attend.errors import InvalidRequest

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
    found = scorer(name)(queries, keys)
    np.testing.assert_allclose(found, by_head(queries, keys, ORACLES[name]), atol=1e-12)


@settings(max_examples=30, deadline=None)
@given(shape=shapes)
def test_the_additive_scorer_is_its_formula(shape):
    queries, keys = drawn(shape)
    w, u, v = np.random.default_rng(1).normal(size=(3, 5, shape[3]))
    found = scorer("additive", Additive(w, u, v[:, 0]))(queries, keys)

    def pairs(a, b):
        return np.array([[v[:, 0] @ np.tanh(w @ x + u @ y) for y in b] for x in a])

    np.testing.assert_allclose(found, by_head(queries, keys, pairs), atol=1e-12)


def test_chunks_change_nothing(monkeypatch):
    queries, keys = drawn((3, 2, 11, 4, False))
    whole = scorer("laplace")(queries, keys)
    monkeypatch.setattr(scorers, "PAIR_VALUES", 24)  # three keys at a time
    np.testing.assert_array_equal(scorer("laplace")(queries, keys), whole)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_finer_precision_of_both_sides_is_worked_in(dtype):
    queries, keys = drawn((2, 1, 3, 4, True))
    for name in ORACLES:
        assert scorer(name)(queries.astype(dtype), keys.astype(np.float32)).dtype == dtype


def test_the_cosine_of_a_zero_vector_is_zero():
    keys = np.array([[0.0, 0.0], [3.0, 4.0]])[:, None, :]
    assert scorer("cosine")(np.zeros((1, 1, 2)), keys).tolist() == [[[0, 0]]]
    assert scorer("cosine")(np.array([[[3.0, 4.0]]]), keys).tolist() == [[[0, 1]]]


def test_an_unknown_scorer_is_refused_by_the_names_of_the_known():
    with pytest.raises(InvalidRequest, match=r"'l2' is no scorer; choose of dot, cosine, lap"):
        scorer("l2")
    assert set(SCORERS) == {"dot", "cosine", "laplace", "additive"}


def test_additive_needs_parameters_and_no_other_takes_any():
    parameters = Additive(np.ones((2, 3)), np.ones((2, 3)), np.ones(2))
    with pytest.raises(InvalidRequest, match="no parameters"):
        scorer("additive")(np.ones((1, 1, 3)), np.ones((1, 1, 3)))
    with pytest.raises(InvalidRequest, match="only 'additive'"):
        scorer("dot", parameters)
    with pytest.raises(InvalidRequest, match="take 3 dimensions"):
        scorer("additive", parameters)(np.ones((1, 1, 2)), np.ones((1, 1, 2)))
    with pytest.raises(InvalidRequest, match="of shapes"):
        Additive(np.ones((2, 3)), np.ones((3, 2)), np.ones(2))
    with pytest.raises(InvalidRequest, match="NaN"):
        Additive(np.ones((2, 3)), np.ones((2, 3)), np.array([1, np.nan]))


def test_default_scales():
    assert default_scale("dot", True, 384) == default_scale("cosine", False, 384) == 20
    assert default_scale("dot", False, 64) == 1 / 8
    assert default_scale("laplace", True, 64) == default_scale("additive", True, 64) == 1


def test_a_scale_is_a_number_a_name_or_one_for_each_head():
    def scale(given, gates=(1.0,)):
        how = mechanism(d_k=16, normalized=True, scale=given, gates=gates)
        return how.scale.tolist()

    assert scale(None) == [20]
    assert scale(3) == [3]
    assert scale("sqrt") == [0.25]
    assert scale("none") == [1]
    assert scale([1, 2.5], (0.5, 0.5)) == [1, 2.5]
    for bad in (0, -1, np.nan, np.inf, True, "1/d", [1, 2], [0.0]):
        with pytest.raises(InvalidRequest, match="scale"):
            scale(bad)


def test_a_mechanism_that_is_unsound_is_refused():
    def make(**settings):
        return mechanism(**{"d_k": 4, "normalized": True, **settings})

    for bad in (0, -1, np.nan, np.inf, True, "1"):
        with pytest.raises(InvalidRequest, match="temperature"):
            make(temperature=bad)
    for gates in ([0.5], [], [2, -1], [np.nan, 1], [[1.0]]):
        with pytest.raises(InvalidRequest, match="head weights"):
            make(gates=gates)
    with pytest.raises(InvalidRequest, match="choose one of max, sum"):
        make(pool_name="mean")
    for null in (np.nan, [1, 2, 3]):
        with pytest.raises(InvalidRequest, match="null logit"):
            make(null_logit=null)


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
