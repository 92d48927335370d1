"""The statements that transactions are made of: each takes the connection it runs on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sqlite_utils import Database

from attend.errors import UnknownDocument
from attend.store.documents import Entry, Hashes, StaleEntries, State, StoredDocument
from attend.types import Int64, Json

NAMED = 10
"""Unknown documents that an error names."""


def to_json(value: Json) -> str:
    """Compact JSON. ASCII only: a lone surrogate is legal in JSON text but not in UTF-8."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def id_list(ids: Sequence[str]) -> str:
    """Ids for SQLite's `json_each`, which cuts a text at NUL and would find another document."""
    return json.dumps([id for id in ids if "\x00" not in id])


def put_settings(db: Database, changes: Mapping[str, Json]) -> None:
    rows = [(name, to_json(value)) for name, value in changes.items()]
    db.conn.executemany("INSERT OR REPLACE INTO settings (name, value) VALUES (?, ?)", rows)


_DOCUMENT = "SELECT row, id, fields, value, payload FROM documents"


_from_json = json.JSONDecoder().decode
"""As `json.loads`, which looks for other options at each call."""


def as_document(row: tuple[int, str, str, str | None, str]) -> StoredDocument:
    value = None if row[3] is None else _from_json(row[3])
    return StoredDocument(row[0], row[1], _members(row[2]), value, _members(row[4]))


def _members(text: str) -> dict[str, Any]:
    """An object; many are empty, and these are a fifth of a search's time if they are parsed."""
    return {} if text == "{}" else _from_json(text)


def by_rows(db: Database, rows: Int64, fields: str = "fields") -> list[StoredDocument]:
    """Documents by row; `fields` is the SQL expression that they are read by."""
    found = db.execute(
        f"SELECT row, id, {fields}, value, payload FROM documents "
        f"WHERE row IN (SELECT value FROM json_each(?)) ORDER BY row",
        [json.dumps(rows.tolist())],
    )
    return [as_document(row) for row in found]


def by_ids(db: Database, ids: Sequence[str]) -> list[StoredDocument]:
    found = db.execute(f"{_DOCUMENT} WHERE id IN (SELECT value FROM json_each(?))", [id_list(ids)])
    return [as_document(row) for row in found]


def rows_of(db: Database, ids: Sequence[str]) -> dict[str, int]:
    """Rows by the caller's ids; unknown ids are absent."""
    found = db.execute(
        "SELECT id, row FROM documents WHERE id IN (SELECT value FROM json_each(?))",
        [id_list(list(dict.fromkeys(ids)))],
    )
    return dict(found.fetchall())


def known_rows(db: Database, documents: Sequence[str], what: str) -> dict[str, int]:
    """Rows by the caller's ids, all of them.

    Args:
        what: names the documents, for the error and as its field.

    Raises:
        UnknownDocument: it names some of the ids that no document has.
    """
    rows = rows_of(db, documents)
    unknown = [id for id in dict.fromkeys(documents) if id not in rows]
    if unknown:
        more = f" and {len(unknown) - NAMED} others" if len(unknown) > NAMED else ""
        raise UnknownDocument(
            f"The {what} name {', '.join(map(repr, unknown[:NAMED]))}{more}, and no document has "
            f"such an id; store the documents first, or leave these {what} out.",
            field=what,
        )
    return rows


def by_id(db: Database, id: str) -> StoredDocument | None:
    # As bytes: a text ends at NUL for json_each, and half a surrogate pair is no UTF-8.
    given = id.encode("utf-8", "surrogatepass")
    row = db.execute(f"{_DOCUMENT} WHERE id = CAST(? AS TEXT)", [given]).fetchone()
    return None if row is None else as_document(row)


def after(db: Database, row: int, limit: int) -> list[StoredDocument]:
    found = db.execute(f"{_DOCUMENT} WHERE row > ? ORDER BY row LIMIT ?", [row, limit])
    return [as_document(each) for each in found]


def sample(db: Database, size: int) -> list[StoredDocument]:
    last = db.execute("SELECT coalesce(max(row), 0) FROM documents").fetchone()[0]
    points = np.unique(np.linspace(1, max(last, 1), size, dtype=np.int64))
    # By key, one by one: a condition on the row would read every document.
    found = db.execute(
        f"{_DOCUMENT} WHERE row IN (SELECT "
        f"(SELECT row FROM documents WHERE row >= point.value ORDER BY row LIMIT 1) "
        f"FROM json_each(?) AS point) ORDER BY row",
        [json.dumps(points.tolist())],
    )
    return [as_document(row) for row in found]


def state(db: Database) -> State:
    """O(1): AUTOINCREMENT keeps the last number given out in a table of its own."""
    row = db.execute(
        "SELECT (SELECT value FROM settings WHERE name = 'change'), "
        "coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'keys'), 0), "
        "coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'removals'), 0), "
        "(SELECT value FROM settings WHERE name = 'projection'), "
        "(SELECT value FROM settings WHERE name = 'recommend'), "
        "(SELECT value FROM settings WHERE name = 'predict')"
    ).fetchone()
    return State(*map(int, row))


def dimension(db: Database) -> int:
    """The width of the collection's embeddings."""
    return int(db.execute("SELECT value FROM settings WHERE name = 'dimension'").fetchone()[0])


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
