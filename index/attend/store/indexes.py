"""Indexes for the fields that filters use, made in the background and dropped when unused.

In short transactions, with pauses in between: nobody waits long. Any process may go on with
what another began.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Collection

from sqlite_utils import Database

from attend.errors import AttendError
from attend.store import field_values
from attend.store.conditions import ID, TEXT
from attend.store.connections import Connections

log = logging.getLogger("attend")

COUNTED_SECONDS = 0.005
"""A scan that is faster needs no index."""

BUILD_AFTER_SECONDS = 0.25
"""Scanning for a field, all told, after which it gets an index: one slow scan, or some."""

REST_SECONDS = 3600.0
"""After a failure, such as a folder that cannot be written to."""

CLOSING_SECONDS = 5.0

PAUSE = 2
"""Times as long as a step takes is left to other writers before the next."""


class FieldIndexes:
    """The indexes of one collection; any thread may use them."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._scanned: dict[str, float] = {}
        self._refused: dict[str, str] = {}  # name: day
        self._met: set[str] = set()
        self._lock = threading.Lock()
        self._worker: threading.Thread | None = None
        self._resting_until = 0.0
        self._closing = threading.Event()

    def ready(self, db: Database, names: Collection[str]) -> dict[str, int]:
        """The numbers of the indexes that serve some of the names."""
        used = [
            each for each in field_values.fields(db) if each.state == "ready" and each.name in names
        ]
        stale = {each.name for each in used if each.used < field_values.day()}
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
        return [name for name in enough if self._refused.get(name) != field_values.day()]

    def _start(self, met: Collection[str] = ()) -> None:
        with self._lock:
            self._met.update(met)
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
                    if not field_values.step(db):
                        break
                self._closing.wait(PAUSE * (time.monotonic() - started))
        except (sqlite3.Error, AttendError) as error:
            # Filters work without; and what fails now is not tried again at each search.
            self._resting_until = time.monotonic() + REST_SECONDS
            log.warning("The indexes of fields are left as they are (%s).", error)

    def _choose(self) -> None:
        with self._lock:
            wanted, met = self._due(), set(self._met)
            self._met.clear()
        reader = self._connections.reader()
        short = [name for name in wanted if field_values.is_short(reader, name)]
        with self._connections.writing() as db:
            field_values.touch(db, met)
            chosen = [name for name in short if field_values.choose(db, name)]
        with self._lock:
            self._refused = {name: field_values.day() for name in wanted if name not in chosen}
            self._scanned.clear()
        if wanted:
            log.info("of the fields %s, %s get an index", wanted, chosen)
