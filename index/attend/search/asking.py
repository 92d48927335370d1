"""Queries as a search takes them: embeddings, words, and the documents they are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from attend.api.queries import Query, QueryPart
from attend.errors import InvalidRequest, UnknownDocument
from attend.ingest import own_vector
from attend.settings import Settings
from attend.store import CollectionStore
from attend.types import Float32, Float64, Int64


class Said(NamedTuple):
    """A text of a query, and its share of the query's words."""

    text: str
    share: float


class Asked(NamedTuple):
    """A query on its way to a view.

    Attributes:
        embeddings: one, but for a mixture, of which each part attends by itself.
        said: the texts behind each embedding; none for vectors and documents.
        own: rows of the documents that it is made of.
        rows: the document that each embedding is of, 0 for others.
        weights: of the parts of a mixture, summing to one; None for all other queries.
    """

    embeddings: Float32  # (p, d)
    said: tuple[tuple[Said, ...], ...]
    own: tuple[int, ...]
    rows: tuple[int, ...]
    weights: Float64 | None = None  # (p,)

    @property
    def texts(self) -> list[str]:
        return [said.text for each in self.said for said in each]


class QueryEncoder(Protocol):
    """What asking needs of an encoder."""

    def encode_queries(self, texts: Sequence[str]) -> Float32: ...


class Asking:
    """Turns queries of one collection into embeddings."""

    def __init__(
        self, store: CollectionStore, settings: Settings, encoder: Callable[[], QueryEncoder]
    ) -> None:
        self._store = store
        self._settings = settings
        self._encoder = encoder

    def asked(self, queries: Sequence[Query]) -> list[Asked]:
        """Queries with their embeddings; all texts among them meet the encoder in one call.

        Raises:
            UnknownDocument: a query names a document that is not there.
            InvalidRequest: a text where there is no encoder, or a blend without a direction.
        """
        made_of = [query.parts() for query in queries]
        every = [part for parts in made_of for part in parts]
        rows = known(self._store, [part.id for part in every if part.id is not None], "query")
        embeddings = self._embeddings(every, rows)
        ends = np.cumsum([len(parts) for parts in made_of])
        return [
            self._asked(query, parts, each, rows)
            for query, parts, each in zip(
                queries, made_of, np.split(embeddings, ends[:-1]), strict=True
            )
        ]

    def embeddings_of(self, rows: Int64) -> Float32:
        """Documents as queries (n, d): the mean of their keys, at length one where keys have it.

        Raises:
            UnknownDocument: one of them went meanwhile.
        """
        if not len(rows):
            return np.empty((0, self._settings.dimension), dtype=np.float32)
        documents, means = self._store.own_keys(np.unique(rows)).means()
        if not np.isin(rows, documents).all():
            raise UnknownDocument(
                "A document went while it was asked for; ask again, or leave it out.",
                field="query",
            )
        queries: Float32 = self.unit(means)[np.searchsorted(documents, rows)]
        return queries

    def unit(self, embeddings: Float32) -> Float32:
        """Embeddings (..., d) at length one where this collection's have it."""
        if not self._settings.unit_embeddings:
            return embeddings
        lengths = np.linalg.norm(embeddings, axis=-1, keepdims=True)
        divisors: Float32 = np.where(lengths > 0, lengths, 1).astype(np.float32)
        units: Float32 = embeddings / divisors
        return units

    @property
    def takes_text(self) -> bool:
        return self._settings.encoder is not None

    @property
    def dimension(self) -> int:
        return self._settings.dimension

    def _asked(
        self,
        query: Query,
        parts: Sequence[QueryPart],
        embeddings: Float32,
        rows: Mapping[str, int],
    ) -> Asked:
        of = tuple(0 if part.id is None else rows[part.id] for part in parts)
        own = tuple(row for row in of if row)
        if query.mixture is None:
            blended = self._blended(embeddings, parts)[None]
            return Asked(blended, (tuple(_said(parts)),), own, of if len(of) == 1 else (0,))
        said = tuple((Said(part.text, 1.0),) if part.text else () for part in parts)
        return Asked(embeddings, said, own, of, np.array([part.weight for part in parts]))

    def _embeddings(self, parts: Sequence[QueryPart], rows: Mapping[str, int]) -> Float32:
        """Parts as embeddings (p, d)."""
        embeddings = np.empty((len(parts), self._settings.dimension), dtype=np.float32)
        texts = {at: part.text for at, part in enumerate(parts) if part.text is not None}
        if texts:
            self._check_takes_text()
            embeddings[list(texts)] = self._encoder().encode_queries(list(texts.values()))
        ids = {at: rows[part.id] for at, part in enumerate(parts) if part.id is not None}
        if ids:
            embeddings[list(ids)] = self.embeddings_of(np.array(list(ids.values())))
        for at, part in enumerate(parts):
            if part.vector is not None:
                embeddings[at] = own_vector(part.vector, self._settings)
        return embeddings

    def _blended(self, embeddings: Float32, parts: Sequence[QueryPart]) -> Float32:
        """One embedding (d,): the weighted mean, at length one where embeddings have it."""
        if len(parts) == 1 and parts[0].weight == 1:
            only: Float32 = embeddings[0]
            return only
        weights = np.array([part.weight for part in parts])
        mean = weights @ embeddings.astype(np.float64)  # (p,) @ (p, d) -> (d,)
        if not self._settings.unit_embeddings:
            return mean.astype(np.float32)
        length = float(np.linalg.norm(mean))
        if length < 1e-6:
            raise InvalidRequest(
                "The parts of the blend cancel each other out, so that it has no direction; give "
                "other weights.",
                field="query",
            )
        return (mean / length).astype(np.float32)

    def _check_takes_text(self) -> None:
        if self._settings.encoder is None:
            raise InvalidRequest(
                f"The query is text, but this collection was made for vectors of "
                f"{self._settings.dimension} dimensions; send such a vector.",
                field="query",
            )


def known(store: CollectionStore, ids: Sequence[str], field: str) -> dict[str, int]:
    """Rows by id.

    Raises:
        UnknownDocument: naming the first that is not there.
    """
    if not ids:
        return {}
    found = store.find(ids)
    unknown = [id for id in ids if id not in found]
    if unknown:
        more = f" (nor {len(unknown) - 1} others)" if len(unknown) > 1 else ""
        raise UnknownDocument(
            f"The {field} names {unknown[0]!r}{more}, and no document has that id; "
            f"correct it or leave it out.",
            field=field,
        )
    return {id: document.row for id, document in found.items()}


def _said(parts: Sequence[QueryPart]) -> list[Said]:
    """The texts that are asked for; what pushes away has no words."""
    return [Said(part.text, part.weight) for part in parts if part.text and part.weight > 0]
