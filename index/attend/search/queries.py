"""Queries on their way to a snapshot: embeddings, moved by stored feedback, and BM25 scores."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, NamedTuple, TypeVar

import numpy as np

from attend.api.search import Query, QueryPart, Recency, SearchRequest
from attend.collection.versions import Version, View
from attend.core.arrays import locate, top, unit
from attend.core.deadline import limits
from attend.core.errors import InvalidRequest, KeylessDocuments, UnknownDocument
from attend.core.settings import (
    DEFAULT_COVERAGE,
    DEFAULT_LEXICAL,
    Settings,
    Tuning,
)
from attend.core.types import Float32, Float64, Floats, Int64
from attend.encoder import Encoder
from attend.recommend.weights import PartScores
from attend.search.feedback import FeedbackMemory
from attend.store import CollectionStore
from attend.store.words import Lexical
from attend.write.ingest import as_embedding

CHARACTERS = 100
"""Characters of text that cost about what searching for one more query does."""

NO_MOVE = np.zeros((1, 1), dtype=np.float32)
"""What is added to embeddings (q, d) where a version learned nothing of the encoder."""

NO_DIRECTION = 1e-6
"""Length of a blend of unit vectors below which only rounding is left."""


T = TypeVar("T")


class Queries(NamedTuple):
    """Queries of one search, which share their options.

    Attributes:
        embeddings: (q, d); of a mixture, its parts (p, d), of which each attends by itself.
        words: the BM25 scores of each embedding; None where they do not count.
        recency: what times add to the logits of all; None where they do not count.
        parts: (p,) the weights of the parts of a mixture, summing to one; None for other queries.
        items: the item weights of the parts of a history; None without any.
        before: the embeddings before feedback moved them, and the `memory` that did; None where
            none did.
        deep: (q, d) how far a learned change of the encoder moved the embeddings and `before`; None
            where there is none.
        votes: what feedback adds to the words of each embedding; None where it does not vote.
        examples: the ids of the keys of example queries; None where no second layer asks for them.
        texts: for each embedding the texts behind it with their shares; empty for vectors and
            documents.
        encoded: (q) the text that each embedding is of; None of blends, vectors and documents.
        rows: (q) the document that each embedding is of; -1 for a blend with documents, 0 for
            others.
        made_of: rows of all documents that the queries are made of, ascending.
    """

    embeddings: Float32
    words: Sequence[WordScores] | None = None
    recency: RecencyScores | None = None
    parts: Float64 | None = None
    items: PartScores | None = None
    before: Float32 | None = None
    memory: FeedbackMemory | None = None
    deep: Float32 | None = None
    votes: Sequence[WordScores] | None = None
    examples: Int64 | None = None
    texts: tuple[tuple[tuple[str, float], ...], ...] = ()
    encoded: tuple[str | None, ...] = ()
    rows: tuple[int, ...] = ()
    made_of: tuple[int, ...] = ()

    def some(self, part: slice) -> Queries:
        """Return some of the queries, as they attend."""
        words = None if self.words is None else self.words[part]
        before = None if self.before is None else self.before[part]
        votes = None if self.votes is None else self.votes[part]
        deep = None if self.deep is None else self.deep[part]
        some = self._replace(embeddings=self.embeddings[part], words=words, before=before)
        return some._replace(votes=votes, deep=deep)

    @classmethod
    def joined(cls, queries: Sequence[Queries]) -> Queries:
        """Return encoded queries as one batch; a mixture is in a batch of its own."""
        return cls(
            np.concatenate([query.embeddings for query in queries]),
            texts=tuple([texts for query in queries for texts in query.texts]),
            encoded=tuple([text for query in queries for text in query.encoded]),
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
        encoded = tuple([None if part.vector else part.text for part in parts])
        # What pushes away has no words.
        texts = [(part.text, part.weight) for part in parts if part.text and part.weight > 0]
        if query.mixture is not None:
            by_embedding = tuple(((part.text, 1.0),) if part.text else () for part in parts)
            weights = np.array([part.weight for part in parts])
            mixture = Queries(embeddings, parts=weights, texts=by_embedding, encoded=encoded)
            return mixture._replace(rows=by_part, made_of=made_of)
        if len(parts) == 1 and parts[0].weight == 1:
            one = Queries(embeddings, texts=(tuple(texts),), encoded=encoded)
            return one._replace(rows=by_part, made_of=made_of)
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
        blended = Queries(blend.astype(np.float32)[None], texts=(tuple(texts),), encoded=(None,))
        return blended._replace(rows=row, made_of=made_of)


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
        other: the score of all other documents.
    """

    rows: Int64
    scores: Float64
    terms: tuple[str, ...]
    other: float = 0.0

    def of(self, documents: Int64) -> Float64:
        """Return the scores (m,) of documents (m,) in any order."""
        if not len(self.rows):
            return np.full(len(documents), self.other)
        places, present = locate(self.rows, documents)
        return np.where(present, self.scores[places], self.other)

    def among(self, rows: Int64 | None) -> WordScores:
        """Leave out the documents that a filter holds back; the scores stay as they are."""
        if rows is None:
            return self
        passing = locate(rows, self.rows).present
        return self._replace(rows=self.rows[passing], scores=self.scores[passing])

    def best(self, count: int) -> tuple[Int64, float]:
        """Return the `count` documents of the largest scores, and the largest score beyond."""
        if len(self.rows) <= count:
            return self.rows, self.other
        order = top(self.scores, count + 1)
        # Votes may be below the score of a document without a word.
        return self.rows[order[:-1]], max(self.other, float(self.scores[order[-1]]))


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
    matching = store.lexical_many([text for pairs in texts for text, _ in pairs])
    every = (weighted(matches, weight, coverage) for matches in matching)
    return [_joined([(next(every), share) for _, share in pairs]) for pairs in texts]


