"""Read JSON bodies and query parameters as models of `attend.api`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypeVar

import orjson
from flask import request
from werkzeug.exceptions import BadRequest, UnsupportedMediaType

from attend.api.base import Request, parse
from attend.api.documents import ArrowDocuments
from attend.core.errors import InvalidRequest
from attend_service.security.limits import check_brackets, check_depth
from attend_service.security.memory import need_memory, parsed_size

Model = TypeVar("Model", bound=Request)

ARROW = "application/vnd.apache.arrow.stream"
"""The media type of a stream of Arrow's IPC format."""

ARROW_MEMORY = 4
"""Bytes that a byte of such a stream takes: as it is, as embeddings, and as they are stored."""


def read_body(model: type[Model], bare: str | None = None, *, single: bool = False) -> Model:
    """The request's body as a model.

    Args:
        bare: the field that a bare list stands for.
        single: whether one item, without that field, stands for a list of one.

    Raises:
        UnsupportedMediaType, BadRequest: no JSON, or not said to be.
        InvalidRequest: JSON that the model refuses; its details name every field.
    """
    content = _json_body()
    if isinstance(content, list) and bare is not None:
        content = {bare: content}
    elif single and isinstance(content, dict) and bare not in content and not _has_items(content):
        content = {bare: [content]}
    if not isinstance(content, dict):
        raise InvalidRequest(
            f"The body is {_kind(content)}, but an object {{…}} was expected.", field="body"
        )
    return parse(model, content, strict=True)


def read_arrow() -> ArrowDocuments:
    """The request's body as documents in Arrow's format."""
    from attend.api.arrow import stream_documents

    raw = request.get_data(cache=False)
    need_memory(ARROW_MEMORY * len(raw))
    return ArrowDocuments(stream_documents(raw))


def read_query(model: type[Model], *, form: bool = False) -> Model:
    """The query parameters as a model; lists and objects are written in them as JSON.

    Args:
        form: whether a browser's form may send them, whose empty fields say nothing.
    """
    values: dict[str, Any] = {}
    for name, texts in request.args.lists():
        texts = [text for text in texts if text or (not form and name in never_empty(model))]
        if len(texts) > 1:
            raise InvalidRequest(f"The parameter {name!r} was given twice; once is enough.")
        if texts:
            values[name] = _from_text(name, texts[0]) if name in structured(model) else texts[0]
    return parse(model, values)


@lru_cache
def structured(model: type[Request]) -> frozenset[str]:
    """The fields of a model that hold lists or objects, and that no plain text could be."""
    fields = model.model_json_schema()["properties"]
    return frozenset(name for name, schema in fields.items() if _is_structured(schema))


@lru_cache
def never_empty(model: type[Request]) -> frozenset[str]:
    """The fields of a model that are texts of a least length."""
    fields = model.model_json_schema()["properties"]
    return frozenset(
        name
        for name, schema in fields.items()
        if any("minLength" in option for option in schema.get("anyOf", [schema]))
    )


def _is_structured(schema: Mapping[str, Any]) -> bool:
    kinds = {option.get("type", "object") for option in schema.get("anyOf", [schema])}
    return bool(kinds & {"object", "array"}) and "string" not in kinds


def _has_items(content: Mapping[str, object]) -> bool:
    """Return true if an object holds a list of objects: it is no item, but has them, misnamed."""
    return any(
        isinstance(part, list) and bool(part) and isinstance(part[0], dict)
        for part in content.values()
    )


def _json_body() -> object:
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
    check_brackets(raw)
    need_memory(parsed_size(raw))
    try:
        content = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"The body is not JSON: {_fault(raw) or _place(error)}.") from None
    check_depth(content, raw)
    return content


def _fault(raw: bytes) -> str | None:
    """Return where a body is not UTF-8, which the parser does not say; None if it is."""
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        column = error.start - raw.rfind(b"\n", 0, error.start)
        return (
            f"the byte 0x{raw[error.start]:02x} at line {line}, byte {column} is not UTF-8; encode "
            f"the body as UTF-8"
        )
    return None


def _from_text(name: str, text: str) -> object:
    try:
        content = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(
            f"The parameter {name!r} is not JSON: {_place(error)}.", field=name
        ) from None
    check_depth(content, text.encode(), name)
    return content


def _place(error: orjson.JSONDecodeError) -> str:
    return f"{error.msg} at line {error.lineno}, column {error.colno}"


def _kind(content: object) -> str:
    return {list: "a list", str: "a text", type(None): "null", bool: "a truth value"}.get(
        type(content), "a number"
    )
