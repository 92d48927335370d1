"""Top-k attention: the softmax over the best candidates, exactly re-scored."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from attend.attention.mechanism import Mechanism
from attend.attention.softmax import Partition, cooled, log_mix, mix, partition, weigh, weigh_one
from attend.types import Float64, Floats, Int64


class Logits(NamedTuple):
    """Documents with their logits in every head."""

    documents: Int64
    """(n,)"""
    z: Floats
    """(H, n)"""


class Attended(NamedTuple):
    """What one query attends to, best first."""

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
    """The weight of "nothing here answers that"; 0 without a null key."""
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
    """The softmax over the `attend` best by the mixture of heads, or over all.

    For a caller that has logits already; documents at -inf are masked.
    """
    kept = unmasked(candidates)
    if attend is not None and attend < len(kept.documents):
        # One head's scores are its logits, whatever they sum to.
        by = kept.z[0] if mechanism.heads == 1 else _mixed(kept.z, mechanism)
        order = rank(kept.documents, by)[:attend]
        kept = Logits(kept.documents[order], kept.z[:, order])
    return weighed(kept, _whole(kept.z, mechanism), mechanism, len(kept.documents))


def weighed(
    listed: Logits, whole: Partition, mechanism: Mechanism, total_documents: int
) -> Attended:
    """The weights of listed documents, best first, given each head's partition (H,)."""
    score = scores(listed.z, whole, mechanism)
    order = rank(listed.documents, score)
    z = listed.z[:, order].astype(np.float64, copy=False)
    heads = weigh(z / mechanism.temperature, whole)  # (H, n)
    return Attended(
        documents=listed.documents[order],
        scores=score[order],
        logits=z,
        weights=mix(heads, mechanism.gates),
        head_weights=heads,
        partition=whole,
        null_weight=_null_weight(whole, mechanism),
        total_documents=total_documents,
    )


def scores(z: Floats, whole: Partition, mechanism: Mechanism) -> Float64:
    """Logits (H, n) as scores (n,): z for one head, log of the mixed weight for several."""
    if mechanism.heads == 1:
        return np.asarray(z[0], dtype=np.float64)
    log = np.where(whole.total == 0, 0, whole.log)
    shares = cooled(z, mechanism.temperature) - log[:, None]
    return log_mix(np.asarray(shares, dtype=np.float64), mechanism.gates)


def mixed(z: Floats, whole: Partition, mechanism: Mechanism) -> Float64:
    """Logits (H, n) as mixed weights (n,), each too small to be told as 0."""
    with np.errstate(over="ignore"):  # what is beyond a partition has not been summed yet
        shares = np.exp(cooled(z, mechanism.temperature) - _peaks(whole)[:, None])
    found: Float64 = (mechanism.gates / np.where(whole.total == 0, 1, whole.total)) @ shares
    return found


def _peaks(whole: Partition) -> Float64:
    return np.where(np.isneginf(whole.maximum), 0, whole.maximum)


def _mixed(z: Floats, mechanism: Mechanism) -> Float64:
    return scores(z, _whole(z, mechanism), mechanism)


def rank(documents: Int64, score: Float64) -> Int64:
    """Positions, best score first; equal scores by the lower row id, so that order is stable."""
    return np.lexsort((documents, -score))


def unmasked(candidates: Logits) -> Logits:
    """The candidates that no mask took out."""
    kept = ~np.isneginf(candidates.z).all(axis=0)
    return Logits(candidates.documents[kept], candidates.z[:, kept])


def _whole(z: Floats, mechanism: Mechanism) -> Partition:
    """The partition (H,) of logits (H, n) with the null."""
    null, tau = mechanism.null_logit, mechanism.temperature
    return partition(z / tau, None if null is None else null / tau)


def _null_weight(whole: Partition, mechanism: Mechanism) -> float:
    if mechanism.null_logit is None:
        return 0.0
    return float(mechanism.gates @ weigh_one(mechanism.null_logit / mechanism.temperature, whole))
