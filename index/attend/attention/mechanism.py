"""A mechanism: scorers, and the logits of documents from the keys that they have.

A scorer matches queries and keys, (q, H, d) x (m, Hk, d) -> (q, H, m), in the finer precision of
the two, so that a float64 query has exact scores against float32 keys. Hk is 1 (keys shared by all
heads), H, or a divisor of H: then each run of Hk heads meets the keys' heads in turn, as the parts
of a mixture do. Dot product: Vaswani et al. 2017. Additive: Bahdanau et al. 2014. Laplace: Kim et
al. 2019.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple, TypeAlias

import numpy as np

from attend.core.arrays import KeyTable, best, unit
from attend.core.errors import InvalidRequest, WrongKeys
from attend.core.types import Float64, Floats, Int64

Scorer: TypeAlias = Callable[[Floats, Floats], Floats]

NORMALIZED_SCALE = 20.0
"""1/sqrt(384) on unit vectors, whose products lie within -1 and 1, is nearly uniform."""

COLDEST = 1e-9
"""Below this temperature every softmax is one-hot already, and quotients come to overflow."""

LARGEST = 1e100
"""Beyond any logit that means something, and far from overflow at any temperature."""

ROUNDED = 1.001
"""Room for the rounding of a product in single precision."""

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


def default_scale(scorer: str, normalized: bool, d_k: int) -> float:
    """Return the untrained scale: what keeps logits of that scorer neither flat nor one-hot.

    20 for cosines (and dot products of unit vectors), 1/sqrt(d_k) for dot products of
    raw vectors (Vaswani et al. 2017), 1 for laplace and additive.
    """
    if scorer == "cosine" or (scorer == "dot" and normalized):
        return NORMALIZED_SCALE
    return 1 / float(np.sqrt(d_k)) if scorer == "dot" else 1.0


class Additive(NamedTuple):
    """Parameters of v^T tanh(W q + U k + b), one set for all heads."""

    w: Float64  # (a, d)
    u: Float64  # (a, d)
    v: Float64  # (a,)
    b: Float64 | None = None  # (a,); zero if absent


@dataclass(frozen=True, eq=False)
class Mechanism:
    """Settings by which queries of H heads weigh documents; immutable, shared between threads.

    Attributes:
        scorer: a name in `SCORERS`, or "additive".
        scale: (H,) the factors on its result.
        gates: (H,) the weights of the heads, summing to one.
        pool: a name in `POOLS`.
        null_logit: (H,) the no-answer score in each head, before the temperature.
        levels: (2,) how much of the `runners_up` of a query is added to it, with one head; None
            for nothing.
        additive: the parameters of the scorer of that name.
        longest: the length that no key exceeds, as they were written.
    """

    scorer: str
    scale: Float64
    gates: Float64
    pool: str = "max"
    temperature: float = 1.0
    null_logit: Float64 | None = None
    additive: Additive | None = None
    levels: Float64 | None = None
    longest: float = np.inf

    def __post_init__(self) -> None:
        if not COLDEST <= self.temperature < np.inf:
            raise InvalidRequest(
                f"The temperature is {self.temperature}; send a finite number above 0, at least "
                f"{COLDEST} (1 is as fitted).",
                field="temperature",
            )

    @cached_property
    def heads(self) -> int:
        """H."""
        return self.gates.size

    @cached_property
    def null(self) -> Float64 | None:
        """(H,) the no-answer score over the temperature; None without one."""
        return None if self.null_logit is None else self.null_logit / self.temperature

    def cooled(self, z: Floats) -> Floats:
        """Divide logits by the temperature; at 1 return the same array."""
        return z if self.temperature == 1 else z / self.temperature

    @cached_property
    def score(self) -> Scorer:
        """The scorer itself."""
        if self.scorer == "additive":
            return partial(additive, parameters=self.additive)
        return SCORERS[self.scorer]

    def score_keys(self, queries: Floats, keys: Floats) -> Floats:
        """Score queries (q, H, d) against keys (m, Hk, d), scaled by head: (q, H, m)."""
        q, heads, d = queries.shape
        by_key = queries if keys.shape[1] == 1 else queries.reshape(-1, keys.shape[1], d)
        scores = self.score(by_key, keys).reshape(q, heads, len(keys))
        scaled = np.empty(scores.shape, scores.dtype)  # by query, wherever the product lies
        return np.multiply(scores, self.scale[:, None].astype(scores.dtype), out=scaled)

    def logits(self, queries: Floats, documents: KeyTable, bias: Floats | None = None) -> Floats:
        """Score queries (q, H, d) against documents with keys (m, Hk, d): z (q, H, n).

        In the precision of queries and keys, or of the bias if that is finer.

        Args:
            bias: added to the logits, and broadcast to (q, H, n); -inf masks.

        Raises:
            InvalidRequest: logits that are not finite.
            WrongKeys: a logit that no key of at most the longest length can have.
        """
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused below
            scores = self.score_keys(queries, documents.vectors)
        if scores.size and self.scorer == "dot" and self.longest < np.inf:
            # |q·k| <= |q| |k| for the longest key (Cauchy and Schwarz); NaN fails, too.
            lengths = np.sqrt(np.einsum("qhd,qhd->qh", queries, queries, dtype=np.float64))
            bound = lengths * np.abs(self.scale) * self.longest * ROUNDED
            within = (scores.max(axis=-1) <= bound) & (scores.min(axis=-1) >= -bound)
            if bound.max() <= LARGEST and not within.all():
                raise WrongKeys(
                    f"A key has a score beyond what its length allows: it is longer than "
                    f"{self.longest:.6g}, and not what was written."
                )
        # Written so that NaN fails too; and -inf would pass for a mask.
        if scores.size and not (float(scores.min()) >= -LARGEST and float(scores.max()) <= LARGEST):
            raise InvalidRequest(
                "A query and a key have no finite score; one of them holds NaN, infinity or "
                "numbers too large to multiply."
            )
        if len(documents.rows) < scores.shape[-1]:
            scores = POOLS[self.pool](scores, documents.starts[:-1])
        return scores if bias is None else scores + bias


def log_sum_exp(logits: Floats, starts: Int64) -> Floats:
    """Return log sum exp over each document's keys: as if each key were attended to by itself."""
    counts = np.diff(starts, append=logits.shape[-1])
    peak = best(logits, starts)  # (..., n)
    shares = np.exp(logits - np.repeat(peak, counts, axis=-1))  # (..., m)
    return peak + np.log(np.add.reduceat(shares, starts, axis=-1))


