"""Held-out queries and the answers they would get: how right, how sure, and by which scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from scipy import sparse
from scipy.optimize import brentq, minimize_scalar
from scipy.special import expit, logsumexp
from scipy.stats import rankdata

from index.learn.answers import Answers, Matrices, Targets
from index.learn.calibrate import ATTEND, Calibration, expected_error, threshold_at
from index.learn.data import BLOCK, Memory
from index.types import Bool, Float32, Float64, Int64

FLOOR = 1e-3
"""The least share that a right answer counts as having: a hundred documents show no less."""

SPAN = math.log(30)
"""How far from its start a scale may move, as a log."""


class Held(NamedTuple):
    """What held-out queries attend to.

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
    known: Bool


class Scores(Protocol):
    """How documents as queries (b,) score keys (m,), by their positions: (b, m)."""

    def __call__(self, asked: Int64, positions: Int64) -> Float32: ...


def compared(answers: Answers, matrices: Matrices) -> Scores:
    """Documents as queries and keys under two matrices."""
    memory = answers.memory
    queries = _unit(answers.queries @ matrices.w_q.T, memory)
    keys = _unit(memory.embeddings @ matrices.w_k.T, memory)

    def scores(asked: Int64, positions: Int64) -> Float32:
        found: Float32 = queries[asked] @ keys[positions].T
        return found

    return scores


def attended(
    answers: Answers, scores: Scores, asked: Int64, members: Int64, attend: int = ATTEND
) -> Held:
    """What the queries `asked` (q,) attend to among the documents `members`, others than those."""
    positions = answers.memory.positions(members)
    counts = answers.memory.counts[members]
    starts = np.cumsum(counts) - counts
    step = max(1, BLOCK // max(1, len(positions)))
    blocks = [
        _block(answers, scores(part, positions), starts, part, members, attend)
        for part in np.split(asked, range(step, len(asked), step))
    ]
    return Held(asked, *(np.concatenate(each) for each in zip(*blocks, strict=True)))


def joined(parts: Sequence[Held]) -> Held:
    """The queries of several folds, as wide as the widest."""
    width = max(part.scores.shape[1] for part in parts)
    blank = {"scores": -np.inf, "hidden": -np.inf, "right": 0.0, "documents": 0}
    columns = {
        name: np.concatenate([_widened(getattr(part, name), width, blank[name]) for part in parts])
        for name in blank
    }
    queries, known = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("queries", "known")
    )
    return Held(queries=queries, known=known, **columns)


def weights(held: Held, scale: float) -> Float64:
    """(q, a): the softmax over what is attended to, without a null key: the blend's own."""
    z = scale * held.scores
    return np.asarray(np.exp(z - logsumexp(z, axis=1, keepdims=True)))


def gains(held: Held, targets: Targets, scale: float) -> Float64:
    """(q,) how right the answers are, higher is better: the log of the share that is right, or
    the squared error of the mean with its sign turned."""
    w = weights(held, scale)
    if targets.shares is not None:
        return np.asarray(np.log(np.maximum((w * held.right).sum(axis=1), FLOOR)))
    return np.asarray(-((_means(held, targets, w) - targets.given[held.queries]) ** 2).mean(axis=1))


def guards(held: Held, targets: Targets, scale: float) -> Float64:
    """(q,) a second view of the same: whether the likeliest label is right, or the absolute error
    of the mean with its sign turned."""
    w = weights(held, scale)
    if targets.shares is None:
        error = np.abs(_means(held, targets, w) - targets.given[held.queries])
        return np.asarray(-error.mean(axis=1))
    _, correct = likeliest(held, targets, scale)
    return correct


