"""Documents that pass a filter, and counts of their values: by an index, else by a scan.

Indexes of the fields that filters use are built in the background and dropped when unused. An index
is an inverted list, so that any element of a list leads to its document. Triggers update it from
the moment a field is chosen; steps fill it for the documents stored before, in short transactions
with pauses in between. Any process may continue what another began.
"""

from __future__ import annotations

import json
import logging
import operator
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial, reduce
from typing import SupportsIndex

import numpy as np
from sqlite_utils import Database

from attend.api.answers import Facet, FacetValue
from attend.api.base import MAX_FACETS
from attend.core.errors import AttendError, InvalidRequest
from attend.core.types import Float64, Int64, Json
from attend.store import Column
from attend.store.connections import Connections
from attend.store.filters import (
    BOOLEAN,
    ID,
    NULL,
    NUMBER,
    TEXT,
    WORDS,
    All,
    Leaf,
    Node,
    Not,
    Predicate,
    Some,
    check_name,
    compile_filter,
    indexed_field,
    kind_of,
    leaf_sql,
    leaves_of,
    located,
    paths,
    scan_sql,
)
from attend.store.migrations import VALUES_OF
from attend.store.sql import read_state
from attend.store.words import LimitedCache

log = logging.getLogger("attend")

MAX_FIELDS = 16
"""Fields indexed at once: each makes writing a document some 10 microseconds slower."""

UNUSED_DAYS = 30
"""Days without use after which an index is dropped; after one day another may replace it."""

MAX_TEXT = 200
"""Mean length above which texts are not indexed: filters do not compare such texts."""

STEP_ROWS = 1000
"""Documents, or entries to drop, in one transaction: some 10 ms."""

COUNTED_SECONDS = 0.005
"""A faster scan needs no index."""

BUILD_AFTER_SECONDS = 0.25
"""Total time of scans for a field after which it gets an index: one slow scan, or some."""

REST_SECONDS = 3600.0
"""After a failure, such as a folder that cannot be written to."""

CLOSING_SECONDS = 5.0

PAUSE = 2
"""Pause for other writers between two steps, in durations of a step."""

_ALL_VALUES = VALUES_OF.format(row="documents", tables="documents, indexed_fields")


def source(name: str, index: int | None) -> str:
    """Return SQL of a table of (row, kind, value) of an index: SQLite's own for ids."""
    if name == ID:
        return f"(SELECT row, {WORDS} AS kind, id AS value FROM documents)"
    return f"(SELECT row, kind, value FROM field_values WHERE field = {index})"


def is_short(db: Database, name: str) -> bool:
    """Return whether the values of a field in the first documents are short enough to index."""
    length = db.execute(
        f"SELECT avg(length({located(name)})) FROM (SELECT * FROM documents LIMIT 1000) documents"
    ).fetchone()[0]
    return length is not None and length <= MAX_TEXT


def choose_field(db: Database, name: str) -> bool:
    """Begin the index of a field. Return false if there is no room for it."""
    select = "SELECT name, used FROM indexed_fields WHERE state <> 'dropping' ORDER BY id"
    indexed = dict(db.execute(select).fetchall())
    if name in indexed:
        return True
    if len(indexed) >= MAX_FIELDS:
        oldest = min(indexed, key=indexed.__getitem__)
        if indexed[oldest] >= day():
            return False
        drop_indexes(db, [oldest])
    key, dotted = ("$", "$") if name == "@value" else paths(name)
    db.execute(
        # Of one that is being dropped the entries that are left are right.
        "INSERT INTO indexed_fields (name, whole, dotted, used) VALUES (?, ?, ?, ?) "
        "ON CONFLICT (name) DO UPDATE SET state = 'building', built = 0, used = excluded.used",
        [name, key, dotted, day()],
    )
    return True


def touch_fields(db: Database, names: Collection[str]) -> None:
    """Note that fields were used today, and drop those unused for `UNUSED_DAYS`."""
    db.execute(
        "UPDATE indexed_fields SET used = ? WHERE name IN (SELECT value FROM json_each(?))",
        [day(), json.dumps(list(names))],
    )
    unused = db.execute("SELECT name FROM indexed_fields WHERE used < ?", [day(UNUSED_DAYS)])
    drop_indexes(db, [name for (name,) in unused.fetchall()])


def drop_indexes(db: Database, names: Collection[str]) -> None:
    """Begin to drop indexes, unless that has begun; filters that scan build them again."""
    db.execute(
        "UPDATE indexed_fields SET state = 'dropping', built = 0 WHERE state <> 'dropping' "
        "AND name IN (SELECT value FROM json_each(?))",
        [json.dumps(list(names))],
    )


