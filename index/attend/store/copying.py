"""Copying between two databases: feedback and settings of one library, and a stranger's rows."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from struct import unpack_from
from typing import Any

import numpy as np
from sqlite_utils import Database

from attend.core.errors import Damaged
from attend.core.types import Float32
from attend.store.checks import CHECKS, TABLES, depth_problems, read_schema, type_problems
from attend.store.connections import BUSY_SECONDS
from attend.store.database import Store
from attend.store.migrations import FILL_LEXICAL, migrations
from attend.store.sql import count_change, count_up
from attend.store.words import register

Encode = Callable[[Sequence[str]], Float32]
"""Texts of queries -> embeddings (n, d)."""


OWN_SETTINGS = (
    "encoder", "dimension", "uuid", "change", "settings_change", "projection", "recommend",
    "predict", "foreign", "published", "texts", "forgotten",
    "examples_replaced", "replaced", "spare_of", "bridge",
    "interleave", "interleaved_since", "rolled_back", "drift",
)  # fmt: skip
"""Settings that hold for one database or one encoder alone; so do the counts of tests of its
versions (`attend.learning`)."""

_SHARED = f"name NOT IN {OWN_SETTINGS!r} AND name NOT LIKE 'promotion_%'"


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


def copy_feedback(source: Store, target: Store, encode: Encode) -> None:
    """Copy examples, interactions and settings; the documents that they are about are there.

    Questions that have a text are encoded. The target then has the feedback of the source, but for
    examples of questions without text.
    """
    path = f"{target.path.absolute().as_uri()}?mode=rw"
    with closing(sqlite3.connect(path, BUSY_SECONDS, isolation_level=None, uri=True)) as db:
        register(db)
        db.execute("PRAGMA foreign_keys = ON")
        # To be read only: a transaction would lock it as well, which its own writer has locked.
        db.execute("ATTACH ? AS source", [f"{source.path.absolute().as_uri()}?mode=ro"])
        for view in _VIEWS:
            db.execute(view)
        missing = db.execute(
            "SELECT hash, text FROM source.questions WHERE text IS NOT NULL "
            "AND hash NOT IN (SELECT hash FROM main.questions) ORDER BY id"
        ).fetchall()
        texts = [text for _, text in missing]
        embeddings = np.asarray(encode(texts) if texts else [], dtype=np.float32)
        db.execute("BEGIN IMMEDIATE")
        db.executemany(
            "INSERT OR IGNORE INTO main.questions (hash, text, embedding) VALUES (?, ?, ?)",
            [(*question, row.tobytes()) for question, row in zip(missing, embeddings, strict=True)],
        )
        for statement in _COPY:
            db.execute(statement)
        for name in ("examples_replaced", "settings_change"):
            count_up(db, name)
        count_change(db)
        db.execute("COMMIT")


_VIEWS = (
    "CREATE TEMP VIEW their_examples AS SELECT question.id AS question, "
    "document.row AS document, old.weight, old.position, old.source, old.created "
    "FROM source.examples AS old "
    "JOIN source.questions AS before ON before.id = old.question "
    "JOIN main.questions AS question ON question.hash = before.hash "
    "JOIN source.documents AS theirs ON theirs.row = old.document "
    "JOIN main.documents AS document ON document.id = theirs.id ORDER BY old.id",
    "CREATE TEMP VIEW their_interactions AS SELECT user.id AS user, document.row AS document, "
    "old.value, old.time FROM source.interactions AS old "
    "JOIN source.users AS before ON before.id = old.user "
    "JOIN main.users AS user ON user.name = before.name "
    "JOIN source.documents AS theirs ON theirs.row = old.document "
    "JOIN main.documents AS document ON document.id = theirs.id ORDER BY old.id",
)
"""The feedback of the source about documents that the target has, under the target's numbers."""

