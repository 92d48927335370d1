"""Segments: documents with an index of their keys, which removals mask.

Inside a segment a key is a position and a document a place; the rows and ids that the rest of the
package speaks of stand beside them in a table. A document's keys lie side by side.

The delta is the segment of fresh keys, in buffers that grow at their end. A write adds its own
keys and copies none of the others. Each state of the delta sees the first documents and keys of
the buffers, so that the readers of an older state are undisturbed. Documents stand in the order
in which they came; one that came again stands there twice, and its earlier keys are removed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from attend.core.arrays import KeyTable
from attend.core.types import Bool, Int64
from attend.keys.vectors import FlatVectors

Array = TypeVar("Array", bound=NDArray[Any])

BLOCK_KEYS = 8192
"""Keys in one block of a scan: 12 MB at 384 dimensions, which the cache hierarchy likes."""

FEW = 8
"""Rows that are fewer than one document in eight are looked up, not marked among all."""

COMPACTED = 1024
"""Removed keys from which on the buffers are written again, where they outnumber the others."""


@dataclass(frozen=True, eq=False)
class Segment:
    """Documents with their keys, in the order (document row, key id), and an index of the keys.

    Attributes:
        table: the documents with their keys, removed ones too.
        vectors: the index of the table's keys.
        alive: (n,) false where a document has been deleted or has newer keys elsewhere. A byte
            for each, which a removal copies: a million cost it a twentieth of a millisecond.
        removed, removed_keys: the number of these documents, and of their keys.
    """

    table: KeyTable
    vectors: FlatVectors
    alive: Bool = field(repr=False)
    removed: int = 0
    removed_keys: int = 0

    @classmethod
    def of(cls, vectors: FlatVectors, key_ids: Int64, documents: Int64) -> Segment:
        """Make a segment from the document row of each key, (m,) ascending."""
        table = KeyTable.of_keys(vectors.vectors, key_ids, documents)
        return Segment(table, vectors, np.ones(len(table), dtype=bool))

    @cached_property
    def rows(self) -> Int64:
        """(n,) the documents' rows, removed ones too."""
        return self.table.rows

    @cached_property
    def keys(self) -> int:
        """The number of keys, of removed documents too."""
        return len(self.table.ids)

    @property
    def living(self) -> int:
        """The number of documents that are not removed."""
        return len(self.table) - self.removed

    @property
    def living_keys(self) -> int:
        """The number of keys of these documents."""
        return self.keys - self.removed_keys

    def released(self, removed: Int64, rows: Int64) -> tuple[Self, KeyTable]:
        """Let go of the documents that lost one of the keys `removed`, or are among `rows`.

        Returns: the segment without these documents, and what is left of their keys.
        """
        touched = np.union1d(self.find(rows), self.owners(removed))
        touched = touched[self.alive[touched]]
        lost = self.table.some(touched)
        if not len(touched):
            return self, lost
        stays = np.isin(lost.ids, removed, invert=True)
        left = KeyTable.of_keys(lost.vectors[stays], lost.ids[stays], lost.documents[stays])
        alive = self.alive.copy()
        alive[touched] = False
        segment = replace(
            self,
            alive=alive,
            removed=self.removed + len(touched),
            removed_keys=self.removed_keys + len(lost.ids),
        )
        return segment, left

    def find(self, rows: Int64) -> Int64:
        """Return the places of those of the rows that are here, removed or not."""
        return self.table.places(rows)

    def owners(self, ids: Int64) -> Int64:
        """Return the places of the documents of those of the keys that are here."""
        return self.table.owners(ids)

    def allowed(self, rows: Int64 | None) -> Bool | None:
        """Return which documents (n,) are alive and among `rows`; None where all are."""
        if rows is None:
            return self.alive if self.removed else None
        return self.alive & np.isin(self.rows, rows)

    def allowed_keys(self, allowed: Bool | None) -> Bool | None:
        """Return which keys (m,) are of documents (n,) that are allowed; None for all."""
        if allowed is None or self.table.single:
            return allowed
        return allowed[self.table.ordinals]

    def places(self, rows: Int64 | None) -> Int64:
        """Return the places (ascending) of the living documents of `rows`; of all if None."""
        if rows is not None and len(rows) * FEW < len(self.rows):
            places = self.find(rows)
            return places[self.alive[places]]
        allowed = self.allowed(rows)
        return np.arange(len(self.rows)) if allowed is None else np.flatnonzero(allowed)

    def blocks(self, places: Int64) -> Iterator[KeyTable]:
        """Return documents (ascending places) in blocks of about `BLOCK_KEYS` keys."""
        if len(places) == len(self.rows) and self.keys <= BLOCK_KEYS:
            return iter((self.table,))
        return self.table.blocks(BLOCK_KEYS, places)


