"""Trainings in a process of their own, which frees its memory when it ends.

In the server's process, the libraries that learn would stay in memory for good, and a training
would leave gaps among the memory of searches. The process is a fresh one and no fork, since
neither FAISS nor torch survives that; where it ignores its cancellation, it is killed.

The process, `python -m attend_service.jobs.training`, reads its request from stdin, one line of
JSON, and later perhaps the line `cancel`. It writes lines of JSON to stdout: its progress, and at
the end the result or the error. Where stdin ends, the server has ended, and so does the process.
"""

from __future__ import annotations

import logging
import os
import select
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import orjson

from attend import Collection, Data, errors
from attend.errors import AttendError
from attend.training import Cancelled, train

log = logging.getLogger("attend")

LOOK_SECONDS = 0.2
"""How often `cancelled` is called."""

CANCEL_SECONDS = 5.0
"""How long a training may take to notice its cancellation; then its process is killed."""

NICE = 5
"""The niceness of a training, so that searches come first."""


class TrainingFailed(Exception):
    """A training process ended by a defect, or the system ended it."""


def train_in_process(
    collection: Collection,
    *,
    progress: Callable[[str, float], None],
    cancelled: Callable[[], bool],
    **fields: Any,
) -> Mapping[str, Any]:
    """Run `attend.training.train` in another process.

    Raises:
        AttendError: as `train` raises it.
        Cancelled: `cancelled` returned true.
        TrainingFailed: the process ended without a report; its output is in the log.
    """
    with _TrainingProcess(collection, fields) as training:
        for message in training.messages(cancelled):
            if "stage" in message:
                progress(message["stage"], message["fraction"])
            elif "result" in message:
                collection.views.current()  # opens the new version before a search needs it
                result: Mapping[str, Any] = message["result"]
                return result
            else:
                raise _error_of(message)
    raise TrainingFailed(
        f"The training process ended with status {training.process.returncode}; its output is in "
        f"the log. A negative status is the signal that ended it: -9 is most often too little "
        f"memory."
    )


class _TrainingProcess:
    """The process, for as long as the block runs."""

    def __init__(self, collection: Collection, fields: Mapping[str, Any]) -> None:
        self._request = {
            "folder": str(collection.folder.parent.parent.absolute()),
            "collection": collection.name,
            "fields": fields,
        }

    def __enter__(self) -> _TrainingProcess:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "attend_service.jobs.training"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # a Ctrl-C is for the server, which cancels the training
        )
        self._send(orjson.dumps(self._request))
        return self

    def __exit__(self, *_error: object) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
        try:
            self.process.wait(CANCEL_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def messages(self, cancelled: Callable[[], bool]) -> Iterator[dict[str, Any]]:
        """Yield the messages of the process until it ends.

        Raises:
            Cancelled: it did not stop within `CANCEL_SECONDS` of its cancellation.
        """
        output, deadline = self.process.stdout, None
        assert output is not None
        buffer = b""
        while True:
            if deadline is None and cancelled():
                deadline = time.monotonic() + CANCEL_SECONDS
                self._send(b"cancel")
            if deadline is not None and time.monotonic() > deadline:
                self.process.kill()
                raise Cancelled
            if not select.select([output], [], [], LOOK_SECONDS)[0]:
                continue
            received = output.read1()  # type: ignore[attr-defined]
            if not received:
                self.process.wait()
                return
            *lines, buffer = (buffer + received).split(b"\n")
            yield from map(orjson.loads, lines)

    def _send(self, line: bytes) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(line + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            log.warning("A training process ended before it read its request")


def _error_of(message: Mapping[str, Any]) -> Exception:
    """Return the error of the process; of a class with arguments of its own, the class above."""
    if "Cancelled" in message["error"]:
        return Cancelled()
    for name in message["error"]:
        kind = getattr(errors, name, None)
        if kind is not None and kind.__init__ is AttendError.__init__:
            error: AttendError = kind(message["text"], field=message["field"])
            error.details = message["details"]
            return error
    return TrainingFailed(message["text"])


def main() -> None:
    """Train as stdin requests."""
    os.nice(NICE)
    # Unbuffered: Python's end fails where a thread waits for a buffered stdin.
    requests = open(sys.stdin.fileno(), "rb", buffering=0, closefd=False)  # noqa: SIM115
    # The output of libraries must not stand among the messages.
    messages = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    request = orjson.loads(requests.readline())
    cancelled = threading.Event()
    threading.Thread(target=_listen, args=[requests, cancelled], daemon=True).start()
    _write(messages, _train(request, messages, cancelled))


def _listen(requests: IO[bytes], cancelled: threading.Event) -> None:
    while requests.readline():
        cancelled.set()
    os._exit(1)  # the server has ended, and nobody reads the result


def _train(
    request: dict[str, Any], messages: IO[bytes], cancelled: threading.Event
) -> dict[str, Any]:
    """Return the last message."""
    data = Data(Path(request["folder"]))
    try:
        report = train(
            data.collection(request["collection"]),
            progress=lambda stage, fraction: _write(
                messages, {"stage": stage, "fraction": fraction}
            ),
            cancelled=cancelled.is_set,
            **request["fields"],
        )
    except AttendError as error:
        kinds = [kind.__name__ for kind in type(error).__mro__]
        details = list(error.details)
        return {"error": kinds, "text": str(error), "field": error.field, "details": details}
    except Exception:
        return {"error": [], "text": traceback.format_exc()}
    finally:
        data.close()
    return {"result": report}


def _write(messages: IO[bytes], message: dict[str, Any]) -> None:
    options = orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
    messages.write(orjson.dumps(message, option=options))
    messages.flush()


if __name__ == "__main__":
    main()
