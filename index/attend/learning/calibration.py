"""The scale and the no-answer score that make weights probabilities, and their threshold.

Each held-out question is scored twice. As it is, its relevant documents should hold the weight.
With them hidden, as if they were not stored, the no-answer key should: that is what a question that
nothing here answers looks like. One scale and one no-answer score are fitted to
both at once, by the likelihood (temperature scaling: Guo et al. 2017, with a class for none). Then
the no-answer score may follow how high the documents behind the best score: an answer stands out
from them, and what is not answered does not.

Figures on the questions of the fit flatter it. So each half of the questions is judged by a fit to
the other half, and the fit to all is taken only if its error, judged so, is not above that of the
scale in use until now.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias

import numpy as np
from scipy.special import expit

from attend.attention import inclusion, partition, runners_up
from attend.core.settings import LEAST_COVERAGE, MOST_COVERAGE, Tuning
from attend.core.types import Bool, Float64, Int64, Json
from attend.learning.data import ATTEND, UNIT_SCALE
from attend.learning.fit import minimise
from attend.measure.statistics import calibration_error

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


def null_logits(z: Float64, null: float | None, levels: Levels | None = None) -> Float64:
    """Return the no-answer logit (q,) of questions with scaled scores (q, a), best first; -inf
    where there is no such score."""
    logits = np.full(len(z), -math.inf if null is None else null)
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


def confidence(
    scores: Float64, scale: float, null: float | None, levels: Levels | None = None
) -> Float64:
    """1 minus the weight of no answer, for attended scores (q, a): (q,)."""
    # As a sigmoid, which keeps its digits near 0 where 1 - w would lose them.
    z = scale * scores
    return np.asarray(expit(partition(z).log - null_logits(z, null, levels)))


def threshold_at(
    confidences: Float64, error_rate: float = ERROR_RATE, counts: Float64 | None = None
) -> float | None:
    """Return the largest threshold that refuses at most this share of confidences like these (n,).

    What is below the threshold is refused, what is equal is not. Were the next question drawn as
    these and scored by the same fit, it could take any of n + 1 places among them, and the rate
    would hold for it (from 1 / error_rate - 1 confidences on). After a training another fit scores
    it. None without confidences. `counts` (n,) is how much each counts, if not all the same.

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


def inclusion_levels(levels: Float64, counts: Float64) -> tuple[float, ...]:
    """Return where a list ends that covers at 0.5, 0.51 and so on of questions like these (n,).

    It is short of the rates that no list reaches, and of those that so few questions cannot tell.

    Args:
        levels: the `inclusion` of the best right document of each, inf where there is none.
        counts: how much each counts.
    """
    order = np.argsort(levels, kind="stable")
    reached = np.cumsum(counts[order]) / (counts.sum() + counts.mean())  # with the next question
    places = np.searchsorted(reached, COVERAGES - ROUNDING)
    ends = np.append(levels[order], np.inf)[places]
    return tuple(ends[np.isfinite(ends)].tolist())


COVERAGES = np.arange(round(100 * LEAST_COVERAGE), round(100 * MOST_COVERAGE) + 1) / 100

REPORTED = (0.8, 0.9, 0.95)
"""Coverages whose lists a report tells the mean length of."""


STEEPEST = 100.0
"""Times the scale until now: the largest scale of a fit; beyond, every softmax is one-hot."""


def fit_rate(
    scores: Float64, ages: Float64, grades: Float64, scale: float, clear: float = 0.0
) -> tuple[float, float]:
    """Return the rate ρ of the largest likelihood of the relevant documents, and the scale that
    suits it; a rate of 0 where that is not clearly larger than without one.

    The loss is that of a conditional logit (McFadden 1974), which is convex.

    Args:
        scores: (q, c) of candidates at scale 1, -inf where there is none.
        ages: (q, c), in days.
        grades: (q, c), above 0 for the relevant ones.
        scale: until now.
        clear: the least gain in log likelihood.
    """
    target = np.where(np.isfinite(scores), np.maximum(grades, 0.0), 0.0)
    answered = target.any(axis=1)
    if not answered.any():
        return 0.0, scale
    target = target[answered] / target[answered].sum(axis=1, keepdims=True)
    x, there = scores[answered], np.isfinite(scores[answered])
    unit = float(ages[answered][there].std())
    if not unit > 0:
        return 0.0, scale
    x, a = np.where(there, x, 0.0), np.where(there, ages[answered] / unit, 0.0)

    def loss(point: Float64) -> tuple[float, Float64]:
        z = np.where(there, point[0] * x - point[1] * a, -np.inf)
        z -= z.max(axis=1, keepdims=True)
        exps = np.exp(z)
        sums = exps.sum(axis=1, keepdims=True)
        logs = np.where(there, z - np.log(sums), 0.0)
        away = target - exps / sums
        return -float((target * logs).sum()), np.array([-(away * x).sum(), (away * a).sum()])

    steepest = 1e-3 * scale, STEEPEST * scale
    _, without = minimise(loss, (scale, 0.0), [steepest, (0.0, 0.0)])
    (fitted, rate), with_times = minimise(loss, (scale, 0.1), [steepest, (0.0, math.inf)])
    is_clear = without - with_times >= clear
    return float(rate / fitted / unit) if is_clear else 0.0, float(fitted)


