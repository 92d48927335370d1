"""The no-answer score: its fit to questions with an answer and without, and the threshold of both.

The score is a logit beside those of documents. It may follow how high a question scores the
documents behind its best: an answer stands out from them, and what is not answered does not.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
from scipy.special import expit

from attend.attention import partition, runners_up
from attend.core.types import Bool, Float64
from attend.learning.fit import minimise

ERROR_RATE = 0.05

UNANSWERED = 0.1
"""The share of queries in use that nothing answers: the weight of hidden scores. Were it half,
the no-answer key would take weight from every query that has an answer."""

SHARES = (1 - UNANSWERED, UNANSWERED)
"""The weights of scores as they are, and of hidden ones."""

ROUNDING = 1e-9
"""A share of 1/20 of 60 questions is three, also where 0.05 * 60 comes out below."""

Levels: TypeAlias = tuple[float, float]
"""How much of the `runners_up` of a question is added to its no-answer logit, each from 0 to 1."""

NO_LEVELS: Levels = (0.0, 0.0)


def fit_null(
    z: Float64, answers: Bool, counts: Float64, levels: Levels | None = None
) -> tuple[float, Levels]:
    """Return the no-answer logit and the levels of the largest likelihood.

    It is that of a logistic regression on log sums and runners-up.

    Args:
        z: (q, a) scaled scores, best first; questions that attend to nothing are left out.
        answers: (q,) whether any of these answers.
        counts: (q,) how much each question counts.
        levels: as they have to be; fitted if None.
    """
    there = np.isfinite(z).any(axis=1)
    logs, behind, sign = partition(z[there]).log, _behind(z[there]), np.where(answers, 1, -1)[there]
    shares, middle = counts[there] / counts[there].sum(), np.median(behind, axis=0)
    away = behind - middle

    def loss(point: Float64) -> tuple[float, Float64]:
        margin = sign * (logs - point[0] - away @ point[1:])
        slope = shares * sign * expit(-margin)
        # The weight of one question, for no levels: few questions tell little of them.
        prior = point[1:] / len(sign)
        value = float(shares @ np.logaddexp(0, -margin) + prior @ point[1:] / 2)
        return value, np.append(slope.sum(), slope @ away + prior)

    bounds = [(0.0, 1.0)] * 2 if levels is None else [(level, level) for level in levels]
    start = float(shares @ logs), *(low for low, _ in bounds)
    point, _ = minimise(loss, start, [(-math.inf, math.inf), *bounds])
    first, second = point[1:].tolist()
    return float(point[0] - middle @ point[1:]), (first, second)


def null_logits(z: Float64, null: float, levels: Levels | None = None) -> Float64:
    """Return the no-answer logit (q,) of questions with scaled scores (q, a), best first."""
    logits = np.full(len(z), null)
    there = np.isfinite(z).any(axis=1)
    if levels is not None and there.any():
        logits[there] += _behind(z[there]) @ levels
    return logits


def _behind(z: Float64) -> Float64:
    """Return the `runners_up` of each question (q, 2), of logits (q, a) with gaps of -inf."""
    finite = np.isfinite(z)
    counts = np.count_nonzero(finite, axis=1)
    behind = np.empty((len(z), 2))
    for count in np.unique(counts).tolist():  # several times as fast as one by one
        rows = np.flatnonzero(counts == count)
        behind[rows] = runners_up(z[rows][finite[rows]].reshape(len(rows), count))
    return behind


def confidence(scores: Float64, scale: float, null: float, levels: Levels | None = None) -> Float64:
    """1 minus the weight of no answer, for attended scores (q, a): (q,)."""
    # As a sigmoid, which keeps its digits near 0 where 1 - w would lose them.
    z = scale * scores
    return np.asarray(expit(partition(z).log - null_logits(z, null, levels)))


def threshold_at(
    confidences: Float64, error_rate: float = ERROR_RATE, counts: Float64 | None = None
) -> float | None:
    """Return the largest threshold that refuses at most this share of confidences like these (n,).

    What is below the threshold is refused, what is equal is not. It holds for the next question,
    too, which may take any of n + 1 places among them (a conformal threshold: Vovk, Gammerman and
    Shafer 2005), from 1 / error_rate - 1 confidences on. None without confidences. `counts` (n,)
    is how much each counts, if not all the same.

    >>> threshold_at(np.array([0.9, 0.2, 0.5, 0.7]), 0.4)
    0.5
    """
    if not len(confidences):
        return None
    counts = np.ones(len(confidences)) if counts is None else counts
    order = np.argsort(confidences, kind="stable")
    most = error_rate * (counts.sum() + counts.mean()) + ROUNDING
    lower = np.cumsum(counts[order]) <= most
    return float(confidences[order[max(int(lower.sum()) - 1, 0)]])
