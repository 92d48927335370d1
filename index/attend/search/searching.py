"""Searching: queries to answers, by way of embeddings, a view, attention and values."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import numpy as np

from attend.api.search import MAX_BATCH, SearchOptions, SearchRequest
from attend.attention import Attended
from attend.company import Company
from attend.consistency import reading
from attend.errors import Conflict, InvalidRequest, LimitExceeded
from attend.search.answering import Reading
from attend.search.answers import Answer, Facets, Matrix
from attend.search.asking import Asked, Asking, QueryEncoder
from attend.search.attend import Attention, Queries, attend
from attend.search.batches import Batch, grouped, joined, options_of, strictest
from attend.search.explaining import Vanished
from attend.search.measure import Measure, measure_of
from attend.search.paging import fingerprint
from attend.search.plan import AttentionOptions
from attend.search.selecting import Selects
from attend.search.value_types import ValueTypes
from attend.search.words import WordScores, score_words, word_weight
from attend.settings import Settings
from attend.store import CollectionStore, compile_filter
from attend.timings import collecting, tell, timed
from attend.types import Float64, Int64
from attend.views import View

ATTEMPTS = 5
"""How often a search starts again when a document it found goes before its value is read."""

MAX_CELLS = 1_000_000
"""Cells of an attention matrix in one response: about 20 MB of JSON."""

TOGETHER = 64
"""Queries of different callers that are searched at once, or as much text as costs the same."""

Result = TypeVar("Result")


class Found(NamedTuple):
    """An answer, and by what measure its weights are comparable with another collection's.

    `measure` is asked for only where there is another one.
    """

    answer: Answer
    measure: Callable[[], Measure]


class Searcher:
    """Answers the queries of one collection; any thread may call it."""

    def __init__(
        self,
        store: CollectionStore,
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
            self._in_company, lambda batch: batch.cost, TOGETHER
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
        started, groups = time.perf_counter(), grouped(requests)
        asked: Sequence[Asked] = ()
        if len(groups) > 1:  # one call of the encoder for all
            with reading(strictest(requests)):
                asked = self.asking.asked([request.query for request in requests])
        found: dict[int, Found] = {}
        for key, places in groups.items():
            chosen, known = [requests[at] for at in places], [asked[at] for at in places if asked]
            answered = self._company.join(key, Batch.of(chosen, started, known))
            found |= zip(places, answered, strict=True)
        return [found[at] for at in range(len(requests))]

    def _in_company(self, batches: Sequence[Batch]) -> list[list[Found]]:
        """Batches of the same options, of as many callers, as one."""
        whole = joined(batches)
        with reading(whole.options.consistency):
            asked = whole._replace(asked=self._asked(batches))
            found = iter(until_whole(partial(self._found, asked)))
        return [list(islice(found, len(batch.queries))) for batch in batches]

    def _asked(self, batches: Sequence[Batch]) -> list[Asked]:
        """The queries of all, those not known yet in one call of the encoder."""
        fresh = [query for batch in batches if not batch.asked for query in batch.queries]
        asked = iter(self.asking.asked(fresh) if fresh else ())
        return [
            each for batch in batches for each in batch.asked or islice(asked, len(batch.queries))
        ]

    def matrix(self, requests: Sequence[SearchRequest]) -> Matrix:
        """Logits and weights of every query over every document that filter and mask let pass.

        With documents as queries (`{"id": …}`) this is self-attention: `exclude_self` does not
        apply.

        Raises:
            InvalidRequest: the requests differ in more than their queries.
            LimitExceeded: the matrix has more cells than are sent at once.
        """
        if len({options_of(request) for request in requests}) != 1:
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
        queries = [request.query for request in requests]
        asked = self.asking.asked(queries)
        batch = Batch(queries, requests[0], (), (), (), asked)
        return until_whole(partial(self._matrix, batch))

    def _matrix(self, batch: Batch) -> Matrix:
        over_all = batch.options.model_copy(update={"attend": "all"})
        view, rows, store = self._select(over_all, ())
        width = view.keys.documents if rows is None else len(rows)
        if len(batch.asked) * width > MAX_CELLS:
            raise LimitExceeded(
                f"{len(batch.asked)} queries over {width} documents are more than the "
                f"{MAX_CELLS} cells that are sent at once; filter, or send fewer queries."
            )
        queries = Queries(batch.embeddings(view.made), self._words(view, batch))
        options = replace(attention_options(over_all), best=None)
        found = attend(view, self._settings, queries, options, rows)
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
            words = self._words(view, batch)
        with timed("attend"):
            queries = Queries(batch.embeddings(view.made), words, batch.weights)
            attention = attend(view, self._settings, queries, attention_options(options), rows)
        with timed("fetch"):
            return self._read(batch, view, store, attention, rows)

    def _read(
        self,
        batch: Batch,
        view: View,
        store: CollectionStore,
        attention: Attention,
        rows: Int64 | None,
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
            calibrated=reading.attention.scoring.plan.calibrated,
            exact=reading.attention.exact,
            recall=reading.attention.recall,
            generation=view.change,
            projection=view.version,
            took_ms=round((time.perf_counter() - started) * 1000, 3),
            next=page.next,
            facets=facets,
            weighing=reading.weighing(query),
        )

    def _words(self, view: View, batch: Batch) -> list[WordScores] | None:
        """Return the BM25 scores of each embedding; None where words do not count."""
        weight = word_weight(batch.options.lexical, view.tuning)
        texts = [part for asked in batch.asked for part in asked.said]
        return score_words(self._store, texts, weight)

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


def attention_options(options: SearchOptions) -> AttentionOptions:
    """Return what attention needs of a request."""
    ends = options.group_by is None and options.cursor is None
    return AttentionOptions(
        attend=options.attend,
        # One more than are listed, to tell whether more follow.
        best=options.k + options.offset + 1 if ends else None,
        scorer=options.scorer,
        scale=options.scale,
        heads=None if options.heads is None else tuple(options.heads),
        pool=options.pool,
        temperature=options.temperature,
        lexical=options.lexical,
        recall=options.recall,
    )


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
