"""UMAP: points in two dimensions whose neighbours there are those that they have (McInnes, Healy
and Melville 2018, arXiv:1802.03426, algorithms 1 to 5).

For the few thousand points of a map neighbours are found exactly. Places begin as principal
components, which keep the large shape (Kobak and Linderman 2021), and so are the same each time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from attend.types import Float64, Int64

NEIGHBOURS = 15
EPOCHS = 200
NEGATIVES = 5
"""Points that each pair in turn is pushed away from."""

A, B = 1.577, 0.895
"""1 / (1 + A·d^2B) is near one up to a distance of 0.1 and falls as exp(0.1 - d) from there on."""

SIDE = 10.0
"""How wide the places are at first."""

STEP = 4.0
"""The farthest that one pair may move a point, before the learning rate."""

PARTS = 8
"""Steps of an epoch: what moves a point sees what moved in earlier ones."""


class Graph(NamedTuple):
    """Directed pairs (m,) and how much each belongs together (m,), between 0 and 1."""

    heads: Int64
    tails: Int64
    strengths: Float64


class Fitted(NamedTuple):
    """Points (n, d) with their places (n, 2)."""

    points: Float64
    places: Float64

    def transform(self, given: Float64) -> Float64:
        """Where points (m, d) fall: the mean of their neighbours' places (m, 2), by strength.

        A point that was fitted is where it was put.
        """
        nearest, distances = neighbours(self.points, min(NEIGHBOURS, len(self.points)), given)
        strengths = memberships(distances)
        # By squares a distance of nothing comes out as the root of their rounding.
        strengths[distances[:, 0] <= 1e-6 * np.linalg.norm(given, axis=1), 1:] = 0.0
        shares = strengths / strengths.sum(axis=1, keepdims=True)
        found: Float64 = np.einsum("mk,mkp->mp", shares, self.places[nearest])
        return found


def fit(points: Float64, start: Float64, seed: int = 0) -> Fitted:
    """Place points (n, d) in two dimensions; `start` (n, 2) is where they lie by components."""
    nearest, distances = neighbours(points, min(NEIGHBOURS, len(points) - 1) + 1)
    graph = fuzzy(nearest[:, 1:], distances[:, 1:])
    rng = np.random.default_rng(seed)
    places = SIDE * start / (np.abs(start).max() or 1.0)
    # Points that are one would stay one: nothing pulls apart what lies in one place.
    places = places + rng.normal(scale=1e-4, size=places.shape)
    for epoch in range(EPOCHS):
        # A pair comes as often as it is strong, relative to the strongest.
        due = np.flatnonzero(rng.random(len(graph.heads)) < graph.strengths / graph.strengths.max())
        for part in np.array_split(rng.permutation(due), PARTS):
            _move(places, graph, part, 1.0 - epoch / EPOCHS, rng)
    return Fitted(points, places)


def neighbours(points: Float64, count: int, given: Float64 | None = None) -> tuple[Int64, Float64]:
    """The nearest of points (n, d) to each given one (m, d), and how far they are: (m, count)."""
    asked = points if given is None else given
    lengths = (points**2).sum(axis=1)
    squares = (asked**2).sum(axis=1)[:, None] - 2 * asked @ points.T + lengths  # (m, n)
    if given is None:
        np.fill_diagonal(squares, -1.0)  # of points that are one, each is its own nearest
    nearest = np.argpartition(squares, count - 1, axis=1)[:, :count]
    found = np.take_along_axis(squares, nearest, axis=1)
    order = np.argsort(found, axis=1, kind="stable")
    nearest = np.take_along_axis(nearest, order, axis=1)
    distances = np.sqrt(np.maximum(np.take_along_axis(found, order, axis=1), 0.0))
    return nearest.astype(np.int64), distances


def memberships(distances: Float64) -> Float64:
    """How much neighbours (n, k) belong: exp(-(d - ρ)/σ), with σ such that they sum to log₂ k."""
    beyond = np.maximum(distances - distances[:, :1], 0.0)
    wanted = np.log2(max(2, distances.shape[1]))
    low, high = np.zeros(len(distances)), np.full(len(distances), beyond.max() * 1e3 + 1e-12)
    for _ in range(64):
        middle = (low + high) / 2
        over = np.exp(-beyond / np.maximum(middle, 1e-12)[:, None]).sum(axis=1) > wanted
        low, high = np.where(over, low, middle), np.where(over, middle, high)
    found: Float64 = np.exp(-beyond / np.maximum(high, 1e-12)[:, None])
    return found


def fuzzy(nearest: Int64, distances: Float64) -> Graph:
    """The union of both directions: p + q - p·q of a pair's two memberships."""
    count, width = nearest.shape
    one_way = np.zeros((count, count))
    one_way[np.repeat(np.arange(count), width), nearest.ravel()] = memberships(distances).ravel()
    both = one_way + one_way.T - one_way * one_way.T
    heads, tails = np.nonzero(both)
    return Graph(heads, tails, both[heads, tails])


def _move(
    places: Float64, graph: Graph, pairs: Int64, rate: float, rng: np.random.Generator
) -> None:
    """Pull pairs together, and each head away from points drawn at random."""
    heads, tails = graph.heads[pairs], graph.tails[pairs]
    pull = _pull(places[heads] - places[tails])
    pushed = np.repeat(heads, NEGATIVES)
    push = _push(places[pushed] - places[rng.integers(len(places), size=len(pushed))])
    np.add.at(places, heads, rate * pull)
    np.add.at(places, tails, -rate * pull)
    np.add.at(places, pushed, rate * push)


def _pull(apart: Float64) -> Float64:
    squares = np.maximum((apart**2).sum(axis=1, keepdims=True), 1e-12)
    factor = -2 * A * B * squares ** (B - 1) / (1 + A * squares**B)
    found: Float64 = np.clip(factor * apart, -STEP, STEP)
    return found


def _push(apart: Float64) -> Float64:
    squares = (apart**2).sum(axis=1, keepdims=True)
    factor = 2 * B / ((0.001 + squares) * (1 + A * squares**B))
    found: Float64 = np.clip(factor * apart, -STEP, STEP)
    return found
