"""The store of one collection in a SQLite database."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from sqlite_utils import Database

from attend.api.answers import Facet
from attend.api.base import MAX_VALUES
from attend.core.arrays import KeyTable
from attend.core.deadline import NO_DEADLINE, checked, until
from attend.core.errors import Conflict
from attend.core.liking import Liking, liked_mask
from attend.core.types import Float32, Float64, Int64, Json
from attend.store import (
    USED,
    CollectionStore,
    Column,
    Entry,
    ExampleSet,
    Hashes,
    Interaction,
    InteractionSet,
    KeyChanges,
    NewExample,
    Offsets,
    Question,
    Role,
    StaleEntries,
    State,
    StoredDocument,
    StoredExample,
    StoredKey,
    StoredProjection,
    StoredUser,
    StoredVersion,
    TooFarBehind,
    UserHistory,
    VersionDetails,
    sql,
    words,
)
from attend.store.connections import Connections
from attend.store.filters import Predicate
from attend.store.migrations import migrations
from attend.store.selection import FieldIndexes, Selection, check_facets, read_column, whole_number
from attend.store.sql import LISTED
from attend.store.words import TOKENIZER, FewerWords, Lexical, WordCache, WordReader

REMEMBERED_PUBLICATIONS = 100
"""More than are ever on disk at once, for all layouts together."""

REMEMBERED_REMOVALS = 100_000
"""Removed keys that stay listed, for readers that still hold them: other processes, versions."""

SAMPLE_BYTES = 16 * 1024 * 1024
"""Of the file that a sample reads, on average: of large documents fewer are read."""

_DOCUMENT = "SELECT row, id, fields, value, payload FROM documents"

_OWN = "SELECT id, document, embedding, 0 FROM keys WHERE example IS NULL"

_WITH_EXAMPLES = (
    "SELECT keys.id, keys.document, coalesce(questions.embedding, keys.embedding), "
    "keys.example IS NOT NULL FROM keys "
    "LEFT JOIN examples ON examples.id = keys.example "
    "LEFT JOIN questions ON questions.id = examples.question WHERE 1"
)


class Store(CollectionStore):
    """A collection in a SQLite database; every method that writes is one transaction."""

    def __init__(self, path: Path, *, read_only: bool = False, width: int = 0) -> None:
        self.path = path
        self.connections = Connections(path, read_only=read_only, width=width)
        self._words = WordCache()
        self._chosen: tuple[int, Liking] = (-1, Liking())
        self._indexes = FieldIndexes(self.connections)
        self._selection = Selection(self._indexes)
        with ExitStack() as on_error:
            on_error.callback(self.connections.close)
            # Reading never waits for writing: the lock is taken only if a migration is due.
            if migrations.pending(self.connections.reader()):
                with until(NO_DEADLINE), self.connections.writing() as db:
                    migrations.apply(db)
            on_error.pop_all()

    def close(self) -> None:
        self._indexes.close()
        self.connections.close()

    def reading(self) -> AbstractContextManager[Database]:
        return self.connections.reading()

    def _read(self) -> Database:
        return self.connections.reader()

    @contextmanager
    def _changing(self) -> Iterator[Database]:
        """Open a write transaction that may change answers: then readers look at them again."""
        with self.connections.writing() as db:
            before = db.conn.total_changes
            yield db
            if db.conn.total_changes != before:
                sql.count_change(db)

    def settings(self) -> dict[str, Any]:
        rows = self._read().execute("SELECT name, value FROM settings")
        return {name: json.loads(value) for name, value in rows}

    def state(self) -> State:
        return sql.read_state(self._read())

    def initialise(self, settings: Mapping[str, Json], projection: tuple[str, bytes, str]) -> None:
        """Write the settings of a new collection and its first projection, in one step."""
        first: dict[str, Json] = {"uuid": secrets.token_hex(16), "change": 0, "published": []}
        with self.connections.writing() as db:
            version = sql.insert_version(db, *projection)
            sql.put_settings(db, {**settings, **first, "projection": version})

    def put_settings(self, changes: Mapping[str, Json], *, soon: bool = True) -> None:
        with self.connections.writing() as db:
            sql.put_settings(db, changes, soon=soon)

    def record_publication(self, nonce: str) -> None:
        """Record that an index was made of this database, and not of a copy of it."""
        with self.connections.writing() as db:
            row = db.execute("SELECT value FROM settings WHERE name = 'published'").fetchone()
            nonces = [*json.loads(row[0]), nonce][-REMEMBERED_PUBLICATIONS:]
            sql.put_settings(db, {"published": nonces})

    def lexical_many(
        self, texts: Sequence[str], limit: int | None = None, *, without: Int64 | None = None
    ) -> list[Lexical]:
        with self.connections.reading() as db:
            reader = WordReader(db, self._words)
            if without is not None:
                reader = FewerWords(db, self._words, without)
            return [words.search(reader, TOKENIZER.words(text), limit) for text in checked(texts)]

    def lexical_texts(self, query: str, texts: Sequence[str]) -> Lexical:
        with self.connections.reading() as db:
            reader = WordReader(db, self._words)
            return words.score_texts(reader, TOKENIZER.words(query), list(checked(texts)))

    def common_words(self, texts: Sequence[str]) -> set[str]:
        with self.connections.reading() as db:
            reader = WordReader(db, self._words)
            return {stem for text in texts for stem in words.common(reader, TOKENIZER.words(text))}

    # -- documents --------------------------------------------------------------------------

    def counts(self) -> tuple[int, int]:
        # As a difference, because each count reads an index only, and the table is all embeddings.
        counts = self._read().execute(
            "SELECT (SELECT count(*) FROM documents), (SELECT count(*) FROM keys) - "
            "(SELECT count(*) FROM keys WHERE example IS NOT NULL)"
        )
        documents, keys = counts.fetchone()
        return documents, keys

    def formats(self) -> dict[str, int]:
        select = "SELECT coalesce(format, 'unknown'), count(*) FROM keys WHERE stop > 0 GROUP BY 1"
        return dict(self._read().execute(select).fetchall())

    def documents(self, rows: Int64, *, texts: bool = True) -> dict[int, StoredDocument]:
        fields = "fields" if texts else "'{}'"
        return {
            document.row: document for document in sql.documents_by_row(self._read(), rows, fields)
        }

    def find(self, ids: Sequence[str]) -> dict[str, StoredDocument]:
        rows = self._read().execute(f"{_DOCUMENT} WHERE id {LISTED}", [sql.id_list(ids)])
        return {document.id: document for document in sql.parsed_documents(rows)}

    def scroll(
        self, after: int, limit: int, predicate: Predicate | None = None
    ) -> list[StoredDocument]:
        if predicate is None:
            select = f"{_DOCUMENT} WHERE row > ? ORDER BY row LIMIT ?"
            return sql.parsed_documents(self._read().execute(select, [after, limit]))
        with self.connections.reading() as db:
            rows = self._selection.rows(db, predicate)
            first = int(np.searchsorted(rows, after, side="right"))
            return sql.documents_by_row(db, rows[first : first + limit])

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
        return sql.parsed_documents(rows)

    def column(self, field: str | None, most: int) -> Column:
        return read_column(self._read(), field, most)

    def all_ids(self) -> Iterator[str]:
        return (row[0] for row in self._read().execute("SELECT id FROM documents ORDER BY row"))

    def rows_of(self, ids: Sequence[str]) -> dict[str, int]:
        return sql.rows_of(self._read(), ids)

    def hashes(self, ids: Sequence[str]) -> dict[str, Hashes]:
        return sql.hashes_of(self._read(), ids)

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

    def times(self, field: str) -> tuple[Int64, Float64]:
        with self.connections.reading() as db:
            return self._selection.times(db, field)

    def write(self, entries: Sequence[Entry], decided: Mapping[str, Json] | None = None) -> None:
        blocks = list(sql.upserts(entries))  # before others have to wait
        with self._changing() as db:
            if decided:
                sql.decide(db, decided)
            keyless = [entry for entry in entries if entry.keys is None]
            stored = sql.hashes_of(db, [entry.document.id for entry in keyless])
            stale = [
                entry
                for entry in keyless
                if entry.document.id not in stored
                or stored[entry.document.id].keys != entry.hashes.keys
            ]
            if stale:
                changed = f"{len(stale)} documents changed while they were being prepared."
                raise StaleEntries(changed)
            for parameters in blocks:
                sql.upsert(db, parameters)

    def revise(
        self,
        id: str,
        change: Callable[[StoredDocument], StoredDocument],
        hash: Callable[[Json, Mapping[str, Json]], bytes],
    ) -> StoredDocument | None:
        sql.id_list([id])  # refuses what is no text
        with self._changing() as db:
            # As bytes: a text ends at NUL for json_each, and half a surrogate pair is no UTF-8.
            name = id.encode("utf-8", "surrogatepass")
            row = db.execute(f"{_DOCUMENT} WHERE id = CAST(? AS TEXT)", [name]).fetchone()
            if row is None:
                return None
            revised = change(sql.parsed_documents([row])[0])
            value, payload = revised.value, revised.payload
            value_hash = hash(value, payload)  # first: it refuses values that are no JSON
            db.execute(
                "UPDATE documents SET value = ?1, payload = ?2, value_hash = ?3 "
                "WHERE row = ?4 AND value_hash <> ?3",
                [sql.value_json(value), sql.to_json(payload), value_hash, revised.row],
            )
            return revised

    def delete(self, ids: Sequence[str]) -> int:
        with self._changing() as db:
            delete = f"DELETE FROM documents WHERE id {LISTED}"
            return int(db.execute(delete, [sql.id_list(ids)]).rowcount)

    def delete_matching(self, predicate: Predicate) -> int:
        with self._changing() as db:
            rows = self._selection.read(db, predicate)
            delete = f"DELETE FROM documents WHERE row {LISTED}"
            return int(db.execute(delete, [json.dumps(rows.tolist())]).rowcount)

    # -- keys -------------------------------------------------------------------------------

    def keys_of(self, ids: Int64) -> dict[int, StoredKey]:
        rows = self._read().execute(
            "SELECT keys.id, keys.document, field, start, stop, questions.text FROM keys "
            "LEFT JOIN examples ON examples.id = keys.example "
            "LEFT JOIN questions ON questions.id = examples.question "
            f"WHERE keys.id {LISTED}",
            [json.dumps(ids.tolist())],
        )
        return {row[0]: StoredKey(*row) for row in rows}

    def own_keys(self, rows: Int64) -> KeyTable:
        select = f"{_OWN} AND document {LISTED} ORDER BY document, id"
        keys = self._read().execute(select, [json.dumps(rows.tolist())])
        return sql.key_table(keys.fetchall())

    def example_keys(self) -> Int64:
        keys = self._read().execute("SELECT id FROM keys WHERE example IS NOT NULL")
        return np.array([key for (key,) in keys], dtype=np.int64)

    def embeddings(self, ids: Sequence[int]) -> list[Float32]:
        select = f"{_WITH_EXAMPLES} AND keys.id {LISTED}"
        rows = self._read().execute(select, [json.dumps(list(ids))])
        by_id = {id: np.frombuffer(blob, dtype=np.float32) for id, _, blob, _ in rows}
        return [by_id[id] for id in ids if id in by_id]

    @contextmanager
    def all_keys(self, *, examples: bool = False) -> Iterator[tuple[State, Iterator[KeyTable]]]:
        with self.connections.reading() as db:
            select = _WITH_EXAMPLES if examples else _OWN
            keys = db.execute(f"{select} ORDER BY keys.document, keys.id")
            yield (
                sql.read_state(db),
                sql.key_tables(iter(lambda: keys.fetchmany(sql.READ_BLOCK), [])),
            )

    def changes_since(
        self, last_key: int, last_removal: int, *, examples: bool = False
    ) -> KeyChanges:
        """Return the changes that a reader of that state lacks; with the keys of examples or not.

        Raises:
            TooFarBehind: removals since that state are forgotten.
        """
        with self.connections.reading() as db:
            # A reader without keys has nothing to remove.
            if last_key and last_removal < sql.forgotten(db):
                raise TooFarBehind
            select = _WITH_EXAMPLES if examples else _OWN
            # `+`: by the key's id, of which few are new, and not by document, of which many are.
            order = "ORDER BY +keys.document, keys.id"
            keys = db.execute(f"{select} AND keys.id > ? {order}", [last_key]).fetchall()
            removed = db.execute("SELECT key FROM removals WHERE id > ?", [last_removal])
            gone = np.array([row[0] for row in removed], dtype=np.int64)
            return KeyChanges(sql.read_state(db), sql.key_table(keys), gone)

    def example_state(self) -> tuple[int, ...]:
        # Whatever deletes an example lowers the count; a new one has a new id.
        row = self._read().execute(
            "SELECT (SELECT count(*) FROM examples), (SELECT max(id) FROM examples), "
            "(SELECT CAST(value AS INTEGER) FROM settings WHERE name = 'examples_replaced')"
        )
        return tuple(int(number or 0) for number in row.fetchone())

    def forgotten(self) -> int:
        """Return the last removal of a key that is no longer listed."""
        return sql.forgotten(self._read())

    def forget_removals(self, until: int) -> None:
        """Forget the removals that a written index contains, once there are many.

        A reader that has not seen them yet must read all keys again.
        """
        with self.connections.writing() as db:
            if until - sql.forgotten(db) > REMEMBERED_REMOVALS:
                db.execute("DELETE FROM removals WHERE id <= ?", [until])
                sql.put_settings(db, {"forgotten": until})

    # -- examples ---------------------------------------------------------------------------

    def add_examples(
        self,
        questions: Sequence[Question],
        examples: Sequence[NewExample],
        *,
        forget: bool = False,
        only: str | None = None,
    ) -> tuple[int, int]:
        with self._changing() as db:
            rows = sql.known_rows(db, [example.document for example in examples], "examples")
            if forget:
                db.execute("DELETE FROM examples")
            used = sorted({example.question for example in examples})
            ids = {place: sql.question_id(db, questions[place]) for place in used}
            before = sql.row_count(db, "examples")
            values = [(ids[item.question], rows[item.document], *item[2:]) for item in examples]
            sql.put_examples(db, values, only)
            sql.count_up(db, "examples_replaced")
            added = sql.row_count(db, "examples") - before
            if only is not None:  # at the end: a question goes with its last example
                sql.delete_examples_but(
                    db, only, {(ids[item.question], rows[item.document]) for item in examples}
                )
            return added, len(examples) - added

    def examples(self) -> ExampleSet:
        with self.connections.reading() as db:
            questions = db.execute("SELECT id, text, embedding FROM questions ORDER BY id")
            ids, texts, embeddings = sql.columns_of(questions.fetchall(), 3)
            select = "SELECT question, document, weight, coalesce(position, 0), source = ?, id "
            examples = db.execute(f"{select} FROM examples ORDER BY id", [USED])
            columns = sql.columns_of(examples.fetchall(), 6)
        question_ids = np.array(ids, dtype=np.int64)
        return ExampleSet(
            texts=list(texts),
            embeddings=sql.stacked(embeddings),
            questions=np.searchsorted(question_ids, np.array(columns[0], dtype=np.int64)),
            rows=np.array(columns[1], dtype=np.int64),
            weights=np.array(columns[2], dtype=np.float64),
            positions=np.array(columns[3], dtype=np.int64),
            used=np.array(columns[4], dtype=bool),
            ids=np.array(columns[5], dtype=np.int64),
        )

    def example_count(self) -> int:
        return sql.row_count(self._read(), "examples")

    def question_embeddings(self, texts: Sequence[str]) -> dict[str, Float32]:
        embeddings, none = {}, np.empty(0, dtype=np.float32)
        with self.connections.reading() as db:
            for text in texts:
                hash = sql.question_hash(text, none)
                row = db.execute("SELECT embedding FROM questions WHERE hash = ?", [hash])
                for (blob,) in row.fetchall():
                    embeddings[text] = np.frombuffer(blob, dtype=np.float32)
        return embeddings

    def question_count(self) -> int:
        return sql.row_count(self._read(), "questions")

    def relevant_question_count(self) -> int:
        counted = "SELECT count(DISTINCT question) FROM examples WHERE weight > 0"
        return int(self._read().execute(counted).fetchone()[0])

    def latest_examples(
        self, limit: int, before: int | None = None, document: str | None = None
    ) -> list[StoredExample]:
        rows = self._read().execute(
            "SELECT examples.id, questions.text, documents.id, weight, position, source, created "
            "FROM examples JOIN questions ON questions.id = examples.question "
            "JOIN documents ON documents.row = examples.document "
            "WHERE examples.id < ? AND (? IS NULL OR documents.id = ?) "
            "ORDER BY examples.id DESC LIMIT ?",
            [2**63 - 1 if before is None else before, document, document, limit],
        )
        return [StoredExample(*row) for row in rows]

    def some_questions(self, count: int) -> Float32:
        """Return embeddings (q, d) of the latest questions, at most `count`."""
        select = "SELECT embedding FROM questions ORDER BY id DESC LIMIT ?"
        return sql.stacked([blob for (blob,) in self._read().execute(select, [count])])

    def delete_examples(
        self,
        ids: Sequence[int] | None = None,
        documents: Sequence[str] | None = None,
        queries: Sequence[str] | None = None,
    ) -> int:
        with self._changing() as db:
            if ids is None and documents is None and queries is None:
                return int(db.execute("DELETE FROM examples").rowcount)
            hashes = [sql.question_hash(text, np.empty(0, np.float32)) for text in queries or ()]
            marks = ", ".join("?" * len(hashes)) or "NULL"
            cursor = db.execute(
                f"DELETE FROM examples WHERE id {LISTED} OR document IN "
                f"(SELECT row FROM documents WHERE id {LISTED}) OR "
                f"question IN (SELECT id FROM questions WHERE hash IN ({marks}))",
                [json.dumps([int(id) for id in ids or ()]), sql.id_list(documents or ()), *hashes],
            )
            return int(cursor.rowcount)

    # -- interactions -----------------------------------------------------------------------

    def add_interactions(
        self,
        interactions: Sequence[Interaction],
        *,
        forget: bool = False,
        liking: Liking | None = None,
    ) -> tuple[int, int]:
        with self._changing() as db:
            if liking is not None:
                sql.set_liking(db, liking)
            sql.check_interactions(interactions)
            rows = sql.known_rows(db, [i.document for i in interactions], "interactions")
            users = sql.user_ids(db, [i.user for i in interactions])
            before = 0 if forget else sql.row_count(db, "interactions")
            # Replaced and not deleted first: a training knows by the id what it has learned from.
            written = db.conn.executemany(
                "INSERT INTO interactions (user, document, value, time) VALUES (?, ?, ?, ?) "
                "ON CONFLICT (user, document) DO UPDATE SET "
                "value = excluded.value, time = excluded.time "
                "WHERE ? OR NOT coalesce(excluded.time < interactions.time, 0)",
                [
                    (users[i.user], rows[i.document], sql.stored_value(i.value), i.time, forget)
                    for i in interactions
                ],
            )
            if forget:  # afterwards: a user goes with their last interaction
                pairs = {(users[i.user], rows[i.document]) for i in interactions}
                stored = db.execute("SELECT id, user, document FROM interactions").fetchall()
                others = [(id,) for id, user, row in stored if (user, row) not in pairs]
                db.conn.executemany("DELETE FROM interactions WHERE id = ?", others)
            added = sql.row_count(db, "interactions") - before
            return added, max(written.rowcount, 0) - added

    def delete_interactions(
        self, user: str | None = None, documents: Sequence[str] | None = None
    ) -> int:
        conditions: dict[str, bytes | str] = {}
        if user is not None:
            conditions[f"user = {sql.USER_ID}"] = sql.name_bytes(user)
        if documents is not None:
            listed = f"document IN (SELECT row FROM documents WHERE id {LISTED})"
            conditions[listed] = sql.id_list(documents)
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        with self._changing() as db:
            deleted = db.execute(f"DELETE FROM interactions{where}", list(conditions.values()))
            return int(deleted.rowcount)

    def interactions(self) -> InteractionSet:
        with self.connections.reading() as db:
            users = db.execute("SELECT id, name FROM users ORDER BY id").fetchall()
            rows = db.execute(
                "SELECT id, user, document, "
                "CASE WHEN typeof(value) IN ('integer', 'real') THEN value END, "
                "time, value IS NOT 'false' FROM interactions ORDER BY user, document"
            )
            # In blocks: as Python's own objects, millions would take six times the memory.
            blocks = [
                np.array(block, dtype=np.float64)
                for block in iter(lambda: rows.fetchmany(sql.READ_BLOCK), [])
            ]
            liked_from = self.liking().liked_from
        columns = np.concatenate([np.empty((0, 6)), *blocks]).T
        user_ids, values = np.array([id for id, _ in users], dtype=np.int64), columns[3]
        return InteractionSet(
            ids=columns[0].astype(np.int64),
            users=[name for _, name in users],
            user_indices=np.searchsorted(user_ids, columns[1].astype(np.int64)),
            rows=columns[2].astype(np.int64),
            values=values.copy(),
            times=columns[4].copy(),
            liked=liked_mask(values, columns[5] > 0, liked_from),
        )

    def interactions_of(self, user: str) -> UserHistory:
        rows = self._read().execute(
            "SELECT documents.row, documents.id, interactions.value, time FROM interactions "
            "JOIN documents ON documents.row = interactions.document "
            f"WHERE user = {sql.USER_ID} ORDER BY time, documents.row",
            [sql.name_bytes(user)],
        )
        documents, ids, values, times = sql.columns_of(rows.fetchall(), 4)
        return UserHistory(
            rows=np.array(documents, dtype=np.int64),
            documents=list(ids),
            values=[sql.read_value(value) for value in values],
            times=np.array(times, dtype=np.float64),
        )

    def interaction_page(
        self, after: tuple[int, int], limit: int, user: str | None = None
    ) -> tuple[list[Interaction], tuple[int, int] | None]:
        return sql.interaction_page(self._read(), after, limit, user)

    def user_page(
        self, after: tuple[int, int], limit: int, contains: str | None = None
    ) -> tuple[list[StoredUser], tuple[int, int] | None]:
        with self.connections.reading() as db:
            return sql.user_page(db, after, limit, contains)

    def interaction_counts(self) -> tuple[int, int]:
        with self.connections.reading() as db:
            return sql.row_count(db, "interactions"), sql.row_count(db, "users")

    def popularity(self) -> tuple[Int64, Int64]:
        counts = self._read().execute(
            "SELECT document, count(*) FROM interactions GROUP BY document ORDER BY document"
        )
        rows, users = np.array(counts.fetchall(), dtype=np.int64).reshape(-1, 2).T
        return rows, users

    def liking(self) -> Liking:
        db = self._read()
        change = sql.read_state(db).change
        if self._chosen[0] != change:
            self._chosen = change, sql.read_liking(db)
        return self._chosen[1]

    # -- versions ---------------------------------------------------------------------------

    def add_projection(
        self,
        kind: str,
        weights: bytes,
        fingerprint: str,
        note: Mapping[str, Json],
        **details: Unpack[VersionDetails],
    ) -> int:
        notes = note, details.get("tuning"), details.get("report")
        with self.connections.writing() as db:
            role = details.get("role", "search")
            version = sql.insert_version(db, kind, weights, fingerprint, notes, role)
            if (offsets := details.get("offsets")) is not None:
                sql.insert_offsets(db, version, offsets)
            if (terms := details.get("terms")) is not None:
                sql.insert_terms(db, version, terms, details.get("last_key"))
            sql.put_settings(db, details.get("settings", {}))
            db.execute(
                "DELETE FROM projections WHERE version = ? AND version NOT IN "
                "(SELECT version FROM activations)",
                [details.get("replaces")],
            )
            if details.get("activate"):
                sql.activate(db, version, None)
                sql.count_change(db)
            return version

    def activate_projection(
        self, version: int, expected: int | None = None, **details: Unpack[VersionDetails]
    ) -> None:
        with self._changing() as db:
            sql.activate(db, version, expected)
            sql.put_settings(db, details.get("settings", {}), soon="settings" in details)
            if report := details.get("report"):
                sql.put_report(db, version, report)

    def rollback(self, role: Role = "search") -> int:
        with self._changing() as db:
            row = db.execute(
                "SELECT id, previous FROM activations WHERE role = ? ORDER BY id DESC LIMIT 1",
                [role],
            ).fetchone()
            if row is None:
                active = sql.read_state(db).active(role)
                raise Conflict(
                    f"{f'Projection {active}' if active else 'The untrained version'} is active "
                    f"for {role}, and no version was active before it; activate a version by its "
                    f"number instead. There are {', '.join(sql.version_numbers(db))}.",
                    field="projection",
                )
            # Deleted: else a second rollback of two versions that were each activated after the
            # other would return to the first.
            db.execute("DELETE FROM activations WHERE id = ?", [row[0]])
            sql.put_settings(db, {sql.ACTIVE[role]: row[1]})
            return int(row[1])

    def projections(self) -> list[StoredProjection]:
        rows = self._read().execute(
            "SELECT version, kind, fingerprint, created, note, tuning, report, "
            "(SELECT previous FROM activations WHERE activations.version = projections.version "
            "ORDER BY id DESC LIMIT 1), "
            "version = (SELECT value FROM settings WHERE name = "
            "CASE role WHEN 'search' THEN 'projection' ELSE role END), role "
            "FROM projections ORDER BY version"
        )
        return [
            StoredProjection(
                version=row[0],
                kind=row[1],
                fingerprint=row[2],
                created=row[3],
                note=json.loads(row[4]),
                tuning=json.loads(row[5]),
                report=json.loads(row[6]),
                parent=row[7],
                active=bool(row[8]),
                role=row[9],
            )
            for row in rows
        ]

    def version(self, version: int) -> StoredVersion:
        with self.connections.reading() as db:
            row = db.execute(
                "SELECT weights, fingerprint, tuning, role FROM projections WHERE version = ?",
                [version],
            ).fetchone()
            if row is None:
                raise sql.unknown_version(db, version)
            weights, fingerprint, tuning, role = row
            select = "SELECT key, delta FROM offsets WHERE projection = ? ORDER BY key"
            keys, deltas = sql.columns_of(db.execute(select, [version]).fetchall(), 2)
            return StoredVersion(
                weights=weights,
                tuning=json.loads(tuning),
                offsets=Offsets(np.array(keys, dtype=np.int64), sql.stacked(deltas)),
                fingerprint=fingerprint,
                role=role,
                terms=sql.read_terms(db, version),
                last_key=sql.read_state(db).last_key,
            )
