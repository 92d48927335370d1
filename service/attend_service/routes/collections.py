"""Collections and aliases: list, make, show, delete."""

from __future__ import annotations

import logging
from typing import Any

from flask import Response

from attend.api.documents import (
    AliasInfo,
    AliasList,
    AliasRequest,
    CollectionInfo,
    CollectionList,
    CollectionSettings,
    CollectionSummary,
    SettingsChange,
    UnopenedCollection,
)
from attend.core.errors import EncoderError, InvalidRequest, OutOfFiles, UnknownAlias
from attend.core.settings import Settings
from attend_service.context import collection_of, context
from attend_service.operations import Operations
from attend_service.replies import reply
from attend_service.security.access import is_allowed, visible
from attend_service.security.limits import check_encoder, check_new_collection, check_new_name
from attend_service.settings import ServerSettings

log = logging.getLogger("attend")
operations = Operations("Collections")

aliases = Operations("Aliases")

BY_NAME = "/v1/collections/{collection}"
ALIASES = "/v1/aliases"
ALIAS = "/v1/aliases/{alias}"
EXAMPLE = {"dimension": 3, "normalize": True}


@operations.add("GET", "/v1/collections", returns={200: CollectionList}, checks_collections=True)
def list_collections() -> Response:
    """List the collections."""
    return reply(CollectionList([_summary(name) for name in visible(context().data.names())]))


@operations.add(
    "PUT",
    BY_NAME,
    body=CollectionSettings,
    exact=True,
    returns={200: CollectionInfo, 201: CollectionInfo},
    example=EXAMPLE,
)
def make_collection(collection: str, body: CollectionSettings) -> Response:
    """Make a collection.

    201 if it is new, 200 if it exists with the same settings; other settings are a conflict.
    """
    data, allowed = context().data, context().settings.allow_encoder
    if body.encoder is not None:
        check_encoder(body.encoder, allowed)
    is_new = collection not in data.names()
    if is_new:
        check_new_collection(data, collection, context().settings.max_collections)
    try:
        created = data.create(collection, **_settings(collection, body, is_new=is_new))
    # Here the client chose the encoder; elsewhere one that fails is the server's own trouble.
    except EncoderError as error:
        raise InvalidRequest(str(error), field="encoder") from error
    return reply(created.info(), 201 if is_new else 200)


@operations.add("GET", BY_NAME, returns={200: CollectionInfo})
def show_collection(collection: str) -> Response:
    """Show a collection in figures, with its settings."""
    return reply(collection_of(collection).info())


@operations.add(
    "PATCH", BY_NAME, body=SettingsChange, returns={200: CollectionInfo}, example={"recall": 0.99}
)
def change_settings(collection: str, body: SettingsChange) -> Response:
    """Change settings of a collection; every process has them at its next request.

    The index has another `recall` or `exact_below` when it is written next: after enough writes, or
    by the command `attend configure`.
    """
    opened = collection_of(collection)
    opened.configure(**body.model_dump(exclude_unset=True))
    return reply(opened.info())


@operations.add("DELETE", BY_NAME, exact=True, returns={204: None})
def drop_collection(collection: str) -> Response:
    """Delete a collection with everything in it; its jobs are cancelled."""
    data = context().data
    data.collection(collection)  # before anything is cancelled, it must be there
    data.check_droppable(collection)
    context().jobs.cancel_of(collection)
    data.drop(collection)
    return Response(status=204)


@aliases.add("GET", ALIASES, returns={200: AliasList}, checks_collections=True)
def list_aliases() -> Response:
    """List the aliases and their collections."""
    names = context().data.aliases().items()
    return reply(AliasList([AliasInfo(*pair) for pair in names if is_allowed(pair[1])]))


@aliases.add(
    "PUT",
    ALIAS,
    body=AliasRequest,
    exact=True,
    returns={200: AliasInfo, 201: AliasInfo},
    example={"collection": "books"},
    also=(404, 409),
)
def set_alias(alias: str, body: AliasRequest) -> Response:
    """Point an alias at a collection, everywhere and from the next request on.

    201 if the alias is new, 200 if it was switched, which takes one step: every search is
    answered by one collection or by the other. A collection and an alias cannot share a name.
    """
    check_new_name(context().data, alias, "alias")
    is_new = context().data.set_alias(alias, body.collection)
    return reply(AliasInfo(alias, body.collection), 201 if is_new else 200)


@aliases.add("GET", ALIAS, returns={200: AliasInfo}, also=(404,), checks_collections=True)
def show_alias(alias: str) -> Response:
    """Show the collection of an alias."""
    name = context().data.aliases().get(alias)
    if name is None or not is_allowed(name):
        raise UnknownAlias(f"There is no alias {alias[:80]!r}.", field="alias")
    return reply(AliasInfo(alias, name))


@aliases.add("DELETE", ALIAS, returns={204: None}, also=(404,))
def delete_alias(alias: str) -> Response:
    """Delete an alias; its collection stays."""
    context().data.drop_alias(alias)
    return Response(status=204)


def _settings(name: str, body: CollectionSettings, *, is_new: bool) -> dict[str, Any]:
    """Return the requested settings; for the index, the server's or the collection's fill gaps, so
    that a repeated request is no conflict."""
    if is_new:
        has: ServerSettings | Settings = context().settings
    else:
        collection_of(name).views.refresh()
        has = collection_of(name).settings
    index = {"recall": has.recall, "exact_below": has.exact_below}
    return {**index, **body.model_dump(exclude_unset=True)}


def _summary(name: str) -> CollectionSummary | UnopenedCollection:
    try:
        collection = collection_of(name)
        return CollectionSummary(
            name,
            collection.store.counts()[0],
            collection.settings.dimension,
            collection.settings.encoder,
        )
    except OutOfFiles:
        raise
    # One collection that cannot be opened must not hide the others.
    except Exception as error:
        log.warning("The collection %r cannot be opened: %s", name, error)
        return UnopenedCollection(name, type(error).__name__)
