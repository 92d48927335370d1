"""Learned weights between documents: what one in a history says for each of some others.

They are an additive term of a logit beside the product of query and key, as BM25 is in a search:
z_jd = scale * (q_j · k_d + m_jd + `joint` * Σ_i π_i m_id), with the weights π of the history, which
sum to one. The sum is what a linear model says of the whole history: that several of its documents
agree on d counts for d in the attention of each, and the more, the longer the history is.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attend.core.arrays import locate
from attend.core.types import Float32, Float64, Int64
from attend.store import Terms

Places = NDArray[np.int32]
"""Positions; half of the memory of a version's weights would go to wider ones."""

HALF = 1 << 20
"""A row is stored as two numbers below this, for a float32 has 24 bits."""


JOINT, SUMMED = 5.0, 0.2
"""The weight of the whole history beside that of each document: that at least, and so much for each
of its documents. (nDCG@10 of learned attention on validation parts, with the sum added to half of
its log weights: of goodbooks .202 without, .206 with 2.5, .207 with 5; beside the weights of a
closed form, of films withheld at random from users with fewer than 40, 100, 300 and more: .193,
.224, .261 and .381 with 5 whatever the length; .193, .228, .276 and .395 with 0.2 for each.)"""


def joint(lengths: Int64) -> Float64:
    """Return the weights of whole histories with so many documents.

    >>> joint(np.array([3, 100])).tolist()
    [5.0, 20.0]
    """
    return np.asarray(np.maximum(JOINT, SUMMED * lengths), dtype=np.float64)


class PartScores(NamedTuple):
    """The weights of the parts of one history (p,) for documents.

    Attributes:
        rows: (n,) documents with weights, ascending.
        table: (p, n + 1), of which the last column is for all other documents.
        targets: (p, e) places of the documents with the largest weights by size, best first; n
            where there are fewer.
    """

    rows: Int64
    table: Float32
    targets: Places

    def of(self, documents: Int64) -> Float32:
        """Return the weights (p, m) for documents (m,) in any order; 0 where none was learned."""
        if len(documents) == len(self.rows) and (documents == self.rows).all():
            return self.table[:, :-1]
        places, present = locate(self.rows, documents)
        return self.table[:, np.where(present, places, len(self.rows))]

    def best(self, count: int) -> Int64:
        """Return the rows of the documents for which a part has one of its `count` largest
        weights, ascending."""
        places = np.unique(self.targets[:, :count])
        return self.rows[places[places < len(self.rows)]]


class ItemWeights(NamedTuple):
    """The largest weights of each document (n,) for others.

    Attributes:
        rows: (n,) ascending.
        places: (n, e) positions in `rows`, n for none; largest weights by size first.
        values: (n, e).
    """

    rows: Int64
    places: Places
    values: Float32

    @classmethod
    def of(cls, rows: Int64, weights: Any) -> ItemWeights:
        """Return a sparse matrix (m, m) over documents with some rows (m,), ascending.

        Documents without any weight, for others or of others, are left out.

        >>> from scipy import sparse
        >>> weights = ItemWeights.of(np.array([3, 8]), sparse.csr_array([[0, 0.5], [0, 0]]))
        >>> scores = weights.scores(np.array([3, 8]), np.array([0.5, 0.5]))
        >>> scores.of(np.array([8, 3, 9])).tolist()
        [[1.75, 0.0, 0.0], [1.25, 0.0, 0.0]]
        """
        used = np.union1d(np.flatnonzero(np.diff(weights.indptr)), np.unique(weights.indices))
        rows, weights = rows[used], weights[used][:, used].tocsr()
        counts = np.diff(weights.indptr)
        owner = np.repeat(np.arange(len(rows)), counts)
        order = np.lexsort((-np.abs(weights.data), owner))
        rank = np.arange(len(owner)) - np.repeat(weights.indptr[:-1], counts)
        places = np.full((len(rows), counts.max(initial=0)), len(rows), dtype=np.int32)
        values = np.zeros(places.shape, dtype=np.float32)
        places[owner, rank] = weights.indices[order]
        values[owner, rank] = weights.data[order]
        return cls(rows, places, values)

    @classmethod
    def unpacked(cls, terms: Terms) -> ItemWeights:
        """Read the terms that `packed` returns; weights for documents that left are left out."""
        high, low, values = np.split(terms.vectors, 3, axis=1)
        targets = high.astype(np.int64) * HALF + low.astype(np.int64)
        places, present = locate(terms.rows, targets)
        return cls(
            terms.rows,
            np.where(present, places, len(terms.rows)).astype(np.int32),
            np.where(present, values, np.float32(0)),
        )

    def packed(self) -> Terms:
        """Return terms (n, 3 e): rows in two halves, and weights."""
        targets = np.append(self.rows, 0)[self.places]
        columns = (targets // HALF, targets % HALF, self.values)
        return Terms(self.rows, np.concatenate(columns, axis=1).astype(np.float32))

    def matrix(self, rows: Int64) -> Any:
        """Return the weights between documents of some rows (n,), ascending: sparse (n, n)."""
        from scipy import sparse  # here: for training alone

        targets, present = locate(rows, np.append(self.rows, 0)[self.places])
        sources, is_source = locate(rows, self.rows)
        owners = np.broadcast_to(sources[:, None], targets.shape)
        mask = present & is_source[:, None] & (self.places < len(self.rows))
        cells = owners[mask], targets[mask]
        return sparse.csr_array((self.values[mask], cells), shape=(len(rows), len(rows)))

    def scores(self, sources: Int64, weights: Float64) -> PartScores:
        """Return what the parts of a history say by themselves and together.

        Args:
            sources: (p,) their rows; 0 for parts that are no document.
            weights: (p,) of the parts, above zero.
        """
        places, present = locate(self.rows, sources)
        none = len(self.rows)
        targets = np.where(present[:, None], self.places[places], none)
        table = np.zeros((len(sources), none + 1), dtype=np.float32)
        table[np.arange(len(sources))[:, None], targets] = self.values[places]
        table[:, none] = 0
        together = joint(np.array(len(weights))) * weights / weights.sum()  # (p,)
        table += together.astype(np.float32) @ table
        return PartScores(self.rows, table, targets)
