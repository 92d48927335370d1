"""The ranking objective's questions: read, divided, scored; and its loss.

W_Q, W_K and key offsets are learned from questions and relevant documents.

The loss is the cross-entropy of a softmax over documents against the grades of each question
(the listwise loss of Cao et al. 2007 with its softmax over candidates sampled, as in sampled
softmax, Jean et al. 2015). Only documents that examples label compete: nothing pushes away a
document that no example speaks of.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from attend.attention import log_shares
from attend.core.arrays import KeyTable, best, locate, top_mask
from attend.core.errors import InvalidRequest
from attend.core.types import Bool, Float32, Float64, Int64, Json
from attend.engines.engine import StoredCollection
from attend.learning.calibration import fit_rate
from attend.learning.data import (
    MOST_DOCUMENTS,
    Memory,
    Questions,
    Sparse,
    answerable,
    blocks,
    ideal_dcg,
    lengths,
    memory_of,
    products,
    stacked,
    top_places,
    word_shares,
)
from attend.learning.evidence import changed
from attend.learning.fit import (
    Fitted,
    Recipe,
    Residual,
    Watch,
    descend,
    shuffled_batches,
    unlearned,
)
from attend.learning.selection import Split, fold_numbers, sampled
from attend.measure.statistics import CUT, ndcg
from attend.store import ExampleSet, compile_filter
from attend.write.labels import propensity

if TYPE_CHECKING:
    from attend.encoder.forward import QueryTuning

MOST_QUESTIONS = 10_000


class RankingMaterial(NamedTuple):
    """Questions with their labels.

    Attributes:
        previous: what the active version learned from.
        texts: (q,) of the questions; None of one that is a vector.
        examples: (q,) the id of the first example of each.
        judged: (q,) whether somebody has labelled an answer; of others only the log says so.
    """

    memory: Memory
    questions: Questions
    previous: Questions
    figures: Mapping[str, Json]
    texts: Sequence[str | None]
    examples: Int64
    judged: Bool


def read_questions(
    collection: StoredCollection, last: int, seed: int, *, with_texts: bool = False
) -> RankingMaterial:
    """Read examples and keys.

    Args:
        last: the last example that the active version learned from.
        with_texts: leave out questions without a text.
    """
    with collection.store.reading():  # all of one moment
        learned = collection.store.examples()
        documents, rows = collection.store.counts()[0], None
        if documents > MOST_DOCUMENTS:
            every = collection.store.matching(compile_filter({}))
            sample = sampled(every, MOST_DOCUMENTS, np.random.default_rng(seed))
            rows = np.union1d(sample, learned.rows)
        memory = memory_of(collection, rows)
        labels = _labels(learned, memory)
        usable = np.flatnonzero(np.diff(labels(learned.ids >= 0)[0].indptr) > 0)
        if with_texts:
            usable = usable[[learned.texts[index] is not None for index in usable]]
        members = sampled(usable, MOST_QUESTIONS, np.random.default_rng(seed))
        texts = [learned.texts[index] for index in members]
        lexical, coverage = word_shares(collection, texts, memory)

    def questions(examples: Bool) -> Questions:
        relevant, judged = (matrix[members] for matrix in labels(examples))
        return Questions(learned.embeddings[members], relevant, judged, lexical, coverage)

    figures: dict[str, Json] = {
        "questions": len(learned.texts),
        "examples": len(learned.ids),
        "documents": documents,
        "last_example": int(learned.ids.max(initial=-1)),
    }
    everything, previous = questions(learned.ids >= 0), questions(learned.ids <= last)
    first = np.full(len(learned.texts), np.iinfo(np.int64).max)
    np.minimum.at(first, learned.questions, learned.ids)
    judged = np.isin(members, learned.questions[~learned.used & (learned.weights > 0)])
    return RankingMaterial(memory, everything, previous, figures, texts, first[members], judged)


def _labels(learned: ExampleSet, memory: Memory) -> Callable[[Bool], tuple[Sparse, Sparse]]:
    """Return a function of some examples (e,): the grades above zero, and all labels."""
    index, there = locate(memory.rows, learned.rows)
    shape = len(learned.texts), len(memory)
    # By inverse propensity where the place on the page is known.
    shown = (learned.positions > 0) & (learned.weights > 0)
    weights = learned.weights.copy()
    weights[shown] /= [propensity(int(place)) for place in learned.positions[shown]]

    def labels(examples: Bool) -> tuple[Sparse, Sparse]:
        mask = examples & there
        place = learned.questions[mask], index[mask]
        grades = np.maximum(weights[mask], 0).astype(np.float32)
        against = (1 + np.maximum(-weights[mask], 0)).astype(np.float32)
        relevant, judged = (
            sparse.csr_array((data, place), shape=shape) for data in (grades, against)
        )
        relevant.eliminate_zeros()
        relevant.sort_indices()
        judged.sort_indices()
        return relevant, judged

    return labels


def changed_answers(
    collection: StoredCollection,
    material: RankingMaterial,
    held_out: Int64,
    first: Int64,
    values: Float64,
) -> dict[str, Json]:
    """Return the questions whose best document changed: `changed`.

    Questions are named by their first example: a text stays with the feedback, and goes with it.

    Args:
        held_out: (h,) the questions, of which one that stands twice counts once.
        first: (2, h) the best document of each before and after, -1 for none.
        values: (2, h) the measure.
    """
    held_out, once = np.unique(held_out, return_index=True)
    first, values = first[:, once], values[:, once]
    right = np.zeros(first.shape, dtype=bool)
    for side in (0, 1):
        there = first[side] >= 0
        grades = material.questions.relevant[held_out[there], first[side][there]]
        right[side][there] = np.asarray(grades).ravel() > 0
    rows = np.where(first < 0, 0, material.memory.rows[first])
    named = [{"example": id} for id in material.examples[held_out].tolist()]
    return changed(collection.store, named, rows, right, values)


# -- folds -----------------------------------------------------------------------------------------


DIVIDED, MOST_DIVISIONS = 1000, 2
"""Up to so many questions in all divisions together, and so many divisions: what is few is quickly
fitted, and a single division of it would decide by chance."""

MOST_JUDGES = 1500
"""Questions that judge a fold: more make its figures no truer than they need to be."""


@dataclass(frozen=True)
class QuestionFold:
    """One division of the questions.

    Attributes:
        splits: what the held-out questions judge: one ranking of everything, and in an unseen fold
            another one of the documents that no training question labels.
        training: questions to learn from, as they are known then.
        trained: (q,) which of all questions those are.
        blocked: (n,) documents of which training must not know.
        held_out: (h,) positions of the questions that judge; in an unseen fold by those of their
            documents that are blocked.
    """

    splits: tuple[Split, ...]
    training: Questions
    trained: Bool
    blocked: Bool
    held_out: Int64

    @cached_property
    def new_documents(self) -> Bool:
        """(n,) the documents that no training question labels."""
        new = np.ones(len(self.blocked), dtype=bool)
        new[self.training.judged.indices] = False
        return new

    def judging(self, questions: Questions) -> Questions:
        """Return the questions that judge, of all, with the documents that they judge by."""
        judges = questions.some(self.held_out)
        if "random" in self.splits:
            return judges
        others = judges.without(self.blocked).relevant
        return replace(judges.without(~self.blocked), left_out=others)

    def ranked(self, split: Split) -> Bool | None:
        """Return the documents (n,) that a split ranks; None for all."""
        return self.new_documents if split == "new" else None


def question_folds(
    questions: Questions, groups: Int64, count: int, seed: int = 0
) -> list[QuestionFold]:
    """Divide questions into `count` random folds, and as many unseen ones, which judge new
    documents among new ones as well; a group (q,) is never divided.

    Every question is held out once in each; of very many a sample judges. Few are divided several
    times, so that no single division decides.
    """
    unblocked = np.zeros(questions.relevant.shape[1], dtype=bool)
    none = sparse.csr_array(questions.lexical.shape, dtype=np.float32)
    wordless = replace(questions, lexical=none)  # words are not learned from
    folds = []
    for division in range(max(1, min(MOST_DIVISIONS, DIVIDED // questions.count))):
        random = np.random.default_rng([seed, division])
        fold_of = fold_numbers(groups, count, random)
        unseen, documents = _unseen_folds(questions, groups, count, random)
        divisions: list[tuple[tuple[Split, ...], Bool, Bool]] = [
            *((("random",), fold_of == fold, unblocked) for fold in range(count)),
            *((("unseen", "new"), unseen == fold, documents == fold) for fold in range(count)),
        ]
        for splits, held_out, blocked in divisions:
            visible = wordless.without(blocked)
            trained = ~held_out & answerable(visible)
            judges = held_out
            if "random" not in splits:
                judges = held_out & answerable(wordless.without(~blocked))
            if judges.any() and trained.any():
                members = sampled(np.flatnonzero(judges), MOST_JUDGES, random)
                folds.append(QuestionFold(splits, visible.some(trained), trained, blocked, members))
    return folds


def _unseen_folds(
    questions: Questions, groups: Int64, count: int, random: np.random.Generator
) -> tuple[Int64, Int64]:
    """Return the fold of each question (q,) and of each document (n,), -1 without a label.

    Documents are divided, and a group of questions goes where most of its own are. Those that
    answer a question alone stay together with all that questions of its group have; of questions
    with many, a fold judges by those that it withholds.
    """
    _, bundles = observations(questions, groups)
    labels = questions.relevant.tocoo()
    by_label = fold_numbers(bundles[labels.col], count, random)
    documents = np.full(questions.relevant.shape[1], -1, dtype=np.int64)
    documents[labels.col] = by_label
    names, group = np.unique(groups, return_inverse=True)
    votes = random.random((len(names), count)) / 2  # which of equals
    np.add.at(votes, (group[labels.row], by_label), 1)
    return np.asarray(votes.argmax(axis=1)[group]), documents


def observations(questions: Questions, groups: Int64) -> tuple[Int64, Int64]:
    """Return what gains and loses together: of questions (q,), and of documents (n,).

    Questions that share their only answer find it together or not at all.

    Args:
        groups: (q,) of questions that are near-duplicates.
    """
    names, group = np.unique(groups, return_inverse=True)
    alone = np.flatnonzero(lengths(questions.relevant) == 1)
    answers = len(names) + questions.relevant[alone].indices
    count = len(names) + questions.relevant.shape[1]
    edges = sparse.coo_array(
        (np.ones(len(alone), dtype=bool), (group[alone], answers)), shape=(count, count)
    )
    _, joint = sparse.csgraph.connected_components(edges, directed=False)
    labels = np.asarray(joint, dtype=np.int64)
    return labels[group], labels[len(names) :]


# -- the loss --------------------------------------------------------------------------------------


RECIPE = Recipe(
    "known documents",
    rates={"maps": 3e-3, "scale": 1.5e-2, "offsets": 1e-2},
    steps=(120, 450),
    batch=256,
)

DEEP = Recipe(
    "query encoder",
    rates={**RECIPE.rates, "deep": 5e-4},
    decay={"deep": 0.01},
    epochs=6,
    steps=(60, 600),
    batch=64,
    drop=0.1,
)
"""That of `--deep`: a step of 64 questions takes half a second on one core. (On two folds of CoNaLa
twice the rate and ten epochs were no better, and a change of the last three layers gained half.)"""

LABELLED = 800
FEWER = 400
"""Labelled documents drawn for each step: of those of its own questions, and as many beside them;
fewer of each where these alone would be more. Twice as many teach no more, and take as long again.
"""

DEPTH = 100
"""Documents taken by each of: keys, example queries as keys, words."""

NEVER = -1e9
"""The score of a document that has no key of this sort."""


class RankingModel:
    """Parameters, and the loss of a batch of questions.

    Args:
        questions: each with at least one relevant document.
        start: (d_k, d), where W_Q and W_K begin.
        offsets: whether the keys of labelled documents get offsets.
        deep: what is learned of the encoder of the questions' texts; None for nothing.
    """

    def __init__(
        self,
        memory: Memory,
        questions: Questions,
        recipe: Recipe,
        start: Float32,
        *,
        seed: int,
        offsets: bool,
        deep: QueryTuning | None = None,
    ) -> None:
        if questions.count == 0:
            raise InvalidRequest("No question with a relevant document was given; teach examples.")
        self.questions, self.recipe, self.deep = questions, recipe, deep
        self.labelled = np.unique(questions.judged.indices).astype(np.int64)
        movable = memory.positions(self.labelled if offsets else self.labelled[:0])
        self.maps = Residual(memory, start, scale=memory.scale, offset_keys=movable, seed=seed)
        matrices, scale = [self.maps.delta_q, self.maps.delta_k], [self.maps.log_scale]
        self.parameters = {"maps": matrices, "scale": scale, "offsets": [self.maps.offsets]}
        if deep is not None:
            self.parameters["deep"] = [deep.numbers]

    def fit(self, watch: Watch = lambda done: None) -> Fitted:
        """Learn from all questions.

        Raises:
            Conflict: the loss is not finite.
        """
        count, recipe = self.questions.count, self.recipe
        steps = recipe.count_steps(math.ceil(count / recipe.batch))
        batches = shuffled_batches(np.arange(count), recipe.batch, steps, self.maps.random)
        descend(self, recipe, batches, steps, watch)
        deep = None if self.deep is None else self.deep.learned()
        return self.maps.fitted()._replace(deep=deep)

    def loss(self, batch: Int64) -> Any:
        """Return the mean cross-entropy of some questions (b,)."""
        torch = self.maps.torch
        relevant, judged = self.questions.relevant[batch], self.questions.judged[batch]
        documents, log_counts = self.candidates(judged)
        grades = relevant[:, documents].toarray().astype(np.float32)
        answered = np.flatnonzero(grades.any(axis=1))  # all, but where the judged were sampled
        if not len(answered):
            return None
        target = torch.from_numpy(grades[answered] / grades[answered].sum(axis=1, keepdims=True))
        # A document that counts twice in the softmax is as hard to stay above as two.
        competing = np.log(np.maximum(judged[answered][:, documents].toarray(), 1))
        counts = torch.from_numpy(log_counts + competing.astype(np.float32))
        scores = self._scores(batch[answered], documents)
        losses = -(target * log_shares(self.maps.log_scale.exp() * scores + counts)).sum(dim=1)
        return losses.mean()

    def candidates(self, judged: Any) -> tuple[Int64, Float32]:
        """Draw the documents that compete in one step: of those judged, and of other labelled.

        Returns: (c,) each, ascending by their number of keys: the documents, and the log of the
            number that each stands for.
        """
        of_batch = np.unique(judged.indices).astype(np.int64)
        others = np.setdiff1d(self.labelled, of_batch, assume_unique=True)
        most = LABELLED if len(of_batch) <= LABELLED else FEWER
        sides = self._drawn(of_batch, most), self._drawn(others, most)
        documents, counts = (np.concatenate(column) for column in zip(*sides, strict=True))
        # By the number of keys: the best keys of all documents with as many are one reduction.
        order = np.lexsort((documents, self.maps.memory.counts[documents]))
        return documents[order], np.log(counts[order]).astype(np.float32)

    def _drawn(self, documents: Int64, most: int) -> tuple[Int64, Float64]:
        """Draw at most so many documents; return them and the number that each stands for."""
        count = max(1.0, len(documents) / most)
        if count > 1:
            documents = self.maps.random.choice(documents, most, replace=False)
        return documents, np.full(len(documents), count)

    def _scores(self, batch: Int64, documents: Int64) -> Any:
        """(b, c): each question's best key in each document."""
        maps, torch = self.maps, self.maps.torch
        positions = maps.memory.positions(documents)
        questions = torch.from_numpy(self.questions.embeddings[batch])
        if self.deep is not None:
            questions = self.deep(batch, questions)
        queries = maps.project(maps.thinned(questions, self.recipe.drop), maps.delta_q)  # (b, d_k)
        embeddings = torch.from_numpy(maps.memory.vectors[positions])
        if len(maps.offset_keys):  # without, embeddings need no gradient
            count = len(positions)
            moves = maps.moves(positions, np.arange(count), count, self.recipe.drop_offsets)
            embeddings = embeddings + moves
        keys = maps.project(embeddings, maps.delta_k)  # (m', d_k)
        return maps.best(queries @ keys.T, documents)


