"""Requests as WSGI has them (PEP 3333), and answers as granian takes them."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterable
from dataclasses import replace
from functools import lru_cache
from typing import IO, Any, NamedTuple

from granian.rsgi import HTTPProtocol, Scope

from attend.core.errors import is_out_of_files
from attend_service.problems import (
    CANNOT_WRITE,
    DISK_FULL,
    HEADERS_TOO_LARGE,
    NOT_DONE,
    OUT_OF_FILES,
    OVER_TIME,
    UNAVAILABLE,
    UNREADABLE,
    Kind,
    is_disk_full,
)
from attend_service.replies import PROBLEM, to_json
from attend_service.security.browsers import ALWAYS
from attend_service.security.limits import MAX_HEADERS
from attend_service.sockets import Connection

Environ = dict[str, Any]
Headers = list[tuple[str, str]]

RETRY_SECONDS = 1
"""A queue of a hundred searches is done in less."""

WHOLE_BYTES = 1024 * 1024
"""A longer answer is sent in pieces, of which so much may be untaken; granian has no limit."""


class Refusal(Exception):
    """A request that the gateway answers itself, with a problem."""

    def __init__(self, kind: Kind, detail: str) -> None:
        super().__init__(detail)
        self.kind, self.problem = kind, kind.problem(detail)

    def answer(self, path: str) -> HttpAnswer:
        headers = [("Content-Type", PROBLEM), ("Cache-Control", "no-store"), *ALWAYS.items()]
        if self.kind in (UNREADABLE, NOT_DONE):  # where the next request begins is uncertain
            headers.append(("Connection", "close"))
        if self.kind.status in (429, 503):
            headers.append(("Retry-After", str(RETRY_SECONDS)))
        content = to_json(replace(self.problem, instance=path))
        return HttpAnswer(self.problem.status, headers, content)


def refusal_of(error: Refusal | OSError) -> Refusal:
    """Return the refusal of a request that could not be received; raise any other error again."""
    if isinstance(error, Refusal):
        return error
    if is_out_of_files(error):
        return Refusal(UNAVAILABLE, OUT_OF_FILES)
    if is_disk_full(error):
        return Refusal(CANNOT_WRITE, DISK_FULL)
    raise error


class HttpAnswer(NamedTuple):
    """An answer of the application: its beginning, and the rest where it is long."""

    status: int
    headers: Headers
    content: bytes
    rest: Generator[bytes] | None = None
    connection: Connection | None = None

    @property
    def length(self) -> int:
        lengths = [value for name, value in self.headers if name.lower() == "content-length"]
        return int(lengths[0]) if lengths else len(self.content)


def add_headers(answer: HttpAnswer, scope: Scope) -> None:
    """Add the headers that any answer has."""
    answer.headers.append(("Server", "attend"))
    if "transfer-encoding" in scope.headers:
        # A proxy that goes by a length could take what follows for another's (RFC 9112 6.1).
        close_after(answer)


def close_after(answer: HttpAnswer) -> None:
    """Have the connection closed after an answer, which says so."""
    if ("Connection", "close") not in answer.headers:
        answer.headers.append(("Connection", "close"))


def send_late(scope: Scope, protocol: HTTPProtocol) -> None:
    """Answer a client whose request has not ended by its deadline."""
    detail = (
        "The request takes longer than the server allows, and its answer is not waited for. Where "
        "it writes, look before you send it again: it may be stored. Ask for less at once, or "
        "start the server with a larger --deadline."
    )
    answer = Refusal(OVER_TIME, detail).answer(scope.path)
    add_headers(answer, scope)
    protocol.response_bytes(answer.status, answer.headers, answer.content)


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
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": scope.scheme,
        "wsgi.errors": sys.stderr,
        "wsgi.input_terminated": True,
        "wsgi.multithread": True,
        "wsgi.multiprocess": True,
        "wsgi.run_once": False,
    }
    size = len(scope.path) + len(scope.query_string)
    for name, value in scope.headers.items():
        size += len(name) + len(value) + 4
        variable = variable_of(name)
        if variable is not None:
            before = environ.get(variable)
            environ[variable] = value if before is None else f"{before},{value}"
    if size > MAX_HEADERS:
        detail = f"The headers have {size:,} bytes, but at most {MAX_HEADERS:,} are read."
        raise Refusal(HEADERS_TOO_LARGE, detail)
    if "HTTP_TRANSFER_ENCODING" in environ and "CONTENT_LENGTH" in environ:
        detail = "The request has Content-Length and Transfer-Encoding; send one of them."
        raise Refusal(UNREADABLE, detail)
    if environ.get("HTTP_TRANSFER_ENCODING", "chunked").strip().lower() != "chunked":
        detail = "The body has another Transfer-Encoding than chunked, which alone is read."
        raise Refusal(NOT_DONE, detail)
    if "HTTP_HOST" not in environ and scope.http_version == "1.1":
        raise Refusal(UNREADABLE, "The request has no Host header, which HTTP/1.1 asks for.")
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
