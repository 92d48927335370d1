"""Held-out documents as queries: what they attend to, and how right and sure their answers are."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.special import expit

from attend.attention import Softmax, partition
from attend.learn.answers import Answers, AnswerTargets, ValueMap, fit_output
from attend.learn.calibration import ATTEND, Calibration
from attend.learn.data import BLOCK, products, top_places, widened
from attend.learn.fit import Fitted
from attend.learn.held_out import DocumentFold
from attend.learn.no_answer import NO_LEVELS, SHARES, fit_null, minimise, threshold_at
from attend.measure.statistics import calibration_error
from attend.types import Bool, Float32, Float64, Floats, Int64

FLOOR = 1e-3
"""The least share that a right answer counts as having: a hundred documents show no less."""

SPAN = math.log(30)
"""How far from its start a scale may move, as a log."""

Scores = Callable[[slice], Floats]
"""Gives the scores (b, m) of some of a fold's queries over its members."""


class Words(NamedTuple):
    """The lexical term λ · c(q) · lex(d) of a fold's queries, but for λ.

    Attributes:
        shares: (h, m), lex(d): BM25 over the query's best among the members.
        coverage: (h,) that best over what could be reached, from 0 to 1.
    """

    shares: NDArray[np.float16]
    coverage: Float32

    def term(self, part: slice, lexical: float) -> Float32:
        """(b, m): the term of some of the queries, at a γ of 0."""
        return self.shares[part] * np.float32(lexical)


class Held(NamedTuple):
    """The documents that held-out queries attend to.

    Attributes:
        queries: (q,) documents that are the queries.
        documents: (q, a), scores: (q, a): what is attended to, best first; -inf where padded.
        right: (q, a), the share of each one's value that answers the query.
        hidden: (q, a), the scores of what is attended to once all that is right is taken out.
        known: (q,) whether anything in the memory answers the query.
    """

    queries: Int64
    documents: Int64
    scores: Float64
    right: Float64
    hidden: Float64
    answered: Bool


PADDING = (0, 0, -np.inf, 0.0, -np.inf, 0)
"""The blank of each column."""


def fold_scores(answers: Answers, fitted: Fitted, fold: DocumentFold) -> Scores:
    """Score documents as queries against the members of a fold under a fit."""
    memory = answers.memory
    table = memory.with_vectors(fitted.keys(memory)).some(fold.members)
    queries = fitted.queries(memory, answers.queries[fold.held_out])
    return lambda part: table.best(products(queries[part], table.vectors))


