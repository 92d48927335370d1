"""Numbers and vectors: the weighted mean."""

from __future__ import annotations

import numpy as np

from attend.types import Float64, Json
from attend.values.blend import Blend, Block
from attend.values.conform import as_matrix, as_numbers, is_numbers
from attend.values.moments import Moments, merge, moments


class NumberBlend(Blend):
    """Mean and spread of numbers; a boolean is none, nor is a number that is not finite."""

    keys = ("mean", "std", "effective_sample_size")

    def __init__(self) -> None:
        super().__init__("number")
        self._moments: Moments | None = None

    def _take(self, block: Block) -> None:
        numbers = as_numbers(block.values)
        self._moments = _with(self._moments, numbers[:, None], block.weights)

    def _covered(self) -> float:
        return self._moments.weight if self._moments else 0.0

    def _found(self) -> dict[str, Json]:
        assert self._moments is not None  # something is covered
        return {
            "mean": float(self._moments.mean[0]),
            "std": float(self._moments.std[0]),
            "effective_sample_size": self._moments.effective_sample_size,
        }


class VectorBlend(Blend):
    """Mean of vectors.

    Where widths differ, the width with the most weight is the answer's (the smaller
    in a tie) and vectors of the others count as missing: the first one seen would let
    the order of blocks decide.
    """

    keys = ("vector",)

    def __init__(self) -> None:
        super().__init__("vector")
        self._by_width: dict[int, Moments | None] = {}

    def _take(self, block: Block) -> None:
        places: dict[int, list[int]] = {}
        for place, value in enumerate(block.values):
            if is_numbers(value):
                places.setdefault(len(value), []).append(place)
        for width, at in places.items():
            rows = as_matrix([block.values[place] for place in at])  # type: ignore[misc]
            self._by_width[width] = _with(self._by_width.get(width), rows, block.weights[at])

    def _heaviest(self) -> Moments | None:
        seen = [(part.weight, -width, part) for width, part in self._by_width.items() if part]
        return max(seen)[-1] if seen else None

    def _covered(self) -> float:
        heaviest = self._heaviest()
        return heaviest.weight if heaviest else 0.0

    def _found(self) -> dict[str, Json]:
        heaviest = self._heaviest()
        assert heaviest is not None  # something is covered
        return {"vector": heaviest.mean.tolist()}


def _with(before: Moments | None, rows: Float64, weights: Float64) -> Moments | None:
    """The moments of what came before and of the finite ones among (n, d) rows."""
    finite = np.isfinite(rows).all(axis=1)  # (n,)
    if not finite.any():
        return before
    block = moments(rows[finite], weights[finite])
    return merge(before, block) if before else block
