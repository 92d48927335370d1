"""A library on an Attend server: the methods, results and errors of a local one.

Nothing here imports NumPy, FAISS or torch: a client needs httpx2, pydantic and orjson alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache, partial
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    TypeVar,
    Union,
    Unpack,
    get_args,
    get_origin,
    get_type_hints,
)
from urllib.parse import quote

from attend import api
from attend.api.base import ABSENT, DEFAULT_COLLECTION, MAX_DOCUMENTS, MAX_PAGE, Reply, check_name
from attend.connect.transport import RemoteServer, error_of, to_json
from attend.core.errors import Cancelled, CollectionExists, EncoderMismatch, NotFound
from attend.core.frames import Page
from attend.core.progress import Progress, reported
from attend.core.types import Document, Json, Role, StoredDocument

if TYPE_CHECKING:
    from attend.api.answers import Facets
    from attend.api.documents import Documents
    from attend.api.keywords import (
        CollectionKeywords,
        RecommendKeywords,
        SearchKeywords,
        TrainKeywords,
    )
    from attend.collection.collection import Collection

Content = TypeVar("Content", bound=Reply)

ARROW = "application/vnd.apache.arrow.stream"
TAR = "application/x-tar"
MANY = 500  # documents, whose encoding takes seconds
POLL_SECONDS = 0.5
SNAPSHOT_SECONDS = 1200.0
"""To wait for a snapshot to be taken, or restored."""


class RemoteLibrary:
    """Collections on a server. `attend.open("http://HOST:PORT")` returns one.

    Args:
        url: of the server.
        options: those of `RemoteServer`: `api_key`, `timeout`, `transport`.

    >>> library = RemoteLibrary("http://127.0.0.1:8000")  # doctest: +SKIP
    >>> library.names()  # doctest: +SKIP
    ['books']
    """

    def __init__(self, url: str, **options: Any) -> None:
        self.server = RemoteServer(url, **options)

    def __enter__(self) -> RemoteLibrary:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self.server.close()

    def names(self) -> list[str]:
        """Return the names of the collections that the key opens, in alphabetical order."""
        return [item["name"] for item in self.server.get("/v1/collections")["collections"]]

    def aliases(self) -> dict[str, str]:
        """Return the collection of each alias, in alphabetical order."""
        aliases = self.server.get("/v1/aliases")["aliases"]
        return {item["alias"]: item["collection"] for item in aliases}

    def resolve(self, name: str) -> str:
        """Return the collection that a name stands for, whether it exists or not."""
        return self.aliases().get(name, name)

    def set_alias(self, alias: str, collection: str) -> bool:
        """Let an alias stand for a collection; return whether the alias is new."""
        is_new = alias not in self.aliases()
        self.server.write("PUT", _address(alias, "aliases"), {"collection": collection})
        return is_new

    def drop_alias(self, alias: str) -> None:
        """Delete an alias; its collection stays."""
        self.server.write("DELETE", _address(alias, "aliases"))

    def collection(self, name: str = DEFAULT_COLLECTION) -> RemoteCollection:
        """Return an existing collection, by its name or an alias.

        Raises:
            UnknownCollection: no collection has this name.
        """
        collection = RemoteCollection(self.server, name)
        collection.name = collection.info().name
        return collection

    def create(
        self, name: str = DEFAULT_COLLECTION, **settings: Unpack[CollectionKeywords]
    ) -> RemoteCollection:
        """Create a collection, or return an existing one of the same settings; see `Data.create`.

        Raises:
            CollectionExists: a collection with other settings, or an alias, has this name.
        """
        self.server.write("PUT", _address(name), settings)
        return RemoteCollection(self.server, name)

    def ensure(
        self, name: str = DEFAULT_COLLECTION, **settings: Unpack[CollectionKeywords]
    ) -> RemoteCollection:
        """Return an existing collection, which must have the settings named, or create one.

        Raises:
            EncoderMismatch: it was built with another encoder than the one named.
            CollectionExists: it was made with another of the settings named.
        """
        try:
            collection = self.collection(name)
        except NotFound:
            return self.create(name, **settings)
        stored = collection.info().settings
        for field, value in settings.items():
            if stored.get(field) != value:
                kind = EncoderMismatch if field == "encoder" else CollectionExists
                raise kind(
                    f"The collection {name!r} exists with another setting: {field} is "
                    f"{stored.get(field)!r}, not {value!r}. Use that, or another name."
                )
        return collection

    def drop(self, name: str) -> None:
        """Delete a collection with everything in it."""
        self.server.write("DELETE", _address(name))

    def search(
        self, query: Any, collections: Sequence[str] = (), **options: Unpack[SearchKeywords]
    ) -> api.AcrossAnswer:
        """Search several collections, and merge their hits by weight where that is sound."""
        body = {"query": query, "collections": list(collections), **options}
        return read(api.AcrossAnswer, self.server.ask("/v1/search", body))

    def save_snapshot(self, name: str, path: str | Path) -> None:
        """Download a snapshot of a collection into a file, which is complete or not there."""
        path = Path(path)
        part = path.with_name(path.name + ".part")
        address = f"{_address(name)}/snapshot"
        try:
            opened = self.server.download("POST", address, SNAPSHOT_SECONDS)
            with opened as pieces, part.open("wb") as file:
                file.writelines(pieces)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)

    def restore_snapshot(self, name: str, path: str | Path, *, progress: Progress = None) -> None:
        """Make a collection of a snapshot, which is sent as it is read and proved on the server."""
        address = f"{_address(name)}/snapshot"
        with reported(progress) as report:
            options: dict[str, Any] = {"report": report, "timeout": SNAPSHOT_SECONDS}
            self.server.send("PUT", address, Path(path), media=TAR, **options)


class RemoteCollection:
    """A collection on a server, with the methods of `attend.Collection`, which describe them.

    Attributes:
        name: of the collection.
    """

    def __init__(self, server: RemoteServer, name: str) -> None:
        self._server, self.name = server, name

    def search(self, query: Any, **options: Unpack[SearchKeywords]) -> api.Answer:
        """Search documents: the `k` best, with weights, and the answer that they give."""
        return read(api.Answer, self._ask("/search", {"query": query, **options}))

    def search_many(self, requests: Sequence[Any]) -> list[api.Answer]:
        """Answer several searches together: one call of the encoder for all."""
        return self._batch(requests)[0]

    def matrix(self, requests: Sequence[Any]) -> api.Matrix:
        """Return logits and weights of every query over every document that may be attended to."""
        return read(api.Matrix, self._batch(requests, matrix=True)[1])

    def _batch(
        self, requests: Sequence[Any], *, matrix: bool = False
    ) -> tuple[list[api.Answer], Any]:
        body = {"searches": list(requests), "matrix": matrix}
        batch = self._ask("/search/batch", body)
        for answer in batch["answers"]:
            if "error" in answer:
                raise error_of(answer["error"])
        return [read(api.Answer, answer) for answer in batch["answers"]], batch.get("matrix")

    def recommend(
        self, request: Any = None, /, **fields: Unpack[RecommendKeywords]
    ) -> api.Recommended | api.Predicted:
        """Recommend what may come next for a user, or predict what they would think of `target`."""
        answer = self._ask("/recommend", fields if request is None else request)
        if "predictions" in answer:
            return read(api.Predicted, answer)
        return read(api.Recommended, answer)

    def teach(
        self, items: Iterable[Any], *, delete_stored: bool = False, progress: Progress = None
    ) -> api.FeedbackAdded:
        """Add feedback: labels of documents for queries, which `train` learns from.

        More than 10,000 labels are sent in several requests, each stored whole or not at all.
        """
        with reported(progress or False) as report:
            replies = self._in_parts("/feedback", list(items), report, delete_stored=delete_stored)
        return read(api.FeedbackAdded, replies)

    def add_interactions(
        self,
        items: Iterable[Any],
        *,
        delete_stored: bool = False,
        liked_from: float | None = ABSENT,
    ) -> api.InteractionsAdded:
        """Store which users interacted with which documents; `recommend` and `train` use them."""
        liking = {} if liked_from is ABSENT else {"liked_from": liked_from}
        replies = self._in_parts(
            "/interactions", list(items), None, delete_stored=delete_stored, **liking
        )
        return read(api.InteractionsAdded, replies)

    def used(
        self, search: str, ids: Sequence[str], *, value: float = 1.0, source: str | None = None
    ) -> api.Used:
        """Say which hits of a search served; the others that it showed did not."""
        body = {"search": search, "ids": list(ids), "value": value, "source": source}
        return read(api.Used, self._write("POST", "/used", body))

    def searches(self, limit: int = 100, *, before: str | None = None) -> api.SearchesPage:
        """Return searches of the log, the newest first, with what they showed and what served."""
        page = "" if before is None else f"&before={quote(before)}"
        path = f"{self._path}/searches?limit={limit}{page}"
        return read(api.SearchesPage, self._server.get(path))

    def compare_from_log(self, before: int, after: int | None = None) -> api.LogComparison:
        """Compare two versions by which hits of logged searches served; the active one if None."""
        body = {"before": before, "from_log": True, **({"after": after} if after else {})}
        return read(api.LogComparison, self._write("POST", "/compare", body))

    def _in_parts(
        self, path: str, items: list[Any], report: Any, *, delete_stored: bool, **fields: Any
    ) -> dict[str, Any]:
        """Send a list in requests of at most `MAX_DOCUMENTS`, and return the last one's reply."""
        total = {"added": 0, "replaced": 0}
        for start in range(0, max(len(items), 1), MAX_DOCUMENTS):
            body = {"items": items[start : start + MAX_DOCUMENTS], **fields}
            if delete_stored and not start:
                body["delete_stored"] = True
            reply = self._write("POST", path, body)
            total = {name: count + reply[name] for name, count in total.items()}
            if report is not None:
                report("storing", min(1.0, (start + MAX_DOCUMENTS) / len(items)))
        return {**reply, **total}

    def train(
        self,
        *,
        progress: Progress = None,
        cancelled: Callable[[], bool] | None = None,
        **fields: Unpack[TrainKeywords],
    ) -> dict[str, Any]:
        """Train on the stored feedback, as a job of the server, and return its report.

        Raises:
            Cancelled: `cancelled` returned true, or somebody else stopped the job.
            InvalidRequest: nothing is stored to learn from.
        """
        job = self._write("POST", "/train", fields)
        address = f"/v1/jobs/{job['id']}"
        with reported(progress) as report:
            while job["state"] in ("queued", "running"):
                if report is not None:
                    report(job["progress"]["stage"] or "waiting", job["progress"]["fraction"])
                if cancelled is not None and cancelled():
                    self._server.write("DELETE", address)
                    cancelled = None
                time.sleep(POLL_SECONDS)
                job = self._server.get(address)
        if job["state"] == "cancelled":
            raise Cancelled
        if job["state"] == "failed":
            raise error_of(job["problem"])
        report_of_job: dict[str, Any] = job["result"]
        return report_of_job

    def upsert(self, documents: Documents, *, progress: Progress = None) -> api.Written:
        """Insert or replace documents, all or none; the next search finds them.

        A table of pandas, Polars or Arrow is sent as a stream of Arrow's format.
        """
        if hasattr(documents, "__arrow_c_stream__"):
            body, media, count = _arrow(documents), ARROW, MANY
        else:
            plain = [_spelled_out(document) for document in documents]
            body, media, count = to_json({"documents": plain}), "application/json", len(plain)
        with reported(progress if count >= MANY else progress or False) as report:
            path = f"{self._path}/documents"
            reply = self._server.send("POST", path, body, media=media, report=report)
        return read(api.Written, reply)

    def revise(self, id: str, revision: Any) -> StoredDocument:
        """Change a document's value, its payload or both; nothing is encoded."""
        return _stored(self._write("PATCH", f"/documents/{_part(id)}", revision))

    def page(
        self,
        filter: Mapping[str, Json] | None = None,
        *,
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page:
        """Return documents that pass a filter, in the order in which they first came."""
        body = {"filter": filter, "cursor": cursor, "limit": limit}
        page = self._ask("/documents/list", body)
        documents = [_stored(document) for document in page["documents"]]
        return Page(documents, page["next"], page["total"], page.get("hints"))

    def facets(
        self, fields: Sequence[str], filter: Mapping[str, Json] | None = None, *, limit: int = 10
    ) -> Facets:
        """Count the documents that pass a filter by the values of fields of value or payload."""
        body = {"fields": fields, "filter": filter, "limit": limit}
        facets = self._ask("/documents/facets", body)["facets"]
        return {name: read(api.Facet, facet) for name, facet in facets.items()}

    def ids(self) -> set[str]:
        """Return the ids of all documents."""
        return {document.id for document in listed(self)}

    def delete_matching(self, filter: Mapping[str, Json]) -> int:
        """Delete what passes a filter, all or none, and return the number of deleted documents."""
        return int(self._write("POST", "/documents/delete", {"filter": filter})["deleted"])

    def delete(self, ids: Sequence[str]) -> int:
        """Delete documents, and return how many existed; unknown ids are passed over.

        More than 10,000 are deleted in several requests.
        """
        ids = list(ids)
        parts = [ids[start : start + MAX_DOCUMENTS] for start in range(0, len(ids), MAX_DOCUMENTS)]
        replies = [self._write("POST", "/documents/delete", {"ids": part}) for part in parts]
        return sum(reply["deleted"] for reply in replies)

    def document(self, id: str) -> StoredDocument:
        """Return one document as stored.

        Raises:
            UnknownDocument: no document has this id.
        """
        return _stored(self._server.get(f"{self._path}/documents/{_part(id)}"))

    def projections(self) -> list[api.StoredProjection]:
        """Return all versions, the first one first."""
        versions = self._server.get(f"{self._path}/projections")["projections"]
        addresses = [f"{self._path}/projections/{version['version']}" for version in versions]
        return [read(api.StoredProjection, self._server.get(address)) for address in addresses]

    def activate(self, version: int, expected: int | None = None, *, force: bool = False) -> None:
        """Answer with this projection, in its role, from the next search on."""
        options = {"force": "true" if force else "false", "expected": expected}
        sent = {name: value for name, value in options.items() if value is not None}
        self._write("POST", f"/projections/{version}/activate", params=sent)

    def rollback(self, role: Role = "search") -> int:
        """Answer as before the last activation in a role; 0 is the untrained version."""
        reply = self._write("POST", "/projections/rollback", params={"role": role})
        return int(reply["projection"])

    def configure(self, **changes: Any) -> bool:
        """Change settings, and return whether anything changed."""
        before = self.info().settings
        return bool(self._write("PATCH", "", changes)["settings"] != before)

    def info(self) -> api.CollectionInfo:
        """Return the figures of the collection."""
        return read(api.CollectionInfo, self._server.get(self._path))

    @property
    def _path(self) -> str:
        return _address(self.name)

    def _ask(self, path: str, body: Any) -> Any:
        return self._server.ask(self._path + path, body)

    def _write(self, method: str, path: str, body: Any = None, **options: Any) -> Any:
        return self._server.write(method, self._path + path, body, **options)


def listed(
    collection: Collection | RemoteCollection, filter: Mapping[str, Json] | None = None
) -> Iterator[StoredDocument]:
    """Yield all documents that pass a filter, in the order in which they first came.

    >>> [document.id for document in listed(books, {"year": {"lt": 1900}})]
    ['whale', 'emma']
    """
    cursor = None
    while True:
        page = collection.page(filter, limit=MAX_PAGE, cursor=cursor)
        yield from page.documents
        cursor = page.next
        if cursor is None:
            return


def _address(name: str, kind: str = "collections") -> str:
    """Return the path of a collection or an alias; raise InvalidRequest for what is no name."""
    check_name(name)
    return f"/v1/{kind}/{name}"


def _part(name: str) -> str:
    """Return a name or an id as a part of a path."""
    return quote(str(name), safe="")


def _stored(document: Mapping[str, Any]) -> StoredDocument:
    return StoredDocument(0, **document)


def _spelled_out(document: Document | Mapping[str, Any]) -> Any:
    """Return a document with the fields of `DocumentRequest`, empty ones left out."""
    if not isinstance(document, Document):
        return document
    sent = {name: getattr(document, name) for name in ("fields", "vectors", "value", "payload")}
    return {
        "id": document.id,
        **{name: part for name, part in sent.items() if part not in (None, {})},
    }


def _arrow(table: Any) -> bytes:
    """Return a table as a stream of Arrow's IPC format."""
    import pyarrow as pa

    reader = pa.RecordBatchReader.from_stream(table)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, reader.schema) as writer:
        for batch in reader:
            writer.write_batch(batch)
    stream: bytes = sink.getvalue().to_pybytes()
    return stream


