"""The ranking objective: from examples of what is relevant to W_Q, W_K, offsets and weights."""

from __future__ import annotations

import numpy as np

from attend.learn.calibrate import Calibration, calibrate
from attend.learn.calibrate_heads import calibrate_heads
from attend.learn.choose import Choice, best, honest
from attend.learn.data import PARTS, Memory, Questions, answerable, twins, unit_vectors
from attend.learn.fit import Fitted
from attend.learn.folds import folds
from attend.learn.gate import Verdict, decide
from attend.learn.heads import ATTEND, Heads
from attend.learn.rankings.learned import Learned as Fit
from attend.learn.rankings.learned import learn
from attend.learn.rankings.trial import Before, Trial
from attend.learn.rankings.ways import RECIPES, way_of
from attend.learn.space import Space
from attend.learn.together import one_thread_each
from attend.store import KeyBatch
from attend.training.gather import Material, gathered, start_of
from attend.training.publish import Found, Learned, nothing, objective_of, publish, report
from attend.training.request import FEWEST_QUESTIONS, Task
from attend.tuning import Tuning
from attend.types import Float32, Json
from attend.versions import Version

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
    trial = Trial(
        material.memory,
        material.questions,
        start,
        before,
        request.seed,
        request.parts,
        request.heads,
    )
    trial.run(divided, lambda done: watch("trying", done))
    choice = _chosen(task, trial)
    outcomes = honest(trial.judged, request.share_seen)
    verdict = decide(outcomes, request.share_seen, MEASURE, groups)
    found = _found(task, verdict, choice, material)
    if not verdict.promote and request.promote:
        return report(task, found)
    final = _final(task, material, choice, start)
    watch("calibrating", 0.0)
    calibration = _calibrated(task, trial, choice)
    tuning = _tuning(choice, calibration, final.fitted, material.memory, task)
    figures = dict(vars(calibration))
    learned = Learned.of(
        final.fitted,
        material.memory,
        task.collection.settings,
        tuning,
        figures,
        additive=final.additive,
    )
    return publish(task, found, learned)


def _chosen(task: Task, trial: Trial) -> Choice:
    """The best choice; one of several heads must still be the best as it will be used."""
    choice = best(trial.judged, task.request.share_seen)
    if choice.heads == 1:
        return choice
    found = _calibrated(task, trial, choice)
    trial.calibrate(choice, 1 / found.scale, found.null)
    return best(trial.judged, task.request.share_seen)


def _calibrated(task: Task, trial: Trial, choice: Choice) -> Calibration:
    """By everything that was held out."""
    held_out, rate = trial.held_out(choice, task.request.share_seen), task.request.error_rate
    heads, counts = len(held_out.scores), held_out.counts
    if heads > 1:
        gates = Heads.alike(np.ones(heads)).gates
        return calibrate_heads(
            held_out.scores, gates, held_out.relevant, counts=counts, error_rate=rate
        )
    return calibrate(
        held_out.scores[0],
        held_out.relevant,
        counts=counts,
        error_rate=rate,
        start=trial.memory.scale,
    )


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
    # Where the examples that it learned from are gone, it stands trial as it is (see
    # `training.interactions`): from none of them it would have learned nothing.
    several = answerable(material.known).sum() >= FEWEST_QUESTIONS
    trained = objective_of(task.active) == "ranking" and several
    if trained and (recipe in RECIPES or recipe == "none"):
        choice = Choice(
            recipe if recipe in RECIPES else None,
            float(chosen["share"]),
            tuning.examples,
            tuning.lexical,
            tuning.coverage,
            tuning.pool,
            int(chosen.get("heads", 1)),
            bool(chosen.get("additive", False)),
        )
        start = start_of(material.memory, chosen.get("dimensions"))
        parts = chosen.get("parts") or PARTS
        null = None if tuning.null is None else tuning.null[0]
        return Before(choice, start, parts, None, material.known, tuning.temperature, null)
    choice = Choice(None, 1.0, tuning.examples, tuning.lexical, tuning.coverage, tuning.pool)
    memory = material.memory
    return Before(choice, start_of(memory, None), fitted=_space(task, memory))


def _space(task: Task, memory: Memory) -> Space:
    """Where queries and keys meet under a version that no example went into."""
    number, settings = task.active.version, task.collection.settings
    version = Version.of(number, task.collection.store.version(number), "cosine")
    projection, tuning = version.projection, version.tuning
    lengthy = settings.scorer == "cosine" and not projection.normalized

    def by_head(vectors: Float32) -> Float32:
        """(n, H or 1, d_k) -> (H, n, d_k)."""
        heads = np.broadcast_to(vectors, (len(vectors), projection.heads, vectors.shape[2]))
        heads = np.ascontiguousarray(heads.transpose(1, 0, 2), dtype=np.float32)
        return unit_vectors(heads) if lengthy else heads

    rows = np.repeat(memory.rows, memory.counts)
    none = np.zeros(len(rows), dtype=bool)
    own = version.keys(KeyBatch(memory.key_ids, rows, memory.embeddings, none)).vectors
    keys = own.reshape(len(own), -1, projection.d_k)
    scales = np.broadcast_to(tuning.scale or (memory.scale,), projection.heads)
    null = None if tuning.null is None else np.broadcast_to(tuning.null, projection.heads)
    heads = Heads(np.array(scales), projection.gates, null, tuning.temperature)
    return Space(by_head(keys), lambda given: by_head(projection.queries(given)), heads)


def _final(task: Task, material: Material, choice: Choice, start: Float32) -> Fit:
    """The choice, fitted to all questions."""
    task.watch("fitting", 0.0)
    questions = material.questions.some(answerable(material.questions))
    with one_thread_each() as workers:
        job = workers.submit(
            learn,
            material.memory,
            questions,
            way_of(choice),
            task.request.parts,
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
        "heads": choice.heads,
        "additive": choice.additive,
        "dimensions": task.request.dimensions,
        "parts": list(task.request.parts),
        "share_seen": task.request.share_seen,
    }
    before, after = ({MEASURE: mix[side]} for side in ("before", "after"))
    return Found(verdict, before, after, chosen, material.figures)


def _tuning(
    choice: Choice, calibration: Calibration, fitted: Fitted, memory: Memory, task: Task
) -> Tuning:
    # A sum over keys depends on the scale at which they are summed, and a mixture on those that
    # its heads were learned with: there the fitted factor becomes a temperature instead.
    scale: tuple[float, ...] = (calibration.scale,)
    temperature, null = 1.0, calibration.null
    if choice.heads > 1:
        scale, temperature = tuple(fitted.scales.tolist()), 1 / calibration.scale
    elif choice.pool == "sum":
        scale, temperature = (memory.scale,), memory.scale / calibration.scale
        null = None if null is None else null * temperature
    return Tuning(
        scale=scale,
        null=None if null is None else (null,),
        lexical=choice.lexical,
        coverage=choice.coverage,
        examples=choice.examples,
        attend=ATTEND,
        scorer="additive" if choice.additive else task.collection.settings.scorer,
        pool=choice.pool,
        temperature=temperature,
        threshold=calibration.threshold,
        error_rate=calibration.error_rate,
    )
