"""Feedback: which document answers which question, and which user met which document.

The schema does the rest. An example of positive weight is a key of its document, and goes with its
document; a question goes with its last example. An interaction is the latest of its user and
document, and goes with its document; a user goes with their last interaction.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence, Set
from datetime import UTC, datetime
from typing import Any

import numpy as np
from sqlite_utils import Database

from attend.core.errors import InvalidRequest
from attend.core.liking import Liking, chosen_liking, liked_mask
from attend.core.types import MAX_ID, Float32, Int64, Json
from attend.store.connections import (
    DatabasePart,
    columns_of,
    count_up,
    id_list,
    put_settings,
    read_state,
    row_count,
    stacked,
    value_json,
)
from attend.store.documents import known_rows
from attend.store.records import (
    ExampleSet,
    Interaction,
    InteractionPage,
    InteractionSet,
    NewExample,
    Question,
    StoredExample,
    UserHistory,
)

SAME = 0.02
"""Share of an embedding's length within which two embeddings of a text are the same: bfloat16
moves MiniLM's by 0.012."""


class StoredExamples(DatabasePart):
    """Reads and writes examples and their questions."""

    def add_examples(
        self,
        questions: Sequence[Question],
        examples: Sequence[NewExample],
        *,
        forget: bool = False,
    ) -> tuple[int, int]:
        with self._changing() as db:
            rows = known_rows(db, [example.document for example in examples], "examples")
            used = {example.question for example in examples}
            if forget:
                db.execute("DELETE FROM examples")
            ids = {place: _question_id(db, questions[place]) for place in sorted(used)}
            before = row_count(db, "examples")
            created = datetime.now(UTC).isoformat(timespec="seconds")
            db.conn.executemany(
                "INSERT INTO examples (question, document, weight, position, source, created) "
                "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (question, document) DO UPDATE SET "
                "weight = excluded.weight, position = excluded.position, "
                "source = excluded.source, created = excluded.created",
                [
                    (ids[place], rows[document], float(weight), position, source, created)
                    for place, document, weight, position, source in examples
                ],
            )
            added = row_count(db, "examples") - before
            if examples:
                count_up(db, "examples_replaced")
            return added, len(examples) - added

    def examples(self) -> ExampleSet:
        with self.connections.reading() as db:
            questions = db.execute("SELECT id, text, embedding FROM questions ORDER BY id")
            ids, texts, embeddings = columns_of(questions.fetchall(), 3)
            examples = db.execute(
                "SELECT question, document, weight, coalesce(position, 0), id "
                "FROM examples ORDER BY id"
            )
            columns = columns_of(examples.fetchall(), 5)
        question_ids = np.array(ids, dtype=np.int64)
        return ExampleSet(
            texts=list(texts),
            embeddings=stacked(embeddings),
            questions=np.searchsorted(question_ids, np.array(columns[0], dtype=np.int64)),
            rows=np.array(columns[1], dtype=np.int64),
            weights=np.array(columns[2], dtype=np.float64),
            positions=np.array(columns[3], dtype=np.int64),
            ids=np.array(columns[4], dtype=np.int64),
        )

    def example_count(self) -> int:
        return row_count(self._read(), "examples")

    def question_embeddings(self, texts: Sequence[str]) -> dict[str, Float32]:
        embeddings, none = {}, np.empty(0, dtype=np.float32)
        with self.connections.reading() as db:
            for text in texts:
                row = db.execute(
                    "SELECT embedding FROM questions WHERE hash = ?", [question_hash(text, none)]
                ).fetchone()
                if row is not None:
                    embeddings[text] = np.frombuffer(row[0], dtype=np.float32)
        return embeddings

    def question_count(self) -> int:
        return row_count(self._read(), "questions")

    def latest_examples(self, limit: int, before: int | None = None) -> list[StoredExample]:
        rows = self._read().execute(
            "SELECT examples.id, questions.text, documents.id, weight, position, source, created "
            "FROM examples JOIN questions ON questions.id = examples.question "
            "JOIN documents ON documents.row = examples.document "
            "WHERE examples.id < ? ORDER BY examples.id DESC LIMIT ?",
            [2**63 - 1 if before is None else before, limit],
        )
        return [StoredExample(*row) for row in rows]

    def some_questions(self, count: int) -> Float32:
        """Return embeddings (q, d) of the latest questions, at most `count`."""
        rows = self._read().execute(
            "SELECT embedding FROM questions ORDER BY id DESC LIMIT ?", [count]
        )
        return stacked([row[0] for row in rows])

    def delete_examples(
        self,
        ids: Sequence[int] | None = None,
        documents: Sequence[str] | None = None,
        queries: Sequence[str] | None = None,
    ) -> int:
        with self._changing() as db:
            if ids is None and documents is None and queries is None:
                return int(db.execute("DELETE FROM examples").rowcount)
            hashes = [question_hash(text, np.empty(0, np.float32)) for text in queries or ()]
            marks = ", ".join("?" * len(hashes)) or "NULL"
            cursor = db.execute(
                "DELETE FROM examples WHERE id IN (SELECT value FROM json_each(?)) OR document IN "
                "(SELECT row FROM documents WHERE id IN (SELECT value FROM json_each(?))) OR "
                f"question IN (SELECT id FROM questions WHERE hash IN ({marks}))",
                [json.dumps([int(id) for id in ids or ()]), id_list(documents or ()), *hashes],
            )
            return int(cursor.rowcount)


