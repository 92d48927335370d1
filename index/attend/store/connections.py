"""SQLite connections, one that writes and one for each thread that reads, and shared statements."""

from __future__ import annotations

import json
import math
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from sqlite_utils import Database

from attend.core.deadline import check_deadline, deadline, is_over, over_time
from attend.core.errors import (
    AttendError,
    CannotWrite,
    Conflict,
    Damaged,
    InvalidRequest,
    ReadOnly,
    Replaced,
    UnknownCollection,
)
from attend.core.open_files import check_open_files, is_out_of_files, out_of_files
from attend.core.types import Float32, Json
from attend.store.records import State
from attend.store.tokens import register
from attend.store.words import TOKENIZER

BUSY_SECONDS = 30.0

STEPS = 1_000_000
"""Steps of SQLite's machine, some milliseconds, after which a statement checks the deadline."""

FUNCTION_STOPPED = "user-defined function raised exception"
"""What SQLite leaves of Ctrl-C that comes while our function prepares words for the index; the
function itself takes every text."""

BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
"""Primary codes of errors of a lock that another connection holds."""

UNWRITABLE = (
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
)
"""Primary codes of errors of a disk that does not take a write: SQLite makes files beside its own
for that."""

UNREADABLE = (
    sqlite3.SQLITE_IOERR_READ,
    sqlite3.SQLITE_IOERR_SHORT_READ,
    sqlite3.SQLITE_IOERR_CORRUPTFS,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
)
"""Codes of errors of a file that does not hold what was written to it."""

UNDECODED = "Could not decode to UTF-8"
"""Python's own error about a text, which has no code."""


class _ThreadReaders(threading.local):
    """The connections of a thread that reads.

    One that nobody uses any more would stay open until the garbage collector comes, as it and its
    cache of statements refer to each other.
    """

    def __init__(self) -> None:
        self._readers: list[tuple[weakref.ref[Connections], sqlite3.Connection]] = []

    def add(self, connections: Connections, reader: sqlite3.Connection) -> None:
        """Add a connection, and close those whose collections were closed."""
        readers, self._readers = self._readers, [(weakref.ref(connections), reader)]
        for owner, connection in readers:
            owning = owner()
            if owning is None or owning.is_closed:
                connection.close()
            else:
                self._readers.append((owner, connection))


_of_thread = _ThreadReaders()


