"""Several at once: a search over several collections, and matrices of several queries.

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

from attend.api.answers import AcrossAnswer, Answer, CollectionHit, Hit, Matrix
from attend.api.search import AcrossRequest, SearchRequest
from attend.attention import Attended, Softmax
from attend.collection.versions import Vanished
from attend.core.errors import InvalidRequest, LimitExceeded
from attend.core.settings import Settings
from attend.core.types import Float64, Int64
from attend.search.answer import Answered
from attend.search.attend import Attention
from attend.search.listing import group_key
from attend.store import CollectionStore

MAX_CELLS = 1_000_000
"""Cells of an attention matrix in one response: about 20 MB of JSON."""


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


class Shares(NamedTuple):
    """Several attentions as one softmax over all that they attend to."""

    by_collection: list[float]
    confidence: float


def logit_scale(answered: Answered, settings: Settings) -> LogitScale:
    """Return the scale of the logits behind an answer."""
    scoring, attended = answered.attention.scoring, answered.attention.attended[answered.place]
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


def shares_of(scales: Sequence[LogitScale]) -> Shares | None:
    """Return each attention's share of one softmax over all; None where their scales differ.

    The no-answer score counts once: that nothing here answers is said of all together.
    """
    decided = [scale for scale in scales if scale.name != UNDECIDED] or scales
    names = {scale.name for scale in decided}
    if len(names) != 1 or None in names:
        return None
    # Of nulls that follow what a query scores, the one of the collection that scores highest.
    null = max(-math.inf if scale.null is None else scale.null for scale in decided)
    weights = Softmax.of([scale.total for scale in scales], null).weights
    return Shares(weights.tolist(), float(weights.sum()))


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
    fitted = shares is not None and scales[0].null is not None  # of one scale, all have one or none
    return AcrossAnswer(
        hits=[] if shares is None else _merged(answers, shares, request),
        merged=shares is not None,
        confidence=shares.confidence if shares is not None and fitted else None,
        shares=None if shares is None else dict(zip(answers, shares.by_collection, strict=True)),
        answers={name: _page(answered.answer, request) for name, answered in answers.items()},
        took_ms=round((time.perf_counter() - started) * 1000, 3),
    )


def _merged(
    answers: Mapping[str, Answered], shares: Shares, request: AcrossRequest
) -> list[CollectionHit]:
    """Return the page of all hits together, by score: on one scale its order is the weights'."""
    hits = [
        _rescaled(name, hit, share, answered.attention.attended[answered.place].confidence)
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


# -- matrices -------------------------------------------------------------------------------


def matrix_options(requests: Sequence[SearchRequest]) -> SearchRequest:
    """Return the options of a matrix: over all documents, and of all requests.

    Raises:
        InvalidRequest: the requests differ in more than their queries, or one is a mixture.
    """
    if len({request.model_dump_json(exclude={"query"}) for request in requests}) != 1:
        raise InvalidRequest(
            "A matrix has one set of options for all of its queries; send the same with each.",
            field="searches",
        )
    if any(request.query.mixture for request in requests):
        raise InvalidRequest(
            "A matrix has a row for each query, and a mixture is several; send its parts as "
            "queries, or search.",
            field="searches",
        )
    return requests[0].model_copy(update={"attend": "all"})


def check_cells(queries: int, documents: int) -> None:
    """Raise LimitExceeded for a matrix with more cells than are sent at once."""
    if queries * documents > MAX_CELLS:
        raise LimitExceeded(
            f"{queries} queries over {documents} documents are more than the {MAX_CELLS} cells "
            f"that are sent at once; filter, or send fewer queries."
        )


def matrix_of(attention: Attention, store: CollectionStore) -> Matrix:
    """Return logits and weights of every query over every document that is attended to.

    Raises:
        Vanished: a document was deleted meanwhile.
    """
    view = attention.scoring.view
    columns = np.unique(np.concatenate([top.documents for top in attention.attended]))
    documents = store.documents(columns, texts=False)
    if len(documents) < len(columns):
        raise Vanished
    by_query = [_by_column(top, columns) for top in attention.attended]
    return Matrix(
        documents=[documents[row].id for row in columns.tolist()],
        logits=[logits.tolist() for logits, _, _ in by_query],
        head_weights=[heads.tolist() for _, heads, _ in by_query],
        weights=[weights.tolist() for _, _, weights in by_query],
        generation=view.change,
        projection=view.version.number,
    )


def _by_column(top: Attended, columns: Int64) -> tuple[Float64, Float64, Float64]:
    """Return logits (H, n), head weights (H, n) and weights (n,) in the order of the columns."""
    places = np.searchsorted(columns, top.documents)
    logits = np.full((len(top.logits), len(columns)), -np.inf)
    heads, weights = np.zeros_like(logits), np.zeros(len(columns))
    logits[:, places], heads[:, places] = top.logits, top.head_weights
    weights[places] = top.weights
    return logits, heads, weights
