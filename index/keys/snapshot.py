"""What one search looks at: segments of keys under one projection, which never change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from index.keys.segment import DenseVectors, Keys, Segment
from index.types import Float32, Int64

BLOCK_KEYS = 8192
"""Keys in one block of a scan: 12 MB at 384 dimensions, which the cache hierarchy likes."""

OVERFETCH = 1.25
"""Keys fetched for each attended document, times keys a document: most documents are
found by more than one of their keys, so the first fetch asks for some more."""


class Candidates(NamedTuple):
    """Whole documents with all of their keys, for one query."""

    documents: Int64  # (n,) rows
    starts: Int64  # (n,) first key of each document
    keys: Float32  # (m, d)
    key_ids: Int64  # (m,)


@dataclass(frozen=True)
class Snapshot:
    """Segments and the state of the database that they mirror.

    Attributes:
        segments: disjoint in living documents; the published one first, then the delta.
        last_key, last_removal: how far of the database is in here.
        generation: number of the published index, 0 where none is published.
    """

    segments: tuple[Segment, ...]
    last_key: int
    last_removal: int
    generation: int

    @property
    def keys(self) -> int:
        return sum(segment.keys for segment in self.segments)

    @property
    def width(self) -> int:
        """Numbers in a stored key: all heads side by side."""
        # A published index without keys knows only how wide embeddings are.
        filled = [segment for segment in self.segments if segment.keys] or self.segments
        return int(filled[0].vectors.all().shape[1])

    @property
    def documents(self) -> int:
        return sum(segment.living for segment in self.segments)

    def search(self, queries: Float32, rows: Int64 | None, attend: int) -> list[Candidates]:
        """At least the `attend` documents whose best key has the largest inner product.

        Args:
            queries: (q, H, d) in the space of the keys; documents are found for each head.
            rows: documents to choose from, ascending; None for all.
        """
        found = [self._fetch(segment, queries, rows, attend) for segment in self.segments]
        return [_merge(self.segments, ordinals) for ordinals in zip(*found, strict=True)]

    def blocks(self, rows: Int64 | None) -> Iterator[Candidates]:
        """Every living document of `rows` once, in blocks of about `BLOCK_KEYS` keys."""
        for segment in self.segments:
            allowed = segment.allowed(rows)
            chosen = np.arange(len(segment.rows)) if allowed is None else np.flatnonzero(allowed)
            counts = segment.starts[chosen + 1] - segment.starts[chosen]
            # A document is never cut: the block ends before the one that would pass the size.
            ends = np.cumsum(counts)
            parts = np.split(chosen, np.flatnonzero(np.diff(ends // BLOCK_KEYS)) + 1)
            yield from (_gather(segment, part) for part in parts if len(part))

    def lookup(self, rows: Int64) -> Candidates:
        """The living documents of `rows` with their keys."""
        parts = [
            _gather(segment, found[segment.alive[found]])
            for segment, found in ((segment, segment.find(rows)) for segment in self.segments)
        ]
        return joined(parts)

    def advanced(self, added: Keys, removed: Int64, last_key: int, last_removal: int) -> Snapshot:
        """The snapshot after a change: documents that lost or gained keys move to the delta.

        A document lies whole in one segment, so that each is scored once and with all its keys.
        """
        released = [segment.released(removed, added.documents) for segment in self.segments]
        base, delta = (segment for segment, _ in released)
        parts = [added, *(left for _, left in released)]
        if any(len(part.ids) for part in parts):
            delta = _sorted([delta.living_keys(), *parts])
        return Snapshot((base, delta), last_key, last_removal, self.generation)

    def _fetch(
        self, segment: Segment, queries: Float32, rows: Int64 | None, attend: int
    ) -> list[Int64]:
        """Ordinals of the best documents of one segment for each query."""
        allowed = segment.allowed(rows)
        available = len(segment.rows) if allowed is None else int(np.count_nonzero(allowed))
        wanted = min(attend, available)
        if wanted == 0:
            return [np.empty(0, dtype=np.int64)] * len(queries)
        keys = None if allowed is None else allowed[segment.ordinals]
        per_document = segment.keys / len(segment.rows)
        fetch = min(segment.keys, int(wanted * per_document * OVERFETCH) + 1)
        flat = queries.reshape(-1, queries.shape[-1])  # (q, H, d) -> (q * H, d)
        while True:
            nearest = segment.vectors.search(flat, fetch, keys)
            found = [np.unique(segment.ordinals[hits[hits >= 0]]) for hits in nearest.positions]
            if fetch == segment.keys or min(map(len, found)) >= wanted:
                return _unions(found, queries.shape[1])
            fetch = min(segment.keys, fetch * 2)


def _sorted(parts: Sequence[Keys]) -> Segment:
    filled = [part for part in parts if len(part.ids)]
    vectors, ids, documents = (np.concatenate(column) for column in zip(*filled, strict=True))
    order = np.lexsort((ids, documents))
    return Segment.of(DenseVectors(vectors[order]), ids[order], documents[order])


def _unions(found: Sequence[Int64], heads: int) -> list[Int64]:
    """What any head of a query found."""
    if heads == 1:
        return list(found)
    groups = [found[i : i + heads] for i in range(0, len(found), heads)]
    return [np.unique(np.concatenate(group)) for group in groups]


def _merge(segments: Sequence[Segment], ordinals: Sequence[Int64]) -> Candidates:
    return joined([_gather(*pair) for pair in zip(segments, ordinals, strict=True)])


def _gather(segment: Segment, ordinals: Int64) -> Candidates:
    positions, begins = segment.positions(ordinals)
    vectors = segment.vectors.all()
    # A run of neighbours is a view; a scan over everything then copies nothing.
    whole = len(positions) and positions[-1] - positions[0] + 1 == len(positions)
    keys = vectors[positions[0] : positions[-1] + 1] if whole else vectors[positions]
    return Candidates(segment.rows[ordinals], begins, keys, segment.key_ids[positions])


def joined(parts: Sequence[Candidates]) -> Candidates:
    """Candidates of different documents as one."""
    filled = [part for part in parts if len(part.documents)]
    if len(filled) == 1:
        return filled[0]
    if not filled:
        return parts[0]
    offsets = np.cumsum([0] + [len(part.keys) for part in filled[:-1]])
    return Candidates(
        np.concatenate([part.documents for part in filled]),
        np.concatenate([part.starts + off for part, off in zip(filled, offsets, strict=True)]),
        np.concatenate([part.keys for part in filled]),
        np.concatenate([part.key_ids for part in filled]),
    )