def _question_id(db: Database, question: Question) -> int:
    """Return the id of a question, which is stored if it is new."""
    embedding = np.asarray(question.embedding, dtype=np.float32)
    hash = question_hash(question.text, embedding)
    row = db.execute("SELECT id, embedding FROM questions WHERE hash = ?", [hash]).fetchone()
    if row is None:
        row = db.execute(
            "INSERT INTO questions (hash, text, embedding) VALUES (?, ?, ?) RETURNING id",
            [hash, question.text, embedding.tobytes()],
        ).fetchone()
    elif moved(np.frombuffer(row[1], dtype=np.float32), embedding):
        db.execute("UPDATE questions SET embedding = ? WHERE id = ?", [embedding.tobytes(), row[0]])
    return int(row[0])


def question_hash(text: str | None, embedding: Float32) -> bytes:
    """Return a hash of a question: of its text, or of its embedding if it has no text."""
    content = b"embedding " + embedding.tobytes() if text is None else b"text " + text.encode()
    return hashlib.blake2b(content, digest_size=16).digest()


def moved(stored: Float32, new: Float32) -> bool:
    """Return whether a text has another embedding (d,), and not the same in other rounding."""
    difference = np.linalg.norm(stored.astype(np.float64) - new)
    return bool(difference > SAME * np.linalg.norm(stored.astype(np.float64)))


# -- interactions ---------------------------------------------------------------------------


READ_BLOCK = 8192
"""Interactions read at a time."""

SAMPLE = 1000
"""Interactions that the threshold is chosen from."""

LIKED_FROM = "liked_from"

_USER_ID = "(SELECT id FROM users WHERE name = CAST(? AS TEXT))"


