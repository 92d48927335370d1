"""Training: from stored examples to a version that answers, if held-out questions say so."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from pydantic import Field
from scipy import sparse

from index.collection import Collection
from index.errors import InvalidRequest
from index.examples import propensity
from index.learn.calibrate import ATTEND, Calibration, calibrate
from index.learn.choose import Choice, best, honest
from index.learn.data import Memory, Questions, answerable, twins
from index.learn.fit import Fitted, fit, unlearned
from index.learn.folds import folds
from index.learn.gate import Verdict, decide
from index.learn.trial import RECIPES, Before, Trial, one_thread_each
from index.projection import Projection, given, identity
from index.requests import Request, parse
from index.settings import Settings
from index.store import Learned, StoredProjection, compile_filter
from index.tuning import Tuning
from index.types import Bool, Float32, Int64, Json
from index.versions import Version

log = logging.getLogger("attend")

MEASURE = "ndcg@10"

FEWEST_QUESTIONS = 20
"""Fewer prove nothing: half of all orders of ten pairs are already one side's by chance."""

FOLDS = 3

MOST_QUESTIONS = 10_000
MOST_DOCUMENTS = 100_000
"""What is learned from at once; beyond, a sample with every document that examples speak of."""

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

Progress = Callable[[str, float], None]


class TrainRequest(Request):
    """How to train; every field has a default."""

    objective: Literal["ranking", "answers"] = Field(
        "ranking",
        description="ranking: find what examples call relevant; answers: make the blended value "
        "right, learned from the stored values themselves.",
    )
    value: str | None = Field(
        None, max_length=256, description="With answers: a field of the value, else all of it."
    )
    share_seen: float = Field(
        0.5, ge=0, le=1, description="Of queries in use, those about documents in the examples."
    )
    dimensions: int | None = Field(
        None, ge=1, le=65_536, description="Width of projected keys; that of embeddings if absent."
    )
    error_rate: float = Field(
        0.05, gt=0, lt=1, description="Answerable queries that may be told there is no answer."
    )
    seed: int = Field(0, ge=0, lt=2**32, description="Of all that is drawn.")
    promote: bool = Field(True, description="False: store what was learned, activate nothing.")


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

    Returns: promoted, reason, version, before, after, views, chosen, calibration, seconds.

    Raises:
        InvalidRequest: a field out of range, or a collection that cannot be learned.
        Cancelled: `cancelled` said so.
    """
    request = parse(TrainRequest, fields)
    watch = Watch(progress or (lambda stage, done: None), cancelled or (lambda: False))
    if request.objective == "answers":
        from index.answer_training import train_answers

        return train_answers(collection, request, watch)
    return _Training(collection, request, watch).run()


class Cancelled(InvalidRequest):
    """The training was stopped by whoever asked for it."""

    def __init__(self) -> None:
        super().__init__("The training was stopped; nothing was promoted, and nothing was lost.")


@dataclass(frozen=True)
class Watch:
    """Where progress goes, and where a stop comes from."""

    progress: Progress
    cancelled: Callable[[], bool]

    def __call__(self, stage: str, done: float) -> None:
        if self.cancelled():
            raise Cancelled
        self.tell(stage, done)

    def tell(self, stage: str, done: float) -> None:
        """Say how far a stage is, as a share of the whole."""
        begin, end = STAGES[stage]
        self.progress(stage, begin + (end - begin) * done)


@dataclass(frozen=True)
class Material:
    """What a training learns from.

    Attributes:
        known: which questions and judgements the active version learned from.
    """

    memory: Memory
    questions: Questions
    known: Questions
    figures: Mapping[str, Json]


class _Training:
    """One training by the ranking objective."""

    def __init__(self, collection: Collection, request: TrainRequest, watch: Watch) -> None:
        self.collection, self.request, self.watch = collection, request, watch
        self.began = time.perf_counter()
        scorer = collection.settings.scorer
        if scorer not in ("dot", "cosine"):
            raise InvalidRequest(
                f"The collection {collection.name!r} compares by {scorer!r}; W_Q and W_K are "
                f"learned for 'dot' and 'cosine'. Make a collection with one of these.",
                field="scorer",
            )

    def run(self) -> dict[str, Json]:
        self.watch("reading", 0.0)
        active = _active(self.collection)
        last = active.report.get("last_example", -1) if active.report.get("chosen") else -1
        material = gathered(self.collection, int(last), self.request)
        reason = _too_little(material.questions)
        if reason is not None:
            return self._nothing(reason, material)
        start = _start(material.memory, self.request.dimensions)
        groups = twins(material.questions.embeddings)
        divided = folds(material.questions, groups, FOLDS, self.request.seed)
        if not divided:
            return self._nothing(
                "All questions are one question in other words, so that none can be held out to "
                "prove anything; add different ones.",
                material,
            )
        before = _before(self.collection, active, material)
        trial = Trial(material.memory, material.questions, start, before, self.request.seed)
        trial.run(divided, lambda done: self.watch("trying", done))
        share = self.request.share_seen
        verdict = decide(honest(trial.judged, share), share, MEASURE)
        choice = best(trial.judged, share)
        if not verdict.promote and self.request.promote:
            return self._report(verdict, choice, material, version=None)
        fitted = self._final(material, choice, start)
        self.watch("calibrating", 0.0)
        calibration = calibrate(
            *trial.held_out(choice),
            error_rate=self.request.error_rate,
            start=material.memory.scale,
        )
        return self._store(verdict, choice, material, fitted, calibration)

    def _final(self, material: Material, choice: Choice, start: Float32) -> Fitted:
        """The choice, fitted to all questions."""
        self.watch("fitting", 0.0)
        if choice.recipe is None:
            return unlearned(material.memory, start)
        questions = material.questions.some(answerable(material.questions))
        with one_thread_each() as workers:
            job = workers.submit(
                fit,
                material.memory,
                questions,
                RECIPES[choice.recipe],
                start=start,
                seed=self.request.seed,
                watch=lambda done: self.watch("fitting", done),
            )
            return job.result().mixed(start, choice.share)

    def _store(
        self,
        verdict: Verdict,
        choice: Choice,
        material: Material,
        fitted: Fitted,
        calibration: Calibration,
    ) -> dict[str, Json]:
        store, memory = self.collection.store, material.memory
        scorer = self.collection.settings.scorer
        projection = _projection(fitted, memory, self.collection.settings)
        tuning = _tuning(choice, calibration, memory, scorer)
        self.watch("storing", 0.0)
        promote = self.request.promote and verdict.promote
        report = self._report(verdict, choice, material, version=None)
        report |= {"calibration": _plain(calibration), "promoted": promote}
        version = store.add_projection(
            projection.kind,
            projection.to_bytes(),
            projection.fingerprint,
            {"learned": True},
            tuning=tuning.stored(),
            report=report,
            offsets=(memory.key_ids[fitted.offset_keys], fitted.offsets),
        )
        # Told, and not asked any more: a stop comes too late for what is stored.
        if promote:
            self.watch.tell("activating", 0.0)
            self.collection.activate(version)
        self.watch.tell("done", 1.0)
        seconds = round(time.perf_counter() - self.began, 3)
        return report | {"version": version, "seconds": seconds}

    def _report(
        self, verdict: Verdict, choice: Choice, material: Material, version: int | None
    ) -> dict[str, Json]:
        mix = verdict.views["mix"]
        return {
            "promoted": False,
            "reason": verdict.reason,
            "version": version,
            "before": {MEASURE: mix["before"]},
            "after": {MEASURE: mix["after"]},
            "views": dict(verdict.views),
            "chosen": {
                "recipe": choice.recipe or "none",
                "share": choice.share,
                "examples": choice.examples,
                "lexical": choice.lexical,
                "coverage": choice.coverage,
                "pool": choice.pool,
                "dimensions": self.request.dimensions,
                "share_seen": self.request.share_seen,
            },
            **material.figures,
            "seconds": round(time.perf_counter() - self.began, 3),
        }

    def _nothing(self, reason: str, material: Material) -> dict[str, Json]:
        return {
            "promoted": False,
            "reason": reason,
            "version": None,
            "before": {},
            "after": {},
            "views": {},
            "chosen": {},
            **material.figures,
            "seconds": round(time.perf_counter() - self.began, 3),
        }


def gathered(collection: Collection, last: int, request: TrainRequest) -> Material:
    """Read examples and keys.

    Args:
        last: the last example that the active version learned from.
    """
    learned = collection.store.learned()
    memory = _memory(collection, learned, request.seed)
    at = np.searchsorted(memory.rows, learned.rows)
    shape = len(learned.texts), memory.documents
    weights = _debiased(learned)
    lexical, coverage = _lexical(collection, learned, memory)

    def questions(chosen: Bool) -> Questions:
        place = learned.questions[chosen], at[chosen]
        grades = np.maximum(weights[chosen], 0).astype(np.float32)
        relevant = sparse.csr_array((grades, place), shape=shape)
        relevant.eliminate_zeros()
        judged = sparse.csr_array((np.ones(len(grades), np.float32), place), shape=shape)
        return Questions(learned.embeddings, _sorted(relevant), _sorted(judged), lexical, coverage)

    everything = questions(np.ones(len(at), dtype=bool))
    kept = _most(everything, request.seed)
    figures: dict[str, Json] = {
        "questions": everything.count,
        "examples": len(at),
        "documents": collection.store.counts()[0],
        "last_example": int(learned.ids.max(initial=-1)),
    }
    known = questions(learned.ids <= last)
    return Material(memory, everything.some(kept), known.some(kept), figures)


def _memory(collection: Collection, learned: Learned, seed: int) -> Memory:
    """All documents with their keys; of very many a sample, with all that examples speak of."""
    wanted = _wanted(collection, learned, seed)
    with collection.store.all_keys() as (_, batches):
        kept = []
        for batch in batches:
            chosen = slice(None) if wanted is None else np.isin(batch.documents, wanted)
            kept.append((batch.ids[chosen], batch.documents[chosen], batch.embeddings[chosen]))
    if not kept:
        raise InvalidRequest(
            f"The collection {collection.name!r} has no documents to learn about; add some."
        )
    ids, documents, embeddings = (np.concatenate(part) for part in zip(*kept, strict=True))
    rows, starts = np.unique(documents, return_index=True)
    unit = collection.settings.unit_embeddings or collection.settings.scorer == "cosine"
    return Memory(np.ascontiguousarray(embeddings), starts.astype(np.int64), ids, rows, unit)


def _wanted(collection: Collection, learned: Learned, seed: int) -> Int64 | None:
    """Rows of the documents to learn about; None for all."""
    if collection.store.counts()[0] <= MOST_DOCUMENTS:
        return None
    rows = collection.store.matching(compile_filter({}))
    drawn = np.random.default_rng(seed).choice(rows, MOST_DOCUMENTS, replace=False)
    return np.union1d(drawn, learned.rows)


def _debiased(learned: Learned) -> Any:
    """Weights (e,) by inverse propensity where the place on the page is known."""
    shown = (learned.positions > 0) & (learned.weights > 0)
    weights = learned.weights.copy()
    weights[shown] /= [max(propensity(int(at), 1.0), 0.1) for at in learned.positions[shown]]
    return weights


def _lexical(collection: Collection, learned: Learned, memory: Memory) -> tuple[Any, Float32]:
    """BM25 over each question's maximum (q, n), and its coverage (q,)."""
    pointers, columns, shares, coverage = [0], [], [], []
    for found in collection.store.lexical_many([text or "" for text in learned.texts]):
        some = len(found.rows) > 0 and found.maximum > 0
        at = np.minimum(np.searchsorted(memory.rows, found.rows), memory.documents - 1)
        kept = (memory.rows[at] == found.rows) & some
        columns.append(at[kept].astype(np.int32))
        shares.append((found.scores[kept] / (found.maximum or 1)).astype(np.float32))
        pointers.append(pointers[-1] + int(kept.sum()))
        coverage.append(min(1.0, found.maximum / found.ideal) if some else 0.0)
    shape = len(learned.texts), memory.documents
    if not columns:
        return sparse.csr_array(shape, dtype=np.float32), np.zeros(0, dtype=np.float32)
    entries = np.concatenate(shares), np.concatenate(columns), np.array(pointers)
    return sparse.csr_array(entries, shape=shape), np.array(coverage, dtype=np.float32)


