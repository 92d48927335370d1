"""One process that serves: listen, warm up, answer, and stop without dropping a request."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from pathlib import Path

from flask import Flask
from threadpoolctl import threadpool_limits
from waitress.server import TcpWSGIServer, create_server

from attend import AttendError, Data
from attend_service.app import create_app
from attend_service.channel import Channel
from attend_service.jobs import Jobs, Trainer
from attend_service.jobs.apart import train_apart
from attend_service.listening import ServerOptions, address_of, check_folder, listening, settings_of
from attend_service.loop import Loop
from attend_service.metrics import Metrics, QueueState, listening_to_stages, metrics_of
from attend_service.queueing import BoundedDispatcher
from attend_service.readiness import Readiness
from attend_service.security.limits import IDLE_SECONDS, MAX_CONNECTIONS, MAX_HEADERS, SlowClients
from attend_service.settings import MEBIBYTE
from attend_service.stopping import drain, is_busy, stop_signals

log = logging.getLogger("attend")

STOP_SECONDS = 10.0
"""How long a running job may take to heed its cancellation; after that it ends as it is."""

BLAS_THREADS = 1
"""Requests use the cores side by side. With more, the threads of small products wait for each
other by turning in circles, which took half of a server's time."""

RECEIVED = 65_536
"""Bytes read at once: a query by vector has some ten thousand."""


def run(
    folder: Path,
    options: ServerOptions,
    announce: Callable[[str], None],
    trainer: Trainer = train_apart,
) -> None:
    """Serve a data folder until SIGTERM or Ctrl-C; then finish what runs, and return.

    Requests that run are answered; a job that runs is cancelled.

    Args:
        announce: called with the server's address once it takes connections.
        trainer: what the jobs run.

    Raises:
        CannotServe: the folder is missing, or the address cannot be had.
        Refused: other machines could connect without a key, and that was not allowed; or what
            was given as an origin is none.
    """
    check_folder(folder, read_only=options.read_only)
    with listening(options, folder) as listener, stop_signals() as stop:
        address = address_of(listener)
        serve(folder, options, listener, stop, trainer, begun=lambda: announce(address))


def serve(
    folder: Path,
    options: ServerOptions,
    listener: socket.socket,
    stop: threading.Event,
    trainer: Trainer = train_apart,
    *,
    begun: Callable[[], None] = lambda: None,
    warm_first: bool = False,
) -> None:
    """Serve on a socket that listens, until `stop` is set.

    Args:
        begun: called once nothing stands in the way any more.
        warm_first: take no connection before everything is open, for others do meanwhile.
    """
    data = Data(
        folder,
        cache_bytes=options.cache_mib * MEBIBYTE,
        read_only=options.read_only,
        engine=options.engine,
    )
    settings, readiness = settings_of(options, listener), Readiness()
    jobs = Jobs(data, trainer, limit=settings.max_jobs)
    app = create_app(data, settings, readiness, jobs)
    server = _server(app, listener, options)
    begun()
    warming = threading.Thread(target=_warm, args=[data, readiness, jobs], name="warm")
    warming.start()
    if warm_first:
        warming.join()
    with listening_to_stages(metrics_of(app)), threadpool_limits(BLAS_THREADS, "blas"):
        loop = Loop(server)
        _answer(server, loop, stop, metrics_of(app))
        readiness.drain()
        drain(server, loop)
    idle = not is_busy(server)
    warming.join()
    jobs.stop(STOP_SECONDS)
    # SQLite does not survive a connection that is closed under a thread that uses it.
    if idle:
        data.close()


def _server(app: Flask, listener: socket.socket, options: ServerOptions) -> TcpWSGIServer:
    """Waitress, with a queue that has an end and answers that are problems."""
    dispatcher = BoundedDispatcher(options.threads, options.queue)
    metrics_of(app).queue = QueueState(lambda: dispatcher.waiting, lambda: dispatcher.refused)
    server = create_server(
        app,
        _dispatcher=dispatcher,
        sockets=[listener],
        connection_limit=MAX_CONNECTIONS,
        channel_timeout=IDLE_SECONDS,
        max_request_header_size=MAX_HEADERS,
        # Beyond the application's own limit, which answers in its own words, and yet a limit.
        max_request_body_size=4 * options.max_body,
        ident="attend",
        recv_bytes=RECEIVED,
    )
    server.channel_class = Channel
    # It only tells that requests wait for a thread, as they may.
    logging.getLogger("waitress.queue").setLevel(logging.ERROR)
    return server


def _warm(data: Data, readiness: Readiness, jobs: Jobs) -> None:
    """Open everything, then go on with the jobs that wait since before."""
    readiness.warm(data)
    if readiness.now().state == "draining" or data.read_only:
        return
    try:
        jobs.start()
    # Searches can be answered all the same.
    except (AttendError, OSError) as error:
        log.warning("The jobs cannot be gone on with: %s", error)


def _answer(server: TcpWSGIServer, loop: Loop, stop: threading.Event, metrics: Metrics) -> None:
    slow = SlowClients()
    while not stop.is_set():
        loop.turn(0.5)
        slow.sweep(server.active_channels.values())
        metrics.tell_others()