class StoredInteractions(DatabasePart):
    """Reads and writes interactions: one of each user and document, the latest; and the threshold
    of likes, which is a setting or chosen from a sample of them."""

    _chosen: tuple[int, Liking] = (-1, Liking())

    def add_interactions(
        self,
        interactions: Sequence[Interaction],
        *,
        forget: bool = False,
        liking: Liking | None = None,
    ) -> tuple[int, int]:
        with self._changing() as db:
            self._set_liking(db, liking)
            for place, interaction in enumerate(interactions):
                reason = _wrong_interaction(interaction)
                if reason:
                    raise InvalidRequest(
                        f"Interaction {place} {reason}", field=f"interactions.{place}"
                    )
            documents = [interaction.document for interaction in interactions]
            rows = known_rows(db, documents, "interactions")
            users = _user_ids(db, [interaction.user for interaction in interactions])
            before = 0 if forget else row_count(db, "interactions")
            # Replaced and not deleted first: a training knows by the id what it has learned from.
            written = db.conn.executemany(
                "INSERT INTO interactions (user, document, value, time) VALUES (?, ?, ?, ?) "
                "ON CONFLICT (user, document) DO UPDATE SET "
                "value = excluded.value, time = excluded.time "
                "WHERE ? OR NOT coalesce(excluded.time < interactions.time, 0)",
                [
                    (users[i.user], rows[i.document], _stored(i.value), i.time, forget)
                    for i in interactions
                ],
            )
            if forget:  # afterwards: a user goes with their last interaction
                _delete_all_but(db, {(users[i.user], rows[i.document]) for i in interactions})
            added = row_count(db, "interactions") - before
            return added, max(written.rowcount, 0) - added

    def delete_interactions(
        self, user: str | None = None, documents: Sequence[str] | None = None
    ) -> int:
        conditions: dict[str, bytes | str] = {}
        if user is not None:
            conditions[f"user = {_USER_ID}"] = _bytes(user)
        if documents is not None:
            conditions[
                "document IN (SELECT row FROM documents "
                "WHERE id IN (SELECT value FROM json_each(?)))"
            ] = id_list(documents)
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        with self._changing() as db:
            cursor = db.execute(f"DELETE FROM interactions{where}", list(conditions.values()))
            return int(cursor.rowcount)

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
                for block in iter(lambda: rows.fetchmany(READ_BLOCK), [])
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
            f"WHERE user = {_USER_ID} ORDER BY time, documents.row",
            [_bytes(user)],
        )
        documents, ids, values, times = columns_of(rows.fetchall(), 4)
        return UserHistory(
            rows=np.array(documents, dtype=np.int64),
            documents=list(ids),
            values=[_value(value) for value in values],
            times=np.array(times, dtype=np.float64),
        )

    def interaction_page(
        self, after: tuple[int, int], limit: int, user: str | None = None
    ) -> InteractionPage:
        # By the user's id: a condition on the name would read the interactions of all others.
        by_user = "" if user is None else f"interactions.user = {_USER_ID} AND "
        rows = (
            self._read()
            .execute(
                "SELECT interactions.user, interactions.document, users.name, documents.id, "
                "interactions.value, time FROM interactions "
                "JOIN users ON users.id = interactions.user "
                "JOIN documents ON documents.row = interactions.document "
                f"WHERE {by_user}(interactions.user, interactions.document) > (?, ?) "
                "ORDER BY interactions.user, interactions.document LIMIT ?",
                [*([] if user is None else [_bytes(user)]), *after, limit + 1],
            )
            .fetchall()
        )
        page = rows[:limit]
        return InteractionPage(
            [Interaction(row[2], row[3], _value(row[4]), row[5]) for row in page],
            (page[-1][0], page[-1][1]) if len(rows) > limit > 0 else None,
        )

    def interaction_counts(self) -> tuple[int, int]:
        with self.connections.reading() as db:
            return row_count(db, "interactions"), row_count(db, "users")

    def popularity(self) -> tuple[Int64, Int64]:
        counts = self._read().execute(
            "SELECT document, count(*) FROM interactions GROUP BY document ORDER BY document"
        )
        rows, users = np.array(counts.fetchall(), dtype=np.int64).reshape(-1, 2).T
        return rows, users

    def liking(self) -> Liking:
        db = self._read()
        change = read_state(db).change
        if self._chosen[0] != change:
            self._chosen = change, self._liking(db)
        return self._chosen[1]

    def _set_liking(self, db: Database, liking: Liking | None) -> None:
        """Store a threshold, if one is given."""
        if liking is None:
            return
        liked_from = liking.liked_from
        if liked_from is not None and not np.isfinite(liked_from):
            raise InvalidRequest(
                f"liked_from is {liked_from}; send a finite number, or null to choose it from the "
                f"data.",
                field=LIKED_FROM,
            )
        put_settings(db, {LIKED_FROM: liked_from})

    def _liking(self, db: Any) -> Liking:
        row = db.execute("SELECT value FROM settings WHERE name = ?", [LIKED_FROM]).fetchone()
        if row is not None and json.loads(row[0]) is not None:
            return Liking(float(json.loads(row[0])), "set")
        last = db.execute("SELECT coalesce(max(id), 0) FROM interactions").fetchone()[0]
        points = np.unique(np.linspace(1, max(last, 1), SAMPLE, dtype=np.int64))
        # By key, one by one, as documents are sampled.
        rows = db.execute(
            "SELECT value FROM interactions WHERE typeof(value) IN ('integer', 'real') AND id IN "
            "(SELECT (SELECT id FROM interactions WHERE id >= point.value ORDER BY id LIMIT 1) "
            "FROM json_each(?) AS point)",
            [json.dumps(points.tolist())],
        )
        return chosen_liking([float(value) for (value,) in rows])


def _delete_all_but(db: Database, pairs: Set[tuple[int, int]]) -> None:
    """Delete interactions but for some pairs of a user's id and a document's row."""
    rows = db.execute("SELECT id, user, document FROM interactions").fetchall()
    others = [(id,) for id, *pair in rows if tuple(pair) not in pairs]
    db.conn.executemany("DELETE FROM interactions WHERE id = ?", others)


def _wrong_interaction(interaction: Interaction) -> str | None:
    if not 1 <= len(interaction.user) <= MAX_ID:
        return f"has a user of {len(interaction.user)} characters; send 1 to {MAX_ID}."
    try:
        interaction.user.encode()
    except UnicodeEncodeError:
        return "has a user with half of a surrogate pair; send a text without."
    if interaction.time is not None and not math.isfinite(interaction.time):
        return f"has the time {interaction.time}; send seconds since 1970, or none."
    try:
        _stored(interaction.value)
    except ValueError:
        return "has a value that holds NaN or infinity; send finite numbers, or none."
    return None


def _user_ids(db: Database, users: Sequence[str]) -> dict[str, int]:
    """Return the ids of users by their names; new users are stored."""
    ids: dict[str, int] = {}
    for user in dict.fromkeys(users):
        row = db.execute(f"SELECT id FROM users WHERE id = {_USER_ID}", [_bytes(user)]).fetchone()
        if row is None:
            row = db.execute(
                "INSERT INTO users (name) VALUES (CAST(? AS TEXT)) RETURNING id", [_bytes(user)]
            ).fetchone()
        ids[user] = int(row[0])
    return ids


def _stored(value: Json) -> Any:
    """Return a number as it is, anything else as JSON, and None as NULL."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(value)
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**63:
        return value
    return value_json(value)


def _value(stored: Any) -> Json:
    value: Json = json.loads(stored) if isinstance(stored, str) else stored
    return value


def _bytes(user: str) -> bytes:
    # A text ends at NUL for some of SQLite's functions, and half a surrogate pair is no UTF-8.
    return user.encode("utf-8", "surrogatepass")
