"""One collection's database: every statement that reads or writes it."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from sqlite_utils import Database

from index.store import statements
from index.store.connections import Connections
from index.store.documents import (
    Changes,
    Entry,
    Hashes,
    KeyBatch,
    State,
    StoredDocument,
    StoredKey,
    StoredProjection,
)
from index.store.filters import Predicate
from index.store.migrations import migrations
from index.types import Float32, Int64, Json

READ_BLOCK = 8192
"""Keys read at a time: 12 MB of embeddings at 384 dimensions."""


REMEMBERED_PUBLICATIONS = 100
"""More than are ever on disk at once, for all layouts together."""


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
            version = statements.insert_projection(db, *projection, note={})
            statements.put_settings(
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
            known = [*json.loads(row[0]), nonce][-REMEMBERED_PUBLICATIONS:]
            statements.put_settings(db, {"published": known})

    def integrity(self) -> list[str]:
        """What SQLite finds wrong with the file; empty where it is sound."""
        found = [str(row[0]) for row in self._read().execute("PRAGMA integrity_check")]
        return [] if found == ["ok"] else found

    # -- reading ----------------------------------------------------------------------------

    def state(self) -> State:
        return statements.state(self._read())

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
        return {row[0]: statements.as_document(row) for row in found}

    def values(self, rows: Int64) -> dict[int, StoredDocument]:
        """The same without texts, which may be long and which blending does not need."""
        found = self._read().execute(
            "SELECT row, id, '{}', value, payload FROM documents "
            "WHERE row IN (SELECT value FROM json_each(?))",
            [json.dumps(rows.tolist())],
        )
        return {row[0]: statements.as_document(row) for row in found}

    def find(self, ids: Sequence[str]) -> dict[str, StoredDocument]:
        """Documents by the caller's ids; unknown ids are absent."""
        found = self._read().execute(
            "SELECT row, id, fields, value, payload FROM documents "
            "WHERE id IN (SELECT value FROM json_each(?))",
            [statements.id_list(ids)],
        )
        return {row[1]: statements.as_document(row) for row in found}

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
        return [statements.as_document(row) for row in found]

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
        return [statements.as_document(row) for row in found]

    def matching(self, predicate: Predicate) -> Int64:
        """Rows of the documents that a filter lets pass, ascending."""
        found = self._read().execute(
            f"SELECT row FROM documents WHERE {predicate.sql} ORDER BY row", predicate.parameters
        )
        return np.fromiter((row[0] for row in found), dtype=np.int64)

    def hashes(self, ids: Sequence[str]) -> dict[str, Hashes]:
        """The stored hashes of each id that is stored."""
        return statements.hashes(self._read(), ids)

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
        return statements.as_keys(found.fetchall()).embeddings

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
            return Changes(statements.state(db), statements.as_keys(added.fetchall()), keys)

    @contextmanager
    def all_keys(self) -> Iterator[tuple[State, Iterator[KeyBatch]]]:
        """All keys by document, in blocks, and the state in which they were read."""
        with self.connections.reading() as db:
            found = db.execute("SELECT id, document, embedding FROM keys ORDER BY document, id")
            blocks = iter(lambda: found.fetchmany(READ_BLOCK), [])
            yield statements.state(db), (statements.as_keys(rows) for rows in blocks)

    # -- writing ----------------------------------------------------------------------------

    def write(self, entries: Sequence[Entry]) -> None:
        """Insert or replace documents with their keys, all or none.

        Raises:
            StaleEntries: an entry that keeps its keys no longer finds the hash it expects.
        """
        with self.connections.writing() as db:
            statements.check_kept(db, [entry for entry in entries if entry.keys is None])
            for entry in entries:
                row = statements.upsert(db, entry)
                if entry.keys is not None:
                    statements.replace_keys(db, row, entry)
            statements.count_change(db)

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
            revised = change(statements.as_document(row))
            statements.write_value(db, revised, hash(revised.value, revised.payload))
            statements.count_change(db)
            return revised

    def delete(self, ids: Sequence[str]) -> int:
        """Delete documents with their keys; unknown ids are passed over.

        Returns: how many were there.
        """
        with self.connections.writing() as db:
            cursor = db.execute(
                "DELETE FROM documents WHERE id IN (SELECT value FROM json_each(?))",
                [statements.id_list(ids)],
            )
            statements.count_change(db)
            return int(cursor.rowcount)

    def delete_matching(self, predicate: Predicate) -> int:
        """Delete the documents that a filter lets pass, all or none. Returns how many."""
        with self.connections.writing() as db:
            cursor = db.execute(
                f"DELETE FROM documents WHERE {predicate.sql}", predicate.parameters
            )
            statements.count_change(db)
            return int(cursor.rowcount)

    # -- projections ------------------------------------------------------------------------

    def add_projection(
        self, kind: str, weights: bytes, fingerprint: str, note: Mapping[str, Json]
    ) -> int:
        """Store a projection; it answers nothing until it is activated. Returns its version."""
        with self.connections.writing() as db:
            return statements.insert_projection(db, kind, weights, fingerprint, note)

    def activate_projection(self, version: int) -> None:
        with self.connections.writing() as db:
            statements.projection_weights(db, version)
            statements.put_settings(db, {"projection": version})
            statements.count_change(db)

    def projections(self) -> list[StoredProjection]:
        found = self._read().execute(
            "SELECT version, kind, fingerprint, created, note FROM projections ORDER BY version"
        )
        return [
            StoredProjection(version, kind, fingerprint, created, json.loads(note))
            for version, kind, fingerprint, created, note in found
        ]

    def projection_weights(self, version: int) -> bytes:
        return statements.projection_weights(self._read(), version)

    def _read(self) -> Database:
        return self.connections.reader()
