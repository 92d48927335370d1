"""Qdrant's REST API as of 1.20, read-only: collections, searches by vector, lists and counts.

https://api.qdrant.tech/api-reference. A point is a document; its payload is the document's with
`_id`, and where they have no such field `text` and `value`. Filters of Qdrant's are written as
filters of ours, in whose terms a missing field is null and equal numbers are equal.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal
from uuid import NAMESPACE_URL, uuid5

from flask import g
from pydantic import Field, FiniteFloat, JsonValue

from attend import Collection
from attend.api import base
from attend.api.base import Reply, Request, WrongField
from attend.api.search import MAX_BATCH, BatchRequest, SearchRequest
from attend.core.errors import InvalidRequest
from attend.core.frames import Page
from attend.core.types import Json
from attend.values.select import only, whole_text
from attend_service import security
from attend_service.context import collection_of, context
from attend_service.operations import DOCUMENT_BYTES, Operations, need_memory, working_size
from attend_service.replies import QDRANT

operations = Operations("Qdrant")

BY_NAME, POINTS = f"{QDRANT}/{{collection}}", f"{QDRANT}/{{collection}}/points"
POST: Mapping[str, Any] = {"scope": "read", "body_limit": security.MAX_BATCH_BODY}

SCANNED_BYTES = 400
"""Of an id, while all are looked through for those that UUIDs stand for."""

UUID_FORM = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
UUID_VERSION = 14
"""The place of the version's digit."""

ENGINE = {
    "hnsw_config": {"m": 0, "ef_construct": 4, "full_scan_threshold": 0},
    "optimizer_config": {"default_segment_number": 1, "flush_interval_sec": 1},
}
"""Settings of an engine that is not this one: clients read no answer without them."""

CLAUSES, SIGNS = {"must", "should", "must_not"}, {"gt", "gte", "lt", "lte"}

Parts = bool | list[base.Path] | dict[Literal["include", "exclude"], list[base.Path]]
"""All of a payload or nothing, the fields (dotted) to include, or those to exclude."""


class QdrantReply(Reply):
    """An answer in Qdrant's form."""

    result: Any
    time: float
    """Seconds."""
    status: str = "ok"


class PointParts(Request):
    """The parts of points to return."""

    with_payload: Parts | None = None
    with_vector: bool | list[str] | None = None
    """false: a document may have several keys, and none is returned."""

    def check(self) -> None:
        if self.with_vector:
            raise WrongField("with_vector", "no vectors are returned in this form; leave it out")


class PointList(PointParts):
    """Points by their ids."""

    ids: list[int | str] = Field(max_length=base.MAX_DOCUMENTS)


class PointCount(Request):
    """The points to count, exactly."""

    filter: base.Filter | None = None
    exact: bool | None = None


class PointScroll(PointParts):
    """A page of points."""

    filter: base.Filter | None = None
    limit: int = Field(10, ge=1, le=base.MAX_DOCUMENTS)
    offset: str | None = Field(None, max_length=base.MAX_CURSOR)
    """`next_page_offset` of the page before, with the same filter."""


class PointQuery(PointParts):
    """A search by a vector, or by the id of a point, which is not listed itself."""

    query: JsonValue
    filter: base.Filter | None = None
    limit: int = Field(10, ge=1, le=base.MAX_K)
    offset: int | None = Field(None, ge=0, le=base.MAX_K)
    score_threshold: FiniteFloat | None = None
    """The least score: confidence × weight, from 0 to 1."""
    using: str | None = None
    """Nothing: vectors have no name here."""
    params: dict[str, JsonValue] | None = None
    """Passed over: the settings of a collection say how exact a search is."""

    def check(self) -> None:
        super().check()
        if self.using:
            raise WrongField("using", "the vectors of a collection have no name here; leave it out")


class PointQueries(Request):
    """Several searches."""

    searches: list[PointQuery] = Field(max_length=MAX_BATCH)


