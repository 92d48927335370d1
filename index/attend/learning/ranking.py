"""The ranking objective: W_Q, W_K, offsets and weights from examples of what is relevant."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from attend.api.base import HALF_LIFE
from attend.core.errors import InvalidRequest
from attend.core.settings import (
    DEFAULT_COVERAGE,
    DEFAULT_LAYER,
    DEFAULT_LEXICAL,
    UNTRAINED_MEMORY,
)
from attend.core.types import Bool, Float32, Float64, Floats, Int64, Json
from attend.engines.engine import StoredCollection
from attend.learning import data, ranking_model, selection
from attend.learning.calibration import Calibration, RankingScores, fit_rate
from attend.learning.data import Memory, Questions, SecondLayer, ServedVersion, answerable
from attend.learning.fit import Fitted, Watch, run_parallel, unlearned
from attend.learning.ranking_model import (
    DEEP,
    RECIPE,
    Candidates,
    HalfLives,
    QuestionFold,
    RankingMaterial,
    RankingModel,
    bias_of,
    with_examples,
)
from attend.learning.selection import LEAST_GAIN, PART_COST, Judged, Split
from attend.learning.task import (
    FEWEST_QUESTIONS,
    NewVersion,
    NothingToLearn,
    PromotionVerdict,
    Task,
    Trained,
    objective_of,
)
from attend.search.queries import deep_moves

if TYPE_CHECKING:
    from attend.encoder.forward import QueryTuning

MEASURE = "ndcg@10"

FOLDS = 5

SHARES = (0.3, 0.6, 1.0)
DEEP_SHARES = (0.5, 1.0)
EXAMPLES = (0.0, 0.7, 0.8, 0.9, 1.0)
LEXICAL = (
    *((0.0, 0.0), (0.1, 0.0), (0.2, 0.0), (0.3, 0.0), (0.5, 0.0)),
    *((0.25, 1.0), (0.5, 1.0), (0.75, 1.0), (1.0, 1.0), (1.5, 1.0)),
)
MEMORY = (0.0, UNTRAINED_MEMORY)
VOTES = (0.0, 0.1, 0.2)
"""The parameter grid: how far from the start to the fit, and with `deep` to the fitted encoder; the
factor on example keys, λ with γ, how far feedback moves a query, and how much its votes count."""

MOST_CALIBRATE = 1000
"""Held-out questions of all folds by which weights are calibrated: each is scored again without
its answers, which takes longer than a search."""

LAYERED = (
    (0.0, (DEFAULT_LEXICAL, DEFAULT_COVERAGE), 0.0),
    (0.0, (DEFAULT_LEXICAL, DEFAULT_COVERAGE), 0.2),
    (0.9, (0.75, 1.0), 0.0),
    (1.0, (0.75, 1.0), 0.0),
    (1.0, (0.75, 1.0), 0.1),
)
"""Example keys, λ, γ and μ with which a second layer and times are tried: both take longest."""

UNJUDGED = (
    "{} questions have an answer that somebody labelled; a confidence is fitted to {} or more, as "
    "answers that were used were shown, and score higher than others. The scale stays, and texts "
    "of the collection tell whether a query has an answer."
)
"""The note of a training by use alone."""

APART = 1.25
"""The most by which the scale that tells a half-life differs from the fitted one, as a factor."""

WORDLESS = ((0.0, LEXICAL[0], 0.0), (0.0, LEXICAL[0], 0.2), (0.9, LEXICAL[0], 0.0))
"""The same without words."""

OFFSETS = "; key offsets move documents with examples away from the queries of all others"
"""What a reader of a promotion's reason must know where key offsets were learned."""

ONE_QUESTION = "All questions are one question in other words, which proves nothing; add others."

UNMEASURED = "; new documents could not be measured, as all questions share theirs"


