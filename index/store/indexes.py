"""Indexes for the fields that filters use, made in the background and dropped when unused.

An index is an inverted list, so that any element of a list leads to its document: the table
`field_values`, which triggers keep true from the moment a field is chosen, and which is filled
for older documents in short transactions. Any process may go on with what another began.
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

from index.errors import AttendError
from index.store.conditions import ID, TEXT, WORDS, located, paths
from index.store.connections import Connections
from index.store.migrations import VALUES_OF

log = logging.getLogger("attend")

MAX_FIELDS = 16
"""Fields indexed at once: each makes writing a document some 10 microseconds slower."""

COUNTED_SECONDS = 0.005
"""A scan that is faster needs no index."""

BUILD_AFTER_SECONDS = 0.25
"""Scanning for a field, all told, after which it gets an index: one slow scan, or some."""

UNUSED_DAYS = 30
"""Days without use after which an index is dropped; after one, for another in its place."""

MAX_TEXT = 200
"""Mean length above which texts are not indexed: they are not what filters compare."""

STEP_ROWS = 1000
"""Documents, or entries to drop, in one transaction: some 10 ms."""

CLOSING_SECONDS = 5.0

PAUSE = 2
"""Times as long as a step takes is left to other writers before the next."""


class Field(NamedTuple):
    """An indexed field as its row in `indexed_fields` says."""

    id: int
    name: str
    state: str
    used: str


class FieldIndexes:
    """The indexes of one collection; any thread may use them."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._scanned: dict[str, float] = {}
        self._refused: dict[str, str] = {}  # name: day
        self._met: set[str] = set()
        self._lock = threading.Lock()
        self._worker: threading.Thread | None = None
        self._closing = threading.Event()

    def ready(self, db: Database, names: Collection[str]) -> dict[str, int]:
        """The numbers of the indexes that serve some of the names."""
        used = [each for each in fields(db) if each.state == "ready" and each.name in names]
        stale = {each.name for each in used if each.used < _day()}
        if stale:
            self._start(met=stale)
        return {each.name: each.id for each in used}

    def scanned(self, names: Collection[str], seconds: float) -> None:
        """Take note of a scan for fields that have no index; builds one when it is worth it."""
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
        """Stop at the end of the step; another opening goes on where this one stopped."""
        self._closing.set()
        worker = self._worker
        if worker is not None and worker is not threading.current_thread():
            worker.join(CLOSING_SECONDS)

    def wait(self, seconds: float = 60.0) -> None:
        """Until nothing is being built or dropped."""
        worker = self._worker
        if worker is not None:
            worker.join(seconds)

    def _due(self) -> list[str]:
        enough = [name for name, sum in self._scanned.items() if sum >= BUILD_AFTER_SECONDS]
        return [name for name in enough if self._refused.get(name) != _day()]

    def _start(self, met: Collection[str] = ()) -> None:
        with self._lock:
            self._met.update(met)
            running = self._worker is not None and self._worker.is_alive()
            if running or self._closing.is_set():
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
            # Filters work without; and what fails now is not tried at each search.
            self._closing.set()
            log.warning("The indexes of fields are left as they are (%s).", error)

    def _choose(self) -> None:
        with self._lock:
            wanted, met = self._due(), set(self._met)
            self._met.clear()
        reader = self._connections.reader()
        short = [name for name in wanted if is_short(reader, name)]
        with self._connections.writing() as db:
            touch(db, met)
            chosen = [name for name in short if choose(db, name)]
        with self._lock:
            self._refused = {name: _day() for name in wanted if name not in chosen}
            self._scanned.clear()
        if wanted:
            log.info("of the fields %s, %s get an index", wanted, chosen)


_ALL_VALUES = VALUES_OF.format(row="documents", tables="documents, indexed_fields")


def source(name: str, index: int | None) -> str:
    """SQL of a table of (row, kind, value) that an index serves: SQLite's own for ids."""
    if name == ID:
        return f"(SELECT row, {WORDS} AS kind, id AS value FROM documents)"
    return f"(SELECT row, kind, value FROM field_values WHERE field = {index})"


def fields(db: Database) -> list[Field]:
    rows = db.execute("SELECT id, name, state, used FROM indexed_fields ORDER BY used, id")
    return [Field(*row) for row in rows]


def is_short(db: Database, name: str) -> bool:
    """Whether a field's values, by those of the first documents, are short enough to index."""
    length = db.execute(
        f"SELECT avg(length({located(name)})) FROM (SELECT * FROM documents LIMIT 1000) documents"
    ).fetchone()[0]
    return length is not None and length <= MAX_TEXT


def choose(db: Database, name: str) -> bool:
    """Begin the index of a field. Returns false where there is no room for it."""
    there = [each for each in fields(db) if each.state != "dropping"]
    if any(each.name == name for each in there):
        return True
    if len(there) >= MAX_FIELDS:
        if there[0].used >= _day():
            return False
        _drop(db, there[0])
    whole, dotted = ("$", "$") if name == "@value" else paths(name)
    db.execute(
        "INSERT OR IGNORE INTO indexed_fields (name, whole, dotted, used) VALUES (?, ?, ?, ?)",
        [name, whole, dotted, _day()],
    )
    return True


def touch(db: Database, names: Collection[str]) -> None:
    """Note that fields were used today, and drop those that were not for long."""
    for each in fields(db):
        if each.name in names:
            db.execute("UPDATE indexed_fields SET used = ? WHERE id = ?", [_day(), each.id])
        elif each.used < _day(UNUSED_DAYS):
            _drop(db, each)


def step(db: Database) -> bool:
    """One short piece of what is to be built or dropped. Returns whether there was any."""
    for each in fields(db):
        if each.state == "building":
            _build(db, each)
            return True
        if each.state == "dropping":
            _take_out(db, each)
            return True
    return False


def check(db: Database) -> Mapping[str, int]:
    """How many documents each ready index has wrong entries for; a reading of everything."""
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
    """Let go of indexes; they are built anew where filters ask for it."""
    for each in fields(db):
        if each.name in names:
            _drop(db, each)


def _drop(db: Database, field: Field) -> None:
    _set_state(db, field, "dropping")


def _set_state(db: Database, field: Field, state: str) -> None:
    db.execute("UPDATE indexed_fields SET state = ?, built = 0 WHERE id = ?", [state, field.id])


def _next_rows(db: Database, field: Field) -> tuple[int, int] | None:
    """The documents of the next step, (after, last); None where all are done."""
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
    # What was written since the field was chosen is in already, by the triggers.
    db.execute(
        f"INSERT OR IGNORE INTO field_values (field, kind, value, row) {_ALL_VALUES} "
        f"AND field.id = ? AND documents.row > ? AND documents.row <= ?",
        [field.id, *rows],
    )


def _take_out(db: Database, field: Field) -> None:
    rows = _next_rows(db, field)
    if rows is None:
        db.execute("DELETE FROM indexed_fields WHERE id = ?", [field.id])
        return
    # The plus sign: by the index of rows, and not through all entries of the field.
    db.execute(
        "DELETE FROM field_values WHERE +field = ? AND row > ? AND row <= ?", [field.id, *rows]
    )


def _day(ago: int = 0) -> str:
    return (datetime.now(UTC) - timedelta(days=ago)).date().isoformat()
