"""Attention over a user's ratings: with the model that was trained, or by texts alone.

How far off a prediction may be is a standard deviation whose logarithm is linear in features: the
weight of the no-answer key, how far the ratings that were attended to lie apart, how far the user's
ratings do, how near the end of the range the prediction is, how many ratings the user and the item
have (`attend.learning.rating_judge` fits it).
"""

from __future__ import annotations

from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from attend.attention import Softmax
from attend.core.types import Bool, Float32, Float64
from attend.recommend.rating_model import Items, RatingModel, centred

BLOCK = 4_000_000
"""Logits worked on at once: 32 MB."""

LEVELS = (0.5, 0.8, 0.95)

BOUND = 12.0
"""Of log σ, so that a feature beyond those that were seen gives no infinity."""

TINY = 1e-12

SCALE = 10.0
"""The scale of cosines between centred embeddings, as where recommending is untrained."""

NULL_COSINE = 0.5
"""A history that is less like the item than this leaves half of the weight to the no-answer key.
With less, attention by texts alone loses to the user's own mean where texts say little of taste
(RMSE on a held-out part of simulated ratings: 1.046 with 0.5, as the mean; 1.057 with 0.3; 1.098
with 0)."""


class Rated(NamedTuple):
    """The ratings of a user.

    Attributes:
        values: (h,) ratings.
        weights: (h,) how much each counts, with a mean of one; 0 leaves it out.
    """

    items: Items
    values: Float64
    weights: Float64

    @classmethod
    def evenly(cls, items: Items, values: Float64) -> Rated:
        return cls(items, values, np.ones(len(values)))


class PredictedRatings(NamedTuple):
    """The predicted ratings of t items, by attention over h ratings.

    Attributes:
        mean: (t,) within the range of ratings; raw: (t,) the same before it was cut to it.
        baseline: (t,) what it would be if nothing in the history spoke to the item.
        weights: (t, h) the attention, all heads by how much they count; with `null` they sum to 1.
        null: (t,).
        shares: (t, h) what each rating adds to the baseline: with it they sum to `raw`.
        features: (t, f) of how far off the mean may be.
    """

    mean: Float64
    raw: Float64
    baseline: Float64
    weights: Float64
    null: Float64
    shares: Float64
    features: Float64