def attend_fold(answers: Answers, fold: DocumentFold, scores: Scores, attend: int = ATTEND) -> Held:
    """Return what the queries of a fold attend to among its members."""
    step = max(1, BLOCK // max(1, int(answers.memory.counts[fold.members].sum())))
    blocks = []
    for index in range(0, len(fold.held_out), step):
        part = slice(index, index + step)
        blocks.append(_attended(answers, fold, fold.held_out[part], scores(part), attend))
    return Held(*(np.concatenate(column) for column in zip(*blocks, strict=True)))


def _attended(
    answers: Answers, fold: DocumentFold, queries: Int64, scores: Floats, attend: int
) -> Held:
    right = answers.targets.agreement(queries, fold.members)
    hidden = np.where(right > 0, -np.inf, scores)
    best = top_places(scores, attend)
    return Held(
        queries,
        fold.members[best],
        np.take_along_axis(scores, best, axis=1).astype(np.float64),
        np.take_along_axis(right, best, axis=1).astype(np.float64),
        np.take_along_axis(hidden, top_places(hidden, attend), axis=1).astype(np.float64),
        np.asarray((right > 0).any(axis=1), dtype=np.bool_),
    )


def joined(parts: Sequence[Held]) -> Held:
    """Return the queries of several folds, as wide as the widest."""
    width = max(part.scores.shape[1] for part in parts)
    columns = (
        np.concatenate(
            [column if column.ndim == 1 else widened(column, width, blank) for column in same]
        )
        for same, blank in zip(zip(*parts, strict=True), PADDING, strict=True)
    )
    return Held(*columns)


# -- answers ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Blends:
    """The blended answers of held-out queries under a scale, and W_V if there is one."""

    attended: Held
    targets: AnswerTargets
    scale: float
    output: ValueMap | None = None

    @property
    def weights(self) -> Float64:
        """(q, a): the softmax over what is attended to, without no answer: the blend's own."""
        return Softmax.of(self.scale * self.attended.scores).weights

    def gains(self) -> Float64:
        """(q,) how right answers are, higher is better: the log of the share that is right, or
        the squared error of the mean with its sign turned."""
        if self.targets.shares is not None:
            return np.asarray(
                np.log(np.maximum((self.weights * self.attended.right).sum(axis=1), FLOOR))
            )
        return np.asarray(-(self._errors() ** 2).mean(axis=1))

    def guards(self) -> Float64:
        """(q,) a second measure: whether the likeliest label is right, or the absolute error of
        the mean with its sign turned."""
        if self.targets.shares is None:
            return np.asarray(-np.abs(self._errors()).mean(axis=1))
        return self.likeliest()[1]

    def likeliest(self) -> tuple[Float64, Float64]:
        """(q,) the largest share of a label in each answer, and whether that label is right."""
        shares, attended = self.targets.shares, self.attended
        assert shares is not None  # only labels have shares
        weights = self.weights
        share, correct = np.empty(len(weights)), np.empty(len(weights))
        step = max(1, BLOCK // max(1, shares.shape[1] + attended.documents.shape[1]))
        for index in range(0, len(weights), step):
            part = slice(index, index + step)
            blended = self._by_label(weights[part], attended.documents[part])  # (b, c)
            best = blended.argmax(axis=1)
            rows = np.arange(len(best))
            share[part] = blended[rows, best]
            correct[part] = shares[attended.queries[part]].toarray()[rows, best] > 0
        return np.minimum(share, 1.0), correct

    def fit_output(self, ridge: float) -> ValueMap:
        """Return W_V for these blends."""
        truth = self.targets.columns[self.attended.queries].astype(np.float64)
        return fit_output(self._means(), truth, ridge)

    def _errors(self) -> Float64:
        """(q, v)"""
        means = self._means()
        answers = means if self.output is None else self.output.of(means)
        return np.asarray(answers - self.targets.columns[self.attended.queries])

    def _means(self) -> Float64:
        """(q, v): the blended numbers."""
        numbers, weights = self.targets.columns, self.weights
        means = np.empty((len(weights), numbers.shape[1]))
        step = max(1, BLOCK // max(1, weights.shape[1] * numbers.shape[1]))
        for index in range(0, len(weights), step):
            part = slice(index, index + step)
            near = numbers[self.attended.documents[part]]
            means[part] = np.einsum("qa,qav->qv", weights[part], near)
        return means

    def _by_label(self, weights: Float64, documents: Int64) -> Float64:
        """(b, c): the blended shares."""
        shares = self.targets.shares
        assert shares is not None
        rows = np.repeat(np.arange(len(weights)), weights.shape[1])
        places = rows, documents.ravel()
        spread = sparse.coo_array((weights.ravel(), places), shape=(len(weights), shares.shape[0]))
        return np.asarray((spread.tocsr() @ shares.astype(np.float64)).toarray())


class FoldAnswers(NamedTuple):
    """How folds are answered.

    Attributes:
        attended: what the queries of each fold attend to.
        ridge: how W_V is learned from held-out answers; None where `output` is as it is.
        output: W_V, if there is one that is not learned here.
    """

    attended: Sequence[Held]
    targets: AnswerTargets
    scale: float
    ridge: float | None = None
    output: ValueMap | None = None

    def output_by(self, folds: Sequence[int]) -> ValueMap | None:
        """Return W_V by the documents of some folds, each answered by those of the others."""
        if self.ridge is None:
            return self.output
        attended = joined([self.attended[index] for index in folds])
        return Blends(attended, self.targets, self.scale).fit_output(self.ridge)

    def blends(self, index: int, others: Sequence[int]) -> Blends:
        """Return the answers of one fold, by the W_V of others."""
        output = self.output_by(others)
        return Blends(self.attended[index], self.targets, self.scale, output)


# -- calibration -----------------------------------------------------------------------------------


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


STEP = 1e-3
"""A difference of log scales by which a slope is measured."""


def calibrate_answers(
    attended: Held, targets: AnswerTargets, start: float, error_rate: float, share: float = 1.0
) -> Calibration:
    """Fit the scale by how right answers are, and no answer by what is seen without them.

    Each query is scored twice, as in `calibrate`: as it is, and with all documents hidden that
    answer as its own value would, which is what one query in ten in use is taken to be like. One
    no-answer logit tells the two apart best, by the likelihood of a logistic regression on the
    log-sum-exp of the logits.

    Args:
        start: the scale until now.
        error_rate: the share of queries with an answer that the threshold may refuse.
        share: of all documents, those that could be attended to. More of them make every
            log-sum-exp larger: no-answer score and threshold are moved on by as far as they move
            between that share of what was attended to and all of it.
    """
    scale, _ = fit_scale(attended, targets, start)
    both = [Blends(attended, targets, item) for item in (start, scale)]
    null, refused = _on_all_documents(attended, scale, error_rate, share)
    labels = targets.shares is not None
    errors = [calibration_error(*blends.likeliest()) for blends in both] if labels else [None, None]
    losses = [-float(blends.gains().mean()) for blends in both] if labels else [None, None]
    return Calibration(
        scale=scale,
        null=null,
        threshold=None if null is None else float(expit(refused - null)),
        error_rate=error_rate,
        ece_before=errors[0],
        ece_after=errors[1],
        nll_before=losses[0],
        nll_after=losses[1],
        questions=len(attended.queries),
        answerable=int(attended.answered.sum()),
        note=None if null is not None else "Nothing could be hidden to fit a no-answer score to.",
    )


def log_sums(attended: Held, scale: float) -> tuple[Float64, Float64]:
    """Return the log-sum-exp of the logits of queries that the memory answers (k,), as they are,
    and with what answers them hidden (h,)."""
    answered, hidden = (
        partition(scale * scores[attended.answered]).log
        for scores in (attended.scores, attended.hidden)
    )
    return answered[np.isfinite(answered)], hidden[np.isfinite(hidden)]


def _on_all_documents(
    attended: Held, scale: float, error_rate: float, share: float
) -> tuple[float | None, float]:
    """Return the no-answer logit, and the log sum below which too little is known."""
    null, refused = _null_and_refused(attended, scale, error_rate)
    if null is None or share >= 1:
        return null, refused
    less, less_refused = _null_and_refused(_thinned(attended, share), scale, error_rate)
    if less is None:
        return null, refused
    return 2 * null - less, 2 * refused - less_refused


def _thinned(attended: Held, share: float) -> Held:
    """Return the same queries, as if only a drawn share of the documents were stored.

    A query stays known while any of the documents that answer it is left.
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


def _null_and_refused(
    attended: Held, scale: float, error_rate: float
) -> tuple[float | None, float]:
    sides = log_sums(attended, scale)
    if not all(map(len, sides)):
        return None, 0.0
    refused = threshold_at(sides[0], error_rate)
    assert refused is not None  # as some are known
    answers = np.repeat([True, False], [*map(len, sides)])
    counts = np.concatenate(
        [np.full(len(logs), share / len(logs)) for logs, share in zip(sides, SHARES, strict=True)]
    )
    # Levels were not compared where many documents have one value, so that none are fitted.
    return fit_null(np.concatenate(sides)[:, None], answers, counts, NO_LEVELS)[0], refused