class Connections:
    """All connections to one database file.

    In WAL mode readers go on while one connection writes; with `synchronous=FULL` a commit
    survives a power cut as well as a killed process (sqlite.org/pragma.html#pragma_synchronous).
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path = path
        self.read_only = read_only
        self._local = threading.local()
        self.is_closed = False
        self._write_lock = threading.RLock()
        self._writer = self._open()  # of a read-only store: shows that the file opens
        try:
            self._inode = path.stat().st_ino
        except OSError:
            self._writer.conn.close()
            raise

    def reader(self) -> Database:
        """Return the connection of this thread."""
        local = self._local  # `close` puts another in its place, and the next call asks that one
        reader: Database | None = getattr(local, "reader", None)
        if reader is None:
            self._check_open()
            reader = self._open()
            try:
                self.check_there()  # the path may lead to another collection by now
                reader.execute("PRAGMA query_only = ON")
            except BaseException:
                reader.conn.close()
                raise
            _of_thread.add(self, reader.conn)
            local.reader = reader
        return reader

    def data_version(self) -> int:
        """Return a number that changes when another connection, of any process, commits."""
        return int(self.reader().execute("PRAGMA data_version").fetchone()[0])

    @contextmanager
    def reading(self) -> Iterator[Database]:
        """Open a read transaction on this thread's connection: all reads see one moment.

        Inside another one it is part of that.
        """
        reader = self.reader()
        if reader.conn.in_transaction:
            yield reader
            return
        reader.conn.execute("BEGIN")
        try:
            yield reader
        finally:
            reader.conn.rollback()

    @contextmanager
    def writing(self) -> Iterator[Database]:
        """Open a write transaction: all statements inside are committed, or none.

        IMMEDIATE takes the lock at the start: a transaction that first reads and then writes
        fails at once, without waiting, if another process writes in between.
        """
        self.check_writable()
        self._begin()
        try:
            self.check_there()
            yield self._writer
            check_deadline()
            self._writer.conn.commit()
        except BaseException as error:
            self._writer.conn.rollback()
            in_main = threading.current_thread() is threading.main_thread()
            if in_main and FUNCTION_STOPPED in str(error):
                raise KeyboardInterrupt from error
            if named := database_error(error, self.path):
                raise named from error
            raise
        finally:
            self._write_lock.release()

    def _begin(self) -> None:
        """Begin to write, and wait for other writers no longer than the deadline allows."""
        seconds = max(0.0, deadline() - time.monotonic())
        if not self._write_lock.acquire(timeout=min(seconds, threading.TIMEOUT_MAX)):
            raise over_time()
        try:
            self._check_open()
            seconds = min(BUSY_SECONDS, max(0.0, deadline() - time.monotonic()))
            self._writer.conn.execute(f"PRAGMA busy_timeout = {math.ceil(seconds * 1000)}")
            self._writer.conn.execute("BEGIN IMMEDIATE")
        except BaseException as error:
            self._write_lock.release()
            if isinstance(error, sqlite3.Error) and is_over():
                raise over_time() from error
            if named := database_error(error, self.path):
                raise named from error
            raise

    def _check_open(self) -> None:
        if self.is_closed:
            self.check_there()
            raise Conflict(
                f"The collection {self.path.parent.name!r} was closed while it was in use; "
                f"open it again."
            )

    def check_writable(self) -> None:
        """Raise ReadOnly if the collection was opened read-only."""
        if self.read_only:
            raise ReadOnly(
                f"The collection {self.path.parent.name!r} was opened to be read only, and nothing "
                f"was written. Open it without --read-only to write to it."
            )

    def close(self) -> None:
        """Close the connections; a statement that runs in another thread still finishes.

        Closing a connection under a statement of another thread crashes the process. So each
        thread closes its own, when it opens one the next time.
        """
        reader: Database | None = getattr(self._local, "reader", None)
        with self._write_lock:  # the running write is committed
            self.is_closed = True
            self._local = threading.local()  # the only references to those of other threads
            self._writer.conn.close()
        if reader is not None:
            reader.conn.close()

    def check_there(self) -> None:
        """Check that the file was not dropped or replaced: nobody reads what it would take."""
        try:
            inode = self.path.stat().st_ino
        except FileNotFoundError:
            inode = None
        if inode not in (self._inode, None):
            raise Replaced(
                f"The collection {self.path.parent.name!r} was replaced while it was open; nothing "
                f"was written. Open it again, and try again."
            )
        if inode is None:
            raise UnknownCollection(
                f"The collection {self.path.parent.name!r} was deleted while it was open; nothing "
                f"was written. Make it again, and open it again.",
                field="collection",
            )

    def _open(self) -> Database:
        check_open_files(self.path)
        connection = None
        try:
            if self.read_only:
                connection = connect_to_read(self.path)
            else:
                connection = sqlite3.connect(
                    self.path, timeout=BUSY_SECONDS, check_same_thread=False
                )
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA foreign_keys = ON")
            connection.set_progress_handler(is_over, STEPS)
            connection.create_function("has_words", 3, TOKENIZER.holds, deterministic=True)
            register(connection)
        except sqlite3.DatabaseError as error:
            if connection is not None:
                connection.close()
            raise database_error(error, self.path) or _damaged(error, self.path) from error
        return Database(connection, execute_plugins=False)


def database_error(error: BaseException, path: Path | str) -> AttendError | None:
    """Return the error of this package that an error of SQLite about a file stands for.

    Returns: None for what is no error of the file, as a mistake in a statement.
    """
    if not isinstance(error, sqlite3.Error):
        return None
    if is_out_of_files(error):
        return out_of_files(str(path))
    code = getattr(error, "sqlite_errorcode", 0)
    if code in UNREADABLE or code & 0xFF in UNREADABLE or UNDECODED in str(error):
        return _damaged(error, path)
    if code & 0xFF == sqlite3.SQLITE_CANTOPEN and not os.access(path, os.R_OK):
        return _damaged(error, path)
    if code & 0xFF in UNWRITABLE:
        return CannotWrite(
            f"{path} cannot be written to ({error}), and nothing of it was stored. Make room on "
            f"the disk, or check the folder's permissions."
        )
    if code & 0xFF in BUSY:
        return Conflict(
            f"{Path(path).name} could not be locked for writing within {BUSY_SECONDS:g} s "
            f"({error}); another process is writing: try again."
        )
    return None


def _damaged(error: sqlite3.Error, path: Path | str) -> Damaged:
    return Damaged(
        f"{path} cannot be read as a database ({error}). Expected a collection that this program "
        f"wrote; restore it from a copy, or check the folder's permissions."
    )


def connect_to_read(path: Path) -> sqlite3.Connection:
    """Connect without changing anything, also in a folder that cannot be written to.

    There SQLite cannot make the memory that readers and writers share: a file without a log of
    unmerged writes beside it is then read as immutable (sqlite.org/wal.html#read_only_databases).

    Raises:
        sqlite3.DatabaseError: the file cannot be read.
    """
    uri = f"{path.absolute().as_uri()}?mode=ro"
    try:
        return _opened(uri)
    except sqlite3.OperationalError:
        log = path.with_name(f"{path.name}-wal")
        if not path.exists() or (log.exists() and log.stat().st_size):
            raise
        return _opened(f"{uri}&immutable=1")


def _opened(uri: str) -> sqlite3.Connection:
    connection = sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, check_same_thread=False)
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


class DatabasePart:
    """A part of a store: reads on this thread's connection, writes as transactions."""

    connections: Connections

    def _read(self) -> Database:
        return self.connections.reader()

    @contextmanager
    def _changing(self) -> Iterator[Database]:
        """Open a write transaction that may change answers: then readers look at them again."""
        with self.connections.writing() as db:
            before = db.conn.total_changes
            yield db
            if db.conn.total_changes != before:
                count_change(db)


def count_change(db: Database | sqlite3.Connection) -> None:
    """Count a change of answers, unless another collection took this one's place.

    Raises:
        Replaced: it was; the transaction must not be committed.
    """
    # The mark names the folder that the collection has once it is replaced, and counts there alone:
    # it is written before the folders change their names.
    mark = db.execute(
        "SELECT settings.value, main.file FROM settings, pragma_database_list AS main "
        "WHERE settings.name = 'replaced' AND main.name = 'main'"
    ).fetchone()
    if mark is not None and json.loads(mark[0]) == Path(mark[1]).parent.name:
        raise Replaced(
            "The collection was replaced by one with another encoder, and nothing was written; "
            "open it again by its name, and write again. ('attend reindex --rollback' goes back.)"
        )
    db.execute("UPDATE settings SET value = value + 1 WHERE name = 'change'")


def to_json(value: Json) -> str:
    """Return compact JSON, in ASCII: a lone surrogate is legal in JSON but not in UTF-8."""
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False, default=plain)
    except TypeError as error:
        raise InvalidRequest(f"{value!r:.80} is no JSON ({error}); send what JSON has.") from error


