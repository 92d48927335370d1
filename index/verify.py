"""Verification: the database is sound, and the index says what it says."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from index.collection import Collection
from index.errors import Conflict, Damaged
from index.keys import Snapshot
from index.types import Int64

TOLERANCE = 1e-6


@dataclass(frozen=True)
class Verified:
    """What was found wrong, as sentences."""

    problems: list[str]
    keys: int
    mended: bool


def verify(collection: Collection, *, mend: bool = False) -> Verified:
    """Compare every key of the index with the database.

    Args:
        mend: where they disagree, build the index again from the database.

    Raises:
        Damaged: the database itself fails SQLite's integrity check; no index can mend that.
    """
    damage = collection.store.integrity()
    if damage:
        raise Damaged(f"{collection.store.path} is damaged ({damage[0]}). Restore it from a copy.")
    problems = _problems(collection)
    if problems and mend:
        collection.views.discard()
        collection.publish()
        return Verified(problems, collection.store.counts()[1], mended=not _problems(collection))
    return Verified(problems, collection.store.counts()[1], mended=False)


def _problems(collection: Collection) -> list[str]:
    try:
        view = collection.views.current()
    except (Conflict, Damaged) as error:
        return [str(error)]
    held = _living(view.keys)
    stored = 0
    problems = []
    with collection.store.all_keys(examples=view.made.examples) as (_, batches):
        for batch in batches:
            stored += len(batch.ids)
            missing = [id for id in batch.ids.tolist() if id not in held]
            if missing:
                problems.append(
                    f"{len(missing)} keys are not in the index, key {missing[0]} first."
                )
                continue
            expected = view.made.keys(batch).vectors
            found = np.stack([held[id] for id in batch.ids.tolist()])
            wrong = batch.ids[np.abs(expected - found).max(axis=1) > TOLERANCE]
            problems += _wrong(wrong)
    if stored < len(held):
        problems.append(f"The index holds {len(held)} living keys, but the database {stored}.")
    return problems


def _wrong(keys: Int64) -> list[str]:
    if not len(keys):
        return []
    return [f"{len(keys)} keys have other vectors in the index, key {keys[0]} first."]


def _living(snapshot: Snapshot) -> dict[int, np.ndarray[tuple[int], np.dtype[np.float32]]]:
    """Each living key's vector by its id."""
    return {
        int(id): vector
        for block in snapshot.blocks(None)
        for id, vector in zip(block.key_ids, block.keys, strict=True)
    }
