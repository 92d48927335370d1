"""Text, images and mixed values: what cannot be averaged is listed, heaviest first."""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np

from attend.types import Float64, Int64, Json
from attend.values.blend import Blend, Block
from attend.values.conform import is_missing, is_sendable
from attend.values.kinds import Kind

LISTED = 10


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

    def _take(self, block: Block) -> None:
        present = [place for place, value in enumerate(block.values) if self._has(value)]
        weights = block.weights[np.array(present, dtype=np.int64)]
        self._weight += float(weights.sum())
        for at in _heaviest(weights):
            place = present[at]
            entry = Weighted(float(weights[at]), block.ids[place], block.values[place])
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
    return np.flatnonzero(weights >= np.partition(weights, -LISTED)[-LISTED])
