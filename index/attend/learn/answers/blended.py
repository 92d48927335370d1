"""The answers that held-out queries would get: how right, how sure, and by which scale."""

from __future__ import annotations

import math

import numpy as np
from scipy import sparse
from scipy.optimize import brentq, minimize_scalar
from scipy.special import expit, logsumexp
from scipy.stats import rankdata

from attend.learn.answers.held import Held
from attend.learn.answers.output import Output, fit_output
from attend.learn.answers.targets import Targets
from attend.learn.calibrate import Calibration
from attend.learn.data import BLOCK
from attend.learn.seen import SHARES, expected_error, threshold_at
from attend.types import Float64, Int64

FLOOR = 1e-3
"""The least share that a right answer counts as having: a hundred documents show no less."""

SPAN = math.log(30)
"""How far from its start a scale may move, as a log."""


def weights(held: Held, scale: float) -> Float64:
    """(q, a): the softmax over what is attended to, without a null key: the blend's own."""
    z = scale * held.scores
    return np.asarray(np.exp(z - logsumexp(z, axis=1, keepdims=True)))


def gains(held: Held, targets: Targets, scale: float, output: Output | None = None) -> Float64:
    """(q,) how right the answers are, higher is better: the log of the share that is right, or
    the squared error of the mean with its sign turned."""
    w = weights(held, scale)
    if targets.shares is not None:
        return np.asarray(np.log(np.maximum((w * held.right).sum(axis=1), FLOOR)))
    error = _errors(held, targets, w, output)
    return np.asarray(-(error**2).mean(axis=1))


def guards(held: Held, targets: Targets, scale: float, output: Output | None = None) -> Float64:
    """(q,) a second view of the same: whether the likeliest label is right, or the absolute error
    of the mean with its sign turned."""
    w = weights(held, scale)
    if targets.shares is None:
        return np.asarray(-np.abs(_errors(held, targets, w, output)).mean(axis=1))
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


def calibrate_answers(
    held: Held, targets: Targets, start: float, error_rate: float, share: float = 1.0
) -> Calibration:
    """The scale by how right answers are; the null key by what is seen once that is taken out.

    Each query is looked at twice, as in `calibrate`: as it is, and with all documents hidden that
    answer as its own value would, which is what one query in ten in use is taken to be like. One
    null logit tells the two apart best, by the likelihood of a logistic regression on the
    log-sum-exp of the logits.

    Args:
        start: the scale until now.
        error_rate: the share of queries with an answer that the threshold may refuse.
        share: of all documents, those that were there to be attended to. More of them make every
            log-sum-exp larger: null and threshold are moved on by as much as they move between
            that share of what was attended to and all of it.
    """
    scale, gain = fit_scale(held, targets, start)
    before = float(gains(held, targets, start).mean())
    null, refused = _on_whole(held, scale, error_rate, share)
    labels = targets.shares is not None
    errors = [expected_error(*likeliest(held, targets, each)) for each in (start, scale) if labels]
    return Calibration(
        scale=scale,
        null=null,
        threshold=None if null is None else float(expit(refused - null)),
        error_rate=error_rate,
        ece_before=errors[0] if labels else None,
        ece_after=errors[1] if labels else None,
        nll_before=-before if labels else None,
        nll_after=-gain if labels else None,
        questions=len(held.queries),
        answerable=int(held.known.sum()),
        note=None if null is not None else "Nothing could be hidden to fit a null key to.",
    )


def thinned(held: Held, share: float) -> Held:
    """The same queries, as if of the documents only a share, drawn, were there.

    A query stays known while any of the documents that answer it is left.
    """
    random = np.random.default_rng(0)
    kept, left = (random.random(each.shape) < share for each in (held.scores, held.hidden))
    answering = held.right > 0
    lost = answering.any(axis=1) & ~(answering & kept).any(axis=1)
    return held._replace(
        scores=np.where(kept, held.scores, -np.inf),
        hidden=np.where(left, held.hidden, -np.inf),
        known=held.known & ~lost,
    )


def confidences_before_null(held: Held, scale: float) -> tuple[Float64, Float64]:
    """The log-sum-exp of the logits of queries that the memory answers (k,), as they are, and
    with what answers them hidden (h,)."""
    found = (logsumexp(scale * each[held.known], axis=1) for each in (held.scores, held.hidden))
    known, hidden = (each[np.isfinite(each)] for each in found)
    return known, hidden


def auroc(positive: Float64, negative: Float64) -> float:
    """How often one of the first (p,) is larger than one of the second (n,), ties by half.

    >>> auroc(np.array([0.9, 0.5]), np.array([0.5, 0.1]))
    0.875
    """
    ranks = rankdata(np.concatenate([positive, negative]))
    count = len(positive)
    above = ranks[:count].sum() - count * (count + 1) / 2
    return float(above / (count * len(negative)))


def _on_whole(
    held: Held, scale: float, error_rate: float, share: float
) -> tuple[float | None, float]:
    """The null logit, and the log-sum-exp below which too little is known, on all documents."""
    null, refused = _null_and_refused(held, scale, error_rate)
    if null is None or share >= 1:
        return null, refused
    less, less_refused = _null_and_refused(thinned(held, share), scale, error_rate)
    if less is None:
        return null, refused
    return 2 * null - less, 2 * refused - less_refused


def _null_and_refused(held: Held, scale: float, error_rate: float) -> tuple[float | None, float]:
    known, hidden = confidences_before_null(held, scale)
    if not len(known) or not len(hidden):
        return None, 0.0
    refused = threshold_at(known, error_rate)
    assert refused is not None  # as some are known
    return _null(known, hidden), refused


def _null(known: Float64, hidden: Float64) -> float:
    """The logit at which as much confidence is right as is wrong: where the likelihood peaks."""

    def excess(null: float) -> float:
        sure = [float(expit(each - null).mean()) for each in (known, hidden)]
        return float(np.dot(SHARES, sure)) - SHARES[0]

    low, high = min(known.min(), hidden.min()), max(known.max(), hidden.max())
    return float(brentq(excess, low - 50, high + 50))


def output_for(held: Held, targets: Targets, scale: float, ridge: float) -> Output:
    """W_V for the blends of held-out queries, under a scale."""
    blends = _means(held, targets, weights(held, scale))
    return fit_output(blends, targets.given[held.queries].astype(np.float64), ridge)


def _errors(held: Held, targets: Targets, w: Float64, output: Output | None) -> Float64:
    """(q, v)"""
    means = _means(held, targets, w)
    found = means if output is None else output.of(means)
    return np.asarray(found - targets.given[held.queries])


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
