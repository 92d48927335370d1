"""Queries on their way to a snapshot: embeddings, BM25 scores, and documents they are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from attend.api.search import Query, QueryPart, SearchRequest
from attend.core.arrays import locate, top, unit
from attend.core.errors import InvalidRequest, KeylessDocuments, UnknownDocument
from attend.core.settings import DEFAULT_COVERAGE, DEFAULT_LEXICAL, Settings, Tuning
from attend.core.types import Float32, Float64, Int64
from attend.encoder import Encoder
from attend.store import CollectionStore, Lexical
from attend.write.ingest import as_embedding

NO_DIRECTION = 1e-6
"""Length of a blend of unit vectors below which only rounding is left."""


class EncodedQuery(NamedTuple):
    """One query with its embeddings, or several queries with theirs.

    Attributes:
        embeddings: (p, d); one for each query, or one for each part of a mixture, which attends by
            itself.
        texts: for each embedding the texts behind it with their shares; empty for vectors and
            documents.
        rows: (p) the document that each embedding is of; -1 for a blend with documents, 0 for
            others.
        made_of: rows of all documents that the queries are made of, ascending.
        weights: (p,) of the parts of a mixture, summing to one; None for all other queries.
    """

    embeddings: Float32
    texts: tuple[tuple[tuple[str, float], ...], ...]
    rows: tuple[int, ...]
    made_of: tuple[int, ...]
    weights: Float64 | None = None

    @classmethod
    def joined(cls, queries: Sequence[EncodedQuery]) -> EncodedQuery:
        """Return several queries as one batch; a mixture is in a batch of its own."""
        return cls(
            np.concatenate([query.embeddings for query in queries]),
            tuple([texts for query in queries for texts in query.texts]),
            tuple([row for query in queries for row in query.rows]),
            tuple(sorted({row for query in queries for row in query.made_of})),
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
    query: EncodedQuery | None = None


class QueryEncoder:
    """Turns queries of one collection into embeddings."""

    def __init__(
        self, store: CollectionStore, settings: Settings, encoder: Callable[[], Encoder]
    ) -> None:
        self.dimension = settings.dimension
        self.takes_text = settings.encoder is not None
        self._store = store
        self._settings = settings
        self._load = encoder
        self._encoder: Encoder | None = None

    def encode_searches(self, searches: Sequence[Search]) -> EncodedQuery:
        """Encode the queries that are not encoded yet, and return those of all searches."""
        pending = [search for search in searches if search.query is None]
        if pending:
            queries = [search.request.query for search in pending]
            fresh = self.encode(queries, [search.parts for search in pending])
            for search, query in zip(pending, fresh, strict=True):
                search.query = query
        encoded = [search.query for search in searches if search.query]
        return encoded[0] if len(encoded) == 1 else EncodedQuery.joined(encoded)

    def encode(
        self, queries: Sequence[Query], parts: Sequence[Sequence[QueryPart]] | None = None
    ) -> list[EncodedQuery]:
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
        embeddings = self._embeddings(every, rows)
        if len(queries) == 1:
            return [self._encoded(queries[0], by_query[0], embeddings, rows)]
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
        self,
        query: Query,
        parts: Sequence[QueryPart],
        embeddings: Float32,
        rows: Mapping[str, int],
    ) -> EncodedQuery:
        by_part = tuple([0 if part.id is None else rows[part.id] for part in parts])
        made_of = tuple(sorted({row for row in by_part if row}))
        # What pushes away has no words.
        texts = [(part.text, part.weight) for part in parts if part.text and part.weight > 0]
        if query.mixture is not None:
            by_embedding = tuple(((part.text, 1.0),) if part.text else () for part in parts)
            weights = np.array([part.weight for part in parts])
            return EncodedQuery(embeddings, by_embedding, by_part, made_of, weights)
        if len(parts) == 1 and parts[0].weight == 1:
            return EncodedQuery(embeddings, (tuple(texts),), by_part, made_of)
        blend = self._blend(embeddings, parts)[None]
        row = by_part if len(by_part) == 1 else (-1 if made_of else 0,)
        return EncodedQuery(blend, (tuple(texts),), row, made_of)

    def _embeddings(self, parts: Sequence[QueryPart], rows: Mapping[str, int]) -> Float32:
        """Return the embeddings of parts (p, d)."""
        texts = {n: part.text for n, part in enumerate(parts) if part.text and not part.vector}
        if texts and self._settings.encoder is None:
            raise InvalidRequest(
                f"The query is text, but this collection was made for vectors of "
                f"{self._settings.dimension} dimensions; send such a vector, with a text or alone.",
                field="query",
            )
        embeddings = np.empty((len(parts), self._settings.dimension), dtype=np.float32)
        if texts:
            if self._encoder is None:
                self._encoder = self._load()
            embeddings[list(texts)] = self._encoder.encode_queries(list(texts.values()))
        ids = {place: rows[part.id] for place, part in enumerate(parts) if part.id is not None}
        if ids:
            embeddings[list(ids)] = self.embed_documents(np.array(list(ids.values())))
        for place, part in enumerate(parts):
            if part.vector is not None:
                embeddings[place] = self._as_embedding(part.vector)
        return embeddings

    def _as_embedding(self, vector: Sequence[float]) -> Float32:
        try:
            return as_embedding(vector, self._settings)
        except InvalidRequest as error:
            error.field = "query"  # the vector of a document has another place
            raise

    def _blend(self, embeddings: Float32, parts: Sequence[QueryPart]) -> Float32:
        """Return the weighted mean (d,), at length one where embeddings have it."""
        weights = np.array([part.weight for part in parts])
        mean = weights @ embeddings.astype(np.float64)  # (p,) @ (p, d) -> (d,)
        if not self._settings.unit_embeddings:
            return mean.astype(np.float32)
        length = float(np.linalg.norm(mean))
        if length < NO_DIRECTION:
            raise InvalidRequest(
                "The parts of the blend cancel each other out, so that it has no direction; give "
                "other weights.",
                field="query",
            )
        return (mean / length).astype(np.float32)


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


class WordWeight(NamedTuple):
    """λ and γ of the term λ · c(q) · lex(d), c(q) = (maximum / ideal) ** γ."""

    weight: float
    coverage: float


OFF = WordWeight(0.0, 0.0)


class BestByWords(NamedTuple):
    """Documents of the largest scores.

    Attributes:
        rows: in no order.
        beyond: the largest score of any other document.
    """

    rows: Int64
    beyond: float


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

    def best(self, count: int) -> BestByWords:
        """Return the `count` documents of the largest scores."""
        if len(self.rows) <= count:
            return BestByWords(self.rows, 0.0)
        order = top(self.scores, count + 1)
        return BestByWords(self.rows[order[:-1]], float(self.scores[order[-1]]))


NO_WORDS = WordScores(np.empty(0, dtype=np.int64), np.empty(0), ())


def word_weight(option: bool | float | None, tuning: Tuning) -> WordWeight:
    """Return the weight of words: that of a request, else that of the version."""
    if option is None:
        return fitted_word_weight(tuning)
    if option is True:
        return WordWeight(DEFAULT_LEXICAL, DEFAULT_COVERAGE)
    if not option:
        return OFF
    coverage = tuning.coverage if tuning.lexical else DEFAULT_COVERAGE
    return WordWeight(float(option), coverage)


def fitted_word_weight(tuning: Tuning) -> WordWeight:
    """Return the weight of words in a version where a request does not name one."""
    return WordWeight(tuning.lexical, tuning.coverage) if tuning.lexical else OFF


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
    weight = word_weight(option, tuning)
    matches = iter(store.lexical_many([text for pairs in texts for text, _ in pairs]))
    return [
        _joined([(_weighted(next(matches), weight), share) for _, share in pairs])
        for pairs in texts
    ]


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


def _weighted(matches: Lexical, weight: WordWeight) -> WordScores:
    if not len(matches.rows) or matches.maximum <= 0:
        return NO_WORDS._replace(terms=matches.terms)
    # Sums over the same words in another order: they may differ in the last bit.
    covered = min(1.0, matches.maximum / matches.ideal) ** weight.coverage
    scores = weight.weight * covered * matches.scores / matches.maximum
    return WordScores(matches.rows, scores, matches.terms)
