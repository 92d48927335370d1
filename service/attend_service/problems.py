"""Errors as RFC 9457 problems: one table says what each is, one function makes the response."""

from __future__ import annotations

import errno
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from flask import Response, current_app, g, render_template, request
from werkzeug.exceptions import (
    HTTPException,
    MethodNotAllowed,
    RequestEntityTooLarge,
    SecurityError,
    TooManyRequests,
    Unauthorized,
)
from werkzeug.exceptions import NotFound as NoSuchPath

from attend.api.base import Reply
from attend.core.errors import (
    AttendError,
    CannotWrite,
    Conflict,
    Detail,
    EncoderError,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    Opening,
    OutOfFiles,
    OutOfMemory,
    OverTime,
    ReadOnly,
    Unavailable,
    UnknownCollection,
)
from attend_service.replies import HTML, PROBLEM, reply, wants_page

log = logging.getLogger("attend")

MAX_ERRORS = 100
"""Details in a problem: a batch can have thousands of wrong fields, and a hundred suffice."""


class FieldError(Reply):
    """One field that is wrong."""

    field: str
    reason: str


class ProblemDetails(Reply):
    """An error as RFC 9457 describes it."""

    type: str
    """The place in /docs that describes this kind of problem."""
    title: str
    status: int
    detail: str
    """What is wrong, and what to do."""
    instance: str | None = None
    """The path of the request."""
    errors: Sequence[FieldError] | None = None
    """The fields that are wrong."""


class Kind(NamedTuple):
    """One kind of problem."""

    status: int
    slug: str
    title: str

    @property
    def type(self) -> str:
        """A URI reference to what `/docs` says about the kind."""
        return f"/docs#{self.slug}"

    def problem(self, detail: str, errors: Sequence[Detail] = ()) -> ProblemDetails:
        """Return one problem of this kind, for the client; `instance` is the request's to add."""
        wrong = [FieldError(**error) for error in errors[:MAX_ERRORS]] or None
        return ProblemDetails(self.type, self.title, self.status, detail, errors=wrong)


UNREADABLE = Kind(400, "unreadable-request", "The request cannot be read")
NO_KEY = Kind(401, "unauthorized", "A key is needed")
NOT_ALLOWED = Kind(403, "forbidden", "Not allowed")
NO_PATH = Kind(404, "not-found", "Not found")
BAD_METHOD = Kind(405, "method-not-allowed", "The path does not support this method")
TOO_LARGE = Kind(413, "too-large", "Larger than a limit")
TOO_LONG = Kind(414, "address-too-long", "The address is longer than a limit")
NOT_JSON = Kind(415, "unsupported-media-type", "The body is not sent as JSON")
TOO_MANY = Kind(429, "too-many-jobs", "Too many jobs wait already")
UNAVAILABLE = Kind(503, "engine-unavailable", "The engine does not answer")
OVER_TIME = Kind(503, "over-time", "The request takes longer than a limit")
CANNOT_WRITE = Kind(507, "cannot-write", "The disk cannot be written")
INTERNAL = Kind(500, "internal-error", "The server failed")