class Candidates(NamedTuple):
    """Each question's candidates with the parts of their scores, padded to one width.

    Attributes:
        documents: (q, c), ascending, -1 where padded.
        dense: (q, c) by keys, NEVER where padded.
        examples: (q, c) by example queries, NEVER without one.
        lexical, votes, grades: (q, c), 0 where padded.
        ideal: (q,) the best possible DCG, also by relevant documents that are no candidates.
    """

    documents: Int64
    dense: Float32
    examples: Float32
    lexical: Float32
    votes: Float32
    grades: Float32
    ideal: Float64
    coverage: Float32

    def scores(
        self,
        examples: float,
        lexical: float,
        coverage: float = 0.0,
        votes: float = 0.0,
        times: Float32 | None = None,
    ) -> Float32:
        """max(dense, α·examples) + λ·coverage^γ·lexical + μ·votes + times: (q, c), NEVER or so
        where padded.

        Args:
            times: (n,) what the times of documents add; None for nothing.
        """
        scores = self.dense
        if examples > 0:
            best_example = np.maximum(scores, examples * self.examples)
            scores = np.where(self.examples > NEVER, best_example, scores)
        if lexical:
            strength = np.float32(lexical) * self.coverage ** np.float32(coverage)
            scores = scores + strength[:, None] * self.lexical
        if times is not None:
            scores = scores + times[self.documents]
        return scores + np.float32(votes) * self.votes if votes else scores

    def some(self, members: Int64) -> Candidates:
        """Return the candidates of some of the questions."""
        return Candidates._make(column[members] for column in self)

    def attendable(self, *factors: Any) -> Float64:
        """Return the scores (q, c) for a softmax, -inf where padded."""
        scores = self.scores(*factors).astype(np.float64)
        return np.where(self.documents < 0, -np.inf, scores)

    def ndcg(self, scores: Float32) -> Float64:
        """nDCG at 10 of scores (q, c): (q,)."""
        rows = np.arange(len(scores))[:, None]
        return ndcg(self.grades[rows, top_places(scores, CUT)], self.ideal)


