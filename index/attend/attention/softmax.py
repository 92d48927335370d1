"""Softmax with masks and a no-answer score, its sums, and the mixture of heads."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike

from attend.errors import InvalidRequest
from attend.types import Float64, Floats


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
