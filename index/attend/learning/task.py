"""A training's parts that all objectives share: the task, its stages, its report."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple, Protocol

from attend.api.learning import OBJECTIVE_ROLES, Objective, TrainRequest
from attend.core.errors import Cancelled, Conflict, InvalidRequest
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

LOOKS = "promotion_looks/{}/{}"
"""The setting with the looks that counted against a role's version, by what was tried: the groups
of units of each."""

SIGNIFICANCE = 0.05
"""The chance of a promotion without a gain, and of one with a larger loss than is tolerated, over
all trainings against one active version."""

FIRST_LOOK, LATER_LOOK, LAST_LOOK = 0.018, 0.008, 0.0002
"""The significance levels of the first look, of those up to the tenth, and of all that follow."""

EARLY_LOOKS = 10

GROWTH = 1.35
"""How much more groups of held-out units there must be than at the last look that counted. Looks at
data that grow so are so much alike that their levels together make one chance in twenty (group
sequential tests: Pocock 1977): .018 at the first, .048 after ten, .050 after thirty."""

Progress = OnStage


class NothingToLearn(Exception):
    """What is stored proves nothing: the reason for the report, and figures of what was read."""

    def __init__(self, reason: str, figures: Mapping[str, Json]) -> None:
        super().__init__(reason)
        self.figures = figures


class Look(NamedTuple):
    """One look at held-out units, and how sure a promotion by it has to be.

    Without new data there is no new chance, and none is used up.

    Attributes:
        groups: of units, on which it rests.
        number: of the looks that count, this one included where it does.
        level: the significance level.
        due: the groups from which on a look counts.
    """

    groups: int
    number: int = 1
    level: float = FIRST_LOOK
    due: int = 0

    @classmethod
    def after(cls, looks: Sequence[int], groups: int) -> Look:
        """Return a look at so many groups, after those that counted.

        >>> [Look.after(looks, 100).level for looks in ([], [50], [50] * 10)]
        [0.018, 0.008, 0.0002]
        >>> Look.after([80], 100).counts, Look.after([80], 108).counts
        (False, True)
        """
        due = math.ceil(GROWTH * max(looks, default=0))
        number = len(looks) + (groups >= due)
        levels = FIRST_LOOK, LATER_LOOK, LAST_LOOK
        return cls(groups, number, levels[(number > 1) + (number > EARLY_LOOKS)], due)

    @property
    def counts(self) -> bool:
        """Tell whether enough is new since the last one that counted."""
        return self.groups >= self.due

    def repeats(self, units: str) -> str:
        """Return a clause on a look that does not count."""
        return (
            f"most of these {units} have been looked at before: the next chance comes with about "
            f"{self.due - self.groups:,} more that are not alike"
        )


class PromotionVerdict(NamedTuple):
    """Whether to promote, why, the figures of each comparison, and the look that they are of.

    Attributes:
        more: about how many more units would prove the gain that was measured; None where it is
            proved, where nothing was gained, and where the measured units cannot tell.
    """

    promote: bool
    reason: str
    views: Mapping[str, Mapping[str, Json]] = {}
    look: Look = Look(0)
    more: int | None = None


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
        held_out: more of what was measured on held-out units, for the report.
    """

    verdict: PromotionVerdict
    figures: Mapping[str, Json]
    before: Mapping[str, Json]
    after: Mapping[str, Json]
    choices: Mapping[str, Json]
    fit: Callable[[], NewVersion]
    held_out: Mapping[str, Json] = {}


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
        looks: those that counted against it, by the kind of what was tried.
        unpromoted: the version that the training before has not promoted; None without one.
        used: figures of the labels that the log of searches gave; None without a log.

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
        others = [one for one in collection.store.projections() if one.role == self.role]
        self.unpromoted = next((one.version for one in others if one.report.get("kept")), None)
        self.chosen: Mapping[str, Any] = self.active.report.get("chosen") or {}
        self.looks = self._stored_looks()
        self.used: Mapping[str, Json] | None = None

    def look(self, groups: int, kind: str | None = None) -> Look:
        """Return this training's look at so many groups of held-out units.

        Args:
            kind: of what is tried; the objective if None. Each has looks of its own.
        """
        return Look.after(self.looks.get(kind or self.request.objective, ()), groups)

    def counted(self, look: Look, kind: str | None = None) -> dict[str, Json]:
        """Return the settings that count a look, where it counts.

        Raises:
            Conflict: another training was judged since this one began.
        """
        if not (look.counts and self.request.promote):
            return {}
        if self._stored_looks() != self.looks:
            raise Conflict(
                "Another training was judged by the same data meanwhile; train again, one "
                "training at a time."
            )
        kind = kind or self.request.objective
        looks = [*self.looks.get(kind, ()), look.groups]
        return {LOOKS.format(self.role, self.active.version): {**self.looks, kind: looks}}

    def _stored_looks(self) -> dict[str, list[int]]:
        name = LOOKS.format(self.role, self.active.version)
        return dict(self.collection.store.settings().get(name) or {})

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
            "tests": verdict.look.number,
            "level": verdict.look.level,
            "groups": verdict.look.groups,
            "more": verdict.more,
            "calibration": {},
            **({} if self.used is None else {"used": self.used}),
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


def objective_of(version: StoredProjection) -> Objective | None:
    """Return the objective that a version was trained for; None for one that was not trained."""
    objective: Objective | None = (version.report.get("chosen") or {}).get("objective")
    return objective
