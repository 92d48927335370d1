"""Scorers: the match of queries and keys, (q, H, d) x (m, Hk, d) -> (q, H, m).

Dot product: Vaswani et al. 2017. Additive: Bahdanau et al. 2014. Laplace: Kim et al.
2019. Work is done in the finer precision of the two sides, so that a float64 query has
exact scores against float32 keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np

from attend.arrays import unit
from attend.errors import InvalidRequest
from attend.types import Floats

Scorer: TypeAlias = Callable[[Floats, Floats], Floats]

MANY_KEYS = 4096
"""From here on the keys come first in a product, which is a third faster for a few queries. It
rounds the last of them otherwise, so that equals among a few would not stay in order."""

TILE_PRODUCTS = 1_000_000
"""Multiplications up to which OpenBLAS reads a matrix where it lies, and does not copy it into
panels first (its interface/gemm.c: M N K up to 100 cubed). For 16 queries a copy costs as much as
their product with what is copied."""

LEAST_TILE = 16
"""Keys in a tile; more queries, which would make it smaller, share the panels well."""

PAIR_VALUES = 1 << 18
"""Numbers held at once where each query meets each key one by one: 2 MiB, within cache."""


@dataclass(frozen=True, eq=False)
class Additive:
    """Parameters of v^T tanh(W q + U k + b) in float64, one set for all heads.

    w and u are (a, d), v and b are (a,), without b zero; raises InvalidRequest where they
    disagree.
    """

    w: Floats
    u: Floats
    v: Floats
    b: Floats | None = None

    def __post_init__(self) -> None:
        arrays = {name: array for name, array in vars(self).items() if array is not None}
        for name, array in arrays.items():
            object.__setattr__(self, name, np.asarray(array, dtype=np.float64))
        shapes = tuple(getattr(self, name).shape for name in arrays)
        if len(shapes[0]) != 2 or shapes[1:] != (shapes[0], *[shapes[0][:1]] * (len(arrays) - 2)):
            raise InvalidRequest(
                f"The additive scorer was given {', '.join(arrays)} of shapes {shapes}; send w and "
                f"u as (a, d), the others as (a,).",
                field="scorer",
            )
        if not all(np.isfinite(getattr(self, name)).all() for name in arrays):
            raise InvalidRequest(
                f"The additive scorer's {', '.join(arrays)} hold NaN or infinity; send finite "
                f"numbers.",
                field="scorer",
            )


def dot(queries: Floats, keys: Floats) -> Floats:
    """q·k."""
    q, heads, width = queries.shape
    if keys.shape[1] == 1:
        # One product for all heads: (q*H, d) and (m, d) -> (q*H, m)
        flat, shared = queries.reshape(q * heads, width), keys[:, 0, :]
        if len(keys) < MANY_KEYS:
            return (flat @ shared.T).reshape(q, heads, len(keys))
        return _tiled(shared, flat).T.reshape(q, heads, len(keys))
    by_head = queries.transpose(1, 0, 2) @ keys.transpose(1, 2, 0)  # (H, q, d) @ (H, d, m)
    return by_head.transpose(1, 0, 2)  # (q, H, m)


def _tiled(keys: Floats, queries: Floats) -> Floats:
    """Keys (m, d) @ queries (q, d)ᵀ: (m, q), in tiles of keys that few queries read but once."""
    count, width = keys.shape
    tile = TILE_PRODUCTS // max(1, len(queries) * width) // LEAST_TILE * LEAST_TILE
    if len(queries) == 1 or tile == 0:
        return np.asarray(keys @ queries.T)
    columns, tiled = np.ascontiguousarray(queries.T), count - count % tile
    tiles = keys[:tiled].reshape(-1, tile, width)
    product = np.empty((count, len(queries)), np.result_type(keys, queries))
    np.matmul(tiles, columns, out=product[:tiled].reshape(-1, tile, len(queries)))
    np.matmul(keys[tiled:], columns, out=product[tiled:])
    return product


def cosine(queries: Floats, keys: Floats) -> Floats:
    """q·k / (|q| |k|); zero where either vector is zero, for it has no direction."""
    key_length = np.linalg.norm(keys, axis=-1).T  # (Hk, m)
    aligned = dot(unit(queries), keys)
    return aligned / _divisor(key_length)


def laplace(queries: Floats, keys: Floats) -> Floats:
    """-sum |q - k|."""
    return _pairwise(queries, keys, lambda q, k: -np.abs(q - k).sum(axis=-1))


def additive(queries: Floats, keys: Floats, parameters: Additive) -> Floats:
    """v^T tanh(W q + U k + b): a query and a key are each multiplied once, a pair is not."""
    width = parameters.w.shape[1]
    if queries.shape[-1] != width:
        raise InvalidRequest(
            f"The additive scorer's w and u take {width} dimensions, but queries and keys "
            f"have {queries.shape[-1]}.",
            field="scorer",
        )
    from_queries = queries @ parameters.w.T  # (q, H, d) @ (d, a) -> (q, H, a)
    from_keys = keys @ parameters.u.T  # (m, Hk, d) @ (d, a) -> (m, Hk, a)
    if parameters.b is not None:
        from_queries = from_queries + parameters.b
    return _pairwise(from_queries, from_keys, lambda q, k: np.tanh(q + k) @ parameters.v)


def _needs_parameters(queries: Floats, keys: Floats) -> Floats:
    raise InvalidRequest(
        "The additive scorer has no parameters here: send w, u and v, or train them, or "
        "choose another scorer.",
        field="scorer",
    )


SCORERS: Mapping[str, Scorer] = {
    "dot": dot,
    "cosine": cosine,
    "laplace": laplace,
    "additive": _needs_parameters,
}


def scorer(name: str, parameters: Additive | None = None) -> Scorer:
    """Return the scorer of that name; raises InvalidRequest naming the known ones.

    `additive` needs its parameters, and no other scorer takes any.
    """
    if name not in SCORERS:
        raise InvalidRequest(
            f"{name!r} is no scorer; choose of {', '.join(SCORERS)}.", field="scorer"
        )
    if name == "additive" and parameters is not None:
        return partial(additive, parameters=parameters)
    if parameters is not None:
        raise InvalidRequest(
            f"Parameters w, u, v were given for the scorer {name!r}; only 'additive' has any.",
            field="scorer",
        )
    return SCORERS[name]


def _divisor(length: Floats) -> Floats:
    return np.asarray(np.where(length == 0, 1, length))


def _pairwise(queries: Floats, keys: Floats, pair: Callable[[Floats, Floats], Floats]) -> Floats:
    """`pair` of (H, d) and (b, Hk, d), giving (b, H), over all queries and keys."""
    q, heads, _ = queries.shape
    out = np.empty((q, heads, len(keys)), np.result_type(queries, keys))
    for part in _slices(len(keys), queries.shape[1] * queries.shape[2]):
        for i in range(q):
            out[i, :, part] = pair(queries[i], keys[part]).T
    return out


def _slices(count: int, size: int) -> Iterator[slice]:
    step = max(1, PAIR_VALUES // max(1, size))
    for start in range(0, count, step):
        yield slice(start, start + step)
