"""A collection: documents in, attended answers out. Here the stations meet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

from attend.api.answers import Answer, Matrix, Predicted, Recommended
from attend.api.base import parse
from attend.api.recommend import RecommendRequest
from attend.api.search import SearchRequest
from attend.encoder import Encoder
from attend.engines.engine import OpenedCollection
from attend.recommend.history import Histories
from attend.recommend.next_items import Recommender
from attend.recommend.predictor import Predictor
from attend.search.answer import Answering, attention_options, facets_of
from attend.search.attend import attend
from attend.search.encode import QueryEncoder
from attend.search.matrix import attention_matrix, searches_of
from attend.search.schedule import (
    Answered,
    Scheduler,
    Search,
    by_caller,
    encode_searches,
    made_of,
    queries_of,
    texts_of,
    until_stable,
)
from attend.search.values import ValueTypes
from attend.search.words import score_words
from attend.stored import StoredCollection
from attend.timings import timed


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
        self._queries = QueryEncoder(self.store, self.settings, self.encoder)
        self._types = ValueTypes(self.store, self.settings)
        self._scheduler = Scheduler(self._answer, self._queries, self.store)
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
        return [answered.answer for answered in self._scheduler.answer(requests)]

    def answer(self, requests: Sequence[SearchRequest]) -> list[Answered]:
        """Answer requests, and give the attention behind each answer too."""
        return self._scheduler.answer(requests)

    @until_stable
    def _answer(self, groups: Sequence[Sequence[Search]]) -> list[list[Answered]]:
        """Answer searches of one set of options, of any number of callers, over one snapshot."""
        searches = [search for group in groups for search in group]
        options = searches[0].request
        with self.store.consistent(options.consistency):
            encode_searches(searches, self._queries)
            with timed("search"):
                view, rows, contents = self._select(options, made_of(searches))
                tuning, texts = view.made.tuning, texts_of(searches)
                words = score_words(self.store, texts, options.lexical, tuning)
            with timed("attend"):
                queries = queries_of(searches, view.made, words)
                attention = attend(view, self.settings, queries, attention_options(options), rows)
            with timed("fetch"):
                answering = Answering(searches, attention, rows, contents, self._types)
                answers = answering.answers(facets_of(self.store, options))
        return by_caller(answers, groups)

    def matrix(self, requests: Sequence[SearchRequest]) -> Matrix:
        """Return logits and weights of every query over every document that may be attended to.

        With documents as queries (`{"id": …}`) this is self-attention: `exclude_self` does not
        apply.

        Raises:
            InvalidRequest: the requests differ in more than their queries.
            LimitExceeded: the matrix has more cells than are sent at once.
        """
        searches = searches_of(requests, self._queries)
        return attention_matrix(searches, self.settings, self._select, self.store)

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
        if request.target is not None:
            return self._predictor.predict(request)
        return self._recommender.next_items(request)
