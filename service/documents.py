"""Documents by filter: what the service asks of a collection beyond its own methods."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from index import Collection, Document
from index.errors import Detail, InvalidRequest
from index.ingest import Written, own_vector
from index.store import StoredDocument, compile_filter


class Page(NamedTuple):
    """Documents in the order in which they first came; `next` is where the next page begins."""

    documents: Sequence[StoredDocument]
    next: int | None
    total: int


def page(collection: Collection, filter: Mapping[str, Any] | None, after: int, limit: int) -> Page:
    predicate = compile_filter(filter or {})
    total = len(collection.store.matching(predicate)) if filter else count(collection)
    found = collection.store.scroll(after, limit + 1, predicate)
    more = len(found) > limit > 0
    return Page(found[:limit], found[limit - 1].row if more else None, total)


def count(collection: Collection) -> int:
    return collection.store.counts()[0]


def ids(collection: Collection) -> set[str]:
    return set(collection.store.all_ids())


def delete_matching(collection: Collection, filter: Mapping[str, Any]) -> int:
    """Delete what a filter lets pass, all or none. Returns how many documents went.

    Raises:
        InvalidRequest: the filter lets everything pass, which is more often a slip than meant.
    """
    if not filter:
        raise InvalidRequest(
            "An empty filter would delete every document; name a condition, or delete the "
            "collection.",
            field="filter",
        )
    rows = collection.store.matching(compile_filter(filter))
    return collection.delete([found.id for found in collection.store.values(rows).values()])


def upsert(collection: Collection, documents: Sequence[Document]) -> Written:
    """As `Collection.upsert`; an error says which of the documents are wrong."""
    try:
        return collection.upsert(documents)
    except InvalidRequest as error:
        error.details = error.details or _wrong(collection, documents)
        raise


def _wrong(collection: Collection, documents: Sequence[Document]) -> list[Detail]:
    times = Counter(document.id for document in documents)
    details: list[Detail] = []
    for at, document in enumerate(documents):
        if times[document.id] > 1:
            reason = f"the id {document.id!r} occurs {times[document.id]} times in this batch"
            details.append({"field": f"documents.{at}.id", "reason": reason})
        if document.fields and collection.settings.encoder is None:
            reason = "text was sent, but this collection takes vectors"
            details.append({"field": f"documents.{at}", "reason": reason})
        details += _wrong_vectors(collection, at, document)
    return details


def _wrong_vectors(collection: Collection, at: int, document: Document) -> list[Detail]:
    try:
        for vector in document.vectors.values():
            own_vector(vector, collection.settings)
    except InvalidRequest as error:
        return [{"field": f"documents.{at}.vector", "reason": str(error)}]
    return []
