"""The store of one collection in a SQLite database."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any

from sqlite_utils import Database

from attend.core.deadline import NO_DEADLINE, checked, until
from attend.core.types import Consistency, Int64, Json
from attend.store import words
from attend.store.connections import (
    Connections,
    change_settings,
    count_up,
    put_settings,
    read_state,
)
from attend.store.documents import StoredDocuments
from attend.store.feedback import StoredExamples, StoredInteractions
from attend.store.field_index import FieldIndexes
from attend.store.keys import StoredKeys
from attend.store.migrations import migrations
from attend.store.protocol import CollectionStore
from attend.store.records import State
from attend.store.selection import Selection
from attend.store.versions import StoredVersions, insert_version
from attend.store.words import TOKENIZER, Lexical, WordCache, WordReader

REMEMBERED_PUBLICATIONS = 100
"""More than are ever on disk at once, for all layouts together."""


class Store(
    StoredDocuments,
    StoredKeys,
    StoredExamples,
    StoredInteractions,
    StoredVersions,
    CollectionStore,
):
    """A collection in a SQLite database: documents, keys with raw embeddings, feedback, versions.

    Any thread may use it; every method that writes is one transaction.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path = path
        self.connections = Connections(path, read_only=read_only)
        self._words = WordCache()
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

    def consistent(self, consistency: Consistency | None) -> AbstractContextManager[object]:
        return nullcontext()

    def settings(self) -> dict[str, Any]:
        rows = self._read().execute("SELECT name, value FROM settings")
        return {name: json.loads(value) for name, value in rows}

    def state(self) -> State:
        return read_state(self._read())

    def initialise(self, settings: Mapping[str, Json], projection: tuple[str, bytes, str]) -> None:
        """Write the settings of a new collection and its first projection, in one step."""
        with self.connections.writing() as db:
            version = insert_version(db, *projection)
            put_settings(
                db,
                {
                    **settings,
                    "uuid": secrets.token_hex(16),
                    "projection": version,
                    "change": 0,
                    "published": [],
                },
            )

    def put_settings(self, changes: Mapping[str, Json]) -> None:
        with self.connections.writing() as db:
            change_settings(db, changes)

    def count_up(self, name: str) -> int:
        with self.connections.writing() as db:
            return count_up(db, name)

    def record(self, name: str, value: Json) -> None:
        with self.connections.writing() as db:
            put_settings(db, {name: value})

    def record_publication(self, nonce: str) -> None:
        """Record that an index was made of this database, and not of a copy of it."""
        with self.connections.writing() as db:
            row = db.execute("SELECT value FROM settings WHERE name = 'published'").fetchone()
            nonces = [*json.loads(row[0]), nonce][-REMEMBERED_PUBLICATIONS:]
            put_settings(db, {"published": nonces})

    def lexical_many(self, texts: Sequence[str], limit: int | None = None) -> list[Lexical]:
        with self.connections.reading() as db:
            reader = WordReader(db, self._words)
            return [words.search(reader, TOKENIZER.words(text), limit) for text in checked(texts)]

    def lexical_without(self, text: str, rows: Int64, limit: int | None = None) -> Lexical:
        with self.connections.reading() as db:
            reader = words.FewerWords(WordReader(db, self._words), rows)
            return words.search(reader, TOKENIZER.words(text), limit)

    def common_words(self, texts: Sequence[str]) -> set[str]:
        with self.connections.reading() as db:
            reader = WordReader(db, self._words)
            return {stem for text in texts for stem in words.common(reader, TOKENIZER.words(text))}
