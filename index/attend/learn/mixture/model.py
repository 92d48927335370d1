"""A mixture over a history: each document j that was met attends to the catalogue by itself.

    w(d) = Σ_j π_j · softmax_j(s · q_j · k_d)
    q_j = W_Q (e_j + δ_j − c),  k_d = W_K (e_d + δ_d − c)

is the probability of the next one, with gates π_j = g_j / Σ g over the history and softmaxes over
all that is not in it, as they are served. An offset δ moves a document alike where it asks and
where it is asked for. (Softmaxes that are mixed, and not their scores: Yang et al. 2018, "Breaking
the softmax bottleneck"; what was met as queries of its own: Kabbur et al. 2013, FISM, which adds
scores.)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from attend.learn.data import Memory, unit_vectors
from attend.types import Float32, Int64


class Mixture(NamedTuple):
    """What was learned.

    Attributes:
        center: (d,), taken from embeddings first.
        offset_keys: (o,) positions in the memory, ascending; `offsets` (o, d) theirs. A document
            as a query is moved by the mean of what moves its keys.
        gates: (n,) how much each document counts in a history; 1 where nothing is known.
    """

    center: Float32
    w_q: Float32  # (d_k, d)
    w_k: Float32  # (d_k, d)
    scale: float
    offset_keys: Int64
    offsets: Float32
    gates: Float32

    def queries(self, memory: Memory) -> Float32:
        """Each document as the query that it is in a history: (n, d_k)."""
        moved: Float32 = as_queries(memory) + self.query_offsets(memory) - self.center
        found: Float32 = moved @ self.w_q.T
        return unit_vectors(found) if memory.unit else found

    def keys(self, memory: Memory) -> Float32:
        """(m, d_k)."""
        moved: Float32 = memory.embeddings + self._moves(memory) - self.center
        found: Float32 = moved @ self.w_k.T
        return unit_vectors(found) if memory.unit else found

    def mixed(self, share: float) -> Mixture:
        """On the straight line from the identity to what was learned (see `Fitted.mixed`)."""
        if share == 1:
            return self
        start, part = np.eye(*self.w_q.shape, dtype=np.float32), np.float32(share)
        return self._replace(
            w_q=start + part * (self.w_q - start),
            w_k=start + part * (self.w_k - start),
            offsets=part * self.offsets,
            gates=self.gates**part,
        )

    def bare(self) -> Mixture:
        """Without offsets: nothing is known of single documents but how much they count."""
        return self._replace(offset_keys=self.offset_keys[:0], offsets=self.offsets[:0])

    def query_offsets(self, memory: Memory) -> Float32:
        """(n, d)."""
        return means_of(memory, self._moves(memory))

    def _moves(self, memory: Memory) -> Float32:
        """(m, d) what is added to each key."""
        moves = np.zeros_like(memory.embeddings)
        moves[self.offset_keys] = self.offsets
        return moves


def means_of(memory: Memory, of_keys: Float32) -> Float32:
    """(m, d) to the mean of each document's (n, d)."""
    if memory.single:
        return of_keys
    totals = np.add.reduceat(of_keys, memory.starts)
    return np.divide(totals, memory.counts[:, None], dtype=np.float32)


def as_queries(memory: Memory) -> Float32:
    """(n, d) documents as queries by id ask: the mean of their keys, at length one if these are."""
    means = means_of(memory, memory.embeddings)
    return unit_vectors(means) if memory.unit and not memory.single else means


def untrained(memory: Memory) -> Mixture:
    """Embeddings as they are, but centred: what they have in common says nothing of taste."""
    d = memory.embeddings.shape[1]
    center = memory.embeddings.mean(axis=0, dtype=np.float64).astype(np.float32)
    eye = np.eye(d, dtype=np.float32)
    none = np.empty(0, dtype=np.int64), np.empty((0, d), dtype=np.float32)
    gates = np.ones(memory.documents, dtype=np.float32)
    return Mixture(center, eye, eye, memory.scale, *none, gates)
