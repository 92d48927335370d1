"""The objects that every view may use: data, settings, jobs, keys and readiness."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from flask import current_app, g, request

from attend import Collection, Data
from attend.core.errors import Conflict, OutOfFiles
from attend_service.jobs import Jobs
from attend_service.readiness import Readiness
from attend_service.security.keys import KeyRing, Scope
from attend_service.settings import ServerSettings

log = logging.getLogger("attend")

EXTENSION = "attend"


class RequestedOperation(Protocol):
    """The part of an `operations.Operation` that is needed before and after it runs."""

    @property
    def path(self) -> str: ...

    @property
    def need(self) -> Scope | Literal["open"]: ...

    @property
    def checks_collections(self) -> bool: ...

    @property
    def to_all(self) -> bool: ...

    @property
    def writes(self) -> bool: ...

    @property
    def exact(self) -> bool: ...

    @property
    def body_limit(self) -> int | None: ...

    @property
    def upload(self) -> str | None: ...


class Files:
    """Frees files where the process has as many open as the system allows."""

    SECONDS = 60.0
    """How often it does so, and says so."""

    def __init__(self, data: Data) -> None:
        self._data = data
        self._last = -self.SECONDS
        self._lock = threading.Lock()

    def free(self, error: OutOfFiles) -> None:
        """Close the collections, each of which threads may have open several times."""
        with self._lock:
            if time.monotonic() - self._last < self.SECONDS:
                return
            self._last = time.monotonic()
        log.warning("%s All collections are closed, and opened again where they are used.", error)
        self._data.close_collections()


@dataclass(frozen=True)
class Context:
    """The objects of one application; `operations` are by the names of their views."""

    data: Data
    settings: ServerSettings
    readiness: Readiness
    jobs: Jobs
    keys: KeyRing
    operations: Mapping[str, RequestedOperation]
    files: Files


def context() -> Context:
    current: Context = current_app.extensions[EXTENSION]
    return current


def collection_of(name: str) -> Collection:
    """Return the collection with a name or an alias.

    Raises:
        Conflict: the request has a key, and the name has become an alias since it was checked.
    """
    collection = context().data.collection(name)
    if collection.name != name:
        check_opened([name], [collection.name])
    return collection


def check_opened(names: Container[str], opened: Iterable[str]) -> None:
    """Raise Conflict where other collections were opened than the request's key was checked for.

    With a key, `names` are collections: aliases were resolved by the check. One that is dropped
    meanwhile may leave its name to an alias of another.
    """
    if "key" in g and any(name not in names for name in opened):
        raise Conflict(
            "The collection was replaced by an alias while it was opened. Send the request again.",
            field="collection",
        )


def requested_operation() -> RequestedOperation | None:
    """Return the operation of the request; None for an unknown path."""
    current: Context = current_app.extensions[EXTENSION]
    return current.operations.get(request.endpoint or "")
