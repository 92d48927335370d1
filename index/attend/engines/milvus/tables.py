"""One collection's rows on the server: read by readers, changed by writers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from attend.engines.milvus import schema
from attend.engines.milvus.capabilities import MAX_TEXT_BYTES
from attend.engines.milvus.client import LOOKED_AGAIN, Client, Row
from attend.engines.milvus.filters import both, filter_fields
from attend.engines.milvus.registry import Known, Registry
from attend.errors import Conflict, LimitExceeded
from attend.store import StoredDocument
from attend.types import Consistency, Document, Float32, Int64

ENTRY_BYTES = 3 * MAX_TEXT_BYTES
"""The most that a document's row takes in a message, but for what Milvus adds."""

IDENTITY = ("row", "id", "version", "keys")
WHOLE = (*IDENTITY, "texts", "content")


class Head(NamedTuple):
    """What a document's row says besides its contents."""

    row: int
    id: str
    version: int
    keys: int
    key_hash: str
    value_hash: str

    def key_ids(self) -> list[int]:
        """Return the ids of the document's own keys, in their order."""
        return [schema.key_of(self.row, self.version, place) for place in range(self.keys)]


class Read(NamedTuple):
    """A document, and the version and number of its keys."""

    document: StoredDocument
    version: int
    keys: int

    def key_ids(self) -> list[int]:
        row = self.document.row
        return [schema.key_of(row, self.version, place) for place in range(self.keys)]


