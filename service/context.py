"""What every view may use: the data, the settings, and whether the server is ready."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from flask import current_app

from index import Data
from service.readiness import Readiness
from service.settings import ServiceSettings

EXTENSION = "attend"


@dataclass(frozen=True)
class Context:
    """One application's own."""

    data: Data
    settings: ServiceSettings
    readiness: Readiness


def context() -> Context:
    return cast(Context, current_app.extensions[EXTENSION])
