"""What must be true of a database, as checks: each finds what is wrong, and some can mend it.

Nothing here is asked while the collection is used; a check may read everything.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from sqlite_utils import Database

from attend.store import field_index
from attend.store.connections import dimension
from attend.store.migrations import FILL_LEXICAL, TEXTS, migrations
from attend.store.records import KeyRow

READ_ROWS = 8192
"""Embeddings read at a time."""

SETTINGS = {"uuid": str, "projection": int, "change": int, "published": list, "dimension": int}
SETTINGS |= {"recommend": int, "predict": int}
"""The settings without which no collection works, and their types."""


@dataclass(frozen=True)
class Check:
    """One invariant.

    Attributes:
        find: a sentence for each thing that is wrong.
        mend: puts it right within a transaction; None where nothing here can.
        done: what to say once it is mended, or what to do where it cannot be.
    """

    name: str
    find: Callable[[Database], Iterator[str]]
    mend: Callable[[Database], None] | None
    done: str


def _damage(db: Database) -> Iterator[str]:
    # The quick one: what it leaves out is how indexes agree with their tables.
    found = [str(row[0]) for row in db.execute("PRAGMA quick_check(20)")]
    yield from (f"The file is damaged: {each}." for each in found if each != "ok")


def _other_entries(db: Database) -> Iterator[str]:
    found = [str(row[0]) for row in db.execute("PRAGMA integrity_check(20)")]
    yield from (f"An index of SQLite's is wrong: {each}." for each in found if each != "ok")


def _reindex(db: Database) -> None:
    db.execute("REINDEX")


def _schema(db: Database) -> Iterator[str]:
    found, expected = _definitions(db), _expected()
    for name in sorted(expected.keys() - found.keys()):
        yield f"{name} is missing."
    for name in sorted(found.keys() & expected.keys()):
        if found[name] != expected[name]:
            yield f"{name} is not as this program makes it."
    for name in sorted(found.keys() - expected.keys()):
        yield f"{name} is nothing that this program makes."


def _remake(db: Database) -> None:
    """Indexes and triggers hold no data of their own; what they missed is found by other checks."""
    found = _definitions(db)
    for name, sql in _expected().items():
        if found.get(name) != sql and name.startswith(("index", "trigger")):
            db.execute(f"DROP {name.replace(' ', ' IF EXISTS ', 1)}")
            db.execute(sql)


def _definitions(db: Database) -> dict[str, str]:
    rows = db.execute(
        "SELECT type || ' ' || name, sql FROM sqlite_master WHERE sql IS NOT NULL "
        "AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' AND name NOT LIKE '\\_sqlite%' ESCAPE '\\'"
    )
    return {name: " ".join(sql.split()) for name, sql in rows}


@cache
def _expected() -> dict[str, str]:
    fresh = Database(memory=True, execute_plugins=False)
    migrations.apply(fresh)
    found = _definitions(fresh)
    fresh.close()
    return found


def _settings(db: Database) -> Iterator[str]:
    found = dict(db.execute("SELECT name, value FROM settings").fetchall())
    for name, kind in SETTINGS.items():
        try:
            value = json.loads(found[name])
        except (KeyError, ValueError):
            yield f"The setting {name!r} is missing or unreadable."
            continue
        if not isinstance(value, kind):
            yield f"The setting {name!r} is {value!r:.80}."


def _references(db: Database) -> Iterator[str]:
    for table, parent, count in db.execute(
        'SELECT "table", parent, count(*) FROM pragma_foreign_key_check GROUP BY 1, 2'
    ):
        yield f"{count} rows of {table} belong to rows of {parent} that are not there."


def _remove_orphans(db: Database) -> None:
    for table, column, parent in (
        ("examples", "question", "questions(id)"),
        ("examples", "document", "documents(row)"),
        ("keys", "document", "documents(row)"),
        ("keys", "example", "examples(id)"),
        ("offsets", "key", "keys(id)"),
        ("offsets", "projection", "projections(version)"),
        ("interactions", "user", "users(id)"),
        ("interactions", "document", "documents(row)"),
        ("document_terms", "projection", "projections(version)"),
        ("document_terms", "document", "documents(row)"),
    ):
        name, id = parent.rstrip(")").split("(")
        # NULL, which refers to nothing, is not in an empty set either.
        db.execute(
            f"DELETE FROM {table} WHERE {column} IS NOT NULL "
            f"AND {column} NOT IN (SELECT {id} FROM {name})"
        )


_NUMBERED = {
    "documents": "row",
    "keys": "id",
    "removals": "id",
    "projections": "version",
    "users": "id",
}


def _counters(db: Database) -> Iterator[str]:
    """A number that is given out again would be taken for what it was before."""
    given_out = dict(db.execute("SELECT name, seq FROM sqlite_sequence").fetchall())
    for table, column in _NUMBERED.items():
        largest = db.execute(f"SELECT coalesce(max({column}), 0) FROM {table}").fetchone()[0]
        if given_out.get(table, 0) < largest:
            known = given_out.get(table, 0)
            yield f"{table} has number {largest}, but only {known} were given out."


def _raise_counters(db: Database) -> None:
    for table, column in _NUMBERED.items():
        largest = db.execute(f"SELECT coalesce(max({column}), 0) FROM {table}").fetchone()[0]
        db.execute("DELETE FROM sqlite_sequence WHERE name = ? AND seq < ?", [table, largest])
        db.execute(
            "INSERT INTO sqlite_sequence (name, seq) SELECT ?, ? "
            "WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = ?)",
            [table, largest, table],
        )


def _json(db: Database) -> Iterator[str]:
    for table, column in (
        ("documents", "fields"),
        ("documents", "value"),
        ("documents", "payload"),
        ("projections", "note"),
        ("projections", "tuning"),
        ("projections", "report"),
    ):
        count = db.execute(
            f"SELECT count(*) FROM {table} WHERE {column} IS NOT NULL AND NOT json_valid({column})"
        ).fetchone()[0]
        if count:
            yield f"{count} rows of {table} have no JSON as {column}."
    count = db.execute(
        "SELECT count(*) FROM interactions WHERE typeof(value) NOT IN ('null', 'integer', 'real') "
        "AND NOT json_valid(value)"
    ).fetchone()[0]
    if count:
        yield f"{count} rows of interactions have no JSON as value."


_EMBEDDINGS = {
    "keys": "SELECT id, embedding FROM keys WHERE example IS NULL",
    "questions": "SELECT id, embedding FROM questions",
    "offsets": "SELECT key, delta FROM offsets",
}


def _embeddings(db: Database) -> Iterator[str]:
    width = dimension(db)
    for table, select in _EMBEDDINGS.items():
        wrong = unfit(db, select, width)
        if wrong:
            yield (
                f"{len(wrong)} embeddings of {table} are not {width} finite numbers, number "
                f"{wrong[0]} first."
            )


def _terms(db: Database) -> Iterator[str]:
    widths: dict[tuple[int, str], int] = {}
    for projection, name, row, term in db.execute(
        "SELECT projection, name, document, term FROM document_terms"
    ):
        width = widths.setdefault((projection, name), len(term))
        sound = len(term) == width and width % 4 == 0 and width > 0
        if not sound or not np.isfinite(np.frombuffer(term, dtype=np.float32)).all():
            yield f"The term {name!r} of projection {projection} for document {row} is damaged."


_IDLE_USERS = "FROM users WHERE id NOT IN (SELECT user FROM interactions)"


def _users(db: Database) -> Iterator[str]:
    found = db.execute(f"SELECT count(*) {_IDLE_USERS}").fetchone()[0]
    if found:
        yield f"{found} users have no interaction."


def _remove_idle_users(db: Database) -> None:
    db.execute(f"DELETE {_IDLE_USERS}")


def unfit(db: Database, select: str, width: int) -> list[int]:
    """The ids of embeddings, as (id, bytes), that are no finite vectors of a width."""
    wrong: list[int] = []
    found = db.execute(select)
    for rows in iter(lambda: found.fetchmany(READ_ROWS), []):
        fit = [(id, blob) for id, blob in rows if len(blob) == 4 * width]
        wrong += [id for id, blob in rows if len(blob) != 4 * width]
        numbers = np.frombuffer(b"".join(blob for _, blob in fit), dtype=np.float32)
        bad = np.flatnonzero(~np.isfinite(numbers.reshape(len(fit), width)).all(axis=1))
        wrong += [fit[at][0] for at in bad.tolist()]
    return wrong


def strangers(db: Database) -> list[str]:
    """What is wrong with the tables, triggers and settings that a collection's database has."""
    return [*_schema(db), *_settings(db)]


