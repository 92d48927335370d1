"""Histories: which user met which document, and every pair of what one user met."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import sparse

from attend.learn.data import Sparse
from attend.types import Bool, Int64


class Pairs(NamedTuple):
    """Of each user, every document as a target beside every one as a source, itself included.

    Attributes:
        met: (t,) documents, user after user.
        target, source: (p,) places in `met`.
    """

    met: Int64
    target: Int64
    source: Int64


def histories_of(users: Int64, documents: Int64, shape: tuple[int, int]) -> Sparse:
    """Sparse ones (u, n) in canonical form; whoever met a document twice met it."""
    ones = np.ones(len(users), dtype=np.float32)
    met = sparse.csr_array((ones, (users, documents)), shape=shape)
    met.sum_duplicates()
    met.data[:] = 1
    return met


def pairs_of(met: Sparse, most: int, random: np.random.Generator) -> Pairs:
    """All pairs within each user's history, of which `most` documents are drawn if it has more."""
    documents, counts = met.indices.astype(np.int64), np.diff(met.indptr).astype(np.int64)
    if counts.max(initial=0) > most:
        kept = _thinned(counts, most, random)
        documents, counts = documents[kept], np.minimum(counts, most)
    partners = np.repeat(counts, counts)  # (t,)
    target = np.repeat(np.arange(len(documents)), partners)
    begins = np.repeat(np.cumsum(counts) - counts, counts)
    within = np.arange(len(target)) - np.repeat(np.cumsum(partners) - partners, partners)
    return Pairs(documents, target, np.repeat(begins, partners) + within)


def without(met: Sparse, left_out: Bool) -> Sparse:
    """The same histories without some of the interactions (those of `met.data`, in order)."""
    rows = np.repeat(np.arange(met.shape[0]), np.diff(met.indptr))
    kept = ~left_out
    return histories_of(rows[kept], met.indices[kept].astype(np.int64), met.shape)


def lengths(met: Sparse) -> Int64:
    """(u,) how many documents each user met."""
    counts: Int64 = np.diff(met.indptr).astype(np.int64)
    return counts


def _thinned(counts: Int64, most: int, random: np.random.Generator) -> Int64:
    """Places (t',) of at most so many drawn from each user, ascending."""
    total = int(counts.sum())
    user = np.repeat(np.arange(len(counts)), counts)
    order = np.lexsort((random.random(total), user))
    rank = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
    kept: Int64 = np.sort(order[rank < most])
    return kept
