"""The end of a training: its report, and the version that it stores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from attend.errors import Conflict
from attend.learn.answers.output import Output
from attend.learn.data import Memory
from attend.learn.fit import Fitted
from attend.learn.gate import Verdict
from attend.learn.rankings.additive import Additive
from attend.projection import Projection, given, identity
from attend.ratings import RatingModel
from attend.settings import Settings
from attend.store import StoredProjection, Terms
from attend.training.request import Task
from attend.tuning import Tuning
from attend.types import Float32, Int64, Json

OBJECTIVES = {
    "ranking": "learned from examples what should be found",
    "answers": "learned from stored values what should be answered",
    "interactions": "learned from interactions what comes next",
    "ratings": "learned from ratings what users would give documents",
}
"""How a version came about, for a sentence."""


class Found(NamedTuple):
    """What a training came to, before it is stored.

    Attributes:
        before, after: means by measure.
        chosen: what was chosen, for the report; it names the objective.
        figures: what was learned from.
    """

    verdict: Verdict
    before: Mapping[str, Json]
    after: Mapping[str, Json]
    chosen: Mapping[str, Json]
    figures: Mapping[str, Json]


class Learned(NamedTuple):
    """What was fitted to everything there is.

    Attributes:
        offsets: of keys, by their ids.
        calibration: what is said of it in the report.
        terms: of documents, by name; learned when `last_key` was the last.
    """

    projection: Projection | RatingModel
    tuning: Tuning
    offsets: tuple[Int64, Float32]
    calibration: Mapping[str, Json]
    terms: Terms | None = None
    last_key: int | None = None

    @classmethod
    def of(
        cls,
        fitted: Fitted,
        memory: Memory,
        settings: Settings,
        tuning: Tuning,
        calibration: Mapping[str, Json],
        *,
        additive: Additive | None = None,
        output: Output | None = None,
    ) -> Learned:
        """What was fitted for searches.

        Args:
            additive: the additive scorer's parameters, where that is how the version compares.
            output: W_V and its bias, where values go through one.
        """
        projection = projection_of(fitted, memory, settings, additive, output)
        offsets = memory.key_ids[fitted.offset_keys], fitted.offsets
        return cls(projection, tuning, offsets, calibration)


def nothing(task: Task, reason: str, figures: Mapping[str, Json]) -> dict[str, Json]:
    """The report of a training that could not begin."""
    return report(task, Found(Verdict(False, reason, {}), {}, {}, {}, figures))


def report(task: Task, found: Found) -> dict[str, Json]:
    """The report of a training that stores nothing."""
    return {
        "promoted": False,
        "reason": found.verdict.reason,
        "version": None,
        "previous": task.active.version,
        "before": dict(found.before),
        "after": dict(found.after),
        "views": dict(found.verdict.views),
        "chosen": dict(found.chosen),
        "calibration": {},
        **found.figures,
        "seconds": task.seconds,
    }


def publish(task: Task, found: Found, learned: Learned) -> dict[str, Json]:
    """Store a version, and activate it if it is to be promoted.

    Returns: its report, as it is stored but for `version` and `seconds`, known afterwards.
    """
    store, projection = task.collection.store, learned.projection
    task.watch("storing", 0.0)
    promote = task.request.promote and found.verdict.promote
    made = report(task, found) | {"calibration": dict(learned.calibration), "promoted": promote}
    if promote:
        made["reason"] = found.verdict.reason + _replaced(task.active, task.request.objective)
    version = store.add_projection(
        projection.kind,
        projection.to_bytes(),
        projection.fingerprint,
        {"learned": True},
        tuning=learned.tuning.stored(),
        report=made,
        offsets=learned.offsets,
        terms=learned.terms,
        last_key=learned.last_key,
        role=task.role,
    )
    # Told, and not asked any more: a stop comes too late for what is stored.
    if promote:
        task.watch.tell("activating", 0.0)
        try:
            task.collection.activate(version, expected=task.active.version)
        except Conflict as error:
            made |= {"promoted": False, "reason": f"{made['reason']} But: {error}"}
    task.watch.tell("done", 1.0)
    return made | {"version": version, "seconds": task.seconds}


def objective_of(version: StoredProjection) -> str | None:
    """What a version was trained for; None for one that was not trained."""
    chosen = version.report.get("chosen") or {}
    # Versions trained before there was a choice name none.
    return str(chosen.get("objective", "ranking")) if chosen else None


def projection_of(
    fitted: Fitted,
    memory: Memory,
    settings: Settings,
    additive: Additive | None = None,
    output: Output | None = None,
) -> Projection:
    """What was learned as a projection; the identity where that is nothing."""
    heads, d_k, width = fitted.w_q.shape
    eye = np.eye(width, dtype=np.float32)
    plain = all(np.array_equal(each, eye[None]) for each in (fitted.w_q, fitted.w_k))
    if plain and heads == 1 and d_k == width and additive is None and output is None:
        return identity(width, normalize=memory.unit and not settings.unit_embeddings)
    return given(
        fitted.w_q,
        fitted.w_k,
        w_v=None if output is None else output.w[None],
        b_v=None if output is None else output.b[None],
        additive=additive,
        kind="learned",
        normalize_queries=memory.unit,
        normalize_keys=memory.unit,
    )


def _replaced(before: StoredProjection, objective: str) -> str:
    """A sentence, where a version goes that was trained for something else."""
    other = objective_of(before)
    if other is None or other == objective:
        return ""
    return (
        f" It takes the place of version {before.version}, which {OBJECTIVES[other]}: none of "
        f"that is in it, and a rollback goes back."
    )
