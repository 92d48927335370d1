"""A blend for each type of value: numbers, vectors, labels, objects, and what is only listed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from attend.types import Float64, Json
from attend.values.blend import Blend, RetrievedBlend, ValueBlock
from attend.values.kinds import (
    Kind,
    ValueType,
    as_matrix,
    as_numbers,
    is_numbers,
    is_strings,
)

_BELOW_ONE = float(np.nextafter(1.0, 0.0))


@dataclass(frozen=True, slots=True)
class Moments:
    """What a block of (n, d) rows leaves behind; arrays are (d,), in units of 2**exponent."""

    weight: float  # W = Σw
    concentration: float  # Σ(w/W)², the inverse of the effective sample size
    exponent: NDArray[np.int32]
    anchor: Float64  # one of the rows
    shift: Float64  # mean - anchor
    variance: Float64

    @property
    def mean(self) -> Float64:
        """Weighted mean, (d,)."""
        return _unscaled(self.anchor + self.shift, self.exponent)

    @property
    def std(self) -> Float64:
        """Weighted population standard deviation, (d,)."""
        return _unscaled(np.sqrt(self.variance), self.exponent)

    @property
    def effective_sample_size(self) -> float:
        """(Σw)² / Σw² (Kish 1965): how many equal weights would be as informative."""
        return 1.0 / self.concentration


def moments(rows: Float64, weights: Float64) -> Moments:
    """The moments of n >= 1 finite rows, (n, d), under (n,) positive weights."""
    weight = float(weights.sum())
    shares = weights / weight  # (n,)
    exponent = np.frexp(np.abs(rows).max(axis=0))[1]  # (d,)
    scaled = np.ldexp(rows, -exponent)  # (n, d)
    anchor = scaled[weights.argmax()]
    offsets = scaled - anchor
    shift = shares @ offsets  # (n,) @ (n, d) -> (d,)
    variance = shares @ (offsets - shift) ** 2
    return Moments(weight, float(shares @ shares), exponent, anchor, shift, variance)


def merge(a: Moments, b: Moments) -> Moments:
    """The moments of both blocks' rows together."""
    exponent = np.maximum(a.exponent, b.exponent)
    a, b = _at(a, exponent), _at(b, exponent)
    weight = a.weight + b.weight
    of_a, of_b = a.weight / weight, b.weight / weight
    # Anchors first: rows of one size differ exactly, their means would not.
    apart = (b.anchor - a.anchor) + (b.shift - a.shift)
    return Moments(
        weight=weight,
        concentration=of_a**2 * a.concentration + of_b**2 * b.concentration,
        exponent=exponent,
        anchor=a.anchor,
        shift=a.shift + of_b * apart,
        variance=of_a * a.variance + of_b * b.variance + of_a * of_b * apart**2,
    )


def _at(part: Moments, exponent: NDArray[np.int32]) -> Moments:
    down = part.exponent - exponent
    return replace(
        part,
        exponent=exponent,
        anchor=np.ldexp(part.anchor, down),
        shift=np.ldexp(part.shift, down),
        variance=np.ldexp(part.variance, 2 * down),
    )


def _unscaled(scaled: Float64, exponent: NDArray[np.int32]) -> Float64:
    # Rounding may carry the largest float64 up to 1.0, and that would become infinite.
    result: Float64 = np.ldexp(np.clip(scaled, -_BELOW_ONE, _BELOW_ONE), exponent)
    return result


class NumberBlend(Blend):
    """Mean and spread of numbers; a boolean is none, nor is a number that is not finite."""

    keys = ("mean", "std", "effective_sample_size")

    def __init__(self) -> None:
        super().__init__("number")
        self._moments: Moments | None = None

    def _take(self, block: ValueBlock) -> None:
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

    def _take(self, block: ValueBlock) -> None:
        places: dict[int, list[int]] = {}
        for place, value in enumerate(block.values):
            if is_numbers(value):
                places.setdefault(len(value), []).append(place)
        for width, present in places.items():
            rows = as_matrix([block.values[place] for place in present])  # type: ignore[misc]
            self._by_width[width] = _with(self._by_width.get(width), rows, block.weights[present])

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


