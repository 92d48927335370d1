"""The examples of the literature, and torch's own multi-head attention, by number."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from attend.attention import Softmax
from attend.projection import given, identity
from tests.index.attention.single import attend_all, attend_top, mechanism, table
from tests.index.helpers import split_heads

CAR = np.array(
    [
        [1, 0, 0.5, 1, 1, 0, 1, 0],
        [0, 1, 0, 1, 1, 1, 0, 0],
        [0.5, 0, 0.5, 0, 0, 0, 0, 1],
        [1, 1, 0, 1, 0, 0, 1, 0],
        [1, 1, 0, 0, 1, 0, 1, 0],
        [0, 1, 0, 0, 0, 1, 0, 0],
        [1, 0, 0, 0, 1, 0, 1, 0],
        [0, 0, 1, 0, 0, 0, 0, 1],
    ]
)
ASKED = np.array([0.8, 0.66, 0.07, 0.35, 0.96, 0.05, 0.75, 0.0])
VALUES = np.array([0.6, 0.9, 0.05, 0.25, 0.95, 0.01, 0.5, 0.01])


@pytest.mark.parametrize(
    ("scorer", "scale", "answer"),
    [
        ("dot", 1 / math.sqrt(8), 0.512329),
        ("dot", 1 / 8, 0.448391),
        ("dot", 1.0, 0.627149),
        ("laplace", None, 0.654110),
    ],
)
def test_is_it_a_car(scorer: str, scale: float | None, answer: float):
    how = mechanism(scorer, scale=scale, d_k=8)
    found = attend_all(ASKED[None], [table(CAR)], how, keep=8)
    assert found.weights @ VALUES[found.documents] == pytest.approx(answer, abs=5e-7)


def test_is_it_a_car_said_hard():
    how = mechanism(d_k=8)
    found = attend_top(ASKED[None], [table(CAR)], how, attend=1)
    assert found.weights.tolist() == [1]
    assert VALUES[found.documents].tolist() == [0.95]


@pytest.mark.parametrize(("heads", "bias"), [(1, True), (4, True), (8, False)])
def test_multi_head_attention_is_torchs(heads: int, bias: bool):
    width, n, q = 16, 11, 3
    torch.manual_seed(heads)
    layer = torch.nn.MultiheadAttention(width, heads, bias=bias, batch_first=True)
    if bias:
        torch.nn.init.normal_(layer.in_proj_bias)
        torch.nn.init.normal_(layer.out_proj.bias)
    asked, offered = torch.randn(1, q, width), torch.randn(1, n, width)
    meant = torch.randn(1, n, width)
    expected, weights = layer(asked, offered, meant, average_attn_weights=False)

    projection = given(heads=heads, **weights_of(layer))
    how = mechanism(d_k=projection.d_k, gates=projection.gates)
    queries, keys = projection.queries(asked[0].numpy()), projection.keys(offered[0].numpy())
    found = Softmax.of(how.logits(queries, table(keys))).weights  # (q, H, n)
    np.testing.assert_allclose(found, weights.detach().numpy()[0].swapaxes(0, 1), atol=1e-5)
    for i in range(q):
        answer = projection.output(found[i] @ meant[0].numpy())
        np.testing.assert_allclose(answer, expected.detach().numpy()[0, i], atol=1e-5)


def weights_of(layer: torch.nn.MultiheadAttention) -> dict[str, np.ndarray]:
    parts = dict(zip(("w_q", "w_k", "w_v"), layer.in_proj_weight.chunk(3), strict=True))
    parts["w_o"] = layer.out_proj.weight
    if layer.in_proj_bias is not None:
        parts |= zip(("b_q", "b_k", "b_v"), layer.in_proj_bias.chunk(3), strict=True)
        parts["b_o"] = layer.out_proj.bias
    return {name: part.detach().numpy() for name, part in parts.items()}


def test_folded_and_materialised_keys_weigh_the_same():
    rng = np.random.default_rng(0)
    projection = given(
        rng.normal(size=(3, 4, 10)),
        rng.normal(size=(3, 4, 10)),
        b_q=rng.normal(size=(3, 4)),
        b_k=rng.normal(size=(3, 4)),
        center=rng.normal(size=10),
    )
    folded = projection.fold("dot")
    x, y = rng.normal(size=(5, 10)).astype(np.float32), rng.normal(size=(9, 10)).astype(np.float32)
    how = mechanism(scale=1, gates=projection.gates)
    plain = how.logits(projection.queries(x), table(projection.keys(y)))
    moved = how.logits(folded.queries(x), table(folded.keys(y)))
    np.testing.assert_allclose(Softmax.of(moved).weights, Softmax.of(plain).weights, atol=1e-5)
    difference = plain - moved  # (q, H, n)
    shifts = np.broadcast_to(folded.project(x)[1][..., None], plain.shape)
    np.testing.assert_allclose(difference, shifts, atol=1e-4)
    assert np.abs(difference).max() > 1


def test_asymmetric_projections_attend_one_way():
    he, hans, mary = np.eye(3)
    w_q = np.array([[1.0, 0, 0], [0, 0, 0], [0, 0, 0]])  # only "he" asks
    w_k = np.array([[0, 2.0, 1.0], [0, 0, 0], [0, 0, 0]])  # Hans answers more than Mary
    words = np.stack([he, hans, mary])
    how = mechanism(d_k=3)

    def logits(projection):
        keys = table(projection.keys(words))
        return how.logits(projection.queries(words), keys)[:, 0]

    found = logits(given(w_q, w_k))
    assert found[0, 1] > found[0, 2] > found[1, 0] == 0
    same = logits(given(w_k, w_k))
    np.testing.assert_allclose(same, same.T)


def test_heads_attend_to_different_things():
    keys = np.array([[1.0, 0, 0, 0], [0, 0, 0, 1.0]])
    projection = split_heads(4, 2)
    how = mechanism(d_k=2, normalized=True, gates=projection.gates)
    query = projection.queries(np.array([[1.0, 0, 0, 1.0]]))
    found = attend_all(query[0], [table(projection.keys(keys))], how, keep=2)
    assert found.head_weights.argmax(axis=1).tolist() in ([0, 1], [1, 0])
    assert found.weights.tolist() == pytest.approx([0.5, 0.5])


def test_orthonormal_queries_and_keys_attend_one_to_one():
    words = np.linalg.qr(np.random.default_rng(0).normal(size=(6, 6)))[0]
    projection, how = identity(6), mechanism(d_k=6, normalized=True)
    logits = how.logits(projection.queries(words), table(projection.keys(words)))
    np.testing.assert_allclose(Softmax.of(logits).weights[:, 0], np.eye(6), atol=1e-6)


def test_unnormalised_a_vector_need_not_be_nearest_to_itself():
    words = np.array([[1.0, 0], [3.0, 1.0]])
    how = mechanism()
    assert attend_top(words[:1], [table(words)], how, 1).documents.tolist() == [1]
    cosine = mechanism("cosine")
    assert attend_top(words[:1], [table(words)], cosine, 1).documents.tolist() == [0]
