"""Haystack: a document store over a collection, and retrievers by embedding and by text.

```
store = AttendDocumentStore("library", "docs")
store.write_documents([Document(content="A castaway is forced to work on a sealing ship.")])
pipeline.add_component("retriever", AttendTextRetriever(store))
```

The content of a document is its text, its embedding its own vector, its meta the payload; meta read
back has the fields of the value, too. Embeddings are kept as keys, and documents are returned
without them.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from functools import cached_property
from typing import Any

from haystack import Document, component, default_from_dict, default_to_dict
from haystack.document_stores.errors import DuplicateDocumentError
from haystack.document_stores.types import DuplicatePolicy, FilterPolicy, apply_filter_policy
from haystack.errors import FilterError
from haystack.utils import Secret

import attend
from attend.api.answers import Answer, Hit
from attend.api.base import DEFAULT_COLLECTION
from attend.collection.collection import Collection
from attend.connect.framework import (
    EVERY,
    Filter,
    in_thread,
    joined,
    listed,
    metadata,
    searched,
    similarities,
    text_of,
)
from attend.core.errors import InvalidRequest
from attend.core.types import Json
from attend.store import StoredDocument, compile_filter

REST = "_document"
"""The field of the payload for what a document has beside content, meta and embedding."""


class AttendDocumentStore:
    """A document store of Haystack that keeps documents in a collection.

    Filters follow Haystack's language with three differences: 1, 1.0 and true are two values, not
    one; a list meets what one of its elements meets; dates are compared as texts, so that they need
    one form. A method with `_async` at the end of its name runs in a thread.
    """

    def __init__(
        self,
        where: str,
        collection: str = DEFAULT_COLLECTION,
        *,
        api_key: Secret | None = None,
        settings: dict[str, Any] | None = None,
    ) -> None:
        """
        Args:
            where: the folder of a library, or the address of a server; opened at the first use.
            collection: its name; it is created where no collection has it.
            api_key: of a server.
            settings: of a new collection, as `Data.create` takes them: `{"dimension": 384}` for
                documents that bring embeddings; by default it has the packaged encoder.
        """
        self.where, self.name = where, collection
        self.api_key, self.settings = api_key, settings

    @cached_property
    def collection(self) -> Collection:
        """The collection, opened at the first use."""
        key = {} if self.api_key is None else {"api_key": self.api_key.resolve_value()}
        return attend.open(self.where, **key).ensure(self.name, **(self.settings or {}))

    def to_dict(self) -> dict[str, Any]:
        """Return the store as a dictionary, without documents and without a plain key."""
        description: dict[str, Any] = default_to_dict(
            self,
            where=self.where,
            collection=self.name,
            api_key=self.api_key,
            settings=self.settings,
        )
        return description

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> AttendDocumentStore:
        """Return the store that `to_dict` described."""
        store: AttendDocumentStore = default_from_dict(cls, data)
        return store

    # -- documents ------------------------------------------------------------------------------

    def count_documents(self) -> int:
        """Return the number of documents."""
        return self.count_documents_by_filter({})

    def count_documents_by_filter(self, filters: dict[str, Any]) -> int:
        """Return the number of documents that pass the filters."""
        return self.collection.page(filter_of(filters), limit=0).total

    def filter_documents(self, filters: dict[str, Any] | None = None) -> list[Document]:
        """Return the documents that pass the filters, in the order in which they first came."""
        return [document_of(stored) for stored in self._listed(filters)]

    def write_documents(
        self, documents: list[Document], policy: DuplicatePolicy = DuplicatePolicy.NONE
    ) -> int:
        """Write documents, all or none, and return how many were written.

        Args:
            policy: for an id that exists already: FAIL, and NONE like it, writes nothing; SKIP
                keeps the stored document; OVERWRITE replaces it.

        Raises:
            ValueError: something else than a list of documents.
            DuplicateDocumentError: an id that exists, under FAIL and NONE.
        """
        if not isinstance(documents, list) or not all(
            isinstance(document, Document) for document in documents
        ):
            raise ValueError(
                f"write_documents takes a list of Documents, but {documents!r:.80} was given."
            )
        by_id = {document.id: document for document in documents}
        if policy is not DuplicatePolicy.OVERWRITE:
            by_id = {document.id: document for document in reversed(documents)}
            stored = [row.id for row in listed(self.collection, {"@id": {"in": list(by_id)}})]
            if policy is not DuplicatePolicy.SKIP and (stored or len(by_id) < len(documents)):
                raise DuplicateDocumentError(
                    f"{', '.join(stored[:3]) or 'An id'} exists already, and nothing was written; "
                    f"send the policy SKIP or OVERWRITE, or other ids."
                )
            for id in stored:
                del by_id[id]
        encodes = self.collection.info().encoder is not None
        new = [document for document in documents if by_id.get(document.id) is document]
        self.collection.upsert([_request_of(document, encodes) for document in new])
        return len(documents) if policy is DuplicatePolicy.OVERWRITE else len(by_id)

    def delete_documents(self, document_ids: list[str]) -> None:
        """Delete the documents of these ids; unknown ids are passed over."""
        self.collection.delete(document_ids)

    def delete_all_documents(self) -> None:
        """Delete all documents; settings, feedback and trained versions stay."""
        self.collection.delete_matching(EVERY)

    def delete_by_filter(self, filters: dict[str, Any]) -> int:
        """Delete the documents that pass the filters, and return their number."""
        return self.collection.delete_matching(filter_of(filters) or EVERY)

    def update_by_filter(self, filters: dict[str, Any], meta: dict[str, Any]) -> int:
        """Merge fields into the meta of the documents that pass the filters; return their number.

        Objects are merged member by member, and None removes a field (RFC 7396).
        """
        ids = [stored.id for stored in self._listed(filters)]
        for id in ids:
            self.collection.revise(id, {"payload": meta})
        return len(ids)

    # -- fields of the meta ----------------------------------------------------------------------

    def count_unique_metadata_by_filter(
        self, filters: dict[str, Any], metadata_fields: list[str]
    ) -> dict[str, int]:
        """Return the number of different values of each field, over documents that pass filters.

        A list counts for each of its values.
        """
        names = [_name(field) for field in metadata_fields]
        facets = self.collection.facets(names, filter_of(filters), limit=1)
        return {name: facets[name].distinct for name in names}

    def get_metadata_fields_info(self) -> dict[str, dict[str, str]]:
        """Return the type of each field: keyword, int, float or boolean. Reads all documents."""
        names = {bool: "boolean", int: "int", float: "float"}
        return {
            field: {"type": names.get(type(value), "keyword")}
            for stored in self._listed()
            for field, value in document_of(stored).meta.items()
            if value is not None
        }

    def get_metadata_field_min_max(self, metadata_field: str) -> dict[str, Any]:
        """Return the least and the greatest value of a field, None where its values have no order.

        Reads all documents.
        """
        values: list[Any] = [*self._values(metadata_field)]
        try:
            return {"min": min(values, default=None), "max": max(values, default=None)}
        except TypeError:
            return {"min": None, "max": None}

    def get_metadata_field_unique_values(
        self,
        metadata_field: str,
        search_term: str | None = None,
        from_: int = 0,
        size: int = 10,
        filters: dict[str, Any] | None = None,
    ) -> tuple[list[Any], int]:
        """Return a page of a field's different values, ordered as texts, and their number.

        Reads all documents that pass the filters.

        Args:
            search_term: only values that hold this text, in small or capital letters.
        """
        term = (search_term or "").lower()
        values = {
            (str(value), type(value).__name__): value
            for value in self._values(metadata_field, filters)
            if term in str(value).lower()
        }
        page = sorted(values)[from_ : from_ + size]
        return [values[key] for key in page], len(values)

    count_documents_async = in_thread(count_documents)
    count_documents_by_filter_async = in_thread(count_documents_by_filter)
    filter_documents_async = in_thread(filter_documents)
    write_documents_async = in_thread(write_documents)
    delete_documents_async = in_thread(delete_documents)
    delete_all_documents_async = in_thread(delete_all_documents)
    delete_by_filter_async = in_thread(delete_by_filter)
    update_by_filter_async = in_thread(update_by_filter)
    count_unique_metadata_by_filter_async = in_thread(count_unique_metadata_by_filter)
    get_metadata_fields_info_async = in_thread(get_metadata_fields_info)
    get_metadata_field_min_max_async = in_thread(get_metadata_field_min_max)
    get_metadata_field_unique_values_async = in_thread(get_metadata_field_unique_values)

    def _listed(self, filters: dict[str, Any] | None = None) -> Iterator[StoredDocument]:
        return listed(self.collection, filter_of(filters))

    def _values(self, field: str, filters: dict[str, Any] | None = None) -> Iterator[Json]:
        for stored in self._listed(filters):
            value = metadata(stored).get(_name(field))
            if value is not None:
                yield value

    def retrieve(
        self, query: Any, filters: dict[str, Any] | None, top_k: int, options: dict[str, Any]
    ) -> tuple[list[Document], Answer]:
        """Return the best documents for a query with their scores, and the answer they come from.

        Args:
            query: as `Collection.search` takes it.
            options: of the search.
        """
        answer = searched(self.collection, query, top_k, filter_of(filters), options)
        scores = similarities(self.collection, answer.hits)
        pairs = zip(answer.hits, scores, strict=True)
        return [document_of(hit, score) for hit, score in pairs], answer


# -- retrievers ----------------------------------------------------------------------------------


class AttendRetriever:
    """What the retrievers of both kinds are made of; see `AttendTextRetriever`."""

    def __init__(
        self,
        document_store: AttendDocumentStore,
        filters: dict[str, Any] | None = None,
        top_k: int = 10,
        filter_policy: str | FilterPolicy = FilterPolicy.REPLACE,
        options: dict[str, Any] | None = None,
    ) -> None:
        """
        Args:
            filters: of every run, unless `filter_policy` lets those of a run replace them.
            options: of every search, as `Collection.search` takes them: `lexical`, the BM25
                (hybrid) weight; `min_confidence` (0 always answers); `rerank`.
        """
        self.document_store, self.filters, self.top_k = document_store, filters, top_k
        self.filter_policy = (
            FilterPolicy.from_str(filter_policy)
            if isinstance(filter_policy, str)
            else filter_policy
        )
        self.options = options

    def to_dict(self) -> dict[str, Any]:
        """Return the component as a dictionary, with its store."""
        description: dict[str, Any] = default_to_dict(
            self,
            document_store=self.document_store,
            filters=self.filters,
            top_k=self.top_k,
            filter_policy=self.filter_policy.value,
            options=self.options,
        )
        return description

    def _retrieve(
        self, query: Any, filters: dict[str, Any] | None, top_k: int | None
    ) -> tuple[list[Document], Answer]:
        filters = apply_filter_policy(self.filter_policy, self.filters, filters)
        k = self.top_k if top_k is None else top_k
        return self.document_store.retrieve(query, filters, k, self.options or {})


@component
class AttendEmbeddingRetriever(AttendRetriever):
    """A component that returns the documents nearest to an embedding of a query."""

    @component.output_types(documents=list[Document])
    def run(
        self,
        query_embedding: list[float],
        filters: dict[str, Any] | None = None,
        top_k: int | None = None,
    ) -> dict[str, Any]:
        """Return `documents`, the best first, each with its score."""
        return {"documents": self._retrieve(query_embedding, filters, top_k)[0]}

    run_async = component.output_types(documents=list[Document])(in_thread(run))


@component
class AttendTextRetriever(AttendRetriever):
    """A component that searches by text, with the collection's own encoder and BM25.

    Where the collection does not answer the query, `answered` is false and no documents come.
    """

    @component.output_types(documents=list[Document], answered=bool, confidence=float | None)
    def run(
        self, query: str, filters: dict[str, Any] | None = None, top_k: int | None = None
    ) -> dict[str, Any]:
        """Return `documents`, the best first; `answered`; and `confidence` (0 to 1, or None)."""
        documents, answer = self._retrieve(query, filters, top_k)
        return {
            "documents": documents if answer.answered else [],
            "answered": answer.answered,
            "confidence": answer.confidence,
        }

    run_async = component.output_types(
        documents=list[Document], answered=bool, confidence=float | None
    )(in_thread(run))


# -- documents and filters -----------------------------------------------------------------------


def _request_of(document: Document, encodes: bool) -> dict[str, Any]:
    """Return a document of Haystack as one of a collection.

    Args:
        encodes: the collection has an encoder. One without takes no text that has no embedding:
            such a document is found by filters alone, as in other stores.
    """
    parts = document.to_dict(flatten=False)
    rest = {name: parts[name] for name in ("blob", "sparse_embedding", "score")}
    text = document.content or ""
    if not text.strip() or not (encodes or document.embedding):  # no text can be empty
        rest["content"], text = document.content, ""
    rest = {name: part for name, part in rest.items() if part is not None}
    request: dict[str, Any] = {"id": document.id, "payload": dict(document.meta)}
    if text:
        request["text"] = text
    if document.embedding is not None:
        request["vector"] = document.embedding
    if rest:
        request["payload"][REST] = rest
    return request


def document_of(stored: StoredDocument | Hit, score: float | None = None) -> Document:
    """Return a document of a collection as one of Haystack, without its embedding.

    >>> document_of(books.document("whale")).meta
    {'year': 1851, 'stars': 4.0}
    """
    meta = metadata(stored)
    parts: Any = {
        "content": text_of(stored) or None,
        "score": score,
        **(meta.pop(REST, None) or {}),
    }
    if score is not None:
        parts["score"] = score
    document: Document = Document.from_dict({"id": stored.id, "meta": meta, **parts})
    return document


def _name(field: str) -> str:
    """Return the name of a field of the meta without what Haystack may write before it."""
    return field.removeprefix("meta.")


def filter_of(filters: dict[str, Any] | None) -> Filter:
    """Return a filter of Haystack as one of a collection; none lets everything pass.

    Raises:
        FilterError: a part that is missing, unknown, or of a type that its operator does not take.

    >>> filter_of({"field": "meta.year", "operator": ">=", "value": 1851})
    {'year': {'gte': 1851}}
    """
    filter = _translated(filters) if filters else {}
    try:
        compile_filter(filter)
    except InvalidRequest as error:
        raise FilterError(str(error)) from None
    return filter


def _translated(filters: dict[str, Any]) -> Filter:
    parts = ("field", "operator", "value") if "field" in filters else ("operator", "conditions")
    missing = [part for part in parts if part not in filters]
    if missing:
        raise FilterError(f"The filter {filters} has no {missing[0]!r}; add it.")
    operators = COMPARISONS if "field" in filters else ("AND", "OR", "NOT")
    operator = filters["operator"]
    if operator not in operators:
        raise FilterError(f"The operator {operator!r} is not known; send one of {[*operators]}.")
    if "field" in filters:
        return _comparison(filters["field"], operator, filters["value"])
    conditions = [_translated(part) for part in filters["conditions"]]
    if operator == "NOT":  # not all of them
        return {"$not": joined("$and", conditions)}
    return joined("$or" if operator == "OR" else "$and", conditions)


def _comparison(field: str, operator: str, value: Any) -> Filter:
    if isinstance(value, datetime):
        value = value.isoformat()
    if operator in ("in", "not in") and not isinstance(value, list):
        raise FilterError(f"{operator!r} on {field!r} takes a list, but {value!r} was given.")
    if operator in (">", ">=", "<", "<="):
        if value is None:  # nothing lies above or below it
            return joined("$or", [])
        if isinstance(value, list) or (isinstance(value, str) and not _is_date(value)):
            raise FilterError(
                f"{operator!r} on {field!r} takes a number or a date such as 2024-05-17, but "
                f"{value!r} was given."
            )
    if field in ("content", "blob", "embedding", "sparse_embedding", "score"):
        raise FilterError(f"{field!r} cannot be filtered by; fields are 'id' and those of meta.")
    return {"@id" if field == "id" else _name(field): {COMPARISONS[operator]: value}}


def _is_date(text: str) -> bool:
    try:
        return bool(datetime.fromisoformat(text))
    except ValueError:
        return False


COMPARISONS = {
    **{"==": "eq", "!=": "ne", ">": "gt", ">=": "gte", "<": "lt", "<=": "lte"},
    **{"in": "in", "not in": "nin"},
}
"""The operators of Haystack → those of a collection's filters."""
