"""An MCP server over a library: its tools, and its documents as resources (`attend mcp`).

Clients of both protocol eras are served: the handshake of 2025-11-25 and earlier, and the
stateless requests of 2026-07-28. The SDK (the extra `mcp`) takes a second to import: nothing but
the command imports this module.

The docstrings of the tools are what a language model reads.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sqlite3
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar
from urllib.parse import quote

import mcp_types as types
from mcp.server import MCPServer
from mcp.server.mcpserver import exceptions as faults
from mcp.server.mcpserver.resources import ResourceSecurity
from mcp.server.mcpserver.tools import Tool
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from attend import DEFAULT_COLLECTION as DEFAULT
from attend import AttendError, Data, __version__
from attend.api.answers import Facets, answer_text
from attend.api.base import invalid, parse
from attend.api.documents import Deleted, DeletionRequest, DocumentRequest, Written
from attend.api.feedback import FeedbackAdded, Label, Used
from attend.api.names import remedy
from attend.connect.client import RemoteLibrary
from attend.core.errors import NotFound

INSTRUCTIONS = """Collections of documents, searched by meaning. Ask with `answer` or `search`, and
rely on the documents that they return. Where `answered` is false, nothing here answers the
question: say so, and do not guess. Where `confidence` is null, it is unknown whether something
does: judge the documents yourself. `list_collections` has the names of the collections."""

JSON = "application/json"

RANKED, PAIRS = 100, 5
"""Documents among which `why` gives a rank, as many as share the weights of a search; and pairs of
words that it lists."""

SHOWN: dict[str, Any] = {"include": ["passage"], "title": True}
"""What hits have beside their values."""

EXPLAINED = ("field", "passage", "question", "dense", "lexical", "layer", "memory")
"""Parts of an explanation that do not depend on which documents were attended to."""

Method = TypeVar("Method", bound=Callable[..., Any])
Limit = Annotated[int, Field(ge=1, le=100)]
Object = dict[str, JsonValue] | None


class ToolResult(BaseModel):
    """Base of the results of tools, whose schemas clients get."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class DocumentEntry(ToolResult):
    """A document, as tools and resources return it."""

    id: str
    uri: str
    """The resource that has the whole document."""
    text: str | None
    """The passage that matched, or in a listing all texts; null without text."""
    value: JsonValue
    payload: dict[str, JsonValue]
    title: str | None
    weight: float | None
    """Its share of the attention; null in a listing."""


class ToolAnswer(ToolResult):
    """The documents that match a question, and what they answer together."""

    answered: bool
    """False if nothing here answers the question."""
    answer: str
    """In a few words; "no value" where the documents have texts alone: read them."""
    confidence: float | None
    """Near 0 for a question that is foreign to the collection; null where that is unknown."""
    value: dict[str, JsonValue]
    """The value that the documents give together: its type, and a mean or a distribution."""
    documents: list[DocumentEntry]
    hints: Sequence[str] | None
    search: str | None
    """The id of this search, for `used`; null where the collection logs no searches."""


class MatchReasons(ToolResult):
    """Why a document matches a query."""

    sentence: str
    rank: int | None
    """From 1; null if it is not among the first 100."""
    weight: float
    """Its share of the attention over the first 100; 0 outside them."""
    pairs: list[tuple[str, str, float]]
    """Words of the query and of the passage that match, and how much each pair adds to the score,
    against the mean of all pairs."""
    explanation: dict[str, JsonValue]
    """The passage that matched, and what meaning (dense) and words (lexical) add to the score."""


class DocumentList(ToolResult):
    """Some documents of a collection."""

    documents: list[DocumentEntry]
    total: int
    """The number of documents that pass the filter."""
    next: str | None
    """The `cursor` of the next page; null on the last."""
    hints: Sequence[str] | None


class DocumentCount(ToolResult):
    """The number of documents, and the most frequent values of fields."""

    total: int
    facets: Facets
    hints: Sequence[str] | None


def tool(title: str, **hints: bool) -> Callable[[Method], Method]:
    """Mark a method as a tool; `hints` say what it may do, as MCP has them."""
    annotations = {"title": title, "read_only_hint": True, "open_world_hint": False, **hints}

    def mark(method: Method) -> Method:
        method.annotations = types.ToolAnnotations(**annotations)  # type: ignore[attr-defined]
        return method

    return mark


