"""Changing what a stored document returns, without a look at its keys."""

from __future__ import annotations

from collections.abc import Mapping

from attend.api.documents import UpdateRequest
from attend.store import StoredDocument
from attend.types import Json


def revised(stored: StoredDocument, revision: UpdateRequest) -> StoredDocument:
    """The document with a new value, a merged payload, or both."""
    fields = revision.model_fields_set
    return stored._replace(
        value=revision.value if "value" in fields else stored.value,
        payload=merged(stored.payload, revision.payload),
    )


def merged(target: Json, patch: Mapping[str, Json]) -> dict[str, Json]:
    """A JSON merge patch (RFC 7396) of an object; `target` stays as it is.

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
