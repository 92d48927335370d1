"""Access: the key of a request against the need of its operation."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import NoReturn

from flask import g, request
from werkzeug.datastructures import WWWAuthenticate
from werkzeug.exceptions import Forbidden, Unauthorized

from attend_service.context import context, requested_operation
from attend_service.replies import wants_page
from attend_service.security.browsers import SAFE, is_own_page
from attend_service.security.keys import HEADER, ApiKey

log = logging.getLogger("attend")

REALM = "attend"


def check_access() -> None:
    """Check the key of the request, where the server asks for keys.

    Raises:
        Unauthorized: the operation needs a key, and the request has none or an unknown one.
        Forbidden: the key has a smaller scope, or is for other collections.
    """
    if _is_open() or not context().keys.asks():
        return
    g.key = _owner()
    operation = requested_operation()
    if operation is None:  # 404 for every key
        return
    need = operation.need
    if need != "open" and not g.key.may(need):
        raise Forbidden(
            f"This needs a key of the scope {need}, but the scope of the key is {g.key.scope}."
        )
    arguments = request.view_args or {}
    if "collection" in arguments and not operation.to_all:
        name = arguments["collection"]
        arguments["collection"] = _opened(name) if operation.exact else resolved(name)
    elif g.key.collections is not None and not operation.checks_collections:
        raise Forbidden("This needs a key to all collections, but the key is for some.")


def may_send() -> bool:
    """Return whether the body of the request is worth receiving, by its key alone."""
    operation = requested_operation()
    if operation is None or not context().keys.asks() or operation.need == "open":
        return operation is not None
    key = context().keys.owner(_sent() or "")
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


def sees_all() -> bool:
    """Return whether the request may learn the names of all collections."""
    key = _key()
    return key is None or key.collections is None


def _key() -> ApiKey | None:
    key: ApiKey | None = g.get("key")
    return key


def _is_open() -> bool:
    """Return whether the operation needs no key: health, and the files of the pages."""
    operation = requested_operation()
    return request.endpoint == "static" or (operation is not None and operation.need == "open")


def _owner() -> ApiKey:
    sent = _sent()
    if sent is None:
        _refuse(
            f"This needs an API key, in the header 'Authorization: Bearer KEY' or '{HEADER}: KEY'. "
            f"The operator of the server makes one with 'attend keys add'."
        )
    key = context().keys.owner(sent)
    if key is None:
        place = request.url_rule or "an unknown path"
        # No part of the key: it may differ from a right one in a letter.
        log.warning(
            "request %s: a key was refused: %s %s from %s",
            g.id, request.method, place, request.remote_addr,
        )  # fmt: skip
        _refuse("The API key is unknown, or has expired.", error="invalid_token")
    return key


def _sent() -> str | None:
    """Return the key that came with the request.

    A browser sends a password by itself, whichever page makes the request: so a password counts
    only where nothing changes, or where the browser says that a page of this server asks.
    """
    if HEADER in request.headers:
        return request.headers[HEADER].strip()
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
