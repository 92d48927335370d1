"""UMAP against its formulas in plain loops, and what it is for: neighbours that stay neighbours."""

from __future__ import annotations

import math

import numpy as np
import pytest

from attend import umap

CLUSTERS = 20


@pytest.fixture(scope="module")
def points() -> np.ndarray:
    """More clusters than two components can part."""
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(CLUSTERS, 32))
    return centers[np.arange(400) % CLUSTERS] + 0.5 * rng.normal(size=(400, 32))


@pytest.fixture(scope="module")
def start(points: np.ndarray) -> np.ndarray:
    centred = points - points.mean(axis=0)
    return centred @ np.linalg.svd(centred, full_matrices=False)[2][:2].T


@pytest.fixture(scope="module")
def fitted(points: np.ndarray, start: np.ndarray) -> umap.Fitted:
    return umap.fit(points, start)


def kept(points: np.ndarray, places: np.ndarray, count: int = 10) -> float:
    """The share of each point's nearest that are among its nearest on the map."""
    shares = []
    for at in range(len(points)):
        near, there = (
            set(np.argsort(np.linalg.norm(each - each[at], axis=1))[1 : count + 1].tolist())
            for each in (points, places)
        )
        shares.append(len(near & there) / count)
    return float(np.mean(shares))


def test_neighbours_stay_neighbours(
    points: np.ndarray, start: np.ndarray, fitted: umap.Fitted
) -> None:
    assert kept(points, fitted.places) > 1.5 * kept(points, start)
    groups = np.arange(len(points)) % CLUSTERS
    nearest = np.argsort(np.linalg.norm(fitted.places[:, None] - fitted.places, axis=2))[:, 1]
    assert np.mean(groups[nearest] == groups) > 0.95


def test_it_is_the_same_each_time(points: np.ndarray, start: np.ndarray) -> None:
    one, other = (umap.fit(points[:60], start[:60]) for _ in range(2))
    assert np.array_equal(one.places, other.places)


def test_what_was_fitted_is_where_it_was_put(points: np.ndarray, fitted: umap.Fitted) -> None:
    np.testing.assert_allclose(fitted.transform(points), fitted.places, atol=1e-9)
    beside = fitted.transform(points + 1e-3)
    groups = np.arange(len(points)) % CLUSTERS
    middles = np.stack([fitted.places[groups == each].mean(axis=0) for each in range(CLUSTERS)])
    nearest = np.argmin(np.linalg.norm(beside[:, None] - middles, axis=2), axis=1)
    assert np.mean(nearest == groups) > 0.95


def test_neighbours_are_the_nearest(points: np.ndarray) -> None:
    nearest, distances = umap.neighbours(points, 6)
    for at in (0, 17, 399):
        far = [math.dist(points[at], each) for each in points]
        wanted = sorted(range(len(points)), key=far.__getitem__)[:6]
        assert nearest[at].tolist() == wanted
        np.testing.assert_allclose(distances[at], [far[each] for each in wanted], atol=1e-6)


def test_memberships_sum_to_the_logarithm_of_their_number() -> None:
    distances = np.sort(np.random.default_rng(1).random((50, 15)) + 0.2, axis=1)
    found = umap.memberships(distances)
    np.testing.assert_allclose(found.sum(axis=1), math.log2(15), atol=1e-6)
    assert np.all(found[:, 0] == 1)
    assert np.all(np.diff(found, axis=1) <= 0)


def test_a_pair_is_the_union_of_both_directions() -> None:
    nearest = np.array([[1, 2], [0, 2], [0, 1]])
    distances = np.array([[1.0, 2.0], [1.0, 3.0], [2.0, 3.0]])
    one_way = umap.memberships(distances)
    graph = umap.fuzzy(nearest, distances)
    found = {(a, b): s for a, b, s in zip(graph.heads, graph.tails, graph.strengths, strict=True)}
    p, q = one_way[0, 1], one_way[2, 0]  # of 0 to 2, and of 2 to 0
    assert found[0, 2] == pytest.approx(p + q - p * q)
    assert found[0, 2] == found[2, 0]


@pytest.mark.parametrize("apart", [(0.3, -0.2), (1.5, 0.4), (-3.0, 2.0)])
def test_moves_are_slopes_of_the_cross_entropy(apart: tuple[float, float]) -> None:
    """By differences: pairs descend -log w, others -log(1 - w), with w = 1 / (1 + A d^2B)."""

    def near(x: float, y: float) -> float:
        return 1 / (1 + umap.A * (x * x + y * y) ** umap.B)

    x, y = apart
    step = 1e-6
    pull, push = umap._pull(np.array([apart]))[0], umap._push(np.array([apart]))[0]
    for found, loss in (
        (pull, lambda *p: -math.log(near(*p))),
        (push, lambda *p: -math.log(1 - near(*p))),
    ):
        slope = [
            (loss(x + step, y) - loss(x - step, y)) / (2 * step),
            (loss(x, y + step) - loss(x, y - step)) / (2 * step),
        ]
        # The published push has 0.001 beside the square of the distance, lest it divide by nothing.
        np.testing.assert_allclose(found, [-each for each in slope], rtol=0.02)


def test_points_that_are_one_and_few_points() -> None:
    same = np.ones((9, 4))
    places = umap.fit(same, np.zeros((9, 2))).places
    assert np.all(np.isfinite(places))
    assert len(umap.fit(np.eye(8), np.eye(8)[:, :2]).places) == 8
