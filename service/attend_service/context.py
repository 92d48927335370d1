"""The objects that every view may use: data, settings, jobs, keys and readiness."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from flask import current_app, request

from attend import Collection, Data
from attend_service.jobs import Jobs
from attend_service.readiness import Readiness
from attend_service.security.keys import KeyRing, Scope
from attend_service.settings import ServerSettings

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


@dataclass(frozen=True)
class Context:
    """The objects of one application; `operations` are by the names of their views."""

    data: Data
    settings: ServerSettings
    readiness: Readiness
    jobs: Jobs
    keys: KeyRing
    operations: Mapping[str, RequestedOperation]


def context() -> Context:
    current: Context = current_app.extensions[EXTENSION]
    return current


def collection_of(name: str) -> Collection:
    """Return the collection with a name or an alias."""
    return context().data.collection(name)


def requested_operation() -> RequestedOperation | None:
    """Return the operation of the request; None for an unknown path."""
    current: Context = current_app.extensions[EXTENSION]
    return current.operations.get(request.endpoint or "")
