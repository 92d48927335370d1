"""Documents that pass a filter, and counts of their values: by an index, else by a scan."""

from __future__ import annotations

import json
import operator
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from typing import SupportsIndex

import numpy as np
from sqlite_utils import Database

from attend.api.answers import Facet, FacetValue
from attend.core.errors import InvalidRequest
from attend.core.types import Int64, Json
from attend.store.caching import LimitedCache
from attend.store.conditions import (
    BOOLEAN,
    NULL,
    WORDS,
    indexed_field,
    kind_of,
    leaf_sql,
    located,
    scan_sql,
)
from attend.store.connections import read_state
from attend.store.field_index import FieldIndexes, source
from attend.store.filters import (
    ID,
    TEXT,
    All,
    Leaf,
    Node,
    Not,
    Predicate,
    Some,
    check_name,
    compile_filter,
    leaves_of,
)

CACHED_ROWS = 4_000_000
"""Rows in the cache, of the filters used last: 32 MB."""

OVERHEAD = 100
"""Memory of a cached result beside its rows, in rows."""

FEW_ROWS = 200
"""Reading this number of documents is faster than looking up all that another condition matches."""

MAX_FACETS = 32
MAX_VALUES = 1000

FEW = 10
"""If at most one document in this number is counted, the index of rows is the shorter way."""


class Selection:
    """Caches the results of filters by the state of the documents. Threads may share one."""

    def __init__(self, indexes: FieldIndexes) -> None:
        self._indexes = indexes
        self._results = LimitedCache[tuple[int, str], Int64](
            CACHED_ROWS, lambda rows: len(rows) + OVERHEAD
        )

    def rows(self, db: Database, predicate: Predicate) -> Int64:
        """Return the rows that pass in one read transaction, ascending; not to be written to."""
        key = read_state(db).change, predicate.key
        rows = self._results.get(key)
        if rows is None:
            rows = self.read(db, predicate)
            rows.setflags(write=False)
            self._results.put(key, rows)
        return rows

    def read(self, db: Database, predicate: Predicate) -> Int64:
        """Read the same without the cache, for a transaction that writes."""
        fields = {indexed_field(leaf) for leaf in leaves_of(predicate.node)}
        ready = self._indexes.ready(db, fields)
        scanned = {field for field in fields if not _has_index(field, ready)}
        started = time.perf_counter()
        rows = _FilterReader(db, ready, partial(self.rows, db, _EVERYTHING)).rows(predicate.node)
        self._indexes.scanned(scanned, time.perf_counter() - started)
        return rows

    def facets(
        self, db: Database, fields: Sequence[str], rows: Int64 | None, limit: int
    ) -> dict[str, Facet]:
        """Count the values of fields over the documents of `rows` (ascending), or over all."""
        ready = self._indexes.ready(db, fields)
        facets = {}
        for name in dict.fromkeys(fields):
            started = time.perf_counter()
            facets[name] = _facet(db, name, ready.get(name), rows, limit)
            if name not in ready:
                self._indexes.scanned({name}, time.perf_counter() - started)
        return facets


_EVERYTHING = compile_filter({})


class _FilterReader:
    """Reads one filter in one transaction.

    Args:
        ready: by field, the number of the index that serves its conditions.
        everything: reads the rows of all documents.
    """

    def __init__(
        self, db: Database, ready: Mapping[str, int], everything: Callable[[], Int64]
    ) -> None:
        self._db = db
        self._ready = ready
        self._everything = everything

    def rows(self, node: Node) -> Int64:
        """Look up the parts that have an index, and scan the remaining documents for the rest."""
        parts = node.parts if isinstance(node, All) else (node,)
        indexed = [part for part in parts if self._is_indexed(part)]
        few = self._few(indexed) if len(parts) > 1 else None
        if few is not None:
            return self._scan(node, few)
        rest = [part for part in parts if not self._is_indexed(part)]
        rows = self._all(indexed) if indexed else None
        if rest:
            return self._scan(All(tuple(rest)), rows)
        return self._read("SELECT row FROM documents") if rows is None else rows

    def _is_indexed(self, node: Node) -> bool:
        return all(_has_index(indexed_field(leaf), self._ready) for leaf in leaves_of(node))

    def _few(self, parts: Sequence[Node]) -> Int64 | None:
        """Return the rows of a condition that few documents meet, or None."""
        for part in parts:
            if isinstance(part, Leaf):
                rows = self._matches(part, f"SELECT DISTINCT row FROM ({{}}) LIMIT {FEW_ROWS + 1}")
                if len(rows) <= FEW_ROWS:
                    return rows
        return None

    def _matches(self, leaf: Leaf, select: str = "{}") -> Int64:
        """Look one condition up; `select` is SQL around the lookup."""
        sql, field = leaf_sql(leaf), indexed_field(leaf)
        lookup = sql.lookup.replace("{source}", source(field, self._ready.get(field)))
        return self._read(select.format(lookup), sql.parameters)

    def _look_up(self, node: Node) -> Int64:
        if isinstance(node, Leaf):
            return self._matches(node)
        if isinstance(node, Not):
            return self._all([node])
        if isinstance(node, Some):
            return reduce(np.union1d, map(self._look_up, node.parts))
        return self._all(node.parts)

    def _all(self, parts: Sequence[Node]) -> Int64:
        """Return the rows that pass every part; negations are subtracted last."""
        positive = [self._look_up(part) for part in parts if not isinstance(part, Not)]
        rows = reduce(_intersection, positive) if positive else self._everything()
        for part in parts:
            if isinstance(part, Not):
                rows = np.setdiff1d(rows, self._look_up(part.part), assume_unique=True)
        return rows

    def _scan(self, node: Node, among: Int64 | None) -> Int64:
        """Return the rows that pass, of some documents or of all."""
        sql, parameters = scan_sql(node)
        if among is None:
            return self._read(f"SELECT row FROM documents WHERE {sql}", parameters)
        return self._read(
            f"SELECT row FROM documents WHERE row IN (SELECT value FROM json_each(?)) AND {sql}",
            (json.dumps(among.tolist()), *parameters),
        )

    def _read(self, sql: str, parameters: Sequence[str] = ()) -> Int64:
        # As one text, which is several times as fast as row by row, and lets other threads run.
        text = self._db.execute(f"SELECT group_concat(row) FROM ({sql})", parameters).fetchone()[0]
        rows = np.fromstring(text or "", dtype=np.int64, sep=",")
        # A list may lead to its document more than once.
        ascends = bool(np.all(rows[1:] > rows[:-1]))
        return rows if ascends else np.unique(rows)


