"""Searching: queries to answers, by way of embeddings, a view, attention and values."""

from __future__ import annotations

import time
from array import array
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from index.attention import Attended
from index.consistency import Consistency, reading
from index.errors import Conflict, InvalidRequest, LimitExceeded
from index.search.answering import Contents, Reading
from index.search.answers import Answer, Facets, Matrix
from index.search.asking import Asked, Asking, Named, QueryEncoder
from index.search.attending import Attention, attend, attend_matrix
from index.search.company import Company
from index.search.explaining import Vanished
from index.search.lexicon import Lexicon, Overlap, blended, overlaps, strength_of
from index.search.measure import Measure, measure_of
from index.search.paging import fingerprint
from index.search.queries import Query
from index.search.requests import MAX_BATCH, SearchOptions, SearchRequest
from index.search.selecting import Selects
from index.search.value_types import Sampled, ValueTypes
from index.settings import Settings
from index.store import Facet, Predicate, compile_filter
from index.timings import collecting, tell, timed
from index.types import Float32, Float64, Int64, Json
from index.versions import Version
from index.views import View

ATTEMPTS = 5
"""How often a search starts again when a document it found goes before its value is read."""

MAX_CELLS = 1_000_000
"""Cells of an attention matrix in one response: about 20 MB of JSON."""

TOGETHER = 64
"""Queries of different callers that are searched at once."""

PAGE = {"k", "offset", "cursor", "fields", "facets", "title", "highlight", "explain"}
"""Which page is asked for, and what besides."""


Result = TypeVar("Result")


class Batch(NamedTuple):
    """Queries of one set of options on their way to a view.

    Attributes:
        fingerprints: of what was asked, without the page.
        own: rows of the documents that all of them are made of, and that are masked.
        began: when each was asked.
        parts: what the parts of each mixture are.
    """

    asked: Sequence[Asked]
    options: SearchOptions
    fingerprints: Sequence[str]
    own: tuple[int, ...]
    began: Sequence[float]
    parts: Sequence[Sequence[Mapping[str, Json]]]

    def embeddings(self, made: Version) -> Float32:
        """(q, d), of a mixture (p, d); documents as a version has learned that they ask."""
        rows = np.concatenate([np.array(each.rows, dtype=np.int64) for each in self.asked])
        return made.asking(np.concatenate([each.embeddings for each in self.asked]), rows)

    @property
    def weights(self) -> Float64 | None:
        """Of the parts of the mixture, which is in a batch of its own."""
        return self.asked[0].weights


class Found(NamedTuple):
    """An answer, and by what measure its weights are comparable with another collection's.

    `measure` is asked for only where there is another one.
    """

    answer: Answer
    measure: Callable[[], Measure]


class Searched(Named, Sampled, Lexicon, Protocol):
    """What searches read of a collection besides what they find."""

    def facets(
        self, fields: Sequence[str], predicate: Predicate | None = None, limit: int = 10
    ) -> dict[str, Facet]: ...


