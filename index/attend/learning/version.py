"""The version that answers as a training begins, scored as a search scores it; and the version
that the training stores, with its report."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from attend.attention import log_mix, partition
from attend.collection.stored import StoredCollection
from attend.collection.versions import Version
from attend.core.arrays import KeyTable
from attend.core.errors import Conflict
from attend.core.settings import Settings, Tuning
from attend.core.types import Bool, Float32, Float64, Floats, Int64, Json
from attend.learning.calibration import ATTEND, Calibration
from attend.learning.data import BLOCK, Memory, Questions, ideal_dcg, top_places
from attend.learning.fit import Fitted, Watch
from attend.learning.promotion import PromotionVerdict, significance_of
from attend.learning.task import Task
from attend.measure.statistics import CUT, ndcg
from attend.projection import Projection, given, identity
from attend.recommend.ratings import RatingModel
from attend.search.attend import AttentionOptions, plan_of
from attend.store import Offsets, StoredProjection, Terms

OBJECTIVES = {
    "ranking": "learned from examples what should be found",
    "answers": "learned from stored values what should be answered",
    "interactions": "learned from interactions what comes next",
    "ratings": "learned from ratings what users would give documents",
}
"""The origin of a version, for a sentence."""


class TrainingOutcome(NamedTuple):
    """The result of a training before anything is stored; all but the verdict is empty where the
    training could not begin.

    Attributes:
        before, after: means by measure.
        choices: what was chosen, for the report; it names the objective.
    """

    verdict: PromotionVerdict
    before: Mapping[str, Json] = {}
    after: Mapping[str, Json] = {}
    choices: Mapping[str, Json] = {}


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


class ObjectiveRun(ABC):
    """An objective in one training; its methods run once each, in this order.

    Attributes:
        figures: of what was read, for the report.
    """

    figures: Mapping[str, Json]

    def __init__(self, task: Task) -> None:
        self.task, self.request, self.settings = task, task.request, task.collection.settings

    @property
    def significance(self) -> float:
        """The significance level of this training's promotion test."""
        return significance_of(self.task.tests)

    @abstractmethod
    def read(self) -> None:
        """Read what is stored, and hold some of it out.

        Raises:
            NothingToLearn: too little is stored.
        """

    @abstractmethod
    def cross_validate(self, watch: Watch) -> None:
        """Measure every choice, and what answers now, on what is held out."""

    @abstractmethod
    def judge(self) -> TrainingOutcome:
        """Choose, and put the choice to the promotion test."""

    @abstractmethod
    def fit(self, watch: Watch) -> None:
        """Fit the choice to everything."""

    def calibrate(self, watch: Watch) -> None:
        """Calibrate the choice by what is held out, while it is fitted; nothing where that takes
        the fit."""
        watch(1.0)

    @abstractmethod
    def version(self) -> NewVersion:
        """Return the fit, calibrated, as a version to store."""

    def tuning(self, calibration: Calibration, **parts: Any) -> Tuning:
        """Return the tuning of a calibrated version.

        Args:
            parts: what else the objective chose.
        """
        return Tuning(
            scale=(calibration.scale,),
            null=None if calibration.null is None else (calibration.null,),
            levels=calibration.levels,
            threshold=calibration.threshold,
            error_rate=calibration.error_rate,
            attend=ATTEND,
            scorer=self.settings.scorer,
            **parts,
        )


def report(task: Task, outcome: TrainingOutcome, figures: Mapping[str, Json]) -> dict[str, Json]:
    """Return the report of a training that stores nothing."""
    return {
        "promoted": False,
        "reason": outcome.verdict.reason,
        "version": None,
        "previous": task.active.version,
        "before": dict(outcome.before),
        "after": dict(outcome.after),
        "views": dict(outcome.verdict.views),
        "chosen": dict(outcome.choices),
        "tests": task.tests,
        "level": significance_of(task.tests),
        "calibration": {},
        **figures,
        "seconds": task.seconds,
    }


def publish(
    task: Task, outcome: TrainingOutcome, figures: Mapping[str, Json], learned: NewVersion
) -> dict[str, Json]:
    """Store a version, and activate it if it is to be promoted.

    Returns: its report, with the `version`.
    """
    projection = learned.projection
    task.watch("storing", 0.0)
    result = report(task, outcome, figures) | {"calibration": dict(learned.calibration)}
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
    )
    # From here on a stop comes too late: the version is stored.
    if task.request.promote and outcome.verdict.promote:
        task.watch.tell("activating", 0.0)
        reason = outcome.verdict.reason + _replaced(task.active, task.request.objective)
        promoted = result | {"promoted": True, "reason": reason}
        try:
            task.collection.activate(version, task.active.version, report=promoted)
            result = promoted
        except Conflict as error:
            result["reason"] = f"{reason} But: {error}"
    task.watch.tell("done", 1.0)
    return result | {"version": version, "seconds": task.seconds}


