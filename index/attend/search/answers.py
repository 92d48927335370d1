"""What a search returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from attend.store import Facet
from attend.types import Json

Facets = Mapping[str, Facet]
"""By field."""


class Highlight(NamedTuple):
    """The passage that matched.

    Attributes:
        start, stop: where it lies in the text of its field, in characters.
        passage: None where no text was matched.
        spans: where in the passage words of the query stand, in characters of it.
    """

    field: str
    start: int
    stop: int
    passage: str | None
    spans: list[tuple[int, int]]


class Mass(NamedTuple):
    """The share of the softmax over all documents that the attended ones have.

    Attributes:
        low, high: it lies between them in 95 of 100 cases; all three are the same where it is
            exact.
    """

    share: float
    low: float
    high: float


class Weighing(NamedTuple):
    """What turns the logits of the attended into weights: enough to do it again, elsewhere.

    With z_h(d) of each hit's explanation and N = `null`, head h weighs d by exp(z_h(d) / t) over
    the sum of that over all attended, with exp(N_h / t) besides where there is a null key; a
    weight is the mean over heads by `gates`.

    Attributes:
        temperature: t, the fitted one times the one asked for.
        gates: (H,) how much each head counts; they sum to one.
        null: (H,) the null key's logits; None where none was fitted for what was asked.
        threshold: below this confidence, where it is calibrated, nothing is answered unless the
            request says otherwise; None where the version has none.
        mass: of all documents that filter and mask let pass, how much of the weight those
            attended would have, without the null key (`attend.search.mass`).
    """

    temperature: float
    gates: list[float]
    null: list[float] | None
    threshold: float | None
    mass: Mass

    def json(self) -> dict[str, Any]:
        return {**self._asdict(), "mass": self.mass._asdict()}


class Hit(NamedTuple):
    """One attended document.

    Attributes:
        score: the logit (one head) or the log of the weight (several); higher is better,
            comparable within one query and one projection version.
        weight: its share of the attention; with the null's, all attended weights sum to one.
        value: what the request's `value` names, or the document's whole value.
        explanation: logits and weights by head, the shares of words and keys in the logit, and
            the key that matched, when asked for.
        highlight: the passage that matched, where it lies, and the query's words in it.
        title: what to call it before people, when asked for.
        group, group_size, group_weight: where hits are grouped, the value by which they are, and
            how many of the attended documents have it with what weight together.
    """

    id: str
    score: float
    weight: float
    value: Json
    payload: Mapping[str, Json]
    explanation: Mapping[str, Json] | None = None
    highlight: Highlight | None = None
    group: Json = None
    group_size: int | None = None
    group_weight: float | None = None
    title: str | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one query.

    Attributes:
        hits: the documents listed, best first.
        answer: the blend (soft) or the best document's value (hard); see `attend.values`.
        attended: documents that share the weights; 0 means nothing was attended.
        answered: false where nothing was attended, or confidence was too low for an answer;
            hits are listed all the same.
        confidence: one less the weight of the null key.
        calibrated: whether temperature and null key were fitted for what was asked; where they
            were not, there is no null key.
        exact: whether no better document can have been missed.
        recall: where keys are quantised, the share of the ten nearest that searches find at least.
        generation: the state of the collection that answered; it grows with every write.
        projection: the version of W_Q and W_K that answered.
        next: the cursor of the hits that follow; None where there are none.
        facets: the most frequent values of the fields asked for, over all documents that filter
            and mask let pass.
        timings: milliseconds by stage (`attend.timings`), of all searches answered together, when
            asked to explain.
        weighing: how logits became weights, when asked to explain.
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
    next: str | None = None
    facets: Facets | None = None
    timings: Mapping[str, float] | None = None
    weighing: Weighing | None = None
    recall: float | None = None

    def json(self) -> dict[str, Any]:
        """Plain data, as the service sends it."""
        answer = {name: getattr(self, name) for name in self.__slots__}
        answer["hits"] = [hit_json(hit) for hit in self.hits]
        if self.timings is None:
            del answer["timings"]
        if self.weighing is None:
            del answer["weighing"]
        else:
            answer["weighing"] = self.weighing.json()
        if self.recall is None:
            del answer["recall"]
        if self.facets is None:
            del answer["facets"]
        else:
            answer["facets"] = facets_json(self.facets)
        return answer


def facets_json(facets: Facets) -> dict[str, Any]:
    """Plain data, as the service sends it."""
    return {
        name: {**facet._asdict(), "values": [count._asdict() for count in facet.values]}
        for name, facet in facets.items()
    }


def hit_json(hit: Hit) -> dict[str, Any]:
    """Without what was not asked for."""
    plain = {
        "id": hit.id,
        "score": hit.score,
        "weight": hit.weight,
        "value": hit.value,
        "payload": hit.payload,
    }
    if hit.explanation is not None:
        plain["explanation"] = hit.explanation
    if hit.highlight is not None:
        plain["highlight"] = hit.highlight._asdict()
    if hit.title is not None:
        plain["title"] = hit.title
    if hit.group_size is not None:
        plain |= {name: getattr(hit, name) for name in ("group", "group_size", "group_weight")}
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
