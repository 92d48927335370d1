"""The answer objective's loss: W_Q and W_K that make the blend of stored values right.

Every document is a query about itself, with itself and its near-duplicates taken out of the
memory (leave-one-out, as in neighbourhood components analysis: Goldberger et al. 2004). The loss
is that of the blended answer: the cross-entropy of the share that right labels get, or the
squared error of the mean. Beside it a no-answer key learns to win where a query's own labels are
taken out too, so that confidence tells queries apart that nothing stored answers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.special import expit

from attend.attention import Softmax, log_shares, log_total, partition
from attend.core.types import Bool, Float32, Float64, Floats, Int64
from attend.learning.calibration import (
    NO_LEVELS,
    SHARES,
    Calibration,
    HeldOutScores,
    fit_null,
    judged,
    threshold_at,
)
from attend.learning.data import ATTEND, Memory, Sparse, blocks, products, stacked, top_places
from attend.learning.fit import Fitted, Recipe, Residual, Watch, descend, minimise, shuffled_batches
from attend.learning.selection import fold_numbers, sampled
from attend.measure.statistics import auroc

RECIPE = Recipe(
    "leave one out",
    rates={"maps": 2e-3, "scale": 5e-3, "null": 5e-2},
    epochs=6,
    steps=(40, 400),
    batch=256,
    drop=0.3,
)

NULL_SHARE = 0.3
"""The weight of the no-answer key's part in the loss of labels."""

DOCUMENTS = 1000
"""Documents drawn for each step as the memory."""

NEAR = 0.5
"""In standard deviations: a number this close to a query's own can answer it."""

HIDDEN = -1e4
"""The logit of what is taken out of the memory: no weight, and no NaN where all is."""


@dataclass(frozen=True)
class AnswerTargets:
    """The values of n documents; one of the two is None.

    Attributes:
        shares: sparse (n, c), the share of each label in a document's value; rows sum to one.
        numbers: (n, v), about their mean and in units of their standard deviation.
        center, spread: that mean (v,), and that standard deviation.
    """

    shares: Sparse | None = None
    numbers: Float32 | None = None
    center: Float64 | None = None
    spread: float = 1.0

    def agreement(self, queries: Int64, documents: Int64) -> Float32:
        """(b, k): the share of a document's value that answers a query as its own value would."""
        if self.shares is not None:
            right = (self.shares[queries] > 0).astype(np.float32)
            agreement: Float32 = (right @ self.shares[documents].T).toarray()
            return agreement
        numbers = self.columns
        squares = (numbers[queries] ** 2).sum(axis=1)[:, None] + (numbers[documents] ** 2).sum(
            axis=1
        )
        distance = (squares - 2 * numbers[queries] @ numbers[documents].T) / numbers.shape[1]
        near: Float32 = (distance <= NEAR**2).astype(np.float32)
        return near

    @property
    def columns(self) -> Float32:
        """The numbers (n, v); of labels their shares (n, c)."""
        if self.numbers is not None:
            return self.numbers
        assert self.shares is not None  # one of the two is there
        dense: Float32 = self.shares.toarray()
        return dense


@dataclass(frozen=True)
class Answers:
    """Documents with their values.

    Attributes:
        queries: (n, d), each document as a query.
        groups: (n,), near-duplicates have one number.
        texts: (n,) of each document, as it is searched by words; empty without any.
    """

    memory: Memory
    queries: Float32
    groups: Int64
    targets: AnswerTargets
    texts: Sequence[str] = ()


@dataclass(frozen=True)
class ValueMap:
    """W_V: an affine map of blended vectors, so that answers come nearer to what is right.

    Fitted by ridge regression from the identity (Hoerl and Kennard 1970): the blend of noisy
    neighbours is too bold where values say little of each other, and too timid at the edge.
    """

    w: Float64  # (v, v)
    b: Float64  # (v,)

    def of(self, blends: Float64) -> Float64:
        """(q, v) to (q, v)."""
        mapped: Float64 = blends @ self.w.T + self.b
        return mapped

    def unscaled(self, center: Float64, spread: float) -> ValueMap:
        """Return the same map for what was centred and divided by the spread, before it was."""
        return ValueMap(self.w, self.b * spread + center - self.w @ center)

    def scaled(self, center: Float64, spread: float) -> ValueMap:
        """Return the inverse of `unscaled`."""
        return ValueMap(self.w, (self.w @ center + self.b - center) / spread)


