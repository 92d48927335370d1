"""The parts of the reference that are made from the code, as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from attend.api.documents import CollectionSettings
from attend.api.recommend import RecommendRequest
from attend.api.search import SearchRequest
from attend_service import openapi
from attend_service.routes import all_operations
from attend_service.settings import ServerSettings, flag_of, variable_of

PREFIX = "#/components/schemas/"


def http() -> str:
    """Return a section for each operation, and one for each object that they take or give."""
    document = openapi.document(all_operations())
    tags = [tag["name"] for tag in document["tags"]]
    parts = []
    for tag in tags:
        parts.append(f"## {tag.capitalize()}\n")
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                if tag in operation["tags"]:
                    parts.append(_operation(method.upper(), path, operation))
    parts.append("## Objects\n")
    for name, schema in sorted(document["components"]["schemas"].items()):
        parts.append(_object(name, schema))
    return "\n".join(parts)


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> str:
    lines = [f"### `{method} {path}`\n", operation["summary"] + "\n"]
    if "description" in operation:
        lines.append(operation["description"] + "\n")
    scope = operation.get("x-scope")
    needs = f"a key with the scope `{scope}`, where there are keys" if scope else "no key"
    lines.append(f"Needs {needs}.\n")
    if rows := list(_parameters(operation)):
        lines.append(_table(("parameter", "in", "type", "meaning"), rows))
    if "requestBody" in operation:
        for media, content in operation["requestBody"]["content"].items():
            lines.append(f"Body (`{media}`): {_type(content['schema'])}.\n")
    replies = operation["responses"].items()
    answers = [(status, _answer(reply)) for status, reply in replies if "$ref" not in reply]
    lines.append(_table(("status", "answer"), answers))
    problems = [status for status, reply in replies if "$ref" in reply]
    if problems:
        lines.append(f"Problems: {', '.join(problems)}.\n")
    return "\n".join(lines)


def _parameters(operation: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for parameter in operation.get("parameters", ()):
        schema = parameter.get("schema") or next(iter(parameter["content"].values()))["schema"]
        description = parameter.get("description", "")
        yield f"`{parameter['name']}`", parameter["in"], _type(schema), description


def _answer(reply: Mapping[str, Any]) -> str:
    contents = reply.get("content", {}).items()
    schemas = [f"`{media}` {_type(content['schema'])}" for media, content in contents]
    return "; ".join(schemas) or reply["description"]


def _object(name: str, schema: Mapping[str, Any]) -> str:
    lines = [f"### {name}\n"]
    if "description" in schema:
        lines.append(" ".join(schema["description"].split()) + "\n")
    if "properties" not in schema:
        lines.append(f"{_type(schema)}\n")
        return "\n".join(lines)
    required = schema.get("required", ())
    rows = [
        (
            f"`{field}`" + (" (required)" if field in required else ""),
            _type(details),
            f"`{_json(details['default'])}`" if details.get("default") is not None else "",
            details.get("description", ""),
        )
        for field, details in schema["properties"].items()
    ]
    lines.append(_table(("field", "type", "default", "meaning"), rows))
    return "\n".join(lines)


def _type(schema: Mapping[str, Any]) -> str:
    """Return a schema in words, with links to the objects that have a section."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix(PREFIX)
        return f"[{name}](#{name.lower()})"
    for several in ("anyOf", "oneOf", "allOf"):
        if several in schema:
            return " or ".join(dict.fromkeys(map(_type, schema[several])))
    if "enum" in schema:
        return " or ".join(f"`{_json(choice)}`" for choice in schema["enum"])
    if "const" in schema:
        return f"`{_json(schema['const'])}`"
    kind = schema.get("type", "anything")
    if kind == "array":
        return f"list of {_type(schema.get('items', {}))}"
    words = {"null": "null", "integer": "integer", "boolean": "true or false", "string": "text"}
    bounds = [
        f"{sign} {schema[key]:g}"
        for key, sign in _BOUNDS.items()
        if key in schema and abs(schema[key]) < 2**62
    ]
    return words.get(kind, str(kind)) + (f" {', '.join(bounds)}" if bounds else "")


_BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


def settings() -> str:
    """Return the settings of a server, of a collection, of a search and of a recommendation."""
    rows = [
        (f"`{flag_of(name)}`", f"`{variable_of(name)}`", _default(field), field.description or "")
        for name, field in ServerSettings.model_fields.items()
    ]
    parts = [
        "## The server\n",
        "In the file a setting has the name of its flag without the dashes.\n",
        _table(("flag", "environment", "default", "meaning"), rows),
    ]
    models: Mapping[str, type[BaseModel]] = {
        "A collection": CollectionSettings,
        "A search": SearchRequest,
        "A recommendation": RecommendRequest,
    }
    for title, model in models.items():
        rows = [
            (f"`{name}`", _default(field), field.description or "")
            for name, field in model.model_fields.items()
        ]
        parts += [f"## {title}\n", _table(("field", "default", "meaning"), rows)]
    return "\n".join(parts)


def _default(field: Any) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    return "" if value in (None, (), []) else f"`{_json(value)}`"


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    cells = [[" ".join(str(cell).split()).replace("|", r"\|") for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells) + "\n"


def _json(value: object) -> str:
    words = {True: "true", False: "false", None: "null"}
    return words.get(value, str(value)) if isinstance(value, bool | None) else str(value)


GENERATED: Mapping[str, Callable[[], str]] = {
    "reference/http": http,
    "reference/settings": settings,
}
"""What makes the text of a page that has `<!-- generated -->`, by the page."""
