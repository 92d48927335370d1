"""A blend for each type of value: weights over documents on their way to an answer."""

from __future__ import annotations

import hashlib
import heapq
import json
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attend.core.types import Float64, Json
from attend.values.kinds import (
    Kind,
    ValueType,
    as_matrix,
    as_numbers,
    is_missing,
    is_numbers,
    is_sendable,
    is_strings,
)

LISTED = 10
"""Values that an answer lists at most."""

TIE_DIGITS = 12
"""Sums differ in their last bits with the order of blocks; a tie must not."""

DIGESTED = 64
"""Characters beyond which a value is told from others by a digest."""

WITHIN_ONE = (-float(np.nextafter(1.0, 0.0)), float(np.nextafter(1.0, 0.0)))
"""Rounding may carry the largest float64 up to 1.0, and scaled that would become infinite."""

SPREAD = ("distribution", "probability", "std", "effective_sample_size")
"""Keys of an answer that only several documents give."""

ANSWER_KEYS = (
    *("type", "value", "distribution", "probability", "mean", "std", "effective_sample_size"),
    *("vector", "fields", "values", "decoded", "coverage", "reason"),
)
"""The keys that the answer of a search always has; null where one does not apply."""

Covered: TypeAlias = tuple[float, dict[str, Json] | None]
"""The weight of the documents with a value, and the keys of the answer; None for null in each."""


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
        """Take in a block: (n) ids, (n) values and (n,) weights, none of them negative."""
        shares = np.asarray(weights, dtype=np.float64)
        places = np.flatnonzero(shares).tolist()
        if len(places) < len(shares):
            # Without weight a value must not even touch the rounding of the others.
            ids, values = [ids[i] for i in places], [values[i] for i in places]
            shares = shares[places]
        if len(shares):
            self._total += float(shares.sum())
            self._take(ids, values, shares)

    def answer(self) -> dict[str, Json]:
        """Return the answer over all that was added so far, ready for JSON."""
        weight, fields = self._covered()
        # Two sums over different documents may differ in the last bit.
        coverage = min(weight / self._total, 1.0) if weight > 0 else 0.0
        return {"type": self.kind, **(fields or dict.fromkeys(self.keys)), "coverage": coverage}

    @abstractmethod
    def _take(self, ids: Sequence[str], values: Sequence[Json], weights: Float64) -> None:
        """Accumulate values of positive weight; those of another type count as missing."""

    @abstractmethod
    def _covered(self) -> Covered:
        """Return what was accumulated."""


@dataclass(frozen=True, slots=True)
class Moments:
    """Moments of weighted rows (n, d), n >= 1; arrays are (d,), in units of 2**exponent."""

    weight: float  # W = Σw
    concentration: float  # Σ(w/W)², the inverse of the effective sample size
    exponent: NDArray[np.int32]
    anchor: Float64  # one of the rows
    shift: Float64  # mean - anchor
    variance: Float64

    @classmethod
    def of(cls, rows: Float64, weights: Float64) -> Self | None:
        """Return the moments of the finite rows among (n, d) under positive weights (n,)."""
        finite = np.isfinite(rows).all(axis=1)  # (n,)
        if not finite.any():
            return None
        rows, weights = rows[finite], weights[finite]
        weight = float(weights.sum())
        shares = weights / weight  # (n,)
        exponent = np.frexp(np.abs(rows).max(axis=0))[1]  # (d,)
        scaled = np.ldexp(rows, -exponent)  # (n, d)
        anchor = scaled[weights.argmax()]
        offsets = scaled - anchor
        shift = shares @ offsets  # (n,) @ (n, d) -> (d,)
        variance = shares @ (offsets - shift) ** 2
        return cls(weight, float(shares @ shares), exponent, anchor, shift, variance)

    def joined(self, other: Self) -> Self:
        """Return the moments of the rows of both together."""
        exponent = np.maximum(self.exponent, other.exponent)
        a, b = self._at(exponent), other._at(exponent)
        weight = a.weight + b.weight
        of_a, of_b = a.weight / weight, b.weight / weight
        # Anchors first: rows of one size differ exactly, their means would not.
        apart = (b.anchor - a.anchor) + (b.shift - a.shift)
        return replace(
            a,
            weight=weight,
            concentration=of_a**2 * a.concentration + of_b**2 * b.concentration,
            shift=a.shift + of_b * apart,
            variance=of_a * a.variance + of_b * b.variance + of_a * of_b * apart**2,
        )

    def _at(self, exponent: NDArray[np.int32]) -> Self:
        down = self.exponent - exponent
        return replace(
            self,
            exponent=exponent,
            anchor=np.ldexp(self.anchor, down),
            shift=np.ldexp(self.shift, down),
            variance=np.ldexp(self.variance, 2 * down),
        )

    @property
    def mean(self) -> Float64:
        """Weighted mean, (d,)."""
        mean: Float64 = np.ldexp(np.clip(self.anchor + self.shift, *WITHIN_ONE), self.exponent)
        return mean


