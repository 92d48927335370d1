"""Jobs, work that takes longer than a request: a store remembers them, and one runs at a time.

They are asked for, looked up, cancelled, and run by a thread, each training in a process of its
own, which frees its memory when it ends: in the server's process, the libraries that learn would
stay in memory for good, and a training would leave gaps among the memory of searches. The process
is a fresh one and no fork, since neither FAISS nor torch survives that; where it ignores its
cancellation, it is killed.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sqlite3
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, Literal

import orjson
from filelock import FileLock, Timeout
from sqlite_utils import Database, Migrations

from attend import Collection, Data
from attend.api.base import Reply
from attend.core import errors
from attend.learning import Cancelled, train
from attend.store.connections import database_error
from attend_service.replies import INTERRUPTED, problem_of

log = logging.getLogger("attend")

State = Literal["queued", "running", "done", "failed", "cancelled"]

MAX_ID = 2**63 - 1

WAITING_LIMIT = 16
"""Jobs that may wait."""

POLL_SECONDS = 1.0
"""How often an idle worker looks for jobs of other processes."""

REPORT_SECONDS = 0.2
"""The least time between two looks at the store, or two reports of one stage."""


Trainer = Callable[..., Mapping[str, Any]]
"""`attend.learning.train`, or a test's replacement of it: it takes the collection, `progress` and
`cancelled` as `RunningJob` has them, and the fields of a `TrainRequest`; it returns the report."""

LOOK_SECONDS = 0.2
"""How often `cancelled` is called."""

CANCEL_SECONDS = 5.0
"""How long a training may take to notice its cancellation; then its process is killed."""

NICE = 5
"""The niceness of a training, so that searches come first."""

Message = dict[str, Any]

FINISHED_LIMIT = 100
"""Finished jobs that are remembered, since a report can be large."""

BUSY_SECONDS = 30.0

ACTIVE = "state IN ('queued', 'running')"

migrations = Migrations("attend-jobs")


@migrations()
def m001_jobs(db: Database) -> None:
    # AUTOINCREMENT: an address that was given out must never lead to another job.
    db.execute(
        """
        CREATE TABLE jobs (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            collection TEXT NOT NULL, request TEXT NOT NULL,
            state TEXT NOT NULL DEFAULT 'queued', stopping INTEGER NOT NULL DEFAULT 0,
            stage TEXT NOT NULL DEFAULT '', fraction REAL NOT NULL DEFAULT 0,
            created TEXT NOT NULL, started TEXT, finished TEXT,
            result TEXT, problem TEXT
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


class TrainingFailed(Exception):
    """A training process ended by a defect, or the system ended it."""


class UnknownJob(errors.NotFound):
    """No job has this id, or it is deleted."""

    def __init__(self, id: int) -> None:
        super().__init__(
            f"There is no job {id}; it may be deleted. GET /v1/jobs lists all jobs.", field="job"
        )


class Jobs:
    """The jobs of a data folder, and the thread that runs them.

    `start` or the first use opens the store and starts the thread.
    """

    _store: JobStore
    _turn: FileLock
    _thread: threading.Thread | None = None

    def __init__(self, data: Data, trainer: Trainer, *, limit: int = WAITING_LIMIT) -> None:
        """`limit` is how many jobs may wait."""
        self._data = data
        self._trainer = trainer
        self._limit = limit
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._wake = threading.Event()

    def start(self) -> None:
        """Continue with the jobs that wait; mark those that ran as interrupted."""
        self._open()

    def stop(self, seconds: float = 10.0) -> None:
        """Cancel the running job and wait for it; waiting jobs run after the next start."""
        with self._lock:
            is_stopped = self._stopping.is_set()
            self._stopping.set()
        if is_stopped or self._thread is None:
            return
        self._wake.set()
        self._thread.join(seconds)
        if self._thread.is_alive():
            # Its files stay open: it may still store its end.
            log.warning("A job did not stop within %g s; it ends with the server", seconds)
            return
        self._store.close()

    def submit(self, collection: str, request: Mapping[str, Any]) -> Job:
        """Queue a training of a collection, by its own name.

        Raises:
            UnknownCollection: no collection has this name; an alias is not followed.
            Conflict: a job of this collection waits or runs; the sentence names it.
            QueueFull: too many jobs wait.
        """
        job = self._open().add(unaliased(self._data, collection).name, request, self._limit)
        self._wake.set()
        return job

    def all(self) -> list[Job]:
        """Return every job in the store, the newest first; none where nothing may be written."""
        return [] if self._data.read_only else self._open().all()

    def find(self, id: int) -> Job:
        """Return a job. Raises UnknownJob."""
        may_exist = id <= MAX_ID and not self._data.read_only
        job = self._open().find(id) if may_exist else None
        if job is None:
            raise UnknownJob(id)
        return job

    def cancel(self, id: int) -> Job | None:
        """Remove a waiting job, ask a running one to stop, delete a finished one.

        Returns:
            The job as it is now; None for a deleted one.

        Raises:
            UnknownJob: no job has this id.
        """
        self.find(id)
        return self._open().cancel(id)

    def cancel_all(self, collection: str) -> None:
        """Cancel the jobs of a collection that is going to be dropped."""
        store = self._open()
        for job in store.active(collection):
            store.cancel(job.id)

    def _open(self) -> JobStore:
        with self._lock:
            self._data.check_writable()
            if self._stopping.is_set():
                raise errors.Conflict("The server is stopping; ask again after its next start.")
            if self._thread is None:
                folder = self._data.folder
                self._store = JobStore(folder / "jobs.db")
                # The right to run a job, over all processes on the folder. The system takes it
                # back from a process that is killed.
                self._turn = FileLock(folder / "jobs.lock", blocking=False, thread_local=False)
                # A daemon: a training that ignores its cancellation must not hold up the exit.
                self._thread = threading.Thread(target=self._work, name="jobs", daemon=True)
                self._thread.start()
            return self._store

    def _work(self) -> None:
        while not self._stopping.is_set():
            self._wake.clear()
            try:
                has_run = self._run_next()
            # A full disk or a locked store may pass; without its thread no job would ever run.
            except Exception:
                log.exception("The jobs could not be run; this is tried again")
                has_run = False
            if not has_run:
                self._wake.wait(POLL_SECONDS)

    def _run_next(self) -> bool:
        """Run the job that has waited longest, unless another process runs one."""
        if not self._store.active():
            return False
        try:
            with self._turn:
                for job in self._store.active():
                    if job.state == "running":  # it ended with its process
                        detail = (
                            f"The server ended while this job ran. Nothing was changed, unless GET "
                            f"/v1/collections/{job.collection}/projections shows a newer version; "
                            f"start it again with POST /v1/collections/{job.collection}/train."
                        )
                        problem = INTERRUPTED.problem(detail).json()
                        self._store.finish(job.id, "failed", problem=problem)
                next_job = self._store.take()
                if next_job is not None:
                    self._run(next_job)
                return next_job is not None
        except Timeout:
            return False

    def _run(self, job: Job) -> None:
        running = RunningJob(self._store, job.id, self._stopping)
        try:
            result = self._trainer(
                unaliased(self._data, job.collection),
                progress=running.progress,
                cancelled=running.cancelled,
                **job.request,
            )
        # Whatever happens to one job, it is stored and the next one runs.
        except Exception as error:
            self._note_failure(job, running.is_cancelled, error)
            return
        # A cancelled training may still return a report.
        is_given_up = running.is_cancelled and not result.get("promoted")
        self._store.finish(job.id, "cancelled" if is_given_up else "done", result=result)

    def _note_failure(self, job: Job, is_cancelled: bool, error: Exception) -> None:
        if is_cancelled:
            log.info("job %d was cancelled", job.id, exc_info=error)
            problem = None
            if self._stopping.is_set() and not self._store.is_stopping(job.id):  # no client did it
                detail = (
                    f"The server was stopped while this job ran, and nothing was changed; start it "
                    f"again with POST /v1/collections/{job.collection}/train."
                )
                problem = INTERRUPTED.problem(detail).json()
            self._store.finish(job.id, "cancelled", problem=problem)
            return
        failure = problem_of(error, f"job {job.id}")
        if failure.status >= 500:
            # An error of ours says in its sentence what is the matter.
            trace = None if isinstance(error, errors.AttendError) else error
            log.error("job %d of %r failed: %s", job.id, job.collection, error, exc_info=trace)
        self._store.finish(job.id, "failed", problem=failure.json())


class RunningJob:
    """The progress and the cancellation of a job that runs."""

    def __init__(self, store: JobStore, id: int, stopping: threading.Event) -> None:
        self._store = store
        self._id = id
        self._stopping = stopping
        self._reported = ("", 0.0)
        self._done = 0.0
        self._looked = 0.0
        self.is_cancelled = False

    def progress(self, stage: str, fraction: float) -> None:
        """Store the progress; within one stage, not more often than anyone could read.

        It never falls, though a stage may count from its own beginning.
        """
        self._done = min(max(float(fraction), self._done), 1.0)
        last_stage, when = self._reported
        if stage == last_stage and time.monotonic() - when < REPORT_SECONDS:
            return
        self._reported = stage, time.monotonic()
        try:
            self._store.report(self._id, stage, self._done)
        # No reason to lose a training.
        except sqlite3.Error as error:
            log.warning("The progress of job %d could not be stored: %s", self._id, error)

    def cancelled(self) -> bool:
        """Return whether to stop, since a client or the end of the server requires it."""
        self.is_cancelled = self.is_cancelled or self._stopping.is_set()
        if not self.is_cancelled and time.monotonic() - self._looked >= REPORT_SECONDS:
            self._looked = time.monotonic()
            self.is_cancelled = self._store.is_stopping(self._id)
        return self.is_cancelled


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
            if isinstance(full, errors.CannotWrite):
                raise full from error
            raise errors.Damaged(
                f"{path} cannot be opened as the job store ({error}). It holds nothing but past "
                f"and waiting jobs: move it away, or check the folder's permissions."
            ) from error

    def close(self) -> None:
        with self._lock:
            self._db.conn.close()

    def all(self) -> list[Job]:
        """Return every job, the newest first."""
        return self._select("1 ORDER BY id DESC")

    def find(self, id: int) -> Job | None:
        return next(iter(self._select("id = ?", id)), None)

    def active(self, collection: str | None = None) -> list[Job]:
        """Return the jobs that wait or run, the oldest first."""
        if collection is None:
            return self._select(f"{ACTIVE} ORDER BY id")
        return self._select(f"{ACTIVE} AND collection = ? ORDER BY id", collection)

    def is_stopping(self, id: int) -> bool:
        """Return whether a job was cancelled while it runs, or is deleted."""
        with self._lock:
            rows = list(self._db.query("SELECT stopping FROM jobs WHERE id = ?", [id]))
        return not rows or bool(rows[0]["stopping"])

    def add(self, collection: str, request: Mapping[str, Any], limit: int) -> Job:
        """Add a job that waits.

        Raises:
            Conflict: another of this collection waits or runs.
            QueueFull: `limit` jobs wait.
        """
        with self._writing() as db:
            active = _rows(db, f"{ACTIVE} ORDER BY id")
            for job in active:
                if job.collection == collection:
                    raise errors.Conflict(
                        f"Job {job.id} trains the collection {collection!r} already (it is "
                        f"{job.state}). Wait for it, or cancel it with DELETE /v1/jobs/{job.id}.",
                        field="collection",
                    )
            waiting = sum(job.state == "queued" for job in active)
            if waiting >= limit:
                raise QueueFull(
                    f"{waiting} jobs wait already, which is the limit of {limit}. Try again when "
                    f"one is done, or cancel one with DELETE /v1/jobs/{active[-1].id}."
                )
            db.execute(
                "DELETE FROM jobs WHERE id IN (SELECT id FROM jobs WHERE finished IS NOT NULL "
                "ORDER BY id DESC LIMIT -1 OFFSET ?)",
                [FINISHED_LIMIT - 1],
            )
            db.execute(
                "INSERT INTO jobs (collection, request, created) VALUES (?, ?, ?)",
                [collection, _to_json(request), _now()],
            )
            return _rows(db, "id = last_insert_rowid()")[0]

    def take(self) -> Job | None:
        """Return the job that has waited longest, which runs from now on."""
        with self._writing() as db:
            waiting = _rows(db, "state = 'queued' ORDER BY id LIMIT 1")
            for job in waiting:
                db.execute(
                    "UPDATE jobs SET state = 'running', started = ? WHERE id = ?", [_now(), job.id]
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
        doing = f"{stage.capitalize()}: {fraction:.0%} of the training is done."
        doing = doing if stage else "The training starts."
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


def unaliased(data: Data, name: str) -> Collection:
    """Return the collection of a name that was resolved before: no alias of it is followed.

    Raises:
        UnknownCollection: no collection has the name, or an alias has it by now.
    """
    collection = data.collection(name)
    if collection.name != name:
        raise errors.UnknownCollection(
            f"The collection {name!r} was deleted, and an alias has its name now. Send the request "
            f"again to train the collection that the alias stands for.",
            field="collection",
        )
    return collection


def train_in_process(
    collection: Collection,
    *,
    progress: Callable[[str, float], None],
    cancelled: Callable[[], bool],
    **fields: Any,
) -> Mapping[str, Any]:
    """Run `attend.learning.train` in another process.

    Raises:
        AttendError: as `train` raises it.
        Cancelled: `cancelled` returned true; the process is killed where it did not stop within
            `CANCEL_SECONDS`.
        TrainingFailed: the process ended without a report; its output is in the log.
    """
    spawn = multiprocessing.get_context("spawn")
    messages, sender = spawn.Pipe(duplex=False)
    stop = spawn.Event()
    folder = collection.folder.parent.parent.absolute()
    arguments = (folder, collection.name, fields, sender, stop)
    process = spawn.Process(target=_main, args=arguments, name="training")
    process.start()
    seconds, deadline = CANCEL_SECONDS, None  # for it to end
    try:
        sender.close()  # the end of the process is then the end of the messages
        while True:
            if deadline is None and cancelled():
                deadline = time.monotonic() + CANCEL_SECONDS
                stop.set()
            if deadline is not None and time.monotonic() > deadline:
                raise Cancelled
            if not messages.poll(LOOK_SECONDS):
                continue
            try:
                message: Message = messages.recv()
            except EOFError:
                break
            if "stage" in message:
                progress(message["stage"], message["fraction"])
            elif "result" in message:
                collection.views.current()  # opens the new version before a search needs it
                result: Mapping[str, Any] = message["result"]
                return result
            else:
                raise _error_of(message)
    except Cancelled:
        seconds = 0.0  # it has had its time
        raise
    finally:
        process.join(seconds)
        if process.is_alive():
            process.kill()
            process.join()
        messages.close()
    raise TrainingFailed(
        f"The training process ended with status {process.exitcode}; its output is in the log. A "
        f"negative status is the signal that ended it: -9 is most often too little memory."
    )


def _error_of(message: Message) -> Exception:
    """Return the error of the process; of a class with arguments of its own, the class above."""
    if "Cancelled" in message["error"]:
        return Cancelled()
    for name in message["error"]:
        kind = getattr(errors, name, None)
        if kind is not None and kind.__init__ is errors.AttendError.__init__:
            error: errors.AttendError = kind(message["text"], field=message["field"])
            error.details = message["details"]
            return error
    return TrainingFailed(message["text"])


def _main(
    folder: Path, name: str, fields: Mapping[str, Any], messages: Connection, stop: Event
) -> None:
    """Train; run by the new process."""
    os.setsid()  # a Ctrl-C is for the server, which cancels the training
    os.nice(NICE)
    os.dup2(2, 1)  # the server's stdout has its address alone
    threading.Thread(target=end_with_parent, daemon=True).start()
    data = Data(folder)
    try:
        report = train(
            unaliased(data, name),
            progress=lambda stage, fraction: messages.send({"stage": stage, "fraction": fraction}),
            cancelled=stop.is_set,
            **fields,
        )
        messages.send({"result": report})
    except errors.AttendError as error:
        kinds = [kind.__name__ for kind in type(error).__mro__]
        text, details = str(error), list(error.details)
        messages.send({"error": kinds, "text": text, "field": error.field, "details": details})
    except Exception:
        messages.send({"error": [], "text": traceback.format_exc()})
    finally:
        data.close()


def end_with_parent(seconds: float = 0.0) -> None:
    """Stop this process where the one that started it was killed, within some seconds."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    if seconds:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(seconds)
    os._exit(1)
