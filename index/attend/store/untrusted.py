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
from typing import Any

from sqlite_utils import Database

from attend.errors import Damaged
from attend.store.checks import CHECKS
from attend.store.migrations import FILL_LEXICAL, migrations
from attend.store.schema import check_migrations

STEPS = 10_000
"""Steps of SQLite's machine between two looks at the clock: about a millisecond."""

GROWTH = 2
"""A database may grow to so many times its size while it is brought up to date."""

SMALL_BYTES = 2**20
"""Any database may grow to this size: an empty one has more tables than rows."""

# Functions and virtual tables that could do harm do not run from a schema, and pages are checked.
_GUARDS = ("PRAGMA trusted_schema = OFF", "PRAGMA cell_size_check = ON", "PRAGMA mmap_size = 0")

_MAKE_AGAIN = (
    "INSERT INTO lexical (lexical) VALUES ('delete-all')",
    FILL_LEXICAL,
    # Filters build the indexes of fields again where they use them.
    "DELETE FROM field_values",
    "DELETE FROM indexed_fields",
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
    with closing(_open(path, "mode=ro&immutable=1", is_over)) as db:
        check_migrations(db)
        _check_words_options(db)
        _check(db, _BEFORE)
    with closing(_open(path, "mode=rw", is_over)) as db:
        _bring_up_to_date(db, path.stat().st_size)
        _check(db, _AFTER)
        rows = db.execute("SELECT name, value FROM settings")
        return {name: json.loads(value) for name, value in rows}


def _open(path: Path, mode: str, is_over: Callable[[], bool]) -> Database:
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True)
    connection.set_progress_handler(is_over, STEPS)
    for pragma in _GUARDS:
        connection.execute(pragma)
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
    # In memory: the file is thrown away if this fails, and no second one lies beside it.
    db.execute("PRAGMA journal_mode = MEMORY")
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
