"""Operations as they are declared, and the objects that every view may use."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import UnionType
from typing import Any, Literal

from flask import current_app, g, request

from attend import Collection, Data
from attend.api.base import Reply, Request
from attend.core.errors import Conflict, OutOfFiles
from attend.core.types import Json
from attend_service.jobs import Jobs
from attend_service.keys import KeyRing, Scope
from attend_service.maps import Maps
from attend_service.metrics import Metrics
from attend_service.readiness import Readiness
from attend_service.settings import ServerSettings

log = logging.getLogger("attend")

EXTENSION = "attend"

CONVERTERS = {"id": "id:", "version": "int:", "job": "int:"}
"""A document's id may be anything; versions and jobs are numbers."""

MAX_BODY = 4 * 1024 * 1024
"""Bytes of a body that uploads nothing, such as a search."""

View = Callable[..., Any]


@dataclass(frozen=True)
class Operation:
    """One method on one path.

    Attributes:
        path: as OpenAPI writes it, `/v1/collections/{collection}`.
        body, query: the models of what is sent; the view gets them under these names.
        bare: the field of the body that a bare list stands for.
        single: whether one item may stand for a list of one.
        optional: whether nothing at all may be sent, which stands for an object without fields.
        arrow: whether the body may be documents in Arrow's format.
        returns: what each successful status answers; None for nothing at all.
        html: whether a browser gets a page instead.
        example, answer: a body that works, and what is answered to it.
        also: statuses of problems besides those that follow from the rest.
        scope: what a key must allow; open to anyone without one; if absent, read to look at
            something and admin for the rest, so that what is forgotten stays closed.
        reads: whether it changes nothing, though it needs more than the scope read.
        media, upload: what is answered with 200, and what is sent, where it is no JSON.
        body_limit: the largest body in bytes; the server's `max_body` if None, and of a snapshot
            its `max_snapshot`.
        patience: how many times the server's `deadline` it may take.
        exact: whether `collection` in the path is a new name, or must be no alias.
        checks_collections: whether the view itself keeps to the collections that a key
            opens; otherwise what names no collection in its path is for keys to all.
        to_all: whether it is for keys to all collections, though its path names one.
    """

    method: str
    path: str
    tag: str
    view: View
    returns: Mapping[int, type[Reply] | UnionType | None]
    body: type[Request] | None = None
    bare: str | None = None
    single: bool = False
    optional: bool = False
    arrow: bool = False
    query: type[Request] | None = None
    html: bool = False
    example: Json = None
    answer: Json = None
    also: tuple[int, ...] = ()
    scope: Scope | Literal["open"] | None = None
    checks_collections: bool = False
    to_all: bool = False
    reads: bool = False
    media: str | None = None
    upload: str | None = None
    body_limit: int | None = MAX_BODY
    patience: int = 1
    exact: bool = False

    @cached_property
    def writes(self) -> bool:
        return not self.reads and self.need not in ("open", "read")

    @property
    def name(self) -> str:
        return self.view.__name__

    @cached_property
    def need(self) -> Scope | Literal["open"]:
        return self.scope or ("read" if self.method == "GET" else "admin")

    @property
    def summary(self) -> str:
        """The first line of the view's docstring; `description` is what follows it."""
        return (self.view.__doc__ or "").strip().split("\n")[0]

    @property
    def description(self) -> str:
        rest = (self.view.__doc__ or "").strip().split("\n")[1:]
        return " ".join(line.strip() for line in rest if line.strip())

    @property
    def parameters(self) -> list[str]:
        """Names in the path."""
        return re.findall(r"{(\w+)}", self.path)

    @property
    def rule(self) -> str:
        """The path as Flask writes it."""
        return re.sub(r"{(\w+)}", lambda m: f"<{CONVERTERS.get(m[1], '')}{m[1]}>", self.path)

    @property
    def errors(self) -> tuple[int, ...]:
        """The statuses of the problems that it may answer."""
        possible = {500, *self.also} | (set() if self.need == "open" else {401, 403})
        if self.body is not None or self.upload is not None:
            possible |= {400, 413, 415, 422}
        if self.query is not None or self.parameters:
            possible |= {422}
        if self.writes:
            possible |= {507}
        if self.query is not None:
            possible |= {414, 431}
        if "collection" in self.parameters or self.query is not None:
            possible |= {404, 409, 503}
        return tuple(sorted(possible))


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
    maps: Maps
    keys: KeyRing
    metrics: Metrics
    operations: Mapping[str, Operation]
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


def requested_operation() -> Operation | None:
    """Return the operation of the request; None for an unknown path."""
    return context().operations.get(request.endpoint or "")
