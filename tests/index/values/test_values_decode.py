"""The nearest stored vector, against SciPy's distances."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from attend.errors import DimensionMismatch
from attend.values import decode, nearest


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 50), st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_nearest_against_scipy(n, width, seed):
    rng = np.random.default_rng(seed)
    query, rows = rng.normal(size=width), rng.normal(size=(n, width))
    distances = cdist([query], rows)[0]
    found = nearest(query, rows)
    assert found.index == distances.argmin()
    assert found.distance == pytest.approx(distances.min(), rel=1e-12)
    cosine = 1 - cdist([query], rows, "cosine")[0, found.index]
    assert found.cosine == pytest.approx(cosine, abs=1e-12)


def test_nearest_beyond_one_block_of_rows():
    rows = np.random.default_rng(0).normal(size=(9000, 4)).astype(np.float32)
    for place in (0, 4095, 4096, 8999):
        found = nearest(rows[place], rows)
        assert found.index == place
        assert found.distance == 0.0
        assert found.cosine == pytest.approx(1.0, rel=1e-12)


def test_the_first_of_equals_counts():
    assert nearest([0.0], [[1.0], [-1.0], [1.0]]).index == 0


def test_a_vector_without_length_has_no_direction():
    assert nearest([0.0, 0.0], [[3.0, 4.0]]) == (0, 0.0, 5.0)


def test_decode_names_the_document():
    found = decode([0.9, 0.1], ["x", "y"], np.eye(2, dtype=np.float32))
    assert found["id"] == "x"
    assert found["value"] == [1.0, 0.0]
    assert found["distance"] == pytest.approx(np.hypot(0.1, 0.1))
    json.dumps(found, allow_nan=False)


def test_what_does_not_fit_is_refused():
    with pytest.raises(DimensionMismatch, match="has 3 dimensions, but this collection's have 2"):
        nearest([1.0, 2.0, 3.0], np.eye(2))
    with pytest.raises(ValueError, match=r"\(0, 2\).*at least one candidate"):
        nearest([1.0, 2.0], np.empty((0, 2)))
    with pytest.raises(ValueError, match="NaN or infinity"):
        nearest([1.0, np.nan], np.eye(2))
    with pytest.raises(ValueError, match="1 ids came with 2 vectors"):
        decode([1.0, 0.0], ["x"], np.eye(2))
