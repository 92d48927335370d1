"""Trainings in a process of their own, which frees its memory when it ends.

In the server's process, the libraries that learn would stay in memory for good, and a training
would leave gaps among the memory of searches. The process is a fresh one and no fork, since
neither FAISS nor torch survives that; where it ignores its cancellation, it is killed.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from attend import Collection, Data
from attend.core import errors
from attend.core.errors import AttendError, UnknownCollection
from attend.learning import Cancelled, train

LOOK_SECONDS = 0.2
"""How often `cancelled` is called."""

CANCEL_SECONDS = 5.0
"""How long a training may take to notice its cancellation; then its process is killed."""

NICE = 5
"""The niceness of a training, so that searches come first."""

Message = dict[str, Any]


class TrainingFailed(Exception):
    """A training process ended by a defect, or the system ended it."""


def unaliased(data: Data, name: str) -> Collection:
    """Return the collection of a name that was resolved before: no alias of it is followed.

    Raises:
        UnknownCollection: no collection has the name, or an alias has it by now.
    """
    collection = data.collection(name)
    if collection.name != name:
        raise UnknownCollection(
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
        Cancelled: `cancelled` returned true.
        TrainingFailed: the process ended without a report; its output is in the log.
    """
    spawn = multiprocessing.get_context("spawn")
    messages, sender = spawn.Pipe(duplex=False)
    stop = spawn.Event()
    folder = collection.folder.parent.parent.absolute()
    arguments = (folder, collection.name, fields, sender, stop)
    process = spawn.Process(target=_main, args=arguments, name="training")
    with messages, _running(process):
        sender.close()  # the end of the process is then the end of the messages
        for message in _received(messages, stop, cancelled):
            if "stage" in message:
                progress(message["stage"], message["fraction"])
            elif "result" in message:
                collection.views.current()  # opens the new version before a search needs it
                result: Mapping[str, Any] = message["result"]
                return result
            else:
                raise _error_of(message)
    raise TrainingFailed(
        f"The training process ended with status {process.exitcode}; its output is in the log. A "
        f"negative status is the signal that ended it: -9 is most often too little memory."
    )


@contextmanager
def _running(process: SpawnProcess) -> Iterator[None]:
    """Start a process; kill it if it does not end after the block."""
    process.start()
    seconds = CANCEL_SECONDS
    try:
        yield
    except Cancelled:
        seconds = 0.0  # it has had its time
        raise
    finally:
        process.join(seconds)
        if process.is_alive():
            process.kill()
            process.join()


def _received(
    messages: Connection, stop: Event, cancelled: Callable[[], bool]
) -> Iterator[Message]:
    """Yield the messages of the process until it ends.

    Raises:
        Cancelled: it did not stop within `CANCEL_SECONDS` of its cancellation.
    """
    deadline = None
    while True:
        if deadline is None and cancelled():
            deadline = time.monotonic() + CANCEL_SECONDS
            stop.set()
        if deadline is not None and time.monotonic() > deadline:
            raise Cancelled
        if messages.poll(LOOK_SECONDS):
            try:
                message: Message = messages.recv()
            except EOFError:
                return
            yield message


def _error_of(message: Message) -> Exception:
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


def _main(
    folder: Path, name: str, fields: Mapping[str, Any], messages: Connection, stop: Event
) -> None:
    """Train; run by the new process."""
    os.setsid()  # a Ctrl-C is for the server, which cancels the training
    os.nice(NICE)
    os.dup2(2, 1)  # the server's stdout has its address alone
    threading.Thread(target=_end_with_parent, daemon=True).start()
    data = Data(folder)
    try:
        report = train(
            unaliased(data, name),
            progress=lambda stage, fraction: messages.send({"stage": stage, "fraction": fraction}),
            cancelled=stop.is_set,
            **fields,
        )
        messages.send({"result": report})
    except AttendError as error:
        kinds = [kind.__name__ for kind in type(error).__mro__]
        text, details = str(error), list(error.details)
        messages.send({"error": kinds, "text": text, "field": error.field, "details": details})
    except Exception:
        messages.send({"error": [], "text": traceback.format_exc()})
    finally:
        data.close()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