POOLS: Mapping[str, Callable[[Floats, Int64], Floats]] = {"max": best, "sum": log_sum_exp}
"""Reduce logits (..., m) over each document's keys to (..., n)."""


def dot(queries: Floats, keys: Floats) -> Floats:
    """Score by q·k."""
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
    """Multiply keys (m, d) @ queries (q, d)ᵀ: (m, q), in tiles that few queries read but once."""
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
    """Score by q·k / (|q| |k|); zero where either vector is zero, for it has no direction."""
    key_length = np.linalg.norm(keys, axis=-1).T  # (Hk, m)
    aligned = dot(unit(queries), keys)
    return np.asarray(aligned / np.where(key_length == 0, 1, key_length))


def laplace(queries: Floats, keys: Floats) -> Floats:
    """Score by -sum |q - k|."""
    return _pairwise(queries, keys, lambda q, k: -np.abs(q - k).sum(axis=-1))


def additive(queries: Floats, keys: Floats, parameters: Additive | None) -> Floats:
    """Score by v^T tanh(W q + U k + b): each query and key is multiplied once, a pair is not."""
    if parameters is None:
        raise InvalidRequest(
            "The scorer 'additive' has parameters of its own, and the projection that answers has "
            "none. Use dot, cosine or laplace, or a projection with additive parameters.",
            field="scorer",
        )
    w, u, v, b = parameters
    from_queries = queries @ w.T  # (q, H, d) @ (d, a) -> (q, H, a)
    from_keys = keys @ u.T  # (m, Hk, d) @ (d, a) -> (m, Hk, a)
    if b is not None:
        from_queries = from_queries + b
    return _pairwise(from_queries, from_keys, lambda q, k: np.tanh(q + k) @ v)


def _pairwise(queries: Floats, keys: Floats, pair: Callable[[Floats, Floats], Floats]) -> Floats:
    """Apply `pair` to all queries and keys: it turns (H, d) and (b, Hk, d) into (b, H)."""
    q, heads, width = queries.shape
    out = np.empty((q, heads, len(keys)), np.result_type(queries, keys))
    step = max(1, PAIR_VALUES // max(1, heads * width))
    for start in range(0, len(keys), step):
        part = slice(start, start + step)
        for i in range(q):
            out[i, :, part] = pair(queries[i], keys[part]).T
    return out


SCORERS: Mapping[str, Scorer] = {"dot": dot, "cosine": cosine, "laplace": laplace}
