"""Softmax with masks and a no-answer score, its sums, and the attention over candidates."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike

from attend.attention.mechanism import Mechanism
from attend.core.errors import InvalidRequest
from attend.core.types import Float64, Floats, Int64


class Partition(NamedTuple):
    """A sum of exponentials, kept as the largest logit and the sum relative to it.

    One number, its log, would do but for large logits, whose rounding it would multiply
    into the weights.
    """

    maximum: Float64
    """(...,) -inf where all was masked."""
    total: Float64
    """(...,) sum of exp(z - maximum); at least 1, or 0 where all was masked."""

    @property
    def log(self) -> Float64:
        """(...,) log sum exp, -inf where all was masked."""
        with np.errstate(divide="ignore"):
            return np.asarray(self.maximum + np.log(self.total))


class Softmax(NamedTuple):
    """Weights over the last axis, which with the null's sum to one."""

    weights: Float64
    """(..., n); zero where masked."""
    null_weight: Float64
    """(...,); zero without a no-answer score."""
    log_partition: Float64
    """(...,) log of the sum of exp(logit); -inf if all was masked."""

    @classmethod
    def of(cls, logits: ArrayLike, null_logit: ArrayLike | None = None) -> Self:
        """Return exp(z) over its sum along the last axis, in float64.

        A logit of -inf is masked and weighs nothing. Where all are masked, weights are zero,
        never uniform, and the no-answer score, if any, has all the weight.

        Raises:
            InvalidRequest: a logit is NaN or +inf.

        >>> Softmax.of([0.9, 0.95, 0.2, 0.6]).weights.round(4).tolist()
        [0.3041, 0.3197, 0.151, 0.2253]
        """
        z = np.asarray(logits, dtype=np.float64)
        null = None if null_logit is None else np.asarray(null_logit, dtype=np.float64)
        sums = partition(z, null)
        null_weight = np.zeros(sums.total.shape) if null is None else weigh_one(null, sums)
        return cls(weigh(z, sums), null_weight, sums.log)


def log_shares(z: Any) -> Any:
    """Return the log of the softmax of a torch tensor (..., n), through which a loss learns."""
    return z.log_softmax(dim=-1)


def log_total(z: Any) -> Any:
    """Return the log of the sum of exponentials of a torch tensor (..., n): (...,)."""
    return z.logsumexp(dim=-1)


def partition(z: Floats, null: Float64 | None = None) -> Partition:
    """Sum exponentials over the last axis and the no-answer score: (..., n) -> (...,)."""
    sums, _ = summed(z)
    return sums if null is None else join(sums, Partition(null, np.ones(null.shape)))


def summed(z: Floats) -> tuple[Partition, Floats]:
    """Sum exponentials without a no-answer score; return also exp(z - maximum) (..., n)."""
    maximum = np.asarray(z.max(axis=-1, initial=-np.inf))
    if not (maximum < np.inf).all():  # NaN fails too
        raise InvalidRequest(
            "A logit is NaN or infinite; the query or a key holds NaN, infinity or numbers "
            "too large to multiply."
        )
    shares = _relative(z, maximum[..., None])
    total = np.asarray(shares.sum(axis=-1))
    return Partition(maximum.astype(np.float64), total.astype(np.float64)), shares


def join(one: Partition, other: Partition) -> Partition:
    """Return the partition of the logits of both together."""
    maximum = np.maximum(one.maximum, other.maximum)
    parts = [part.total * _relative(part.maximum, maximum) for part in (one, other)]
    return Partition(maximum, parts[0] + parts[1])


def weigh(z: Floats, sums: Partition) -> Float64:
    """Turn logits (..., n) into shares of a partition (...,); zero where all were masked."""
    shares = _relative(z, sums.maximum[..., None])
    return np.asarray(shares / np.where(sums.total == 0, 1, sums.total)[..., None])


