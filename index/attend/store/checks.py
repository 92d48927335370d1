"""Checks of a database: each finds problems in SQL, and some can repair them.

Nothing here runs while the collection is used; a check may read everything.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
from sqlite_utils import Database

from attend.store import selection
from attend.store.migrations import FILL_LEXICAL, TEXTS, migrations
from attend.store.sql import dimension
from attend.store.words import index_problems

SPACE = re.compile("[ \t\n\f\r]+")
"""White space of SQLite's tokenizer. Other characters that look like it make other SQL."""

DERIVED = ("index", "trigger", "view")
"""Types of objects that hold no data of their own."""


TABLES = (
    "settings", "documents", "keys", "removals", "projections", "activations", "questions",
    "examples", "offsets", "users", "interactions", "document_terms",
)  # fmt: skip
"""The tables whose rows are the truth; all others are derived from them."""

KINDS = {"INTEGER": "integer", "TEXT": "text", "BLOB": "blob", "REAL": "real"}
"""The type of values by that of their column, which SQLite does not enforce."""

MAX_NUMBER = 2**53
"""The end of numbers in settings and counters: far beyond it SQLite counts in fractions."""


MAX_DEPTH = 200
"""Objects and lists within one another, in JSON that strangers stored: writers of JSON end at 254,
and what walks such a tree in Python not far beyond."""

_SIGN = re.compile(r'\\.|["\[\]{}]', re.DOTALL)
"""What JSON is nested by: quotes and brackets; `\\"` within a text is none."""

JSON_COLUMNS = {
    "documents": ("fields", "value", "payload"),
    "interactions": ("value",),
    "projections": ("note", "tuning", "report"),
    "settings": ("value",),
}
"""The columns with JSON."""


SchemaObject = tuple[str, str, str, str | None]
"""Type, name, table and SQL; the indexes that SQLite makes for itself have no SQL."""


def read_schema(db: Database, schema: str = "main") -> frozenset[SchemaObject]:
    """Return the objects of a database, their SQL with single spaces."""
    rows = db.execute(f"SELECT type, name, tbl_name, sql FROM {schema}.sqlite_master LIMIT 1000")
    return frozenset(
        (type, name, table, sql and SPACE.sub(" ", str(sql)).strip(" "))
        for type, name, table, sql in rows
    )


@cache
def expected_schema() -> frozenset[SchemaObject]:
    """Return the objects that the migrations make."""
    fresh = Database(memory=True, execute_plugins=False)
    try:
        migrations.apply(fresh)
        return read_schema(fresh)
    finally:
        fresh.close()


def schema_problems(db: Database) -> list[str]:
    """Return a sentence for each object that is missing, changed or strange."""
    expected, actual = expected_schema(), read_schema(db)
    names = {f"{type} {name}" for type, name, *_ in expected}
    actual_names = {f"{type} {name}" for type, name, *_ in actual}
    changed = {f"{type} {name}" for type, name, *_ in actual - expected} & names
    return [
        *(f"{name} is missing." for name in sorted(names - actual_names)),
        *(f"{name} is not as this program makes it." for name in sorted(changed)),
        *(
            f"{printable(name)} is nothing that this program makes."
            for name in sorted(actual_names - names)
        ),
    ]


def repair_schema(db: Database) -> None:
    """Make indexes and triggers again, and drop strange ones; tables stay, as they hold data."""
    expected, actual = expected_schema(), read_schema(db)
    for type, name, _, sql in sorted(actual - expected, key=str):
        if type in DERIVED and sql is not None:
            quoted = name.replace('"', '""')
            db.execute(f'DROP {type} IF EXISTS "{quoted}"')
    for type, _, _, sql in sorted(expected - actual, key=str):
        if type in DERIVED and sql is not None:
            db.execute(sql)


def printable(text: str) -> str:
    """Return a stranger's text without what a terminal would obey."""
    return "".join(sign if sign.isprintable() else "?" for sign in text[:500])