def likeliest(held: Held, targets: Targets, scale: float) -> tuple[Float64, Float64]:
    """(q,) the largest share of a label in each answer, and whether that label is right."""
    assert targets.shares is not None  # only labels have shares
    w = weights(held, scale)
    share, correct = np.empty(len(w)), np.empty(len(w))
    step = max(1, BLOCK // max(1, targets.shares.shape[1] + held.documents.shape[1]))
    for at in range(0, len(w), step):
        part = slice(at, at + step)
        blended = _blended(w[part], held.documents[part], targets)  # (b, c)
        best = blended.argmax(axis=1)
        rows = np.arange(len(best))
        share[part] = blended[rows, best]
        own = targets.shares[held.queries[part]].toarray()
        correct[part] = own[rows, best] > 0
    return np.minimum(share, 1.0), correct


def fit_scale(held: Held, targets: Targets, start: float) -> tuple[float, float]:
    """The scale under which answers are most right, and their mean gain under it."""
    middle = math.log(start)

    def loss(log_scale: float) -> float:
        return -float(gains(held, targets, math.exp(log_scale)).mean())

    best = minimize_scalar(
        loss, bounds=(middle - SPAN, middle + SPAN), method="bounded", options={"xatol": 5e-3}
    )
    return math.exp(float(best.x)), -float(best.fun)


def calibrate_answers(held: Held, targets: Targets, start: float, error_rate: float) -> Calibration:
    """The scale by how right answers are; the null key by what is seen once that is taken out.

    Each query is looked at twice, as in `calibrate`: as it is, and with all documents hidden that
    answer as its own value would. One null logit tells the two apart best, by the likelihood of a
    logistic regression on the log-sum-exp of the logits.
    """
    scale, gain = fit_scale(held, targets, start)
    before = float(gains(held, targets, start).mean())
    known, hidden = confidences_before_null(held, scale)
    null = _null(known, hidden)
    sure = expit(known - (0.0 if null is None else null))
    labels = targets.shares is not None
    errors = [expected_error(*likeliest(held, targets, each)) for each in (start, scale) if labels]
    return Calibration(
        scale=scale,
        null=null,
        threshold=None if null is None else threshold_at(sure, error_rate),
        error_rate=error_rate,
        ece_before=errors[0] if labels else None,
        ece_after=errors[1] if labels else None,
        nll_before=-before if labels else None,
        nll_after=-gain if labels else None,
        questions=len(held.queries),
        answerable=int(held.known.sum()),
        note=None if null is not None else "Nothing could be hidden to fit a null key to.",
    )


def confidences_before_null(held: Held, scale: float) -> tuple[Float64, Float64]:
    """The log-sum-exp of the logits of queries that the memory answers (k,), as they are, and
    with what answers them hidden (h,)."""
    known = held.known
    hidden = logsumexp(scale * held.hidden[known], axis=1)
    return np.asarray(logsumexp(scale * held.scores[known], axis=1)), hidden[np.isfinite(hidden)]


def auroc(positive: Float64, negative: Float64) -> float:
    """How often one of the first (p,) is larger than one of the second (n,), ties by half.

    >>> auroc(np.array([0.9, 0.5]), np.array([0.5, 0.1]))
    0.875
    """
    ranks = rankdata(np.concatenate([positive, negative]))
    count = len(positive)
    above = ranks[:count].sum() - count * (count + 1) / 2
    return float(above / (count * len(negative)))


def _null(known: Float64, hidden: Float64) -> float | None:
    """The logit at which as much confidence is right as is wrong: where the likelihood peaks."""
    if not len(known) or not len(hidden):
        return None
    everything = np.concatenate([known, hidden])

    def excess(null: float) -> float:
        share = len(known) / len(everything)
        return float(expit(everything - null).mean()) - share

    return float(brentq(excess, everything.min() - 50, everything.max() + 50))


def _block(
    answers: Answers, scores: Float32, starts: Int64, asked: Int64, members: Int64, attend: int
) -> tuple[Int64, Float64, Float64, Float64, Bool]:
    best = np.maximum.reduceat(scores, starts, axis=1)  # (b, n)
    right = answers.targets.agreement(asked, members)
    top = _top(best, attend)
    hidden = np.where(right > 0, -np.inf, best)
    rest = np.take_along_axis(hidden, _top(hidden, attend), axis=1)
    return (
        members[top],
        np.take_along_axis(best, top, axis=1).astype(np.float64),
        np.take_along_axis(right, top, axis=1).astype(np.float64),
        rest.astype(np.float64),
        np.asarray((right > 0).any(axis=1), dtype=np.bool_),
    )


def _top(scores: Float32, count: int) -> Int64:
    """(b, a) the columns of the largest scores, in descending order."""
    count = min(count, scores.shape[1])
    top = np.argpartition(-scores, count - 1, axis=1)[:, :count]
    order = np.argsort(-np.take_along_axis(scores, top, axis=1), axis=1, kind="stable")
    return np.take_along_axis(top, order, axis=1)


def _means(held: Held, targets: Targets, w: Float64) -> Float64:
    """(q, v): the blended numbers."""
    numbers = targets.given
    means = np.empty((len(w), numbers.shape[1]))
    step = max(1, BLOCK // max(1, w.shape[1] * numbers.shape[1]))
    for at in range(0, len(w), step):
        part = slice(at, at + step)
        means[part] = np.einsum("qa,qav->qv", w[part], numbers[held.documents[part]])
    return means


def _blended(w: Float64, documents: Int64, targets: Targets) -> Float64:
    """(b, c): the blended shares."""
    assert targets.shares is not None
    rows = np.repeat(np.arange(len(w)), w.shape[1])
    place = sparse.coo_array(
        (w.ravel(), (rows, documents.ravel())), shape=(len(w), targets.shares.shape[0])
    )
    return np.asarray((place.tocsr() @ targets.shares.astype(np.float64)).toarray())


def _unit(vectors: Float32, memory: Memory) -> Float32:
    if not memory.unit:
        return vectors
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.divide(vectors, np.where(length == 0, 1, length), dtype=np.float32)


def _widened(array: Float64, width: int, blank: float) -> Float64:
    return np.pad(array, ((0, 0), (0, width - array.shape[1])), constant_values=blank)
