"""Filters as SQL: each condition by reading documents, and by looking up an index.

Texts and numbers that a caller gives are bound parameters, always as JSON: so SQLite reads both
sides of a comparison alike (whole numbers beyond 64 bits, rounding, unpaired surrogates).
"""

from __future__ import annotations

import json
from typing import NamedTuple

from attend.store.filters import (
    ID,
    TEXT,
    VALUE,
    All,
    Among,
    HasWords,
    IsNull,
    Leaf,
    Node,
    Not,
    Within,
)
from attend.store.tokens import quoted

NULL, BOOLEAN, NUMBER, WORDS = 0, 1, 2, 3
"""Kinds of values. SQLite orders every text above every number, and takes true for 1:
comparisons are within one kind."""


class LeafSql(NamedTuple):
    """One condition as SQL.

    Attributes:
        scan: an SQL condition on the table `documents`.
        lookup: SQL that selects rows of documents, perhaps some twice, from `{source}`: a table
            of (row, kind, value) that an index serves.
        parameters: of either form, in the same order.
    """

    scan: str
    lookup: str
    parameters: tuple[str, ...]


def leaf_sql(leaf: Leaf) -> LeafSql:
    """Return the SQL of one condition."""
    match leaf:
        case IsNull(field):
            scan = f"coalesce(json_type({located(field)}, '$'), 'null') = 'null'"
            return LeafSql(scan, f"SELECT row FROM {{source}} WHERE kind = {NULL}", ())
        case Among():
            return _among(leaf)
        case Within():
            return _within(leaf)
        case HasWords():
            return _has_words(leaf)


def indexed_field(leaf: Leaf) -> str:
    """Return the field whose index serves a condition: that of words serves all text fields."""
    return TEXT if isinstance(leaf, HasWords) else leaf.field


def scan_sql(node: Node) -> tuple[str, tuple[str, ...]]:
    """Return a filter as one SQL condition on `documents`, and its parameters."""
    if isinstance(node, Leaf):
        sql = leaf_sql(node)
        return f"({sql.scan})", sql.parameters
    if isinstance(node, Not):
        condition, parameters = scan_sql(node.part)
        return f"NOT {condition}", parameters
    parts = [scan_sql(part) for part in node.parts]
    word = " AND " if isinstance(node, All) else " OR "
    # Without any part, an AND holds.
    joined = word.join(part for part, _ in parts) or "1"
    return f"({joined})", tuple(value for _, values in parts for value in values)


def kind_of(type: str) -> str:
    """Return SQL for an element's kind from SQL for its JSON type; NULL for lists and objects."""
    return (
        f"CASE {type} WHEN 'text' THEN {WORDS} WHEN 'integer' THEN {NUMBER} "
        f"WHEN 'real' THEN {NUMBER} WHEN 'true' THEN {BOOLEAN} WHEN 'false' THEN {BOOLEAN} "
        f"WHEN 'null' THEN {NULL} END"
    )


def located(name: str) -> str:
    """Return SQL for the JSON of a field in a row of `documents`; NULL for a missing field."""
    if name == ID:
        return "json_quote(documents.id)"
    if name == VALUE:
        return "documents.value"
    ways = [path.replace("'", "''") for path in dict.fromkeys(paths(name))]
    places = [f"documents.{side} -> '{way}'" for side in ("value", "payload") for way in ways]
    return f"coalesce({', '.join(places)})"


def paths(name: str) -> tuple[str, str]:
    """Return SQLite's paths of a name: as one key, and as the way that its dots lead.

    Escaped as stored JSON is, for SQLite before 3.45 compares names as they are written.
    """
    key, parts = json.dumps(name), [json.dumps(part) for part in name.split(".")]
    return f"$.{key}", "$" + "".join(f".{part}" for part in parts)


def _among(leaf: Among) -> LeafSql:
    scan = (
        f"({kind_of('element.type')}, element.value) IN "
        f"(SELECT {kind_of('type')}, value FROM json_each(?))"
    )
    lookup = (
        f"SELECT entry.row AS row FROM json_each(?) AS given CROSS JOIN {{source}} AS entry "
        f"ON entry.kind = {kind_of('given.type')} AND entry.value = given.value"
    )
    return LeafSql(_any_element(leaf.field, scan), lookup, (json.dumps(list(leaf.values)),))


def _within(leaf: Within) -> LeafSql:
    kind = WORDS if isinstance(leaf.bounds[0][1], str) else NUMBER
    signs = " AND ".join(f"{{value}} {sign} json_extract(?, '$')" for sign, _ in leaf.bounds)
    element = signs.replace("{value}", "element.value")
    return LeafSql(
        _any_element(leaf.field, f"{kind_of('element.type')} = {kind} AND {element}"),
        f"SELECT row FROM {{source}} WHERE kind = {kind} AND {signs.replace('{value}', 'value')}",
        tuple(json.dumps(value) for _, value in leaf.bounds),
    )


def _has_words(leaf: HasWords) -> LeafSql:
    matches = "SELECT rowid AS row FROM lexical WHERE lexical MATCH ?"
    query = " ".join(map(quoted, leaf.words))
    if leaf.field == TEXT:
        return LeafSql(f"documents.row IN ({matches})", matches, (query,))
    # The index does not tell one text field from another: where there are others, look closer.
    path = f"$.{json.dumps(leaf.field)}".replace("'", "''")
    scan = (
        f"documents.row IN ({matches}) AND json_type(documents.fields, '{path}') = 'text' AND "
        f"((SELECT count(*) FROM json_each(documents.fields)) = 1 OR "
        f"has_words(documents.fields, ?, ?))"
    )
    lookup = f"SELECT row FROM documents WHERE {scan}"
    return LeafSql(f"ifnull({scan}, 0)", lookup, (query, leaf.field, query))


def _any_element(name: str, condition: str) -> str:
    """Return SQL that an element meets a condition: a scalar itself, or an element of a list."""
    return (
        f"EXISTS (SELECT 1 FROM json_each({located(name)}) AS element "
        f"WHERE typeof(element.key) <> 'text' AND {condition})"
    )
