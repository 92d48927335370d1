"""LlamaIndex: a vector store over a collection, and a retriever that knows when nothing answers.

```
from llama_index.core import VectorStoreIndex

index = VectorStoreIndex.from_vector_store(AttendIndexStore(collection), embed_model=model)
retriever = AttendIndexRetriever(collection)  # by text, with the collection's own encoder
```

Metadata are the payload, and fields of the value; a node keeps its text, its relationships and its
class. Similarities are scores over the collection's scale: cosines until words, feedback or a
training add to them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.schema import BaseNode, MetadataMode, NodeWithScore, QueryBundle, TextNode
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
    VectorStoreQueryResult,
)
from llama_index.core.vector_stores.utils import metadata_dict_to_node

from attend.api.answers import Hit
from attend.api.search import SearchOptions
from attend.connect.framework import (
    EVERY,
    AnyCollection,
    Filter,
    in_thread,
    joined,
    listed,
    metadata,
    searched,
    similarities,
    text_of,
)
from attend.core.errors import InvalidRequest, Unsupported
from attend.core.settings import MAX_LEXICAL
from attend.store import StoredDocument

CONTENT, CLASS, PARENT = "_node_content", "_node_type", "ref_doc_id"
"""Fields of the payload that a node has beside its metadata."""

BY_WORDS = (VectorStoreQueryMode.TEXT_SEARCH, VectorStoreQueryMode.SPARSE)


class AttendIndexStore(BasePydanticVectorStore):
    """A vector store of LlamaIndex that keeps nodes as the documents of a collection.

    A node with an embedding brings its own vector; the text of one without is encoded by the
    collection's encoder.

    >>> store = AttendIndexStore(books)
    >>> store.query(VectorStoreQuery(query_embedding=[1.0, 0.1])).ids
    ['whale']
    """

    stores_text: bool = True
    _collection: Any = PrivateAttr()
    _options: dict[str, Any] = PrivateAttr()

    def __init__(self, collection: AnyCollection, **options: Any) -> None:
        """
        Args:
            collection: an opened collection, here or on a server.
            options: of every search, as `Collection.search` takes them.
        """
        super().__init__()
        self._collection, self._options = collection, options

    @classmethod
    def class_name(cls) -> str:
        """Return the name under which LlamaIndex keeps the class.

        >>> AttendIndexStore.class_name()
        'AttendIndexStore'
        """
        return "AttendIndexStore"

    @property
    def client(self) -> AnyCollection:
        """The collection.

        >>> AttendIndexStore(books).client.name
        'books'
        """
        collection: AnyCollection = self._collection
        return collection

    def add(self, nodes: Sequence[BaseNode], **_: Any) -> list[str]:
        """Add nodes, or replace those of the same ids, all or none, and return their ids.

        >>> node = TextNode(id_="dune", text="A planet of sand", embedding=[0.2, 0.9])
        >>> AttendIndexStore(books).add([node])
        ['dune']
        """
        self.client.upsert([_document_of(node) for node in nodes])
        return [node.node_id for node in nodes]

    def delete(self, ref_doc_id: str, **_: Any) -> None:
        """Delete the nodes of one document.

        >>> AttendIndexStore(books).delete("a document without nodes")
        """
        self.client.delete_matching({PARENT: ref_doc_id})

    def get_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None
    ) -> list[BaseNode]:
        """Return the nodes that have one of the ids, where named, and pass the filters.

        >>> [node.metadata["year"] for node in AttendIndexStore(books).get_nodes(["whale"])]
        [1851]
        """
        filter = joined("$and", [*_ids("@id", node_ids), filter_of(filters)])
        return [node_of(document) for document in listed(self.client, filter)]

    def delete_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None, **_: Any
    ) -> None:
        """Delete the nodes that have one of the ids, where named, and pass the filters.

        Raises:
            InvalidRequest: neither ids nor filters; `clear` deletes every node.

        >>> AttendIndexStore(books).delete_nodes(["emma"])
        >>> sorted(books.ids())
        ['ship', 'whale']
        """
        conditions = [*_ids("@id", node_ids), *filter(None, [filter_of(filters)])]
        if not conditions:
            raise InvalidRequest(
                "delete_nodes takes node_ids, filters or both, but neither was given; to delete "
                "every node call clear.",
                field="node_ids",
            )
        self.client.delete_matching(joined("$and", conditions))

    def clear(self) -> None:
        """Delete every node; settings, feedback and trained versions of the collection stay.

        >>> AttendIndexStore(books).clear()
        >>> books.ids()
        set()
        """
        self.client.delete_matching(EVERY)

    def query(self, query: VectorStoreQuery, **options: Any) -> VectorStoreQueryResult:
        """Return the best nodes for a query, by its `mode`.

        DEFAULT compares the query's embedding, or where it has none its text by the collection's
        encoder. HYBRID adds BM25, by `alpha` (1 the embedding alone, 0 nearly words alone) or as
        the collection does. TEXT_SEARCH sends the text to the collection's encoder and BM25. MMR
        lists by maximal marginal relevance with `mmr_threshold`.

        Args:
            options: of this search, as `Collection.search` takes them, and `mmr_threshold`.

        Raises:
            Unsupported: another mode.
            InvalidRequest: a query without what its mode needs, a filter that cannot be used, or
                an option that is unknown or out of range.

        >>> query = VectorStoreQuery(query_embedding=[1.0, 0.1], similarity_top_k=2)
        >>> AttendIndexStore(books).query(query).ids
        ['whale', 'ship']
        """
        by_mode = _mode_options(query, options.pop("mmr_threshold", query.mmr_threshold))
        conditions = [
            # An index over a store that keeps texts names no nodes, and means all.
            *_ids("@id", query.node_ids or None),
            *_ids(PARENT, query.doc_ids or None),
            filter_of(query.filters),
        ]
        answer = searched(
            self.client,
            _question(query),
            query.similarity_top_k if query.hybrid_top_k is None else query.hybrid_top_k,
            joined("$and", conditions),
            {**self._options, **by_mode, **options},
        )
        return VectorStoreQueryResult(
            nodes=[node_of(hit) for hit in answer.hits],
            similarities=similarities(self.client, answer.hits),
            ids=[hit.id for hit in answer.hits],
        )

    async_add = in_thread(add)
    adelete = in_thread(delete)
    aget_nodes = in_thread(get_nodes)
    adelete_nodes = in_thread(delete_nodes)
    aclear = in_thread(clear)
    aquery = in_thread(query)


class AttendIndexRetriever(BaseRetriever):
    """A retriever of LlamaIndex that searches by text, with the collection's own encoder.

    It returns no nodes where the collection does not answer the query, and a query engine then
    says so.

    ```
    retriever = AttendIndexRetriever(collection, similarity_top_k=5, min_confidence=0.2)
    engine = RetrieverQueryEngine.from_args(retriever)
    ```
    """

    def __init__(
        self,
        collection: AnyCollection,
        similarity_top_k: int = 10,
        filters: MetadataFilters | None = None,
        **options: Any,
    ) -> None:
        """
        Args:
            collection: an opened collection with an encoder, here or on a server.
            similarity_top_k: the most nodes to return.
            options: of every search, as `Collection.search` takes them: `lexical`,
                `min_confidence` (0 always answers), `rerank`.
        """
        super().__init__()
        self._collection, self._k = collection, similarity_top_k
        self._filter, self._options = filter_of(filters), options

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        question = query_bundle.query_str
        answer = searched(self._collection, question, self._k, self._filter, self._options)
        hits = answer.hits if answer.answered else []
        scores = similarities(self._collection, hits)
        return [
            NodeWithScore(node=node_of(hit), score=score)
            for hit, score in zip(hits, scores, strict=True)
        ]

    _aretrieve = in_thread(_retrieve)


# -- nodes ---------------------------------------------------------------------------------------


def _document_of(node: BaseNode) -> dict[str, Any]:
    """Return a node as a document: its payload is the metadata, and what else the node has."""
    content = node.model_dump(mode="json")
    payload = content.pop("metadata")
    text = node.get_content(metadata_mode=MetadataMode.NONE)
    stored = ("embedding", "text", "text_resource") if text.strip() else ("embedding",)
    for name in stored:
        content.pop(name, None)
    parent = node.ref_doc_id or "None"  # as LlamaIndex writes it in every store
    names = {PARENT: parent, "doc_id": parent, "document_id": parent}
    content["metadata"] = {name: payload[name] for name in names if name in payload}
    payload |= {**names, CLASS: node.class_name(), CONTENT: json.dumps(content)}
    document = {"id": node.node_id, "payload": payload}
    if text.strip():
        document["text"] = text
    if node.embedding is not None:
        document["vector"] = node.embedding
    return document


def node_of(document: Hit | StoredDocument) -> BaseNode:
    """Return a document as the node that it was, or where no node was as one of its text.

    >>> node_of(books.document("whale")).metadata
    {'year': 1851, 'stars': 4.0}
    """
    fields, text = metadata(document), text_of(document)
    if CONTENT not in fields:
        return TextNode(id_=document.id, text=text, metadata=fields)
    content, name = fields.pop(CONTENT), fields.pop(CLASS, None)
    for key in (PARENT, "doc_id", "document_id"):
        fields.pop(key, None)
    node = metadata_dict_to_node({CONTENT: content, CLASS: name}, text or None)
    node.metadata |= fields
    return node


# -- queries -------------------------------------------------------------------------------------


def _question(query: VectorStoreQuery) -> dict[str, Any]:
    """Return what a query is compared by: an embedding, a text or both."""
    parts: dict[str, Any] = {"vector": query.query_embedding, "text": query.query_str}
    if query.mode in BY_WORDS or not query.query_embedding:
        del parts["vector"]
    elif query.mode != VectorStoreQueryMode.HYBRID:
        del parts["text"]
    if not parts.get("text", True):
        raise InvalidRequest(
            f"A query of the mode {query.mode.value!r} without an embedding has a query_str, but "
            f"{query.query_str!r} was given; set one of the two.",
            field="query_str",
        )
    return parts


def _mode_options(query: VectorStoreQuery, threshold: float | None) -> dict[str, Any]:
    """Return the search options of a query's mode."""
    match query.mode:
        case VectorStoreQueryMode.DEFAULT:
            return {}
        case VectorStoreQueryMode.TEXT_SEARCH | VectorStoreQueryMode.SPARSE:
            return {"lexical": True}
        case VectorStoreQueryMode.HYBRID:
            alpha = query.alpha
            if alpha is None:
                return {"lexical": True}
            # alpha * vector + (1 - alpha) * words, over alpha.
            weight = (1 - alpha) / alpha if alpha else MAX_LEXICAL
            return {"lexical": min(weight, MAX_LEXICAL)}
        case VectorStoreQueryMode.MMR if "diversity" in SearchOptions.model_fields:
            return {"diversity": 0.5 if threshold is None else 1 - threshold}
    modes = "DEFAULT, HYBRID, TEXT_SEARCH, SPARSE and MMR"
    raise Unsupported(f"The mode {query.mode.value!r} is not known here; send {modes}.")


