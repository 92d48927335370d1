"""Temperature, null key and threshold of several heads, whose weights are a mixture."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize

from attend.learn.calibrate import Calibration
from attend.learn.heads import ATTEND, Floats, Heads, mixture
from attend.learn.seen import ERROR_RATE, SHARES, expected_error, threshold_at
from attend.types import Bool, Float64

LEAST = 1e-30
"""The least weight that counts as one: a log of it is finite."""

STEPS = 120
"""Looks at the likelihood: two numbers are found to three digits in half as many."""


class Point(NamedTuple):
    """The factor on all logits, one over the temperature; and the null key's logit before it."""

    factor: float
    null: float


class _Seen(NamedTuple):
    """What questions attend to, and which of it should hold the weight; if none, the null key."""

    z: Float64  # (H, q, a)
    relevant: Bool  # (q, a)


class _Weighed(NamedTuple):
    right: Floats  # (q,) the weight of what should hold it
    null: Floats  # (q,)
    largest: Floats  # (q,) weight, the null key's included
    correct: Floats  # (q,) the share of what is right that its holder has


def calibrate_heads(
    z: Float64,
    gates: Float64,
    relevant: Bool,
    *,
    counts: Float64,
    error_rate: float = ERROR_RATE,
    attend: int = ATTEND,
) -> Calibration:
    """Fit one factor and one null logit to the mixture of H heads, by its likelihood.

    As `calibrate` does for one head: each question is looked at as it is, and with its relevant
    documents hidden.

    Args:
        z: (H, q, c) logits of candidates under the heads' own scales, -inf where padded.
        relevant: (q, c), which of them answer their question.
        counts: (q,) how much each question counts.
    """
    relevant = relevant & np.isfinite(z).all(axis=0)
    hidden = np.where(relevant, -np.inf, z)
    seen = _attended(z, relevant, gates, attend), _attended(hidden, relevant & False, gates, attend)
    answerable = seen[0].relevant.any(axis=1)
    if not answerable.any() or not np.isfinite(hidden).any():
        note = "Held-out questions leave nothing to fit temperature and null key to."
        return Calibration(1.0, None, None, error_rate, questions=len(relevant), note=note)
    counts = counts / counts.mean()
    peaks = z.max(axis=(0, 2))
    start = Point(1.0, float(np.median(peaks[np.isfinite(peaks)])))
    before = _fitted(seen, gates, counts, start, fixed=True)
    point = _fitted(seen, gates, counts, start, fixed=False)
    known = (1 - _weighed(seen[0], gates, point).null[answerable]).astype(np.float64)
    losses = [_loss(seen, gates, counts, each) for each in (before, point)]
    errors = [_error(seen, gates, counts, each) for each in (before, point)]
    return Calibration(
        scale=point.factor,
        null=point.null,
        threshold=threshold_at(known, error_rate, counts[answerable]),
        error_rate=error_rate,
        ece_before=errors[0],
        ece_after=errors[1],
        nll_before=losses[0],
        nll_after=losses[1],
        questions=len(relevant),
        answerable=int(answerable.sum()),
    )


def _attended(z: Float64, relevant: Bool, gates: Float64, attend: int) -> _Seen:
    """The best by the mixture: the few that a fit must look at again and again."""
    behind = mixture(z, Heads(np.ones(len(z)), gates), attend).behind
    order = np.argsort(-behind, axis=1, kind="stable")[:, :attend]
    taken = np.take_along_axis(z, order[None], axis=2)
    return _Seen(taken, np.take_along_axis(relevant, order, axis=1))


def _fitted(
    seen: tuple[_Seen, _Seen], gates: Float64, counts: Float64, start: Point, *, fixed: bool
) -> Point:
    """The point of least loss; with the factor `fixed` to that of the start, if so."""

    def at(x: Float64) -> Point:
        factor = start.factor if fixed else start.factor * math.exp(float(x[1]))
        return Point(factor, start.null + float(x[0]))

    def loss(x: Float64) -> float:
        # As much as one question would say for the scales learned, as in `calibrate`.
        away = 0.0 if fixed else float(x[1]) ** 2 / (2 * len(counts))
        return _loss(seen, gates, counts, at(x)) + away

    found = minimize(
        loss,
        np.zeros(1 if fixed else 2),
        method="Nelder-Mead",
        options={"xatol": 1e-3, "fatol": 1e-6, "maxfev": STEPS},
    )
    return at(found.x)


def _weighed(seen: _Seen, gates: Float64, point: Point) -> _Weighed:
    heads = Heads(np.ones(len(gates)), gates).calibrated(1 / point.factor, point.null)
    mixed = mixture(seen.z, heads, seen.z.shape[2])
    known = seen.relevant.any(axis=1)
    right = np.where(known, (mixed.weights * seen.relevant).sum(axis=1), mixed.null)
    first = mixed.weights.argmax(axis=1)[:, None]
    best = np.take_along_axis(mixed.weights, first, axis=1)[:, 0]
    share = np.take_along_axis(seen.relevant, first, axis=1)[:, 0] / np.maximum(
        seen.relevant.sum(axis=1), 1
    )
    correct = np.where(best > mixed.null, share, ~known)
    return _Weighed(right, mixed.null, np.maximum(best, mixed.null), correct)


def _loss(seen: tuple[_Seen, _Seen], gates: Float64, counts: Float64, point: Point) -> float:
    """Mean negative log weight of what should hold it, over both views by their shares."""
    rights = [_weighed(each, gates, point).right for each in seen]
    means = [-(counts * np.log(np.maximum(each, LEAST))).mean() for each in rights]
    return float(np.dot(SHARES, means))


def _error(seen: tuple[_Seen, _Seen], gates: Float64, counts: Float64, point: Point) -> float:
    """Expected calibration error of the largest weight of each question."""
    weighed = [_weighed(each, gates, point) for each in seen]
    return expected_error(
        np.concatenate([each.largest for each in weighed]),
        np.concatenate([each.correct for each in weighed]),
        np.concatenate([share * counts for share in SHARES]),
    )