def predict(model: RatingModel, targets: Items, rated: Rated, same: Bool) -> PredictedRatings:
    """Predict what a user would give each of the targets.

    Args:
        same: (t, h) which ratings are of the target itself: they are left out.
    """
    count = len(targets.terms.bias)
    step = max(1, BLOCK // (model.heads * (len(rated.values) + 1)))
    blocks = [
        _block(model, targets.some(slice(start, start + step)), rated, same[start : start + step])
        for start in range(0, max(count, 1), step)
    ]
    return PredictedRatings(*(np.concatenate(column) for column in zip(*blocks, strict=True)))


def _block(model: RatingModel, targets: Items, rated: Rated, same: Bool) -> PredictedRatings:
    there = ~same & (rated.weights > 0)  # (t, h)
    attention = _attention(model, targets, rated, there)  # (t, H, h)
    deviations = rated.values - model.mean - rated.items.terms.bias  # (h,)
    counted = there * rated.weights
    user = counted @ deviations / (counted.sum(axis=1) + model.shrink)  # (t,) b_u
    left = deviations - user[:, None]  # (t, h)
    shares = np.einsum("g,tgh->th", model.gates, attention.weights) * left
    shares += np.einsum("tgh,hg->th", attention.weights, rated.items.terms.votes)
    shares *= model.trust[(targets.terms.support > 0).astype(int)][:, None]
    baseline = model.mean + targets.terms.bias + user
    raw = baseline + shares.sum(axis=1)
    importance = np.abs(model.gates) if model.gates.any() else np.ones(model.heads)
    importance = importance / importance.sum()
    mixed = np.einsum("g,tgh->th", importance, attention.weights)
    null = attention.null_weight @ importance
    half = max((model.high - model.low) / 2, TINY)
    disagreement = np.sqrt((mixed * left**2).sum(axis=1) / np.maximum(1 - null, TINY))
    usual = np.sqrt((counted * left**2).sum(axis=1) / np.maximum(counted.sum(axis=1), TINY))
    features = (
        np.ones(len(raw)),
        null,
        disagreement / half,
        usual / half,
        np.minimum(np.abs(raw - (model.low + model.high) / 2) / half, 1.5),
        1 / np.sqrt(1 + counted.sum(axis=1)),
        1 / np.sqrt(1 + targets.terms.support),
    )
    return PredictedRatings(
        mean=np.clip(raw, model.low, model.high),
        raw=raw,
        baseline=baseline,
        weights=mixed,
        null=null,
        shares=shares,
        features=np.stack(features, axis=1),
    )


def _attention(model: RatingModel, targets: Items, rated: Rated, there: Bool) -> Softmax:
    """Weigh the ratings that are there (t, h) beside the no-answer key: (t, H, h)."""
    z = np.einsum("tgd,hgd->tgh", targets.queries, rated.items.keys, optimize=True)
    z += (rated.items.terms.key_bias + model.level_bias(rated.values)).T
    with np.errstate(divide="ignore"):
        z += np.log(rated.weights)
    masked = np.where(there[:, None], z, -np.inf)
    return Softmax.of(masked, np.broadcast_to(model.null, masked.shape[:2]))


def deviations(spread: Float64, features: Float64) -> Float64:
    """(t,) σ, from what was fitted (f,) and features (t, f)."""
    return np.asarray(np.exp(np.clip(features @ spread, -BOUND, BOUND)))


def coverage(sigmas: Float64, errors: Float64) -> dict[str, float]:
    """Return the share of errors (n,) within the central interval of each level."""
    normal = NormalDist()
    within = {}
    for level in LEVELS:
        half = normal.inv_cdf((1 + level) / 2)
        within[f"{level:g}"] = float((np.abs(errors) <= half * sigmas).mean())
    return within


# -- before anything was learned -------------------------------------------------------------------


def attended(
    targets: Float32, history: Float32, center: Float64, weights: Float64, same: Bool
) -> Softmax:
    """Weigh a history (h, d) by centred texts for targets (t, d).

    Args:
        center: (d,) the mean embedding of all documents.
        weights: (h,) how much each counts, with a mean of one; 0 leaves it out.
        same: (t, h) which of the history are the target itself: they are left out.
    """
    cosines = centred(targets, center) @ centred(history, center).T  # (t, h)
    there = ~same & (weights > 0)
    # The no-answer key stands for as many as are there: chance likeness grows with their number.
    null = SCALE * NULL_COSINE + np.log(np.maximum((there * weights).sum(axis=1), 1.0))  # (t,)
    with np.errstate(divide="ignore"):
        z = np.where(there, SCALE * cosines + np.log(weights), -np.inf)
    return Softmax.of(z, null)


class Shrunk(NamedTuple):
    """(t,) the mean of numbers, their spread, and the user's own mean, to which it is shrunk."""

    mean: Float64
    std: Float64
    baseline: Float64


def shrunk(attention: Softmax, values: Float64, weights: Float64, same: Bool) -> Shrunk:
    """Blend numbers (h,), where the no-answer key's value is the mean of the user's own.

    What is the target itself has no part in that mean. In a history without anything else the
    mean is of all.
    """
    counted = ~same * weights  # (t, h)
    counted = np.where(counted.sum(axis=1, keepdims=True) > 0, counted, weights)
    usual = counted / counted.sum(axis=1, keepdims=True)
    baseline = usual @ values
    both = attention.weights + attention.null_weight[:, None] * usual  # (t, h), summing to one
    mean = both @ values
    spread = (both * (values - mean[:, None]) ** 2).sum(axis=1)
    return Shrunk(mean, np.sqrt(spread), baseline)
