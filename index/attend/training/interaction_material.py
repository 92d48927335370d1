"""What users met, as arrays to learn from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from attend.collection import Collection
from attend.learn.data import Memory, Sparse
from attend.learn.mixture.histories import histories_of
from attend.store import InteractionSet, compile_filter
from attend.training.gather import MOST_DOCUMENTS, memory_of
from attend.types import Bool, Int64, Json

MOST_USERS = 200_000
"""Of whom is learned; of more, a sample."""


class Material(NamedTuple):
    """What a training learns from.

    Attributes:
        met: sparse (u, n), who met what.
        known: the same of what the active version learned from.
    """

    memory: Memory
    met: Sparse
    known: Sparse
    figures: Mapping[str, Json]


def gathered(collection: Collection, last: int, seed: int) -> Material:
    """Read interactions and keys.

    What a user did not like is no sign of what comes next, and is left out.

    Args:
        last: the last interaction that the active version learned from.
    """
    random = np.random.default_rng(seed)
    with collection.store.reading():  # all of one moment
        stored = collection.store.interactions()
        memory = memory_of(collection, _wanted(collection, stored, random))
        documents = collection.store.counts()[0]
    chosen = stored.liked & _sampled(stored, random)
    at = np.minimum(np.searchsorted(memory.rows, stored.rows), memory.documents - 1)
    chosen &= memory.rows[at] == stored.rows
    shape = len(stored.users), memory.documents

    def met(some: Bool) -> Sparse:
        return histories_of(stored.of[some], at[some], shape)

    figures: dict[str, Json] = {
        "interactions": len(stored.ids),
        "users": len(stored.users),
        "documents": documents,
        "last_interaction": int(stored.ids.max(initial=-1)),
    }
    return Material(memory, met(chosen), met(chosen & (stored.ids <= last)), figures)


def _sampled(stored: InteractionSet, random: np.random.Generator) -> Bool:
    """(i,) the interactions of the users that are learned from."""
    count = len(stored.users)
    kept = np.ones(count, dtype=bool)
    if count > MOST_USERS:
        kept[random.choice(count, count - MOST_USERS, replace=False)] = False
    chosen: Bool = kept[stored.of]
    return chosen


def _wanted(
    collection: Collection, stored: InteractionSet, random: np.random.Generator
) -> Int64 | None:
    """Rows of the documents to learn about: those met most, and a sample; None for all."""
    if collection.store.counts()[0] <= MOST_DOCUMENTS:
        return None
    rows, counts = np.unique(stored.rows, return_counts=True)
    most = rows[np.argsort(-counts, kind="stable")[: MOST_DOCUMENTS // 2]]
    others = np.setdiff1d(collection.store.matching(compile_filter({})), most)
    drawn = random.choice(others, min(len(others), MOST_DOCUMENTS - len(most)), replace=False)
    return np.sort(np.concatenate([most, drawn]))
