"""A database that somebody else wrote: nothing in it runs before it was proved to be ours.

SQLite runs a trigger, a view or an expression of an index as soon as its table is used, and reads
any schema that parses. So the file is opened read-only first, and compared object by object with
what our migrations make. Only then it is written to: migrations run, and all that is derived from
documents is made again, as nobody can tell whether it is what we would have made.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from struct import unpack_from
from typing import Any

from sqlite_utils import Database

from attend.core.errors import Damaged
from attend.store.checks import CHECKS
from attend.store.migrations import migrations
from attend.store.schema import check_migrations, depth_problems
from attend.store.tokens import register
from attend.store.word_schema import FILL_LEXICAL

STEPS = 10_000
"""Steps of SQLite's machine between two looks at the clock: about a millisecond."""

GROWTH = 2
"""The limit of a database's growth while it is brought up to date, as a factor on its size."""

SMALL_BYTES = 2**20
"""Any database may grow to this size: an empty one has more tables than rows."""

MAX_OBJECTS = 1000
"""Rows of a schema: SQLite reads them in quadratic time, 80,000 views in 14 s (measured)."""

MAGIC = b"SQLite format 3\0"
INTERIOR = 5
"""The type of a page that leads to other pages."""

MAX_SQL = 20_000
"""Bytes of one statement, also of those in a schema; ours have at most a tenth of it."""

# Functions and virtual tables that could do harm do not run from a schema, and pages are checked.
_GUARDS = ("PRAGMA trusted_schema = OFF", "PRAGMA cell_size_check = ON", "PRAGMA mmap_size = 0")

_MAKE_AGAIN = (
    "INSERT INTO lexical (lexical) VALUES ('delete-all')",
    FILL_LEXICAL,
    # Filters build the indexes of fields again where they use them.
    "DELETE FROM field_values",
    "DELETE FROM indexed_fields",
    # It may have been beside another collection; here it is one of its own.
    "DELETE FROM settings WHERE name IN ('replaced', 'spare_of')",
)

_BEFORE = {"entries"}
_MADE_AGAIN = {"words", "filters"}
_AFTER = {check.name for check in CHECKS} - _BEFORE - _MADE_AGAIN - {"file"}


def adopt(path: Path, is_over: Callable[[], bool]) -> dict[str, Any]:
    """Prove that a database is a sound one of this program, and bring it up to date.

    Args:
        is_over: asked while SQLite works; once it is true, SQLite stops with an error.

    Returns: the settings that the database stores.

    Raises:
        Damaged: it is not ours, or not sound; the sentence is about the first problem.
        sqlite3.Error: SQLite cannot read it, or was stopped.
    """
    _check_object_count(path)
    with closing(_open(path, "mode=ro&immutable=1", is_over)) as db:
        check_migrations(db)
        _check_words_options(db)
        _check(db, _BEFORE)
    with closing(_open(path, "mode=rw", is_over)) as db:
        _bring_up_to_date(db, path.stat().st_size)
        _check(db, _AFTER)
        for problem in depth_problems(db):
            raise Damaged(problem)
        rows = db.execute("SELECT name, value FROM settings")
        return {name: json.loads(value) for name, value in rows}


def _check_object_count(path: Path) -> None:
    """Raise Damaged for a schema of too many rows, before SQLite reads it.

    The schema is the B-tree that begins on page 1 (sqlite.org/fileformat2.html#b_tree_pages).
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


def _open(path: Path, mode: str, is_over: Callable[[], bool]) -> Database:
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True)
    connection.set_progress_handler(is_over, STEPS)
    connection.setlimit(sqlite3.SQLITE_LIMIT_SQL_LENGTH, MAX_SQL)
    for pragma in _GUARDS:
        connection.execute(pragma)
    register(connection)
    return Database(connection, execute_plugins=False)


def _check_words_options(db: Database) -> None:
    """Raise Damaged where the index of words has options, which FTS5 keeps in a table."""
    if not db["lexical_config"].exists():  # the migration that makes it is due
        return
    options = db.execute("SELECT k, v FROM lexical_config LIMIT 2").fetchall()
    if [name for name, _ in options] != ["version"]:
        raise Damaged("Its index of words has options that this program does not set.")


def _bring_up_to_date(db: Database, size: int) -> None:
    page = db.execute("PRAGMA page_size").fetchone()[0]
    db.execute(f"PRAGMA max_page_count = {max(GROWTH * size, SMALL_BYTES) // page}")
    # No second file lies beside it: if this fails, it is thrown away; else the caller syncs it.
    db.execute("PRAGMA journal_mode = MEMORY")
    db.execute("PRAGMA synchronous = OFF")
    db.execute("PRAGMA foreign_keys = ON")
    migrations.apply(db)
    for statement in _MAKE_AGAIN:
        db.execute(statement)
    db.conn.commit()


def _check(db: Database, names: Iterable[str]) -> None:
    for check in CHECKS:
        if check.name in names:
            for problem in check.find(db):
                raise Damaged(problem)
