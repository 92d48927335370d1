"""Limits of sockets that granian does not set, and a port of its own for health checks."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
import stat
import struct
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

from attend_service.security.limits import IDLE_SECONDS, MAX_CONNECTIONS

log = logging.getLogger("attend")

LINUX = sys.platform == "linux"
"""Elsewhere clients have no deadlines to take answers by."""

ACKED_AT = 120
"""The place of `tcpi_bytes_acked` in Linux's `struct tcp_info`."""

ENOUGH_FILES = 65_536

SEND_BUFFER = 512 * 1024
"""Bytes that the system keeps of an answer until its client takes them; Linux doubles the number.
By default it would be up to 4 MB for each connection."""

LOOK_SECONDS = 0.01
"""How often a starting worker looks for its listening socket."""

HEALTH_CONNECTIONS = 32
HEALTH_SECONDS = 5.0
"""The limits of the port for health checks: connections at once, and the time of each."""


def connection_limit() -> int:
    """Allow this process as many open files as the system does; return the connections to take.

    Half of the files are left for databases and indexes, so that `accept` never runs out of them.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = ENOUGH_FILES if hard == resource.RLIM_INFINITY else min(hard, ENOUGH_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    if files // 2 < MAX_CONNECTIONS:
        log.warning(
            "The system allows %d open files, so that at most %d connections are taken at once "
            "instead of %d; raise LimitNOFILE, or 'ulimit -n'.",
            files, files // 2, MAX_CONNECTIONS,
        )  # fmt: skip
    return min(MAX_CONNECTIONS, files // 2)


async def limit_sending(port: int, seconds: float = IDLE_SECONDS) -> None:
    """Have the system close connections whose clients take nothing of what was sent.

    granian has no time limit on sending. The connections inherit these options from the socket
    that listens, which granian makes once the loop runs.
    """
    if not LINUX:
        return
    while not (listening := _duplicates(partial(_listens, port))):
        await asyncio.sleep(LOOK_SECONDS)
    for listener in listening:
        with listener:
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1000))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)


class Connection:
    """A duplicate of a client's connection, which granian holds: what was taken, and its end."""

    def __init__(self, duplicate: socket.socket) -> None:
        self._socket = duplicate
        self._begin = 0
        self._begin = self.taken()

    @classmethod
    def of(cls, address: str, port: int) -> Connection | None:
        """Find the connection of a client; None where the system does not tell."""
        if not LINUX:
            return None
        try:
            duplicates = _duplicates(lambda peer: peer.getpeername()[:2] == (address, port))
        except OSError:  # no file is left to list them with
            return None
        return cls(duplicates[0]) if duplicates else None

    def taken(self) -> int:
        """Return the bytes of the answer that the client's system has acknowledged."""
        info = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, ACKED_AT + 8)
        return int(struct.unpack_from("Q", info, ACKED_AT)[0]) - self._begin

    def shut(self) -> None:
        with suppress(OSError):  # the client was faster
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()


def _listens(port: int, candidate: socket.socket) -> bool:
    accepts = candidate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    return bool(accepts) and candidate.getsockname()[1:2] == (port,)


def _duplicates(fits: Callable[[socket.socket], bool]) -> list[socket.socket]:
    """Return duplicates of this process's sockets that fit."""
    duplicates = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # closed meanwhile, or not connected
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            duplicate = socket.socket(fileno=os.dup(int(name)))
            try:
                is_one = fits(duplicate)
            except OSError:
                is_one = False
            if is_one:
                duplicates.append(duplicate)
            else:
                duplicate.close()
    return duplicates


async def serve_health(
    host: str, port: int, answer: Callable[[str], Awaitable[tuple[int, bytes]]]
) -> asyncio.Server:
    """Answer health checks on a port of their own, which no flood of other connections reaches.

    Args:
        answer: returns the status and the content for a path.
    """
    open_connections: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_connections.add(writer)
        try:
            if len(open_connections) > HEALTH_CONNECTIONS:
                return
            async with asyncio.timeout(HEALTH_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                method, path = [*head.split(b" ", 2), b"", b""][:2]
                status, content = (405, b"") if method != b"GET" else await answer(path.decode())
                writer.write(
                    b"HTTP/1.1 %d \r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
                    b"Connection: close\r\n\r\n%b" % (status, len(content), content)
                )
                await writer.drain()
        except (OSError, ValueError, EOFError, TimeoutError, asyncio.LimitOverrunError):
            pass  # the client is slow, or speaks no HTTP
        finally:
            open_connections.discard(writer)
            writer.close()

    return await asyncio.start_server(serve, host, port, limit=8192, reuse_port=True)
