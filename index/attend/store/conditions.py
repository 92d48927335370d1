"""Conditions as SQL: each by reading documents, and by looking up an index.

Texts and numbers that a caller gives are bound parameters, always as JSON: so SQLite reads both
sides of a comparison alike (whole numbers beyond 64 bits, rounding, unpaired surrogates).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from attend.types import Json

ID, VALUE, TEXT = "@id", "@value", "@text"

NULL, BOOLEAN, NUMBER, WORDS = 0, 1, 2, 3
"""Kinds of values. SQLite orders every text above every number, and takes true for 1:
comparisons are within one kind."""


class IsNull(NamedTuple):
    """The field is missing or null."""


class Among(NamedTuple):
    """An element of the field equals one of the values, of which none is null."""

    values: Sequence[Json]


class Within(NamedTuple):
    """One element of the field meets all bounds: pairs of a sign and a value, all of a kind."""

    bounds: Sequence[tuple[str, str | int | float]]


class HasWords(NamedTuple):
    """A text field of the document, or with `@text` all of them together, has all the words."""

    words: Sequence[str]


class Leaf(NamedTuple):
    """One condition on one field, and as SQL.

    Attributes:
        field: its name.
        scan: an SQL condition on the table `documents`.
        lookup: SQL that selects rows of documents, perhaps some twice, from `{source}`: a table
            of (row, kind, value) that an index serves.
        parameters: of either form, in the same order.
        condition: the condition itself, for engines without SQL, on the field `name`.
    """

    field: str
    scan: str
    lookup: str
    parameters: tuple[str, ...]
    name: str
    condition: IsNull | Among | Within | HasWords


class All(NamedTuple):
    """Every part holds; true without any."""

    parts: tuple[Node, ...]


class Some(NamedTuple):
    """At least one part holds."""

    parts: tuple[Node, ...]


class Not(NamedTuple):
    """The part does not hold."""

    part: Node


Node = Leaf | All | Some | Not


def leaves_of(node: Node) -> list[Leaf]:
    """The single conditions that a filter is made of."""
    if isinstance(node, Leaf):
        return [node]
    parts = (node.part,) if isinstance(node, Not) else node.parts
    return [leaf for part in parts for leaf in leaves_of(part)]


def scan_sql(node: Node) -> tuple[str, tuple[str, ...]]:
    """A filter as one SQL condition on `documents`, and its parameters."""
    if isinstance(node, Leaf):
        return f"({node.scan})", node.parameters
    if isinstance(node, Not):
        sql, parameters = scan_sql(node.part)
        return f"NOT {sql}", parameters
    parts = [scan_sql(part) for part in node.parts]
    word = " AND " if isinstance(node, All) else " OR "
    # Without any part, an AND holds.
    sql = word.join(sql for sql, _ in parts) or "1"
    return f"({sql})", tuple(value for _, values in parts for value in values)


def kind_of(type: str) -> str:
    """SQL for the kind of an element, from SQL for its JSON type; NULL for lists and objects."""
    return (
        f"CASE {type} WHEN 'text' THEN {WORDS} WHEN 'integer' THEN {NUMBER} "
        f"WHEN 'real' THEN {NUMBER} WHEN 'true' THEN {BOOLEAN} WHEN 'false' THEN {BOOLEAN} "
        f"WHEN 'null' THEN {NULL} END"
    )


def located(name: str) -> str:
    """SQL for the JSON that a field holds in a row of `documents`; NULL for a missing field."""
    if name == ID:
        return "json_quote(documents.id)"
    if name == VALUE:
        return "documents.value"
    ways = [path.replace("'", "''") for path in dict.fromkeys(paths(name))]
    places = [f"documents.{side} -> '{way}'" for side in ("value", "payload") for way in ways]
    return f"coalesce({', '.join(places)})"


def paths(name: str) -> tuple[str, str]:
    """A name as one key, and as the way into objects that its dots lead, as SQLite's paths.

    Escaped as stored JSON is, for SQLite before 3.45 compares names as they are written.
    """
    key, parts = json.dumps(name), [json.dumps(part) for part in name.split(".")]
    return f"$.{key}", "$" + "".join(f".{part}" for part in parts)


def is_null(name: str) -> Leaf:
    """The field is missing or null."""
    return Leaf(
        name,
        f"coalesce(json_type({located(name)}, '$'), 'null') = 'null'",
        f"SELECT row FROM {{source}} WHERE kind = {NULL}",
        (),
        name,
        IsNull(),
    )


def among(name: str, values: Sequence[Json]) -> Leaf:
    """An element of the field equals one of the values, of which none is null."""
    return Leaf(
        name,
        _any_element(
            name,
            f"({kind_of('element.type')}, element.value) IN "
            f"(SELECT {kind_of('type')}, value FROM json_each(?))",
        ),
        f"SELECT entry.row AS row FROM json_each(?) AS given CROSS JOIN {{source}} AS entry "
        f"ON entry.kind = {kind_of('given.type')} AND entry.value = given.value",
        (json.dumps(list(values)),),
        name,
        Among(values),
    )


def within(name: str, bounds: Sequence[tuple[str, str | int | float]]) -> Leaf:
    """One element of the field meets all bounds: pairs of a sign and a value, all of a kind."""
    kind = WORDS if isinstance(bounds[0][1], str) else NUMBER
    signs = " AND ".join(f"{{value}} {sign} json_extract(?, '$')" for sign, _ in bounds)
    element = signs.replace("{value}", "element.value")
    return Leaf(
        name,
        _any_element(name, f"{kind_of('element.type')} = {kind} AND {element}"),
        f"SELECT row FROM {{source}} WHERE kind = {kind} AND {signs.replace('{value}', 'value')}",
        tuple(json.dumps(value) for _, value in bounds),
        name,
        Within(bounds),
    )


def starts_with(name: str, prefix: str) -> Leaf:
    """A text among the field's elements starts with the prefix."""
    stop = _following(prefix)
    return within(name, [(">=", prefix), *([("<", stop)] if stop else [])])


