"""Replies as JSON, and errors as RFC 9457 problems: one table says what each is."""

from __future__ import annotations

import errno
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import orjson
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

from attend.api.base import Reply, json_fields
from attend.core import errors

log = logging.getLogger("attend")

JSON = "application/json"
PROBLEM = "application/problem+json"
HTML = "text/html"
TAR = "application/x-tar"
MULTIPART = "multipart/form-data"

FOREIGN_FORMS = (
    *("/v1/models", "/v1/embeddings", "/v1/vector_stores", "/v1/files"),
    *("/v1/rerank", "/v2/rerank"),
)
"""Where paths begin whose clients read `error.message` of a problem, and nothing else of it."""

QDRANT = "/collections"
"""Begins the paths of Qdrant's API, whose errors have a form of their own."""

READ_ONLY = (
    " Qdrant's API is read-only here; documents are written at "
    "/v1/collections/{collection}/documents."
)

MAX_ERRORS = 100
"""Details in a problem: a batch can have thousands of wrong fields, and a hundred suffice."""


class FieldError(Reply):
    """One field that is wrong."""

    field: str
    reason: str


class ClientError(Reply):
    """An error as OpenAI's clients read it."""

    message: str
    type: str
    param: str | None
    """The first field that is wrong."""
    code: str


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
    code: str | None = None
    """The class of the error in Python, such as UnknownDocument, which says more than `type`;
    absent where the error is not one of the library's."""
    error: ClientError | None = None
    """The same in OpenAI's form, at its paths."""


class QdrantError(Reply):
    """An error in Qdrant's form."""

    status: Mapping[str, str]
    """What is wrong, and what to do, as `error`."""
    time: float = 0.0


class Kind(NamedTuple):
    """One kind of problem."""

    status: int
    slug: str
    title: str

    @property
    def type(self) -> str:
        """A URI reference to what `/docs` says about the kind."""
        return f"/docs#{self.slug}"

    def problem(
        self, detail: str, wrong: Sequence[errors.Detail] = (), code: str | None = None
    ) -> ProblemDetails:
        """Return one problem of this kind, for the client; `instance` is the request's to add."""
        fields = [FieldError(**error) for error in wrong[:MAX_ERRORS]] or None
        return ProblemDetails(self.type, self.title, self.status, detail, None, fields, code)


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

DOMAIN: tuple[tuple[type[errors.AttendError], Kind], ...] = (
    (errors.LimitExceeded, TOO_LARGE),
    (errors.OverTime, OVER_TIME),
    (errors.InvalidRequest, Kind(422, "invalid-request", "The request is invalid")),
    (errors.Forbidden, NOT_ALLOWED),
    (errors.NotFound, NO_PATH),
    (errors.ReadOnly, NOT_ALLOWED),
    (errors.Conflict, Kind(409, "conflict", "The state of the data forbids it")),
    (errors.CannotWrite, CANNOT_WRITE),
    (errors.EncoderError, Kind(503, "encoder-unavailable", "The encoder is not available")),
    (errors.Unavailable, UNAVAILABLE),
    (errors.AttendError, INTERNAL),
)
OUT_OF_MEMORY = "The server has no memory left for the request; send or ask for less at once."
OUT_OF_FILES = (
    "The server has too many files open; ask again later. Where the request writes, look first: it "
    "may be stored."
)
DISK_FULL = "The server cannot write to its disk; nothing was stored. Try again later."
FAILURES: tuple[tuple[type[errors.AttendError], str], ...] = (
    (errors.EncoderError, "The encoder of this collection cannot be used."),
    (errors.OutOfMemory, OUT_OF_MEMORY),
    (errors.OutOfFiles, OUT_OF_FILES),
    (errors.Opening, "The collection is being opened, or its encoder loaded; ask again later."),
    (errors.Unavailable, "The server that keeps the collections does not answer; ask again later."),
    (errors.CannotWrite, DISK_FULL),
    (errors.AttendError, "The data on the server's disk cannot be used."),
)
"""All that a client learns of errors that are not its own; the first that fits counts."""

PLAIN = (UNREADABLE, NO_KEY, NOT_ALLOWED, NO_PATH, BAD_METHOD, TOO_LARGE, TOO_LONG, NOT_JSON)
HTTP = {kind.status: kind for kind in (*PLAIN, TOO_MANY)}
TOO_SLOW = Kind(408, "too-slow", "The request did not arrive in time")
HEADERS_TOO_LARGE = Kind(431, "headers-too-large", "The headers are larger than a limit")
NOT_DONE = Kind(501, "not-done", "Not done by this server")
NO_ROOM = Kind(503, "no-room", "Too many long answers wait for their clients")
BUSY = Kind(429, "too-many-requests", "Too many requests wait already")
INTERRUPTED = Kind(503, "interrupted", "The server ended while the job ran")
KINDS = (
    *sorted({kind for _, kind in DOMAIN} | set(HTTP.values())),
    *(TOO_SLOW, BUSY, NO_ROOM, HEADERS_TOO_LARGE, NOT_DONE),  # these never reach an operation
    INTERRUPTED,  # only said of a job
)