class ReadingTools:
    """What a client may do with a library that it only reads."""

    def __init__(self, library: Data | RemoteLibrary) -> None:
        self.library = library

    @tool("List the collections")
    def list_collections(self) -> dict[str, int]:
        """List the collections by name, with the number of documents of each."""
        names = self.library.names()
        return {name: self.library.collection(name).page(limit=0).total for name in names}

    @tool("Search documents")
    def search(
        self, query: str, collection: str = DEFAULT, limit: Limit = 5, filter: Object = None
    ) -> ToolAnswer:
        """Find the documents that match a question or a description best, by meaning and words.

        Documents are listed even if `answered` is false: then nothing here answers the question,
        and they are merely the nearest. A `filter` has conditions on fields of value and payload:
        {"year": {"gte": 1900}, "genre": {"in": ["sea", "war"]}}. Operators: eq, ne, gt, gte, lt,
        lte, in, nin, exists, prefix, substring; $and, $or and $not combine conditions.
        """
        return self._answer(collection, {"query": query, "k": limit, "filter": filter})

    @tool("Answer a question")
    def answer(
        self, question: str, collection: str = DEFAULT, value: str = "", filter: Object = None
    ) -> ToolAnswer:
        """Answer a question from the documents: the blend of their values, and the documents.

        `value` names a field of value or payload to answer with. If `answered` is false, nothing
        here answers the question, and no document is listed. A `filter` is as for `search`.
        """
        options = {"value": value or None, "filter": filter, "mode": "soft", "k": 5}
        result = self._answer(collection, {"query": question, **options})
        return result if result.answered else result.model_copy(update={"documents": []})

    def _answer(self, collection: str, request: dict[str, Any]) -> ToolAnswer:
        [answer] = self.library.collection(collection).search_many([request | SHOWN])
        return ToolAnswer(
            answered=answer.answered,
            answer=answer_text(answer.answer),
            confidence=answer.confidence,
            value={name: part for name, part in answer.answer.items() if part is not None},
            documents=[entry_of(collection, hit) for hit in answer.hits],
            hints=answer.hints,
            search=answer.search,
        )

    @tool("Explain a match")
    def why(self, query: str, id: str, collection: str = DEFAULT) -> MatchReasons:
        """Explain why a document matches a query: its rank, its best passage, words and meaning."""
        opened = self.library.collection(collection)
        opened.document(id)  # raises for an id that no document has
        ranking = opened.search(query, k=RANKED, fields=[]).hits
        hits = opened.search(query, mask={"only": [id]}, explain="tokens", highlight=True).hits
        if not hits:
            raise faults.ToolError(f"{id!r} has neither text nor a vector that could match.")
        places = {hit.id: (rank, hit.weight) for rank, hit in enumerate(ranking, start=1)}
        rank, weight = places.get(id, (None, 0.0))
        reasons, highlight = hits[0].explanation or {}, hits[0].highlight
        words = reasons.get("words") or {"query": [], "passage": [], "shares": []}
        pairs = [
            (left["text"], right["text"], share)
            for left, shares in zip(words["query"], words["shares"], strict=True)
            for right, share in zip(words["passage"], shares, strict=True)
            if not left["stop_word"] and not right["stop_word"]
        ]
        pairs = sorted(pairs, key=lambda pair: -pair[2])[:PAIRS]
        place = f"hit {rank}" if rank else f"not among the first {RANKED} hits"
        alike = "".join(f" ({left} ~ {right})" for left, right, _ in pairs[:1])
        passage, spans = (highlight.passage or "", highlight.spans) if highlight else ("", ())
        shared = ", ".join(passage[start:stop] for start, stop in spans) or "none"
        return MatchReasons(
            sentence=f"{id!r} is {place}, with {weight:.0%} of the attention; of its score "
            f"{reasons['dense']:.2f} is meaning{alike}, {reasons['lexical']:.2f} words ({shared}).",
            rank=rank,
            weight=weight,
            pairs=pairs,
            explanation={name: reasons[name] for name in EXPLAINED},
        )

    @tool("Recommend documents")
    def recommend(
        self,
        like: Sequence[str] = (),
        unlike: Sequence[str] = (),
        user: str = "",
        collection: str = DEFAULT,
        limit: Limit = 5,
        filter: Object = None,
    ) -> DocumentList:
        """Recommend documents that are like some and unlike others (ids), which are left out.

        Or those that suit a `user` with stored interactions. A `filter` is as for `search`.
        """
        options = {"user": user or None, "k": limit, "filter": filter, **SHOWN}
        options |= {"positive": [*like], "negative": [*unlike]}
        result: Any = self.library.collection(collection).recommend(**options)
        entries = [entry_of(collection, hit) for hit in result.hits]
        return DocumentList(documents=entries, total=result.attended, next=None, hints=None)

    @tool("List documents")
    def list_documents(
        self, collection: str = DEFAULT, filter: Object = None, limit: Limit = 20, cursor: str = ""
    ) -> DocumentList:
        """List documents with all of their texts: those that pass a filter, or all of them.

        A `filter` is as for `search`; {"@id": {"in": ["a", "b"]}} reads documents by their ids.
        `cursor` is `next` of the page before.
        """
        opened = self.library.collection(collection)
        page = opened.page(filter, limit=limit, cursor=cursor or None)
        entries = [entry_of(collection, item) for item in page.documents]
        return DocumentList(documents=entries, total=page.total, next=page.next, hints=page.hints)

    @tool("Count documents")
    def count_documents(
        self, collection: str = DEFAULT, filter: Object = None, by: Sequence[str] = ()
    ) -> DocumentCount:
        """Count the documents that pass a filter, and the most frequent values of fields (`by`).

        A field is one of value or payload; "@value" is the whole value.
        """
        opened = self.library.collection(collection)
        page, facets = opened.page(filter, limit=0), opened.facets(by, filter) if by else {}
        return DocumentCount(total=page.total, facets=facets, hints=page.hints)


