"""Documents: read by row, id or filter, and written with their keys."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
from sqlite_utils import Database

from attend.api.answers import Facet
from attend.core.deadline import count_read
from attend.core.errors import UnknownDocument
from attend.core.types import Int64, Json
from attend.store.connections import (
    DatabasePart,
    change_settings,
    id_list,
    to_json,
    value_json,
)
from attend.store.filters import Predicate
from attend.store.keys import replace_keys
from attend.store.records import Entry, Hashes, StaleEntries, StoredDocument
from attend.store.selection import MAX_VALUES, Selection, check_facets, whole_number

NAMED = 10
"""Unknown documents that an error names."""

LONG = 1024
"""Bytes of a document that is counted while it is read; shorter ones count by their number."""

SAMPLE_BYTES = 16 * 1024 * 1024
"""Of the file that a sample reads, on average: of large documents fewer are read."""

_DOCUMENT = "SELECT row, id, fields, value, payload FROM documents"

_from_json = json.JSONDecoder().decode
"""As `json.loads`, which looks for other options at each call."""


class StoredDocuments(DatabasePart):
    """Reads and writes documents."""

    _selection: Selection

    # -- reading documents ------------------------------------------------------------------

    def counts(self) -> tuple[int, int]:
        """Return the number of documents, and of their keys without those of examples."""
        # As a difference, because each count reads an index only, and the table is all embeddings.
        row = self._read().execute(
            "SELECT (SELECT count(*) FROM documents), (SELECT count(*) FROM keys) - "
            "(SELECT count(*) FROM keys WHERE example IS NOT NULL)"
        )
        documents, keys = row.fetchone()
        return int(documents), int(keys)

    def documents(self, rows: Int64, *, texts: bool = True) -> dict[int, StoredDocument]:
        fields = "fields" if texts else "'{}'"
        return {document.row: document for document in _by_rows(self._read(), rows, fields)}

    def find(self, ids: Sequence[str]) -> dict[str, StoredDocument]:
        rows = self._read().execute(
            f"{_DOCUMENT} WHERE id IN (SELECT value FROM json_each(?))", [id_list(ids)]
        )
        return {document.id: document for document in _documents(rows)}

    def scroll(
        self, after: int, limit: int, predicate: Predicate | None = None
    ) -> list[StoredDocument]:
        if predicate is None:
            page = self._read().execute(
                f"{_DOCUMENT} WHERE row > ? ORDER BY row LIMIT ?", [after, limit]
            )
            return _documents(page)
        with self.connections.reading() as db:
            rows = self._selection.rows(db, predicate)
            first = int(np.searchsorted(rows, after, side="right"))
            return _by_rows(db, rows[first : first + limit])

    def sample(self, size: int) -> list[StoredDocument]:
        db = self._read()
        last, pages = db.execute(
            "SELECT (SELECT coalesce(max(row), 0) FROM documents), page_count * page_size "
            "FROM pragma_page_count, pragma_page_size"
        ).fetchone()
        size = min(size, SAMPLE_BYTES * last // pages + 1)
        points = np.unique(np.linspace(1, max(last, 1), size, dtype=np.int64))
        # By key, one by one: a condition on the row would read every document.
        rows = db.execute(
            f"{_DOCUMENT} WHERE row IN (SELECT "
            f"(SELECT row FROM documents WHERE row >= point.value ORDER BY row LIMIT 1) "
            f"FROM json_each(?) AS point) ORDER BY row",
            [json.dumps(points.tolist())],
        )
        return _documents(rows)

    def all_ids(self) -> Iterator[str]:
        return (row[0] for row in self._read().execute("SELECT id FROM documents ORDER BY row"))

    def rows_of(self, ids: Sequence[str]) -> dict[str, int]:
        return _rows_of(self._read(), ids)

    def hashes(self, ids: Sequence[str]) -> dict[str, Hashes]:
        return _hashes(self._read(), ids)

    def matching(self, predicate: Predicate) -> Int64:
        with self.connections.reading() as db:
            return self._selection.rows(db, predicate)

    def count(self, predicate: Predicate) -> int:
        return len(self.matching(predicate))

    def facets(
        self, fields: Sequence[str], predicate: Predicate | None = None, limit: int = 10
    ) -> dict[str, Facet]:
        check_facets(fields)
        limit = whole_number(limit, "limit", 1, MAX_VALUES)
        with self.connections.reading() as db:
            rows = None if predicate is None else self._selection.rows(db, predicate)
            return self._selection.facets(db, fields, rows, limit)

    # -- writing ----------------------------------------------------------------------------

    def write(self, entries: Sequence[Entry], decided: Mapping[str, Json] | None = None) -> None:
        with self._changing() as db:
            if decided:
                _decide(db, decided)
            _check_kept(db, [entry for entry in entries if entry.keys is None])
            for entry in entries:
                row = _upsert(db, entry)
                if entry.keys is not None:
                    replace_keys(db, row, entry)

    def revise(
        self,
        id: str,
        change: Callable[[StoredDocument], StoredDocument],
        hash: Callable[[Json, Mapping[str, Json]], bytes],
    ) -> StoredDocument | None:
        id_list([id])  # refuses what is no text
        with self._changing() as db:
            # As bytes: a text ends at NUL for json_each, and half a surrogate pair is no UTF-8.
            name = id.encode("utf-8", "surrogatepass")
            row = db.execute(f"{_DOCUMENT} WHERE id = CAST(? AS TEXT)", [name]).fetchone()
            if row is None:
                return None
            revised = change(_documents([row])[0])
            value, payload = revised.value, revised.payload
            value_hash = hash(value, payload)  # first: it refuses values that are no JSON
            db.execute(
                "UPDATE documents SET value = ?1, payload = ?2, value_hash = ?3 "
                "WHERE row = ?4 AND value_hash <> ?3",
                [value_json(value), to_json(payload), value_hash, revised.row],
            )
            return revised

    def delete(self, ids: Sequence[str]) -> int:
        with self._changing() as db:
            cursor = db.execute(
                "DELETE FROM documents WHERE id IN (SELECT value FROM json_each(?))", [id_list(ids)]
            )
            return int(cursor.rowcount)

    def delete_matching(self, predicate: Predicate) -> int:
        with self._changing() as db:
            rows = self._selection.read(db, predicate)
            cursor = db.execute(
                "DELETE FROM documents WHERE row IN (SELECT value FROM json_each(?))",
                [json.dumps(rows.tolist())],
            )
            return int(cursor.rowcount)


def known_rows(db: Database, ids: Sequence[str], subject: str) -> dict[str, int]:
    """Return the row of each document, by the caller's id.

    Args:
        subject: what names the documents ("examples"), for the error and as its field.

    Raises:
        UnknownDocument: names some of the ids that no document has.
    """
    rows = _rows_of(db, ids)
    unknown = [id for id in dict.fromkeys(ids) if id not in rows]
    if unknown:
        more = f" and {len(unknown) - NAMED} others" if len(unknown) > NAMED else ""
        raise UnknownDocument(
            f"The {subject} name {', '.join(map(repr, unknown[:NAMED]))}{more}, and no document "
            f"has such an id; store the documents first, or leave these {subject} out.",
            field=subject,
        )
    return rows


def _documents(
    rows: Iterable[tuple[int, str, str, str | None, str]],
) -> list[StoredDocument]:
    """Parse documents; many objects are empty, and parsing them would take a fifth of a search."""
    documents = []
    for row, id, fields, value, payload in rows:
        if len(fields) + len(payload) + (0 if value is None else len(value)) > LONG:
            count_read(sum(map(parsed_size, (fields, value or "", payload))))
        documents.append(
            StoredDocument(
                row,
                id,
                {} if fields == "{}" else _from_json(fields),
                None if value is None else _from_json(value),
                {} if payload == "{}" else _from_json(payload),
            )
        )
    return documents


def parsed_size(text: str) -> int:
    """Return about the most bytes that JSON takes as text, parsed, and in an answer."""
    return 4 * len(text) + 64 * text.count(",")


def _by_rows(db: Database, rows: Int64, fields: str = "fields") -> list[StoredDocument]:
    """Read documents by row; `fields` is the SQL expression of their texts."""
    documents = db.execute(
        f"SELECT row, id, {fields}, value, payload FROM documents "
        f"WHERE row IN (SELECT value FROM json_each(?)) ORDER BY row",
        [json.dumps(rows.tolist())],
    )
    return _documents(documents)


def _rows_of(db: Database, ids: Sequence[str]) -> dict[str, int]:
    rows = db.execute(
        "SELECT id, row FROM documents WHERE id IN (SELECT value FROM json_each(?))",
        [id_list(list(dict.fromkeys(ids)))],
    )
    return dict(rows.fetchall())


def _hashes(db: Database, ids: Sequence[str]) -> dict[str, Hashes]:
    rows = db.execute(
        "SELECT id, key_hash, value_hash FROM documents "
        "WHERE id IN (SELECT value FROM json_each(?))",
        [id_list(ids)],
    )
    return {row[0]: Hashes(row[1], row[2]) for row in rows}


def _check_kept(db: Database, entries: Sequence[Entry]) -> None:
    """Check that the stored keys of entries without keys are still those of their hashes."""
    stored = _hashes(db, [entry.document.id for entry in entries])
    stale = [
        entry
        for entry in entries
        if entry.document.id not in stored or stored[entry.document.id].keys != entry.hashes.keys
    ]
    if stale:
        raise StaleEntries(f"{len(stale)} documents changed while they were being prepared.")


def _decide(db: Database, settings: Mapping[str, Json]) -> None:
    """Store settings that were open; raises StaleEntries where they are decided otherwise."""
    stored = dict(db.execute("SELECT name, value FROM settings").fetchall())
    if any(json.loads(stored[name]) not in (None, value) for name, value in settings.items()):
        raise StaleEntries("Another writer has decided the settings meanwhile.")
    change_settings(db, settings)


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
            value_json(document.value),
            to_json(document.payload),
            *entry.hashes,
        ],
    ).fetchone()
    return int(row[0])
