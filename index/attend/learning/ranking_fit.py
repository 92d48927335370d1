"""The ranking objective: its loss, and the candidates of held-out questions.

W_Q, W_K and key offsets are learned from questions and relevant documents.

The loss is the cross-entropy of a softmax over documents against the grades of each question
(the listwise loss of Cao et al. 2007 with its softmax over candidates sampled, as in sampled
softmax, Jean et al. 2015). Only documents that examples label compete: nothing pushes away a
document that no example speaks of.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attend.attention import log_shares
from attend.core.arrays import best, top_mask
from attend.core.errors import InvalidRequest
from attend.core.types import Bool, Float32, Float64, Int64
from attend.learning.data import BLOCK, Memory, Questions, Sparse, ideal_dcg, products, top_places
from attend.learning.fit import Fitted, Recipe, Residual, Watch, descend, shuffled_batches
from attend.measure.statistics import CUT, ndcg

RECIPE = Recipe(
    "known documents",
    rates={"maps": 3e-3, "scale": 1.5e-2, "offsets": 1e-2},
    steps=(120, 450),
    batch=256,
)

JUDGED = 800
LABELLED = 800
"""Labelled documents drawn for each step: of those of its own questions, and beside them. More
judgements than that in a step teach little more, and take longer."""

DEPTH = 100
"""Documents taken by each of: keys, example queries as keys, words."""

NEVER = -1e9
"""The score of a document that has no key of this sort."""


class Competitors(NamedTuple):
    """Documents of one step (c,), ascending by their number of keys, and the log of the number
    that each stands for."""

    documents: Int64
    log_counts: Float32


class RankingModel:
    """Parameters, and the loss of a batch of questions."""

    def __init__(
        self,
        memory: Memory,
        questions: Questions,
        recipe: Recipe,
        start: Float32,
        *,
        seed: int,
        offsets: bool,
    ) -> None:
        self.questions, self.recipe = questions, recipe
        self.labelled = np.unique(questions.judged.indices).astype(np.int64)
        movable = memory.positions(self.labelled if offsets else self.labelled[:0])
        self.maps = Residual(memory, start, scale=memory.scale, offset_keys=movable, seed=seed)

    @property
    def parameters(self) -> dict[str, list[Any]]:
        maps = self.maps
        return {
            "maps": [maps.delta_q, maps.delta_k],
            "scale": [maps.log_scale],
            "offsets": [maps.offsets],
        }

    def loss(self, batch: Int64) -> Any:
        """Return the mean cross-entropy of some questions (b,)."""
        torch = self.maps.torch
        relevant, judged = self.questions.relevant[batch], self.questions.judged[batch]
        candidates = self.candidates(judged)
        grades = relevant[:, candidates.documents].toarray().astype(np.float32)
        answered = np.flatnonzero(grades.any(axis=1))  # all, but where the judged were sampled
        if not len(answered):
            return None
        target = torch.from_numpy(grades[answered] / grades[answered].sum(axis=1, keepdims=True))
        # A document that counts twice in the softmax is as hard to stay above as two.
        competing = np.log(np.maximum(judged[answered][:, candidates.documents].toarray(), 1))
        counts = torch.from_numpy(candidates.log_counts + competing.astype(np.float32))
        scores = self._scores(batch[answered], candidates.documents)
        return -(target * log_shares(self.maps.log_scale.exp() * scores + counts)).sum(dim=1).mean()

    def candidates(self, judged: Any) -> Competitors:
        """Draw the documents that compete in one step: of those judged, and of other labelled."""
        of_batch = np.unique(judged.indices).astype(np.int64)
        others = np.setdiff1d(self.labelled, of_batch, assume_unique=True)
        sides = self._drawn(of_batch, JUDGED), self._drawn(others, LABELLED)
        documents, counts = (np.concatenate(column) for column in zip(*sides, strict=True))
        # By the number of keys: the best keys of all documents with as many are one reduction.
        order = np.lexsort((documents, self.maps.memory.counts[documents]))
        return Competitors(documents[order], np.log(counts[order]).astype(np.float32))

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
        queries = maps.project(maps.thinned(questions, self.recipe.drop), maps.delta_q)  # (b, d_k)
        embeddings = torch.from_numpy(maps.memory.vectors[positions])
        if len(maps.offset_keys):  # without, embeddings need no gradient
            count = len(positions)
            moves = maps.moves(positions, np.arange(count), count, self.recipe.drop_offsets)
            embeddings = embeddings + moves
        keys = maps.project(embeddings, maps.delta_k)  # (m', d_k)
        return maps.best(queries @ keys.T, documents)


def fit_ranking(
    memory: Memory,
    questions: Questions,
    *,
    start: Float32,
    offsets: bool = True,
    recipe: Recipe = RECIPE,
    seed: int = 0,
    watch: Watch = lambda done: None,
) -> Fitted:
    """Learn from questions, each with at least one relevant document.

    Args:
        start: (d_k, d), where W_Q and W_K begin.
        offsets: whether the keys of labelled documents get offsets.

    Raises:
        Conflict: the loss is not finite.
    """
    if questions.count == 0:
        raise InvalidRequest("No question with a relevant document was given; teach examples.")
    model = RankingModel(memory, questions, recipe, start, seed=seed, offsets=offsets)
    steps = recipe.count_steps(math.ceil(questions.count / recipe.batch))
    members = np.arange(questions.count)
    batches = shuffled_batches(members, recipe.batch, steps, model.maps.random)
    descend(model, recipe, batches, steps, watch)
    return model.maps.fitted()


# -- candidates ------------------------------------------------------------------------------------


class Candidates(NamedTuple):
    """Each question's candidates with the parts of their scores, padded to one width.

    Attributes:
        documents: (q, c), ascending, -1 where padded.
        dense: (q, c) by keys, NEVER where padded.
        examples: (q, c) by example queries, NEVER without one.
        lexical, grades: (q, c), 0 where padded; `ideal` (q,) is the best possible DCG.
    """

    documents: Int64
    dense: Float32
    examples: Float32
    lexical: Float32
    grades: Float32
    ideal: Float64
    coverage: Float32

    def scores(self, examples: float, lexical: float, coverage: float = 0.0) -> Float32:
        """max(dense, α·examples) + λ·coverage^γ·lexical: (q, c), NEVER or so where padded."""
        return self.with_words(self.by_keys(examples), lexical, coverage)

    def by_keys(self, examples: float) -> Float32:
        """max(dense, α·examples): (q, c), NEVER where padded."""
        if examples <= 0:
            return self.dense
        there = self.examples > NEVER
        return np.where(there, np.maximum(self.dense, examples * self.examples), self.dense)

    def with_words(self, scores: Float32, lexical: float, coverage: float) -> Float32:
        """Add λ·coverage^γ·lexical to scores (q, c)."""
        if lexical == 0:
            return scores
        strength = np.float32(lexical) * self.coverage ** np.float32(coverage)
        return scores + strength[:, None] * self.lexical

    def attendable(self, examples: float, lexical: float, coverage: float) -> Float64:
        """Return the scores (q, c) for a softmax, -inf where padded."""
        scores = self.scores(examples, lexical, coverage).astype(np.float64)
        return np.where(self.documents < 0, -np.inf, scores)

    def ndcg(self, scores: Float32) -> Float64:
        """nDCG at 10 of scores (q, c): (q,)."""
        gains = np.take_along_axis(self.grades, top_places(scores, CUT), axis=1)
        return ndcg(gains, self.ideal)


def find_candidates(
    memory: Memory,
    fitted: Fitted,
    training: Questions,
    questions: Questions,
    among: Sequence[Bool | None] = (None,),
) -> list[Candidates]:
    """Return the candidates of questions, at least one, under a fit, from each set of documents.

    Args:
        training: the questions whose examples are keys.
        among: sets of documents, (n,) each; None for all.
    """
    queries, keys = fitted.queries(memory, questions.embeddings), fitted.keys(memory)
    stored = fitted.queries(memory, training.embeddings)
    labels = training.relevant.tocsc()
    step = max(1, BLOCK // (4 * max(1, len(keys), labels.nnz)))
    blocks: list[list[_Block]] = [[] for _ in among]
    for index in range(0, questions.count, step):
        part = slice(index, index + step)
        dense = best(products(queries[part], keys), memory.starts[:-1])
        examples = _by_example(products(queries[part], stored), labels)
        others = questions.lexical[part].toarray(), questions.relevant[part].toarray()
        columns = dense, examples, *others
        for documents, listed in zip(among, blocks, strict=True):
            there = np.arange(len(memory)) if documents is None else np.flatnonzero(documents)
            parts = columns if documents is None else tuple(part[:, there] for part in columns)
            listed.append(_block(there, *parts))
    return [_padded(listed, questions) for listed in blocks]


class _Block(NamedTuple):
    """The candidates of some questions, one question after the other.

    Attributes:
        counts: (b,) of each question.
        documents: (t,), ascending by question.
        columns: (t,) each, of `Candidates`.
    """

    counts: Int64
    documents: Int64
    columns: tuple[Float32, ...]


def _block(there: Int64, *columns: Float32) -> _Block:
    """Return the candidates among documents (n,) with the columns (b, n) of `Candidates`."""
    *scores, grades = columns
    members = grades > 0
    for column, least in zip(scores, (NEVER, NEVER, 0), strict=True):
        members |= top_mask(column, DEPTH) & (column > least)
    counts, places = np.count_nonzero(members, axis=1), np.nonzero(members)
    return _Block(counts, there[places[1]], tuple(column[places] for column in columns))


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


def _padded(blocks: Sequence[_Block], questions: Questions) -> Candidates:
    counts = np.concatenate([block.counts for block in blocks])
    there = np.arange(counts.max()) < counts[:, None]

    def column(parts: Sequence[NDArray[Any]], blank: float) -> Any:
        padded = np.full(there.shape, blank, dtype=parts[0].dtype)
        padded[there] = np.concatenate(parts)
        return padded

    documents = column([block.documents for block in blocks], -1)
    columns = zip(*(block.columns for block in blocks), strict=True)
    dense, examples, lexical, grades = (
        column(parts, blank) for parts, blank in zip(columns, (NEVER, NEVER, 0, 0), strict=True)
    )
    ideal = ideal_dcg(grades)
    return Candidates(documents, dense, examples, lexical, grades, ideal, questions.coverage)
