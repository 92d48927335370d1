"""The scale and the no-answer score of answers that are learned from values.

Each held-out query is scored as it is, and with all documents hidden that answer as its own value
would. The scale is the one under which answers are most right; the no-answer score tells the two
apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from scipy.special import expit

from attend.attention import partition
from attend.core.types import Bool, Float64, Int64
from attend.learning.answer_fit import AnswerTargets
from attend.learning.blends import Blends, Held
from attend.learning.calibration import Calibration
from attend.learning.fit import minimise
from attend.learning.no_answer import NO_LEVELS, SHARES, fit_null, threshold_at
from attend.measure.statistics import auroc, calibration_error

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
) -> Calibration:
    """Fit the scale by how right answers are, and no answer by what is seen without them.

    Each query is scored twice, as in `calibrate`: as it is, and with all documents hidden that
    answer as its own value would, which is what one query in ten in use is taken to be like. One
    no-answer logit tells the two apart best, by the likelihood of a logistic regression on the
    log-sum-exp of the logits. It has no levels: where many documents have one value, the best do
    not stand out from those behind them (of banking77's training texts, fitted levels are 0).

    Args:
        start: the scale until now.
        error_rate: the share of queries with an answer that the threshold may refuse.
        share: of all documents, those that could be attended to. More of them make every
            log-sum-exp larger: no-answer score and threshold are moved on by as far as they move
            between that share of what was attended to and all of it.
    """
    scale, _ = fit_scale(attended, targets, start)
    both = [_judged(Blends(attended, targets, item)) for item in (start, scale)]
    fit = _no_answer(attended, scale, error_rate, share)
    calibration = Calibration(
        scale=scale,
        null=None,
        threshold=None,
        error_rate=error_rate,
        ece_before=both[0].error,
        ece_after=both[1].error,
        nll_before=both[0].loss,
        nll_after=both[1].loss,
        questions=len(attended.queries),
        answerable=int(attended.answered.sum()),
    )
    return _with_no_answer(calibration, fit)


def calibrate_answers_checked(
    attended: Held,
    targets: AnswerTargets,
    halves: Int64,
    *,
    start: float,
    error_rate: float,
    share: float = 1.0,
) -> Calibration:
    """Return a calibration whose figures are those of queries outside of the fit.

    Each half of the queries is judged by a fit to the other half.

    Args:
        attended, targets, start, error_rate, share: as `calibrate_answers` takes them.
        halves: (q,) 0 or 1, the half that a query belongs to; near-duplicates belong to one.

    Returns: the fit to all queries; with the scale until now, and a note, where the calibration
        error of the likeliest label is above that. Numbers have no such error, and are not checked.
    """
    fit = calibrate_answers(attended, targets, start, error_rate, share)
    sides = [(_some(attended, halves != half), _some(attended, halves == half)) for half in (0, 1)]
    few = any(len(part.queries) < FEWEST for pair in sides for part in pair)
    if targets.shares is None or few:
        return fit
    scales = [fit_scale(others, targets, start)[0] for others, _ in sides]
    before, after = (
        _judged(
            *(Blends(part, targets, scale) for (_, part), scale in zip(sides, used, strict=True))
        )
        for used in ([start, start], scales)
    )
    fit = replace(
        fit,
        ece_before=before.error,
        ece_after=after.error,
        nll_before=before.loss,
        nll_after=after.loss,
        refused=_refused(sides, scales, error_rate),
    )
    if before.error is None or after.error is None or after.error <= before.error:
        return fit
    stays = replace(
        fit,
        scale=start,
        ece_after=before.error,
        nll_after=before.loss,
        refused=None,
        note=(
            f"On documents that took no part in its fit, the calibration error of the likeliest "
            f"label is {after.error:.3f} with the fitted scale and {before.error:.3f} with the one "
            f"until now, which stays."
        ),
    )
    return _with_no_answer(stays, _no_answer(attended, start, error_rate, share))


def _some(attended: Held, members: Bool) -> Held:
    columns: dict[str, Any] = attended._asdict()
    return Held(**{name: column[members] for name, column in columns.items()})


class _Judged(NamedTuple):
    """The calibration error of the likeliest label and the mean loss; None for numbers."""

    error: float | None
    loss: float | None


def _judged(*parts: Blends) -> _Judged:
    """Judge the answers of several parts together."""
    if parts[0].targets.shares is None:
        return _Judged(None, None)
    shares, correct = zip(*(part.likeliest() for part in parts), strict=True)
    error = calibration_error(np.concatenate(shares), np.concatenate(correct))
    return _Judged(error, -float(np.concatenate([part.gains() for part in parts]).mean()))


def _refused(
    sides: Sequence[tuple[Held, Held]], scales: Sequence[float], error_rate: float
) -> float | None:
    """Return the share of queries with an answer that a threshold of the other half refuses."""
    refused = []
    for (others, part), scale in zip(sides, scales, strict=True):
        fit, (answered, _) = _no_answer(others, scale, error_rate), _log_sums(part, scale)
        if fit is None:
            return None
        refused.append(answered < fit.least)
    return float(np.concatenate(refused).mean())


def told_apart(attended: Held, calibration: Calibration) -> float | None:
    """Return the AUROC of the confidence: of queries that the memory answers, over those with what
    answers them hidden. None without either."""
    answered, hidden = _log_sums(attended, calibration.scale)
    return auroc(answered, hidden) if len(answered) and len(hidden) else None


# -- no answer -------------------------------------------------------------------------------------


class _NoAnswer(NamedTuple):
    """A no-answer logit, and the least log sum that is not refused."""

    null: float
    least: float


def _with_no_answer(calibration: Calibration, fit: _NoAnswer | None) -> Calibration:
    """Return a calibration with a no-answer score, or with a note where nothing could be hidden."""
    if fit is None:
        reason = "Nothing could be hidden to fit a no-answer score to."
        return replace(calibration, null=None, threshold=None, note=reason)
    return replace(calibration, null=fit.null, threshold=float(expit(fit.least - fit.null)))


def _no_answer(
    attended: Held, scale: float, error_rate: float, share: float = 1.0
) -> _NoAnswer | None:
    """Fit no answer as of all documents; None where nothing can be hidden."""
    fit = _fitted(attended, scale, error_rate)
    if fit is None or share >= 1:
        return fit
    less = _fitted(_thinned(attended, share), scale, error_rate)
    if less is None:
        return fit
    return _NoAnswer(2 * fit.null - less.null, 2 * fit.least - less.least)


def _fitted(attended: Held, scale: float, error_rate: float) -> _NoAnswer | None:
    sides = _log_sums(attended, scale)
    if not all(map(len, sides)):
        return None
    least = threshold_at(sides[0], error_rate)
    assert least is not None  # as some are answered
    answers = np.repeat([True, False], [*map(len, sides)])
    counts = np.concatenate(
        [np.full(len(logs), share / len(logs)) for logs, share in zip(sides, SHARES, strict=True)]
    )
    null, _ = fit_null(np.concatenate(sides)[:, None], answers, counts, NO_LEVELS)
    return _NoAnswer(null, least)


def _log_sums(attended: Held, scale: float) -> tuple[Float64, Float64]:
    """Return the log-sum-exp of the logits of queries that the memory answers (k,), as they are,
    and with what answers them hidden (h,)."""
    answered, hidden = (
        partition(scale * scores[attended.answered]).log
        for scores in (attended.scores, attended.hidden)
    )
    return answered[np.isfinite(answered)], hidden[np.isfinite(hidden)]


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
