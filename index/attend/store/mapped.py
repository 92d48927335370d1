"""Keys that were mapped from those of another encoder, until their texts are encoded.

They are told by their ids, which are never reused: those of a span between two ids are mapped, and
whatever is written later is not. So a write of anybody, at any time, makes a document whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from attend.core.types import Int64, Json
from attend.store import CollectionStore, Entry, KeyRow
from attend.store.database import Store
from attend.store.sql import LISTED, count_change, to_json

SETTING = "bridge"
"""The setting with the state of a move to another encoder; absent where there is none."""

ALL = 2**62
"""The end of a span while mapped keys are being written."""


Span = tuple[int, int]
"""The last key before mapped ones, and the last of these."""

_MAPPED = (
    "EXISTS (SELECT 1 FROM keys WHERE document = documents.row AND id > ? AND id <= ? "
    "AND example IS NULL)"
)


def embedded_keys(store: Store, rows: Sequence[int]) -> dict[int, list[KeyRow]]:
    """Return the own keys of documents by row, with their embeddings."""
    keys: dict[int, list[KeyRow]] = {}
    for row, field, start, stop, blob in store.connections.reader().execute(
        "SELECT document, field, start, stop, embedding FROM keys WHERE example IS NULL "
        f"AND document {LISTED} ORDER BY document, id",
        [to_json(list(rows))],
    ):
        embedding = np.frombuffer(blob, dtype=np.float32)
        keys.setdefault(row, []).append(KeyRow(field, start, stop, embedding))
    return keys


def mapped_ids(store: Store, span: Span) -> list[str]:
    """Return the ids of documents with mapped keys, in the order of the documents."""
    select = f"SELECT id FROM documents WHERE {_MAPPED} ORDER BY row"
    return [id for (id,) in store.connections.reader().execute(select, span)]


def figures(store: CollectionStore) -> dict[str, Json] | None:
    """Return the state of a move with the number of documents that are not encoded yet."""
    state = store.settings().get(SETTING)
    if not state or not isinstance(store, Store):
        return None
    names = ("encoder", "answers", "map", "recall", "texts", "seconds")
    pending = len(mapped_ids(store, (state["after"], state["until"])))
    return {"pending": pending, **{name: state.get(name) for name in names}}


def replace_keys(store: Store, entries: Iterable[tuple[int, Entry, bytes]], span: Span) -> None:
    """Replace mapped keys by those of entries, in one transaction; nothing else is changed.

    A document that is gone, has no mapped key, or has another text than when it was read is passed
    over. Examples and what versions learned of a document stay: its text is the same.

    Args:
        entries: with the row of each, and the key hash that it had when it was read.
    """
    with store.connections.writing() as db:
        for row, entry, read in entries:
            condition = f"row = ? AND key_hash = ? AND {_MAPPED}"
            select = f"SELECT 1 FROM documents WHERE {condition}"
            if db.execute(select, [row, read, *span]).fetchone() is None:
                continue
            select = "SELECT * FROM document_terms WHERE document = ?"
            terms = db.execute(select, [row]).fetchall()  # a trigger deletes them with the keys
            db.execute("DELETE FROM keys WHERE document = ? AND example IS NULL", [row])
            db.conn.executemany(
                "INSERT INTO keys (document, field, start, stop, format, embedding) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                [(row, *key[:3], key.format, key.embedding.tobytes()) for key in entry.keys or ()],
            )
            db.conn.executemany("INSERT INTO document_terms VALUES (?, ?, ?, ?)", terms)
            change = "UPDATE documents SET key_hash = ? WHERE row = ?"
            db.execute(change, [entry.hashes.keys, row])
        count_change(db)


def delete_state(store: Store) -> None:
    """Delete the state of a move: nothing is mapped any more."""
    with store.connections.writing() as db:
        db.execute("DELETE FROM settings WHERE name = ?", [SETTING])


def with_terms(store: Store, version: int, rows: Int64) -> Int64:
    """Return those of documents (n,) of which a version has learned terms."""
    select = f"SELECT document FROM document_terms WHERE projection = ? AND document {LISTED}"
    learned = store.connections.reader().execute(select, [version, to_json(rows.tolist())])
    return np.array(sorted({row for (row,) in learned}), dtype=np.int64)
