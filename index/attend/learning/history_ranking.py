"""How well a version ranks what comes next: the weights of all documents for a history.

With item weights m, a logit has two further terms: what the document says by itself, and what all
documents of the history say together, of which every one knows (attend.recommend.weights).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from scipy import sparse

from attend.attention import summed
from attend.core.types import Bool, Float64, Floats, Int64
from attend.learning.data import BLOCK, Memory, Sparse, lengths, products, top_places
from attend.learning.fit import Fitted
from attend.learning.held_out import HistoryFold
from attend.measure.statistics import CUT, dcg, ndcg
from attend.recommend.weights import JOINT


class HistoryRanker(NamedTuple):
    """A version, as what ranks documents for a history.

    Attributes:
        logits: gives (i, c), of documents (i,) as queries over candidates (c,).
        gates: (n,) how much each document counts in a history.
        items: item weights (n, n) on the scale of logits; None for none.
    """

    logits: Callable[[Int64, Int64], Floats]
    gates: Floats
    items: Sparse | None = None

    @classmethod
    def of(cls, fitted: Fitted, memory: Memory, items: Sparse | None = None) -> HistoryRanker:
        """Return a fit as a ranker, with item weights (n, n) on the scale of logits."""
        queries, keys = fitted.document_queries(memory), fitted.keys(memory)
        gates = np.ones(len(memory)) if fitted.gates is None else fitted.gates

        def logits(documents: Int64, candidates: Int64) -> Floats:
            table = memory.with_vectors(keys).some(candidates)
            z = table.best(np.float32(fitted.scale) * products(queries[documents], table.vectors))
            return z if items is None else z + items[documents].toarray()[:, candidates]

        return cls(logits, gates, items)


class Measured(NamedTuple):
    """Figures of each user (h,), with binary relevance: nDCG@10, and recall@10 of what was
    withheld."""

    ndcg: Float64
    recall: Float64


def measure(recommender: HistoryRanker, fold: HistoryFold) -> Measured:
    """Rank everything but the history for each user of a fold; nobody's history is empty."""
    ranked = fold.candidates
    if ranked is None:
        ranked = np.ones(fold.history.shape[1], dtype=bool)
    blocks = [
        _measured(recommender, fold.history[part], fold.target[part], ranked)
        for part in _blocks(fold.history, int(ranked.sum()))
    ]
    return Measured(*(np.concatenate(column) for column in zip(*blocks, strict=True)))


def history_weights(recommender: HistoryRanker, history: Sparse, ranked: Bool) -> Float64:
    """(h, r): w(d) of each user over the ranked documents; -1 for what is in their history."""
    documents = np.flatnonzero(ranked)
    column_of = np.cumsum(ranked) - 1
    sources, row = np.unique(history.indices, return_inverse=True)  # (i,), (t,)
    _, relative = summed(recommender.logits(sources, documents))  # (i, r)
    # In float64: a history may hold nearly all of a sum, and the rest is what counts.
    shares = relative.astype(np.float64)
    users = np.repeat(np.arange(history.shape[0]), lengths(history))  # (t,)
    gates = recommender.gates[history.indices].astype(np.float64)
    gates /= np.bincount(users, gates)[users]
    factors = np.ones((history.shape[0], len(documents)))  # (h, r)
    if recommender.items is not None:
        counted = sparse.csr_array((JOINT * gates, history.indices, history.indptr), history.shape)
        common = (counted @ recommender.items).toarray()[:, documents]
        factors = np.exp(common - common.max(axis=1, keepdims=True, initial=-np.inf))
    inside = ranked[history.indices]
    seen = users[inside], column_of[history.indices[inside]]
    factors[seen] = 0  # what is in a history takes no part in the softmaxes of its documents
    outside = np.maximum(np.einsum("tr,tr->t", factors[users], shares[row]), 1e-30)
    mixture = sparse.csr_array((gates / outside, (users, row)), (history.shape[0], len(sources)))
    weights: Float64 = factors * (mixture @ shares)  # (h, i) @ (i, r) -> (h, r)
    weights[seen] = -1.0
    return weights


def _measured(
    recommender: HistoryRanker, history: Sparse, target: Sparse, ranked: Bool
) -> Measured:
    weights = history_weights(recommender, history, ranked)
    right, withheld = np.zeros(weights.shape, dtype=bool), lengths(target)
    column_of = np.cumsum(ranked) - 1
    right[np.repeat(np.arange(len(weights)), withheld), column_of[target.indices]] = True
    hits = np.take_along_axis(right, top_places(weights, CUT), axis=1)
    ideal = dcg(np.arange(CUT) < withheld[:, None])
    return Measured(ndcg(hits, ideal), hits.sum(axis=1) / withheld)


def _blocks(history: Sparse, documents: int) -> list[slice]:
    """Divide users so that the logits of each block stay within a block of memory."""
    most = max(1, BLOCK // 4 // max(1, documents))
    bounds = [0]
    for index in range(1, history.shape[0]):
        if history.indptr[index + 1] - history.indptr[bounds[-1]] > most:
            bounds.append(index)
    bounds.append(history.shape[0])
    return [slice(first, last) for first, last in pairwise(bounds)]
