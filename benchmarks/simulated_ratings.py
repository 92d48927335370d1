"""Ratings that nobody gave: simulated users of real texts, in the proportions of MovieLens-100k.

There are no star ratings by user among the data sets, so these are drawn from a model. It is not
the model that is learned: ratings are rounded and cut to whole stars, users differ in how far they
use the scale, what is rated depends on taste (so that who rated what says something by itself, as
in life), and only a part of what makes two books alike is in their texts. Its constants were set
once, by how well the Surprise library's own methods do, and not by how ours does: the baseline,
SVD, KNNBaseline and SVD++ come within two percent of what that library states for MovieLens-100k
(0.944, 0.934, 0.931, 0.920), in this order of merit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from attend.core.types import Float32, Float64, Int64

USERS = 943
ITEMS = 1682
RATINGS = 100_000
FEWEST = 20
"""Ratings of a user, as there."""

LOWEST, HIGHEST = 1, 5


class Ratings(NamedTuple):
    """(r,) who rated what how: positions of users and of items, and whole stars."""

    users: Int64
    items: Int64
    values: Float64


class World(NamedTuple):
    """What the draws go by.

    Attributes:
        text_directions: of the texts' embeddings, those that taste may go by.
        text_share: of what makes two items alike, the part that is in their texts.
        clusters: groups of users of similar taste; `cluster_share` of a taste is the group's.
        quality, bias, taste, noise: standard deviations, in stars.
        pull: how much more readily is rated what is liked, per star.
    """

    text_directions: int = 16
    factors: int = 5
    text_share: float = 0.35
    clusters: int = 12
    cluster_share: float = 0.65
    quality: float = 0.5
    bias: float = 0.42
    taste: float = 0.65
    noise: float = 0.81
    pull: float = 0.9
    popularity: float = 1.35
    activity: float = 0.95


def simulated(
    embeddings: Float32,
    *,
    users: int = USERS,
    ratings: int = RATINGS,
    seed: int = 0,
    world: World = World(),  # noqa: B008 # immutable
) -> Ratings:
    """Draw ratings of items with these texts.

    Args:
        embeddings: (n, d) of the items' texts.
        ratings: about how many, all users together.

    Returns: users from 0 to `users`, items from 0 to n, sorted by user.
    """
    random = np.random.default_rng(seed)
    liking = _liking(embeddings, users, world, random)  # (u, n) stars
    quality = random.normal(0, world.quality, len(embeddings))
    known = _known(liking, quality, ratings, world, random)
    bias = random.normal(0, world.bias, users)
    reach = np.exp(random.normal(0, 0.25, users))  # how far a user goes from the middle
    by_user, by_item = np.nonzero(known)
    felt = quality[by_item] + liking[by_user, by_item]
    noise = random.normal(0, world.noise, len(by_user))
    stars = 3.3 + bias[by_user] + reach[by_user] * (felt + noise)
    return Ratings(by_user, by_item, np.clip(np.rint(stars), LOWEST, HIGHEST))


def _liking(embeddings: Float32, users: int, world: World, random: np.random.Generator) -> Float64:
    """(u, n): what taste adds to a rating, in stars."""
    items = np.concatenate(
        [
            _text_factors(embeddings, world, random),
            random.normal(size=(len(embeddings), world.factors)),
        ],
        axis=1,
    )
    shares = np.repeat([world.text_share, 1 - world.text_share], world.factors)
    groups = random.normal(size=(world.clusters, items.shape[1]))
    own = random.normal(size=(users, items.shape[1]))
    group = groups[random.integers(0, world.clusters, users)]
    share = world.cluster_share
    tastes = np.sqrt(share) * group + np.sqrt(1 - share) * own
    liking = (tastes * np.sqrt(shares / world.factors)) @ items.T
    return np.asarray(world.taste * liking)


def _text_factors(embeddings: Float32, world: World, random: np.random.Generator) -> Float64:
    """(n, factors) of unit variance: mixtures of the directions in which the texts vary most."""
    centred = embeddings.astype(np.float64) - embeddings.mean(axis=0)
    left, _, _ = np.linalg.svd(centred, full_matrices=False)
    directions = left[:, : world.text_directions] * np.sqrt(len(embeddings))
    mixing = random.normal(size=(directions.shape[1], world.factors))
    mixed = directions @ mixing
    return np.asarray((mixed - mixed.mean(axis=0)) / mixed.std(axis=0))


def _known(
    liking: Float64, quality: Float64, ratings: int, world: World, random: np.random.Generator
) -> Float64:
    """(u, n) of booleans: who rated what, long-tailed on both sides."""
    users, items = liking.shape
    fame = random.normal(0, world.popularity, items) + 0.8 * quality
    drawn = fame + world.pull * liking + random.gumbel(size=liking.shape)
    counts = _activity(users, items, ratings, world, random)
    order = np.argsort(-drawn, axis=1)
    known = np.zeros(liking.shape, dtype=bool)
    for user, count in enumerate(counts):
        known[user, order[user, :count]] = True
    return known


def _activity(
    users: int, items: int, ratings: int, world: World, random: np.random.Generator
) -> Int64:
    """(u,) ratings of each user: at least FEWEST, at most half of all items."""
    weights = np.exp(random.normal(0, world.activity, users))
    spare = max(0, ratings - FEWEST * users)
    counts = FEWEST + np.rint(weights / weights.sum() * spare).astype(np.int64)
    return np.minimum(counts, items // 2)