_COPY = (
    # What is there keeps its ids, by which a training knows what it has learned from. Examples of
    # questions without text stay where they are: they have an embedding of one encoder alone.
    "INSERT INTO main.examples (question, document, weight, position, source, created) "
    "SELECT * FROM their_examples WHERE true ON CONFLICT (question, document) DO UPDATE SET "
    "weight = excluded.weight, position = excluded.position, source = excluded.source, "
    "created = excluded.created",
    "DELETE FROM main.examples WHERE question IN (SELECT id FROM main.questions "
    "WHERE text IS NOT NULL) AND (question, document) NOT IN "
    "(SELECT question, document FROM their_examples)",
    # Of documents that came to the source since the last copy: the next one has them.
    "DELETE FROM main.questions WHERE id NOT IN (SELECT question FROM main.examples)",
    "INSERT INTO main.users (name) SELECT name FROM source.users "
    "WHERE name NOT IN (SELECT name FROM main.users) ORDER BY id",
    "INSERT INTO main.interactions (user, document, value, time) "
    "SELECT * FROM their_interactions WHERE true ON CONFLICT (user, document) DO UPDATE SET "
    "value = excluded.value, time = excluded.time",
    "DELETE FROM main.interactions WHERE (user, document) NOT IN "
    "(SELECT user, document FROM their_interactions)",
    "DELETE FROM main.users WHERE id NOT IN (SELECT user FROM main.interactions)",
    f"DELETE FROM main.settings WHERE {_SHARED}",
    f"INSERT INTO main.settings SELECT name, value FROM source.settings WHERE {_SHARED}",
)


# -- a stranger's database --------------------------------------------------------------------

STEPS = 10_000
"""Steps of SQLite's machine between two looks at the clock: about a millisecond."""

GROWTH = 2
"""The limit of the copy's size, as a factor on that of the original."""

SMALL_BYTES = 2**20
"""Any copy may grow to this size: an empty one has more tables than rows."""

MAX_OBJECTS = 1000
"""Rows of a schema: SQLite reads them in quadratic time, 80,000 views in 14 s (measured)."""

MAGIC = b"SQLite format 3\0"
INTERIOR = 5
"""The type of a page that leads to other pages."""

MAX_SQL = 20_000
"""Bytes of one statement, also of those in a schema; ours have at most a tenth of it."""

# Functions and virtual tables that could do harm do not run from a schema, and pages are checked.
# No second file lies beside the copy: if this fails, it is thrown away; else the caller syncs it.
_PRAGMAS = (
    "trusted_schema = OFF", "cell_size_check = ON", "mmap_size = 0",
    "journal_mode = MEMORY", "synchronous = OFF",
)  # fmt: skip

_MAKE_AGAIN = (
    "INSERT INTO lexical (lexical) VALUES ('delete-all')",
    FILL_LEXICAL,
    # It may have been beside another collection; here it is one of its own.
    # So is what a server noticed and did by its log of searches, which stays behind.
    "DELETE FROM settings WHERE name IN ('replaced', 'spare_of', 'learned', 'drift')",
)

_MADE_HERE = {"file", "schema", "entries", "types", "words", "filters"}
"""Checks of what a copy does not take from the original, or takes only if it is right."""


def copy_untrusted(source: Path, target: Path, is_over: Callable[[], bool]) -> dict[str, Any]:
    """Copy the rows of a stranger's database into a new one, bring that up to date and check it.

    SQLite runs a trigger, a view or an expression of an index as soon as its table is used. So
    nothing but rows is taken, from tables that are declared as our migrations declare them. All
    that is derived from rows is made here.

    Args:
        is_over: asked while SQLite works; once it is true, SQLite stops with an error.

    Returns: the settings that the database stores.

    Raises:
        Damaged: it is not ours, or not sound; the sentence is about the first problem.
        sqlite3.Error: SQLite cannot read it, or was stopped.
    """
    page = _page_size(source)
    target.touch(mode=0o600, exist_ok=False)
    with closing(_open(target, is_over)) as db:
        size = max(GROWTH * source.stat().st_size, SMALL_BYTES)
        db.execute(f"PRAGMA page_size = {page}")
        db.execute(f"PRAGMA max_page_count = {size // page}")
        db.execute("ATTACH ? AS theirs", [f"{source.absolute().as_uri()}?mode=ro&immutable=1"])
        migrations.apply(db, stop_before=_missing_migrations(db))
        _copy_rows(db)
        db.conn.commit()
        db.execute("DETACH theirs")
        migrations.apply(db)
        for statement in _MAKE_AGAIN:
            db.execute(statement)
        db.conn.commit()
        checks = [check.find for check in CHECKS if check.name not in _MADE_HERE]
        for find in (*checks, depth_problems):
            for problem in find(db):
                raise Damaged(problem)
        rows = db.execute("SELECT name, value FROM settings")
        return {name: json.loads(value) for name, value in rows}


