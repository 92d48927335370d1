"""The model of ratings: a user's own ratings, attended to with the item to be rated as the query.

    r̂ = μ + b_i + b_u + Σ_h g_h Σ_j a_hij (r_uj − μ − b_j − b_u) + Σ_h Σ_j a_hij y_hj

j runs over what user u has rated. What is known of the user, b_u too, comes from there, so that a
user whom training never saw is no other case. Weights a are a softmax over z_hij = q_hi·k_hj + the
key's bias + the rating's, beside a null key whose value is 0: where nothing in the history speaks
to the item, what is left is the baseline. The last sum is Koren's implicit feedback (2008): that an
item was rated says something, whatever the rating was.

How far off a prediction may be is a standard deviation whose logarithm is linear in features: the
weight of the no-answer key, how far the ratings that were attended to lie apart, how far the user's
ratings do, how near the end of the range the prediction is, how many ratings the user and the item
have (`attend.learning.ratings` fits it). Before anything was learned the texts alone attend.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from statistics import NormalDist
from typing import Any, ClassVar, NamedTuple

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from attend.attention import Softmax
from attend.core.arrays import unit
from attend.core.errors import Damaged, DimensionMismatch
from attend.core.types import Bool, Float32, Float64, Int64

NUMBERS = ("mean", "low", "high", "shrink")

EXACT = (*NUMBERS, "knots")
"""Arrays that stay float64: the ends of the range are compared with what users send."""

FEATURES = 7
"""Numbers by which the deviation of a prediction is told; see `_block`."""

TINY = 1e-9
"""Lengths below it are nothing but rounding."""


BLOCK = 4_000_000
"""Logits worked on at once: 32 MB."""

LEVELS = (0.5, 0.8, 0.95)

BOUND = 12.0
"""Of log σ, so that a feature beyond those that were seen gives no infinity."""

SCALE = 10.0
"""The scale of cosines between centred embeddings, as where recommending is untrained."""

NULL_COSINE = 0.5
"""A history that is less like the item than this leaves half of the weight to the no-answer key.
With less, attention by texts alone loses to the user's own mean where texts say little of taste
(RMSE on a held-out part of simulated ratings: 1.046 with 0.5, as the mean; 1.057 with 0.3; 1.098
with 0)."""

LEAST = 1e-12


class Own(NamedTuple):
    """The parameters of documents beyond their texts; all zero for one that nobody rated.

    Attributes:
        bias: (n,) how much better than the mean it is rated.
        key_bias: (n, H) how much more it is attended to.
        votes: (n, H) y: what having rated it says.
        factors: (n, p) what W_Q and W_K see beside the text.
        support: (n,) ratings that this was learned from.
    """

    bias: Float64
    key_bias: Float64
    votes: Float64
    factors: Float64
    support: Float64

    def packed(self) -> Float32:
        """(n, 2 + 2 H + p): one vector for each document, as the store takes it."""
        columns = (self.bias[:, None], self.support[:, None])
        parts = (*columns, self.key_bias, self.votes, self.factors)
        return np.concatenate(parts, axis=1).astype(np.float32)

    @classmethod
    def unpacked(cls, vectors: Float32, heads: int) -> Own:
        """Read what `packed` wrote."""
        columns = vectors.astype(np.float64)
        ends = (2, 2 + heads, 2 + 2 * heads)
        key_bias, votes, factors = np.split(columns, ends, axis=1)[1:]
        return cls(columns[:, 0], key_bias, votes, factors, columns[:, 1])

    def at(self, places: Int64) -> Own:
        """Return those of some documents; zeros for place -1."""
        stored = places >= 0
        columns = [np.zeros((len(places), *array.shape[1:])) for array in self]
        for column, array in zip(columns, self, strict=True):
            column[stored] = array[places[stored]]
        return Own(*columns)


class Items(NamedTuple):
    """Documents as the model sees them: queries and keys (n, H, d_h), and their learned terms."""

    queries: Float64
    keys: Float64
    terms: Own

    def some(self, places: Int64 | slice) -> Items:
        terms = Own(*(array[places] for array in self.terms))
        return Items(self.queries[places], self.keys[places], terms)


@dataclass(frozen=True)
class RatingModel:
    """The parameters that documents share.

    Attributes:
        mean: μ. low, high: the range of ratings.
        shrink: ratings of the mean user that b_u is averaged with.
        center: (d,) the mean embedding, taken away before lengths are made one.
        text_queries, text_keys: (H, d_h, d), of texts; the scale is in the queries.
        own_queries, own_keys: (H, d_h, p), of factors.
        knots: (l,) ratings, ascending; levels: (l, H) the bias of each, interpolated between.
        null: (H,) the null key's logits. gates: (H,) g.
        trust: (2,) how far to go from the baseline for an item that nobody rated, and for others.
        spread: (f,) of the logarithm of the standard deviation; see `_block`.
    """

    mean: float
    low: float
    high: float
    shrink: float
    center: Float64
    text_queries: Float64
    text_keys: Float64
    own_queries: Float64
    own_keys: Float64
    knots: Float64
    levels: Float64
    null: Float64
    gates: Float64
    trust: Float64
    spread: Float64

    kind: ClassVar[str] = "ratings"
    """The store's name for versions of this kind."""

    def to_bytes(self) -> bytes:
        """Save as safetensors, in which a file can run nothing; equal models give equal bytes."""
        return save(
            {
                name: np.atleast_1d(array).astype(
                    np.float64 if name in EXACT else np.float32, order="C"
                )
                for name, array in sorted(vars(self).items())
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> RatingModel:
        """Load what `to_bytes` saved; raises Damaged for bytes that are no model of ratings."""
        try:
            tensors = load(data)
        except (SafetensorError, ValueError) as error:
            raise _damaged(data, str(error)) from error
        if tensors.keys() != {field.name for field in fields(cls)}:
            raise _damaged(data, f"it holds {', '.join(sorted(tensors)) or 'nothing'}")
        arrays: dict[str, Any] = {
            name: tensor.astype(np.float64) for name, tensor in tensors.items()
        }
        if not all(np.isfinite(array).all() for array in arrays.values()):
            raise _damaged(data, "it holds NaN or infinity")
        model = cls(**arrays | {name: float(arrays[name][0]) for name in NUMBERS})
        for name, shape in model._shapes().items():
            actual = getattr(model, name).shape
            if actual != shape:
                raise _damaged(data, f"{name} is of shape {actual}, not {shape}")
        return model

    @property
    def fingerprint(self) -> str:
        """By which the store knows that the bytes are those that were written."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """By name, as follows from the others."""
        heads, levels = len(self.gates), len(self.knots)
        width, dimension, factors = (
            self.text_keys.shape[-2:] + self.own_keys.shape[-1:]
            if self.text_keys.ndim == self.own_keys.ndim == 3
            else (0, 0, 0)
        )
        return {
            "gates": (heads,),
            "center": (dimension,),
            "text_queries": (heads, width, dimension),
            "text_keys": (heads, width, dimension),
            "own_queries": (heads, width, factors),
            "own_keys": (heads, width, factors),
            "knots": (levels,),
            "levels": (levels, heads),
            "null": (heads,),
            "trust": (2,),
            "spread": (FEATURES,),
        }

    @property
    def heads(self) -> int:
        """H."""
        return len(self.gates)

    @property
    def width(self) -> int:
        """2 + 2 H + p: that of `Own.packed`."""
        return 2 + 2 * self.heads + int(self.own_keys.shape[2])

    def items(self, embeddings: Float32, terms: Own) -> Items:
        """Return the documents with these embeddings (n, d) and learned terms.

        Raises DimensionMismatch for embeddings of another width than was learned from.
        """
        if embeddings.shape[1] != len(self.center):
            raise DimensionMismatch(expected=len(self.center), got=embeddings.shape[1])
        texts = centred(embeddings, self.center)
        queries, keys = (
            np.einsum("nd,hed->nhe", texts, by_text, optimize=True)
            + np.einsum("np,hep->nhe", terms.factors, by_own, optimize=True)
            for by_text, by_own in (
                (self.text_queries, self.own_queries),
                (self.text_keys, self.own_keys),
            )
        )
        return Items(queries, keys, terms)


def centred(embeddings: Float32, center: Float64) -> Float64:
    """(n, d) of length one once the mean is taken away; what is nothing then stays zero."""
    moved = embeddings.astype(np.float64) - center
    is_far = np.linalg.norm(moved, axis=1) >= TINY
    return np.asarray(unit(moved) * is_far[:, None])


def _damaged(data: bytes, why: str) -> Damaged:
    return Damaged(
        f"These {len(data)} bytes are no saved model of ratings: {why}. Restore them from a copy, "
        f"or train again."
    )


# -- attention over ratings ------------------------------------------------------------------


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
    half = max((model.high - model.low) / 2, LEAST)
    disagreement = np.sqrt((mixed * left**2).sum(axis=1) / np.maximum(1 - null, LEAST))
    usual = np.sqrt((counted * left**2).sum(axis=1) / np.maximum(counted.sum(axis=1), LEAST))
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
    by_level = [np.interp(rated.values, model.knots, level) for level in model.levels.T]
    z += (rated.items.terms.key_bias + np.stack(by_level, axis=1)).T
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


def shrunk(
    attention: Softmax, values: Float64, weights: Float64, same: Bool
) -> tuple[Float64, Float64, Float64]:
    """Blend numbers (h,), where the no-answer key's value is the mean of the user's own.

    What is the target itself has no part in that mean. In a history without anything else the
    mean is of all.

    Returns: (t,) the mean of the numbers, their spread, and the user's own mean.
    """
    counted = ~same * weights  # (t, h)
    counted = np.where(counted.sum(axis=1, keepdims=True) > 0, counted, weights)
    usual = counted / counted.sum(axis=1, keepdims=True)
    baseline = usual @ values
    both = attention.weights + attention.null_weight[:, None] * usual  # (t, h), summing to one
    mean = both @ values
    spread = (both * (values - mean[:, None]) ** 2).sum(axis=1)
    return mean, np.sqrt(spread), baseline
