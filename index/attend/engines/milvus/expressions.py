"""Filters as Milvus's expressions over `facts` (`attend.engines.milvus.facts`).

https://milvus.io/docs/boolean.md, as of 2.3: two-valued logic, in which a comparison with what is
missing does not hold.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from attend.engines.milvus.capabilities import CAPABILITIES
from attend.engines.milvus.facts import plain
from attend.store import Predicate
from attend.store.conditions import (
    ID,
    All,
    Among,
    HasWords,
    IsNull,
    Leaf,
    Node,
    Not,
    Within,
    leaves_of,
)

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


EVERYTHING = Expression("", ())


def expression(predicate: Predicate, elements: int = 1) -> Expression:
    """A filter as an expression.

    Args:
        elements: how many of a list a range looks at.

    Raises:
        Unsupported: the filter asks for words of a text.
    """
    ranged = {
        leaf.name
        for leaf in leaves_of(predicate.node)
        if isinstance(leaf.condition, Within) and leaf.name != ID
    }
    everything = isinstance(predicate.node, All) and not predicate.node.parts
    text = "" if everything else _written(predicate.node, elements)
    return Expression(text, tuple(sorted(ranged)))


def has_element(name: str, at: int) -> str:
    """Documents of which a field is a list with an element at a place."""
    return f"(exists {_field(name)}[{at}])"  # Milvus joins no bare ones by "or"


def both(*expressions: str) -> str:
    """What all of some expressions let pass; the empty ones let everything."""
    return " and ".join(f"({each})" for each in expressions if each)


def _written(node: Node, elements: int) -> str:
    if isinstance(node, Leaf):
        return _leaf(node, elements)
    if isinstance(node, Not):
        return f"not ({_written(node.part, elements)})"
    word = " and " if isinstance(node, All) else " or "
    parts = [f"({_written(part, elements)})" for part in node.parts]
    return word.join(parts) or f"not ({NOTHING})"


def _leaf(leaf: Leaf, elements: int) -> str:
    of_id = leaf.name == ID
    match leaf.condition:
        case HasWords():
            CAPABILITIES.check("match", field="filter")
            return NOTHING
        case IsNull():
            return NOTHING if of_id else f"not (exists {_field(leaf.name)})"
        case Among(values):
            listed = [plain(each) for each in values if isinstance(each, bool | int | float | str)]
            if of_id:
                listed = [each for each in listed if isinstance(each, str)]
            if not listed:
                return NOTHING
            written = json.dumps(listed, ensure_ascii=False)
            return (
                f"id in {written}"
                if of_id
                else f"json_contains_any({_field(leaf.name)}, {written})"
            )
        case Within(bounds):
            places = ["id"] if of_id else [f"{_field(leaf.name)}[{at}]" for at in range(elements)]
            if of_id and not isinstance(bounds[0][1], str):
                return NOTHING
            return " or ".join(
                f"({' and '.join(f'{place} {sign} {_operand(value)}' for sign, value in bounds)})"
                for place in places
            )


NOTHING = 'id in [""]'
"""No document has the empty id."""


def _field(name: str) -> str:
    return f"facts[{json.dumps(name, ensure_ascii=False)}]"


def _operand(value: str | int | float) -> str:
    return json.dumps(plain(value), ensure_ascii=False)
