"""Layouts of maps, fitted in the background: after the keys were published, or once one looks.

One layout is fitted at a time, in a process of its own with the lowest priority, as trainings are
(`attend_service.jobs`): t-SNE holds a processor for seconds. The process stores the layout beside
the index, where every serving process finds it.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import sqlite3
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path

from filelock import FileLock

from attend import Collection, Data
from attend.api.answers import MapPending
from attend.core.errors import AttendError
from attend.measure.layouts import AT_ONCE, FOLDER, fit_layout, stored_layout, version_of
from attend_service.jobs import end_with_parent

log = logging.getLogger("attend")

WATCH_SECONDS = 15.0
"""How often collections are looked at."""

QUIET_SECONDS = 60.0
"""How long a collection must not have changed before its layout is fitted unasked."""

MOST_SECONDS = 600.0
"""The time of one layout; a process that takes longer is killed."""

WAITING_LIMIT = 16
NICE = 19

MapTarget = tuple[str, int]
"""A collection and a version."""

WAITING = MapPending("Waiting", 0.0)


class Maps:
    """Fits layouts one after the other.

    Args:
        data: the collections.
        watches: whether layouts are fitted before anyone asks for one.
    """

    def __init__(self, data: Data, *, watches: bool = False) -> None:
        self._data = data
        self._watches = watches
        self._pending: dict[MapTarget, MapPending] = {}
        self._failed: dict[MapTarget, int] = {}  # the change at which it failed
        self._seen: dict[str, tuple[int, float]] = {}  # the last change of each, and since when
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to watch the collections."""
        with self._lock:
            self._begin()

    def want(self, collection: Collection, *versions: int) -> MapPending | None:
        """Have the layouts of versions fitted; return the progress of the first that is not there.

        None where all are there, or where one cannot be fitted.
        """
        for number in dict.fromkeys(versions):
            target = collection.name, number
            change = collection.store.state().change
            if stored_layout(collection, version_of(collection, number), "tsne") is not None:
                continue
            with self._lock:
                if self._failed.get(target) == change:
                    continue
                if target not in self._pending:
                    if len(self._pending) >= WAITING_LIMIT:
                        return None
                    self._pending[target] = WAITING
                    self._begin()
                    self._wake.set()
                return self._pending[target]
        return None

    def stop(self, seconds: float = 10.0) -> None:
        """Stop the process that works, and wait for the thread."""
        with self._lock:
            self._stopping.set()
            thread = self._thread
        self._wake.set()
        if thread is not None:
            thread.join(seconds)

    def _begin(self) -> None:
        if self._thread is None and not self._stopping.is_set():
            self._thread = threading.Thread(target=self._work, name="maps", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while not self._stopping.is_set():
            with self._lock:
                target = next(iter(self._pending), None)
            if target is None:
                self._wake.wait(WATCH_SECONDS if self._watches else None)
                self._wake.clear()
                if self._watches and not self._stopping.is_set():
                    self._watch()
                continue
            self._fit(target)

    def _fit(self, target: MapTarget) -> None:
        name, number = target
        change = -1
        try:
            collection = self._data.collection(name)
            change = collection.store.state().change
            if self._data.read_only or not collection.folder.is_dir():
                version = version_of(collection, number)  # it cannot be stored: in this process
                fit_layout(collection, version, "tsne", lambda *stage: self._tell(target, *stage))
            else:
                self._fit_apart(collection, target)
            if stored_layout(collection, version_of(collection, number), "tsne") is None:
                self._failed[target] = change
        except (AttendError, OSError, sqlite3.Error) as error:
            log.warning("The map of %s, version %d, was not made: %s", name, number, error)
            self._failed[target] = change
        finally:
            with self._lock:
                self._pending.pop(target, None)

    def _tell(self, target: MapTarget, stage: str, done: float) -> None:
        with self._lock:
            self._pending[target] = MapPending(stage, round(done, 2))

    def _fit_apart(self, collection: Collection, target: MapTarget) -> None:
        spawn = multiprocessing.get_context("spawn")
        messages, sender = spawn.Pipe(duplex=False)
        folder = collection.folder.parent.parent.absolute()
        process = spawn.Process(target=_main, args=(folder, *target, sender), name="map")
        process.start()
        end = time.monotonic() + MOST_SECONDS
        try:
            sender.close()  # the end of the process is then the end of the messages
            while time.monotonic() < end and not self._stopping.is_set():
                if messages.poll(0.2):
                    self._tell(target, *messages.recv())
        except EOFError:
            process.join(1.0)
        finally:
            if process.is_alive():
                process.kill()
                process.join()
            messages.close()

    def _watch(self) -> None:
        """Want the layouts of the active versions of open collections that have come to rest."""
        for name, collection in self._data.opened().items():
            try:
                state = collection.store.state()
                change, since = self._seen.get(name, (-1, 0.0))
                if change != state.change:
                    self._seen[name] = state.change, time.monotonic()
                elif 0 < since < time.monotonic() - QUIET_SECONDS:
                    self._seen[name] = change, 0.0  # it is done, until the next change
                    if collection.store.counts()[0] > AT_ONCE:
                        self.want(collection, state.projection)
            except (AttendError, OSError, sqlite3.Error) as error:
                log.info("The map of %s was not looked at: %s", name, error)


def _main(folder: Path, name: str, number: int, messages: Connection) -> None:
    """Fit a layout; run by the new process."""
    os.setsid()
    os.nice(NICE)
    os.dup2(2, 1)  # the server's stdout has its address alone
    threading.Thread(target=end_with_parent, daemon=True).start()
    data = Data(folder)
    try:
        collection = data.collection(name)
        place = collection.folder / FOLDER
        place.mkdir(exist_ok=True)
        with FileLock(place / "lock"):  # another serving process may be at the same
            version = version_of(collection, number)
            fit_layout(collection, version, "tsne", lambda *stage: messages.send(stage))
    except (AttendError, OSError, sqlite3.Error) as error:
        log.warning("The map of %s was not made: %s", name, error)
    finally:
        data.close()
