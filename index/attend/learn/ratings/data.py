"""Ratings to learn from, the baseline that everything is compared with, and where a fit begins."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import sparse

from attend.types import Bool, Float64, Int64

USER_SHRINK, ITEM_SHRINK = 10.0, 5.0
"""Ratings of the mean one that each user's and each item's own are averaged with."""

ROUNDS = 10
"""Of alternating between users and items; after a few, nothing moves any more."""


@dataclass(frozen=True)
class Ratings:
    """Who rated what how.

    Attributes:
        users, items: (r,) from 0 to `user_count` and to `item_count`.
        values: (r,).
    """

    users: Int64
    items: Int64
    values: Float64
    user_count: int
    item_count: int

    def __len__(self) -> int:
        return len(self.values)

    def some(self, chosen: Bool | Int64) -> Ratings:
        """Some of them, of as many users and items."""
        return Ratings(
            self.users[chosen],
            self.items[chosen],
            self.values[chosen],
            self.user_count,
            self.item_count,
        )

    @cached_property
    def by_user(self) -> tuple[Int64, Int64]:
        """Places ordered by user, (r,), and where each user's begin, (user_count + 1,)."""
        order = np.argsort(self.users, kind="stable")
        starts = np.searchsorted(self.users[order], np.arange(self.user_count + 1))
        return order, starts

    @property
    def several(self) -> int:
        """Users with two ratings or more, of which one can be predicted by the others."""
        _, starts = self.by_user
        return int((np.diff(starts) > 1).sum())

    def of(self, user: int) -> Int64:
        """Places of one user's ratings."""
        order, starts = self.by_user
        return order[starts[user] : starts[user + 1]]


@dataclass(frozen=True)
class Baseline:
    """μ + b_i + b_u, each shrunk to zero by how few ratings there are.

    Attributes:
        items: (n,). users: (u,).
    """

    mean: float
    items: Float64
    users: Float64

    def __call__(self, users: Int64, items: Int64) -> Float64:
        """(r,) what it says of some users' ratings of some items."""
        return np.asarray(self.mean + self.users[users] + self.items[items])


def baseline(ratings: Ratings) -> Baseline:
    """Fitted by alternating between users and items (Koren 2010, section 2.1)."""
    mean = float(ratings.values.mean()) if len(ratings) else 0.0
    items, users = np.zeros(ratings.item_count), np.zeros(ratings.user_count)
    by_item = np.bincount(ratings.items, minlength=ratings.item_count) + ITEM_SHRINK
    by_user = np.bincount(ratings.users, minlength=ratings.user_count) + USER_SHRINK
    for _ in range(ROUNDS):
        left = ratings.values - mean - users[ratings.users]
        items = np.bincount(ratings.items, left, ratings.item_count) / by_item
        left = ratings.values - mean - items[ratings.items]
        users = np.bincount(ratings.users, left, ratings.user_count) / by_user
    return Baseline(mean, items, users)


def residual_factors(ratings: Ratings, base: Baseline, width: int) -> Float64:
    """(n, width) of items: the leading right singular vectors of what the baseline leaves.

    Items are like each other as far as the same users rated both above, or below, what was
    expected; those with few ratings are drawn to zero. Of unit mean square length. Columns that
    so few users or items cannot fill are zero.
    """
    left = ratings.values - base(ratings.users, ratings.items)
    shape = ratings.user_count, ratings.item_count
    residuals = sparse.csr_array((left, (ratings.users, ratings.items)), shape=shape)
    found = np.zeros((ratings.item_count, width))
    rank = min(width, min(shape) - 1)
    if rank > 0 and np.any(left):
        start = np.random.default_rng(0).normal(size=min(shape))  # the same each time
        _, sizes, right = sparse.linalg.svds(residuals, k=rank, v0=start)
        found[:, :rank] = (right * sizes[:, None])[::-1].T
    counts = np.bincount(ratings.items, minlength=ratings.item_count)
    found /= np.sqrt(counts + 2 * ITEM_SHRINK)[:, None]
    size = np.sqrt((found**2).sum(axis=1).mean())
    return found / size if size > 0 else found
