"""The memory of feedback: stored questions move a query towards where their answers lie.

With unit vectors q of a query, q_j of the stored questions and d_j of their answers, the query
becomes

    q + α Σ_j a_j (d_j − q_j),  a_j = exp(s cos(q, q_j)) / (exp(s t) + Σ_i exp(s cos(q, q_i)))

at its own length: attention over the nearest questions, with a null logit for a query that is like
none of them. Nothing is fitted, so that feedback counts from the first example on, also for
documents that no example names.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from attend.api.answers import MemoryShare
from attend.attention import Softmax
from attend.core.arrays import KeyTable, top, unit
from attend.core.types import Float32, Float64, Floats, Int64
from attend.search.queries import EncodedQuery, WordScores
from attend.store import CollectionStore, ExampleSet

SCALE = 10.0
"""s: the factor on the cosine of a query and a question."""

NULL_COSINE = 0.5
"""t: a question of this cosine and the null have the same weight."""

NEAREST = 64
LEAST_COSINE = 0.1
"""Questions that take part, the nearest, of at least this cosine: thousands of distant ones would
outweigh the null. (Chosen with s, t and α on training queries of CoNaLa and SciFact.)"""

MOST_QUESTIONS = 4000
"""The latest questions are remembered. At 384 dimensions they take 12 MB and a millisecond of each
search, and a quarter of a second of the first one after a change."""

NEVER = -1
"""No state of a collection."""

BLOCK_PAIRS = 4096
"""Pairs of a question and a document whose keys are compared at once: some 20 MB."""

BLOCK_NUMBERS = 1 << 22
"""Numbers that queries are compared in at once: some 50 MB."""

SHOWN = 10
"""Questions that an explanation names."""


class Labels(NamedTuple):
    """Pairs of a question and a document that is relevant to it."""

    questions: Int64
    """(e,) positions of the questions."""
    places: Int64
    """(e,) positions of the documents in a table of keys."""
    weights: Float64
    """(e,) above zero."""


class NearestQuestions(NamedTuple):
    """The questions that some queries attend to."""

    places: Int64
    """(q, m) positions of the questions, best first."""
    shares: Float64
    """(q, m) their weights; 0 for those that are too far off. The null has the rest."""


@dataclass(frozen=True, eq=False)
class FeedbackMemory:
    """Stored questions, and the way from each of them to its answers.

    Attributes:
        questions: (n, d) of length one.
        moves: (n, d) from each question to the mean of the best keys of its relevant documents.
        texts: n texts; None for a question without text.
        documents: n rows of the relevant documents of each question.
    """

    questions: Float32
    moves: Float32
    texts: Sequence[str | None]
    documents: Sequence[Int64]

    @classmethod
    def of(cls, store: CollectionStore) -> FeedbackMemory | None:
        """Read the latest questions that have a relevant document, and their answers' keys.

        Returns: None without any.
        """
        examples = _latest_relevant(store.examples())
        keys = store.own_keys(np.unique(examples.rows))
        present = np.isin(examples.rows, keys.rows)  # a document may be without keys
        places = np.searchsorted(keys.rows, examples.rows[present])
        labels = Labels(examples.questions[present], places, examples.weights[present])
        return cls.joined(examples.embeddings, examples.texts, labels, keys)

    @classmethod
    def joined(
        cls, embeddings: Float32, texts: Sequence[str | None], labels: Labels, keys: KeyTable
    ) -> FeedbackMemory | None:
        """Join questions (q, d) to the keys of documents by their labels.

        Returns: None without any label.
        """
        order = np.argsort(labels.questions, kind="stable")
        labels = Labels(labels.questions[order], labels.places[order], labels.weights[order])
        if not len(order):
            return None
        numbers, begins, owners = np.unique(
            labels.questions, return_index=True, return_inverse=True
        )
        questions = unit(embeddings[numbers])
        moves = np.empty_like(questions)
        ends = np.append(begins[1:], len(order))
        first = 0
        while first < len(numbers):  # in blocks, as many pairs have many keys
            last = max(first + 1, int(np.searchsorted(ends, begins[first] + BLOCK_PAIRS)))
            block = slice(begins[first], ends[last - 1])
            pairs = _best_keys(questions, owners[block], labels.places[block], keys)
            starts, weights = begins[first:last] - begins[first], labels.weights[block]
            sums = np.add.reduceat(pairs * weights[:, None], starts)
            answers = sums / np.add.reduceat(weights, starts)[:, None]
            moves[first:last] = answers - questions[first:last]
            first = last
        names = [texts[number] for number in numbers.tolist()]
        return cls(questions, moves, names, np.split(keys.rows[labels.places], begins[1:]))

    def nearest(self, queries: Floats) -> NearestQuestions:
        """Return the questions that queries (q, d) attend to."""
        cosines = unit(queries) @ self.questions.T  # (q, d) @ (d, n) -> (q, n)
        places = top(cosines, NEAREST)
        logits = SCALE * np.take_along_axis(cosines, places, axis=1)
        logits = np.where(logits < SCALE * LEAST_COSINE, -np.inf, logits)
        null = np.full(len(logits), SCALE * NULL_COSINE)
        return NearestQuestions(places, Softmax.of(logits, null).weights)

    def moved(self, queries: Float32, strength: float) -> Float32:
        """Return queries (q, d) moved by feedback, at their own lengths.

        Args:
            strength: α.
        """
        step = max(1, BLOCK_NUMBERS // (len(self.questions) + NEAREST * queries.shape[1]))
        blocks = [queries[start : start + step] for start in range(0, len(queries), step)]
        return np.concatenate([queries[:0], *(self._moved(block, strength) for block in blocks)])

    def _moved(self, queries: Float32, strength: float) -> Float32:
        places, shares = self.nearest(queries)
        moves = np.einsum("qm,qmd->qd", shares.astype(np.float32), self.moves[places])
        towards = unit(unit(queries) + np.float32(strength) * moves)
        lengths = np.linalg.norm(queries, axis=1)[:, None]
        # A query that is like no question stays as it is, to the last bit.
        stays = shares.max(axis=1)[:, None] == 0
        return np.where(stays, queries, towards * lengths).astype(np.float32)


def _best_keys(questions: Float32, owners: Int64, places: Int64, keys: KeyTable) -> Float32:
    """Return the nearest key (e, d) of each pair of a question and a document, at length one."""
    pairs = np.repeat(np.arange(len(places)), keys.counts[places])
    vectors = unit(keys.vectors[keys.positions(places)])
    cosines = np.einsum("kd,kd->k", vectors, questions[owners[pairs]])
    ranked = np.lexsort((-cosines, pairs))
    nearest: Float32 = vectors[ranked[np.flatnonzero(np.diff(pairs[ranked], prepend=-1))]]
    return nearest


class MovedQueries(NamedTuple):
    """Queries that feedback has moved.

    Attributes:
        before: (q, d) the embeddings as they were.
        after: (q, d) the embeddings as they are searched.
    """

    memory: FeedbackMemory
    before: Float32
    after: Float32

    def explained(self, store: CollectionStore, query: int | None) -> list[MemoryShare]:
        """Return the questions that moved a query most, with their shares.

        Args:
            query: its number; None for all together, the parts of one mixture.
        """
        part = slice(None) if query is None else slice(query, query + 1)
        moves = (self.before[part] != self.after[part]).any(axis=1)
        if not moves.any():
            return []
        places, by_query = self.memory.nearest(self.before[part][moves])
        shares = np.bincount(places.ravel(), by_query.ravel()) / len(places)  # their mean
        best = [place for place in top(shares, SHOWN).tolist() if shares[place]]
        rows = np.unique(np.concatenate([self.memory.documents[place] for place in best]))
        ids = {row: document.id for row, document in store.documents(rows, texts=False).items()}
        return [
            MemoryShare(
                self.memory.texts[place],
                [ids[row] for row in self.memory.documents[place].tolist() if row in ids],
                float(shares[place]),
            )
            for place in best
        ]


class Queries(NamedTuple):
    """Queries of one search, which share their options.

    Attributes:
        embeddings: (q, d); of a mixture, its parts (p, d).
        words: the BM25 scores of each embedding, or item weights of the parts of a history; None
            where neither counts.
        parts: (p,) the weights of the embeddings where they are parts of one mixture.
        moved: the embeddings before and after feedback moved them; None where none did.
    """

    embeddings: Float32
    words: Sequence[WordScores] | Any = None
    parts: Float64 | None = None
    moved: MovedQueries | None = None


class _Read(NamedTuple):
    """A memory, and the states of the collection and of its examples that it was read in."""

    change: int
    state: tuple[int, ...] | None
    memory: FeedbackMemory | None


class FeedbackReader:
    """Reads the memory of one collection's feedback, again only where examples have changed.

    Attributes:
        idle: the state of the collection in which none was stored, as last looked at.
    """

    def __init__(self, store: CollectionStore) -> None:
        self.idle = NEVER
        self._store = store
        self._latest = _Read(NEVER, None, None)
        self._lock = threading.Lock()

    def moved(
        self, query: EncodedQuery, embeddings: Float32, change: int, strength: float
    ) -> MovedQueries | None:
        """Return queries (q, d) moved by what is stored now; None where nothing moves them.

        Args:
            change: the state of the collection that is searched.
            strength: α.
        """
        asks = np.array(query.rows) == 0  # a document that asks is no question
        latest = self._latest
        if latest.change != change:
            latest = self._read(change)
        if latest.memory is None or not asks.any():
            return None
        after = np.where(asks[:, None], latest.memory.moved(embeddings, strength), embeddings)
        return MovedQueries(latest.memory, embeddings, after)

    def _read(self, change: int) -> _Read:
        with self._lock, self._store.reading():
            latest, state = self._latest, self._store.example_state()
            memory = latest.memory
            if state != latest.state:
                memory = FeedbackMemory.of(self._store) if state and state[0] else None
            self._latest = _Read(change, state, memory)
            self.idle = change if memory is None else NEVER
            return self._latest


def _latest_relevant(examples: ExampleSet) -> ExampleSet:
    """Leave out labels that are not above zero, and all but the latest questions."""
    relevant = examples.weights > 0
    latest = np.unique(examples.questions[relevant])[-MOST_QUESTIONS:]
    stays = relevant & np.isin(examples.questions, latest)
    return examples._replace(
        **{
            name: getattr(examples, name)[stays]
            for name in ("questions", "rows", "weights", "positions", "ids")
        }
    )
