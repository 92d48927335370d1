"""The OpenAPI 3.1 document of the operations, from their models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import UnionType
from typing import Any, get_args

from pydantic import TypeAdapter

from attend import __version__
from attend.api.base import MAX_ROW, NAME_PATTERN, Reply, Request
from attend_service.bodies import ARROW, structured
from attend_service.operations import Operation
from attend_service.problems import KINDS, ProblemDetails
from attend_service.replies import HTML, JSON, PROBLEM, TAR

SCHEMAS = "#/components/schemas/"
PATH_PARAMETERS: Mapping[str, Mapping[str, Any]] = {
    "collection": {
        "description": "The name of a collection.",
        "schema": {"type": "string", "pattern": NAME_PATTERN},
        "example": "books",
    },
    "alias": {
        "description": "Another name of a collection.",
        "schema": {"type": "string", "pattern": NAME_PATTERN},
        "example": "shelf",
    },
    "id": {
        "description": "The id of a document; it may contain slashes.",
        "schema": {"type": "string", "minLength": 1},
        "example": "moby-dick",
    },
    "version": {
        "description": "The version of a projection.",
        "schema": {"type": "integer", "minimum": 0, "maximum": MAX_ROW},
        "example": 1,
    },
    "job": {
        "description": "The number of a job.",
        "schema": {"type": "integer", "minimum": 0, "maximum": MAX_ROW},
        "example": 1,
    },
}
BINARY = {"type": "string", "format": "binary"}
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
}
HEADERS = {
    401: {
        "WWW-Authenticate": {
            "description": "The way to send a key.",
            "schema": {"type": "string"},
        }
    },
    202: {"Location": {"description": "The job's address.", "schema": {"type": "string"}}},
    429: {
        "Retry-After": {
            "description": "Seconds after which to retry.",
            "schema": {"type": "integer"},
        }
    },
}


def document(operations: Iterable[Operation]) -> dict[str, Any]:
    """Return the whole document, as plain data."""
    paths: dict[str, dict[str, Any]] = {}
    listed = list(operations)
    for operation in listed:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation)
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
            "schemas": _schemas(listed),
            "responses": _problems(),
            "securitySchemes": SECURITY,
        },
        # The first: a server without keys asks for none.
        "security": [{}, *({name: []} for name in SECURITY)],
    }


def _operation(operation: Operation) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.name,
        "tags": [operation.tag],
        "summary": operation.summary,
    }
    if operation.description:
        described["description"] = operation.description
    parameters = [_path_parameter(name) for name in operation.parameters]
    if operation.query is not None:
        parameters += _query_parameters(operation.query)
    if parameters:
        described["parameters"] = parameters
    if operation.body is not None:
        described["requestBody"] = _body(operation)
    elif operation.upload is not None:
        content: dict[str, Any] = {operation.upload: {"schema": BINARY}}
        described["requestBody"] = {"required": True, "content": content}
    described["responses"] = _responses(operation)
    if operation.need == "open":
        described["security"] = []
    else:
        described["x-scope"] = operation.need
    return described


def _path_parameter(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, **PATH_PARAMETERS[name]}


def _query_parameters(model: type[Request]) -> list[dict[str, Any]]:
    schemas = model.model_json_schema(ref_template=SCHEMAS + "{model}")["properties"]
    parameters = []
    for name, schema in schemas.items():
        shown: dict[str, Any] = {"name": name, "in": "query"}
        if "description" in schema:
            shown["description"] = schema["description"]
        # OpenAPI's way to say that a parameter's text is JSON.
        as_json = name in structured(model)
        shown |= {"content": {JSON: {"schema": schema}}} if as_json else {"schema": schema}
        parameters.append(shown)
    return parameters


def _body(operation: Operation) -> dict[str, Any]:
    assert operation.body is not None
    schema: dict[str, Any] = _reference(operation.body)
    if operation.bare is not None:
        fields = operation.body.model_json_schema(ref_template=SCHEMAS + "{model}")["properties"]
        listed = fields[operation.bare]
        schema = {"anyOf": [schema, listed, *([listed["items"]] if operation.single else [])]}
    content: dict[str, Any] = {"schema": schema}
    if operation.example is not None:
        content["example"] = operation.example
    media = {JSON: content}
    if operation.arrow:
        media[ARROW] = {"schema": BINARY}
    return {"required": True, "content": media}


def _responses(operation: Operation) -> dict[str, Any]:
    responses = {
        str(status): _response(status, model, operation)
        for status, model in operation.returns.items()
    }
    problems = {str(status): _problem_reference(status) for status in operation.errors}
    return dict(sorted((problems | responses).items()))


def _response(
    status: int, model: type[Reply] | UnionType | None, operation: Operation
) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if model is not None:
        content[JSON] = {"schema": _reference(model)}
    elif status == 200 and not operation.html:
        schema = {"type": "object" if operation.media is None else "string"}
        content[operation.media or JSON] = {"schema": BINARY if operation.media == TAR else schema}
    if operation.html:
        content[HTML] = {"schema": {"type": "string"}}
    described: dict[str, Any] = {"description": MEANINGS[status], **_headers(status)}
    return described | ({"content": content} if content else {})


def _problem_reference(status: int) -> dict[str, str]:
    slug = next(kind.slug for kind in KINDS if kind.status == status)
    return {"$ref": f"#/components/responses/{slug}"}


def _problems() -> dict[str, Any]:
    """A response for each kind of problem, with an example."""
    return {
        kind.slug: {
            "description": f"{kind.title}.",
            **_headers(kind.status),
            "content": {
                PROBLEM: {
                    "schema": _reference(ProblemDetails),
                    "example": {
                        "type": kind.type,
                        "title": kind.title,
                        "status": kind.status,
                        "detail": "A sentence that names the wrong value and the remedy.",
                        "instance": "/v1/collections/books",
                    },
                }
            },
        }
        for kind in KINDS
    }


def _headers(status: int) -> dict[str, Any]:
    return {"headers": HEADERS[status]} if status in HEADERS else {}


def _schemas(operations: Sequence[Operation]) -> dict[str, Any]:
    models: dict[Any, None] = {ProblemDetails: None}
    for operation in operations:
        sent = [operation.body, operation.query]
        answered = operation.returns.values()
        models |= dict.fromkeys(model for model in (*sent, *answered) if model is not None)
    _, schemas = TypeAdapter.json_schemas(
        [(model, "validation", TypeAdapter(model)) for model in models],
        ref_template=SCHEMAS + "{model}",
    )
    return dict(schemas["$defs"])


def _reference(model: type | UnionType) -> dict[str, Any]:
    if isinstance(model, UnionType):
        return {"anyOf": [_reference(member) for member in get_args(model)]}
    return {"$ref": SCHEMAS + model.__name__}