def _most(questions: Questions, seed: int) -> Int64:
    """Which questions to learn from: those with anything relevant, or a sample of them."""
    usable = np.flatnonzero(answerable(questions))
    if len(usable) <= MOST_QUESTIONS:
        return usable
    return np.sort(np.random.default_rng(seed).choice(usable, MOST_QUESTIONS, replace=False))


def _too_little(questions: Questions) -> str | None:
    if questions.count >= FEWEST_QUESTIONS:
        return None
    return (
        f"{questions.count} questions with a relevant document are stored, and {FEWEST_QUESTIONS} "
        f"are the fewest from which a gain can be proved; teach more examples."
    )


def _start(memory: Memory, dimensions: int | None) -> Float32:
    """Where W_Q and W_K begin: the identity, or the directions in which embeddings vary most."""
    width = memory.embeddings.shape[1]
    if dimensions is None:
        return np.eye(width, dtype=np.float32)
    if dimensions > width:
        raise InvalidRequest(
            f"dimensions is {dimensions}, but embeddings have {width}; send at most that.",
            field="dimensions",
        )
    # Uncentred, as scores are inner products: the best approximation of all of them (Eckart
    # and Young 1936).
    moments = memory.embeddings.T.astype(np.float64) @ memory.embeddings
    _, directions = np.linalg.eigh(moments)
    return np.ascontiguousarray(directions[:, ::-1][:, :dimensions].T.astype(np.float32))


