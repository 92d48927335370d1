"""One process that serves: listen, warm up, answer, and stop without dropping a request."""

from __future__ import annotations

import ipaddress
import logging
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from waitress import wasyncore
from waitress.server import TcpWSGIServer, create_server

from index import AttendError, Data
from index.training import train
from service.app import create_app
from service.jobs import Jobs, Trainer
from service.readiness import Readiness
from service.settings import ServiceSettings

log = logging.getLogger("attend")

DRAIN_SECONDS = 30.0
"""How long running requests may take once the server is told to stop."""

STOP_SECONDS = 10.0
"""How long a running job may take to heed its cancellation; after that it ends as it is."""

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
        allow_remote: whether other machines may connect.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    threads: int = 8
    max_body: int = ServiceSettings.max_body
    allow_remote: bool = False
    trusted_hosts: tuple[str, ...] = ()


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
        Refused: other machines could connect, and that was not allowed.
    """
    if not folder.is_dir():
        raise CannotServe(
            f"There is no data folder {folder}. Build one with 'python -m index build', or make "
            f"an empty one to fill over HTTP."
        )
    with _listening(options) as listener, _stop_signals() as stop:
        data, readiness = Data(folder), Readiness()
        settings = _settings(options, listener)
        jobs = Jobs(data, trainer, limit=settings.max_jobs)
        app = create_app(data, settings, readiness, jobs)
        server = create_server(
            app,
            sockets=[listener],
            threads=options.threads,
            connection_limit=1000,
            # Beyond the application's own limit, which answers in its own words, and yet a limit.
            max_request_body_size=4 * options.max_body,
            ident="attend",
        )
        # It only tells that requests wait for a thread, as they may.
        logging.getLogger("waitress.queue").setLevel(logging.ERROR)
        announce(_address(listener))
        warming = threading.Thread(target=_warm, args=[data, readiness, jobs], name="warm")
        warming.start()
        _answer(server, stop)
        readiness.drain()
        _drain(server)
        warming.join()
        jobs.stop(STOP_SECONDS)
        data.close()


def _warm(data: Data, readiness: Readiness, jobs: Jobs) -> None:
    """Open everything, then go on with the jobs that wait since before."""
    readiness.warm(data)
    if readiness.now().state == "draining":
        return
    try:
        jobs.start()
    # Searches can be answered all the same.
    except (AttendError, OSError) as error:
        log.warning("The jobs cannot be gone on with: %s", error)


def _answer(server: TcpWSGIServer, stop: threading.Event) -> None:
    while not stop.is_set():
        wasyncore.loop(timeout=0.5, map=server._map, use_poll=True, count=1)


def _drain(server: TcpWSGIServer) -> None:
    """Take no more connections, and let the requests that run be answered."""
    # Not server.close(): that would take the threads' means to wake this loop.
    wasyncore.dispatcher.close(server)
    deadline = time.monotonic() + DRAIN_SECONDS
    while _is_busy(server) and time.monotonic() < deadline:
        wasyncore.loop(timeout=0.05, map=server._map, use_poll=True, count=1)
    server.task_dispatcher.shutdown(timeout=1)


def _is_busy(server: TcpWSGIServer) -> bool:
    """Whether a request is being received, worked on or answered."""
    return any(
        channel.requests or channel.request is not None or channel.total_outbufs_len
        for channel in list(server.active_channels.values())
    )


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
def _listening(options: ServerOptions) -> Iterator[socket.socket]:
    """A socket that listens: before the data is opened, so that a taken port is told at once."""
    try:
        found = socket.getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise CannotServe(f"{options.host!r} is no address of this machine ({error}).") from None
    family, kind, protocol, _, address = found[0]
    _check_reach(str(address[0]), options)
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


def _check_reach(address: str, options: ServerOptions) -> None:
    if options.allow_remote or ipaddress.ip_address(address).is_loopback:
        return
    raise Refused(
        f"Listening on {options.host} would let other machines read and write all data, for there "
        f"are no keys to ask for. Use 127.0.0.1, or add --allow-remote if that is meant."
    )


def _settings(options: ServerOptions, listener: socket.socket) -> ServiceSettings:
    if options.allow_remote and not options.trusted_hosts:
        return ServiceSettings(options.max_body)
    own = listener.getsockname()[0]
    names = (*LOOPBACK_NAMES, f"[{own}]" if ":" in own else own, *options.trusted_hosts)
    return ServiceSettings(options.max_body, tuple(dict.fromkeys(names)))


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