class RankingChoice(NamedTuple):
    """How far to go from the start to the fit, 0 for not at all; the factor on example keys, λ and
    γ; how far feedback moves a query, and how much its votes count; a second layer; how far to go
    to the fitted encoder of queries; and the field whose times count, "" for none."""

    share: float
    examples: float = 0.0
    lexical: float = 0.0
    coverage: float = 0.0
    memory: float = 0.0
    votes: float = 0.0
    layer: float = 0.0
    deep: float = 0.0
    recency: str = ""

    @property
    def reach(self) -> float:
        """The way that it goes to the fit: words, example keys and feedback alone are plain."""
        return self.share + self.deep

    @property
    def cost(self) -> float:
        """The gain in nDCG that all its parts must be worth together."""
        return PART_COST * sum(map(bool, (*self[:3], *self[4:])))

    def factors(self, times: Float32 | None) -> tuple[float, float, float, float, Float32 | None]:
        """Return those of the scores of candidates.

        Args:
            times: (n,) what the times of documents add; None where they do not count.
        """
        return self.examples, self.lexical, self.coverage, self.votes, times

    def scores(
        self, candidates: Candidates, layer: SecondLayer | None, times: Float32 | None
    ) -> Float32:
        """Return the scores (q, c) of candidates, with its second layer if it has one."""
        scores = candidates.scores(*self.factors(times))
        if layer is None or not self.layer:
            return scores
        return layer.scored(scores, self.layer).astype(np.float32)


class Ranked(NamedTuple):
    """nDCG of a fold's questions by split.

    Attributes:
        basis: the fit, and the candidates among all documents, as searches rank; None of the
            active version.
        first: (h,) the best of all documents for each question; of the active version alone.
        times: (n,) what the times of documents add to scores; None where they do not count.
    """

    ndcg: Mapping[Split, Float64]
    basis: tuple[Fitted, Candidates] | None = None
    first: Int64 | None = None
    times: Float32 | None = None


UNTRAINED = (
    RankingChoice(0.0, 0.0, DEFAULT_LEXICAL, DEFAULT_COVERAGE, layer=DEFAULT_LAYER),
    RankingChoice(0.0, 0.0, DEFAULT_LEXICAL, DEFAULT_COVERAGE),
    RankingChoice(0.0),
)
"""How a collection answers that was not trained, without feedback: the first that was tried."""

Rankings = dict[RankingChoice | None, Ranked]
"""A fold under every choice; by None of what answers now."""