class NumberBlend(Blend):
    """Mean and spread of numbers; a boolean is none, nor is a number that is not finite."""

    keys = ("mean", "std", "effective_sample_size")
    _moments: Moments | None = None

    def _take(self, ids: Sequence[str], values: Sequence[Json], weights: Float64) -> None:
        moments = Moments.of(as_numbers(values)[:, None], weights)
        if moments is not None:
            self._moments = moments if self._moments is None else self._moments.joined(moments)

    def _covered(self) -> Covered:
        if self._moments is None:
            return 0.0, None
        spread = np.clip(np.sqrt(self._moments.variance), *WITHIN_ONE)
        return self._moments.weight, {
            "mean": float(self._moments.mean[0]),
            "std": float(np.ldexp(spread, self._moments.exponent)[0]),
            # (Σw)² / Σw² (Kish 1965): as many equal weights would be as informative.
            "effective_sample_size": 1.0 / self._moments.concentration,
        }


class VectorBlend(Blend):
    """Mean of vectors.

    Where widths differ, the width with the most weight is the answer's (the smaller
    in a tie) and vectors of the others count as missing: the first one seen would let
    the order of blocks decide.
    """

    keys = ("vector",)

    def __init__(self, kind: Kind) -> None:
        super().__init__(kind)
        self._by_width: dict[int, Moments] = {}

    def _take(self, ids: Sequence[str], values: Sequence[Json], weights: Float64) -> None:
        places: dict[int, list[int]] = {}
        for place, value in enumerate(values):
            if is_numbers(value):
                places.setdefault(len(value), []).append(place)
        for width, present in places.items():
            rows = as_matrix([values[place] for place in present])  # type: ignore[misc]
            moments = Moments.of(rows, weights[present])
            if moments is not None:
                before = self._by_width.get(width)
                self._by_width[width] = moments if before is None else before.joined(moments)

    def _covered(self) -> Covered:
        if not self._by_width:
            return 0.0, None
        width = max(self._by_width, key=lambda width: (self._by_width[width].weight, -width))
        heaviest = self._by_width[width]
        return heaviest.weight, {"vector": heaviest.mean.tolist()}


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

    def _take(self, ids: Sequence[str], values: Sequence[Json], weights: Float64) -> None:
        for value, weight in zip(values, weights.tolist(), strict=True):
            labels = self._labels(value)
            for label in labels:
                self._shares[label] += weight / len(labels)
            if labels:
                self._weight += weight

    def _covered(self) -> Covered:
        if not self._weight:
            return 0.0, None
        shares = {label: share / self._weight for label, share in self._shares.items()}
        ranked = sorted(shares.items(), key=lambda item: (-round(item[1], TIE_DIGITS), item[0]))
        return self._weight, {"value": ranked[0][0], "distribution": dict(ranked)}


class BooleanBlend(SharesBlend):
    """The probability of true; an even split answers false, the first of the tie by label."""

    keys = ("value", "probability", "distribution")

    def __init__(self, kind: Kind) -> None:
        super().__init__(
            kind, lambda value: (str(value).lower(),) if isinstance(value, bool) else ()
        )
        self._shares.update(true=0.0, false=0.0)

    def _covered(self) -> Covered:
        weight, fields = super()._covered()
        if fields is None:
            return 0.0, None
        probability = self._shares["true"] / weight
        return weight, {
            "value": fields["value"] == "true",
            "probability": probability,
            "distribution": fields["distribution"],
        }


class ObjectBlend(Blend):
    """A blend for each field that the type names; other fields are left out.

    A document without the field, or without an object at all, counts in the field's
    coverage as missing. Without any coverage the fields have their own nulls.
    """

    keys = ("fields",)

    def __init__(self, fields: Mapping[str, ValueType]) -> None:
        super().__init__("object")
        self._weight = 0.0
        self._fields = {name: blend_for(field) for name, field in fields.items()}

    def _take(self, ids: Sequence[str], values: Sequence[Json], weights: Float64) -> None:
        objects = [value if isinstance(value, dict) else None for value in values]
        self._weight += float(weights[[item is not None for item in objects]].sum())
        for name, field in self._fields.items():
            field.add(ids, [None if item is None else item.get(name) for item in objects], weights)

    def _covered(self) -> Covered:
        answers = {name: field.answer() for name, field in self._fields.items()}
        return self._weight, {"fields": answers}


@dataclass(slots=True)
class SummedValue:
    """A value with the weight of all documents that have it.

    Attributes:
        weight: the sum over these documents.
        most, id: the largest weight of one of them, and its id.
    """

    weight: float
    most: float
    id: str


