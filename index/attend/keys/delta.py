"""The delta: fresh keys in buffers that grow at their end.

A write adds what it brings and copies nothing that is there. Each state of the delta sees the
first documents and keys of the buffers, so that the readers of an older state are undisturbed.
Documents stand in the order in which they came; one that came again stands there twice, and its
earlier keys are removed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from attend.key_table import KeyTable
from attend.keys.segment import Removals, Segment
from attend.keys.vectors import DenseVectors
from attend.types import Int64

Array = TypeVar("Array", bound=NDArray[Any])

COMPACTED = 1024
"""Removed keys from which on the buffers are written anew, where they outnumber the others."""


class Buffers:
    """Documents with their keys, as they came, shared by all states of one delta.

    Attributes:
        documents, keys: how many there are, of the newest state.
    """

    def __init__(self, width: int) -> None:
        self.documents = self.keys = 0
        self._rows = np.empty(0, dtype=np.int64)
        self._starts = np.zeros(1, dtype=np.int64)
        self._vectors = np.empty((0, width), dtype=np.float32)
        self._ids = np.empty(0, dtype=np.int64)
        self._before = np.empty(0, dtype=np.int64)  # (n,) the place where each row stood, or -1
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
        rows, places = added.rows.tolist(), range(first, documents)
        before = np.array([self._place_of.get(row, -1) for row in rows], dtype=np.int64)
        self._before = _written(self._before, first, before)
        self._place_of.update(zip(rows, places, strict=True))
        owners = (first + added.ordinals).tolist()
        self._owner_of.update(zip(added.ids.tolist(), owners, strict=True))
        self.documents, self.keys = documents, upto
        starts = self._starts[: documents + 1]
        return KeyTable(self._rows[:documents], starts, self._vectors[:upto], self._ids[:upto])

    def find(self, rows: Int64, documents: int) -> Int64:
        """Return the newest places of rows among the first documents."""
        places = []
        for row in rows.tolist():
            place = self._place_of.get(row, -1)
            while place >= documents:
                place = int(self._before[place])
            if place >= 0:
                places.append(place)
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
        """Make a delta without keys of so many numbers."""
        none = np.empty(0, dtype=np.int64)
        table = KeyTable.of_keys(np.empty((0, width), dtype=np.float32), none, none)
        return cls(table, DenseVectors(table.vectors), Removals(0), buffers=Buffers(width))

    @classmethod
    def holding(cls, table: KeyTable) -> Delta:
        """Make a delta of documents with their keys."""
        return cls.empty(table.vectors.shape[1]).extended(table)

    def newest(self) -> Delta:
        """Return this state, or a copy where it was extended already or is mostly removed."""
        superseded = self.buffers.documents > len(self.table)
        if superseded or self.removed_keys > max(COMPACTED, self.living_keys):
            return Delta.holding(self.living_table())
        return self

    def extended(self, added: KeyTable) -> Delta:
        """Return the newest state with more documents, none of which is alive in it."""
        if not len(added):
            return self
        self.removals.reserve(len(self.table) + len(added))
        table = self.buffers.append(added)
        return replace(self, table=table, vectors=DenseVectors(table.vectors))

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
