"""The thread that runs jobs, one at a time."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attend import Data
from attend_service.jobs.book import Book
from attend_service.jobs.job import Job, Trainer
from attend_service.problems import INTERRUPTED, problem_of

log = logging.getLogger("attend")

POLL_SECONDS = 1.0
"""How often an idle worker looks for jobs that another process took in or left behind."""

TELL_SECONDS = 0.2
"""The least time between two looks at the book, or two entries of one stage."""


class Turn:
    """The right to run a job: one worker has it, over all processes on the folder.

    An SQLite lock, since the system takes it back from a process that is killed.
    """

    def __init__(self, path: Path) -> None:
        self._lock = sqlite3.connect(path, timeout=0, check_same_thread=False, isolation_level=None)

    def take(self) -> bool:
        try:
            self._lock.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                raise
            return False
        return True

    def give_back(self) -> None:
        self._lock.rollback()

    def close(self) -> None:
        self._lock.close()


class Watch:
    """What a running job tells, and is asked to do."""

    def __init__(self, book: Book, id: int, stopping: threading.Event) -> None:
        self._book = book
        self._id = id
        self._stopping = stopping
        self._told = ("", 0.0)
        self._done = 0.0
        self._asked = 0.0
        self.is_cancelled = False

    def progress(self, stage: str, fraction: float) -> None:
        """Note how far it is; of one stage not more often than anyone could read.

        What is done stays done: a stage that counts from its own beginning moves nothing back.
        """
        self._done = min(max(float(fraction), self._done), 1.0)
        told, when = self._told
        if stage == told and time.monotonic() - when < TELL_SECONDS:
            return
        self._told = stage, time.monotonic()
        try:
            self._book.tell(self._id, stage, self._done)
        # What cannot be told is no reason to lose a training.
        except sqlite3.Error as error:
            log.warning("The progress of job %d could not be noted: %s", self._id, error)

    def cancelled(self) -> bool:
        """Whether to stop: a client or the end of the server wants it."""
        self.is_cancelled = self.is_cancelled or self._stopping.is_set() or self._is_in_book()
        return self.is_cancelled

    def _is_in_book(self) -> bool:
        if time.monotonic() - self._asked < TELL_SECONDS:
            return False
        self._asked = time.monotonic()
        return self._book.is_stopping(self._id)


class Worker:
    """Runs what waits in the book, until it is stopped."""

    def __init__(self, data: Data, book: Book, turn: Turn, trainer: Trainer) -> None:
        self._data = data
        self._book = book
        self._turn = turn
        self._trainer = trainer
        self._stopping = threading.Event()
        self._wake = threading.Event()
        # A daemon: a training that does not heed its cancellation must not hold up the exit.
        self._thread = threading.Thread(target=self._work, name="jobs", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Look at the book now."""
        self._wake.set()

    def stop(self, seconds: float) -> bool:
        """Cancel what runs, and wait. Returns whether it ended in time."""
        self._stopping.set()
        self._wake.set()
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while not self._stopping.is_set():
            self._wake.clear()
            try:
                has_run = self._run_next()
            # A full disk or a locked book may pass; without its thread no job would ever run.
            except Exception:
                log.exception("The jobs could not be looked after; this is tried again")
                has_run = False
            if not has_run:
                self._wake.wait(POLL_SECONDS)

    def _run_next(self) -> bool:
        """Run the job that has waited longest, unless another process runs one."""
        if not self._book.active() or not self._turn.take():
            return False
        try:
            self._clear_up()
            job = self._book.take()
            if job is not None:
                self._run(job)
            return job is not None
        finally:
            self._turn.give_back()

    def _clear_up(self) -> None:
        """Whoever has the turn runs nothing yet: what runs by the book died with its process."""
        for job in self._book.active():
            if job.state == "running":
                detail = (
                    f"The server ended while this job ran. Nothing was changed, unless GET "
                    f"/v1/collections/{job.collection}/projections shows a newer version; start "
                    f"it again with POST /v1/collections/{job.collection}/train."
                )
                problem = INTERRUPTED.problem(detail).json()
                self._book.finish(job.id, "failed", problem=problem)

    def _run(self, job: Job) -> None:
        watch = Watch(self._book, job.id, self._stopping)
        try:
            result = self._train(job, watch)
        # Whatever happens to one job, it is told and the next one runs.
        except Exception as error:
            self._note_failure(job, watch, error)
            return
        # One that was cancelled may yet return, with a report of how far it came.
        given_up = watch.is_cancelled and not result.get("promoted")
        self._book.finish(job.id, "cancelled" if given_up else "done", result=result)

    def _train(self, job: Job, watch: Watch) -> Mapping[str, Any]:
        collection = self._data.collection(job.collection)
        return self._trainer(
            collection, progress=watch.progress, cancelled=watch.cancelled, **job.request
        )

    def _note_failure(self, job: Job, watch: Watch, error: Exception) -> None:
        if watch.is_cancelled:
            log.info("job %d was cancelled", job.id, exc_info=error)
            self._book.finish(job.id, "cancelled", problem=self._stopped(job))
            return
        problem = problem_of(error, f"job {job.id}")
        if problem.status >= 500:
            log.error("job %d of %r failed", job.id, job.collection, exc_info=error)
        self._book.finish(job.id, "failed", problem=problem.json())

    def _stopped(self, job: Job) -> Mapping[str, Any] | None:
        """What to say of a job that the end of the server cancelled, and not a client."""
        if not self._stopping.is_set() or self._book.is_stopping(job.id):
            return None
        detail = (
            f"The server was stopped while this job ran, and nothing was changed; start it again "
            f"with POST /v1/collections/{job.collection}/train."
        )
        return INTERRUPTED.problem(detail).json()
