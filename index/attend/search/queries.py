"""Queries on their way to a snapshot: embeddings, moved by stored feedback, and BM25 scores."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from attend.api.answers import MemoryShare
from attend.api.search import Query, QueryPart, SearchRequest
from attend.attention import Softmax
from attend.collection.versions import View
from attend.core.arrays import KeyTable, locate, top, unit
from attend.core.deadline import limits
from attend.core.errors import InvalidRequest, KeylessDocuments, UnknownDocument
from attend.core.settings import DEFAULT_COVERAGE, DEFAULT_LEXICAL, Settings, Tuning
from attend.core.types import Bool, Float32, Float64, Floats, Int64
from attend.encoder import Encoder
from attend.recommend.weights import PartScores
from attend.store import CollectionStore
from attend.write.ingest import as_embedding

CHARACTERS = 100
"""Characters of text that cost about what searching for one more query does."""

NO_DIRECTION = 1e-6
"""Length of a blend of unit vectors below which only rounding is left."""


T = TypeVar("T")


class Queries(NamedTuple):
    """Queries of one search, which share their options.

    Attributes:
        embeddings: (q, d); of a mixture, its parts (p, d), of which each attends by itself.
        words: the BM25 scores of each embedding; None where they do not count.
        parts: (p,) the weights of the parts of a mixture, summing to one; None for other queries.
        items: the item weights of the parts of a history; None without any.
        before: the embeddings before feedback moved them, and the `memory` that did; None where
            none did.
        votes: what feedback adds to the words of each embedding; None where it does not vote.
        examples: the ids of the keys of example queries; None where no second layer asks for them.
        texts: for each embedding the texts behind it with their shares; empty for vectors and
            documents.
        rows: (q) the document that each embedding is of; -1 for a blend with documents, 0 for
            others.
        made_of: rows of all documents that the queries are made of, ascending.
    """

    embeddings: Float32
    words: Sequence[WordScores] | None = None
    parts: Float64 | None = None
    items: PartScores | None = None
    before: Float32 | None = None
    memory: FeedbackMemory | None = None
    votes: Sequence[WordScores] | None = None
    examples: Int64 | None = None
    texts: tuple[tuple[tuple[str, float], ...], ...] = ()
    rows: tuple[int, ...] = ()
    made_of: tuple[int, ...] = ()

    def some(self, part: slice) -> Queries:
        """Return some of the queries, as they attend."""
        words = None if self.words is None else self.words[part]
        before = None if self.before is None else self.before[part]
        votes = None if self.votes is None else self.votes[part]
        embeddings = self.embeddings[part]
        return self._replace(embeddings=embeddings, words=words, before=before, votes=votes)

    @classmethod
    def joined(cls, queries: Sequence[Queries]) -> Queries:
        """Return encoded queries as one batch; a mixture is in a batch of its own."""
        return cls(
            np.concatenate([query.embeddings for query in queries]),
            texts=tuple([texts for query in queries for texts in query.texts]),
            rows=tuple([row for query in queries for row in query.rows]),
            made_of=tuple(sorted({row for query in queries for row in query.made_of})),
        )


@dataclass(slots=True)
class Search:
    """A request on its way to its answer.

    Attributes:
        parts: of its query.
        started: by `time.perf_counter`.
        query: its embeddings, once they are known.
    """

    request: SearchRequest
    parts: Sequence[QueryPart]
    started: float
    query: Queries | None = None

    def common_options(self) -> Hashable:
        """Return what searches that are answered together have in common."""
        request = self.request
        # Without text there are no words, and what was fitted with them does not fit.
        worded = any(part.text and part.weight > 0 for part in self.parts)
        masked = [part.id for part in self.parts if part.id and request.exclude_self]
        # A mixture has heads of its own: nothing is answered together with it.
        alone = None if request.query.mixture is None else object()
        names = sorted(request.model_fields_set - {"query"})
        options = repr([getattr(request, name) for name in names])
        # One of several callers reads for all of them, within its own limit.
        return worded, tuple(masked), alone, limits.most, tuple(names), options

    @staticmethod
    def cost(searches: Sequence[Search]) -> int:
        """Return the cost of searches, as a number of queries by vector."""
        texts = [part.text for search in searches for part in search.parts if part.text]
        return len(searches) + sum(map(len, texts)) // CHARACTERS


class QueryEncoder:
    """Turns queries of one collection into embeddings."""

    def __init__(
        self, store: CollectionStore, settings: Settings, encoder: Callable[[], Encoder]
    ) -> None:
        self.dimension = settings.dimension
        self.takes_text = settings.encoder is not None
        self._store, self._settings, self._load = store, settings, encoder
        self._encoder: Encoder | None = None

    def token_encoder(self, option: str) -> Encoder:
        """Return the encoder of the collection, to read the tokens of texts.

        Args:
            option: the field of the request that needs it.

        Raises:
            InvalidRequest: the collection has vectors without an encoder.
        """
        if not self.takes_text:
            raise InvalidRequest(
                f"{option} compares the tokens of texts, but this collection was made for vectors "
                f"and has no encoder; leave {option} out.",
                field=option.partition("=")[0],
            )
        return self._load()

    def encode_searches(self, searches: Sequence[Search]) -> Queries:
        """Encode the queries that are not encoded yet, and return those of all searches."""
        pending = [search for search in searches if search.query is None]
        if pending:
            queries = [search.request.query for search in pending]
            fresh = self.encode(queries, [search.parts for search in pending])
            for search, query in zip(pending, fresh, strict=True):
                search.query = query
        encoded = [search.query for search in searches if search.query]
        return encoded[0] if len(encoded) == 1 else Queries.joined(encoded)

    def encode(
        self, queries: Sequence[Query], parts: Sequence[Sequence[QueryPart]] | None = None
    ) -> list[Queries]:
        """Encode queries; all texts among them go to the encoder in one call.

        Args:
            parts: those of each query, where they are known already.

        Raises:
            UnknownDocument: a query names a document that is not there.
            InvalidRequest: a text where there is no encoder, or a blend without a direction.
        """
        by_query = [query.parts() for query in queries] if parts is None else parts
        every = [part for query_parts in by_query for part in query_parts]
        ids = [part.id for part in every if part.id is not None]
        rows = rows_by_id(self._store, ids, "query") if ids else {}
        texts = {n: part.text for n, part in enumerate(every) if part.text and not part.vector}
        if texts and not self.takes_text:
            raise InvalidRequest(
                f"The query is text, but this collection was made for vectors of "
                f"{self._settings.dimension} dimensions; send such a vector, with a text or alone.",
                field="query",
            )
        embeddings = np.empty((len(every), self._settings.dimension), dtype=np.float32)
        if texts:
            if self._encoder is None:
                self._encoder = self._load()
            embeddings[list(texts)] = self._encoder.encode_queries(list(texts.values()))
        by_place = {place: rows[part.id] for place, part in enumerate(every) if part.id is not None}
        if by_place:
            embeddings[list(by_place)] = self.embed_documents(np.array(list(by_place.values())))
        try:
            for place, part in enumerate(every):
                if part.vector is not None:
                    embeddings[place] = as_embedding(part.vector, self._settings)
        except InvalidRequest as error:
            error.field = "query"  # the vector of a document has another place
            raise
        ends = np.cumsum([len(query_parts) for query_parts in by_query])
        split = zip(queries, by_query, np.split(embeddings, ends[:-1]), strict=True)
        return [self._encoded(query, its, part, rows) for query, its, part in split]

    def embed_documents(self, rows: Int64) -> Float32:
        """Return documents as queries (n, d): the mean of their keys, at the usual length.

        Raises:
            KeylessDocuments: some have neither text nor a vector.
            UnknownDocument: one of them was deleted meanwhile.
        """
        if not len(rows):
            return np.empty((0, self._settings.dimension), dtype=np.float32)
        keys = self._store.own_keys(np.unique(rows))
        if not np.isin(rows, keys.rows).all():
            keyless = self._store.documents(np.setdiff1d(rows, keys.rows), texts=False)
            if keyless:
                raise KeylessDocuments([document.id for document in keyless.values()], [*keyless])
            sentence = "A document of the query was deleted meanwhile; send the query without it."
            raise UnknownDocument(sentence, field="query")
        means = np.asarray(keys.means(), dtype=np.float32)
        queries: Float32 = self.unit(means)[np.searchsorted(keys.rows, rows)]
        return queries

    def unit(self, embeddings: Float32) -> Float32:
        """Scale embeddings (..., d) to length one where this collection's have it."""
        if not self._settings.unit_embeddings:
            return embeddings
        return unit(embeddings)

    def _encoded(
        self, query: Query, parts: Sequence[QueryPart], embeddings: Float32, rows: Mapping[str, int]
    ) -> Queries:
        by_part = tuple([0 if part.id is None else rows[part.id] for part in parts])
        made_of = tuple(sorted({row for row in by_part if row}))
        # What pushes away has no words.
        texts = [(part.text, part.weight) for part in parts if part.text and part.weight > 0]
        if query.mixture is not None:
            by_embedding = tuple(((part.text, 1.0),) if part.text else () for part in parts)
            weights = np.array([part.weight for part in parts])
            mixture = Queries(embeddings, parts=weights, texts=by_embedding)
            return mixture._replace(rows=by_part, made_of=made_of)
        if len(parts) == 1 and parts[0].weight == 1:
            return Queries(embeddings, texts=(tuple(texts),), rows=by_part, made_of=made_of)
        blend = np.array([part.weight for part in parts]) @ embeddings.astype(np.float64)  # (d,)
        if self._settings.unit_embeddings:
            length = float(np.linalg.norm(blend))
            if length < NO_DIRECTION:
                raise InvalidRequest(
                    "The parts of the blend cancel each other out, so that it has no direction; "
                    "give other weights.",
                    field="query",
                )
            blend = blend / length
        row = by_part if len(by_part) == 1 else (-1 if made_of else 0,)
        one = blend.astype(np.float32)[None]
        return Queries(one, texts=(tuple(texts),), rows=row, made_of=made_of)


