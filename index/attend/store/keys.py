"""Statements over keys: those of the documents themselves, and those that examples add.

An example key lies in the table without an embedding: it has its question's, read by a join.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import numpy as np
from sqlite_utils import Database

from attend.store.documents import Entry, KeyBatch, StoredKey
from attend.types import Float32, Int64

READ_BLOCK = 8192
"""Keys read at a time: 12 MB of embeddings at 384 dimensions."""

_OWN = "SELECT id, document, embedding, 0 FROM keys WHERE example IS NULL"

_WITH_EXAMPLES = (
    "SELECT keys.id, keys.document, coalesce(questions.embedding, keys.embedding), "
    "keys.example IS NOT NULL FROM keys "
    "LEFT JOIN examples ON examples.id = keys.example "
    "LEFT JOIN questions ON questions.id = examples.question WHERE 1"
)


def count(db: Database) -> int:
    """How many keys the documents have of themselves."""
    # As a difference, because each count reads an index only, and the table is all embeddings.
    row = db.execute(
        "SELECT (SELECT count(*) FROM keys) - (SELECT count(*) FROM keys WHERE example IS NOT NULL)"
    ).fetchone()
    return int(row[0])


def read_all(db: Database, examples: bool) -> Iterator[KeyBatch]:
    """All keys by document, in blocks."""
    select = _WITH_EXAMPLES if examples else _OWN
    found = db.execute(f"{select} ORDER BY keys.document, keys.id")
    return (as_batch(rows) for rows in iter(lambda: found.fetchmany(READ_BLOCK), []))


def added_since(db: Database, last_key: int, examples: bool) -> KeyBatch:
    select = _WITH_EXAMPLES if examples else _OWN
    # `+`: by the key's id, of which few are new, and not by document, of which there are many.
    found = db.execute(f"{select} AND keys.id > ? ORDER BY +keys.document, keys.id", [last_key])
    return as_batch(found.fetchall())


def forgotten(db: Database) -> int:
    """The last removal that is no longer told of."""
    row = db.execute("SELECT value FROM settings WHERE name = 'forgotten'").fetchone()
    return 0 if row is None else int(row[0])


def forget_removals(db: Database, until: int) -> None:
    """Tell no longer of removals up to one."""
    db.execute("DELETE FROM removals WHERE id <= ?", [until])
    db.execute("INSERT OR REPLACE INTO settings (name, value) VALUES ('forgotten', ?)", [until])


def removed_since(db: Database, last_removal: int) -> Int64:
    found = db.execute("SELECT key FROM removals WHERE id > ?", [last_removal])
    return np.array([row[0] for row in found], dtype=np.int64)


def of_document(db: Database, row: int) -> KeyBatch:
    """A document's own keys, in the order of their ids."""
    found = db.execute(f"{_OWN} AND document = ? ORDER BY id", [row])
    return as_batch(found.fetchall())


def of_documents(db: Database, rows: Int64) -> KeyBatch:
    """The own keys of documents, in the order (row, key id)."""
    found = db.execute(
        f"{_OWN} AND document IN (SELECT value FROM json_each(?)) ORDER BY document, id",
        [json.dumps(rows.tolist())],
    )
    return as_batch(found.fetchall())


def embeddings(db: Database, keys: Sequence[int]) -> list[Float32]:
    found = db.execute(
        f"{_WITH_EXAMPLES} AND keys.id IN (SELECT value FROM json_each(?))",
        [json.dumps(list(keys))],
    )
    by_id = {id: np.frombuffer(blob, dtype=np.float32) for id, _, blob, _ in found}
    return [by_id[key] for key in keys if key in by_id]


def origins(db: Database, keys: Int64) -> dict[int, StoredKey]:
    found = db.execute(
        "SELECT keys.id, keys.document, field, start, stop, questions.text FROM keys "
        "LEFT JOIN examples ON examples.id = keys.example "
        "LEFT JOIN questions ON questions.id = examples.question "
        "WHERE keys.id IN (SELECT value FROM json_each(?))",
        [json.dumps(keys.tolist())],
    )
    return {row[0]: StoredKey(*row) for row in found}


def replace(db: Database, row: int, entry: Entry) -> None:
    """Give a document other keys. What was learned about the old ones is no longer true."""
    db.execute("DELETE FROM examples WHERE document = ?", [row])
    db.execute("DELETE FROM keys WHERE document = ?", [row])
    db.conn.executemany(
        "INSERT INTO keys (document, field, start, stop, embedding) VALUES (?, ?, ?, ?, ?)",
        [
            (row, key.field, key.start, key.stop, key.embedding.astype(np.float32).tobytes())
            for key in entry.keys or ()
        ],
    )


def as_batch(rows: Sequence[tuple[int, int, bytes, int]]) -> KeyBatch:
    return KeyBatch(
        ids=np.array([row[0] for row in rows], dtype=np.int64),
        documents=np.array([row[1] for row in rows], dtype=np.int64),
        embeddings=stacked([row[2] for row in rows]),
        examples=np.array([row[3] for row in rows], dtype=np.bool_),
    )


def stacked(blobs: Sequence[bytes]) -> Float32:
    """Vectors of one width as a matrix (n, d); (0, 0) where there are none."""
    numbers = np.frombuffer(b"".join(blobs), dtype=np.float32)
    return numbers.reshape(len(blobs), -1) if blobs else numbers.reshape(0, 0)
