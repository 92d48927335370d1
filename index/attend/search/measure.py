"""Whether the weights of two collections can be told by one softmax, and what it takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp

from attend.search.attend import Attention
from attend.settings import Settings


class Measure(NamedTuple):
    """One answer's attention, as a share of a larger one.

    Attributes:
        scale: the same for the same scale of logits; None where there is no single one, as with
            several heads or where keys were moved by what their own collection learned.
        mass: log of the sum of exp(logit / temperature) over the attended; -inf without any.
        null: the null key's part of such a sum; None without one.
    """

    scale: str | None
    mass: float
    null: float | None


class Shares(NamedTuple):
    """Several attentions as one softmax over all that they attend to."""

    of: list[float]
    confidence: float


def measure_of(attention: Attention, settings: Settings, query: int) -> Measure:
    """The measure of one query's attention."""
    scoring, found = attention.scoring, attention.attended[query]
    mechanism, made = scoring.mechanism, scoring.view.made
    if mechanism.heads > 1 or made.moved:
        return Measure(None, -math.inf, None)
    tau = mechanism.temperature
    parts = (
        settings.encoder,
        settings.scorer,
        settings.normalize,
        made.projection.fingerprint,
        made.tuning,
        mechanism.scorer_name,
        mechanism.scale.tolist(),
        tau,
    )
    mass = float(found.log_partition[0])
    if found.total_documents == 0 or found.null_weight >= 1:
        mass = -math.inf
    elif found.null_weight > 0:
        mass += math.log1p(-found.null_weight)
    null = mechanism.null_logit
    return Measure(repr(parts), mass, None if null is None else float(null[0]) / tau)


def shares_of(measures: Sequence[Measure]) -> Shares | None:
    """Each attention's share of one softmax over all; None where their scales differ.

    The null key stands in it once: that nothing here answers is said of all together.
    """
    scales = {measure.scale for measure in measures}
    if len(scales) != 1 or None in scales:
        return None
    masses = np.array([measure.mass for measure in measures])
    null = -math.inf if measures[0].null is None else measures[0].null
    whole = logsumexp([*masses, null])
    if whole == -math.inf:
        return Shares([0.0] * len(measures), 0.0)
    of = np.exp(masses - whole)
    return Shares(of.tolist(), float(of.sum()))
