"""One collection's database: every statement that reads or writes it."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sqlite_utils import Database

from index.errors import UnknownProjection
from index.store.connections import Connections
from index.store.documents import (
    Changes,
    Entry,
    Hashes,
    KeyBatch,
    StaleEntries,
    State,
    StoredDocument,
    StoredKey,
)
from index.store.filters import Predicate
from index.store.migrations import migrations
from index.types import Float32, Int64, Json

READ_BLOCK = 8192
"""Keys read at a time: 12 MB of embeddings at 384 dimensions."""


REMEMBERED_PUBLICATIONS = 100
"""More than are ever on disk at once, for all layouts together."""


class StoredProjection(NamedTuple):
    """A row of the table of projections, without its weights."""

    version: int
    kind: str
    fingerprint: str
    created: str
    note: Mapping[str, Any]


class Store:
    """The truth: documents, keys with raw embeddings, settings, projections.

    Safe to use from many threads; every method that writes is one transaction.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.connections = Connections(path)
        # Reading never waits for writing: the lock is taken only where something is to be done.
        if migrations.pending(self.connections.reader()):
            with self.connections.writing() as db:
                migrations.apply(db)

    def close(self) -> None:
        self.connections.close()

    # -- settings ---------------------------------------------------------------------------

    def settings(self) -> dict[str, Any]:
        rows = self._read().execute("SELECT name, value FROM settings")
        return {name: json.loads(value) for name, value in rows}

    def initialise(self, settings: Mapping[str, Json], projection: tuple[str, bytes, str]) -> None:
        """Write the settings of a new collection and its first projection, in one step."""
        with self.connections.writing() as db:
            version = _insert_projection(db, *projection, note={})
            _set(
                db,
                {
                    **settings,
                    "uuid": secrets.token_hex(16),
                    "projection": version,
                    "change": 0,
                    "published": [],
                },
            )

    def record_publication(self, nonce: str) -> None:
        """Remember that an index is the image of this database, and not of a copy of it."""
        with self.connections.writing() as db:
            row = db.execute("SELECT value FROM settings WHERE name = 'published'").fetchone()
            _set(db, {"published": [*json.loads(row[0]), nonce][-REMEMBERED_PUBLICATIONS:]})

    def integrity(self) -> list[str]:
        """What SQLite finds wrong with the file; empty where it is sound."""
        found = [str(row[0]) for row in self._read().execute("PRAGMA integrity_check")]
        return [] if found == ["ok"] else found

    # -- reading ----------------------------------------------------------------------------

    def state(self) -> State:
        return _state(self._read())

    def counts(self) -> tuple[int, int]:
        """(documents, keys)."""
        row = self._read().execute(
            "SELECT (SELECT count(*) FROM documents), (SELECT count(*) FROM keys)"
        )
        documents, keys = row.fetchone()
        return int(documents), int(keys)

    def documents(self, rows: Int64) -> dict[int, StoredDocument]:
        """Documents by row; rows that are gone are absent."""
        found = self._read().execute(
            "SELECT row, id, fields, value, payload FROM documents "
            "WHERE row IN (SELECT value FROM json_each(?))",
            [json.dumps(rows.tolist())],
        )
        return {row[0]: _stored(row) for row in found}

    def values(self, rows: Int64) -> dict[int, StoredDocument]:
        """The same without texts, which may be long and which blending does not need."""
        found = self._read().execute(
            "SELECT row, id, '{}', value, payload FROM documents "
            "WHERE row IN (SELECT value FROM json_each(?))",
            [json.dumps(rows.tolist())],
        )
        return {row[0]: _stored(row) for row in found}

    def find(self, ids: Sequence[str]) -> dict[str, StoredDocument]:
        """Documents by the caller's ids; unknown ids are absent."""
        found = self._read().execute(
            "SELECT row, id, fields, value, payload FROM documents "
            "WHERE id IN (SELECT value FROM json_each(?))",
            [json.dumps(list(ids))],
        )
        return {row[1]: _stored(row) for row in found}

    def scroll(
        self, after: int, limit: int, predicate: Predicate | None = None
    ) -> list[StoredDocument]:
        """The next `limit` documents after a row, in the order of rows."""
        wanted = predicate or Predicate("1", ())
        found = self._read().execute(
            f"SELECT row, id, fields, value, payload FROM documents "
            f"WHERE row > ? AND {wanted.sql} ORDER BY row LIMIT ?",
            [after, *wanted.parameters, limit],
        )
        return [_stored(row) for row in found]

    def sample(self, size: int) -> list[StoredDocument]:
        """Documents from all over the collection: the first ones may be all of a kind."""
        last = self._read().execute("SELECT coalesce(max(row), 0) FROM documents").fetchone()[0]
        points = np.unique(np.linspace(1, max(last, 1), size, dtype=np.int64))
        # By key, one by one: a condition on the row would read every document.
        found = self._read().execute(
            "SELECT row, id, fields, value, payload FROM documents WHERE row IN (SELECT "
            "(SELECT row FROM documents WHERE row >= point.value ORDER BY row LIMIT 1) "
            "FROM json_each(?) AS point) ORDER BY row",
            [json.dumps(points.tolist())],
        )
        return [_stored(row) for row in found]

    def matching(self, predicate: Predicate) -> Int64:
        """Rows of the documents that a filter lets pass, ascending."""
        found = self._read().execute(
            f"SELECT row FROM documents WHERE {predicate.sql} ORDER BY row", predicate.parameters
        )
        return np.fromiter((row[0] for row in found), dtype=np.int64)

    def hashes(self, ids: Sequence[str]) -> dict[str, Hashes]:
        """The stored hashes of each id that is stored."""
        return _hashes(self._read(), ids)

    def all_ids(self) -> Iterator[str]:
        return (row[0] for row in self._read().execute("SELECT id FROM documents ORDER BY row"))

    def keys_of(self, ids: Int64) -> dict[int, StoredKey]:
        """Where keys come from, by key id."""
        found = self._read().execute(
            "SELECT id, document, field, start, stop FROM keys "
            "WHERE id IN (SELECT value FROM json_each(?))",
            [json.dumps(ids.tolist())],
        )
        return {row[0]: StoredKey(*row) for row in found}

    def embeddings_of(self, row: int) -> Float32:
        """All keys of one document, in the order of their ids: (keys, d)."""
        found = self._read().execute(
            "SELECT id, document, embedding FROM keys WHERE document = ? ORDER BY id", [row]
        )
        return _batch(found.fetchall()).embeddings

    def embeddings(self, keys: Sequence[int]) -> list[Float32]:
        """The raw embeddings of keys, in the order asked for; keys that are gone are absent."""
        found = self._read().execute(
            "SELECT id, embedding FROM keys WHERE id IN (SELECT value FROM json_each(?))",
            [json.dumps(list(keys))],
        )
        by_id = {id: np.frombuffer(blob, dtype=np.float32) for id, blob in found}
        return [by_id[key] for key in keys if key in by_id]

    def changes_since(self, last_key: int, last_removal: int) -> Changes:
        """What readers that are that far must still take in."""
        with self.connections.reading() as db:
            added = db.execute(
                "SELECT id, document, embedding FROM keys WHERE id > ? ORDER BY document, id",
                [last_key],
            )
            removed = db.execute("SELECT key FROM removals WHERE id > ?", [last_removal])
            keys = np.fromiter((row[0] for row in removed.fetchall()), dtype=np.int64)
            return Changes(_state(db), _batch(added.fetchall()), keys)

    @contextmanager
    def all_keys(self) -> Iterator[tuple[State, Iterator[KeyBatch]]]:
        """All keys by document, in blocks, and the state in which they were read."""
        with self.connections.reading() as db:
            found = db.execute("SELECT id, document, embedding FROM keys ORDER BY document, id")
            blocks = iter(lambda: found.fetchmany(READ_BLOCK), [])
            yield _state(db), (_batch(rows) for rows in blocks)

    # -- writing ----------------------------------------------------------------------------

    def write(self, entries: Sequence[Entry]) -> None:
        """Insert or replace documents with their keys, all or none.

        Raises:
            StaleEntries: an entry that keeps its keys no longer finds the hash it expects.
        """
        with self.connections.writing() as db:
            _check_kept(db, [entry for entry in entries if entry.keys is None])
            for entry in entries:
                row = _upsert(db, entry)
                if entry.keys is not None:
                    _replace_keys(db, row, entry)
            _count_change(db)

    def revise(
        self,
        id: str,
        change: Callable[[StoredDocument], StoredDocument],
        hash: Callable[[Json, Mapping[str, Json]], bytes],
    ) -> StoredDocument | None:
        """Replace value and payload of one document by what `change` makes of the stored ones.

        Read and written under one lock: of two revisions at once, the later sees the earlier.

        Args:
            hash: the value hash of (value, payload), as writing compares it.

        Returns: the document as it is now; None where no document has this id.
        """
        with self.connections.writing() as db:
            # As bytes: a text ends at NUL for json_each, and half a surrogate pair is no UTF-8.
            row = db.execute(
                "SELECT row, id, fields, value, payload FROM documents WHERE id = CAST(? AS TEXT)",
                [id.encode("utf-8", "surrogatepass")],
            ).fetchone()
            if row is None:
                return None
            revised = change(_stored(row))
            _write_value(db, revised, hash(revised.value, revised.payload))
            _count_change(db)
            return revised

    def delete(self, ids: Sequence[str]) -> int:
        """Delete documents with their keys; unknown ids are passed over.

        Returns: how many were there.
        """
        with self.connections.writing() as db:
            cursor = db.execute(
                "DELETE FROM documents WHERE id IN (SELECT value FROM json_each(?))",
                [json.dumps(list(ids))],
            )
            _count_change(db)
            return int(cursor.rowcount)

    def delete_matching(self, predicate: Predicate) -> int:
        """Delete the documents that a filter lets pass, all or none. Returns how many."""
        with self.connections.writing() as db:
            cursor = db.execute(
                f"DELETE FROM documents WHERE {predicate.sql}", predicate.parameters
            )
            _count_change(db)
            return int(cursor.rowcount)

    # -- projections ------------------------------------------------------------------------

    def add_projection(
        self, kind: str, weights: bytes, fingerprint: str, note: Mapping[str, Json]
    ) -> int:
        """Store a projection; it answers nothing until it is activated. Returns its version."""
        with self.connections.writing() as db:
            return _insert_projection(db, kind, weights, fingerprint, note)

    def activate_projection(self, version: int) -> None:
        with self.connections.writing() as db:
            _known_projection(db, version)
            _set(db, {"projection": version})
            _count_change(db)

    def projections(self) -> list[StoredProjection]:
        found = self._read().execute(
            "SELECT version, kind, fingerprint, created, note FROM projections ORDER BY version"
        )
        return [
            StoredProjection(version, kind, fingerprint, created, json.loads(note))
            for version, kind, fingerprint, created, note in found
        ]

    def projection_weights(self, version: int) -> bytes:
        return _known_projection(self._read(), version)

    def _read(self) -> Database:
        return self.connections.reader()


