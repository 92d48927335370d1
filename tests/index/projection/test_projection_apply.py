"""Projections against plain loops: heads, biases, centre, folding, values, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from attend import projection as tensors
from attend.core.errors import DimensionMismatch, InvalidRequest
from attend.projection import Projection, given, identity
from tests.index.helpers import split_heads

WIDTHS = st.integers(1, 5)


def random_projection(rng, heads, d_k, d_in, shared=False, **settings):
    key_heads = 1 if shared else heads
    return given(
        rng.normal(size=(heads, d_k, d_in)),
        rng.normal(size=(key_heads, d_k, d_in)),
        b_q=rng.normal(size=(heads, d_k)),
        b_k=rng.normal(size=(key_heads, d_k)),
        center=rng.normal(size=d_in),
        heads=heads,
        **settings,
    )


@settings(max_examples=50, deadline=None)
@drawn(WIDTHS, WIDTHS, WIDTHS, st.booleans(), st.booleans(), st.integers(0, 999))
def test_every_form_gives_the_logits_of_a_plain_loop(heads, d_k, d_in, shared, unit, seed):
    rng = np.random.default_rng(seed)
    p = random_projection(rng, heads, d_k, d_in, shared, normalize_queries=unit)
    x, y = rng.normal(size=(3, d_in)), rng.normal(size=(4, d_in))
    expected = np.empty((3, heads, 4))
    for h in range(heads):
        hk = 0 if shared else h
        for i in range(3):
            query = p.w_q[h] @ (x[i] - p.center) + p.b_q[h]
            query = query / np.linalg.norm(query) if unit else query
            for j in range(4):
                expected[i, h, j] = query @ (p.w_k[hk] @ (y[j] - p.center) + p.b_k[hk])
    for form in (p, p.fold()):
        keys = np.broadcast_to(form.keys(y), (4, heads, form.keys(y).shape[2]))
        logits = np.einsum("ihd,jhd->ihj", form.queries(x), keys) + form.project(x)[1][..., None]
        np.testing.assert_allclose(logits, expected, atol=1e-10)


def test_the_identity_is_a_view_and_costs_nothing():
    x = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    p = identity(3)
    assert p.tensors == {}
    for form in (p, p.fold()):
        for side in (form.queries(x), form.keys(x)):
            assert side.shape == (4, 1, 3)
            assert np.shares_memory(side, x)
        assert not form.project(x)[1].any()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_work_is_done_in_the_precision_given(dtype):
    x = np.random.default_rng(0).normal(size=(4, 6)).astype(dtype)
    p = random_projection(np.random.default_rng(1), 2, 3, 6)
    for form in (p, p.fold()):
        for side in (form.queries(x), form.keys(x), form.project(x)[1]):
            assert side.dtype == dtype
    assert p.queries(np.ones((1, 6), int)).dtype == np.float64
    assert p.queries(np.ones((1, 6), np.float16)).dtype == np.float32


def test_one_square_matrix_is_eight_blocks():
    rng = np.random.default_rng(0)
    square_q, square_k = rng.normal(size=(2, 512, 512))
    whole = given(square_q, square_k, heads=8)
    blocks = given(square_q.reshape(8, 64, 512), square_k.reshape(8, 64, 512))
    x = rng.normal(size=(2, 512))
    assert whole.queries(x).shape == (2, 8, 64)
    np.testing.assert_array_equal(whole.queries(x), blocks.queries(x))
    np.testing.assert_allclose(whole.queries(x).reshape(2, 512), x @ square_q.T)
    assert whole.fingerprint == blocks.fingerprint


def test_split_heads_are_the_embeddings_cut():
    x = np.arange(12.0).reshape(2, 6)
    for form in (split_heads(6, 3), split_heads(6, 3).materialised()):
        np.testing.assert_array_equal(form.queries(x), x.reshape(2, 3, 2))
        np.testing.assert_array_equal(form.keys(x), x.reshape(2, 3, 2))


def test_one_side_alone_may_have_a_matrix():
    rng = np.random.default_rng(0)
    w, x = rng.normal(size=(2, 3, 3)), rng.normal(size=(4, 3))
    asks = given(w, None)
    assert np.shares_memory(asks.keys(x), x)
    np.testing.assert_allclose(asks.queries(x)[:, 1], x @ w[1].T)
    answers = given(None, w)
    assert answers.queries(x).shape == (4, 2, 3)
    np.testing.assert_allclose(answers.fold().queries(x)[:, 0], x @ w[0])


def test_normalised_sides_have_length_one_and_zero_stays_zero():
    p = given(np.eye(2), np.eye(2), normalize_queries=True, normalize_keys=True)
    assert p.normalized
    assert p.keys([[3.0, 4.0], [0.0, 0.0]])[:, 0].tolist() == [[0.6, 0.8], [0, 0]]


def test_each_key_and_each_query_is_projected_once(monkeypatch):
    projected = []

    def counting(x, weight, bias, affine=tensors.affine):
        projected.append(len(x))
        return affine(x, weight, bias)

    monkeypatch.setattr(tensors, "affine", counting)
    p = random_projection(np.random.default_rng(0), 4, 2, 6)
    queries, keys = p.queries(np.ones((3, 6))), p.keys(np.ones((50, 6)))
    assert np.einsum("qhd,khd->hqk", queries, keys).shape == (4, 3, 50)
    assert projected == [3, 50]  # and not 3 x 50 pairs


@settings(max_examples=40, deadline=None)
@drawn(WIDTHS, WIDTHS, WIDTHS, st.booleans(), st.integers(0, 999))
def test_values_blend_by_head_and_go_through_w_o(heads, d_vh, d_v, out, seed):
    rng = np.random.default_rng(seed)
    w_v, b_v = rng.normal(size=(heads, d_vh, d_v)), rng.normal(size=(heads, d_vh))
    w_o, b_o = rng.normal(size=(3, heads * d_vh)), rng.normal(size=3)
    last = {"w_o": w_o, "b_o": b_o} if out else {}
    p = given(np.ones((heads, 1, 2)), np.ones((heads, 1, 2)), w_v=w_v, b_v=b_v, **last)
    vectors, weights = rng.normal(size=(6, d_v)), rng.dirichlet(np.ones(6), heads)
    parts = [sum(weights[h, i] * (w_v[h] @ vectors[i] + b_v[h]) for i in range(6))
             for h in range(heads)]  # fmt: skip
    expected = w_o @ np.concatenate(parts) + b_o if out else np.concatenate(parts)
    np.testing.assert_allclose(p.output(weights @ vectors), expected, atol=1e-10)


def test_values_without_matrices_mix_by_the_gates():
    p = split_heads(4, 2, gates=[0.25, 0.75])
    vectors = np.eye(3)
    weights = np.array([[1.0, 0, 0], [0, 0.5, 0.5]])
    np.testing.assert_allclose(p.output(weights @ vectors), [0.25, 0.375, 0.375])


def test_w_o_alone_takes_the_heads_side_by_side():
    p = given(np.ones((2, 1, 2)), np.ones((2, 1, 2)), w_o=np.array([[1.0, 0, 0, 2.0]]))
    assert p.output(np.array([[1.0, 5.0], [1.0, 5.0]])).tolist() == [11]
    with pytest.raises(InvalidRequest, match="take 2"):
        p.output(np.ones((2, 3)))


def test_folding_is_refused_where_it_would_lie():
    p = given(np.eye(2), np.eye(2), normalize_keys=True)
    with pytest.raises(InvalidRequest, match="normalised after W_K"):
        p.fold()
    with pytest.raises(InvalidRequest, match="'laplace' needs projected keys"):
        given(np.eye(2), np.eye(2)).fold("laplace")
    assert not p.form_for("dot").folded
    assert not identity(2).form_for("cosine").folded
    assert identity(2).form_for("dot").folded
    assert not identity(2).fold().materialised().folded


def test_nobody_else_can_write_to_a_projection():
    weight = np.eye(2)
    p = given(weight, weight)
    weight[0, 0] = 7
    assert p.w_q[0, 0, 0] == 1
    with pytest.raises(ValueError, match="read-only"):
        p.w_q[0, 0, 0] = 7


def ones(*shape):
    return np.ones(shape)


REFUSED = {
    "heads that do not divide": ({"w_q": ones(10, 4), "w_k": ones(10, 4), "heads": 3}, "3 heads"),
    "d_in": ({"w_q": ones(2, 4), "w_k": ones(2, 5)}, r"w_k has shape \(1, 2, 5\)"),
    "d_k": ({"w_q": ones(2, 4), "w_k": ones(3, 4)}, "w_k has shape"),
    "the identity's width": ({"w_q": ones(2, 4), "w_k": None}, "w_q has shape"),
    "heads of the keys": ({"w_q": ones(4, 2, 3), "w_k": ones(2, 2, 3)}, "keys have 2 heads"),
    "axes": ({"w_q": ones(4), "w_k": ones(4)}, "w_q has shape"),
    "b_q": ({"w_q": ones(2, 4), "w_k": ones(2, 4), "b_q": ones(3)}, "b_q has shape"),
    "center": ({"w_q": ones(2, 4), "w_k": ones(2, 4), "center": ones(3)}, "center has shape"),
    "w_o": (
        {"w_q": ones(2, 4), "w_k": ones(2, 4), "w_v": ones(3, 5), "w_o": ones(2, 4)},
        "w_o has shape",
    ),
    "b_v alone": ({"w_q": ones(2, 4), "w_k": ones(2, 4), "b_v": ones(3)}, "without w_v"),
    "b_o alone": ({"w_q": ones(2, 4), "w_k": ones(2, 4), "b_o": ones(3)}, "without w_o"),
    "NaN": ({"w_q": ones(2, 4), "w_k": ones(2, 4) * np.nan}, "w_k holds NaN"),
    "text": ({"w_q": np.array([["a"]]), "w_k": None}, "send numbers"),
    "gates": ({"w_q": ones(2, 4), "w_k": ones(2, 4), "gates": [0.5, 0.5]}, "for 1 heads"),
    "gates' sum": ({"w_q": ones(2, 4), "w_k": ones(2, 4), "gates": [0.5]}, "summing to 1"),
    "no heads": ({"w_q": ones(2, 4), "w_k": ones(2, 4), "heads": 0}, "heads is 0"),
    "kind": ({"w_q": ones(2, 4), "w_k": ones(2, 4), "kind": "umap"}, "choose of identity"),
    "nothing": ({"w_q": None, "w_k": None}, "use identity"),
}


@pytest.mark.parametrize(("parts", "sentence"), REFUSED.values(), ids=REFUSED.keys())
def test_matrices_that_disagree_are_refused_in_a_sentence(parts, sentence: str):
    with pytest.raises(InvalidRequest, match=sentence):
        given(**parts)


def test_split_heads_that_do_not_divide_name_both_numbers():
    with pytest.raises(InvalidRequest, match="5 heads do not divide w_q of 384"):
        split_heads(384, 5)


def test_input_of_another_shape_is_refused():
    p: Projection = split_heads(4, 2)
    with pytest.raises(DimensionMismatch, match="has 3 dimensions, but this collection's have 4"):
        p.queries(np.ones((2, 3)))
    with pytest.raises(InvalidRequest, match="send a matrix"):
        p.keys(np.ones(4))
