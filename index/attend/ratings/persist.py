"""Arrays by name as bytes: safetensors, so that reading a file can run nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from attend.errors import Damaged
from attend.types import Float64


def pack(arrays: Mapping[str, Float64], exact: Collection[str]) -> bytes:
    """Arrays as float32, but for those to be exact; equal arrays give equal bytes."""
    return save(
        {
            name: np.atleast_1d(array).astype(
                np.float64 if name in exact else np.float32, order="C"
            )
            for name, array in sorted(arrays.items())
        }
    )


def unpack(data: bytes, names: Collection[str]) -> dict[str, Float64]:
    """The inverse of `pack`.

    Raises:
        Damaged: the bytes hold other arrays than those of these names, or numbers not finite.
    """
    try:
        tensors = load(data)
    except (SafetensorError, ValueError) as error:
        raise damaged(data, str(error)) from error
    if tensors.keys() != set(names):
        raise damaged(data, f"it holds {', '.join(sorted(tensors)) or 'nothing'}")
    arrays = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}
    if not all(np.isfinite(each).all() for each in arrays.values()):
        raise damaged(data, "it holds NaN or infinity")
    return arrays


def damaged(data: bytes, why: str) -> Damaged:
    return Damaged(
        f"These {len(data)} bytes are no saved model of ratings: {why}. Restore them from a copy, "
        f"or train again."
    )
