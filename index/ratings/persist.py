"""The model of ratings as bytes: safetensors, so that reading a file can run nothing."""

from __future__ import annotations

import hashlib
from dataclasses import fields
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from index.errors import Damaged
from index.ratings.model import RatingModel
from index.ratings.spread import FEATURES

KIND = "ratings"
"""What the store calls versions of this kind."""

NUMBERS = ("mean", "low", "high", "shrink")


def to_bytes(model: RatingModel) -> bytes:
    """Equal models give equal bytes."""
    named = {each.name: np.asarray(getattr(model, each.name)) for each in fields(model)}
    # Numbers of their own stay float64: the ends of the range are compared with what users send.
    exact = (*NUMBERS, "knots")
    return save(
        {
            name: np.atleast_1d(array).astype(
                np.float64 if name in exact else np.float32, order="C"
            )
            for name, array in sorted(named.items())
        }
    )


def from_bytes(data: bytes) -> RatingModel:
    """The inverse of `to_bytes`; raises Damaged for bytes that are no model of ratings."""
    try:
        tensors = load(data)
    except (SafetensorError, ValueError) as error:
        raise _damaged(data, str(error)) from error
    expected = {each.name for each in fields(RatingModel)}
    if tensors.keys() != expected:
        raise _damaged(data, f"it holds {', '.join(sorted(tensors)) or 'nothing'}")
    arrays: dict[str, Any] = {name: each.astype(np.float64) for name, each in tensors.items()}
    if not all(np.isfinite(each).all() for each in arrays.values()):
        raise _damaged(data, "it holds NaN or infinity")
    model = RatingModel(**arrays | {name: float(arrays[name][0]) for name in NUMBERS})
    _check_shapes(model, data)
    return model


def fingerprint(data: bytes) -> str:
    """By which the store knows that the bytes are those that were written."""
    return hashlib.sha256(data).hexdigest()


def _check_shapes(model: RatingModel, data: bytes) -> None:
    heads, levels = model.heads, len(model.knots)
    _, width, dimension = (*model.text_queries.shape, 0, 0, 0)[:3]
    factors = model.own_keys.shape[-1]
    expected = {
        "center": (dimension,),
        "text_queries": (heads, width, dimension),
        "text_keys": (heads, width, dimension),
        "own_queries": (heads, width, factors),
        "own_keys": (heads, width, factors),
        "levels": (levels, heads),
        "null": (heads,),
        "trust": (2,),
        "spread": (FEATURES,),
    }
    for name, shape in expected.items():
        if getattr(model, name).shape != shape:
            raise _damaged(data, f"{name} is of shape {getattr(model, name).shape}, not {shape}")


def _damaged(data: bytes, why: str) -> Damaged:
    return Damaged(
        f"These {len(data)} bytes are no saved model of ratings: {why}. Restore them from a copy, "
        f"or train again."
    )
