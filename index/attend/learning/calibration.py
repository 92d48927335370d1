"""The scale and the no-answer score that make weights probabilities, and their threshold.

Each held-out question is scored twice. As it is, its relevant documents should hold the weight.
With them hidden, as if they were not stored, the no-answer key should: that is what a question that
nothing here answers looks like. One scale and one no-answer score are fitted to
both at once, by the likelihood (temperature scaling: Guo et al. 2017, with a class for none). Then
the no-answer score may follow how high the documents behind the best score: an answer stands out.

Figures on the questions of the fit flatter it. So each half of the questions is judged by a fit to
the other half, and the fit to all is taken only if its error, judged so, is not above that of the
scale in use until now.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from attend.attention import partition
from attend.core.types import Bool, Float64, Int64, Json
from attend.learning.data import UNIT_SCALE
from attend.learning.fit import minimise
from attend.learning.no_answer import (
    ERROR_RATE,
    NO_LEVELS,
    SHARES,
    Levels,
    confidence,
    fit_null,
    null_logits,
    threshold_at,
)
from attend.measure.statistics import calibration_error

ATTEND = 100
"""Documents that a search attends to."""

SPAN = math.log(1e3)
"""How far from its start a scale may move, as a log: beyond it every softmax is one-hot."""

STARTS = (0.25, 1.0, 4.0)
"""Factors on the scale at which the search starts: the likelihood need not be convex in it."""


@dataclass(frozen=True)
class Calibration:
    """The fitted numbers, and how true weights were before and after.

    `before` is the given scale, with the no-answer score that suits it best.

    Attributes:
        scale: the factor on scores.
        null: the no-answer logit, beside scaled scores; None where it cannot be fitted.
        levels: how much of a question's `runners_up`, scaled, is added to it.
        threshold: with a confidence (1 - weight of no answer) below it, nothing here answers.
        error_rate: the share of answerable questions that the threshold may refuse.
        ece_before, ece_after: expected calibration error of the largest weight, no answer included.
        nll_before, nll_after: mean negative log weight of what should hold it, in nats.
        null_before: the no-answer logit that suits the given scale best.
        refused: the share of answerable questions refused by a threshold that was fitted without
            them; None where that was not checked.
        questions, answerable: all, and those with a relevant document among those attended to.
        note: a sentence, where something could not be fitted.
    """

    scale: float
    null: float | None
    threshold: float | None
    error_rate: float
    ece_before: float | None = None
    ece_after: float | None = None
    nll_before: float | None = None
    nll_after: float | None = None
    null_before: float | None = None
    levels: Levels | None = None
    refused: float | None = None
    questions: int = 0
    answerable: int = 0
    note: str | None = None

    @property
    def figures(self) -> dict[str, Json]:
        """All of them, as they are stored."""
        return {**vars(self), "levels": None if self.levels is None else list(self.levels)}


class Scored(NamedTuple):
    """The documents that questions attend to, best first.

    Attributes:
        scores: (q, a), -inf where there are fewer.
        relevant: (q, a), which should hold the weight; in a row without any, the no-answer key.
        counts: (q,) how much each question counts; their mean is one.
    """

    scores: Float64
    relevant: Bool
    counts: Float64

    @property
    def answerable(self) -> Bool:
        """(q,) whether a relevant document is attended to."""
        return np.asarray(self.relevant.any(axis=1))

    def some(self, members: Bool) -> Scored:
        """Return some of the questions."""
        counts = self.counts[members]
        counts = counts / (counts.mean() if len(counts) else 1)
        return Scored(self.scores[members], self.relevant[members], counts)


def calibrate(
    scores: Float64,
    relevant: Bool,
    *,
    error_rate: float = ERROR_RATE,
    attend: int = ATTEND,
    start: float = UNIT_SCALE,
    counts: Float64 | None = None,
    hidden: Float64 | None = None,
) -> Calibration:
    """Fit scale and no-answer score to the candidates of held-out questions.

    Args:
        scores: (q, a), unscaled (logits at scale 1), -inf where a question has fewer
            candidates. Send more than are attended to: hiding moves the next best up.
        relevant: (q, a), which of them answer their question.
        error_rate: the share of answerable questions that the threshold may refuse.
        attend: how many documents a search attends to.
        start: the scale in use until now. A fit stays near it where there are too few
            questions to tell.
        counts: (q,) how much each question counts; all the same if absent.
        hidden: (q, b) as `scores`, of a collection without what answers a question; if absent,
            `scores` without it: right where no document's score depends on another's.
    """
    sides = as_is_and_hidden(scores, relevant, attend, counts, hidden)
    return calibrate_sides(*sides, error_rate=error_rate, start=start)


def calibrate_sides(
    as_is: Scored, hidden: Scored, *, error_rate: float, start: float
) -> Calibration:
    """Fit scale and no-answer score to what questions attend to, as they are and without answers.

    The arguments are those of `calibrate`.
    """
    reason = _unfit(as_is, hidden)
    if reason:
        return Calibration(start, None, None, error_rate, questions=len(as_is.scores), note=reason)
    loss = Loss(as_is, hidden, start)
    before, (scale, _) = loss.best_null(), loss.best()
    null, levels = fit_null(
        scale * np.concatenate([as_is.scores, hidden.scores]),
        np.concatenate([as_is.answerable, hidden.answerable]),
        np.concatenate([SHARES[0] * as_is.counts, SHARES[1] * hidden.counts]),
    )
    # Where no loss is least (all is right already), the optimiser may end behind the start.
    fits = (scale, null, levels), (start, before, NO_LEVELS)
    after = min(fits, key=lambda fit: likelihood(as_is, hidden, *fit))
    scale, null, levels = after
    answered = confidence(as_is.scores, *after)[as_is.answerable]
    return Calibration(
        scale=scale,
        null=null,
        levels=levels,
        threshold=threshold_at(answered, error_rate, as_is.counts[as_is.answerable]),
        error_rate=error_rate,
        ece_before=top_calibration_error(as_is, hidden, start, before),
        ece_after=top_calibration_error(as_is, hidden, *after),
        nll_before=likelihood(as_is, hidden, start, before),
        nll_after=likelihood(as_is, hidden, *after),
        null_before=before,
        questions=len(as_is.scores),
        answerable=int(as_is.answerable.sum()),
    )


def as_is_and_hidden(
    scores: Float64,
    relevant: Bool,
    attend: int = ATTEND,
    counts: Float64 | None = None,
    hidden: Float64 | None = None,
) -> tuple[Scored, Scored]:
    """Return what questions attend to as they are, and with their relevant documents hidden."""
    counts = np.ones(len(scores)) if counts is None else counts
    counts = counts / (counts.mean() if len(counts) else 1)
    relevant = relevant & np.isfinite(scores)
    hidden = np.where(relevant, -np.inf, scores) if hidden is None else hidden
    return (
        _attended(scores, relevant, counts, attend),
        _attended(hidden, np.zeros(hidden.shape, dtype=bool), counts, attend),
    )


def _attended(scores: Float64, relevant: Bool, counts: Float64, attend: int) -> Scored:
    order = np.argsort(-scores, axis=1, kind="stable")[:, :attend]
    marks = np.take_along_axis(relevant, order, axis=1)
    return Scored(np.take_along_axis(scores, order, axis=1), marks, counts)


class Loss:
    """The mean negative log likelihood of both sides, as a function of log scale and shift.

    The no-answer logit is scale * center + shift, with the center amid the best scores: the two
    parameters then hardly depend on each other, wherever scores lie.
    """

    def __init__(self, as_is: Scored, hidden: Scored, start: float) -> None:
        self.sides = (as_is, hidden)
        self.start = start
        peaks = np.concatenate([side.scores[:, 0] for side in self.sides])
        self.center = float(np.median(peaks[np.isfinite(peaks)]))

    def best(self) -> tuple[float, float]:
        """Return scale and no-answer logit of least loss, from several starts."""
        middle = math.log(self.start)
        bounds = [(middle - SPAN, middle + SPAN), (-math.inf, math.inf)]
        points = [minimise(self, (middle + math.log(by), 0.0), bounds) for by in STARTS]
        log_scale, shift = min(points, key=lambda point: point[1])[0]
        return float(np.exp(log_scale)), self._null(float(np.exp(log_scale)), float(shift))

    def best_null(self) -> float:
        """Return the no-answer logit of least loss at the scale of the start."""
        middle = math.log(self.start)
        bounds = [(middle, middle), (-math.inf, math.inf)]
        return self._null(self.start, float(minimise(self, (middle, 0.0), bounds)[0][1]))

    def __call__(self, point: Float64) -> tuple[float, Float64]:
        """Return the loss and its gradient at (log scale, shift)."""
        scale = float(np.exp(point[0]))
        null = self._null(scale, float(point[1]))
        value, gradient = 0.0, np.zeros(2)
        for share, side in zip(SHARES, self.sides, strict=True):
            loss, by_scale, by_null = _slopes(side, scale, null)
            value += share * loss
            gradient += share * np.array([scale * (by_scale + self.center * by_null), by_null])
        # The weight of one question, for the scale in use: without it, questions that
        # are all right would ask for a scale without end, and equal scores for none.
        away, weight = float(point[0]) - math.log(self.start), 1 / len(self.sides[0].scores)
        gradient[0] += weight * away
        return value + weight * away**2 / 2, gradient

    def _null(self, scale: float, shift: float) -> float:
        return scale * self.center + shift


def _slopes(side: Scored, scale: float, null: float | Float64) -> tuple[float, float, float]:
    """Return the mean loss of one side, and its derivatives by scale and by no-answer logit."""
    z = scale * side.scores  # (q, a)
    total, right = _log_sums(side, z, null)  # (q,)
    finite = np.where(np.isfinite(side.scores), side.scores, 0.0)
    weights = np.exp(z - total[:, None])
    # Each document's share of what is right; no answer has it all where nothing is relevant.
    safe = np.where(side.answerable, right, 0.0)[:, None]
    shares = np.where(side.relevant, np.exp(np.minimum(z - safe, 0.0)), 0.0)
    by_scale = ((weights - shares) * finite).sum(axis=1)
    by_null = np.exp(null - total) - ~side.answerable
    loss, slope, shift = (
        float((side.counts * values).mean()) for values in (total - right, by_scale, by_null)
    )
    return loss, slope, shift


def _log_sums(side: Scored, z: Float64, null: float | Float64) -> tuple[Float64, Float64]:
    """(q,) each: the log of the whole sum, and of what should hold the weight."""
    relevant = partition(np.where(side.relevant, z, -np.inf)).log
    return np.logaddexp(partition(z).log, null), np.where(side.answerable, relevant, null)


def likelihood(
    as_is: Scored, hidden: Scored, scale: float, null: float, levels: Levels | None = None
) -> float:
    """Return the mean negative log weight of what should hold it, over both sides."""
    losses = [
        _slopes(side, scale, null_logits(scale * side.scores, null, levels))[0]
        for side in (as_is, hidden)
    ]
    return float(np.dot(SHARES, losses))


def top_calibration_error(
    as_is: Scored, hidden: Scored, scale: float, null: float, levels: Levels | None = None
) -> float:
    """Return the expected calibration error of the largest weight of each question.

    Several relevant documents share what is right evenly: they are who a relevant document
    drawn at random could be, and their weights can sum to no more than one.
    """
    tops = [best_weights(side, scale, null, levels) for side in (as_is, hidden)]
    predicted, correct = (np.concatenate(column) for column in zip(*tops, strict=True))
    counts = [share * side.counts for share, side in zip(SHARES, (as_is, hidden), strict=True)]
    return calibration_error(predicted, correct, np.concatenate(counts))


def best_weights(
    side: Scored, scale: float, null: float, levels: Levels | None = None
) -> tuple[Float64, Float64]:
    """Return the largest weights (q,), and the shares of what is right that their holders have."""
    z = scale * side.scores
    nothing = null_logits(z, null, levels)
    total, _ = _log_sums(side, z, nothing)
    first = z[:, 0]  # best first; -inf where nothing is attended to
    shares = side.relevant[:, 0] / np.maximum(side.relevant.sum(axis=1), 1)
    correct = np.where(first > nothing, shares, ~side.answerable)
    return np.exp(np.maximum(first, nothing) - total), correct


def _unfit(as_is: Scored, hidden: Scored) -> str | None:
    """Return why there is nothing to fit to, if so."""
    if not len(as_is.scores):
        return "There are no held-out questions; scale and no-answer score stay as they were."
    if not as_is.answerable.any():
        return (
            f"None of {len(as_is.scores)} held-out questions has a relevant document among "
            f"those attended to; scale and no-answer score stay as they were."
        )
    if not np.isfinite(hidden.scores).any():
        return (
            "Every document is relevant to every held-out question, which leaves nothing to "
            "fit a no-answer score to; scale and no-answer score stay as they were."
        )
    return None


# -- checked ---------------------------------------------------------------------------------------

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
