"""Limits of HTTP, what pages of other origins may do, and the key of a request.

Limits of what is asked are those of `attend.api`; SECURITY.md lists them all.

Unless their origin is listed, pages of other origins may read and write nothing here. The `Host`
check keeps out pages whose own name was made to point here; this keeps out those that send requests
elsewhere than home. Credentials are never asked for across origins: a page that is let in sends its
key itself. Every response tells browsers to take it for what it is, to keep nothing, and to run
nothing but the pages' own scripts, which talk to this server alone. `Strict-Transport-Security` is
for the proxy that speaks TLS: over plain HTTP it means nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import NoReturn

from flask import Response, g, request
from werkzeug.datastructures import WWWAuthenticate
from werkzeug.exceptions import Forbidden, Unauthorized

from attend import Data, encoder
from attend.core.errors import Conflict, InvalidRequest
from attend_service.context import Operation, context, requested_operation
from attend_service.keys import HEADER, QDRANT_HEADER, ApiKey, KeyRing, Scope
from attend_service.replies import HTML, wants_page
from attend_service.settings import ServerSettings

log = logging.getLogger("attend")

MAX_QUERY_STRING = 16_384
"""Bytes after the question mark."""

MAX_HEADERS = 65_536
"""Bytes of a request's first line and headers together."""

MAX_BATCH_BODY = 16 * 1024 * 1024
"""Bytes of a body that has many searches."""

FREE_CHUNKS = 10_000
BYTES_PER_CHUNK = 64
"""Pieces in which a body may arrive, in all, and beyond that by its size: each takes as much time
as a thousand bytes."""

MAX_CONNECTIONS = 1000
"""Of one worker process; more wait until one of them is closed."""

IDLE_SECONDS = 60.0
"""The time in which a client must take the next part of an answer."""

BYTES_PER_SECOND = 256 * 1024
"""The rate, 2 Mbit a second, at which a client must take a long answer, after `IDLE_SECONDS`."""

MAX_UNSENT = 256 * 1024 * 1024
"""Bytes of long answers that wait for their clients, in all."""

HEADER_SECONDS = 30.0
"""In which a request's headers must arrive, since the connection began or the answer before them;
so a connection without a request is closed too."""

REQUEST_SECONDS = 300.0
"""In which a body must arrive: 64 MiB at 2 Mbit a second."""

RESERVED = frozenset(
    {"con", "prn", "aux", "nul"} | {f"{port}{n}" for port in ("com", "lpt") for n in range(10)}
)
"""Names of devices where Windows runs: a folder of such a name could not be copied there."""

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
METHODS = "GET, POST, PUT, PATCH, DELETE"
SENT = f"Authorization, Content-Type, {HEADER}, {QDRANT_HEADER}, X-Request-Id"
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

REALM = "attend"


def check_origin(origins: Sequence[str]) -> Response | None:
    """Answer a browser that asks whether a page of a listed origin may send a request.

    Browsers say where a request comes from, and pages cannot change what they say; other
    clients say nothing.

    Raises:
        Forbidden: a page of another, unlisted origin asks for a change.
    """
    origin = request.headers.get("Origin")
    is_listed = origin in origins
    asks = request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers
    if is_listed and asks:
        return Response(status=204)
    if request.method in SAFE or is_listed:
        return None
    site = request.headers.get("Sec-Fetch-Site")
    is_page = site != "none" if site is not None else origin is not None
    if is_page and not is_own_page():
        raise Forbidden(
            f"A page of {(origin or 'another origin')[:100]} may not change anything here; see "
            f"--cors-origin."
        )
    return None


def is_own_page() -> bool:
    """Return whether a page of this server sent the request, as the browser says.

    False where it says nothing: another program, or an old browser.
    """
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None:
        return site == "same-origin"
    # Browsers say less to servers without TLS that are not on loopback. The scheme may be a
    # proxy's, and is not ours to compare.
    return request.headers.get("Origin", "").partition("://")[2] == request.host.lower()


def add_headers(response: Response, settings: ServerSettings) -> None:
    """Tell a browser what a response is for; one of a listed origin that its page may read it."""
    headers = response.headers
    if response.mimetype == HTML:
        policy = " ".join([PAGE, *settings.picture_origin])
        headers.extend([*ALWAYS.items(), ("Content-Security-Policy", policy)])
    else:
        headers.extend(FOR_PROGRAMS)
    # A write that was answered is seen by the next search: no answer may be an older one's.
    if "Cache-Control" not in headers:
        headers.add("Cache-Control", "no-store")
    headers.add("Vary", "Accept")
    if not settings.cors_origin:
        return
    response.vary.add("Origin")
    origin = request.headers.get("Origin")
    if origin not in settings.cors_origin:
        return
    headers["Access-Control-Allow-Origin"] = origin
    headers["Access-Control-Expose-Headers"] = SHOWN
    if request.method == "OPTIONS":
        headers["Access-Control-Allow-Methods"] = METHODS
        headers["Access-Control-Allow-Headers"] = SENT
        headers["Access-Control-Max-Age"] = REMEMBERED_SECONDS


