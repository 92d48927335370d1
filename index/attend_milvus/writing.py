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
from typing import Any

import numpy as np

from attend.collection.versions import Version
from attend.core.arrays import KeyTable
from attend.core.errors import AttendError, LimitExceeded, Unavailable
from attend.core.types import Document
from attend.store import Entry, KeyRow, StaleEntries
from attend_milvus.client import Row
from attend_milvus.filters import filter_fields
from attend_milvus.server import MAX_TEXT_BYTES
from attend_milvus.tables import NOTHING, Head, Tables, key_ids, row_of

log = logging.getLogger("attend")

GRACE_SECONDS = 35.0

TOGETHER_SECONDS = 1.0
"""What falls due within it is deleted at once."""


class ExpiredKeys:
    """Deletes keys some time after it was given them, in a thread of its own.

    What it still holds when its process is killed stays: readers pass over it, and a sweep finds
    it (`attend_milvus.engine`).

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
        """Delete keys later, whose documents name others by now."""
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
        """Wait until the first keys are due; within the lock."""
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


class Writer:
    """Writes documents of one collection.

    Args:
        version: reads a version of the projection by its number.
    """

    def __init__(self, tables: Tables, version: Callable[[int], Version]) -> None:
        self._tables = tables
        self._version = version
        self.expired = ExpiredKeys(self.delete_keys)

    def write(self, entries: Sequence[Entry], heads: Mapping[str, Head]) -> None:
        """Insert or replace documents, one by one: each is the one before or the new one.

        Whatever ends it in the middle, sending the same again completes it.

        Args:
            heads: what is stored of them, by id.

        Raises:
            StaleEntries: the stored keys of an entry without keys are not those of its hash.
            LimitExceeded: a document that no row can hold; nothing was written.
            Unavailable: the server took so long that others may take the keys for left behind.
        """
        began = time.monotonic()
        contents = [_contents(entry.document) for entry in entries]
        stored = self._stored_keys([entry for entry in entries if entry.keys is None], heads)
        version = version_now()
        keys, documents = list[Row](), list[Row]()
        for entry, fields in zip(entries, contents, strict=True):
            id = entry.document.id
            entry_keys = stored[id] if entry.keys is None else entry.keys
            keys += _key_rows(id, version, entry_keys, fields["facts"])
            documents.append(
                {
                    "row": row_of(id),
                    "id": id,
                    "version": version,
                    "keys": len(entry_keys),
                    "key_hash": entry.hashes.keys.hex(),
                    "value_hash": entry.hashes.value.hex(),
                    "nothing": NOTHING,
                    **fields,
                }
            )
        self._insert_keys(keys)
        if time.monotonic() - began > UNFINISHED_SECONDS / 2:
            raise Unavailable("Milvus took too long to store keys; send the documents again.")
        self._tables.documents.upsert(documents)
        before = [heads[item.id] for entry in entries if (item := entry.document).id in heads]
        self.expired.add([key for head in before for key in head.key_ids()])

    def delete(self, heads: Sequence[Head]) -> None:
        """Delete documents, and then their keys: keys without a document are passed over."""
        self._tables.documents.delete([head.row for head in heads])
        self.delete_keys([key for head in heads for key in head.key_ids()])

    def delete_keys(self, keys: Sequence[int]) -> None:
        if keys:
            for table in self._tables.of_keys():
                table.delete(keys)

    def _insert_keys(self, rows: Sequence[Row]) -> None:
        if not rows:
            return
        self._tables.keys().upsert(rows, new=True)
        # Read again: a key table that is being filled must get the keys of this write.
        for layout, (number, _) in self._tables.known(fresh=True).layouts.items():
            self._tables.keys(layout).upsert(projected(rows, self._version(number)))

    def _stored_keys(
        self, entries: Sequence[Entry], heads: Mapping[str, Head]
    ) -> dict[str, list[KeyRow]]:
        """Read the keys of documents whose value or payload alone is new."""
        ids = {}
        for entry in entries:
            head = heads.get(entry.document.id)
            if head is None or head.key_hash != entry.hashes.keys.hex():
                raise _changed(entry.document.id)
            ids[entry.document.id] = head.key_ids()
        every = [key for keys in ids.values() for key in keys]
        vectors = self._tables.vectors(every, consistency="strong")
        places = self._tables.places(every, consistency="strong")
        for id, keys in ids.items():
            if any(key not in vectors or key not in places for key in keys):
                raise _changed(id)
        return {
            id: [KeyRow(*places[key][1:], vectors[key]) for key in keys] for id, keys in ids.items()
        }


def projected(rows: Sequence[Row], version: Version) -> list[Row]:
    """Return rows of the raw layout with the keys of a version."""
    # A table of documents of one key each: rows need not be in the order of their documents.
    keys = np.array([row["key"] for row in rows], dtype=np.int64)
    embeddings = np.array([row["vector"] for row in rows], dtype=np.float32)
    vectors = version.keys(KeyTable(keys, np.arange(len(keys) + 1), embeddings, keys)).vectors
    return [{**row, "vector": vector} for row, vector in zip(rows, vectors, strict=True)]


def version_now() -> int:
    """Return microseconds since 1970 and ten random bits.

    Later writes have larger ones, as far as clocks agree; two at once have different ones.
    """
    return (time.time_ns() // 1000) << 10 | random.getrandbits(10)


def version_at(seconds: float) -> int:
    """Return the first version that can be of a moment, in seconds since 1970."""
    return int(seconds * 1e6) << 10


def _changed(id: str) -> StaleEntries:
    return StaleEntries(f"{id!r} has other keys by now; write it again.")


def _key_rows(
    id: str, version: int, keys: Sequence[KeyRow], facts: Mapping[str, Any]
) -> Iterator[Row]:
    row = row_of(id)
    for number, key in zip(key_ids(row, version, len(keys)), keys, strict=True):
        yield {
            "key": number,
            "document": row,
            "version": version,
            "id": id,
            "place": json.dumps([key.field, key.start, key.stop]),
            "facts": facts,
            "vector": np.asarray(key.embedding, dtype=np.float32),
        }


def _contents(document: Document) -> dict[str, Any]:
    """Return the contents of a document as fields of its row.

    Raises:
        LimitExceeded: no row can hold them.
    """
    texts = _text(document.fields)
    content = _text([document.value, document.payload])
    facts = filter_fields(document.value, document.payload)
    # The filter fields say the same as the content, with every way to a field written out.
    sizes = {
        "texts": len(texts.encode()),
        "value and payload": max(len(content.encode()), len(_text(facts).encode())),
    }
    for name, size in sizes.items():
        if size > MAX_TEXT_BYTES:
            raise LimitExceeded(
                f"The {name} of {document.id!r} take {size:,} bytes as JSON, but the engine milvus "
                f"stores at most {MAX_TEXT_BYTES:,}; store less of it, or use a data folder.",
                field="documents",
            )
    return {"texts": texts, "content": content, "facts": facts}


def _text(value: Any) -> str:
    written = json.dumps(value, ensure_ascii=False)
    try:
        written.encode()
    except UnicodeEncodeError:  # unpaired surrogates, which JSON can write
        return json.dumps(value)
    return written
