"""Trainings in a process of their own, which takes its memory with it when it ends.

In the server's, the libraries that learn would stay in memory for good, and what a training held
would leave gaps among what searches hold. It also ends at once where it does not heed its
cancellation. The process is a fresh one and no fork: neither FAISS nor torch survives that.
"""

from __future__ import annotations

import logging
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import orjson

from attend import Collection, errors
from attend.errors import AttendError
from attend.training import Cancelled

log = logging.getLogger("attend")

LOOK_SECONDS = 0.2
"""How often it is asked whether to stop."""

HEED_SECONDS = 5.0
"""How long a training may take to heed its cancellation; then its process is ended."""


class TrainingFailed(Exception):
    """A training's process ended by a mistake of ours, or was ended by the system."""


def train_apart(
    collection: Collection,
    *,
    progress: Callable[[str, float], None],
    cancelled: Callable[[], bool],
    **fields: Any,
) -> Mapping[str, Any]:
    """As `attend.training.train`, in another process.

    Raises:
        AttendError: as that raises.
        Cancelled: `cancelled` said so.
        TrainingFailed: with what the process said last, for the log.
    """
    with _Child(collection, fields) as child:
        for told in child.lines(cancelled):
            if "stage" in told:
                progress(told["stage"], told["fraction"])
            elif "result" in told:
                collection.views.current()  # before anyone asks by what was learned
                result: Mapping[str, Any] = told["result"]
                return result
            else:
                raise _error(told)
    raise TrainingFailed(
        f"The process of the training ended with {child.process.returncode}; the log has what it "
        f"said. A negative number is the signal that ended it: -9 is most often too little memory."
    )


class _Child:
    """The process, for as long as the block runs."""

    def __init__(self, collection: Collection, fields: Mapping[str, Any]) -> None:
        self._asked = {
            "folder": str(collection.folder.parent.parent.absolute()),
            "collection": collection.name,
            "fields": fields,
        }

    def __enter__(self) -> _Child:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "attend_service.jobs.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # a Ctrl-C is for the server, which tells it
        )
        self._say(orjson.dumps(self._asked))
        return self

    def __exit__(self, *_error: object) -> None:
        for end in (self.process.stdin, self.process.stdout):
            assert end is not None
            end.close()
        try:
            self.process.wait(HEED_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def lines(self, cancelled: Callable[[], bool]) -> Iterator[dict[str, Any]]:
        """What the process tells, until it ends.

        Raises:
            Cancelled: it was told to stop, and did not within `HEED_SECONDS`.
        """
        output, ends_at = self.process.stdout, None
        assert output is not None
        buffer = b""
        while True:
            if ends_at is None and cancelled():
                ends_at = time.monotonic() + HEED_SECONDS
                self._say(b"cancel")
            if ends_at is not None and time.monotonic() > ends_at:
                self.process.kill()
                raise Cancelled
            if not select.select([output], [], [], LOOK_SECONDS)[0]:
                continue
            found = output.read1()  # type: ignore[attr-defined]
            if not found:
                self.process.wait()
                return
            *whole, buffer = (buffer + found).split(b"\n")
            yield from map(orjson.loads, whole)

    def _say(self, line: bytes) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(line + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            log.warning("A training's process ended before it was told what to do")


def _error(told: Mapping[str, Any]) -> Exception:
    """What was raised there; of a kind that takes more than a sentence, the one above it."""
    if "Cancelled" in told["error"]:
        return Cancelled()
    for name in told["error"]:
        kind = getattr(errors, name, None)
        if kind is not None and kind.__init__ is AttendError.__init__:
            error: AttendError = kind(told["says"], field=told["field"])
            error.details = told["details"]
            return error
    return TrainingFailed(told["says"])
