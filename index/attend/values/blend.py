"""The accumulator behind every answer, and the one of what cannot be averaged: it is listed."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from attend.arrays import kth_largest
from attend.types import Float64, Int64, Json
from attend.values.kinds import Kind, is_missing, is_sendable

LISTED = 10
"""Values that an answer lists at most."""


class ValueBlock(NamedTuple):
    """Documents whose weight is not zero; the three are of one length."""

    ids: Sequence[str]
    values: Sequence[Json]
    weights: Float64  # (n,)


class Blend(ABC):
    """Weights over documents on their way to an answer.

    Documents arrive in blocks, each document once, in any order and any split: the
    answer is the same but for rounding. Weights need not sum to one. `attend.values`
    lists the keys of the answers.
    """

    keys: ClassVar[tuple[str, ...]]
    """The keys of the answer between `type` and `coverage`."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self._total = 0.0

    def add(self, ids: Sequence[str], values: Sequence[Json], weights: ArrayLike) -> None:
        """Take in a block: (n) ids, (n) values and (n,) weights, none of them negative.

        Raises ValueError, and takes nothing in, where the lengths differ or a weight is
        negative or not finite, or where all weights together exceed a float64.
        """
        block = _block(ids, values, np.asarray(weights, dtype=np.float64))
        self._total = _sum(self._total, block.weights)
        if len(block.ids) > 0:
            self._take(block)

    def answer(self) -> dict[str, Json]:
        """The answer over all that was added so far, ready for JSON."""
        covered = self._covered()
        result = self._found() if covered > 0 else self._blank()
        # Two sums over different documents may differ in the last bit.
        coverage = min(covered / self._total, 1.0) if covered > 0 else 0.0
        return {"type": self.kind, **result, "coverage": coverage}

    @abstractmethod
    def _take(self, block: ValueBlock) -> None:
        """Accumulate the block's values; those of another type count as missing."""

    @abstractmethod
    def _covered(self) -> float:
        """The weight of the documents with a value."""

    @abstractmethod
    def _found(self) -> dict[str, Json]:
        """The `keys` of the answer, where some weight is covered."""

    def _blank(self) -> dict[str, Json]:
        return dict.fromkeys(self.keys)


def _block(ids: Sequence[str], values: Sequence[Json], weights: Float64) -> ValueBlock:
    if weights.ndim != 1 or not len(ids) == len(values) == len(weights):
        raise ValueError(
            f"{len(ids)} ids and {len(values)} values came with weights of shape "
            f"{weights.shape}. Give one weight to each document, shape ({len(ids)},)."
        )
    if not (np.isfinite(weights) & (weights >= 0)).all():
        raise ValueError("A weight is negative or not finite. Give weights from zero up.")
    places = np.flatnonzero(weights).tolist()
    if len(places) == len(weights):
        return ValueBlock(ids, values, weights)
    # Without weight a value must not even touch the rounding of the others.
    return ValueBlock([ids[i] for i in places], [values[i] for i in places], weights[places])


def _sum(total: float, weights: Float64) -> float:
    with np.errstate(over="ignore"):
        total = float(total + weights.sum())
    if total == np.inf:
        raise ValueError(
            "The weights sum to more than a float64 holds. Divide them by their largest first."
        )
    return total


class Weighted(NamedTuple):
    """A document among the heaviest so far."""

    weight: float
    id: str
    value: Json


class RetrievedBlend(Blend):
    """The heaviest documents' values, their weights renormalised over all with a value."""

    keys = ("value", "values")

    def __init__(self, kind: Kind) -> None:
        super().__init__(kind)
        self._weight = 0.0
        self._best: list[Weighted] = []

    def _take(self, block: ValueBlock) -> None:
        present = [place for place, value in enumerate(block.values) if self._has(value)]
        weights = block.weights[np.array(present, dtype=np.int64)]
        self._weight += float(weights.sum())
        for index in _heaviest(weights):
            place = present[index]
            entry = Weighted(float(weights[index]), block.ids[place], block.values[place])
            self._best.append(entry)
        self._best = heapq.nsmallest(LISTED, self._best, key=lambda item: (-item.weight, item.id))

    def _has(self, value: Json) -> bool:
        if self.kind == "mixed":
            return not is_missing(value) and is_sendable(value)
        return isinstance(value, str)

    def _covered(self) -> float:
        return self._weight

    def _found(self) -> dict[str, Json]:
        values = [
            {"id": item.id, "value": item.value, "weight": min(item.weight / self._weight, 1.0)}
            for item in self._best
        ]
        return {"value": self._best[0].value, "values": values}


def _heaviest(weights: Float64) -> Int64:
    """Where the largest weights are, ties with the last of them included."""
    if len(weights) <= LISTED:
        return np.arange(len(weights))
    return np.flatnonzero(weights >= kth_largest(weights, LISTED))
