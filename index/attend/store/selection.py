"""Which documents a filter lets pass: looked up where fields are indexed, else by a scan."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from threading import Lock

import numpy as np
from sqlite_utils import Database

from attend.store import facets, statements
from attend.store.conditions import ID, TEXT, All, Leaf, Node, Not, Some, leaves_of, scan_sql
from attend.store.facets import Facet
from attend.store.field_values import source
from attend.store.filters import Predicate, compile_filter
from attend.store.indexes import FieldIndexes
from attend.types import Int64

KEPT_ROWS = 4_000_000
"""Rows kept in memory, of the filters asked for last: 32 MB."""

OVERHEAD = 100
"""Rows whose memory a kept result takes beside them."""

FEW_ROWS = 200
"""So many documents are read sooner than all that another condition may lead to are looked up."""


class Selection:
    """The results of filters, kept as long as no document changes. Threads may share one."""

    def __init__(self, indexes: FieldIndexes) -> None:
        self._indexes = indexes
        self._lock = Lock()
        self._change = -1
        self._kept: dict[str, Int64] = {}
        self._size = 0

    def rows(self, db: Database, predicate: Predicate) -> Int64:
        """Rows of the documents that pass in one read transaction, ascending; not to be written."""
        change = statements.state(db).change
        kept = self._take(change, predicate.key)
        if kept is None:
            kept = self.read(db, predicate)
            kept.setflags(write=False)
            self._put(change, predicate.key, kept)
        return kept

    def read(self, db: Database, predicate: Predicate) -> Int64:
        """The same, read anew: for a transaction that writes."""
        leaves = leaves_of(predicate.node)
        ready = self._indexes.ready(db, {leaf.field for leaf in leaves})
        scanned = {leaf.field for leaf in leaves if not _is_served(leaf, ready)}
        started = time.perf_counter()
        rows = _Reader(db, ready, partial(self.rows, db, _EVERYTHING)).rows(predicate.node)
        self._indexes.scanned(scanned, time.perf_counter() - started)
        return rows

    def facets(
        self, db: Database, fields: Sequence[str], rows: Int64 | None, limit: int
    ) -> dict[str, Facet]:
        """The facets of fields over the documents of `rows` (ascending), or over all."""
        ready = self._indexes.ready(db, fields)
        read = {}
        for name in dict.fromkeys(fields):
            started = time.perf_counter()
            read[name] = facets.read(db, name, ready.get(name), rows, limit)
            if name not in ready:
                self._indexes.scanned({name}, time.perf_counter() - started)
        return read

    def _take(self, change: int, key: str) -> Int64 | None:
        with self._lock:
            if self._change != change:
                return None
            found = self._kept.pop(key, None)
            if found is not None:
                self._kept[key] = found  # last again: the first ones go first
            return found

    def _put(self, change: int, key: str, rows: Int64) -> None:
        with self._lock:
            if change < self._change or (change == self._change and key in self._kept):
                return
            if change > self._change:
                self._change, self._kept, self._size = change, {}, 0
            self._kept[key] = rows
            self._size += len(rows) + OVERHEAD
            while self._size > KEPT_ROWS and len(self._kept) > 1:
                self._size -= len(self._kept.pop(next(iter(self._kept)))) + OVERHEAD


_EVERYTHING = compile_filter({})


class _Reader:
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
        """What can be looked up is; the rest of it is read of the documents that are left."""
        parts = node.parts if isinstance(node, All) else (node,)
        served = [part for part in parts if self._is_served(part)]
        few = self._few(served) if len(parts) > 1 else None
        if few is not None:
            return self._scanned(node, few)
        rest = [part for part in parts if not self._is_served(part)]
        found = self._all(served) if served else None
        if rest:
            return self._scanned(All(tuple(rest)), found)
        return self._read("SELECT row FROM documents") if found is None else found

    def _is_served(self, node: Node) -> bool:
        return all(_is_served(leaf, self._ready) for leaf in leaves_of(node))

    def _few(self, parts: Sequence[Node]) -> Int64 | None:
        """What passes a condition that few documents meet, where there is such a one."""
        for part in parts:
            if isinstance(part, Leaf):
                first = f"SELECT DISTINCT row FROM ({self._lookup(part)}) LIMIT {FEW_ROWS + 1}"
                found = self._read(first, part.parameters)
                if len(found) <= FEW_ROWS:
                    return found
        return None

    def _lookup(self, leaf: Leaf) -> str:
        return leaf.lookup.replace("{source}", source(leaf.field, self._ready.get(leaf.field)))

    def _looked_up(self, node: Node) -> Int64:
        if isinstance(node, Leaf):
            return self._read(self._lookup(node), node.parameters)
        if isinstance(node, Not):
            return self._all([node])
        if isinstance(node, Some):
            return reduce(np.union1d, map(self._looked_up, node.parts))
        return self._all(node.parts)

    def _all(self, parts: Sequence[Node]) -> Int64:
        """Rows that pass every part. Where nothing else does, what must not hold is taken away."""
        asked = [self._looked_up(part) for part in parts if not isinstance(part, Not)]
        found = reduce(_in_both, asked) if asked else self._everything()
        for part in parts:
            if isinstance(part, Not):
                found = np.setdiff1d(found, self._looked_up(part.part), assume_unique=True)
        return found

    def _scanned(self, node: Node, among: Int64 | None) -> Int64:
        """Rows that pass, of some documents or of all."""
        sql, parameters = scan_sql(node)
        if among is None:
            return self._read(f"SELECT row FROM documents WHERE {sql}", parameters)
        chosen = "row IN (SELECT value FROM json_each(?))"
        return self._read(
            f"SELECT row FROM documents WHERE {chosen} AND {sql}",
            (json.dumps(among.tolist()), *parameters),
        )

    def _read(self, sql: str, parameters: Sequence[str] = ()) -> Int64:
        # As one text, which is several times as fast as row by row, and lets other threads run.
        found = self._db.execute(f"SELECT group_concat(row) FROM ({sql})", parameters).fetchone()
        rows = np.fromstring(found[0] or "", dtype=np.int64, sep=",")
        # A list may lead to its document more than once.
        return rows if _ascends(rows) else np.unique(rows)


def _is_served(leaf: Leaf, ready: Mapping[str, int]) -> bool:
    return leaf.field in (ID, TEXT) or leaf.field in ready


def _in_both(one: Int64, other: Int64) -> Int64:
    return np.intersect1d(one, other, assume_unique=True)


def _ascends(rows: Int64) -> bool:
    return bool(np.all(rows[1:] > rows[:-1]))
