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
from functools import cached_property
from typing import Any

from haystack import Document, component, default_from_dict, default_to_dict
from haystack.document_stores.errors import DuplicateDocumentError
from haystack.document_stores.types import DuplicatePolicy, FilterPolicy, apply_filter_policy
from haystack.utils import Secret

import attend
from attend.api.answers import Answer, Hit
from attend.api.base import DEFAULT_COLLECTION
from attend.connect import framework
from attend.connect.framework import AnyCollection, in_thread
from attend.connect.haystack_filters import field_name, filter_of
from attend.core.types import Json
from attend.store import StoredDocument

Filters = dict[str, Any] | None
OUTPUTS = {"documents": list[Document], "answered": bool, "confidence": float | None}
REST = "_document"
"""The field of the payload for what a document has beside content, meta and embedding."""


class AttendDocumentStore:
    """A document store of Haystack that keeps documents in a collection.

    Filters follow Haystack's language with three differences: 1 and true are two values, not
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
    def collection(self) -> AnyCollection:
        """The collection, opened at the first use."""
        key = {} if self.api_key is None else {"api_key": self.api_key.resolve_value()}
        return attend.open(self.where, **key).ensure(self.name, **(self.settings or {}))

    def to_dict(self) -> dict[str, Any]:
        """Return the store as a dictionary, without documents and without a plain key."""
        return default_to_dict(
            self,
            where=self.where,
            collection=self.name,
            api_key=self.api_key,
            settings=self.settings,
        )

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> AttendDocumentStore:
        """Return the store that `to_dict` described."""
        return default_from_dict(cls, data)

    # -- documents ------------------------------------------------------------------------------

    def count_documents(self) -> int:
        """Return the number of documents."""
        return self.count_documents_by_filter({})

    def count_documents_by_filter(self, filters: dict[str, Any]) -> int:
        """Return the number of documents that pass the filters."""
        return self.collection.page(filter_of(filters), limit=0).total

    def filter_documents(self, filters: Filters = None) -> list[Document]:
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
        if not (
            isinstance(documents, list) and all(isinstance(one, Document) for one in documents)
        ):
            raise ValueError(
                f"write_documents takes a list of Documents, but {documents!r:.80} was given."
            )
        replaces = policy is DuplicatePolicy.OVERWRITE
        by_id = {one.id: one for one in (documents if replaces else reversed(documents))}
        same = {"@id": {"in": list(by_id)}}
        stored = () if replaces else {row.id for row in framework.listed(self.collection, same)}
        fails = policy not in (DuplicatePolicy.OVERWRITE, DuplicatePolicy.SKIP)
        if fails and (stored or len(by_id) < len(documents)):
            raise DuplicateDocumentError(
                f"{', '.join(sorted(stored)[:3]) or 'An id'} exists already, and nothing was "
                f"written; send the policy SKIP or OVERWRITE, or other ids."
            )
        new = [one for one in documents if by_id[one.id] is one and one.id not in stored]
        encodes = self.collection.info().encoder is not None
        self.collection.upsert([_request_of(document, encodes) for document in new])
        return len(documents) if replaces else len(new)

    def delete_documents(self, document_ids: list[str]) -> None:
        """Delete the documents of these ids; unknown ids are passed over."""
        self.collection.delete(document_ids)

    def delete_all_documents(self) -> None:
        """Delete all documents; settings, feedback and trained versions stay."""
        self.collection.delete_matching(framework.EVERY)

    def delete_by_filter(self, filters: dict[str, Any]) -> int:
        """Delete the documents that pass the filters, and return their number."""
        return self.collection.delete_matching(filter_of(filters) or framework.EVERY)

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
        names = [field_name(field) for field in metadata_fields]
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
        filters: Filters = None,
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

    def _listed(self, filters: Filters = None) -> Iterator[StoredDocument]:
        return framework.listed(self.collection, filter_of(filters))

    def _values(self, field: str, filters: Filters = None) -> Iterator[Json]:
        for stored in self._listed(filters):
            value = framework.metadata(stored).get(field_name(field))
            if value is not None:
                yield value


# -- retrievers ----------------------------------------------------------------------------------


class AttendPipelineRetriever:
    """What the retrievers of both kinds are made of; see `AttendTextRetriever`."""

    def __init__(
        self,
        document_store: AttendDocumentStore,
        filters: Filters = None,
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
        self.filter_policy = FilterPolicy.from_str(str(filter_policy))
        self.options = options

    def to_dict(self) -> dict[str, Any]:
        """Return the component as a dictionary, with its store."""
        return default_to_dict(
            self,
            document_store=self.document_store,
            filters=self.filters,
            top_k=self.top_k,
            filter_policy=self.filter_policy.value,
            options=self.options,
        )

    def _retrieve(
        self, query: Any, filters: Filters, top_k: int | None
    ) -> tuple[list[Document], Answer]:
        """Return the best documents for a query with their scores, and the answer of the search."""
        filter = filter_of(apply_filter_policy(self.filter_policy, self.filters, filters))
        k, collection = self.top_k if top_k is None else top_k, self.document_store.collection
        answer = framework.searched(collection, query, k, filter, self.options or {})
        scores = framework.similarities(collection, answer.hits)
        return list(map(document_of, answer.hits, scores)), answer


@component
class AttendEmbeddingRetriever(AttendPipelineRetriever):
    """A component that returns the documents nearest to an embedding of a query."""

    @component.output_types(documents=list[Document])
    def run(
        self, query_embedding: list[float], filters: Filters = None, top_k: int | None = None
    ) -> dict[str, Any]:
        """Return `documents`, the best first, each with its score."""
        return {"documents": self._retrieve(query_embedding, filters, top_k)[0]}

    run_async = component.output_types(documents=list[Document])(in_thread(run))


@component
class AttendTextRetriever(AttendPipelineRetriever):
    """A component that searches by text, with the collection's own encoder and BM25.

    Where the collection does not answer the query, `answered` is false and no documents come.
    """

    @component.output_types(**OUTPUTS)
    def run(self, query: str, filters: Filters = None, top_k: int | None = None) -> dict[str, Any]:
        """Return `documents`, the best first; `answered`; and `confidence` (0 to 1, or None)."""
        documents, answer = self._retrieve(query, filters, top_k)
        return {
            "documents": documents if answer.answered else [],
            "answered": answer.answered,
            "confidence": answer.confidence,
        }

    run_async = component.output_types(**OUTPUTS)(in_thread(run))


# -- documents -----------------------------------------------------------------------


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
    meta = framework.metadata(stored)
    parts: Any = {
        "content": framework.text_of(stored) or None,
        "score": score,
        **(meta.pop(REST, None) or {}),
    }
    if score is not None:
        parts["score"] = score
    return Document.from_dict({"id": stored.id, "meta": meta, **parts})
