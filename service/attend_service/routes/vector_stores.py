"""Vector stores and files, in the form of OpenAI's API.

A vector store is a collection with an encoder, under the collection's own name; its files are
documents. What the form has and a collection has no place for is kept as documents of collections
of its own: an uploaded file and a store's title and metadata in `openai-files`, and the texts of
these files, so that no list reads them, in `openai-texts`. So they survive a restart, and are there
in every process, on every engine and in every backup.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

from flask import request
from pydantic import Field, FiniteFloat
from werkzeug.exceptions import UnsupportedMediaType

from attend import Collection
from attend.api.answers import Hit
from attend.api.base import MAX_TEXT, DocumentId, Reply, Request, Text, WrongField
from attend.core import errors
from attend.core.types import Json
from attend.source.files import HEAD_BYTES, detect_encoding
from attend.source.opening import CONVERTIBLE
from attend.store import StoredDocument, compile_filter
from attend_service import security
from attend_service.context import collection_of, context
from attend_service.operations import ForeignRequest, Operations, need_memory
from attend_service.replies import MULTIPART
from attend_service.routes.documents import delete_document, drop_collection
from attend_service.routes.openai import ENCODING, with_encoder

stores = Operations("OpenAI vector stores")

FILES, TEXTS = "openai-files", "openai-texts"
"""The collections of uploaded files and of stores' titles and metadata, and of the files' texts."""

MAX_FILES = 10_000
"""Files that are kept, of a million characters at most each."""

MAX_ATTACHED = 500
"""Files that are attached in one request, 16 in each write."""

AT_ONCE = 16
MEMORY = 8
"""Bytes that a byte of a file takes: as it is read, and as its passages are encoded."""

STORES = "/v1/vector_stores"
STORE = STORES + "/{collection}"
ATTACHED = STORE + "/files"
ORIGIN = "openai"
"""The field of a document's payload that has its file's name and time."""

Scalar = str | bool | int | FiniteFloat
Attributes = Annotated[dict[str, Scalar], Field(max_length=16)]
Operator = Literal["eq", "ne", "gt", "gte", "lt", "lte", "in", "nin"]


class ListQuery(Request):
    """The part of a list to return, in the order in which its members came."""

    limit: int = Field(20, ge=1, le=1000)
    after: str | None = Field(None, max_length=512)
    """The id of the last member of the page before."""
    order: Literal["asc"] | None = None
    """The first to come is the first; there is no other order."""


class AttachRequest(ForeignRequest):
    """An uploaded file to attach; how it is divided is the collection's own setting."""

    file_id: DocumentId
    attributes: Attributes | None = None
    """Up to 16 texts, numbers and truth values to filter by."""


class BatchAttachRequest(ForeignRequest):
    """Uploaded files to attach, with the same attributes or with their own."""

    file_ids: list[DocumentId] | None = Field(None, max_length=MAX_ATTACHED)
    files: list[AttachRequest] | None = Field(None, max_length=MAX_ATTACHED)
    attributes: Attributes | None = None

    def check(self) -> None:
        if (self.file_ids is None) == (self.files is None):
            raise ValueError("send exactly one of file_ids and files")


class StoreRequest(ForeignRequest):
    """The vector store to create."""

    name: str | None = Field(None, max_length=256)
    """Its title. The id is made of it, as a collection's name."""
    description: str | None = Field(None, max_length=512)
    metadata: Annotated[dict[str, str], Field(max_length=16)] | None = None
    file_ids: list[DocumentId] = Field(default_factory=list, max_length=MAX_ATTACHED)
    expires_after: dict[str, Any] | None = None
    """Not supported: a store does not expire."""

    def check(self) -> None:
        if self.expires_after is not None:
            raise WrongField("expires_after", "a store does not expire here; leave it out")


