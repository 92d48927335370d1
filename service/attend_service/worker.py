"""A worker process of the server: it opens the data, answers, and stops without cutting a request.

granian imports this module in a fresh process, calls `load` there before it takes connections,
and calls the worker's `__rsgi_del__` once all requests are answered.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sqlite3
import sys
import threading
import time
from asyncio import AbstractEventLoop
from dataclasses import dataclass
from functools import partial
from multiprocessing.synchronize import Lock
from pathlib import Path
from typing import NoReturn

from threadpoolctl import threadpool_limits
from tqdm import tqdm

from attend import AttendError, Data
from attend.core.coalesce import listen
from attend_service import logs
from attend_service.app import body_limit, create_app
from attend_service.gateway import Gateway, Patience
from attend_service.jobs import Jobs, Trainer
from attend_service.metrics import IS_ONE_OF_SEVERAL, QueueState, metrics_of
from attend_service.readiness import Readiness
from attend_service.settings import MEBIBYTE, ServerSettings
from attend_service.shared import limit_heap
from attend_service.sockets import limit_sending, serve_health

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


@dataclass(frozen=True)
class Launch:
    """What a worker process needs to know.

    Attributes:
        settings: those of a server that listens where this one does.
        port: the port of the server.
        first: a lock that the first of several workers takes for good. That one takes
            connections at once, to report its health; the others only when they are warm.
    """

    folder: Path
    settings: ServerSettings
    port: int
    trainer: Trainer
    first: Lock


def load(launch: Launch) -> Worker:
    """Open the data in this process; return the RSGI application that granian is to call."""
    logs.configure(launch.settings.log_format, launch.settings.log_level)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    limit_heap()
    threadpool_limits(BLAS_THREADS, "blas")
    # Its own lock is one between processes, which would be left behind; see `end_process`.
    tqdm.set_lock(threading.RLock())
    worker = Worker(launch)
    if not launch.first.acquire(block=False) and launch.settings.processes > 1:
        worker.warming.join()
    return worker


class Worker:
    """An RSGI application with the lifetime of its process."""

    def __init__(self, launch: Launch) -> None:
        settings = launch.settings
        self._data = Data(
            launch.folder,
            cache_bytes=settings.cache_mib * MEBIBYTE,
            read_only=settings.read_only,
            engine=settings.engine,
        )
        self._launch = launch
        self._readiness = Readiness()
        self._jobs = Jobs(self._data, launch.trainer)
        app = create_app(self._data, settings, self._readiness, self._jobs)
        self._gateway = Gateway(
            app,
            threads=settings.threads,
            queue=settings.queue,
            max_body=settings.max_body_bytes,
            body_limit=partial(body_limit, app),
            folder=None if settings.read_only else launch.folder,
            patience=Patience(answer=settings.deadline),
        )
        self._metrics = metrics_of(app)
        gateway = self._gateway
        self._metrics.queue = QueueState(lambda: gateway.waiting, lambda: gateway.refused)
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
        host, port = self._launch.settings.host, self._launch.settings.health_port
        if port is not None:
            self._health = await serve_health(host, port, self._gateway.health)
        await limit_sending(self._launch.port)

    def __rsgi_del__(self, _loop: AbstractEventLoop) -> None:
        """Stop the jobs and close the data; granian has sent all answers."""
        self._stopped.set()
        self._readiness.drain()
        finished = self._gateway.close(JOB_SECONDS)
        self.warming.join(JOB_SECONDS)
        self._jobs.stop(JOB_SECONDS)
        # SQLite does not survive a connection that is closed under a thread that uses it.
        if finished and not self.warming.is_alive():
            self._data.close()
        end_process()

    def _warm(self) -> None:
        """Open everything, then go on with the jobs that wait since before."""
        self._readiness.warm(self._data)
        if self._readiness.now().state == "draining" or self._data.read_only:
            return
        try:
            self._jobs.start()
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


def _end_with_parent() -> None:
    """Stop this process where the one that started it was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(STOP_SECONDS)
    os._exit(1)
