"""Selection of a document's contents: what a path names, parts of a payload, a display title."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from attend.core.types import Json

TITLES = ("title", "name", "headline", "question")
"""Fields that are titles where they are texts, the likeliest first."""

LONGEST_TITLE = 120
"""Characters; of a longer text only the beginning is a title."""

ID, VALUE = "@id", "@value"
"""The paths that name a document's id and its value; no field of a payload has these names."""


def select(
    path: str | None,
    document_id: str,
    value: Json,
    payload: Mapping[str, Json],
    fields: Mapping[str, str],
) -> Json:
    """Return what `path` names in one document, or None where the document has no such thing.

    No path, or `@value`, is the document's value, and `@id` its id. Any other is looked up in the
    value (if that is an object), then in the payload, then in the text fields; dots
    lead into objects, and a key that itself has dots in it is found as it is written.

    >>> select("price.eur", "d1", {"name": "tea"}, {"price": {"eur": 3}}, {"title": "Tea"})
    3
    """
    if path is None or path == VALUE:
        return value
    if path == ID:
        return document_id
    for tree in (value, payload, fields):
        item = _follow(tree, path)
        if item is not None:
            return item
    return None


def _follow(tree: Json, path: str) -> Json:
    if not isinstance(tree, Mapping):
        return None
    if path in tree:
        return tree[path]
    head, dot, rest = path.partition(".")
    return _follow(tree.get(head), rest) if dot else None


def only(
    payload: Mapping[str, Json], paths: Iterable[str], texts: Mapping[str, str]
) -> dict[str, Json]:
    """Return the parts of a payload that paths lead to, where they were; leave out the missing.

    A path that the payload does not have may name a text field.

    >>> only({"title": "Tea", "price": {"eur": 3, "usd": 4}}, ["price.eur", "year"], {})
    {'price': {'eur': 3}}
    >>> only({"title": "Tea"}, ["title", "text"], {"text": "Leaves in hot water."})
    {'title': 'Tea', 'text': 'Leaves in hot water.'}
    """
    parts: dict[str, Json] = {}
    for path in paths:
        _keep(parts, payload, path)
        if path in texts and path not in parts:
            parts[path] = texts[path]
    return parts


def whole_text(fields: Mapping[str, str]) -> str:
    """Return all texts of a document as one, field after field.

    >>> whole_text({"title": "Tea", "text": "Leaves in hot water."})
    'Tea\\n\\nLeaves in hot water.'
    """
    return "\n\n".join(fields.values())


def _keep(parts: dict[str, Any], tree: Mapping[str, Json], path: str) -> None:
    if path in tree:
        parts[path] = tree[path]
        return
    head, dot, rest = path.partition(".")
    inner = tree.get(head)
    if not dot or not isinstance(inner, Mapping) or parts.get(head) is inner:
        return
    below: dict[str, Any] = dict(parts.get(head, {}))
    _keep(below, inner, rest)
    if below:
        parts[head] = below


def display_title(
    document_id: str, fields: Mapping[str, str], value: Json, payload: Mapping[str, Json]
) -> str:
    """Return a title of payload, value or texts, else the first line of a text, else the id.

    >>> display_title("a", {"text": "Call me Ishmael. Some years ago"}, None, {})
    'Call me Ishmael. Some years ago'
    >>> display_title("a", {"name": "Moby-Dick"}, 9.5, {"year": 1851})
    'Moby-Dick'
    >>> display_title("a", {}, 9.5, {})
    'a'
    """
    objects = [place for place in (payload, value, fields) if isinstance(place, dict)]
    named = [place.get(name) for name in TITLES for place in objects]
    texts = [*named, *fields.values()]
    title = next((t for t in texts if isinstance(t, str) and t.strip()), document_id)
    line = next(iter(title.strip().splitlines()), title)  # an id may be blank
    return line if len(line) <= LONGEST_TITLE else f"{line[: LONGEST_TITLE - 1].rstrip()}…"


def merged(target: Json, patch: Mapping[str, Json]) -> dict[str, Json]:
    """Apply a JSON merge patch (RFC 7396) to an object, and return the result; `target` stays.

    >>> merged({"year": 1851, "shelf": {"room": 2, "row": 7}}, {"shelf": {"row": None}, "new": 1})
    {'year': 1851, 'shelf': {'room': 2}, 'new': 1}
    """
    result = dict(target) if isinstance(target, Mapping) else {}
    for name, change in patch.items():
        if change is None:
            result.pop(name, None)
        elif isinstance(change, Mapping):
            result[name] = merged(result.get(name), change)
        else:
            result[name] = change
    return result