DOMAIN: tuple[tuple[type[AttendError], Kind], ...] = (
    (LimitExceeded, TOO_LARGE),
    (OverTime, OVER_TIME),
    (InvalidRequest, Kind(422, "invalid-request", "The request is invalid")),
    (NotFound, NO_PATH),
    (ReadOnly, NOT_ALLOWED),
    (Conflict, Kind(409, "conflict", "The state of the data forbids it")),
    (CannotWrite, CANNOT_WRITE),
    (EncoderError, Kind(503, "encoder-unavailable", "The encoder is not available")),
    (Unavailable, UNAVAILABLE),
    (AttendError, INTERNAL),
)
OUT_OF_FILES = (
    "The server has too many files open; ask again later. Where the request writes, look first: it "
    "may be stored."
)
DISK_FULL = "The server cannot write to its disk; nothing was stored. Try again later."
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of a disk, a quota or a limit of files that takes no more."""

HTTP = {
    kind.status: kind
    for kind in (
        UNREADABLE, NO_KEY, NOT_ALLOWED, NO_PATH, BAD_METHOD, TOO_LARGE, TOO_LONG, NOT_JSON,
        TOO_MANY,
    )
}  # fmt: skip
TOO_SLOW = Kind(408, "too-slow", "The request did not arrive in time")
HEADERS_TOO_LARGE = Kind(431, "headers-too-large", "The headers are larger than a limit")
NOT_DONE = Kind(501, "not-done", "Not done by this server")
NO_ROOM = Kind(503, "no-room", "Too many long answers wait for their clients")
BUSY = Kind(429, "too-many-requests", "Too many requests wait already")
UNREAD = (TOO_SLOW, BUSY, NO_ROOM, HEADERS_TOO_LARGE, NOT_DONE)
"""Kinds of requests that never come as far as an operation."""

INTERRUPTED = Kind(503, "interrupted", "The server ended while the job ran")
ANSWERED = tuple(sorted({kind for _, kind in DOMAIN} | set(HTTP.values())))
"""Every kind of which a response can be, by status."""

KINDS = (*ANSWERED, *UNREAD, INTERRUPTED)
"""Every kind; the last is only ever said of a job."""


def is_disk_full(error: BaseException) -> bool:
    """Return whether an error comes from a disk that takes no more."""
    return isinstance(error, OSError) and error.errno in FULL


def problem_of(
    error: Exception, reference: str | None = None, *, names_all: bool = True
) -> ProblemDetails:
    """Return the problem for the client: nothing about the inside of the server.

    Args:
        reference: the name of its log entry; the request id if absent.
        names_all: true if the client may learn the names of all collections.
    """
    if isinstance(error, UnknownCollection) and not names_all:
        error = UnknownCollection("There is no such collection.", field=error.field)
    elif isinstance(error, UnknownCollection):
        advice = "Create it with PUT /v1/collections/{collection}, or with 'attend build'."
        error = UnknownCollection(f"{error} {advice}", field=error.field)
    if isinstance(error, AttendError):
        kind = next(kind for domain, kind in DOMAIN if isinstance(error, domain))
        if kind.status < 500 or kind is OVER_TIME:
            return kind.problem(str(error), _errors(error))
        return kind.problem(f"{_failure(error)} {_logged(reference)}")
    if isinstance(error, HTTPException) and error.code is not None and error.code < 500:
        kind = HTTP.get(error.code) or Kind(error.code, "http-error", error.name)
        return kind.problem(_sentence(error))
    return INTERNAL.problem(f"This is an error of the server. {_logged(reference)}")


def respond(error: Exception, *, names_all: bool) -> Response:
    """Return the response to any exception: a problem, or a page for a browser.

    Args:
        names_all: true if the client may learn the names of all collections.
    """
    if isinstance(error, HTTPException) and error.code is not None and error.code < 400:
        return Response(status=error.code, headers=error.get_headers())
    problem = problem_of(error, names_all=names_all)
    if problem.status >= 500 and not isinstance(
        error, OverTime | OutOfFiles | OutOfMemory | Opening
    ):
        log.error("request %s: %s %r", g.id, request.method, request.path, exc_info=error)
    response = _rendered(problem)
    if isinstance(error, MethodNotAllowed) and error.valid_methods:
        response.headers["Allow"] = ", ".join(sorted(error.valid_methods))
    if isinstance(error, Unavailable):
        response.headers["Retry-After"] = str(error.retry_after)
    if isinstance(error, TooManyRequests):
        response.headers["Retry-After"] = str(error.retry_after)
    if isinstance(error, Unauthorized):
        for way in error.www_authenticate or ():
            response.headers.add("WWW-Authenticate", way.to_header())
    return response


def _rendered(problem: ProblemDetails) -> Response:
    if wants_page() and not request.path.startswith("/v1/"):
        page = render_template("problem.html", problem=problem)
        return Response(page, problem.status, content_type=f"{HTML}; charset=utf-8")
    return reply(replace(problem, instance=request.path), problem.status, PROBLEM)


def _errors(error: AttendError) -> Sequence[Detail]:
    details = getattr(error, "details", ())
    if details or error.field is None:
        return list(details)
    return [{"field": error.field, "reason": str(error)}]


def _failure(error: AttendError) -> str:
    if isinstance(error, EncoderError):
        return "The encoder of this collection cannot be used."
    if isinstance(error, OutOfMemory):
        return "The server has no memory left for the request; send or ask for less at once."
    if isinstance(error, OutOfFiles):
        return OUT_OF_FILES
    if isinstance(error, Opening):
        return "The collection is being opened, or its encoder loaded; ask again later."
    if isinstance(error, Unavailable):
        return "The server that keeps the collections does not answer; ask again later."
    if isinstance(error, CannotWrite):
        return DISK_FULL
    return "The data on the server's disk cannot be used."


def _logged(reference: str | None) -> str:
    return f"Its log has the details under {reference or f'the request id {g.id}'}."


def _sentence(error: HTTPException) -> str:
    match error:
        case MethodNotAllowed():
            methods = ", ".join(sorted(set(error.valid_methods or ()) - {"HEAD", "OPTIONS"}))
            return f"{request.path} takes {methods}, but {request.method} was sent."
        case NoSuchPath():
            return f"There is nothing at {request.path}; /docs lists every path."
        case RequestEntityTooLarge():
            limit, body = request.max_content_length or 0, current_app.config["MAX_CONTENT_LENGTH"]
            advice = "send less"
            if limit == body:
                advice = "send less, or start the server with a larger --max-body"
            elif limit > body:
                advice = (
                    "start the server with a larger --max-snapshot, or restore it with "
                    "'attend import --snapshot'"
                )
            return f"The body is larger than {limit:,} bytes, the most that is read; {advice}."
        case SecurityError():
            return "The Host header does not name this server; see --trusted-host."
    return error.description or error.name