def own_keys(db: Database, first: int, last: int) -> dict[int, list[KeyRow]]:
    """The documents' own keys by row, from one row to another; of texts without embeddings."""
    found: dict[int, list[KeyRow]] = {}
    for row, field, start, stop, blob in db.execute(
        "SELECT document, field, start, stop, CASE WHEN stop = 0 THEN embedding ELSE x'' END "
        "FROM keys WHERE example IS NULL AND document BETWEEN ? AND ? ORDER BY id",
        [first, last],
    ):
        embedding = np.frombuffer(blob, dtype=np.float32)
        found.setdefault(row, []).append(KeyRow(field, start, stop, embedding))
    return found


def _keyless(db: Database) -> Iterator[str]:
    count = db.execute(
        "SELECT count(*) FROM documents WHERE NOT EXISTS (SELECT 1 FROM keys "
        "WHERE keys.document = documents.row AND keys.example IS NULL)"
    ).fetchone()[0]
    if count:
        yield f"{count} documents have no key, so that no search finds them."


_UNFAITHFUL = """
    SELECT keys.id FROM keys JOIN examples ON examples.id = keys.example
    WHERE examples.weight <= 0 OR examples.document <> keys.document
    OR keys.id > (SELECT min(first.id) FROM keys AS first WHERE first.example = examples.id)
"""
_UNSPOKEN = """
    FROM examples WHERE weight > 0
    AND id NOT IN (SELECT example FROM keys WHERE example IS NOT NULL)
"""
_IDLE = "FROM questions WHERE id NOT IN (SELECT question FROM examples)"