def find_candidates(
    memory: Memory,
    fitted: Fitted,
    training: Questions,
    questions: Questions,
    among: Sequence[Bool | None] = (None,),
    *,
    hide: bool = False,
) -> list[Candidates]:
    """Return the candidates of questions, at least one, under a fit, from each set of documents.

    Args:
        training: the questions whose examples are keys.
        among: sets of documents, (n,) each; None for all.
        hide: count votes as if relevant documents had none.
    """
    queries, keys = fitted.queries(memory, questions.embeddings), fitted.keys(memory)
    stored = fitted.queries(memory, training.embeddings)
    labels = training.relevant.tocsc()
    sets_of = [np.arange(len(memory)) if one is None else np.flatnonzero(one) for one in among]
    tables: list[list[list[NDArray[Any]]]] = [[] for _ in among]
    ideals: list[list[Float64]] = [[] for _ in among]
    for part in blocks(questions.count, 4 * max(len(keys), labels.nnz)):
        dense = best(products(queries[part], keys), memory.starts[:-1])
        examples = _by_example(products(queries[part], stored), labels)
        block = questions.some(np.arange(questions.count)[part])
        others = block.lexical.toarray(), block.votes(memory, hide=hide), block.relevant.toarray()
        columns = dense, examples, *others
        if questions.left_out is not None:
            for column, blank in zip(columns, BLANKS[1:], strict=True):
                column[questions.left_out[part].nonzero()] = blank
        for there, listed, ideal in zip(sets_of, tables, ideals, strict=True):
            every = len(there) == len(memory)
            parts = columns if every else tuple(part[:, there] for part in columns)
            listed.append(_block(memory, there, *parts))
            grades = parts[-1]
            first = np.take_along_axis(grades, top_places(grades, CUT), axis=1)
            ideal.append(ideal_dcg(first))
    sets = []
    for listed, ideal in zip(tables, ideals, strict=True):
        stacks: list[Any] = [*map(stacked, zip(*listed, strict=True), BLANKS)]
        sets.append(Candidates._make([*stacks, np.concatenate(ideal), questions.coverage]))
    return sets


