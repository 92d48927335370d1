"""From the logits of keys to those of their documents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np

from attend.errors import InvalidRequest
from attend.types import Floats, Int64

Pool: TypeAlias = Callable[[Floats, Int64], Floats]


def best(logits: Floats, starts: Int64) -> Floats:
    """Each document's best key: (..., m) -> (..., n)."""
    return np.maximum.reduceat(logits, starts, axis=-1)


def log_sum_exp(logits: Floats, starts: Int64) -> Floats:
    """log sum exp over each document's keys: as if each key were attended to by itself."""
    counts = np.diff(starts, append=logits.shape[-1])
    peak = best(logits, starts)  # (..., n)
    # A document whose keys are all at -inf has no peak to subtract, and stays there.
    safe = np.where(np.isneginf(peak), 0, peak)
    shares = np.exp(logits - np.repeat(safe, counts, axis=-1))  # (..., m)
    with np.errstate(divide="ignore"):
        return safe + np.log(np.add.reduceat(shares, starts, axis=-1))


POOLS: Mapping[str, Pool] = {"max": best, "sum": log_sum_exp}


def pool(name: str) -> Pool:
    """The reduction of that name; raises InvalidRequest naming the known ones."""
    if name not in POOLS:
        raise InvalidRequest(f"{name!r} is no pool; choose of {', '.join(POOLS)}.", field="pool")
    return POOLS[name]


def by_document(logits: Floats, starts: Int64, how: Pool) -> Floats:
    """(..., m) -> (..., n), the same array where every document has one key."""
    if len(starts) == logits.shape[-1]:
        return logits
    return how(logits, starts)