def rows_by_id(store: CollectionStore, ids: Sequence[str], field: str) -> dict[str, int]:
    """Return rows by id.

    Raises:
        UnknownDocument: naming the first that is not there.
    """
    if not ids:
        return {}
    documents = store.find(ids)
    unknown = [id for id in ids if id not in documents]
    if unknown:
        more = f" (nor {len(unknown) - 1} others)" if len(unknown) > 1 else ""
        raise UnknownDocument(
            f"The {field} names {unknown[0]!r}{more}, and no document has that id; "
            f"correct it or leave it out.",
            field=field,
        )
    return {id: document.row for id, document in documents.items()}


# -- words ----------------------------------------------------------------------------------


class WordScores(NamedTuple):
    """BM25 terms of one query, for the documents that share a word with it.

    Attributes:
        rows: (n,) documents, ascending.
        scores: (n,) λ · c(q) · lex(d), on the scorer's scale, from above 0 to λ.
        terms: the query's words that were looked up.
    """

    rows: Int64
    scores: Float64
    terms: tuple[str, ...]

    def of(self, documents: Int64) -> Float64:
        """Return the scores (m,) of documents (m,) in any order; 0 without a shared word."""
        if not len(self.rows):
            return np.zeros(len(documents))
        places, present = locate(self.rows, documents)
        return np.where(present, self.scores[places], 0.0)

    def among(self, rows: Int64 | None) -> WordScores:
        """Leave out the documents that a filter holds back; the scores stay as they are."""
        if rows is None:
            return self
        passing = locate(rows, self.rows).present
        return WordScores(self.rows[passing], self.scores[passing], self.terms)

    def best(self, count: int) -> tuple[Int64, float]:
        """Return the `count` documents of the largest scores, and the largest score beyond."""
        if len(self.rows) <= count:
            return self.rows, 0.0
        order = top(self.scores, count + 1)
        # Without a word the score is 0, and votes may be below that.
        return self.rows[order[:-1]], max(0.0, float(self.scores[order[-1]]))