# -- replies from JSON ------------------------------------------------------------------------


def read(kind: type[Content], content: Any) -> Content:
    """Return JSON as an object of a reply's class, and what it holds as theirs.

    What a newer server sends besides is left out.

    >>> read(api.Written, {"added": 1, "of a later version": 2}).added
    1
    """
    make: Any = kind  # a class is hashable, which the cache's type does not know
    reply: Content = _reader(make)(content)
    return reply


@cache
def _reader(kind: Any) -> Callable[[Any], Any]:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _reader(arguments[0])
    if origin in (Union, UnionType):
        members = [part for part in arguments if part is not NoneType]
        reader = _reader(members[0]) if len(members) == 1 else _same
        return reader if reader is _same else lambda item: None if item is None else reader(item)
    if is_dataclass(kind):
        hints = get_type_hints(kind, include_extras=True)
        return partial(
            _fields, kind, {item.name: _reader(hints[item.name]) for item in fields(kind)}
        )
    if origin is tuple and arguments:
        return tuple
    if not isinstance(origin, type):
        return _same
    if issubclass(origin, Mapping):
        reader = _reader(arguments[1])
        return _same if reader is _same else lambda items: {n: reader(i) for n, i in items.items()}
    if issubclass(origin, Sequence):
        reader = _reader(arguments[0])
        return _same if reader is _same else lambda items: [reader(item) for item in items]
    return _same


def _same(item: Any) -> Any:
    return item


def _fields(kind: Any, readers: Mapping[str, Callable[[Any], Any]], content: Any) -> Any:
    return kind(**{n: readers[n](part) for n, part in content.items() if n in readers})