def _has_index(field: str, ready: Mapping[str, int]) -> bool:
    return field in (ID, TEXT) or field in ready


def _intersection(one: Int64, other: Int64) -> Int64:
    return np.intersect1d(one, other, assume_unique=True)


# -- facets ---------------------------------------------------------------------------------


def whole_number(number: SupportsIndex, name: str, least: int, most: int) -> int:
    """Return a number of any integer type, numpy's too; raise InvalidRequest for another."""
    try:
        result = operator.index(number)
    except TypeError:
        result = least - 1
    if not least <= result <= most:
        raise InvalidRequest(
            f"{name} is {number!r:.80}, but a whole number from {least} to {most} was expected.",
            field=name,
        )
    return result


def check_facets(fields: Sequence[str]) -> None:
    """Raise InvalidRequest for fields that have no values to count."""
    if isinstance(fields, str) or not 1 <= len(fields) <= MAX_FACETS:
        raise InvalidRequest(
            f"A list of 1 to {MAX_FACETS} fields was expected to count values of, but "
            f"{fields!r:.80} was given.",
            field="fields",
        )
    for name in fields:
        check_name(name)
        if name in (ID, TEXT):
            raise InvalidRequest(
                f"{name!r} has no values to count; name a field of value or payload.",
                field="fields",
            )


def _facet(db: Database, name: str, index: int | None, rows: Int64 | None, limit: int) -> Facet:
    """Count the values of one field.

    Args:
        index: the number of its index, if it has one.
        rows: the documents to count, ascending; None for all.
    """
    condition, parameters = "1", []
    if rows is not None:
        few = len(rows) * FEW <= (rows[-1] if len(rows) else 0)
        # A plus sign keeps SQLite from going by the row.
        condition = f"{'' if few else '+'}row IN (SELECT value FROM json_each(?))"
        parameters = [json.dumps(rows.tolist())]
    entries = _entries(name, index, condition)
    counts = db.execute(
        f"WITH grouped AS MATERIALIZED (SELECT kind, value, count(*) AS documents "
        f"FROM ({entries}) GROUP BY kind, value) "
        f"SELECT * FROM (SELECT kind, {_READABLE}, documents FROM grouped WHERE kind <> {NULL} "
        f"ORDER BY documents DESC, kind, value LIMIT ?) "
        f"UNION ALL SELECT {NULL}, 0, coalesce(sum(documents), 0) FROM grouped WHERE kind = {NULL} "
        f"UNION ALL SELECT {NULL}, 0, count(*) FROM grouped WHERE kind <> {NULL}",
        [*parameters, limit],
    ).fetchall()
    *listed, (_, _, missing), (_, _, distinct) = counts
    values = [FacetValue(_json(kind, value), documents) for kind, value, documents in listed]
    return Facet(values, distinct, missing)


# As bytes: half a surrogate pair, which JSON may hold, is no UTF-8.
_READABLE = f"CASE kind WHEN {WORDS} THEN CAST(value AS BLOB) ELSE value END"


def _entries(name: str, index: int | None, condition: str) -> str:
    """Return SQL of the values of a field, from its index or from the documents."""
    if index is not None:
        field = "+field" if condition.startswith("row") else "field"
        return f"SELECT row, kind, value FROM field_values WHERE {field} = {index} AND {condition}"
    return (
        f"SELECT DISTINCT row, {kind_of('element.type')} AS kind, element.value AS value "
        f"FROM documents, json_each(coalesce({located(name)}, 'null')) AS element "
        f"WHERE typeof(element.key) <> 'text' AND element.type NOT IN ('array', 'object') "
        f"AND (element.type <> 'null' OR element.key IS NULL) AND {condition}"
    )


def _json(kind: int, value: int | float | bytes) -> Json:
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogatepass")
    return bool(value) if kind == BOOLEAN else value
