"""What a step of fitting looks at: some users, which of their ratings are known, which to guess."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from attend.learn.ratings.data import Ratings
from attend.types import Bool, Float32, Int64

UNEVEN = 0.2
"""How much longer (as a log) one history may be than another beside which it is padded."""


class Batch(NamedTuple):
    """b users with t ratings to guess and l known ones at most, padded to these.

    Attributes:
        items: (m,) those that occur; `targets` (b, t) and `history` (b, l) are places in it.
        truth: (b, t) ratings; values: (b, l).
        asked: (b, t) which are there; there: (b, l).
        out: (b, t, l) which known ratings are not to be looked at: the target's own, and padding.
    """

    items: Int64
    targets: Int64
    truth: Float32
    asked: Bool
    history: Int64
    values: Float32
    there: Bool
    out: Bool


@dataclass(frozen=True)
class Batches:
    """Draws batches, each user as often as the others.

    Attributes:
        users: in a batch.
        cap: ratings of a user, to guess and to know.
        forget: up to which share of a history is left out, a share drawn for each user.
    """

    ratings: Ratings
    users: int
    cap: int
    forget: float
    random: np.random.Generator

    def __post_init__(self) -> None:
        if not len(self._usable):
            raise ValueError("Nobody has two ratings, of which one could be guessed by the other.")

    @property
    def _usable(self) -> Int64:
        # Of one rating alone nothing is left to attend to.
        return np.flatnonzero(self._lengths > 1)

    @property
    def _lengths(self) -> Int64:
        _, starts = self.ratings.by_user
        return np.diff(starts)

    @property
    def in_epoch(self) -> int:
        """Batches until every user was there."""
        return math.ceil(len(self._usable) / self.users)

    def drawn(self, count: int) -> Iterator[Batch]:
        """So many batches; users of histories about as long as each other are together."""
        users, lengths = self._usable, np.minimum(self._lengths, self.cap)
        while True:
            about = lengths[users] * np.exp(self.random.normal(0, UNEVEN, len(users)))
            parts = np.array_split(users[np.argsort(about)], self.in_epoch)
            for at in self.random.permutation(len(parts)).tolist():
                if count == 0:
                    return
                count -= 1
                yield self.of(parts[at])

    def of(self, users: Int64) -> Batch:
        """The batch of some users."""
        drawn = [self._drawn(self.ratings.of(user)) for user in users.tolist()]
        targets, asked = _padded([each for each, _ in drawn])
        history, there = _padded([each for _, each in drawn])
        given, values = self.ratings.items, self.ratings.values.astype(np.float32)
        both = np.concatenate([given[targets].ravel(), given[history].ravel()])
        items, places = np.unique(both, return_inverse=True)
        of_targets = places[: targets.size].reshape(targets.shape)
        of_history = places[targets.size :].reshape(history.shape)
        same = of_targets[:, :, None] == of_history[:, None, :]
        return Batch(
            items=items,
            targets=of_targets,
            truth=values[targets],
            asked=asked,
            history=of_history,
            values=values[history],
            there=there,
            out=same | ~there[:, None, :],
        )

    def _drawn(self, places: Int64) -> tuple[Int64, Int64]:
        """Of one user's ratings those to guess, and those that are known meanwhile."""
        targets = self._capped(places)
        kept = places[self.random.random(len(places)) >= self.forget * self.random.random()]
        return targets, self._capped(kept if len(kept) else places)

    def _capped(self, places: Int64) -> Int64:
        if len(places) <= self.cap:
            return places
        return self.random.choice(places, self.cap, replace=False)


def _padded(places: list[Int64]) -> tuple[Int64, Bool]:
    """(b, longest) with zeros after each, and which are there."""
    counts = np.array([len(each) for each in places])
    there = np.arange(counts.max()) < counts[:, None]
    padded = np.zeros(there.shape, dtype=np.int64)
    padded[there] = np.concatenate(places)
    return padded, there
