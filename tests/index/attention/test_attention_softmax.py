"""Softmax, pools and mixtures against SciPy; masks and the null key by hand."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from scipy import special

from attend.attention import POOLS, Softmax, log_mix, log_shares, log_total
from attend.core.errors import InvalidRequest

finite = st.floats(-1e3, 1e3)
logits = arrays(np.float64, array_shapes(max_dims=3, max_side=6), elements=finite)


@settings(max_examples=60, deadline=None)
@given(logits, st.floats(0.01, 100))
def test_softmax_is_scipys(z, temperature: float):
    found = Softmax.of(z / temperature)
    np.testing.assert_allclose(found.weights, special.softmax(z / temperature, axis=-1), atol=1e-9)
    total = special.logsumexp(z / temperature, axis=-1)
    np.testing.assert_allclose(found.log_partition, total, rtol=1e-12, atol=1e-12)
    assert (found.null_weight == 0).all()


@settings(max_examples=60, deadline=None)
@given(logits, finite)
def test_the_null_is_one_more_key(z, null: float):
    found = Softmax.of(z / 2, null / 2)
    beside = np.concatenate([z, np.full((*z.shape[:-1], 1), null)], axis=-1)
    expected = special.softmax(beside / 2.0, axis=-1)
    np.testing.assert_allclose(found.weights, expected[..., :-1], atol=1e-12)
    np.testing.assert_allclose(found.null_weight, expected[..., -1], atol=1e-12)


def test_the_tutorials_similarities():
    found = Softmax.of([0.9, 0.95, 0.2, 0.6]).weights
    expected = [0.30407386, 0.31966406, 0.15099861, 0.22526346]
    np.testing.assert_allclose(found, expected, atol=1e-8)


def test_what_is_masked_weighs_nothing():
    found = Softmax.of([[1, -np.inf, 1], [-np.inf] * 3])
    np.testing.assert_allclose(found.weights, [[0.5, 0, 0.5], [0, 0, 0]], atol=1e-15)
    assert (found.weights[1] == 0).all()
    assert found.log_partition[1] == -np.inf
    assert Softmax.of([-np.inf], -3).null_weight == 1
    assert Softmax.of(np.zeros((2, 0))).weights.shape == (2, 0)


def test_logits_of_any_size_do_not_overflow():
    assert Softmax.of([1e308, 1e308, -1e308]).weights.tolist() == [0.5, 0.5, 0]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_logit_that_is_no_number_is_refused(bad: float):
    with pytest.raises(InvalidRequest, match="NaN or infinite"):
        Softmax.of([0.0, bad])


def test_losses_learn_through_the_same_softmax():
    torch = pytest.importorskip("torch")
    z = np.random.default_rng(0).normal(size=(4, 7))
    found = Softmax.of(z)
    np.testing.assert_allclose(log_shares(torch.from_numpy(z)).exp().numpy(), found.weights)
    np.testing.assert_allclose(log_total(torch.from_numpy(z)).numpy(), found.log_partition)


ORACLES = {"max": np.max, "sum": special.logsumexp}


@pytest.mark.parametrize("name", POOLS)
@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.integers(0, 2**32 - 1))
def test_a_pool_reduces_each_documents_keys(name: str, counts: list[int], seed: int):
    z = np.random.default_rng(seed).normal(size=(2, 3, sum(counts))) * 100
    edges = np.cumsum([0, *counts])
    found = POOLS[name](z, edges[:-1])
    parts = [ORACLES[name](z[..., a:b], axis=-1) for a, b in pairwise(edges)]
    np.testing.assert_allclose(found, np.stack(parts, axis=-1), atol=1e-10)


def test_heads_mix_by_their_gates():
    weights = special.softmax(np.random.default_rng(0).normal(size=(4, 3, 5)), axis=-1)
    gates = np.array([0.5, 0.5, 0.0])
    expected = 0.5 * weights[:, 0] + 0.5 * weights[:, 1]
    np.testing.assert_allclose(np.exp(log_mix(np.log(weights), gates)), expected, atol=1e-15)
