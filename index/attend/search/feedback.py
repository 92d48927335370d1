"""Feedback that moves queries: stored questions, the way to their answers, and whether it helps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from attend.api.answers import MemoryShare
from attend.attention import Softmax
from attend.core.arrays import KeyTable, top, unit
from attend.core.settings import UNTRAINED_MEMORY
from attend.core.types import Bool, Float32, Float64, Floats, Int64
from attend.store import CollectionStore

# With unit vectors q of a query, q_j of the stored questions and d_j of their answers, the query
# becomes
#
#     q + α Σ_j a_j (d_j - q_j),  a_j = exp(s cos(q, q_j)) / (exp(s t) + Σ_i exp(s cos(q, q_i)))
#
# at its own length: attention over the nearest questions, with a null logit for a query that is
# like none of them. Nothing is fitted, so that feedback counts from the first example on, also for
# documents that no example names.

SCALE = 10.0
"""s: the factor on the cosine of a query and a question."""

NULL_COSINE = 0.5
"""t: a question of this cosine and the null have the same weight."""

ABSENT = 0.6
"""The vote, of at most 1, that a document without any question counts as having: nothing speaks
against it. (NFCorpus, training queries: 0.4 loses two points of nDCG@10 on unseen documents, and
0.6 none, for half a point on known ones.)"""

NEAREST = 64
LEAST_COSINE = 0.1
"""Questions that take part, the nearest, of at least this cosine: thousands of distant ones would
outweigh the null. (Chosen with s, t and α on training queries of CoNaLa and SciFact.)"""

MOST_QUESTIONS = 4000
"""The latest questions are remembered. At 384 dimensions they take 12 MB and a millisecond of each
search, and half a second of the first one after a change."""

ASKED, FEWEST_ASKED = 1000, 100
AMONG, MOST_ANSWERS = 1000, 8
"""Stored questions that tell whether feedback helps, at most and at least; the documents from all
over the collection that compete with their answers, and the answers of each that count."""

LEAST_HELP, SURE, UNSEEN = 0.0025, 1.65, 0.15
"""Before a training feedback moves no query where its mean gain in DCG is surely below this: by so
many standard errors, and one question more that gained so much. (With 400 and more training
queries and exchanged answers: CoNaLa and NFCorpus in 75 of 76 draws, SciFact in 7 of 10, banking77
in 3 of 10; with the right ones, of 384 draws from five sets in 2.)"""

SAME_QUESTION = 0.9
"""The cosine of a question in other words, which says nothing of different ones."""

BLOCK_PAIRS = 4096
"""Pairs of a question and a document whose keys are compared at once: some 20 MB."""

BLOCK_NUMBERS = 1 << 22
"""Numbers that queries are compared in at once: some 50 MB."""

SHOWN = 10
"""Questions that an explanation names."""


@dataclass(frozen=True, eq=False)
class FeedbackMemory:
    """Stored questions, and the way from each of them to its answers.

    Attributes:
        questions: (n, d) of length one.
        moves: (n, d) from each question to the mean of the best keys of its relevant documents.
        texts: n texts; None for a question without text.
        documents: n rows of the relevant documents of each question.
        help: what the move gains stored questions, each without itself; None where not measured.
    """

    questions: Float32
    moves: Float32
    texts: Sequence[str | None]
    documents: Sequence[Int64]
    help: Float64 | None = None

    @classmethod
    def of(cls, store: CollectionStore) -> FeedbackMemory | None:
        """Read the latest questions that have a relevant document, and their answers' keys.

        Returns: None without any.
        """
        examples = store.examples()
        relevant = examples.weights > 0
        latest = np.unique(examples.questions[relevant])[-MOST_QUESTIONS:]
        relevant &= np.isin(examples.questions, latest)
        rows, questions = examples.rows[relevant], examples.questions[relevant]
        others = np.array([document.row for document in store.sample(AMONG)], dtype=np.int64)
        keys = store.own_keys(np.union1d(rows, others))
        present = np.isin(rows, keys.rows)  # a document may be without keys
        places = np.searchsorted(keys.rows, rows[present])
        labels = questions[present], places, examples.weights[relevant][present]
        memory = cls.joined(examples.embeddings, examples.texts, labels, keys)
        return memory and replace(memory, help=memory.gains(keys, others, UNTRAINED_MEMORY))

    @classmethod
    def joined(
        cls,
        embeddings: Float32,
        texts: Sequence[str | None],
        labels: tuple[Int64, Int64, Float64],
        keys: KeyTable,
    ) -> FeedbackMemory | None:
        """Join questions (q, d) to the keys of documents that are relevant to them.

        Args:
            labels: of each label (e,) the positions of its question and of its document among the
                keys, and its weight, above zero.

        Returns: None without any label.
        """
        order = np.argsort(labels[0], kind="stable")
        numbers, places, weights = labels[0][order], labels[1][order], labels[2][order]
        if not len(order):
            return None
        numbers, begins, owners = np.unique(numbers, return_index=True, return_inverse=True)
        questions = unit(embeddings[numbers])
        moves = np.empty_like(questions)
        ends = np.append(begins[1:], len(order))
        first = 0
        while first < len(numbers):  # in blocks, as many pairs have many keys
            last = max(first + 1, int(np.searchsorted(ends, begins[first] + BLOCK_PAIRS)))
            block = slice(begins[first], ends[last - 1])
            pairs = _best_keys(questions, owners[block], places[block], keys)
            starts, shares = begins[first:last] - begins[first], weights[block]
            sums = np.add.reduceat(pairs * shares[:, None], starts)
            answers = sums / np.add.reduceat(shares, starts)[:, None]
            moves[first:last] = answers - questions[first:last]
            first = last
        names = [texts[number] for number in numbers.tolist()]
        return cls(questions, moves, names, np.split(keys.rows[places], begins[1:]))

    def gains(self, keys: KeyTable, others: Int64, strength: float) -> Float64:
        """Return what the move adds to the mean DCG of the answers of stored questions.

        Each is asked without itself and the same in other words. What the null mostly keeps in
        its place tells nothing, and is left out.

        Args:
            keys: those of all answers, and of others.
            others: the rows of the documents that the answers are ranked among.
        """
        sample = np.unique(np.linspace(0, len(self.questions) - 1, ASKED, dtype=np.int64))
        blocks = self._blocks(self.questions[sample])
        weights = np.concatenate([self.nearest(block, apart=True)[1] for block in blocks])
        sample = sample[weights.sum(axis=1) > 0.5]
        if not len(sample):
            return np.empty(0)
        questions, answers = self.questions[sample], [self.documents[place] for place in sample]
        rivals = keys.some(keys.places(others))
        excluded = np.stack([np.isin(rivals.rows, rows) for rows in answers])
        counts = np.array([len(rows[:MOST_ANSWERS]) for rows in answers])
        owners = np.repeat(np.arange(len(sample)), counts)
        rows = np.concatenate([rows[:MOST_ANSWERS] for rows in answers])
        places = np.searchsorted(keys.rows, rows)

        def dcg(queries: Float32) -> Float64:
            best = _best_keys(queries, owners, places, keys)
            scores = np.where(excluded, -2, rivals.best(queries @ unit(rivals.vectors).T))
            above = scores[owners] > np.einsum("ed,ed->e", best, queries[owners])[:, None]
            return np.asarray(np.bincount(owners, 1 / np.log2(2 + above.sum(axis=1))) / counts)

        return dcg(self.moved(questions, strength, apart=True)) - dcg(questions)

    @cached_property
    def helps(self) -> bool:
        """False where stored questions say that feedback gains hardly anything, or loses."""
        if self.help is None or len(self.help) < FEWEST_ASKED:
            return True
        gains = np.append(self.help, UNSEEN)
        return bool(gains.mean() + SURE * gains.std() / np.sqrt(len(gains)) >= LEAST_HELP)

    def nearest(self, queries: Floats, *, apart: bool = False) -> tuple[Int64, Float64]:
        """Return the questions that queries (q, d) attend to.

        Args:
            apart: without those that are the same in other words.

        Returns: (q, m) positions of the questions, best first, and their weights; 0 for those that
            are too far off. The null has the rest.
        """
        cosines = unit(queries) @ self.questions.T  # (q, d) @ (d, n) -> (q, n)
        if apart:
            cosines[cosines > SAME_QUESTION] = -1
        places = top(cosines, NEAREST)
        logits = SCALE * np.take_along_axis(cosines, places, axis=1)
        logits = np.where(logits < SCALE * LEAST_COSINE, -np.inf, logits)
        null = np.full(len(logits), SCALE * NULL_COSINE)
        return places, Softmax.of(logits, null).weights

    @cached_property
    def answers(self) -> tuple[Int64, list[Int64]]:
        """The rows of all relevant documents (l,), ascending, and each question's places there."""
        rows, places = np.unique(np.concatenate(self.documents), return_inverse=True)
        return rows, np.split(places, np.cumsum([*map(len, self.documents)])[:-1])

    def votes(self, queries: Floats, hidden: Bool | None = None) -> Float32:
        """Return how the questions that queries (q, d) attend to vote for `answers`: (q, l).

        A question divides its weight by the root of the number of its answers. The best document
        has 1, times the weight that the null leaves; ABSENT is subtracted.

        Args:
            hidden: (q, l) documents that get no vote.
        """
        (rows, by_question), (places, shares) = self.answers, self.nearest(queries)
        votes = np.zeros((len(queries), len(rows)), dtype=np.float32)
        for query, (near, weights) in enumerate(zip(places.tolist(), shares, strict=True)):
            answers = [by_question[place] for place in near]
            counts = np.array([*map(len, answers)])
            shared = np.repeat(weights / np.sqrt(counts), counts)
            votes[query] = np.bincount(np.concatenate(answers), shared, len(rows))
        if hidden is not None:
            votes[hidden] = 0
        most = np.maximum(votes.max(axis=1, keepdims=True), np.finfo(np.float32).tiny)
        attended = shares.sum(axis=1)[:, None]
        return np.asarray(attended * (votes / most - ABSENT), dtype=np.float32)

    def moved(self, queries: Float32, strength: float, *, apart: bool = False) -> Float32:
        """Return queries (q, d) moved by feedback, at their own lengths.

        Args:
            strength: α.
            apart: by other questions than those that are the same in other words.
        """
        moved = [self._moved(block, strength, apart) for block in self._blocks(queries)]
        return np.concatenate([queries[:0], *moved])

    def _blocks(self, queries: Float32) -> list[Float32]:
        step = max(1, BLOCK_NUMBERS // (len(self.questions) + NEAREST * queries.shape[1]))
        return [queries[start : start + step] for start in range(0, len(queries), step)]

    def _moved(self, queries: Float32, strength: float, apart: bool) -> Float32:
        places, shares = self.nearest(queries, apart=apart)
        moves = np.einsum("qm,qmd->qd", shares.astype(np.float32), self.moves[places])
        towards = unit(unit(queries) + np.float32(strength) * moves)
        lengths = np.linalg.norm(queries, axis=1)[:, None]
        # A query that is like no question stays as it is, to the last bit.
        stays = shares.max(axis=1)[:, None] == 0
        return np.where(stays, queries, towards * lengths).astype(np.float32)

    def explained(
        self, store: CollectionStore, before: Float32, after: Float32
    ) -> list[MemoryShare]:
        """Return the questions that moved some queries (q, d) together, with their shares."""
        moves = (before != after).any(axis=1)
        if not moves.any():
            return []
        places, by_query = self.nearest(before[moves])
        shares = np.bincount(places.ravel(), by_query.ravel()) / len(places)  # their mean
        best = [place for place in top(shares, SHOWN).tolist() if shares[place]]
        rows = np.unique(np.concatenate([self.documents[place] for place in best]))
        ids = {row: document.id for row, document in store.documents(rows, texts=False).items()}
        return [
            MemoryShare(
                self.texts[place],
                [ids[row] for row in self.documents[place].tolist() if row in ids],
                float(shares[place]),
            )
            for place in best
        ]


def _best_keys(questions: Float32, owners: Int64, places: Int64, keys: KeyTable) -> Float32:
    """Return the nearest key (e, d) of each pair of a question and a document, at length one."""
    pairs = np.repeat(np.arange(len(places)), keys.counts[places])
    vectors = unit(keys.vectors[keys.positions(places)])
    cosines = np.einsum("kd,kd->k", vectors, questions[owners[pairs]])
    ranked = np.lexsort((-cosines, pairs))
    nearest: Float32 = vectors[ranked[np.flatnonzero(np.diff(pairs[ranked], prepend=-1))]]
    return nearest
