"""A cache of the embeddings of queries, up to a number of bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attend.types import Float16, Float32

if TYPE_CHECKING:
    from attend.encoder.model import Encoder
    from attend.encoder.passages import Passage
    from attend.encoder.tokens import TokenStates

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


class CachedEncoder:
    """An encoder that remembers queries.

    Documents pass it by: one that is unchanged is not encoded again anyway, and a build would
    drive every query out.
    """

    def __init__(self, encoder: Encoder, cache: EmbeddingCache) -> None:
        self._encoder = encoder
        self._cache = cache

    @property
    def name(self) -> str:
        return self._encoder.name

    @property
    def dimension(self) -> int:
        return self._encoder.dimension

    def encode_documents(self, texts: Sequence[str]) -> Float32:
        return self._encoder.encode_documents(texts)

    def encode_queries(self, texts: Sequence[str]) -> Float32:
        """Return rows (n, dimension); the encoder makes those that the cache lacks."""
        keys = [Key(self.name, "query", text) for text in texts]
        cached = self._cache.get(keys)
        missing = [place for place, row in enumerate(cached) if row is None]
        if missing:
            encoded = self._encoder.encode_queries([texts[place] for place in missing])
            for place, row in zip(missing, encoded, strict=True):
                cached[place] = row
                self._cache.put(keys[place], row)
        rows = np.empty((len(texts), self.dimension), dtype=np.float32)
        for place, row in enumerate(cached):
            rows[place] = row
        return rows

    def passages(self, texts: Sequence[str], overlap: int | None = None) -> list[list[Passage]]:
        return self._encoder.passages(texts, overlap)

    def token_states(self, texts: Sequence[str], task: str) -> list[TokenStates]:
        return self._encoder.token_states(texts, task)

    def unit_tokens(self, texts: Sequence[str], task: str) -> list[Float16]:
        return self._encoder.unit_tokens(texts, task)


def _size(key: Key, row: Float32 | Float16) -> int:
    # A text of wide characters takes up to four bytes for each.
    return row.nbytes + len(key.text) * (1 if key.text.isascii() else 4) + ENTRY_BYTES