class RetrievedBlend(Blend):
    """The heaviest values, their weights renormalised over all documents with a value.

    Documents with equal values are one entry, under the id of the heaviest of them.
    """

    keys = ("value", "values")

    def __init__(self, kind: Kind) -> None:
        super().__init__(kind)
        self._weight = 0.0
        self._entries: dict[str | bytes, SummedValue] = {}
        self._best: dict[str | bytes, Json] = {}  # the heaviest so far, with their values

    def _take(self, ids: Sequence[str], values: Sequence[Json], weights: Float64) -> None:
        changed = dict(self._best)
        for id, value, weight in zip(ids, values, weights.tolist(), strict=True):
            if not self._has(value):
                continue
            self._weight += weight
            text = value if isinstance(value, str) else f"\0{json.dumps(value, sort_keys=True)}"
            key: str | bytes = text
            if len(text) > DIGESTED:  # there may be millions
                data = text.encode("utf-8", "surrogatepass")
                key = hashlib.blake2b(data, digest_size=16).digest()
            entry = self._entries.get(key)
            if entry is None:
                self._entries[key] = SummedValue(weight, weight, id)
            else:
                entry.weight += weight
                if (-weight, id) < (-entry.most, entry.id):
                    entry.most, entry.id = weight, id
            changed[key] = value
        # Sums only grow: a value that is not among the heaviest now, and in no later block, is not
        # among them at the end. Of all others the sums are enough.
        by_key = self._entries

        def rank(key: str | bytes) -> tuple[float, str]:
            # Rounded, so that a tie does not depend on the order of the parts of a sum.
            return -float(f"{by_key[key].weight:.{TIE_DIGITS - 1}e}"), by_key[key].id

        self._best = {key: changed[key] for key in heapq.nsmallest(LISTED, changed, key=rank)}

    def _has(self, value: Json) -> bool:
        if self.kind == "mixed":
            return not is_missing(value) and is_sendable(value)
        return isinstance(value, str)

    def _covered(self) -> Covered:
        if not self._best:
            return 0.0, None
        values = [
            {"id": entry.id, "value": value, "weight": min(entry.weight / self._weight, 1.0)}
            for key, value in self._best.items()
            for entry in (self._entries[key],)
        ]
        return self._weight, {"value": next(iter(self._best.values())), "values": values}


def blend_for(value_type: ValueType) -> Blend:
    """Return an empty blend for values of this type."""
    match value_type.kind:
        case "number":
            return NumberBlend("number")
        case "vector":
            return VectorBlend("vector")
        case "boolean":
            return BooleanBlend("boolean")
        case "category":
            return SharesBlend("category", lambda value: (value,) if isinstance(value, str) else ())
        case "labels":  # one that is listed twice counts once
            return SharesBlend(
                "labels", lambda value: tuple(dict.fromkeys(value)) if is_strings(value) else ()
            )
        case "object":
            return ObjectBlend(value_type.fields or {})
        case "text" | "image" | "mixed":
            return RetrievedBlend(value_type.kind)


def with_all_keys(answer: Mapping[str, Any], one: float | None = None) -> dict[str, Any]:
    """Return an answer with the keys that every answer of a search has; those it lacks are null.

    Args:
        one: the weight of the document where the answer is that of a single one (hard). Nothing
            was blended then: a distribution, a probability or a standard deviation would say that
            the document is all there is, whatever its weight.

    >>> hard = with_all_keys({"type": "category", "value": "a", "distribution": {"a": 1.0}}, 0.76)
    >>> hard["value"], hard["distribution"], hard["mean"]
    ('a', None, None)
    """
    complete = {**answer, **dict.fromkeys(name for name in ANSWER_KEYS if name not in answer)}
    if answer.get("fields"):
        fields = answer["fields"].items()
        complete["fields"] = {name: with_all_keys(part, one) for name, part in fields}
    if one is None:
        return complete
    if answer.get("values"):
        complete["values"] = [{**item, "weight": one} for item in answer["values"]]
    return complete | dict.fromkeys(SPREAD)


class Nearest(NamedTuple):
    """The candidate nearest to a vector; `cosine` is 0 where one of the two has no length."""

    place: int
    cosine: float
    distance: float


def nearest(vector: ArrayLike, candidates: ArrayLike) -> Nearest:
    """Return the row of (n, d) candidates at the least Euclidean distance from a (d,) vector.

    Of equal distances the first counts.

    >>> nearest([1.0, 0.9], [[3.0, 3.0], [1.0, 0.0]])
    Nearest(place=1, cosine=0.7432941462471663, distance=0.9)
    """
    query, rows = np.asarray(vector, np.float64), np.asarray(candidates, np.float64)
    distances = np.linalg.norm(rows - query, axis=1)  # (n,)
    place = int(distances.argmin())
    lengths = float(np.linalg.norm(query) * np.linalg.norm(rows[place]))
    cosine = float(np.clip(query @ rows[place] / lengths, -1.0, 1.0)) if lengths > 0 else 0.0
    return Nearest(place, cosine, float(distances[place]))