def _active(collection: Collection) -> StoredProjection:
    return next(each for each in collection.store.projections() if each.active)


def _before(collection: Collection, active: StoredProjection, material: Material) -> Before:
    """What answers now, in a form that can be tried on held-out questions."""
    tuning = Tuning.of(active.tuning)
    chosen = active.report.get("chosen") or {}
    recipe = chosen.get("recipe")
    if recipe in RECIPES or recipe == "none":
        choice = Choice(
            recipe if recipe in RECIPES else None,
            float(chosen["share"]),
            tuning.examples,
            tuning.lexical,
            tuning.coverage,
            tuning.pool,
        )
        start = _start(material.memory, chosen.get("dimensions"))
        return Before(choice, start, known=material.known)
    stored = collection.store.version(active.version)
    version = Version.of(active.version, stored, "cosine")
    choice = Choice(None, 1.0, tuning.examples, tuning.lexical, tuning.coverage, tuning.pool)
    fitted = _as_fitted(version.projection, material.memory)
    return Before(choice, fitted.w_q, fitted=fitted)


def _as_fitted(projection: Projection, memory: Memory) -> Fitted:
    """A projection that was not learned, where it is one head without centre and biases."""
    plain = projection.tensors.keys() <= {"w_q", "w_k"}
    eye = np.eye(projection.d_in, dtype=np.float32)
    if not plain or projection.heads > 1:
        return unlearned(memory, eye)
    w_q = eye if projection.w_q is None else np.asarray(projection.w_q[0], dtype=np.float32)
    w_k = eye if projection.w_k is None else np.asarray(projection.w_k[0], dtype=np.float32)
    return unlearned(memory, eye)._replace(w_q=w_q, w_k=w_k)


