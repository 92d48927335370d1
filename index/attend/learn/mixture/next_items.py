"""How well a mixture over histories ranks what comes next."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from scipy import sparse

from attend.learn.data import BLOCK, Memory, Sparse
from attend.learn.mixture.model import Mixture
from attend.types import Bool, Float32, Float64, Int64

CUT = 10
"""nDCG and recall are measured at 10."""

TINY = 1e-12


class Asking(NamedTuple):
    """Documents as queries of a history and as what is found.

    Attributes:
        queries: (n, d), keys: (m, d), the memory's order.
        gates: (n,) how much each counts in a history.
    """

    queries: Float32
    keys: Float32
    scale: float
    gates: Float32

    @classmethod
    def of(cls, mixture: Mixture, memory: Memory) -> Asking:
        return cls(mixture.queries(memory), mixture.keys(memory), mixture.scale, mixture.gates)


class Measured(NamedTuple):
    """Of each user (h,), with binary relevance: nDCG@10, whose ideal is the best that a list of ten
    can be, and recall@10, of all that was withheld."""

    ndcg: Float64
    recall: Float64


class Ranked(NamedTuple):
    """The documents that are ranked (r,).

    Attributes:
        keys: (m',) positions of their keys, one document after the other; `begins` (r,) the first
            of each.
        column: (n,) the place of each document among them, -1 if it is not.
    """

    keys: Int64
    begins: Int64
    column: Int64

    @classmethod
    def of(cls, memory: Memory, candidates: Bool | None) -> Ranked:
        """Some documents (n,), or all if None."""
        chosen = np.ones(memory.documents, dtype=bool) if candidates is None else candidates
        documents = np.flatnonzero(chosen)
        counts = memory.counts[documents]
        column = np.where(chosen, np.cumsum(chosen) - 1, -1)
        return cls(memory.positions(documents), np.cumsum(counts) - counts, column)


def measured(
    asking: Asking, memory: Memory, given: Sparse, asked: Sparse, candidates: Bool | None = None
) -> Measured:
    """Rank everything but the history for each user.

    Args:
        given, asked: sparse (h, n): histories, and what is right; nobody's is empty.
        candidates: (n,) what is ranked; all if None.
    """
    ranked = Ranked.of(memory, candidates)
    found = [
        _block(asking, given[part], asked[part], ranked) for part in _blocks(given, ranked.keys)
    ]
    return Measured(*(np.concatenate(each) for each in zip(*found, strict=True)))


def weights(asking: Asking, history: Sparse, ranked: Ranked) -> Float64:
    """(h, r): w(d) of each user over the ranked documents; -1 for what is in their history."""
    met, row = np.unique(history.indices, return_inverse=True)  # (i,), (t,)
    by_key = asking.scale * (asking.queries[met] @ asking.keys[ranked.keys].T)  # (i, m')
    z = np.maximum.reduceat(by_key, ranked.begins, axis=1)  # (i, r)
    shares = np.exp(z - z.max(axis=1, keepdims=True)).astype(np.float64)
    users = np.repeat(np.arange(history.shape[0]), np.diff(history.indptr))  # (t,)
    column = ranked.column[history.indices]
    seen = users[column >= 0], column[column >= 0]
    # What is in a history takes no part in the softmaxes of its documents.
    own = sparse.csr_array((np.ones(len(seen[0])), seen), shape=(history.shape[0], z.shape[1]))
    inside = (own @ shares.T)[users, row]  # (t,)
    outside = np.maximum(shares.sum(axis=1)[row] - inside, TINY)
    gates = asking.gates[history.indices].astype(np.float64)
    shared = gates / np.bincount(users, gates)[users] / outside
    mixture = sparse.csr_array((shared, (users, row)), shape=(history.shape[0], len(met)))
    found: Float64 = mixture @ shares  # (h, i) @ (i, r) -> (h, r)
    found[seen] = -1.0
    return found


def _block(asking: Asking, given: Sparse, asked: Sparse, ranked: Ranked) -> Measured:
    w = weights(asking, given, ranked)
    right = np.zeros(w.shape, dtype=bool)
    wanted = np.diff(asked.indptr)
    right[np.repeat(np.arange(len(w)), wanted), ranked.column[asked.indices]] = True
    hits = np.take_along_axis(right, _top(w), axis=1)
    discounts = 1 / np.log2(np.arange(2, CUT + 2))
    ideal = np.cumsum(discounts)[np.minimum(wanted, CUT) - 1]
    return Measured(hits @ discounts[: hits.shape[1]] / ideal, hits.sum(axis=1) / wanted)


def _top(w: Float64) -> Int64:
    """(h, 10) the columns of the largest, best first."""
    if w.shape[1] > CUT:
        some = np.argpartition(-w, CUT - 1, axis=1)[:, :CUT]
    else:
        some = np.broadcast_to(np.arange(w.shape[1]), w.shape)
    order = np.argsort(-np.take_along_axis(w, some, axis=1), axis=1, kind="stable")
    return np.take_along_axis(some, order, axis=1)


def _blocks(given: Sparse, keys: Int64) -> list[slice]:
    """Users, so many at once that their logits stay within a block of memory."""
    most = max(1, BLOCK // 4 // max(1, len(keys)))
    bounds = [0]
    for at in range(1, given.shape[0]):
        if given.indptr[at + 1] - given.indptr[bounds[-1]] > most:
            bounds.append(at)
    bounds.append(given.shape[0])
    return [slice(a, b) for a, b in pairwise(bounds)]
