"""A training's parts that all objectives share: the task, its stages, its report."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, NamedTuple, Protocol

from attend.api.learning import OBJECTIVE_ROLES, Objective, TrainRequest
from attend.core.errors import InvalidRequest
from attend.core.settings import Tuning
from attend.core.types import Json, OnStage
from attend.engines.engine import StoredCollection
from attend.projection import Projection
from attend.recommend.ratings import RatingModel
from attend.store import Offsets, Role, StoredProjection, Terms

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

SIGNIFICANCE = 0.05
"""The chance of a promotion without a gain, and of one with a larger loss than is tolerated, over
all trainings against one active version."""

MOST_TESTS = 30
"""Trainings after which the share of each next one no longer shrinks: a p-value of 10,000 draws
could not get below it."""

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


class PromotionVerdict(NamedTuple):
    """Whether to promote, why, and the figures of each comparison."""

    promote: bool
    reason: str
    views: Mapping[str, Mapping[str, Json]] = {}


class NewVersion(NamedTuple):
    """The choice, fitted to everything.

    Attributes:
        offsets: of keys, by their ids.
        calibration: its figures, for the report.
        terms: of documents, by name; learned when `last_key` was the last.
    """

    projection: Projection | RatingModel
    tuning: Tuning
    calibration: Mapping[str, Json]
    offsets: Offsets | None = None
    terms: Mapping[str, Terms] | None = None
    last_key: int | None = None


class Trained(NamedTuple):
    """A choice, judged by what was held out.

    Attributes:
        figures: of what was read, for the report.
        before, after: means by measure.
        choices: what was chosen, for the report; it names the objective.
        fit: fits the choice to everything, calibrated.
    """

    verdict: PromotionVerdict
    figures: Mapping[str, Json]
    before: Mapping[str, Json]
    after: Mapping[str, Json]
    choices: Mapping[str, Json]
    fit: Callable[[], NewVersion]


class Trainer(Protocol):
    """The training of one objective, made of a task: it reads what is stored.

    Making it raises NothingToLearn where that proves nothing.

    Attributes:
        lesson: from what a version learned, and what, for a sentence.
    """

    lesson: ClassVar[str]

    def __init__(self, task: Task) -> None: ...

    def cross_validate(self) -> Any:
        """Measure every choice, and what answers now, on what is held out."""

    def judge(self, results: Any) -> Trained:
        """Choose by these measures, and put the choice to the promotion test."""


class Task:
    """One training: the collection, the request, and the start.

    Attributes:
        role: in which the new version will answer.
        active: the version that answers in that role as the training begins: what the new one has
            to be better than. The untrained one has the number 0.
        chosen: the choices by which it was trained.
        tests: the promotion tests against that version, with this one.

    Raises InvalidRequest for a collection whose scorer has no W_Q and W_K to learn.
    """

    def __init__(
        self,
        collection: StoredCollection,
        request: TrainRequest,
        progress: Progress | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> None:
        scorer = collection.settings.scorer
        if request.objective != "ratings" and scorer not in ("dot", "cosine"):
            raise InvalidRequest(
                f"The collection {collection.name!r} compares by {scorer!r}; W_Q and W_K are "
                f"learned for 'dot' and 'cosine'. Make a collection with one of these.",
                field="scorer",
            )
        self.began = time.perf_counter()
        self.collection, self.request, self.settings = collection, request, collection.settings
        self.progress, self.cancelled = progress, cancelled
        self.role: Role = OBJECTIVE_ROLES[request.objective]
        self.active = collection.store.active(self.role) or untrained(self.role)
        self.chosen: Mapping[str, Any] = self.active.report.get("chosen") or {}
        self._counter = TESTS.format(self.role, self.active.version)
        self.tests = 1 + int(collection.store.settings().get(self._counter, 0))

    @property
    def significance(self) -> float:
        """The significance level of this training's promotion test."""
        return significance_of(self.tests)

    def watch(self, stage: str, done: float) -> None:
        """Say how far a stage is, unless the training is to stop."""
        if self.cancelled is not None and self.cancelled():
            raise Cancelled
        self.tell(stage, done)

    def tell(self, stage: str, done: float) -> None:
        """The same without asking: for when something is stored, and a stop comes too late."""
        begin, end = STAGES[stage]
        if self.progress is not None:
            self.progress(stage, begin + (end - begin) * done)

    def watching(self, stage: str) -> Callable[[float], None]:
        """Return `watch` for one stage."""
        return partial(self.watch, stage)

    def begin_judging(self) -> None:
        """Count the promotion test, before it is made: all tests against one version share a budget
        of errors, also those of trainings that run at once, are stopped, or fail after their test.
        """
        self.watch("judging", 0.0)
        if self.request.promote:
            self.tests = self.collection.store.count_up(self._counter)

    def report(
        self,
        verdict: PromotionVerdict,
        figures: Mapping[str, Json],
        before: Mapping[str, Json],
        after: Mapping[str, Json],
        choices: Mapping[str, Json],
    ) -> dict[str, Json]:
        """Return the report of a training that stores nothing."""
        return {
            "promoted": False,
            "reason": verdict.reason,
            "version": None,
            "previous": self.active.version,
            "before": dict(before),
            "after": dict(after),
            "views": dict(verdict.views),
            "chosen": dict(choices),
            "tests": self.tests,
            "level": self.significance,
            "calibration": {},
            **figures,
            "seconds": self.seconds,
        }

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


def significance_of(tests: int) -> float:
    """Return the significance level of a training by the number of those that were tested against
    the same active version, itself included.

    Levels fall with the square of the number, so that all of them together have one budget of
    errors (alpha spending; Foster and Stine 2008, "α-investing").

    >>> [round(significance_of(tests), 4) for tests in (1, 2, 10)]
    [0.0304, 0.0076, 0.0003]
    """
    return SIGNIFICANCE * 6 / (math.pi * min(tests, MOST_TESTS)) ** 2


def objective_of(version: StoredProjection) -> Objective | None:
    """Return the objective that a version was trained for; None for one that was not trained."""
    objective: Objective | None = (version.report.get("chosen") or {}).get("objective")
    return objective