NO_WORDS = WordScores(np.empty(0, dtype=np.int64), np.empty(0), ())


def word_weight(option: bool | float | None, tuning: Tuning) -> tuple[float, float]:
    """Return λ and γ of the term λ · c(q) · lex(d), c(q) = (maximum / ideal) ** γ.

    Args:
        option: the λ of a request; True for the default, None for that of the version.
    """
    if option is None:
        return (tuning.lexical, tuning.coverage) if tuning.lexical else (0.0, 0.0)
    if option is True:
        return DEFAULT_LEXICAL, DEFAULT_COVERAGE
    if not option:
        return 0.0, 0.0
    return float(option), tuning.coverage if tuning.lexical else DEFAULT_COVERAGE


def score_words(
    store: CollectionStore,
    texts: Sequence[Sequence[tuple[str, float]]],
    option: bool | float | None,
    tuning: Tuning,
) -> list[WordScores] | None:
    """Return the BM25 scores of each embedding; None where words do not count.

    Args:
        texts: for each embedding the texts behind it, each with its share.
        option: how much words count; None for the version's own weight.
    """
    if not any(texts) or not (option or (option is None and tuning.lexical)):
        return None
    weight, coverage = word_weight(option, tuning)
    weighted = []
    for matches in store.lexical_many([text for pairs in texts for text, _ in pairs]):
        words = NO_WORDS._replace(terms=matches.terms)
        if len(matches.rows) and matches.maximum > 0:
            # Sums over the same words in another order: they may differ in the last bit.
            covered = min(1.0, matches.maximum / matches.ideal) ** coverage
            scores = weight * covered * matches.scores / matches.maximum
            words = WordScores(matches.rows, scores, matches.terms)
        weighted.append(words)
    every = iter(weighted)
    return [_joined([(next(every), share) for _, share in pairs]) for pairs in texts]


