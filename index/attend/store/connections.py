"""SQLite connections: one that writes, and one for each thread that reads."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlite_utils import Database

from attend.errors import CannotWrite, Conflict, Damaged, ReadOnly, UnknownCollection
from attend.store.tokens import TOKENIZER

BUSY_SECONDS = 30.0

UNWRITABLE = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY)
"""Primary codes of what the disk does not take."""


class Connections:
    """All connections to one database file.

    WAL lets readers go on while one connection writes; `synchronous=FULL` makes a commit
    outlive a power cut as well as a killed process (sqlite.org/pragma.html#pragma_synchronous).
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path = path
        self.read_only = read_only
        self._local = threading.local()
        self._is_closed = False
        self._write_lock = threading.RLock()
        self._writer = self._open()  # where nothing is written, it only shows that it opens
        self._inode = path.stat().st_ino

    def reader(self) -> Database:
        """This thread's own connection."""
        reader: Database | None = getattr(self._local, "reader", None)
        if reader is None:
            if self._is_closed:
                raise Conflict(
                    f"The collection {self.path.parent.name!r} was closed while it was in use; "
                    f"open it again."
                )
            reader = self._local.reader = self._open()
            reader.execute("PRAGMA query_only = ON")
        return reader

    def data_version(self) -> int:
        """Changes whenever another connection, of any process, has committed."""
        return int(self.reader().execute("PRAGMA data_version").fetchone()[0])

    @contextmanager
    def reading(self) -> Iterator[Database]:
        """A read transaction on this thread's connection: all that is read is of one moment.

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
        """A write transaction: everything inside lands, or nothing.

        IMMEDIATE takes the lock at the start: a transaction that read first and wrote later
        would fail at once, without waiting, if another process had written in between.
        """
        self.check_writable()
        with self._write_lock:
            connection = self._writer.conn
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                raise Conflict(
                    f"{self.path.name} could not be locked for writing within {BUSY_SECONDS:g} s "
                    f"({error}); another process is writing: try again."
                ) from error
            try:
                self._check_there()
                yield self._writer
                connection.commit()
            except BaseException as error:
                connection.rollback()
                if getattr(error, "sqlite_errorcode", 0) & 0xFF in UNWRITABLE:
                    raise CannotWrite(
                        f"{self.path} cannot be written to ({error}), and nothing of it was "
                        f"stored. Make room on the disk, or check the folder's permissions."
                    ) from error
                raise

    def check_writable(self) -> None:
        """Raises ReadOnly where it was opened to be read only."""
        if self.read_only:
            raise ReadOnly(
                f"The collection {self.path.parent.name!r} was opened to be read only, and nothing "
                f"was written. Open it without --read-only to write to it."
            )

    def close(self) -> None:
        """Let go of every connection; what another thread reads now it reads to its end.

        A connection that is closed under the statement of another thread takes the process with
        it. So those of others are only forgotten: each closes when it is used no more.
        """
        own: Database | None = getattr(self._local, "reader", None)
        with self._write_lock:  # what is being written lands
            self._is_closed = True
            self._local = threading.local()  # the last that held those of other threads
            self._writer.conn.close()
        if own is not None:
            own.conn.close()

    def _check_there(self) -> None:
        """A file that was dropped meanwhile still takes writes, which nobody would ever see."""
        try:
            same = self.path.stat().st_ino == self._inode
        except FileNotFoundError:
            same = False
        if not same:
            raise UnknownCollection(
                f"The collection {self.path.parent.name!r} was deleted while it was open; nothing "
                f"was written. Make it again, and open it anew.",
                field="collection",
            )

    def _open(self) -> Database:
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
            connection.create_function("has_words", 2, TOKENIZER.holds, deterministic=True)
        except sqlite3.DatabaseError as error:
            raise Damaged(
                f"{self.path} cannot be opened as a database ({error}). Expected a collection that "
                f"this program wrote; restore it from a copy, or check the folder's permissions."
            ) from error
        return Database(connection, execute_plugins=False)


def connect_to_read(path: Path) -> sqlite3.Connection:
    """A connection that changes nothing, also in a folder that cannot be written to.

    There SQLite cannot make the memory that readers and writers share: a file that has no log of
    unmerged writes beside it is then read as one that nobody changes
    (sqlite.org/wal.html#read_only_databases).

    Raises:
        sqlite3.DatabaseError: it cannot be read.
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