def weigh_one(z: Float64, sums: Partition) -> Float64:
    """Turn one logit for each partition (...,) into its share."""
    return np.asarray(weigh(z[..., None], sums)[..., 0])


def log_mix(log_weights: Float64, gates: Float64) -> Float64:
    """Return the log of the mixture from log weights (..., H, n): (..., n).

    In logs, so that documents too far off to have a weight still have an order.
    """
    with np.errstate(divide="ignore"):
        shares = log_weights + np.log(gates)[:, None]
        # One exponential for each head, where logaddexp would take two for each.
        return partition(np.moveaxis(shares, -2, -1)).log


def _relative(z: Floats, maximum: Floats) -> Floats:
    """Return exp(z - maximum): 0 for masked logits, also where nothing else is left."""
    with np.errstate(over="ignore"):  # a difference that overflows weighs nothing
        apart = np.asarray(z - np.where(np.isneginf(maximum), np.zeros_like(maximum), maximum))
        return np.exp(apart, out=apart)


# -- the attention of one query over candidates ---------------------------------------------

RUNNERS_UP = ((1, 10), (10, 100))
"""Ranks, counted from 0, whose mean logits tell how high a query scores what does not answer it.
(AUROC of "no answer" on training questions, with the best score alone and beside the first mean:
SciFact .735 and .778, CoNaLa .649 and .674; banking77 .863, and .897 with the second.)"""


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
    """The number of documents that share the weights, listed or not; 0 if all were masked."""
    confidence: float
    """One less the null's weight; 0 where there was nothing to attend to."""
    null: Float64 | None = None
    """(H,) the no-answer score over the temperature; None without one."""

    @property
    def log_partition(self) -> Float64:
        """(H,) log of each head's sum; -inf if all was masked and there is no null."""
        return self.partition.log


def runners_up(z: Floats) -> Float64:
    """Return the mean logits of the documents ranked 2 to 10, and 11 to 100.

    (n,) -> (2,), and of several queries (q, n) -> (q, 2).

    Args:
        z: at least one logit, best first. The last stands for ranks without a document.

    >>> runners_up(np.array([3.0, 2.0, 1.0])).tolist()
    [1.5, 1.0]
    """
    last = z.shape[-1] - 1
    return np.array([z[..., min(first, last) : stop].mean(axis=-1) for first, stop in RUNNERS_UP]).T


def attend_logits(candidates: Logits, mechanism: Mechanism, attend: int | None = None) -> Attended:
    """Return the softmax over the `attend` best by the mixture of heads, or over all.

    Documents at -inf are masked.
    """
    best = candidates.unmasked()
    if mechanism.heads == 1:  # its scores are its logits, whatever they sum to
        best = best.some(rank(best.documents, best.z[0])[:attend])
        null = mechanism.null
        if null is not None and mechanism.levels is not None and len(best.documents):
            null = null + mechanism.levels @ runners_up(best.z[0]) / mechanism.temperature
        sums = partition(best.z / mechanism.temperature, null)
        return _attended(best, best.z[0], sums, mechanism, len(best.documents), null)
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
    best, null = listed.some(order), mechanism.null
    return _attended(best, score[order], sums, mechanism, total_documents, null)


def _attended(
    best: Logits,
    score: Floats,
    sums: Partition,
    mechanism: Mechanism,
    total_documents: int,
    null: Float64 | None,
) -> Attended:
    z = best.z.astype(np.float64, copy=False)
    heads = weigh(z / mechanism.temperature, sums)  # (H, n)
    null_weight = 0.0
    if null is not None:
        null_weight = float(mechanism.gates @ weigh_one(null, sums))
    return Attended(
        documents=best.documents,
        scores=np.asarray(score, dtype=np.float64),
        logits=z,
        weights=mechanism.gates @ heads,
        head_weights=heads,
        partition=sums,
        null_weight=null_weight,
        total_documents=total_documents,
        confidence=1 - null_weight if total_documents else 0.0,
        null=null,
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
