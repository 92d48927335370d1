"""The server: one or more worker processes on one port, which granian starts and replaces.

The process that is started holds the port and watches the workers. Each worker is a fresh process
and no fork, since neither FAISS nor torch survives a fork after first use, and opens the data
itself: granian calls `load` there before it takes connections, and the worker's `__rsgi_del__` once
all requests are answered. What the workers must agree upon is in the data folder.
"""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import socket
import sqlite3
import sys
import tempfile
import threading
import time
from asyncio import AbstractEventLoop
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.synchronize import Lock
from pathlib import Path
from typing import Any, NoReturn

from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP1Settings
from granian.log import LogLevels
from granian.server import MPServer
from threadpoolctl import threadpool_limits
from tqdm import tqdm

from attend import AttendError, Data
from attend.core.coalesce import listen
from attend.encoder.passages import LIMIT
from attend_service import logs
from attend_service.app import body_limit, create_app
from attend_service.context import EXTENSION
from attend_service.gateway import Gateway, limit_heap
from attend_service.jobs import Jobs, Trainer, end_with_parent, train_in_process
from attend_service.keys import KeyFile
from attend_service.learner import Learner
from attend_service.maps import Maps
from attend_service.metrics import IS_ONE_OF_SEVERAL, SEVERAL
from attend_service.readiness import Readiness
from attend_service.security import HEADER_SECONDS, MAX_HEADERS
from attend_service.settings import MEBIBYTE, ServerSettings, is_loopback
from attend_service.wsgi import connection_limit, limit_sending, serve_health

log = logging.getLogger("attend")

JOB_SECONDS = 10.0
"""How long a running job may take to notice its cancellation; then it ends with the process."""

STOP_SECONDS = 50
"""How long a worker may take to stop, its requests and its job included; then it is killed."""

REPORT_SECONDS = 0.5
"""How often a worker writes down its queue and cache for the `/metrics` of the others."""

