"""Training: from what is stored to a version that answers, if held-out questions say so.

`ranking` learns from examples what should be found; `answers` from the documents' own values what
makes the blended value right; `interactions` from what users met what comes next; `ratings` from
what they gave documents what they would give others. Each tries ways to answer on what is held out,
and `publish` stores what a fit to everything found, with the report that says why it answers from
now on, or why not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attend.api.base import parse
from attend.api.learning import TrainRequest
from attend.collection import Collection
from attend.engines.engine import UNSUPPORTED
from attend.training.request import FEWEST_QUESTIONS, Cancelled, Progress, Task, Watch
from attend.types import Json

__all__ = ["FEWEST_QUESTIONS", "Cancelled", "Progress", "TrainRequest", "train"]


def train(
    collection: Collection,
    *,
    progress: Progress | None = None,
    cancelled: Callable[[], bool] | None = None,
    **fields: Any,
) -> dict[str, Json]:
    """Learn from what is stored, and answer by it from now on if that is better beyond doubt.

    Nothing is changed before the end: a training that stops leaves everything as it was.

    Args:
        progress: told the stage and how far it is, 0 to 1.
        cancelled: asked often; true stops the training.
        fields: those of `TrainRequest`.

    Returns: promoted, reason, version, previous (the version that was active), before, after,
        views, chosen, calibration, figures of what was learned from, seconds.

    Raises:
        InvalidRequest: a field out of range, or a collection that cannot be learned.
        Cancelled: `cancelled` said so.
    """
    request = _within(collection, parse(TrainRequest, fields))
    watch = Watch(progress or (lambda stage, done: None), cancelled or (lambda: False))
    task = Task.of(collection, request, watch)
    if request.objective == "interactions":
        from attend.training.interactions import train_interactions

        return train_interactions(task)
    if request.objective == "answers":
        # Here, as the other: who only wants to know what can be asked for need not wait for SciPy.
        from attend.training.answers import train_answers

        return train_answers(task)
    if request.objective == "ratings":
        from attend.training.ratings import train_ratings

        return train_ratings(task)
    from attend.training.ranking import train_ranking

    return train_ranking(task)


def _within(collection: Collection, request: TrainRequest) -> TrainRequest:
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
        raise able.unsupported(*UNSUPPORTED["train"], field="parts")
    return request.model_copy(update={"parts": parts})
