"""Several heads as one ranking: the mixture of their softmaxes, as a search has it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attend.types import Float64

Floats = NDArray[np.floating[Any]]

ATTEND = 100


class Heads(NamedTuple):
    """How heads are weighed against each other.

    Attributes:
        scales: (H,) the factor on each head's scores.
        gates: (H,), summing to one.
        null: (H,) the null key's logit in each; None where there is none.
        temperature: of all logits.
    """

    scales: Float64
    gates: Float64
    null: Float64 | None = None
    temperature: float = 1.0

    @classmethod
    def alike(cls, scales: Float64) -> Heads:
        """Heads that count the same."""
        return cls(scales, np.full(len(scales), 1 / len(scales)))

    def calibrated(self, temperature: float, null: float | None) -> Heads:
        """The same at a temperature, with a null key of one logit in each."""
        logits = None if null is None else np.full(len(self.scales), null)
        return self._replace(temperature=temperature, null=logits)


ONE_HEAD = Heads.alike(np.ones(1))


class Mixed(NamedTuple):
    """What several heads' softmaxes come to together.

    Attributes:
        weights: (q, c), 0 for what is not attended to.
        behind: (q, c) the weights in the mixture over all, by which what is not attended to is
            ranked.
        null: (q,) the null key's weight.
    """

    weights: Floats
    behind: Floats
    null: Floats


def mixture(z: Floats, heads: Heads, attend: int = ATTEND) -> Mixed:
    """Logits (H, q, c) as weights among what a search would attend to.

    A search attends to the best by the mixture over all, and weighs those among themselves and
    the null key.
    """
    gates = heads.gates[:, None, None].astype(z.dtype)
    null = -np.inf if heads.null is None else (heads.null / heads.temperature)[:, None, None]
    z = z / z.dtype.type(heads.temperature)
    peaks = np.maximum(z.max(axis=2, keepdims=True), null).astype(z.dtype)  # (H, q, 1)
    peaks[np.isneginf(peaks)] = 0  # nothing to weigh: no NaN either
    shares = np.exp(z - peaks)
    nothing = np.exp(null - peaks).astype(z.dtype)
    # Where nothing is to be weighed the sum is zero, and no weight comes of it.
    tiny = np.finfo(z.dtype).tiny
    whole = gates / np.maximum(shares.sum(axis=2, keepdims=True) + nothing, tiny)
    behind = (shares * whole).sum(axis=0)
    attended = _best(behind, attend)
    kept = np.where(attended, shares, 0).sum(axis=2, keepdims=True)
    among = gates / np.maximum(kept + nothing, tiny)
    weights = np.where(attended, (shares * among).sum(axis=0), 0)
    return Mixed(weights, behind, (nothing * among).sum(axis=(0, 2)))


def ranked(mixed: Mixed) -> Floats:
    """(q, c) the log of each weight; what is not attended to stands behind all that is."""
    tiny = np.finfo(mixed.weights.dtype).tiny
    logs = np.log(np.maximum(mixed.weights, tiny))
    return np.where(mixed.weights > 0, logs, 2 * np.log(tiny) + mixed.behind)


def _best(weights: Floats, count: int) -> NDArray[np.bool_]:
    if weights.shape[1] <= count:
        return np.ones(weights.shape, dtype=bool)
    last = -np.partition(-weights, count - 1, axis=1)[:, count - 1, None]
    return np.asarray(weights >= last)
