"""Searching: queries to answers, by way of embeddings, a view, attention and values."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

import numpy as np

from index.answering import KEY, Reading, Vanished, check_path, value_of
from index.answers import Answer, Matrix
from index.attending import Attention, attend, attend_matrix
from index.attention import Attended
from index.errors import Conflict, InvalidRequest, LimitExceeded, UnknownDocument
from index.ingest import own_vector
from index.lexicon import Overlap, overlaps, strength_of
from index.requests import MAX_BATCH, Mask, Query, SearchOptions, SearchRequest
from index.settings import Settings
from index.store import Store, compile_filter
from index.types import Float32, Float64, Int64
from index.values import ValueType, infer, parse_type
from index.views import View, Views

TYPE_SAMPLE = 1000
"""Documents whose values tell their type."""

ATTEMPTS = 5
"""How often a search starts again when a document it found goes before its value is read."""

MAX_CELLS = 1_000_000
"""Cells of an attention matrix in one response: about 20 MB of JSON."""


Result = TypeVar("Result")


class Asked(NamedTuple):
    """Queries on their way to a view."""

    embeddings: Float32  # (q, d)
    texts: Sequence[str | None]  # None for vectors and documents


class QueryEncoder(Protocol):
    """What searching asks of an encoder."""

    def encode_queries(self, texts: Sequence[str]) -> Float32: ...


class Searcher:
    """Answers the queries of one collection; any thread may call it."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        views: Views,
        encoder: Callable[[], QueryEncoder],
    ) -> None:
        self._store = store
        self._settings = settings
        self._views = views
        self._encoder = encoder
        self._types: dict[str | None, tuple[int, ValueType | None]] = {}

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
            # Without text there are no words, and what was fitted with them does not fit.
            worded = request.query.text is not None
            groups[worded, request.model_dump_json(exclude={"query"})].append(at)
        answers: dict[int, Answer] = {}
        for places in groups.values():
            asked = Asked(embeddings[places], [requests[at].query.text for at in places])
            group = partial(self._answers, asked, requests[places[0]], started)
            answers |= zip(places, _until_whole(group), strict=True)
        return [answers[at] for at in range(len(requests))]

    def matrix(self, requests: Sequence[SearchRequest]) -> Matrix:
        """Logits and weights of every query over every document that filter and mask let pass.

        With documents as queries (`{"id": …}`) this is self-attention.

        Raises:
            InvalidRequest: the requests differ in more than their queries.
            LimitExceeded: the matrix has more cells than are sent at once.
        """
        if len({request.model_dump_json(exclude={"query"}) for request in requests}) != 1:
            raise InvalidRequest(
                "A matrix has one set of options for all of its queries; send the same with each.",
                field="searches",
            )
        queries = [request.query for request in requests]
        asked = Asked(self._embed(queries), [query.text for query in queries])
        return _until_whole(partial(self._matrix, asked, requests[0]))

    def _matrix(self, asked: Asked, options: SearchOptions) -> Matrix:
        view = self._views.current(options.projection)
        rows = self._rows(options)
        width = view.keys.documents if rows is None else len(rows)
        if len(asked.texts) * width > MAX_CELLS:
            raise LimitExceeded(
                f"{len(asked.texts)} queries over {width} documents are more than the "
                f"{MAX_CELLS} cells that are sent at once; filter, or send fewer queries."
            )
        words = self._overlaps(view, asked, options)
        found = attend_matrix(view, self._settings, asked.embeddings, rows, options, words)
        attended = found.attended
        columns = np.unique(np.concatenate([found.documents for found in attended]))
        documents = self._store.values(columns)
        if len(documents) < len(columns):
            raise Vanished
        by_query = [_by_column(found, columns) for found in attended]
        return Matrix(
            documents=[documents[row].id for row in columns.tolist()],
            logits=[logits.tolist() for logits, _, _ in by_query],
            head_weights=[heads.tolist() for _, heads, _ in by_query],
            weights=[weights.tolist() for _, _, weights in by_query],
            generation=view.change,
            projection=view.version,
        )

    def _answers(self, asked: Asked, options: SearchOptions, started: float) -> list[Answer]:
        view = self._views.current(options.projection)
        rows = self._rows(options)
        words = self._overlaps(view, asked, options)
        attention = attend(view, self._settings, asked.embeddings, rows, options, words)
        type = self._value_type(options.value, view, attention)
        reading = Reading(self._store, attention, options, type)
        return [
            Answer(
                hits=reading.hits(query),
                answer=reading.answer(query),
                attended=found.total_documents,
                answered=reading.answered(query),
                confidence=found.confidence,
                calibrated=attention.focus.calibrated,
                exact=attention.exact,
                generation=view.change,
                projection=view.version,
                took_ms=round((time.perf_counter() - started) * 1000, 3),
            )
            for query, found in enumerate(attention.attended)
        ]

    def _overlaps(
        self, view: View, asked: Asked, options: SearchOptions
    ) -> Sequence[Overlap] | None:
        """Each query's lexical term; None where words do not count."""
        texts = [text or "" for text in asked.texts]
        if not any(texts):
            return None
        return overlaps(self._store, texts, strength_of(options.lexical, view.tuning))

    def _embed(self, queries: Sequence[Query]) -> Float32:
        """Queries as embeddings (q, d); the texts among them meet the encoder in one call."""
        embeddings = np.empty((len(queries), self._settings.dimension), dtype=np.float32)
        texts = {at: query.text for at, query in enumerate(queries) if query.text is not None}
        if texts:
            self._check_takes_text()
            embeddings[list(texts)] = self._encoder().encode_queries(list(texts.values()))
        for at, query in enumerate(queries):
            if query.vector is not None:
                embeddings[at] = own_vector(query.vector, self._settings)
            elif query.id is not None:
                embeddings[at] = self._embedding_of(query.id)
        return embeddings

    def _embedding_of(self, id: str) -> Float32:
        """A document as a query: the mean of its keys, at length one where keys have it."""
        row = self._known([id], "query")[id]
        mean: Float32 = self._store.embeddings_of(row).mean(axis=0)
        length = float(np.linalg.norm(mean))
        return mean / length if self._settings.unit_embeddings and length > 0 else mean

    def _rows(self, options: SearchOptions) -> Int64 | None:
        """Rows that filter and mask let pass, ascending; None for all."""
        rows = None
        if options.filter:
            rows = self._store.matching(compile_filter(options.filter))
        return rows if options.mask is None else self._unmasked(rows, options.mask)

    def _unmasked(self, rows: Int64 | None, mask: Mask) -> Int64:
        named = self._known([*mask.exclude, *(mask.only or [])], "mask")
        if mask.only is not None:
            only = np.unique(np.array([named[id] for id in mask.only], dtype=np.int64))
            rows = only if rows is None else np.intersect1d(rows, only)
        elif rows is None:
            rows = self._store.matching(compile_filter({}))
        return np.setdiff1d(rows, [named[id] for id in mask.exclude])

    def _known(self, ids: Sequence[str], field: str) -> dict[str, int]:
        """Rows by id; raises UnknownDocument for the first that is not there."""
        found = self._store.find(ids)
        unknown = [id for id in ids if id not in found]
        if unknown:
            more = f" (nor {len(unknown) - 1} others)" if len(unknown) > 1 else ""
            raise UnknownDocument(
                f"The {field} names {unknown[0]!r}{more}, and no document has that id; "
                f"correct it or leave it out.",
                field=field,
            )
        return {id: document.row for id, document in found.items()}

    def _value_type(self, path: str | None, view: View, attention: Attention) -> ValueType:
        """The type of the values that a path names: declared, or inferred from a sample.

        Inferred anew after every change: a type that is out of date answers with nothing.
        """
        if path == KEY:
            return ValueType("vector")
        declared = self._declared(path)
        if declared is not None:
            return declared
        change, found = self._types.get(path, (-1, None))
        if change != view.change:
            found = self._inferred(path)
            self._types[path] = view.change, found
        return found if found is not None else self._inferred_from(path, attention)

    def _declared(self, path: str | None) -> ValueType | None:
        declared = self._settings.values
        if path is not None:
            declared = declared.get(path) if isinstance(declared, Mapping) else None
        return None if declared is None else parse_type(declared, field="values")

    def _inferred(self, path: str | None) -> ValueType | None:
        """From all over the collection; None where the sample has no such value."""
        sample = self._store.sample(TYPE_SAMPLE)
        values = [value_of(document, path) for document in sample]
        return infer(values) if any(value is not None for value in values) else None

    def _inferred_from(self, path: str | None, attention: Attention) -> ValueType:
        """From the attended documents, for a field so rare that the sample has none of it."""
        rows = np.unique(np.concatenate([found.documents for found in attention.attended]))
        documents = list(self._store.documents(rows).values())
        check_path(path, documents)
        return infer([value_of(document, path) for document in documents])

    def _check_takes_text(self) -> None:
        if self._settings.encoder is None:
            raise InvalidRequest(
                f"The query is text, but this collection was made for vectors of "
                f"{self._settings.dimension} dimensions; send such a vector.",
                field="query",
            )


def _until_whole(read: Callable[[], Result]) -> Result:
    """A reading, begun again with a newer view while documents go in the middle of it."""
    for _ in range(ATTEMPTS):
        try:
            return read()
        except Vanished:
            continue
    raise Conflict("The documents change faster than they can be read; try again.")


def _by_column(found: Attended, columns: Int64) -> tuple[Float64, Float64, Float64]:
    """Logits (H, n), head weights (H, n) and weights (n,) in the order of the columns."""
    at = np.searchsorted(columns, found.documents)
    logits = np.full((len(found.logits), len(columns)), -np.inf)
    heads, weights = np.zeros_like(logits), np.zeros(len(columns))
    logits[:, at], heads[:, at], weights[at] = found.logits, found.head_weights, found.weights
    return logits, heads, weights
