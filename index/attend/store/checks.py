"""Checks of a database: each finds problems in SQL, and some can repair them.

Nothing here runs while the collection is used; a check may read everything.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from sqlite_utils import Database

from attend.store import field_index
from attend.store.connections import dimension
from attend.store.schema import MAX_NUMBER, repair_schema, schema_problems, type_problems
from attend.store.word_schema import FILL_LEXICAL, TEXTS
from attend.store.words import index_problems

READ_ROWS = 8192
"""Embeddings read at a time."""

SETTINGS = {"uuid": str, "projection": int, "change": int, "published": list, "dimension": int}
SETTINGS |= {"recommend": int, "predict": int, "texts": int}
"""The settings without which no collection works, and their types."""

Find = Callable[[Database], Iterable[str]]
Repair = Callable[[Database], None]


@dataclass(frozen=True)
class Check:
    """One invariant.

    Attributes:
        find: yields a sentence for each problem.
        repair: repairs the problems within a transaction; None if it cannot be done here.
        advice: the result of the repair, or what the user can do without one.
    """

    name: str
    find: Find
    repair: Repair | None
    advice: str


# -- checks and repairs in SQL ----------------------------------------------------------------


def _rows(*pairs: tuple[str, str]) -> Find:
    """Return a check of (SQL, sentence): each row is a problem, unless it begins with 0."""

    def find(db: Database) -> Iterator[str]:
        for sql, sentence in pairs:
            yield from (sentence.format(*row) for row in db.execute(sql) if row[0])

    return find


def _run(*statements: str) -> Repair:
    def repair(db: Database) -> None:
        for sql in statements:
            db.execute(sql)

    return repair


_PARENTS = (
    ("examples", "question", "questions", "id"),
    ("examples", "document", "documents", "row"),
    ("keys", "document", "documents", "row"),
    ("keys", "example", "examples", "id"),
    ("offsets", "key", "keys", "id"),
    ("offsets", "projection", "projections", "version"),
    ("interactions", "user", "users", "id"),
    ("interactions", "document", "documents", "row"),
    ("document_terms", "projection", "projections", "version"),
    ("document_terms", "document", "documents", "row"),
)
# NULL, which refers to nothing, is not in an empty set either.
_DELETE_ORPHANS = [
    f"DELETE FROM {table} "
    f"WHERE {column} IS NOT NULL AND {column} NOT IN (SELECT {id} FROM {parent})"
    for table, column, parent, id in _PARENTS
]

_NUMBERED = {
    "documents": "row",
    "keys": "id",
    "removals": "id",
    "projections": "version",
    "users": "id",
}
"""Tables whose numbers are never reused: a reused one would be taken for the row before."""

_COUNTERS = [
    (
        f"SELECT * FROM (SELECT coalesce(max({column}), 0) AS largest, coalesce((SELECT seq FROM "
        f"sqlite_sequence WHERE name = '{table}'), 0) AS last FROM {table}) WHERE largest > last",
        f"{table} has number {{0}}, but only {{1}} were given out.",
    )
    for table, column in _NUMBERED.items()
]
_RAISE_COUNTERS = [
    sql.format(table=table, largest=f"(SELECT coalesce(max({column}), 0) FROM {table})")
    for table, column in _NUMBERED.items()
    for sql in (
        "DELETE FROM sqlite_sequence WHERE name = '{table}' AND seq < {largest}",
        "INSERT INTO sqlite_sequence (name, seq) SELECT '{table}', {largest} "
        "WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = '{table}')",
    )
]

_JSON = [
    (
        f"SELECT count(*) FROM {table} WHERE {column} IS NOT NULL AND NOT json_valid({column})",
        f"{{}} rows of {table} have no JSON as {column}.",
    )
    for table, column in (
        ("settings", "value"),
        ("documents", "fields"),
        ("documents", "value"),
        ("documents", "payload"),
        ("projections", "note"),
        ("projections", "tuning"),
        ("projections", "report"),
    )
] + [
    (
        "SELECT count(*) FROM interactions WHERE typeof(value) NOT IN ('null', 'integer', 'real') "
        "AND NOT json_valid(value)",
        "{} rows of interactions have no JSON as value.",
    ),
    (
        "SELECT count(*) FROM documents WHERE json_type(fields) <> 'object' "
        "OR json_type(payload) <> 'object' "
        "OR EXISTS (SELECT 1 FROM json_each(fields) AS field WHERE field.type <> 'text')",
        "{} documents have fields that are no texts, or a payload that is no object.",
    ),
]

# A document without texts may have no key by right; its hash tells whether it lost vectors.
_KEYLESS = (
    "SELECT count(*) FROM documents WHERE fields <> '{}' AND NOT EXISTS (SELECT 1 FROM keys "
    "WHERE keys.document = documents.row AND keys.example IS NULL)"
)

_WRONG_EXAMPLE_KEYS = """
    SELECT keys.id FROM keys JOIN examples ON examples.id = keys.example
    WHERE examples.weight <= 0 OR examples.document <> keys.document
    OR keys.id > (SELECT min(first.id) FROM keys AS first WHERE first.example = examples.id)
