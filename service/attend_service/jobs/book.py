"""Every job on disk, in `DIR/jobs.db`: what a restart goes on from."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
from sqlite_utils import Database, Migrations

from attend.errors import Conflict, Damaged
from attend_service.jobs.job import Job, QueueFull, State

KEPT = 100
"""Finished jobs that are remembered; a report can be large."""

BUSY_SECONDS = 30.0

migrations = Migrations("attend-jobs")


@migrations()
def m001_jobs(db: Database) -> None:
    # AUTOINCREMENT: an address that was given out must never lead to another job.
    db.execute(
        """
        CREATE TABLE jobs (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            collection TEXT NOT NULL,
            request TEXT NOT NULL,
            state TEXT NOT NULL DEFAULT 'queued',
            stage TEXT NOT NULL DEFAULT '',
            fraction REAL NOT NULL DEFAULT 0,
            stopping INTEGER NOT NULL DEFAULT 0,
            created TEXT NOT NULL,
            started TEXT,
            finished TEXT,
            result TEXT,
            problem TEXT
        )
        """
    )
    # Whatever the code does, two trainings never promote side by side.
    db.execute(
        "CREATE UNIQUE INDEX one_by_collection ON jobs (collection) "
        "WHERE state IN ('queued', 'running')"
    )


class Book:
    """Jobs on disk. Any number of threads and processes may use one file."""

    def __init__(self, path: Path) -> None:
        # A job is only ever asked for and told about here: one connection is enough.
        connection = sqlite3.connect(
            path, timeout=BUSY_SECONDS, check_same_thread=False, isolation_level=None
        )
        self._db = Database(connection, execute_plugins=False)
        self._lock = threading.Lock()
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            # Outlives a killed process; a job that a power cut takes away is asked for again.
            connection.execute("PRAGMA synchronous = NORMAL")
            with self._writing() as db:
                migrations.apply(db)
        except sqlite3.DatabaseError as error:
            connection.close()
            raise Damaged(
                f"{path} cannot be opened as the book of jobs ({error}). It holds nothing but past "
                f"and waiting jobs: move it away, or check the folder's permissions."
            ) from error

    def close(self) -> None:
        with self._lock:
            self._db.conn.close()

    # -- reading ----------------------------------------------------------------------------

    def all(self) -> list[Job]:
        """Every job, the newest first."""
        return self._select("1 ORDER BY id DESC")

    def find(self, id: int) -> Job | None:
        return next(iter(self._select("id = ?", id)), None)

    def active(self, collection: str | None = None) -> list[Job]:
        """Jobs that wait or run, the oldest first."""
        by_name = "" if collection is None else "AND collection = ?"
        given = [] if collection is None else [collection]
        return self._select(f"state IN ('queued', 'running') {by_name} ORDER BY id", *given)

    def is_stopping(self, id: int) -> bool:
        found = self.find(id)
        return found is None or found.stopping

    # -- writing ----------------------------------------------------------------------------

    def add(self, collection: str, request: Mapping[str, Any], limit: int) -> Job:
        """A new job that waits.

        Raises:
            Conflict: another of this collection waits or runs.
            QueueFull: `limit` jobs wait.
        """
        now = _now()
        with self._writing() as db:
            self._check_room(db, collection, limit)
            db.execute(
                "DELETE FROM jobs WHERE id IN (SELECT id FROM jobs WHERE finished IS NOT NULL "
                "ORDER BY id DESC LIMIT -1 OFFSET ?)",
                [KEPT - 1],
            )
            db.execute(
                "INSERT INTO jobs (collection, request, created) VALUES (?, ?, ?)",
                [collection, _dumped(request), now],
            )
            return _rows(db, "id = last_insert_rowid()")[0]

    def take(self) -> Job | None:
        """The job that has waited longest, which runs from now on."""
        with self._writing() as db:
            waiting = _rows(db, "state = 'queued' ORDER BY id LIMIT 1")
            for job in waiting:
                db.execute(
                    "UPDATE jobs SET state = 'running', started = ? WHERE id = ?",
                    [_now(), job.id],
                )
            return waiting[0] if waiting else None

    def tell(self, id: int, stage: str, fraction: float) -> None:
        """Note how far a running job is."""
        with self._writing() as db:
            db.execute(
                "UPDATE jobs SET stage = ?, fraction = ? WHERE id = ? AND state = 'running'",
                [stage, fraction, id],
            )

    def finish(
        self,
        id: int,
        state: State,
        *,
        result: Mapping[str, Any] | None = None,
        problem: Mapping[str, Any] | None = None,
    ) -> None:
        """Note how a running job ended."""
        with self._writing() as db:
            db.execute(
                "UPDATE jobs SET state = ?, finished = ?, result = ?, problem = ?, "
                "fraction = iif(? = 'done', 1, fraction) WHERE id = ? AND state = 'running'",
                [state, _now(), _dumped(result), _dumped(problem), state, id],
            )

    def cancel(self, id: int) -> Job | None:
        """Take a waiting job out of the queue, ask a running one to stop, forget a finished one.

        Returns: the job as this leaves it; None for one that is forgotten.
        """
        with self._writing() as db:
            db.execute("DELETE FROM jobs WHERE id = ? AND finished IS NOT NULL", [id])
            db.execute("UPDATE jobs SET stopping = 1 WHERE id = ? AND state = 'running'", [id])
            db.execute(
                "UPDATE jobs SET state = 'cancelled', finished = ? "
                "WHERE id = ? AND state = 'queued'",
                [_now(), id],
            )
            return next(iter(_rows(db, "id = ?", id)), None)

    # -- how --------------------------------------------------------------------------------

    @staticmethod
    def _check_room(db: Database, collection: str, limit: int) -> None:
        active = _rows(db, "state IN ('queued', 'running') ORDER BY id")
        for job in active:
            if job.collection == collection:
                raise Conflict(
                    f"Job {job.id} trains the collection {collection!r} already (it is "
                    f"{job.state}). Wait for it, or cancel it with DELETE /v1/jobs/{job.id}.",
                    field="collection",
                )
        waiting = sum(job.state == "queued" for job in active)
        if waiting >= limit:
            raise QueueFull(
                f"{waiting} jobs wait already, and no more than {limit} may. Try again when one "
                f"is done, or cancel one with DELETE /v1/jobs/{active[-1].id}."
            )

    def _select(self, where: str, *given: Any) -> list[Job]:
        with self._lock:
            return _rows(self._db, where, *given)

    @contextmanager
    def _writing(self) -> Iterator[Database]:
        """A write transaction, which takes its lock at once: what it reads first stays true."""
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
            except BaseException:
                self._db.conn.rollback()
                raise
            self._db.conn.commit()


def _rows(db: Database, where: str, *given: Any) -> list[Job]:
    return [_job(row) for row in db.query(f"SELECT * FROM jobs WHERE {where}", list(given))]


def _job(row: Mapping[str, Any]) -> Job:
    plain = {name: row[name] for name in Job.__dataclass_fields__}
    for name in ("request", "result", "problem"):
        plain[name] = None if plain[name] is None else orjson.loads(plain[name])
    return Job(**plain | {"stopping": bool(plain["stopping"])})


def _dumped(content: Mapping[str, Any] | None) -> str | None:
    """As JSON. NaN, which no JSON holds, becomes null; numpy's numbers are numbers."""
    if content is None:
        return None
    options = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
    return orjson.dumps(content, option=options).decode()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
