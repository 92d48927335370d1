"""Requests to an Attend server: a pool of connections, time limits, retries, and errors by class.

A request that reads is sent again after a lost connection, a server that is busy, or one that is
not ready. A write is sent again only where the server cannot have begun it: no connection was made,
or it answered 429. Where its answer was lost, `Unconfirmed` says so.
"""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from io import BytesIO
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import httpx2
import orjson

from attend.core import errors
from attend.core.types import OnStage

RETRIES = 4
"""Times that a request is sent again."""

FIRST_WAIT, LONGEST_WAIT = 0.25, 30.0
"""Seconds before the second try, which double from try to try; and the longest that a server may
ask for."""

CONNECT_SECONDS = 10.0

IDLE_SECONDS = 15.0
"""How long a connection is kept: servers close them after 30 seconds."""

PIECE = 1 << 20
"""Bytes of a large body between two reports of progress."""

JSON = "application/json"

BUSY = frozenset({429, 502, 503, 504})

BY_STATUS: Mapping[int, type[errors.AttendError]] = {
    400: errors.InvalidRequest,
    401: errors.Forbidden,
    403: errors.Forbidden,
    404: errors.NotFound,
    409: errors.Conflict,
    413: errors.LimitExceeded,
    415: errors.InvalidRequest,
    422: errors.InvalidRequest,
    429: errors.Unavailable,
    502: errors.Unavailable,
    503: errors.Unavailable,
    504: errors.Unavailable,
    507: errors.CannotWrite,
}
"""The class of a problem that names none."""


def error_of(problem: Mapping[str, Any]) -> errors.AttendError:
    """Return a server's problem as the error that a local library would raise.

    >>> error_of({"status": 404, "code": "UnknownDocument", "detail": "There is no 'x'."})
    UnknownDocument("There is no 'x'.")
    """
    kind = getattr(errors, problem.get("code") or "", None)
    if not (isinstance(kind, type) and issubclass(kind, errors.AttendError)):
        kind = BY_STATUS.get(problem.get("status") or 0, errors.AttendError)
    error = kind.__new__(kind)
    details = problem.get("errors") or []
    field = details[0]["field"] if details else None
    # Some classes make their sentence themselves, of what the server has not sent.
    errors.AttendError.__init__(error, problem.get("detail") or "The server failed.", field=field)
    error.details = details
    return error