def type_problems(db: Database, schema: str = "main") -> Iterator[str]:
    """Find values of another type than their column has, and texts that are not UTF-8."""
    for table in TABLES:
        columns = db.execute(
            "SELECT name, type FROM pragma_table_info(?, 'main') WHERE type <> ''", [table]
        ).fetchall()
        if not columns:
            continue  # a later migration makes the table
        # NULL where it is not allowed is found by SQLite's own check.
        wrong = (f"typeof(\"{name}\") NOT IN ('{KINDS[kind]}', 'null')" for name, kind in columns)
        sums = ", ".join(f"total({condition})" for condition in wrong)
        counts = db.execute(f"SELECT {sums} FROM {schema}.{table} NOT INDEXED").fetchone()
        for (name, kind), count in zip(columns, counts, strict=True):
            if count:
                yield f"{count:.0f} rows of {table} have a {name} that is no {kind}."
        texts = ", ".join(f'"{name}"' for name, kind in columns if kind == "TEXT")
        if texts:  # reading fails where one is not UTF-8
            deque(db.execute(f"SELECT {texts} FROM {schema}.{table} NOT INDEXED"), maxlen=0)
    counters = db.execute(
        f"SELECT name, seq FROM {schema}.sqlite_sequence WHERE typeof(seq) <> 'integer' "
        "OR seq NOT BETWEEN 0 AND ?",
        [MAX_NUMBER],
    )
    for name, number in counters:
        yield f"The counter of {name!r:.200} is {number!r:.80}, which is not a valid counter."


def depth_problems(db: Database) -> Iterator[str]:
    """Find JSON that is nested deeper than it can be sent."""
    for table, columns in JSON_COLUMNS.items():
        for column in columns:
            rows = db.execute(
                f"SELECT {column} FROM {table} WHERE typeof({column}) = 'text' "
                f"AND length({column}) > ?",
                [MAX_DEPTH],
            )
            if any(_is_deep(text) for (text,) in rows):
                yield f"It has JSON in {table} that is nested more than {MAX_DEPTH} deep."


def _is_deep(text: str) -> bool:
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return False
    depth, is_text = 0, False
    for match in _SIGN.finditer(text):
        if (sign := match[0]) == '"':
            is_text = not is_text
        elif not is_text:
            depth += (sign in "[{") - (sign in "]}")
            if depth > MAX_DEPTH:
                return True
    return False