class WritingTools(ReadingTools):
    """What a client may do with a library that it may change."""

    @tool("Add documents", read_only_hint=False, destructive_hint=True, idempotent_hint=True)
    def add_documents(self, documents: list[DocumentRequest], collection: str = DEFAULT) -> Written:
        """Add documents, all or none; one with the id of a stored document replaces it.

        A collection that does not exist is created.
        """
        sent = [document.model_dump(exclude_unset=True) for document in documents]
        return self.library.ensure(collection).upsert(sent, progress=False)

    @tool("Update a document", read_only_hint=False, destructive_hint=True, idempotent_hint=True)
    def update_document(
        self, id: str, payload: Object = None, value: JsonValue = None, collection: str = DEFAULT
    ) -> DocumentEntry:
        """Change the payload or the value of a document; `add_documents` changes its text.

        `payload` is merged into the stored one, and null removes a field; a `value` of null is no
        change.
        """
        fields = {"payload": payload, "value": value}
        change = {name: content for name, content in fields.items() if content is not None}
        return entry_of(collection, self.library.collection(collection).revise(id, change))

    @tool("Delete documents", read_only_hint=False, destructive_hint=True, idempotent_hint=True)
    def delete_documents(
        self, ids: list[str] | None = None, filter: Object = None, collection: str = DEFAULT
    ) -> Deleted:
        """Delete documents by their ids or by a filter, with the feedback about them, for good."""
        parse(DeletionRequest, {"ids": ids, "filter": filter})  # exactly one of them
        opened = self.library.collection(collection)
        deleted = opened.delete_matching(filter or {}) if ids is None else opened.delete(ids)
        return Deleted(deleted)

    @tool("Say what served", read_only_hint=False, destructive_hint=False, idempotent_hint=True)
    def used(self, search: str, ids: list[str], collection: str = DEFAULT) -> Used:
        """Say which documents of a search served: call it once you have used an answer.

        The others that it listed did not; an empty list says that none did.
        """
        return self.library.collection(collection).used(search, ids)

    @tool("Give feedback", read_only_hint=False, destructive_hint=False, idempotent_hint=True)
    def give_feedback(
        self, query: str, id: str, label: Label = 1.0, collection: str = DEFAULT
    ) -> FeedbackAdded:
        """Say how well a document answers a query, for searches and trainings to learn from.

        A `label` above 0: it answers it, by degree; 0 or below: it does not.
        """
        item = {"query": query, "id": id, "label": label, "source": "mcp"}
        return self.library.collection(collection).teach([item])


