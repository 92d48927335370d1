"""One collection's database: what can be read from it and written to it, as transactions."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from sqlite_utils import Database

from attend.store import examples as learning
from attend.store import facets, field_values, interactions, keys, lexical, statements, versions
from attend.store.connections import Connections
from attend.store.documents import (
    Changes,
    Entry,
    Forgotten,
    Hashes,
    KeyBatch,
    Role,
    State,
    StoredDocument,
    StoredKey,
    StoredProjection,
    StoredVersion,
    Terms,
)
from attend.store.examples import Learned, NewExample, Question, StoredExample
from attend.store.facets import Facet
from attend.store.filters import Predicate
from attend.store.indexes import FieldIndexes
from attend.store.interactions import Interaction, InteractionPage, Interactions, Met
from attend.store.lexical import Lexical
from attend.store.matches import Matches
from attend.store.migrations import migrations
from attend.store.selection import Selection
from attend.store.tokens import Tokenizer
from attend.types import Float32, Int64, Json

REMEMBERED_REMOVALS = 100_000
"""Keys that were removed, for readers that have them yet: other processes, other versions."""

REMEMBERED_PUBLICATIONS = 100
"""More than are ever on disk at once, for all layouts together."""


class Store:
    """The truth: documents, keys with raw embeddings, settings, examples, projections.

    Safe to use from many threads; every method that writes is one transaction.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path = path
        self.connections = Connections(path, read_only=read_only)
        self._tokenizer = Tokenizer()
        self._matches = Matches()
        self._indexes = FieldIndexes(self.connections)
        self._selection = Selection(self._indexes)
        # Reading never waits for writing: the lock is taken only where something is to be done.
        if migrations.pending(self.connections.reader()):
            with self.connections.writing() as db:
                migrations.apply(db)

    def close(self) -> None:
        self._indexes.close()
        self.connections.close()

    # -- settings ---------------------------------------------------------------------------

    def settings(self) -> dict[str, Any]:
        rows = self._read().execute("SELECT name, value FROM settings")
        return {name: json.loads(value) for name, value in rows}

    def initialise(self, settings: Mapping[str, Json], projection: tuple[str, bytes, str]) -> None:
        """Write the settings of a new collection and its first projection, in one step."""
        with self.connections.writing() as db:
            version = versions.insert(db, *projection, note={})
            statements.put_settings(
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
        """Change settings that may change while the collection holds documents."""
        with self.connections.writing() as db:
            statements.put_settings(db, changes)

    def record_publication(self, nonce: str) -> None:
        """Remember that an index is the image of this database, and not of a copy of it."""
        with self.connections.writing() as db:
            row = db.execute("SELECT value FROM settings WHERE name = 'published'").fetchone()
            known = [*json.loads(row[0]), nonce][-REMEMBERED_PUBLICATIONS:]
            statements.put_settings(db, {"published": known})

    def forgotten(self) -> int:
        """The last removal of a key that is no longer told of."""
        return keys.forgotten(self._read())

    def forget_removals(self, until: int) -> None:
        """Tell no longer of keys that were removed before an index was written without them.

        Only once there are many: who has not taken them in yet must begin anew.
        """
        with self.connections.writing() as db:
            if until - keys.forgotten(db) > REMEMBERED_REMOVALS:
                keys.forget_removals(db, until)

    def integrity(self) -> list[str]:
        """What SQLite finds wrong with the file; empty where it is sound."""
        found = [str(row[0]) for row in self._read().execute("PRAGMA integrity_check")]
        return [] if found == ["ok"] else found

    # -- reading ----------------------------------------------------------------------------

    def state(self) -> State:
        return statements.state(self._read())

    def counts(self) -> tuple[int, int]:
        """(documents, keys); the keys that examples add are not counted."""
        with self.connections.reading() as db:
            documents = db.execute("SELECT count(*) FROM documents").fetchone()[0]
            return int(documents), keys.count(db)

    def documents(self, rows: Int64) -> dict[int, StoredDocument]:
        """Documents by row; rows that are gone are absent."""
        return {each.row: each for each in statements.by_rows(self._read(), rows)}

    def values(self, rows: Int64) -> dict[int, StoredDocument]:
        """The same without texts, which may be long and which blending does not need."""
        return {each.row: each for each in statements.by_rows(self._read(), rows, fields="'{}'")}

    def find(self, ids: Sequence[str]) -> dict[str, StoredDocument]:
        """Documents by the caller's ids; unknown ids are absent."""
        return {each.id: each for each in statements.by_ids(self._read(), ids)}

    def scroll(
        self, after: int, limit: int, predicate: Predicate | None = None
    ) -> list[StoredDocument]:
        """The next `limit` documents after a row, in the order of rows."""
        if predicate is None:
            return statements.after(self._read(), after, limit)
        with self.connections.reading() as db:
            rows = self._selection.rows(db, predicate)
            first = int(np.searchsorted(rows, after, side="right"))
            return statements.by_rows(db, rows[first : first + limit])

    def sample(self, size: int) -> list[StoredDocument]:
        """Documents from all over the collection: the first ones may be all of a kind."""
        return statements.sample(self._read(), size)

    def matching(self, predicate: Predicate) -> Int64:
        """Rows of the documents that a filter lets pass, ascending; not to be written to."""
        with self.connections.reading() as db:
            return self._selection.rows(db, predicate)

    def count(self, predicate: Predicate) -> int:
        """How many documents a filter lets pass."""
        return len(self.matching(predicate))

    def facets(
        self, fields: Sequence[str], predicate: Predicate | None = None, limit: int = 10
    ) -> dict[str, Facet]:
        """The `limit` most frequent values of each field, of the documents that a filter lets pass.

        A list counts once for each of its different values.

        Raises:
            InvalidRequest: no field name, too many of them, or a limit that is none.
        """
        facets.check(fields, limit)
        with self.connections.reading() as db:
            rows = None if predicate is None else self._selection.rows(db, predicate)
            return self._selection.facets(db, fields, rows, limit)

    def index_faults(self) -> Mapping[str, int]:
        """Documents with wrong entries, by indexed field; empty where all are sound. Slow."""
        with self.connections.reading() as db:
            return field_values.check(db)

    def drop_indexes(self, names: Sequence[str]) -> None:
        """Let go of the indexes of fields; filters build them anew."""
        with self.connections.writing() as db:
            field_values.drop(db, names)

    def hashes(self, ids: Sequence[str]) -> dict[str, Hashes]:
        """The stored hashes of each id that is stored."""
        return statements.hashes(self._read(), ids)

    def all_ids(self) -> Iterator[str]:
        return (row[0] for row in self._read().execute("SELECT id FROM documents ORDER BY row"))

    def keys_of(self, ids: Int64) -> dict[int, StoredKey]:
        """Where keys come from, by key id."""
        return keys.origins(self._read(), ids)

    def rows_of(self, ids: Sequence[str]) -> dict[str, int]:
        """Rows by the caller's ids; unknown ids are absent."""
        return statements.rows_of(self._read(), ids)

    def embeddings_of(self, row: int) -> Float32:
        """A document's own keys (not those of examples), in the order of their ids: (keys, d)."""
        return keys.of_document(self._read(), row).embeddings

    def own_keys(self, rows: Int64) -> KeyBatch:
        """The own keys of documents, in the order (row, key id); rows that are gone are absent."""
        return keys.of_documents(self._read(), rows)

    def embeddings(self, ids: Sequence[int]) -> list[Float32]:
        """The raw embeddings of keys, in the order asked for; keys that are gone are absent."""
        return keys.embeddings(self._read(), ids)

    def changes_since(self, last_key: int, last_removal: int, *, examples: bool = False) -> Changes:
        """What readers that are that far must still take in; with the keys of examples if asked.

        `removed` may name keys that such a reader never had.

        Raises:
            Forgotten: what was removed since is no longer known.
        """
        with self.connections.reading() as db:
            # A reader without keys has nothing to let go of.
            if last_key and last_removal < keys.forgotten(db):
                raise Forgotten
            return Changes(
                statements.state(db),
                keys.added_since(db, last_key, examples),
                keys.removed_since(db, last_removal),
            )

    @contextmanager
    def all_keys(self, *, examples: bool = False) -> Iterator[tuple[State, Iterator[KeyBatch]]]:
        """All keys by document, in blocks, and the state in which they were read."""
        with self.connections.reading() as db:
            yield statements.state(db), keys.read_all(db, examples)

    def lexical(self, text: str, limit: int | None = None) -> Lexical:
        """The documents that have words of a text, by BM25: all of them, or the `limit` best."""
        with self.connections.reading() as db:
            return lexical.search(self._matches.of(db), self._tokenizer.words(text), limit)

    def lexical_many(self, texts: Sequence[str]) -> list[Lexical]:
        """The same for many texts, over one state of the collection."""
        with self.connections.reading() as db:
            matches = self._matches.of(db)
            return [lexical.search(matches, self._tokenizer.words(text)) for text in texts]

    # -- writing ----------------------------------------------------------------------------

    def write(self, entries: Sequence[Entry]) -> None:
        """Insert or replace documents with their keys, all or none.

        Raises:
            StaleEntries: an entry that keeps its keys no longer finds the hash it expects.
        """
        with self.connections.writing() as db:
            statements.check_kept(db, [entry for entry in entries if entry.keys is None])
            for entry in entries:
                row = statements.upsert(db, entry)
                if entry.keys is not None:
                    keys.replace(db, row, entry)
            statements.count_change(db)

    def revise(
        self,
        id: str,
        change: Callable[[StoredDocument], StoredDocument],
        hash: Callable[[Json, Mapping[str, Json]], bytes],
    ) -> StoredDocument | None:
        """Replace value and payload of one document by what `change` makes of the stored ones.

        Read and written under one lock: of two revisions at once, the later sees the earlier.

        Args:
            hash: the value hash of (value, payload), as writing compares it.

        Returns: the document as it is now; None where no document has this id.
        """
        with self.connections.writing() as db:
            stored = statements.by_id(db, id)
            if stored is None:
                return None
            revised = change(stored)
            statements.write_value(db, revised, hash(revised.value, revised.payload))
            statements.count_change(db)
            return revised

    def delete(self, ids: Sequence[str]) -> int:
        """Delete documents with their keys; unknown ids are passed over.

        Returns: how many were there.
        """
        with self.connections.writing() as db:
            cursor = db.execute(
                "DELETE FROM documents WHERE id IN (SELECT value FROM json_each(?))",
                [statements.id_list(ids)],
            )
            statements.count_change(db)
            return int(cursor.rowcount)

    def delete_matching(self, predicate: Predicate) -> int:
        """Delete the documents that a filter lets pass, all or none. Returns how many."""
        with self.connections.writing() as db:
            rows = self._selection.read(db, predicate)
            cursor = db.execute(
                "DELETE FROM documents WHERE row IN (SELECT value FROM json_each(?))",
                [json.dumps(rows.tolist())],
            )
            statements.count_change(db)
            return int(cursor.rowcount)

    # -- examples ---------------------------------------------------------------------------

    def add_examples(
        self,
        questions: Sequence[Question],
        examples: Sequence[NewExample],
        *,
        forget: bool = False,
    ) -> tuple[int, int]:
        """Store which documents answer which questions, all or none.

        An example of the same question and document is replaced. Questions are the same by
        their text, or without one by their embedding; one whose embedding is another now gives
        its examples other keys.

        Args:
            forget: delete the examples stored before, in the same step.

        Returns: (added, replaced).

        Raises:
            UnknownDocument: naming the ids that no document has.
            InvalidRequest: a weight or position that is none, or an embedding that does not fit.
        """
        with self.connections.writing() as db:
            done = learning.add(db, questions, examples, forget)
            statements.count_change(db)
            return done

    def learned(self) -> Learned:
        with self.connections.reading() as db:
            return learning.read(db)

    def example_count(self) -> int:
        return learning.count(self._read())

    def latest_examples(self, limit: int, before: int | None = None) -> list[StoredExample]:
        """The newest examples first, or those older than the one of that id."""
        return learning.latest(self._read(), limit, before)

    def some_questions(self, count: int) -> Float32:
        """Embeddings (q, d) of so many questions at most, the latest."""
        return learning.sample(self._read(), count)

    def question_count(self) -> int:
        """How many different questions the examples are about; nothing of them is read."""
        return learning.question_count(self._read())

    def delete_examples(
        self, ids: Sequence[int] | None = None, documents: Sequence[str] | None = None
    ) -> int:
        """Delete examples by their ids, and those of documents; all of them if neither is given.

        Returns: how many were there.
        """
        with self.connections.writing() as db:
            count = learning.delete(db, ids, documents)
            statements.count_change(db)
            return count

    # -- interactions -----------------------------------------------------------------------

    def add_interactions(
        self, given: Sequence[Interaction], *, forget: bool = False
    ) -> tuple[int, int]:
        """Store which user met which document, all or none; the latest of a pair counts.

        Args:
            forget: delete the interactions stored before, in the same step.

        Returns: (added, replaced).

        Raises:
            UnknownDocument: naming the ids that no document has.
            InvalidRequest: a user, value or time that is none.
        """
        with self.connections.writing() as db:
            done = interactions.add(db, given, forget)
            statements.count_change(db)
            return done

    def delete_interactions(
        self, user: str | None = None, documents: Sequence[str] | None = None
    ) -> int:
        """Delete the interactions of a user, with documents, or both; all if neither is given.

        Returns: how many were there.
        """
        with self.connections.writing() as db:
            count = interactions.delete(db, user, documents)
            statements.count_change(db)
            return count

    def interactions(self) -> Interactions:
        """All of them, as arrays of one moment."""
        with self.connections.reading() as db:
            return interactions.read(db)

    def interactions_of(self, user: str) -> Met:
        """What a user met; nothing for one that is not known."""
        return interactions.of_user(self._read(), user)

    def interaction_page(
        self, after: tuple[int, int], limit: int, user: str | None = None
    ) -> InteractionPage:
        """The next interactions after a place (0, 0 first), of one user or of all."""
        return interactions.page(self._read(), after, limit, user)

    def interaction_counts(self) -> tuple[int, int]:
        """(interactions, users)."""
        with self.connections.reading() as db:
            return interactions.count(db), interactions.user_count(db)

    def popularity(self) -> tuple[Int64, Int64]:
        """Rows of the documents that anybody met, ascending, and how many users met each."""
        return interactions.popularity(self._read())

    # -- projections ------------------------------------------------------------------------

    def add_projection(
        self,
        kind: str,
        weights: bytes,
        fingerprint: str,
        note: Mapping[str, Json],
        *,
        tuning: Mapping[str, Json] | None = None,
        report: Mapping[str, Json] | None = None,
        offsets: versions.Offsets | None = None,
        terms: Terms | None = None,
        last_key: int | None = None,
        role: Role = "search",
        activate: bool = False,
    ) -> int:
        """Store a projection and all that belongs to it, in one step. Returns its version.

        It answers nothing until it is activated. Offsets of keys and terms of documents that have
        gone meanwhile are left out.

        Args:
            last_key: the last key when terms were learned: those of documents that have another
                text by now are left out, too.
        """
        with self.connections.writing() as db:
            version = versions.insert(db, kind, weights, fingerprint, note, tuning, report, role)
            if offsets is not None:
                versions.insert_offsets(db, version, offsets)
            if terms is not None:
                versions.insert_terms(db, version, terms, last_key)
            if activate:
                versions.activate(db, version)
                statements.count_change(db)
            return version

    def activate_projection(self, version: int, expected: int | None = None) -> None:
        """Let a version answer in its role; `rollback` undoes it.

        Args:
            expected: activate only while this one is active in that role; 0 is the untrained.

        Raises:
            Conflict: another than the expected one is active by now; nothing was changed.
        """
        with self.connections.writing() as db:
            versions.activate(db, version, expected)
            statements.count_change(db)

    def rollback(self, role: Role = "search") -> int:
        """Undo the last activation in a role, of all there were.

        Returns: the version that answers now; 0 is the untrained.

        Raises:
            Conflict: there is none to undo.
        """
        with self.connections.writing() as db:
            version = versions.rollback(db, role)
            statements.count_change(db)
            return version

    def projections(self) -> list[StoredProjection]:
        return versions.listed(self._read())

    def active(self, role: Role = "search") -> StoredProjection | None:
        """The version that answers in a role; None for the untrained one."""
        return next(
            (each for each in self.projections() if each.active and each.role == role), None
        )

    def role_of(self, version: int) -> Role:
        """What a version answers. Raises UnknownProjection where there is none."""
        return versions.role_of(self._read(), version)

    def projection_weights(self, version: int) -> bytes:
        return versions.weights(self._read(), version)

    def version(self, version: int) -> StoredVersion:
        """A version's matrices, tuning, offsets and terms, of one moment."""
        with self.connections.reading() as db:
            return versions.read(db, version)

    def _read(self) -> Database:
        return self.connections.reader()
