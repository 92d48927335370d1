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

    of: list[float]
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
        hits = [{"collection": each.collection, **hit_json(each.hit)} for each in self.hits]
        answers = {name: answer.json() for name, answer in self.answers.items()}
        return plain | {"hits": hits, "answers": answers}


def search_across(collections: Sequence[Searchable], request: AcrossRequest) -> Across:
    """Ask several collections the same, and merge what they attend to by weight if that is sound.

    Raises:
        AttendError: what one of them cannot do; nothing is answered in part.
    """
    started = time.perf_counter()
    by_name = {each.name: each for each in collections}  # two aliases may be of one
    asked = request.of_each()
    found = {name: each.answer([asked])[0] for name, each in by_name.items()}
    scales = [logit_scale(each, by_name[name].settings) for name, each in found.items()]
    shares = shares_of(scales)
    return Across(
        hits=[] if shares is None else _merged(found, shares, request),
        merged=shares is not None,
        confidence=None if shares is None else shares.confidence,
        shares=None if shares is None else dict(zip(found, shares.of, strict=True)),
        answers={name: _page(each.answer, request) for name, each in found.items()},
        took_ms=round((time.perf_counter() - started) * 1000, 3),
    )


def _merged(found: Mapping[str, Answered], shares: Shares, request: AcrossRequest) -> list[FarHit]:
    """The page of all hits together, by score: on one scale it orders as the weight does."""
    hits = [
        _far(name, hit, _rescaled(each, share))
        for (name, each), share in zip(found.items(), shares.of, strict=True)
        for hit in each.answer.hits
    ]
    hits.sort(key=lambda each: -each.hit.score)
    if request.group_by is not None:
        hits = _grouped(hits)
    return hits[request.offset : request.offset + request.k]


def _grouped(hits: Sequence[FarHit]) -> list[FarHit]:
    """Of hits, best first, the leaders of the groups of all collections together."""
    groups: dict[str, list[FarHit]] = {}
    for at, each in enumerate(hits):
        groups.setdefault(group_key(each.hit.group, at), []).append(each)
    return [
        leader._replace(
            hit=leader.hit._replace(
                group_size=sum(each.hit.group_size or 0 for each in (leader, *others)),
                group_weight=math.fsum(each.hit.group_weight or 0 for each in (leader, *others)),
            )
        )
        for leader, *others in groups.values()
    ]


def _far(name: str, hit: Hit, factor: float) -> FarHit:
    """A collection's own hit, with its weights as shares of all attention."""
    own = None if hit.group_weight is None else hit.group_weight * factor
    return FarHit(name, hit._replace(weight=hit.weight * factor, group_weight=own))


def _rescaled(found: Answered, share: float) -> float:
    """What a weight of one collection is multiplied by: its share, without its own null key."""
    own = found.answer.confidence
    return share / own if own > 0 else 0.0


def _page(answer: Answer, request: AcrossRequest) -> Answer:
    """A collection's own answer with the page that was asked for, and no cursor: see there."""
    page = answer.hits[request.offset : request.offset + request.k]
    return replace(answer, hits=page, next=None)
