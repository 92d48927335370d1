"""Collections: list, make, look at, drop."""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import Any

from flask import Response

from attend import Collection
from attend.api.documents import CollectionSettings
from attend.errors import EncoderError, InvalidRequest
from attend_service.context import context
from attend_service.operations import Operations
from attend_service.replies import reply
from attend_service.schemas.stored import CollectionReply, Summaries
from attend_service.security.access import visible
from attend_service.security.limits import check_new_collection

log = logging.getLogger("attend")
operations = Operations("Collections")

BY_NAME = "/v1/collections/{collection}"
EXAMPLE = {"dimension": 3, "normalize": True}


@operations.add("GET", "/v1/collections", returns={200: Summaries}, own=True)
def list_collections() -> Response:
    """List the collections."""
    return reply({"collections": [_summary(name) for name in visible(context().data.names())]})


@operations.add(
    "PUT",
    BY_NAME,
    body=CollectionSettings,
    returns={200: CollectionReply, 201: CollectionReply},
    example=EXAMPLE,
)
def make_collection(collection: str, body: CollectionSettings) -> Response:
    """Make a collection.

    201 if it is new, 200 if it exists with the same settings; other settings are a conflict.
    """
    data = context().data
    is_new = collection not in data.names()
    if is_new:
        check_new_collection(data, collection, context().settings.max_collections)
    try:
        made = data.create(collection, **_settings(collection, body, is_new=is_new))
    # Here the client chose the encoder; elsewhere one that fails is the server's own trouble.
    except EncoderError as error:
        raise InvalidRequest(str(error), field="encoder") from error
    return reply(_figures(made), 201 if is_new else 200)


@operations.add("GET", BY_NAME, returns={200: CollectionReply})
def show_collection(collection: str) -> Response:
    """Show a collection in figures, with its settings."""
    return reply(_figures(context().data.collection(collection)))


@operations.add("DELETE", BY_NAME, returns={204: None})
def drop_collection(collection: str) -> Response:
    """Delete a collection with everything in it; its jobs are cancelled."""
    data = context().data
    data.collection(collection)  # before anything is cancelled, it must be there
    data.check_droppable(collection)
    context().jobs.cancel_of(collection)
    data.drop(collection)
    return Response(status=204)


def _settings(name: str, body: CollectionSettings, *, is_new: bool) -> dict[str, Any]:
    """What a client says, and of the index, where it says nothing, what the server or the
    collection has: a repeated request is no conflict."""
    has = context().settings if is_new else context().data.collection(name).settings
    index = {"recall": has.recall, "exact_below": has.exact_below}
    return {**index, **body.model_dump(exclude_unset=True)}


def _figures(collection: Collection) -> dict[str, Any]:
    return asdict(collection.info())


def _summary(name: str) -> dict[str, Any]:
    try:
        collection = context().data.collection(name)
        return {
            "name": name,
            "documents": collection.store.counts()[0],
            "dimension": collection.settings.dimension,
            "encoder": collection.settings.encoder,
        }
    # One collection that cannot be opened must not hide the others.
    except Exception as error:
        log.warning("The collection %r cannot be opened: %s", name, error)
        return {"name": name, "error": type(error).__name__}