class AttributeFilter(ForeignRequest):
    """A condition on an attribute, or several with and or or."""

    type: Operator | Literal["and", "or"]
    key: str | None = Field(None, max_length=256)
    value: Scalar | list[Scalar] | None = None
    filters: list[AttributeFilter] | None = Field(None, max_length=256)

    def check(self) -> None:
        if (self.filters is not None) != (self.type in ("and", "or")):
            raise ValueError("and, or take filters; eq, ne, gt, gte, lt, lte, in, nin a key, value")
        if self.filters is None and (not self.key or self.value is None):
            raise ValueError(f"{self.type} takes a key and a value; one is missing")

    def ours(self) -> dict[str, Json]:
        """Return the filter as a search takes it."""
        if self.filters is not None:
            return {f"${self.type}": [part.ours() for part in self.filters]}
        return {self.key or "": {self.type: self.value}}


class RankingOptions(ForeignRequest):
    """The score that is enough."""

    score_threshold: FiniteFloat | None = Field(0.0, ge=0, le=1)


class StoreSearch(ForeignRequest):
    """A search of a vector store."""

    query: Text | Annotated[list[Text], Field(min_length=1, max_length=16)]
    """A text, or several that attend each by itself."""
    filters: AttributeFilter | None = None
    max_num_results: int = Field(10, ge=1, le=50)
    ranking_options: RankingOptions | None = None


class StoredFile(Reply):
    """An uploaded file."""

    id: str
    bytes: int
    created_at: int
    filename: str
    purpose: str
    status: str = "processed"
    object: str = "file"


class FileCounts(Reply):
    """Files by state: all are completed."""

    completed: int
    total: int
    in_progress: int = 0
    failed: int = 0
    cancelled: int = 0


class VectorStore(Reply):
    """A collection with an encoder, as a vector store."""

    id: str
    name: str
    file_counts: FileCounts
    created_at: int
    """0 if the collection was not made in this form."""
    metadata: Mapping[str, str]
    description: str | None = None
    status: str = "completed"
    usage_bytes: int = 0
    """Not counted."""
    object: str = "vector_store"


class AttachedFile(Reply):
    """A document, as a file of a vector store."""

    id: str
    vector_store_id: str
    created_at: int
    """0 for a document that was not attached as a file."""
    attributes: Mapping[str, Any]
    usage_bytes: int
    status: str = "completed"
    object: str = "vector_store.file"


class FileBatch(Reply):
    """Files that were attached together; the answer comes once all are."""

    id: str
    vector_store_id: str
    created_at: int
    file_counts: FileCounts
    status: str = "completed"
    object: str = "vector_store.files_batch"


class ObjectList(Reply):
    """A page of a list."""

    data: Sequence[StoredFile | VectorStore | AttachedFile]
    has_more: bool
    first_id: str | None
    last_id: str | None
    object: str = "list"


class Removed(Reply):
    """What was deleted."""

    id: str
    object: str
    deleted: bool = True


class TextContent(Reply):
    """A passage."""

    text: str
    type: str = "text"


class StoreHit(Reply):
    """A document with the passage that matched."""

    file_id: str
    filename: str
    score: float
    """Confidence × weight, from 0 to 1: the share of the attention that this document has."""
    attributes: Mapping[str, Any]
    content: Sequence[TextContent]


class StoreAnswer(Reply):
    """The documents found, best first."""

    search_query: Sequence[str]
    data: Sequence[StoreHit]
    next_page: str | None
    """Always null: a page is all there is."""
    has_more: bool = False
    object: str = "vector_store.search_results.page"


# -- files ----------------------------------------------------------------------------------------


@stores.add(
    "POST", "/v1/files", upload=MULTIPART, scope="write", checks_collections=True, also=(409,)
)
def upload_file() -> StoredFile:
    """Upload a text file: Markdown, plain text, code, CSV or JSON, of any encoding.

    It is read as text when it comes. Attach it to vector stores then.
    """
    where = security.resolved(FILES)
    if request.mimetype != MULTIPART:
        raise UnsupportedMediaType(f"A file is sent as {MULTIPART}, not as {request.mimetype!r}.")
    sent = request.files.get("file")
    if sent is None:
        raise errors.InvalidRequest("The form has no part 'file'; send one.", field="file")
    raw = sent.read()
    request.close()  # large parts lie in files
    text = _text_of(sent.filename or "file.txt", raw)
    data = context().data
    if FILES not in data.names():
        limit = context().settings.max_collections
        security.check_new_collection(data, where, limit)
    files, texts = data.ensure(where, dimension=1), data.ensure(TEXTS, dimension=1)
    if texts.store.counts()[0] >= MAX_FILES:
        raise errors.LimitExceeded(f"{MAX_FILES:,} files are kept at most; delete some.")
    name, purpose = (sent.filename or "file.txt")[:255], request.form.get("purpose", "assistants")
    stored = StoredFile(f"file-{secrets.token_hex(12)}", len(raw), _now(), name, purpose[:64])
    texts.upsert([{"id": stored.id, "value": text}])  # first: a file always has its text
    files.upsert([{"id": stored.id, "payload": stored.json()}])
    return stored


