"""The nearest stored vector, against SciPy's distances."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from attend.values.blends import nearest


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 50), st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_nearest_against_scipy(n, width, seed):
    rng = np.random.default_rng(seed)
    query, rows = rng.normal(size=width), rng.normal(size=(n, width))
    distances = cdist([query], rows)[0]
    found = nearest(query, rows)
    assert found.place == distances.argmin()
    assert found.distance == pytest.approx(distances.min(), rel=1e-12)
    cosine = 1 - cdist([query], rows, "cosine")[0, found.place]
    assert found.cosine == pytest.approx(cosine, abs=1e-12)


def test_nearest_beyond_one_block_of_rows():
    rows = np.random.default_rng(0).normal(size=(9000, 4)).astype(np.float32)
    for place in (0, 4095, 4096, 8999):
        found = nearest(rows[place], rows)
        assert found.place == place
        assert found.distance == 0.0
        assert found.cosine == pytest.approx(1.0, rel=1e-12)


def test_the_first_of_equals_counts():
    assert nearest([0.0], [[1.0], [-1.0], [1.0]]).place == 0


def test_a_vector_without_length_has_no_direction():
    assert nearest([0.0, 0.0], [[3.0, 4.0]]) == (0, 0.0, 5.0)