def _page_size(path: Path) -> int:
    """Return the size of a page; raise Damaged for a schema of too many rows.

    SQLite has not read it before. The schema is the B-tree that begins on page 1
    (sqlite.org/fileformat2.html#b_tree_pages).
    """
    rows, pages, due = 0, 0, [1]
    with open(path, "rb") as file:
        magic, size = unpack_from(">16sH", file.read(100))
        if magic != MAGIC:
            raise Damaged("The file is not a database of SQLite.")
        size = 65536 if size == 1 else size
        while due and rows <= MAX_OBJECTS and pages <= MAX_OBJECTS:
            number = due.pop()
            file.seek(size * (number - 1))
            page, start = file.read(size), 100 if number == 1 else 0
            kind, cells, last = unpack_from(">B2xH3xI", page, start)
            pages += 1
            if kind == INTERIOR:
                places = unpack_from(f">{cells}H", page, start + 12)
                due += [last, *(unpack_from(">I", page, place)[0] for place in places)]
            else:
                rows += cells
    if due or rows > MAX_OBJECTS:
        raise Damaged(f"It has more than {MAX_OBJECTS} tables, indexes, triggers and views.")
    return size


def _open(path: Path, is_over: Callable[[], bool]) -> Database:
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True)
    connection.set_progress_handler(is_over, STEPS)
    connection.setlimit(sqlite3.SQLITE_LIMIT_SQL_LENGTH, MAX_SQL)
    for pragma in _PRAGMAS:
        connection.execute(f"PRAGMA {pragma}")
    register(connection)
    return Database(connection, execute_plugins=False)


def _missing_migrations(db: Database) -> list[str]:
    """Return the names of the migrations that the attached database lacks, by its log."""
    names = [migration.name for migration in migrations.pending(db)]
    migrations.ensure_migrations_table(db)
    _check_tables(db)
    log = db.execute(
        "SELECT migration_set, name FROM theirs._sqlite_migrations NOT INDEXED ORDER BY id LIMIT ?",
        [len(names) + 1],
    ).fetchall()
    if not log or log != [(migrations.name, name) for name in names[: len(log)]]:
        raise Damaged("Its log of migrations is not that of a database of this program.")
    return names[len(log) :]


def _check_tables(db: Database) -> list[str]:
    """Return the tables of this database that hold rows; raise Damaged if theirs are others."""
    names = (*TABLES, migrations.migrations_table, "sqlite_sequence")
    tables = {item for item in read_schema(db) if item[0] == "table" and item[1] in names}
    for _, name, *_ in sorted(tables - read_schema(db, "theirs"), key=str):
        raise Damaged(f"Its table {name} is missing, or is not as this program makes it.")
    return [name for name in TABLES if name in {item[1] for item in tables}]


def _copy_rows(db: Database) -> None:
    """Copy the rows of the attached database; no trigger of ours looks at them."""
    tables = _check_tables(db)
    triggers = dict(db.execute("SELECT name, sql FROM main.sqlite_master WHERE type = 'trigger'"))
    for name in triggers:
        db.execute(f"DROP TRIGGER {name}")
    for table in tables:
        info = db.execute("SELECT name FROM pragma_table_info(?, 'main')", [table])
        # By name: of `*` SQLite would copy the bytes, and check nothing.
        columns = ", ".join(name for (name,) in info)
        db.execute(f"DELETE FROM main.{table}")  # what migrations have written
        db.execute(
            f"INSERT INTO main.{table} ({columns}) SELECT {columns} FROM theirs.{table} NOT INDEXED"
        )
    # Afterwards: pages that lead to each other on and on end where a row comes twice.
    for problem in type_problems(db, "theirs"):
        raise Damaged(problem)
    db.execute("DELETE FROM main.sqlite_sequence")
    db.execute(
        "INSERT INTO main.sqlite_sequence SELECT name, seq FROM theirs.sqlite_sequence "
        f"WHERE name IN {TABLES!r}"
    )
    for statement in triggers.values():
        db.execute(statement)
