"""Operations: each declares its input and its answers once, for Flask and for OpenAPI.

What is sent is read here as a model of `attend.api`, and weighed: the figures of memory are those
of documents of a few kilobytes with embeddings of some 384 numbers. Larger documents are weighed
one by one as they are read, and a request whose documents weigh more than it was granted is run
again with more.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import lru_cache, reduce
from operator import or_
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import orjson
from flask import Response, request
from pydantic import ConfigDict
from werkzeug.exceptions import BadRequest, UnsupportedMediaType

from attend.api.base import MAX_ATTEND, Request, parse
from attend.api.documents import ListingRequest
from attend.api.feedback import FeedbackListing, InteractionListing
from attend.api.learning import CompareRequest
from attend.api.recommend import RecommendRequest
from attend.api.search import (
    AcrossRequest,
    BatchRequest,
    MapColumnsRequest,
    MapRequest,
    SearchOptions,
)
from attend.core.deadline import check_deadline, deadline, limits, until
from attend.core.errors import InvalidRequest, LimitExceeded, Replaced
from attend.core.settings import MAX_RERANK
from attend.search.values import KEY
from attend_service.context import Operation, View, context
from attend_service.replies import reply
from attend_service.security import resolved

Model = TypeVar("Model", bound=Request)

ARRIVED = "attend.arrived"
"""The moment at which a request was received, in its environment, by `time.monotonic`."""

DEADLINE = "attend.deadline"
"""The moment at which its client has an answer, whatever becomes of the work."""

GRANTED = "attend.memory"
"""The bytes of memory that a request was granted, in its environment."""

WORKING_SHARE, ANSWERED_SHARE = 0.9, 0.95
"""Shares of the deadline after which work stops, at its next check, and a client is answered at the
latest. The rest is for what lies between two checks, and for the answer's way."""

ARROW = "application/vnd.apache.arrow.stream"
"""The media type of a stream of Arrow's IPC format."""

ARROW_MEMORY = 4
"""Bytes that a byte of such a stream takes: as it is, as embeddings, and as they are stored."""

FREE_BRACKETS = 100_000
BYTES_PER_BRACKET = 32
"""Lists and objects in a JSON body, in all, and beyond that by its size. Each takes 150 bytes of
memory, however short its text."""

MAX_DEPTH = 64
"""Objects and lists within one another, in a body or a parameter: SQLite's JSON ends at 1,000, and
what walks such a tree in Python not far beyond."""

MAX_MEMORY = 512 * 1024 * 1024
"""Bytes that heavy requests work in at once; more wait."""

LEAST = MAX_MEMORY // 4
"""Bytes that a heavy request counts at least: no more than four work at once."""

LIGHT = 16 * 1024 * 1024
"""Bytes that any request may take without waiting."""

MAX_READ = 2 * MAX_MEMORY
"""Bytes of documents that one request may read: alone, it takes this for a moment."""

MAX_WAITING = 64
"""Requests that may wait for memory; so they leave places in the queue to others."""

MANY = 500
"""Documents in one list that make a request heavy."""

DOCUMENT_BYTES = 5_000
"""Of a document that is read, a hit with its explanation, or an entry of a history."""

KEY_BYTES = 50_000
"""Of an embedding as JSON, where hits or values are embeddings."""

WEIGHT_BYTES = 64
"""Of a document that is attended to, without reading it."""

COLUMN_BYTES = 1000
"""Of a document of a map in columns: its id, places and value, in Python and as JSON."""

TOKENS_BYTES = 500_000
"""Of the tokens of a passage."""

MATRIX_BYTES = 250_000_000
"""Of a matrix of as many cells as are sent."""

VALUE_BYTES = 250
"""Of a value in a JSON body, once it is parsed and validated."""


