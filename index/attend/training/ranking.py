"""The ranking objective: W_Q, W_K, offsets and weights from examples of what is relevant."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from attend.api.learning import PARTS
from attend.learn.calibration import ATTEND, Calibration, calibrate
from attend.learn.candidates import Candidates, find_candidates, widened
from attend.learn.data import Questions, answerable, twins
from attend.learn.fit import Watch
from attend.learn.held_out import MOST_QUESTIONS, QuestionFold, question_folds, sampled
from attend.learn.promotion import compare_splits, decide
from attend.learn.ranking import RECIPE, fit_ranking
from attend.learn.residual import Fitted, unlearned
from attend.learn.selection import (
    PART_COST,
    Judged,
    best,
    cross_validate,
    nested_outcomes,
    weights,
)
from attend.training.material import RankingMaterial, read_questions, start_of
from attend.training.publish import (
    Judgement,
    NewVersion,
    objective_of,
    offsets_of,
    projection_of,
)
from attend.training.request import FEWEST_QUESTIONS, Task
from attend.training.served import ServedVersion, active_version, with_examples
from attend.tuning import Tuning
from attend.types import Float64, Int64, Json
from attend.versions import Version

MEASURE = "ndcg@10"

FOLDS = 3

ONE_QUESTION = (
    "All questions are one question in other words, so that none can be held out to prove "
    "anything; add different ones."
)

UNMEASURED = "; new documents could not be measured, as all questions share theirs"

SHARES = (0.3, 0.6, 1.0)
EXAMPLES = (0.0, 0.7, 0.8, 0.9, 1.0)
LEXICAL = (
    *((0.0, 0.0), (0.1, 0.0), (0.2, 0.0), (0.3, 0.0), (0.5, 0.0)),
    *((0.25, 1.0), (0.5, 1.0), (0.75, 1.0), (1.0, 1.0), (1.5, 1.0)),
)
"""The parameter grid: how far from the start to the fit, α, and λ with γ."""


class RankingChoice(NamedTuple):
    """How far to go from the start to the fit, 0 for not at all; α, λ and γ."""

    share: float
    examples: float = 0.0
    lexical: float = 0.0
    coverage: float = 0.0

    @property
    def cost(self) -> float:
        """The gain in nDCG that all its parts must be worth together."""
        return PART_COST * ((self.share > 0) + (self.examples > 0) + (self.lexical > 0))


Values = dict[RankingChoice | None, Float64]
"""nDCG of a fold's questions under every choice, and of what answers now by None."""


