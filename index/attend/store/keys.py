"""Keys: those of the documents themselves, and those that examples add.

The key of an example lies in the table without an embedding: it has its question's, read by a join.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import itemgetter

import numpy as np
from sqlite_utils import Database

from attend.core.arrays import KeyTable
from attend.core.types import Float32, Int64
from attend.store.connections import DatabasePart, columns_of, put_settings, read_state, stacked
from attend.store.records import Entry, KeyChanges, KeyRow, State, StoredKey, TooFarBehind

READ_BLOCK = 8192
"""Keys read at a time: 12 MB of embeddings at 384 dimensions."""

REMEMBERED_REMOVALS = 100_000
"""Removed keys that stay listed, for readers that still hold them: other processes, versions."""

_Row = tuple[int, int, bytes, int]
"""Id, document, embedding, and 1 for an example query."""

_OWN = "SELECT id, document, embedding, 0 FROM keys WHERE example IS NULL"

_WITH_EXAMPLES = (
    "SELECT keys.id, keys.document, coalesce(questions.embedding, keys.embedding), "
    "keys.example IS NOT NULL FROM keys "
    "LEFT JOIN examples ON examples.id = keys.example "
    "LEFT JOIN questions ON questions.id = examples.question WHERE 1"
)


class StoredKeys(DatabasePart):
    """Reads keys, and their changes since an earlier state."""

    def keys_of(self, ids: Int64) -> dict[int, StoredKey]:
        rows = self._read().execute(
            "SELECT keys.id, keys.document, field, start, stop, questions.text FROM keys "
            "LEFT JOIN examples ON examples.id = keys.example "
            "LEFT JOIN questions ON questions.id = examples.question "
            "WHERE keys.id IN (SELECT value FROM json_each(?))",
            [json.dumps(ids.tolist())],
        )
        return {row[0]: StoredKey(*row) for row in rows}

    def own_keys(self, rows: Int64) -> KeyTable:
        keys = self._read().execute(
            f"{_OWN} AND document IN (SELECT value FROM json_each(?)) ORDER BY document, id",
            [json.dumps(rows.tolist())],
        )
        return _table(keys.fetchall())

    def embeddings(self, ids: Sequence[int]) -> list[Float32]:
        rows = self._read().execute(
            f"{_WITH_EXAMPLES} AND keys.id IN (SELECT value FROM json_each(?))",
            [json.dumps(list(ids))],
        )
        by_id = {id: np.frombuffer(blob, dtype=np.float32) for id, _, blob, _ in rows}
        return [by_id[id] for id in ids if id in by_id]

    @contextmanager
    def all_keys(self, *, examples: bool = False) -> Iterator[tuple[State, Iterator[KeyTable]]]:
        with self.connections.reading() as db:
            select = _WITH_EXAMPLES if examples else _OWN
            keys = db.execute(f"{select} ORDER BY keys.document, keys.id")
            yield read_state(db), _tables(iter(lambda: keys.fetchmany(READ_BLOCK), []))

    def changes_since(
        self, last_key: int, last_removal: int, *, examples: bool = False
    ) -> KeyChanges:
        """Return the changes that a reader of that state lacks; with the keys of examples or not.

        Raises:
            TooFarBehind: removals since that state are forgotten.
        """
        with self.connections.reading() as db:
            # A reader without keys has nothing to remove.
            if last_key and last_removal < _forgotten(db):
                raise TooFarBehind
            select = _WITH_EXAMPLES if examples else _OWN
            # `+`: by the key's id, of which few are new, and not by document, of which many are.
            keys = db.execute(
                f"{select} AND keys.id > ? ORDER BY +keys.document, keys.id", [last_key]
            )
            removed = db.execute("SELECT key FROM removals WHERE id > ?", [last_removal])
            return KeyChanges(
                read_state(db),
                _table(keys.fetchall()),
                np.array([row[0] for row in removed], dtype=np.int64),
            )

    def example_state(self) -> tuple[int, ...]:
        # Whatever deletes an example lowers the count; a new one has a new id.
        row = self._read().execute(
            "SELECT (SELECT count(*) FROM examples), (SELECT max(id) FROM examples), "
            "(SELECT CAST(value AS INTEGER) FROM settings WHERE name = 'examples_replaced')"
        )
        return tuple(int(number or 0) for number in row.fetchone())

    def forgotten(self) -> int:
        """Return the last removal of a key that is no longer listed."""
        return _forgotten(self._read())

    def forget_removals(self, until: int) -> None:
        """Forget the removals that a written index contains, once there are many.

        A reader that has not seen them yet must read all keys again.
        """
        with self.connections.writing() as db:
            if until - _forgotten(db) > REMEMBERED_REMOVALS:
                db.execute("DELETE FROM removals WHERE id <= ?", [until])
                put_settings(db, {"forgotten": until})


def replace_keys(db: Database, row: int, entry: Entry) -> None:
    """Replace the keys of a document. Its examples belonged to another text, and go."""
    db.execute("DELETE FROM examples WHERE document = ?", [row])
    db.execute("DELETE FROM keys WHERE document = ?", [row])
    db.conn.executemany(
        "INSERT INTO keys (document, field, start, stop, embedding) VALUES (?, ?, ?, ?, ?)",
        [
            (row, key.field, key.start, key.stop, key.embedding.astype(np.float32).tobytes())
            for key in entry.keys or ()
        ],
    )


def _tables(blocks: Iterable[list[_Row]]) -> Iterator[KeyTable]:
    """Yield rows as tables of whole documents: a full block may have cut its last one."""
    rest: list[_Row] = []
    for block in blocks:
        rest += block
        is_full = len(block) == READ_BLOCK
        end = bisect_left(rest, rest[-1][1], key=itemgetter(1)) if is_full else len(rest)
        if end:
            yield _table(rest[:end])
        rest = rest[end:]
    if rest:
        yield _table(rest)


def _table(rows: Sequence[_Row]) -> KeyTable:
    ids, documents, blobs, examples = columns_of(rows, 4)
    return KeyTable.of_keys(
        stacked(blobs),
        np.array(ids, dtype=np.int64),
        np.array(documents, dtype=np.int64),
        np.array(examples, dtype=np.bool_) if any(examples) else None,
    )


def _forgotten(db: Database) -> int:
    row = db.execute("SELECT value FROM settings WHERE name = 'forgotten'").fetchone()
    return 0 if row is None else int(row[0])


def own_key_rows(db: Database, first: int, last: int) -> dict[int, list[KeyRow]]:
    """Return the documents' own keys by row, from one row to another, texts without embeddings."""
    keys: dict[int, list[KeyRow]] = {}
    for row, field, start, stop, blob in db.execute(
        "SELECT document, field, start, stop, CASE WHEN stop = 0 THEN embedding ELSE x'' END "
        "FROM keys WHERE example IS NULL AND document BETWEEN ? AND ? ORDER BY id",
        [first, last],
    ):
        embedding = np.frombuffer(blob, dtype=np.float32)
        keys.setdefault(row, []).append(KeyRow(field, start, stop, embedding))
    return keys
