"""A cache of the embeddings of queries, up to a number of bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

from attend.core.types import Float16, Float32

ENTRY_BYTES = 400
"""What Python keeps for an entry besides the numbers and the characters, as measured."""


class Key(NamedTuple):
    """The encoder's name, what the text is to it (its prompt), and the text."""

    encoder: str
    task: str
    text: str


class Usage(NamedTuple):
    """Of a cache since it was made; `entries` and `size` (bytes) as they are now."""

    hits: int
    misses: int
    entries: int
    size: int


class EmbeddingCache:
    """The embeddings used last, for any number of encoders and threads.

    Args:
        limit: bytes that all entries may take together; 0 keeps nothing.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._rows: OrderedDict[Key, Float32 | Float16] = OrderedDict()
        self._size = self._hits = self._misses = 0
        self._lock = threading.Lock()

    def get(self, keys: Sequence[Key]) -> list[Any]:
        """The embedding (d,) of each key, None where it is not kept."""
        with self._lock:
            rows = [self._rows.get(key) for key in keys]
            for key, row in zip(keys, rows, strict=True):
                if row is not None:
                    self._rows.move_to_end(key)
            missed = sum(row is None for row in rows)
            self._misses += missed
            self._hits += len(keys) - missed
        return rows

    def put(self, key: Key, row: Float32 | Float16) -> None:
        """Keep an embedding, and let go of those that were not asked for longest."""
        copy = row.copy()  # a view would keep the whole batch in memory
        copy.flags.writeable = False
        if _size(key, copy) > self.limit:
            return
        with self._lock:
            if key in self._rows:
                return
            self._rows[key] = copy
            self._size += _size(key, copy)
            while self._size > self.limit:
                self._size -= _size(*self._rows.popitem(last=False))

    def usage(self) -> Usage:
        with self._lock:
            return Usage(self._hits, self._misses, len(self._rows), self._size)


def _size(key: Key, row: Float32 | Float16) -> int:
    # A text of wide characters takes up to four bytes for each.
    return row.nbytes + len(key.text) * (1 if key.text.isascii() else 4) + ENTRY_BYTES
