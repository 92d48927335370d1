"""A collection: documents in, attended answers out. Here the stations meet."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from index.answering import KEY, Reading, Vanished, check_path, value_of
from index.answers import Answer
from index.attending import attend
from index.encoder import Encoder
from index.errors import EncoderMismatch, InvalidRequest, UnknownDocument
from index.ingest import Ingest, Written, own_vector
from index.projection import Projection
from index.requests import (
    MAX_BATCH,
    MAX_DOCUMENTS,
    DocumentRequest,
    Mask,
    Query,
    SearchOptions,
    SearchRequest,
    parse,
)
from index.settings import Settings
from index.store import Store, StoredDocument, compile_filter
from index.store.database import StoredProjection
from index.types import Document, Float32, Int64, Json
from index.values import ValueType, infer, parse_type
from index.views import View, Views

TYPE_SAMPLE = 1000
"""Documents whose values tell their type."""

ATTEMPTS = 5
"""How often a search starts again when a document it found goes before its value is read."""


@dataclass(frozen=True)
class Info:
    """A collection in figures."""

    name: str
    documents: int
    keys: int
    dimension: int
    encoder: str | None
    projection: int
    generation: int
    index: Mapping[str, Json]
    settings: Mapping[str, Json]


class Collection:
    """Documents, their keys, and the attention over them.

    Any number of threads may use one collection; any number of processes one folder.

    >>> answer = collection.search("compress a file", k=3, mode="soft")  # doctest: +SKIP
    >>> answer.answer["distribution"]  # doctest: +SKIP
    {'gzip': 0.61, 'zipfile': 0.24, ...}
    """

    def __init__(self, name: str, folder: Path, encoders: Callable[[str], Encoder]) -> None:
        self.name = name
        self.folder = folder
        self.store = Store(folder / "documents.db")
        self.settings = Settings.of(self.store.settings())
        self._encoders = encoders
        self._ingest = Ingest(self.store, self.settings, self._encoder)
        self.views = Views(
            self.store,
            folder / "keys",
            scorer=self.settings.scorer,
            encoder=self.settings.encoder or "none",
        )
        self._types: dict[tuple[str | None, int], ValueType] = {}

    def close(self) -> None:
        self.store.close()

    # -- asking -----------------------------------------------------------------------------

    def search(self, query: str | Sequence[float] | Mapping[str, Any], **options: Any) -> Answer:
        """Attend to the documents that a query speaks to.

        Args:
            query: text, a vector (d,), `{"text": …}`, `{"vector": …}` or `{"id": …}`.
            options: the fields of `SearchOptions`, such as k, mode, filter, value.

        Raises:
            InvalidRequest: an option that is unknown or out of range.
        """
        return self.search_many([parse(SearchRequest, {"query": query, **options})])[0]

    def search_many(self, requests: Sequence[SearchRequest]) -> list[Answer]:
        """Answer requests together: one encoder call, and one search per set of options."""
        if len(requests) > MAX_BATCH:
            raise InvalidRequest(
                f"{len(requests)} searches were sent at once; at most {MAX_BATCH} are taken.",
                field="searches",
            )
        started = time.perf_counter()
        embeddings = self._embed([request.query for request in requests])  # (q, d)
        groups = defaultdict(list)
        for at, request in enumerate(requests):
            groups[request.model_dump_json(exclude={"query"})].append(at)
        answers: dict[int, Answer] = {}
        for places in groups.values():
            options = requests[places[0]]
            answers |= zip(places, self._answers(embeddings[places], options, started), strict=True)
        return [answers[at] for at in range(len(requests))]

    def _answers(self, embeddings: Float32, options: SearchOptions, started: float) -> list[Answer]:
        for _ in range(ATTEMPTS):
            try:
                return self._answers_once(embeddings, options, started)
            except Vanished:
                continue
        raise InvalidRequest("The documents change faster than they can be read; try again.")

    def _answers_once(
        self, embeddings: Float32, options: SearchOptions, started: float
    ) -> list[Answer]:
        view = self.views.current(options.projection)
        rows = self._rows(options)
        attention = attend(view, self.settings, embeddings, rows, options)
        reading = Reading(self.store, attention, options, self._value_type(options.value, view))
        return [
            Answer(
                hits=reading.hits(query),
                answer=reading.answer(query),
                attended=found.total_documents,
                confidence=found.confidence,
                calibrated=False,
                exact=attention.exact,
                generation=view.change,
                projection=view.version,
                took_ms=round((time.perf_counter() - started) * 1000, 3),
            )
            for query, found in enumerate(attention.attended)
        ]

    def _embed(self, queries: Sequence[Query]) -> Float32:
        """Queries as embeddings (q, d); the texts among them meet the encoder in one call."""
        embeddings = np.empty((len(queries), self.settings.dimension), dtype=np.float32)
        texts = {at: query.text for at, query in enumerate(queries) if query.text is not None}
        if texts:
            self._check_takes_text()
            embeddings[list(texts)] = self._encoder().encode_queries(list(texts.values()))
        for at, query in enumerate(queries):
            if query.vector is not None:
                embeddings[at] = own_vector(query.vector, self.settings)
            elif query.id is not None:
                embeddings[at] = self._embedding_of(query.id)
        return embeddings

    def _embedding_of(self, id: str) -> Float32:
        """A document as a query: the mean of its keys, at length one where keys have it."""
        row = self.document(id).row
        mean: Float32 = self.store.embeddings_of(row).mean(axis=0)
        length = float(np.linalg.norm(mean))
        return mean / length if self.settings.unit_embeddings and length > 0 else mean

    def _rows(self, options: SearchOptions) -> Int64 | None:
        """Rows that filter and mask let pass, ascending; None for all."""
        rows = None
        if options.filter:
            rows = self.store.matching(compile_filter(options.filter))
        return rows if options.mask is None else self._unmasked(rows, options.mask)

    def _unmasked(self, rows: Int64 | None, mask: Mask) -> Int64:
        named = self._known([*mask.exclude, *(mask.only or [])])
        if mask.only is not None:
            only = np.unique(np.array([named[id] for id in mask.only], dtype=np.int64))
            rows = only if rows is None else np.intersect1d(rows, only)
        elif rows is None:
            rows = self.store.matching(compile_filter({}))
        return np.setdiff1d(rows, [named[id] for id in mask.exclude])

    def _known(self, ids: Sequence[str]) -> dict[str, int]:
        found = self.store.find(ids)
        unknown = [id for id in ids if id not in found]
        if unknown:
            raise UnknownDocument(
                f"The mask names {unknown[0]!r}, and no document has that id"
                + (f" (nor {len(unknown) - 1} others)" if len(unknown) > 1 else "")
                + "; remove it from the mask.",
                field="mask",
            )
        return {id: document.row for id, document in found.items()}

    def _value_type(self, path: str | None, view: View) -> ValueType:
        """The type of the values that a path names: declared, or inferred from a sample.

        Inferred anew whenever the collection has doubled: early documents may mislead.
        """
        if path == KEY:
            return ValueType("vector")
        size = view.keys.documents.bit_length()
        if (path, size) not in self._types:
            self._types[path, size] = self._declared(path) or self._inferred(path)
        return self._types[path, size]

    def _declared(self, path: str | None) -> ValueType | None:
        declared = self.settings.values
        if path is not None:
            declared = declared.get(path) if isinstance(declared, Mapping) else None
        return None if declared is None else parse_type(declared, field="values")

    def _inferred(self, path: str | None) -> ValueType:
        sample = self.store.sample(TYPE_SAMPLE)
        check_path(path, sample)
        return infer([value_of(document, path) for document in sample])

    # -- documents --------------------------------------------------------------------------

    def upsert(self, documents: Iterable[Document | Mapping[str, Any]]) -> Written:
        """Insert or replace documents, all or none; the next search finds them.

        A document whose texts are as stored is not encoded again.
        """
        given = [
            each if isinstance(each, Document) else parse(DocumentRequest, each).document()
            for each in documents
        ]
        if len(given) > MAX_DOCUMENTS:
            raise InvalidRequest(
                f"{len(given)} documents were sent at once; at most {MAX_DOCUMENTS} are taken.",
                field="documents",
            )
        written = self.write(given)
        self.views.merge_if_due()
        return written

    def write(self, documents: Sequence[Document]) -> Written:
        """As `upsert`, but without a merge: for a build, which publishes at its end."""
        return self._ingest.write(documents)

    def check(self, document: Document) -> None:
        """Raises InvalidRequest for a document that this collection cannot take."""
        self._ingest.check(document)

    def delete(self, ids: Sequence[str]) -> int:
        """Delete documents; unknown ids are passed over. Returns how many were there."""
        return self.store.delete(ids)

    def document(self, id: str) -> StoredDocument:
        """One document as stored.

        Raises:
            UnknownDocument: no document has this id.
        """
        found = self.store.find([id])
        if id not in found:
            raise UnknownDocument(
                f"The collection {self.name!r} has no document {id!r}.", field="id"
            )
        return found[id]

    # -- projections ------------------------------------------------------------------------

    def projections(self) -> list[StoredProjection]:
        return self.store.projections()

    def add_projection(self, projection: Projection, note: Mapping[str, Json] | None = None) -> int:
        """Store a projection and return its version; `activate` makes it answer.

        Raises:
            InvalidRequest: it takes embeddings of another width than the collection's.
        """
        if projection.d_in != self.settings.dimension:
            raise InvalidRequest(
                f"The projection takes embeddings of {projection.d_in} dimensions, but this "
                f"collection's have {self.settings.dimension}."
            )
        weights = projection.to_bytes()
        return self.store.add_projection(
            projection.kind, weights, projection.fingerprint, note or {}
        )

    def activate(self, version: int) -> None:
        """Answer with this projection from the next search on."""
        self.views.current(version)  # its keys are ready before anyone asks for them
        self.store.activate_projection(version)

    # -- the collection itself --------------------------------------------------------------

    def publish(self) -> None:
        """Write the index of all keys to disk, so that the next start need not."""
        self.views.publish()

    def info(self) -> Info:
        documents, keys = self.store.counts()
        view = self.views.current()
        base, delta = view.keys.segments
        return Info(
            name=self.name,
            documents=documents,
            keys=keys,
            dimension=self.settings.dimension,
            encoder=self.settings.encoder,
            projection=view.version,
            generation=view.change,
            index={
                "type": "flat",
                "exact": True,
                "published": view.keys.generation,
                "keys": base.keys,
                "fresh": delta.keys,
            },
            settings=self.settings.stored(),
        )

    def _encoder(self) -> Encoder:
        encoder = self._encoders(self.settings.encoder or "")
        if encoder.dimension != self.settings.dimension:
            raise EncoderMismatch(
                f"The encoder {encoder.name!r} gives {encoder.dimension} dimensions, but the "
                f"collection {self.name!r} was built with {self.settings.dimension}: the model "
                f"has changed. Put the old one back, or build another collection."
            )
        return encoder

    def _check_takes_text(self) -> None:
        if self.settings.encoder is None:
            raise InvalidRequest(
                f"The query is text, but the collection {self.name!r} was made for vectors of "
                f"{self.settings.dimension} dimensions; send such a vector.",
                field="query",
            )
