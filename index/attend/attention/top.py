"""Top-k attention: the softmax over the best candidates, exactly re-scored."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from attend.attention.mechanism import Mechanism
from attend.attention.softmax import Partition, log_mix, partition, weigh, weigh_one
from attend.types import Float64, Floats, Int64


class Logits(NamedTuple):
    """Documents with their logits in every head."""

    documents: Int64
    """(n,)"""
    z: Floats
    """(H, n)"""

    def some(self, places: Int64) -> Logits:
        """Return the documents at some places, in that order."""
        return Logits(self.documents[places], self.z[:, places])

    def unmasked(self) -> Logits:
        """Return the documents that no mask took out."""
        masked = np.isneginf(self.z).all(axis=0)
        return self.some(np.flatnonzero(~masked)) if masked.any() else self


class Attended(NamedTuple):
    """The documents that one query attends to, best first."""

    documents: Int64
    """(n,) row ids; of a streamed attention only the `keep` best."""
    scores: Float64
    """(n,) the logit for one head, log weight for several; higher is better."""
    logits: Float64
    """(H, n)"""
    weights: Float64
    """(n,) mixed over heads by their gates."""
    head_weights: Float64
    """(H, n) each head's own softmax."""
    partition: Partition
    """(H,) each head's sum of exp(logit / temperature), null included."""
    null_weight: float
    """The weight of "nothing here answers that"; 0 without a no-answer score."""
    total_documents: int
    """How many documents share the weights, listed or not; 0 if all were masked."""

    @property
    def log_partition(self) -> Float64:
        """(H,) log of each head's sum; -inf if all was masked and there is no null."""
        return self.partition.log

    @property
    def confidence(self) -> float:
        """One less the null's weight; 0 where there was nothing to attend to."""
        return 1 - self.null_weight if self.total_documents else 0.0


def attend_logits(candidates: Logits, mechanism: Mechanism, attend: int | None = None) -> Attended:
    """Return the softmax over the `attend` best by the mixture of heads, or over all.

    Documents at -inf are masked.
    """
    best = candidates.unmasked()
    if mechanism.heads == 1:  # its scores are its logits, whatever they sum to
        best = best.some(rank(best.documents, best.z[0])[:attend])
        sums = partition(best.z / mechanism.temperature, mechanism.null)
        return _attended(best, best.z[0], sums, mechanism, len(best.documents))
    sums = partition(best.z / mechanism.temperature, mechanism.null)
    if attend is not None and attend < len(best.documents):
        best = best.some(rank(best.documents, scores(best.z, sums, mechanism))[:attend])
        sums = partition(best.z / mechanism.temperature, mechanism.null)
    return weighed(best, sums, mechanism, len(best.documents))


def weighed(
    listed: Logits, sums: Partition, mechanism: Mechanism, total_documents: int
) -> Attended:
    """Return the weights of listed documents, best first, given each head's partition (H,)."""
    score = scores(listed.z, sums, mechanism)
    order = rank(listed.documents, score)
    return _attended(listed.some(order), score[order], sums, mechanism, total_documents)


def _attended(
    best: Logits, score: Floats, sums: Partition, mechanism: Mechanism, total_documents: int
) -> Attended:
    z = best.z.astype(np.float64, copy=False)
    heads = weigh(z / mechanism.temperature, sums)  # (H, n)
    null = mechanism.null
    return Attended(
        documents=best.documents,
        scores=np.asarray(score, dtype=np.float64),
        logits=z,
        weights=mechanism.gates @ heads,
        head_weights=heads,
        partition=sums,
        null_weight=0.0 if null is None else float(mechanism.gates @ weigh_one(null, sums)),
        total_documents=total_documents,
    )


def scores(z: Floats, sums: Partition, mechanism: Mechanism) -> Float64:
    """Turn logits (H, n) into scores (n,): z for one head, the log mixed weight for several."""
    if mechanism.heads == 1:
        return np.asarray(z[0], dtype=np.float64)
    log = np.where(sums.total == 0, 0, sums.log)
    shares = mechanism.cooled(z) - log[:, None]
    return log_mix(np.asarray(shares, dtype=np.float64), mechanism.gates)


def mixed(z: Floats, sums: Partition, mechanism: Mechanism) -> Float64:
    """Turn logits (H, n) into mixed weights (n,); those that underflow are 0."""
    peaks = np.where(np.isneginf(sums.maximum), 0, sums.maximum)
    with np.errstate(over="ignore"):  # what is beyond a partition has not been summed yet
        shares = np.exp(mechanism.cooled(z) - peaks[:, None])
    weights: Float64 = (mechanism.gates / np.where(sums.total == 0, 1, sums.total)) @ shares
    return weights


def rank(documents: Int64, score: Floats) -> Int64:
    """Return positions, best score first; of equal scores the lower row id first."""
    return np.lexsort((documents, -score))
