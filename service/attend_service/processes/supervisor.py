"""The process that starts the serving ones, starts them again when they end, and stops them all.

It holds the listening socket and nothing else: no data, no model. The processes are fresh ones
and no forks, for neither FAISS nor torch survives that. They share the socket, and the system
gives each connection to one of them. What they must agree upon is in the data folder.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import orjson
from prometheus_client.multiprocess import mark_process_dead

from attend.encoder.cores import LIMIT
from attend_service import logs
from attend_service.listening import (
    CannotServe,
    ServerOptions,
    address_of,
    check_folder,
    listening,
    settings_of,
)
from attend_service.metrics import SEVERAL
from attend_service.stopping import DRAIN_SECONDS, stop_signals

log = logging.getLogger("attend")

MODULE = "attend_service.processes.child"

CORES = "OMP_NUM_THREADS"
"""The variable by which torch and FAISS learn how many cores are theirs. Where processes share
them out, each gives its model larger batches."""

LOOK_SECONDS = 0.2

HASTY_SECONDS = 10.0
"""A process that ends sooner would do so again."""

MAX_HASTY = 5
"""So many in a row, and the server gives up."""

STOP_SECONDS = DRAIN_SECONDS + 20.0
"""How long a process may take to stop: it drains, and then waits for its job."""


def run_several(folder: Path, options: ServerOptions, announce: Callable[[str], None]) -> None:
    """Serve a data folder by `options.processes` processes until SIGTERM or Ctrl-C.

    Raises:
        CannotServe, Refused: as `attend_service.server.run`; also where the processes keep ending.
    """
    check_folder(folder, read_only=options.read_only)
    with (
        listening(options, folder) as listener,
        tempfile.TemporaryDirectory(prefix="attend-metrics-") as metrics,
        stop_signals() as stop,
    ):
        settings_of(options, listener)  # what is refused is refused here, and not by each
        several = Several(folder, options, listener, metrics)
        try:
            several.start()
            announce(address_of(listener))
            while not stop.wait(LOOK_SECONDS):
                several.replace_ended()
        finally:
            listener.close()  # the others' copies are closed by them
            several.stop()


class _Process:
    """One serving process of so many; it ends by itself where this one has ended."""

    def __init__(self, asked: dict[str, object], socket_fd: int, metrics: str, count: int) -> None:
        cores = len(os.sched_getaffinity(0))
        # All of them for a text that comes alone, unless whoever started the server said fewer.
        most = os.environ.get(LIMIT) or os.environ.get(CORES) or str(cores)
        self.began = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, "-m", MODULE],
            stdin=subprocess.PIPE,
            pass_fds=[socket_fd],
            env=os.environ | {SEVERAL: metrics} | {CORES: str(max(1, cores // count)), LIMIT: most},
            start_new_session=True,  # a Ctrl-C is for this process, which tells it
        )
        assert self.process.stdin is not None
        self._stdin = self.process.stdin  # open as long as we are: its end tells of ours
        try:
            self._stdin.write(orjson.dumps(asked) + b"\n")
            self._stdin.flush()
        except BrokenPipeError:
            log.warning("A serving process ended before it was told what to do")

    def close(self) -> None:
        """Of a process that has ended."""
        with suppress(BrokenPipeError):
            self._stdin.close()


class Several:
    """The serving processes."""

    def __init__(
        self, folder: Path, options: ServerOptions, listener: socket.socket, metrics: str
    ) -> None:
        self._listener = listener
        self._metrics = metrics
        self._asked = {
            "folder": str(folder.absolute()),
            "options": asdict(options),
            "socket": listener.fileno(),
            "logs": logs.configured(),
        }
        self._count = options.processes
        self._running: list[_Process] = []
        self._hasty = 0

    def start(self) -> None:
        """The first takes connections at once, to tell of its health; the others once warm."""
        self._running = [self._started(warm_first=at > 0) for at in range(self._count)]

    def replace_ended(self) -> None:
        """Start another for each that has ended.

        Raises:
            CannotServe: they keep ending as soon as they are started.
        """
        for at, each in enumerate(self._running):
            code = each.process.poll()
            if code is None:
                continue
            each.close()
            mark_process_dead(each.process.pid, self._metrics)  # type: ignore[no-untyped-call]
            is_hasty = time.monotonic() - each.began < HASTY_SECONDS
            self._hasty = self._hasty + 1 if is_hasty else 0
            if self._hasty >= MAX_HASTY:
                raise CannotServe(
                    f"The serving processes end as soon as they are started, the last one with "
                    f"{code} (a negative number is the signal that ended it); the log has what "
                    f"they said."
                )
            log.error("A serving process ended with %d; another is started", code)
            self._running[at] = self._started(warm_first=self._count > 1)

    def stop(self) -> None:
        """Let all of them finish what they have."""
        for each in self._running:
            each.process.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        for each in self._running:
            try:
                each.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                log.warning("A serving process did not stop in time; it is ended as it is")
                each.process.kill()
                each.process.wait()
            each.close()

    def _started(self, *, warm_first: bool) -> _Process:
        asked = self._asked | {"warm_first": warm_first}
        return _Process(asked, self._listener.fileno(), self._metrics, self._count)
