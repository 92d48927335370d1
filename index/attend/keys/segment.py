"""A segment: an immutable run of documents with their keys, and an index of these.

Inside a segment a key is a position and a document a place; the rows and ids that the rest of the
package speaks of stand beside them in a table. A document's keys lie side by side.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

import numpy as np

from attend.key_table import KeyTable
from attend.keys.vectors import Vectors
from attend.types import Bool, Int64

BLOCK_KEYS = 8192
"""Keys in one block of a scan: 12 MB at 384 dimensions, which the cache hierarchy likes."""

FEW = 8
"""Rows that are fewer than one document in eight are looked up, not marked among all."""

NEVER = np.iinfo(np.int32).max


class Removals:
    """The moments at which documents were removed, shared by all states of a segment.

    A state sees the removals up to its own moment, so that a new removal costs no copy and
    disturbs no reader of an older state.
    """

    def __init__(self, documents: int) -> None:
        self._moments = np.full(documents, NEVER, dtype=np.int32)
        self.last = 0

    def alive(self, documents: int, moment: int) -> Bool:
        """Return which of the first documents (n,) were not removed up to a moment."""
        alive: Bool = self._moments[:documents] > moment
        return alive

    def living(self, places: Int64, moment: int) -> Int64:
        """Return those of the places that were not removed up to a moment."""
        return places[self._moments[places] > moment]

    def remove(self, places: Int64) -> None:
        """Remove documents at the next moment."""
        self._moments[places] = self.last + 1
        self.last += 1

    def up_to(self, moment: int) -> Removals:
        """Return the removals up to a moment, for a state of its own."""
        removals = Removals(len(self._moments))
        removals.last = moment
        earlier = self._moments <= moment
        removals._moments[earlier] = self._moments[earlier]
        return removals

    def reserve(self, documents: int) -> None:
        """Make room for so many documents."""
        if documents > len(self._moments):
            more = np.full(max(documents, 2 * len(self._moments)), NEVER, dtype=np.int32)
            more[: len(self._moments)] = self._moments
            self._moments = more


@dataclass(frozen=True, eq=False)
class Segment:
    """Documents with their keys, in the order (document row, key id), and an index of the keys.

    Attributes:
        table: the documents with their keys, removed ones too.
        vectors: the index of the table's keys.
        removals, moment: which of the documents are removed.
        removed, removed_keys: the number of these documents, and of their keys.
    """

    table: KeyTable
    vectors: Vectors
    removals: Removals = field(repr=False)
    moment: int = 0
    removed: int = 0
    removed_keys: int = 0

    @classmethod
    def of(cls, vectors: Vectors, key_ids: Int64, documents: Int64) -> Segment:
        """Make a segment from the document row of each key, (m,) ascending."""
        table = KeyTable.of_keys(vectors.all(), key_ids, documents)
        return Segment(table, vectors, Removals(len(table)))

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

    @cached_property
    def alive(self) -> Bool:
        """(n,) false where the document has been deleted or has newer keys elsewhere."""
        return self.removals.alive(len(self.table), self.moment)

    def released(self, removed: Int64, rows: Int64) -> tuple[Self, KeyTable]:
        """Let go of the documents that lost one of the keys `removed`, or are among `rows`.

        Costs as much as the change, whatever the size of the segment.

        Returns: the segment without these documents, and what is left of their keys.
        """
        touched = np.union1d(self.find(rows), self.owners(removed))
        touched = self.removals.living(touched, self.moment)
        if not len(touched):
            return self, self.table.some(touched)
        lost = self.table.some(touched)
        stays = np.isin(lost.ids, removed, invert=True)
        left = KeyTable.of_keys(lost.vectors[stays], lost.ids[stays], lost.documents[stays])
        shared = self.removals.last == self.moment
        removals = self.removals if shared else self.removals.up_to(self.moment)
        removals.remove(touched)
        segment = replace(
            self,
            removals=removals,
            moment=removals.last,
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

    def living_table(self) -> KeyTable:
        """Return the living documents with their keys."""
        return self.table.some(np.flatnonzero(self.alive))

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
            return self.removals.living(self.find(rows), self.moment)
        allowed = self.allowed(rows)
        return np.arange(len(self.rows)) if allowed is None else np.flatnonzero(allowed)

    def blocks(self, places: Int64) -> Iterator[KeyTable]:
        """Return documents (ascending places) in blocks of about `BLOCK_KEYS` keys."""
        if len(places) == len(self.rows) and self.keys <= BLOCK_KEYS:
            return iter((self.table,))
        return self.table.blocks(BLOCK_KEYS, places)


def largest_block(most_keys: int) -> int:
    """Return how many keys a block has at most, where no document has more than `most_keys`."""
    return BLOCK_KEYS + most_keys
