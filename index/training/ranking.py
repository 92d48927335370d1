"""The ranking objective: from examples of what is relevant to W_Q, W_K, offsets and weights."""

from __future__ import annotations

import numpy as np

from index.learn.calibrate import ATTEND, Calibration, calibrate
from index.learn.choose import Choice, best, honest
from index.learn.data import PARTS, Memory, Questions, answerable, twins, unit_rows
from index.learn.fit import Fitted, fit, unlearned
from index.learn.folds import folds
from index.learn.gate import Verdict, decide
from index.learn.ranking import Space
from index.learn.together import one_thread_each
from index.learn.trial import RECIPES, Before, Trial, recipe_of
from index.store import KeyBatch
from index.training.gather import Material, gathered, start_of
from index.training.publish import Found, Learned, nothing, objective_of, publish, report
from index.training.request import FEWEST_QUESTIONS, Task
from index.tuning import Tuning
from index.types import Float32, Json
from index.versions import Version

MEASURE = "ndcg@10"

FOLDS = 3

ONE_QUESTION = (
    "All questions are one question in other words, so that none can be held out to prove "
    "anything; add different ones."
)


def train_ranking(task: Task) -> dict[str, Json]:
    """Learn what examples call relevant.

    Questions are held out in two views, and everything is tried on them; what the gate lets
    through is fitted again to all questions.

    Returns: the report (see `training.train`).
    """
    request, watch = task.request, task.watch
    watch("reading", 0.0)
    trained = objective_of(task.active) == "ranking"
    last = int(task.active.report.get("last_example", -1)) if trained else -1
    material = gathered(task.collection, last, request)
    if material.questions.count < FEWEST_QUESTIONS:
        return nothing(task, _too_few(material.questions), material.figures)
    start = start_of(material.memory, request.dimensions)
    groups = twins(material.questions.embeddings)
    divided = folds(material.questions, groups, FOLDS, request.seed)
    if not divided:
        return nothing(task, ONE_QUESTION, material.figures)
    before = _before(task, material)
    trial = Trial(material.memory, material.questions, start, before, request.seed, request.parts)
    trial.run(divided, lambda done: watch("trying", done))
    outcomes = honest(trial.judged, request.share_seen)
    verdict = decide(outcomes, request.share_seen, MEASURE, groups)
    choice = best(trial.judged, request.share_seen)
    found = _found(task, verdict, choice, material)
    if not verdict.promote and request.promote:
        return report(task, found)
    fitted = _final(task, material, choice, start)
    watch("calibrating", 0.0)
    held_out = trial.held_out(choice, request.share_seen)
    calibration = calibrate(
        held_out.scores,
        held_out.relevant,
        counts=held_out.counts,
        error_rate=request.error_rate,
        start=material.memory.scale,
    )
    settings, figures = task.collection.settings, dict(vars(calibration))
    tuning = _tuning(choice, calibration, material.memory, settings.scorer)
    return publish(task, found, Learned.of(fitted, material.memory, settings, tuning, figures))


def _too_few(questions: Questions) -> str:
    return (
        f"{questions.count} questions with a relevant document are stored, and {FEWEST_QUESTIONS} "
        f"are the fewest from which a gain can be proved; teach more examples."
    )


def _before(task: Task, material: Material) -> Before:
    """What answers now, in a form that can be tried on held-out questions."""
    tuning = Tuning.of(task.active.tuning)
    chosen = task.active.report.get("chosen") or {}
    recipe = chosen.get("recipe")
    trained = objective_of(task.active) == "ranking"
    if trained and (recipe in RECIPES or recipe == "none"):
        choice = Choice(
            recipe if recipe in RECIPES else None,
            float(chosen["share"]),
            tuning.examples,
            tuning.lexical,
            tuning.coverage,
            tuning.pool,
        )
        start = start_of(material.memory, chosen.get("dimensions"))
        parts = chosen.get("parts") or PARTS
        return Before(choice, start, parts, known=material.known)
    choice = Choice(None, 1.0, tuning.examples, tuning.lexical, tuning.coverage, tuning.pool)
    memory = material.memory
    return Before(choice, start_of(memory, None), fitted=_space(task, memory))


def _space(task: Task, memory: Memory) -> Space:
    """Where queries and keys meet under a version that no example went into.

    Several heads are put side by side: an inner product is then the mean of theirs by gates.
    """
    number = task.active.version
    version = Version.of(number, task.collection.store.version(number), "cosine")
    projection = version.projection
    lengthy = task.collection.settings.scorer == "cosine" and not projection.normalized
    gates = np.sqrt(projection.gates)[:, None]

    def side_by_side(vectors: Float32) -> Float32:
        unit = unit_rows(vectors.reshape(-1, vectors.shape[2])).reshape(vectors.shape)
        heads = (
            unit if lengthy else vectors
        ) * gates  # (n, H, d_k), where the heads share keys too
        return np.ascontiguousarray(heads.reshape(len(heads), -1), dtype=np.float32)

    rows = np.repeat(memory.rows, memory.counts)
    none = np.zeros(len(rows), dtype=bool)
    own = version.keys(KeyBatch(memory.key_ids, rows, memory.embeddings, none)).vectors
    keys = own.reshape(len(own), -1, projection.d_k)
    return Space(side_by_side(keys), lambda given: side_by_side(projection.queries(given)))


def _final(task: Task, material: Material, choice: Choice, start: Float32) -> Fitted:
    """The choice, fitted to all questions."""
    task.watch("fitting", 0.0)
    if choice.recipe is None:
        return unlearned(material.memory, start)
    questions = material.questions.some(answerable(material.questions))
    with one_thread_each() as workers:
        job = workers.submit(
            fit,
            material.memory,
            questions,
            recipe_of(choice.recipe, task.request.parts),
            start=start,
            seed=task.request.seed,
            watch=lambda done: task.watch("fitting", done),
        )
        return job.result().mixed(start, choice.share)


def _found(task: Task, verdict: Verdict, choice: Choice, material: Material) -> Found:
    mix = verdict.views["mix"]
    chosen: dict[str, Json] = {
        "objective": "ranking",
        "recipe": choice.recipe or "none",
        "share": choice.share,
        "examples": choice.examples,
        "lexical": choice.lexical,
        "coverage": choice.coverage,
        "pool": choice.pool,
        "dimensions": task.request.dimensions,
        "parts": list(task.request.parts),
        "share_seen": task.request.share_seen,
    }
    before, after = ({MEASURE: mix[side]} for side in ("before", "after"))
    return Found(verdict, before, after, chosen, material.figures)


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
