"""What a projection's parts must be, and the sentence for each way they are not."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from attend.errors import InvalidRequest
from attend.projection.arrays import floating
from attend.types import Float64, Floats

KINDS = ("identity", "pca", "lsi", "lsi-scaled", "given", "learned")

SHAPES: Mapping[str, tuple[str, ...]] = {
    "w_q": ("H", "d_k", "d_in"),
    "w_k": ("Hk", "d_k", "d_in"),
    "b_q": ("H", "d_k"),
    "b_k": ("Hk", "d_k"),
    "center": ("d_in",),
    "w_v": ("H", "d_vh", "d_v"),
    "b_v": ("H", "d_vh"),
    "w_o": ("d_o", "H*d_vh"),
    "b_o": ("d_o",),
    "additive_w": ("a", "d_k"),
    "additive_u": ("a", "d_k"),
    "additive_v": ("a",),
    "additive_b": ("a",),
}
"""Each tensor's axes by name; an axis has one length throughout a projection.

Hk is 1 where all heads share one key (Shazeer 2019), else H.
"""

_TOGETHER = (
    ("b_v", "w_v"),
    ("b_o", "w_o"),
    ("additive_w", "additive_u"),
    ("additive_u", "additive_v"),
    ("additive_v", "additive_w"),
    ("additive_b", "additive_w"),
)
"""What makes no sense without the other."""


def check_kind(kind: str) -> None:
    """Raise InvalidRequest unless the kind is one that is known."""
    if kind not in KINDS:
        raise InvalidRequest(f"{kind!r} is no kind of projection; choose of {', '.join(KINDS)}.")


def check_count(name: str, count: int) -> None:
    """Raise InvalidRequest unless `count` is a whole number of at least one."""
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 1:
        raise InvalidRequest(f"{name} is {count!r}; give a whole number of at least 1.")


def check_heads_divide(width: int, heads: int, what: str) -> None:
    """Raise InvalidRequest unless `heads` heads of equal width fill `width`."""
    check_count("heads", heads)
    if width % heads:
        raise InvalidRequest(
            f"{heads} heads do not divide {what} of {width} dimensions; "
            f"choose a number of heads that does.",
            field="heads",
        )


def check_gates(gates: ArrayLike) -> Float64:
    """Head weights (H,), finite, none negative, summing to one to within 1e-5."""
    array = np.asarray(gates, dtype=np.float64)
    sound = array.ndim == 1 and array.size > 0 and np.isfinite(array).all()
    if not sound or (array < 0).any() or abs(array.sum() - 1) > 1e-5:
        raise InvalidRequest(
            f"The gates {array.tolist()} were given; send one number of at least 0 for each "
            f"head, summing to 1.",
            field="heads",
        )
    total = float(array.sum())
    # float32 gates sum to one only to 1e-7; those that do are kept to the bit, for they
    # are part of the fingerprint.
    return array if abs(total - 1) < 1e-12 else np.divide(array, total)


def check_tensors(tensors: Mapping[str, Floats], heads: int, d_in: int) -> None:
    """Raise InvalidRequest unless all tensors are finite and their axes agree."""
    lengths = {"H": heads, "d_in": d_in}
    if not {"w_q", "w_k"} <= tensors.keys():
        lengths["d_k"] = d_in  # a side without a matrix keeps the embedding's width
    for name, axes in SHAPES.items():
        if name in tensors:
            _check_tensor(name, tensors[name], axes, lengths)
    if lengths.get("Hk", 1) not in (1, heads):
        raise InvalidRequest(
            f"The keys have {lengths['Hk']} heads and the queries {heads}; give both "
            f"{heads}, or the keys one.",
            field="heads",
        )
    for name, needed in _TOGETHER:
        if name in tensors and needed not in tensors:
            raise InvalidRequest(f"{name} was given without {needed}; give both or neither.")


def _check_tensor(
    name: str, tensor: Floats, axes: tuple[str, ...], lengths: dict[str, int]
) -> None:
    if tensor.ndim == len(axes):
        for axis, length in zip(axes, tensor.shape, strict=True):
            lengths.setdefault(axis, length)
            if axis == "d_vh":
                lengths["H*d_vh"] = lengths["H"] * lengths["d_vh"]
    expected = tuple(lengths.get(axis, axis) for axis in axes)
    if tensor.shape != expected or 0 in tensor.shape:
        raise InvalidRequest(
            f"{name} has shape {tensor.shape}, but the rest of the projection asks for "
            f"({', '.join(axes)}) = ({', '.join(map(str, expected))})."
        )
    if not np.isfinite(floating(tensor)).all():
        raise InvalidRequest(f"{name} holds NaN or infinity; every weight must be finite.")
