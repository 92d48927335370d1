"""Writing documents: keys first, then the document that names them; the old keys expire later.

The shards of a table are read at moments of their own, each between the moment that the search
requested and its end. Were the keys of a document's old version deleted as soon as the new one is
written, a search could read the shard of the new key before the insertion and that of the old key
after the deletion, and miss a document that was there all the time. So old keys are deleted
`GRACE_SECONDS` after the document names others, which is longer than any search lasts
(`client.MOMENT_SECONDS` and twice `client.TRY_SECONDS`). Then, if a search read an old key's shard
without it, each of its moments lies after the new version, and it saw the new key. Only durations
are compared, each on one machine's monotonic clock, and no two clocks.

A reader that finds an old key reads the document, which names its own keys, and asks for those by
their ids (`keys.RemoteKeys`).
"""

from __future__ import annotations

import json
import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from attend.arrays import KeyTable
from attend.engines.milvus import schema
from attend.engines.milvus.client import Row
from attend.engines.milvus.tables import DocumentContents, Head, Tables, contents_of
from attend.errors import AttendError, Unavailable
from attend.store import Entry, KeyRow, StaleEntries
from attend.versions import Version

log = logging.getLogger("attend")

GRACE_SECONDS = 35.0

TOGETHER_SECONDS = 1.0
"""What falls due within it is deleted at once."""


class ExpiredKeys:
    """Deletes keys some time after it was given them, in a thread of its own.

    What it still holds when its process is killed stays: readers pass over it, and a sweep finds
    it (`attend.engines.milvus.checks`).

    Args:
        delete: deletes keys by their ids.
    """

    def __init__(self, delete: Callable[[Sequence[int]], None]) -> None:
        self._delete = delete
        self._waiting: deque[tuple[float, Sequence[int]]] = deque()
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._closed = False

    def add(self, keys: Sequence[int]) -> None:
        """Keys whose documents name others by now."""
        if keys:
            with self._lock:
                self._waiting.append((time.monotonic() + GRACE_SECONDS, keys))
                if self._timer is None:
                    self._wait()

    @property
    def waits(self) -> bool:
        """Return whether keys wait for their deletion."""
        return self._timer is not None

    def close(self) -> None:
        with self._lock:
            self._closed = True
            timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
            timer.join()

    def _wait(self) -> None:
        """Until the first of what waits is due; within the lock."""
        if self._waiting and not self._closed:
            seconds = max(0.0, self._waiting[0][0] - time.monotonic()) + TOGETHER_SECONDS
            self._timer = threading.Timer(seconds, self._delete_due)
            self._timer.daemon = True
            self._timer.start()
        else:
            self._timer = None

    def _delete_due(self) -> None:
        with self._lock:
            due: list[int] = []
            while self._waiting and self._waiting[0][0] <= time.monotonic():
                due += self._waiting.popleft()[1]
        try:
            self._delete(due)
        except AttendError as error:  # the collection was dropped, or the server is away
            log.info("%d keys that no document names were left: %s", len(due), error)
        with self._lock:
            self._wait()


UNFINISHED_SECONDS = 7200.0
"""After which nobody can still be writing a document whose keys are there: half of it for the keys,
and half for the documents' rows, which a call tries for `Address.patience` at most."""


class _Written(NamedTuple):
    """One document on its way."""

    entry: Entry
    contents: DocumentContents
    row: int
    keys: Sequence[KeyRow]


