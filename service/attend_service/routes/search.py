"""Searches: one, many, and one in the address line; recommending, and the interactions of users."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from flask import Response

from attend import Collection
from attend.api import feedback as api
from attend.api.answers import (
    AcrossAnswer,
    Answer,
    KeyMap,
    MapColumns,
    Matrix,
    Predicted,
    Recommended,
)
from attend.api.base import ABSENT, Reply, parse
from attend.api.documents import Deleted
from attend.api.recommend import RecommendRequest
from attend.api.search import (
    AcrossRequest,
    BatchRequest,
    MapColumnsRequest,
    MapRequest,
    PlainSearch,
    SearchRequest,
)
from attend.core.errors import AttendError, InvalidRequest, OverTime
from attend.measure.map import chart, chart_columns
from attend.search.hits import cursor, fingerprint, place
from attend.values.blends import ANSWER_KEYS
from attend.values.select import display_title
from attend.write import feedback
from attend_service.context import check_opened, collection_of, context
from attend_service.operations import Operations
from attend_service.pages import search_page, vector_query
from attend_service.replies import ProblemDetails, problem_of, wants_page
from attend_service.security import MAX_BATCH_BODY

operations = Operations("Search")
recommendations = Operations("Recommendations")

SEARCH = "/v1/collections/{collection}/search"
INTERACTIONS = "/v1/collections/{collection}/interactions"
USERS = "/v1/collections/{collection}/users"
EXAMPLE: dict[str, Any] = {
    "query": [1.0, 0.2, 0.0],
    "k": 2,
    "filter": {"year": {"gte": 1800}},
    "mode": "soft",
    "value": "stars",
}


SEA, VILLAGE = {"title": "Moby-Dick", "year": 1851}, {"title": "Emma", "year": 1815}
ANSWER: dict[str, Any] = {
    "hits": [
        {"id": "moby-dick", "score": 19.92, "weight": 1.0, "value": 4.2, "payload": SEA},
        {"id": "emma", "score": 3.14, "weight": 5.1e-8, "value": 4.0, "payload": VILLAGE},
    ],
    "answer": dict.fromkeys(ANSWER_KEYS)
    | {"type": "number", "mean": 4.2, "std": 4.5e-5, "effective_sample_size": 1.0, "coverage": 1.0},
    **{"attended": 2, "answered": True, "confidence": None, "calibrated": None, "exact": True},
    **{"generation": 1, "projection": 1, "took_ms": 1.9, "next": None},
}


class FailedSearch(Reply):
    """A search of a batch that has no answer; the others have theirs."""

    error: ProblemDetails


class BatchAnswers(Reply):
    """The answers in the order of the searches."""

    answers: Sequence[Answer | FailedSearch]
    took_ms: float
    matrix: Matrix | None = None


@operations.add("POST", SEARCH, example=EXAMPLE, answer=ANSWER, scope="read")
def search(collection: str, body: SearchRequest) -> Answer:
    """Answer a query: the documents it attends to, and what they say together.

    `query` is a text, a vector, {"id": …} or {"ids": […]} for more of the same, or {"blend": […]}
    for several with weights. `mode` soft blends the values of all attended documents by their
    weights; hard takes the best document's. `next` is the cursor of the following page.
    """
    return collection_of(collection).search_many([body])[0]


@operations.add(
    "POST",
    f"{SEARCH}/batch",
    body_limit=MAX_BATCH_BODY,
    example={"searches": [EXAMPLE, {"query": {"id": "emma"}, "k": 1}]},
    scope="read",
)
def search_batch(collection: str, body: BatchRequest) -> BatchAnswers:
    """Answer up to 256 queries at once.

    A search that cannot be answered has its error in its place, and the others their answers;
    a batch in which a search is malformed is refused whole.
    """
    started = time.perf_counter()
    opened = collection_of(collection)
    answers = _answers(opened, body.searches)
    matrix = opened.matrix(body.searches) if body.matrix else None
    took_ms = round((time.perf_counter() - started) * 1000, 3)
    return BatchAnswers(answers, took_ms, matrix)


@operations.add(
    "POST",
    "/v1/collections/{collection}/map",
    example={"query": [1.0, 0.2, 0.0], "limit": 100},
    scope="read",
)
def map_keys(collection: str, body: MapRequest) -> KeyMap:
    """Show the keys in two dimensions, with a query and what it attends to.

    The axes are principal components of the keys under `projection`; `before` tells where the
    same documents were under another version.
    """
    return chart(collection_of(collection), body)


@operations.add(
    "POST",
    "/v1/collections/{collection}/map/columns",
    example={"colour": "year", "limit": 100},
    scope="read",
)
def map_columns(collection: str, body: MapColumnsRequest) -> MapColumns:
    """Show up to 100,000 keys in two dimensions, as columns.

    t-SNE is computed in the background after the keys were published. While it is not there,
    `method` is pca, and `pending` tells the progress; ask again with `limit` 0 to follow it.
    """
    opened = collection_of(collection)
    columns = chart_columns(opened, body)
    if columns.method != body.method:
        before = () if body.before is None else (body.before,)
        columns.pending = context().maps.want(opened, columns.projection, *before)
    return columns


@operations.add(
    "POST",
    "/v1/search",
    example={"collections": ["books"], **EXAMPLE},
    also=(404, 409, 503),
    scope="read",
    checks_collections=True,
)
def search_collections(body: AcrossRequest) -> AcrossAnswer:
    """Ask several collections the same, and merge their hits by weight where that is sound.

    Each attends to its own `attend` best, and the weights are one softmax over all of these.
    That takes logits of one scale: the same encoder, projection, scorer, scale, temperature and
    tuning. Otherwise `merged` is false, and the answers of the collections stand side by side.
    """
    answer = context().data.search(body)
    check_opened(body.collections, answer.answers)
    return answer


@operations.add("GET", "/search", html=True, checks_collections=True)
def plain_search(query: PlainSearch) -> Answer | Response:
    """Answer a text, for curl and for a browser.

    Takes every option of a search; `filter`, `mask` and `heads` are written as JSON.
    """
    is_page = wants_page()
    if is_page and "mode" not in query.model_fields_set:
        query = query.model_copy(update={"mode": "soft"})  # it begins with the blend
    answer = None
    if query.q is not None:
        collection, fields = collection_of(query.collection), query.request()
        if is_page and collection.settings.encoder is None:
            fields["query"] = vector_query(query.q)
        answer = collection.search_many([parse(SearchRequest, fields)])[0]
    if is_page:
        return search_page(query, answer)
    if answer is None:
        raise InvalidRequest("There is no query; add one, as in /search?q=whales.", field="q")
    return answer


def _answers(
    collection: Collection, searches: list[SearchRequest]
) -> Sequence[Answer | FailedSearch]:
    try:
        return collection.search_many(searches)
    except OverTime:
        raise
    except AttendError as error:
        if len(searches) == 1:
            return [FailedSearch(problem_of(error))]
        # One that fails takes all with it; alone, each shows whether it was the one.
        return [answer for search in searches for answer in _answers(collection, [search])]


@recommendations.add(
    "POST",
    "/v1/collections/{collection}/recommend",
    body_limit=MAX_BATCH_BODY,
    example={
        "history": ["emma", {"id": "moby-dick", "weight": 2, "value": 5, "time": "2024-05-17"}],
        "k": 3,
        "explain": True,
    },
    scope="read",
)
def recommend(collection: str, body: RecommendRequest) -> Recommended | Predicted:
    """Recommend what may come next, or predict what a user would think of something (`target`).

    The user is a `history` of documents, a `user` whose interactions are stored, `positive` and
    `negative` examples, `facts`, or several of these. Each part attends to the catalogue by itself,
    and `because` tells how much each had to do with a hit. With `target` it is the reverse: the
    target attends to the history, whose values make the prediction.
    """
    return collection_of(collection).recommend(body)


@recommendations.add(
    "POST",
    INTERACTIONS,
    body_limit=None,
    bare="items",
    single=True,
    example={"items": [{"user": "ann", "id": "emma", "value": 4, "time": "2024-05-17"}]},
    answer={"added": 1, "replaced": 0, "interactions": 1, "users": 1, "liked_from": 4.0},
    scope="write",
)
def add_interactions(collection: str, body: api.InteractionsRequest) -> api.InteractionsAdded:
    """Add interactions of users with documents, all or none.

    It counts at once as the history of these users, and in a model from the next training on.
    Numbers from `liked_from` up are likes; the threshold is chosen from the data, or set. The same
    user and document again replaces the earlier interaction. A bare list is taken too, and so is
    a single interaction.
    """
    opened = collection_of(collection)
    liked_from = body.liked_from if "liked_from" in body.model_fields_set else ABSENT
    return feedback.add_interactions(
        opened, body.items, delete_stored=body.delete_stored, liked_from=liked_from
    )


# Users and their interactions are read by those who write them, not by all who may search.
@recommendations.add("GET", INTERACTIONS, scope="write", reads=True)
def list_interactions(collection: str, query: api.InteractionListing) -> api.InteractionsAnswer:
    """List interactions, of one user or of all, page by page.

    This needs a key that may write, as it names all users and their interactions.
    """
    store = collection_of(collection).store
    scope = fingerprint("interactions", query.user or "")
    after = (0, 0) if query.cursor is None else tuple(map(int, place(query.cursor, scope, 2)))
    page, following = store.interaction_page((after[0], after[1]), query.limit, query.user)
    interactions, users = store.interaction_counts()
    items = [api.InteractionEntry(*stored) for stored in page]
    end = None if following is None else cursor(scope, following)
    liked_from = store.liking().liked_from
    return api.InteractionsAnswer(items, end, interactions, users, liked_from)


@recommendations.add("GET", USERS, scope="write", reads=True)
def list_users(collection: str, query: api.UserListing) -> api.UsersAnswer:
    """List the users whose interactions are stored, those with most first, page by page.

    This needs a key that may write, as the list of interactions does.
    """
    store = collection_of(collection).store
    scope = fingerprint("users", query.contains or "")
    after = (0, 0) if query.cursor is None else tuple(map(int, place(query.cursor, scope, 2)))
    page, following = store.user_page((after[0], after[1]), query.limit, query.contains)
    documents = store.find([id for user in page for id in user.latest])
    titles = {id: display_title(*document[1:]) for id, document in documents.items()}
    items = [
        api.UserEntry(
            user.name,
            user.interactions,
            [api.LatestDocument(id, titles[id]) for id in user.latest if id in titles],
        )
        for user in page
    ]
    end = None if following is None else cursor(scope, following)
    return api.UsersAnswer(items, end, store.interaction_counts()[1])


@recommendations.add("DELETE", INTERACTIONS, example={"user": "ann"}, scope="write")
def delete_interactions(collection: str, body: api.InteractionDeletion) -> Deleted:
    """Delete a user's interactions, those with documents, or a user's with these.

    All of them go with `{"all": true}`, and never for want of a word.
    """
    store = collection_of(collection).store
    return Deleted(store.delete_interactions(body.user, body.documents))
