"""Learning: from what is stored to a version that answers, if held-out units leave no doubt.

`ranking` learns from examples what should be found; `answers` from the documents' own values what
makes the blended value right; `interactions` from histories what comes next; `ratings` from what
users gave documents what they would give others. Each has its model beside it. `fit` has the loop
and W_Q and W_K; `selection` the splits, the choice and the promotion test; `calibration` makes
weights probabilities.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attend.api.base import parse
from attend.api.learning import Objective, TrainRequest
from attend.core.errors import Cancelled, Conflict
from attend.core.types import Json
from attend.engines.engine import StoredCollection
from attend.learning.task import (
    FEWEST_QUESTIONS,
    NewVersion,
    NothingToLearn,
    Progress,
    PromotionVerdict,
    Task,
    Trained,
    Trainer,
    objective_of,
)

__all__ = ["FEWEST_QUESTIONS", "Cancelled", "Progress", "TrainRequest", "train"]


CUT_OFF = "the training ended before this version answered; train again."


def trainer_of(objective: Objective) -> type[Trainer]:
    """Return what trains for an objective, imported as it is needed: SciPy takes seconds."""
    if objective == "ranking":
        from attend.learning.ranking import RankingTrainer

        return RankingTrainer
    if objective == "answers":
        from attend.learning.answers import AnswersTrainer

        return AnswersTrainer
    if objective == "interactions":
        from attend.learning.interactions import InteractionsTrainer

        return InteractionsTrainer
    from attend.learning.ratings import RatingsTrainer

    return RatingsTrainer


def train(
    collection: StoredCollection,
    *,
    progress: Progress | None = None,
    cancelled: Callable[[], bool] | None = None,
    **fields: Any,
) -> dict[str, Json]:
    """Learn from what is stored, and answer by it from now on if that is significantly better.

    Before it reads, examples are made of what the log of searches says served (`used`). Else
    nothing is changed before the end: a training that stops leaves all versions as they were.

    Args:
        progress: receives the stage and its progress, 0 to 1.
        cancelled: called often; true stops the training.
        fields: those of `TrainRequest`.

    Returns: promoted, reason, version, previous (the version that was active), before, after,
        views, chosen, used (what the log of searches said), tests (those against the previous
        version) and level (of this one), more
        (about how many more held-out units would prove the gain that was measured), calibration,
        figures of what was learned from, seconds; of the ranking objective also steps (held-out
        means as encoded, with feedback and trained) and changed (held-out questions whose best
        document changed, by the ids of their examples).

    Raises:
        InvalidRequest: a field out of range, or a collection that cannot be learned.
        Cancelled: `cancelled` returned true.
    """
    request = _within(collection, parse(TrainRequest, fields))
    task = Task(collection, request, progress, cancelled)
    task.watch("reading", 0.0)
    if request.used and request.objective == "ranking":
        from attend.learning.used import take_used

        task.used = take_used(collection, task.watching("reading"))
    try:
        trainer = trainer_of(request.objective)(task)
    except NothingToLearn as nothing:
        return task.report(PromotionVerdict(False, str(nothing)), nothing.figures, {}, {}, {})
    results = trainer.cross_validate()
    task.watch("judging", 0.0)
    trained = trainer.judge(results)
    task.watch("fitting", 0.0)
    return _publish(task, trained, trained.fit())


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


def _publish(task: Task, trained: Trained, learned: NewVersion) -> dict[str, Json]:
    """Store a version, and activate it if it is to be promoted; return its report. One that is not
    is kept until the next training, to be looked at or activated by hand.

    The look is counted in the step that ends the training: a promotion that is cut off before its
    activation has used none up, and the next training makes it anew.
    """
    projection, objective = learned.projection, task.request.objective
    task.watch("storing", 0.0)
    try:
        counted = task.counted(trained.verdict.look)
    except Conflict as error:
        counted, reason = {}, f"{trained.verdict.reason} But: {error}"
        trained = trained._replace(verdict=trained.verdict._replace(promote=False, reason=reason))
    promotes = task.request.promote and trained.verdict.promote
    result = {**task.report(*trained[:5]), **trained.held_out}
    result["calibration"] = dict(learned.calibration)
    result["kept"] = task.request.promote
    if promotes:
        result["reason"] = f"{trained.verdict.reason} But: {CUT_OFF}"
    version = task.collection.store.add_projection(
        projection.kind,
        projection.to_bytes(),
        projection.fingerprint,
        {"learned": True},
        tuning=learned.tuning.stored(),
        report=result,
        offsets=learned.offsets,
        terms=learned.terms,
        last_key=learned.last_key,
        role=task.role,
        settings={} if promotes else counted,
        replaces=task.unpromoted,
    )
    # From here on a stop comes too late: the version is stored.
    if promotes:
        task.tell("activating", 0.0)
        reason, other = trained.verdict.reason, objective_of(task.active)
        if other is not None and other != objective:
            reason += (
                f" It takes the place of version {task.active.version}, which learned from "
                f"{trainer_of(other).lesson}: none of that is in it, and a rollback goes back."
            )
        promoted = result | {"promoted": True, "kept": False, "reason": reason}
        try:
            task.collection.activate(
                version, task.active.version, report=promoted, settings=counted
            )
            result = promoted
        except Conflict as error:
            task.collection.store.put_settings(counted)
            result["reason"] = f"{reason} But: {error}"
    task.tell("done", 1.0)
    return result | {"version": version, "seconds": task.seconds}
