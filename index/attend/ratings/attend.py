"""Attention over a user's ratings: from items and ratings to predictions, in numpy."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from attend.ratings.model import Items, RatingModel
from attend.types import Bool, Float64

BLOCK = 4_000_000
"""Logits worked on at once: 32 MB."""


class Rated(NamedTuple):
    """What a user has rated.

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


class Predicted(NamedTuple):
    """What a user would give t items, by attention over h ratings.

    Attributes:
        mean: (t,) within the range of ratings; raw: (t,) the same before it was cut to it.
        baseline: (t,) what it would be if nothing in the history spoke to the item.
        weights: (t, h) the attention, all heads by how much they count; with `null` they sum to 1.
        null: (t,).
        shares: (t, h) what each rating adds to the baseline: with it they sum to `raw`.
        spread: (t, f) what tells how far off the mean may be; see `attend.ratings.spread`.
    """

    mean: Float64
    raw: Float64
    baseline: Float64
    weights: Float64
    null: Float64
    shares: Float64
    spread: Float64


def predict(model: RatingModel, targets: Items, rated: Rated, same: Bool) -> Predicted:
    """What the user who has rated `rated` would give each of the targets.

    Args:
        same: (t, h) which ratings are of the target itself: they are left out.
    """
    count = len(targets.own.bias)
    step = max(1, BLOCK // (model.heads * (len(rated.values) + 1)))
    found = [
        _block(model, targets.some(slice(at, at + step)), rated, same[at : at + step])
        for at in range(0, count, step)
    ] or [_block(model, targets, rated, same)]
    return Predicted(*(np.concatenate(part) for part in zip(*found, strict=True)))


def _block(model: RatingModel, targets: Items, rated: Rated, same: Bool) -> Predicted:
    there = ~same & (rated.weights > 0)  # (t, h)
    a, null = weights(model, targets, rated, there)  # (t, H, h), (t, H)
    deviations = rated.values - model.mean - rated.items.own.bias  # (h,)
    counted = there * rated.weights
    user = counted @ deviations / (counted.sum(axis=1) + model.shrink)  # (t,) b_u
    left = deviations - user[:, None]  # (t, h)
    by_rating = np.einsum("g,tgh->th", model.gates, a) * left
    shares = by_rating + np.einsum("tgh,hg->th", a, rated.items.own.votes)
    shares *= model.trust[(targets.own.support > 0).astype(int)][:, None]
    baseline = model.mean + targets.own.bias + user
    raw = baseline + shares.sum(axis=1)
    heads = _importance(model.gates)
    mixed, nothing = np.einsum("g,tgh->th", heads, a), null @ heads
    return Predicted(
        mean=np.clip(raw, model.low, model.high),
        raw=raw,
        baseline=baseline,
        weights=mixed,
        null=nothing,
        shares=shares,
        spread=_telling(model, raw, mixed, left, nothing, counted, targets.own.support),
    )


def weights(
    model: RatingModel, targets: Items, rated: Rated, there: Bool
) -> tuple[Float64, Float64]:
    """(t, H, h) softmax weights over the ratings that are there (t, h), and the null key's."""
    z = np.einsum("tgd,hgd->tgh", targets.queries, rated.items.keys, optimize=True)
    z += (rated.items.own.key_bias + model.level_bias(rated.values)).T
    with np.errstate(divide="ignore"):
        z += np.log(rated.weights)
    z = np.where(there[:, None], z, -np.inf)
    top = np.maximum(z.max(axis=2, initial=-np.inf), model.null)  # (t, H)
    e, null = np.exp(z - top[..., None]), np.exp(model.null - top)
    total = e.sum(axis=2) + null
    return e / total[..., None], null / total


def _importance(gates: Float64) -> Float64:
    """(H,) of each head, summing to one."""
    size = np.abs(gates)
    total = size.sum()
    return size / total if total > 0 else np.full(len(gates), 1 / len(gates))


def _telling(
    model: RatingModel,
    raw: Float64,
    mixed: Float64,
    left: Float64,
    null: Float64,
    counted: Float64,
    support: Float64,
) -> Float64:
    """(t, f): what tells how far off a prediction may be."""
    disagreement = np.sqrt((mixed * left**2).sum(axis=1) / np.maximum(1 - null, 1e-12))
    usual = np.sqrt((counted * left**2).sum(axis=1) / np.maximum(counted.sum(axis=1), 1e-12))
    half = max((model.high - model.low) / 2, 1e-12)
    edge = np.minimum(np.abs(raw - (model.low + model.high) / 2) / half, 1.5)
    columns = (
        np.ones(len(raw)),
        null,
        disagreement / half,
        usual / half,
        edge,
        1 / np.sqrt(1 + counted.sum(axis=1)),
        1 / np.sqrt(1 + support),
    )
    return np.stack(columns, axis=1)
