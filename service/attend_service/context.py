"""What every view may use: the data, the settings, the jobs, the keys, and the readiness."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, cast

from flask import current_app, request

from attend import Data
from attend_service.jobs import Jobs
from attend_service.readiness import Readiness
from attend_service.security.keys import KeyRing, Scope
from attend_service.settings import Settings

EXTENSION = "attend"


class Asked(Protocol):
    """What is to be known of an operation before and after it runs; see `operations`."""

    @property
    def path(self) -> str: ...

    @property
    def need(self) -> Scope | Literal["open"]: ...

    @property
    def own(self) -> bool: ...

    @property
    def writes(self) -> bool: ...


@dataclass(frozen=True)
class Context:
    """One application's own; `operations` are by the names of their views."""

    data: Data
    settings: Settings
    readiness: Readiness
    jobs: Jobs
    keys: KeyRing
    operations: Mapping[str, Asked]


def context() -> Context:
    return cast(Context, current_app.extensions[EXTENSION])


def asked() -> Asked | None:
    """Return the operation that the request is for; None for a path of none."""
    current = cast(Context, current_app.extensions[EXTENSION])
    return current.operations.get(request.endpoint or "")
