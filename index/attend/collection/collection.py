"""A collection: documents in, attended answers out. Here the stations meet."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Unpack, overload

from attend.api.answers import Answer, Matrix, Predicted, Recommended
from attend.api.base import ABSENT, keywords_of, parse
from attend.api.feedback import FeedbackAdded, FeedbackItem, InteractionItem, InteractionsAdded
from attend.api.learning import TrainRequest
from attend.api.recommend import RecommendRequest
from attend.api.search import MAX_BATCH, SearchRequest
from attend.collection.stored import StoredCollection
from attend.collection.versions import until_stable
from attend.core.coalesce import Coalescer, collecting, tell, timed
from attend.core.deadline import check_deadline, limits
from attend.core.errors import InvalidRequest
from attend.core.progress import Progress, reported
from attend.core.settings import Settings
from attend.encoder import Encoder
from attend.engines.engine import OpenedCollection
from attend.learning import train
from attend.recommend.history import Histories
from attend.recommend.next_items import Recommender
from attend.recommend.predict import Predictor
from attend.search.answer import Answered, answers_of, check_cells, matrix_of, matrix_options
from attend.search.attend import AttentionOptions, attend
from attend.search.queries import EncodedQuery, FeedbackReader, QueryEncoder, Search, score_words
from attend.search.tokens import TokenReader, rerank
from attend.search.values import ValueTypes, with_value
from attend.write.feedback import add_feedback, add_interactions

if TYPE_CHECKING:
    from attend.api.keywords import RecommendKeywords, SearchKeywords, TrainKeywords

CHARACTERS = 100
"""Characters of text that cost about what searching for one more query does."""

TOGETHER = 64
"""Queries of different callers that are searched at once, or text that costs the same."""


class Collection(StoredCollection):
    """Documents, their keys, and the attention over them.

    Any number of threads may use one collection; any number of processes one folder.

    >>> answer = books.search([1.0, 0.1], k=1)
    >>> answer.hits[0].id, answer.hits[0].value["stars"]
    ('whale', 4.0)
    """

    def __init__(
        self, name: str, opened: OpenedCollection, encoders: Callable[[str], Encoder]
    ) -> None:
        super().__init__(name, opened, encoders)
        self._coalescer = Coalescer(self._answer, _cost, TOGETHER)
        self._compose()

    def _adopt(self, settings: Settings) -> None:
        super()._adopt(settings)
        self._compose()

    def _compose(self) -> None:
        """Make the parts that work by the settings."""
        self._queries = QueryEncoder(self.store, self.settings, self.encoder)
        self._tokens = TokenReader(self.settings, self.encoder)
        self._types = ValueTypes(self.store, self.settings)
        self._feedback = FeedbackReader(self.store)
        histories = Histories(self.store, self._queries, self.settings.value_name)
        self._recommender = Recommender(self.store, self.settings, self.views, histories)
        self._predictor = Predictor(self.store, self.views, histories)

    @keywords_of(SearchRequest)
    def search(
        self,
        query: str | Sequence[float] | Mapping[str, Any],
        **options: Unpack[SearchKeywords],
    ) -> Answer:
        """Search documents: the `k` best, with weights, and the answer that they give.

        Args:
            query: text, a vector (d,), or one of `{"text": …}`, `{"vector": …}`, `{"id": …}`,
                `{"ids": […]}` and `{"blend": [{"text": …, "weight": 2}, …]}`. A text with
                `vector=` is for words alone, and the vector is compared with the keys.
            options: the fields of `attend.api.search.SearchOptions`, which describes them: `k`
                hits; `filter` by payload and value; `mode` hard or soft, of the field `value`;
                `include=["text"]` for texts and passages; `lexical` for BM25.

        Raises:
            InvalidRequest: an option that is unknown or out of range.

        >>> [hit.id for hit in books.search([1.0, 0.1], k=2).hits]
        ['whale', 'ship']
        >>> answer = books.search([1.0, 0.1], mode="soft", value="stars", filter={"year": 1851})
        >>> answer.answer["mean"]
        4.0
        """
        return self.search_many([parse(SearchRequest, {"query": query, **options})])[0]

    def search_many(self, requests: Sequence[SearchRequest | Mapping[str, Any]]) -> list[Answer]:
        """Answer several searches together: one call of the encoder for all.

        Args:
            requests: each with its `query` and its options, as `search` takes them.

        >>> answers = books.search_many([{"query": [1.0, 0.1]}, {"query": {"id": "emma"}, "k": 1}])
        >>> [answer.hits[0].id for answer in answers]
        ['whale', 'ship']
        """
        searches = [
            request if isinstance(request, SearchRequest) else parse(SearchRequest, request)
            for request in requests
        ]
        return [result.answer for result in self.answered(searches)]

    def answered(self, requests: Sequence[SearchRequest]) -> list[Answered]:
        """Answer requests, and return the attention behind each answer too.

        Requests of other callers with the same options are answered in the same call.

        >>> from attend.api.search import SearchRequest
        >>> [result] = books.answered([SearchRequest(query={"id": "emma"}, k=1)])
        >>> result.answer.hits[0].id
        'ship'
        """
        if len(requests) > MAX_BATCH:
            sentence = f"{len(requests)} searches were sent at once; at most {MAX_BATCH} are taken."
            raise InvalidRequest(sentence, field="searches")
        if self.settings.normalize is None:
            self.views.refresh()
        started = time.perf_counter()
        searches: list[Search] = []
        groups: dict[Hashable, list[int]] = {}
        for place, request in enumerate(self._with_values(requests)):
            searches.append(Search(request, request.query.parts(), started))
            groups.setdefault(_key(searches[-1]), []).append(place)
        answers: dict[int, Answered] = {}
        with collecting() as spent:
            if len(groups) > 1:  # one call of the encoder for all
                strict = any(request.consistency == "strong" for request in requests)
                with self.consistent("strong" if strict else None):
                    self._queries.encode_searches(searches)
            for key, places in groups.items():
                check_deadline()
                results = self._coalescer.join(key, [searches[place] for place in places])
                answers.update(zip(places, results, strict=True))
        tell(spent)
        timings = {stage: round(seconds * 1000, 3) for stage, seconds in spent.items()}
        for place, request in enumerate(requests):
            if request.explain:
                answer = replace(answers[place].answer, timings=timings)
                answers[place] = answers[place]._replace(answer=answer)
        return [answers[place] for place in range(len(requests))]

    def _with_values(self, requests: Sequence[SearchRequest]) -> list[SearchRequest]:
        """Return requests in which the name of the values' column stands for the value."""
        if not any(request.filter or request.group_by or request.value for request in requests):
            return list(requests)
        self.views.refresh()  # another process may have built it meanwhile
        return [with_value(request, self.settings.value_name) for request in requests]

    @until_stable
    def _answer(self, groups: Sequence[Sequence[Search]]) -> list[list[Answered]]:
        """Answer searches of one set of options, of any number of callers, over one snapshot."""
        searches = list(chain.from_iterable(groups))
        options = searches[0].request
        with self.consistent(options.consistency):
            query = self._queries.encode_searches(searches)
            with timed("search"):
                view, rows = self.views.select(
                    options, query.made_of if options.exclude_self else ()
                )
                words = score_words(self.store, query.texts, options.lexical, view.version.tuning)
            with timed("attend"):
                queries = self._feedback.queries(query, words, view, options.memory)
                attention = attend(view, self.settings, queries, AttentionOptions.of(options), rows)
            with timed("fetch"):
                if options.rerank:
                    attention = rerank(attention, searches, self.store, self._tokens)
                answers = iter(
                    answers_of(
                        searches,
                        attention,
                        rows,
                        self.store,
                        self._types,
                        self._tokens,
                        self.foreign,
                    )
                )
        return [list(islice(answers, len(group))) for group in groups]

    @until_stable
    def matrix(self, requests: Sequence[SearchRequest | Mapping[str, Any]]) -> Matrix:
        """Return logits and weights of every query over every document that may be attended to.

        With documents as queries (`{"id": …}`) this is self-attention: `exclude_self` does not
        apply.

        Raises:
            InvalidRequest: the requests differ in more than their queries.
            LimitExceeded: the matrix has more cells than are sent at once.

        >>> matrix = books.matrix([{"query": {"id": "whale"}}, {"query": {"id": "emma"}}])
        >>> matrix.documents, len(matrix.weights[0])
        (['whale', 'emma', 'ship'], 3)
        """
        self.views.refresh()
        searches = [
            request if isinstance(request, SearchRequest) else parse(SearchRequest, request)
            for request in requests
        ]
        searches = self._with_values(searches)
        options = matrix_options(searches)
        query = EncodedQuery.joined(self._queries.encode([search.query for search in searches]))
        view, rows = self.views.select(options, ())
        check_cells(len(searches), view.keys.documents if rows is None else len(rows))
        words = score_words(self.store, query.texts, options.lexical, view.version.tuning)
        every = AttentionOptions.of(options)._replace(best=None)
        queries = self._feedback.queries(query, words, view, options.memory)
        return matrix_of(attend(view, self.settings, queries, every, rows), self.store)

    @overload
    def recommend(
        self, request: None = None, /, *, target: None = None, **fields: Unpack[RecommendKeywords]
    ) -> Recommended: ...

    @overload
    def recommend(
        self, request: None = None, /, *, target: Any, **fields: Unpack[RecommendKeywords]
    ) -> Predicted: ...

    @overload
    def recommend(self, request: RecommendRequest, /) -> Recommended | Predicted: ...

    @keywords_of(RecommendRequest)
    def recommend(
        self, request: RecommendRequest | None = None, /, **fields: Any
    ) -> Recommended | Predicted:
        """Recommend what may come next for a user, by attention from their history; or with
        `target` predict what they would think of some documents, by attention over it.

        Args:
            request: the whole request, validated already; instead of fields.
            fields: those of `attend.api.recommend.RecommendRequest`, which describes them: a
                `history` of ids, a `user` with stored interactions, `positive` and `negative`
                examples, `k`, `filter`, `explain`.

        Raises:
            InvalidRequest: a field that is unknown or out of range, or a user without a history.
            UnknownDocument: an id that no document has.

        >>> [hit.id for hit in books.recommend(history=["whale"], k=1).hits]
        ['ship']
        >>> rated = [{"id": "whale", "value": 5}]
        >>> round(books.recommend(history=rated, target="ship").predictions[0]["mean"], 3)
        5.0
        """
        if request is None:
            request = parse(RecommendRequest, fields)
        self.views.refresh()
        if request.target is not None:
            return self._predictor.predict(request)
        return self._recommender.next_items(request)

    def teach(
        self,
        items: Iterable[FeedbackItem | Mapping[str, Any]],
        *,
        delete_stored: bool = False,
        progress: Progress = None,
    ) -> FeedbackAdded:
        """Add feedback: labels of documents for queries, which `train` learns from.

        Args:
            items: each with `query`, the `id` of a document, and a `label`: above 0 relevant, by
                degree; 0 or below not relevant; 1 if absent.
            delete_stored: delete the feedback stored before, in the same transaction.
            progress: see `train`.

        Raises:
            UnknownDocument: no document has an item's id.
            InvalidRequest: another fault of an item; the details name all.

        >>> books.teach([{"query": [0.9, 0.2], "id": "whale"}]).examples
        1
        """
        with reported(progress) as report:
            return add_feedback(self, items, delete_stored=delete_stored, progress=report)

    def add_interactions(
        self,
        items: Iterable[InteractionItem | Mapping[str, Any]],
        *,
        delete_stored: bool = False,
        liked_from: float | None = ABSENT,
    ) -> InteractionsAdded:
        """Store which users interacted with which documents; `recommend` and `train` use them.

        Args:
            items: each with `user`, the `id` of a document, and perhaps a `value` and a `time`.
            delete_stored: delete the interactions stored before, in the same transaction.
            liked_from: from now on numbers from here up are likes; None chooses the threshold from
                the data, as it is unless one was set.

        Raises:
            UnknownDocument: no document has an item's id.
            InvalidRequest: another fault of an item; the details name all.

        >>> added = books.add_interactions([{"user": "ann", "id": "whale", "value": 5}])
        >>> added.interactions, added.liked_from
        (1, 5.0)
        """
        return add_interactions(self, items, delete_stored=delete_stored, liked_from=liked_from)

    @keywords_of(TrainRequest)
    def train(
        self,
        *,
        progress: Progress = None,
        cancelled: Callable[[], bool] | None = None,
        **fields: Unpack[TrainKeywords],
    ) -> dict[str, Any]:
        """Learn from what is stored, and answer by it from now on if it is significantly better.

        Nothing is changed before the end: a training that stops leaves everything as it was.

        Args:
            progress: True shows a bar, False none; by default one is shown in a terminal and in a
                notebook. A function receives the stage and the fraction done, 0 to 1.
            cancelled: called often; true stops the training.
            fields: those of `attend.api.learning.TrainRequest`, which describes them: the
                `objective` (ranking, answers, interactions or ratings), `parts`, `promote`.

        Returns: promoted, reason, version, before, after, and figures of what was learned from.

        Raises:
            InvalidRequest: a field out of range, or a collection that cannot be learned.
            Cancelled: `cancelled` returned true.

        >>> report = books.train(objective="ranking")
        >>> report["promoted"], report["reason"].split(",")[0]
        (False, '0 questions with a relevant document are stored')
        """
        with reported(progress) as report:
            return train(self, progress=report, cancelled=cancelled, **fields)


def _key(search: Search) -> Hashable:
    """Return what searches that are answered together have in common."""
    request, worded, masked = search.request, False, []
    for part in search.parts:
        # Without text there are no words, and what was fitted with them does not fit.
        worded = worded or bool(part.text and part.weight > 0)
        if part.id and request.exclude_self:
            masked.append(part.id)
    # A mixture has heads of its own: nothing is answered together with it.
    alone = None if request.query.mixture is None else object()
    names = sorted(request.model_fields_set - {"query"})
    options = repr([getattr(request, name) for name in names])
    # One of several callers reads for all of them, within its own limit.
    return worded, tuple(masked), alone, limits.most, tuple(names), options


def _cost(searches: Sequence[Search]) -> int:
    """Return the cost of searches, as a number of queries by vector."""
    texts = [part.text for search in searches for part in search.parts if part.text]
    return len(searches) + sum(map(len, texts)) // CHARACTERS