@operations.add("GET", QDRANT, checks_collections=True)
def list_qdrant_collections() -> QdrantReply:
    """List the collections, in Qdrant's form."""
    names = security.visible(context().data.names())
    return _reply({"collections": [{"name": name} for name in names]})


@operations.add("GET", BY_NAME)
def show_qdrant_collection(collection: str) -> QdrantReply:
    """Show a collection, in Qdrant's form: its points and the width of its vectors."""
    info, settings = collection_of(collection).info(), collection_of(collection).settings
    is_cosine = settings.scorer == "cosine" or settings.unit_embeddings
    vectors = {"size": info.dimension, "distance": "Cosine" if is_cosine else "Dot"}
    state = {"status": "green", "optimizer_status": "ok", "segments_count": 1, "payload_schema": {}}
    counts = {"points_count": info.documents, "indexed_vectors_count": info.keys}
    return _reply({**state, **counts, "config": {"params": {"vectors": vectors}, **ENGINE}})


@operations.add("GET", f"{BY_NAME}/exists")
def exists_in_qdrant(collection: str) -> QdrantReply:
    """Say whether a collection or an alias exists, in Qdrant's form."""
    data = context().data
    return _reply({"exists": data.resolve(collection) in data.names()})


@operations.add("POST", f"{POINTS}/query", example={"query": [1.0, 0.2, 0.0], "limit": 2}, **POST)
def query_points(collection: str, body: PointQuery) -> QdrantReply:
    """Search by a vector, in Qdrant's form; what the collection has learned applies to it.

    The points and their order are those of a search of ours; the score is confidence × weight.
    """
    return _reply(_answers(collection_of(collection), [body])[0])


@operations.add(
    "POST", f"{POINTS}/query/batch", example={"searches": [{"query": [1.0, 0.2, 0.0]}]}, **POST
)
def query_points_batch(collection: str, body: PointQueries) -> QdrantReply:
    """Answer up to 256 searches at once, in Qdrant's form."""
    return _reply(_answers(collection_of(collection), body.searches))


@operations.add(
    "POST",
    f"{POINTS}/scroll",
    example={"filter": {"must": [{"key": "year", "range": {"gte": 1800}}]}, "limit": 2},
    **POST,
)
def scroll_points(collection: str, body: PointScroll) -> QdrantReply:
    """List points page by page, in Qdrant's form, in the order in which they first came."""
    opened = collection_of(collection)
    need_memory(DOCUMENT_BYTES * body.limit)
    page = opened.page(_filter(opened, body.filter), cursor=body.offset, limit=body.limit)
    return _reply({"points": _stored(body, page), "next_page_offset": page.next})


@operations.add("POST", f"{POINTS}/count", example={"filter": {}}, **POST)
def count_points(collection: str, body: PointCount) -> QdrantReply:
    """Count points, in Qdrant's form."""
    opened = collection_of(collection)
    return _reply({"count": opened.page(_filter(opened, body.filter), limit=0).total})


@operations.add("POST", POINTS, example={"ids": ["moby-dick"]}, **POST)
def retrieve_points(collection: str, body: PointList) -> QdrantReply:
    """Return points by their ids, in Qdrant's form; unknown ones are passed over."""
    opened, ids = collection_of(collection), document_ids(collection_of(collection), body.ids)
    need_memory(DOCUMENT_BYTES * len(ids))
    return _reply(_stored(body, opened.page({"@id": {"in": ids}}, limit=len(ids) or 1)))


def point_id(id: str) -> int | str:
    """Return the id of a document's point: the id as a whole number or UUID, or else a UUID of it.

    >>> point_id("7"), point_id("moby-dick")
    (7, 'f742c46f-a45b-5dd4-9d07-d180df4ac895')
    """
    if re.fullmatch(r"0|[1-9][0-9]{0,19}", id) and int(id) < 2**64:
        return int(id)
    return id if UUID_FORM.fullmatch(id) else str(uuid5(NAMESPACE_URL, id))


