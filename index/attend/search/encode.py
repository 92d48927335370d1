"""Queries on their way to a snapshot: embeddings, words, and the documents they are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from attend.api.queries import Query, QueryPart
from attend.arrays import unit
from attend.encoder import Encoder
from attend.errors import InvalidRequest, UnknownDocument
from attend.ingest import as_embedding
from attend.settings import Settings
from attend.store import CollectionStore
from attend.types import Float32, Float64, Int64

NO_DIRECTION = 1e-6
"""Length of a blend of unit vectors below which only rounding is left."""


class EncodedQuery(NamedTuple):
    """A query with its embeddings.

    Attributes:
        embeddings: (p, d); one, but for a mixture, of which each part attends by itself.
        texts: for each embedding the texts behind it with their shares; none for vectors and
            documents.
        rows: (p) the document that each embedding is of, 0 for others.
        made_of: rows of all documents that the query is made of.
        weights: (p,) of the parts of a mixture, summing to one; None for all other queries.
    """

    embeddings: Float32
    texts: tuple[tuple[tuple[str, float], ...], ...]
    rows: tuple[int, ...]
    made_of: tuple[int, ...]
    weights: Float64 | None = None


class QueryEncoder:
    """Turns queries of one collection into embeddings."""

    def __init__(
        self, store: CollectionStore, settings: Settings, encoder: Callable[[], Encoder]
    ) -> None:
        self._store = store
        self._settings = settings
        self._encoder = encoder

    @property
    def takes_text(self) -> bool:
        return self._settings.encoder is not None

    @property
    def dimension(self) -> int:
        return self._settings.dimension

    def encode(self, queries: Sequence[Query]) -> list[EncodedQuery]:
        """Encode queries; all texts among them meet the encoder in one call.

        Raises:
            UnknownDocument: a query names a document that is not there.
            InvalidRequest: a text where there is no encoder, or a blend without a direction.
        """
        return self.encode_parts(queries, [query.parts() for query in queries])

    def encode_parts(
        self, queries: Sequence[Query], parts: Sequence[Sequence[QueryPart]]
    ) -> list[EncodedQuery]:
        """Encode queries whose parts are known already."""
        every = [part for query_parts in parts for part in query_parts]
        ids = [part.id for part in every if part.id is not None]
        rows = rows_by_id(self._store, ids, "query") if ids else {}
        embeddings = self._embeddings(every, rows)
        if len(queries) == 1:
            return [self._encoded(queries[0], parts[0], embeddings, rows)]
        ends = np.cumsum([len(query_parts) for query_parts in parts])
        split = zip(queries, parts, np.split(embeddings, ends[:-1]), strict=True)
        return [self._encoded(query, its, part, rows) for query, its, part in split]

    def embed_documents(self, rows: Int64) -> Float32:
        """Return documents as queries (n, d): the mean of their keys, at the usual length.

        Raises:
            UnknownDocument: one of them was deleted meanwhile.
        """
        if not len(rows):
            return np.empty((0, self._settings.dimension), dtype=np.float32)
        keys = self._store.own_keys(np.unique(rows))
        if not np.isin(rows, keys.rows).all():
            raise UnknownDocument(
                "A document was deleted while the query was read; send the query again, or leave "
                "the document out.",
                field="query",
            )
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
        made_of = tuple([row for row in by_part if row])
        # What pushes away has no words.
        texts = [(part.text, part.weight) for part in parts if part.text and part.weight > 0]
        if query.mixture is not None:
            by_embedding = tuple(((part.text, 1.0),) if part.text else () for part in parts)
            weights = np.array([part.weight for part in parts])
            return EncodedQuery(embeddings, by_embedding, by_part, made_of, weights)
        if len(parts) == 1 and parts[0].weight == 1:
            return EncodedQuery(embeddings, (tuple(texts),), by_part, made_of)
        blend = self._blend(embeddings, parts)[None]
        row = by_part if len(by_part) == 1 else (0,)
        return EncodedQuery(blend, (tuple(texts),), row, made_of)

    def _embeddings(self, parts: Sequence[QueryPart], rows: Mapping[str, int]) -> Float32:
        """Return the embeddings of parts (p, d)."""
        texts = {place: part.text for place, part in enumerate(parts) if part.text is not None}
        if texts and self._settings.encoder is None:
            raise InvalidRequest(
                f"The query is text, but this collection was made for vectors of "
                f"{self._settings.dimension} dimensions; send such a vector.",
                field="query",
            )
        embeddings = np.empty((len(parts), self._settings.dimension), dtype=np.float32)
        if texts:
            embeddings[list(texts)] = self._encoder().encode_queries(list(texts.values()))
        ids = {place: rows[part.id] for place, part in enumerate(parts) if part.id is not None}
        if ids:
            embeddings[list(ids)] = self.embed_documents(np.array(list(ids.values())))
        for place, part in enumerate(parts):
            if part.vector is not None:
                embeddings[place] = as_embedding(part.vector, self._settings)
        return embeddings

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
