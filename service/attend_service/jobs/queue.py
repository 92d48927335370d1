"""The jobs of a data folder: asked for, looked up, cancelled, and run one at a time by a thread."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from filelock import FileLock, Timeout

from attend import Data
from attend.core.errors import AttendError, Conflict, NotFound
from attend_service.jobs.store import Job, JobStore
from attend_service.jobs.training import unaliased
from attend_service.problems import INTERRUPTED, problem_of

log = logging.getLogger("attend")

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
        self.is_cancelled = self.is_cancelled or self._stopping.is_set() or self._is_stopping()
        return self.is_cancelled

    def _is_stopping(self) -> bool:
        if time.monotonic() - self._looked < REPORT_SECONDS:
            return False
        self._looked = time.monotonic()
        return self._store.is_stopping(self._id)


class UnknownJob(NotFound):
    """No job has this id, or it is deleted."""

    def __init__(self, id: int) -> None:
        super().__init__(
            f"There is no job {id}; it may be deleted. GET /v1/jobs lists all jobs.",
            field="job",
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

    def cancel_of(self, collection: str) -> None:
        """Cancel the jobs of a collection that is going to be dropped."""
        store = self._open()
        for job in store.active(collection):
            store.cancel(job.id)

    def _open(self) -> JobStore:
        with self._lock:
            self._data.check_writable()
            if self._stopping.is_set():
                raise Conflict("The server is stopping; ask again after its next start.")
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
                self._clear_up()
                job = self._store.take()
                if job is not None:
                    self._run(job)
                return job is not None
        except Timeout:
            return False

    def _clear_up(self) -> None:
        """Mark jobs as failed that the store has as running: they ended with their process."""
        for job in self._store.active():
            if job.state == "running":
                detail = (
                    f"The server ended while this job ran. Nothing was changed, unless GET "
                    f"/v1/collections/{job.collection}/projections shows a newer version; start "
                    f"it again with POST /v1/collections/{job.collection}/train."
                )
                problem = INTERRUPTED.problem(detail).json()
                self._store.finish(job.id, "failed", problem=problem)

    def _run(self, job: Job) -> None:
        running = RunningJob(self._store, job.id, self._stopping)
        try:
            result = self._train(job, running)
        # Whatever happens to one job, it is stored and the next one runs.
        except Exception as error:
            self._note_failure(job, running, error)
            return
        # A cancelled training may still return a report.
        is_given_up = running.is_cancelled and not result.get("promoted")
        self._store.finish(job.id, "cancelled" if is_given_up else "done", result=result)

    def _train(self, job: Job, running: RunningJob) -> Mapping[str, Any]:
        collection = unaliased(self._data, job.collection)
        return self._trainer(
            collection, progress=running.progress, cancelled=running.cancelled, **job.request
        )

    def _note_failure(self, job: Job, running: RunningJob, error: Exception) -> None:
        if running.is_cancelled:
            log.info("job %d was cancelled", job.id, exc_info=error)
            self._store.finish(job.id, "cancelled", problem=self._stopped(job))
            return
        problem = problem_of(error, f"job {job.id}")
        if problem.status >= 500:
            # An error of ours says in its sentence what is the matter.
            trace = None if isinstance(error, AttendError) else error
            log.error("job %d of %r failed: %s", job.id, job.collection, error, exc_info=trace)
        self._store.finish(job.id, "failed", problem=problem.json())

    def _stopped(self, job: Job) -> Mapping[str, Any] | None:
        """Return the problem of a job that the end of the server cancelled, and not a client."""
        if not self._stopping.is_set() or self._store.is_stopping(job.id):
            return None
        detail = (
            f"The server was stopped while this job ran, and nothing was changed; start it again "
            f"with POST /v1/collections/{job.collection}/train."
        )
        return INTERRUPTED.problem(detail).json()