def to_json(value: Json) -> str:
    """Compact JSON. ASCII only: a lone surrogate is legal in JSON text but not in UTF-8."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _set(db: Database, changes: Mapping[str, Json]) -> None:
    rows = [(name, to_json(value)) for name, value in changes.items()]
    db.conn.executemany("INSERT OR REPLACE INTO settings (name, value) VALUES (?, ?)", rows)


def _stored(row: tuple[int, str, str, str | None, str]) -> StoredDocument:
    value = None if row[3] is None else json.loads(row[3])
    return StoredDocument(row[0], row[1], json.loads(row[2]), value, json.loads(row[4]))


def _batch(rows: Sequence[tuple[int, int, bytes]]) -> KeyBatch:
    ids = np.array([row[0] for row in rows], dtype=np.int64)
    documents = np.array([row[1] for row in rows], dtype=np.int64)
    embeddings = np.frombuffer(b"".join(row[2] for row in rows), dtype=np.float32)
    return KeyBatch(
        ids, documents, embeddings.reshape(len(rows), -1) if rows else embeddings.reshape(0, 0)
    )


def _state(db: Database) -> State:
    """O(1): AUTOINCREMENT keeps the last number given out in a table of its own."""
    row = db.execute(
        "SELECT (SELECT value FROM settings WHERE name = 'change'), "
        "coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'keys'), 0), "
        "coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'removals'), 0), "
        "(SELECT value FROM settings WHERE name = 'projection')"
    ).fetchone()
    return State(*map(int, row))


def _count_change(db: Database) -> None:
    db.execute("UPDATE settings SET value = value + 1 WHERE name = 'change'")


def _hashes(db: Database, ids: Sequence[str]) -> dict[str, Hashes]:
    found = db.execute(
        "SELECT id, key_hash, value_hash FROM documents "
        "WHERE id IN (SELECT value FROM json_each(?))",
        [json.dumps(list(ids))],
    )
    return {row[0]: Hashes(row[1], row[2]) for row in found}


def _check_kept(db: Database, kept: Sequence[Entry]) -> None:
    found = _hashes(db, [entry.document.id for entry in kept])
    stale = [
        entry.document.id
        for entry in kept
        if entry.document.id not in found or found[entry.document.id].keys != entry.hashes.keys
    ]
    if stale:
        raise StaleEntries(f"{len(stale)} documents changed while they were being prepared.")


def _upsert(db: Database, entry: Entry) -> int:
    document = entry.document
    row = db.execute(
        "INSERT INTO documents (id, fields, value, payload, key_hash, value_hash) "
        "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET fields = excluded.fields, "
        "value = excluded.value, payload = excluded.payload, key_hash = excluded.key_hash, "
        "value_hash = excluded.value_hash RETURNING row",
        [
            document.id,
            to_json(document.fields),
            _value_json(document.value),
            to_json(document.payload),
            *entry.hashes,
        ],
    ).fetchone()
    return int(row[0])


def _write_value(db: Database, document: StoredDocument, hash: bytes) -> None:
    db.execute(
        "UPDATE documents SET value = ?, payload = ?, value_hash = ? WHERE row = ?",
        [_value_json(document.value), to_json(document.payload), hash, document.row],
    )


def _value_json(value: Json) -> str | None:
    """No value is NULL, so that SQL can tell."""
    return None if value is None else to_json(value)


def _replace_keys(db: Database, row: int, entry: Entry) -> None:
    db.execute("DELETE FROM keys WHERE document = ?", [row])
    db.conn.executemany(
        "INSERT INTO keys (document, field, start, stop, embedding) VALUES (?, ?, ?, ?, ?)",
        [
            (row, key.field, key.start, key.stop, key.embedding.astype(np.float32).tobytes())
            for key in entry.keys or ()
        ],
    )


def _insert_projection(
    db: Database, kind: str, weights: bytes, fingerprint: str, note: Mapping[str, Json]
) -> int:
    created = datetime.now(UTC).isoformat(timespec="seconds")
    row = db.execute(
        "INSERT INTO projections (kind, weights, fingerprint, created, note) "
        "VALUES (?, ?, ?, ?, ?) RETURNING version",
        [kind, weights, fingerprint, created, to_json(note)],
    ).fetchone()
    return int(row[0])


def _known_projection(db: Database, version: int) -> bytes:
    row = db.execute("SELECT weights FROM projections WHERE version = ?", [version]).fetchone()
    if row is None:
        known = [str(each) for (each,) in db.execute("SELECT version FROM projections ORDER BY 1")]
        raise UnknownProjection(
            f"There is no projection {version} here; there are {', '.join(known)}.",
            field="projection",
        )
    return bytes(row[0])