# -- filters -------------------------------------------------------------------------------------


def filter_of(filters: MetadataFilters | None) -> Filter:
    """Return filters of LlamaIndex, nested ones too, as a filter of a collection.

    NOT lets pass what none of its filters lets pass, and a filter without conditions everything,
    as in `SimpleVectorStore`.

    Raises:
        InvalidRequest: a value that its operator does not take.

    >>> listed = MetadataFilter(key="year", operator=FilterOperator.IN, value=[1851, 1815])
    >>> filter_of(MetadataFilters(filters=[listed], condition=FilterCondition.NOT))
    {'$not': {'$or': [{'year': {'in': [1851, 1815]}}]}}
    """
    if filters is None or not filters.filters:
        return {}
    parts = [
        filter_of(part) if isinstance(part, MetadataFilters) else _condition(part)
        for part in filters.filters
    ]
    if filters.condition == FilterCondition.NOT:
        return {"$not": joined("$or", parts)}
    return joined("$or" if filters.condition == FilterCondition.OR else "$and", parts)


def _condition(filter: MetadataFilter) -> Filter:
    key, value = filter.key, filter.value
    if filter.operator == FilterOperator.IS_EMPTY:
        return _is_empty(key)
    kinds, operator = OPERATORS[filter.operator]
    if value is None and filter.operator in (FilterOperator.EQ, FilterOperator.NE):
        # Nothing equals None for LlamaIndex, not even a missing field.
        return {key: {"in" if filter.operator == FilterOperator.EQ else "nin": []}}
    if not isinstance(value, kinds):
        name = "a list" if kinds is list else "a text" if kinds is str else "a number or a text"
        raise InvalidRequest(
            f"The filter on {key!r} cannot be used: {filter.operator.value!r} takes {name}, but "
            f"{value!r} was given.",
            field="filters",
        )
    if operator == "all" and not value:
        return {key: {"exists": True}}
    return {key: {operator: value}}