class Writer:
    """Writes documents of one collection.

    Args:
        version: reads a version of the projection by its number.
    """

    def __init__(self, tables: Tables, version: Callable[[int], Version]) -> None:
        self._tables = tables
        self._version = version
        self._expired = ExpiredKeys(self.delete_keys)

    def close(self) -> None:
        self._expired.close()

    @property
    def waits(self) -> bool:
        """Return whether expired keys wait for their deletion."""
        return self._expired.waits

    def write(self, entries: Sequence[Entry], heads: Mapping[str, Head]) -> None:
        """Insert or replace documents, one by one: each is the one before or the new one.

        Whatever ends it in the middle, sending the same again completes it.

        Args:
            heads: what is stored of them, by id.

        Raises:
            StaleEntries: an entry that keeps its keys finds others.
            LimitExceeded: a document that no row can hold; nothing was written.
            Unavailable: the server took so long that others may take the keys for left behind.
        """
        began = time.monotonic()
        contents = [contents_of(entry.document) for entry in entries]
        stored = self._kept([entry for entry in entries if entry.keys is None], heads)
        version = version_now()
        written = [
            _Written(
                entry,
                item,
                schema.row_of(entry.document.id),
                stored[entry.document.id] if entry.keys is None else entry.keys,
            )
            for entry, item in zip(entries, contents, strict=True)
        ]
        self._insert_keys(written, version)
        if time.monotonic() - began > UNFINISHED_SECONDS / 2:
            raise Unavailable("Milvus took too long to store keys; send the documents again.")
        self._tables.client.upsert(
            self._tables.documents, [_document_row(item, version) for item in written]
        )
        old = [heads[item.id] for entry in entries if (item := entry.document).id in heads]
        self._expired.add([key for head in old for key in head.key_ids()])

    def delete(self, heads: Sequence[Head]) -> None:
        """The documents first: keys without one are passed over."""
        tables = self._tables
        tables.client.delete(tables.documents, [head.row for head in heads])
        self.delete_keys([key for head in heads for key in head.key_ids()])

    def delete_keys(self, keys: Sequence[int]) -> None:
        if keys:
            for table in self._tables.of_keys():
                self._tables.client.delete(table, keys)

    def _insert_keys(self, written: Sequence[_Written], version: int) -> None:
        rows = [row for item in written for row in _key_rows(item, version)]
        if not rows:
            return
        self._tables.client.insert(self._tables.keys(), rows)
        # Read again: a key table that is being filled must get the keys of this write.
        for layout, (number, _) in self._tables.known(fresh=True).layouts.items():
            prepared = self._version(number)
            self._tables.client.upsert(self._tables.keys(layout), projected(rows, prepared))

    def _kept(self, entries: Sequence[Entry], heads: Mapping[str, Head]) -> dict[str, list[KeyRow]]:
        """The stored keys of documents whose value or payload alone is new."""
        for entry in entries:
            head = heads.get(entry.document.id)
            if head is None or head.key_hash != entry.hashes.keys.hex():
                raise StaleEntries(f"{entry.document.id!r} has other keys by now; write it again.")
        ids = [key for entry in entries for key in heads[entry.document.id].key_ids()]
        vectors = self._tables.vectors(ids, consistency="strong") if ids else {}
        places = self._tables.places(ids, consistency="strong") if ids else {}
        stored = {}
        for entry in entries:
            key_ids = heads[entry.document.id].key_ids()
            if any(key not in vectors or key not in places for key in key_ids):
                raise StaleEntries(f"{entry.document.id!r} has other keys by now; write it again.")
            stored[entry.document.id] = [KeyRow(*places[key][1:], vectors[key]) for key in key_ids]
        return stored


def projected(rows: Sequence[Row], version: Version) -> list[Row]:
    """Rows of the raw layout as those of a version's."""
    # A table of documents of one key each: rows need not be in the order of their documents.
    keys = np.array([row["key"] for row in rows], dtype=np.int64)
    embeddings = np.array([row["vector"] for row in rows], dtype=np.float32)
    vectors = version.keys(KeyTable(keys, np.arange(len(keys) + 1), embeddings, keys)).vectors
    return [{**row, "vector": vector} for row, vector in zip(rows, vectors, strict=True)]


def version_now() -> int:
    """Microseconds since 1970 and ten random bits: later writes have larger ones, as far as clocks
    agree; two at once have different ones."""
    return (time.time_ns() // 1000) << 10 | random.getrandbits(10)


def version_at(seconds: float) -> int:
    """The first that can be of a moment, in seconds since 1970."""
    return int(seconds * 1e6) << 10


def _key_rows(written: _Written, version: int) -> Iterator[dict[str, Any]]:
    for place, key in enumerate(written.keys):
        yield {
            "key": schema.key_of(written.row, version, place),
            "document": written.row,
            "version": version,
            "id": written.entry.document.id,
            "place": json.dumps([key.field, key.start, key.stop]),
            "facts": written.contents.facts,
            "vector": np.asarray(key.embedding, dtype=np.float32),
        }


def _document_row(written: _Written, version: int) -> Row:
    hashes = written.entry.hashes
    return {
        "row": written.row,
        "id": written.entry.document.id,
        "version": version,
        "keys": len(written.keys),
        "key_hash": hashes.keys.hex(),
        "value_hash": hashes.value.hex(),
        "texts": written.contents.texts,
        "content": written.contents.content,
        "facts": written.contents.facts,
        "nothing": schema.NOTHING,
    }
