"""Documents of a segment with their keys, in blocks that a scan reads one after the other."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attend.keys.candidates import Candidates
from attend.keys.segment import Segment
from attend.types import Int64

BLOCK_KEYS = 8192
"""Keys in one block of a scan: 12 MB at 384 dimensions, which the cache hierarchy likes."""

FEW = 8
"""Rows that are fewer than one document in so many are looked up, not marked among all."""


def chosen(segment: Segment, rows: Int64 | None) -> Int64:
    """Ordinals of the living documents of `rows`, ascending."""
    if rows is not None and len(rows) * FEW < len(segment.rows):
        found = segment.find(rows)
        return found[segment.alive[found]]
    allowed = segment.allowed(rows)
    return np.arange(len(segment.rows)) if allowed is None else np.flatnonzero(allowed)


def in_blocks(segment: Segment, ordinals: Int64) -> Iterator[Candidates]:
    """Documents (ordinals, ascending) with their keys, in blocks of about `BLOCK_KEYS` keys."""
    if not len(ordinals):
        return iter(())
    ends = _ends(segment, ordinals)
    if ends[-1] <= BLOCK_KEYS:
        return iter((gather(segment, ordinals),))
    # A document is never cut: the block ends before the one that would pass the size.
    passing = np.searchsorted(ends, np.arange(BLOCK_KEYS, ends[-1] + 1, BLOCK_KEYS))
    parts = np.split(ordinals, np.unique(passing[passing > 0]))
    return (gather(segment, part) for part in parts)


def _ends(segment: Segment, ordinals: Int64) -> Int64:
    """(D',) how many keys some documents have, up to each of them."""
    if _is_run(ordinals):
        first, last = ordinals[0], ordinals[-1] + 1
        ends: Int64 = segment.starts[first + 1 : last + 1] - segment.starts[first]
        return ends
    return np.cumsum(segment.starts[ordinals + 1] - segment.starts[ordinals])


def _is_run(ordinals: Int64) -> bool:
    """Whether ascending ordinals leave none out."""
    return bool(len(ordinals)) and bool(ordinals[-1] - ordinals[0] + 1 == len(ordinals))


def gather(segment: Segment, ordinals: Int64) -> Candidates:
    """Documents (ordinals, ascending) with their keys."""
    vectors, starts = segment.vectors.all(), segment.starts
    # A run of neighbours is a view; a scan over everything then copies nothing.
    if _is_run(ordinals):
        first, last = int(ordinals[0]), int(ordinals[-1]) + 1
        run = slice(int(starts[first]), int(starts[last]))
        begins = starts[first:last] - run.start
        return Candidates(segment.rows[first:last], begins, vectors[run], segment.key_ids[run])
    positions, begins = segment.positions(ordinals)
    return Candidates(
        segment.rows[ordinals], begins, vectors[positions], segment.key_ids[positions]
    )