BLANKS = (-1, NEVER, NEVER, 0, 0, 0)
"""What the columns of `Candidates` are padded with."""


def _block(memory: Memory, there: Int64, *columns: Float32) -> list[NDArray[Any]]:
    """Return the candidates among documents (n,), with the columns (b, n) of `Candidates`.

    The newest ones, by each field with times, are candidates of every question.
    """
    *scores, _ = columns
    members = np.zeros(columns[0].shape, dtype=bool)
    for column, least in zip(scores, BLANKS[1:], strict=False):
        members |= top_mask(column, DEPTH) & (column > least)
    for ages in memory.ages.values():
        members |= top_mask(-ages[None, there], DEPTH) & (columns[0] > NEVER)
    counts, places = np.count_nonzero(members, axis=1), np.nonzero(members)
    cells = np.arange(counts.max()) < counts[:, None]
    tables: list[NDArray[Any]] = []
    parts: list[NDArray[Any]] = [there[places[1]], *(column[places] for column in columns)]
    for values, blank in zip(parts, BLANKS, strict=True):
        table = np.full(cells.shape, blank, dtype=values.dtype)
        table[cells] = values
        tables.append(table)
    return tables


def _by_example(similar: Float32, labels: Sparse) -> Float32:
    """Score documents by the most similar question that each is known to answer: (b, n).

    Args:
        similar: (b, t) the scores of the questions of training.
        labels: sparse (t, n) by column, the documents that they are known to answer.
    """
    nearest = np.full((len(similar), labels.shape[1]), NEVER, dtype=np.float32)
    counts, by_question = np.diff(labels.indptr), np.ascontiguousarray(similar.T)  # (t, b)
    # Documents with as many labels are one array: several times as fast as a reduction of runs.
    for count in np.unique(counts[counts > 0]).tolist():
        documents = np.flatnonzero(counts == count)
        places = labels.indptr[documents][:, None] + np.arange(count)
        nearest[:, documents] = by_question[labels.indices[places]].max(axis=1).T
    return nearest


