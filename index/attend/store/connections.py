"""SQLite connections: one that writes, and one for each thread that reads."""

from __future__ import annotations

import math
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlite_utils import Database

from attend.core.deadline import check_deadline, deadline, is_over, over_time
from attend.core.errors import (
    AttendError,
    CannotWrite,
    Conflict,
    Damaged,
    ReadOnly,
    Replaced,
    UnknownCollection,
    check_open_files,
    is_out_of_files,
    out_of_files,
)
from attend.store.filters import moment
from attend.store.words import TOKENIZER, folded, register

BUSY_SECONDS = 30.0

PAGES = (4096, 8192, 16384)
"""The sizes that a page of a database may have. A write writes whole ones."""

ROW_BYTES, FILLED = 40, 0.85
"""The bytes of a key beside its embedding, and the share of a page that rows are to fill."""

LOG_BYTES = 4 * 1024 * 1024
"""The size from which the log of writes is merged into the database, and to which the file of a
longer one is cut back: a large write would leave one of its own size while a server runs."""

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

    Args:
        width: of the embeddings that an empty file is for. A row that fits into a page is not
            divided: at 384 numbers a quarter of each page of the default size would be empty, and
            half of it at 512. A file keeps the size that it was made with.
    """

    def __init__(self, path: Path, *, read_only: bool = False, width: int = 0) -> None:
        self.path = path
        self.read_only = read_only
        row = 4 * width + ROW_BYTES
        self._page = next((size for size in PAGES if size // row * row > FILLED * size), PAGES[0])
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
                connection.execute(f"PRAGMA page_size = {self._page}")
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = FULL")
                page = connection.execute("PRAGMA page_size").fetchone()[0]
                connection.execute(f"PRAGMA wal_autocheckpoint = {LOG_BYTES // page}")
                connection.execute(f"PRAGMA journal_size_limit = {LOG_BYTES}")
            connection.execute("PRAGMA foreign_keys = ON")
            connection.set_progress_handler(is_over, STEPS)
            connection.create_function("has_words", 3, TOKENIZER.holds, deterministic=True)
            connection.create_function("folded", 1, folded, deterministic=True)
            connection.create_function("moment", 1, moment, deterministic=True)
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
