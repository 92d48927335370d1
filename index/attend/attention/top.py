"""Top-k attention: the softmax over the best candidates, exactly re-scored."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from attend.attention.mechanism import Mechanism
from attend.attention.softmax import Partition, cooled, log_mix, partition, weigh, weigh_one
from attend.types import Float64, Floats, Int64


class Logits(NamedTuple):
    """Documents with their logits in every head."""

    documents: Int64
    """(n,)"""
    z: Floats
    """(H, n)"""


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

    For a caller that has logits already; documents at -inf are masked.
    """
    documents, z = unmasked(candidates)
    if mechanism.heads == 1:  # its scores are its logits, whatever they sum to
        order = rank(documents, z[0])[:attend]
        best = Logits(documents[order], z[:, order])
        sums = _whole(best.z, mechanism)
        return _attended(best, best.z[0], sums, mechanism, len(order))
    if attend is not None and attend < len(documents):
        order = rank(documents, scores(z, _whole(z, mechanism), mechanism))[:attend]
        documents, z = documents[order], z[:, order]
    return weighed(Logits(documents, z), _whole(z, mechanism), mechanism, len(documents))


def weighed(
    listed: Logits, sums: Partition, mechanism: Mechanism, total_documents: int
) -> Attended:
    """Return the weights of listed documents, best first, given each head's partition (H,)."""
    score = scores(listed.z, sums, mechanism)
    order = rank(listed.documents, score)
    best = Logits(listed.documents[order], listed.z[:, order])
    return _attended(best, score[order], sums, mechanism, total_documents)


def _attended(
    best: Logits, score: Floats, sums: Partition, mechanism: Mechanism, total_documents: int
) -> Attended:
    z = best.z.astype(np.float64, copy=False)
    heads = weigh(z / mechanism.temperature, sums)  # (H, n)
    return Attended(
        documents=best.documents,
        scores=np.asarray(score, dtype=np.float64),
        logits=z,
        weights=mechanism.gates @ heads,
        head_weights=heads,
        partition=sums,
        null_weight=0.0 if mechanism.null_logit is None else _null_weight(sums, mechanism),
        total_documents=total_documents,
    )


def scores(z: Floats, sums: Partition, mechanism: Mechanism) -> Float64:
    """Turn logits (H, n) into scores (n,): z for one head, the log mixed weight for several."""
    if mechanism.heads == 1:
        return np.asarray(z[0], dtype=np.float64)
    log = np.where(sums.total == 0, 0, sums.log)
    shares = cooled(z, mechanism.temperature) - log[:, None]
    return log_mix(np.asarray(shares, dtype=np.float64), mechanism.gates)


def mixed(z: Floats, sums: Partition, mechanism: Mechanism) -> Float64:
    """Turn logits (H, n) into mixed weights (n,); those that underflow are 0."""
    with np.errstate(over="ignore"):  # what is beyond a partition has not been summed yet
        shares = np.exp(cooled(z, mechanism.temperature) - _peaks(sums)[:, None])
    weights: Float64 = (mechanism.gates / np.where(sums.total == 0, 1, sums.total)) @ shares
    return weights


def _peaks(sums: Partition) -> Float64:
    return np.where(np.isneginf(sums.maximum), 0, sums.maximum)


def rank(documents: Int64, score: Floats) -> Int64:
    """Return positions, best score first; of equal scores the lower row id first."""
    return np.lexsort((documents, -score))


def unmasked(candidates: Logits) -> Logits:
    """Return the candidates that no mask took out."""
    open = ~np.isneginf(candidates.z).all(axis=0)
    if open.all():
        return candidates
    return Logits(candidates.documents[open], candidates.z[:, open])


def _whole(z: Floats, mechanism: Mechanism) -> Partition:
    """Return the partition (H,) of logits (H, n) with the no-answer score."""
    null, tau = mechanism.null_logit, mechanism.temperature
    return partition(z / tau, None if null is None else null / tau)


def _null_weight(sums: Partition, mechanism: Mechanism) -> float:
    assert mechanism.null_logit is not None
    return float(mechanism.gates @ weigh_one(mechanism.null_logit / mechanism.temperature, sums))
