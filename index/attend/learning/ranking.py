"""The ranking objective: W_Q, W_K, offsets and weights from examples of what is relevant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from attend.collection.versions import Version
from attend.core.types import Float32, Json
from attend.learning.calibration import Calibration, calibrate_checked
from attend.learning.data import Questions, answerable, stacked, twins
from attend.learning.fit import Fitted, Watch, unlearned
from attend.learning.held_out import QuestionFold, Split, question_folds
from attend.learning.hidden import scores_without_answers
from attend.learning.material import RankingMaterial, read_questions, start_of
from attend.learning.promotion import LEAST_GAIN, compare_splits, decide
from attend.learning.ranking_fit import RECIPE, Candidates, find_candidates, fit_ranking
from attend.learning.ranking_grid import (
    EXAMPLES,
    LEXICAL,
    MEMORY,
    OFFSETS,
    SHARES,
    HeldOutQuestions,
    RankingChoice,
    Values,
)
from attend.learning.selection import (
    Judged,
    best,
    cross_validate,
    nested_outcomes,
    weights,
)
from attend.learning.task import FEWEST_QUESTIONS, NothingToLearn, Task
from attend.learning.version import (
    NewVersion,
    ObjectiveRun,
    ServedVersion,
    TrainingOutcome,
    active_version,
    objective_of,
    offsets_of,
    projection_of,
    scale_now,
    with_examples,
)

MEASURE = "ndcg@10"

FOLDS = 3

ONE_QUESTION = (
    "All questions are one question in other words, so that none can be held out to prove "
    "anything; add different ones."
)

UNMEASURED = "; new documents could not be measured, as all questions share theirs"


class RankingObjective(ObjectiveRun):
    """Learns what examples call relevant.

    Questions are held out in two splits, and the whole grid is tried on them.
    """

    material: RankingMaterial
    choice: RankingChoice
    fitted: Fitted
    calibration: Calibration

    def __init__(self, task: Task, *, with_texts: bool = False) -> None:
        """
        Args:
            with_texts: leave out questions without a text.
        """
        super().__init__(task)
        self._with_texts = with_texts
        self.moves = task.collection.capabilities.memory

    def read(self) -> None:
        active = self.task.active
        trained = objective_of(active) == "ranking"
        last = int(active.report.get("last_example", -1)) if trained else -1
        self.material = read_questions(
            self.task.collection, last, self.request.seed, with_texts=self._with_texts
        )
        self.figures, questions = self.material.figures, self.material.questions
        if questions.count < FEWEST_QUESTIONS:
            raise NothingToLearn(
                f"{questions.count} questions with a relevant document are stored, and "
                f"{FEWEST_QUESTIONS} are the fewest from which a gain can be proved; teach more "
                f"examples.",
                self.figures,
            )
        self.start = start_of(self.material.memory, self.request.dimensions)
        self.groups = twins(questions.embeddings)
        self.folds = question_folds(questions, self.groups, FOLDS, self.request.seed)
        if not self.folds:
            raise NothingToLearn(ONE_QUESTION, self.figures)
        self.held_out = HeldOutQuestions(questions, self.material.memory)
        self.active = active_version(self.task)
        self.candidates: dict[tuple[int, float, float], Candidates] = {}
        self.fits: dict[tuple[int, float], Fitted] = {}  # by fold and share
        # A version whose examples are gone is tried as it is: from none of them it would have
        # learned nothing.
        several = answerable(self.material.previous).sum() >= FEWEST_QUESTIONS
        self.known_now = self.material.previous if trained and several else None

    def cross_validate(self, watch: Watch) -> None:
        tries = [self._try_untrained, self.rank_as_now]
        if "matrices" in self.request.parts:
            tries.insert(0, self._try_trained)
        results = cross_validate(self.folds, tries, watch)
        self.judged = []
        for fold, values in zip(self.folds, results, strict=True):
            for split in fold.splits:
                of_split = {choice: row for (name, choice), row in values.items() if name == split}
                self.judged.append(Judged.of(split, fold.held_out, of_split))

    def judge(self) -> TrainingOutcome:
        request = self.request
        self.choice = best(self.judged, request.share_seen, request.tolerance)
        outcomes = nested_outcomes(self.judged, request.share_seen, request.tolerance)
        criteria = compare_splits(
            outcomes,
            request.share_seen,
            groups=self.groups,
            tolerance=request.tolerance,
            significance=self.significance,
            least=LEAST_GAIN,
        )
        verdict = decide(criteria, measure=MEASURE, units="questions", note=self._note(outcomes))
        choices: dict[str, Json] = {
            "objective": "ranking",
            "recipe": RECIPE.name if self.choice.share else "none",
            **self.choice._asdict(),
            "dimensions": request.dimensions,
            "parts": list(request.parts),
            "share_seen": request.share_seen,
        }
        before, after = ({MEASURE: verdict.views["mix"][side]} for side in ("before", "after"))
        return TrainingOutcome(verdict, before, after, choices)

    def _note(self, outcomes: Mapping[Split, object]) -> str:
        """Return what a reader of a promotion's reason must know besides."""
        moved = self.choice.share > 0 and "offsets" in self.request.parts
        return (OFFSETS if moved else "") + ("" if "unseen" in outcomes else UNMEASURED)

    def fit(self, watch: Watch) -> None:
        questions = self.material.questions
        self.fitted = self._fit(questions.some(answerable(questions)), self.choice.share, watch)

    def version(self) -> NewVersion:
        calibration, memory = self.calibration, self.material.memory
        return NewVersion(
            projection_of(self.fitted, memory, self.settings),
            self.tuning(
                calibration,
                lexical=self.choice.lexical,
                coverage=self.choice.coverage,
                examples=self.choice.examples,
                memory=self.choice.memory or None,
            ),
            calibration.figures,
            offsets_of(self.fitted, memory),
        )

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

    def rank_as_now(self, fold: QuestionFold, watch: Watch) -> Values:
        """Rank the questions as the active version would that had not seen them either."""
        version, training, memory = self.active, fold.training, self.material.memory
        if self.known_now is not None:
            then = self.known_now.without(fold.blocked)
            training = then.some(fold.trained & answerable(then))
            version = self._as_it_came_about(training, watch)
        stored = with_examples(memory, training) if version.examples else memory
        served = ServedVersion(version, self.settings, stored)
        questions = self.held_out.moved(fold, version.memory if self.moves else 0.0)
        values: Values = {
            (split, None): served.ndcg(questions, fold.ranked(split)) for split in fold.splits
        }
        watch(1.0)
        return values

    def _as_it_came_about(self, training: Questions, watch: Watch) -> Version:
        """Fit the active version's choice to what it knew, less the fold that judges."""
        choices, memory = self.task.active.report["chosen"], self.material.memory
        learned = choices["recipe"] != "none" and training.count
        fitted = self._fit(
            training,
            float(choices["share"]) if learned else 0.0,
            watch,
            start=start_of(memory, choices.get("dimensions")),
            # Versions from before parts could be chosen have all of them.
            offsets="offsets" in (choices.get("parts") or ["offsets"]),
        )
        projection = projection_of(fitted, memory, self.settings)
        return replace(self.active, projection=projection, offsets=offsets_of(fitted, memory))

    def _values(self, fold: QuestionFold, share: float, fitted: Fitted) -> Values:
        """Rank a fold's questions under every choice of one fit."""
        values: Values = {}
        self.fits[id(fold), share] = fitted
        for memory in MEMORY if self.moves else MEMORY[:1]:
            values |= self._moved_values(fold, share, fitted, memory)
        return values

    def _moved_values(
        self, fold: QuestionFold, share: float, fitted: Fitted, memory: float
    ) -> Values:
        questions, parts = self.held_out.moved(fold, memory), self.request.parts
        among = [fold.ranked(split) for split in fold.splits]
        by_split = find_candidates(self.material.memory, fitted, fold.training, questions, among)
        worded = "words" in parts and bool(questions.lexical.nnz)
        values: Values = {}
        for split, candidates in zip(fold.splits, by_split, strict=True):
            if split == fold.splits[0]:  # by which it is calibrated: ranked as searches rank
                self.candidates[id(fold), share, memory] = candidates
            for factor in EXAMPLES if "examples" in parts else EXAMPLES[:1]:
                by_keys = candidates.by_keys(factor)
                for words in LEXICAL if worded else LEXICAL[:1]:
                    choice = RankingChoice(share, factor, *words, memory)
                    values[split, choice] = candidates.ndcg(candidates.with_words(by_keys, *words))
        return values

    def _fit(
        self,
        questions: Questions,
        share: float,
        watch: Watch,
        *,
        start: Float32 | None = None,
        offsets: bool | None = None,
    ) -> Fitted:
        """Go a share of the way from the start to the fit.

        Args:
            start, offsets: where W_Q and W_K begin, and whether keys get offsets; as the request
                says if absent.
        """
        memory = self.material.memory
        start = self.start if start is None else start
        if not share:
            return unlearned(memory, start)
        fitted = fit_ranking(
            memory,
            questions,
            start=start,
            offsets="offsets" in self.request.parts if offsets is None else offsets,
            recipe=RECIPE,
            seed=self.request.seed,
            watch=watch,
        )
        return fitted.mixed(start, share)

    # -- calibration -------------------------------------------------------------------------------

    def calibrate(self, watch: Watch) -> None:
        """Calibrate by everything held out and ranked among all documents, as searches rank."""
        folds, choice = self.folds, self.choice
        parts = [self.candidates[id(fold), choice.share, choice.memory] for fold in folds]
        sizes: Counter[Split] = Counter()
        for fold in folds:
            sizes[fold.splits[0]] += len(fold.held_out)
        shares = weights(sizes, self.request.share_seen)
        counts = [
            np.full(len(fold.held_out), shares[fold.splits[0]] / sizes[fold.splits[0]])
            for fold in folds
        ]
        fits = [(fold, self.fits[id(fold), choice.share]) for fold in folds]
        collection, material = self.task.collection, self.material
        hidden = scores_without_answers(collection, material, fits, choice[1:4], choice.memory)
        self.calibration = calibrate_checked(
            stacked([part.attendable(*choice[1:4]) for part in parts], -np.inf),
            stacked([part.grades for part in parts], 0) > 0,
            np.concatenate([self.groups[fold.held_out] % 2 for fold in folds]),
            np.concatenate(counts),
            hidden=hidden,
            error_rate=self.request.error_rate,
            start=scale_now(self.task.active, material.memory),
        )
        watch(1.0)