class RankingTrainer:
    """Questions, held out in two splits on which the whole grid is tried.

    Attributes:
        moves: whether feedback may move queries.
        groups: (q,) of questions that gain and lose together.
        halves: (q,) 0 or 1, the half of each question that judges a calibration; the same of
            near-duplicates.
        known_now: the questions that the active version learned from; None for one that is tried as
            it is. So is one whose examples are gone: from none of them it would have learned
            nothing.
    """

    lesson: ClassVar[str] = "examples what should be found"

    def __init__(self, task: Task, *, with_texts: bool = False, moves: bool = True) -> None:
        """
        Args:
            with_texts: leave out questions without a text.

        Raises:
            NothingToLearn: too little is stored.
            InvalidRequest: `deep` is asked for, and the encoder cannot be trained.
        """
        self.task, self.request, self.collection = task, task.request, task.collection
        if self.request.deep:
            if task.settings.encoder is None:
                raise InvalidRequest(
                    f"deep changes the encoder of queries, but the collection "
                    f"{task.collection.name!r} holds vectors and has none; leave deep out.",
                    field="deep",
                )
            task.collection.encoder().query_tuning([], 0)  # before anything takes time
        self.moves = moves and task.collection.capabilities.memory
        trained = objective_of(task.active) == "ranking"
        last = int(task.active.report.get("last_example", -1)) if trained else -1
        seed = self.request.seed
        self.material = ranking_model.read_questions(
            self.collection, last, seed, with_texts=with_texts
        )
        if "recency" in self.request.parts and self.collection.capabilities.recency:
            memory = self.material.memory
            ages = data.DocumentAges(self.collection, memory.rows).by_field
            self.material = self.material._replace(memory=replace(memory, ages=ages))
        self.memory, questions, previous, figures, *_ = self.material
        if questions.count < FEWEST_QUESTIONS:
            number, verb = ("question", "is") if questions.count == 1 else ("questions", "are")
            raise NothingToLearn(
                f"{questions.count} {number} with a relevant document {verb} stored, and "
                f"{FEWEST_QUESTIONS} are the fewest from which a gain can be proved; teach more "
                f"examples.",
                figures,
            )
        self.start = data.start_of(self.memory, self.request.dimensions)
        twins = data.twins(questions.embeddings)
        self.folds = ranking_model.question_folds(questions, twins, FOLDS)
        self.groups, _ = ranking_model.observations(questions, twins)
        self.halves = twins % 2
        if not self.folds:
            raise NothingToLearn(ONE_QUESTION, figures)
        self.active = data.active_version(task)
        several = answerable(previous).sum() >= FEWEST_QUESTIONS
        self.known_now = previous if trained and several else None

    def cross_validate(self) -> list[Rankings]:
        """Measure every choice, and what answers now, on each fold."""
        tries: list[Callable[[QuestionFold, Watch], Rankings]]
        tries = [partial(self._try, (0.0,)), self.rank_as_now]
        questions, parts = self.material.questions, self.request.parts
        words = (DEFAULT_LEXICAL, DEFAULT_COVERAGE) if "words" in parts else (0.0, 0.0)
        self.rates = HalfLives(self.memory, questions, self.start, words)
        if "matrices" in parts:
            tries.insert(0, partial(self._try, SHARES))
        if self.request.deep:
            tries.insert(0, partial(self._try, SHARES[1:], deep=DEEP_SHARES))
        return selection.cross_validate(self.folds, tries, self.task.watching("trying"))

    def judge(self, rankings: Sequence[Rankings]) -> Trained:
        """Choose, and put the choice to the promotion test."""
        request = self.request
        judged: list[Judged[RankingChoice]] = [
            Judged.of(split, fold.held_out, {n: item.ndcg[split] for n, item in row.items()})
            for fold, row in zip(self.folds, rankings, strict=True)
            for split in fold.splits
        ]
        look = self.task.look(len(np.unique(self.groups)))
        used: Any = self.task.used or {"relevant": 0}
        by_use = 2 * used["relevant"] > self.material.questions.count
        choice, criteria, nested = selection.contest(
            judged, request, look, by_use=by_use, groups=self.groups, least=LEAST_GAIN
        )
        note = OFFSETS if choice.share > 0 and "offsets" in request.parts else ""
        note += "" if any(item.name == "unseen" for item in criteria) else UNMEASURED
        verdict = selection.decide(criteria, look, measure=MEASURE, units="questions", note=note)
        choices: dict[str, Json] = {
            "objective": "ranking",
            "recipe": (DEEP if choice.deep else RECIPE).name if choice.share else "none",
            **choice._asdict(),
            "dimensions": request.dimensions,
            "parts": list(request.parts),
            "share_seen": request.share_seen,
        }
        before, after = ({MEASURE: verdict.views["mix"][side]} for side in ("before", "after"))
        fit = partial(self.fit, choice, rankings)
        held_out: dict[str, Json] = {
            "steps": self._steps(judged, verdict),
            "changed": self._changed(
                rankings,
                [one for fold, one in zip(judged, nested, strict=False) if fold.split == "random"],
            ),
        }
        return Trained(verdict, self.material.figures, before, after, choices, fit, held_out)

    def _steps(
        self, judged: Sequence[Judged[RankingChoice]], verdict: PromotionVerdict
    ) -> list[dict[str, Json]]:
        """Return the held-out means of each step of learning: as encoded, with feedback, trained.

        A question is answered without its own feedback. The step that the active version is has
        the means of the promotion test.
        """
        sides: list[dict[str, Json]] = [
            {name: view[side] for name, view in verdict.views.items()}
            for side in ("before", "after")
        ]
        active = self.task.active
        means: dict[str, Json] = {}
        if self.task.settings.encoder is None or "words" in self.request.parts:
            tried = judged[0].after
            plain = next(choice for choice in UNTRAINED if choice in tried)
            for name, memory in zip(("encoded", "feedback"), MEMORY, strict=True):
                choice = plain._replace(memory=memory)
                means[name] = selection.means_of(judged, choice, self.request.share_seen)
        if active.kind == "identity" and not active.tuning:
            means["feedback" if self.active.memory else "encoded"] = sides[0]
        else:
            means["previous"] = sides[0]
        means["trained"] = sides[1]
        return [{"name": name, "means": mean} for name, mean in means.items() if mean is not None]

    def _changed(
        self, rankings: Sequence[Rankings], choices: Sequence[RankingChoice]
    ) -> dict[str, Json] | None:
        """Return the questions of random folds whose best document changed: `changed_answers`.

        Args:
            choices: that of each random fold.
        """
        folds = zip(self.folds, rankings, strict=True)
        random = [(fold, row) for fold, row in folds if fold.splits[0] == "random"]
        parts: list[tuple[Int64, Int64, Float64]] = []
        for (fold, row), choice in zip(random, choices, strict=False):
            before, after = row[None], row[choice]
            assert before.first is not None  # the active version's
            first = np.stack([before.first, self._first(fold, after, choice)])
            values = np.stack([before.ndcg["random"], after.ndcg["random"]])
            parts.append((fold.held_out, first, values))
        if not parts:
            return None
        columns = (np.concatenate(column, axis=-1) for column in zip(*parts, strict=True))
        return ranking_model.changed_answers(self.collection, self.material, *columns)

    def _first(self, fold: QuestionFold, ranked: Ranked, choice: RankingChoice) -> Int64:
        """Return the best of all documents for each question of a fold under a choice, -1 for
        none."""
        assert ranked.basis is not None  # only the active version has none
        fitted, candidates = ranked.basis
        layer = None
        if choice.layer:
            questions = self._moved(fold, choice.memory, fitted.deep)
            (layer,) = self._layers(fitted, questions, [candidates])
        scores = choice.scores(candidates, layer, ranked.times)
        best = scores.argmax(axis=1)[:, None]
        return np.asarray(np.take_along_axis(candidates.documents, best, axis=1)[:, 0])

    def fit(self, choice: RankingChoice, rankings: Sequence[Rankings]) -> NewVersion:
        """Fit a choice to everything, and calibrate it by what is held out meanwhile."""
        questions = self.material.questions
        members = answerable(questions)
        known = questions.some(members)
        fitted: Fitted
        calibration: Calibration
        seed, rate, scale, times = self.request.seed, 0.0, 1.0, None
        if choice.recency:  # by what is held out
            ranked, ages = [row[choice] for row in rankings], self.memory.ages[choice.recency]
            sets = [one.basis[1] for one in ranked if one.basis is not None]
            rate, scale = fit_rate(*self.rates.of(choice.recency, choice.factors(None), sets))
            times = bias_of(ages, rate)
        jobs: list[Callable[[Watch], Any]] = [
            lambda watch: self._fit(
                known, choice.share, watch, deep=self._deep(members, choice.deep, seed), seed=seed
            ).deepened(choice.deep),
            lambda watch: self._calibrate(choice, rankings, times),
        ]
        fitted, calibration = run_parallel(jobs, self.task.watching("fitting"))
        self.task.watch("calibrating", 0.0)
        near = np.clip(scale, calibration.scale / APART, calibration.scale * APART)
        days = min(math.log(2) / float(rate * near), HALF_LIFE) if rate else HALF_LIFE
        timed = (choice.recency, days) if rate else None
        tuning = calibration.tuning(
            self.task.settings.scorer,
            lexical=choice.lexical,
            coverage=choice.coverage,
            examples=choice.examples,
            memory=choice.memory or None,
            votes=choice.votes,
            layer=choice.layer,
            recency=timed,
        )
        projection = fitted.projection(self.memory, self.task.settings)
        offsets = fitted.stored_offsets(self.memory)
        figures = dict(calibration.figures)
        if timed is not None:
            figures["recency"] = {"field": timed[0], "half_life": timed[1]}
        return NewVersion(projection, tuning, figures, offsets)

    # -- one fold ----------------------------------------------------------------------------------

    def _try(
        self,
        shares: Sequence[float],
        fold: QuestionFold,
        watch: Watch,
        deep: Sequence[float] = (0.0,),
    ) -> Rankings:
        """Rank a fold's questions under every choice of some shares, of which 1 fits."""
        parts, rankings = self.request.parts, Rankings()
        tuning = self._deep(fold.trained, deep[-1])
        fitted = self._fit(fold.training, shares[-1], watch, deep=tuning)
        among = [fold.ranked(split) for split in fold.splits]
        factors = EXAMPLES if "examples" in parts else EXAMPLES[:1]
        biases = self.rates.fit(fold)
        worded = "words" in parts and bool(self.material.questions.lexical[fold.held_out].nnz)
        memories = MEMORY if self.moves else (0.0,)
        for share, deepening, memory in product(shares, deep, memories):
            part = fitted.mixed(self.start, share).deepened(deepening)
            questions = self._moved(fold, memory, part.deep)
            sets = ranking_model.find_candidates(self.memory, part, fold.training, questions, among)
            by_words, by_votes = LEXICAL if worded else LEXICAL[:1], VOTES if memory else VOTES[:1]
            layered = worded and self.memory.unit
            layers = self._layers(part, questions, sets) if layered else [None] * len(sets)
            rows = [*product(factors, by_words, by_votes)]
            seldom = [row for row in (LAYERED if worded else WORDLESS) if row in rows]
            plain, few = (
                [
                    RankingChoice(share, factor, weight, coverage, memory, votes, deep=deepening)
                    for factor, (weight, coverage), votes in grid
                ]
                for grid in (rows, seldom)
            )
            stacked = [one._replace(layer=DEFAULT_LAYER) for one in few if layered]
            timed = [one._replace(recency=field) for field in biases for one in (*few, *stacked)]
            for choice in (*plain, *stacked, *timed):
                times = biases.get(choice.recency)
                ndcg = {
                    split: candidates.ndcg(choice.scores(candidates, layer, times))
                    for split, candidates, layer in zip(fold.splits, sets, layers, strict=True)
                }
                rankings[choice] = Ranked(ndcg, (part, sets[0]), times=times)
        return rankings

    def rank_as_now(self, fold: QuestionFold, watch: Watch) -> Rankings:
        """Rank the questions as the active version would that had not seen them either: by its
        choice, fitted to what it knew, less the fold that judges."""
        version, training, stored = self.active, fold.training, self.memory
        if self.known_now is not None:
            then = self.known_now.without(fold.blocked)
            training = then.some(fold.trained & answerable(then))
            choices = self.task.chosen
            learned = choices["recipe"] != "none" and training.count
            share = float(choices.get("deep", 0.0)) if learned else 0.0
            fitted = self._fit(
                training,
                float(choices["share"]) if learned else 0.0,
                watch,
                deep=self._deep(fold.trained & answerable(then), share),
                start=data.start_of(self.memory, choices["dimensions"]),
                parts=choices["parts"],
            )
            projection = fitted.deepened(share).projection(self.memory, self.task.settings)
            version = replace(
                version, projection=projection, offsets=fitted.stored_offsets(self.memory)
            )
        table = with_examples(stored, training) if version.examples else stored
        times = data.times_of(self.collection, version)
        served = ServedVersion(version, self.task.settings, table, times)
        strength = version.memory if self.moves else 0.0
        questions = self._moved(fold, strength, version.projection.deep)
        judged = {split: served.judged(questions, fold.ranked(split)) for split in fold.splits}
        ndcg = {split: values for split, (values, _) in judged.items()}
        return {None: Ranked(ndcg, first=judged[fold.splits[0]][1])}

    def _moved(self, fold: QuestionFold, strength: float, deep: Floats | None) -> Questions:
        """Return a fold's questions, moved by those that the fold leaves to learn from.

        Args:
            strength: α; 0 for not at all.
            deep: (p,) a change of the encoder, which moves them as well.
        """
        questions = fold.judging(self.material.questions)
        moves = self._deep_moves(fold.held_out, deep)
        feedback = data.feedback_of(fold.training, self.memory) if strength else None
        if feedback is None:
            return replace(questions, embeddings=questions.embeddings + moves)
        moved = feedback.moved(questions.embeddings, strength) + moves
        return replace(questions, embeddings=moved, unmoved=questions.embeddings, feedback=feedback)

    def _deep_moves(self, members: Int64, deep: Floats | None) -> Float32:
        """Return how far a change of the encoder (p,) moves questions of texts (q, d)."""
        embeddings = self.material.questions.embeddings[members]
        if deep is None:
            return np.zeros_like(embeddings)
        return deep_moves(self.collection.encoder(), deep, self._texts(members), embeddings)

    def _deep(self, members: Bool, share: float, seed: int = 0) -> QueryTuning | None:
        """Return some of the questions, to learn a change of their encoder from; None for no share
        of it."""
        if not share:
            return None
        return self.collection.encoder().query_tuning(self._texts(members), seed)

    def _texts(self, members: Bool | Int64) -> list[str | None]:
        """Return the texts of some of the questions."""
        index = np.flatnonzero(members) if members.dtype == bool else members
        return [self.material.texts[place] for place in index.tolist()]

    def _fit(
        self,
        questions: Questions,
        share: float,
        watch: Watch,
        *,
        deep: QueryTuning | None = None,
        start: Float32 | None = None,
        parts: Sequence[str] | None = None,
        seed: int = 0,
    ) -> Fitted:
        """Go a share of the way from the start to the fit.

        Args:
            deep: what is learned of the encoder; None for nothing.
            start, parts: where W_Q and W_K begin, and what is learned; as the request says if
                absent.
            seed: of the fit. All trials have the same, so that no other one passes the test.
        """
        start = self.start if start is None else start
        if not share:
            return unlearned(self.memory, start)
        model = RankingModel(
            self.memory,
            questions,
            RECIPE if deep is None else DEEP,
            start,
            seed=seed,
            offsets="offsets" in (self.request.parts if parts is None else parts),
            deep=deep,
        )
        return model.fit(watch).mixed(start, share)

    def _layers(
        self, fitted: Fitted, questions: Questions, sets: Sequence[Candidates]
    ) -> list[SecondLayer]:
        """Return the second layers over sets of candidates under a fit."""
        table = self.memory.with_vectors(fitted.keys(self.memory))
        queries = fitted.queries(self.memory, questions.embeddings)
        return [SecondLayer(table, queries, candidates.documents) for candidates in sets]

    def _calibrate(
        self, choice: RankingChoice, rankings: Sequence[Rankings], times: Float32 | None
    ) -> Calibration:
        """Calibrate by everything held out and ranked among all documents, as searches rank.

        Args:
            times: (n,) what the times of documents add to scores.
        """
        material, factors = self.material, choice.factors(times)
        start = data.scale_now(self.task.active, self.memory)
        if (count := int(material.judged.sum())) < FEWEST_QUESTIONS:
            note = UNJUDGED.format(count, FEWEST_QUESTIONS)
            return Calibration(start, None, None, self.request.error_rate, note=note)
        folds, bases, counts = self._judged(choice, rankings)
        hidden = None
        if choice.lexical or choice.memory:
            questions = material.questions
            if choice.lexical:
                held_out = np.unique(np.concatenate([fold.held_out for fold in folds]))
                questions = without_answers(self.collection, material, held_out)
            parts = [
                hidden_scores(
                    questions,
                    fold,
                    self.memory,
                    fitted,
                    factors,
                    choice.memory,
                    self._deep_moves(fold.held_out, fitted.deep),
                )
                for fold, (fitted, _) in zip(folds, bases, strict=True)
            ]
            hidden = data.stacked(parts, -np.inf)
        attendable = [candidates.attendable(*factors) for _, candidates in bases]
        if choice.layer:
            for place, (fold, (fitted, candidates)) in enumerate(zip(folds, bases, strict=True)):
                questions = self._moved(fold, choice.memory, fitted.deep)
                (layer,) = self._layers(fitted, questions, [candidates])
                again = choice.scores(candidates, layer, times)
                attendable[place] = exchanged(attendable[place], again)
        scores = RankingScores.of(
            data.stacked(attendable, -np.inf),
            data.stacked([candidates.grades for _, candidates in bases], 0) > 0,
            np.concatenate(counts),
            hidden,
            error_rate=self.request.error_rate,
            start=start,
        )
        return scores.checked(np.concatenate([self.halves[fold.held_out] for fold in folds]))

    def _judged(
        self, choice: RankingChoice, rankings: Sequence[Rankings]
    ) -> tuple[list[QuestionFold], list[tuple[Fitted, Candidates]], list[Float64]]:
        """Return folds of the questions that somebody judged, with their fits and candidates, and
        how much each question counts.

        What was used was shown before: a fit to that would take other queries for answered, too.
        """
        alike = RankingChoice(choice.share, memory=choice.memory, deep=choice.deep)
        folds, bases = [], []
        most, judged = MOST_CALIBRATE // len(self.folds), self.material.judged
        for fold, row in zip(self.folds, rankings, strict=True):
            random = np.random.default_rng(self.request.seed)
            members = selection.sampled(np.flatnonzero(judged[fold.held_out]), most, random)
            if (basis := row[alike].basis) is not None and len(members):
                folds.append(replace(fold, held_out=fold.held_out[members]))
                bases.append((basis[0], basis[1].some(members)))
        sizes: Counter[Split] = Counter()
        for fold in folds:
            sizes[fold.splits[0]] += len(fold.held_out)
        shares = selection.weights(sizes, self.request.share_seen)
        counts = [
            np.full(len(fold.held_out), shares[fold.splits[0]] / sizes[fold.splits[0]])
            for fold in folds
        ]
        return folds, bases, counts


