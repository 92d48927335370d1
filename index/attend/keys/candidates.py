"""Documents that were found, with all of their keys: put together, and taken apart again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from attend.types import Float32, Int64


class Candidates(NamedTuple):
    """Whole documents with all of their keys."""

    documents: Int64  # (n,) rows
    starts: Int64  # (n,) first key of each document
    keys: Float32  # (m, d)
    key_ids: Int64  # (m,)


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


def at_places(found: Candidates, places: Int64) -> Candidates:
    """Some of the documents that were found, in the order of their places."""
    return _part(found, places, np.diff(found.starts, append=len(found.keys)))


def divided(found: Candidates, parts: Sequence[Int64]) -> Iterator[Candidates]:
    """Of documents that were looked up together, those of each part, in the same order.

    Args:
        parts: rows, ascending; what is not among those found is passed over.
    """
    order = np.argsort(found.documents, kind="stable")
    ascending = found.documents[order]
    counts = np.diff(found.starts, append=len(found.keys))
    return (_part(found, _places(ascending, order, rows), counts) for rows in parts)


def _places(ascending: Int64, order: Int64, rows: Int64) -> Int64:
    """Where rows stand, `order` being where the ascending ones do."""
    at = np.searchsorted(ascending, rows)
    at = at[at < len(ascending)]
    if len(at) < len(rows) or (ascending[at] != rows).any():
        at = np.flatnonzero(np.isin(ascending, rows))
    return np.sort(order[at])


def _part(found: Candidates, places: Int64, counts: Int64) -> Candidates:
    if len(found.documents) == len(found.keys):
        positions, starts = places, np.arange(len(places))
    else:
        own = counts[places]
        starts = np.cumsum(own) - own
        positions = np.repeat(found.starts[places] - starts, own) + np.arange(own.sum())
    return Candidates(
        found.documents[places], starts, found.keys[positions], found.key_ids[positions]
    )