# -- calibration -----------------------------------------------------------------------------------

SPAN = math.log(1e3)
"""How far from its start a scale may move, as a log: beyond it every softmax is one-hot."""

STARTS = (0.25, 1.0, 4.0)
"""Factors on the scale at which the search starts: the likelihood need not be convex in it."""

FEWEST = 20
"""Questions of a half below which nothing is checked: an error of ten is noise."""


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
        inclusion: `inclusion_levels` at this scale; None where nothing was ranked.
        lists: of several coverages, the rate and the mean number of documents of lists for the
            questions of one half, by the levels of the other.
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
    inclusion: tuple[float, ...] | None = None
    lists: Mapping[str, Json] | None = None
    questions: int = 0
    answerable: int = 0
    note: str | None = None

    def tuning(self, scorer: str, **parts: Any) -> Tuning:
        """Return the tuning of a version that is calibrated so, with what else was chosen."""
        return Tuning(
            scale=(self.scale,),
            null=None if self.null is None else (self.null,),
            levels=self.levels,
            threshold=self.threshold,
            error_rate=self.error_rate,
            inclusion=self.inclusion,
            attend=ATTEND,
            scorer=scorer,
            **parts,
        )

    @property
    def figures(self) -> dict[str, Json]:
        """All of them but `inclusion`, which the tuning has, as they are stored."""
        figures = {**vars(self), "levels": None if self.levels is None else list(self.levels)}
        del figures["inclusion"]
        return figures


class HeldOutScores(ABC):
    """Held-out questions as they are and with what answers them hidden, to calibrate by.

    Attributes:
        start: the scale in use until now.
        error_rate: the share of answerable questions that the threshold may refuse.
        names: of the questions, and of what a calibration error is of, for a sentence.
    """

    start: float
    error_rate: float
    names: ClassVar[tuple[str, str]]

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def some(self, members: Bool) -> Self:
        """Return some of the questions."""

    @abstractmethod
    def fit(self) -> Calibration:
        """Return the best calibration, with the figures of these questions."""

    @abstractmethod
    def no_answer(self, scale: float) -> tuple[float, float | None] | None:
        """Return the no-answer score that suits a scale, and its threshold; None without one."""

    @abstractmethod
    def sureness(self, fit: Calibration) -> tuple[Float64, Float64, Float64]:
        """(n,) each: how sure answers are, how right, and how much each counts."""

    @abstractmethod
    def loss(self, fit: Calibration) -> float:
        """Return the mean loss."""

    @abstractmethod
    def confidences(self, fit: Calibration) -> tuple[Float64, Float64]:
        """(n,) each: the confidences of answerable questions, and how much each counts."""

    def checked(self, halves: Int64) -> Calibration:
        """Return a calibration whose figures are those of questions outside of the fit.

        Args:
            halves: (q,) 0 or 1, the half that a question belongs to; the same question of several
                splits, and near-duplicates, belong to one half.

        Returns: the fit to all questions; with the scale in use until now, and a note, where the
            fit's calibration error is above that. The figures of the fit itself, where a half has
            too few questions to tell.
        """
        fit = self.fit()
        if fit.ece_after is None or min(np.bincount(halves, minlength=2)) < FEWEST:
            return fit
        parts = [self.some(halves == half) for half in (0, 1)]
        fits = [part.fit() for part in parts]
        if any(part.ece_after is None or not part.answerable for part in fits):
            return fit
        fits.reverse()  # each half is judged by the fit to the other
        stays = [
            replace(other, scale=self.start, null=other.null_before, levels=None) for other in fits
        ]
        fit = replace(judged(fit, parts, stays, fits), refused=_refused(parts, fits))
        if (fit.ece_after or 0.0) <= (fit.ece_before or 0.0):
            return fit
        # Else the scale until now stays, with the no-answer score that suits it.
        questions, error = self.names
        null, threshold = self.no_answer(self.start) or (None, None)
        return replace(
            fit,
            scale=self.start,
            null=null,
            levels=None,
            threshold=threshold,
            ece_after=fit.ece_before,
            nll_after=fit.nll_before,
            refused=None,
            note=(
                f"On {questions} that took no part in its fit, the calibration error of the "
                f"{error} is {fit.ece_after:.3f} with the fitted scale and {fit.ece_before:.3f} "
                f"with the one until now, which stays."
            ),
        )


