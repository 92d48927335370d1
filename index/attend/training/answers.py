"""The answer objective: from stored values to a version that answers rightly.

Nothing is taught here but by the documents themselves: each one's value is what a query like it
should be answered with. Documents are held out in folds, near-duplicates together, and answered
by the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from attend.learn.answers.blended import auroc, calibrate_answers, confidences_before_null
from attend.learn.answers.held import Fold, joined
from attend.learn.answers.targets import Answers, Targets
from attend.learn.calibrate import Calibration
from attend.learn.fit import unlearned
from attend.learn.gate import SIGNIFICANCE, Verdict
from attend.learn.heads import ATTEND
from attend.measure.statistics import difference_interval, paired_randomisation
from attend.training.answer_current import before_of
from attend.training.answer_material import Material, gathered
from attend.training.answer_trial import RECIPE, Best, Choice, Judged, Trial, folds
from attend.training.answer_words import with_words
from attend.training.gather import start_of
from attend.training.publish import Found, Learned, nothing, publish, report
from attend.training.request import Task
from attend.tuning import Tuning
from attend.types import Float64, Json

FOLDS = 3

FEW_TEXTS = (
    "The documents are a few texts many times over, so that none can be held out to prove "
    "anything; add different ones."
)


def train_answers(task: Task) -> dict[str, Json]:
    """Learn what makes blended values right, and answer by it if that is better beyond doubt.

    Labels (categories, lists of labels, booleans) are judged by the log of the share that the
    right ones get in the answer, which sees every probability and not the largest alone; numbers
    and vectors by squared error. A version is promoted by a significant gain in that, and never
    with a significant loss in accuracy (of numbers, in absolute error).

    Returns: the report (see `training.train`).

    Raises:
        InvalidRequest: values that cannot be learned as the request names them.
        Cancelled: whoever watches said so.
    """
    request, watch = task.request, task.watch
    watch("reading", 0.0)
    material = gathered(task.collection, request)
    answers = material.answers
    if answers is None:
        return nothing(task, material.reason, material.figures)
    divided = _divided(task, answers, material.texts)
    if len(divided) < FOLDS:
        return nothing(task, FEW_TEXTS, material.figures)
    trial = Trial(answers, start_of(answers.memory, request.dimensions), request.seed)
    trial.run(divided, lambda done: watch("trying", done))
    watch("judging", 0.0)
    verdict = decided(trial.judged(before_of(task, answers, trial, divided)), answers.targets)
    best = trial.best(range(FOLDS))
    choice = best.choice
    found = _found(task, verdict, best, material)
    if not verdict.promote and request.promote:
        return report(task, found)
    watch("fitting", 0.0)
    matrices = trial.final(choice, lambda done: watch("fitting", done))
    watch("calibrating", 0.0)
    calibration, figures = _calibrated(task, trial, choice)
    fitted = unlearned(answers.memory, matrices.w_q)._replace(w_k=matrices.w_k[None])
    output = trial.output(best, range(FOLDS))
    if output is not None and answers.targets.center is not None:
        output = output.unscaled(answers.targets.center, answers.targets.spread)
    settings = task.collection.settings
    tuning = _tuning(choice, calibration, task, valued=output is not None)
    learned = Learned.of(fitted, answers.memory, settings, tuning, figures, output=output)
    return publish(task, found, learned)


def decided(judged: Judged, targets: Targets) -> Verdict:
    """A significant gain in what is learned, and no significant loss in the second measure.

    Significance is that of the paired randomisation test at 5 %.
    """
    labels = targets.shares is not None
    first, second = ("log likelihood", "accuracy") if labels else ("squared error", "error")
    sign = 1.0 if labels else -1.0
    views = {
        first: _figures(judged.before, judged.after, sign),
        second: _figures(judged.guard_before, judged.guard_after, sign),
    }
    gained = _significant(views[first]) and judged.after.mean() > judged.before.mean()
    lost = _significant(views[second]) and judged.guard_after.mean() < judged.guard_before.mean()
    if gained and not lost:
        why = f"The gain in {first} is significant, and {second} is no worse"
    elif lost:
        why = f"It loses in {second}"
    elif judged.after.mean() > judged.before.mean():
        why = "The gain may be chance; more documents with values may show it"
    else:
        why = "Nothing was found that answers held-out documents better"
    said = "; ".join(
        f"{name} {each['before']:.4f} → {each['after']:.4f} (p = {each['p']:.4f})"
        for name, each in views.items()
    )
    return Verdict(bool(gained and not lost), f"{why} ({said}).", views)


def _divided(task: Task, answers: Answers, texts: Sequence[str]) -> list[Fold]:
    """Folds, with the words of their documents if those have texts."""
    divided = folds(answers.groups, FOLDS, task.request.seed)
    if not any(texts):
        return divided
    store, rows = task.collection.store, answers.memory.rows
    return [
        with_words(fold, store, rows, texts, partial(task.watch, "reading", at / FOLDS))
        for at, fold in enumerate(divided)
    ]


def _calibrated(task: Task, trial: Trial, choice: Choice) -> tuple[Calibration, dict[str, Json]]:
    """Scale, null and threshold by everything held out; and how well confidence tells."""
    held, targets = joined(trial.held[choice]), trial.answers.targets
    start, share = trial.answers.memory.scale, 1 - 1 / FOLDS
    found = calibrate_answers(held, targets, start, task.request.error_rate, share)
    known, hidden = confidences_before_null(held, found.scale)
    tells = auroc(known, hidden) if len(known) and len(hidden) else None
    return found, {**vars(found), "auroc": tells}


def _tuning(choice: Choice, calibration: Calibration, task: Task, *, valued: bool) -> Tuning:
    return Tuning(
        scale=(calibration.scale,),
        null=None if calibration.null is None else (calibration.null,),
        lexical=choice.lexical,
        attend=ATTEND,
        scorer=task.collection.settings.scorer,
        values=(task.request.value or "") if valued else None,
        threshold=calibration.threshold,
        error_rate=calibration.error_rate,
    )


def _found(task: Task, verdict: Verdict, best: Best, material: Material) -> Found:
    choice = best.choice
    before, after = (
        {name: each[side] for name, each in verdict.views.items()} for side in ("before", "after")
    )
    chosen: dict[str, Json] = {
        "objective": "answers",
        "recipe": RECIPE.name if choice.share else "none",
        "share": choice.share,
        "lexical": choice.lexical,
        "ridge": best.ridge,
        "value": task.request.value,
        "attend": ATTEND,
        "dimensions": task.request.dimensions,
    }
    return Found(verdict, before, after, chosen, material.figures)


def _figures(before: Float64, after: Float64, sign: float) -> dict[str, Json]:
    """Means with the sign that people read, so that an error is above zero."""
    interval = difference_interval(sign * after, sign * before)
    return {
        "before": float(sign * before.mean()),
        "after": float(sign * after.mean()),
        "difference": float(interval.mean),
        "interval": [float(interval.low), float(interval.high)],
        "p": float(paired_randomisation(after, before)),
        "queries": len(before),
    }


def _significant(figures: Mapping[str, Json]) -> bool:
    p = figures["p"]
    return isinstance(p, float) and p < SIGNIFICANCE
