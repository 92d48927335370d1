"""A mechanism: the checked settings of one attention, and the logit of a document from its keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from attend.arrays import best
from attend.attention.scorers import Additive, Scorer, scorer
from attend.attention.softmax import check_temperature
from attend.errors import InvalidRequest
from attend.types import Float64, Floats, Int64

Scale: TypeAlias = float | str | Sequence[float] | Float64 | None
"""A number, one for each head, 'sqrt' (1/sqrt(d_k)), 'none' (1), or None for the default."""

NORMALIZED_SCALE = 20.0
"""1/sqrt(384) on unit vectors, whose products lie within -1 and 1, is nearly uniform."""


Pool: TypeAlias = Callable[[Floats, Int64], Floats]


def log_sum_exp(logits: Floats, starts: Int64) -> Floats:
    """Return log sum exp over each document's keys: as if each key were attended to by itself."""
    counts = np.diff(starts, append=logits.shape[-1])
    peak = best(logits, starts)  # (..., n)
    # A document whose keys are all at -inf has no peak to subtract, and stays there.
    safe = np.where(np.isneginf(peak), 0, peak)
    shares = np.exp(logits - np.repeat(safe, counts, axis=-1))  # (..., m)
    with np.errstate(divide="ignore"):
        return safe + np.log(np.add.reduceat(shares, starts, axis=-1))


POOLS: Mapping[str, Pool] = {"max": best, "sum": log_sum_exp}


def pool_of(name: str) -> Pool:
    """Return the reduction of that name; raises InvalidRequest naming the known ones."""
    if name not in POOLS:
        raise InvalidRequest(
            f"{name!r} is no pool; choose one of {', '.join(POOLS)}.", field="pool"
        )
    return POOLS[name]


def by_document(logits: Floats, starts: Int64, pool: Pool) -> Floats:
    """Reduce (..., m) to (..., n); the same array where every document has one key."""
    if len(starts) == logits.shape[-1]:
        return logits
    return pool(logits, starts)


@dataclass(frozen=True, eq=False)
class Mechanism:
    """Settings by which queries of H heads weigh documents; `mechanism` checks and makes it.

    A snapshot holds one: it is immutable and shared between threads.
    """

    scorer_name: str
    score: Scorer
    scale: Float64
    """(H,)"""
    pool: Pool
    temperature: float
    gates: Float64
    """(H,), summing to one."""
    null_logit: Float64 | None
    """(H,): the no-answer score in each head, before the temperature."""

    @cached_property
    def heads(self) -> int:
        """H."""
        return self.gates.size


def mechanism(
    *,
    scorer_name: str = "dot",
    d_k: int,
    normalized: bool,
    scale: Scale = None,
    pool_name: str = "max",
    temperature: float = 1.0,
    gates: ArrayLike = (1.0,),
    null_logit: ArrayLike | None = None,
    additive: Additive | None = None,
) -> Mechanism:
    """Make a mechanism from names and numbers; raises InvalidRequest for any that is unsound.

    `d_k` is the width of a projected key (before folding) and `normalized` whether
    queries and keys have length one: both only choose the default scale. The number of
    gates is the number of heads.
    """
    head_gates = _gates(gates)
    return Mechanism(
        scorer_name=scorer_name,
        score=scorer(scorer_name, additive),
        scale=_scales(scale, default_scale(scorer_name, normalized, d_k), d_k, head_gates.size),
        pool=pool_of(pool_name),
        temperature=check_temperature(temperature),
        gates=head_gates,
        null_logit=None if null_logit is None else _null(null_logit, head_gates.size),
    )


def default_scale(scorer_name: str, normalized: bool, d_k: int) -> float:
    """Return the untrained scale: what keeps logits of that scorer neither flat nor one-hot.

    20 for cosines (and dot products of unit vectors), 1/sqrt(d_k) for dot products of
    raw vectors (Vaswani et al. 2017), 1 for laplace and additive.
    """
    if scorer_name == "cosine" or (scorer_name == "dot" and normalized):
        return NORMALIZED_SCALE
    return 1 / float(np.sqrt(d_k)) if scorer_name == "dot" else 1.0


def resolve_scale(scale: float | str | None, default: float, d_k: int) -> float:
    """Return a scale as a number; raises InvalidRequest unless it is finite and above zero."""
    if scale is None:
        return default
    if isinstance(scale, str):
        named = {"sqrt": 1 / float(np.sqrt(d_k)), "none": 1.0}
        if scale in named:
            return named[scale]
    elif isinstance(scale, int | float | np.number) and not isinstance(scale, bool):
        number = float(scale)
        if np.isfinite(number) and number > 0:
            return number
    raise InvalidRequest(
        f"The scale is {scale!r}; send a finite number above 0, 'sqrt' for 1/sqrt(d_k), or "
        f"'none' for 1.",
        field="scale",
    )


def _scales(scale: Scale, default: float, d_k: int, heads: int) -> Float64:
    if isinstance(scale, str) or not isinstance(scale, Sequence | np.ndarray):
        return np.full(heads, resolve_scale(scale, default, d_k))
    if len(scale) != heads:
        raise InvalidRequest(
            f"{len(scale)} scales were given for {heads} heads; send one, or one for each.",
            field="scale",
        )
    return np.array([resolve_scale(number, default, d_k) for number in scale])


def _gates(gates: ArrayLike) -> Float64:
    array = np.asarray(gates, dtype=np.float64)
    sound = array.ndim == 1 and array.size > 0 and np.isfinite(array).all()
    if not sound or (array < 0).any() or abs(array.sum() - 1) > 1e-5:
        raise InvalidRequest(
            f"The head weights {array.tolist()} were given; send one number of at least 0 "
            f"for each head, summing to 1.",
            field="heads",
        )
    return np.asarray(array / array.sum())


def _null(null_logit: ArrayLike, heads: int) -> Float64:
    array = np.asarray(null_logit, dtype=np.float64)
    if array.shape not in ((), (1,), (heads,)) or not np.isfinite(array).all():
        raise InvalidRequest(
            f"The null logit {array.tolist()} was given for {heads} heads; send one finite "
            f"number, or one for each head."
        )
    return np.broadcast_to(array, (heads,))
