"""PCA and LSI against NumPy's SVD, whole and from blocks, and the film ratings by number."""

from __future__ import annotations

import numpy as np
import pytest

from attend import projection as kinds
from attend.core.errors import InvalidRequest
from attend.projection import lsi, pca, spectrum

RATINGS = np.array(
    [
        [1, 1, 1, 0, 0],
        [3, 3, 3, 0, 0],
        [4, 4, 4, 0, 0],
        [5, 5, 5, 0, 0],
        [0, 2, 0, 4, 4],
        [0, 0, 0, 5, 5],
        [0, 1, 0, 2, 2],
    ],
    dtype=np.float64,
)
NEWCOMERS = np.array([[5, 0, 0, 0, 0], [0, 4, 5, 0, 0]], dtype=np.float64)


def cosine(vectors) -> float:
    a, b = np.asarray(vectors, np.float64).reshape(2, -1)
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


@pytest.mark.parametrize(
    ("scaled", "expected"), [(False, 0.9925794247632609), (True, 0.9877037969111454)]
)
def test_lsi_brings_users_together_who_share_no_film(scaled: bool, expected: float):
    p = lsi(RATINGS, 2, scaled=scaled)
    assert cosine(NEWCOMERS) == 0
    assert cosine(p.queries(NEWCOMERS)) == pytest.approx(expected, abs=1e-9)
    stored = type(p).from_bytes(p.to_bytes())
    for form in (p, stored):
        rough = form.queries(NEWCOMERS.astype(np.float32))
        assert rough.dtype == np.float32
        assert cosine(rough) == pytest.approx(expected, abs=1e-6)
    np.testing.assert_array_equal(p.queries(NEWCOMERS), p.keys(NEWCOMERS))


def test_the_ratings_singular_values():
    found = spectrum(RATINGS, centered=False)
    np.testing.assert_allclose(found.values, [12.481, 9.509, 1.346], atol=5e-4)
    np.testing.assert_allclose(found.directions @ found.directions.T, np.eye(3), atol=1e-12)


@pytest.fixture
def embeddings():
    rng = np.random.default_rng(0)
    spread = np.geomspace(10, 0.01, 12)
    return (rng.normal(size=(500, 12)) * spread) @ np.linalg.qr(rng.normal(size=(12, 12)))[0] + 50


def assert_principal(p, x, atol: float) -> None:
    """Coordinates equal NumPy's, up to each direction's sign."""
    mean = x.mean(axis=0) if p.center is not None else 0
    u, s, _ = np.linalg.svd(x - mean, full_matrices=False)
    np.testing.assert_allclose(np.abs(p.keys(x)[:, 0]), np.abs(u * s)[:, : p.d_k], atol=atol * s[0])


@pytest.mark.parametrize("fit", [pca, lsi])
def test_a_subspace_is_numpys(fit, embeddings):
    assert_principal(fit(embeddings, 5), embeddings, 1e-12)


@pytest.mark.parametrize("fit", [pca, lsi])
@pytest.mark.parametrize("rows", [64, 500])
def test_many_rows_go_through_their_gram_matrix_in_blocks(fit, rows, embeddings, monkeypatch):
    monkeypatch.setattr(kinds, "SVD_VALUES", 1000)
    monkeypatch.setattr(kinds, "BLOCK_ROWS", 100)
    blocks = (embeddings[i : i + rows] for i in range(0, 500, rows))
    assert_principal(fit(blocks, 5), embeddings, 1e-7)


def test_pca_is_centred_and_its_mean_is_where_queries_start(embeddings):
    p = pca(embeddings, 3)
    np.testing.assert_allclose(p.center, embeddings.mean(axis=0))
    np.testing.assert_allclose(p.keys(embeddings).mean(axis=0), 0, atol=1e-10)
    assert lsi(embeddings, 3).center is None


def test_the_same_data_gives_the_same_bytes(embeddings):
    flipped = np.concatenate([embeddings[250:], embeddings[:250]])
    first, second = pca(embeddings, 3), pca(flipped, 3)
    np.testing.assert_allclose(first.w_q, second.w_q, atol=1e-10)  # signs too
    assert first.fingerprint == pca(embeddings.copy(), 3).fingerprint


def test_normalised_on_request(embeddings):
    p = pca(embeddings, 3, normalize=True)
    assert p.normalized
    np.testing.assert_allclose(np.linalg.norm(p.keys(embeddings), axis=-1), 1)


def test_more_dimensions_than_there_are_is_refused():
    with pytest.raises(InvalidRequest, match=r"4 dimensions were asked for, but .* vary in 3"):
        lsi(RATINGS, 4, scaled=True)
    with pytest.raises(InvalidRequest, match="vary in 0"):
        pca(np.ones((5, 3)), 1)
    with pytest.raises(InvalidRequest, match="dimensions is 0"):
        lsi(RATINGS, 0)


def test_embeddings_that_are_none_are_refused():
    with pytest.raises(InvalidRequest, match="no embeddings"):
        pca(np.zeros((0, 4)), 1)
    with pytest.raises(InvalidRequest, match="no embeddings"):
        pca(iter([]), 1)
    with pytest.raises(InvalidRequest, match="NaN"):
        lsi(np.full((2, 2), np.nan), 1)
    with pytest.raises(InvalidRequest, match="has 3 dimensions"):
        lsi([np.ones((2, 2)), np.ones((2, 3))], 1)
