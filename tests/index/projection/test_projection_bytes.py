"""Projections as bytes: what comes back, what names it, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import save

from attend import projection as tensors
from attend.core.errors import Damaged, InvalidRequest
from attend.projection import RAW_KEYS, Projection, given, identity
from tests import warm
from tests.index.helpers import split_heads


def full() -> Projection:
    rng = np.random.default_rng(0)
    return given(
        rng.normal(size=(3, 2, 4)),
        rng.normal(size=(3, 2, 4)),
        b_q=rng.normal(size=(3, 2)),
        b_k=rng.normal(size=(3, 2)),
        w_v=rng.normal(size=(3, 2, 5)),
        b_v=rng.normal(size=(3, 2)),
        w_o=rng.normal(size=(7, 6)),
        b_o=rng.normal(size=7),
        center=rng.normal(size=4),
        gates=np.array([0.1, 0.2, 0.7], np.float32),
        kind="learned",
        normalize_queries=True,
    )


@pytest.mark.parametrize("p", [identity(3), identity(3).fold(), split_heads(6, 3), full()])
def test_what_is_saved_comes_back(p: Projection):
    back = Projection.from_bytes(p.to_bytes())
    assert back.to_bytes() == p.to_bytes()
    assert back.fingerprint == p.fingerprint
    assert {name: getattr(back, name) for name in tensors.SETTINGS} == {
        name: getattr(p, name) for name in tensors.SETTINGS
    }
    np.testing.assert_array_equal(back.gates, p.gates)
    assert back.tensors.keys() == p.tensors.keys()
    for name, tensor in p.tensors.items():
        assert back.tensors[name].dtype == np.float32
        np.testing.assert_array_equal(back.tensors[name], tensor.astype(np.float32))


def test_the_fingerprint_is_the_same_in_another_process():
    code = "from tests.index.helpers import split_heads; print(split_heads(6, 3).fingerprint)"
    found = warm.run("-c", code)
    assert found.stdout.strip() == split_heads(6, 3).fingerprint


def test_the_fingerprint_tells_projections_apart():
    p = full()
    others = [
        identity(4),
        p.fold(),
        replace(p, normalize_queries=False),
        replace(p, w_q=p.w_q + 1e-3),
        replace(p, gates=np.full(3, 1 / 3)),
    ]
    assert len({other.fingerprint for other in [p, *others]}) == 6


def test_the_key_fingerprint_changes_with_the_keys_alone():
    p = full()
    assert replace(p, w_q=p.w_q + 1, gates=np.full(3, 1 / 3)).key_fingerprint == p.key_fingerprint
    assert replace(p, w_k=p.w_k + 1).key_fingerprint != p.key_fingerprint
    assert replace(p, normalize_keys=True).key_fingerprint != p.key_fingerprint
    # Retraining a folded projection touches no key.
    assert p.fold().key_fingerprint == identity(4).key_fingerprint == RAW_KEYS
    assert identity(4, normalize=True).key_fingerprint != RAW_KEYS


SETTINGS = {
    "kind": "given",
    "d_in": 2,
    "normalize_queries": False,
    "normalize_keys": False,
    "folded": False,
}


def packed(parts=None, **changes) -> bytes:
    parts = {"gates": np.ones(1), **(parts or {})}
    settings = {name: value for name, value in (SETTINGS | changes).items() if value is not None}
    return tensors.pack(parts, settings)


DAMAGED = {
    "no bytes": b"",
    "other bytes": b"PK\x03\x04 not a projection",
    "cut short": packed()[:-4],
    "another file's weights": save({"gates": np.ones(1)}),
    "metadata that is no JSON": save({"gates": np.ones(1)}, {tensors.METADATA_KEY: "{"}),
    "metadata that is deep": save({"gates": np.ones(1)}, {tensors.METADATA_KEY: "[" * 100_000}),
    "metadata that is a list": save({"gates": np.ones(1)}, {tensors.METADATA_KEY: "[]"}),
    "another format": save({"g": np.ones(1)}, {tensors.METADATA_KEY: json.dumps({"format": 9})}),
    "a setting too few": packed(folded=None),
    "a setting too many": packed(extra=1),
    "a setting of another type": packed(d_in="2"),
    "a tensor unknown": packed({"w_x": np.ones(1)}),
    "no gates": tensors.pack({"w_q": np.ones((1, 2, 2))}, SETTINGS),
}


@pytest.mark.parametrize("data", DAMAGED.values(), ids=DAMAGED.keys())
def test_bytes_that_are_no_projection_are_damaged(data: bytes):
    with pytest.raises(Damaged):
        Projection.from_bytes(data)


UNSOUND = {
    "another width": (packed({"w_q": np.ones((1, 2, 3))}), "w_q has shape"),
    "infinity": (packed({"w_q": np.full((1, 2, 2), np.inf)}), "w_q holds NaN or infinity"),
    "heads": (packed({"w_q": np.ones((2, 2, 2))}), "w_q has shape"),
    "gates": (packed({"gates": np.ones(2)}), "summing to 1"),
    "kind": (packed(kind="umap"), "no kind of projection"),
    "folded though normalised": (packed(folded=True, normalize_keys=True), "cannot be folded"),
}


@pytest.mark.parametrize(("data", "sentence"), UNSOUND.values(), ids=UNSOUND.keys())
def test_a_saved_projection_is_checked_as_a_given_one(data: bytes, sentence: str):
    with pytest.raises(InvalidRequest, match=sentence):
        Projection.from_bytes(data)