def check_access(operation: Operation | None, keys: KeyRing) -> None:
    """Check the key of the request, where the server asks for keys.

    Raises:
        Unauthorized: the operation needs a key, and the request has none or an unknown one.
        Forbidden: the key has a smaller scope, or is for other collections.
    """
    # Health and the files of the pages need no key.
    is_open = operation is not None and operation.need == "open"
    if is_open or request.endpoint == "static" or not keys.asks():
        return
    sent = _sent()
    if sent is None:
        _refuse(
            f"This needs an API key, in the header 'Authorization: Bearer KEY' or '{HEADER}: KEY'. "
            f"The operator of the server makes one with 'attend keys add'."
        )
    key = keys.owner(sent)
    if key is None:
        place = request.url_rule or "an unknown path"
        # No part of the key: it may differ from a right one in a letter.
        log.warning(
            "request %s: a key was refused: %s %s from %s",
            g.id, request.method, place, request.remote_addr,
        )  # fmt: skip
        _refuse("The API key is unknown, or has expired.", error="invalid_token")
    g.key = key
    if operation is None:  # 404 for every key
        return
    need = operation.need
    if need != "open" and not key.may(need):
        raise Forbidden(
            f"This needs a key of the scope {need}, but the scope of the key is {key.scope}."
        )
    arguments = request.view_args or {}
    if "collection" in arguments and not operation.to_all:
        name = arguments["collection"]
        arguments["collection"] = _opened(name) if operation.exact else resolved(name)
    elif key.collections is not None and not operation.checks_collections:
        raise Forbidden("This needs a key to all collections, but the key is for some.")


def may_send() -> bool:
    """Return whether the body of the request is worth receiving, by its key alone."""
    operation, keys = requested_operation(), context().keys
    if operation is None or operation.need == "open" or not keys.asks():
        return operation is not None
    key = keys.owner(_sent() or "")
    return key is not None and key.may(operation.need)


def resolved(name: str) -> str:
    """Return the collection of a name or alias, which the request's key opens.

    The view gets this name: an alias that is switched meanwhile does not lead it elsewhere.

    Raises:
        Forbidden: the key opens neither the name nor the collection, existing or not.
    """
    key = _key()
    if key is None:
        return name
    collection = context().data.resolve(name)
    if key.opens(name) or key.opens(collection):
        return collection
    return _opened(name)


def _opened(name: str) -> str:
    """Return a name as it is, or raise Forbidden where the request's key does not open it."""
    if not is_allowed(name):
        raise Forbidden(f"The key does not open a collection {name[:80]!r}.")
    return name


def is_allowed(collection: str) -> bool:
    """Return whether the request's key opens a collection by this name."""
    key = _key()
    return key is None or key.opens(collection)


def visible(names: Iterable[str]) -> list[str]:
    """Return the collections among `names` that the request's key opens."""
    return [name for name in names if is_allowed(name)]


def may(need: Scope) -> bool:
    """Return whether the request's key has a scope; without keys every request has all."""
    key = _key()
    return key is None or key.may(need)


def sees_all() -> bool:
    """Return whether the request may learn the names of all collections."""
    key = _key()
    return key is None or key.collections is None


def _key() -> ApiKey | None:
    key: ApiKey | None = g.get("key")
    return key


def _sent() -> str | None:
    """Return the key that came with the request.

    A browser sends a password by itself, whichever page makes the request: so a password counts
    only where nothing changes, or where the browser says that a page of this server asks.
    """
    for header in (HEADER, QDRANT_HEADER):
        if header in request.headers:
            return request.headers[header].strip()
    authorization = request.authorization
    if authorization is None:
        return None
    if authorization.type == "basic":
        return authorization.password if request.method in SAFE or is_own_page() else None
    return authorization.token if authorization.type == "bearer" else None


def _refuse(sentence: str, **challenge: str) -> NoReturn:
    ways = [WWWAuthenticate("bearer", {"realm": REALM, **challenge})]
    if wants_page() and request.method in SAFE:
        ways.append(WWWAuthenticate("basic", {"realm": REALM, "charset": "UTF-8"}))
    raise Unauthorized(sentence, www_authenticate=ways)


def check_encoder(name: str, allowed: Sequence[str], field: str = "encoder") -> None:
    """Raise InvalidRequest for an encoder that clients may not name.

    The sentence does not tell which folders the server has.
    """
    if encoder.canonical_name(name) not in map(encoder.canonical_name, (encoder.DEFAULT, *allowed)):
        raise InvalidRequest(
            f"The encoder {name[:80]!r} is not one that this server offers to its clients. Use "
            f"{encoder.DEFAULT}, or have its operator add it with --allow-encoder.",
            field=field,
        )


def check_new_collection(data: Data, name: str, limit: int) -> None:
    """Refuse a collection beyond the limit, or with an unsuitable name.

    Raises:
        Conflict: there are `limit` already, or a name that differs in its capitals only.
        InvalidRequest: the name is a device's.
    """
    count = len(data.names())
    if count >= limit:
        raise Conflict(
            f"There are {count:,} collections, and at most {limit:,} are kept; delete one, or "
            f"start the server with a larger --max-collections.",
            field="collection",
        )
    check_new_name(data, name)


def check_new_name(data: Data, name: str, field: str = "collection") -> None:
    """Refuse the name of a collection or alias that other systems could not tell apart."""
    if name.lower() in RESERVED:
        raise InvalidRequest(
            f"{name!r} names a device on some systems, to which the data folder could not be "
            f"copied; choose another name.",
            field=field,
        )
    others = {other.lower() for other in (*data.names(), *data.aliases()) if other != name}
    if name.lower() in others:
        raise Conflict(
            f"Another name differs from {name!r} in its capitals only, which some systems take for "
            f"the same; choose another name.",
            field=field,
        )
