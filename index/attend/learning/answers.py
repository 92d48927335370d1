"""The answers objective: from stored values to a version that answers rightly.

Documents teach by themselves: each one's value is what a query like it should be answered with.
Documents are held out in folds, near-duplicates together, and answered by the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from attend.core.types import Float64, Floats, Json
from attend.learning.answer_calibration import calibrate_answers_checked, fit_scale, told_apart
from attend.learning.answer_fit import RECIPE, Answers, ValueMap, fit_answers
from attend.learning.answer_material import read_answers, shared_words
from attend.learning.blends import (
    Blends,
    FoldAnswers,
    Held,
    Scores,
    Words,
    attend_fold,
    fold_scores,
    joined,
)
from attend.learning.calibration import ATTEND
from attend.learning.fit import Fitted, Watch, unlearned
from attend.learning.held_out import DocumentFold, document_folds
from attend.learning.material import start_of
from attend.learning.promotion import Criterion, decide
from attend.learning.selection import cross_validate, select_nested
from attend.learning.task import NothingToLearn
from attend.learning.version import (
    NewVersion,
    ObjectiveRun,
    ServedVersion,
    TrainingOutcome,
    active_version,
    objective_of,
    projection_of,
    scale_now,
    stored_keys,
)

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
    """A choice, and how folds are answered under it."""

    choice: AnswerChoice
    answering: FoldAnswers


class AnswersObjective(ObjectiveRun):
    """Learns what makes blended values right.

    Labels (categories, lists of labels, booleans) are judged by the log of the share that the
    right ones get in the answer, which sees every probability and not the largest alone; numbers
    and vectors by squared error. A version is promoted by a significant gain in that, and never
    with a significant loss in accuracy (of numbers, in absolute error).
    """

    answers: Answers
    best: AnswerSelection
    fitted: Fitted

    def read(self) -> None:
        material = read_answers(self.task.collection, self.request)
        self.figures, self.answers = material.figures, material.answers
        self.strength = active_version(self.task).memory  # nothing here judges it: it stays
        self.start = start_of(self.answers.memory, self.request.dimensions)
        self.folds = document_folds(self.answers.groups, FOLDS, self.request.seed)
        if len(self.folds) < FOLDS:
            raise NothingToLearn(FEW_TEXTS, self.figures)
        self.words: list[Words | None] = [None] * FOLDS
        if any(material.texts):
            rows, store = self.answers.memory.rows, self.task.collection.store
            for index, fold in enumerate(self.folds):
                watch = partial(self.task.watch, "reading", index / FOLDS)
                self.words[index] = shared_words(fold, store, rows, material.texts, watch)

    def cross_validate(self, watch: Watch) -> None:
        tries = [self._try_untrained, self._try_trained]
        results = cross_validate(range(FOLDS), tries, watch)
        self.attended = {
            choice: [attended[choice] for attended in results] for choice in results[0]
        }

    def judge(self) -> TrainingOutcome:
        """Judge each fold by the choice, the scale and the W_V of the others."""
        now, labels = self._current(), self.answers.targets.shares is not None

        def judge(index: int, selection: AnswerSelection) -> tuple[Blends, Blends]:
            others = [other for other in range(FOLDS) if other != index]
            return now.blends(index, others), selection.answering.blends(index, others)

        sides = [*zip(*select_nested(FOLDS, self._select, judge), strict=True)]
        sign = 1.0 if labels else -1.0  # errors are above zero as people read them

        def criterion(name: str, values: Callable[[Blends], Float64], **test: Any) -> Criterion:
            before, after = (sign * np.concatenate([*map(values, side)]) for side in sides)
            level = self.significance
            return Criterion(
                name, name, before, after, errors=not labels, significance=level, **test
            )

        gain, guard = ("log likelihood", "accuracy") if labels else ("squared error", "error")
        criteria = [
            criterion(gain, Blends.gains, gain=True, tolerance=None),
            criterion(guard, Blends.guards, tolerance=self.request.tolerance),
        ]
        verdict = decide(criteria, measure=gain, units="documents with values")
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
            "memory": self.strength,
            "ridge": self.best.answering.ridge,
            "value": request.value,
            "attend": ATTEND,
            "dimensions": request.dimensions,
        }
        return TrainingOutcome(verdict, before, after, choices)

    def fit(self, watch: Watch) -> None:
        everything = DocumentFold(np.empty(0, np.int64), np.arange(len(self.answers.memory)))
        self.fitted = self._fit(everything, self.best.choice.share, watch)

    def version(self) -> NewVersion:
        targets, memory = self.answers.targets, self.answers.memory
        attended = joined(self.best.answering.attended)
        calibration = calibrate_answers_checked(
            attended,
            targets,
            self.answers.groups[attended.queries] % 2,
            start=scale_now(self.task.active, memory),
            error_rate=self.request.error_rate,
            share=1 - 1 / FOLDS,
        )
        area = told_apart(attended, calibration)
        output = self.best.answering.output_by(range(FOLDS))
        if output is not None and targets.center is not None:
            output = output.unscaled(targets.center, targets.spread)
        path = None if output is None else self.request.value or ""
        tuning = self.tuning(
            calibration,
            lexical=self.best.choice.lexical,
            memory=self.strength or None,
            values=path,
        )
        values = None if output is None else (output.w, output.b)
        projection = projection_of(self.fitted, memory, self.settings, values)
        return NewVersion(projection, tuning, {**calibration.figures, "auroc": area})

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

        def term(lexical: float) -> Scores | None:
            return partial(words.term, lexical=lexical) if words and lexical else None

        return {
            AnswerChoice(share, lexical): attend_fold(
                self.answers, fold, scores, words=term(lexical)
            )
            for lexical in (LEXICAL if words is not None else LEXICAL[:1])
        }

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
        answering = FoldAnswers(self.attended[choice], targets, scaled[choice][0])
        return AnswerSelection(choice, answering._replace(ridge=self._ridge(answering, folds)))

    def _ridge(self, answering: FoldAnswers, folds: Sequence[int]) -> float | None:
        """Return how W_V is learned best, each of the folds answered by the W_V of the others."""
        numbers = self.answers.targets.numbers
        if numbers is None or numbers.shape[1] < 2 or len(folds) < 2:
            return None

        def gain(ridge: float | None) -> float:
            tried = answering._replace(ridge=ridge)
            others = [[other for other in folds if other != index] for index in folds]
            blends = [tried.blends(*pair) for pair in zip(folds, others, strict=True)]
            return float(np.concatenate([blend.gains() for blend in blends]).mean())

        gained = {ridge: gain(ridge) for ridge in RIDGES}
        best = max(RIDGES, key=lambda ridge: gained[ridge])
        return best if gained[best] > gained[None] + VALUE_GAIN else None

    # -- the active version ------------------------------------------------------------------------

    def _current(self) -> FoldAnswers:
        """Answer the folds as the active version does.

        A version that was learned from these values has seen them: it is tried as it came about,
        by its recipe fitted without the documents that judge.
        """
        active, targets = self.task.active, self.answers.targets
        choices = active.report.get("chosen") or {}
        scope = {"value": self.request.value, "dimensions": self.request.dimensions}
        if objective_of(active) == "answers" and scope.items() <= choices.items():
            share = 0.0 if choices.get("recipe") == "none" else float(choices["share"])
            choice = AnswerChoice(share, float(choices.get("lexical", 0.0)))
            if choice in self.attended:
                (scale, *_) = active.tuning.get("scale") or [self.answers.memory.scale]
                attended = self.attended[choice]
                return FoldAnswers(attended, targets, float(scale), choices.get("ridge"))
        version, collection = active_version(self.task), self.task.collection
        stored = stored_keys(collection, version, self.answers.memory.rows)
        served = ServedVersion(version, self.settings, stored)
        attended = [self._served(served, index) for index in range(FOLDS)]
        output = served_output(served, self.answers, self.request.value)
        return FoldAnswers(attended, targets, 1.0, output=output)

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