def to_json(content: Any) -> bytes:
    """Return a request as JSON; arrays, paths and request models are read as what they hold.

    Raises:
        InvalidRequest: it holds something that JSON cannot say.
    """
    try:
        return orjson.dumps(content, _plain, orjson.OPT_SERIALIZE_NUMPY)
    except TypeError:  # perhaps an integer beyond 64 bits, or half a surrogate pair, which JSON has
        try:
            return json.dumps(content, default=_plain, allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            raise errors.InvalidRequest(
                f"The request cannot be sent as JSON: {error}. Send texts, finite numbers, lists "
                f"and objects."
            ) from None


def _plain(item: Any) -> Any:
    if hasattr(item, "model_dump"):
        return item.model_dump(exclude_unset=True)
    if hasattr(item, "tolist"):
        return item.tolist()
    if isinstance(item, PathLike):
        return fspath(item)
    if isinstance(item, set | frozenset):
        return sorted(item)
    raise TypeError(f"{type(item).__name__} is no type of JSON")


class RemoteServer:
    """A server's address with its key; any number of threads may use it.

    Args:
        url: `http://HOST:PORT`, perhaps with a path.
        api_key: sent with each request, where the server asks for keys.
        timeout: seconds to wait for an answer, or for the next part of one.
        transport: what carries requests instead of the network; tests name one.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        timeout: float = 120.0,
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        headers = {"Accept": JSON, "User-Agent": "attend-client"}
        if api_key is not None:
            headers["Authorization"] = f"Bearer {api_key}"
        if not re.match(r"https?://[^/\s]", url):
            raise errors.InvalidRequest(
                f"{url!r} is not the address of a server; send one such as http://127.0.0.1:8000."
            )
        self._http = httpx2.Client(
            base_url=self.url,
            headers=headers,
            timeout=httpx2.Timeout(timeout, connect=CONNECT_SECONDS),
            limits=httpx2.Limits(keepalive_expiry=IDLE_SECONDS),
            transport=transport,
        )

    def close(self) -> None:
        self._http.close()

    def get(self, path: str, **parameters: Any) -> Any:
        """Return what the server answers, read from JSON."""
        names = {name: value for name, value in parameters.items() if value is not None}
        return self.send("GET", path, reads=True, params=names)

    def ask(self, path: str, body: Any) -> Any:
        """Post a request that changes nothing, and return its answer."""
        return self.send("POST", path, to_json(body), reads=True)

    def write(self, method: str, path: str, body: Any = None, **options: Any) -> Any:
        """Send a request that changes something, and return its answer; None if it has none."""
        return self.send(method, path, None if body is None else to_json(body), **options)

    def send(
        self,
        method: str,
        path: str,
        body: bytes | Path | None = None,
        *,
        reads: bool = False,
        media: str = JSON,
        **options: Any,
    ) -> Any:
        """Send a request, perhaps several times, and return its answer, read from JSON.

        Args:
            body: the bytes, or a file that holds them.
            reads: whether it changes nothing, and may be sent again whatever became of it.
            report: receives "sending" and the fraction of the body that was taken.

        Raises:
            Unavailable: no server answers, or it stays busy. Unconfirmed: a write may be stored.
            OverTime: the answer takes longer than the timeout.
            AttendError: whatever the server answers, by its class.
        """
        report = options.pop("report", None)
        headers = {} if body is None else {"Content-Type": media, "Content-Length": _size(body)}
        wait = FIRST_WAIT
        for retries_left in reversed(range(RETRIES + 1)):
            content: Any = body
            if isinstance(body, Path) or (body is not None and report is not None):
                content = _pieces(body, report)
            try:
                with self._sending(method, path, reads):
                    response = self._http.request(
                        method, path, content=content, headers=headers, **options
                    )
            except errors.Unavailable as error:
                if isinstance(error, errors.Unconfirmed) or not retries_left:
                    raise
                time.sleep(wait * random.uniform(0.5, 1.0))
                wait *= 2
                continue
            if response.is_success and not response.content:
                return None
            if response.is_success and response.headers.get("Content-Type", "").startswith(JSON):
                return orjson.loads(response.content)
            problem = self._problem(response)
            is_refused = response.status_code == HTTPStatus.TOO_MANY_REQUESTS
            pause = _seconds(response.headers.get("Retry-After"), wait)
            again = is_refused or (reads and response.status_code in BUSY)
            if not (again and retries_left and pause <= LONGEST_WAIT):
                raise problem
            time.sleep(pause)
            wait *= 2
        raise AssertionError("unreachable")

    @contextmanager
    def download(self, method: str, path: str, timeout: float) -> Iterator[Iterator[bytes]]:
        """Open a long answer, whose pieces come as they are read."""
        opened = self._http.stream(method, path, timeout=timeout)
        with self._sending(method, path, True), opened as response:
            if not response.is_success:
                response.read()
                raise self._problem(response)
            yield response.iter_bytes(PIECE)

    @contextmanager
    def _sending(self, method: str, path: str, reads: bool) -> Iterator[None]:
        """Raise a failed connection as an error with a sentence."""
        try:
            yield
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            raise errors.Unavailable(
                f"No server answers at {self.url} ({error}). Start one with 'attend serve', or "
                f"check the address."
            ) from error
        except httpx2.PoolTimeout as error:
            raise errors.Unavailable(
                f"All connections to {self.url} are in use. Send fewer requests at once."
            ) from error
        except httpx2.TransportError as error:
            place = f"{method} {path} at {self.url}"
            is_late = isinstance(error, httpx2.TimeoutException)
            fate = "had no answer in time" if is_late else "lost its connection"
            if not reads:
                raise errors.Unconfirmed(
                    f"{place} {fate}, and may have been stored. Look before you send it again."
                ) from error
            if is_late:
                raise errors.OverTime(
                    f"{place} {fate}. Ask for less, or open the library with a longer timeout."
                ) from error
            raise errors.Unavailable(f"{place} {fate} ({error}). Ask again later.") from error

    def _problem(self, response: httpx2.Response) -> errors.AttendError:
        try:
            problem = None if response.is_success else orjson.loads(response.content)
        except orjson.JSONDecodeError:
            problem = None
        if not isinstance(problem, Mapping) or "detail" not in problem:
            text = " ".join(response.text.split())[:200]
            problem = {
                "detail": f"{self.url} answered {response.status_code} and no reply of an Attend "
                f"server: {text!r}. Check the address."
            }
        return error_of({"status": response.status_code, **problem})


def _size(body: bytes | Path) -> str:
    return str(len(body) if isinstance(body, bytes) else body.stat().st_size)


def _pieces(body: bytes | Path, report: OnStage | None) -> Iterator[bytes]:
    size = max(1, int(_size(body)))
    with BytesIO(body) if isinstance(body, bytes) else body.open("rb") as file:
        while piece := file.read(PIECE):
            yield piece
            if report is not None:
                report("sending", min(1.0, file.tell() / size))


def _seconds(retry_after: str | None, wait: float) -> float:
    """Return the seconds that a server asks to wait (RFC 9110, 10.2.3), at least those of ours."""
    asked_for = float(retry_after) if retry_after and retry_after.isdecimal() else 0.0
    return max(asked_for, wait)