"""
_EXAMPLES_WITHOUT_KEY = """
    FROM examples WHERE weight > 0
    AND id NOT IN (SELECT example FROM keys WHERE example IS NOT NULL)
"""
_IDLE_QUESTIONS = "FROM questions WHERE id NOT IN (SELECT question FROM examples)"
_IDLE_USERS = "FROM users WHERE id NOT IN (SELECT user FROM interactions)"


# -- checks in Python ---------------------------------------------------------------------------


def _settings(db: Database) -> Iterator[str]:
    stored = dict(db.execute("SELECT name, value FROM settings").fetchall())
    for name, kind in SETTINGS.items():
        try:
            value = json.loads(stored[name])
        except (KeyError, ValueError, RecursionError):
            yield f"The setting {name!r} is missing or unreadable."
            continue
        sound = type(value) is kind
        if isinstance(value, int):
            sound = sound and 0 <= value < MAX_NUMBER
        elif isinstance(value, list):
            sound = sound and all(isinstance(nonce, str) for nonce in value)
        if not sound:
            yield f"The setting {name!r} is {value!r:.80}."


def _embeddings(db: Database) -> Iterator[str]:
    width = dimension(db)
    for table, select in (
        ("keys", "SELECT id, embedding FROM keys WHERE example IS NULL"),
        ("questions", "SELECT id, embedding FROM questions"),
        ("offsets", "SELECT key, delta FROM offsets"),
    ):
        wrong = _wrong_vectors(db, select, width)
        if wrong:
            yield (
                f"{len(wrong)} embeddings of {table} are not {width} finite numbers, number "
                f"{wrong[0]} first."
            )


def _wrong_vectors(db: Database, select: str, width: int) -> list[int]:
    """Return the ids of embeddings, read as (id, bytes), that are no finite vectors of a width."""
    wrong: list[int] = []
    cursor = db.execute(select)
    for rows in iter(lambda: cursor.fetchmany(READ_ROWS), []):
        fit = [(id, blob) for id, blob in rows if len(blob) == 4 * width]
        wrong += [id for id, blob in rows if len(blob) != 4 * width]
        numbers = np.frombuffer(b"".join(blob for _, blob in fit), dtype=np.float32)
        bad = np.flatnonzero(~np.isfinite(numbers.reshape(len(fit), width)).all(axis=1))
        wrong += [fit[place][0] for place in bad.tolist()]
    return wrong


def _terms(db: Database) -> Iterator[str]:
    widths: dict[tuple[int, str], int] = {}
    for projection, name, row, term in db.execute(
        "SELECT projection, name, document, term FROM document_terms"
    ):
        width = widths.setdefault((projection, name), len(term))
        sound = len(term) == width and width % 4 == 0 and width > 0
        if not sound or not np.isfinite(np.frombuffer(term, dtype=np.float32)).all():
            yield f"The term {name!r} of projection {projection} for document {row} is damaged."


def _filters(db: Database) -> Iterator[str]:
    for name, count in field_index.check(db).items():
        yield f"The index of the field {name!r} is wrong about {count} documents."


def _drop_filters(db: Database) -> None:
    field_index.drop(db, list(field_index.check(db)))


# -- the table ----------------------------------------------------------------------------------

RESTORE = "Restore the collection from a snapshot or a copy."
RESEND = "Send the documents again, or restore a snapshot."

CHECKS = (
    # The quick check leaves out only how indexes agree with their tables.
    Check(
        "file",
        _rows(
            (
                "SELECT * FROM pragma_quick_check(20) WHERE quick_check <> 'ok'",
                "The file is damaged: {}.",
            )
        ),
        None,
        RESTORE,
    ),
    # Before anything that writes, as a strange trigger would run then.
    Check("schema", schema_problems, repair_schema, "Indexes and triggers were made again."),
    Check(
        "entries",
        _rows(
            (
                "SELECT * FROM pragma_integrity_check(20) WHERE integrity_check <> 'ok'",
                "An index of SQLite's is wrong: {}.",
            )
        ),
        _run("REINDEX"),
        "SQLite's indexes were made again.",
    ),
    Check("types", type_problems, None, RESTORE),
    Check("settings", _settings, None, RESTORE),
    Check(
        "references",
        _rows(
            (
                'SELECT count(*), "table", parent FROM pragma_foreign_key_check GROUP BY 2, 3',
                "{} rows of {} belong to rows of {} that are not there.",
            )
        ),
        _run(*_DELETE_ORPHANS),
        "Rows that belonged to nothing are gone.",
    ),
    Check("counters", _rows(*_COUNTERS), _run(*_RAISE_COUNTERS), "The counters were raised."),
    Check("json", _rows(*_JSON), None, RESTORE),
    Check("embeddings", _embeddings, None, RESEND),
    Check(
        "keys",
        _rows((_KEYLESS, "{} documents have text and no key, so that no search finds them.")),
        None,
        "Send the documents again, or build from their source.",
    ),
    Check(
        "examples",
        _rows(
            (
                f"SELECT count(*) FROM ({_WRONG_EXAMPLE_KEYS})",
                "{} keys do not match their examples.",
            ),
            (f"SELECT count(*) {_EXAMPLES_WITHOUT_KEY}", "{} examples lack the key that they add."),
            (f"SELECT count(*) {_IDLE_QUESTIONS}", "{} questions have no example."),
        ),
        _run(
            f"DELETE FROM keys WHERE id IN ({_WRONG_EXAMPLE_KEYS})",
            "INSERT INTO keys (document, field, start, stop, embedding, example) "
            f"SELECT document, '@example', 0, 0, x'', id {_EXAMPLES_WITHOUT_KEY}",
            f"DELETE {_IDLE_QUESTIONS}",
        ),
        "The examples' keys were made again.",
    ),
    Check("terms", _terms, None, "Train again, or activate another version."),
    Check(
        "users",
        _rows((f"SELECT count(*) {_IDLE_USERS}", "{} users have no interaction.")),
        _run(f"DELETE {_IDLE_USERS}"),
        "Users without interactions are gone.",
    ),
    Check(
        "words",
        partial(index_problems, texts=TEXTS),
        _run(
            "INSERT INTO lexical (lexical) VALUES ('delete-all')",
            FILL_LEXICAL,
            "UPDATE settings SET value = value + 1 WHERE name = 'texts'",
        ),
        "The index of words was built again.",
    ),
    Check("filters", _filters, _drop_filters, "The fields' indexes will be built again."),
)
"""In this order: each may rely on what those before it found sound."""