# -- checks ----------------------------------------------------------------------------------

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
        advice: the result of the repair, or what the user can do without one.
        repair: repairs the problems within a transaction; None if it cannot be done here.
    """

    name: str
    find: Find
    advice: str
    repair: Repair | None = None


# -- checks and repairs in SQL ----------------------------------------------------------------


def _rows(*rules: str) -> Find:
    """Return a check of SQL and a sentence by turns: a row is a problem unless it begins with 0."""

    def find(db: Database) -> Iterator[str]:
        for sql, sentence in zip(rules[::2], rules[1::2], strict=True):
            yield from (sentence.format(*row) for row in db.execute(sql) if row[0])

    return find


def _run(*statements: str) -> Repair:
    def repair(db: Database) -> None:
        for sql in statements:
            db.execute(sql)

    return repair


def _delete_orphans(db: Database) -> None:
    for table in TABLES:
        keys = 'SELECT "from", "table", "to" FROM pragma_foreign_key_list(?)'
        for column, parent, id in db.execute(keys, [table]).fetchall():
            # NULL, which refers to nothing, is not in an empty set either.
            db.execute(
                f"DELETE FROM {table} "
                f"WHERE {column} IS NOT NULL AND {column} NOT IN (SELECT {id} FROM {parent})"
            )


_NUMBERED = ("documents", "keys", "removals", "projections", "users")
"""Tables whose numbers are never reused: a reused one would be taken for the row before."""

_COUNTERS = [
    text.format(table)
    for table in _NUMBERED
    for text in (
        "SELECT * FROM (SELECT coalesce(max(rowid), 0) AS largest, coalesce((SELECT seq FROM "
        "sqlite_sequence WHERE name = '{0}'), 0) AS last FROM {0}) WHERE largest > last",
        "{0} has number {{0}}, but only {{1}} were given out.",
    )
]
_RAISE_COUNTERS = [
    sql.format(table, f"(SELECT coalesce(max(rowid), 0) FROM {table})")
    for table in _NUMBERED
    for sql in (
        "DELETE FROM sqlite_sequence WHERE name = '{0}' AND seq < {1}",
        "INSERT INTO sqlite_sequence (name, seq) SELECT '{0}', {1} "
        "WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = '{0}')",
    )
]

_JSON = [
    text.format(table, column)
    for table, columns in JSON_COLUMNS.items()
    for column in columns
    for text in (
        "SELECT count(*) FROM {0} WHERE NOT json_valid({1}) "
        "AND typeof({1}) NOT IN ('null', 'integer', 'real')",
        "{{}} rows of {0} have no JSON as {1}.",
    )
]
_OBJECTS = (
    "SELECT count(*) FROM documents WHERE json_type(fields) <> 'object' "
    "OR json_type(payload) <> 'object' "
    "OR EXISTS (SELECT 1 FROM json_each(fields) AS field WHERE field.type <> 'text')"
)

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
    if "bridge" in stored:  # the span of mapped keys
        try:
            state = json.loads(stored["bridge"])
            sound = all(type(state[name]) is int for name in ("after", "until"))
        except (KeyError, TypeError, ValueError, RecursionError):
            sound = False
        if not sound:
            yield f"The setting 'bridge' is {stored['bridge']!r:.80}."


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


# -- the table ----------------------------------------------------------------------------------

RESTORE = "Restore the collection from a snapshot or a copy."
RESEND = "Send the documents again, or restore a snapshot."

CHECKS = (
    # The quick check leaves out only how indexes agree with their tables.
    Check(
        "file",
        _rows(
            "SELECT * FROM pragma_quick_check(20) WHERE quick_check <> 'ok'",
            "The file is damaged: {}.",
        ),
        RESTORE,
    ),
    # Before anything that writes, as a strange trigger would run then.
    Check("schema", schema_problems, "Indexes and triggers were made again.", repair_schema),
    Check(
        "entries",
        _rows(
            "SELECT * FROM pragma_integrity_check(20) WHERE integrity_check <> 'ok'",
            "An index of SQLite's is wrong: {}.",
        ),
        "SQLite's indexes were made again.",
        _run("REINDEX"),
    ),
    Check("types", type_problems, RESTORE),
    Check("settings", _settings, RESTORE),
    Check(
        "references",
        _rows(
            'SELECT count(*), "table", parent FROM pragma_foreign_key_check GROUP BY 2, 3',
            "{} rows of {} belong to rows of {} that are not there.",
        ),
        "Rows that belonged to nothing are gone.",
        _delete_orphans,
    ),
    Check("counters", _rows(*_COUNTERS), "The counters were raised.", _run(*_RAISE_COUNTERS)),
    Check(
        "json",
        _rows(
            *_JSON,
            _OBJECTS,
            "{} documents have fields that are no texts, or a payload that is no object.",
        ),
        RESTORE,
    ),
    Check("embeddings", _embeddings, RESEND),
    Check(
        "keys",
        _rows(_KEYLESS, "{} documents have text and no key, so that no search finds them."),
        "Send the documents again, or build from their source.",
    ),
    Check(
        "examples",
        _rows(
            f"SELECT count(*) FROM ({_WRONG_EXAMPLE_KEYS})",
            "{} keys do not match their examples.",
            f"SELECT count(*) {_EXAMPLES_WITHOUT_KEY}",
            "{} examples lack the key that they add.",
            f"SELECT count(*) {_IDLE_QUESTIONS}",
            "{} questions have no example.",
        ),
        "The examples' keys were made again.",
        _run(
            f"DELETE FROM keys WHERE id IN ({_WRONG_EXAMPLE_KEYS})",
            "INSERT INTO keys (document, field, start, stop, embedding, example) "
            f"SELECT document, '@example', 0, 0, x'', id {_EXAMPLES_WITHOUT_KEY}",
            f"DELETE {_IDLE_QUESTIONS}",
        ),
    ),
    Check("terms", _terms, "Train again, or activate another version."),
    Check(
        "users",
        _rows(f"SELECT count(*) {_IDLE_USERS}", "{} users have no interaction."),
        "Users without interactions are gone.",
        _run(f"DELETE {_IDLE_USERS}"),
    ),
    Check(
        "words",
        partial(index_problems, texts=TEXTS),
        "The index of words was built again.",
        _run(
            "INSERT INTO lexical (lexical) VALUES ('delete-all')",
            FILL_LEXICAL,
            "UPDATE settings SET value = value + 1 WHERE name = 'texts'",
        ),
    ),
    Check(
        "filters",
        lambda db: (
            f"The index of the field {name!r} is wrong about {count} documents."
            for name, count in selection.index_faults(db).items()
        ),
        "The fields' indexes will be built again.",
        lambda db: selection.drop_indexes(db, list(selection.index_faults(db))),
    ),
)
"""In this order: each may rely on what those before it found sound."""
