"""Facets: how many documents have which values of a field."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from sqlite_utils import Database

from attend.errors import InvalidRequest
from attend.store.conditions import BOOLEAN, ID, NULL, TEXT, WORDS, kind_of, located
from attend.store.filters import check_name
from attend.types import Int64, Json

MAX_FACETS = 32
MAX_VALUES = 1000

FEW = 10
"""Where at most one document in so many is counted, the index of rows is the shorter way."""


class Count(NamedTuple):
    """A value, and how many documents have it."""

    value: Json
    documents: int


class Facet(NamedTuple):
    """The values of one field.

    Attributes:
        values: the most frequent first; of equals, numbers before texts, and each ascending.
        distinct: how many different values there are, listed or not.
        missing: documents in which the field is missing or null.
    """

    values: list[Count]
    distinct: int
    missing: int


def check(fields: Sequence[str], limit: int) -> None:
    """Raises InvalidRequest for what no facets can be made of."""
    if not 1 <= len(fields) <= MAX_FACETS:
        raise InvalidRequest(
            f"{len(fields)} fields were given to count values of; send 1 to {MAX_FACETS}.",
            field="fields",
        )
    if not 1 <= limit <= MAX_VALUES:
        raise InvalidRequest(
            f"The limit is {limit}, but 1 to {MAX_VALUES} values of a field are listed.",
            field="limit",
        )
    for name in fields:
        check_name(name)
        if name in (ID, TEXT):
            raise InvalidRequest(
                f"{name!r} has no values to count; name a field of value or payload.",
                field="fields",
            )


def read(db: Database, name: str, index: int | None, rows: Int64 | None, limit: int) -> Facet:
    """The facet of one field.

    Args:
        index: the number of its index, if it has one.
        rows: the documents to count, ascending; None for all.
    """
    chosen, parameters = "1", []
    if rows is not None:
        few = len(rows) * FEW <= (rows[-1] if len(rows) else 0)
        # A plus sign keeps SQLite from going by the row.
        chosen = f"{'' if few else '+'}row IN (SELECT value FROM json_each(?))"
        parameters = [json.dumps(rows.tolist())]
    entries = _scanned(name, chosen) if index is None else _indexed(index, chosen)
    found = db.execute(
        f"WITH grouped AS MATERIALIZED (SELECT kind, value, count(*) AS documents "
        f"FROM ({entries}) GROUP BY kind, value) "
        f"SELECT * FROM (SELECT kind, {_READABLE}, documents FROM grouped WHERE kind <> {NULL} "
        f"ORDER BY documents DESC, kind, value LIMIT ?) "
        f"UNION ALL SELECT {NULL}, 0, coalesce(sum(documents), 0) FROM grouped WHERE kind = {NULL} "
        f"UNION ALL SELECT {NULL}, 0, count(*) FROM grouped WHERE kind <> {NULL}",
        [*parameters, limit],
    ).fetchall()
    *listed, (_, _, missing), (_, _, distinct) = found
    return Facet([Count(_json(*each[:2]), each[2]) for each in listed], distinct, missing)


# As bytes: half a surrogate pair, which JSON may hold, is no UTF-8.
_READABLE = f"CASE kind WHEN {WORDS} THEN CAST(value AS BLOB) ELSE value END"


def _indexed(index: int, chosen: str) -> str:
    field = "+field" if chosen.startswith("row") else "field"
    return f"SELECT row, kind, value FROM field_values WHERE {field} = {index} AND {chosen}"


def _scanned(name: str, chosen: str) -> str:
    """The entries that an index would have, read from documents."""
    return (
        f"SELECT DISTINCT row, {kind_of('element.type')} AS kind, element.value AS value "
        f"FROM documents, json_each(coalesce({located(name)}, 'null')) AS element "
        f"WHERE typeof(element.key) <> 'text' AND element.type NOT IN ('array', 'object') "
        f"AND (element.type <> 'null' OR element.key IS NULL) AND {chosen}"
    )


def _json(kind: int, value: int | float | bytes) -> Json:
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogatepass")
    return bool(value) if kind == BOOLEAN else value