class Searcher:
    """Answers the queries of one collection; any thread may call it."""

    def __init__(
        self,
        store: Searched,
        settings: Settings,
        select: Selects,
        encoder: Callable[[], QueryEncoder],
    ) -> None:
        self._store = store
        self._settings = settings
        self._select = select
        self.asking = Asking(store, settings, encoder)
        self._types = ValueTypes(store, settings)
        self._company: Company[Batch, list[Found]] = Company(
            self._in_company, lambda batch: len(batch.asked), TOGETHER
        )

    def search_many(self, requests: Sequence[SearchRequest]) -> list[Answer]:
        """Answer requests together: one encoder call, and one search per set of options."""
        return [found.answer for found in self.found(requests)]

    def found(self, requests: Sequence[SearchRequest]) -> list[Found]:
        """The same, with the measure of each answer."""
        if not requests:
            return []
        if len(requests) > MAX_BATCH:
            raise InvalidRequest(
                f"{len(requests)} searches were sent at once; at most {MAX_BATCH} are taken.",
                field="searches",
            )
        with collecting() as spent:
            found = self._together(requests)
        tell(spent)
        timings = {stage: round(seconds * 1000, 3) for stage, seconds in spent.items()}
        return [
            each._replace(answer=replace(each.answer, timings=timings)) if request.explain else each
            for request, each in zip(requests, found, strict=True)
        ]

    def _together(self, requests: Sequence[SearchRequest]) -> list[Found]:
        started = time.perf_counter()
        with reading(_strictest(requests)):
            asked = self.asking.asked([request.query for request in requests])
        groups = defaultdict(list)
        for at, request in enumerate(requests):
            # Without text there are no words, and what was fitted with them does not fit.
            worded = bool(asked[at].texts)
            own = asked[at].own if request.exclude_self else ()
            # A mixture has heads of its own: nothing is answered together with it.
            alone = None if asked[at].weights is None else object()
            groups[worded, own, alone, _options(request)].append(at)
        found: dict[int, Found] = {}
        for key, places in groups.items():
            chosen = [requests[at] for at in places]
            batch = Batch(
                [asked[at] for at in places],
                chosen[0],
                [_fingerprint(each) for each in chosen],
                key[1],
                [started] * len(places),
                [_named(each.query) for each in chosen],
            )
            found |= zip(places, self._company.join(key, batch), strict=True)
        return [found[at] for at in range(len(requests))]

    def _in_company(self, batches: Sequence[Batch]) -> list[list[Found]]:
        """Batches of the same options, of as many callers, as one."""
        first = batches[0]
        whole = first._replace(
            asked=[asked for batch in batches for asked in batch.asked],
            fingerprints=[each for batch in batches for each in batch.fingerprints],
            began=[began for batch in batches for began in batch.began],
            parts=[each for batch in batches for each in batch.parts],
        )
        with reading(first.options.consistency):
            found = iter(until_whole(partial(self._found, whole)))
        return [list(islice(found, len(batch.asked))) for batch in batches]

    def matrix(self, requests: Sequence[SearchRequest]) -> Matrix:
        """Logits and weights of every query over every document that filter and mask let pass.

        With documents as queries (`{"id": …}`) this is self-attention: `exclude_self` does not
        apply.

        Raises:
            InvalidRequest: the requests differ in more than their queries.
            LimitExceeded: the matrix has more cells than are sent at once.
        """
        if len({_options(request) for request in requests}) != 1:
            raise InvalidRequest(
                "A matrix has one set of options for all of its queries; send the same with each.",
                field="searches",
            )
        if any(request.query.mixture for request in requests):
            raise InvalidRequest(
                "A matrix has a row for each query, and a mixture is several; send its parts as "
                "queries, or search.",
                field="searches",
            )
        asked = self.asking.asked([request.query for request in requests])
        batch = Batch(asked, requests[0], (), (), (), ())
        return until_whole(partial(self._matrix, batch))

    def _matrix(self, batch: Batch) -> Matrix:
        view, rows, store = self._select(
            batch.options.model_copy(update={"attend": "all"}), batch.own
        )
        width = view.keys.documents if rows is None else len(rows)
        if len(batch.asked) * width > MAX_CELLS:
            raise LimitExceeded(
                f"{len(batch.asked)} queries over {width} documents are more than the "
                f"{MAX_CELLS} cells that are sent at once; filter, or send fewer queries."
            )
        words = self._overlaps(view, batch)
        found = attend_matrix(
            view, self._settings, batch.embeddings(view.made), rows, batch.options, words
        )
        attended = found.attended
        columns = np.unique(np.concatenate([found.documents for found in attended]))
        documents = store.values(columns)
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

    def _found(self, batch: Batch) -> list[Found]:
        options = batch.options
        with timed("search"):
            view, rows, store = self._select(options, batch.own)
            words = self._overlaps(view, batch)
        with timed("attend"):
            attention = attend(
                view,
                self._settings,
                batch.embeddings(view.made),
                rows,
                options,
                words,
                batch.weights,
            )
        with timed("fetch"):
            return self._read(batch, view, store, attention, rows)

    def _read(
        self, batch: Batch, view: View, store: Contents, attention: Attention, rows: Int64 | None
    ) -> list[Found]:
        options = batch.options
        reading = Reading(
            store,
            attention,
            rows,
            options,
            [fingerprint(str(view.version), each) for each in batch.fingerprints],
            [each.texts for each in batch.asked],
            batch.parts,
            self._types,
        )
        facets = self._facets(options)
        return [
            Found(
                self._answer(reading, query, view, facets, batch.began[query]),
                partial(measure_of, attention, self._settings, query),
            )
            for query in range(len(attention.attended))
        ]

    def _answer(
        self, reading: Reading, query: int, view: View, facets: Facets | None, started: float
    ) -> Answer:
        found, page = reading.attention.attended[query], reading.page(query)
        return Answer(
            hits=page.hits,
            answer=reading.answer(query),
            attended=found.total_documents,
            answered=reading.answered(query),
            confidence=found.confidence,
            calibrated=reading.attention.focus.calibrated,
            exact=reading.attention.exact,
            recall=reading.attention.recall,
            generation=view.change,
            projection=view.version,
            took_ms=round((time.perf_counter() - started) * 1000, 3),
            next=page.next,
            facets=facets,
            weighing=reading.weighing(query),
        )

    def _overlaps(self, view: View, batch: Batch) -> Sequence[Overlap] | None:
        """The lexical term of each embedding; None where words do not count."""
        texts = [text for asked in batch.asked for text in asked.texts]
        if not texts:
            return None
        found = overlaps(self._store, texts, strength_of(batch.options.lexical, view.tuning))
        if found is None:
            return None
        of = iter(found)
        return [
            blended([(next(of), said.share) for said in each])
            for asked in batch.asked
            for each in asked.said
        ]

    def _facets(self, options: SearchOptions) -> Facets | None:
        """Counted over what filter and mask let pass: a mask is a filter on ids."""
        if options.facets is None:
            return None
        parts: list[dict[str, Any]] = [options.filter or {}]
        if options.mask is not None:
            parts.append({"@id": {"nin": options.mask.exclude}})
            if options.mask.only is not None:
                parts.append({"@id": {"in": options.mask.only}})
        predicate = compile_filter({"$and": parts}) if any(parts) else None
        return self._store.facets(options.facets, predicate)


def _options(request: SearchRequest) -> str:
    """What is to be the same for requests to be answered together."""
    return request.model_dump_json(exclude={"query"})


def _strictest(requests: Sequence[SearchRequest]) -> Consistency | None:
    """What suits all of them, as their queries are read together."""
    said = {request.consistency for request in requests}
    return "strong" if "strong" in said else None if None in said else "bounded"


def _fingerprint(request: SearchRequest) -> str:
    """Of what is asked, and not of which page or what besides."""
    vector = request.query.vector
    if vector is None:
        return fingerprint(request.model_dump_json(exclude=PAGE))
    # As JSON a vector takes more time than most searches for it.
    options = request.model_dump_json(exclude=PAGE | {"query"})
    return fingerprint(options, array("d", vector).tobytes())


def _named(query: Query) -> list[Mapping[str, Json]]:
    """What the parts of a mixture are, as `explain` names them: by place, and id or text."""
    return [
        {"part": at, **part.model_dump(include={"id", "text"}, exclude_none=True)}
        for at, part in enumerate(query.mixture or ())
    ]


def until_whole(read: Callable[[], Result]) -> Result:
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
