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
from dataclasses import fields, replace
from typing import NamedTuple, Protocol

from attend.api.answers import AcrossAnswer, Answer, CollectionHit, Hit
from attend.api.search import AcrossRequest, SearchRequest
from attend.attention import Softmax
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
        mechanism.scorer,
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
    weights = Softmax.of([scale.total for scale in scales], null).weights
    return Shares(weights.tolist(), float(weights.sum()))


class Searchable(Protocol):
    """A collection that answers searches."""

    @property
    def name(self) -> str: ...

    @property
    def settings(self) -> Settings: ...

    def answer(self, requests: Sequence[SearchRequest]) -> list[Answered]: ...


def search_across(collections: Sequence[Searchable], request: AcrossRequest) -> AcrossAnswer:
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
    return AcrossAnswer(
        hits=[] if shares is None else _merged(answers, shares, request),
        merged=shares is not None,
        confidence=None if shares is None else shares.confidence,
        shares=None if shares is None else dict(zip(answers, shares.by_collection, strict=True)),
        answers={name: _page(answered.answer, request) for name, answered in answers.items()},
        took_ms=round((time.perf_counter() - started) * 1000, 3),
    )


def _merged(
    answers: Mapping[str, Answered], shares: Shares, request: AcrossRequest
) -> list[CollectionHit]:
    """Return the page of all hits together, by score: on one scale its order is the weights'."""
    hits = [
        _rescaled(name, hit, share, answered.answer.confidence)
        for (name, answered), share in zip(answers.items(), shares.by_collection, strict=True)
        for hit in answered.answer.hits
    ]
    hits.sort(key=lambda hit: -hit.score)
    if request.group_by is not None:
        hits = _grouped(hits)
    return hits[request.offset : request.offset + request.k]


def _grouped(hits: Sequence[CollectionHit]) -> list[CollectionHit]:
    """Return the leader of each group of all collections together; hits come best first."""
    groups: dict[str, list[CollectionHit]] = {}
    for rank, hit in enumerate(hits):
        groups.setdefault(group_key(hit.group, rank), []).append(hit)
    return [
        replace(
            members[0],
            group_size=sum(hit.group_size or 0 for hit in members),
            group_weight=math.fsum(hit.group_weight or 0 for hit in members),
        )
        for members in groups.values()
    ]


def _rescaled(name: str, hit: Hit, share: float, confidence: float) -> CollectionHit:
    """Return a collection's hit with its weights as shares of all attention."""
    factor = share / confidence if confidence > 0 else 0.0  # without its own no-answer score
    values = {field.name: getattr(hit, field.name) for field in fields(hit)}
    values["weight"] = hit.weight * factor
    if hit.group_weight is not None:
        values["group_weight"] = hit.group_weight * factor
    return CollectionHit(**values, collection=name)


def _page(answer: Answer, request: AcrossRequest) -> Answer:
    """Return a collection's own answer with the requested page, and no cursor."""
    page = answer.hits[request.offset : request.offset + request.k]
    return replace(answer, hits=page, next=None)
