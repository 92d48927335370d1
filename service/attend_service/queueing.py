"""A bounded queue before the threads: what it cannot hold is refused at once.

Beyond some number of waiting requests, each that is taken only makes all others late, until
their clients have given up on answers that are still being made. A refusal tells a client to
come back instead. It is answered by a thread of its own, as is the server's health: neither may
wait behind what is the matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from waitress.task import ThreadedTaskDispatcher
from waitress.utilities import Error

from attend_service.problems import BUSY, Problem
from attend_service.replies import PROBLEM, to_json

RETRY_SECONDS = 1
"""A queue of a hundred searches is worked off in less."""

EXEMPT = frozenset({"/healthz", "/readyz", "/metrics"})
"""Answered however long the queue is, for they are asked when it is long."""


class Overloaded(Error):  # type: ignore[misc]
    """What a request that finds the queue full is answered."""

    def __init__(self, path: str, limit: int) -> None:
        detail = (
            f"{limit} requests wait already, the most that are kept waiting; send this one again "
            f"after {RETRY_SECONDS} s."
        )
        super().__init__(detail)
        self._content = Problem(BUSY, detail).json() | {"instance": path}

    def to_response(self, ident: str | None = None) -> tuple[str, Sequence[Any], bytes]:
        headers = [
            ("Content-Type", PROBLEM),
            ("Retry-After", str(RETRY_SECONDS)),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
        ]
        return "429 Too Many Requests", headers, to_json(self._content)


class BoundedDispatcher(ThreadedTaskDispatcher):  # type: ignore[misc]
    """Waitress's threads behind a queue of at most `limit` requests."""

    def __init__(self, threads: int, limit: int) -> None:
        super().__init__()
        self.limit = limit
        self.refused = 0
        self._express = ThreadedTaskDispatcher()
        self._express.set_thread_count(1)
        self.set_thread_count(threads)

    @property
    def waiting(self) -> int:
        """Requests that no thread has begun with."""
        return max(0, self._beyond_threads())

    @property
    def is_full(self) -> bool:
        """Whether one more would have to wait, and may not."""
        return self._beyond_threads() >= self.limit

    def _beyond_threads(self) -> int:
        """Requests that wait for a thread, less the threads that wait for a request."""
        with self.lock:
            idle = len(self.threads) - self.stop_count - self.active_count
            return int(len(self.queue) - idle)

    def add_task(self, task: Any) -> None:
        """Take a connection whose next request is complete."""
        request = task.requests[0]
        # What cannot be read as a request has no path.
        if getattr(request, "path", None) in EXEMPT:
            self._express.add_task(task)
        elif self.is_full and not request.error:
            self.refused += 1
            request.error = Overloaded(request.path, self.limit)
            self._express.add_task(task)
        else:
            super().add_task(task)

    def shutdown(self, cancel_pending: bool = True, timeout: float = 5) -> bool:
        self._express.shutdown(cancel_pending, timeout)
        return bool(super().shutdown(cancel_pending, timeout))
