"""LangChain: a vector store and a retriever over a collection, local or remote.

Beside what LangChain knows there are soft answers (`answer`), "nothing here answers that" (the
retriever returns no documents), and feedback to learn from (`teach`).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import run_in_executor
from langchain_core.vectorstores import VectorStore
from pydantic import Field

import attend
from attend.api.base import DEFAULT_COLLECTION, MAX_DOCUMENTS, MAX_PAGE
from attend.core.errors import InvalidRequest

if TYPE_CHECKING:
    from attend.api.answers import Answer, Hit
    from attend.api.feedback import FeedbackAdded
    from attend.collection.data import Data
    from attend.connect.framework import AnyCollection
    from attend.store import StoredDocument

K = 4
"""Documents to return, as in LangChain's own interface."""

ATTENDED = 100
"""Documents that share the weights, unless more are to be returned."""


class AttendVectorStore(VectorStore):
    """A collection as a vector store: `page_content` is the text, `metadata` the payload.

    Args:
        collection: a collection of texts, whose own encoder embeds documents and queries, or one
            of vectors (`dimension`).
        embedding: embeds documents and queries instead.

    Searches take the options of `attend.api.search.SearchOptions` as keywords: a `filter` such as
    `{"year": {"gte": 2000}}`, `lexical`, `rerank`. Scores are shares of the answer, 0 to 1: a
    document's weight times the confidence. Asynchronous methods run in threads.

    >>> store = AttendVectorStore(library.collection("docs"))  # doctest: +SKIP
    >>> store.add_texts(["A whale, hunted."], [{"year": 1851}], ids=["whale"])  # doctest: +SKIP
    ['whale']
    >>> store.similarity_search("the sea", k=1)[0].metadata  # doctest: +SKIP
    {'year': 1851}
    """

    def __init__(self, collection: AnyCollection, embedding: Embeddings | None = None) -> None:
        self.collection, self._embedding = collection, embedding

    @property
    def embeddings(self) -> Embeddings | None:
        """Return the embedding of the caller; None where the collection's own encoder works."""
        return self._embedding

    @classmethod
    def from_texts(
        cls,
        texts: list[str],
        embedding: Embeddings | None = None,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        collection: str = DEFAULT_COLLECTION,
        where: str | Path | Data | None = None,
        **settings: Any,
    ) -> Self:
        """Return a store with texts added; the collection is created if it does not exist.

        Args:
            where: the folder or the address of a library, or a library that is open.
            settings: of the collection, as `Data.ensure` takes them.

        Raises:
            InvalidRequest: no library was named, or the collection has other settings.

        >>> store = AttendVectorStore.from_texts(["A whale."], where="library")  # doctest: +SKIP
        """
        if where is None:
            raise InvalidRequest(
                "No library was named. Give where=, a folder or an address, or open a collection "
                "and use AttendVectorStore(collection).",
                field="where",
            )
        library: Any = attend.open(where) if isinstance(where, str | Path) else where
        if embedding is not None:  # no model says how wide its embeddings are
            settings = {"dimension": len(embedding.embed_query("width")), **settings}
        store = cls(library.ensure(collection, **settings), embedding)
        store.add_texts(texts, metadatas, ids=ids)
        return store

    @classmethod
    def from_documents(
        cls, documents: list[Document], embedding: Embeddings | None = None, **kwargs: Any
    ) -> Self:
        """Return a store with documents added; see `from_texts`.

        >>> AttendVectorStore.from_documents(documents, where="library")  # doctest: +SKIP
        """
        store: Self = super().from_documents(documents, embedding, **kwargs)
        return store

    # -- documents --------------------------------------------------------------------------

    def add_documents(
        self, documents: list[Document], ids: Sequence[str | None] | None = None, **kwargs: Any
    ) -> list[str]:
        """Insert or replace documents, 10,000 at a time, and return their ids.

        Args:
            ids: in place of the documents' own; new ones are made where neither has one.
            kwargs: what other stores take, such as `batch_size`; nothing here needs it.

        Raises:
            InvalidRequest: ids of another number, or metadata that JSON does not have.
        """
        sent = [document.id for document in documents] if ids is None else list(ids)
        if len(sent) != len(documents):
            raise InvalidRequest(
                f"{len(sent)} ids were given for {len(documents)} documents; give one for each, "
                f"or none.",
                field="ids",
            )
        numbered = [id or str(uuid.uuid4()) for id in sent]
        for start in range(0, len(documents), MAX_DOCUMENTS):
            part = slice(start, start + MAX_DOCUMENTS)
            texts = [document.page_content for document in documents[part]]
            requests: list[dict[str, Any]] = [
                # A blank document has no text, which a collection would refuse.
                {"id": id, "payload": document.metadata, "text": text if text.strip() else None}
                for id, text, document in zip(numbered[part], texts, documents[part], strict=True)
            ]
            if self._embedding is not None:
                vectors = self._embedding.embed_documents(texts)
                for request, vector in zip(requests, vectors, strict=True):
                    request["vector"] = vector
            self.collection.upsert(requests)
        return numbered

    def delete(self, ids: list[str] | None = None, **kwargs: Any) -> bool:
        """Delete documents by their ids, all of them without ids; unknown ids are passed over."""
        self.collection.delete(sorted(self.collection.ids()) if ids is None else ids)
        return True

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """Return documents in the order of their ids; unknown ids are passed over."""
        documents: dict[str, Document] = {}
        for start in range(0, len(ids), MAX_PAGE):
            part = list(ids[start : start + MAX_PAGE])
            for stored in self.collection.page({"@id": {"in": part}}, limit=MAX_PAGE).documents:
                text = "\n\n".join(stored.fields.values())
                documents[stored.id] = Document(
                    id=stored.id, page_content=text, metadata=metadata_of(stored)
                )
        return [documents[id] for id in dict.fromkeys(ids) if id in documents]

    # -- searches ---------------------------------------------------------------------------

    def answer(
        self, query: str | Sequence[float] | Mapping[str, Any], k: int = K, **options: Any
    ) -> Answer:
        """Return Attend's own answer: hits with texts and weights, and what they say together.

        Args:
            query: a text, a vector (d,), or another query of `Collection.search`.
            options: `mode="soft"` blends the values of all attended documents, those of the field
                `value` of the metadata; and all others of a search.

        >>> store.answer("a story of the sea", mode="soft", value="year")  # doctest: +SKIP
        """
        if self._embedding is not None and isinstance(query, str):
            query = {"text": query, "vector": self._embedding.embed_query(query)}
        request = {"attend": max(ATTENDED, k), "include": ["text"], **options}
        return self.collection.search(query, k=k, **request)

    def similarity_search_with_score(
        self, query: str | Sequence[float], k: int = K, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """Return the `k` best documents, each with its share of the answer, 0 to 1."""
        answer = self.answer(query, k, **kwargs)
        return [(document_of(hit), share_of(hit, answer)) for hit in answer.hits]

    def similarity_search(
        self, query: str | Sequence[float], k: int = K, **kwargs: Any
    ) -> list[Document]:
        """Return the `k` best documents."""
        return [document for document, _ in self.similarity_search_with_score(query, k, **kwargs)]

    def similarity_search_by_vector(
        self, embedding: list[float], k: int = K, **kwargs: Any
    ) -> list[Document]:
        """Return the `k` best documents for an embedded query (d,)."""
        return self.similarity_search(embedding, k, **kwargs)

    def max_marginal_relevance_search(
        self,
        query: str | Sequence[float],
        k: int = K,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        **kwargs: Any,
    ) -> list[Document]:
        """Return `k` documents among the `fetch_k` best: relevant, and unlike those before.

        Args:
            lambda_mult: 1 is relevance alone, 0 difference alone; `diversity` of a search is one
                minus that, and its relevance is scaled to 0 to 1 among the `fetch_k`.
        """
        options = {"attend": max(fetch_k, k), "diversity": 1 - lambda_mult, **kwargs}
        return self.similarity_search(query, k, **options)

    def max_marginal_relevance_search_by_vector(
        self,
        embedding: list[float],
        k: int = K,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        **kwargs: Any,
    ) -> list[Document]:
        """Return `k` documents for an embedded query; see `max_marginal_relevance_search`."""
        return self.max_marginal_relevance_search(embedding, k, fetch_k, lambda_mult, **kwargs)

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        """Return the identity: scores are shares, 0 to 1, already."""
        return float

    def teach(
        self, query: str, documents: Sequence[Document | str], label: float = 1.0
    ) -> FeedbackAdded:
        """Add feedback on documents, or their ids, for a query; `collection.train()` learns of it.

        Args:
            label: above 0 relevant, by degree; 0 not relevant; below 0 explicitly not.

        Raises:
            UnknownDocument: no document has an id.

        >>> store.teach("a story of the sea", ["whale"]).examples  # doctest: +SKIP
        1
        """
        question: Any = query if self._embedding is None else self._embedding.embed_query(query)
        ids = [item.id if isinstance(item, Document) else item for item in documents]
        return self.collection.teach([{"query": question, "id": id, "label": label} for id in ids])


class AttendRetriever(BaseRetriever):
    """A retriever that returns no documents where nothing in the collection answers.

    Documents have their share of the answer as `relevance_score` in their metadata.

    >>> retriever = AttendRetriever(collection=library.collection("docs"), k=3)  # doctest: +SKIP
    >>> [document.id for document in retriever.invoke("a story of the sea")]  # doctest: +SKIP
    ['whale']
    """

    collection: Any
    """A collection of the local or the remote library."""
    embedding: Embeddings | None = None
    """Embeds queries; the collection's own encoder if absent."""
    k: int = K
    """The number of documents to return."""
    filter: dict[str, Any] | None = None
    """Conditions on the metadata, such as {"year": {"gte": 2000}}."""
    mode: Literal["hard", "soft"] = "soft"
    """How `answer` uses values: the best document's, or the blend of all attended."""
    always: bool = False
    """Return the best documents also where nothing answers."""
    content: Literal["text", "passage"] = "text"
    """What becomes `page_content`: the whole text, or the passage that matched."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Other options of a search, such as {"rerank": 20}."""

    def answer(self, query: str, **options: Any) -> Answer:
        """Return Attend's own answer; in a chain, `RunnableLambda(retriever.answer)`.

        Args:
            options: of this search alone, in place of the retriever's.

        >>> retriever.answer("a story of the sea", value="year").answer["mean"]  # doctest: +SKIP
        1851.0
        """
        fields = {"k": self.k, "filter": self.filter, "mode": self.mode, **self.options}
        return AttendVectorStore(self.collection, self.embedding).answer(query, **fields | options)

    def teach(
        self, query: str, documents: Sequence[Document | str], label: float = 1.0
    ) -> FeedbackAdded:
        """Add feedback; see `AttendVectorStore.teach`."""
        return AttendVectorStore(self.collection, self.embedding).teach(query, documents, label)

    def _get_relevant_documents(
        self, query: str, *, run_manager: Any, **options: Any
    ) -> list[Document]:
        include = {"mode": "hard", "value": None, "include": [self.content]}
        answer = self.answer(query, **include | options)
        if not answer.answered and not self.always:
            return []
        documents = [document_of(hit, self.content) for hit in answer.hits]
        for document, hit in zip(documents, answer.hits, strict=True):
            document.metadata["relevance_score"] = share_of(hit, answer)
        return documents

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: Any, **options: Any
    ) -> list[Document]:
        manager = run_manager.get_sync()
        documents: list[Document] = await run_in_executor(
            None, self._get_relevant_documents, query, run_manager=manager, **options
        )
        return documents


def share_of(hit: Hit, answer: Answer) -> float:
    """Return a hit's share of an answer, 0 to 1: its weight times the confidence."""
    # The weights of a version that was trained on examples sum to the confidence already.
    is_conformal = answer.calibrated == "collection" and answer.confidence is not None
    confidence = answer.confidence if is_conformal else 1.0
    return min(1.0, hit.weight * (confidence or 0.0))


def document_of(hit: Hit, content: Literal["text", "passage"] = "text") -> Document:
    """Return a hit as a document of LangChain."""
    return Document(id=hit.id, page_content=getattr(hit, content) or "", metadata=metadata_of(hit))


def metadata_of(document: Hit | StoredDocument) -> dict[str, Any]:
    """Return the payload and the value of a document by the names that filters have for them."""
    value = document.value
    if isinstance(value, Mapping):
        return {**document.payload, **value}
    return {**document.payload} if value is None else {**document.payload, "@value": value}
