"""Indexes of the fields that filters use, built in the background and dropped when unused.

An index is an inverted list, so that any element of a list leads to its document. Triggers update
it from the moment a field is chosen; steps fill it for the documents stored before, in short
transactions with pauses in between. Any process may continue what another began.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from sqlite_utils import Database

from attend.core.errors import AttendError
from attend.store.conditions import WORDS, located, paths
from attend.store.connections import Connections
from attend.store.filters import ID, TEXT
from attend.store.migrations import VALUES_OF

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


class Field(NamedTuple):
    """A row of `indexed_fields`."""

    id: int
    name: str
    state: str
    used: str


def source(name: str, index: int | None) -> str:
    """Return SQL of a table of (row, kind, value) of an index: SQLite's own for ids."""
    if name == ID:
        return f"(SELECT row, {WORDS} AS kind, id AS value FROM documents)"
    return f"(SELECT row, kind, value FROM field_values WHERE field = {index})"


def fields(db: Database) -> list[Field]:
    rows = db.execute("SELECT id, name, state, used FROM indexed_fields ORDER BY used, id")
    return [Field(*row) for row in rows]


def is_short(db: Database, name: str) -> bool:
    """Return whether the values of a field in the first documents are short enough to index."""
    length = db.execute(
        f"SELECT avg(length({located(name)})) FROM (SELECT * FROM documents LIMIT 1000) documents"
    ).fetchone()[0]
    return length is not None and length <= MAX_TEXT


def choose(db: Database, name: str) -> bool:
    """Begin the index of a field. Return false if there is no room for it."""
    indexed = [field for field in fields(db) if field.state != "dropping"]
    if any(field.name == name for field in indexed):
        return True
    if len(indexed) >= MAX_FIELDS:
        if indexed[0].used >= day():
            return False
        _set_state(db, indexed[0], "dropping")
    key, dotted = ("$", "$") if name == "@value" else paths(name)
    db.execute(
        # Of one that is being dropped the entries that are left are right.
        "INSERT INTO indexed_fields (name, whole, dotted, used) VALUES (?, ?, ?, ?) "
        "ON CONFLICT (name) DO UPDATE SET state = 'building', built = 0, used = excluded.used",
        [name, key, dotted, day()],
    )
    return True


def touch(db: Database, names: Collection[str]) -> None:
    """Note that fields were used today, and drop those unused for `UNUSED_DAYS`."""
    for field in fields(db):
        if field.name in names:
            db.execute("UPDATE indexed_fields SET used = ? WHERE id = ?", [day(), field.id])
        elif field.used < day(UNUSED_DAYS):
            _set_state(db, field, "dropping")


def step(db: Database) -> bool:
    """Build or drop a short piece of an index. Return whether there was any to do."""
    for field in fields(db):
        if field.state == "building":
            _build(db, field)
            return True
        if field.state == "dropping":
            _remove_entries(db, field)
            return True
    return False


def check(db: Database) -> Mapping[str, int]:
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


def drop(db: Database, names: Collection[str]) -> None:
    """Drop indexes; filters that scan build them again."""
    for field in fields(db):
        if field.name in names:
            _set_state(db, field, "dropping")


def _set_state(db: Database, field: Field, state: str) -> None:
    """Begin a state, unless it has begun: what is done of it counts."""
    db.execute(
        "UPDATE indexed_fields SET state = ?1, built = 0 WHERE id = ?2 AND state <> ?1",
        [state, field.id],
    )


def _next_rows(db: Database, field: Field) -> tuple[int, int] | None:
    """Return the rows of the next step, (after, last); None if all are done."""
    after = db.execute("SELECT built FROM indexed_fields WHERE id = ?", [field.id]).fetchone()[0]
    last = db.execute(
        "SELECT max(row) FROM (SELECT row FROM documents WHERE row > ? ORDER BY row LIMIT ?)",
        [after, STEP_ROWS],
    ).fetchone()[0]
    if last is None:
        return None
    db.execute("UPDATE indexed_fields SET built = ? WHERE id = ?", [last, field.id])
    return after, last


def _build(db: Database, field: Field) -> None:
    rows = _next_rows(db, field)
    if rows is None:
        _set_state(db, field, "ready")
        return
    # Documents written since the field was chosen are in already, by the triggers.
    db.execute(
        f"INSERT OR IGNORE INTO field_values (field, kind, value, row) {_ALL_VALUES} "
        f"AND field.id = ? AND documents.row > ? AND documents.row <= ?",
        [field.id, *rows],
    )


def _remove_entries(db: Database, field: Field) -> None:
    rows = _next_rows(db, field)
    if rows is None:
        db.execute("DELETE FROM indexed_fields WHERE id = ?", [field.id])
        return
    # The plus sign: by the index of rows, and not through all entries of the field.
    db.execute(
        "DELETE FROM field_values WHERE +field = ? AND row > ? AND row <= ?", [field.id, *rows]
    )


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
        ready = [field for field in fields(db) if field.state == "ready" and field.name in names]
        unnoted = {field.name for field in ready if field.used < day()}
        if unnoted:
            self._start(used=unnoted)
        return {field.name: field.id for field in ready}

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
                    if not step(db):
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
            touch(db, used)
            begun = [name for name in short if choose(db, name)]
        with self._lock:
            still = {name for name in self._rejected if self._rejected[name] == day()}
            self._rejected = dict.fromkeys(still | set(due) - set(begun), day())
            self._scanned.clear()
        if due:
            log.info("of the fields %s, %s get an index", due, begun)
