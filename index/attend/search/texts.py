"""Texts that are no documents: their embeddings, and their scores as if they were documents.

A re-ranker is sent texts with a query. They take the place of a collection's keys in one attention,
so that all that was learned of queries, keys and words counts, and the no-answer score too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from attend.api.base import parse
from attend.api.search import Query, SearchOptions
from attend.collection.versions import View
from attend.core.arrays import KeyTable, unit
from attend.core.errors import InvalidRequest
from attend.core.types import Float32, Float64, Int64
from attend.encoder import Encoder, Passage
from attend.engines.engine import StoredCollection
from attend.keys.segment import Delta
from attend.keys.snapshot import Snapshot
from attend.search.attend import Attention, attend, attend_twice, weigh_documents
from attend.search.queries import FeedbackReader, QueryEncoder, weighted, word_weight
from attend.search.scoring import AttentionOptions


def passages_of(
    encoder: Encoder,
    texts: Sequence[str],
    encode: Callable[[Sequence[str]], Float32],
    overlap: int | None = None,
) -> KeyTable:
    """Return the embeddings of the passages of texts, one after the other.

    Args:
        encode: the encoder's method for documents or for queries.

    >>> passages_of(encoder, ["a whale"], encoder.encode_documents).counts  # doctest: +SKIP
    array([1])
    """
    spans = encoder.passages(texts, overlap)
    parts = [
        (place, text[start:end])
        for place, (text, passages) in enumerate(zip(texts, spans, strict=True))
        for start, end in passages or [Passage(0, len(text))]  # a blank text has no passages
    ]
    vectors = encode([part for _, part in parts])
    places = np.array([place for place, _ in parts], dtype=np.int64)
    # No key of a collection has such an id, so that none of these is moved by what was learned.
    return KeyTable.of_keys(vectors, -1 - np.arange(len(parts)), places)


def embeddings_of(encoder: Encoder, texts: Sequence[str], *, queries: bool = False) -> Float32:
    """Return one embedding of length one for each text (n, d).

    A text longer than the encoder's window has the mean of its passages.

    >>> embeddings_of(encoder, ["a whale", "a ship"]).shape  # doctest: +SKIP
    (2, 384)
    """
    encode = encoder.encode_queries if queries else encoder.encode_documents
    means = passages_of(encoder, texts, encode, overlap=0).means()
    return unit(np.asarray(means, dtype=np.float32))


def cosine_scores(encoder: Encoder, query: str, texts: Sequence[str]) -> Float64:
    """Return (1 + cosine) / 2 of a query and the best passage of each text (n,).

    >>> cosine_scores(encoder, "a whale", ["a whale"]).round(3)  # doctest: +SKIP
    array([1.])
    """
    table = passages_of(encoder, texts, encoder.encode_documents)
    cosines = table.best(table.vectors @ encoder.encode_queries([query])[0])
    return np.clip((1 + cosines.astype(np.float64)) / 2, 0, 1)


class TextScorer:
    """Embeds and scores texts by what one collection has learned."""

    def __init__(
        self, collection: StoredCollection, queries: QueryEncoder, feedback: FeedbackReader
    ) -> None:
        self._collection = collection
        self._queries, self._feedback = queries, feedback

    def embeddings(self, texts: Sequence[str], *, queries: bool = False) -> Float32:
        """Return texts as keys of the collection, or as queries of them: (n, d).

        Their products are the scores before scale, bias and words.

        Raises:
            InvalidRequest: the version has several heads, and no single vector stands for a text.
        """
        version = self._collection.views.current().version
        if version.projection.heads > 1:
            raise InvalidRequest(
                f"Version {version.number} of the collection {self._collection.name!r} has "
                f"{version.projection.heads} heads, and no single vector of it stands for a text. "
                f"Name the encoder as the model, or search the collection itself.",
                field="model",
            )
        vectors = embeddings_of(self._collection.encoder(), texts, queries=queries)
        project = version.projection.queries if queries else version.projection.keys
        return np.asarray(project(vectors)[:, 0], dtype=np.float32)

    def scores(self, query: str, texts: Sequence[str]) -> Float64:
        """Return how well each text answers a query, from 0 to 1 (n,).

        Where a training has fitted a no-answer score, it is the weight that the text alone would
        have beside that; elsewhere (1 + cosine) / 2 of query and key. Both can be compared between
        queries.

        Raises:
            InvalidRequest: the collection has no encoder.
        """
        here, view = self._collection, self._collection.views.current()
        encoded = self._queries.encode([parse(Query, {"text": query})])[0]
        moved = self._feedback.queries(encoded, None, view, None)._replace(votes=None, words=None)
        overlap = here.settings.overlap
        encoder = here.encoder()
        table = passages_of(encoder, texts, encoder.encode_documents, overlap)
        keys = Delta.holding(view.version.keys(table))
        nothing = Delta.empty(view.version.width)
        among = View(view.version, Snapshot(nothing, keys, 0, 0, 0, longest=np.inf), view.change)
        tuning = view.version.tuning
        if tuning.null is not None:
            words = None
            if tuning.lexical:
                matches = here.store.lexical_texts(query, texts)
                words = [weighted(matches, *word_weight(None, tuning))]
            options = parse(SearchOptions, {"attend": tuning.attend or 100})
            with_words = moved._replace(words=words)
            [attention] = attend_twice(among, here.settings, with_words, options)
            if attention.attended.null is not None:
                return _alone(attention, np.arange(len(texts)))
        cosine = AttentionOptions("all", scorer="cosine", scale=1.0, lexical=False)
        [attention] = attend(among, here.settings, moved, cosine)
        top = attention.attended
        scores = np.zeros(len(texts))
        scores[top.documents] = (1 + attention.scoring.mechanism.gates @ top.logits) / 2
        return np.clip(scores, 0, 1)


def _alone(attention: Attention, texts: Int64) -> Float64:
    """Return the weight that each text alone would have beside the no-answer score (n,)."""
    from scipy.special import expit  # here: it takes 0.1 s, which other searches need not wait

    top, mechanism = attention.attended, attention.scoring.mechanism
    assert top.null is not None
    z = np.empty((mechanism.heads, len(texts)))
    rest = weigh_documents(attention, texts)  # also those beyond the best
    for attended in (rest, top):
        z[:, attended.documents] = attended.logits
    return np.asarray(mechanism.gates @ expit(mechanism.cooled(z) - top.null[:, None]))