def fit_output(blends: Float64, truth: Float64, ridge: float) -> ValueMap:
    """Return the map of least squared error from blends (q, v) to the truth (q, v).

    Args:
        ridge: above 0, how much staying at the identity counts, beside blends of the same spread.
    """
    mean, target = blends.mean(axis=0), truth.mean(axis=0)
    x = blends - mean
    rest = truth - target - x  # what the identity leaves
    moments = x.T @ x
    # Where all blends are the same, they say nothing but where to move them.
    penalty = ridge * (float(np.trace(moments)) / len(moments) or 1.0)
    change = np.linalg.solve(moments + penalty * np.eye(len(moments)), x.T @ rest).T
    w = np.eye(len(moments)) + change
    return ValueMap(w, target - w @ mean)


AnswerBatch: TypeAlias = tuple[Int64, Int64]
"""The queries (b,) and the documents of the memory (k,) of one step."""


class AnswerModel:
    """Parameters, and the loss of a batch of queries over a drawn memory.

    W_Q and W_K are one matrix: queries and keys are documents alike here, and with one for both
    what is learned holds better for values that training never saw.
    """

    def __init__(
        self, answers: Answers, members: Int64, recipe: Recipe, start: Float32, seed: int
    ) -> None:
        self.answers, self.members, self.recipe = answers, members, recipe
        memory = answers.memory
        self.maps = Residual(memory, start, scale=memory.scale, offset_keys=members[:0], seed=seed)
        # Amid what the first queries see: from afar it would take all steps to come near.
        batch = members[: recipe.batch], self._drawn()
        with self.maps.torch.no_grad():
            first = float(log_total(self.logits(batch)).median())
        self.null = self.maps.torch.tensor(first, requires_grad=True)
        scale, null = [self.maps.log_scale], [self.null]
        self.parameters = {"maps": [self.maps.delta_q], "scale": scale, "null": null}

    def batches(self, steps: int) -> Iterator[AnswerBatch]:
        for queries in shuffled_batches(self.members, self.recipe.batch, steps, self.maps.random):
            yield queries, self._drawn()

    def loss(self, batch: AnswerBatch) -> Any:
        """Return the mean loss of the queries that the memory answers; None without any."""
        torch, targets, (queries, documents) = self.maps.torch, self.answers.targets, batch
        z = self.logits(batch)  # (b, k)
        if targets.numbers is not None:  # the squared error of the blend, in units of the variance
            numbers = torch.from_numpy(targets.columns)
            blended = log_shares(z).exp() @ numbers[documents]  # (b, k) @ (k, v) -> (b, v)
            losses = ((blended - numbers[queries]) ** 2).mean(dim=1)
            answered = z.amax(dim=1) > HIDDEN / 2
        else:  # the cross-entropy of the share of what is right, and no answer against the rest
            agreement, total = torch.from_numpy(targets.agreement(*batch)), log_total(z)
            right = agreement > 0
            votes = torch.where(right, z + agreement.clamp(min=1e-9).log(), HIDDEN)
            others = log_total(z.masked_fill(right, HIDDEN))  # (b,)
            softplus = torch.nn.functional.softplus
            null = softplus(self.null - total) + softplus(others - self.null)
            losses = (1 - NULL_SHARE) * (total - log_total(votes)) + NULL_SHARE * null
            answered = (right & (z > HIDDEN / 2)).any(dim=1)
        return losses[answered].mean() if bool(answered.any()) else None

    def logits(self, batch: AnswerBatch) -> Any:
        """(b, k), as if the drawn documents were all: each stands for as many."""
        maps, groups = self.maps, self.answers.groups
        queries, documents = batch
        projected = self._projected(self.answers.queries[queries])
        keys = self._projected(self.answers.memory.vectors[maps.memory.positions(documents)])
        scores = maps.best(projected @ keys.T, documents)
        z = maps.log_scale.exp() * scores + math.log(len(self.members) / len(documents))
        same_group = maps.torch.from_numpy(groups[queries][:, None] == groups[documents][None])
        return z.masked_fill(same_group, HIDDEN)

    def _projected(self, embeddings: Float32) -> Any:
        maps = self.maps
        thinned = maps.thinned(maps.torch.from_numpy(embeddings), self.recipe.drop)
        return maps.project(thinned, maps.delta_q)

    def _drawn(self) -> Int64:
        """Draw the memory of one step, ascending."""
        if len(self.members) <= DOCUMENTS:
            return np.sort(self.members)
        return np.sort(self.maps.random.choice(self.members, DOCUMENTS, replace=False))


def fit_answers(
    answers: Answers,
    members: Int64,
    *,
    start: Float32,
    recipe: Recipe = RECIPE,
    seed: int = 0,
    watch: Watch = lambda done: None,
) -> Fitted:
    """Learn from the documents `members`, of which at least two share an answer.

    Args:
        start: (d_k, d), where the matrix begins.

    Raises:
        Conflict: the loss is not finite.
    """
    model = AnswerModel(answers, members, recipe, start, seed)
    steps = recipe.count_steps(math.ceil(len(members) / recipe.batch))
    descend(model, recipe, model.batches(steps), steps, watch)
    fitted = model.maps.fitted()
    return fitted._replace(w_k=fitted.w_q)


