"""A search over several collections.

Each collection attends by itself, and one softmax weighs all. Logits of two collections can be
compared where both are made alike: by the same encoder, projection, scorer, scale, temperature and
tuning. Then the weight of a document is its share of one softmax over everything that the
collections attend to, each with its own `attend` best. Where scales differ no such softmax exists,
and each collection's answer stands alone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import NamedTuple

import numpy as np

from attend.api.answers import AcrossAnswer, CollectionHit
from attend.api.search import AcrossRequest
from attend.attention import Softmax
from attend.core.settings import Settings
from attend.search.answer import Answered
from attend.search.hits import group_key


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


UNDECIDED = "undecided"
"""The scale of a collection without vectors, which its first write decides."""


def logit_scale(answered: Answered, settings: Settings) -> LogitScale:
    """Return the scale of the logits behind an answer."""
    scoring, attended = answered.attention.scoring, answered.attention.attended
    mechanism, version = scoring.mechanism, scoring.view.version
    if settings.normalize is None:
        return LogitScale(UNDECIDED, -math.inf, None)
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
    null = attended.null
    return LogitScale(repr(name), total, None if null is None else float(null[0]))


def shares_of(scales: Sequence[LogitScale]) -> list[float] | None:
    """Return each attention's share of one softmax over all; None where their scales differ.

    With the share of "no answer" they sum to one. The no-answer score counts once: that nothing
    here answers is said of all together.
    """
    decided = [scale for scale in scales if scale.name != UNDECIDED] or scales
    names = {scale.name for scale in decided}
    if len(names) != 1 or None in names:
        return None
    # Of nulls that follow what a query scores, the one of the collection that scores highest.
    null = max(-math.inf if scale.null is None else scale.null for scale in decided)
    shares: list[float] = Softmax.of([scale.total for scale in scales], null).weights.tolist()
    return shares


def merged_answer(
    answers: Mapping[str, Answered],
    settings: Mapping[str, Settings],
    request: AcrossRequest,
    started: float,
) -> AcrossAnswer:
    """Merge the hits of several collections by weight if that is sound.

    Args:
        answers, settings: by the names of the collections.
        started: by `time.perf_counter`.
    """
    scales = [logit_scale(answered, settings[name]) for name, answered in answers.items()]
    shares = shares_of(scales)
    fitted = scales[0].null is not None  # of one scale, all have one or none
    start, stop = request.offset, request.offset + request.k
    pages = {
        name: replace(answer, hits=answer.hits[start:stop], next=None)
        for name, (answer, _, _) in answers.items()
    }
    return AcrossAnswer(
        hits=[] if shares is None else _merged(answers, shares, request)[start:stop],
        merged=shares is not None,
        confidence=float(np.sum(shares)) if shares is not None and fitted else None,
        shares=None if shares is None else dict(zip(answers, shares, strict=True)),
        answers=pages,
        took_ms=round((time.perf_counter() - started) * 1000, 3),
    )


def _merged(
    answers: Mapping[str, Answered], shares: Sequence[float], request: AcrossRequest
) -> list[CollectionHit]:
    """Return all hits together, by score: on one scale its order is the weights'.

    Their weights are shares of all attention. A group of several collections has one leader.
    """
    hits = []
    for (name, answered), share in zip(answers.items(), shares, strict=True):
        confidence = answered.attention.attended.confidence
        factor = share / confidence if confidence > 0 else 0.0  # without its own no-answer score
        for hit in answered.answer.hits:
            values = {field.name: getattr(hit, field.name) for field in fields(hit)}
            values["weight"] = hit.weight * factor
            if hit.group_weight is not None:
                values["group_weight"] = hit.group_weight * factor
            hits.append(CollectionHit(**values, collection=name))
    hits.sort(key=lambda hit: -hit.score)
    if request.group_by is None:
        return hits
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
