"""Array work that every projection shares: rows in, heads out, and blends to one answer."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from attend.errors import DimensionMismatch, InvalidRequest
from attend.types import Float64, Floats


def floating(values: ArrayLike) -> Floats:
    """The array in the precision it is worked in: float32 and float64 stay as they are.

    Whole numbers become float64, so that ratings and counts are exact; half precision
    becomes float32, as numpy has no fast product for it.
    """
    array = np.asarray(values)
    if array.dtype in (np.float32, np.float64):
        return array
    if array.dtype.kind not in "biuf":
        raise InvalidRequest(f"An array of {array.dtype} was given; send numbers.")
    return array.astype(np.float32 if array.dtype == np.float16 else np.float64)


def rows(embeddings: ArrayLike, width: int) -> Floats:
    """Embeddings as (n, width), without a copy where they are floats already."""
    array = floating(embeddings)
    if array.ndim != 2:
        raise InvalidRequest(
            f"Embeddings of shape {array.shape} were given; send a matrix, one row each.",
            field="vector",
        )
    if array.shape[1] != width:
        raise DimensionMismatch(expected=width, got=array.shape[1])
    return array


def affine(x: Floats, weight: Floats | None, bias: Floats | None) -> Floats:
    """W x + b for every row and head: (n, d_in) -> (n, H, d). No weight is the identity."""
    y = x[:, None, :]  # (n, 1, d_in): a view, so that the identity costs nothing
    if weight is not None:
        heads, width, d_in = weight.shape
        # One product for all heads: (n, d_in) @ (d_in, H*d) -> (n, H*d)
        flat = x @ weight.astype(x.dtype, copy=False).reshape(heads * width, d_in).T
        y = flat.reshape(len(x), heads, width)
    return y if bias is None else y + bias.astype(x.dtype, copy=False)


def fold(queries: Floats, weight: Floats | None) -> Floats:
    """W_K^T q for every head: (n, H, d_k) -> (n, H, d_in), since q·(W k) = (W^T q)·k."""
    if weight is None:
        return queries
    by_head = queries.transpose(1, 0, 2)  # (H, n, d_k)
    folded = by_head @ weight.astype(queries.dtype, copy=False)  # @ (Hk, d_k, d_in)
    return folded.transpose(1, 0, 2)  # (n, H, d_in)


def frozen(array: Floats) -> Floats:
    """A read-only array that nobody else can write to: snapshots share projections."""
    if not array.flags.writeable and array.base is None:
        return array
    copy = np.array(array, order="C")
    copy.setflags(write=False)
    return copy


class Output(NamedTuple):
    """The value side of a projection; shapes as in `Projection`."""

    gates: Float64
    w_v: Floats | None
    b_v: Floats | None
    w_o: Floats | None
    b_o: Floats | None


def output(blends: Floats, mass: Floats, by: Output) -> Floats:
    """Sums over values (H, d_v), and over weights (H,), as the answer (d_o,)."""
    _check_width(blends.shape[1], by)
    if by.w_v is None and by.w_o is None:
        mixed: Floats = by.gates.astype(blends.dtype) @ blends  # (H,) @ (H, d_v) -> (d_v,)
        return np.asarray(mixed)
    heads = blends if by.w_v is None else np.einsum("hov,hv->ho", by.w_v, blends)  # (H, d_vh)
    if by.b_v is not None:
        heads = heads + mass[:, None] * by.b_v
    answer = np.asarray(heads).reshape(-1)  # (H*d_vh,)
    answer = answer if by.w_o is None else by.w_o @ answer  # (d_o,)
    answer = answer if by.b_o is None else answer + by.b_o
    return np.asarray(answer, dtype=blends.dtype)


def _check_width(width: int, by: Output) -> None:
    expected: float = width
    if by.w_v is not None:
        expected = by.w_v.shape[2]
    elif by.w_o is not None:
        expected = by.w_o.shape[1] / by.gates.size
    if width != expected:
        raise InvalidRequest(
            f"The value vectors have {width} dimensions, but the projection's value matrices "
            f"take {expected:g}; send vectors of that width."
        )