def _is_empty(key: str) -> Filter:
    """Return the condition that a field is missing, null, an empty text or an empty list."""
    has = [{"prefix": ""}, {"gte": -sys.float_info.max}, {"in": [True, False]}]
    return joined("$or", [{key: ""}, {"$not": joined("$or", [{key: part} for part in has])}])


def _ids(name: str, ids: Sequence[str] | None) -> list[Filter]:
    return [] if ids is None else [{name: {"in": list(ids)}}]


SCALAR = (str, int, float)
OPERATORS: Mapping[FilterOperator, tuple[Any, str]] = {
    FilterOperator.EQ: (SCALAR, "eq"),
    FilterOperator.NE: (SCALAR, "ne"),
    FilterOperator.GT: (SCALAR, "gt"),
    FilterOperator.GTE: (SCALAR, "gte"),
    FilterOperator.LT: (SCALAR, "lt"),
    FilterOperator.LTE: (SCALAR, "lte"),
    FilterOperator.CONTAINS: (SCALAR, "contains"),
    FilterOperator.IN: (list, "in"),
    FilterOperator.NIN: (list, "nin"),
    FilterOperator.ANY: (list, "any"),
    FilterOperator.ALL: (list, "all"),
    FilterOperator.TEXT_MATCH: (str, "exact_substring"),
    FilterOperator.TEXT_MATCH_INSENSITIVE: (str, "substring"),
}
"""What each operator takes, and the operator of a collection's filters."""