_TIE_DIGITS = 12  # sums differ in their last bits with the order of blocks; a tie must not


class SharesBlend(Blend):
    """A distribution over labels, which sums to one, and the likeliest of them.

    A document with several labels spreads its weight evenly over them.
    """

    keys: ClassVar[tuple[str, ...]] = ("value", "distribution")

    def __init__(self, kind: Kind, labels: Callable[[Json], Sequence[str]]) -> None:
        """`labels` gives the labels of one value, each once; none where it is missing."""
        super().__init__(kind)
        self._labels = labels
        self._weight = 0.0
        self._shares: defaultdict[str, float] = defaultdict(float)

    def _take(self, block: ValueBlock) -> None:
        for value, weight in zip(block.values, block.weights.tolist(), strict=True):
            labels = self._labels(value)
            for label in labels:
                self._shares[label] += weight / len(labels)
            if labels:
                self._weight += weight

    def _covered(self) -> float:
        return self._weight

    def _distribution(self) -> dict[str, float]:
        shares = {label: share / self._weight for label, share in self._shares.items()}
        ranked = sorted(shares.items(), key=lambda item: (-round(item[1], _TIE_DIGITS), item[0]))
        return dict(ranked)

    def _found(self) -> dict[str, Json]:
        distribution = self._distribution()
        return {"value": next(iter(distribution)), "distribution": distribution}


class BooleanBlend(SharesBlend):
    """The probability of true; an even split answers false, the first of the tie by label."""

    keys = ("value", "probability", "distribution")

    def __init__(self) -> None:
        super().__init__("boolean", _truth)
        self._shares.update(true=0.0, false=0.0)

    def _found(self) -> dict[str, Json]:
        distribution = self._distribution()
        return {
            "value": next(iter(distribution)) == "true",
            "probability": distribution["true"],
            "distribution": distribution,
        }


def category_blend() -> SharesBlend:
    """One label to a document."""
    return SharesBlend("category", lambda value: (value,) if isinstance(value, str) else ())


def labels_blend() -> SharesBlend:
    """A list of labels to a document; one that is listed twice counts once."""
    return SharesBlend(
        "labels", lambda value: tuple(dict.fromkeys(value)) if is_strings(value) else ()
    )


def _truth(value: Json) -> Sequence[str]:
    if not isinstance(value, bool):
        return ()
    return ("true",) if value else ("false",)


class ObjectBlend(Blend):
    """A blend for each field that the type names; other fields are left out.

    A document without the field, or without an object at all, counts in the field's
    coverage as missing.
    """

    keys = ("fields",)

    def __init__(self, fields: Mapping[str, ValueType]) -> None:
        super().__init__("object")
        self._weight = 0.0
        self._fields = {name: blend_for(field) for name, field in fields.items()}

    def _take(self, block: ValueBlock) -> None:
        objects = [value if isinstance(value, dict) else None for value in block.values]
        self._weight += float(block.weights[[item is not None for item in objects]].sum())
        for name, field in self._fields.items():
            values = [None if item is None else item.get(name) for item in objects]
            field.add(block.ids, values, block.weights)

    def _covered(self) -> float:
        return self._weight

    def _found(self) -> dict[str, Json]:
        return {"fields": {name: field.answer() for name, field in self._fields.items()}}

    def _blank(self) -> dict[str, Json]:
        # A reader of one field finds its null where it would find its value.
        return self._found()


def blend_for(value_type: ValueType) -> Blend:
    """A fresh blend for values of this type."""
    match value_type.kind:
        case "number":
            return NumberBlend()
        case "vector":
            return VectorBlend()
        case "boolean":
            return BooleanBlend()
        case "category":
            return category_blend()
        case "labels":
            return labels_blend()
        case "object":
            return ObjectBlend(value_type.fields or {})
        case "text" | "image" | "mixed":
            return RetrievedBlend(value_type.kind)
