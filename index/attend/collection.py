"""A collection: documents in, attended answers out. Here the stations meet."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, overload

from attend.api.answers import Answer, Matrix, Predicted, Recommended
from attend.api.base import parse
from attend.api.recommend import RecommendRequest
from attend.api.search import MAX_BATCH, SearchRequest
from attend.coalesce import Coalescer
from attend.deadline import checked
from attend.encoder import Encoder
from attend.engines.engine import OpenedCollection
from attend.errors import InvalidRequest
from attend.recommend.history import Histories
from attend.recommend.next_items import Recommender
from attend.recommend.predictor import Predictor
from attend.search.answer import Answered, Answering, facets_of
from attend.search.attend import attend
from attend.search.queries import EncodedQuery, QueryEncoder, Search, score_words
from attend.search.scoring import AttentionOptions, Queries
from attend.search.several import check_cells, matrix_of, matrix_options
from attend.search.values import ValueTypes
from attend.settings import Settings
from attend.stored import StoredCollection
from attend.timings import collecting, tell, timed
from attend.types import Consistency
from attend.versions import until_stable

CHARACTERS = 100
"""Characters of text that cost about what searching for one more query does."""

TOGETHER = 64
"""Queries of different callers that are searched at once, or text that costs the same."""


class Collection(StoredCollection):
    """Documents, their keys, and the attention over them.

    Any number of threads may use one collection; any number of processes one folder.

    >>> answer = collection.search("compress a file", k=3, mode="soft")  # doctest: +SKIP
    >>> answer.answer["distribution"]  # doctest: +SKIP
    {'gzip': 0.61, 'zipfile': 0.24, ...}
    """

    def __init__(
        self, name: str, opened: OpenedCollection, encoders: Callable[[str], Encoder]
    ) -> None:
        super().__init__(name, opened, encoders)
        self._select = opened.select
        self._coalescer = Coalescer(self._answer, _cost, TOGETHER)
        self._compose()

    def adopt(self, settings: Settings) -> None:
        super().adopt(settings)
        self._compose()

    def _compose(self) -> None:
        """Make the parts that work by the settings."""
        self._queries = QueryEncoder(self.store, self.settings, self.encoder)
        self._types = ValueTypes(self.store, self.settings)
        histories = Histories(self.store, self._queries)
        self._recommender = Recommender(self.store, self.settings, self.views, histories)
        self._predictor = Predictor(self.store, self.views, histories)

    def search(self, query: str | Sequence[float] | Mapping[str, Any], **options: Any) -> Answer:
        """Attend to the documents that a query speaks to.

        Args:
            query: text, a vector (d,), or one of `{"text": …}`, `{"vector": …}`, `{"id": …}`,
                `{"ids": […]}` and `{"blend": [{"text": …, "weight": 2}, …]}`.
            options: the fields of `SearchOptions`, such as k, mode, filter, value.

        Raises:
            InvalidRequest: an option that is unknown or out of range.
        """
        return self.search_many([parse(SearchRequest, {"query": query, **options})])[0]

    def search_many(self, requests: Sequence[SearchRequest]) -> list[Answer]:
        """Answer requests together: one encoder call, and one search per set of options."""
        return [answered.answer for answered in self.answer(requests)]

    def answer(self, requests: Sequence[SearchRequest]) -> list[Answered]:
        """Answer requests, and give the attention behind each answer too.

        Requests of other callers with the same options are answered in the same call.
        """
        if len(requests) > MAX_BATCH:
            raise InvalidRequest(
                f"{len(requests)} searches were sent at once; at most {MAX_BATCH} are taken.",
                field="searches",
            )
        if self.settings.normalize is None:
            self.refresh()
        started = time.perf_counter()
        searches = [Search(request, request.query.parts(), started) for request in requests]
        groups: dict[Hashable, list[int]] = {}
        for place, search in enumerate(searches):
            groups.setdefault(_key(search), []).append(place)
        answers: dict[int, Answered] = {}
        with collecting() as spent:
            if len(groups) > 1:  # one call of the encoder for all
                with self.store.consistent(_strictest(requests)):
                    self._queries.encode_searches(searches)
            for key, places in checked(groups.items()):
                results = self._coalescer.join(key, [searches[place] for place in places])
                answers.update(zip(places, results, strict=True))
        tell(spent)
        timings = {stage: round(seconds * 1000, 3) for stage, seconds in spent.items()}
        for place, request in enumerate(requests):
            if request.explain:
                answer = replace(answers[place].answer, timings=timings)
                answers[place] = answers[place]._replace(answer=answer)
        return [answers[place] for place in range(len(requests))]

    @until_stable
    def _answer(self, groups: Sequence[Sequence[Search]]) -> list[list[Answered]]:
        """Answer searches of one set of options, of any number of callers, over one snapshot."""
        searches = [search for group in groups for search in group]
        options = searches[0].request
        with self.store.consistent(options.consistency):
            query = self._queries.encode_searches(searches)
            with timed("search"):
                view, rows, contents = self._select(
                    options, query.made_of if options.exclude_self else ()
                )
                words = score_words(self.store, query.texts, options.lexical, view.version.tuning)
            with timed("attend"):
                queries = Queries.of(query, view.version, words)
                attention = attend(view, self.settings, queries, AttentionOptions.of(options), rows)
            with timed("fetch"):
                facets = None if options.facets is None else facets_of(self.store, options)
                answering = Answering(searches, attention, rows, contents, self._types)
                answers = iter(answering.answers(facets))
        return [[next(answers) for _ in group] for group in groups]

    @until_stable
    def matrix(self, requests: Sequence[SearchRequest]) -> Matrix:
        """Return logits and weights of every query over every document that may be attended to.

        With documents as queries (`{"id": …}`) this is self-attention: `exclude_self` does not
        apply.

        Raises:
            InvalidRequest: the requests differ in more than their queries.
            LimitExceeded: the matrix has more cells than are sent at once.
        """
        self.refresh()
        options = matrix_options(requests)
        query = EncodedQuery.joined(self._queries.encode([request.query for request in requests]))
        view, rows, contents = self._select(options, ())
        check_cells(len(requests), view.keys.documents if rows is None else len(rows))
        words = score_words(self.store, query.texts, options.lexical, view.version.tuning)
        every = AttentionOptions.of(options)._replace(best=None)
        queries = Queries.of(query, view.version, words)
        return matrix_of(attend(view, self.settings, queries, every, rows), contents)

    @overload
    def recommend(self, *, target: None = None, **fields: Any) -> Recommended: ...

    @overload
    def recommend(self, *, target: Any, **fields: Any) -> Predicted: ...

    def recommend(self, **fields: Any) -> Recommended | Predicted:
        """Recommend what may come next for a user, by attention from their history; or with
        `target` predict what they would think of some documents, by attention over it.

        Args:
            fields: those of `RecommendRequest`: history, user, positive, negative, facts, k, …

        Raises:
            InvalidRequest: a field that is unknown or out of range, or a user without a history.
            UnknownDocument: an id that no document has.

        >>> collection.recommend(history=["dune", "emma"], k=3)  # doctest: +SKIP
        """
        return self.recommended(parse(RecommendRequest, fields))

    def recommended(self, request: RecommendRequest) -> Recommended | Predicted:
        """Answer a recommendation request that is validated already."""
        self.refresh()
        if request.target is not None:
            return self._predictor.predict(request)
        return self._recommender.next_items(request)


def _key(search: Search) -> Hashable:
    request, parts = search.request, search.parts
    # Without text there are no words, and what was fitted with them does not fit.
    worded = any(part.text and part.weight > 0 for part in parts)
    masked = tuple([part.id for part in parts if part.id]) if request.exclude_self else ()
    # A mixture has heads of its own: nothing is answered together with it.
    alone = None if request.query.mixture is None else object()
    return worded, masked, alone, request.model_dump_json(exclude={"query"})


def _cost(searches: Sequence[Search]) -> int:
    """Return the cost of searches, as a number of queries by vector."""
    texts = [part.text for search in searches for part in search.parts if part.text]
    return len(searches) + sum(map(len, texts)) // CHARACTERS


def _strictest(requests: Sequence[SearchRequest]) -> Consistency | None:
    """Return the consistency that suits all requests, as their queries are read together."""
    levels = {request.consistency for request in requests}
    return "strong" if "strong" in levels else None if None in levels else "bounded"