class RankingObjective:
    """Learns what examples call relevant.

    Questions are held out in two splits, and the whole grid is tried on them.
    """

    material: RankingMaterial
    choice: RankingChoice
    fitted: Fitted

    def __init__(self, task: Task) -> None:
        self.task, self.request = task, task.request
        self.candidates: dict[tuple[int, float], Candidates] = {}

    def read(self) -> str | None:
        trained = objective_of(self.task.active) == "ranking"
        last = int(self.task.active.report.get("last_example", -1)) if trained else -1
        self.material = read_questions(self.task.collection, last, self.request.seed)
        questions = self.material.questions
        if questions.count < FEWEST_QUESTIONS:
            return (
                f"{questions.count} questions with a relevant document are stored, and "
                f"{FEWEST_QUESTIONS} are the fewest from which a gain can be proved; teach more "
                f"examples."
            )
        self.start = start_of(self.material.memory, self.request.dimensions)
        self.groups = twins(questions.embeddings)
        self.folds = question_folds(questions, self.groups, FOLDS, self.request.seed)
        self.active = active_version(self.task)
        # A version whose examples are gone is tried as it is: from none of them it would have
        # learned nothing.
        several = answerable(self.material.previous).sum() >= FEWEST_QUESTIONS
        self.known_now = self.material.previous if trained and several else None
        return None if self.folds else ONE_QUESTION

    def cross_validate(self, watch: Watch) -> None:
        tries = [self._try_untrained, self._try_current]
        if "matrices" in self.request.parts:
            tries.insert(0, self._try_trained)
        results = cross_validate(self.folds, tries, watch)
        self.judged: list[Judged[RankingChoice]] = []
        for fold, values in zip(self.folds, results, strict=True):
            after = {choice: item for choice, item in values.items() if choice is not None}
            self.judged.append(Judged(fold.split, self._members(fold), values[None], after))

    def judge(self) -> Judgement:
        request = self.request
        self.choice = best(self.judged, request.share_seen)
        outcomes = nested_outcomes(self.judged, request.share_seen)
        verdict = decide(
            compare_splits(outcomes, request.share_seen, groups=self.groups),
            measure=MEASURE,
            units="questions",
            note="" if "unseen" in outcomes else UNMEASURED,
        )
        mix = verdict.views["mix"]
        choices: dict[str, Json] = {
            "objective": "ranking",
            "recipe": RECIPE.name if self.choice.share else "none",
            **self.choice._asdict(),
            "dimensions": request.dimensions,
            "parts": list(request.parts),
            "share_seen": request.share_seen,
        }
        before, after = ({MEASURE: mix[side]} for side in ("before", "after"))
        return Judgement(verdict, before, after, choices)

    def fit(self, watch: Watch) -> None:
        material = self.material
        questions = material.questions.some(answerable(material.questions))
        self.fitted = self._fit(questions, self.choice.share, watch)

    def version(self) -> NewVersion:
        calibration, memory = self._calibrate(), self.material.memory
        settings, choice = self.task.collection.settings, self.choice
        tuning = Tuning(
            scale=(calibration.scale,),
            null=None if calibration.null is None else (calibration.null,),
            lexical=choice.lexical,
            coverage=choice.coverage,
            examples=choice.examples,
            attend=ATTEND,
            scorer=settings.scorer,
            threshold=calibration.threshold,
            error_rate=calibration.error_rate,
        )
        projection = projection_of(self.fitted, memory, settings)
        offsets = offsets_of(self.fitted, memory)
        return NewVersion(projection, tuning, dict(vars(calibration)), offsets)

    # -- one fold ----------------------------------------------------------------------------------

    def _try_trained(self, fold: QuestionFold, watch: Watch) -> Values:
        fitted = self._fit(fold.training, 1.0, watch)
        values: Values = {}
        for share in SHARES:
            values |= self._values(fold, share, fitted.mixed(self.start, share))
        return values

    def _try_untrained(self, fold: QuestionFold, watch: Watch) -> Values:
        values = self._values(fold, 0.0, unlearned(self.material.memory, self.start))
        watch(1.0)
        return values

    def _try_current(self, fold: QuestionFold, watch: Watch) -> Values:
        """Rank the questions as the active version would that had not seen them either."""
        earlier = self.known_now
        training = fold.training
        if earlier is None:
            version = self.active
        else:
            then = earlier.without(fold.blocked)
            training = then.some(fold.trained & answerable(then))
            version = self._as_it_came_about(training, watch)
        memory = self.material.memory
        stored = with_examples(memory, training) if version.examples else memory
        served = ServedVersion(version, self.task.collection.settings, stored)
        values = served.ndcg(self.material.questions.some(self._members(fold)))
        watch(1.0)
        return {None: values}

    def _as_it_came_about(self, training: Questions, watch: Watch) -> Version:
        """Fit the active version's choice to what it knew, less the fold that judges."""
        choices, memory = self.task.active.report["chosen"], self.material.memory
        start = start_of(memory, choices.get("dimensions"))
        fitted = unlearned(memory, start)
        if choices["recipe"] != "none" and training.count:
            offsets = "offsets" in (choices.get("parts") or PARTS)
            fitted = fit_ranking(
                memory,
                training,
                start=start,
                offsets=offsets,
                recipe=RECIPE,
                seed=self.request.seed,
                watch=watch,
            ).mixed(start, float(choices["share"]))
        projection = projection_of(fitted, memory, self.task.collection.settings)
        return replace(self.active, projection=projection, offsets=offsets_of(fitted, memory))

    def _values(self, fold: QuestionFold, share: float, fitted: Fitted) -> Values:
        """Rank a fold's questions under every choice of one fit."""
        questions, parts = self.material.questions.some(self._members(fold)), self.request.parts
        candidates = find_candidates(self.material.memory, fitted, fold.training, questions)
        self.candidates[id(fold), share] = candidates
        worded = "words" in parts and bool(candidates.lexical.any())
        return {
            RankingChoice(share, factor, *words): candidates.ndcg(candidates.scores(factor, *words))
            for factor in (EXAMPLES if "examples" in parts else EXAMPLES[:1])
            for words in (LEXICAL if worded else LEXICAL[:1])
        }

    def _fit(self, questions: Questions, share: float, watch: Watch) -> Fitted:
        memory = self.material.memory
        if not share:
            return unlearned(memory, self.start)
        fitted = fit_ranking(
            memory,
            questions,
            start=self.start,
            offsets="offsets" in self.request.parts,
            recipe=RECIPE,
            seed=self.request.seed,
            watch=watch,
        )
        return fitted.mixed(self.start, share)

    def _members(self, fold: QuestionFold) -> Int64:
        random = np.random.default_rng(self.request.seed)
        return sampled(fold.held_out, MOST_QUESTIONS, random)

    # -- calibration -------------------------------------------------------------------------------

    def _calibrate(self) -> Calibration:
        """Calibrate by everything held out, each split with its share in use."""
        choice, folds = self.choice, self.folds
        parts = [self.candidates[id(fold), choice.share] for fold in folds]
        shares = weights(dict.fromkeys(fold.split for fold in folds), self.request.share_seen)
        sizes = {
            split: sum(
                len(part.documents)
                for fold, part in zip(folds, parts, strict=True)
                if fold.split == split
            )
            for split in shares
        }
        width = max(part.documents.shape[1] for part in parts)
        scores, relevant, counts = [], [], []
        for fold, part in zip(folds, parts, strict=True):
            of_choice = part.scores(*choice[1:]).astype(np.float64)
            of_choice = np.where(part.documents < 0, -np.inf, of_choice)
            scores.append(widened(of_choice, width, -np.inf))
            relevant.append(widened(part.grades, width, 0) > 0)
            counts.append(np.full(len(part.grades), shares[fold.split] / sizes[fold.split]))
        return calibrate(
            np.concatenate(scores),
            np.concatenate(relevant),
            counts=np.concatenate(counts),
            error_rate=self.request.error_rate,
            start=self.material.memory.scale,
        )