def exchanged(scores: Float64, again: Float32) -> Float64:
    """Return scores (q, c) in the order of others, as a search with a second layer has them."""
    ordered = np.empty_like(scores)
    order = np.argsort(-again, axis=1, kind="stable")
    np.put_along_axis(ordered, order, -np.sort(-scores, axis=1), axis=1)
    return ordered


# -- questions without their answers ---------------------------------------------------------------
# As a collection without their answers would score them. A mask alone would betray what it hides:
# BM25 counts by the best match of the whole collection, and stored questions with the same answer
# move a query towards it.


def hidden_scores(
    questions: Questions,
    fold: QuestionFold,
    memory: Memory,
    fitted: Fitted,
    factors: tuple[Any, ...],
    strength: float,
    moves: Float32 | float = 0.0,
) -> Float64:
    """Return the scores (q, c) of a fold's questions over documents that do not answer them.

    Args:
        questions: all of them, as `without_answers` returns them.
        factors: those of `Candidates.scores`.
        strength: how far feedback moves a query.
        moves: (q, d) how far a change of the encoder does.
    """
    questions = questions.some(fold.held_out)
    if strength:
        moved = data.moved_without_answers(questions, fold.training, memory, strength)
        feedback = data.feedback_of(fold.training, memory)
        questions = replace(
            questions, embeddings=moved, unmoved=questions.embeddings, feedback=feedback
        )
    questions = replace(questions, embeddings=questions.embeddings + moves)
    training = fold.training
    (candidates,) = ranking_model.find_candidates(memory, fitted, training, questions, hide=True)
    return np.where(candidates.grades > 0, -np.inf, candidates.attendable(*factors))


def without_answers(
    collection: StoredCollection, material: RankingMaterial, held_out: Int64
) -> Questions:
    """Return all questions, with the words that those held out share with all documents but the
    ones that answer.

    Their labels stay, to tell which documents those are.
    """
    questions, memory = material.questions, material.memory
    rows = np.split(memory.rows[questions.relevant.indices], questions.relevant.indptr[1:-1])
    counted = set(held_out.tolist())
    texts = [text if place in counted else None for place, text in enumerate(material.texts)]
    lexical, coverage = data.word_shares(collection, texts, memory, rows)
    return replace(questions, lexical=lexical, coverage=coverage)
