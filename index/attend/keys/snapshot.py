"""The keys that one search looks at: segments under one projection, which never change.

The documents of a segment whose best keys are nearest are found by its index, or by a scan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np

from attend.attention import dot
from attend.core.arrays import KeyTable, kth_largest
from attend.core.types import Bool, Float32, Float64, Int64, Json
from attend.keys import Proposals
from attend.keys.files import Manifest
from attend.keys.segment import BLOCK_KEYS, Delta, Segment
from attend.keys.vectors import FLAT

OVERFETCH = 1.25
"""Keys fetched for each attended document, times keys per document: most documents are
found by more than one of their keys, so a fetch asks for some more."""

EXTRA = 8
"""Documents found beyond those requested: what engines round may change places with the last."""

FETCHED = 1_000_000
"""Keys fetched at once for a block of queries: some 50 MB with what sorts them."""

QUERIES = 64
"""Queries searched at once at most: enough to share what they read of the keys."""

SCANNED = 4_000_000
"""Scores held at once where keys are scanned for a block of queries: 16 MB, twice over."""


def nearest(
    segment: Segment, queries: Float32, rows: Int64 | None, attend: int, recall: float | None
) -> Proposals:
    """Return the best documents of one segment for each of the queries (q, d)."""
    allowed = segment.allowed(rows)
    available = len(segment.rows) if allowed is None else int(np.count_nonzero(allowed))
    count = min(attend + EXTRA, available)
    if count == 0:
        return Proposals([np.empty(0, dtype=np.int64)] * len(queries), 1.0)
    crowd = segment.keys / len(segment.rows)
    fetch = int(count * crowd * OVERFETCH) + 1
    results: list[Int64 | None] = [None] * len(queries)
    if segment.vectors.cheaper(len(queries), fetch, int(available * crowd), crowd):
        results = _fetched(segment, queries, allowed, count, fetch, recall)
    # Where a few documents have most of the near keys, fetching more of them ends nowhere.
    short = [place for place, result in enumerate(results) if result is None]
    scanned = _scanned(segment, queries[short], allowed, count) if short else []
    for place, best in zip(short, scanned, strict=True):
        results[place] = best
    best_rows = [result for result in results if result is not None]
    exact = len(short) == len(queries)
    return Proposals(best_rows, 1.0 if exact else segment.vectors.promises(recall))


def _fetched(
    segment: Segment,
    queries: Float32,
    allowed: Bool | None,
    count: int,
    fetch: int,
    recall: float | None,
) -> list[Int64 | None]:
    """Return the `count` best documents by the `fetch` best keys; None for too few."""
    keys = segment.allowed_keys(allowed)
    step = max(1, min(QUERIES, FETCHED // fetch))
    results = []
    for start in range(0, len(queries), step):
        nearest = segment.vectors.search(queries[start : start + step], fetch, keys, recall)
        for scores, positions in zip(*nearest, strict=True):
            ordinals = segment.table.ordinals[positions[positions >= 0]]
            results.append(_first(segment, ordinals, scores, count))
    return results


def _first(segment: Segment, ordinals: Int64, scores: Float32, count: int) -> Int64 | None:
    """Return the best documents of keys by rank; None where more keys must be fetched."""
    if segment.keys == len(segment.rows):  # each is distinct already
        places = np.argsort(ordinals)
        documents = ordinals[places]
    else:
        documents, places = np.unique(ordinals, return_index=True)
    if len(documents) < count:
        return None
    # The worst key that was fetched may have equals that were not.
    more = len(ordinals) == len(scores) and scores[np.sort(places)[count - 1]] == scores[-1]
    return None if more else _best(segment.rows[documents], scores[places], count)


def _best(rows: Int64, scores: Float32, count: int) -> Int64:
    """Return the `count` documents of the largest scores; of equals those of the lowest rows.

    Equals are common: one question is an example of all that answers it.
    """
    if np.isnan(scores.max(initial=-np.inf)):  # proposed, so that it is refused by who scores it
        scores = np.where(np.isnan(scores), np.float32(np.inf), scores)
    last = kth_largest(scores, count)
    selected: Bool = scores > last
    equal = np.flatnonzero(scores == last)
    room = count - np.count_nonzero(selected)
    if room < len(equal):
        equal = equal[np.argsort(rows[equal], kind="stable")[:room]]
    selected[equal] = True
    return rows[selected]


def _scanned(segment: Segment, queries: Float32, allowed: Bool | None, count: int) -> list[Int64]:
    """Return the `count` best documents for each query, by the product with all keys."""
    ordinals = np.arange(len(segment.rows))
    if allowed is not None and np.count_nonzero(allowed) * 2 < len(allowed):
        ordinals = np.flatnonzero(allowed)
    step = max(1, min(QUERIES, SCANNED // max(len(ordinals), segment.table.most_keys)))
    results: list[Int64] = []
    for start in range(0, len(queries), step):
        part = queries[start : start + step]
        # (q, d) and (m, d) -> (q, m) -> (q, documents)
        with np.errstate(over="ignore", invalid="ignore"):  # who scores these refuses them
            products = [
                block.best(dot(part[:, None], block.vectors[:, None])[:, 0])
                for block in segment.blocks(ordinals)
            ]
        best = products[0] if len(products) == 1 else np.concatenate(products, axis=1)
        if allowed is not None and len(ordinals) == len(allowed):
            best[:, ~allowed] = -np.inf  # a product with a few more is cheaper than a copy
        results += map(partial(_best, segment.rows[ordinals], count=count), best)
    return results


@dataclass(eq=False)
class Image:
    """A published index as it was opened, shared by all snapshots over it.

    Attributes:
        manifest: None where nothing was published.
        is_checked: false where large files were only mapped, and not read.
        damage: what is wrong with it, once something was found.
    """

    manifest: Manifest | None = None
    is_checked: bool = True
    damage: str | None = None


@dataclass(frozen=True)
class Snapshot:
    """Segments and the state of the database that they mirror.

    Attributes:
        published, delta: disjoint in living documents.
        last_key, last_removal: the last changes of the database that are in here.
        generation: number of the published index, 0 where nothing is published.
        index: which kind it is, and why (`attend.keys.vectors`).
        longest: no key is longer, as far as they are what was written.
        image: of the published segment.
    """

    published: Segment
    delta: Delta
    last_key: int
    last_removal: int
    generation: int
    index: Mapping[str, Json] = field(default_factory=lambda: FLAT)
    longest: float = 0.0
    image: Image = field(default_factory=Image)
    scans = True
    """True where all keys may be scored for one search, where that is cheap."""

    @classmethod
    def empty(cls, width: int) -> Snapshot:
        """Return a snapshot without keys."""
        return cls(Delta.empty(width), Delta.empty(width), 0, 0, 0)

    @property
    def segments(self) -> tuple[Segment, Segment]:
        """The published segment and the delta."""
        return self.published, self.delta

    @cached_property
    def keys(self) -> int:
        return sum(segment.keys for segment in self.segments)

    @property
    def indexed(self) -> int:
        """Keys in the published index."""
        return self.published.keys

    @property
    def fresh(self) -> int:
        """Keys in the delta: written since the index was published."""
        return self.delta.living_keys

    @property
    def width(self) -> int:
        """Numbers in a stored key: all heads side by side."""
        # A published index without keys knows only how wide embeddings are.
        filled = [segment for segment in self.segments if segment.keys] or self.segments
        return int(filled[0].vectors.vectors.shape[1])

    @cached_property
    def most_keys(self) -> int:
        """The most keys that one document has."""
        return max(segment.table.most_keys for segment in self.segments)

    @cached_property
    def _filled(self) -> Sequence[Segment]:
        """The segments with documents; at least one. A search reads the keys of each."""
        return [segment for segment in self.segments if len(segment.rows)] or self.segments[:1]

    @cached_property
    def documents(self) -> int:
        return sum(segment.living for segment in self.segments)

    @cached_property
    def rows(self) -> Int64:
        """Rows of all living documents, ascending."""
        return np.sort(np.concatenate([segment.rows[segment.alive] for segment in self.segments]))

    def search(
        self, queries: Float32, rows: Int64 | None, attend: int, recall: float | None = None
    ) -> Proposals:
        """Return at least the `attend` documents whose best key has the largest inner product.

        Ascending, for each query; of equals those of the lower rows. Memory is bounded whatever
        the number of queries.

        Args:
            queries: (q, H, d) in the space of the keys; documents are found for each head.
            rows: documents to choose from, ascending; None for all.
            recall: the share of the true nearest that the proposals must have; None for the
                share that the index was built for, 1 for all.
        """
        flat = queries.reshape(-1, queries.shape[-1])  # (q, H, d) -> (q * H, d)
        search_segment = partial(nearest, queries=flat, rows=rows, attend=attend, recall=recall)
        proposals = list(map(search_segment, self._filled))
        heads = queries.shape[1]
        if len(proposals) == 1 and heads == 1:
            return proposals[0]
        merged = []
        for start in range(0, len(flat), heads):
            parts = [part for p in proposals for part in p.rows[start : start + heads]]
            merged.append(np.unique(np.concatenate(parts)))
        return Proposals(merged, min(proposal.recall for proposal in proposals))

    def promises(self, recall: float | None = None) -> float:
        """Return the share of the true nearest keys that searches find; 1 where they are exact."""
        return min(segment.vectors.promises(recall) for segment in self.segments)

    def blocks(self, rows: Int64 | None) -> Iterator[KeyTable]:
        """Yield every living document of `rows` once, in blocks of about `BLOCK_KEYS` keys."""
        for segment in self._filled:
            yield from segment.blocks(segment.places(rows))

    def mean(self, *, published: bool) -> Float32:
        """Return the mean of all keys that were published, removed ones too, or of all living ones.

        Returns: (d,)
        """
        total, count = np.zeros(self.width), 0
        blocks = self.published.table.blocks(BLOCK_KEYS) if published else self.blocks(None)
        for block in blocks:
            total += block.vectors.sum(axis=0, dtype=np.float64)
            count += len(block.ids)
        return (total / max(count, 1)).astype(np.float32)

    def lookup(self, rows: Int64) -> KeyTable:
        """Return the living documents of `rows` with their keys."""
        ascending = np.unique(rows)
        return KeyTable.joined(
            [segment.table.some(segment.places(ascending)) for segment in self._filled]
        )

    def living(self, rows: Int64) -> Int64:
        """Return those of the rows whose documents are there."""
        return np.concatenate([segment.rows[segment.places(rows)] for segment in self.segments])

    def sample(self, rows: Int64 | None, most: int) -> tuple[KeyTable, int]:
        """Return up to `most` of the living documents of `rows`, each with equal probability.

        With the number that they were drawn from.

        A sample of all documents (None) is the same for every search.
        """
        if rows is not None:
            return self._sampled(rows, most)
        if most not in self._of_all:
            self._of_all[most] = self._sampled(None, most)
        return self._of_all[most]

    @cached_property
    def _of_all(self) -> dict[int, tuple[KeyTable, int]]:
        return {}

    def _sampled(self, rows: Int64 | None, most: int) -> tuple[KeyTable, int]:
        living = self.rows if rows is None else self.living(rows)
        random = np.random.default_rng(len(living))
        picks = random.choice(living, min(len(living), most), replace=False, shuffle=False)
        return self.lookup(picks), len(living)

    def drawn(
        self, queries: Float32, gates: Float64, rows: Int64 | None, most: int
    ) -> tuple[KeyTable, Float64]:
        """Draw living documents of `rows`, each by its first key, to estimate sums over all.

        Returns: documents in any order, and their rates (n,). See `FlatVectors.drawn`.
        """
        tables, rates = list[KeyTable](), list[Float64]()
        for segment in self._filled:
            allowed = None if rows is None else segment.allowed_keys(segment.allowed(rows))
            positions, by_key = segment.vectors.drawn(queries, gates, most, allowed)
            places = segment.table.ordinals[positions]
            valid = segment.alive[places] & (segment.table.starts[places] == positions)
            tables.append(segment.table.some(places[valid]))
            rates.append(by_key[valid])
        return KeyTable.joined(tables), np.concatenate(rates)

    def advanced(
        self, added: KeyTable, removed: Int64, last_key: int, last_removal: int
    ) -> Snapshot:
        """Return the snapshot after a change: documents that lost or gained keys move to the delta.

        A document lies in one segment, so that it is scored once and with all its keys.
        """
        published, left = self.published.released(removed, added.rows)
        delta, fresh_left = self.delta.newest().released(removed, added.rows)
        moved = [table for table in (added, left, fresh_left) if len(table)]
        if moved:
            delta = delta.extended(_merged(moved))
        return replace(
            self,
            published=published,
            delta=delta,
            last_key=last_key,
            last_removal=last_removal,
            longest=max(self.longest, added.longest),
        )


def _merged(tables: Sequence[KeyTable]) -> KeyTable:
    """Return the keys of all tables, in the order (document row, key id)."""
    if len(tables) == 1:
        return tables[0]
    vectors, ids, documents = (
        np.concatenate([getattr(table, name) for table in tables])
        for name in ("vectors", "ids", "documents")
    )
    order = np.lexsort((ids, documents))
    return KeyTable.of_keys(vectors[order], ids[order], documents[order])