# -- results -------------------------------------------------------------------------------------


def entry_of(collection: str, document: Any) -> DocumentEntry:
    """Return a stored document with its texts, or a hit with the passage that matched."""
    is_hit = not hasattr(document, "fields")
    return DocumentEntry(
        id=document.id,
        uri=f"attend://{collection}/{quote(document.id, safe='')}",
        text=(document.passage if is_hit else "\n".join(document.fields.values())) or None,
        value=document.value,
        payload=dict(document.payload),
        title=document.title if is_hit else None,
        weight=document.weight if is_hit else None,
    )


# -- the server ----------------------------------------------------------------------------------


class LibraryServer(MCPServer):
    """An MCP server of one library, which only reads unless it may `write`.

    >>> LibraryServer(attend.open("library")).run("stdio")  # doctest: +SKIP
    """

    def __init__(self, library: Data | RemoteLibrary, *, write: bool = False) -> None:
        toolbox, tools = (WritingTools if write else ReadingTools)(library), []
        for _, method in inspect.getmembers(toolbox, lambda item: hasattr(item, "annotations")):
            options = {"annotations": method.annotations, "description": inspect.getdoc(method)}
            tools.append(Tool.from_function(method, structured_output=True, **options))
            tools[-1].parameters["additionalProperties"] = False
        about = {"title": "Attend", "version": __version__, "instructions": INSTRUCTIONS}
        super().__init__("attend", tools=tools, log_level="WARNING", **about)
        self.library = library
        self.fields = {tool.name: [*tool.parameters["properties"]] for tool in tools}
        self.completion()(self.complete)
        # An id is no path of files: it may begin with a slash, or hold dots.
        kind = {"mime_type": JSON, "security": ResourceSecurity(False, False)}
        self.resource("attend://{collection}", name="collection", **kind)(self.describe)
        self.resource("attend://{collection}/{id}", name="document", **kind)(self.read)

    async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
        """Call a tool; what it cannot do is a sentence in a result that is marked as an error."""
        try:
            if name not in self.fields:
                raise faults.ToolError(f"There is no tool {name!r}; --write adds those that write.")
            for key in arguments.keys() - {*self.fields[name]}:
                raise faults.ToolError(f"{key}: unknown field; {remedy(key, self.fields[name])}")
            return await super().call_tool(name, arguments, context)
        except faults.ToolError as error:
            content = types.TextContent(type="text", text=sentence_of(error))
            return types.CallToolResult(content=[content], is_error=True)

    async def read_resource(self, uri: Any, context: Any = None) -> Any:
        """Read a document or a collection as JSON."""
        try:
            return await super().read_resource(uri, context)
        except faults.UnexpectedResourceError as error:
            if isinstance(error.__cause__, NotFound):
                raise faults.ResourceNotFoundError(sentence_of(error)) from None
            raise faults.ResourceError(sentence_of(error)) from None

    async def list_resources(self) -> list[types.Resource]:
        """Return the collections: documents have addresses, and are too many to list."""
        names = await asyncio.to_thread(self.library.names)
        return [types.Resource(uri=f"attend://{name}", name=name, mime_type=JSON) for name in names]

    def describe(self, collection: str) -> str:
        """Return a collection: its figures and its settings."""
        return json.dumps(self.library.collection(collection).info().json(), indent=1)

    def read(self, collection: str, id: str) -> str:
        """Return a document: its texts, its value and its payload."""
        document = self.library.collection(collection).document(id)
        names = ("id", "fields", "value", "payload")
        return json.dumps({name: getattr(document, name) for name in names}, indent=1)

    async def complete(self, ref: Any, argument: Any, context: Any) -> types.Completion:
        """Complete the name of a collection."""
        names = await self.list_resources() if argument.name == "collection" else []
        results = [item.name for item in names if item.name.startswith(argument.value)]
        return types.Completion(values=results[:100])


def sentence_of(error: Exception) -> str:
    """Return the sentence of an expected error; raise one that is a fault of the program."""
    cause = error.__cause__
    if isinstance(cause, ValidationError) and type(error) is faults.ToolError:
        return str(invalid(cause))
    if isinstance(cause, AttendError | OSError | sqlite3.Error | faults.ToolError | None):
        return str(cause or error)
    raise error