@stores.add("GET", "/v1/files", checks_collections=True)
def list_files(query: ListQuery) -> ObjectList:
    """List uploaded files."""
    files = _files()
    if files is None:
        return _page([], query)
    uploaded = _following(files, query, {"object": "file"})
    return _page([_file(document.payload) for document in uploaded], query)


@stores.add("GET", "/v1/files/{file}", checks_collections=True, also=(404,))
def show_file(file: str) -> StoredFile:
    """Show an uploaded file, without its text."""
    [payload] = _uploaded([file])
    return _file(payload)


@stores.add("DELETE", "/v1/files/{file}", scope="write", checks_collections=True, also=(404,))
def delete_file(file: str) -> Removed:
    """Delete an uploaded file; vector stores to which it was attached keep their document."""
    _uploaded([file])
    for name in (FILES, TEXTS):
        context().data.collection(name).delete([file])
    return Removed(file, "file")


# -- vector stores --------------------------------------------------------------------------------


@stores.add("POST", STORES, example={"name": "Sea novels"}, patience=ENCODING, also=(404, 409, 503))
def create_vector_store(body: StoreRequest) -> VectorStore:
    """Create a collection with the default encoder, and attach files to it."""
    files = _planned([(id, {}) for id in body.file_ids])  # before anything is made
    data, limits = context().data, context().settings
    name = re.sub(r"[^A-Za-z0-9_]+", "-", body.name or "").strip("-")[:50] or "vs"
    used = {other.lower() for other in (*data.names(), *data.aliases())}
    if body.name is None or name.lower() in used | security.RESERVED:
        name = f"{name}-{secrets.token_hex(6)}"
    security.check_new_collection(data, name, limits.max_collections)
    collection = data.create(name, recall=limits.recall, exact_below=limits.exact_below)
    record = body.model_dump(include={"name", "description", "metadata"}, exclude_none=True)
    data.ensure(FILES, dimension=1).upsert(
        [{"id": f"store/{name}", "payload": {**record, "created_at": _now()}}]
    )
    _attach(collection, files)
    return _store(collection)


@stores.add("GET", STORES, checks_collections=True)
def list_vector_stores(query: ListQuery) -> ObjectList:
    """List the collections with an encoder, by name."""
    following = (one for one in with_encoder() if one.name > (query.after or ""))
    return _page([_store(one) for one in islice(following, query.limit + 1)], query)


@stores.add("GET", STORE)
def show_vector_store(collection: str) -> VectorStore:
    """Show a collection as a vector store."""
    return _store(collection_of(collection))


@stores.add("DELETE", STORE, exact=True)
def delete_vector_store(collection: str) -> Removed:
    """Delete the collection with everything in it; uploaded files stay."""
    drop_collection(collection)
    if FILES in context().data.names():
        collection_of(FILES).delete([f"store/{collection}"])
    return Removed(collection, "vector_store.deleted")


@stores.add(
    "POST", STORE + "/search", example={"query": "life on a ship"}, scope="read", also=(503,)
)
def search_vector_store(collection: str, body: StoreSearch) -> StoreAnswer:
    """Search a vector store; each document comes once, with the passage that matched."""
    queries = [body.query] if isinstance(body.query, str) else body.query
    answer = collection_of(collection).search(
        queries[0] if len(queries) == 1 else {"mixture": [{"text": text} for text in queries]},
        k=body.max_num_results,
        filter=None if body.filters is None else body.filters.ours(),
        include=["passage"],
    )
    hits = [_hit(hit, share) for hit, share in zip(answer.hits, answer.shares(), strict=True)]
    least = (body.ranking_options and body.ranking_options.score_threshold) or 0.0
    return StoreAnswer(queries, [hit for hit in hits if hit.score >= least], None)