def _joined(parts: Sequence[tuple[WordScores, float]]) -> WordScores:
    """Return the scores of several texts, each with its share, as those of one query."""
    if not parts:
        return NO_WORDS
    if len(parts) == 1 and parts[0][1] == 1:
        return parts[0][0]
    every = np.concatenate([words.rows for words, _ in parts])
    rows, places = np.unique(every, return_inverse=True)
    shares = np.concatenate([words.scores * share for words, share in parts])
    scores = np.bincount(places, shares, len(rows)).astype(np.float64)
    terms = dict.fromkeys(term for words, _ in parts for term in words.terms)
    return WordScores(rows, scores, tuple(terms))


# -- feedback -------------------------------------------------------------------------------

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
search, and a quarter of a second of the first one after a change."""

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
        examples = store.examples()
        relevant = examples.weights > 0
        latest = np.unique(examples.questions[relevant])[-MOST_QUESTIONS:]
        relevant &= np.isin(examples.questions, latest)
        rows, questions = examples.rows[relevant], examples.questions[relevant]
        keys = store.own_keys(np.unique(rows))
        present = np.isin(rows, keys.rows)  # a document may be without keys
        places = np.searchsorted(keys.rows, rows[present])
        labels = questions[present], places, examples.weights[relevant][present]
        return cls.joined(examples.embeddings, examples.texts, labels, keys)

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

    def nearest(self, queries: Floats) -> tuple[Int64, Float64]:
        """Return the questions that queries (q, d) attend to.

        Returns: (q, m) positions of the questions, best first, and their weights; 0 for those that
            are too far off. The null has the rest.
        """
        cosines = unit(queries) @ self.questions.T  # (q, d) @ (d, n) -> (q, n)
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


class ByExamples(Generic[T]):
    """What is read of the examples of one collection, again only where these have changed."""

    def __init__(self, store: CollectionStore, read: Callable[[], T | None]) -> None:
        self._store, self._read, self._lock = store, read, threading.Lock()
        # The state of the collection that was asked for last, and what was read of its examples.
        self._latest: tuple[int, tuple[tuple[int, ...] | None, T | None] | None] = (-1, None)

    def of(self, change: int) -> T | None:
        """Return what there is in a state of the collection; None without an example."""
        latest, read = self._latest
        if latest == change and read is not None:
            return read[1]
        with self._lock, self._store.reading():
            state, (_, before) = self._store.example_state(), self._latest
            if before is None or before[0] != state:
                before = state, self._read() if state and state[0] else None
            self._latest = change, before
            return before[1]


class FeedbackReader:
    """Reads the feedback of one collection: its memory, and the keys that it adds."""

    def __init__(self, store: CollectionStore) -> None:
        self._memory = ByExamples(store, lambda: FeedbackMemory.of(store))
        self._keys = ByExamples(store, store.example_keys)

    def queries(
        self,
        query: Queries,
        words: Sequence[WordScores] | None,
        view: View,
        strength: float | None,
    ) -> Queries:
        """Return queries as a version asks them: documents by its terms, others moved by feedback.

        Args:
            words: the BM25 scores of each embedding.
            strength: α; that of the version if None.
        """
        version, embeddings = view.version, query.embeddings
        if version.examples and version.tuning.layer:
            query = query._replace(examples=self._keys.of(view.change))
        if version.terms:
            embeddings = version.asking(embeddings, np.array(query.rows, dtype=np.int64))
        strength = version.memory if strength is None else strength
        if strength:
            memory = self._memory.of(view.change)
            asks = np.array(query.rows) == 0  # a document that asks is no question
            if memory is not None and asks.any():
                after = np.where(asks[:, None], memory.moved(embeddings, strength), embeddings)
                moved = query._replace(before=embeddings, embeddings=after, memory=memory)
                share = version.tuning.votes
                if not share or query.parts is not None:
                    return moved._replace(words=words)
                rows = memory.answers[0]
                votes = [
                    WordScores(rows, share * vote, ()) if asking else NO_WORDS
                    for asking, vote in zip(asks, memory.votes(embeddings), strict=True)
                ]
                pairs = zip(words or [NO_WORDS] * len(votes), votes, strict=True)
                both = [_joined([(scores, 1.0) for scores in pair]) for pair in pairs]
                return moved._replace(words=both, votes=votes)
        return query._replace(embeddings=embeddings, words=words)
