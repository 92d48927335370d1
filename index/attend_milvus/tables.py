"""The documents and keys of one collection on the server: read by readers, changed by writers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from attend.api.base import Consistency
from attend.core.errors import Conflict
from attend.core.types import Float32
from attend.store import StoredDocument
from attend_milvus import schema
from attend_milvus.client import Client
from attend_milvus.registry import Known, Registry
from attend_milvus.rows import LOOKED_AGAIN, Row, Table, both
from attend_milvus.server import MAX_TEXT_BYTES, MESSAGE_BYTES

PAGE = MESSAGE_BYTES // (3 * MAX_TEXT_BYTES)
"""Documents that fit into a message, whatever their texts."""

IDENTITY = ("row", "id", "version", "keys")


class Head(NamedTuple):
    """A document's row without its contents."""

    row: int
    id: str
    version: int
    keys: int
    key_hash: str = ""
    value_hash: str = ""

    def key_ids(self) -> list[int]:
        """Return the ids of the document's own keys, in their order."""
        return schema.key_ids(self.row, self.version, self.keys)


class Read(NamedTuple):
    """A document, and the version and number of its keys."""

    document: StoredDocument
    version: int
    keys: int

    def key_ids(self) -> list[int]:
        return schema.key_ids(self.document.row, self.version, self.keys)


class Tables:
    """The tables of one collection.

    Raises:
        Conflict: the collection went while it was opened.
    """

    def __init__(self, client: Client, registry: Registry, name: str) -> None:
        self.client = client
        self.registry = registry
        self.name = name
        record = registry.known(name)
        if record is None:
            raise Conflict(f"The collection {name!r} went while it was opened; ask again.")
        self.uuid = record.uuid
        self.documents = documents_table(client, self.uuid)
        self.examples = examples_table(client, self.uuid)
        self.dimension = int(record.settings["dimension"])

    def keys(self, layout: str = schema.RAW) -> Table:
        return keys_table(self.client, self.uuid, layout)

    def of_keys(self, *, complete: bool = False) -> list[Table]:
        """Return the tables of keys that writes enter, the raw one first.

        Args:
            complete: leave out those that are being made.
        """
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

    def change(self, change: Callable[[Known], Known]) -> Known:
        """Change the record for every process. Of two changes by different processes at the same
        moment one may be lost."""
        with self.registry.changing:
            record = change(self.known(fresh=True))
            self.registry.put_record(record)
            return record

    # -- documents --------------------------------------------------------------------------

    def heads(self, ids: Sequence[str], consistency: Consistency | None = None) -> dict[str, Head]:
        """Return the heads of documents by id.

        Raises:
            Conflict: a row is another document's: their ids have the same hash.
        """
        by_row = {schema.row_of(id): id for id in ids}
        fields = [*IDENTITY, "key_hash", "value_hash"]
        heads = {}
        for row in self.documents.by_keys(list(by_row), fields, consistency=consistency):
            if row["id"] != by_row[row["row"]]:
                raise _collision(row["id"], by_row[row["row"]])
            heads[row["id"]] = Head(*(row[name] for name in fields))
        return heads

    def read(
        self, rows: Iterable[int], *, texts: bool = True, passing: str = ""
    ) -> dict[int, Read]:
        """Return documents by row; those that are gone, or do not pass, are absent."""
        absent, reads = list(rows), dict[int, Read]()
        for pause in (0.0, *LOOKED_AGAIN):
            time.sleep(pause)
            stored = self.documents.by_keys(absent, _contents(texts), passing)
            reads |= {row["row"]: _read_of(row) for row in stored}
            absent = [row for row in absent if row not in reads]
            if not absent:
                break
        return reads

    def scroll(
        self, after: int, limit: int, passing: str = "", *, texts: bool = True
    ) -> list[Read]:
        """Return the next documents after a row, ascending."""
        reads: list[Read] = []
        for page in self.documents.pages(
            _contents(texts), min(PAGE, limit), both(f"row > {after}", passing)
        ):
            reads += map(_read_of, page)
            if len(reads) >= limit or len(page) < PAGE:
                break
        return reads[:limit]

    def pages(self) -> Iterator[list[Read]]:
        """Yield all documents without their texts, by row."""
        for page in self.documents.pages(_contents(texts=False), PAGE):
            yield [_read_of(row) for row in page]

    # -- keys -------------------------------------------------------------------------------

    def vectors(
        self, ids: Sequence[int], layout: str = schema.RAW, consistency: Consistency | None = None
    ) -> dict[int, Float32]:
        """Return keys by their ids; those that are gone are absent."""
        rows = self.keys(layout).by_keys(ids, ["vector"], consistency=consistency)
        return {row["key"]: np.asarray(row["vector"], dtype=np.float32) for row in rows}

    def places(
        self, ids: Sequence[int], consistency: Consistency | None = None
    ) -> dict[int, tuple[int, str, int, int]]:
        """Return where keys come from: document, field, start, stop."""
        rows = self.keys().by_keys(ids, ["document", "place"], consistency=consistency)
        return {row["key"]: (row["document"], *json.loads(row["place"])) for row in rows}


def documents_table(client: Client, uuid: str) -> Table:
    return Table(client, f"{client.address.library}_{uuid}_documents", "row")


def keys_table(client: Client, uuid: str, layout: str) -> Table:
    return Table(client, f"{client.address.library}_{uuid}_keys_{layout}", "key")


def examples_table(client: Client, uuid: str) -> Table:
    return Table(client, f"{client.address.library}_{uuid}_examples", "example")


def _contents(texts: bool) -> list[str]:
    return [*IDENTITY, "texts", "content"] if texts else [*IDENTITY, "content"]


def _read_of(row: Row) -> Read:
    value, payload = json.loads(row["content"])
    fields = json.loads(row["texts"]) if "texts" in row else {}
    document = StoredDocument(row["row"], row["id"], fields, value, payload)
    return Read(document, row["version"], row["keys"])


def _collision(one: str, other: str) -> Conflict:
    return Conflict(
        f"The ids {one!r} and {other!r} have the same hash of 63 bits, so that only one of the "
        f"documents can be stored; rename the other.",
        field="id",
    )
