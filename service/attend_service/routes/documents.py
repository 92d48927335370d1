"""Documents: write, read, list, revise, delete."""

from __future__ import annotations

from flask import Response

from attend.api.documents import (
    ArrowDocuments,
    Deleted,
    DeletionRequest,
    DocumentAnswer,
    DocumentPage,
    FacetsAnswer,
    FacetsRequest,
    ListingRequest,
    ReadRequest,
    UpdateRequest,
    UpsertRequest,
    Written,
)
from attend.core.errors import UnknownDocument
from attend.store import StoredDocument
from attend_service.context import collection_of
from attend_service.operations import Operations
from attend_service.replies import reply
from attend_service.security.limits import MAX_BATCH_BODY

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
    single=True,
    arrow=True,
    body_limit=None,
    returns={200: Written},
    example=EXAMPLE,
    scope="write",
)
def upsert_documents(collection: str, body: UpsertRequest | ArrowDocuments) -> Response:
    """Insert or replace documents, all or none.

    A document has texts, own vectors or both; a collection without an encoder needs a vector beside
    a text. What is unchanged is not encoded again. The next search finds what was written. A bare
    list is taken too, and so are a single document, and an uncompressed stream of Arrow's IPC
    format with columns of these names, whose other columns are the payload.
    """
    return reply(collection_of(collection).upsert(body.parsed, progress=False))


@operations.add("GET", ALL, query=ListingRequest, returns={200: DocumentPage})
def list_documents(collection: str, query: ListingRequest) -> Response:
    """List, scroll or count documents, all or by filter, in the order in which they first came."""
    opened = collection_of(collection)
    with opened.consistent(query.consistency):
        page = opened.page(query.filter, cursor=query.cursor, limit=query.limit)
    documents = [_document(stored) for stored in page.documents]
    return reply(DocumentPage(documents, page.next, page.total, page.hints))


@operations.add("GET", ONE, query=ReadRequest, returns={200: DocumentAnswer})
def show_document(collection: str, id: str, query: ReadRequest) -> Response:
    """Show a document."""
    opened = collection_of(collection)
    with opened.consistent(query.consistency):
        return reply(_document(opened.document(id)))


@operations.add(
    "PATCH",
    ONE,
    body=UpdateRequest,
    body_limit=None,
    returns={200: DocumentAnswer},
    example={"value": {"stars": 4.3, "shelf": "sea"}, "payload": {"lent": True, "year": None}},
    scope="write",
)
def revise_document(collection: str, id: str, body: UpdateRequest) -> Response:
    """Change a document's value, its payload or both; nothing is encoded.

    The value is replaced; the payload is merged as RFC 7396 has it, so that null removes a member.
    A later build or upsert of the document puts back what that says.
    """
    return reply(_document(collection_of(collection).revise(id, body)))


@operations.add("DELETE", ONE, returns={204: None}, scope="write")
def delete_document(collection: str, id: str) -> Response:
    """Delete a document."""
    if not collection_of(collection).delete([id]):
        raise UnknownDocument(
            f"The collection {collection!r} has no document {id!r}; nothing was deleted.",
            field="id",
        )
    return Response(status=204)


@operations.add(
    "POST",
    DELETE,
    body=DeletionRequest,
    body_limit=MAX_BATCH_BODY,
    returns={200: Deleted},
    example={"ids": ["moby-dick"]},
    scope="write",
)
def delete_documents(collection: str, body: DeletionRequest) -> Response:
    """Delete documents by ids or by filter, all or none; unknown ids are passed over."""
    opened = collection_of(collection)
    if body.filter is not None:
        return reply(Deleted(opened.delete_matching(body.filter)))
    return reply(Deleted(opened.delete(body.ids or [])))


@operations.add(
    "POST",
    FACETS,
    body=FacetsRequest,
    returns={200: FacetsAnswer},
    example={"fields": ["year", "shelf"], "filter": {"year": {"gte": 1800}}, "limit": 5},
    scope="read",
)
def count_values(collection: str, body: FacetsRequest) -> Response:
    """Count the values of fields, over all documents or those that match a filter."""
    opened = collection_of(collection)
    with opened.store.reading():
        facets = opened.facets(body.fields, body.filter, limit=body.limit)
        total = opened.page(body.filter, limit=0).total
    return reply(FacetsAnswer(facets, total))


def _document(stored: StoredDocument) -> DocumentAnswer:
    return DocumentAnswer(stored.id, stored.fields, stored.value, stored.payload)