class ForeignRequest(Request):
    """Base of requests in others' forms, whose other fields (`user`, …) are passed over."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class NeedsMemory(BaseException):
    """A request takes more memory than it has been granted, and is to be run again once it has.

    No `Exception`: it passes through the application, which answers and logs nothing.

    Attributes:
        size: bytes, together with what was granted.
        deadline: of the request, by `time.monotonic`.
    """

    def __init__(self, size: int, deadline: float) -> None:
        super().__init__(size)
        self.size, self.deadline = size, deadline


def call(operation: Operation, **arguments: Any) -> Response:
    """Answer a request: read what was sent, and run the view within the deadline."""
    arrived = request.environ.get(ARRIVED) or time.monotonic()
    seconds = operation.patience * context().settings.deadline
    request.environ[DEADLINE] = arrived + ANSWERED_SHARE * seconds
    end = arrived + WORKING_SHARE * seconds
    granted = max(LIGHT, request.environ.get(GRANTED, MAX_MEMORY))
    # A write is never begun again with more memory: it may be stored.
    with until(end, math.inf if operation.writes else granted, need_to_read):
        if time.monotonic() > end:  # it waited for a thread as long
            check_deadline()
        if operation.arrow and request.mimetype == ARROW:
            from attend.api.arrow import stream_documents

            raw = request.get_data(cache=False)
            need_memory(ARROW_MEMORY * len(raw))
            arguments["body"] = stream_documents(raw)
        elif operation.body is not None:
            is_absent = operation.optional and not request.get_data()
            body = (
                parse(operation.body, {})
                if is_absent
                else read_body(operation.body, operation.bare, single=operation.single)
            )
            need_memory(working_size(body))
            arguments["body"] = body if operation.exact else _resolved(body)
        if operation.query is not None:
            query = read_query(operation.query, form=operation.html)
            need_memory(working_size(query))
            arguments["query"] = _resolved(query)
        try:
            answer = operation.view(**arguments)
        except Replaced:
            if operation.upload is not None:
                raise
            answer = operation.view(**arguments)  # by its name, which leads to the new one
        if answer is None:
            return Response(status=204)
        if isinstance(answer, Response):
            return answer
        return reply(*answer) if isinstance(answer, tuple) else reply(answer)


class Operations:
    """The operations of one subject."""

    def __init__(self, tag: str) -> None:
        self.tag = tag
        self.all: list[Operation] = []

    def add(
        self, method: str, path: str, *, statuses: tuple[int, ...] = (200,), **options: Any
    ) -> Callable[[View], View]:
        """Make a view an operation, whose annotations are the models of what it takes and returns.

        A view returns a reply, alone or with its status; None for nothing at all; or a response.

        Args:
            statuses: those with which it answers.
            options: fields of `Operation`, in the place of what follows from the annotations.
        """

        def added(view: View) -> View:
            hints = get_type_hints(view)
            body = _members(hints["body"]) if "body" in hints else [None]
            returned = _members(hints["return"])
            models = [
                get_args(kind)[0] if get_origin(kind) is tuple else kind
                for kind in returned
                if kind not in (NoneType, Response)
            ]
            answers: dict[int, Any] = dict.fromkeys(statuses, reduce(or_, models or [None]))
            if NoneType in returned:
                answers = {**(answers if models else {}), 204: None}
            declared = {
                "body": body[0],
                "arrow": len(body) > 1,
                "query": hints.get("query"),
                "returns": answers,
            }
            self.all.append(Operation(method, path, self.tag, view, **{**declared, **options}))
            return view

        return added


def read_body(model: type[Model], bare: str | None = None, *, single: bool = False) -> Model:
    """Read the request's body as a model.

    Args:
        bare: the field that a bare list stands for.
        single: whether one item, without that field, stands for a list of one.

    Raises:
        UnsupportedMediaType, BadRequest: no JSON, or not said to be.
        InvalidRequest: JSON that the model refuses; its details name every field.
    """
    if request.headers.get("Content-Encoding", "identity") != "identity":
        raise UnsupportedMediaType("The body is compressed; send it uncompressed.")
    raw = request.get_data(cache=False)
    if not raw:
        raise BadRequest("The body is empty; send a JSON object, {} for defaults.")
    if not request.is_json:
        raise UnsupportedMediaType(
            f"The body is sent as {request.mimetype or 'nothing in particular'}; send JSON, with "
            f"the header 'Content-Type: application/json'."
        )
    try:
        content = parse_json(raw)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"The body is not JSON: {_fault(raw, error)}.") from None
    if isinstance(content, list) and bare is not None:
        content = {bare: content}
    elif single and isinstance(content, dict) and bare not in content:
        lists = [part for part in content.values() if isinstance(part, list) and part]
        if not any(isinstance(part[0], dict) for part in lists):  # else it has items, misnamed
            content = {bare: [content]}
    if not isinstance(content, dict):
        kinds = {list: "a list", str: "a text", type(None): "null", bool: "a truth value"}
        kind = kinds.get(type(content), "a number")
        raise InvalidRequest(f"The body is {kind}, but an object {{…}} was expected.", field="body")
    return parse(model, content, strict=True)


def read_query(model: type[Model], *, form: bool = False) -> Model:
    """Read the query parameters as a model; lists and objects are written in them as JSON.

    Args:
        form: whether a browser's form may send them, whose empty fields say nothing.
    """
    values: dict[str, Any] = {}
    for name, texts in request.args.lists():
        texts = [text for text in texts if text or (not form and name in never_empty(model))]
        if len(texts) > 1:
            raise InvalidRequest(f"The parameter {name!r} was given twice; once is enough.")
        if texts:
            values[name] = texts[0]
        if texts and name in structured(model):
            try:
                values[name] = parse_json(texts[0].encode(), name)
            except orjson.JSONDecodeError as error:
                raise InvalidRequest(
                    f"The parameter {name!r} is not JSON: {_place(error)}.", field=name
                ) from None
    return parse(model, values)


def parse_json(text: bytes, field: str = "body") -> object:
    """Parse JSON, which may be neither crowded nor deep.

    Raises:
        InvalidRequest: it would take much memory for its size, or is nested more than `MAX_DEPTH`
            deep.
        NeedsMemory: it takes more memory than the request was granted.
        orjson.JSONDecodeError: it is no JSON.
    """
    brackets = text.count(b"[") + text.count(b"{")
    limit = max(FREE_BRACKETS, len(text) // BYTES_PER_BRACKET)
    if brackets > limit:
        raise InvalidRequest(
            f"The JSON has {brackets:,} lists and objects, but at most {limit:,} are read in a "
            f"body of this size; send less at once.",
            field=field,
        )
    need_memory(VALUE_BYTES * (brackets + text.count(b",")))
    content: object = orjson.loads(text)
    # A text with few brackets cannot be deep, and most requests cost no more than the count.
    kinds, depth = {list, dict}, 0
    level: list[Any] = [content] if brackets > MAX_DEPTH and type(content) in kinds else []
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise InvalidRequest(
                f"The JSON is nested more than {MAX_DEPTH} deep; send it flatter.", field=field
            )
        parts = [list(node.values()) if isinstance(node, dict) else node for node in level]
        # Most content is vectors: their numbers are skipped without a line of Python each.
        parts = [part for part in parts if not kinds.isdisjoint(map(type, part))]
        level = [node for part in parts for node in part if type(node) in kinds]
    return content


@lru_cache
def structured(model: type[Request]) -> frozenset[str]:
    """Return the fields of a model that hold lists or objects, and that no text could be."""
    names = set()
    for name, schema in model.model_json_schema()["properties"].items():
        kinds = {option.get("type", "object") for option in schema.get("anyOf", [schema])}
        if kinds & {"object", "array"} and "string" not in kinds:
            names.add(name)
    return frozenset(names)


@lru_cache
def never_empty(model: type[Request]) -> frozenset[str]:
    """Return the fields of a model that are texts of a least length."""
    fields = model.model_json_schema()["properties"]
    return frozenset(
        name
        for name, schema in fields.items()
        if any("minLength" in option for option in schema.get("anyOf", [schema]))
    )


def _fault(raw: bytes, error: orjson.JSONDecodeError) -> str:
    """Return why a body is no JSON; the parser does not say where it is not UTF-8."""
    try:
        raw.decode()
    except UnicodeDecodeError as wrong:
        line = raw.count(b"\n", 0, wrong.start) + 1
        column = wrong.start - raw.rfind(b"\n", 0, wrong.start)
        return (
            f"the byte 0x{raw[wrong.start]:02x} at line {line}, byte {column} is not UTF-8; encode "
            f"the body as UTF-8"
        )
    return _place(error)


def _place(error: orjson.JSONDecodeError) -> str:
    return f"{error.msg} at line {error.lineno}, column {error.colno}"


def _members(annotation: Any) -> list[Any]:
    return list(get_args(annotation)) if isinstance(annotation, UnionType) else [annotation]


def _resolved(sent: Request) -> Request:
    """Return a body or parameters with collections in the place of aliases, once checked."""
    names: dict[str, Any] = {}
    if isinstance(several := getattr(sent, "collections", None), list):
        names["collections"] = [resolved(name) for name in several]
    if isinstance(one := getattr(sent, "collection", None), str):
        names["collection"] = resolved(one)
    same = all(getattr(sent, field) == name for field, name in names.items())
    return sent if same else sent.model_copy(update=names)


def need_memory(size: int) -> None:
    """Raise NeedsMemory where the request takes more than it may without waiting."""
    if size <= LIGHT:
        return
    granted = request.environ.get(GRANTED)  # absent where there is no gateway
    if granted is not None and max(size, LEAST) > granted:
        raise NeedsMemory(max(size, LEAST), deadline())


def need_to_read(size: int) -> None:
    """Raise NeedsMemory for a request whose documents take more than it was granted.

    Raises:
        LimitExceeded: they take more than any request is granted.
    """
    if limits.most < MAX_MEMORY:
        raise NeedsMemory(min(max(4 * int(limits.most), LEAST), MAX_MEMORY), deadline())
    if size > MAX_READ:
        raise LimitExceeded(
            f"The documents that the request reads take more than {MAX_READ:,} bytes, the most "
            f"that one may take; ask for fewer at once: k, limit or attend."
        )


def working_size(sent: Request) -> int:
    """Return the bytes that it takes to answer a request, apart from its body."""
    match sent:
        case BatchRequest():
            matrix = MATRIX_BYTES if sent.matrix else 0
            tokens = max(map(_tokens_size, sent.searches), default=0)
            return matrix + tokens + sum(map(_search_size, sent.searches))
        case AcrossRequest():
            return _search_size(sent) * len(sent.collections) + _tokens_size(sent)
        case SearchOptions(rerank=0, explain=bool()):
            return _search_size(sent)
        case SearchOptions():
            return _search_size(sent) + _tokens_size(sent)
        case RecommendRequest():
            items = (sent.history, sent.positive, sent.negative, sent.facts, sent.target or ())
            return _listed_size(sent.k) + DOCUMENT_BYTES * sum(map(len, items))
        case MapRequest(method="tsne" | "umap"):
            return MAX_MEMORY  # nothing interrupts it, and it is soonest done alone
        case MapColumnsRequest():
            return COLUMN_BYTES * sent.limit
        case MapRequest() | ListingRequest() | FeedbackListing() | InteractionListing():
            return _listed_size(sent.limit)
        case CompareRequest():
            return LEAST
    return 0


def _search_size(search: SearchOptions) -> int:
    weighed = 0 if search.attend == "all" else search.attend  # of all only the best are kept
    reads_all = search.group_by is not None or (search.mode == "soft" and weighed > 0)
    count = MAX_ATTEND if search.attend == "all" else search.attend
    size = KEY_BYTES if search.value == KEY else DOCUMENT_BYTES
    read = size * count if reads_all else 0
    listed = search.k if search.coverage is None else search.most
    return WEIGHT_BYTES * weighed + read + _listed_size(listed, size)


def _tokens_size(search: SearchOptions) -> int:
    """Return the bytes of the tokens of one search; the searches of a batch take turns."""
    compared = search.rerank + (search.most if search.explain == "tokens" else 0)
    return TOKENS_BYTES * min(compared, MAX_RERANK)


def _listed_size(documents: int, size: int = DOCUMENT_BYTES) -> int:
    return max(size * documents, LEAST if documents > MANY else 0)
