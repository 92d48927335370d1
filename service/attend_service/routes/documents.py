"""Collections, aliases and documents: write, read, list, change, delete."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from pydantic import Field

from attend.api import documents as api
from attend.api.answers import Facets
from attend.api.base import ABSENT, NAME_PATTERN, Reply, Request
from attend.core import errors
from attend.core.settings import Settings
from attend.core.types import Document
from attend.store import StoredDocument
from attend.values.select import display_title
from attend_service import security
from attend_service.context import collection_of, context
from attend_service.operations import Operations
from attend_service.security import MAX_BATCH_BODY
from attend_service.settings import ServerSettings

log = logging.getLogger("attend")

collections = Operations("Collections")
aliases = Operations("Aliases")

BY_NAME = "/v1/collections/{collection}"
ALIASES = "/v1/aliases"
ALIAS = "/v1/aliases/{alias}"

operations = Operations("Documents")

ALL = "/v1/collections/{collection}/documents"
ONE = "/v1/collections/{collection}/documents/{id}"
FACETS = "/v1/collections/{collection}/documents/facets"
DELETE = "/v1/collections/{collection}/documents/delete"
LIST = "/v1/collections/{collection}/documents/list"
EXAMPLE = {
    "documents": [
        {
            "id": "moby-dick",
            "vector": [0.9, 0.1, 0.0],
            "value": {"stars": 4.2, "shelf": "sea"},
            "payload": {"title": "Moby-Dick", "year": 1851},
        },
        {
            "id": "emma",
            "vector": [0.0, 0.8, 0.6],
            "value": {"stars": 4.0, "shelf": "village"},
            "payload": {"title": "Emma", "year": 1815},
        },
    ]
}


class AliasRequest(Request):
    """The collection that an alias names."""

    collection: str = Field(pattern=NAME_PATTERN, examples=["books"])


class CollectionSummary(Reply):
    """A collection in a list."""

    name: str
    documents: int
    dimension: int
    encoder: str | None


class UnopenedCollection(Reply):
    """A collection that cannot be opened, with the name of the error."""

    name: str
    error: str


class CollectionList(Reply):
    """All collections that the key may see."""

    collections: Sequence[CollectionSummary | UnopenedCollection]


class DocumentAnswer(Reply):
    """A document as stored, without its vectors."""

    id: str
    fields: Mapping[str, str]
    value: Any
    payload: Mapping[str, Any]
    title: str = field(default_factory=lambda: ABSENT)
    """The display title; present if requested."""


class DocumentPage(Reply):
    """A page of documents."""

    documents: Sequence[DocumentAnswer]
    next: str | None
    """The cursor of the next page; null on the last."""
    total: int
    """The number of documents that match."""
    hints: Sequence[str] | None = None
    """If none matches: fields of the filter that no document has."""


class FacetsAnswer(Reply):
    """The most frequent values by field."""

    facets: Facets
    total: int
    """The number of documents that match."""


class AliasInfo(Reply):
    """An alias and its collection."""

    alias: str
    collection: str


class AliasList(Reply):
    """All aliases that the key may see."""

    aliases: Sequence[AliasInfo]


@collections.add("GET", "/v1/collections", checks_collections=True)
def list_collections() -> CollectionList:
    """List the collections."""
    return CollectionList([_summary(name) for name in security.visible(context().data.names())])


@collections.add(
    "PUT", BY_NAME, exact=True, statuses=(200, 201), example={"dimension": 3, "normalize": True}
)
def make_collection(
    collection: str, body: api.CollectionSettings
) -> tuple[api.CollectionInfo, int]:
    """Make a collection.

    201 if it is new, 200 if it exists with the same settings; other settings are a conflict.
    """
    data, server = context().data, context().settings
    if body.encoder is not None:
        security.check_encoder(body.encoder, server.allow_encoder)
    is_new = collection not in data.names()
    if is_new:
        security.check_new_collection(data, collection, server.max_collections)
        defaults: ServerSettings | Settings = server
    else:
        collection_of(collection).views.refresh()
        defaults = collection_of(collection).settings  # so a repeated request is no conflict
    index = {"recall": defaults.recall, "exact_below": defaults.exact_below}
    try:
        created = data.create(collection, **{**index, **body.model_dump(exclude_unset=True)})
    # Here the client chose the encoder; elsewhere one that fails is the server's own trouble.
    except errors.EncoderError as error:
        raise errors.InvalidRequest(str(error), field="encoder") from error
    return created.info(), 201 if is_new else 200


@collections.add("GET", BY_NAME)
def show_collection(collection: str) -> api.CollectionInfo:
    """Show a collection in figures, with its settings."""
    return collection_of(collection).info()


@collections.add("PATCH", BY_NAME, example={"recall": 0.99})
def change_settings(collection: str, body: api.SettingsChange) -> api.CollectionInfo:
    """Change settings of a collection; every process has them at its next request.

    The index has another `recall` or `exact_below` when it is written next: after enough writes, or
    by the command `attend configure`.
    """
    opened = collection_of(collection)
    opened.configure(**body.model_dump(exclude_unset=True))
    return opened.info()


@collections.add("DELETE", BY_NAME, exact=True)
def drop_collection(collection: str) -> None:
    """Delete a collection with everything in it; its jobs are cancelled."""
    data = context().data
    data.collection(collection)  # before anything is cancelled, it must be there
    data.check_droppable(collection)
    context().jobs.cancel_all(collection)
    data.drop(collection)


@aliases.add("GET", ALIASES, checks_collections=True)
def list_aliases() -> AliasList:
    """List the aliases and their collections."""
    names = context().data.aliases().items()
    return AliasList([AliasInfo(*pair) for pair in names if security.is_allowed(pair[1])])


@aliases.add(
    "PUT",
    ALIAS,
    exact=True,
    statuses=(200, 201),
    example={"collection": "books"},
    answer={"alias": "shelf", "collection": "books"},
    also=(404, 409),
)
def set_alias(alias: str, body: AliasRequest) -> tuple[AliasInfo, int]:
    """Point an alias at a collection, everywhere and from the next request on.

    201 if the alias is new, 200 if it was switched, which takes one step: every search is
    answered by one collection or by the other. A collection and an alias cannot share a name.
    """
    security.check_new_name(context().data, alias, "alias")
    is_new = context().data.set_alias(alias, body.collection)
    return AliasInfo(alias, body.collection), 201 if is_new else 200


@aliases.add("GET", ALIAS, also=(404,), checks_collections=True)
def show_alias(alias: str) -> AliasInfo:
    """Show the collection of an alias."""
    name = context().data.aliases().get(alias)
    if name is None or not security.is_allowed(name):
        raise errors.UnknownAlias(f"There is no alias {alias[:80]!r}.", field="alias")
    return AliasInfo(alias, name)


@aliases.add("DELETE", ALIAS, also=(404,))
def delete_alias(alias: str) -> None:
    """Delete an alias; its collection stays."""
    context().data.drop_alias(alias)


def _summary(name: str) -> CollectionSummary | UnopenedCollection:
    try:
        collection = collection_of(name)
        return CollectionSummary(
            name,
            collection.store.counts()[0],
            collection.settings.dimension,
            collection.settings.encoder,
        )
    except errors.OutOfFiles:
        raise
    # One collection that cannot be opened must not hide the others.
    except Exception as error:
        log.warning("The collection %r cannot be opened: %s", name, error)
        return UnopenedCollection(name, type(error).__name__)


@operations.add(
    "POST",
    ALL,
    bare="documents",
    single=True,
    body_limit=None,
    example=EXAMPLE,
    answer={"added": 2, "updated": 0, "revised": 0, "unchanged": 0, "encoded": 0},
    scope="write",
)
def upsert_documents(collection: str, body: api.UpsertRequest | list[Document]) -> api.Written:
    """Insert or replace documents, all or none.

    A document has texts, own vectors or both; a collection without an encoder needs a vector beside
    a text. What is unchanged is not encoded again. The next search finds what was written. A bare
    list is taken too, and so are a single document, and an uncompressed stream of Arrow's IPC
    format with columns of these names, whose other columns are the payload.
    """
    documents = body if isinstance(body, list) else [item.document() for item in body.documents]
    return collection_of(collection).upsert(documents, progress=False)


@operations.add("GET", ALL)
def list_documents(collection: str, query: api.ListingRequest) -> DocumentPage:
    """List, scroll or count documents, all or by filter, in the order in which they first came."""
    return _page(collection, query)


@operations.add("POST", LIST, example={"filter": {"year": {"lt": 1900}}, "limit": 1}, scope="read")
def list_by_filter(collection: str, body: api.ListingRequest) -> DocumentPage:
    """List documents as GET does, by a filter that is too long for an address."""
    return _page(collection, body)


@operations.add("GET", ONE)
def show_document(collection: str, id: str, query: api.ReadRequest) -> DocumentAnswer:
    """Show a document."""
    opened = collection_of(collection)
    with opened.consistent(query.consistency):
        return _document(opened.document(id), title=query.title)


@operations.add(
    "PATCH",
    ONE,
    body_limit=None,
    example={"value": {"stars": 4.3, "shelf": "sea"}, "payload": {"lent": True, "year": None}},
    scope="write",
)
def revise_document(collection: str, id: str, body: api.UpdateRequest) -> DocumentAnswer:
    """Change a document's value, its payload or both; nothing is encoded.

    The value is replaced; the payload is merged as RFC 7396 has it, so that null removes a member.
    A later build or upsert of the document puts back what that says.
    """
    return _document(collection_of(collection).revise(id, body))


@operations.add("DELETE", ONE, scope="write")
def delete_document(collection: str, id: str) -> None:
    """Delete a document."""
    if not collection_of(collection).delete([id]):
        raise errors.UnknownDocument(
            f"The collection {collection!r} has no document {id!r}; nothing was deleted.",
            field="id",
        )


@operations.add(
    "POST",
    DELETE,
    body_limit=MAX_BATCH_BODY,
    example={"ids": ["moby-dick"]},
    answer={"deleted": 1},
    scope="write",
)
def delete_documents(collection: str, body: api.DeletionRequest) -> api.Deleted:
    """Delete documents by ids or by filter, all or none; unknown ids are passed over."""
    opened = collection_of(collection)
    if body.filter is not None:
        return api.Deleted(opened.delete_matching(body.filter))
    return api.Deleted(opened.delete(body.ids or []))


@operations.add(
    "POST",
    FACETS,
    example={"fields": ["year", "shelf"], "filter": {"year": {"gte": 1800}}, "limit": 5},
    scope="read",
)
def count_values(collection: str, body: api.FacetsRequest) -> FacetsAnswer:
    """Count the values of fields, over all documents or those that match a filter."""
    opened = collection_of(collection)
    with opened.store.reading():
        facets = opened.facets(body.fields, body.filter, limit=body.limit)
        total = opened.page(body.filter, limit=0).total
    return FacetsAnswer(facets, total)


def _page(name: str, listing: api.ListingRequest) -> DocumentPage:
    collection = collection_of(name)
    with collection.consistent(listing.consistency):
        page = collection.page(listing.filter, cursor=listing.cursor, limit=listing.limit)
    documents = [_document(stored, title=listing.title) for stored in page.documents]
    return DocumentPage(documents, page.next, page.total, page.hints)


def _document(stored: StoredDocument, *, title: bool = False) -> DocumentAnswer:
    document = DocumentAnswer(stored.id, stored.fields, stored.value, stored.payload)
    if not title:
        return document
    return replace(document, title=display_title(*stored[1:]))
