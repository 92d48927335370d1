"""A table or view of a SQLite file, opened for reading only."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from attend.errors import SourceError
from attend.source.rows import ID_NAMES, Problem, Row, listed, unreadable

SQLITE_SUFFIXES = frozenset({".db", ".sqlite", ".sqlite3"})
ROWID = "rowid"


@dataclass(frozen=True)
class SqliteTable:
    """One table or view. Cells that hold bytes are left out; a notice names their column.

    A table with neither a primary key of one column nor a column named like an id gets
    its `rowid` as one more cell, so that its documents keep their ids between builds.
    """

    path: Path
    table: str
    name: str
    columns: tuple[str, ...]
    natural_id: str | None
    natural_text: tuple[str, ...] = ()
    untyped: bool = False

    def rows(self) -> Iterator[Row | Problem]:
        refused: dict[str, str] = {}  # column -> where its first bytes are
        try:
            with closing(connect(self.path)) as database:
                for number, values in enumerate(database.execute(self._select()), start=1):
                    place = f"{self.name}:{number}"
                    cells = dict(zip(self.columns, values, strict=True))
                    blobs = [name for name, cell in cells.items() if isinstance(cell, bytes)]
                    for name in blobs:
                        refused.setdefault(name, place)
                        del cells[name]
                    yield Row(place, cells)
        except sqlite3.Error as error:
            raise unreadable(self.path, error) from error
        for name, place in refused.items():
            yield left_out(place, name)

    def _select(self) -> str:
        columns = ", ".join(quoted(column) for column in self.columns)
        return f"SELECT {columns} FROM {quoted(self.table)}"

    def size_hint(self) -> int | None:
        with closing(connect(self.path)) as database:
            (count,) = database.execute(f"SELECT count(*) FROM {quoted(self.table)}").fetchone()
        return int(count)


def left_out(place: str, column: str) -> Problem:
    """The notice that the bytes of a column are no part of the rows, which are all read."""
    reason = f"The column {column!r} holds bytes, which are not JSON. They are left out."
    return Problem(place, reason, refuses=False)


def open_table(path: Path, table: str) -> SqliteTable:
    """Find the table's columns and key.

    Raises SourceError for a file that is no SQLite database, and for a table that is not
    there, with those that are.
    """
    try:
        with closing(connect(path)) as database:
            present = _tables(database)
            if table not in present:
                raise _unknown(path, table, present)
            columns, key = _columns(database, table)
    except sqlite3.Error as error:
        raise unreadable(path, error) from error
    if key == ROWID and ROWID not in columns:
        columns = (ROWID, *columns)
    return SqliteTable(path, table, f"{path.name}:{table}", columns, key)


def _unknown(path: Path, table: str, present: Sequence[str]) -> SourceError:
    there = f"It has {listed(present)}" if present else "It has no tables"
    asked = f"no table {table!r}" if table else "to be told which table to read"
    verb = "has" if table else "needs"
    return SourceError(f"{path} {verb} {asked}. {there}; say {path.name}:TABLE.")


def _tables(database: sqlite3.Connection) -> list[str]:
    listing = "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') ORDER BY name"
    return [name for (name,) in database.execute(listing)]


def _columns(database: sqlite3.Connection, table: str) -> tuple[tuple[str, ...], str | None]:
    """The column names, and the primary key of one column, or rowid, or None."""
    about = database.execute(f"PRAGMA table_info({quoted(table)})").fetchall()
    names = tuple(name for _, name, *_ in about)
    keys = [name for _, name, *_, position in about if position]
    if len(keys) == 1:
        return names, keys[0]
    named = any(name.lower() in ID_NAMES for name in names)
    return names, ROWID if not named and _has_rowid(database, table) else None


def _has_rowid(database: sqlite3.Connection, table: str) -> bool:
    """False for a view, and for a table made WITHOUT ROWID."""
    kind = "SELECT type FROM sqlite_master WHERE name = ?"
    if database.execute(kind, (table,)).fetchone() != ("table",):
        return False
    try:
        database.execute(f"SELECT {ROWID} FROM {quoted(table)} LIMIT 0")
    except sqlite3.OperationalError:
        return False
    return True


def connect(path: Path) -> sqlite3.Connection:
    """A read-only connection: a source is never changed, nor created by a misspelt name."""
    database = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
    # The mapping reports what is not UTF-8 by row; the default would end the whole read.
    database.text_factory = lambda data: data.decode("utf-8", "surrogateescape")
    return database


def quoted(name: str) -> str:
    """A SQL identifier, since names cannot be bound as parameters.

    >>> print(quoted('my "new" table'))
    "my ""new"" table"
    """
    return '"' + name.replace('"', '""') + '"'
