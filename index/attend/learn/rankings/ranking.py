"""How held-out questions are ranked: the parts of each logit, and what weights make of them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from attend.learn.data import Pool
from attend.learn.heads import ONE_HEAD, Heads, mixture, ranked
from attend.types import Float32, Float64, Int64

CUT = 10
"""nDCG is measured at 10."""

NEVER = -1e9
"""The score of a document that has no key of this sort."""

FACTORS = (0.7, 0.8, 0.9, 1.0)
"""What example keys may be multiplied by."""


class Parts(NamedTuple):
    """Each question's candidates with the parts of their scores, padded to one width.

    `grades` are 0 for what is not relevant; `ideal` is each question's best possible DCG.
    """

    documents: Int64  # (q, c), -1 where padded
    dense: Float32  # (H, q, c), NEVER where padded
    examples: Float32  # (H, q, c), NEVER without an example key
    summed: Float32  # (H, q, c, f), the log-sum-exp of all keys, by factor on example keys
    lexical: Float32  # (q, c)
    grades: Float32  # (q, c)
    ideal: Float64  # (q,)
    coverage: Float32  # (q,)
    factors: tuple[float, ...] = FACTORS
    heads: Heads = ONE_HEAD


class Weights(NamedTuple):
    """How the parts are put together: pool(dense, α·examples) + λ·coverage^γ·lexical."""

    examples: float
    lexical: float
    coverage: float = 0.0
    pool: Pool = "max"


def scores(parts: Parts, weights: Weights) -> Float32:
    """(q, c), NEVER or so where padded: on the scorer's scale for one head, and for several the
    log of the weight in their mixture."""
    by_head = head_scores(parts, weights)
    if len(by_head) == 1:
        alone: Float32 = by_head[0]
        return alone
    z = by_head * parts.heads.scales[:, None, None].astype(np.float32)
    logs: Float32 = np.asarray(ranked(mixture(z, parts.heads)), dtype=np.float32)
    return logs


def head_scores(parts: Parts, weights: Weights) -> Float32:
    """(H, q, c), on the scorer's scale; NEVER or so where padded."""
    found = parts.dense
    if weights.examples > 0 and weights.pool == "sum":
        found = parts.summed[..., parts.factors.index(weights.examples)]
    elif weights.examples > 0:
        known = parts.examples > NEVER
        found = np.where(known, np.maximum(found, weights.examples * parts.examples), found)
    if weights.lexical == 0:
        return found
    strength = np.float32(weights.lexical) * parts.coverage ** np.float32(weights.coverage)
    return found + strength[:, None] * parts.lexical


def ndcg(parts: Parts, scored: Float32) -> Float64:
    """(q,) nDCG at 10 with linear gains (Järvelin and Kekäläinen 2002); 0 without relevant ones.

    Equal scores are broken by the lower document, as in a search.
    """
    # Candidates ascend by document, and a stable sort keeps that order among equals.
    order = np.argsort(-scored, axis=1, kind="stable")[:, :CUT]
    gains = np.take_along_axis(parts.grades, order, axis=1)
    dcg = gains @ discounts(gains.shape[1])
    return np.divide(dcg, parts.ideal, out=np.zeros(len(dcg)), where=parts.ideal > 0)


def ideal(grades: Float32) -> float:
    """The best DCG of one question's grades, in any order."""
    best = np.sort(grades.astype(np.float64))[::-1][:CUT]
    return float(best @ discounts(len(best)))


def discounts(count: int) -> Float64:
    """(count,) of the first places."""
    return 1 / np.log2(np.arange(2, count + 2))
