"""The end of a training: its report, and the version that it stores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from attend.errors import Conflict
from attend.learn.data import Memory
from attend.learn.promotion import PromotionVerdict
from attend.learn.residual import Fitted
from attend.projection import Projection, given, identity
from attend.ratings import RatingModel
from attend.settings import Settings
from attend.store import Offsets, StoredProjection, Terms
from attend.training.request import Task
from attend.tuning import Tuning
from attend.types import Float64, Json

OBJECTIVES = {
    "ranking": "learned from examples what should be found",
    "answers": "learned from stored values what should be answered",
    "interactions": "learned from interactions what comes next",
    "ratings": "learned from ratings what users would give documents",
}
"""The origin of a version, for a sentence."""


class Judgement(NamedTuple):
    """The result of a training before anything is stored.

    Attributes:
        before, after: means by measure.
        chosen: the choice, for the report; it names the objective.
    """

    verdict: PromotionVerdict
    before: Mapping[str, Json]
    after: Mapping[str, Json]
    choices: Mapping[str, Json]


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


def nothing(reason: str) -> Judgement:
    """Return the judgement of a training that could not begin."""
    return Judgement(PromotionVerdict(False, reason, {}), {}, {}, {})


def report(task: Task, judgement: Judgement, figures: Mapping[str, Json]) -> dict[str, Json]:
    """Return the report of a training that stores nothing."""
    return {
        "promoted": False,
        "reason": judgement.verdict.reason,
        "version": None,
        "previous": task.active.version,
        "before": dict(judgement.before),
        "after": dict(judgement.after),
        "views": dict(judgement.verdict.views),
        "chosen": dict(judgement.choices),
        "calibration": {},
        **figures,
        "seconds": task.seconds,
    }


def publish(
    task: Task, judgement: Judgement, figures: Mapping[str, Json], learned: NewVersion
) -> dict[str, Json]:
    """Store a version, and activate it if it is to be promoted.

    Returns: its report, as it is stored but for `version` and `seconds`, known afterwards.
    """
    store, projection = task.collection.store, learned.projection
    task.watch("storing", 0.0)
    promote = task.request.promote and judgement.verdict.promote
    result = report(task, judgement, figures)
    result |= {"calibration": dict(learned.calibration), "promoted": promote}
    if promote:
        result["reason"] = judgement.verdict.reason + _replaced(task.active, task.request.objective)
    version = store.add_projection(
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
    )
    # From here on a stop comes too late: the version is stored.
    if promote:
        task.watch.tell("activating", 0.0)
        try:
            task.collection.activate(version, expected=task.active.version)
        except Conflict as error:
            result |= {"promoted": False, "reason": f"{result['reason']} But: {error}"}
    task.watch.tell("done", 1.0)
    return result | {"version": version, "seconds": task.seconds}


def objective_of(version: StoredProjection) -> str | None:
    """Return the objective that a version was trained for; None for one that was not trained."""
    choices = version.report.get("chosen") or {}
    # Versions trained before there was a choice name none.
    return str(choices.get("objective", "ranking")) if choices else None


def projection_of(
    fitted: Fitted,
    memory: Memory,
    settings: Settings,
    values: tuple[Float64, Float64] | None = None,
) -> Projection:
    """Return a fit as a projection; the identity where nothing was learned.

    Args:
        values: W_V and its bias, where values go through one.
    """
    d_k, width = fitted.w_q.shape
    eye = np.eye(width, dtype=np.float32)
    plain = d_k == width and all(np.array_equal(w, eye) for w in (fitted.w_q, fitted.w_k))
    if plain and values is None and fitted.center is None:
        return identity(width, normalize=memory.unit and not settings.unit_embeddings)
    return given(
        fitted.w_q,
        fitted.w_k,
        w_v=None if values is None else values[0][None],
        b_v=None if values is None else values[1][None],
        center=fitted.center,
        kind="learned",
        normalize_queries=memory.unit,
        normalize_keys=memory.unit,
    )


def offsets_of(fitted: Fitted, memory: Memory) -> Offsets:
    """Return a fit's offsets by the ids of their keys, ascending."""
    ids = memory.ids[fitted.offset_keys]
    order = np.argsort(ids)
    return Offsets(ids[order], fitted.offsets[order])


def _replaced(before: StoredProjection, objective: str) -> str:
    """Return a sentence where a version goes that was trained for something else."""
    other = objective_of(before)
    if other is None or other == objective:
        return ""
    return (
        f" It takes the place of version {before.version}, which {OBJECTIVES[other]}: none of "
        f"that is in it, and a rollback goes back."
    )
