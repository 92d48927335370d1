"""A calibration checked on questions that took no part in its fit.

Figures on the questions of the fit flatter it. So each half of the questions is judged by a fit to
the other half, and the fit to all is taken only if its error, judged so, is not above that of the
scale in use until now.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from attend.learn.calibration import (
    Calibration,
    Loss,
    Scored,
    as_is_and_hidden,
    best_weights,
    calibrate_sides,
    likelihood,
)
from attend.learn.no_answer import ERROR_RATE, SHARES, Levels, confidence, threshold_at
from attend.measure.statistics import calibration_error
from attend.types import Bool, Float64, Int64

FEWEST = 20
"""Questions of a half below which nothing is checked: an error of ten is noise."""


class _Half(NamedTuple):
    """One half of the questions, as judged by a fit to the other.

    Attributes:
        after, before: scale, null and levels of the fit, and of the scale until now.
        threshold: of the fit.
    """

    as_is: Scored
    hidden: Scored
    after: tuple[float, float, Levels | None]
    before: tuple[float, float, None]
    threshold: float


def calibrate_checked(
    scores: Float64,
    relevant: Bool,
    halves: Int64,
    counts: Float64,
    *,
    hidden: Float64 | None = None,
    start: float,
    error_rate: float = ERROR_RATE,
) -> Calibration:
    """Return a calibration whose figures are those of questions outside of the fit.

    Args:
        scores, relevant, counts, hidden, start, error_rate: as `calibrate` takes them.
        halves: (q,) 0 or 1, the half that a question belongs to; the same question of several
            splits belongs to one half.

    Returns: the fit to all questions; with the scale in use until now, and a note, where the
        fit's calibration error of the best weight is above that.
    """
    sides = as_is_and_hidden(scores, relevant, counts=counts, hidden=hidden)
    fit = calibrate_sides(*sides, error_rate=error_rate, start=start)
    parts = [_half(sides, halves == half, error_rate, start) for half in (0, 1)]
    judged = [part for part in parts if part is not None]
    if fit.null is None or len(judged) < len(parts):
        return fit
    ece_before = _error(judged, "before")
    ece_after = _error(judged, "after")
    fit = replace(
        fit,
        ece_before=ece_before,
        ece_after=ece_after,
        nll_before=_loss(judged, "before"),
        nll_after=_loss(judged, "after"),
        refused=_refused(judged),
    )
    return fit if ece_after <= ece_before else _kept(fit, *sides, start)


def _half(
    sides: tuple[Scored, Scored], judged: Bool, error_rate: float, start: float
) -> _Half | None:
    """Fit to the questions that are not judged; None where either side has too few."""
    if min(judged.sum(), (~judged).sum()) < FEWEST:
        return None
    others = (side.some(~judged) for side in sides)
    fit = calibrate_sides(*others, error_rate=error_rate, start=start)
    as_is, hidden = (side.some(judged) for side in sides)
    if fit.null is None or fit.null_before is None or not as_is.answerable.any():
        return None
    before = start, fit.null_before, None
    return _Half(as_is, hidden, (fit.scale, fit.null, fit.levels), before, fit.threshold or 0.0)


def _error(judged: list[_Half], name: str) -> float:
    """Return the calibration error of the best weight over all questions."""
    columns = [
        (*best_weights(side, *getattr(part, name)), share * side.counts)
        for part in judged
        for share, side in zip(SHARES, (part.as_is, part.hidden), strict=True)
    ]
    weights, correct, counts = (np.concatenate(column) for column in zip(*columns, strict=True))
    return calibration_error(weights, correct, counts)


def _loss(judged: list[_Half], name: str) -> float:
    """Return the mean negative log weight of what should hold it, over all questions."""
    losses = [likelihood(part.as_is, part.hidden, *getattr(part, name)) for part in judged]
    return float(np.average(losses, weights=[len(part.as_is.scores) for part in judged]))


def _refused(judged: list[_Half]) -> float:
    """Return the share of answerable questions that the other half's threshold refuses."""
    refused, counts = [], []
    for part in judged:
        answerable = part.as_is.answerable
        refused.append(confidence(part.as_is.scores[answerable], *part.after) < part.threshold)
        counts.append(part.as_is.counts[answerable])
    return float(np.average(np.concatenate(refused), weights=np.concatenate(counts)))


def _kept(fit: Calibration, as_is: Scored, hidden: Scored, scale: float) -> Calibration:
    """Return the calibration with the scale until now, and the no-answer score that suits it."""
    null = Loss(as_is, hidden, scale).best_null()
    answered = confidence(as_is.scores, scale, null)[as_is.answerable]
    return replace(
        fit,
        scale=scale,
        null=null,
        levels=None,
        threshold=threshold_at(answered, fit.error_rate, as_is.counts[as_is.answerable]),
        ece_after=fit.ece_before,
        nll_after=fit.nll_before,
        refused=None,
        note=(
            f"On questions that took no part in its fit, the calibration error of the best weight "
            f"is {fit.ece_after:.3f} with the fitted scale and {fit.ece_before:.3f} with the one "
            f"until now, which stays."
        ),
    )
