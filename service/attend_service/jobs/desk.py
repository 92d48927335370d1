"""Where jobs are asked for, looked up and cancelled."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

from attend import Data
from attend.errors import Conflict, NotFound
from attend_service.jobs.book import Book
from attend_service.jobs.job import Job, Trainer
from attend_service.jobs.worker import Turn, Worker

log = logging.getLogger("attend")

MAX_ID = 2**63 - 1


class UnknownJob(NotFound):
    """A job that never was, or is forgotten."""

    def __init__(self, id: int) -> None:
        super().__init__(
            f"There is no job {id}; it never was, or is forgotten. GET /v1/jobs lists those "
            f"there are.",
            field="job",
        )


class _Open(NamedTuple):
    book: Book
    turn: Turn
    worker: Worker


class Jobs:
    """The jobs of a data folder.

    The book is opened, and the worker started, by `start` or the first question: a server may
    fork between making this and answering.
    """

    def __init__(self, data: Data, trainer: Trainer, *, limit: int = 16) -> None:
        """`limit` is how many jobs may wait."""
        self._data = data
        self._trainer = trainer
        self._limit = limit
        self._lock = threading.Lock()
        self._opened: _Open | None = None
        self._is_stopped = False

    def start(self) -> None:
        """Go on with what waits since before; say of what ran that it was interrupted."""
        self._open()

    def stop(self, seconds: float = 10.0) -> None:
        """Cancel what runs, and wait a little for it; what waits is run after the next start."""
        with self._lock:
            opened, self._opened, self._is_stopped = self._opened, None, True
        if opened is None:
            return
        if not opened.worker.stop(seconds):
            # Its files stay open: it may yet write how it ended.
            log.warning("A job did not stop within %g s; it ends with the server", seconds)
            return
        opened.turn.close()
        opened.book.close()

    def submit(self, collection: str, request: Mapping[str, Any]) -> Job:
        """Queue a training.

        Raises:
            UnknownCollection: there is none of this name.
            Conflict: a job of this collection waits or runs; the sentence names it.
            QueueFull: too many wait.
        """
        # By its own name: an alias may stand for another one when the job's turn comes.
        name = self._data.collection(collection).name
        opened = self._open()
        job = opened.book.add(name, request, self._limit)
        opened.worker.wake()
        return job

    def all(self) -> list[Job]:
        """Every job that is remembered, the newest first."""
        return self._open().book.all()

    def find(self, id: int) -> Job:
        """Raises UnknownJob."""
        found = self._open().book.find(id) if id <= MAX_ID else None
        if found is None:
            raise UnknownJob(id)
        return found

    def cancel(self, id: int) -> Job | None:
        """Take a waiting job out, ask a running one to stop, forget a finished one.

        Returns:
            The job as it is now; None for a forgotten one.

        Raises:
            UnknownJob: there is none of this id.
        """
        self.find(id)
        return self._open().book.cancel(id)

    def cancel_of(self, collection: str) -> None:
        """Cancel what waits or runs for a collection, which is going to be dropped."""
        book = self._open().book
        for job in book.active(collection):
            book.cancel(job.id)

    def _open(self) -> _Open:
        with self._lock:
            self._data.check_writable()
            if self._is_stopped:
                raise Conflict("The server is stopping; ask again after its next start.")
            if self._opened is None:
                self._opened = self._opening()
            return self._opened

    def _opening(self) -> _Open:
        folder = self._data.folder
        book, turn = Book(folder / "jobs.db"), Turn(folder / "jobs.lock")
        worker = Worker(self._data, book, turn, self._trainer)
        worker.start()
        return _Open(book, turn, worker)