def weighted(matches: Lexical, weight: float, coverage: float) -> WordScores:
    """Return the scores λ · c(q) · lex(d) of what has words of a query.

    Args:
        weight, coverage: λ and γ.
    """
    if not len(matches.rows) or matches.maximum <= 0:
        return NO_WORDS._replace(terms=matches.terms)
    # Sums over the same words in another order: they may differ in the last bit.
    covered = min(1.0, matches.maximum / matches.ideal) ** coverage
    scores = weight * covered * matches.scores / matches.maximum
    return WordScores(matches.rows, scores, matches.terms)


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


# -- times ----------------------------------------------------------------------------------

DAY = 86_400.0
LEAST_RECENCY = -1e9
"""Of a logit: far below what any weight has, and far above what float32 cannot hold."""


class RecencyScores:
    """What the times of documents add to their logits, at the fitted temperature.

    As with distances (ALiBi: Press, Smith and Lewis 2022), a bias that is linear in the age makes a
    weight that decays with it by a constant factor.

    Attributes:
        scores: -ln 2 · age / half-life; of a document without a time that of the median age.
        newest: the largest of these, 0 without any.
        now: the time of the search, in seconds since 1970.
    """

    def __init__(self, rows: Int64, seconds: Float64, half_life: float, now: float) -> None:
        """
        Args:
            rows, seconds: (n,) the documents with times, ascending, and these.
            half_life: in days.
        """
        self.scores, self.newest, self.now = NO_WORDS, 0.0, now
        if len(rows):
            ages = np.maximum(now - seconds, 0.0) / DAY  # what is of the future is new
            biases = np.maximum(-math.log(2) * (ages / half_life), LEAST_RECENCY)
            self.scores = WordScores(rows, biases, (), float(np.median(biases)))
            self.newest = float(biases.max())


def score_times(
    store: CollectionStore, option: Recency | Literal[False] | None, tuning: Tuning, now: float
) -> RecencyScores | None:
    """Return what the times of documents add to their logits; None where they do not count.

    Args:
        option: of a request; False for none, None for what the version learned.
    """
    if option is None and tuning.recency is not None:
        field, half_life = tuning.recency
    elif option:
        field, half_life = option.field, option.half_life
    else:
        return None
    return RecencyScores(*store.times(field), half_life, now)


# -- feedback ------------------------------------------------------------------------------


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

    def __init__(self, store: CollectionStore, encoder: Callable[[], Encoder]) -> None:
        self._encoder = encoder
        self._memory = ByExamples(store, lambda: FeedbackMemory.of(store))
        self._keys = ByExamples(store, store.example_keys)

    def strength(self, version: Version, change: int) -> float:
        """Return α of a version: 0 for an untrained one where feedback does not help.

        Args:
            change: the state of the collection.
        """
        memory = self._memory.of(change)
        steps_back = memory is not None and version.unfitted and not memory.helps
        return 0.0 if steps_back else version.memory

    def queries(
        self,
        query: Queries,
        words: Sequence[WordScores] | None,
        view: View,
        strength: float | None,
    ) -> Queries:
        """Return queries as a version asks them: documents by its terms, others moved by feedback,
        and texts by what the version learned of their encoder.

        Args:
            words: the BM25 scores of each embedding.
            strength: α; as `strength` says if None.
        """
        version, embeddings = view.version, query.embeddings
        if version.examples and version.tuning.layer:
            query = query._replace(examples=self._keys.of(view.change))
        if version.terms:
            embeddings = version.asking(embeddings, np.array(query.rows, dtype=np.int64))
        moves: Float32 = NO_MOVE
        if version.projection.deep is not None and any(query.encoded):
            numbers = version.projection.deep
            moves = deep_moves(self._encoder(), numbers, query.encoded, query.embeddings)
            query = query._replace(deep=moves)
        option, strength = strength, version.memory if strength is None else strength
        if strength:
            memory = self._memory.of(view.change)
            if memory and option is None and not self.strength(version, view.change):
                memory = None
            asks = np.array(query.rows) == 0  # a document that asks is no question
            if memory is not None and asks.any():
                after = np.where(asks[:, None], memory.moved(embeddings, strength), embeddings)
                moved = query._replace(
                    before=embeddings + moves, embeddings=after + moves, memory=memory
                )
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
        return query._replace(embeddings=embeddings + moves, words=words)


def deep_moves(
    encoder: Encoder, numbers: Floats, texts: Sequence[str | None], embeddings: Float32
) -> Float32:
    """Return how far a learned change of the encoder moves queries: (q, d).

    Args:
        numbers: (p,) the change.
        texts: (q,) that the embeddings are of; None of one that stays where it is.
        embeddings: (q, d) without the change.
    """
    moves = np.zeros_like(embeddings)
    places = [place for place, text in enumerate(texts) if text]
    if places:
        changed = encoder.tuned(np.asarray(numbers, dtype=np.float32))
        after = changed.encode_queries([text for text in texts if text])
        moves[places] = after - embeddings[places]
    return moves