# -- the files of a vector store ------------------------------------------------------------------


@stores.add(
    "POST",
    ATTACHED,
    example={"file_id": "file-1", "attributes": {"genre": "sea"}},
    scope="write",
    patience=ENCODING,
)
def attach_file(collection: str, body: AttachRequest) -> AttachedFile:
    """Attach an uploaded file: its text becomes a document, found once this is answered."""
    planned = _planned([(body.file_id, body.attributes or {})])
    opened = collection_of(collection)
    _attach(opened, planned)
    return _attached(opened, opened.document(body.file_id))


@stores.add("GET", ATTACHED)
def list_attached(collection: str, query: ListQuery) -> ObjectList:
    """List the documents of a vector store as files."""
    opened = collection_of(collection)
    return _page([_attached(opened, one) for one in _following(opened, query)], query)


@stores.add("GET", ATTACHED + "/{id}")
def show_attached(collection: str, id: str) -> AttachedFile:
    """Show a document as a file."""
    opened = collection_of(collection)
    return _attached(opened, opened.document(id))


@stores.add("DELETE", ATTACHED + "/{id}", scope="write")
def detach_file(collection: str, id: str) -> Removed:
    """Delete a document; the uploaded file stays."""
    delete_document(collection, id)
    return Removed(id, "vector_store.file.deleted")


@stores.add(
    "POST",
    STORE + "/file_batches",
    example={"file_ids": ["file-1"]},
    scope="write",
    patience=4 * ENCODING,
)
def attach_files(collection: str, body: BatchAttachRequest) -> FileBatch:
    """Attach uploaded files, 16 in each write; the same request can be sent again."""
    files = [(id, body.attributes or {}) for id in body.file_ids or ()]
    files += [(one.file_id, one.attributes or body.attributes or {}) for one in body.files or ()]
    planned = _planned(files)
    _attach(collection_of(collection), planned)
    return _batch(collection, f"vsfb_{len(files)}_{_now()}")


@stores.add("GET", STORE + "/file_batches/{batch}")
def show_batch(collection: str, batch: str) -> FileBatch:
    """Show a batch of files, which was completed when it was answered."""
    collection_of(collection)
    return _batch(collection, batch)


# -- what these have in common --------------------------------------------------------------------


def _text_of(name: str, raw: bytes) -> str:
    """Return the text of an uploaded file.

    Raises:
        InvalidRequest: it is no text, has none, or too much.
    """
    path = Path(name)
    try:
        if path.suffix.lower() in CONVERTIBLE:
            raise ValueError(
                f"{name!r} has another format than text; build a collection from such files with "
                f"'attend build', or save it as text"
            )
        text = raw.decode(detect_encoding(raw[:HEAD_BYTES], path)[0])
        if not text.strip() or len(text) > MAX_TEXT:
            raise ValueError(f"{name!r} has {len(text):,} characters; send 1 to {MAX_TEXT:,}")
    except (errors.SourceError, ValueError) as error:
        raise errors.InvalidRequest(f"{str(error).rstrip('.')}.", field="file") from None
    return text


def _now() -> int:
    return int(time.time())


def _files() -> Collection | None:
    """Return the collection of uploaded files, if the key opens it; None before the first."""
    name = security.resolved(FILES)
    return collection_of(name) if name in context().data.names() else None


def _uploaded(ids: Sequence[str]) -> list[Mapping[str, Any]]:
    """Return what is known of uploaded files.

    Raises:
        UnknownDocument: naming the first that is not there.
    """
    files = _files()
    stored = {} if files is None else files.store.find(ids)
    for id in ids:
        if id not in stored or stored[id].payload.get("object") != "file":
            raise errors.UnknownDocument(
                f"There is no uploaded file {id[:80]!r}; send it to POST /v1/files first.",
                field="file_id",
            )
    return [stored[id].payload for id in ids]


