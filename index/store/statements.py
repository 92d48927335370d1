"""The statements that transactions are made of: each takes the connection it runs on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import numpy as np
from sqlite_utils import Database

from index.errors import UnknownProjection
from index.store.documents import Entry, Hashes, KeyBatch, StaleEntries, State, StoredDocument
from index.types import Json


def to_json(value: Json) -> str:
    """Compact JSON. ASCII only: a lone surrogate is legal in JSON text but not in UTF-8."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def id_list(ids: Sequence[str]) -> str:
    """Ids for SQLite's `json_each`, which cuts a text at NUL and would find another document."""
    return json.dumps([id for id in ids if "\x00" not in id])


def put_settings(db: Database, changes: Mapping[str, Json]) -> None:
    rows = [(name, to_json(value)) for name, value in changes.items()]
    db.conn.executemany("INSERT OR REPLACE INTO settings (name, value) VALUES (?, ?)", rows)


def as_document(row: tuple[int, str, str, str | None, str]) -> StoredDocument:
    value = None if row[3] is None else json.loads(row[3])
    return StoredDocument(row[0], row[1], json.loads(row[2]), value, json.loads(row[4]))


def as_keys(rows: Sequence[tuple[int, int, bytes]]) -> KeyBatch:
    ids = np.array([row[0] for row in rows], dtype=np.int64)
    documents = np.array([row[1] for row in rows], dtype=np.int64)
    embeddings = np.frombuffer(b"".join(row[2] for row in rows), dtype=np.float32)
    return KeyBatch(
        ids, documents, embeddings.reshape(len(rows), -1) if rows else embeddings.reshape(0, 0)
    )


def state(db: Database) -> State:
    """O(1): AUTOINCREMENT keeps the last number given out in a table of its own."""
    row = db.execute(
        "SELECT (SELECT value FROM settings WHERE name = 'change'), "
        "coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'keys'), 0), "
        "coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'removals'), 0), "
        "(SELECT value FROM settings WHERE name = 'projection')"
    ).fetchone()
    return State(*map(int, row))


def count_change(db: Database) -> None:
    db.execute("UPDATE settings SET value = value + 1 WHERE name = 'change'")


def hashes(db: Database, ids: Sequence[str]) -> dict[str, Hashes]:
    found = db.execute(
        "SELECT id, key_hash, value_hash FROM documents "
        "WHERE id IN (SELECT value FROM json_each(?))",
        [id_list(ids)],
    )
    return {row[0]: Hashes(row[1], row[2]) for row in found}


def check_kept(db: Database, kept: Sequence[Entry]) -> None:
    found = hashes(db, [entry.document.id for entry in kept])
    stale = [
        entry.document.id
        for entry in kept
        if entry.document.id not in found or found[entry.document.id].keys != entry.hashes.keys
    ]
    if stale:
        raise StaleEntries(f"{len(stale)} documents changed while they were being prepared.")


def upsert(db: Database, entry: Entry) -> int:
    document = entry.document
    row = db.execute(
        "INSERT INTO documents (id, fields, value, payload, key_hash, value_hash) "
        "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET fields = excluded.fields, "
        "value = excluded.value, payload = excluded.payload, key_hash = excluded.key_hash, "
        "value_hash = excluded.value_hash RETURNING row",
        [
            document.id,
            to_json(document.fields),
            value_json(document.value),
            to_json(document.payload),
            *entry.hashes,
        ],
    ).fetchone()
    return int(row[0])


def write_value(db: Database, document: StoredDocument, hash: bytes) -> None:
    db.execute(
        "UPDATE documents SET value = ?, payload = ?, value_hash = ? WHERE row = ?",
        [value_json(document.value), to_json(document.payload), hash, document.row],
    )


def value_json(value: Json) -> str | None:
    """No value is NULL, so that SQL can tell."""
    return None if value is None else to_json(value)


def replace_keys(db: Database, row: int, entry: Entry) -> None:
    db.execute("DELETE FROM keys WHERE document = ?", [row])
    db.conn.executemany(
        "INSERT INTO keys (document, field, start, stop, embedding) VALUES (?, ?, ?, ?, ?)",
        [
            (row, key.field, key.start, key.stop, key.embedding.astype(np.float32).tobytes())
            for key in entry.keys or ()
        ],
    )


def insert_projection(
    db: Database, kind: str, weights: bytes, fingerprint: str, note: Mapping[str, Json]
) -> int:
    created = datetime.now(UTC).isoformat(timespec="seconds")
    row = db.execute(
        "INSERT INTO projections (kind, weights, fingerprint, created, note) "
        "VALUES (?, ?, ?, ?, ?) RETURNING version",
        [kind, weights, fingerprint, created, to_json(note)],
    ).fetchone()
    return int(row[0])


def projection_weights(db: Database, version: int) -> bytes:
    row = db.execute("SELECT weights FROM projections WHERE version = ?", [version]).fetchone()
    if row is None:
        known = [str(each) for (each,) in db.execute("SELECT version FROM projections ORDER BY 1")]
        raise UnknownProjection(
            f"There is no projection {version} here; there are {', '.join(known)}.",
            field="projection",
        )
    return bytes(row[0])