# -- held-out documents ----------------------------------------------------------------------------


MOST_DOCUMENTS = 2500
"""Units that judge a fold: more make its figures no truer than they need to be."""


class DocumentFold(NamedTuple):
    """Documents that are held out (h,), and those that answer them (m,), ascending."""

    held_out: Int64
    members: Int64


def document_folds(groups: Int64, count: int, seed: int) -> list[DocumentFold]:
    """Divide documents into folds of equal size; a group (n,) is never divided."""
    random = np.random.default_rng(seed)
    fold_of = fold_numbers(groups, count, random)
    folds = []
    for fold in range(count):
        held_out, members = np.flatnonzero(fold_of == fold), np.flatnonzero(fold_of != fold)
        if len(held_out) and len(members):
            folds.append(DocumentFold(sampled(held_out, MOST_DOCUMENTS, random), members))
    return folds


FLOOR = 1e-3
"""The least share that a right answer counts as having: a hundred documents show no less."""

Scores = Callable[[slice], Floats]
"""Gives the scores (b, m) of some of a fold's queries over its members."""


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
    words: NDArray[np.float16] | None = None,
    lexical: float = 0.0,
) -> Held:
    """Return what the queries of a fold attend to among its members.

    Args:
        words: (h, m), lex(d): BM25 over the query's best. With λ, `lexical`, it is the lexical
            term, at a γ of 0, which counts by the best match of what is there: without what is
            right, by that of the others.
    """
    parts = []
    for part in blocks(len(fold.held_out), int(answers.memory.counts[fold.members].sum())):
        term = None if words is None or not lexical else words[part] * np.float32(lexical)
        parts.append(_attended(answers, fold, part, scores(part), term, attend))
    return joined(parts)


def _attended(
    answers: Answers,
    fold: DocumentFold,
    part: slice,
    scores: Floats,
    words: Floats | None,
    attend: int,
) -> Held:
    queries = fold.held_out[part]
    right = answers.targets.agreement(queries, fold.members)
    hidden = np.where(right > 0, -np.inf, scores)
    if words is not None:
        most, left = (
            part.max(axis=1, initial=0, keepdims=True)
            for part in (words, np.where(right > 0, 0, words))
        )
        hidden = hidden + words * np.where(left > 0, most / np.where(left > 0, left, 1), 0)
        scores = scores + words
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
    columns = (
        np.concatenate(same) if same[0].ndim == 1 else stacked(same, blank)
        for same, blank in zip(zip(*parts, strict=True), PADDING, strict=True)
    )
    return Held(*columns)


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
        return self._likeliest()[:2]

    def supports(self) -> Int64:
        """(q,) the heaviest document that has the likeliest label."""
        documents, labels = self.attended.documents, self._likeliest()[2]
        assert self.targets.shares is not None  # only labels have shares
        pairs = documents.ravel(), np.repeat(labels, documents.shape[1])
        has = np.asarray(self.targets.shares[pairs]).reshape(documents.shape) > 0
        first = (has & np.isfinite(self.attended.scores)).argmax(axis=1)
        return np.asarray(documents[np.arange(len(documents)), first])

    def _likeliest(self) -> tuple[Float64, Float64, Int64]:
        shares, queries = self.targets.shares, self.attended.queries
        assert shares is not None  # only labels have shares
        share, correct = np.empty(len(queries)), np.empty(len(queries))
        labels = np.empty(len(queries), dtype=np.int64)
        for part, blended in self._blended(shares.astype(np.float64)):
            dense = blended.toarray()  # (b, c)
            best, rows = dense.argmax(axis=1), np.arange(len(dense))
            share[part] = dense[rows, best]
            correct[part] = shares[queries[part]].toarray()[rows, best] > 0
            labels[part] = best
        return np.minimum(share, 1.0), correct, labels

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
        return np.concatenate([means for _, means in self._blended(self.targets.columns)])

    def _blended(self, values: Any) -> Iterator[tuple[slice, Any]]:
        """Yield some queries, and their blends of the values (n, v) of all documents: (b, v)."""
        documents, weights = self.attended.documents, self.weights
        for part in blocks(len(weights), values.shape[1] + documents.shape[1]):
            near = documents[part]
            places = np.repeat(np.arange(len(near)), near.shape[1]), near.ravel()
            shape = len(near), values.shape[0]
            yield part, sparse.coo_array((weights[part].ravel(), places), shape=shape) @ values


# -- calibration -----------------------------------------------------------------------------------

UNHIDDEN = "Nothing could be hidden to fit a no-answer score to."

SPAN = math.log(30)
"""How far from its start a scale may move, as a log."""

