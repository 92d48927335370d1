"""The scale and the null key that make weights probabilities, and the threshold of "no answer".

Each held-out question is looked at twice. As it is, its relevant documents should hold the
weight. With them hidden, and the next best documents moved up, the null key should: that is
what a question that nothing here answers looks like. One scale and one null logit are fitted
to both at once, by the likelihood (temperature scaling: Guo et al. 2017, with a null class).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

from attend.errors import InvalidRequest
from attend.learn.heads import ATTEND
from attend.learn.seen import (
    ERROR_RATE,
    SHARES,
    Seen,
    calibration_error,
    confidence,
    likelihood,
    log_sum,
    right,
    threshold_at,
    views,
)
from attend.types import Bool, Float64

UNTRAINED_SCALE = 20.0

SPAN = math.log(1e3)
"""How far from its start a scale may move, as a log: beyond it every softmax is one-hot."""

STARTS = (0.25, 1.0, 4.0)
"""Factors on the scale at which the search starts: the likelihood need not be convex in it."""


@dataclass(frozen=True)
class Calibration:
    """What was fitted, and how true the weights were before and after.

    `before` is the scale given, with the null logit that suits it best.

    Attributes:
        scale: the factor on scores; on the logits of several heads, whose scales are learned.
        null: the null key's logit, beside scaled scores (of several heads, before `scale`); None
            where it cannot be fitted.
        threshold: with a confidence (1 - weight of null) below it, nothing here answers.
        error_rate: the share of answerable questions that the threshold may refuse.
        ece_before, ece_after: expected calibration error of the largest weight, null included.
        nll_before, nll_after: mean negative log weight of what should hold it, in nats.
        questions, answerable: how many there were, and how many had a relevant document among
            those attended to.
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
    questions: int = 0
    answerable: int = 0
    note: str | None = None


def calibrate(
    scores: Float64,
    relevant: Bool,
    *,
    error_rate: float = ERROR_RATE,
    attend: int = ATTEND,
    start: float = UNTRAINED_SCALE,
    counts: Float64 | None = None,
) -> Calibration:
    """Fit scale and null logit to the candidates of held-out questions.

    Args:
        scores: (q, a), unscaled (logits at scale 1), -inf where a question has fewer
            candidates. Send more than are attended to: hiding moves the next best up.
        relevant: (q, a), which of them answer their question.
        error_rate: the share of answerable questions that the threshold may refuse.
        attend: how many documents a search attends to.
        start: the scale in use until now. A fit stays near it where there are too few
            questions to tell.
        counts: (q,) how much each question counts; all the same if absent.

    Raises:
        InvalidRequest: shapes differ, or a score is NaN or +inf.
    """
    _check(scores, relevant, error_rate, attend, start)
    as_is, hidden = views(scores, relevant, attend, counts)
    reason = _unfit(as_is, hidden)
    if reason:
        return Calibration(start, None, None, error_rate, questions=len(scores), note=reason)
    loss = Loss(as_is, hidden, start)
    before, (scale, null) = loss.best_null(), loss.best()
    known = confidence(as_is.scores, scale, null)[as_is.answerable]
    known_counts = as_is.counts[as_is.answerable]
    return Calibration(
        scale=scale,
        null=null,
        threshold=threshold_at(known, error_rate, known_counts),
        error_rate=error_rate,
        ece_before=calibration_error(as_is, hidden, start, before),
        ece_after=calibration_error(as_is, hidden, scale, null),
        nll_before=likelihood(as_is, hidden, start, before),
        nll_after=likelihood(as_is, hidden, scale, null),
        questions=len(scores),
        answerable=int(as_is.answerable.sum()),
    )


