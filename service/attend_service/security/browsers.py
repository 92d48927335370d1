"""What browsers are told, what they tell, and what pages of other origins may do: nothing.

Unless their origin is listed, such pages may read and write nothing here. The `Host` check keeps
out pages whose own name was made to point here; this keeps out those that send requests elsewhere
than home. Credentials are never asked for across origins: a page that is let in sends its key
itself. Every response tells browsers to take it for what it is, to keep nothing, and to run nothing
but the pages' own scripts, which talk to this server alone.

`Strict-Transport-Security` is for the proxy that speaks TLS: over plain HTTP it means nothing.
"""

from __future__ import annotations

from flask import Response, request
from werkzeug.exceptions import Forbidden

from attend_service.context import context
from attend_service.replies import HTML
from attend_service.security.keys import HEADER

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
METHODS = "GET, POST, PUT, PATCH, DELETE"
SENT = f"Authorization, Content-Type, {HEADER}, X-Request-Id"
SHOWN = "X-Request-Id, Location, Retry-After"
REMEMBERED_SECONDS = "600"

NOTHING = "default-src 'none'; frame-ancestors 'none'"
PAGE = (
    "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'; img-src 'self' data:"
)
ALWAYS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Permissions-Policy": "camera=(), display-capture=(), geolocation=(), microphone=(), usb=()",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}

FOR_PROGRAMS = [*ALWAYS.items(), ("Content-Security-Policy", NOTHING)]
"""The headers of everything that is not a page."""


def _page() -> list[tuple[str, str]]:
    policy = " ".join([PAGE, *context().settings.picture_origin])
    return [*ALWAYS.items(), ("Content-Security-Policy", policy)]


def harden(response: Response) -> None:
    sent = response.headers
    sent.extend(_page() if response.mimetype == HTML else FOR_PROGRAMS)
    # A write that was answered is seen by the next search: no answer may be an older one's.
    if "Cache-Control" not in sent:
        sent.add("Cache-Control", "no-store")
    sent.add("Vary", "Accept")


def is_own_page() -> bool:
    """Return whether a page of this server sent the request, as the browser says.

    False where it says nothing: another program, or an old browser.
    """
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None:
        return site == "same-origin"
    # Browsers say less to servers without TLS that are not on loopback.
    return is_own_origin()


def is_own_origin() -> bool:
    """Return whether the request names this server as its origin."""
    # The scheme may be a proxy's, and is not ours to compare.
    return request.headers.get("Origin", "").partition("://")[2] == request.host.lower()


def preflight() -> Response | None:
    """Answer a browser that asks whether a listed origin may send a request."""
    asks = request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers
    return Response(status=204) if asks and _is_listed() else None


def check_write() -> None:
    """Raise Forbidden for a change that a page of another, unlisted origin asks for.

    Browsers say where a request comes from, and pages cannot change what they say; other
    clients say nothing.
    """
    if request.method in SAFE or _is_listed():
        return
    site = request.headers.get("Sec-Fetch-Site")
    origin = request.headers.get("Origin")
    is_page = site != "none" if site is not None else origin is not None
    if is_page and not is_own_page():
        raise Forbidden(
            f"A page of {(origin or 'another origin')[:100]} may not change anything here; see "
            f"--cors-origin."
        )


def add_cors(response: Response) -> None:
    """Tell the browser of a listed origin that its page may read the response."""
    if not context().settings.cors_origin:
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
    return origin is not None and origin in context().settings.cors_origin
