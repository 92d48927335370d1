"""The answers objective: from stored values to a version that answers rightly.

Documents teach by themselves: each one's value is what a query like it should be answered with.
Documents are held out in folds, near-duplicates together, and answered by the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from attend.api.learning import TrainRequest
from attend.core.arrays import unit
from attend.core.errors import InvalidRequest
from attend.core.types import Float32, Float64, Floats, Int64, Json
from attend.engines.engine import StoredCollection
from attend.learning import answer_model, data, selection
from attend.learning.answer_model import (
    RECIPE,
    Answers,
    AnswerScores,
    AnswerTargets,
    Blends,
    DocumentFold,
    Held,
    ValueMap,
    attend_fold,
    fit_answers,
    fit_scale,
    joined,
)
from attend.learning.data import ATTEND, ServedVersion
from attend.learning.evidence import changed
from attend.learning.fit import Fitted, Watch, run_parallel, unlearned
from attend.learning.selection import LEAST_GAIN
from attend.learning.task import (
    FEWEST_QUESTIONS,
    NewVersion,
    NothingToLearn,
    Task,
    Trained,
    objective_of,
)
from attend.search.values import KEY, TYPE_SAMPLE, check_path, declared_types, value_of
from attend.store import CollectionStore, StoredDocument
from attend.values.kinds import ValueType, infer

MOST_DOCUMENTS = 20_000
"""What is learned from; of more, a sample."""

TWIN_COSINE = 0.98
"""Documents nearer than this say the same but for case and stops: they share a fold, and are no
memory of each other."""

BLOCK = 4096
"""Documents read at once."""

TEXTS = 64
"""Texts looked up at once: the matches of each can be as many as the collection has documents."""

LABELLED = ("category", "labels", "boolean")

NUMERIC = ("number", "vector")


def read_answers(
    collection: StoredCollection, request: TrainRequest
) -> tuple[Answers, Mapping[str, Json]]:
    """Read documents, their keys and their values; and figures about them.

    Raises:
        InvalidRequest: the named value is one that no answer can be learned for.
        NothingToLearn: too few documents have values that can be blended.
    """
    documents, type = _read(collection, request)
    figures: dict[str, Json] = {"documents": collection.store.counts()[0], "kind": type.kind}
    if type.kind not in (*LABELLED, *NUMERIC):
        raise NothingToLearn(
            f"The values are of the kind {type.kind!r}, which answers list and do not blend; only "
            f"labels that repeat, numbers and vectors can be learned.",
            figures,
        )
    rows, values = _usable(documents, request.value, type.kind)
    figures["values"] = len(rows)
    if len(rows) < FEWEST_QUESTIONS:
        raise NothingToLearn(
            f"{FEWEST_QUESTIONS} documents with a value to learn from are the fewest from which a "
            f"gain can be proved, and this collection has {len(rows)}; add more.",
            figures,
        )
    random = np.random.default_rng(request.seed)
    members = selection.sampled(np.arange(len(rows)), MOST_DOCUMENTS, random)
    targets = _targets([values[index] for index in members.tolist()], type.kind)
    if targets is None:
        raise NothingToLearn("All values are the same, and every answer is right.", figures)
    fields = {document.row: document.fields for document in documents}
    texts = ["\n".join(fields[row].values()) for row in rows[members].tolist()]
    memory = data.memory_of(collection, rows[members])
    if not np.array_equal(memory.rows, rows[members]):
        raise InvalidRequest("Documents went while they were read; train again.")
    queries = memory.with_vectors(memory.vectors).means()
    if collection.settings.unit_embeddings:
        queries = unit(queries)
    return Answers(memory, queries, data.twins(queries, TWIN_COSINE), targets, texts), figures


def _read(
    collection: StoredCollection, request: TrainRequest
) -> tuple[list[StoredDocument], ValueType]:
    """Read all documents, and the type of their values, as a search would have it."""
    path, store = request.value, collection.store
    if path == KEY:
        raise InvalidRequest(
            f"value is {path!r}, but a key answers nothing that could be right or wrong; name a "
            f"field of the values.",
            field="value",
        )
    documents: list[StoredDocument] = []
    while block := store.scroll(documents[-1].row if documents else 0, BLOCK):
        documents += block
    check_path(path, documents)
    type = declared_types(collection.settings).get(path) or infer(
        [value_of(document, path) for document in store.sample(TYPE_SAMPLE)]
    )
    if type.kind == "object":
        names = ", ".join(type.fields or {})
        raise InvalidRequest(
            f"The values are objects; name the field to learn, one of {names}.", field="value"
        )
    return documents, type


def _usable(
    documents: Sequence[StoredDocument], path: str | None, kind: str
) -> tuple[Int64, list[Any]]:
    """Return rows of the documents whose value has the kind, ascending, and those values."""
    # One string does not show that it repeats.
    kinds = ("category", "text", "image") if kind == "category" else (kind,)
    every = ((document.row, value_of(document, path)) for document in documents)
    pairs: list[tuple[int, Any]] = [
        (row, value) for row, value in every if value is not None and infer([value]).kind in kinds
    ]
    if kind == "vector" and pairs:
        widths = [len(value) for _, value in pairs]
        usual = max(set(widths), key=widths.count)
        pairs = [(row, value) for row, value in pairs if len(value) == usual]
    return np.array([row for row, _ in pairs], dtype=np.int64), [value for _, value in pairs]


def _targets(values: Sequence[Any], kind: str) -> AnswerTargets | None:
    """Return values as shares of labels or as numbers; None where they are all the same."""
    if kind in NUMERIC:
        numbers = np.array(values, dtype=np.float64).reshape(len(values), -1)
        center, spread = numbers.mean(axis=0), float(np.sqrt(numbers.var(axis=0).mean()))
        if spread == 0:
            return None
        centred = ((numbers - center) / spread).astype(np.float32)
        return AnswerTargets(numbers=centred, center=center, spread=spread)
    labels = [tuple(dict.fromkeys(value)) if kind == "labels" else (value,) for value in values]
    everything = [str(label) for document in labels for label in document]
    names, columns = np.unique(everything, return_inverse=True)
    if len(names) < 2:
        return None
    counts = np.array([len(document) for document in labels])
    shares = np.repeat(1 / counts, counts).astype(np.float32)
    pointers = np.concatenate([[0], np.cumsum(counts)])
    shape = len(labels), len(names)
    return AnswerTargets(shares=sparse.csr_array((shares, columns, pointers), shape=shape))


def shared_words(
    fold: DocumentFold, store: CollectionStore, answers: Answers, watch: Callable[[], None]
) -> tuple[NDArray[np.float16], Float32]:
    """Return the words that held-out documents share with those that answer them.

    A query's best is that among the members: itself it would find first, and a new query does
    not find itself.

    Args:
        watch: called often; may raise to stop.

    Returns: (h, m) lex(d), BM25 over the query's best; and (h,) that best over what could be
        reached, from 0 to 1.
    """
    shares = np.zeros((len(fold.held_out), len(fold.members)), dtype=np.float16)
    coverage = np.zeros(len(fold.held_out), dtype=np.float32)
    members = answers.memory.rows[fold.members]
    for start in range(0, len(fold.held_out), TEXTS):
        watch()
        queries = fold.held_out[start : start + TEXTS].tolist()
        matches = store.lexical_many([answers.texts[query] for query in queries])
        for query, match in enumerate(matches, start):
            index = np.minimum(np.searchsorted(members, match.rows), len(members) - 1)
            there = members[index] == match.rows
            best = float(match.scores[there].max(initial=0.0))
            if best > 0:
                shares[query, index[there]] = match.scores[there] / best
                coverage[query] = min(1.0, best / match.ideal)
    return shares, coverage


# -- the objective ---------------------------------------------------------------------------------


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


class FoldAnswers(NamedTuple):
    """How folds are answered.

    Attributes:
        attended: what the queries of each fold attend to.
        ridge: how W_V is learned from held-out answers; None where `output` is as it is.
        output: W_V, if there is one that is not learned here.
    """

    attended: Sequence[Held]
    targets: AnswerTargets
    scale: float
    ridge: float | None = None
    output: ValueMap | None = None

    def output_by(self, folds: Sequence[int]) -> ValueMap | None:
        """Return W_V by the documents of some folds, each answered by those of the others."""
        if self.ridge is None:
            return self.output
        attended = joined([self.attended[index] for index in folds])
        return Blends(attended, self.targets, self.scale).fit_output(self.ridge)

    def blends(self, index: int, others: Sequence[int]) -> Blends:
        """Return the answers of one fold, by the W_V of others."""
        output = self.output_by(others)
        return Blends(self.attended[index], self.targets, self.scale, output)


Attended = Mapping[AnswerChoice, Sequence[Held]]
"""What the queries of each fold attend to under every choice."""


class AnswersTrainer:
    """Documents with values, of which each fold is answered by the others.

    Labels (categories, lists of labels, booleans) are judged by the log of the share that the
    right ones get in the answer, which sees every probability and not the largest alone; numbers
    and vectors by squared error. A version is promoted by a significant gain in that, and never
    with a significant loss in accuracy (of numbers, in absolute error).

    Attributes:
        words: what `shared_words` gives of each fold; None where no document has a text.
    """

    lesson: ClassVar[str] = "stored values what should be answered"

    def __init__(self, task: Task) -> None:
        """
        Raises:
            NothingToLearn: too little is stored.
        """
        self.task, self.request = task, task.request
        self.answers, self.figures = read_answers(task.collection, self.request)
        self.start = data.start_of(self.answers.memory, self.request.dimensions)
        self.folds = answer_model.document_folds(self.answers.groups, FOLDS, 0)
        if len(self.folds) < FOLDS:
            raise NothingToLearn(FEW_TEXTS, self.figures)
        self.words: list[tuple[NDArray[np.float16], Float32]] | None = None
        if any(self.answers.texts):
            store = task.collection.store
            self.words = [
                shared_words(
                    fold, store, self.answers, partial(task.watch, "reading", index / FOLDS)
                )
                for index, fold in enumerate(self.folds)
            ]

    def cross_validate(self) -> Attended:
        """Answer each fold under every choice."""
        tries = [partial(self._try, (0.0,)), partial(self._try, SHARES)]
        results = selection.cross_validate(range(FOLDS), tries, self.task.watching("trying"))
        return {choice: [attended[choice] for attended in results] for choice in results[0]}

    def judge(self, attended: Attended) -> Trained:
        """Judge each fold by the choice, the scale and the W_V of the others."""
        now, labels = self._current(attended), self.answers.targets.shares is not None
        sides: list[list[Blends]] = [[], []]
        for index in range(FOLDS):
            others = [other for other in range(FOLDS) if other != index]
            for side, answers in zip(sides, (now, self._select(attended, others)[1]), strict=True):
                side.append(answers.blends(index, others))
        sign = 1.0 if labels else -1.0  # errors are above zero as people read them
        held_out = np.concatenate([fold.held_out for fold in self.folds])
        groups = self.answers.groups[held_out]
        look = self.task.look(len(np.unique(groups)))

        def criterion(
            name: str, values: Callable[[Blends], Float64], **test: Any
        ) -> selection.Criterion:
            before, after = (sign * np.concatenate([*map(values, side)]) for side in sides)
            test |= {"errors": not labels, "significance": look.level}
            return selection.Criterion(name, name, before, after, groups, **test)

        gain, guard = ("log likelihood", "accuracy") if labels else ("squared error", "error")
        criteria = [
            criterion(gain, Blends.gains, gain=True, least=LEAST_GAIN, tolerance=None),
            criterion(guard, Blends.guards, tolerance=self.request.tolerance),
        ]
        verdict = selection.decide(criteria, look, measure=gain, units="documents with values")
        choice, answering = self._select(attended, range(FOLDS))
        strength = data.active_version(self.task).memory  # nothing here judges it: it stays
        before, after = (
            {name: figures[side] for name, figures in verdict.views.items()}
            for side in ("before", "after")
        )
        choices: dict[str, Json] = {
            "objective": "answers",
            "recipe": RECIPE.name if choice.share else "none",
            **choice._asdict(),
            "memory": strength,
            "ridge": answering.ridge,
            "value": self.request.value,
            "attend": ATTEND,
            "dimensions": self.request.dimensions,
        }
        fit = partial(self._version, choice, answering, strength)
        more: dict[str, Json] = {"changed": self._changed(sides)} if labels else {}
        return Trained(verdict, self.figures, before, after, choices, fit, more)

    def _changed(self, sides: Sequence[Sequence[Blends]]) -> dict[str, Json]:
        """Return the documents whose likeliest label changed, each label by the heaviest document
        that has it: `changed`."""
        memory, documents = self.answers.memory, self.task.collection.store
        queries = np.concatenate([fold.held_out for fold in self.folds])
        first, right, shares = (
            np.stack([np.concatenate([*map(read, side)]) for side in sides])
            for read in (Blends.supports, Blends.guards, Blends.gains)
        )
        records = documents.documents(memory.rows[queries], texts=False)
        named = [{"document": records[row].id} for row in memory.rows[queries].tolist()]
        figures = changed(documents, named, memory.rows[first], right > 0, np.exp(shares))
        return {**figures, "measure": "share of the right answer"}

    def _version(self, choice: AnswerChoice, answering: FoldAnswers, strength: float) -> NewVersion:
        """Fit a choice to everything, and calibrate it by what is held out."""
        targets, memory = self.answers.targets, self.answers.memory
        everything = DocumentFold(np.empty(0, np.int64), np.arange(len(memory)))
        job = partial(self._fit, everything, choice.share, seed=self.request.seed)
        (fitted,) = run_parallel([job], self.task.watching("fitting"))
        self.task.watch("calibrating", 0.0)
        attended = joined(answering.attended)
        start = data.scale_now(self.task.active, memory)
        scores = AnswerScores(attended, targets, start, self.request.error_rate, 1 - 1 / FOLDS)
        calibration = scores.checked(self.answers.groups[attended.queries] % 2)
        output = answering.output_by(range(FOLDS))
        if output is not None and targets.center is not None:
            output = output.unscaled(targets.center, targets.spread)
        settings = self.task.settings
        tuning = calibration.tuning(
            settings.scorer,
            lexical=choice.lexical,
            memory=strength or None,
            values=None if output is None else self.request.value or "",
        )
        values = None if output is None else (output.w, output.b)
        figures = {**calibration.figures, "auroc": scores.auroc(calibration.scale)}
        return NewVersion(fitted.projection(memory, settings, values), tuning, figures)

    # -- one fold ----------------------------------------------------------------------------------

    def _try(self, shares: Sequence[float], index: int, watch: Watch) -> dict[AnswerChoice, Held]:
        """Answer a fold under every choice of some shares, of which 1 fits."""
        fold, words = self.folds[index], None if self.words is None else self.words[index][0]
        fitted, attended = self._fit(fold, shares[-1], watch), dict[AnswerChoice, Held]()
        for share in shares:
            scores = answer_model.fold_scores(self.answers, fitted.mixed(self.start, share), fold)
            for lexical in LEXICAL if words is not None else LEXICAL[:1]:
                attended[AnswerChoice(share, lexical)] = attend_fold(
                    self.answers, fold, scores, words=words, lexical=lexical
                )
        return attended

    def _fit(self, fold: DocumentFold, share: float, watch: Watch, *, seed: int = 0) -> Fitted:
        if not share:
            return unlearned(self.answers.memory, self.start)
        fitted = fit_answers(self.answers, fold.members, start=self.start, seed=seed, watch=watch)
        return fitted.mixed(self.start, share)

    # -- choosing ----------------------------------------------------------------------------------

    def _select(self, attended: Attended, folds: Sequence[int]) -> tuple[AnswerChoice, FoldAnswers]:
        """Return what answers the documents of some folds best."""
        targets, start = self.answers.targets, self.answers.memory.scale
        scaled = {
            choice: fit_scale(joined([by_fold[index] for index in folds]), targets, start)
            for choice, by_fold in attended.items()
        }

        def rank(choice: AnswerChoice) -> tuple[float, int]:
            return scaled[choice][1], (choice.share == 0) + (choice.lexical == 0)

        choice = max(scaled, key=rank)
        answering = FoldAnswers(attended[choice], targets, scaled[choice][0])
        return choice, answering._replace(ridge=self._ridge(answering, folds))

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

    def _current(self, attended: Attended) -> FoldAnswers:
        """Answer the folds as the active version does.

        A version that was learned from these values has seen them: it is tried as it came about,
        by its recipe fitted without the documents that judge.
        """
        active, targets, choices = self.task.active, self.answers.targets, self.task.chosen
        memory, collection = self.answers.memory, self.task.collection
        scope = {"value": self.request.value, "dimensions": self.request.dimensions}
        if objective_of(active) == "answers" and scope.items() <= choices.items():
            share = 0.0 if choices.get("recipe") == "none" else float(choices["share"])
            choice = AnswerChoice(share, float(choices.get("lexical", 0.0)))
            if choice in attended:
                (scale, *_) = active.tuning.get("scale") or [memory.scale]
                ridge = choices.get("ridge")
                return FoldAnswers(attended[choice], targets, float(scale), ridge)
        version = data.active_version(self.task)
        stored = data.stored_keys(collection, version, memory.rows)
        served = ServedVersion(
            version, self.task.settings, stored, data.times_of(collection, version)
        )
        by_fold = [self._served(served, index) for index in range(FOLDS)]
        output = served_output(served, self.answers, self.request.value)
        return FoldAnswers(by_fold, targets, 1.0, output=output)

    def _served(self, served: ServedVersion, index: int) -> Held:
        fold, words = self.folds[index], None if self.words is None else self.words[index]

        def scores(part: slice) -> Floats:
            queries = self.answers.queries[fold.held_out[part]]
            term = None if words is None else served.words(words[0][part], words[1][part])
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