class Buffers:
    """Documents with their keys, as they came, shared by all states of one delta.

    Attributes:
        documents, keys: their numbers in the newest state.
    """

    def __init__(self, width: int) -> None:
        self.documents = self.keys = 0
        self._rows = np.empty(0, dtype=np.int64)
        self._starts = np.zeros(1, dtype=np.int64)
        self._vectors = np.empty((0, width), dtype=np.float32)
        self._ids = np.empty(0, dtype=np.int64)
        self._place_of: dict[int, int] = {}  # row -> its newest place
        self._owner_of: dict[int, int] = {}  # key id -> the newest place that has it

    def append(self, added: KeyTable) -> KeyTable:
        """Write documents to the end, and return all there are."""
        first, keys = self.documents, self.keys
        documents, upto = first + len(added), keys + len(added.ids)
        self._rows = _written(self._rows, first, added.rows)
        self._starts = _written(self._starts, first + 1, added.starts[1:] + keys)
        self._vectors = _written(self._vectors, keys, added.vectors)
        self._ids = _written(self._ids, keys, added.ids)
        self._place_of.update(zip(added.rows.tolist(), range(first, documents), strict=True))
        owners = (first + added.ordinals).tolist()
        self._owner_of.update(zip(added.ids.tolist(), owners, strict=True))
        self.documents, self.keys = documents, upto
        starts = self._starts[: documents + 1]
        return KeyTable(self._rows[:documents], starts, self._vectors[:upto], self._ids[:upto])

    def find(self, rows: Int64, documents: int) -> Int64:
        """Return the newest places of rows among the first documents."""
        places = []
        for row in rows.tolist():
            place = self._place_of.get(row)
            if place is not None and place < documents:
                places.append(place)
            elif place is not None:  # it came again since the reader's state
                places += np.flatnonzero(self._rows[:documents] == row)[-1:].tolist()
        return np.array(sorted(places), dtype=np.int64)

    def owners(self, ids: Int64) -> Int64:
        """Return the places of the documents that have keys, in the newest state."""
        places = {self._owner_of.get(id, -1) for id in ids.tolist()} - {-1}
        return np.array(sorted(places), dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Delta(Segment):
    """A state of the delta; only the newest one is extended without a copy."""

    buffers: Buffers = field(kw_only=True, repr=False)

    @classmethod
    def empty(cls, width: int) -> Delta:
        """Make a delta without keys of this width."""
        none = np.empty(0, dtype=np.int64)
        table = KeyTable.of_keys(np.empty((0, width), dtype=np.float32), none, none)
        return cls(table, FlatVectors(table.vectors), none.astype(bool), buffers=Buffers(width))

    @classmethod
    def holding(cls, table: KeyTable) -> Delta:
        """Make a delta of documents with their keys."""
        return cls.empty(table.vectors.shape[1]).extended(table)

    def newest(self) -> Delta:
        """Return this state, or a copy where it was extended already or is mostly removed."""
        superseded = self.buffers.documents > len(self.table)
        if superseded or self.removed_keys > max(COMPACTED, self.living_keys):
            return Delta.holding(self.table.some(np.flatnonzero(self.alive)))
        return self

    def extended(self, added: KeyTable) -> Delta:
        """Return the newest state with more documents, none of which is alive in it."""
        if not len(added):
            return self
        alive = np.append(self.alive, np.ones(len(added), dtype=bool))
        table = self.buffers.append(added)
        return replace(self, table=table, vectors=FlatVectors(table.vectors), alive=alive)

    def find(self, rows: Int64) -> Int64:
        return self.buffers.find(rows, len(self.table))

    def owners(self, ids: Int64) -> Int64:
        return self.buffers.owners(ids)


def _written(array: Array, used: int, added: Array) -> Array:
    """Write rows behind those used: in place, or in an array of twice the size if it is full.

    An array that was too small stays as it is, for whoever reads it.
    """
    needed = used + len(added)
    if needed > len(array):
        larger = np.empty((max(needed, 2 * len(array)), *array.shape[1:]), dtype=array.dtype)
        larger[:used] = array[:used]
        array = larger  # type: ignore[assignment]
    array[used:needed] = added
    return array
