"""What waitress refuses before the application sees it, told as the application tells its own."""

from __future__ import annotations

from typing import Any

from waitress.task import ErrorTask
from waitress.utilities import Error

from attend_service.problems import TOO_LARGE, TOO_SLOW, UNREAD, UNREADABLE, Kind, Problem
from attend_service.replies import PROBLEM, to_json
from attend_service.security.headers import ALWAYS

REFUSED = {kind.status: kind for kind in (UNREADABLE, TOO_LARGE, *UNREAD)}


class TooSlow(Error):  # type: ignore[misc]
    """A request that did not arrive in time."""

    code = TOO_SLOW.status
    reason = "Request Timeout"


class Told(Error):  # type: ignore[misc]
    """An error of waitress's, as a problem."""

    def __init__(self, error: Error, kind: Kind) -> None:
        super().__init__(error.body)
        self._status = f"{error.code} {error.reason}"
        self._problem = Problem(kind, f"{str(error.body).rstrip('.').capitalize()}.")

    def to_response(self, ident: str | None = None) -> tuple[str, list[tuple[str, str]], bytes]:
        headers = [("Content-Type", PROBLEM), ("Cache-Control", "no-store"), *ALWAYS.items()]
        return self._status, headers, to_json(self._problem.json())


class ProblemTask(ErrorTask):  # type: ignore[misc]
    """Answers a request that cannot be passed on."""

    def execute(self) -> Any:
        error = self.request.error
        kind = REFUSED.get(error.code)
        # One that says more knows how to say it.
        if kind is not None and type(error).to_response is Error.to_response:
            self.request.error = Told(error, kind)
        return super().execute()
