"""What every view may use: the data, the settings, the jobs, the keys, and the readiness."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from flask import current_app

from index import Data
from service.readiness import Readiness
from service.security.keys import KeyRing
from service.settings import ServiceSettings

if TYPE_CHECKING:  # a job's problem is made by what uses this
    from service.jobs import Jobs

EXTENSION = "attend"


@dataclass(frozen=True)
class Context:
    """One application's own."""

    data: Data
    settings: ServiceSettings
    readiness: Readiness
    jobs: Jobs
    keys: KeyRing


def context() -> Context:
    return cast(Context, current_app.extensions[EXTENSION])
