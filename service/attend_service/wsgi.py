"""Requests as WSGI has them (PEP 3333), answers as granian takes them, and the sockets below.

The styles and scripts of the pages are answered from memory. They are open to everyone who can
connect, and so they cost the server little: no thread, no place in the queue, no open file and no
line in the log.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import logging
import mimetypes
import os
import resource
import socket
import stat
import struct
import sys
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import IO, Any, NamedTuple

from granian.rsgi import Scope

from attend.core.errors import is_out_of_files
from attend_service import replies, security

log = logging.getLogger("attend")

Environ = dict[str, Any]
Headers = list[tuple[str, str]]

CLOSE = "Connection", "close"

RETRY_SECONDS = 1
"""A queue of a hundred searches is done in less."""

WHOLE_BYTES = 1024 * 1024
"""A longer answer is sent in pieces, of which so much may be untaken; granian has no limit."""


FOLDER = Path(__file__).parent / "static"
PREFIX = "/static/"

FIXED = {"wsgi.version": (1, 0), "wsgi.errors": sys.stderr, "wsgi.run_once": False}
FIXED |= dict.fromkeys(("wsgi.input_terminated", "wsgi.multithread", "wsgi.multiprocess"), True)
"""Entries that the environments of all requests have alike."""

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


class Refusal(Exception):
    """A request that the gateway answers itself, with a problem."""

    def __init__(self, kind: replies.Kind, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


class HttpAnswer(NamedTuple):
    """An answer of the application: its beginning, and the rest where it is long."""

    status: int
    headers: Headers
    content: bytes
    rest: Generator[bytes] | None = None
    connection: Connection | None = None


def refused(error: Refusal | OSError, path: str) -> HttpAnswer:
    """Return the answer to a request that could not be received; raise any other error again."""
    kind, detail = replies.UNAVAILABLE, replies.OUT_OF_FILES
    if isinstance(error, Refusal):
        kind, detail = error.kind, str(error)
    elif replies.is_disk_full(error):
        kind, detail = replies.CANNOT_WRITE, replies.DISK_FULL
    elif not is_out_of_files(error):
        raise error
    headers = [*security.ALWAYS.items(), ("Cache-Control", "no-store")]
    headers.append(("Content-Type", replies.PROBLEM))
    if kind in (replies.UNREADABLE, replies.NOT_DONE):  # where the next request begins is uncertain
        headers.append(CLOSE)
    if kind.status in (429, 503):
        headers.append(("Retry-After", str(RETRY_SECONDS)))
    problem = replace(kind.problem(detail), instance=path)
    return HttpAnswer(kind.status, headers, replies.to_json(problem))


def add_headers(answer: HttpAnswer, scope: Scope, *, closes: bool = False) -> None:
    """Add the headers that any answer has, also one after which the connection is closed."""
    answer.headers.append(("Server", "attend"))
    # A proxy that goes by a length could take what follows for another's (RFC 9112 6.1).
    if (closes or "transfer-encoding" in scope.headers) and CLOSE not in answer.headers:
        answer.headers.append(CLOSE)


def pieces_of(iterable: Iterable[bytes], body: IO[bytes]) -> Generator[bytes]:
    """Yield an answer in pieces of `WHOLE_BYTES` or more; close it and the body at the end."""
    parts: list[bytes] = []
    try:
        for piece in iterable:
            parts.append(piece)
            if sum(map(len, parts)) >= WHOLE_BYTES:
                yield b"".join(parts)
                parts = []
        if parts:
            yield b"".join(parts)
    finally:
        body.close()
        if hasattr(iterable, "close"):
            iterable.close()


def environ_of(scope: Scope) -> Environ:
    """Return a request as WSGI (PEP 3333) has it, without its body.

    Raises:
        Refusal: the headers are larger than the limit, describe no one body, or name no host.
    """
    host, _, port = scope.server.rpartition(":")
    client, _, client_port = scope.client.rpartition(":")
    environ: Environ = {
        "REQUEST_METHOD": scope.method,
        "SCRIPT_NAME": "",
        # WSGI has bytes as Latin-1.
        "PATH_INFO": scope.path.encode().decode("latin-1"),
        "QUERY_STRING": scope.query_string,
        "REMOTE_ADDR": client.strip("[]"),
        "REMOTE_PORT": client_port,
        "SERVER_NAME": host.strip("[]"),
        "SERVER_PORT": port,
        "SERVER_PROTOCOL": f"HTTP/{scope.http_version}",
        "wsgi.url_scheme": scope.scheme,
        **FIXED,
    }
    size = len(scope.path) + len(scope.query_string)
    for name, value in scope.headers.items():
        size += len(name) + len(value) + 4
        variable = variable_of(name)
        if variable is not None:
            before = environ.get(variable)
            environ[variable] = value if before is None else f"{before},{value}"
    if size > security.MAX_HEADERS:
        detail = f"The headers have {size:,} bytes, but at most {security.MAX_HEADERS:,} are read."
        raise Refusal(replies.HEADERS_TOO_LARGE, detail)
    if "HTTP_TRANSFER_ENCODING" in environ and "CONTENT_LENGTH" in environ:
        detail = "The request has Content-Length and Transfer-Encoding; send one of them."
        raise Refusal(replies.UNREADABLE, detail)
    if environ.get("HTTP_TRANSFER_ENCODING", "chunked").strip().lower() != "chunked":
        detail = "The body has another Transfer-Encoding than chunked, which alone is read."
        raise Refusal(replies.NOT_DONE, detail)
    if "HTTP_HOST" not in environ and scope.http_version == "1.1":
        detail = "The request has no Host header, which HTTP/1.1 asks for."
        raise Refusal(replies.UNREADABLE, detail)
    if "HTTP_HOST" in environ:
        environ["HTTP_HOST"] = environ["HTTP_HOST"].lower()
    return environ


@lru_cache(maxsize=1024)
def variable_of(header: str) -> str | None:
    """Return the variable of a header; none of `X_Api_Key`, which would pass for `X-Api-Key`."""
    if "_" in header:
        return None
    name = header.upper().replace("-", "_")
    return name if name in ("CONTENT_TYPE", "CONTENT_LENGTH") else f"HTTP_{name}"


class StaticFile(NamedTuple):
    """A style, script or picture, and the same compressed where that is smaller."""

    content: bytes
    packed: bytes | None
    kind: str
    tag: str


def static_answer(scope: Scope) -> HttpAnswer:
    """Answer a request of a style or script; one that names the revision is kept for a year.

    Raises:
        Refusal: there is no such file.
    """
    path = scope.path.removeprefix(PREFIX)
    is_pinned = path.startswith(f"{revision()}/")
    file = static_files().get(path.removeprefix(f"{revision()}/"))
    if file is None:
        raise Refusal(replies.NO_PATH, f"There is nothing at {scope.path}; /docs lists every path.")
    is_packed = file.packed is not None and "gzip" in scope.headers.get("accept-encoding", "")
    content = file.packed if is_packed and file.packed is not None else file.content
    headers = [
        ("Content-Type", file.kind),
        ("Cache-Control", "public, max-age=31536000, immutable" if is_pinned else "no-cache"),
        ("ETag", f'"{file.tag}-gzip"' if is_packed else f'"{file.tag}"'),
        ("Vary", "Accept-Encoding"),
        *security.FOR_PROGRAMS,
    ]
    if file.tag in scope.headers.get("if-none-match", ""):
        return HttpAnswer(304, headers, b"")
    if is_packed:
        headers.append(("Content-Encoding", "gzip"))
    headers.append(("Content-Length", str(len(content))))
    return HttpAnswer(200, headers, b"" if scope.method == "HEAD" else content)


@cache
def static_files() -> Mapping[str, StaticFile]:
    """Read the files, by their paths within the folder: some 300 KB."""
    files = {}
    for path in sorted(filter(Path.is_file, FOLDER.rglob("*"))):
        content = path.read_bytes()
        kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        packed = gzip.compress(content, mtime=0)
        files[path.relative_to(FOLDER).as_posix()] = StaticFile(
            content,
            packed if len(packed) < len(content) else None,
            f"{kind}; charset=utf-8" if kind.startswith("text/") else kind,
            hashlib.sha256(content).hexdigest()[:32],
        )
    return files


@cache
def revision() -> str:
    """Return a hash of all static files, which their addresses name; modules import by it, too."""
    digest = hashlib.sha256()
    for path, file in static_files().items():
        digest.update(path.encode() + b"\0" + file.tag.encode())
    return digest.hexdigest()[:16]


def connection_limit() -> int:
    """Allow this process as many open files as the system does; return the connections to take.

    Half of the files are left for databases and indexes, so that `accept` never runs out of them.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = ENOUGH_FILES if hard == resource.RLIM_INFINITY else min(hard, ENOUGH_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    if files // 2 < security.MAX_CONNECTIONS:
        log.warning(
            "The system allows %d open files, so that at most %d connections are taken at once "
            "instead of %d; raise LimitNOFILE, or 'ulimit -n'.",
            files, files // 2, security.MAX_CONNECTIONS,
        )  # fmt: skip
    return min(security.MAX_CONNECTIONS, files // 2)


async def limit_sending(port: int, seconds: float = security.IDLE_SECONDS) -> None:
    """Have the system close connections whose clients take nothing of what was sent.

    granian has no time limit on sending. The connections inherit these options from the socket
    that listens, which granian makes once the loop runs.
    """
    if not LINUX:
        return

    def listens(candidate: socket.socket) -> bool:
        accepts = candidate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        return bool(accepts) and candidate.getsockname()[1:2] == (port,)

    while not (listening := _duplicates(listens)):
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


def _duplicates(fits: Callable[[socket.socket], bool]) -> list[socket.socket]:
    """Return duplicates of this process's sockets that fit."""
    duplicates = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # closed meanwhile, or not connected
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            # `socket.dup` would make both of them blocking.
            duplicate = socket.socket(fileno=os.dup(int(name)))
            with ExitStack() as closing:
                closing.enter_context(duplicate)
                if fits(duplicate):
                    closing.pop_all()
                    duplicates.append(duplicate)
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
