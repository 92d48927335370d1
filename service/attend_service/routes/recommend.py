"""Recommending: the interactions of users, what may come next, and predicted values."""

from __future__ import annotations

from typing import Any

from flask import Response

from attend import feedback
from attend.api.answers import Predicted, Recommended
from attend.api.base import ABSENT
from attend.api.documents import Deleted
from attend.api.feedback import (
    InteractionDeletion,
    InteractionEntry,
    InteractionListing,
    InteractionsAdded,
    InteractionsAnswer,
    InteractionsRequest,
)
from attend.api.recommend import RecommendRequest
from attend.search.hits import cursor, fingerprint, place
from attend_service.context import collection_of
from attend_service.operations import Operations
from attend_service.replies import reply
from attend_service.security.limits import MAX_BATCH_BODY

operations = Operations("Recommendations")

RECOMMEND = "/v1/collections/{collection}/recommend"
INTERACTIONS = "/v1/collections/{collection}/interactions"

EXAMPLE: dict[str, Any] = {
    "history": ["emma", {"id": "moby-dick", "weight": 2, "value": 5, "time": "2024-05-17"}],
    "k": 3,
    "explain": True,
}


@operations.add(
    "POST",
    RECOMMEND,
    body=RecommendRequest,
    body_limit=MAX_BATCH_BODY,
    returns={200: Recommended | Predicted},
    example=EXAMPLE,
    scope="read",
)
def recommend(collection: str, body: RecommendRequest) -> Response:
    """Recommend what may come next, or predict what a user would think of something (`target`).

    The user is a `history` of documents, a `user` whose interactions are stored, `positive` and
    `negative` examples, `facts`, or several of these. Each part attends to the catalogue by itself,
    and `because` tells how much each had to do with a hit. With `target` it is the reverse: the
    target attends to the history, whose values make the prediction.
    """
    return reply(collection_of(collection).recommend(body))


@operations.add(
    "POST",
    INTERACTIONS,
    body=InteractionsRequest,
    body_limit=None,
    bare="items",
    single=True,
    returns={200: InteractionsAdded},
    example={"items": [{"user": "ann", "id": "emma", "value": 4, "time": "2024-05-17"}]},
    scope="write",
)
def add_interactions(collection: str, body: InteractionsRequest) -> Response:
    """Add interactions of users with documents, all or none.

    It counts at once as the history of these users, and in a model from the next training on.
    Numbers from `liked_from` up are likes; the threshold is chosen from the data, or set. The same
    user and document again replaces the earlier interaction. A bare list is taken too, and so is
    a single interaction.
    """
    opened = collection_of(collection)
    liked_from = body.liked_from if "liked_from" in body.model_fields_set else ABSENT
    return reply(feedback.add_interactions(opened, body.items, liked_from=liked_from))


@operations.add(
    "GET",
    INTERACTIONS,
    query=InteractionListing,
    returns={200: InteractionsAnswer},
    # Users and their interactions are read by those who write them, not by all who may search.
    scope="write",
    reads=True,
)
def list_interactions(collection: str, query: InteractionListing) -> Response:
    """List interactions, of one user or of all, page by page.

    This needs a key that may write, as it names all users and their interactions.
    """
    store = collection_of(collection).store
    scope = fingerprint("interactions", query.user or "")
    after = (0, 0) if query.cursor is None else tuple(map(int, place(query.cursor, scope, 2)))
    page = store.interaction_page((after[0], after[1]), query.limit, query.user)
    interactions, users = store.interaction_counts()
    items = [InteractionEntry(*stored) for stored in page.interactions]
    end = None if page.next is None else cursor(scope, page.next)
    liked_from = store.liking().liked_from
    return reply(InteractionsAnswer(items, end, interactions, users, liked_from))


@operations.add(
    "DELETE",
    INTERACTIONS,
    body=InteractionDeletion,
    returns={200: Deleted},
    example={"user": "ann"},
    scope="write",
)
def delete_interactions(collection: str, body: InteractionDeletion) -> Response:
    """Delete a user's interactions, those with documents, or a user's with these.

    All of them go with `{"all": true}`, and never for want of a word.
    """
    store = collection_of(collection).store
    return reply(Deleted(store.delete_interactions(body.user, body.documents)))