def value_json(value: Json) -> str | None:
    """Return JSON, and None (NULL in SQL) for no value."""
    return None if value is None else to_json(value)


def id_list(ids: Sequence[str]) -> str:
    """Return ids for SQLite's `json_each`, which cuts a text at NUL and finds another document.

    Raises:
        InvalidRequest: one text in the place of a list, or an id that is no text.
    """
    texts = [ids] if isinstance(ids, str) else list(ids)
    wrong = [id for id in texts if isinstance(ids, str) or not isinstance(id, str)]
    if wrong:
        raise InvalidRequest(
            f"A list of ids was expected, each a text, but {wrong[0]!r:.80} was given.", field="ids"
        )
    return json.dumps([id for id in texts if "\x00" not in id])


def plain(value: Any) -> Json:
    """Return numpy's numbers and arrays, and any mapping, as JSON has them; raise TypeError."""
    if isinstance(value, np.generic | np.ndarray):
        number: Json = value.tolist()
        return number
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"it holds {value!r:.80}")


def stacked(blobs: Sequence[bytes]) -> Float32:
    """Return vectors of one width as a matrix (n, d); (0, 0) for none."""
    numbers = np.frombuffer(b"".join(blobs), dtype=np.float32)
    return numbers.reshape(len(blobs), -1) if blobs else numbers.reshape(0, 0)


def put_settings(db: Database, changes: Mapping[str, Json]) -> None:
    rows = [(name, to_json(value)) for name, value in changes.items()]
    db.conn.executemany("INSERT OR REPLACE INTO settings (name, value) VALUES (?, ?)", rows)


def change_settings(db: Database, changes: Mapping[str, Json]) -> None:
    """Store settings, so that every process that has the collection open looks at them."""
    put_settings(db, changes)
    count_up(db, "settings_change")


def count_up(db: Database | sqlite3.Connection, name: str) -> int:
    """Add one to a number among the settings, which is 0 where it is absent, and return it."""
    counted = db.execute(
        "INSERT INTO settings (name, value) VALUES (?, '1') "
        "ON CONFLICT (name) DO UPDATE SET value = value + 1 RETURNING value",
        [name],
    )
    return int(counted.fetchall()[0][0])


def dimension(db: Database) -> int:
    """Return the width of the collection's embeddings."""
    return int(db.execute("SELECT value FROM settings WHERE name = 'dimension'").fetchone()[0])


def read_state(db: Database) -> State:
    """Return the state in O(1): AUTOINCREMENT stores the last number of a table."""
    row = db.execute(
        "SELECT (SELECT value FROM settings WHERE name = 'change'), "
        "coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'keys'), 0), "
        "coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'removals'), 0), "
        "(SELECT value FROM settings WHERE name = 'projection'), "
        "(SELECT value FROM settings WHERE name = 'recommend'), "
        "(SELECT value FROM settings WHERE name = 'predict'), "
        # A stranger's may be no number.
        "coalesce((SELECT CAST(value AS INTEGER) FROM settings WHERE name = 'settings_change'), 0)"
    ).fetchone()
    return State(*map(int, row))


def row_count(db: Database, table: str) -> int:
    return int(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


def columns_of(rows: Sequence[Sequence[Any]], width: int) -> list[tuple[Any, ...]]:
    """Return the columns of rows; empty ones without rows."""
    return list(zip(*rows, strict=True)) if rows else [()] * width
