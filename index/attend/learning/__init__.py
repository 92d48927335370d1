"""Learning: from what is stored to a version that answers, if held-out units leave no doubt.

`ranking` learns from examples what should be found; `answers` from the documents' own values what
makes the blended value right; `interactions` from histories what comes next; `ratings` from what
users gave documents what they would give others. Each objective tries its choices on what is held
out, and `publish` stores the best one, fitted to everything, with the report that says why it
answers from now on, or why not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from attend.api.base import parse
from attend.api.learning import Objective, TrainRequest
from attend.collection.stored import StoredCollection
from attend.core.types import Json
from attend.learning.task import (
    FEWEST_QUESTIONS,
    Cancelled,
    NothingToLearn,
    Progress,
    StageWatch,
    Task,
)

__all__ = ["FEWEST_QUESTIONS", "Cancelled", "Progress", "TrainRequest", "train"]

OBJECTIVES: Mapping[Objective, str] = {
    "ranking": "ranking.RankingObjective",
    "answers": "answers.AnswersObjective",
    "interactions": "interactions.InteractionsObjective",
    "ratings": "ratings.RatingsObjective",
}
"""Imported when they train: SciPy and torch take seconds."""


def train(
    collection: StoredCollection,
    *,
    progress: Progress | None = None,
    cancelled: Callable[[], bool] | None = None,
    **fields: Any,
) -> dict[str, Json]:
    """Learn from what is stored, and answer by it from now on if that is significantly better.

    Nothing is changed before the end: a training that stops leaves everything as it was.

    Args:
        progress: receives the stage and its progress, 0 to 1.
        cancelled: called often; true stops the training.
        fields: those of `TrainRequest`.

    Returns: promoted, reason, version, previous (the version that was active), before, after,
        views, chosen, tests (those against the previous version) and level (of this one),
        calibration, figures of what was learned from, seconds.

    Raises:
        InvalidRequest: a field out of range, or a collection that cannot be learned.
        Cancelled: `cancelled` returned true.
    """
    request = _within(collection, parse(TrainRequest, fields))
    watch = StageWatch(progress or (lambda stage, done: None), cancelled or (lambda: False))
    task = Task(collection, request, watch)
    from attend.learning.fit import run_parallel
    from attend.learning.promotion import PromotionVerdict
    from attend.learning.version import ObjectiveRun, TrainingOutcome, publish, report

    module, name = OBJECTIVES[request.objective].split(".")
    objective: ObjectiveRun = getattr(import_module(f"attend.learning.{module}"), name)(task)
    watch("reading", 0.0)
    try:
        objective.read()
    except NothingToLearn as nothing:
        outcome = TrainingOutcome(PromotionVerdict(False, str(nothing), {}))
        return report(task, outcome, nothing.figures)
    objective.cross_validate(lambda done: watch("trying", done))
    watch("judging", 0.0)
    if request.promote:
        task.count_test()
    outcome = objective.judge()
    if not outcome.verdict.promote and request.promote:
        return report(task, outcome, objective.figures)
    watch("fitting", 0.0)
    run_parallel([objective.fit, objective.calibrate], lambda done: watch("fitting", done))
    watch("calibrating", 0.0)
    return publish(task, outcome, objective.figures, objective.version())


def _within(collection: StoredCollection, request: TrainRequest) -> TrainRequest:
    """The request, with the parts that the collection's engine can hold where it names none.

    Raises:
        Unsupported: it names others, or an objective that needs them.
    """
    able = collection.capabilities
    parts = [part for part in request.parts if part in able.train]
    if parts == list(request.parts):
        return request
    named = "parts" in request.model_fields_set
    if named or request.objective != "ranking" or not parts:
        raise able.lacking("train", field="parts")
    return request.model_copy(update={"parts": parts})