class Tables:
    """The tables of one collection."""

    def __init__(self, client: Client, registry: Registry, name: str) -> None:
        self.client = client
        self.registry = registry
        self.name = name
        record = registry.known(name)
        if record is None:
            raise Conflict(f"The collection {name!r} went while it was opened; ask again.")
        self.uuid = record.uuid

    @property
    def documents(self) -> str:
        return documents_table(self.client, self.uuid)

    def keys(self, layout: str = schema.RAW) -> str:
        return keys_table(self.client, self.uuid, layout)

    def of_keys(self, *, complete: bool = False) -> list[str]:
        """The tables of keys that writes enter, the raw one first; or those alone that are not
        being made."""
        layouts = self.known(fresh=True).layouts
        named = [name for name, (_, is_complete) in layouts.items() if is_complete or not complete]
        return [self.keys(layout) for layout in (schema.RAW, *named)]

    def known(self, *, fresh: bool = False) -> Known:
        """Return the collection's record, which all processes share.

        Raises:
            Conflict: it was dropped, and perhaps made again.
        """
        record = self.registry.known(self.name, fresh=fresh)
        if record is None or record.uuid != self.uuid:
            raise Conflict(f"The collection {self.name!r} was dropped meanwhile; open it again.")
        return record

    def change(self, change: Callable[[Known], Known]) -> None:
        """Tell every process of a change. Of two by different processes at the same moment one may
        be lost."""
        with self.registry.changing:
            self.registry.put(change(self.known(fresh=True)))

    # -- documents --------------------------------------------------------------------------

    def heads(self, ids: Sequence[str], consistency: Consistency | None = None) -> dict[str, Head]:
        """Return the heads of documents by id.

        Raises:
            Conflict: a row is another document's: their ids have the same hash.
        """
        requested = {schema.row_of(id): id for id in ids}
        fields = [*IDENTITY, "key_hash", "value_hash"]
        results = {}
        for row in self._rows(list(requested), fields, consistency=consistency):
            if row["id"] != requested[row["row"]]:
                raise _collision(row["id"], requested[row["row"]])
            results[row["id"]] = Head(*(row[name] for name in fields))
        return results

    def read(
        self, rows: Iterable[int], *, texts: bool = True, passing: str = ""
    ) -> dict[int, Read]:
        """Documents by row; those that are gone, or do not pass, are absent."""
        fields = WHOLE if texts else [name for name in WHOLE if name != "texts"]
        absent, results = list(rows), dict[int, Read]()
        for pause in (0.0, *LOOKED_AGAIN):
            time.sleep(pause)
            results |= {row["row"]: read_of(row) for row in self._rows(absent, fields, passing)}
            absent = [row for row in absent if row not in results]
            if not absent:
                break
        return results

    def scroll(
        self, after: int, limit: int, passing: str = "", *, texts: bool = True
    ) -> list[Read]:
        """The next documents after a row, ascending."""
        fields = WHOLE if texts else [name for name in WHOLE if name != "texts"]
        step = max(1, (48 << 20) // ENTRY_BYTES)
        results: list[Read] = []
        while len(results) < limit:
            target = min(step, limit - len(results))
            rows = self.client.query(
                self.documents, both(f"row > {after}", passing), fields, target
            )
            results += sorted((read_of(row) for row in rows), key=lambda item: item.document.row)
            if len(rows) < target:
                break
            after = results[-1].document.row
        return results

    def ids(self) -> Iterator[str]:
        after = 0
        while rows := self.client.query(self.documents, f"row > {after}", ["row", "id"], 10_000):
            after = max(row["row"] for row in rows)
            yield from (row["id"] for row in rows)

    def _rows(
        self,
        rows: Sequence[int],
        fields: Sequence[str],
        passing: str = "",
        consistency: Consistency | None = None,
    ) -> Iterator[dict[str, Any]]:
        complete = any(name in fields for name in ("texts", "content"))
        yield from self.client.by_keys(
            self.documents,
            "row",
            rows,
            fields,
            passing,
            ENTRY_BYTES if complete else 4096,
            consistency,
        )

    # -- keys -------------------------------------------------------------------------------

    def vectors(
        self, ids: Sequence[int], layout: str = schema.RAW, consistency: Consistency | None = None
    ) -> dict[int, Float32]:
        """Keys by their ids; those that are gone are absent."""
        results = self.client.by_keys(
            self.keys(layout), "key", ids, ["key", "vector"], "", 40_000, consistency
        )
        return {row["key"]: np.asarray(row["vector"], dtype=np.float32) for row in results}

    def places(
        self, ids: Sequence[int], consistency: Consistency | None = None
    ) -> dict[int, tuple[int, str, int, int]]:
        """Where keys come from: document, field, start, stop."""
        results = self.client.by_keys(
            self.keys(), "key", ids, ["key", "document", "place"], "", 40_000, consistency
        )
        return {row["key"]: (row["document"], *json.loads(row["place"])) for row in results}


def documents_table(client: Client, uuid: str) -> str:
    return f"{client.address.library}_{uuid}_documents"


def keys_table(client: Client, uuid: str, layout: str) -> str:
    return f"{client.address.library}_{uuid}_keys_{layout}"


def read_of(row: Row) -> Read:
    value, payload = json.loads(row["content"])
    fields = json.loads(row["texts"]) if "texts" in row else {}
    document = StoredDocument(row["row"], row["id"], fields, value, payload)
    return Read(document, row["version"], row["keys"])


class DocumentContents(NamedTuple):
    """A document as its row has it."""

    texts: str
    content: str
    facts: Mapping[str, Any]


def contents_of(document: Document) -> DocumentContents:
    """Raises LimitExceeded for a document that no row can hold."""
    contents = DocumentContents(
        _text(document.fields),
        _text([document.value, document.payload]),
        filter_fields(document.value, document.payload),
    )
    _check_size(document.id, "texts", len(contents.texts.encode()))
    # The facts say the same with every way to a field written out.
    content = max(
        len(contents.content.encode()), len(json.dumps(contents.facts, ensure_ascii=False).encode())
    )
    _check_size(document.id, "value and payload", content)
    return contents


def _text(value: Any) -> str:
    written = json.dumps(value, ensure_ascii=False)
    try:
        written.encode()
    except UnicodeEncodeError:  # unpaired surrogates, which JSON can write
        return json.dumps(value)
    return written


def _check_size(id: str, what: str, size: int) -> None:
    if size > MAX_TEXT_BYTES:
        raise LimitExceeded(
            f"The {what} of {id!r} take {size:,} bytes as JSON, but the engine milvus stores at "
            f"most {MAX_TEXT_BYTES:,}; store less of it, or use a data folder.",
            field="documents",
        )


def _collision(one: str, other: str) -> Conflict:
    return Conflict(
        f"The ids {one!r} and {other!r} have the same hash of 63 bits, so that only one of the "
        f"documents can be stored; rename the other.",
        field="id",
    )


def as_keys(rows: Sequence[int]) -> Int64:
    return np.array(rows, dtype=np.int64)
