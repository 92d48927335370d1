"""Projections that need no data: the identity, its blocks, and matrices given."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from attend.errors import InvalidRequest
from attend.projection.arrays import floating
from attend.projection.checks import check_count, check_heads_divide
from attend.projection.projection import Projection
from attend.types import Float64, Floats


def mean_gates(heads: int) -> Float64:
    """(H,): every head counts the same."""
    check_count("heads", heads)
    return np.full(heads, 1 / heads)


def identity(d_in: int, *, normalize: bool = False) -> Projection:
    """Queries and keys are the embeddings: one head, no matrix, no cost."""
    return Projection(
        "identity", d_in, mean_gates(1), normalize_queries=normalize, normalize_keys=normalize
    )


def split_heads(d_in: int, heads: int, *, gates: ArrayLike | None = None) -> Projection:
    """The identity cut into `heads` blocks of d_in / heads dimensions each.

    Raises InvalidRequest for heads that do not divide d_in.
    """
    check_count("d_in", d_in)
    check_heads_divide(d_in, heads, "an embedding")
    return given(np.eye(d_in), np.eye(d_in), heads=heads, gates=gates, kind="identity")


def given(
    w_q: ArrayLike | None,
    w_k: ArrayLike | None,
    *,
    b_q: ArrayLike | None = None,
    b_k: ArrayLike | None = None,
    w_v: ArrayLike | None = None,
    b_v: ArrayLike | None = None,
    w_o: ArrayLike | None = None,
    b_o: ArrayLike | None = None,
    center: ArrayLike | None = None,
    additive: tuple[ArrayLike, ...] | None = None,
    heads: int | None = None,
    gates: ArrayLike | None = None,
    kind: str = "given",
    normalize_queries: bool = False,
    normalize_keys: bool = False,
) -> Projection:
    """A projection from its matrices: (H, d, d_in) each, or one head's (d, d_in).

    With `heads` a matrix (H*d, d_in) is cut into H blocks of rows, as one square W_Q of
    512 is eight heads of 64; biases likewise. One of w_q and w_k may be None, and is the
    identity then. `additive` holds W, U, v and, if there is one, the bias of Bahdanau's
    scorer, which compares the projected queries and keys. Raises InvalidRequest for shapes that
    disagree and heads that do not divide.
    """
    stacked = [floating(w) for w in (w_q, w_k) if w is not None]
    count = _count_heads(stacked, heads)
    w, u, v, b = _additive(additive)
    return Projection(
        kind=kind,
        d_in=_width(stacked),
        gates=mean_gates(count) if gates is None else _per_head(gates, count),
        w_q=_blocks("w_q", w_q, count, 3),
        w_k=_blocks("w_k", w_k, count, 3),
        b_q=_blocks("b_q", b_q, count, 2),
        b_k=_blocks("b_k", b_k, count, 2),
        w_v=_blocks("w_v", w_v, count, 3),
        b_v=_blocks("b_v", b_v, count, 2),
        w_o=None if w_o is None else floating(w_o),
        b_o=None if b_o is None else floating(b_o),
        center=None if center is None else floating(center),
        additive_w=w,
        additive_u=u,
        additive_v=v,
        additive_b=b,
        normalize_queries=normalize_queries,
        normalize_keys=normalize_keys,
    )


def _additive(parameters: tuple[ArrayLike, ...] | None) -> tuple[Floats | None, ...]:
    """W, U, v and the bias of the additive scorer, as far as there are any."""
    given = [floating(each) for each in parameters or ()]
    if len(given) not in (0, 3, 4):
        raise InvalidRequest(
            f"The additive scorer was given {len(given)} parameters; send W, U and v, and the "
            f"bias if there is one."
        )
    return (*given, *[None] * (4 - len(given)))


def _count_heads(stacked: list[Floats], heads: int | None) -> int:
    if heads is not None:
        check_count("heads", heads)
        return heads
    return max((len(w) for w in stacked if w.ndim == 3), default=1)


def _width(stacked: list[Floats]) -> int:
    if not stacked:
        raise InvalidRequest("Neither w_q nor w_k was given; for no matrix at all use identity.")
    return int(stacked[0].shape[-1]) if stacked[0].ndim else 0


def _per_head(gates: ArrayLike, heads: int) -> Float64:
    array = np.asarray(gates, dtype=np.float64)
    if array.shape != (heads,):
        raise InvalidRequest(
            f"Gates of shape {array.shape} were given for {heads} heads; send one for each.",
            field="heads",
        )
    return array


def _blocks(name: str, tensor: ArrayLike | None, heads: int, ndim: int) -> Floats | None:
    """The tensor with a head axis in front: rows are cut where it has none."""
    if tensor is None:
        return None
    array = floating(tensor)
    if array.ndim != ndim - 1:
        return array  # the projection itself names a shape that is wrong altogether
    check_heads_divide(array.shape[0], heads, name)
    return array.reshape(heads, array.shape[0] // heads, *array.shape[1:])
