"""Tuning: the numbers of a version beside its matrices, and the defaults of untrained ones.

A version is a projection, a tuning and key offsets. Under it the logit of document d in
head h is

    z_h(d) = reduce over d's keys of scale_h · s_h(q, k)  +  scale_h · λ · c(q) · lex(d)

where lex is BM25 over the query's maximum and c = (maximum / ideal) ** γ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from attend.errors import Damaged, InvalidRequest
from attend.types import Json

DEFAULT_LEXICAL = 0.5
"""λ where a request asks for the lexical term without a number."""

DEFAULT_COVERAGE = 1.0
"""γ that goes with it, and with any λ under a version that has no lexical term of its own."""

MAX_LEXICAL = 10.0
"""Of λ: a cosine is at most one, so beyond this the keys would no longer matter."""


@dataclass(frozen=True)
class Tuning:
    """What was fitted for a version; the defaults are those of an untrained one.

    Attributes:
        scale: the factor on the scorer's result, one for each head.
        null: the null key's logit at temperature 1, one for each head or one for all.
        lexical: λ, on the scorer's scale; 0 is off.
        coverage: γ, how much less the lexical term counts where the query's words are not there.
        examples: the factor on example keys; at 0 they take no part.
        pool: how a document's keys make its logit, where a request does not say.
        temperature: at which weights are probabilities; not 1 where the pool depends on the scale.
        attend, scorer: with the pool, what scale, temperature, null and threshold were fitted for.
        threshold: below this confidence the answer is that nothing here answers.
        error_rate: how often that is said wrongly, as measured.
        values: the path of the values that W_V was learned for, "" for the whole value; None where
            it is for any.

    Raises InvalidRequest for a number that is out of its range or not finite.
    """

    scale: tuple[float, ...] | None = None
    null: tuple[float, ...] | None = None
    lexical: float = 0.0
    coverage: float = 0.0
    examples: float = 0.0
    attend: int | Literal["all"] | None = None
    scorer: str | None = None
    pool: Literal["max", "sum"] = "max"
    temperature: float = 1.0
    threshold: float | None = None
    error_rate: float | None = None
    values: str | None = None

    def __post_init__(self) -> None:
        for name in ("scale", "null"):
            object.__setattr__(self, name, _by_head(name, getattr(self, name)))
        if self.scale is not None and min(self.scale) <= 0:
            raise InvalidRequest(f"The scales are {self.scale}; each must be above 0.")
        for name, most in (("lexical", MAX_LEXICAL), ("coverage", math.inf), ("examples", 1e6)):
            object.__setattr__(self, name, _number(name, getattr(self, name), most))
        for name in ("threshold", "error_rate"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _number(name, getattr(self, name), 1.0))
        object.__setattr__(self, "temperature", _finite("temperature", self.temperature))
        if self.temperature <= 0:
            raise InvalidRequest(f"The temperature is {self.temperature}; it must be above 0.")
        _check_fitted_for(self.attend, self.scorer, self.pool)
        if not isinstance(self.values, str | None):
            raise InvalidRequest(
                f"values is {self.values!r}; name a path, or none.", field="values"
            )

    def takes(self, path: str | None) -> bool:
        """Tell whether W_V is for the values that a path names; None names the whole value."""
        return self.values is None or self.values == (path or "")

    def stored(self) -> dict[str, Json]:
        """Plain data without what is as untrained: `{}` for a version that was never tuned."""
        return {
            field.name: list(value) if isinstance(value, tuple) else value
            for field in fields(self)
            if (value := getattr(self, field.name)) != field.default
        }

    @classmethod
    def of(cls, stored: Mapping[str, Json]) -> Tuning:
        """The inverse of `stored`; raises Damaged for what no tuning has."""
        parameters: dict[str, Any] = dict(stored)
        unknown = parameters.keys() - {field.name for field in fields(cls)}
        if unknown:
            raise Damaged(
                f"A stored version is tuned by {', '.join(sorted(unknown))}, which this program "
                f"does not know; open the collection with the program that trained it."
            )
        try:
            return cls(**parameters)
        except InvalidRequest as error:
            raise Damaged(f"A stored version is tuned wrongly: {error} Train again.") from error


def _by_head(name: str, value: Any) -> tuple[float, ...] | None:
    if value is None:
        return None
    if isinstance(value, str) or not isinstance(value, Sequence) or not value:
        raise InvalidRequest(f"{name} is {value!r}; send one number for each head.", field=name)
    return tuple(_finite(name, number) for number in value)


def _number(name: str, value: Any, most: float) -> float:
    number = _finite(name, value)
    if not 0 <= number <= most:
        raise InvalidRequest(f"{name} is {value!r}; send a number from 0 to {most:g}.", field=name)
    return number


def _finite(name: str, value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value):
        raise InvalidRequest(f"{name} holds {value!r}; send finite numbers.", field=name)
    return float(value)


def _check_fitted_for(attend: Any, scorer: Any, pool: Any) -> None:
    is_count = isinstance(attend, int) and not isinstance(attend, bool) and attend >= 1
    if attend not in (None, "all") and not is_count:
        raise InvalidRequest(
            f"attend is {attend!r}; send a whole number of at least 1, or 'all'.", field="attend"
        )
    if not isinstance(scorer, str | None) or pool not in ("max", "sum"):
        raise InvalidRequest(
            f"A tuning for scorer {scorer!r} and pool {pool!r} was given; name a scorer, and "
            f"'max' or 'sum'."
        )