def document_ids(collection: Collection, points: Any) -> list[str]:
    """Return the ids of the documents of points; an id of ours stands for itself.

    Raises:
        InvalidRequest: no list, or one of something else than numbers and texts.
    """
    if not isinstance(points, list) or not all(type(point) in (int, str) for point in points):
        raise _unknown("A list of ids, numbers or texts,", points)
    texts = [str(point) for point in points]
    if not any(UUID_FORM.fullmatch(text) and text[UUID_VERSION] == "5" for text in texts):
        return texts
    # Such a UUID cannot be read back: its document is looked for among the ids of all.
    need_memory(SCANNED_BYTES * collection.store.counts()[0])
    by_point = {point_id(id): id for id in collection.ids()}
    return [by_point.get(text, text) for text in texts]


def _stored(sent: PointParts, page: Page) -> list[dict[str, Any]]:
    return [
        _point(sent, one.id, whole_text(one.fields), one.value, one.payload)
        for one in page.documents
    ]


def _answers(collection: Collection, queries: Sequence[PointQuery]) -> list[dict[str, Any]]:
    searches = [_search(collection, query) for query in queries]
    need_memory(working_size(base.parse(BatchRequest, {"searches": searches})))
    replies = []
    for sent, answer in zip(queries, collection.search_many(searches), strict=True):
        least = -1.0 if sent.score_threshold is None else sent.score_threshold
        scored = zip(answer.hits, answer.shares(), strict=True)
        points = [
            {**_point(sent, hit.id, hit.text, hit.value, hit.payload), "score": score}
            for hit, score in scored
            if score >= least
        ]
        replies.append({"points": [{**point, "version": answer.generation} for point in points]})
    return replies


def _search(collection: Collection, sent: PointQuery) -> SearchRequest:
    query, offset = sent.query, sent.offset or 0
    if isinstance(query, dict) and query.keys() == {"nearest"}:
        query = query["nearest"]
    if not isinstance(query, list):
        if type(query) not in (int, str):
            raise _unknown("A vector, a point's id, or one of them as 'nearest',", query, "query")
        query = {"id": document_ids(collection, [query])[0]}
    page = {"k": sent.limit, "offset": offset, "attend": max(100, sent.limit + offset)}
    shown = {"include": ["text"] if sent.with_payload else None}
    filter = _filter(collection, sent.filter)
    return base.parse(SearchRequest, {"query": query, "filter": filter, **page, **shown})


def _point(
    sent: PointParts, id: str, text: str | None, value: Json, payload: Mapping[str, Json]
) -> dict[str, Any]:
    # Qdrant's defaults: a search returns no payloads, and anything else does.
    parts = not isinstance(sent, PointQuery) if sent.with_payload is None else sent.with_payload
    if parts is False:
        return {"id": point_id(id)}
    added = {"text": text or None, "value": value}
    full = {**{name: it for name, it in added.items() if it is not None}, **payload, "_id": id}
    if isinstance(parts, list):
        parts = {"include": parts}
    if isinstance(parts, dict):
        full = only(full, parts["include"], {}) if "include" in parts else full
        full = _without(full, parts.get("exclude", ()))
    return {"id": point_id(id), "payload": full}


def _without(tree: Mapping[str, Json], paths: Sequence[str]) -> dict[str, Json]:
    """Return a payload without the fields that some paths lead to."""
    parts = {name: part for name, part in tree.items() if name not in paths}
    for name, part in parts.items():
        inner = [path[len(name) + 1 :] for path in paths if path.startswith(f"{name}.")]
        if inner and isinstance(part, Mapping):
            parts[name] = _without(part, inner)
    return parts


