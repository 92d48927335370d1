"""The tensors of a projection: products with them, their shapes and checks, and their bytes.

Bytes are safetensors, so that reading a file can run nothing. The header is read here by hand
because the library returns tensors without metadata; the layout (eight bytes of little-endian
length, then JSON) is the format's own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from safetensors import SafetensorError
from safetensors.numpy import load, save

from attend.core.errors import Damaged, DimensionMismatch, InvalidRequest
from attend.core.types import Float64, Floats


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


FORMAT = 1
METADATA_KEY = "attend.projection"

SETTINGS: Mapping[str, type] = {
    "kind": str,
    "d_in": int,
    "normalize_queries": bool,
    "normalize_keys": bool,
    "folded": bool,
}
"""What a projection is beside its tensors."""


def pack(tensors: Mapping[str, Floats], settings: Mapping[str, Any]) -> bytes:
    """Tensors and settings as safetensors; equal input gives equal bytes.

    Weights are stored as float32: the embeddings they meet are no finer. Gates stay
    float64, for they must sum to one.
    """
    stored = {
        name: np.ascontiguousarray(tensor, np.float64 if name == "gates" else np.float32)
        for name, tensor in sorted(tensors.items())
    }
    # One entry only: the format keeps its metadata in no particular order, and the
    # fingerprint must not change from one process to the next.
    header = json.dumps({"format": FORMAT, **settings}, sort_keys=True)
    return save(stored, metadata={METADATA_KEY: header})


def unpack(data: bytes) -> tuple[dict[str, Floats], dict[str, Any]]:
    """Return the tensors and the settings; raises Damaged for bytes that are no projection."""
    try:
        tensors = load(data)
        length = int.from_bytes(data[:8], "little")
        metadata = json.loads(data[8 : 8 + length]).get("__metadata__") or {}
        settings = json.loads(metadata[METADATA_KEY])
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise Damaged(
            f"These {len(data)} bytes are not a saved projection ({error}); restore them "
            f"from a copy, or train again."
        ) from error
    if not isinstance(settings, dict) or settings.pop("format", None) != FORMAT:
        raise Damaged(
            f"The saved projection is not of format {FORMAT}, the one that is read here; "
            f"save it again with this version, or train again."
        )
    if {name: type(value) for name, value in settings.items()} != SETTINGS:
        raise Damaged(
            f"The saved projection says {settings}, but {', '.join(SETTINGS)} were expected; "
            f"save it again."
        )
    return tensors, settings
