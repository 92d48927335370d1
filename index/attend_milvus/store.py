"""The documents of one collection on a server, as `attend.store.Store` has those of a database."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from attend.core.arrays import KeyTable
from attend.core.errors import Unsupported
from attend.core.types import Document, Float32, Int64, Json
from attend.store import (
    CollectionStore,
    Entry,
    Hashes,
    Predicate,
    StaleEntries,
    State,
    StoredDocument,
    StoredKey,
)
from attend_milvus import schema
from attend_milvus.client import read_block, reading
from attend_milvus.examples import RemoteExamples
from attend_milvus.filters import ELEMENTS, Expression, expression, has_element
from attend_milvus.registry import Known
from attend_milvus.rows import BLOCK
from attend_milvus.server import CAPABILITIES
from attend_milvus.tables import Head, Read, Tables
from attend_milvus.versions import RemoteVersions
from attend_milvus.writing import Writer

REVISIONS = 5
"""Attempts of an update when another one comes between."""


NOTHING_PLANNED: tuple[frozenset[str], Mapping[str, Head]] = frozenset(), {}


class RemoteStore(RemoteExamples, RemoteVersions, CollectionStore):
    """Documents, keys and versions; any thread may use it.

    Every document is written whole or not at all, a batch document by document.
    """

    def __init__(self, tables: Tables, scorer: str) -> None:
        self._tables, self._scorer = tables, scorer
        super().__init__()
        self._writer = Writer(tables, self.version_of)
        self._planned = threading.local()
        self._wrote = 0

    def unsupported(self, capability: str) -> Unsupported:
        return CAPABILITIES.lacking(capability)

    def close(self) -> None:
        """Stop the threads; the connection is the library's."""
        self._writer.expired.close()
        self.graphs.close()

    @property
    def retires(self) -> bool:
        """Return whether expired keys wait for their deletion."""
        return self._writer.expired.waits

    def settings(self) -> dict[str, Any]:
        record = self._tables.known()
        return {
            **record.settings,
            "uuid": record.uuid,
            "projection": record.version,
            "published": [],
        }

    def put_settings(self, changes: Mapping[str, Json]) -> None:
        self._tables.change(lambda record: replace(record, settings={**record.settings, **changes}))

    def count_up(self, name: str) -> int:
        def counted(record: Known) -> Known:
            count = 1 + int(record.settings.get(name, 0))
            return replace(record, settings={**record.settings, name: count})

        return int(self._tables.change(counted).settings[name])

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Let the reads within the block be strong, though not of one moment."""
        with reading("strong"):
            yield

    def state(self) -> State:
        return State(self.generation, 0, 0, self._tables.known().version, 0, 0)

    @property
    def generation(self) -> int:
        """Return the time in ms of the last write of this process, or of the last ten seconds.

        Without transactions there is nothing to count.
        """
        return max(self._wrote, int(time.time()) // 10 * 10_000)

    def _written(self) -> None:
        self._wrote = time.time_ns() // 1_000_000

    # -- reading ----------------------------------------------------------------------------

    def counts(self) -> tuple[int, int]:
        # Keys of versions before count until they go.
        return self._tables.documents.count(), self._tables.keys().count()

    def documents(self, rows: Int64, *, texts: bool = True) -> dict[int, StoredDocument]:
        block = read_block()
        if block is None or block.documents is None:
            read: Mapping[int, Read] = self._tables.read(rows.tolist(), texts=texts)
        else:
            read = block.documents
        return {row: read[row].document for row in rows.tolist() if row in read}

    def find(self, ids: Sequence[str]) -> dict[str, StoredDocument]:
        reads = self._tables.read(schema.row_of(id) for id in dict.fromkeys(ids))
        documents = {read.document.id: read.document for read in reads.values()}
        return {id: documents[id] for id in ids if id in documents}

    def rows_of(self, ids: Sequence[str]) -> dict[str, int]:
        return {id: head.row for id, head in self._tables.heads(ids).items()}

    def scroll(
        self, after: int, limit: int, predicate: Predicate | None = None
    ) -> list[StoredDocument]:
        passing = "" if predicate is None else self.passing(predicate)
        return [item.document for item in self._tables.scroll(after, limit, passing)]

    def sample(self, size: int) -> list[StoredDocument]:
        """Return the first rows, which are hashes and so from all over. Only ever bounded."""
        with reading("bounded"):
            return self.scroll(0, size)

    def all_ids(self) -> Iterator[str]:
        return (row["id"] for page in self._tables.documents.pages(["id"], BLOCK) for row in page)

    def count(self, predicate: Predicate) -> int:
        return self._tables.documents.count(self.passing(predicate))

    def passing(self, predicate: Predicate) -> str:
        """Return a filter as an expression.

        Raises:
            Unsupported: it asks for words, or for a range of a list that is too long.
        """
        condition = expression(predicate)
        if not condition.ranged or not self._has_element(condition, 1):
            return condition.text
        if self._has_element(condition, ELEMENTS):
            raise CAPABILITIES.unsupported(
                f"Ranges of {' or '.join(condition.ranged)}, where a document has a list of more "
                f"than {ELEMENTS} elements,",
                "compare by 'in', or store the least and the largest in fields of their own",
                field="filter",
            )
        return expression(predicate, ELEMENTS).text

    def _has_element(self, condition: Expression, place: int) -> bool:
        lists = " or ".join(has_element(name, place) for name in condition.ranged)
        return bool(self._tables.documents.query(lists, ["row"], 1))

    def hashes(self, ids: Sequence[str]) -> dict[str, Hashes]:
        # As the last acknowledged writes left them.
        heads = self._tables.heads(ids, "strong")
        self._planned.heads = frozenset(ids), heads
        return {
            id: Hashes(bytes.fromhex(head.key_hash), bytes.fromhex(head.value_hash))
            for id, head in heads.items()
        }

    def own_keys(self, rows: Int64) -> KeyTable:
        reads = self._tables.read(rows.tolist(), texts=False)
        return self._batch([reads[row] for row in sorted(reads)])

    def embeddings(self, ids: Sequence[int]) -> list[Float32]:
        vectors = self._tables.vectors(ids)
        return [vectors[id] for id in ids if id in vectors]

    def keys_of(self, ids: Int64) -> dict[int, StoredKey]:
        places = self._tables.places(ids.tolist())
        return {id: StoredKey(id, *place) for id, place in places.items()}

    @contextmanager
    def all_keys(self, *, examples: bool = False) -> Iterator[tuple[State, Iterator[KeyTable]]]:
        yield self.state(), map(self._batch, self._tables.pages())

    def _batch(self, reads: Sequence[Read]) -> KeyTable:
        keys = {key: read.document.row for read in reads for key in read.key_ids()}
        vectors = self._tables.vectors(list(keys))
        ids = [key for key in keys if key in vectors]
        return KeyTable.of_keys(
            np.array([vectors[key] for key in ids], dtype=np.float32).reshape(len(ids), -1)
            if ids
            else np.empty((0, self._tables.dimension), dtype=np.float32),
            np.array(ids, dtype=np.int64),
            np.array([keys[key] for key in ids], dtype=np.int64),
        )

    # -- writing ----------------------------------------------------------------------------

    def write(self, entries: Sequence[Entry], decided: Mapping[str, Json] | None = None) -> None:
        """Insert or replace documents, one by one; see `Writer.write`."""
        if decided:
            self._tables.change(lambda record: _decided(record, decided))
        heads = self._heads([entry.document.id for entry in entries])
        self._writer.write(entries, heads)
        # What was taught of a text is not true of another.
        other = [entry.document.id for entry in entries if entry.keys is not None]
        self._delete_examples_of([heads[id].row for id in other if id in heads])
        self._written()

    def _heads(self, ids: Sequence[str]) -> Mapping[str, Head]:
        """Return the heads of documents that this thread has read when it planned their writing."""
        requested, heads = getattr(self._planned, "heads", NOTHING_PLANNED)
        self._planned.heads = NOTHING_PLANNED
        return heads if requested >= set(ids) else self._tables.heads(ids, "strong")

    def revise(
        self,
        id: str,
        change: Callable[[StoredDocument], StoredDocument],
        hash: Callable[[Json, Mapping[str, Json]], bytes],
    ) -> StoredDocument | None:
        """Replace value and payload; of two revisions at the same moment one may be lost."""
        for _ in range(REVISIONS):
            head = self._tables.heads([id], "strong").get(id)
            if head is None:
                return None
            with reading("strong"):
                read = self._tables.read([head.row]).get(head.row)
            if read is None or read.version != head.version:
                continue  # another came between: this text is not of those keys
            stored = read.document
            revised = change(stored)
            document = Document(id, revised.fields, {}, revised.value, revised.payload)
            hashes = Hashes(bytes.fromhex(head.key_hash), hash(revised.value, revised.payload))
            try:
                self._writer.write([Entry(document, hashes, None)], {id: head})
            except StaleEntries:
                continue
            self._written()
            return revised
        raise StaleEntries(f"{id!r} changes faster than it can be revised; try again.")

    def delete(self, ids: Sequence[str]) -> int:
        heads = list(self._tables.heads(list(dict.fromkeys(ids)), "strong").values())
        self._writer.delete(heads)
        self._delete_examples_of([head.row for head in heads])
        self._written()
        return len(heads)

    def delete_matching(self, predicate: Predicate) -> int:
        """Delete what a filter lets pass, in parts."""
        passing, deleted = self.passing(predicate), 0
        while rows := self._tables.documents.query(passing, ["id"], BLOCK, "strong"):
            deleted += self.delete([row["id"] for row in rows])
        return deleted


def _decided(record: Known, settings: Mapping[str, Json]) -> Known:
    """Return a record with settings that were open; raise StaleEntries for those that are not."""
    if any(record.settings[name] not in (None, value) for name, value in settings.items()):
        raise StaleEntries("Another writer has decided the settings meanwhile.")
    return replace(record, settings={**record.settings, **settings})