def index_step(db: Database) -> bool:
    """Build or drop a short piece of an index. Return whether there was any to do."""
    due = db.execute(
        "SELECT id, state, built FROM indexed_fields WHERE state <> 'ready' ORDER BY used, id"
    ).fetchone()
    if due is None:
        return False
    field, state, after = due
    last = db.execute(
        "SELECT max(row) FROM (SELECT row FROM documents WHERE row > ? ORDER BY row LIMIT ?)",
        [after, STEP_ROWS],
    ).fetchone()[0]
    if last is not None:
        # Documents written since the field was chosen are in already, by the triggers.
        # The plus sign: by the index of rows, and not through all entries of the field.
        statement = (
            f"INSERT OR IGNORE INTO field_values (field, kind, value, row) {_ALL_VALUES} "
            f"AND field.id = ? AND documents.row > ? AND documents.row <= ?"
            if state == "building"
            else "DELETE FROM field_values WHERE +field = ? AND row > ? AND row <= ?"
        )
        db.execute(statement, [field, after, last])
        db.execute("UPDATE indexed_fields SET built = ? WHERE id = ?", [last, field])
    elif state == "building":
        db.execute("UPDATE indexed_fields SET state = 'ready', built = 0 WHERE id = ?", [field])
    else:
        db.execute("DELETE FROM indexed_fields WHERE id = ?", [field])
    return True


def index_faults(db: Database) -> Mapping[str, int]:
    """Count the documents with wrong entries in each ready index; reads everything."""
    wrong = db.execute(
        f"WITH expected (field, kind, value, row) AS ({_ALL_VALUES}), "
        f"actual AS (SELECT field, kind, value, row FROM field_values), "
        f"wrong AS (SELECT * FROM (SELECT * FROM expected EXCEPT SELECT * FROM actual) "
        f"UNION ALL SELECT * FROM (SELECT * FROM actual EXCEPT SELECT * FROM expected)) "
        f"SELECT name, count(DISTINCT row) FROM wrong JOIN indexed_fields ON id = wrong.field "
        f"WHERE state = 'ready' GROUP BY name"
    )
    return {str(name): int(count) for name, count in wrong}


def day(ago: int = 0) -> str:
    return (datetime.now(UTC) - timedelta(days=ago)).date().isoformat()


