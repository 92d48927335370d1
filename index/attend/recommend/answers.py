"""What a recommendation returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attend.types import Json


@dataclass(frozen=True, slots=True)
class Recommendation:
    """One document that may come next.

    Attributes:
        score: log of the weight, less what negative examples take from it; higher is better,
            comparable within one answer.
        weight: its share of the history's attention.
        because: each part of the history with its share of that weight, the largest first; they
            sum to one. None where it was not asked for.
        title: what to call it before people, when asked for.
    """

    id: str
    score: float
    weight: float
    value: Json
    payload: Mapping[str, Json]
    because: Sequence[Mapping[str, Json]] | None = None
    title: str | None = None

    def json(self) -> dict[str, Any]:
        """Plain data, without what was not asked for."""
        plain = {name: getattr(self, name) for name in self.__slots__}
        absent = [name for name in ("because", "title") if plain[name] is None]
        return {name: each for name, each in plain.items() if name not in absent}


@dataclass(frozen=True, slots=True)
class Predicted:
    """What a user would think of some targets.

    Attributes:
        predictions: for each target its name (`id`, `text` or `vector`), the answer by the type of
            the values (of numbers `mean`, `std` and the `baseline` that it is shrunk to),
            `confidence`, one less the weight of the `null` key, and `because`: what was attended to
            of the history, with its value and weight. All weights and the null's sum to one; only
            the heaviest are told where not all are asked for.
        projection: the version that predicted; 0 is the untrained one.
    """

    predictions: Sequence[Mapping[str, Json]]
    history: Mapping[str, int]
    missing: Sequence[Mapping[str, Json]]
    generation: int
    projection: int
    took_ms: float

    def json(self) -> dict[str, Any]:
        """Plain data, as the service sends it."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Recommended:
    """What may come next for a user.

    Attributes:
        history: how many parts were `given` and `used`: of very long histories the heaviest and
            latest are.
        missing: the ids, and the user, that were named and are not there.
        attended: documents that share the weights.
        exact: whether no better document can have been missed; where keys are quantised weights are
            estimates besides, as sums over all documents are.
        generation: the state of the collection that answered; it grows with every write.
        projection: the version that answered; 0 is the untrained one.
    """

    hits: Sequence[Recommendation]
    history: Mapping[str, int]
    missing: Sequence[Mapping[str, Json]]
    attended: int
    exact: bool
    generation: int
    projection: int
    took_ms: float

    def json(self) -> dict[str, Any]:
        """Plain data, as the service sends it."""
        plain = {name: getattr(self, name) for name in self.__slots__}
        return plain | {"hits": [hit.json() for hit in self.hits]}