def _examples(db: Database) -> Iterator[str]:
    for count, what in (
        (f"SELECT count(*) FROM ({_UNFAITHFUL})", "keys are not what their examples say"),
        (f"SELECT count(*) {_UNSPOKEN}", "examples lack the key that they add"),
        (f"SELECT count(*) {_IDLE}", "questions have no example"),
    ):
        found = db.execute(count).fetchone()[0]
        if found:
            yield f"{found} {what}."


def _mend_examples(db: Database) -> None:
    db.execute(f"DELETE FROM keys WHERE id IN ({_UNFAITHFUL})")
    db.execute(
        "INSERT INTO keys (document, field, start, stop, embedding, example) "
        f"SELECT document, '@example', 0, 0, x'', id {_UNSPOKEN}"
    )
    db.execute(f"DELETE {_IDLE}")


def _words(db: Database) -> Iterator[str]:
    """Compares the words' index with a fresh one of the same texts, in a file of its own."""
    path = Path(
        db.execute("SELECT file FROM pragma_database_list WHERE name = 'main'").fetchone()[0]
    )
    fresh = sqlite3.connect("", uri=True)
    try:
        fresh.execute("ATTACH ? AS stored", [f"{path.as_uri()}?mode=ro"])
        yield from _other_words(fresh)
    except sqlite3.DatabaseError as error:
        yield f"The index of words cannot be read ({error})."
    finally:
        fresh.close()


def _other_words(fresh: sqlite3.Connection) -> Iterator[str]:
    made = fresh.execute("SELECT sql FROM stored.sqlite_master WHERE name = 'lexical'").fetchone()
    fresh.execute(made[0])
    fresh.execute(
        "INSERT INTO main.lexical (rowid, text) " + TEXTS.replace("documents", "stored.documents")
    )
    for name in ("main", "stored"):
        fresh.execute(
            f"CREATE VIRTUAL TABLE temp.of_{name} USING fts5vocab('{name}', 'lexical', 'row')"
        )
    lengths = _difference(fresh, "id, sz", "{}.lexical_docsize", ("main", "stored"))
    if lengths:
        yield f"The index of words has other texts for {lengths} documents."
    terms = _difference(fresh, "term, doc, cnt", "temp.of_{}", ("main", "stored"))
    if terms:
        yield f"The index of words counts {terms} words otherwise than the texts do."


def _difference(db: sqlite3.Connection, columns: str, table: str, names: tuple[str, str]) -> int:
    """How many rows, by their first column, are in one of two tables and not in the other."""
    one, other = (f"SELECT {columns} FROM {table.format(name)}" for name in names)
    key = columns.split(",")[0]
    row = db.execute(
        f"SELECT count(DISTINCT {key}) FROM (SELECT * FROM ({one} EXCEPT {other}) "
        f"UNION ALL SELECT * FROM ({other} EXCEPT {one}))"
    ).fetchone()
    return int(row[0])


def _refill_words(db: Database) -> None:
    db.execute("INSERT INTO lexical (lexical) VALUES ('delete-all')")
    db.execute(FILL_LEXICAL)
    db.execute("UPDATE settings SET value = value + 1 WHERE name = 'texts'")


def _filters(db: Database) -> Iterator[str]:
    for name, count in field_index.check(db).items():
        yield f"The index of the field {name!r} is wrong about {count} documents."


def _drop_filters(db: Database) -> None:
    field_index.drop(db, list(field_index.check(db)))


RESTORE = "Restore the collection from a snapshot or a copy."

CHECKS = (
    Check("file", _damage, None, RESTORE),
    Check("entries", _other_entries, _reindex, "SQLite's indexes were made again."),
    Check("schema", _schema, _remake, "Indexes and triggers were made again."),
    Check("settings", _settings, None, RESTORE),
    Check("references", _references, _remove_orphans, "Rows that belonged to nothing are gone."),
    Check("counters", _counters, _raise_counters, "The counters were raised."),
    Check("json", _json, None, RESTORE),
    Check("embeddings", _embeddings, None, "Send the documents again, or restore a snapshot."),
    Check("keys", _keyless, None, "Send the documents again, or build from their source."),
    Check("examples", _examples, _mend_examples, "The examples' keys were made again."),
    Check("terms", _terms, None, "Train again, or activate another version."),
    Check("users", _users, _remove_idle_users, "Users without interactions are gone."),
    Check("words", _words, _refill_words, "The index of words was built again."),
    Check("filters", _filters, _drop_filters, "The fields' indexes will be built again."),
)
"""In this order: each may rely on what those before it found sound."""
