"""The OpenAPI 3.1 document of the operations, from their models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import UnionType
from typing import Any, get_args

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from attend import __version__
from attend.api.answers import VALUE_KEYS
from attend.api.base import MAX_ROW, NAME_PATTERN, Reply, Request
from attend_service.context import Operation
from attend_service.operations import ARROW, structured
from attend_service.replies import (
    HTML,
    JSON,
    KINDS,
    MULTIPART,
    PROBLEM,
    QDRANT,
    TAR,
    Kind,
    ProblemDetails,
    QdrantError,
)

SCHEMAS = "#/components/schemas/"
NAME = {"type": "string", "pattern": NAME_PATTERN}
NUMBER = {"type": "integer", "minimum": 0, "maximum": MAX_ROW}
ID = {"type": "string", "minLength": 1}
PATH_PARAMETERS: Mapping[str, Mapping[str, Any]] = {
    "collection": {"description": "The name of a collection.", "schema": NAME, "example": "books"},
    "alias": {"description": "Another name of a collection.", "schema": NAME, "example": "shelf"},
    "id": {
        "description": "The id of a document; it may contain slashes.",
        "schema": ID,
        "example": "moby-dick",
    },
    "version": {"description": "The version of a projection.", "schema": NUMBER, "example": 1},
    "file": {
        "description": "The id of an uploaded file.",
        "schema": ID,
        "example": "file-1",
    },
    "batch": {
        "description": "The id of a batch of files.",
        "schema": ID,
        "example": "vsfb_1_1700000000",
    },
    "job": {"description": "The number of a job.", "schema": NUMBER, "example": 1},
}
NULL, TEXT = {"type": "null"}, {"type": "string"}
SURE = {"object": "fields", "nothing": "reason"}
"""By the type of an answer, the key that is never null."""
BINARY = {"type": "string", "format": "binary"}
FORM = {
    "type": "object",
    "properties": {"file": BINARY, "purpose": {"type": "string", "default": "assistants"}},
    "required": ["file"],
}
"""What an uploaded file is sent as."""
MEANINGS = {
    200: "Done.",
    201: "Created.",
    202: "Accepted; the job runs.",
    204: "Done; no content.",
    503: "Not ready.",
}
SECURITY = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "An API key."},
    "header": {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
    "qdrant": {"type": "apiKey", "in": "header", "name": "Api-Key"},
}
HEADERS = {
    401: ("WWW-Authenticate", "The way to send a key.", "string"),
    202: ("Location", "The job's address.", "string"),
    429: ("Retry-After", "Seconds after which to retry.", "integer"),
}


class Untitled(GenerateJsonSchema):
    """Writes schemas without a title for each field, which would only repeat its name."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def document(operations: Iterable[Operation]) -> dict[str, Any]:
    """Return the whole document, as plain data."""
    paths: dict[str, dict[str, Any]] = {}
    listed = list(operations)
    for operation in listed:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation)
    models: dict[Any, None] = {ProblemDetails: None, QdrantError: None}
    for operation in listed:
        used = (operation.body, operation.query, *operation.returns.values())
        models |= dict.fromkeys(model for model in used if model is not None)
    _, schemas = TypeAdapter.json_schemas(
        [(model, "validation", TypeAdapter(model)) for model in models],
        ref_template=SCHEMAS + "{model}",
        schema_generator=Untitled,
    )
    schemas["$defs"] |= _value_answers(schemas["$defs"]["ValueAnswer"])
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Attend",
            "version": __version__,
            "description": "A database as an attention layer: a query attends to documents, and "
            "the answer is the best of them or the blend of their values.",
        },
        "tags": [{"name": tag} for tag in dict.fromkeys(operation.tag for operation in listed)],
        "paths": paths,
        "components": {
            "schemas": dict(schemas["$defs"]),
            "responses": {kind.slug: _problem(kind) for kind in KINDS},
            "securitySchemes": SECURITY,
        },
        # The first: a server without keys asks for none.
        "security": [{}, *({name: []} for name in SECURITY)],
    }