def judged(
    fit: Calibration,
    parts: Sequence[HeldOutScores],
    before: Sequence[Calibration],
    after: Sequence[Calibration],
) -> Calibration:
    """Return a calibration with the calibration error and the mean loss over all parts, each by its
    calibration before and after."""
    errors, losses, sizes = [], [], [len(part) for part in parts]
    for fits in (before, after):
        pairs = [*zip(parts, fits, strict=True)]
        columns = zip(*(part.sureness(calibrated) for part, calibrated in pairs), strict=True)
        sure, correct, counts = map(np.concatenate, columns)
        errors.append(calibration_error(sure, correct, counts))
        by_part = [part.loss(calibrated) for part, calibrated in pairs]
        losses.append(float(np.average(by_part, weights=sizes)))
    fit = replace(fit, ece_before=errors[0], ece_after=errors[1])
    return replace(fit, nll_before=losses[0], nll_after=losses[1])


def _refused(parts: Sequence[HeldOutScores], fits: Sequence[Calibration]) -> float | None:
    """Return the share of answerable questions that the other half's threshold refuses."""
    refused, weights = [], []
    for part, fit in zip(parts, fits, strict=True):
        if fit.threshold is None:
            return None
        confidences, counts = part.confidences(fit)
        refused.append(confidences < fit.threshold)
        weights.append(counts)
    return float(np.average(np.concatenate(refused), weights=np.concatenate(weights)))


# -- questions and relevant documents --------------------------------------------------------------


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

    @classmethod
    def best(cls, scores: Float64, relevant: Bool, counts: Float64, attend: int) -> Scored:
        """Take what is attended to of candidates (q, c)."""
        order = np.argsort(-scores, axis=1, kind="stable")[:, :attend]
        marks = np.take_along_axis(relevant, order, axis=1)
        return cls(np.take_along_axis(scores, order, axis=1), marks, counts)

    @property
    def answerable(self) -> Bool:
        """(q,) whether a relevant document is attended to."""
        return np.asarray(self.relevant.any(axis=1))

    def some(self, members: Bool) -> Scored:
        """Return some of the questions."""
        counts = self.counts[members]
        counts = counts / (counts.mean() if len(counts) else 1)
        return Scored(self.scores[members], self.relevant[members], counts)