def reply(
    content: Reply | Mapping[str, Any], status: int = 200, media_type: str = JSON
) -> Response:
    return Response(to_json(content), status, content_type=media_type)


def to_json(content: Reply | Mapping[str, Any] | Sequence[Any]) -> bytes:
    try:
        return orjson.dumps(content, json_fields, orjson.OPT_PASSTHROUGH_DATACLASS)
    except TypeError:
        # Values that came in from Python may hold integers beyond 64 bits or half a surrogate
        # pair, which orjson refuses and JSON text can say.
        compact = (",", ":")
        return json.dumps(
            content, separators=compact, allow_nan=False, default=json_fields
        ).encode()


def wants_page() -> bool:
    """Return true if the client prefers HTML: a browser does, curl takes anything."""
    return request.accept_mimetypes.best_match([JSON, HTML]) == HTML


def is_disk_full(error: BaseException) -> bool:
    """Return whether an error comes from a disk, a quota or a limit of files that takes no more."""
    full = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    return isinstance(error, OSError) and error.errno in full


def problem_of(
    error: Exception, reference: str | None = None, *, names_all: bool = True
) -> ProblemDetails:
    """Return the problem for the client: nothing about the inside of the server.

    Args:
        reference: the name of its log entry; the request id if absent.
        names_all: true if the client may learn the names of all collections.
    """
    if isinstance(error, errors.UnknownCollection) and not names_all:
        error = errors.UnknownCollection("There is no such collection.", field=error.field)
    elif isinstance(error, errors.UnknownCollection):
        advice = "Create it with PUT /v1/collections/{collection}, or with 'attend build'."
        error = errors.UnknownCollection(f"{error} {advice}", field=error.field)
    code = None
    if isinstance(error, errors.AttendError):
        kind = next(kind for domain, kind in DOMAIN if isinstance(error, domain))
        code = type(error).__name__
        if kind.status < 500 or kind is OVER_TIME:
            details = list(error.details)
            if not details and error.field is not None:
                details = [{"field": error.field, "reason": str(error)}]
            return kind.problem(str(error), details, code)
        failure = next(sentence for domain, sentence in FAILURES if isinstance(error, domain))
    elif isinstance(error, HTTPException) and error.code is not None and error.code < 500:
        kind = HTTP.get(error.code) or Kind(error.code, "http-error", error.name)
        return kind.problem(_sentence(error))
    else:
        kind, failure = INTERNAL, "This is an error of the server."
    place = reference or f"the request id {g.id}"
    return kind.problem(f"{failure} Its log has the details under {place}.", code=code)


def respond(error: Exception, *, names_all: bool, names: Sequence[str] = ()) -> Response:
    """Return the response to any exception: a problem, or a page for a browser.

    Args:
        names_all: true if the client may learn the names of all collections.
        names: the collections that a page offers in place of one that does not exist.
    """
    if isinstance(error, HTTPException) and error.code is not None and error.code < 400:
        return Response(status=error.code, headers=error.get_headers())
    problem = problem_of(error, names_all=names_all)
    if problem.status >= 500 and not isinstance(
        error, errors.OverTime | errors.OutOfFiles | errors.OutOfMemory | errors.Opening
    ):
        log.error("request %s: %s %r", g.id, request.method, request.path, exc_info=error)
    if f"{request.path}/".startswith(f"{QDRANT}/"):
        is_no_path = isinstance(error, NoSuchPath | MethodNotAllowed)
        sentence = problem.detail + (READ_ONLY if is_no_path else "")
        response = reply(QdrantError({"error": sentence}), problem.status)
    elif wants_page() and not request.path.startswith("/v1/"):
        if isinstance(error, errors.UnknownCollection):  # how to create one is for programs
            sentence = "There is no collection of this name here."
            problem = replace(problem, detail=sentence, errors=None)
        page = render_template("problem.html", problem=problem, names=names)
        response = Response(page, problem.status, content_type=f"{HTML}; charset=utf-8")
    else:
        problem = replace(problem, instance=request.path)
        if request.path.startswith(FOREIGN_FORMS):
            param = problem.errors[0].field if problem.errors else None
            slug = problem.type.partition("#")[2]
            problem = replace(problem, error=ClientError(problem.detail, slug, param, slug))
        response = reply(problem, problem.status, PROBLEM)
    if isinstance(error, MethodNotAllowed) and error.valid_methods:
        response.headers["Allow"] = ", ".join(sorted(error.valid_methods))
    if isinstance(error, errors.Unavailable | TooManyRequests):
        response.headers["Retry-After"] = str(error.retry_after)
    if isinstance(error, Unauthorized):
        for way in error.www_authenticate or ():
            response.headers.add("WWW-Authenticate", way.to_header())
    return response


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
