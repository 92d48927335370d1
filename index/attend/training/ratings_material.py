"""Interactions that have a number, as arrays to learn from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from attend.collection import Collection
from attend.learn.ratings.data import Ratings
from attend.training.request import FEWEST_QUESTIONS
from attend.types import Float32, Int64, Json

MOST_RATINGS = 1_000_000
"""What is learned from; of more, those of some of the users."""

FEWEST_USERS = FEWEST_QUESTIONS


class Material(NamedTuple):
    """What is learned from.

    Attributes:
        rows: (n,) documents that have a rating; embeddings: (n, d), the mean of each one's keys,
            of which `last_key` is the last.
    """

    ratings: Ratings
    rows: Int64
    embeddings: Float32
    last_key: int
    figures: Mapping[str, Json]


def gathered(collection: Collection, seed: int) -> Material:
    """Read the interactions that have a number, and the texts they are about."""
    stored = collection.store.interactions()
    rated = np.flatnonzero(np.isfinite(stored.values))
    users, items = stored.of[rated], stored.rows[rated]
    values = stored.values[rated]
    kept = _most(users, seed)
    keys = collection.store.own_keys(np.unique(items[kept]))
    rows, embeddings = keys.means()
    kept = kept[np.isin(items[kept], rows)]  # a document may have gone meanwhile
    ratings = Ratings(
        users[kept], np.searchsorted(rows, items[kept]), values[kept], len(stored.users), len(rows)
    )
    figures: dict[str, Json] = {
        "interactions": len(stored.rows),
        "ratings": len(rated),
        "users": len(np.unique(users)),
        "documents": len(rows),
    }
    return Material(ratings, rows, embeddings, int(keys.ids.max(initial=0)), figures)


def _most(users: Int64, seed: int) -> Int64:
    """Places of the ratings to learn from: all, or those of some users."""
    if len(users) <= MOST_RATINGS:
        return np.arange(len(users))
    names, counts = np.unique(users, return_counts=True)
    order = np.random.default_rng(seed).permutation(len(names))
    some = names[order[np.cumsum(counts[order]) <= MOST_RATINGS]]
    return np.flatnonzero(np.isin(users, some))


def nothing_in(ratings: Ratings) -> str | None:
    """Why nothing can be learned, if so."""
    if ratings.several < FEWEST_USERS:
        return (
            f"{ratings.several} users have given two documents or more a number, and "
            f"{FEWEST_USERS} are the fewest from which a gain can be proved; store more "
            f"interactions with a value."
        )
    if ratings.values.min() == ratings.values.max():
        return "All ratings are the same, and nothing is to be predicted."
    return None
