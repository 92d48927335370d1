"""Pages of other origins: they may read and write nothing here, unless their origin is listed.

The `Host` check keeps out pages whose own name was made to point here; this keeps out those that
send requests elsewhere than home. Credentials are never asked for across origins: a page that
is let in sends its key itself.
"""

from __future__ import annotations

import re

from flask import Response, request
from werkzeug.exceptions import Forbidden

from attend_service.context import context
from attend_service.security.access import HEADER, SAFE
from attend_service.security.browsers import is_own_page

SHAPE = re.compile(r"https?://(\[[0-9a-f:]+\]|[a-z0-9.-]+)(:\d{1,5})?")
METHODS = "GET, POST, PUT, PATCH, DELETE"
SENT = f"Authorization, Content-Type, {HEADER}, X-Request-Id"
SHOWN = "X-Request-Id, Location, Retry-After"
REMEMBERED_SECONDS = "600"


def check_origin(origin: str) -> None:
    """Raises ValueError for what is no origin, such as `*`."""
    if not SHAPE.fullmatch(origin):
        raise ValueError(
            f"{origin!r} is no origin; give one as https://example.org or "
            f"http://localhost:3000, without a path. There is none that stands for all."
        )


def preflight() -> Response | None:
    """The answer to a browser that asks whether a listed origin may send a request."""
    asks = request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers
    return Response(status=204) if asks and _is_listed() else None


def check_write() -> None:
    """Raises Forbidden for a change that a page of an origin neither ours nor listed asks for.

    Browsers say where a request comes from, and pages cannot change what they say; other
    clients say nothing.
    """
    if request.method in SAFE or _is_listed():
        return
    site = request.headers.get("Sec-Fetch-Site")
    origin = request.headers.get("Origin")
    told = site != "none" if site is not None else origin is not None
    if told and not is_own_page():
        raise Forbidden(
            f"A page of {(origin or 'another origin')[:100]} may not change anything here; see "
            f"--cors-origin."
        )


def add_cors(response: Response) -> None:
    """Tell the browser of a listed origin that its page may read the response."""
    if not context().settings.cors_origins:
        return
    response.vary.add("Origin")
    if not _is_listed():
        return
    headers = response.headers
    headers["Access-Control-Allow-Origin"] = request.headers["Origin"]
    headers["Access-Control-Expose-Headers"] = SHOWN
    if request.method == "OPTIONS":
        headers["Access-Control-Allow-Methods"] = METHODS
        headers["Access-Control-Allow-Headers"] = SENT
        headers["Access-Control-Max-Age"] = REMEMBERED_SECONDS


def _is_listed() -> bool:
    origin = request.headers.get("Origin")
    return origin is not None and origin in context().settings.cors_origins
