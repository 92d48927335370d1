"""Where a server listens: what may be asked for, what is refused, and the socket."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from attend import AttendError
from attend_service.security.keys import KeyFile
from attend_service.security.origins import check_origin
from attend_service.settings import ServiceSettings

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
        processes: that serve side by side, each with a model, threads and a queue of its own.
        queue: requests that may wait for a thread.
        cache_mib: memory for the embeddings of queries, in MiB; 0 for none.
        allow_remote: whether other machines may connect though there are no keys to ask for.
        require_keys: ask for a key even while there are none.
        cors_origins: origins whose pages may read and write.
        picture_origins: origins from which pages show the pictures that documents name.
        max_collections: collections that clients may make.
        recall, exact_below: of the indexes of collections whose makers name neither.
        read_only: write nothing, and refuse who wants to.
        engine: the address of the engine that keeps the collections; the folder itself if None.
        log_texts: also log what is sent with a request.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    processes: int = 1
    threads: int = 32
    queue: int = 128
    cache_mib: int = 64
    max_body: int = ServiceSettings.max_body
    allow_remote: bool = False
    trusted_hosts: tuple[str, ...] = ()
    require_keys: bool = False
    cors_origins: tuple[str, ...] = ()
    picture_origins: tuple[str, ...] = ()
    max_collections: int = ServiceSettings.max_collections
    recall: float = ServiceSettings.recall
    exact_below: int | None = ServiceSettings.exact_below
    read_only: bool = False
    engine: str | None = None
    log_texts: bool = False


def check_folder(folder: Path, *, read_only: bool) -> None:
    """Raises CannotServe for a data folder that is not there, or cannot be written to."""
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


@contextmanager
def reserved_port(options: ServerOptions, folder: Path) -> Iterator[tuple[str, int]]:
    """Hold a port for the workers, before the data is opened: a taken port is reported at once.

    Yields the numeric address and the port. The socket does not listen; each worker's does.
    """
    try:
        addresses = socket.getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise CannotServe(f"{options.host!r} is no address of this machine ({error}).") from None
    family, kind, protocol, _, address = addresses[0]
    host = str(address[0])
    check_reach(host, options, folder)
    try:
        # Workers share the port, and so could a second server: this one, which does not share,
        # fails where there is one.
        with socket.socket(family, kind, protocol) as alone:
            alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            alone.bind(address)
            alone.listen()
            port = alone.getsockname()[1]
        shared = socket.socket(family, kind, protocol)
        shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        shared.bind((host, port))
    except OSError as error:
        raise CannotServe(
            f"Port {options.port} of {options.host} cannot be had ({error.strerror}). Stop the "
            f"program that uses it, or choose another with --port."
        ) from None
    with shared:
        yield host, port


def check_reach(address: str, options: ServerOptions, folder: Path) -> None:
    try:
        has_keys = bool(KeyFile(folder).all())
    except AttendError as error:
        raise CannotServe(str(error)) from None
    if has_keys or options.require_keys or options.allow_remote or is_near(address):
        return
    raise Refused(
        f"Listening on {options.host} would let other machines read and write all data, for there "
        f"are no keys to ask for. Make one with 'attend keys add --data {folder}', use "
        f"127.0.0.1, or add --allow-remote-without-keys if that is meant."
    )


def is_near(address: str) -> bool:
    """Whether only this machine can reach an address."""
    return ipaddress.ip_address(address).is_loopback


def settings_of(options: ServerOptions, host: str) -> ServiceSettings:
    """The application's settings, where the server listens on the address `host`."""
    names = (*LOOPBACK_NAMES, f"[{host}]" if ":" in host else host, *options.trusted_hosts)
    # Elsewhere the server does not know by what names it is known, unless it is told.
    any_name = not is_near(host) and not options.trusted_hosts
    for origin in (*options.cors_origins, *options.picture_origins):
        try:
            check_origin(origin)
        except ValueError as error:
            raise Refused(str(error)) from None
    return ServiceSettings(
        options.max_body,
        None if any_name else tuple(dict.fromkeys(names)),
        max_collections=options.max_collections,
        # Whoever listens elsewhere with keys is not opened by the removal of the last one.
        require_keys=options.require_keys or not (is_near(host) or options.allow_remote),
        cors_origins=options.cors_origins,
        picture_origins=options.picture_origins,
        recall=options.recall,
        exact_below=options.exact_below,
        read_only=options.read_only,
        log_texts=options.log_texts,
    )


def address_of(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