BLAS_THREADS = 1
"""Requests use the cores side by side. With more, the threads of small products wait for each
other in busy loops, which took half of a server's time."""

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
        def kill() -> None:
            for worker in multiprocessing.active_children():
                log.warning("A worker did not stop within %g s, and is killed.", STOP_SECONDS)
                worker.kill()

        killing = threading.Timer(STOP_SECONDS, kill)
        killing.daemon = True
        killing.start()
        super().shutdown(exit_code)  # type: ignore[no-untyped-call]


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
    _check_folder(folder, read_only=settings.read_only)
    os.umask(0o077)
    with reserved_port(settings, folder) as (host, port), _shared_out(settings.processes):
        multiprocessing.set_start_method("spawn", force=True)
        first = multiprocessing.Lock()
        launch = partial(load, folder.absolute(), settings.at(host), port, trainer, first)
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
            is_up = False
            while not is_up:
                with suppress(OSError):
                    socket.create_connection((host, port), timeout=1).close()
                    is_up = True
                time.sleep(CONNECT_SECONDS)
            # From now on: a worker that ends before would do so again.
            server.respawn_failed_workers = True
            announce(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")

        threading.Thread(target=announce_start, daemon=True).start()
        try:
            loader: Any = launch  # granian annotates it more narrowly
            server.serve(target_loader=loader, wrap_loader=False)
        except SystemExit:
            # A worker that a signal to the whole group reached first has not failed.
            if not server.interrupt_signal:
                raise CannotServe(
                    "The worker processes end as soon as they are started; the log has the reason."
                ) from None


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


def _check_folder(folder: Path, *, read_only: bool) -> None:
    """Check that a data folder can be used, and let only its owner read it.

    It has every text, in files of several ages.

    Raises:
        CannotServe: it does not exist, or cannot be written to.
    """
    if not folder.is_dir():
        raise CannotServe(
            f"There is no data folder {folder}. Build one with 'attend build', or make "
            f"an empty one to fill over HTTP."
        )
    if read_only:
        return
    if not os.access(folder, os.W_OK):
        raise CannotServe(
            f"The data folder {folder} cannot be written to. Serve it with --read-only, or change "
            f"its permissions."
        )
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
    is_allowed = has_keys or settings.require_keys or settings.allow_remote_without_keys
    if is_allowed or is_loopback(address):
        return
    raise NotAllowed(
        f"Listening on {settings.host} would let other machines read and write all data, for there "
        f"are no keys to ask for. Make one with 'attend keys add --data {folder}', use "
        f"127.0.0.1, or add --allow-remote-without-keys if that is meant."
    )


def load(
    folder: Path, settings: ServerSettings, port: int, trainer: Trainer, first: Lock
) -> Worker:
    """Open the data in this process; return the RSGI application that granian is to call.

    Args:
        settings: those of a server that listens where this one does.
        port: the port of the server.
        first: a lock that the first of several workers takes for good. That one takes
            connections at once, to report its health; the others only when they are warm.
    """
    logs.configure(settings.log_format, settings.log_level)
    threading.Thread(target=end_with_parent, args=[STOP_SECONDS], daemon=True).start()
    limit_heap()
    threadpool_limits(BLAS_THREADS, "blas")
    # Its own lock is one between processes, which would be left behind; see `end_process`.
    tqdm.set_lock(threading.RLock())
    worker = Worker(folder, settings, port, trainer)
    if not first.acquire(block=False) and settings.processes > 1:
        worker.warming.join()
    return worker


class Worker:
    """An RSGI application with the lifetime of its process."""

    def __init__(self, folder: Path, settings: ServerSettings, port: int, trainer: Trainer) -> None:
        self._settings = settings
        self._port = port
        self._data = Data(
            folder,
            cache_bytes=settings.cache_mib * MEBIBYTE,
            read_only=settings.read_only,
            engine=settings.engine,
            precision=settings.precision,
        )
        self._readiness = Readiness()
        self._jobs = Jobs(self._data, trainer)
        self._maps = Maps(self._data, watches=not settings.read_only)
        self._learner = Learner(self._data, self._jobs, settings)
        app = create_app(self._data, settings, self._readiness, self._jobs, self._maps)
        self._end_traces: Callable[[], object] = lambda: None
        if settings.otel:
            from attend.connect.otel import export_requests  # an extra

            self._end_traces = export_requests(app)
        self._gateway = gateway = Gateway(
            app, settings, partial(body_limit, app), folder=None if settings.read_only else folder
        )
        self._metrics = app.extensions[EXTENSION].metrics
        self._metrics.queue = lambda: (gateway.waiting, gateway.refused)
        self.__rsgi__ = self._gateway.__rsgi__
        self._stopped = threading.Event()
        listen(self._metrics.stages)
        if IS_ONE_OF_SEVERAL:
            threading.Thread(target=self._report, daemon=True).start()
        self.warming = threading.Thread(target=self._warm, name="warm", daemon=True)
        self.warming.start()

    def __rsgi_init__(self, loop: AbstractEventLoop) -> None:
        """Have the loop begin with what granian does not do."""
        self._beginning = loop.create_task(self._begin())

    async def _begin(self) -> None:
        port = self._settings.health_port
        if port is not None:
            self._health = await serve_health(self._settings.host, port, self._gateway.health)
        await limit_sending(self._port)

    def __rsgi_del__(self, _loop: AbstractEventLoop) -> None:
        """Stop the jobs and close the data; granian has sent all answers."""
        self._stopped.set()
        self._readiness.drain()
        finished = self._gateway.close(JOB_SECONDS)
        self.warming.join(JOB_SECONDS)
        self._learner.stop(JOB_SECONDS)
        self._jobs.stop(JOB_SECONDS)
        self._maps.stop(JOB_SECONDS)
        # SQLite does not survive a connection that is closed under a thread that uses it.
        if finished and not self.warming.is_alive():
            self._data.close()
        self._end_traces()
        end_process()

    def _warm(self) -> None:
        """Open everything, then go on with the jobs that wait since before."""
        self._readiness.warm(self._data)
        # What is here now stays: some 270,000 objects, through which a collection would otherwise
        # go again and again, and hold up all requests for 0.15 s each time.
        gc.collect()
        gc.freeze()
        if self._readiness.state == "draining" or self._data.read_only:
            return
        try:
            self._jobs.start()
            self._maps.start()
            self._learner.start()
        # Searches can be answered all the same.
        except (AttendError, OSError, sqlite3.Error) as error:
            log.warning("The waiting jobs cannot be continued: %s", error)

    def _report(self) -> None:
        while not self._stopped.wait(REPORT_SECONDS):
            self._metrics.report()


def end_process() -> NoReturn:
    """End this process without Python's own clean-up.

    That ends granian's threads by unwinding their stacks, to which Rust answers with `abort()`.
    """
    logging.shutdown()
    sys.stdout.flush()
    os._exit(0)
