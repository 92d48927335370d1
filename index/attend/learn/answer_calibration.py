"""The scale and the no-answer score of answers that are learned from values.

Each held-out query is scored as it is, and with all documents hidden that answer as its own value
would. The scale is the one under which answers are most right; the no-answer score tells the two
apart.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.special import expit

from attend.attention import partition
from attend.learn.answers import AnswerTargets
from attend.learn.blends import Blends, Held
from attend.learn.calibration import Calibration
from attend.learn.no_answer import (
    NO_LEVELS,
    SHARES,
    Levels,
    fit_null,
    minimise,
    null_logits,
    threshold_at,
)
from attend.measure.statistics import auroc, calibration_error
from attend.types import Bool, Float64

SPAN = math.log(30)
"""How far from its start a scale may move, as a log."""

STEP = 1e-3
"""A difference of log scales by which a slope is measured."""

FEWEST = 20
"""Queries of a half below which nothing is checked: an error of ten is noise."""


def fit_scale(attended: Held, targets: AnswerTargets, start: float) -> tuple[float, float]:
    """Return the scale under which answers are most right, and their mean gain under it."""
    middle = math.log(start)

    def loss(log_scale: float) -> float:
        return -float(Blends(attended, targets, math.exp(log_scale)).gains().mean())

    def slope(point: Float64) -> tuple[float, Float64]:
        index = float(point[0])
        return loss(index), np.array([(loss(index + STEP) - loss(index - STEP)) / (2 * STEP)])

    point, least = minimise(slope, [middle], [(middle - SPAN, middle + SPAN)])
    return math.exp(float(point[0])), -least


def calibrate_answers(
    attended: Held,
    targets: AnswerTargets,
    start: float,
    error_rate: float,
    share: float = 1.0,
    levels: Levels | None = NO_LEVELS,
) -> Calibration:
    """Fit the scale by how right answers are, and no answer by what is seen without them.

    Each query is scored twice, as in `calibrate`: as it is, and with all documents hidden that
    answer as its own value would, which is what one query in ten in use is taken to be like. One
    no-answer logit, with levels, tells the two apart best, by the likelihood of a logistic
    regression on the log-sum-exp of the logits.

    Args:
        start: the scale until now.
        error_rate: the share of queries with an answer that the threshold may refuse.
        share: of all documents, those that could be attended to. More of them make every
            log-sum-exp larger: no-answer score and threshold are moved on by as far as they move
            between that share of what was attended to and all of it.
        levels: as they have to be; fitted if None.
    """
    scale, _ = fit_scale(attended, targets, start)
    both = [Blends(attended, targets, item) for item in (start, scale)]
    labels = targets.shares is not None
    errors = [calibration_error(*blends.likeliest()) for blends in both] if labels else [None, None]
    losses = [-float(blends.gains().mean()) for blends in both] if labels else [None, None]
    fit = _no_answer(attended, scale, error_rate, share, levels)
    return Calibration(
        scale=scale,
        null=None if fit is None else fit.null,
        levels=None if fit is None else fit.levels,
        threshold=None if fit is None else float(expit(fit.least)),
        error_rate=error_rate,
        ece_before=errors[0],
        ece_after=errors[1],
        nll_before=losses[0],
        nll_after=losses[1],
        questions=len(attended.queries),
        answerable=int(attended.answered.sum()),
        note="Nothing could be hidden to fit a no-answer score to." if fit is None else None,
    )


def told_apart(attended: Held, calibration: Calibration) -> float | None:
    """Return the AUROC of the confidence: of queries that the memory answers, over those with what
    answers them hidden. None without either."""
    sides = _sides(attended, calibration.scale)
    if calibration.null is None or not all(map(len, sides)):
        return None
    levels = calibration.levels or NO_LEVELS
    return auroc(*(_margins(side, levels) for side in sides))


# -- no answer -------------------------------------------------------------------------------------


class _NoAnswer(NamedTuple):
    """A no-answer logit with its levels, and the least margin over it that is not refused."""

    null: float
    levels: Levels
    least: float


def _no_answer(
    attended: Held, scale: float, error_rate: float, share: float, levels: Levels | None
) -> _NoAnswer | None:
    """Fit no answer as of all documents; None where nothing can be hidden."""
    fit = _fitted(attended, scale, error_rate, levels)
    if fit is None or share >= 1:
        return fit
    less = _fitted(_thinned(attended, share), scale, error_rate, fit.levels)
    if less is None:
        return fit
    return _NoAnswer(2 * fit.null - less.null, fit.levels, 2 * fit.least - less.least)


def _fitted(
    attended: Held, scale: float, error_rate: float, levels: Levels | None
) -> _NoAnswer | None:
    sides = _sides(attended, scale)
    if not all(map(len, sides)):
        return None
    answers = np.repeat([True, False], [*map(len, sides)])
    counts = np.concatenate(
        [np.full(len(side), share / len(side)) for side, share in zip(sides, SHARES, strict=True)]
    )
    null, fitted = fit_null(np.concatenate(sides), answers, counts, levels)
    least = threshold_at(_margins(sides[0], fitted), error_rate)
    assert least is not None  # as some are answered
    return _NoAnswer(null, fitted, least - null)


def _sides(attended: Held, scale: float) -> tuple[Float64, Float64]:
    """Return the logits of queries that the memory answers (k, a), as they are, and with what
    answers them hidden (h, a)."""
    answered, hidden = (
        scale * scores[attended.answered] for scores in (attended.scores, attended.hidden)
    )
    return answered[_any(answered)], hidden[_any(hidden)]


def _any(z: Float64) -> Bool:
    return np.asarray(np.isfinite(z).any(axis=1))


def _margins(z: Float64, levels: Levels) -> Float64:
    """Return how far the log sums of logits (q, a) stand out from what comes behind the best."""
    return np.asarray(partition(z).log - null_logits(z, 0.0, levels))


def _thinned(attended: Held, share: float) -> Held:
    """Return the same queries, as if only a drawn share of the documents were stored.

    A query stays answered while any of the documents that answer it is left.
    """
    random = np.random.default_rng(0)
    there, left = (random.random(item.shape) < share for item in (attended.scores, attended.hidden))
    answering = attended.right > 0
    lost = answering.any(axis=1) & ~(answering & there).any(axis=1)
    return attended._replace(
        scores=np.where(there, attended.scores, -np.inf),
        hidden=np.where(left, attended.hidden, -np.inf),
        answered=attended.answered & ~lost,
    )
