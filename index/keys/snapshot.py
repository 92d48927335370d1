"""What one search looks at: segments of keys under one projection, which never change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from index.keys.candidates import Candidates, at_places, joined
from index.keys.choose import FLAT
from index.keys.segment import DenseVectors, Keys, Segment
from index.types import Bool, Float32, Int64, Json

BLOCK_KEYS = 8192
"""Keys in one block of a scan: 12 MB at 384 dimensions, which the cache hierarchy likes."""

OVERFETCH = 1.25
"""Keys fetched for each attended document, times keys a document: most documents are
found by more than one of their keys, so a fetch asks for some more."""

EXTRA = 8
"""Documents found beyond those asked for: what engines round may change places with the last."""

FETCHED = 1_000_000
"""Keys fetched at once for a block of queries: some 50 MB with what sorts them."""

QUERIES = 64
"""Queries searched at once at most: enough to share what they read of the keys."""

SCANNED = 4_000_000
"""Scores held at once where keys are scanned for a block of queries: 16 MB, twice over."""

NONE = -1
"""No row: those of documents begin at 1."""

FEW = 8
"""Rows that are fewer than one document in so many are looked up, not marked among all."""


DRAWN = 32_768
"""Documents that stand for all of them: 50 MB at 384 dimensions."""


@dataclass(frozen=True)
class Drawn:
    """Documents drawn at random, ascending, and of how many.

    Attributes:
        kept: what was found out about them, by what was asked; whoever asks keeps it small.
    """

    some: Candidates
    of: int
    kept: dict[bytes, tuple[float, float]] = field(default_factory=dict, compare=False)


class Near(NamedTuple):
    """Documents near each query, best first, by the scores that the index itself has of them.

    `NONE` fills up where there are too few, with a score of -inf.
    """

    rows: Int64  # (q, k)
    scores: Float32  # (q, k) inner products with the best key, of quantised keys by their bytes


class Proposed(NamedTuple):
    """Documents found for each query, ascending, and the share of the true ones among them."""

    rows: list[Int64]
    recall: float


@dataclass(frozen=True)
class Snapshot:
    """Segments and the state of the database that they mirror.

    Attributes:
        segments: disjoint in living documents; the published one first, then the delta.
        last_key, last_removal: how far of the database is in here.
        generation: number of the published index, 0 where none is published.
        index: which kind it is, and why (`index.keys.choose`).
    """

    segments: tuple[Segment, ...]
    last_key: int
    last_removal: int
    generation: int
    index: Mapping[str, Json] = field(default_factory=lambda: FLAT)
    scans = True
    """Whether all keys may be scored for one search, where that is cheap."""

    @property
    def keys(self) -> int:
        return sum(segment.keys for segment in self.segments)

    @property
    def width(self) -> int:
        """Numbers in a stored key: all heads side by side."""
        # A published index without keys knows only how wide embeddings are.
        filled = [segment for segment in self.segments if segment.keys] or self.segments
        return int(filled[0].vectors.all().shape[1])

    @cached_property
    def largest_block(self) -> int:
        """Keys that a block may have: it ends with a whole document."""
        return BLOCK_KEYS + self.most_keys

    @cached_property
    def most_keys(self) -> int:
        """Of one document."""
        return max(int(np.diff(segment.starts).max(initial=0)) for segment in self.segments)

    @property
    def documents(self) -> int:
        return sum(segment.living for segment in self.segments)

    @cached_property
    def rows(self) -> Int64:
        """Rows of all living documents, ascending."""
        return np.sort(np.concatenate([each.rows[each.alive] for each in self.segments]))

    def search(
        self, queries: Float32, rows: Int64 | None, attend: int, recall: float | None = None
    ) -> Proposed:
        """Rows of at least the `attend` documents whose best key has the largest inner product.

        Ascending, for each query; of equals those of the lower rows. Memory is bounded whatever
        the number of queries.

        Args:
            queries: (q, H, d) in the space of the keys; documents are found for each head.
            rows: documents to choose from, ascending; None for all.
            recall: the share of the true ones that is to be found; None for what the index was
                built for, 1 for all.
        """
        flat = queries.reshape(-1, queries.shape[-1])  # (q, H, d) -> (q * H, d)
        found = [_nearest(segment, flat, rows, attend, recall) for segment in self.segments]
        heads = queries.shape[1]
        merged = [
            _united([row for each in found for row in each.rows[at : at + heads] if len(row)])
            for at in range(0, len(flat), heads)
        ]
        return Proposed(merged, min(each.recall for each in found))

    def near(
        self,
        queries: Float32,
        rows: Int64 | None,
        keys: int,
        recall: float | None = None,
        *,
        roughly: bool = False,
    ) -> Near:
        """The documents of about so many of the nearest keys of each segment.

        Nothing is scored again: this is for queries that together propose what is.

        Args:
            queries: (q, d) in the space of the keys.
            rows, recall: as of `search`.
            roughly: whether as many candidates by their codes will do as are asked for.
        """
        found = [_near(segment, queries, rows, keys, recall, roughly) for segment in self.segments]
        filled = [each for each in found if each.rows.shape[1]] or found[:1]
        if len(filled) == 1:
            return filled[0]
        documents = np.concatenate([each.rows for each in filled], axis=1)
        scores = np.concatenate([each.scores for each in filled], axis=1)
        order = np.argsort(-scores, axis=1, kind="stable")
        ordered = (np.take_along_axis(each, order, axis=1) for each in (documents, scores))
        return Near(*ordered)

    def promises(self, recall: float | None = None) -> float:
        """The share of the true nearest keys that searches find; 1 where they are exact."""
        return min(segment.vectors.promises(recall) for segment in self.segments)

    def blocks(self, rows: Int64 | None) -> Iterator[Candidates]:
        """Every living document of `rows` once, in blocks of about `BLOCK_KEYS` keys."""
        for segment in self.segments:
            yield from _blocks(segment, _chosen(segment, rows))

    def lookup(self, rows: Int64) -> Candidates:
        """The living documents of `rows` with their keys."""
        parts = [
            _gather(segment, found[segment.alive[found]])
            for segment, found in ((segment, segment.find(rows)) for segment in self.segments)
        ]
        return joined(parts)

    def living(self, rows: Int64) -> Int64:
        """Those of the rows whose documents are there."""
        return np.concatenate([each.rows[_chosen(each, rows)] for each in self.segments])

    @cached_property
    def drawn(self) -> Drawn:
        """Some of all living documents, the same for every search."""
        return self.drawn_of(None)

    def drawn_of(self, rows: Int64 | None) -> Drawn:
        """Up to `DRAWN` of the living documents of `rows`, each as likely as any other."""
        chosen = [_chosen(segment, rows) for segment in self.segments]
        ends = np.cumsum([len(each) for each in chosen])
        total = int(ends[-1])
        random = np.random.default_rng(total)
        at = np.sort(random.choice(total, min(total, DRAWN), replace=False, shuffle=False))
        parts = np.split(at, np.searchsorted(at, ends[:-1]))
        begins = np.append(0, ends[:-1]).tolist()
        some = [
            _gather(segment, ordinals[part - begin])
            for segment, ordinals, part, begin in zip(
                self.segments, chosen, parts, begins, strict=True
            )
        ]
        found = joined(some)
        # What changed lies in the delta, whatever its row.
        if (np.diff(found.documents) < 0).any():
            found = at_places(found, np.argsort(found.documents))
        return Drawn(found, total)

    def advanced(self, added: Keys, removed: Int64, last_key: int, last_removal: int) -> Snapshot:
        """The snapshot after a change: documents that lost or gained keys move to the delta.

        A document lies whole in one segment, so that each is scored once and with all its keys.
        """
        released = [segment.released(removed, added.documents) for segment in self.segments]
        base, delta = (segment for segment, _ in released)
        parts = [added, *(left for _, left in released)]
        if any(len(part.ids) for part in parts):
            delta = _sorted([delta.living_keys(), *parts])
        return Snapshot((base, delta), last_key, last_removal, self.generation, self.index)


def _sorted(parts: Sequence[Keys]) -> Segment:
    filled = [part for part in parts if len(part.ids)]
    vectors, ids, documents = (np.concatenate(column) for column in zip(*filled, strict=True))
    order = np.lexsort((ids, documents))
    return Segment.of(DenseVectors(vectors[order]), ids[order], documents[order])


def _united(rows: Sequence[Int64]) -> Int64:
    """Rows that are ascending in each, as one ascending list of different ones."""
    if len(rows) == 1:
        return rows[0]
    return np.unique(np.concatenate(rows or [np.empty(0, dtype=np.int64)]))


def _nearest(
    segment: Segment, queries: Float32, rows: Int64 | None, attend: int, recall: float | None
) -> Proposed:
    """Rows of the best documents of one segment for each of the queries (q, d)."""
    allowed = segment.allowed(rows)
    available = len(segment.rows) if allowed is None else int(np.count_nonzero(allowed))
    wanted = min(attend + EXTRA, available)
    if wanted == 0:
        return Proposed([np.empty(0, dtype=np.int64)] * len(queries), 1.0)
    crowd = segment.keys / len(segment.rows)
    fetch = int(wanted * crowd * OVERFETCH) + 1
    found: list[Int64 | None] = [None] * len(queries)
    promised = segment.vectors.promises(recall)
    if segment.vectors.cheaper(len(queries), fetch, int(available * crowd), crowd):
        found = _fetched(segment, queries, allowed, wanted, fetch, recall)
    # Where a few documents have most of the near keys, fetching more of them ends nowhere.
    short = [at for at, each in enumerate(found) if each is None]
    scanned = _scanned(segment, queries[short], allowed, wanted)
    named = [segment.rows[next(scanned) if each is None else each] for each in found]
    return Proposed(named, 1.0 if len(short) == len(queries) else promised)


def _near(
    segment: Segment,
    queries: Float32,
    rows: Int64 | None,
    keys: int,
    recall: float | None,
    roughly: bool,
) -> Near:
    """Those of one segment, by so many keys or all that it has."""
    allowed = segment.allowed(rows)
    of_keys = None if allowed is None else allowed[segment.ordinals]
    k = min(keys, segment.keys if of_keys is None else int(np.count_nonzero(of_keys)))
    if not k:
        return Near(np.empty((len(queries), 0), np.int64), np.empty((len(queries), 0), np.float32))
    step = max(1, min(QUERIES, FETCHED // k))
    search = segment.vectors.propose if roughly else segment.vectors.search
    found = [
        search(queries[at : at + step], k, of_keys, recall) for at in range(0, len(queries), step)
    ]
    scores, positions = (np.concatenate(each) for each in zip(*found, strict=True))
    near = np.where(positions >= 0, segment.rows[segment.ordinals[positions]], NONE)
    if segment.keys > len(segment.rows):
        near[_repeated(near)] = NONE
    scores[near == NONE] = -np.inf
    return Near(near, scores)


def _repeated(rows: Int64) -> Bool:
    """Where a row stands a second time among those of its query (q, k)."""
    order = np.argsort(rows, axis=1, kind="stable")
    ascending = np.take_along_axis(rows, order, axis=1)
    found = np.zeros(rows.shape, dtype=bool)
    again = ascending[:, 1:] == ascending[:, :-1]
    np.put_along_axis(found, order[:, 1:], again, axis=1)
    return found


def _fetched(
    segment: Segment,
    queries: Float32,
    allowed: Bool | None,
    wanted: int,
    fetch: int,
    recall: float | None,
) -> list[Int64 | None]:
    """Ordinals of the `wanted` best documents by the `fetch` best keys; None for too few."""
    keys = None if allowed is None else allowed[segment.ordinals]
    step = max(1, min(QUERIES, FETCHED // fetch))
    found = []
    for at in range(0, len(queries), step):
        nearest = segment.vectors.search(queries[at : at + step], fetch, keys, recall)
        for scores, positions in zip(*nearest, strict=True):
            met = positions >= 0
            found.append(_first(segment, segment.ordinals[positions[met]], scores, wanted))
    return found


def _first(segment: Segment, ordinals: Int64, scores: Float32, wanted: int) -> Int64 | None:
    """The best distinct ones of the documents of keys by rank; None where more must be known."""
    if segment.keys == len(segment.rows):  # each is distinct already
        places = np.argsort(ordinals)
        documents = ordinals[places]
    else:
        documents, places = np.unique(ordinals, return_index=True)
    if len(documents) < wanted:
        return None
    # The worst key that was fetched may have equals that were not.
    more = len(ordinals) == len(scores) and scores[np.sort(places)[wanted - 1]] == scores[-1]
    return None if more else _best(documents, scores[places], wanted)


def _best(ordinals: Int64, scores: Float32, wanted: int) -> Int64:
    """The `wanted` documents of the largest scores; of equals those that come first.

    Equals are common: one question is an example of all that answers it.
    """
    last = np.partition(scores, -wanted)[-wanted]
    kept: Bool = scores > last
    kept[np.flatnonzero(scores == last)[: wanted - np.count_nonzero(kept)]] = True
    return ordinals[kept]


def _scanned(
    segment: Segment, queries: Float32, allowed: Bool | None, wanted: int
) -> Iterator[Int64]:
    """Ordinals of the `wanted` best documents for each query, by the product with all keys."""
    ordinals = np.arange(len(segment.rows))
    if allowed is not None and np.count_nonzero(allowed) * 2 < len(allowed):
        ordinals = np.flatnonzero(allowed)
    largest = int(np.diff(segment.starts).max())
    step = max(1, min(QUERIES, SCANNED // max(len(ordinals), largest)))
    for at in range(0, len(queries), step):
        part = queries[at : at + step]
        products = [
            _by_document(part @ found.keys.T, found.starts)  # (q, d) @ (d, m) -> (q, documents)
            for found in _blocks(segment, ordinals)
        ]
        best = np.concatenate(products, axis=1)
        if allowed is not None and len(ordinals) == len(allowed):
            best[:, ~allowed] = -np.inf  # a product with a few more is cheaper than a copy
        yield from (_best(ordinals, scores, wanted) for scores in best)


def _by_document(products: Float32, starts: Int64) -> Float32:
    """Each document's best key: (q, m) -> (q, documents)."""
    if len(starts) == products.shape[1]:
        return products
    best: Float32 = np.maximum.reduceat(products, starts, axis=1)
    return best


def _chosen(segment: Segment, rows: Int64 | None) -> Int64:
    """Ordinals of the living documents of `rows`, ascending."""
    if rows is not None and len(rows) * FEW < len(segment.rows):
        found = segment.find(rows)
        return found[segment.alive[found]]
    allowed = segment.allowed(rows)
    return np.arange(len(segment.rows)) if allowed is None else np.flatnonzero(allowed)


def _blocks(segment: Segment, ordinals: Int64) -> Iterator[Candidates]:
    if not len(ordinals):
        return iter(())
    ends = _ends(segment, ordinals)
    if ends[-1] <= BLOCK_KEYS:
        return iter((_gather(segment, ordinals),))
    # A document is never cut: the block ends before the one that would pass the size.
    passing = np.searchsorted(ends, np.arange(BLOCK_KEYS, ends[-1] + 1, BLOCK_KEYS))
    parts = np.split(ordinals, np.unique(passing[passing > 0]))
    return (_gather(segment, part) for part in parts)


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


def _gather(segment: Segment, ordinals: Int64) -> Candidates:
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
