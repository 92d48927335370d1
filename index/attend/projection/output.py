"""From each head's blend of values to one answer: W_V, concatenation, W_O.

Vaswani et al. 2017, section 3.2.2. A blend is linear, so that W_V meets H sums and not
n values.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from attend.errors import InvalidRequest
from attend.types import Float64, Floats


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