def objective_of(version: StoredProjection) -> str | None:
    """Return the objective that a version was trained for; None for one that was not trained."""
    choices = version.report.get("chosen") or {}
    # Versions trained before there was a choice name none.
    return str(choices.get("objective", "ranking")) if choices else None


def scale_now(active: StoredProjection, memory: Memory) -> float:
    """Return the scale until now: that of the version that answers, if a training fitted one."""
    fitted = active.tuning.get("scale") if objective_of(active) in ("ranking", "answers") else None
    return float(fitted[0]) if fitted and len(fitted) == 1 else memory.scale


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


# -- the active version ----------------------------------------------------------------------------


def active_version(task: Task) -> Version:
    """Return the version that answers as a training begins, with keys that do not fold."""
    number = task.active.version
    return Version.of(number, task.collection.store.version(number), "cosine")


class ServedVersion:
    """The keys of some documents under a version, and the scores of queries.

    Attributes:
        mechanism: the scorer, scales, gates and no-answer score by which the version answers.
        table: the version's own keys, with example queries as keys where it has them.
    """

    def __init__(self, version: Version, settings: Settings, stored: KeyTable) -> None:
        self.version = version
        options = AttentionOptions(attend=version.tuning.attend or ATTEND)
        self.plan = plan_of(version, settings, options, words=True)
        self.mechanism = self.plan.mechanism
        self.table = version.keys(stored)

    def logits(self, embeddings: Float32, documents: Int64, words: Floats | None = None) -> Floats:
        """Logits (q, H, c) of queries (q, d) over some documents, over the temperature.

        Args:
            words: (q, c) the lexical term, on the scorer's scale.
        """
        table = self.table.some(documents)
        heads, shift = self.plan.projection.project(embeddings)
        keys, scale = table.vectors, self.mechanism.scale
        by_head = (
            keys.reshape(len(keys), -1, heads.shape[2])
            if self.plan.stored_form
            else self.plan.projection.keys(keys)
        )
        bias = (shift * scale)[:, :, None]
        if words is not None:
            bias = bias + words[:, None] * scale[:, None]
        z = self.mechanism.logits(heads, table.with_vectors(by_head), bias)
        return z / self.mechanism.temperature

    def scores(self, embeddings: Float32, documents: Int64, words: Floats | None = None) -> Floats:
        """Scores (q, c): logits of one head; of several the log of their mixed weights."""
        z = self.logits(embeddings, documents, words)
        null, gates = self.mechanism.null, self.mechanism.gates
        if len(gates) == 1:
            return z[:, 0]
        if null is not None:
            null = np.broadcast_to(null, z.shape[:2])
        return log_mix(np.asarray(z - partition(z, null).log[..., None]), gates)

    def words(self, lexical: Floats, coverage: Floats) -> Floats | None:
        """Return the lexical term of shares (q, c); None where the version has none."""
        tuning = self.version.tuning
        if not tuning.lexical:
            return None
        strength = np.float32(tuning.lexical) * coverage ** np.float32(tuning.coverage)
        return np.asarray(lexical * strength[:, None], dtype=np.float32)

    def ndcg(self, questions: Questions, among: Bool | None = None) -> Float64:
        """nDCG@10 of questions (q,) over some documents (n,), all if None."""
        ranked = np.arange(len(self.table)) if among is None else np.flatnonzero(among)
        step = max(1, BLOCK // (16 * len(self.table.vectors) * self.mechanism.heads))
        values = [np.empty(0)]
        for index in range(0, questions.count, step):
            part = questions.some(np.arange(index, min(index + step, questions.count)))
            words = self.words(part.lexical.toarray()[:, ranked], part.coverage)
            best = top_places(self.scores(part.embeddings, ranked, words), CUT)
            grades = part.relevant.toarray()[:, ranked]
            values.append(ndcg(np.take_along_axis(grades, best, axis=1), ideal_dcg(grades)))
        return np.concatenate(values)


def with_examples(memory: Memory, training: Questions) -> KeyTable:
    """Return a memory with questions as keys of the documents relevant to them."""
    question, document = training.relevant.nonzero()
    documents = np.concatenate([memory.documents, memory.rows[document]])
    order = np.argsort(documents, kind="stable")
    return KeyTable.of_keys(
        np.concatenate([memory.vectors, training.embeddings[question]])[order],
        np.concatenate([memory.ids, np.full(len(question), -1, dtype=np.int64)])[order],
        documents[order],
        (np.arange(len(documents)) >= len(memory.ids))[order],
    )


def stored_keys(collection: StoredCollection, version: Version, rows: Int64) -> KeyTable:
    """Read the keys of the documents of some rows, with example queries as keys where a version
    has them."""
    with collection.store.all_keys(examples=version.examples) as (_, tables):
        return KeyTable.joined([table.some(table.places(rows)) for table in tables])
