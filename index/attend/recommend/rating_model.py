"""The model of ratings: a user's own ratings, attended to with the item to be rated as the query.

    r̂ = μ + b_i + b_u + Σ_h g_h Σ_j a_hij (r_uj − μ − b_j − b_u) + Σ_h Σ_j a_hij y_hj

j runs over what user u has rated. What is known of the user, b_u too, comes from there, so that a
user whom training never saw is no other case. Weights a are a softmax over z_hij = q_hi·k_hj + the
key's bias + the rating's, beside a null key whose value is 0: where nothing in the history speaks
to the item, what is left is the baseline. The last sum is Koren's implicit feedback (2008): that an
item was rated says something, whatever the rating was.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from attend.core.arrays import unit
from attend.core.errors import Damaged, DimensionMismatch
from attend.core.types import Float32, Float64, Int64

NUMBERS = ("mean", "low", "high", "shrink")

EXACT = (*NUMBERS, "knots")
"""Arrays that stay float64: the ends of the range are compared with what users send."""

FEATURES = 7
"""Numbers by which the deviation of a prediction is told; see `rating_prediction`."""

TINY = 1e-9
"""Lengths below it are nothing but rounding."""


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
        return Own(*(_at(array, places) for array in self))


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
        spread: (f,) of the logarithm of the standard deviation; see `rating_prediction`.
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

    def level_bias(self, values: Float64) -> Float64:
        """(h, H) of ratings (h,)."""
        by_head = [np.interp(values, self.knots, self.levels[:, h]) for h in range(self.heads)]
        return np.stack(by_head, axis=1)


def centred(embeddings: Float32, center: Float64) -> Float64:
    """(n, d) of length one once the mean is taken away; what is nothing then stays zero."""
    moved = embeddings.astype(np.float64) - center
    is_far = np.linalg.norm(moved, axis=1) >= TINY
    return np.asarray(unit(moved) * is_far[:, None])


def _at(array: Float64, places: Int64) -> Float64:
    rows = np.zeros((len(places), *array.shape[1:]))
    stored = places >= 0
    rows[stored] = array[places[stored]]
    return rows


def _damaged(data: bytes, why: str) -> Damaged:
    return Damaged(
        f"These {len(data)} bytes are no saved model of ratings: {why}. Restore them from a copy, "
        f"or train again."
    )
