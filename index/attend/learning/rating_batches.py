"""Ratings as a fit sees them: the baseline, where factors begin, and batches of users."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import sparse

from attend.core.types import Bool, Float32, Float64, Int64
from attend.learning.data import Ratings

USER_SHRINK, ITEM_SHRINK = 10.0, 5.0
"""Ratings of the mean one that each user's and each item's own are averaged with."""

ROUNDS = 10
"""Rounds of alternating between users and items; after a few, nothing moves any more."""

UNEVEN = 0.2
"""How much longer (as a log) one history may be than another beside which it is padded."""


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
        """(r,) predictions of some users' ratings of some items."""
        return np.asarray(self.mean + self.users[users] + self.items[items])


def baseline(ratings: Ratings) -> Baseline:
    """Fit the baseline by alternating between users and items (Koren 2010, section 2.1)."""
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
    few users or items cannot fill are zero.
    """
    left = ratings.values - base(ratings.users, ratings.items)
    shape = ratings.user_count, ratings.item_count
    residuals = sparse.csr_array((left, (ratings.users, ratings.items)), shape=shape)
    factors = np.zeros((ratings.item_count, width))
    rank = min(width, min(shape) - 1)
    if rank > 0 and np.any(left):
        start = np.random.default_rng(0).normal(size=min(shape))  # the same each time
        _, sizes, right = sparse.linalg.svds(residuals, k=rank, v0=start)
        factors[:, :rank] = (right * sizes[:, None])[::-1].T
    counts = np.bincount(ratings.items, minlength=ratings.item_count)
    factors /= np.sqrt(counts + 2 * ITEM_SHRINK)[:, None]
    size = np.sqrt((factors**2).sum(axis=1).mean())
    return factors / size if size > 0 else factors


class RatingBatch(NamedTuple):
    """b users with t ratings to guess and l known ones at most, padded to these.

    Attributes:
        items: (m,) those that occur; `targets` (b, t) and `history` (b, l) are places in it.
        truth: (b, t) ratings; values: (b, l).
        guessed: (b, t) which targets are there; there: (b, l) which of the history.
        out: (b, t, l) which known ratings are masked: the target's own, and padding.
    """

    items: Int64
    targets: Int64
    truth: Float32
    guessed: Bool
    history: Int64
    values: Float32
    there: Bool
    out: Bool


class RatingBatches:
    """Draws batches, each user as often as the others.

    Args:
        users: in a batch.
        cap: ratings of a user, to guess and to know.
        forget: up to which share of a history is left out, a share drawn for each user.
    """

    def __init__(
        self, ratings: Ratings, users: int, cap: int, forget: float, random: np.random.Generator
    ) -> None:
        self.ratings, self.users, self.cap, self.forget = ratings, users, cap, forget
        self.random = random
        self.lengths = np.diff(ratings.by_user[1])
        # Of one rating alone nothing is left to attend to.
        self.usable = np.flatnonzero(self.lengths > 1)
        if not len(self.usable):
            raise ValueError("Nobody has two ratings, of which one could be guessed by the other.")

    @property
    def in_epoch(self) -> int:
        """The number of batches until every user was there."""
        return math.ceil(len(self.usable) / self.users)

    def drawn(self, count: int) -> Iterator[RatingBatch]:
        """Yield batches of users whose histories are about as long as each other."""
        users, lengths = self.usable, np.minimum(self.lengths, self.cap)
        while count > 0:
            about = lengths[users] * np.exp(self.random.normal(0, UNEVEN, len(users)))
            parts = np.array_split(users[np.argsort(about)], self.in_epoch)
            for place in self.random.permutation(len(parts))[:count].tolist():
                yield self.of(parts[place])
            count -= len(parts)

    def of(self, users: Int64) -> RatingBatch:
        """Return the batch of some users."""
        samples = [self._drawn(self.ratings.of_user(user)) for user in users.tolist()]
        targets, guessed = _padded([places for places, _ in samples])
        history, there = _padded([places for _, places in samples])
        ids, values = self.ratings.items, self.ratings.values.astype(np.float32)
        both = np.concatenate([ids[targets].ravel(), ids[history].ravel()])
        items, places = np.unique(both, return_inverse=True)
        target_places = places[: targets.size].reshape(targets.shape)
        history_places = places[targets.size :].reshape(history.shape)
        same = target_places[:, :, None] == history_places[:, None, :]
        return RatingBatch(
            items=items,
            targets=target_places,
            truth=values[targets],
            guessed=guessed,
            history=history_places,
            values=values[history],
            there=there,
            out=same | ~there[:, None, :],
        )

    def _drawn(self, places: Int64) -> tuple[Int64, Int64]:
        """Return one user's ratings to guess, and those that are known meanwhile."""
        targets = self._capped(places)
        left = places[self.random.random(len(places)) >= self.forget * self.random.random()]
        return targets, self._capped(left if len(left) else places)

    def _capped(self, places: Int64) -> Int64:
        if len(places) <= self.cap:
            return places
        return self.random.choice(places, self.cap, replace=False)


def _padded(places: list[Int64]) -> tuple[Int64, Bool]:
    """(b, longest) with zeros after each, and which are there."""
    there = np.arange(max(map(len, places))) < np.array([len(part) for part in places])[:, None]
    padded = np.zeros(there.shape, dtype=np.int64)
    padded[there] = np.concatenate(places)
    return padded, there
