"""Held-out documents as queries: what they attend to, and how right and sure their answers are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from attend.attention import Softmax
from attend.core.types import Bool, Float32, Float64, Floats, Int64
from attend.learning.answer_fit import Answers, AnswerTargets, ValueMap, fit_output
from attend.learning.calibration import ATTEND
from attend.learning.data import BLOCK, products, stacked, top_places
from attend.learning.fit import Fitted
from attend.learning.held_out import DocumentFold

FLOOR = 1e-3
"""The least share that a right answer counts as having: a hundred documents show no less."""

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
        answered: (q,) whether anything in the memory answers the query.
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


def attend_fold(
    answers: Answers,
    fold: DocumentFold,
    scores: Scores,
    attend: int = ATTEND,
    *,
    words: Scores | None = None,
) -> Held:
    """Return what the queries of a fold attend to among its members.

    Args:
        words: gives the lexical term, which counts by the best match of what is there: without
            what is right, by that of the others.
    """
    step = max(1, BLOCK // max(1, int(answers.memory.counts[fold.members].sum())))
    blocks = []
    for index in range(0, len(fold.held_out), step):
        part = slice(index, index + step)
        parts = scores(part), None if words is None else words(part)
        blocks.append(_attended(answers, fold, fold.held_out[part], *parts, attend))
    return Held(*(np.concatenate(column) for column in zip(*blocks, strict=True)))


def _attended(
    answers: Answers,
    fold: DocumentFold,
    queries: Int64,
    scores: Floats,
    words: Floats | None,
    attend: int,
) -> Held:
    right = answers.targets.agreement(queries, fold.members)
    hidden = np.where(right > 0, -np.inf, scores)
    if words is not None:
        scores, hidden = scores + words, hidden + _without(words, right > 0)
    best = top_places(scores, attend)
    return Held(
        queries,
        fold.members[best],
        np.take_along_axis(scores, best, axis=1).astype(np.float64),
        np.take_along_axis(right, best, axis=1).astype(np.float64),
        np.take_along_axis(hidden, top_places(hidden, attend), axis=1).astype(np.float64),
        np.asarray((right > 0).any(axis=1), dtype=np.bool_),
    )


def _without(words: Floats, gone: Bool) -> Floats:
    """Return a lexical term (b, m) that counts by the best match among what is not gone."""
    best, left = (
        part.max(axis=1, initial=0, keepdims=True) for part in (words, np.where(gone, 0, words))
    )
    return np.asarray(words * np.where(left > 0, best / np.where(left > 0, left, 1), 0))


def joined(parts: Sequence[Held]) -> Held:
    """Return the queries of several folds, as wide as the widest."""
    columns = (
        np.concatenate(same) if same[0].ndim == 1 else stacked(same, blank)
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
