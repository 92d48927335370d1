"""The best linear model of items by items, in closed form, with the words of their texts.

EASE (Steck 2019, "Embarrassingly shallow autoencoders") predicts each document from all others of
a history: B = I − P C, where P is the inverse of XᵀX + λI and C scales its columns so that the
diagonal of B is zero. With side information (Jeunen, Van Balen and Goethals 2020, "Closed-form
models for collaborative filtering with side-information") the words S of the texts stand under the
histories as further rows: P is the inverse of XᵀX + α S Sᵀ + λI.

A document without interactions has words only. Its row and its column follow from those of the
documents with interactions by a ridge regression on words, and likeness by words is added to both.
On average over all histories it counts no more than documents with interactions do.

Beyond `MOST_EXACT` documents P is that of a truncated singular value decomposition: the directions
in which histories and words vary most, and 1 / λ for all others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np
from scipy import linalg, sparse

from attend.core.arrays import top
from attend.core.types import Float64, Int64
from attend.learning.data import Sparse

ENTRIES = 100
"""Documents with interactions that each row names at least, and documents without that it names at
most. (nDCG@10 on a validation part of goodbooks: .1962 with 50, .1972 with 100, .1959 with 200,
.1973 with all.)"""

COVERED = 0.95
"""The share of the sum of its squared weights that a row names on average: long histories add up
many small ones. (nDCG@10 of EASE on simulated users with 70 documents each: .367 with 100
entries, .387 with the 712 of this share, .388 with all.)"""

MOST_ENTRIES = 4_000_000
"""Weights of all rows together, 48 MB as they are stored; `ENTRIES` in each are possible anyway."""

MOST_ITEMS = 30_000
"""Documents that have a row, those with most interactions first."""

MOST_EXACT = 4000
"""Documents with interactions whose matrix is inverted as it is: 128 MB, and some ten seconds."""

RANK = 512
"""Directions of more documents that are used."""

PASSES = 3
"""Passes over the data that find those directions."""

WORD_RIDGE = 1.0
"""The ridge of the regression on words, whose rows have length one."""

UNSHRUNK = 2.0
"""The factor on weights for documents without interactions, which the ridge on words makes small.
(nDCG@10 on validation parts of goodbooks, beside learned attention: of withheld books .282 with 1,
.287 with 2, .290 with 3; of all .2064, .2062, and .2061.)"""

LIKENESS = 0.03
"""The weight of likeness by words for documents without interactions."""

BLOCK_ROWS = 512
"""Rows of the result that are made at once."""


class ClosedForm(NamedTuple):
    """The numbers of a closed form.

    Attributes:
        ridge: λ, as a multiple of the mean number of interactions of a document.
        words: α, as such a multiple; 0 leaves words out.
    """

    ridge: float
    words: float


def item_weights(histories: Sparse, words: Sparse, form: ClosedForm) -> Sparse:
    """Return the weight of each document (row) for each document (column), sparse (n, n).

    Each row has its largest weights by size, `COVERED` of their squares; all others are zero.

    Args:
        histories: sparse ones (u, n).
        words: sparse (n, t), rows of length one or zero.

    >>> histories = sparse.csr_array(np.array([[1, 1, 0], [1, 1, 0], [0, 1, 1]]))
    >>> weights = item_weights(histories, sparse.csr_array((3, 0)), ClosedForm(1.0, 0.0))
    >>> weights.toarray()[0].round(2).tolist()
    [0.0, 0.5, -0.12]
    """
    size = histories.shape[1]
    counts = np.bincount(histories.indices, minlength=size)
    order = np.argsort(-counts, kind="stable")[:MOST_ITEMS]
    warm, others = (np.sort(order[part]) for part in (counts[order] > 0, counts[order] == 0))
    model = _Weights(histories[:, warm], words, warm, others, form)
    rows, columns, values = zip(*model.entries(), strict=True)
    cells = np.concatenate(rows), np.concatenate(columns)
    weights = sparse.csr_array((np.concatenate(values), cells), shape=(size, size))
    weights.sort_indices()
    return weights


class _Precision(Protocol):
    """P, as far as it is needed."""

    diagonal: Float64  # (k,)

    def times(self, rows: Float64) -> Float64:
        """Return rows @ P: (b, k) -> (b, k)."""


class _Inverse:
    """P of a Gram matrix (k, k) by its Cholesky factor."""

    def __init__(self, stacked: Sparse, ridge: float) -> None:
        gram = (stacked.T @ stacked).toarray().astype(np.float64)
        gram[np.diag_indices_from(gram)] += ridge
        factor = linalg.cho_factor(gram, overwrite_a=True)
        self._inverse: Float64 = linalg.cho_solve(factor, np.eye(len(gram)), overwrite_b=True)
        self.diagonal: Float64 = np.diag(self._inverse).copy()

    def times(self, rows: Float64) -> Float64:
        """Multiply by the inverse."""
        return np.asarray(rows @ self._inverse)


class _Truncated:
    """P of the directions of most variance: λ P = I − V E Vᵀ, E = σ² / (σ² + λ).

    The directions come from a random subspace that few passes over the data turn towards them
    (Halko, Martinsson and Tropp 2011).
    """

    def __init__(self, stacked: Sparse, ridge: float) -> None:
        rank = min(RANK, *stacked.shape)
        basis = np.random.default_rng(0).normal(size=(stacked.shape[1], rank))
        for _ in range(PASSES):
            basis, _ = np.linalg.qr(stacked.T @ (stacked @ basis))
        _, values, turned = linalg.svd(stacked @ basis, full_matrices=False)
        self._directions = np.ascontiguousarray(basis @ turned.T)  # (k, r)
        self._shares = values**2 / (values**2 + ridge)
        self._ridge = ridge
        covered = (self._directions**2) @ self._shares
        self.diagonal: Float64 = (1 - covered) / ridge

    def times(self, rows: Float64) -> Float64:
        """Multiply by the truncated inverse."""
        inside = ((rows @ self._directions) * self._shares) @ self._directions.T
        return np.asarray((rows - inside) / self._ridge)


class _Weights:
    """The rows of the item–item matrix, made block by block."""

    def __init__(
        self, histories: Sparse, words: Sparse, warm: Int64, others: Int64, form: ClosedForm
    ) -> None:
        self._warm, self._others = warm, others
        self._words, self._new_words = words[warm], words[others]
        mean = histories.nnz / max(1, len(warm))
        stacked = histories
        if form.words and words.shape[1]:
            side = np.sqrt(form.words * mean) * self._words.T
            stacked = sparse.vstack([histories, side]).tocsr()
        self._precision: _Precision
        if len(warm) <= MOST_EXACT:
            self._precision = _Inverse(stacked, form.ridge * mean)
        else:
            self._precision = _Truncated(stacked, form.ridge * mean)
        # S (SᵀS + ρI)⁻¹ = (SSᵀ + ρI)⁻¹ S: the smaller one of both is inverted.
        self._by_kernel = len(warm) < words.shape[1]
        side = self._words if self._by_kernel else self._words.T.tocsr()  # (k, t) or (t, k)
        gram = (side @ side.T).toarray()
        gram[np.diag_indices_from(gram)] += WORD_RIDGE
        self._regression = linalg.cho_factor(gram) if gram.size and len(others) else None
        self._level = 1.0
        self._level = self._level_of(np.asarray(histories.sum(axis=0), dtype=np.float64))

    def entries(self) -> Iterator[tuple[Int64, Int64, Float64]]:
        """Yield rows, columns and values of a block's largest weights."""
        count = self._count()
        for members, is_known in ((self._warm, True), (self._others, False)):
            for start in range(0, len(members), BLOCK_ROWS):
                places = np.arange(start, min(start + BLOCK_ROWS, len(members)))
                to_known, to_others = self._block(places, is_known)
                rows = members[places]
                if not is_known:
                    to_others[np.arange(len(places)), places] = 0
                yield _largest(to_known, rows, self._warm, count)
                yield _largest(to_others, rows, self._others, ENTRIES)

    def _count(self) -> int:
        """Return how many weights for documents with interactions a row names."""
        size = len(self._warm)
        sample = np.unique(np.linspace(0, size - 1, min(size, BLOCK_ROWS)).astype(np.int64))
        squares = -np.sort(-(self._block(sample, True)[0] ** 2), axis=1)  # (b, k)
        shares = np.cumsum(squares, axis=1) / np.maximum(squares.sum(axis=1), 1e-30)[:, None]
        covering = int(np.ceil(1 + (shares < COVERED).sum(axis=1).mean())) if size else 0
        return max(ENTRIES, min(covering, MOST_ENTRIES // max(1, size)))

    def _level_of(self, counts: Float64) -> float:
        """Return the factor that brings documents without interactions down to the level of others.

        A document of the closed form is expected about as often as it was met. Likeness adds up
        over a long history, and would have all of it where nobody met a document. (nDCG@10 on
        validation parts, before and after: of simulated users with 70 films each .149, .247; of
        readers of goodbooks .215, .216.)

        Args:
            counts: (k,) interactions of each document.
        """
        if self._regression is None:
            return 1.0
        histories = counts[None]  # the sum over all users, as weights add up
        to_known = self._times(histories)
        to_others = self._to_others(to_known, np.asarray(histories @ self._words))
        expected, level = float(to_known.mean()), float(to_others.mean())
        return min(1.0, max(0.0, expected) / level) if level > 0 else 1.0

    def _block(self, places: Int64, is_known: bool) -> tuple[Float64, Float64]:
        """Return the weights of some documents for those with interactions, and for the others."""
        size = len(self._warm)
        words = (self._words if is_known else self._new_words)[places]  # (b, t)
        if is_known:
            rows = np.zeros((len(places), size))
            rows[np.arange(len(places)), places] = 1
            to_known = self._times(rows)
        elif self._regression is None:
            to_known = np.zeros((len(places), size))
        else:
            likeness = (words @ self._words.T).toarray()  # (b, k)
            to_known = self._times(self._shares(words, likeness)) + LIKENESS * likeness
        if self._regression is None:
            return to_known, np.zeros((len(places), len(self._others)))
        return to_known, self._to_others(to_known, words.toarray())

    def _to_others(self, to_known: Float64, words: Float64) -> Float64:
        """Return the weights for documents without interactions, by those for others (b, k) and by
        words (b, t)."""
        by_word = self._by_word(to_known) + LIKENESS * words  # (b, t)
        return np.asarray(self._level * UNSHRUNK * by_word @ self._new_words.T)

    def _times(self, rows: Float64) -> Float64:
        """Return rows @ B."""
        return rows - self._precision.times(rows) / self._precision.diagonal

    def _shares(self, words: Sparse, likeness: Float64) -> Float64:
        """Return the documents (b, k) that words (b, t) regress to: words (SᵀS + ρI)⁻¹ Sᵀ."""
        if self._by_kernel:
            return np.asarray(linalg.cho_solve(self._regression, likeness.T).T)
        return np.asarray(linalg.cho_solve(self._regression, words.toarray().T).T @ self._words.T)

    def _by_word(self, to_known: Float64) -> Float64:
        """Return the words (b, t) that weights (b, k) regress to: weights S (SᵀS + ρI)⁻¹."""
        if self._by_kernel:
            return np.asarray(linalg.cho_solve(self._regression, to_known.T).T @ self._words)
        return np.asarray(linalg.cho_solve(self._regression, (to_known @ self._words).T).T)


def _largest(
    weights: Float64, rows: Int64, columns: Int64, count: int
) -> tuple[Int64, Int64, Float64]:
    """Return the entries of each row (b, c) that are largest by size, without zeros."""
    if not weights.size:
        return rows[:0], columns[:0], np.empty(0)
    places = top(np.abs(weights), count)  # (b, e)
    values = np.take_along_axis(weights, places, axis=1)
    present = np.abs(values) > 1e-12
    owners = np.broadcast_to(rows[:, None], places.shape)
    return owners[present], columns[places][present], values[present]
