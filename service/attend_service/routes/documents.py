"""Documents: write, read, list, revise, delete."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from flask import Response

from attend import Collection
from attend.api.documents import (
    DeletionRequest,
    FacetsRequest,
    ListingRequest,
    ReadRequest,
    UpdateRequest,
    UpsertRequest,
)
from attend.consistency import reading
from attend.errors import UnknownDocument
from attend.search.answers import facets_json
from attend.store import StoredDocument
from attend_service.context import context
from attend_service.operations import Operations
from attend_service.replies import reply
from attend_service.schemas.stored import (
    DeletedReply,
    DocumentReply,
    DocumentsReply,
    FacetsReply,
    WrittenReply,
)

operations = Operations("Documents")

ALL = "/v1/collections/{collection}/documents"
ONE = "/v1/collections/{collection}/documents/{id}"
FACETS = "/v1/collections/{collection}/documents/facets"
DELETE = "/v1/collections/{collection}/documents/delete"
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


@operations.add(
    "POST",
    ALL,
    body=UpsertRequest,
    bare="documents",
    returns={200: WrittenReply},
    example=EXAMPLE,
    scope="write",
)
def upsert_documents(collection: str, body: UpsertRequest) -> Response:
    """Insert or replace documents, all or none.

    A collection with an encoder takes `text` or `fields` instead of `vector`. What is unchanged
    is not encoded again. The next search finds what was written. A bare list is taken too.
    """
    written = _collection(collection).upsert([each.document() for each in body.documents])
    return reply(asdict(written))


@operations.add("GET", ALL, query=ListingRequest, returns={200: DocumentsReply})
def list_documents(collection: str, query: ListingRequest) -> Response:
    """List, scroll or count documents, all or by filter, in the order in which they first came."""
    with reading(query.consistency):
        found = _collection(collection).page(query.filter, cursor=query.cursor, limit=query.limit)
    documents = [_document(each) for each in found.documents]
    return reply({"documents": documents, "next": found.next, "total": found.total})


@operations.add("GET", ONE, query=ReadRequest, returns={200: DocumentReply})
def show_document(collection: str, id: str, query: ReadRequest) -> Response:
    """Show a document."""
    with reading(query.consistency):
        return reply(_document(_collection(collection).document(id)))


@operations.add(
    "PATCH",
    ONE,
    body=UpdateRequest,
    returns={200: DocumentReply},
    example={"value": {"stars": 4.3, "shelf": "sea"}, "payload": {"lent": True, "year": None}},
    scope="write",
)
def revise_document(collection: str, id: str, body: UpdateRequest) -> Response:
    """Change a document's value, its payload or both; nothing is encoded.

    The value is replaced; the payload is merged as RFC 7396 has it, so that null removes a member.
    A later build or upsert of the document puts back what that says.
    """
    return reply(_document(_collection(collection).revise(id, body)))


@operations.add("DELETE", ONE, returns={204: None}, scope="write")
def delete_document(collection: str, id: str) -> Response:
    """Delete a document."""
    if not _collection(collection).delete([id]):
        raise UnknownDocument(
            f"The collection {collection!r} has no document {id!r}; nothing was deleted.",
            field="id",
        )
    return Response(status=204)


@operations.add(
    "POST",
    DELETE,
    body=DeletionRequest,
    returns={200: DeletedReply},
    example={"ids": ["moby-dick"]},
    scope="write",
)
def delete_documents(collection: str, body: DeletionRequest) -> Response:
    """Delete documents by ids or by filter, all or none; unknown ids are passed over."""
    found = _collection(collection)
    if body.filter is not None:
        return reply({"deleted": found.delete_matching(body.filter)})
    return reply({"deleted": found.delete(body.ids or [])})


@operations.add(
    "POST",
    FACETS,
    body=FacetsRequest,
    returns={200: FacetsReply},
    example={"fields": ["year", "shelf"], "filter": {"year": {"gte": 1800}}, "limit": 5},
    scope="read",
)
def count_values(collection: str, body: FacetsRequest) -> Response:
    """Count the values of fields, over all documents or those that match a filter."""
    found = _collection(collection)
    counted = facets_json(found.facets(body.fields, body.filter, limit=body.limit))
    return reply({"facets": counted, "total": found.page(body.filter, limit=0).total})


def _collection(name: str) -> Collection:
    return context().data.collection(name)


def _document(stored: StoredDocument) -> dict[str, Any]:
    return {
        "id": stored.id,
        "fields": stored.fields,
        "value": stored.value,
        "payload": stored.payload,
    }