class Loss:
    """The mean negative log likelihood of both views, as a function of log scale and shift.

    The null logit is scale * center + shift, with the center amid the best scores: the two
    parameters then hardly depend on each other, wherever scores lie.
    """

    def __init__(self, as_is: Seen, hidden: Seen, start: float) -> None:
        self.seen = (as_is, hidden)
        self.start = start
        peaks = np.concatenate([seen.scores[:, 0] for seen in self.seen])
        self.center = float(np.median(peaks[np.isfinite(peaks)]))

    def best(self) -> tuple[float, float]:
        """Scale and null logit of least loss, from several starts."""
        middle = math.log(self.start)
        found = [
            minimize(
                self,
                np.array([middle + math.log(factor), 0.0]),
                jac=True,
                method="L-BFGS-B",
                bounds=[(middle - SPAN, middle + SPAN), (None, None)],
            )
            for factor in STARTS
        ]
        log_scale, shift = min(found, key=lambda each: float(each.fun)).x
        return float(np.exp(log_scale)), self._null(float(np.exp(log_scale)), float(shift))

    def best_null(self) -> float:
        """The null logit of least loss at the scale of the start: convex, in one parameter."""
        middle = math.log(self.start)
        bounds = [(middle, middle), (None, None)]
        found = minimize(self, np.array([middle, 0.0]), jac=True, method="L-BFGS-B", bounds=bounds)
        return self._null(self.start, float(found.x[1]))

    def __call__(self, at: Float64) -> tuple[float, Float64]:
        """Loss and its gradient at (log scale, shift)."""
        scale = float(np.exp(at[0]))
        null = self._null(scale, float(at[1]))
        value, gradient = np.zeros(()), np.zeros(2)
        for share, seen in zip(SHARES, self.seen, strict=True):
            loss, by_scale, by_null = _slopes(seen, scale, null)
            value = value + share * loss
            gradient += share * np.array([scale * (by_scale + self.center * by_null), by_null])
        # As much as one question would say for the scale in use: without it, questions that
        # are all right would ask for a scale without end, and equal scores for none.
        away, weight = at[0] - math.log(self.start), 1 / len(self.seen[0].scores)
        gradient[0] += weight * away
        return float(value + weight * away**2 / 2), gradient

    def _null(self, scale: float, shift: float) -> float:
        return scale * self.center + shift


def _slopes(seen: Seen, scale: float, null: float) -> tuple[float, float, float]:
    """Mean loss of one view, and its derivatives by scale and by null logit."""
    z = scale * seen.scores  # (q, a)
    whole = np.logaddexp(log_sum(z), null)  # (q,)
    held = right(seen, z, null)  # (q,)
    finite = np.where(np.isfinite(seen.scores), seen.scores, 0.0)
    weights = np.exp(z - whole[:, None])
    # Of what is right, each document's share; the null key has it all where none is relevant.
    safe = np.where(seen.answerable, held, 0.0)[:, None]
    shares = np.where(seen.relevant, np.exp(np.minimum(z - safe, 0.0)), 0.0)
    by_scale = ((weights - shares) * finite).sum(axis=1)
    by_null = np.exp(null - whole) - ~seen.answerable

    def mean(values: Float64) -> float:
        return float((seen.counts * values).mean())

    return mean(whole - held), mean(by_scale), mean(by_null)


def _unfit(as_is: Seen, hidden: Seen) -> str | None:
    """Why there is nothing to fit to, if so."""
    if not len(as_is.scores):
        return "There are no held-out questions; scale and null key stay as they were."
    if not as_is.answerable.any():
        return (
            f"None of {len(as_is.scores)} held-out questions has a relevant document among "
            f"those attended to; scale and null key stay as they were."
        )
    if not np.isfinite(hidden.scores).any():
        return (
            "Every document is relevant to every held-out question, which leaves nothing to "
            "fit a null key to; scale and null key stay as they were."
        )
    return None


def _check(scores: Float64, relevant: Bool, rate: float, attend: int, start: float) -> None:
    if scores.ndim != 2 or scores.shape != relevant.shape:
        raise InvalidRequest(
            f"Scores of shape {scores.shape} and relevance of shape {relevant.shape} were "
            f"given; send both as (questions, candidates)."
        )
    if np.isnan(scores).any() or np.isposinf(scores).any():
        raise InvalidRequest("A score is NaN or +infinity; send finite scores, -infinity for none.")
    if not 0 <= rate < 1:
        raise InvalidRequest(
            f"The error rate is {rate}; send a share from 0 to below 1.", field="error_rate"
        )
    if attend < 1 or not (math.isfinite(start) and start > 0):
        raise InvalidRequest(
            f"attend is {attend} and the scale to start from {start}; both must be above 0."
        )
