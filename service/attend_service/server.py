"""The server: one or more worker processes on one port, which granian starts and replaces.

The process that is started holds the port and watches the workers. Each worker is a fresh process
and no fork, since neither FAISS nor torch survives a fork after first use, and opens the data
itself. What the workers must agree upon is in the data folder.
"""

from __future__ import annotations

import logging
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
from typing import Any

from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP1Settings
from granian.log import LogLevels
from granian.server import MPServer

from attend import AttendError
from attend.encoder.batching import LIMIT
from attend_service.jobs import Trainer
from attend_service.jobs.training import train_in_process
from attend_service.metrics import SEVERAL
from attend_service.security.keys import KeyFile
from attend_service.security.limits import HEADER_SECONDS, MAX_HEADERS
from attend_service.settings import ServerSettings, is_loopback
from attend_service.sockets import connection_limit
from attend_service.worker import STOP_SECONDS, Launch, load

log = logging.getLogger("attend")

CORES = "OMP_NUM_THREADS"
"""The variable by which torch and FAISS learn how many cores are theirs. Where workers share
them out, each gives its model larger batches."""

CONNECT_SECONDS = 0.02
"""How often a starting server is asked whether it takes connections."""

LOGS_AS_OURS = {"incremental": True, "handlers": {}, "loggers": {}}
"""granian's own configuration prints to stdout, where callers expect the address alone."""


class CannotServe(Exception):
    """The server cannot start; the sentence says why and what to do."""


class NotAllowed(CannotServe):
    """The server would be open to other machines, which takes an explicit permission."""


class _Server(MPServer):
    """granian, with another way to kill workers that do not stop.

    With its `workers_kill_timeout` two threads wait for a worker, and the one that did not learn
    of its end sometimes says on a busy machine that a worker which stopped at once was killed.
    """

    def shutdown(self, exit_code: int = 0) -> None:
        killing = threading.Timer(STOP_SECONDS, _kill_workers)
        killing.daemon = True
        killing.start()
        super().shutdown(exit_code)  # type: ignore[no-untyped-call]


def _kill_workers() -> None:
    for worker in multiprocessing.active_children():
        log.warning("A worker did not stop within %g s, and is killed.", STOP_SECONDS)
        worker.kill()


def run(
    folder: Path,
    settings: ServerSettings,
    announce: Callable[[str], None],
    trainer: Trainer = train_in_process,
) -> None:
    """Serve a data folder until SIGTERM or Ctrl-C; then finish the running requests, and return.

    A job that runs is cancelled.

    Args:
        announce: called with the server's address once it takes connections.
        trainer: what the jobs run, a function of a module that the workers can import.

    Raises:
        CannotServe: the folder is missing, the address is not free, or the workers keep ending.
        NotAllowed: other machines could connect without a key, and that was not allowed.
    """
    check_folder(folder, read_only=settings.read_only)
    os.umask(0o077)
    if not settings.read_only:
        keep_private(folder)
    with reserved_port(settings, folder) as (host, port), _shared_out(settings.processes):
        multiprocessing.set_start_method("spawn", force=True)
        first = multiprocessing.Lock()
        launch = Launch(folder.absolute(), settings.at(host), port, trainer, first)
        server = _Server(
            "attend",
            host,
            port,
            interface=Interfaces.RSGI,
            workers=settings.processes,
            http=HTTPModes.http1,
            websockets=False,
            backpressure=connection_limit(),
            http1_settings=HTTP1Settings(
                header_read_timeout=int(HEADER_SECONDS * 1000), max_buffer_size=MAX_HEADERS
            ),
            log_level=LogLevels.warning,
            log_dictconfig=LOGS_AS_OURS,
        )

        def announce_start() -> None:
            _wait_for_worker(host, port)
            # From now on: a worker that ends before would do so again.
            server.respawn_failed_workers = True
            announce(address_of(host, port))

        threading.Thread(target=announce_start, daemon=True).start()
        try:
            loader: Any = partial(load, launch)  # granian annotates it more narrowly
            server.serve(target_loader=loader, wrap_loader=False)
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


def check_folder(folder: Path, *, read_only: bool) -> None:
    """Raise CannotServe for a data folder that does not exist, or cannot be written to."""
    if not folder.is_dir():
        raise CannotServe(
            f"There is no data folder {folder}. Build one with 'attend build', or make "
            f"an empty one to fill over HTTP."
        )
    if not read_only and not os.access(folder, os.W_OK):
        raise CannotServe(
            f"The data folder {folder} cannot be written to. Serve it with --read-only, or change "
            f"its permissions."
        )


def keep_private(folder: Path) -> None:
    """Let only the owner of a data folder read it: it has every text, in files of several ages."""
    try:
        if folder.stat().st_mode & 0o077:
            folder.chmod(0o700)
            log.info("The data folder %s was open to others; now it is closed to them.", folder)
    except OSError as error:
        log.warning("The data folder %s is open to others, and stays so: %s", folder, error)


@contextmanager
def reserved_port(settings: ServerSettings, folder: Path) -> Iterator[tuple[str, int]]:
    """Hold a port for the workers, before the data is opened: a taken port is reported at once.

    Yields the numeric address and the port. The socket does not listen; each worker's does.
    """
    try:
        addresses = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise CannotServe(
            f"{settings.host!r} is not an address of this machine ({error})."
        ) from None
    family, _, _, _, address = addresses[0]
    host = str(address[0])
    check_reach(host, settings, folder)
    port = _free_port(family, address, "--port")
    if settings.health_port is not None:
        _free_port(family, (host, settings.health_port, *address[2:]), "--health-port")
    with socket.socket(family) as shared:
        shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        shared.bind((host, port))
        yield host, port


def _free_port(family: socket.AddressFamily, address: Any, flag: str) -> int:
    """Return the port of an address; of port 0, a free one.

    Workers share a port, and so could a second server: this socket, which does not share, fails
    where there is one.

    Raises:
        CannotServe: the port is not free.
    """
    try:
        with socket.socket(family) as alone:
            alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            alone.bind(address)
            alone.listen()
            return int(alone.getsockname()[1])
    except OSError as error:
        raise CannotServe(
            f"Port {address[1]} of {address[0]} is not free ({error.strerror}). Stop the "
            f"program that uses it, or choose another with {flag}."
        ) from None


def check_reach(address: str, settings: ServerSettings, folder: Path) -> None:
    """Raise NotAllowed where other machines could do everything without a key."""
    try:
        has_keys = bool(KeyFile(folder).all())
    except AttendError as error:
        raise CannotServe(str(error)) from None
    if (
        has_keys
        or settings.require_keys
        or settings.allow_remote_without_keys
        or is_loopback(address)
    ):
        return
    raise NotAllowed(
        f"Listening on {settings.host} would let other machines read and write all data, for there "
        f"are no keys to ask for. Make one with 'attend keys add --data {folder}', use "
        f"127.0.0.1, or add --allow-remote-without-keys if that is meant."
    )


def address_of(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
