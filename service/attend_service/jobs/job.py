"""What a job is, and what runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from attend import Collection

State = Literal["queued", "running", "done", "failed", "cancelled"]


class Trainer(Protocol):
    """`attend.training.train`, or what a test puts in its place."""

    def __call__(
        self,
        collection: Collection,
        *,
        progress: Callable[[str, float], None],
        cancelled: Callable[[], bool],
        **fields: Any,
    ) -> Mapping[str, Any]:
        """Train, and return the report.

        Args:
            progress: told the stage, and the share of the whole that is done, 0 to 1.
            cancelled: asked between steps; once true, nothing more is to be changed.
            fields: of a `TrainRequest`.
        """


class QueueFull(Exception):
    """As many jobs wait as may."""


class Progress(NamedTuple):
    """How far a job is; `fraction` of the whole, 0 to 1."""

    stage: str
    fraction: float
    message: str


@dataclass(frozen=True)
class Job:
    """A training, from the request to its report.

    Attributes:
        request: the fields of the `TrainRequest`.
        stage, fraction: what was told of it last.
        stopping: whether it was cancelled while it runs, and has yet to notice.
        created, started, finished: times in UTC, as ISO 8601 has them.
        result: the report of one that is done.
        problem: what went wrong, as RFC 9457 has it.
    """

    id: int
    collection: str
    request: Mapping[str, Any]
    state: State
    stage: str
    fraction: float
    stopping: bool
    created: str
    started: str | None
    finished: str | None
    result: Mapping[str, Any] | None
    problem: Mapping[str, Any] | None

    @property
    def progress(self) -> Progress:
        return Progress(self.stage, self.fraction, self._message())

    def _message(self) -> str:
        """One sentence for whoever waits."""
        if self.problem is not None:
            return str(self.problem["detail"])
        if self.state == "running":
            doing = f"{self.stage.capitalize() or 'Begins'}, {self.fraction:.0%} of the whole done."
            return "Stops at its next step." if self.stopping else doing
        if self.state == "done":
            return str((self.result or {}).get("reason") or "Done.")
        return {"queued": "Waits for its turn."}.get(self.state, "Cancelled; nothing was changed.")