def has_words(name: str, words: Sequence[str]) -> Leaf:
    """A text field of the document, or with `@text` all of them together, has all the words."""
    matches = "SELECT rowid AS row FROM lexical WHERE lexical MATCH ?"
    query, condition = " ".join(f'"{word}"' for word in words), HasWords(words)
    if name == TEXT:
        return Leaf(name, f"documents.row IN ({matches})", matches, (query,), name, condition)
    # The index does not tell one text field from another: where there are others, look closer.
    path = f"$.{json.dumps(name)}".replace("'", "''")
    # NUL, at which SQLite's JSON ends a text, is a blank as in the index.
    fields = "replace(documents.fields, '\\u0000', '\\u0020')"
    scan = (
        f"documents.row IN ({matches}) AND json_type(documents.fields, '{path}') = 'text' AND "
        f"((SELECT count(*) FROM json_each(documents.fields)) = 1 OR "
        f"has_words(json_extract({fields}, '{path}'), ?))"
    )
    lookup = f"SELECT row FROM documents WHERE {scan}"
    return Leaf(TEXT, f"ifnull({scan}, 0)", lookup, (query, query), name, condition)


def _any_element(name: str, condition: str) -> str:
    """A scalar is its own only element; members of an object, whose keys are text, are none."""
    return (
        f"EXISTS (SELECT 1 FROM json_each({located(name)}) AS element "
        f"WHERE typeof(element.key) <> 'text' AND {condition})"
    )


def _following(prefix: str) -> str:
    """The first text after all that start with the prefix; empty where nothing comes after."""
    stem = prefix.rstrip("\U0010ffff")
    return stem and stem[:-1] + chr(ord(stem[-1]) + 1)