def with_examples(memory: Memory, training: Questions) -> KeyTable:
    """Return a memory with questions as keys of the documents relevant to them."""
    question, document = training.relevant.nonzero()
    documents = np.concatenate([memory.documents, memory.rows[document]])
    order = np.argsort(documents, kind="stable")
    return KeyTable.of_keys(
        np.concatenate([memory.vectors, training.embeddings[question]])[order],
        np.concatenate([memory.ids, np.full(len(question), -1, dtype=np.int64)])[order],
        documents[order],
        (np.arange(len(documents)) >= len(memory.ids))[order],
    )


# -- times -----------------------------------------------------------------------------------------
# The share of questions whose answer is older by so many days falls with them as the weights do, so
# that a half-life is fitted as a scale is: by the likelihood of the relevant documents. In scores
# (logits at scale 1) it is a rate ρ, and a document that is a days older than the newest has -ρ·a.

CLEAR = 5.0
"""The least gain in log likelihood by which a half-life is tried. (By chance one in 1,300 fits to
times that say nothing has it: Wilks 1938.)"""

MOST_FIT = 1000
"""Questions to which half-lives are fitted while they are tried."""


class HalfLives:
    """The rates of fields with times, fitted before anything else is learned.

    Args:
        questions: all of them.
        start: (d_k, d), where W_Q and W_K begin.
        words: λ and γ, by which words count meanwhile.
    """

    def __init__(
        self, memory: Memory, questions: Questions, start: Float32, words: tuple[float, float]
    ) -> None:
        self._memory, self._words = memory, words
        every, random = np.arange(questions.count), np.random.default_rng(0)
        self._members = sampled(every, MOST_FIT, random)
        self._candidates: Candidates | None = None
        if memory.ages:
            members, nothing = questions.some(self._members), questions.some(every[:0])
            fitted = unlearned(memory, start)
            (self._candidates,) = find_candidates(memory, fitted, nothing, members)

    def fit(self, fold: QuestionFold) -> dict[str, Float32]:
        """Return what the times of documents (n,) add to scores, by each field that clearly counts
        for the questions that a fold learns from."""
        if self._candidates is None:
            return {}
        candidates = self._candidates.some(np.flatnonzero(fold.trained[self._members]))
        blocked = (candidates.documents >= 0) & fold.blocked[candidates.documents]
        candidates = candidates._replace(grades=np.where(blocked, 0, candidates.grades))
        rates = {
            name: fit_rate(*self.of(name, (0.0, *self._words), [candidates]), CLEAR)[0]
            for name in self._memory.ages
        }
        return {
            name: bias_of(self._memory.ages[name], rate) for name, rate in rates.items() if rate
        }

    def of(
        self, name: str, factors: Sequence[Any], sets: Sequence[Candidates]
    ) -> tuple[Float64, Float64, Float64, float]:
        """Return what the rate of a field is fitted to: see `fit_rate`.

        Args:
            factors: those of the scores of candidates, without times.
        """
        ages = self._memory.ages[name]
        return (
            stacked([one.attendable(*factors) for one in sets], -np.inf),
            stacked([ages[one.documents] for one in sets], 0),
            stacked([one.grades for one in sets], 0),
            self._memory.scale,
        )


def bias_of(ages: Float64, rate: float) -> Float32:
    """Return what ages (n,) in days add to scores: -ρ·a."""
    return (-rate * ages).astype(np.float32)
