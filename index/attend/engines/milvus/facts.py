"""What filters ask of a document, laid out so that each field is looked up in one step.

`{"a": {"b": 1}, "tags": ["x", "y"]}` is `{"a": [], "a.b": [1], "tags": ["x", "y"]}`: by the name
that a filter may give a field, the elements that it may compare. A field that is missing or null
has no entry; an object has one without elements.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from attend.types import Json

Facts = dict[str, list[bool | int | float | str]]

EXACT_IN_FLOATS = 2**53
LARGEST = 2**63 - 1


def facts_of(value: Json, payload: Mapping[str, Json]) -> Facts:
    """The fields of a document's value and payload, as `attend.store.conditions.located` has them.

    The value comes before the payload, and a name as one key before the way that its dots lead.
    """
    found: Facts = {}
    seen: set[str] = set()
    for tree in (value, payload):
        for name, node in _named(tree):
            if name not in seen:
                seen.add(name)
                if node is not None:
                    found[name] = list(_elements(node))
    if value is not None:
        found["@value"] = list(_elements(value))
    return found


def plain(given: bool | int | float | str) -> bool | int | float | str:
    """A value as it is compared: equal numbers are written alike."""
    if isinstance(given, str):
        return re.sub("[\ud800-\udfff]", "\ue000", given)  # unpaired, they are no UTF-8
    if isinstance(given, bool):
        return given
    if isinstance(given, float) and given.is_integer() and abs(given) < EXACT_IN_FLOATS:
        return int(given)
    if isinstance(given, int) and not -LARGEST <= given <= LARGEST:
        return float(given)
    return given


def _named(tree: Json) -> Iterator[tuple[str, Json]]:
    """Every field of a tree by its names, whole keys first."""
    if not isinstance(tree, Mapping):
        return
    yield from tree.items()
    for name, node in tree.items():
        if "." not in name:  # dots lead through names without any
            yield from ((f"{name}.{inner}", each) for inner, each in _inner(node))


def _inner(tree: Json) -> Iterator[tuple[str, Json]]:
    if isinstance(tree, Mapping):
        for name, node in tree.items():
            if "." not in name:
                yield name, node
                yield from ((f"{name}.{inner}", each) for inner, each in _inner(node))


def _elements(node: Json) -> Iterator[bool | int | float | str]:
    if isinstance(node, bool | int | float | str):
        yield plain(node)
    elif not isinstance(node, Mapping) and node is not None:
        yield from (plain(each) for each in node if isinstance(each, bool | int | float | str))
