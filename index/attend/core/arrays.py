"""Array operations that several rooms need, and the table of documents with their keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, TypeVar

import numpy as np

from attend.core.types import Bool, Float32, Floats, Int64, QueryInput

FloatArray = TypeVar("FloatArray", bound=Floats)


def unit(vectors: FloatArray) -> FloatArray:
    """Scale vectors (..., d) to length one, in their own precision; zeros stay zeros.

    >>> unit(np.array([[3.0, 4.0], [0.0, 0.0]])).tolist()
    [[0.6, 0.8], [0.0, 0.0]]
    """
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.where(lengths == 0, 1, lengths)  # type: ignore[return-value]


def top(scores: Floats, k: int) -> Int64:
    """Columns of the k largest of each row (..., n), best first; all columns if n is below k.

    >>> top(np.array([0.2, 0.9, 0.5]), 2).tolist()
    [1, 2]
    """
    count = min(k, scores.shape[-1])
    columns: Int64 = np.argpartition(-scores, count - 1, axis=-1)[..., :count]
    order = np.argsort(-np.take_along_axis(scores, columns, axis=-1), axis=-1, kind="stable")
    return np.take_along_axis(columns, order, axis=-1)


def top_mask(scores: Floats, k: int) -> Bool:
    """Mark the k largest of each row (q, n), of equals those of the lower columns; all if n is
    below k.

    >>> top_mask(np.array([[0.2, 0.9, 0.2]]), 2).tolist()
    [[True, True, False]]
    """
    if k >= scores.shape[1]:
        return np.ones(scores.shape, dtype=bool)
    least = kth_largest(scores, k)
    marks: Bool = scores >= least
    excess = np.flatnonzero(np.count_nonzero(marks, axis=1) > k)
    if len(excess):
        rows, level = scores[excess], least[excess]
        equal = rows == level
        room = k - np.count_nonzero(rows > level, axis=1)
        marks[excess] &= ~equal | (np.cumsum(equal, axis=1) <= room[:, None])
    return marks


def kth_largest(scores: FloatArray, k: int) -> FloatArray:
    """The k-th largest of each row (..., n), k at most n: (..., 1).

    >>> kth_largest(np.array([0.2, 0.9, 0.5]), 2).tolist()
    [0.5]
    """
    # From the other end: with many equal numbers at the low one, as of documents without a word,
    # a partition takes ten times as long.
    return -np.partition(-scores, k - 1, axis=-1)[..., k - 1, None]  # type: ignore[return-value]


def best(scores: FloatArray, starts: Int64) -> FloatArray:
    """The largest score of each document's keys: (..., m) -> (..., n).

    `starts` (n,) says where each document's keys begin; no document is without keys. Where every
    document has one key, the array itself comes back.

    >>> best(np.array([[1.0, 3.0, 2.0]]), np.array([0, 2])).tolist()
    [[3.0, 2.0]]
    """
    if len(starts) == scores.shape[-1]:
        return scores
    return np.maximum.reduceat(scores, starts, axis=-1)  # type: ignore[return-value]


class Located(NamedTuple):
    """Places of values in an ascending array; where `present` is false the place means nothing."""

    places: Int64
    present: Bool


def locate(ascending: Int64, values: Int64) -> Located:
    """Look values of any shape up in an ascending array, which may be empty.

    >>> locate(np.array([2, 5, 9]), np.array([5, 7])).present.tolist()
    [True, False]
    """
    if not len(ascending):
        return Located(np.zeros(values.shape, np.int64), np.zeros(values.shape, dtype=bool))
    places = np.minimum(np.searchsorted(ascending, values), len(ascending) - 1)
    return Located(places, ascending[places] == values)


@dataclass(frozen=True, eq=False)
class KeyTable:
    """Documents, each with one or more keys that stand side by side (compressed rows).

    A place is the position of a document in `rows`, a position is that of a key in `vectors`.

    Attributes:
        rows: (n,) the documents' rows in the store, each once; ascending unless said otherwise.
        starts: (n + 1,) first position of each document's keys, then m.
        vectors: (m, d) keys, or the embeddings that they are made of.
        ids: (m,) the keys' ids in the store.
        examples: (m,) True for embeddings of example queries; None where there are none.
    """

    rows: Int64
    starts: Int64
    vectors: Float32
    ids: Int64
    examples: Bool | None = None

    @classmethod
    def of_keys(
        cls, vectors: Float32, ids: Int64, documents: Int64, examples: Bool | None = None
    ) -> KeyTable:
        """Make a table of keys whose documents' rows (m,) ascend."""
        begins = np.flatnonzero(np.diff(documents, prepend=-1)) if len(documents) else documents
        starts = np.append(begins, len(documents))
        return cls(documents[begins], starts, vectors, ids, examples)

    @classmethod
    def joined(cls, tables: Sequence[KeyTable]) -> KeyTable:
        """Put tables of different documents behind one another; the first tells the width."""
        filled = [table for table in tables if len(table.rows)] or list(tables[:1])
        if len(filled) == 1:
            return filled[0]
        counts = np.concatenate([table.counts for table in filled])
        return cls(
            np.concatenate([table.rows for table in filled]),
            np.append(0, np.cumsum(counts)),
            np.concatenate([table.vectors for table in filled]),
            np.concatenate([table.ids for table in filled]),
            None
            if all(table.examples is None for table in filled)
            else np.concatenate([table.is_example for table in filled]),
        )

    def __len__(self) -> int:
        """The number of documents, n."""
        return len(self.rows)

    @cached_property
    def counts(self) -> Int64:
        """(n,) keys of each document."""
        return np.diff(self.starts)

    @cached_property
    def ordinals(self) -> Int64:
        """(m,) the place of each key's document."""
        return np.repeat(np.arange(len(self.rows)), self.counts)

    @property
    def documents(self) -> Int64:
        """(m,) the row of each key's document."""
        return self.rows if self.single else self.rows[self.ordinals]

    @property
    def is_example(self) -> Bool:
        """(m,) True for embeddings of example queries."""
        return np.zeros(len(self.ids), dtype=bool) if self.examples is None else self.examples

    @property
    def own(self) -> KeyTable:
        """The same without keys of example queries."""
        texts = ~self.is_example
        return KeyTable.of_keys(self.vectors[texts], self.ids[texts], self.documents[texts])

    @property
    def longest(self) -> float:
        """The length of the longest key; 0 without keys."""
        squares = np.einsum("md,md->m", self.vectors, self.vectors, dtype=np.float64)
        return float(np.sqrt(squares.max(initial=0.0)))

    @cached_property
    def single(self) -> bool:
        """True where every document has one key."""
        return len(self.rows) == len(self.ids)

    def positions(self, places: Int64) -> Int64:
        """Positions of all keys of some documents, one document after the other."""
        if self.single:
            return places
        begins = self.starts[places]
        counts = self.starts[places + 1] - begins
        shifts = np.cumsum(counts) - counts
        positions: Int64 = np.repeat(begins - shifts, counts) + np.arange(counts.sum())
        return positions

    def some(self, places: Int64) -> KeyTable:
        """Some of the documents, in the order of their places.

        A run of neighbours is a view of this table; anything else is a copy.
        """
        first, last = (int(places[0]), int(places[-1]) + 1) if len(places) else (0, -1)
        if last - first == len(places) and (np.diff(places) == 1).all():
            keys = slice(int(self.starts[first]), int(self.starts[last]))
            starts = self.starts[first : last + 1] - keys.start
            flags = None if self.examples is None else self.examples[keys]
            return KeyTable(
                self.rows[first:last], starts, self.vectors[keys], self.ids[keys], flags
            )
        positions = self.positions(places)
        counts = self.starts[places + 1] - self.starts[places]
        starts = np.append(0, np.cumsum(counts))
        flags = None if self.examples is None else self.examples[positions]
        return KeyTable(
            self.rows[places], starts, self.vectors[positions], self.ids[positions], flags
        )

    def places(self, rows: Int64) -> Int64:
        """Places (ascending) of those of the rows that are here; the table's rows ascend."""
        places, present = locate(self.rows, np.unique(rows))
        return places[present]

    def owners(self, ids: Int64) -> Int64:
        """Return the places (ascending) of the documents of those of the keys that are here."""
        ascending, order = self._by_id
        positions, present = locate(ascending, ids)
        positions = positions[present] if order is None else order[positions[present]]
        return np.unique(np.searchsorted(self.starts, positions, side="right") - 1)

    @cached_property
    def _by_id(self) -> tuple[Int64, Int64 | None]:
        """The ids in ascending order, and their positions; None where they ascend already."""
        if (np.diff(self.ids) > 0).all():
            return self.ids, None
        order = np.argsort(self.ids)
        return self.ids[order], order

    @cached_property
    def most_keys(self) -> int:
        """The number of keys of the document that has most."""
        return int(self.counts.max(initial=0))

    def with_vectors(self, vectors: Floats) -> KeyTable:
        """The same documents and ids with other vectors (m, …)."""
        return replace(self, vectors=vectors)

    def best(self, scores: Floats) -> Floats:
        """The score of each document's best key: (..., m) -> (..., n)."""
        return scores if self.single else best(scores, self.starts[:-1])

    def sum(self, scores: Floats) -> Floats:
        """The sum of each document's scores: (..., m) -> (..., n)."""
        return scores if self.single else np.add.reduceat(scores, self.starts[:-1], axis=-1)

    def means(self) -> Floats:
        """The mean of each document's keys, (n, d)."""
        if self.single:
            return self.vectors
        sums = np.add.reduceat(self.vectors, self.starts[:-1], axis=0)
        return np.asarray(sums / self.counts[:, None], dtype=self.vectors.dtype)

    def blocks(self, size: int, places: Int64 | None = None) -> Iterator[KeyTable]:
        """Documents in tables of about `size` keys; a document is never cut.

        Args:
            places: the documents (n',); all if None.
        """
        if places is None:
            places = np.arange(len(self.rows))
        if not len(places):
            return iter(())
        ends = np.cumsum(self.starts[places + 1] - self.starts[places])
        # A block ends before the document that would pass the size.
        passing = np.searchsorted(ends, np.arange(size, ends[-1], size), side="right")
        parts = np.split(places, np.unique(passing[passing > 0]))
        return (self.some(part) for part in parts)

    def split(self, parts: Sequence[Int64]) -> Iterator[KeyTable]:
        """For each part (rows) a table of its documents, in the order in which they stand here.

        Rows that are not here are passed over.
        """
        order = np.argsort(self.rows, kind="stable")
        ascending = self.rows[order]
        for rows in parts:
            places, present = locate(ascending, rows)
            yield self.some(np.sort(order[places[present]]))


def same_question(query: QueryInput) -> str | bytes:
    """Return what the examples of one question have in common: its text, or its stored numbers.

    >>> same_question([1, 0]) == same_question((1.0, 0.0))
    True
    """
    if isinstance(query, str):
        return query
    with np.errstate(over="ignore"):  # it is refused where it is embedded
        return np.asarray(query, dtype=np.float32).tobytes()
