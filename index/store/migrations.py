"""The schema, as functions that are only ever appended to.

`sqlite_utils.Migrations` runs each once per database, in its own transaction.
"""

from __future__ import annotations

from sqlite_utils import Database, Migrations

migrations = Migrations("attend")


@migrations()
def m001_documents_keys_projections(db: Database) -> None:
    for statement in _M001:
        db.execute(statement)


_M001 = (
    "CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    # `row` is the id inside; `id` is the caller's. AUTOINCREMENT on both tables, because
    # a published index may still speak of a row or key that is gone: it must never meet
    # a new one under the old number.
    """
    CREATE TABLE documents (
        row INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        fields TEXT NOT NULL,
        value TEXT,
        payload TEXT NOT NULL,
        key_hash BLOB NOT NULL,
        value_hash BLOB NOT NULL
    )
    """,
    """
    CREATE TABLE keys (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        document INTEGER NOT NULL REFERENCES documents(row) ON DELETE CASCADE,
        field TEXT NOT NULL,
        start INTEGER NOT NULL,
        stop INTEGER NOT NULL,
        embedding BLOB NOT NULL
    )
    """,
    "CREATE INDEX keys_by_document ON keys (document)",
    # A log that readers follow to mask what they hold; a trigger, so that no path forgets it.
    "CREATE TABLE removals (id INTEGER PRIMARY KEY AUTOINCREMENT, document INTEGER NOT NULL, "
    "key INTEGER NOT NULL)",
    """
    CREATE TRIGGER log_removed_key AFTER DELETE ON keys BEGIN
        INSERT INTO removals (document, key) VALUES (old.document, old.id);
    END
    """,
    """
    CREATE TABLE projections (
        version INTEGER PRIMARY KEY AUTOINCREMENT,
        kind TEXT NOT NULL,
        weights BLOB NOT NULL,
        fingerprint TEXT NOT NULL,
        created TEXT NOT NULL,
        note TEXT NOT NULL
    )
    """,
)
