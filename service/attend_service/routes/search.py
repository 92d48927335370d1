"""Searches: one, many, and one in the address line."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from flask import Response

from attend import Collection
from attend.api.answers import AcrossAnswer, Answer, KeyMap, Matrix
from attend.api.base import Reply, parse
from attend.api.search import AcrossRequest, BatchRequest, MapRequest, PlainSearch, SearchRequest
from attend.core.errors import AttendError, InvalidRequest, OverTime
from attend.measure.map import chart
from attend_service.context import check_opened, collection_of, context
from attend_service.operations import Operations
from attend_service.pages import search_page
from attend_service.problems import ProblemDetails, problem_of
from attend_service.replies import reply, wants_page
from attend_service.security.limits import MAX_BATCH_BODY

operations = Operations("Search")


class FailedSearch(Reply):
    """A search of a batch that has no answer; the others have theirs."""

    error: ProblemDetails


class BatchAnswers(Reply):
    """The answers in the order of the searches."""

    answers: Sequence[Answer | FailedSearch]
    took_ms: float
    matrix: Matrix | None = None


SEARCH = "/v1/collections/{collection}/search"
EXAMPLE: dict[str, Any] = {
    "query": [1.0, 0.2, 0.0],
    "k": 2,
    "filter": {"year": {"gte": 1800}},
    "mode": "soft",
    "value": "stars",
}


@operations.add(
    "POST",
    SEARCH,
    body=SearchRequest,
    returns={200: Answer},
    example=EXAMPLE,
    scope="read",
)
def search(collection: str, body: SearchRequest) -> Response:
    """Answer a query: the documents it attends to, and what they say together.

    `query` is a text, a vector, {"id": …} or {"ids": […]} for more of the same, or {"blend": […]}
    for several with weights. `mode` soft blends the values of all attended documents by their
    weights; hard takes the best document's. `next` is the cursor of the following page.
    """
    answer = collection_of(collection).search_many([body])[0]
    return reply(answer)


@operations.add(
    "POST",
    f"{SEARCH}/batch",
    body=BatchRequest,
    body_limit=MAX_BATCH_BODY,
    returns={200: BatchAnswers},
    example={"searches": [EXAMPLE, {"query": {"id": "emma"}, "k": 1}]},
    scope="read",
)
def search_batch(collection: str, body: BatchRequest) -> Response:
    """Answer up to 256 queries at once.

    A search that cannot be answered has its error in its place, and the others their answers;
    a batch in which a search is malformed is refused whole.
    """
    started = time.perf_counter()
    opened = collection_of(collection)
    answers = _answers(opened, body.searches)
    matrix = opened.matrix(body.searches) if body.matrix else None
    took_ms = round((time.perf_counter() - started) * 1000, 3)
    return reply(BatchAnswers(answers, took_ms, matrix))


@operations.add(
    "POST",
    "/v1/collections/{collection}/map",
    body=MapRequest,
    returns={200: KeyMap},
    example={"query": [1.0, 0.2, 0.0], "limit": 100},
    scope="read",
)
def map_keys(collection: str, body: MapRequest) -> Response:
    """Show the keys in two dimensions, with a query and what it attends to.

    The axes are principal components of the keys under `projection`; `before` tells where the
    same documents were under another version.
    """
    return reply(chart(collection_of(collection), body))


@operations.add(
    "POST",
    "/v1/search",
    body=AcrossRequest,
    returns={200: AcrossAnswer},
    example={"collections": ["books"], **EXAMPLE},
    also=(404, 409, 503),
    scope="read",
    checks_collections=True,
)
def search_collections(body: AcrossRequest) -> Response:
    """Ask several collections the same, and merge their hits by weight where that is sound.

    Each attends to its own `attend` best, and the weights are one softmax over all of these.
    That takes logits of one scale: the same encoder, projection, scorer, scale, temperature and
    tuning. Otherwise `merged` is false, and the answers of the collections stand side by side.
    """
    answer = context().data.search(body)
    check_opened(body.collections, answer.answers)
    return reply(answer)


@operations.add(
    "GET", "/search", query=PlainSearch, returns={200: Answer}, html=True, checks_collections=True
)
def plain_search(query: PlainSearch) -> Response:
    """Answer a text, for curl and for a browser.

    Takes every option of a search; `filter`, `mask` and `heads` are written as JSON.
    """
    if wants_page():
        if "mode" not in query.model_fields_set:  # a page begins with the blend, typed or linked to
            query = query.model_copy(update={"mode": "soft"})
        return search_page(query, None if query.q is None else _plain_answer(query))
    if query.q is None:
        raise InvalidRequest("There is no query; add one, as in /search?q=whales.", field="q")
    return reply(_plain_answer(query))


def _answers(
    collection: Collection, searches: list[SearchRequest]
) -> Sequence[Answer | FailedSearch]:
    try:
        return collection.search_many(searches)
    except OverTime:
        raise
    # One that fails takes all with it; alone, each shows whether it was the one.
    except AttendError:
        return [_answer_or_error(collection, search) for search in searches]


def _answer_or_error(collection: Collection, search: SearchRequest) -> Answer | FailedSearch:
    try:
        return collection.search_many([search])[0]
    except OverTime:
        raise
    except AttendError as error:
        return FailedSearch(problem_of(error))


def _plain_answer(query: PlainSearch) -> Answer:
    collection = collection_of(query.collection)
    return collection.search_many([parse(SearchRequest, query.request())])[0]
