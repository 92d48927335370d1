"""Filters as Milvus's expressions over the filter fields of documents.

https://milvus.io/docs/boolean.md, as of 2.3: two-valued logic, in which a comparison with a
missing field does not hold.

Filter fields are a document's value and payload in a form in which each field is found in one
step: `{"a": {"b": 1}, "tags": ["x", "y"]}` becomes `{"a": [], "a.b": [1], "tags": ["x", "y"]}`, by
the name that a filter may give a field, the elements that it may compare. A field that is missing
or null has no entry; an object has one without elements.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from attend.core.types import Json
from attend.store import Predicate
from attend.store.filters import (
    ID,
    All,
    Among,
    HasSubstring,
    HasSuffix,
    HasWords,
    IsEmptyList,
    IsNull,
    Leaf,
    Node,
    Not,
    Within,
    WithinDates,
    leaves_of,
)
from attend_milvus.server import CAPABILITIES

FilterFields = dict[str, list[bool | int | float | str]]

EXACT_IN_FLOATS = 2**53
LARGEST = 2**63 - 1


def filter_fields(value: Json, payload: Mapping[str, Json]) -> FilterFields:
    """Return the fields of value and payload, as `attend.store.filters.located` has them.

    The value comes before the payload, and a name as one key before the way that its dots lead.
    """
    results: FilterFields = {}
    seen: set[str] = set()
    for tree in (value, payload):
        for name, node in _named(tree):
            if name not in seen:
                seen.add(name)
                if node is not None:
                    results[name] = list(_elements(node))
    if value is not None:
        results["@value"] = list(_elements(value))
    return results


def plain(value: bool | int | float | str) -> bool | int | float | str:
    """Return a value as it is compared: equal numbers are written alike."""
    if isinstance(value, str):
        return re.sub("[\ud800-\udfff]", "\ue000", value)  # unpaired, they are no UTF-8
    if isinstance(value, bool):
        return value
    if isinstance(value, float) and value.is_integer() and abs(value) < EXACT_IN_FLOATS:
        return int(value)
    if isinstance(value, int) and not -LARGEST <= value <= LARGEST:
        return float(value)
    return value


def _named(tree: Json, *, dotted: bool = True) -> Iterator[tuple[str, Json]]:
    """Yield every field of a tree by its names, whole keys first.

    Args:
        dotted: false below a name, where keys with dots have none.
    """
    if not isinstance(tree, Mapping):
        return
    leading = {name: node for name, node in tree.items() if "." not in name}
    yield from (tree if dotted else leading).items()
    for name, node in leading.items():
        yield from ((f"{name}.{inner}", item) for inner, item in _named(node, dotted=False))


def _elements(node: Json) -> Iterator[bool | int | float | str]:
    if isinstance(node, bool | int | float | str):
        yield plain(node)
    elif not isinstance(node, Mapping) and node is not None:
        yield from (plain(item) for item in node if isinstance(item, bool | int | float | str))


ELEMENTS = 8
"""Elements of a list that a range looks at: Milvus has no condition on any element but equality."""


class Expression(NamedTuple):
    """A filter for Milvus; the empty text lets everything pass.

    Attributes:
        ranged: fields of which an element is to lie in a range. Where some document has a list
            there, `text` is not enough (`of_lists`).
    """

    text: str
    ranged: tuple[str, ...]


def expression(predicate: Predicate, elements: int = 1) -> Expression:
    """Return a filter as an expression.

    Args:
        elements: how many of a list a range looks at.

    Raises:
        Unsupported: the filter asks for words, a part or the end of a text, dates or empty lists.
    """
    ranged = {
        leaf.field
        for leaf in leaves_of(predicate.node)
        if isinstance(leaf, Within) and leaf.field != ID
    }
    everything = isinstance(predicate.node, All) and not predicate.node.parts
    text = "" if everything else _written(predicate.node, elements)
    return Expression(text, tuple(sorted(ranged)))


def has_element(name: str, place: int) -> str:
    """Return the expression that a field is a list with an element at a place."""
    return f"(exists {_field(name)}[{place}])"  # Milvus joins no bare ones by "or"


def _written(node: Node, elements: int) -> str:
    if isinstance(node, Leaf):
        return _leaf(node, elements)
    if isinstance(node, Not):
        return f"not ({_written(node.part, elements)})"
    word = " and " if isinstance(node, All) else " or "
    parts = [f"({_written(part, elements)})" for part in node.parts]
    return word.join(parts) or f"not ({NOTHING})"


def _leaf(leaf: Leaf, elements: int) -> str:
    match leaf:
        case HasWords() | HasSubstring() | HasSuffix() | IsEmptyList() | WithinDates():
            CAPABILITIES.check("match", field="filter")
            return NOTHING
        case IsNull(field):
            return NOTHING if field == ID else f"not (exists {_field(field)})"
        case Among(field, values):
            listed = [plain(item) for item in values if isinstance(item, bool | int | float | str)]
            if field == ID:
                listed = [item for item in listed if isinstance(item, str)]
            if not listed:
                return NOTHING
            written = json.dumps(listed, ensure_ascii=False)
            if field == ID:
                return f"id in {written}"
            return f"json_contains_any({_field(field)}, {written})"
        case Within(field, bounds):
            if field != ID:
                places = [f"{_field(field)}[{position}]" for position in range(elements)]
            elif isinstance(bounds[0][1], str):
                places = ["id"]
            else:
                return NOTHING
            limits = [f"{sign} {json.dumps(plain(it), ensure_ascii=False)}" for sign, it in bounds]
            return " or ".join(
                f"({' and '.join(f'{place} {limit}' for limit in limits)})" for place in places
            )


NOTHING = 'id in [""]'
"""No document has the empty id."""


def _field(name: str) -> str:
    return f"facts[{json.dumps(name, ensure_ascii=False)}]"
