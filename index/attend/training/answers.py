"""The answers objective: from stored values to a version that answers rightly.

Documents teach by themselves: each one's value is what a query like it should be answered with.
Documents are held out in folds, near-duplicates together, and answered by the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from attend.learn.answers import RECIPE, Answers, ValueMap, fit_answers
from attend.learn.blends import (
    Blends,
    Held,
    Words,
    attend_fold,
    calibrate_answers,
    fit_scale,
    fold_scores,
    joined,
    log_sums,
)
from attend.learn.calibration import ATTEND
from attend.learn.fit import Watch
from attend.learn.held_out import DocumentFold, document_folds
from attend.learn.promotion import Criterion, decide
from attend.learn.residual import Fitted, unlearned
from attend.learn.selection import cross_validate, select_nested
from attend.measure.statistics import auroc
from attend.training.answer_material import AnswerMaterial, read_answers, shared_words
from attend.training.material import start_of
from attend.training.publish import Judgement, NewVersion, objective_of, projection_of
from attend.training.request import Task
from attend.training.served import ServedVersion, active_version, stored_keys
from attend.tuning import Tuning
from attend.types import Float64, Floats, Json

FOLDS = 3

SHARES = (0.5, 1.0)
"""How far from the start to the fit."""

LEXICAL = (0.0, 0.1, 0.2)
"""λ, tried where documents have texts; with a γ of 0, which was never worse on a training set."""

RIDGES = (None, 1.0, 0.1, 0.01)
"""How much W_V is held to the identity, tried where values are vectors; None learns none."""

VALUE_GAIN = 0.002
"""The gain, in units of the variance, that W_V must be worth: v x v numbers are learned."""

FEW_TEXTS = (
    "The documents are a few texts many times over, so that none can be held out to prove "
    "anything; add different ones."
)


class AnswerChoice(NamedTuple):
    """How far to go from the start to the fit, 0 for not at all; and λ."""

    share: float
    lexical: float = 0.0


class AnswerSelection(NamedTuple):
    """A choice, the scale that goes with it, and how W_V is learned, if it is."""

    choice: AnswerChoice
    scale: float
    ridge: float | None


class Current(NamedTuple):
    """How the active version answers one fold: what is attended to, the scale, and W_V.

    Attributes:
        ridge: how W_V was learned, where it was learned from the same values.
    """

    attended: Held
    scale: float
    output: ValueMap | None = None
    ridge: float | None = None


class AnswersObjective:
    """Learns what makes blended values right.

    Labels (categories, lists of labels, booleans) are judged by the log of the share that the
    right ones get in the answer, which sees every probability and not the largest alone; numbers
    and vectors by squared error. A version is promoted by a significant gain in that, and never
    with a significant loss in accuracy (of numbers, in absolute error).
    """

    material: AnswerMaterial
    answers: Answers
    best: AnswerSelection
    fitted: Fitted

    def __init__(self, task: Task) -> None:
        self.task, self.request = task, task.request

    def read(self) -> str | None:
        self.material = read_answers(self.task.collection, self.request)
        if self.material.answers is None:
            return self.material.reason
        self.answers = self.material.answers
        self.start = start_of(self.answers.memory, self.request.dimensions)
        self.folds = document_folds(self.answers.groups, FOLDS, self.request.seed)
        if len(self.folds) < FOLDS:
            return FEW_TEXTS
        self.words: list[Words | None] = [None] * FOLDS
        if any(self.material.texts):
            rows, store = self.answers.memory.rows, self.task.collection.store
            for index, fold in enumerate(self.folds):
                watch = partial(self.task.watch, "reading", index / FOLDS)
                self.words[index] = shared_words(fold, store, rows, self.material.texts, watch)
        return None

    def cross_validate(self, watch: Watch) -> None:
        tries = [self._try_untrained, self._try_trained]
        results = cross_validate(range(FOLDS), tries, watch)
        self.attended = {
            choice: [attended[choice] for attended in results] for choice in results[0]
        }

    def judge(self) -> Judgement:
        """Judge each fold by the choice, the scale and the W_V of the others."""
        now, targets = self._current(), self.answers.targets

        def judge(index: int, selection: AnswerSelection) -> list[Float64]:
            others = [other for other in range(FOLDS) if other != index]
            current = now[index]
            output = current.output
            if current.ridge is not None:
                attended = joined([now[other].attended for other in others])
                output = Blends(attended, targets, current.scale).fit_output(current.ridge)
            before = Blends(current.attended, targets, current.scale, output)
            after = self._blends(selection, index, self._output(selection, others))
            return [before.gains(), after.gains(), before.guards(), after.guards()]

        columns = zip(*select_nested(FOLDS, self._select, judge), strict=True)
        values = [np.concatenate(column) for column in columns]
        labels = targets.shares is not None
        sign = 1.0 if labels else -1.0  # errors are above zero as people read them
        names = ("log likelihood", "accuracy") if labels else ("squared error", "error")
        first, second = (
            Criterion(name, name, sign * values[index], sign * values[index + 1], errors=not labels)
            for name, index in zip(names, (0, 2), strict=True)
        )
        comparisons = [first._replace(gain=True, loss=None), second]
        verdict = decide(comparisons, measure="held-out answers", units="documents with values")
        self.best = self._select(range(FOLDS))
        choice, request = self.best.choice, self.request
        before, after = (
            {name: figures[side] for name, figures in verdict.views.items()}
            for side in ("before", "after")
        )
        choices: dict[str, Json] = {
            "objective": "answers",
            "recipe": RECIPE.name if choice.share else "none",
            **choice._asdict(),
            "ridge": self.best.ridge,
            "value": request.value,
            "attend": ATTEND,
            "dimensions": request.dimensions,
        }
        return Judgement(verdict, before, after, choices)

    def fit(self, watch: Watch) -> None:
        everything = DocumentFold(np.empty(0, np.int64), np.arange(len(self.answers.memory)))
        self.fitted = self._fit(everything, self.best.choice.share, watch)

    def version(self) -> NewVersion:
        settings, targets = self.task.collection.settings, self.answers.targets
        memory, choice = self.answers.memory, self.best.choice
        attended, share = joined(self.attended[choice]), 1 - 1 / FOLDS
        rate = self.request.error_rate
        calibration = calibrate_answers(attended, targets, memory.scale, rate, share)
        answered, hidden = log_sums(attended, calibration.scale)
        area = None
        if len(answered) and len(hidden):
            area = auroc(answered, hidden)
        output = self._output(self.best, range(FOLDS))
        if output is not None and targets.center is not None:
            output = output.unscaled(targets.center, targets.spread)
        tuning = Tuning(
            scale=(calibration.scale,),
            null=None if calibration.null is None else (calibration.null,),
            lexical=choice.lexical,
            attend=ATTEND,
            scorer=settings.scorer,
            values=None if output is None else self.request.value or "",
            threshold=calibration.threshold,
            error_rate=calibration.error_rate,
        )
        values = None if output is None else (output.w, output.b)
        projection = projection_of(self.fitted, memory, settings, values)
        return NewVersion(projection, tuning, {**vars(calibration), "auroc": area})

    # -- one fold ----------------------------------------------------------------------------------

    def _try_untrained(self, index: int, watch: Watch) -> dict[AnswerChoice, Held]:
        attended = self._attend(index, 0.0, unlearned(self.answers.memory, self.start))
        watch(1.0)
        return attended

    def _try_trained(self, index: int, watch: Watch) -> dict[AnswerChoice, Held]:
        fitted = self._fit(self.folds[index], 1.0, watch)
        attended: dict[AnswerChoice, Held] = {}
        for share in SHARES:
            attended |= self._attend(index, share, fitted.mixed(self.start, share))
        return attended

    def _attend(self, index: int, share: float, fitted: Fitted) -> dict[AnswerChoice, Held]:
        """Answer a fold under every λ."""
        fold, words = self.folds[index], self.words[index]
        scores = fold_scores(self.answers, fitted, fold)
        attended = {}
        for lexical in LEXICAL if words is not None else LEXICAL[:1]:

            def worded(part: slice, lexical: float = lexical) -> Floats:
                plain = scores(part)
                return plain + words.term(part, lexical) if words and lexical else plain

            attended[AnswerChoice(share, lexical)] = attend_fold(self.answers, fold, worded)
        return attended

    def _fit(self, fold: DocumentFold, share: float, watch: Watch) -> Fitted:
        if not share:
            return unlearned(self.answers.memory, self.start)
        seed = self.request.seed
        fitted = fit_answers(self.answers, fold.members, start=self.start, seed=seed, watch=watch)
        return fitted.mixed(self.start, share)

    # -- choosing ----------------------------------------------------------------------------------

    def _select(self, folds: Sequence[int]) -> AnswerSelection:
        """Return what answers the documents of some folds best."""
        targets, start = self.answers.targets, self.answers.memory.scale
        scaled = {
            choice: fit_scale(joined([attended[index] for index in folds]), targets, start)
            for choice, attended in self.attended.items()
        }

        def rank(choice: AnswerChoice) -> tuple[float, int]:
            return scaled[choice][1], (choice.share == 0) + (choice.lexical == 0)

        choice = max(scaled, key=rank)
        selection = AnswerSelection(choice, scaled[choice][0], None)
        return selection._replace(ridge=self._ridge(selection, folds))

    def _ridge(self, selection: AnswerSelection, folds: Sequence[int]) -> float | None:
        """Return how W_V is learned best, each of the folds answered by the W_V of the others."""
        numbers = self.answers.targets.numbers
        if numbers is None or numbers.shape[1] < 2 or len(folds) < 2:
            return None

        def gain(ridge: float | None) -> float:
            tried = selection._replace(ridge=ridge)
            gains = [
                self._blends(
                    tried, index, self._output(tried, [other for other in folds if other != index])
                ).gains()
                for index in folds
            ]
            return float(np.concatenate(gains).mean())

        gained = {ridge: gain(ridge) for ridge in RIDGES}
        best = max(RIDGES, key=lambda ridge: gained[ridge])
        return best if gained[best] > gained[None] + VALUE_GAIN else None

    def _output(self, selection: AnswerSelection, folds: Sequence[int]) -> ValueMap | None:
        """Return W_V by the documents of some folds, each answered by those of the others."""
        if selection.ridge is None:
            return None
        attended = joined([self.attended[selection.choice][index] for index in folds])
        return Blends(attended, self.answers.targets, selection.scale).fit_output(selection.ridge)

    def _blends(self, selection: AnswerSelection, index: int, output: ValueMap | None) -> Blends:
        attended = self.attended[selection.choice][index]
        return Blends(attended, self.answers.targets, selection.scale, output)

    # -- the active version ------------------------------------------------------------------------

    def _current(self) -> list[Current]:
        """Answer each fold as the active version does.

        A version that was learned from these values has seen them: it is tried as it came about,
        by its recipe fitted without the documents that judge.
        """
        choices = self.task.active.report.get("chosen") or {}
        scope = {"value": self.request.value, "dimensions": self.request.dimensions}
        if objective_of(self.task.active) == "answers" and scope.items() <= choices.items():
            share = 0.0 if choices.get("recipe") == "none" else float(choices["share"])
            choice = AnswerChoice(share, float(choices.get("lexical", 0.0)))
            if choice in self.attended:
                scale = (self.task.active.tuning.get("scale") or [self.answers.memory.scale])[0]
                ridge = choices.get("ridge")
                return [
                    Current(attended, float(scale), ridge=ridge)
                    for attended in self.attended[choice]
                ]
        version, collection = active_version(self.task), self.task.collection
        stored = stored_keys(collection, version, self.answers.memory.rows)
        served = ServedVersion(version, collection.settings, stored)
        output = served_output(served, self.answers, self.request.value)
        return [Current(self._served(served, index), 1.0, output) for index in range(FOLDS)]

    def _served(self, served: ServedVersion, index: int) -> Held:
        fold, words = self.folds[index], self.words[index]

        def scores(part: slice) -> Floats:
            queries = self.answers.queries[fold.held_out[part]]
            term = None
            if words is not None:
                term = served.words(words.shares[part], words.coverage[part])
            return served.scores(queries, fold.members, term)

        return attend_fold(self.answers, fold, scores)


def served_output(served: ServedVersion, answers: Answers, path: str | None) -> ValueMap | None:
    """Return a version's W_V and W_O as they meet these values; None where they do not.

    Each of several heads has a blend of its own, which is not looked at here.
    """
    targets, projection = answers.targets, served.version.projection
    plain = projection.w_v is None and projection.w_o is None
    takes = served.version.tuning.takes(path) and projection.heads == 1
    if targets.center is None or plain or not takes:
        return None
    width = len(targets.center)
    w_v = np.eye(width) if projection.w_v is None else projection.w_v[0]
    b_v = np.zeros(width) if projection.b_v is None else projection.b_v[0]
    w_o = np.eye(len(w_v)) if projection.w_o is None else projection.w_o
    w, b = w_o @ w_v, w_o @ b_v + (0 if projection.b_o is None else projection.b_o)
    if w.shape != (width, width):
        return None
    output = ValueMap(w.astype(np.float64), b.astype(np.float64))
    return output.scaled(targets.center, targets.spread)
