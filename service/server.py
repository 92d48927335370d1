"""One process that serves: listen, warm up, answer, and stop without dropping a request."""

from __future__ import annotations

import ipaddress
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from threadpoolctl import threadpool_limits
from waitress import wasyncore
from waitress.channel import HTTPChannel
from waitress.server import TcpWSGIServer, create_server

from index import AttendError, Data
from index.training import train
from service.app import create_app
from service.jobs import Jobs, Trainer
from service.loop import Loop
from service.metrics import QueueState, listening_to_stages, metrics_of
from service.queueing import BoundedDispatcher
from service.readiness import Readiness
from service.security.keys import KeyFile
from service.security.limits import IDLE_SECONDS, MAX_CONNECTIONS, MAX_HEADERS, SlowClients
from service.security.origins import check_origin
from service.security.refusals import Channel
from service.settings import MEBIBYTE, ServiceSettings

log = logging.getLogger("attend")

DRAIN_SECONDS = 30.0
"""How long running requests may take once the server is told to stop."""

STOP_SECONDS = 10.0
"""How long a running job may take to heed its cancellation; after that it ends as it is."""

BLAS_THREADS = 1
"""Requests use the cores side by side. With more, the threads of small products wait for each
other by turning in circles, which took half of a server's time."""

RECEIVED = 65_536
"""Bytes read at once: a query by vector has some ten thousand."""

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")


class CannotServe(Exception):
    """The server cannot start; the sentence says why and what to do."""


class Refused(CannotServe):
    """What was asked for is not done without a further word."""