def _projection(fitted: Fitted, memory: Memory, settings: Settings) -> Projection:
    d_k, width = fitted.w_q.shape
    eye = np.eye(width, dtype=np.float32)
    if d_k == width and all(np.array_equal(each, eye) for each in (fitted.w_q, fitted.w_k)):
        return identity(width, normalize=memory.unit and not settings.unit_embeddings)
    return given(
        fitted.w_q,
        fitted.w_k,
        kind="learned",
        normalize_queries=memory.unit,
        normalize_keys=memory.unit,
    )


def _tuning(choice: Choice, calibration: Calibration, memory: Memory, scorer: str) -> Tuning:
    # A sum over keys depends on the scale at which they are summed: there the fitted scale
    # becomes a temperature instead.
    summed = choice.pool == "sum"
    temperature = memory.scale / calibration.scale if summed else 1.0
    null = calibration.null
    return Tuning(
        scale=(memory.scale if summed else calibration.scale,),
        null=None if null is None else (null * temperature,),
        lexical=choice.lexical,
        coverage=choice.coverage,
        examples=choice.examples,
        attend=ATTEND,
        scorer=scorer,
        pool=choice.pool,
        temperature=temperature,
        threshold=calibration.threshold,
        error_rate=calibration.error_rate,
    )


def _plain(calibration: Calibration) -> dict[str, Json]:
    return dict(vars(calibration))


def _sorted(matrix: Any) -> Any:
    matrix.sort_indices()
    return matrix
