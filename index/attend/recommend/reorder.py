"""The order of a list: what resembles negative examples sinks, the new gets its share, and what
resembles the list so far makes way."""

from __future__ import annotations

import math

import numpy as np

from attend.types import Bool, Float32, Float64, Int64


def penalised(log_weights: Float64, negative: Float64) -> Float64:
    """Scores (n,) of documents that positive examples give w and negative ones v: log w²/(w + v).

    That is w times the share that positive examples have in what both give. It never rewards: far
    from all negative examples the score is log w, near them it sinks without bound.

    Args:
        log_weights, negative: (n,) log w and log v.
    """
    scores: Float64 = log_weights - np.logaddexp(0, negative - log_weights)
    return scores


def reserved(order: Int64, fresh: Bool, share: float, count: int) -> Int64:
    """The first `count` of an order, in whose every beginning a share is fresh.

    Args:
        order: (n,) positions, best first.
        fresh: by position.
        share: of each beginning of the list, rounded down, as long as there are fresh ones.
    """
    if not share:
        return order[:count]
    new, taken = order[fresh[order]].tolist(), set()
    listed: list[int] = []
    rest, fresh_listed = iter(order.tolist()), 0
    while len(listed) < min(count, len(order)):
        due = fresh_listed < math.floor(share * (len(listed) + 1) + 1e-9)
        at = new[fresh_listed] if due and fresh_listed < len(new) else None
        if at is None:
            at = next(each for each in rest if each not in taken)
        taken.add(at)
        fresh_listed += bool(fresh[at])
        listed.append(at)
    return np.array(listed, dtype=np.int64)


def diverse(scores: Float64, vectors: Float32, diversity: float, count: int) -> Int64:
    """Positions of `count` documents by maximal marginal relevance, one after the other.

    Each is the one of the largest (1 - diversity) * relevance - diversity * likeness, where
    likeness is its largest cosine with those chosen before, and relevance its score between the
    lowest, 0, and the highest, 1 (Carbonell and Goldstein 1998).

    Args:
        scores: (n,); vectors: (n, d) of length one.
    """
    spread = float(np.ptp(scores)) if len(scores) else 0.0
    relevance = (scores - scores.min(initial=np.inf)) / spread if spread else np.zeros(len(scores))
    likeness = np.zeros(len(scores))
    chosen: list[int] = []
    open_ = np.ones(len(scores), dtype=bool)
    for _ in range(min(count, len(scores))):
        gain = (1 - diversity) * relevance - diversity * likeness
        best = int(np.argmax(np.where(open_, gain, -np.inf)))
        chosen.append(best)
        open_[best] = False
        cosines = (vectors @ vectors[best]).astype(np.float64)
        likeness = cosines if len(chosen) == 1 else np.maximum(likeness, cosines)
    return np.array(chosen, dtype=np.int64)