@dataclass(frozen=True)
class RankingScores(HeldOutScores):
    """What questions attend to, as they are and with their relevant documents hidden."""

    as_is: Scored
    hidden: Scored
    start: float
    error_rate: float
    names: ClassVar[tuple[str, str]] = ("questions", "best weight")

    @classmethod
    def of(
        cls,
        scores: Float64,
        relevant: Bool,
        counts: Float64 | None = None,
        hidden: Float64 | None = None,
        *,
        start: float = UNIT_SCALE,
        error_rate: float = ERROR_RATE,
        attend: int = ATTEND,
    ) -> RankingScores:
        """Take what is attended to from the scores of candidates.

        Args:
            scores: (q, a), unscaled (logits at scale 1), -inf where a question has fewer
                candidates. Send more than are attended to: hiding moves the next best up.
            relevant: (q, a), which of them answer their question.
            counts: (q,) how much each question counts; all the same if absent.
            hidden: (q, b) as `scores`, of a collection without what answers a question; if absent,
                `scores` without it: right where no document's score depends on another's.
            start: a fit stays near it where there are too few questions to tell.
            attend: how many documents a search attends to.
        """
        counts = np.ones(len(scores)) if counts is None else counts
        counts = counts / (counts.mean() if len(counts) else 1)
        relevant = relevant & np.isfinite(scores)
        hidden = np.where(relevant, -np.inf, scores) if hidden is None else hidden
        as_is = Scored.best(scores, relevant, counts, attend)
        none = np.zeros(hidden.shape, dtype=bool)
        return cls(as_is, Scored.best(hidden, none, counts, attend), start, error_rate)

    def __len__(self) -> int:
        return len(self.as_is.scores)

    @property
    def sides(self) -> tuple[tuple[float, Scored], ...]:
        """Both sides, each after its weight."""
        return (SHARES[0], self.as_is), (SHARES[1], self.hidden)

    def some(self, members: Bool) -> RankingScores:
        return replace(self, as_is=self.as_is.some(members), hidden=self.hidden.some(members))

    def checked(self, halves: Int64) -> Calibration:
        fit = super().checked(halves)
        if fit.null is None:
            return fit
        levels, counts = inclusion(fit.scale * self.as_is.scores), self.as_is.counts
        best = np.where(self.as_is.relevant, levels, np.inf).min(axis=1)
        others = [halves != half for half in (0, 1)]
        rates = REPORTED if min(map(np.count_nonzero, others)) >= FEWEST else ()
        apart = [inclusion_levels(best[other], counts[other]) for other in others if rates]
        lists: dict[str, Json] = {}
        for rate in rates:
            place = int(np.searchsorted(COVERAGES, rate - ROUNDING))
            if place < min(map(len, apart)):
                ends = np.array([ends[place] for ends in apart])[halves]
                listed = np.count_nonzero(levels <= ends[:, None], axis=1)
                reached, length = (np.average(v, weights=counts) for v in (best <= ends, listed))
                lists[f"{rate:g}"] = {"rate": float(reached), "documents": float(length)}
        return replace(fit, inclusion=inclusion_levels(best, counts), lists=lists or None)

    def fit(self) -> Calibration:
        reason = self._unfit()
        if reason:
            return Calibration(
                self.start, None, None, self.error_rate, questions=len(self), note=reason
            )
        loss = Loss(self.as_is, self.hidden, self.start)
        before, (scale, _) = loss.best_null(), loss.best()
        null, levels = fit_null(
            scale * np.concatenate([side.scores for _, side in self.sides]),
            np.concatenate([side.answerable for _, side in self.sides]),
            np.concatenate([share * side.counts for share, side in self.sides]),
        )
        blank = Calibration(
            scale,
            null,
            None,
            self.error_rate,
            levels=levels,
            null_before=before,
            questions=len(self),
            answerable=int(self.as_is.answerable.sum()),
        )
        earlier = replace(blank, scale=self.start, null=before, levels=NO_LEVELS)
        # Where no loss is least (all is right already), the optimiser may end behind the start.
        after = min((blank, earlier), key=self.loss)
        after = replace(after, threshold=self._threshold(after))
        return judged(after, [self], [earlier], [after])

    def no_answer(self, scale: float) -> tuple[float, float | None]:
        null = Loss(self.as_is, self.hidden, scale).best_null()
        return null, self._threshold(Calibration(scale, null, None, self.error_rate))

    def sureness(self, fit: Calibration) -> tuple[Float64, Float64, Float64]:
        """The largest weight of each question, and the share of what is right that its holder has.

        Several relevant documents share what is right evenly: they are who a relevant document
        drawn at random could be, and their weights can sum to no more than one.
        """
        weights, correct, counts = [], [], []
        for share, side in self.sides:
            z, nothing = self._logits(side, fit)
            total, _ = _log_sums(side, z, nothing)
            first = z[:, 0]  # best first; -inf where nothing is attended to
            shares = side.relevant[:, 0] / np.maximum(side.relevant.sum(axis=1), 1)
            weights.append(np.exp(np.maximum(first, nothing) - total))
            correct.append(np.where(first > nothing, shares, ~side.answerable))
            counts.append(share * side.counts)
        return np.concatenate(weights), np.concatenate(correct), np.concatenate(counts)

    def loss(self, fit: Calibration) -> float:
        """The mean negative log weight of what should hold it, over both sides."""
        return sum(
            share * _slopes(side, fit.scale, self._logits(side, fit)[1])[0]
            for share, side in self.sides
        )

    def confidences(self, fit: Calibration) -> tuple[Float64, Float64]:
        answerable = self.as_is.answerable
        confidences = confidence(self.as_is.scores, fit.scale, fit.null, fit.levels)
        return confidences[answerable], self.as_is.counts[answerable]

    def _threshold(self, fit: Calibration) -> float | None:
        confidences, counts = self.confidences(fit)
        return threshold_at(confidences, self.error_rate, counts)

    def _logits(self, side: Scored, fit: Calibration) -> tuple[Float64, Float64]:
        """Return the logits of documents (q, a), and of no answer (q,)."""
        z = fit.scale * side.scores
        return z, null_logits(z, fit.null, fit.levels)

    def _unfit(self) -> str | None:
        """Return why there is nothing to fit to, if so."""
        outcome = "scale and no-answer score stay as they were."
        if not len(self):
            return f"There are no held-out questions; {outcome}"
        if not self.as_is.answerable.any():
            return (
                f"None of {len(self)} held-out questions has a relevant document among those "
                f"attended to; {outcome}"
            )
        if not np.isfinite(self.hidden.scores).any():
            return (
                f"Every document is relevant to every held-out question, which leaves nothing to "
                f"fit a no-answer score to; {outcome}"
            )
        return None


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
