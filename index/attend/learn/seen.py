"""What held-out questions attend to, as it is and with what answers them hidden; and how true the
weights on it are."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import expit, logsumexp

from attend.learn.heads import ATTEND
from attend.types import Bool, Float64

ERROR_RATE = 0.05

UNANSWERED = 0.1
"""Of queries in use, those that nothing answers: as much the hidden view counts. Were it half, as
many as there are, the null key would take weight from every query that has an answer."""

SHARES = (1 - UNANSWERED, UNANSWERED)
"""Of the view as it is, and of the hidden one."""

BINS = 10

ROUNDING = 1e-9
"""A share of 1/20 of 60 questions is three, also where 0.05 * 60 comes out below."""


class Seen(NamedTuple):
    """What questions attend to, best first, and which of it should hold the weight."""

    scores: Float64
    """(q, a), -inf where there are fewer."""
    relevant: Bool
    """(q, a); a row without any should give its weight to the null key."""
    counts: Float64
    """(q,) how much each question counts; their mean is one."""

    @property
    def answerable(self) -> Bool:
        """(q,) whether a relevant document is attended to."""
        return np.asarray(self.relevant.any(axis=1))


def views(
    scores: Float64, relevant: Bool, attend: int = ATTEND, counts: Float64 | None = None
) -> tuple[Seen, Seen]:
    """What questions attend to as they are, and with their relevant documents hidden."""
    counts = np.ones(len(scores)) if counts is None else counts
    counts = counts / (counts.mean() if len(counts) else 1)
    relevant = relevant & np.isfinite(scores)
    hidden = np.where(relevant, -np.inf, scores)
    return (
        _best(scores, relevant, counts, attend),
        _best(hidden, np.zeros_like(relevant), counts, attend),
    )


def confidence(scores: Float64, scale: float, null: float) -> Float64:
    """1 minus the weight of the null key, for attended scores (q, a): (q,)."""
    # As a sigmoid, which keeps its digits near 0 where 1 - w would lose them.
    return np.asarray(expit(log_sum(scale * scores) - null))


def threshold_at(
    confidences: Float64, error_rate: float = ERROR_RATE, counts: Float64 | None = None
) -> float | None:
    """The largest threshold that refuses at most this share of confidences (n,).

    What is below the threshold is refused, what is equal is not. None without confidences.
    `counts` (n,) is how much each counts, if not all the same.

    >>> threshold_at(np.array([0.9, 0.2, 0.5, 0.7]), 0.25)
    0.5
    """
    if not len(confidences):
        return None
    counts = np.ones(len(confidences)) if counts is None else counts
    order = np.argsort(confidences, kind="stable")
    refused = np.cumsum(counts[order]) <= error_rate * counts.sum() + ROUNDING
    return float(confidences[order[min(int(refused.sum()), len(order) - 1)]])


def likelihood(as_is: Seen, hidden: Seen, scale: float, null: float) -> float:
    """Mean negative log weight of what should hold it, over both views by their shares."""
    means = [(seen.counts * _losses(seen, scale, null)).mean() for seen in (as_is, hidden)]
    return float(np.dot(SHARES, means))


def calibration_error(as_is: Seen, hidden: Seen, scale: float, null: float) -> float:
    """Expected calibration error of the largest weight of each question, by the views' shares.

    Several relevant documents share what is right evenly: they are who a relevant document
    drawn at random could be, and their weights can sum to no more than one.
    """
    tops = [_top(seen, scale, null) for seen in (as_is, hidden)]
    predicted, correct = (np.concatenate(each) for each in zip(*tops, strict=True))
    counts = [share * seen.counts for share, seen in zip(SHARES, (as_is, hidden), strict=True)]
    return expected_error(predicted, correct, np.concatenate(counts))


def expected_error(
    predicted: Float64, correct: Float64, counts: Float64 | None = None, bins: int = BINS
) -> float:
    """Mean distance of predicted (n,) and correct (n,) shares over bins of equal width.

    `counts` (n,) is how much each counts, if not all the same.

    >>> round(expected_error(np.array([0.9, 0.9, 0.8, 0.8]), np.array([1.0, 1, 1, 0]), 5), 9)
    0.1
    """
    place = np.clip((predicted * bins).astype(np.int64), 0, bins - 1)
    counts = np.ones(len(predicted)) if counts is None else counts
    gaps = np.bincount(place, weights=counts * (predicted - correct), minlength=bins)
    return float(np.abs(gaps).sum() / counts.sum())


def _losses(seen: Seen, scale: float, null: float) -> Float64:
    """(q,) negative log weight of what should hold it."""
    z = scale * seen.scores
    return np.asarray(np.logaddexp(log_sum(z), null) - right(seen, z, null))


def right(seen: Seen, z: Float64, null: float) -> Float64:
    """(q,) the log of the sum over what should hold the weight, before the partition."""
    relevant = log_sum(np.where(seen.relevant, z, -np.inf))
    return np.where(seen.answerable, relevant, null)


def _top(seen: Seen, scale: float, null: float) -> tuple[Float64, Float64]:
    """(q,) the largest weight, and the share of what is right that its holder has."""
    z = scale * seen.scores
    whole = np.logaddexp(log_sum(z), null)
    first = z[:, 0]  # best first; -inf where nothing is attended to
    shares = seen.relevant[:, 0] / np.maximum(seen.relevant.sum(axis=1), 1)
    correct = np.where(first > null, shares, ~seen.answerable)
    return np.exp(np.maximum(first, null) - whole), correct


def _best(scores: Float64, relevant: Bool, counts: Float64, attend: int) -> Seen:
    order = np.argsort(-scores, axis=1, kind="stable")[:, :attend]
    taken = np.take_along_axis(scores, order, 1), np.take_along_axis(relevant, order, 1)
    return Seen(*taken, counts)


def log_sum(z: Float64) -> Float64:
    """(q, a) -> (q,); -inf for a row without finite logits."""
    return np.asarray(logsumexp(z, axis=1))
