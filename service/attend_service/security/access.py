"""Who asks, and whether what they ask for is theirs to ask."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import NoReturn

from flask import g, request
from werkzeug.datastructures import WWWAuthenticate
from werkzeug.exceptions import Forbidden, Unauthorized

from attend_service.context import asked, context
from attend_service.replies import wants_page
from attend_service.security.browsers import SAFE, is_own_page
from attend_service.security.keys import HEADER, Key

log = logging.getLogger("attend")

REALM = "attend"


def check_access() -> None:
    """Let in who has a key for the operation, everyone where none are asked for.

    Raises:
        Unauthorized: a key is needed, and none was sent, or one that is not known.
        Forbidden: the key has a smaller scope, or is for other collections.
    """
    if _is_open() or not context().keys.asks():
        return
    g.key = _owner()
    operation = asked()
    if operation is None:  # nothing is there, and that is said to who has any key
        return
    need = operation.need
    if need != "open" and not g.key.may(need):
        raise Forbidden(
            f"This needs a key of the scope {need}, and the one that was sent has the scope "
            f"{g.key.scope}."
        )
    named = (request.view_args or {}).get("collection")
    if named is not None:
        check_collection(named)
    elif g.key.collections is not None and not operation.own:
        raise Forbidden("This is for keys to all collections, and the one that was sent is not.")


def check_collection(name: str) -> None:
    """Raises Forbidden for a collection that the request's key does not open, there or not."""
    if not is_allowed(name):
        raise Forbidden(f"The key that was sent does not open a collection {name[:80]!r}.")


def is_allowed(collection: str) -> bool:
    """Whether the request's key opens a collection of this name, or the one it stands for."""
    key = _key()
    if key is None or key.opens(collection):
        return True
    return key.opens(context().data.resolve(collection))


def visible(names: Iterable[str]) -> list[str]:
    """Those of some collections that the request's key opens."""
    return [name for name in names if is_allowed(name)]


def sees_all() -> bool:
    """Whether the request may learn the names of all collections."""
    key = _key()
    return key is None or key.collections is None


def _key() -> Key | None:
    key: Key | None = g.get("key")
    return key


def _is_open() -> bool:
    """Whether anyone may ask for this: health, and what the pages look like."""
    operation = asked()
    return request.endpoint == "static" or (operation is not None and operation.need == "open")


def _owner() -> Key:
    sent = _sent()
    if sent is None:
        _refuse(
            f"A key is needed, in the header 'Authorization: Bearer KEY' or '{HEADER}: KEY'. Who "
            f"runs the server makes one with 'attend keys add'."
        )
    key = context().keys.owner(sent)
    if key is None:
        place = request.url_rule or "a path that is not there"
        # Nothing of the key: it may be right but for a letter.
        log.warning(
            "request %s: a key was refused: %s %s from %s",
            g.id, request.method, place, request.remote_addr,
        )  # fmt: skip
        _refuse("The key is not known here, or is over.", error="invalid_token")
    return key


def _sent() -> str | None:
    """The key that came with the request.

    A browser sends it as a password by itself, wherever the request comes from: so it counts
    only where nothing is changed, or where the browser says that a page of ours asks.
    """
    if HEADER in request.headers:
        return request.headers[HEADER].strip()
    given = request.authorization
    if given is None:
        return None
    if given.type == "basic":
        return given.password if request.method in SAFE or is_own_page() else None
    return given.token if given.type == "bearer" else None


def _refuse(sentence: str, **challenge: str) -> NoReturn:
    ways = [WWWAuthenticate("bearer", {"realm": REALM, **challenge})]
    if wants_page() and request.method in SAFE:
        ways.append(WWWAuthenticate("basic", {"realm": REALM, "charset": "UTF-8"}))
    raise Unauthorized(sentence, www_authenticate=ways)