STEP = 1e-3
"""A difference of log scales by which a slope is measured."""


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


@dataclass(frozen=True)
class AnswerScores(HeldOutScores):
    """Held-out queries as they are, and with all documents hidden that answer as their own value
    would, which is what one query in ten in use is taken to be like.

    The scale is the one under which answers are most right. One no-answer logit tells the two apart
    best, by the likelihood of a logistic regression on the log-sum-exp of the logits. It has no
    levels: where many documents have one value, the best do not stand out from those behind them
    (of banking77's training texts, fitted levels are 0).

    Attributes:
        share: of all documents, those that could be attended to. More of them make every
            log-sum-exp larger: no-answer score and threshold are moved on by as far as they move
            between that share of what was attended to and all of it.
    """

    attended: Held
    targets: AnswerTargets
    start: float
    error_rate: float
    share: float = 1.0
    names: ClassVar[tuple[str, str]] = ("documents", "likeliest label")

    def __len__(self) -> int:
        return len(self.attended.queries)

    def some(self, members: Bool) -> AnswerScores:
        columns: list[Any] = [column[members] for column in self.attended]
        attended = Held(*columns)
        return replace(self, attended=attended, share=1.0)

    def fit(self) -> Calibration:
        scale, _ = fit_scale(self.attended, self.targets, self.start)
        null, threshold = self.no_answer(scale) or (None, None)
        fit = Calibration(
            scale,
            null,
            threshold,
            self.error_rate,
            questions=len(self),
            answerable=int(self.attended.answered.sum()),
            note=UNHIDDEN if null is None else None,
        )
        if self.targets.shares is None:  # numbers have no calibration error, and are not checked
            return fit
        return judged(fit, [self], [replace(fit, scale=self.start)], [fit])

    def no_answer(self, scale: float) -> tuple[float, float | None] | None:
        fit = self._separation(self.attended, scale)
        if fit is not None and self.share < 1:
            less = self._separation(self._thinned(), scale)
            fit = fit if less is None else 2 * fit - less
        return None if fit is None else (float(fit[0]), float(expit(fit[1] - fit[0])))

    def sureness(self, fit: Calibration) -> tuple[Float64, Float64, Float64]:
        """The largest share of a label in each answer, and whether that label is right."""
        shares, correct = Blends(self.attended, self.targets, fit.scale).likeliest()
        return shares, correct, np.ones(len(shares))

    def loss(self, fit: Calibration) -> float:
        return -float(Blends(self.attended, self.targets, fit.scale).gains().mean())

    def confidences(self, fit: Calibration) -> tuple[Float64, Float64]:
        answered, _ = _log_sums(self.attended, fit.scale)
        return np.asarray(expit(answered - (fit.null or 0.0))), np.ones(len(answered))

    def auroc(self, scale: float) -> float | None:
        """Return the AUROC of the confidence: of queries that the memory answers, over those with
        what answers them hidden. None without either."""
        answered, hidden = _log_sums(self.attended, scale)
        return auroc(answered, hidden) if len(answered) and len(hidden) else None

    def _separation(self, attended: Held, scale: float) -> Float64 | None:
        """(2,) a no-answer logit, and the least log sum that is not refused; None where nothing can
        be hidden."""
        sides = _log_sums(attended, scale)
        least = threshold_at(sides[0], self.error_rate)
        if least is None or not len(sides[1]):
            return None
        answers = np.repeat([True, False], [*map(len, sides)])
        counts = [
            np.full(len(logs), part / len(logs)) for logs, part in zip(sides, SHARES, strict=True)
        ]
        null, _ = fit_null(
            np.concatenate(sides)[:, None], answers, np.concatenate(counts), NO_LEVELS
        )
        return np.array([null, least])

    def _thinned(self) -> Held:
        """Return the same queries, as if only a drawn share of the documents were stored.

        A query stays answered while any of the documents that answer it is left.
        """
        attended, random = self.attended, np.random.default_rng(0)
        there, left = (
            random.random(item.shape) < self.share for item in (attended.scores, attended.hidden)
        )
        answering = attended.right > 0
        lost = answering.any(axis=1) & ~(answering & there).any(axis=1)
        return attended._replace(
            scores=np.where(there, attended.scores, -np.inf),
            hidden=np.where(left, attended.hidden, -np.inf),
            answered=attended.answered & ~lost,
        )


def _log_sums(attended: Held, scale: float) -> tuple[Float64, Float64]:
    """Return the log-sum-exp of the logits of queries that the memory answers (k,), as they are,
    and with what answers them hidden (h,)."""
    answered, hidden = (
        partition(scale * scores[attended.answered]).log
        for scores in (attended.scores, attended.hidden)
    )
    return answered[np.isfinite(answered)], hidden[np.isfinite(hidden)]
