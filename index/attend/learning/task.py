"""One training: its request, its stages, its progress and its stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from attend.api.learning import OBJECTIVE_ROLES, TrainRequest
from attend.collection.stored import StoredCollection
from attend.core.errors import InvalidRequest
from attend.core.types import Json, OnStage
from attend.store import Role, StoredProjection

FEWEST_QUESTIONS = 20
"""Fewer prove nothing: half of all orders of ten pairs are already one side's by chance."""


STAGES: Mapping[str, tuple[float, float]] = {
    "reading": (0.0, 0.02),
    "trying": (0.02, 0.85),
    "judging": (0.85, 0.86),
    "fitting": (0.86, 0.96),
    "calibrating": (0.96, 0.97),
    "storing": (0.97, 0.98),
    "activating": (0.98, 1.0),
    "done": (1.0, 1.0),
}
"""About which part of the whole each stage takes."""

TESTS = "promotion_tests/{}/{}"
"""The setting with the number of promotion tests against a role's active version, by its number."""

Progress = OnStage


class Cancelled(InvalidRequest):
    """The training was stopped by whoever asked for it."""

    def __init__(self) -> None:
        super().__init__("The training was stopped; nothing was promoted, and nothing was lost.")


class NothingToLearn(Exception):
    """What is stored proves nothing: the reason for the report, and figures of what was read."""

    def __init__(self, reason: str, figures: Mapping[str, Json]) -> None:
        super().__init__(reason)
        self.figures = figures


@dataclass(frozen=True)
class StageWatch:
    """Where progress goes, and where a stop comes from."""

    progress: Progress
    cancelled: Callable[[], bool]

    def __call__(self, stage: str, done: float) -> None:
        """Say how far a stage is, unless the training is to stop."""
        if self.cancelled():
            raise Cancelled
        self.tell(stage, done)

    def tell(self, stage: str, done: float) -> None:
        """The same without asking: for when something is stored, and a stop comes too late."""
        begin, end = STAGES[stage]
        self.progress(stage, begin + (end - begin) * done)


class Task:
    """One training: the collection, the request, and the start.

    Attributes:
        role: in which the new version will answer.
        active: the version that answers in that role as the training begins: what the new one has
            to be better than. The untrained one has the number 0.
        tests: the promotion tests against that version, with this one.

    Raises InvalidRequest for a collection whose scorer has no W_Q and W_K to learn.
    """

    def __init__(
        self, collection: StoredCollection, request: TrainRequest, watch: StageWatch
    ) -> None:
        scorer = collection.settings.scorer
        if request.objective != "ratings" and scorer not in ("dot", "cosine"):
            raise InvalidRequest(
                f"The collection {collection.name!r} compares by {scorer!r}; W_Q and W_K are "
                f"learned for 'dot' and 'cosine'. Make a collection with one of these.",
                field="scorer",
            )
        self.began = time.perf_counter()
        self.collection, self.request, self.watch = collection, request, watch
        self.role: Role = OBJECTIVE_ROLES[request.objective]
        self.active = collection.store.active(self.role) or untrained(self.role)
        self._counter = TESTS.format(self.role, self.active.version)
        self.tests = 1 + int(collection.store.settings().get(self._counter, 0))

    def count_test(self) -> None:
        """Count the promotion test, before it is made: all tests against one version share a budget
        of errors, also those of trainings that run at once, are stopped, or fail after their test.
        """
        self.tests = self.collection.store.count_up(self._counter)

    @property
    def seconds(self) -> float:
        """The time since it began."""
        return round(time.perf_counter() - self.began, 3)


def untrained(role: Role) -> StoredProjection:
    """Return the version that answers in a role before anything was trained for it."""
    return StoredProjection(
        version=0,
        kind="identity",
        fingerprint="",
        created="",
        note={},
        tuning={},
        report={},
        parent=None,
        active=True,
        role=role,
    )