@dataclass(frozen=True)
class ServerOptions:
    """Where and how to listen.

    Attributes:
        port: 0 for any free one.
        queue: requests that may wait for a thread.
        cache_mib: memory for the embeddings of queries, in MiB; 0 for none.
        allow_remote: whether other machines may connect though there are no keys to ask for.
        require_keys: ask for a key even while there are none.
        cors_origins: origins whose pages may read and write.
        max_collections: collections that clients may make.
        read_only: write nothing, and refuse who wants to.
        log_texts: also log what is sent with a request.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    threads: int = 32
    queue: int = 128
    cache_mib: int = 64
    max_body: int = ServiceSettings.max_body
    allow_remote: bool = False
    trusted_hosts: tuple[str, ...] = ()
    require_keys: bool = False
    cors_origins: tuple[str, ...] = ()
    max_collections: int = ServiceSettings.max_collections
    read_only: bool = False
    log_texts: bool = False


def run(
    folder: Path,
    options: ServerOptions,
    announce: Callable[[str], None],
    trainer: Trainer = train,
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
    if not folder.is_dir():
        raise CannotServe(
            f"There is no data folder {folder}. Build one with 'python -m index build', or make "
            f"an empty one to fill over HTTP."
        )
    if not options.read_only and not os.access(folder, os.W_OK):
        raise CannotServe(
            f"The data folder {folder} cannot be written to. Serve it with --read-only, or change "
            f"its permissions."
        )
    with _listening(options, folder) as listener, _stop_signals() as stop:
        data = Data(folder, cache_bytes=options.cache_mib * MEBIBYTE, read_only=options.read_only)
        readiness = Readiness()
        settings = _settings(options, listener)
        jobs = Jobs(data, trainer, limit=settings.max_jobs)
        app = create_app(data, settings, readiness, jobs)
        dispatcher = BoundedDispatcher(options.threads, options.queue)
        metrics = metrics_of(app)
        metrics.queue = QueueState(lambda: dispatcher.waiting, lambda: dispatcher.refused)
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
        announce(_address(listener))
        warming = threading.Thread(target=_warm, args=[data, readiness, jobs], name="warm")
        warming.start()
        with listening_to_stages(metrics), threadpool_limits(BLAS_THREADS, "blas"):
            loop = Loop(server)
            _answer(server, loop, stop)
            readiness.drain()
            _drain(server, loop)
        idle = not _is_busy(server)
        warming.join()
        jobs.stop(STOP_SECONDS)
        # SQLite does not survive a connection that is closed under a thread that uses it.
        if idle:
            data.close()


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


def _answer(server: TcpWSGIServer, loop: Loop, stop: threading.Event) -> None:
    slow = SlowClients()
    while not stop.is_set():
        loop.turn(0.5)
        slow.sweep(server.active_channels.values())


def _drain(server: TcpWSGIServer, loop: Loop) -> None:
    """Take no more connections, and let the requests that run be answered."""
    # Not server.close(): that would take the threads' means to wake this loop.
    wasyncore.dispatcher.close(server)
    deadline = time.monotonic() + DRAIN_SECONDS
    while _is_busy(server) and time.monotonic() < deadline:
        _close_idle(server)
        loop.turn(0.05)
    server.task_dispatcher.shutdown(timeout=1)


def _is_busy(server: TcpWSGIServer) -> bool:
    return any(map(_is_used, list(server.active_channels.values())))


def _is_used(channel: HTTPChannel) -> bool:
    """Whether a request is being received, worked on or answered."""
    return bool(channel.requests or channel.request is not None or channel.total_outbufs_len)


def _close_idle(server: TcpWSGIServer) -> None:
    """Otherwise a client that asks again and again on one connection is never done."""
    for channel in list(server.active_channels.values()):
        if not _is_used(channel):
            channel.handle_close()


@contextmanager
def _stop_signals() -> Iterator[threading.Event]:
    """An event that SIGTERM and Ctrl-C set; a second signal ends the process at once."""
    stop = threading.Event()
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        stop.set()
        for each, handler in before.items():
            signal.signal(each, handler)

    for each in before:
        signal.signal(each, on_signal)
    try:
        yield stop
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@contextmanager
def _listening(options: ServerOptions, folder: Path) -> Iterator[socket.socket]:
    """A socket that listens: before the data is opened, so that a taken port is told at once."""
    try:
        found = socket.getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise CannotServe(f"{options.host!r} is no address of this machine ({error}).") from None
    family, kind, protocol, _, address = found[0]
    _check_reach(str(address[0]), options, folder)
    with socket.socket(family, kind, protocol) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
            listener.listen()
        except OSError as error:
            raise CannotServe(
                f"Port {options.port} of {options.host} cannot be had ({error.strerror}). Stop the "
                f"program that uses it, or choose another with --port."
            ) from None
        yield listener


def _check_reach(address: str, options: ServerOptions, folder: Path) -> None:
    try:
        has_keys = bool(KeyFile(folder).all())
    except AttendError as error:
        raise CannotServe(str(error)) from None
    if has_keys or options.require_keys or options.allow_remote or _is_near(address):
        return
    raise Refused(
        f"Listening on {options.host} would let other machines read and write all data, for there "
        f"are no keys to ask for. Make one with 'python -m service keys add --data {folder}', use "
        f"127.0.0.1, or add --allow-remote-without-keys if that is meant."
    )


def _is_near(address: str) -> bool:
    """Whether only this machine can reach an address."""
    return ipaddress.ip_address(address).is_loopback


def _settings(options: ServerOptions, listener: socket.socket) -> ServiceSettings:
    own = listener.getsockname()[0]
    names = (*LOOPBACK_NAMES, f"[{own}]" if ":" in own else own, *options.trusted_hosts)
    # Elsewhere the server does not know by what names it is known, unless it is told.
    any_name = not _is_near(own) and not options.trusted_hosts
    for origin in options.cors_origins:
        try:
            check_origin(origin)
        except ValueError as error:
            raise Refused(str(error)) from None
    return ServiceSettings(
        options.max_body,
        None if any_name else tuple(dict.fromkeys(names)),
        max_collections=options.max_collections,
        # Whoever listens elsewhere with keys is not opened by the removal of the last one.
        require_keys=options.require_keys or not (_is_near(own) or options.allow_remote),
        cors_origins=options.cors_origins,
        read_only=options.read_only,
        log_texts=options.log_texts,
    )


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