def _filter(collection: Collection, sent: Any) -> dict[str, Json] | None:
    """Return a filter of Qdrant's as one of ours; None where every document passes."""
    if sent is None:
        return None
    if not sent.keys() <= CLAUSES:
        raise _unknown("A filter of must, should and must_not", sent)
    clauses = {
        name: [_condition(collection, it) for it in (part if isinstance(part, list) else [part])]
        for name, part in sent.items()
        if part not in (None, [])  # which are no clauses
    }
    both: list[Json] = [*clauses.get("must", ())]
    if "should" in clauses:
        both.append({"$or": clauses["should"]})
    if "must_not" in clauses:
        both.append({"$not": {"$or": clauses["must_not"]}})
    return {"$and": both} if both else None


def _condition(collection: Collection, sent: Any) -> dict[str, Json]:
    """Return one condition, or a filter in the place of one, as a filter of ours."""
    rest = dict(sent) if isinstance(sent, Mapping) else {"": sent}
    if rest.keys() <= CLAUSES:
        return _filter(collection, rest) or {}
    key = rest.pop("key", None)
    kind, operand = rest.popitem() if len(rest) == 1 else ("", None)
    if kind == "has_id" and key is None:
        return {"@id": {"in": list(document_ids(collection, operand))}}
    if key is None and isinstance(operand, Mapping) and operand.keys() == {"key"}:
        key, operand = operand["key"], True  # is_empty and is_null
    elif kind == "match" and isinstance(operand, Mapping) and len(operand) == 1:
        word, operand = next(iter(operand.items()))
        kind = f"match.{word}"
    if kind not in ON_FIELD or not isinstance(key, str) or "[" in key.removesuffix("[]"):
        raise _unknown(f"A filter, has_id, or a key with {', '.join(ON_FIELD)}", sent)
    name = key.removesuffix("[]").removeprefix("value.")
    name = {"_id": "@id", "value": "@value"}.get(name, name)
    if kind == "match.text" and name == "text":
        return {"@text": {"match": operand}}
    parts: list[Json] = [{name: part} for part in ON_FIELD[kind](operand)]
    return {"$and" if kind == "match.text" else "$or": parts} if parts else {name: {"in": []}}


def _range(bounds: Any) -> list[Json]:
    if not isinstance(bounds, Mapping) or not bounds.keys() <= SIGNS:
        raise _unknown("A range of gt, gte, lt and lte", bounds)
    has_dates = any(isinstance(bound, str) for bound in bounds.values())
    return [{"date": bounds} if has_dates else bounds]


def _others(values: Any) -> Iterator[Json]:
    """Yield conditions of which an element meets one that is none of some texts and numbers."""
    if not isinstance(values, list) or not all(type(it) in (str, int, float) for it in values):
        raise _unknown("A list of texts or numbers", values)
    texts = sorted({value for value in values if isinstance(value, str)})
    numbers = sorted({value for value in values if not isinstance(value, str)})
    yield {"in": [True, False]}
    for excluded, everything in ((texts, [{"gte": ""}]), (numbers, [{"lt": 0}, {"gte": 0}])):
        if not excluded:
            yield from everything
            continue
        yield {"lt": excluded[0]}
        yield from ({"gt": low, "lt": high} for low, high in pairwise(excluded))
        yield {"gt": excluded[-1]}


ON_FIELD: Mapping[str, Callable[[Any], Iterable[Json]]] = {
    "match.value": lambda value: [{"eq": value}],
    "match.any": lambda values: [{"in": values}],
    "match.except": _others,
    "match.text": lambda text: [{"substring": it} for it in re.findall(r"[^\W_]+", str(text))],
    "match.prefix": lambda text: [{"prefix": text}],
    "range": _range,
    "is_empty": lambda is_so: [{"empty": is_so}],
    "is_null": lambda is_so: [{"exists": not is_so}],
}
"""By the kind of a condition, the conditions of ours of which a field meets one; for text, all."""


def _unknown(expected: str, sent: Any, field: str = "filter") -> InvalidRequest:
    shown = json.dumps(sent)[:80]
    return InvalidRequest(f"{expected} was expected, but {shown} was sent.", field=field)


def _reply(result: Any) -> QdrantReply:
    return QdrantReply(result, round(time.perf_counter() - g.began, 6))
