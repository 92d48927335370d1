"""The objects of a database (tables, indexes, triggers), compared with those that migrations make.

Every object counts, whatever its name: a trigger or a view that is not ours would run with our
own statements.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from sqlite_utils import Database

from attend.core.errors import Damaged
from attend.store.migrations import migrations

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

_DEEP = {
    "documents": ("fields", "value", "payload"),
    "interactions": ("value",),
    "projections": ("note", "tuning", "report"),
    "settings": ("value",),
}
"""The columns with JSON."""


class SchemaObject(NamedTuple):
    """A row of `sqlite_master`; the indexes that SQLite makes for itself have no `sql`."""

    type: str
    name: str
    table: str
    sql: str | None

    def __str__(self) -> str:
        return f"{self.type} {self.name}"

    @property
    def is_derived(self) -> bool:
        return self.type in DERIVED and self.sql is not None


Schema = frozenset[SchemaObject]


def read_schema(db: Database) -> Schema:
    """Return the objects of a database, their SQL with single spaces."""
    # A stranger's file may have millions; more than ours is wrong already.
    rows = db.execute("SELECT type, name, tbl_name, sql FROM sqlite_master LIMIT 1000")
    return frozenset(
        SchemaObject(type, name, table, None if sql is None else _plain(str(sql)))
        for type, name, table, sql in rows
    )


def _plain(sql: str) -> str:
    return SPACE.sub(" ", sql).strip(" ")


def migration_names() -> list[str]:
    """Return the names of all migrations, in their order."""
    fresh = Database(memory=True, execute_plugins=False)
    try:
        return [migration.name for migration in migrations.pending(fresh)]
    finally:
        fresh.close()


@cache
def expected_schema(count: int | None = None) -> Schema:
    """Return the objects that the first `count` migrations make; all of them if None."""
    fresh = Database(memory=True, execute_plugins=False)
    try:
        migrations.apply(fresh, stop_before=migration_names()[count:][:1] if count else None)
        return read_schema(fresh)
    finally:
        fresh.close()


def schema_problems(db: Database, expected: Schema | None = None) -> list[str]:
    """Return a sentence for each object that is missing, changed or strange."""
    expected = expected_schema() if expected is None else expected
    actual = read_schema(db)
    names, actual_names = set(map(str, expected)), set(map(str, actual))
    missing = [f"{name} is missing." for name in sorted(names - actual_names)]
    changed = sorted({str(item) for item in actual - expected} & names)
    strange = sorted(actual_names - names)
    return [
        *missing,
        *(f"{name} is not as this program makes it." for name in changed),
        *(f"{printable(name)} is nothing that this program makes." for name in strange),
    ]


def repair_schema(db: Database) -> None:
    """Make indexes and triggers again, and drop strange ones; tables stay, as they hold data."""
    expected, actual = expected_schema(), read_schema(db)
    for item in sorted(actual - expected, key=str):
        if item.is_derived:
            name = item.name.replace('"', '""')
            db.execute(f'DROP {item.type} IF EXISTS "{name}"')
    for item in sorted(expected - actual, key=str):
        if item.is_derived:
            db.execute(str(item.sql))


def printable(text: str) -> str:
    """Return a stranger's text without what a terminal would obey."""
    return "".join(sign if sign.isprintable() else "?" for sign in text[:500])


def check_migrations(db: Database) -> None:
    """Check that a database is in a state that migrations left, and reads as such.

    Each migration changes the schema, so that the schema shows the last one.

    Raises:
        Damaged: it has an object too many, too few or changed, or its log of migrations is wrong.
    """
    names, actual = migration_names(), read_schema(db)
    schemas = {count: expected_schema(count) for count in range(1, len(names) + 1)}
    count = min(schemas, key=lambda count: len(schemas[count] ^ actual))
    problems = schema_problems(db, schemas[count])
    if problems:
        raise Damaged(problems[0])
    log = db.execute(
        "SELECT migration_set, name FROM _sqlite_migrations ORDER BY id LIMIT ?", [len(names) + 1]
    )
    if log.fetchall() != [(migrations.name, name) for name in names[:count]]:
        raise Damaged(f"Its log of migrations is not that of its schema ({names[count - 1]}).")


def type_problems(db: Database) -> Iterator[str]:
    """Find values of another type than their column has, and texts that are not UTF-8."""
    for table in TABLES:
        columns = db.execute(
            "SELECT name, type FROM pragma_table_info(?) WHERE type <> ''", [table]
        ).fetchall()
        # NULL where it is not allowed is found by SQLite's own check.
        wrong = (f"typeof(\"{name}\") NOT IN ('{KINDS[kind]}', 'null')" for name, kind in columns)
        sums = ", ".join(f"total({condition})" for condition in wrong)
        counts = db.execute(f"SELECT {sums} FROM {table}").fetchone()
        for (name, kind), count in zip(columns, counts, strict=True):
            if count:
                yield f"{count:.0f} rows of {table} have a {name} that is no {kind}."
        texts = ", ".join(f'"{name}"' for name, kind in columns if kind == "TEXT")
        if texts:  # reading fails where one is not UTF-8
            deque(db.execute(f"SELECT {texts} FROM {table}"), maxlen=0)
    counters = db.execute(
        "SELECT name, seq FROM sqlite_sequence WHERE typeof(seq) <> 'integer' "
        "OR seq NOT BETWEEN 0 AND ?",
        [MAX_NUMBER],
    )
    for name, number in counters:
        yield f"The counter of {name!r:.200} is {number!r:.80}, which is not a valid counter."


def depth_problems(db: Database) -> Iterator[str]:
    """Find JSON that is nested deeper than it can be sent."""
    for table, columns in _DEEP.items():
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
