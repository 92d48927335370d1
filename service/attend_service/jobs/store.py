"""The job store, `DIR/jobs.db`: every job on disk, so that a restart forgets none."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import orjson
from sqlite_utils import Database, Migrations

from attend.api.base import Reply
from attend.core.errors import CannotWrite, Conflict, Damaged
from attend.store.connections import database_error

State = Literal["queued", "running", "done", "failed", "cancelled"]

FINISHED_LIMIT = 100
"""Finished jobs that are remembered, since a report can be large."""

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


class QueueFull(Exception):
    """As many jobs wait as the limit allows."""


class JobProgress(Reply):
    """The progress of a job."""

    stage: str
    fraction: float
    """The share of the whole that is done, 0 to 1."""
    message: str
    """One sentence for people."""


class JobSummary(Reply):
    """A training in a list of jobs. Times are UTC, in ISO 8601."""

    id: int
    collection: str
    state: State
    progress: JobProgress
    created: str
    started: str | None
    finished: str | None


class Job(JobSummary):
    """A training with its request and its result."""

    request: Mapping[str, Any]
    result: Mapping[str, Any] | None
    """The report of a finished training."""
    problem: Mapping[str, Any] | None
    """The error of a failed training, as `ProblemDetails`."""

    def summary(self) -> JobSummary:
        """Return the job without its request and its result, which may be long."""
        return JobSummary(*(getattr(self, field.name) for field in fields(JobSummary)))


class JobStore:
    """Jobs on disk. Any number of threads and processes may use one file."""

    def __init__(self, path: Path) -> None:
        # The queries are few and short: one connection is enough.
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
            full = database_error(error, path)
            if isinstance(full, CannotWrite):
                raise full from error
            raise Damaged(
                f"{path} cannot be opened as the job store ({error}). It holds nothing but past "
                f"and waiting jobs: move it away, or check the folder's permissions."
            ) from error

    def close(self) -> None:
        with self._lock:
            self._db.conn.close()

    # -- reading ----------------------------------------------------------------------------

    def all(self) -> list[Job]:
        """Return every job, the newest first."""
        return self._select("1 ORDER BY id DESC")

    def find(self, id: int) -> Job | None:
        return next(iter(self._select("id = ?", id)), None)

    def active(self, collection: str | None = None) -> list[Job]:
        """Return the jobs that wait or run, the oldest first."""
        by_name = "" if collection is None else "AND collection = ?"
        names = [] if collection is None else [collection]
        return self._select(f"state IN ('queued', 'running') {by_name} ORDER BY id", *names)

    def is_stopping(self, id: int) -> bool:
        """Return whether a job was cancelled while it runs, or is deleted."""
        with self._lock:
            rows = list(self._db.query("SELECT stopping FROM jobs WHERE id = ?", [id]))
        return not rows or bool(rows[0]["stopping"])

    # -- writing ----------------------------------------------------------------------------

    def add(self, collection: str, request: Mapping[str, Any], limit: int) -> Job:
        """Add a job that waits.

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
                [FINISHED_LIMIT - 1],
            )
            db.execute(
                "INSERT INTO jobs (collection, request, created) VALUES (?, ?, ?)",
                [collection, _to_json(request), now],
            )
            return _rows(db, "id = last_insert_rowid()")[0]

    def take(self) -> Job | None:
        """Return the job that has waited longest, which runs from now on."""
        with self._writing() as db:
            waiting = _rows(db, "state = 'queued' ORDER BY id LIMIT 1")
            for job in waiting:
                db.execute(
                    "UPDATE jobs SET state = 'running', started = ? WHERE id = ?",
                    [_now(), job.id],
                )
            return waiting[0] if waiting else None

    def report(self, id: int, stage: str, fraction: float) -> None:
        """Store the progress of a running job."""
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
        """Store the end of a running job."""
        with self._writing() as db:
            db.execute(
                "UPDATE jobs SET state = ?, finished = ?, result = ?, problem = ?, "
                "fraction = iif(? = 'done', 1, fraction) WHERE id = ? AND state = 'running'",
                [state, _now(), _to_json(result), _to_json(problem), state, id],
            )

    def cancel(self, id: int) -> Job | None:
        """Remove a waiting job from the queue, ask a running one to stop, delete a finished one.

        Returns: the job as this leaves it; None for a deleted one.
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

    # -- helpers --------------------------------------------------------------------------------

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
                f"{waiting} jobs wait already, which is the limit of {limit}. Try again when one "
                f"is done, or cancel one with DELETE /v1/jobs/{active[-1].id}."
            )

    def _select(self, where: str, *values: Any) -> list[Job]:
        with self._lock:
            return _rows(self._db, where, *values)

    @contextmanager
    def _writing(self) -> Iterator[Database]:
        """A write transaction, which takes its lock at once: what it reads first stays true."""
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.conn.commit()  # one that fails leaves the transaction open
            except BaseException:
                self._db.conn.rollback()
                raise


def _rows(db: Database, where: str, *values: Any) -> list[Job]:
    return [_job(row) for row in db.query(f"SELECT * FROM jobs WHERE {where}", list(values))]


def _job(row: Mapping[str, Any]) -> Job:
    plain = {name: row[name] for name in Job.__dataclass_fields__ if name != "progress"}
    for name in ("request", "result", "problem"):
        plain[name] = None if plain[name] is None else orjson.loads(plain[name])
    stage, fraction = row["stage"], row["fraction"]
    if plain["problem"] is not None:
        message = str(plain["problem"]["detail"])
    elif plain["state"] == "running":
        doing = f"{stage.capitalize() or 'Begins'}, {fraction:.0%} of the whole done."
        message = "Stops at its next step." if row["stopping"] else doing
    elif plain["state"] == "done":
        message = str((plain["result"] or {}).get("reason") or "Done.")
    else:
        is_queued = plain["state"] == "queued"
        message = "Waits for its turn." if is_queued else "Cancelled; nothing was changed."
    return Job(progress=JobProgress(stage, fraction, message), **plain)


def _to_json(content: Mapping[str, Any] | None) -> str | None:
    """Return JSON; NaN, which JSON does not have, becomes null."""
    if content is None:
        return None
    options = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
    return orjson.dumps(content, option=options).decode()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
