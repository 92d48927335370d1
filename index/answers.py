"""What a search returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from index.types import Json


@dataclass(frozen=True, slots=True)
class Hit:
    """One attended document.

    Attributes:
        score: the logit (one head) or the log of the weight (several); higher is better,
            comparable within one query and one projection version.
        weight: its share of the attention; with the null's, all attended weights sum to one.
        value: what the request's `value` names, or the document's whole value.
        explanation: logits and weights by head, the shares of words and keys in the logit, and
            the key that matched, when asked for.
    """

    id: str
    score: float
    weight: float
    value: Json
    payload: Mapping[str, Json]
    explanation: Mapping[str, Json] | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one query.

    Attributes:
        hits: the documents listed, best first.
        answer: the blend (soft) or the best document's value (hard); see `index.values`.
        attended: documents that share the weights; 0 means nothing was attended.
        answered: false where nothing was attended, or confidence was too low for an answer;
            hits are listed all the same.
        confidence: one less the weight of the null key.
        calibrated: whether temperature and null key were fitted for what was asked; where they
            were not, there is no null key.
        exact: whether no better document can have been missed.
        generation: the state of the collection that answered; it grows with every write.
        projection: the version of W_Q and W_K that answered.
    """

    hits: Sequence[Hit]
    answer: Mapping[str, Json]
    attended: int
    answered: bool
    confidence: float
    calibrated: bool
    exact: bool
    generation: int
    projection: int
    took_ms: float

    def json(self) -> dict[str, Any]:
        """Plain data, as the service sends it."""
        answer = {name: getattr(self, name) for name in self.__slots__}
        return answer | {"hits": [_hit(hit) for hit in self.hits]}


def _hit(hit: Hit) -> dict[str, Any]:
    plain = {name: getattr(hit, name) for name in hit.__slots__}
    if plain["explanation"] is None:
        del plain["explanation"]
    return plain


@dataclass(frozen=True, slots=True)
class Matrix:
    """Whole matrices of attention: q queries over n documents, H heads.

    Attributes:
        documents: (n) ids, in the order of the columns.
        logits, head_weights: (q, H, n).
        weights: (q, n), mixed over heads; each row sums to one, with the null key's weight.
    """

    documents: Sequence[str]
    logits: Sequence[Sequence[Sequence[float]]]
    head_weights: Sequence[Sequence[Sequence[float]]]
    weights: Sequence[Sequence[float]]
    generation: int
    projection: int

    def json(self) -> dict[str, Any]:
        """Plain data, as the service sends it."""
        return {name: getattr(self, name) for name in self.__slots__}
