"""The server: one or more worker processes on one port, which granian starts and replaces.

The process that is started holds the port and watches the workers. Each worker is a fresh process
and no fork, since neither FAISS nor torch survives a fork after first use, and opens the data
itself. What the workers must agree upon is in the data folder.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

from granian import Granian
from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP1Settings
from granian.log import LogLevels

from attend.encoder.cores import LIMIT
from attend_service import logs
from attend_service.jobs import Trainer
from attend_service.jobs.apart import train_apart
from attend_service.listening import (
    CannotServe,
    ServerOptions,
    address_of,
    check_folder,
    reserved_port,
    settings_of,
)
from attend_service.metrics import SEVERAL
from attend_service.security.limits import HEADER_SECONDS, MAX_CONNECTIONS, MAX_HEADERS
from attend_service.worker import STOP_SECONDS, Launch, load

CORES = "OMP_NUM_THREADS"
"""The variable by which torch and FAISS learn how many cores are theirs. Where workers share
them out, each gives its model larger batches."""

CONNECT_SECONDS = 0.02
"""How often a starting server is asked whether it takes connections."""

LOGS_AS_OURS = {"incremental": True, "handlers": {}, "loggers": {}}
"""granian's own configuration prints to stdout, where callers expect the address alone."""


def run(
    folder: Path,
    options: ServerOptions,
    announce: Callable[[str], None],
    trainer: Trainer = train_apart,
) -> None:
    """Serve a data folder until SIGTERM or Ctrl-C; then finish the running requests, and return.

    A job that runs is cancelled.

    Args:
        announce: called with the server's address once it takes connections.
        trainer: what the jobs run, a function of a module that the workers can import.

    Raises:
        CannotServe: the folder is missing, the address is not free, or the workers keep ending.
        Refused: other machines could connect without a key, and that was not allowed; or an
            origin has the wrong form.
    """
    check_folder(folder, read_only=options.read_only)
    with reserved_port(options, folder) as (host, port), _shared_out(options.processes):
        settings_of(options, host)  # refuses here, and not in each worker
        multiprocessing.set_start_method("spawn", force=True)
        first = multiprocessing.Lock()
        launch = Launch(folder.absolute(), options, host, trainer, logs.configured(), first)
        server = Granian(
            "attend",
            host,
            port,
            interface=Interfaces.RSGI,
            workers=options.processes,
            http=HTTPModes.http1,
            websockets=False,
            backpressure=MAX_CONNECTIONS,
            http1_settings=HTTP1Settings(
                header_read_timeout=int(HEADER_SECONDS * 1000), max_buffer_size=MAX_HEADERS
            ),
            log_level=LogLevels.warning,
            log_dictconfig=LOGS_AS_OURS,
            workers_kill_timeout=STOP_SECONDS,
        )

        def announce_start() -> None:
            _wait_for_worker(host, port)
            # From now on: a worker that ends before would do so again.
            server.respawn_failed_workers = True
            announce(address_of(host, port))

        threading.Thread(target=announce_start, daemon=True).start()
        try:
            server.serve(target_loader=cast(Any, partial(load, launch)), wrap_loader=False)
        except SystemExit:
            # A worker that a signal to the whole group reached first has not failed.
            if not server.interrupt_signal:
                raise CannotServe(
                    "The worker processes end as soon as they are started; the log has the reason."
                ) from None


def _wait_for_worker(host: str, port: int) -> None:
    """Return once a worker takes connections."""
    while True:
        try:
            socket.create_connection((host, port), timeout=1).close()
            return
        except OSError:
            time.sleep(CONNECT_SECONDS)


@contextmanager
def _shared_out(processes: int) -> Iterator[None]:
    """Have several workers share the cores, and the figures of `/metrics`."""
    if processes == 1:
        yield
        return
    cores = len(os.sched_getaffinity(0))
    # All of them for a text that comes alone, unless whoever started the server allows fewer.
    os.environ[LIMIT] = os.environ.get(LIMIT) or os.environ.get(CORES) or str(cores)
    os.environ[CORES] = str(max(1, cores // processes))
    with tempfile.TemporaryDirectory(prefix="attend-metrics-") as folder:
        os.environ[SEVERAL] = folder
        yield