def _value_answers(whole: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of an answer's value as a union by its type, and those of its members."""
    members: dict[str, Any] = {}
    fields = whole["properties"]
    for kind, keys in VALUE_KEYS.items():
        absent = dict.fromkeys(fields.keys() - {"type", "coverage", *keys}, NULL)
        properties: dict[str, Any] = {**fields, **absent, "type": {**TEXT, "const": kind}}
        if "value" in keys and kind != "mixed":
            value = {"type": "boolean"} if kind == "boolean" else TEXT
            properties["value"] = {**fields["value"], "anyOf": [value, NULL]}
        if kind in SURE:  # the others are null where no document has a value
            properties[SURE[kind]] = fields[SURE[kind]]["anyOf"][0]
        name = f"{kind.capitalize()}Answer"
        about = f"A `ValueAnswer` of the type {kind}."
        members[name] = {**whole, "title": name, "description": about, "properties": properties}
    places = {kind: SCHEMAS + name for kind, name in zip(VALUE_KEYS, members, strict=True)}
    union = {
        "description": whole["description"],
        "oneOf": [{"$ref": place} for place in places.values()],
        "discriminator": {"propertyName": "type", "mapping": places},
    }
    return {"ValueAnswer": union, **members}


def _operation(operation: Operation) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.name,
        "tags": [operation.tag],
        "summary": operation.summary,
    }
    if operation.description:
        described["description"] = operation.description
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, **PATH_PARAMETERS[name]}
        for name in operation.parameters
    ]
    if operation.query is not None:
        for name, schema in _fields(operation.query).items():
            shown = {key: schema[key] for key in ("description",) if key in schema}
            # OpenAPI's ways to say that a parameter's text is JSON, or names with commas.
            as_json = name in structured(operation.query)
            kind: dict[str, Any] = {"schema": schema}
            if as_json:
                kind = {"content": {JSON: kind}}
            elif any("items" in option for option in schema.get("anyOf", ())):
                kind["explode"] = False
            parameters.append({"name": name, "in": "query", **shown, **kind})
    if parameters:
        described["parameters"] = parameters
    if operation.body is not None:
        described["requestBody"] = _body(operation, operation.body)
    elif operation.upload is not None:
        form = operation.upload == MULTIPART
        content: dict[str, Any] = {operation.upload: {"schema": FORM if form else BINARY}}
        described["requestBody"] = {"required": True, "content": content}
    responses: dict[str, Any] = {
        str(status): _response(status, model, operation)
        for status, model in operation.returns.items()
    }
    for status in {*operation.errors} - {*operation.returns}:
        responses[str(status)] = _refusal(operation, status)
    described["responses"] = dict(sorted(responses.items()))
    if operation.need == "open":
        return {**described, "security": []}
    return {**described, "x-scope": operation.need}


def _refusal(operation: Operation, status: int) -> dict[str, Any]:
    problem = next(kind for kind in KINDS if kind.status == status)
    if not operation.path.startswith(QDRANT):
        return {"$ref": f"#/components/responses/{problem.slug}"}
    return _described(status, f"{problem.title}.", {JSON: {"schema": reference(QdrantError)}})


def _fields(model: type[Request]) -> dict[str, Any]:
    schema = model.model_json_schema(ref_template=SCHEMAS + "{model}", schema_generator=Untitled)
    fields: dict[str, Any] = schema["properties"]
    return fields


def _body(operation: Operation, model: type[Request]) -> dict[str, Any]:
    schema: dict[str, Any] = reference(model)
    if operation.bare is not None:
        listed = _fields(model)[operation.bare]
        schema = {"anyOf": [schema, listed, *([listed["items"]] if operation.single else [])]}
    content: dict[str, Any] = {"schema": schema}
    if operation.example is not None:
        content["example"] = operation.example
    media = {JSON: content, **({ARROW: {"schema": BINARY}} if operation.arrow else {})}
    return {"required": not operation.optional, "content": media}


def _response(
    status: int, model: type[Reply] | UnionType | None, operation: Operation
) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if model is not None:
        content[JSON] = {"schema": reference(model)}
        if operation.answer is not None:
            content[JSON]["example"] = operation.answer
    elif status == 200 and not operation.html:
        schema = {"type": "object" if operation.media is None else "string"}
        content[operation.media or JSON] = {"schema": BINARY if operation.media == TAR else schema}
    if operation.html:
        content[HTML] = {"schema": {"type": "string"}}
    return _described(status, MEANINGS[status], content)


def _described(status: int, meaning: str, content: Mapping[str, Any]) -> dict[str, Any]:
    described: dict[str, Any] = {"description": meaning}
    if status in HEADERS:
        name, description, kind = HEADERS[status]
        described["headers"] = {name: {"description": description, "schema": {"type": kind}}}
    return described | ({"content": content} if content else {})


def _problem(kind: Kind) -> dict[str, Any]:
    """Return the response of a kind of problem, with an example."""
    detail = "A sentence that names the wrong value and the remedy."
    example = {
        "type": kind.type,
        "title": kind.title,
        "status": kind.status,
        "detail": detail,
        "instance": "/v1/collections/books",
    }
    content = {PROBLEM: {"schema": reference(ProblemDetails), "example": example}}
    return _described(kind.status, f"{kind.title}.", content)


def reference(model: type | UnionType) -> dict[str, Any]:
    """Return the schema of a model as a reference into the document."""
    if isinstance(model, UnionType):
        return {"anyOf": [reference(member) for member in get_args(model)]}
    return {"$ref": SCHEMAS + model.__name__}