class FieldIndexes:
    """The indexes of one collection; any thread may use them."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._scanned: dict[str, float] = {}
        self._rejected: dict[str, str] = {}  # name: day
        self._used: set[str] = set()
        self._lock = threading.Lock()
        self._worker: threading.Thread | None = None
        self._resting_until = 0.0
        self._closing = threading.Event()

    def ready(self, db: Database, names: Collection[str]) -> dict[str, int]:
        """Return the numbers of the indexes that serve some of the fields."""
        fields = db.execute("SELECT name, id, used FROM indexed_fields WHERE state = 'ready'")
        ready = {name: (id, used) for name, id, used in fields if name in names}
        if unnoted := [name for name, (_, used) in ready.items() if used < day()]:
            self._start(used=unnoted)
        return {name: id for name, (id, _) in ready.items()}

    def scanned(self, names: Collection[str], seconds: float) -> None:
        """Note a scan for fields without an index; build one when it is worth it."""
        if seconds < COUNTED_SECONDS:
            return
        with self._lock:
            for name in set(names) - {ID, TEXT}:
                if name in self._scanned or len(self._scanned) < 1000:
                    self._scanned[name] = self._scanned.get(name, 0.0) + seconds
            due = any(self._due())
        if due:
            self._start()

    def close(self) -> None:
        """Stop at the end of the step; another process or opening continues."""
        self._closing.set()
        worker = self._worker
        if worker is not None and worker is not threading.current_thread():
            worker.join(CLOSING_SECONDS)

    def wait(self, seconds: float = 60.0) -> None:
        """Wait until nothing is being built or dropped."""
        worker = self._worker
        if worker is not None:
            worker.join(seconds)

    def _due(self) -> list[str]:
        slow = [name for name, sum in self._scanned.items() if sum >= BUILD_AFTER_SECONDS]
        return [name for name in slow if self._rejected.get(name) != day()]

    def _start(self, used: Collection[str] = ()) -> None:
        with self._lock:
            self._used.update(used)
            running = self._worker is not None and self._worker.is_alive()
            resting = time.monotonic() < self._resting_until
            idle = self._connections.read_only or self._closing.is_set()
            if running or resting or idle:
                return
            self._worker = threading.Thread(target=self._work, name="field-indexes", daemon=True)
            self._worker.start()

    def _work(self) -> None:
        try:
            self._choose()
            while not self._closing.is_set():
                started = time.monotonic()
                with self._connections.writing() as db:
                    if not index_step(db):
                        break
                self._closing.wait(PAUSE * (time.monotonic() - started))
        except (sqlite3.Error, AttendError) as error:
            # Filters work without an index, and not every search should try again.
            self._resting_until = time.monotonic() + REST_SECONDS
            log.warning("The indexes of fields stay as they are (%s).", error)

    def _choose(self) -> None:
        with self._lock:
            due, used = self._due(), set(self._used)
            self._used.clear()
        reader = self._connections.reader()
        short = [name for name in due if is_short(reader, name)]
        with self._connections.writing() as db:
            touch_fields(db, used)
            begun = [name for name in short if choose_field(db, name)]
        with self._lock:
            still = {name for name in self._rejected if self._rejected[name] == day()}
            self._rejected = dict.fromkeys(still | set(due) - set(begun), day())
            self._scanned.clear()
        if due:
            log.info("of the fields %s, %s get an index", due, begun)


# -- rows that pass --------------------------------------------------------------------------

CACHED_ROWS = 4_000_000
"""Rows in the cache, of the filters used last: 32 MB."""

OVERHEAD = 100
"""Memory of a cached result beside its rows, in rows."""

FEW_ROWS = 200
"""Reading this number of documents is faster than looking up all that another condition matches."""

FEW = 10
"""If at most one document in this number is counted, the index of rows is the shorter way."""


class Selection:
    """Caches the results of filters by the state of the documents. Threads may share one."""

    def __init__(self, indexes: FieldIndexes) -> None:
        self._indexes = indexes
        self._results = LimitedCache[tuple[int, str], Int64](
            CACHED_ROWS, lambda rows: len(rows) + OVERHEAD
        )
        self._times = LimitedCache[tuple[int, str], tuple[Int64, Float64]](
            CACHED_ROWS, lambda times: 2 * len(times[0]) + OVERHEAD
        )

    def rows(self, db: Database, predicate: Predicate) -> Int64:
        """Return the rows that pass in one read transaction, ascending; not to be written to."""
        key = read_state(db).change, predicate.key
        rows = self._results.read(key, lambda: self.read(db, predicate))
        rows.setflags(write=False)
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

    def times(self, db: Database, field: str) -> tuple[Int64, Float64]:
        """Return the times of documents; see `CollectionStore.times`."""
        check_name(field)
        key, started = (read_state(db).change, field), time.perf_counter()
        if (stored := self._times.get(key)) is not None:
            return stored
        index = self._indexes.ready(db, [field]).get(field)
        values = db.execute(
            f"SELECT row, max(CASE kind WHEN {NUMBER} THEN value "
            f"ELSE moment(CAST(value AS BLOB)) END) AS seconds "
            f"FROM ({_entries(field, index, '1')}) WHERE kind IN ({NUMBER}, {WORDS}) "
            f"GROUP BY row HAVING seconds IS NOT NULL ORDER BY row"
        ).fetchall()
        if index is None:
            self._indexes.scanned({field}, time.perf_counter() - started)
        rows, seconds = zip(*values, strict=True) if values else ((), ())
        both = np.array(rows, dtype=np.int64), np.array(seconds, dtype=np.float64)
        return self._times.put(key, both)


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
        (_, lookup, parameters), field = leaf_sql(leaf), indexed_field(leaf)
        lookup = lookup.replace("{source}", source(field, self._ready.get(field)))
        return self._read(select.format(lookup), parameters)

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
        both = partial(np.intersect1d, assume_unique=True)
        rows = reduce(both, positive) if positive else self._everything()
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


# -- columns --------------------------------------------------------------------------------


def read_column(db: Database, field: str | None, most: int) -> Column:
    """Return ids and values of one field; see `CollectionStore.column`."""
    if field is not None:
        check_name(field)
    documents = db.execute("SELECT count(*) FROM documents").fetchone()[0]
    step = max(1, -(-documents // most))
    value = "NULL" if field is None else f"coalesce({located(field)}, 'null')"
    # Rows of deleted documents leave gaps; what is left of them is a sample all the same.
    select = f"SELECT row, id, {value} FROM documents WHERE row % {step} = 0 ORDER BY row"
    columns = db.execute(select).fetchall()
    rows = np.array([row for row, _, _ in columns], dtype=np.int64)
    values = json.loads(f"[{','.join(text for _, _, text in columns)}]") if field else None
    return Column(rows, [id for _, id, _ in columns], values)


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
