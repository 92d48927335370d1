"""Work in the background: what another process does to a data folder, for every page to show.

One process at a time announces its work on a folder. It holds a lock, which the system takes back
if the process is killed, and writes its progress to a file. Servers on the folder read that file;
without a holder of the lock the file is a leftover, and nothing is shown.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

import orjson
from filelock import FileLock, Timeout
from pydantic import TypeAdapter, ValidationError

from attend.api.base import Reply
from attend.core.errors import Conflict, Unsupported
from attend_service.context import context
from attend_service.security import is_allowed, sees_all

FILE, LOCK = "progress.json", "progress.lock"

REPORT_SECONDS = 0.25
"""The least time between two reports of one message's progress."""

LOCK_SECONDS = 2.0
"""How long a process waits for the lock, which a server holds while it looks at a leftover."""


class Work(Reply):
    """The work of another process on the data: building collections, training."""

    state: Literal["idle", "running", "failed"] = "idle"
    collection: str | None = None
    """The collection that it is about; null if it is about all."""
    message: str = ""
    """One sentence for people: the progress, or the error."""
    fraction: float | None = None
    """The share of this step that is done, 0 to 1; null if it is not known."""


IDLE = Work()
_work = TypeAdapter(Work)


class Reports:
    """Writes the progress of this process's work to a folder."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._last = IDLE
        self._time = 0.0

    def __call__(
        self, message: str, fraction: float | None = None, collection: str | None = None
    ) -> None:
        """Report the progress; of reports within `REPORT_SECONDS` that differ little, the first."""
        work = Work("running", collection, message, fraction)
        is_next = collection != self._last.collection or (fraction or 0.0) in (0.0, 1.0)
        if is_next or time.monotonic() - self._time >= REPORT_SECONDS:
            self._write(work)

    def fail(self, message: str) -> None:
        """Report that the work ended with an error; it stays until the lock is released."""
        self._write(Work("failed", None, message))

    def has_failed(self) -> bool:
        """Return whether an error was reported, by this process or the one that does the work."""
        return _read(self._path).state == "failed"

    def clear(self) -> None:
        """Report that nothing is left to do."""
        self._path.unlink(missing_ok=True)

    def _write(self, work: Work) -> None:
        self._last, self._time = work, time.monotonic()
        draft = self._path.with_name(f"{FILE}.{secrets.token_hex(4)}")
        # Progress is no reason to end the work, where the disk is full for instance.
        with suppress(OSError):
            draft.write_bytes(orjson.dumps(_work.dump_python(work)))
            os.replace(draft, self._path)


@contextmanager
def announced(folder: Path) -> Iterator[Reports]:
    """Hold the right to announce work on a folder; what was announced is removed at the end.

    Raises:
        Conflict: another process holds it.
    """
    try:
        with FileLock(folder / LOCK, timeout=LOCK_SECONDS):
            reports = Reports(folder)
            try:
                yield reports
            finally:
                reports.clear()
    except Timeout:
        raise Conflict(
            f"Another process builds the collections of {folder} already. Wait for it or stop it, "
            f"or use another folder with --data."
        ) from None


def work_on(folder: Path) -> Work:
    """Return the work that a process does on a folder; idle where none does any."""
    work = _read(folder / FILE)
    if work is IDLE:
        return IDLE
    try:
        with FileLock(folder / LOCK, blocking=False):
            return IDLE
    except Timeout:
        return work
    except OSError:  # a folder that may not be written to
        return IDLE


def shown_work() -> Work:
    """Return the work that whoever sent the request may know of."""
    try:
        work = work_on(context().data.folder)
    except Unsupported:  # a library on a server has no folder
        return IDLE
    allowed = sees_all() if work.collection is None else is_allowed(work.collection)
    return work if allowed else IDLE


def _read(path: Path) -> Work:
    try:
        return _work.validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return IDLE
