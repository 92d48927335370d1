"""Copying between two databases of one library: what changed, the feedback and the settings."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing

import numpy as np

from attend.core.types import Float32
from attend.store.connections import BUSY_SECONDS, count_change, count_up
from attend.store.database import Store
from attend.store.tokens import register

Encode = Callable[[Sequence[str]], Float32]
"""Texts of queries -> embeddings (n, d)."""


OWN_SETTINGS = (
    "encoder", "dimension", "uuid", "change", "settings_change", "projection", "recommend",
    "predict", "foreign", "published", "texts", "forgotten",
    "examples_replaced", "replaced", "spare_of",
)  # fmt: skip
"""Settings that hold for one database or one encoder alone; so do the counts of tests of its
versions (`attend.learning.task`)."""

_SHARED = f"name NOT IN {OWN_SETTINGS!r} AND name NOT LIKE 'promotion_tests/%'"


def digests(store: Store) -> tuple[tuple[int, int], dict[str, bytes]]:
    """Return the revision of a collection, and a hash of each document, in their order."""
    with store.reading() as db:
        rows = db.execute("SELECT id, key_hash, value_hash FROM documents ORDER BY row")
        state = store.state()
        return (state.change, state.settings), {id: key + value for id, key, value in rows}


def count_own_vectors(store: Store) -> int:
    """Return the number of documents with vectors of the caller's own."""
    with store.reading() as db:
        row = db.execute(
            "SELECT count(DISTINCT document) FROM keys WHERE example IS NULL AND stop = 0"
        ).fetchone()
    return int(row[0])


class FeedbackCopier:
    """Copies examples, interactions and settings, and encodes the questions that have a text.

    The target then has those of the source, but for examples of questions without text.
    """

    def __init__(self, source: Store, target: Store, encode: Encode) -> None:
        self._source = source
        self._target = target
        self._encode = encode

    def copy(self) -> None:
        """Copy feedback and settings; the documents that it is about are there already."""
        with closing(self._connect()) as db:
            self._encode_questions(db)
            db.execute("BEGIN IMMEDIATE")
            for statement in _COPY:
                db.execute(statement)
            count_up(db, "settings_change")
            count_change(db)
            db.execute("COMMIT")

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(
            f"{self._target.path.absolute().as_uri()}?mode=rw",
            uri=True,
            isolation_level=None,
            timeout=BUSY_SECONDS,
        )
        register(db)
        db.execute("PRAGMA foreign_keys = ON")
        # To be read only: a transaction would lock it as well, which its own writer has locked.
        db.execute("ATTACH ? AS source", [f"{self._source.path.absolute().as_uri()}?mode=ro"])
        db.execute("CREATE TEMP TABLE encoded (hash BLOB PRIMARY KEY, text TEXT, embedding BLOB)")
        return db

    def _encode_questions(self, db: sqlite3.Connection) -> None:
        """Collect the target's embedding of each question, and encode those that it lacks."""
        db.execute("INSERT INTO encoded SELECT hash, text, embedding FROM main.questions")
        missing = db.execute(
            "SELECT hash, text FROM source.questions WHERE text IS NOT NULL "
            "AND hash NOT IN (SELECT hash FROM encoded)"
        ).fetchall()
        if missing:
            embeddings = np.asarray(self._encode([text for _, text in missing]), dtype=np.float32)
            db.executemany(
                "INSERT INTO encoded VALUES (?, ?, ?)",
                [
                    (*question, row.tobytes())
                    for question, row in zip(missing, embeddings, strict=True)
                ],
            )


_COPY = (
    # What is the same keeps its ids, by which a training knows what it has learned from. Examples
    # of questions without text stay where they are: they have an embedding of one encoder alone.
    "DELETE FROM main.examples WHERE (SELECT text FROM main.questions AS question "
    "WHERE question.id = examples.question) IS NOT NULL AND NOT EXISTS (SELECT 1 "
    "FROM source.examples AS old JOIN source.questions AS before ON before.id = old.question "
    "JOIN source.documents AS document ON document.row = old.document WHERE before.hash = "
    "(SELECT hash FROM main.questions AS question WHERE question.id = examples.question) "
    "AND document.id = (SELECT id FROM main.documents AS mine WHERE mine.row = examples.document) "
    "AND old.weight = examples.weight AND old.position IS examples.position "
    "AND old.source = examples.source AND old.created = examples.created)",
    "INSERT INTO main.questions (hash, text, embedding) SELECT encoded.hash, encoded.text, "
    "encoded.embedding FROM source.questions AS old JOIN encoded ON encoded.hash = old.hash "
    "WHERE old.text IS NOT NULL AND old.hash NOT IN (SELECT hash FROM main.questions) "
    "ORDER BY old.id",
    "INSERT INTO main.examples (question, document, weight, position, source, created) "
    "SELECT question.id, document.row, old.weight, old.position, old.source, old.created "
    "FROM source.examples AS old "
    "JOIN source.questions AS before ON before.id = old.question "
    "JOIN main.questions AS question ON question.hash = before.hash "
    "JOIN source.documents AS theirs ON theirs.row = old.document "
    "JOIN main.documents AS document ON document.id = theirs.id "
    "WHERE true ORDER BY old.id ON CONFLICT (question, document) DO NOTHING",
    # Of documents that came to the source since the last copy: the next one has them.
    "DELETE FROM main.questions WHERE id NOT IN (SELECT question FROM main.examples)",
    "DELETE FROM main.interactions WHERE NOT EXISTS (SELECT 1 FROM source.interactions AS old "
    "JOIN source.users AS before ON before.id = old.user "
    "JOIN source.documents AS document ON document.row = old.document WHERE before.name = "
    "(SELECT name FROM main.users AS mine WHERE mine.id = interactions.user) AND document.id = "
    "(SELECT id FROM main.documents AS mine WHERE mine.row = interactions.document) "
    "AND old.value IS interactions.value AND old.time IS interactions.time)",
    "INSERT INTO main.users (name) SELECT name FROM source.users "
    "WHERE name NOT IN (SELECT name FROM main.users) ORDER BY id",
    "INSERT INTO main.interactions (user, document, value, time) "
    "SELECT user.id, document.row, old.value, old.time FROM source.interactions AS old "
    "JOIN source.users AS before ON before.id = old.user "
    "JOIN main.users AS user ON user.name = before.name "
    "JOIN source.documents AS theirs ON theirs.row = old.document "
    "JOIN main.documents AS document ON document.id = theirs.id "
    "WHERE true ORDER BY old.id ON CONFLICT (user, document) DO NOTHING",
    "DELETE FROM main.users WHERE id NOT IN (SELECT user FROM main.interactions)",
    f"DELETE FROM main.settings WHERE {_SHARED}",
    f"INSERT INTO main.settings SELECT name, value FROM source.settings WHERE {_SHARED}",
)
