"""One search over several collections: each attends by itself, and one softmax weighs all.

Logits of two collections can be compared where both are made alike: by the same encoder,
projection, scorer, scale, temperature and tuning. Then the weight of a document is its share of
one softmax over everything that the collections attend to, each with its own `attend` best.
Where scales differ no such softmax exists, and each collection's answer stands alone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

from attend.api.search import AcrossRequest, SearchRequest
from attend.attention import softmax
from attend.search.answers import Answer, Hit, hit_json
from attend.search.listing import group_key
from attend.search.schedule import Answered
from attend.settings import Settings


class LogitScale(NamedTuple):
    """One answer's attention, as a share of a larger one.

    Attributes:
        name: the same for the same scale of logits; None where there is no single one, as with
            several heads or where keys were moved by what their own collection learned.
        total: log of the sum of exp(logit / temperature) over the attended; -inf without any.
        null: the no-answer score over the temperature; None without one.
    """

    name: str | None
    total: float
    null: float | None


class Shares(NamedTuple):
    """Several attentions as one softmax over all that they attend to."""

    by_collection: list[float]
    confidence: float


def logit_scale(answered: Answered, settings: Settings) -> LogitScale:
    """Return the scale of the logits behind an answer."""
    scoring, attended = answered.attention.scoring, answered.attention.attended[answered.place]
    mechanism, version = scoring.mechanism, scoring.view.made
    if mechanism.heads > 1 or version.moved:
        return LogitScale(None, -math.inf, None)
    tau = mechanism.temperature
    name = (
        settings.encoder,
        settings.scorer,
        settings.normalize,
        version.projection.fingerprint,
        version.tuning,
        mechanism.scorer_name,
        mechanism.scale.tolist(),
        tau,
    )
    total = float(attended.log_partition[0])
    if attended.total_documents == 0 or attended.null_weight >= 1:
        total = -math.inf
    elif attended.null_weight > 0:
        total += math.log1p(-attended.null_weight)
    null = mechanism.null_logit
    return LogitScale(repr(name), total, None if null is None else float(null[0]) / tau)


def shares_of(scales: Sequence[LogitScale]) -> Shares | None:
    """Return each attention's share of one softmax over all; None where their scales differ.

    The no-answer score counts once: that nothing here answers is said of all together.
    """
    names = {scale.name for scale in scales}
    if len(names) != 1 or None in names:
        return None
    null = -math.inf if scales[0].null is None else scales[0].null
    weights = softmax([scale.total for scale in scales], null_logit=null).weights
    return Shares(weights.tolist(), float(weights.sum()))


class Searchable(Protocol):
    """A collection that answers searches."""

    @property
    def name(self) -> str: ...

    @property
    def settings(self) -> Settings: ...

    def answer(self, requests: Sequence[SearchRequest]) -> list[Answered]: ...


class FarHit(NamedTuple):
    """A hit, and where it was found; its weight is a share of all collections' attention."""

    collection: str
    hit: Hit


@dataclass(frozen=True, slots=True)
class Across:
    """The answer of several collections.

    Attributes:
        hits: of all, best first; none where they could not be merged.
        merged: whether one softmax weighs all; false where the collections' scales differ.
        confidence: of the merged attention, one less the weight of the null key.
        shares: each collection's share of it, by name; None where nothing was merged.
        answers: each collection's own answer, by name, with weights and confidence of its own.
    """

    hits: Sequence[FarHit]
    merged: bool
    confidence: float | None
    shares: Mapping[str, float] | None
    answers: Mapping[str, Answer]
    took_ms: float

    def json(self) -> dict[str, Any]:
        """Plain data, as the service sends it."""
        plain = {name: getattr(self, name) for name in self.__slots__}
        hits = [{"collection": far.collection, **hit_json(far.hit)} for far in self.hits]
        answers = {name: answer.json() for name, answer in self.answers.items()}
        return plain | {"hits": hits, "answers": answers}


def search_across(collections: Sequence[Searchable], request: AcrossRequest) -> Across:
    """Search several collections, and merge their hits by weight if that is sound.

    Raises:
        AttendError: what one of them cannot do; nothing is answered in part.
    """
    started = time.perf_counter()
    by_name = {collection.name: collection for collection in collections}  # aliases may repeat
    one = request.of_each()
    answers = {name: collection.answer([one])[0] for name, collection in by_name.items()}
    scales = [logit_scale(answers[name], by_name[name].settings) for name in by_name]
    shares = shares_of(scales)
    return Across(
        hits=[] if shares is None else _merged(answers, shares, request),
        merged=shares is not None,
        confidence=None if shares is None else shares.confidence,
        shares=None if shares is None else dict(zip(answers, shares.by_collection, strict=True)),
        answers={name: _page(answered.answer, request) for name, answered in answers.items()},
        took_ms=round((time.perf_counter() - started) * 1000, 3),
    )


def _merged(
    answers: Mapping[str, Answered], shares: Shares, request: AcrossRequest
) -> list[FarHit]:
    """Return the page of all hits together, by score: on one scale its order is the weights'."""
    hits = [
        _rescaled(name, hit, share, answered.answer.confidence)
        for (name, answered), share in zip(answers.items(), shares.by_collection, strict=True)
        for hit in answered.answer.hits
    ]
    hits.sort(key=lambda far: -far.hit.score)
    if request.group_by is not None:
        hits = _grouped(hits)
    return hits[request.offset : request.offset + request.k]


def _grouped(hits: Sequence[FarHit]) -> list[FarHit]:
    """Return the leader of each group of all collections together; hits come best first."""
    groups: dict[str, list[FarHit]] = {}
    for rank, far in enumerate(hits):
        groups.setdefault(group_key(far.hit.group, rank), []).append(far)
    return [
        members[0]._replace(
            hit=members[0].hit._replace(
                group_size=sum(far.hit.group_size or 0 for far in members),
                group_weight=math.fsum(far.hit.group_weight or 0 for far in members),
            )
        )
        for members in groups.values()
    ]


def _rescaled(name: str, hit: Hit, share: float, confidence: float) -> FarHit:
    """Return a collection's hit with its weights as shares of all attention."""
    factor = share / confidence if confidence > 0 else 0.0  # without its own null key
    group_weight = None if hit.group_weight is None else hit.group_weight * factor
    return FarHit(name, hit._replace(weight=hit.weight * factor, group_weight=group_weight))


def _page(answer: Answer, request: AcrossRequest) -> Answer:
    """Return a collection's own answer with the requested page, and no cursor."""
    page = answer.hits[request.offset : request.offset + request.k]
    return replace(answer, hits=page, next=None)