def _file(payload: Mapping[str, Any]) -> StoredFile:
    return StoredFile(**payload)


def _planned(files: Sequence[tuple[str, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Return files with their attributes as documents without texts; nothing is written yet."""
    uploads = _uploaded([id for id, _ in files])
    sizes = [upload["bytes"] for upload in uploads]
    need_memory(MEMORY * sum(sorted(sizes)[-AT_ONCE:]))
    documents = []
    for upload, (id, attributes) in zip(uploads, files, strict=True):
        origin = {"filename": upload["filename"], "bytes": upload["bytes"], "created_at": _now()}
        documents.append({"id": id, "payload": {**attributes, ORIGIN: origin}})
    return documents


def _attach(collection: Collection, planned: Sequence[dict[str, Any]]) -> None:
    for start in range(0, len(planned), AT_ONCE):
        part = {document["id"]: document for document in planned[start : start + AT_ONCE]}
        texts = context().data.collection(TEXTS).store.find(list(part))
        if len(texts) < len(part):
            raise errors.UnknownDocument("A file was deleted meanwhile; attach the others.")
        documents = [{**part[id], "text": stored.value} for id, stored in texts.items()]
        collection.upsert(documents, progress=False)


def _origin(payload: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a document's payload says of the file that it was."""
    origin = payload.get(ORIGIN)
    return origin if isinstance(origin, dict) else {}


def _attributes(payload: Mapping[str, Any]) -> dict[str, Any]:
    return {name: item for name, item in payload.items() if isinstance(item, str | int | float)}


def _attached(collection: Collection, stored: StoredDocument) -> AttachedFile:
    origin = _origin(stored.payload)
    size = origin.get("bytes") or sum(len(text.encode()) for text in stored.fields.values())
    created = origin.get("created_at") or 0
    return AttachedFile(stored.id, collection.name, created, _attributes(stored.payload), size)


def _hit(hit: Hit, score: float) -> StoreHit:
    name = _origin(hit.payload).get("filename") or hit.id
    content = [TextContent(hit.passage)] if hit.passage else []
    return StoreHit(hit.id, name, score, _attributes(hit.payload), content)


def _store(collection: Collection) -> VectorStore:
    id, data = f"store/{collection.name}", context().data
    stored = data.collection(FILES).store.find([id]) if FILES in data.names() else {}
    record: Mapping[str, Any] = stored[id].payload if id in stored else {}
    documents = collection.store.counts()[0]
    return VectorStore(
        collection.name,
        record.get("name") or collection.name,
        FileCounts(documents, documents),
        record.get("created_at") or 0,
        record.get("metadata") or {},
        record.get("description"),
    )


def _batch(collection: str, id: str) -> FileBatch:
    """Return a batch, whose id has all there is to know."""
    parts = re.fullmatch(r"vsfb_(\d{1,4})_(\d{1,12})", id, re.ASCII)
    if parts is None:
        raise errors.UnknownDocument(f"There is no batch of files {id[:80]!r}.", field="batch")
    count, created = int(parts[1]), int(parts[2])
    return FileBatch(id, collection, created, FileCounts(count, count))


def _following(
    collection: Collection, query: ListQuery, filter: Mapping[str, Json] | None = None
) -> list[StoredDocument]:
    """Return the documents after one, in the order in which they came, and one more than asked."""
    row = 0
    if query.after is not None:
        row = collection.store.rows_of([query.after]).get(query.after, 0)
        if not row:
            raise errors.UnknownDocument(
                f"There is no {query.after[:80]!r} to go on after; begin again.", field="after"
            )
    return list(collection.store.scroll(row, query.limit + 1, compile_filter(filter or {})))


def _page(items: Sequence[Any], query: ListQuery) -> ObjectList:
    """Return the first of some items as a page, and whether there are more."""
    page = items[: query.limit]
    first, last = (page[0].id, page[-1].id) if page else (None, None)
    return ObjectList(page, len(items) > query.limit, first, last)
