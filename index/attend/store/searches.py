"""The log of searches: what was shown for which query, and which of it served.

It is a database of its own beside the documents: a search that is logged waits for no writer, and
no process looks for changes of documents. A thread of its own writes, some tenths of a second
later; a killed process loses those of its searches, and nothing else. Documents are in it by their
rows, which never come again: of a deleted document nothing is left but a number.
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from array import array
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from sqlite_utils import Database

from attend.core.errors import AttendError, InvalidRequest, NotFound
from attend.store.connections import Connections

log = logging.getLogger("attend")

FILE = "searches.db"
DAY = 86_400.0

PAUSE = 0.2
"""Seconds between two writes; what comes meanwhile is written together."""

GRACE = 3.0
"""Seconds that a search of another process is waited for until it is written."""

TRIMMED = 3600.0
"""Seconds between two looks for what is too old, or too much."""

_RANDOM_BITS = 20

GONE = 2**62
"""Set in the row of a document that another collection had, and this one does not have."""

SCHEMA = (
    # The id has the time: milliseconds since 1970, and a number that tells those of one apart.
    # `shown` has the rows of documents by rank, eight bytes each where one needs more than four.
    "CREATE TABLE IF NOT EXISTS searches "
    "(id INTEGER PRIMARY KEY, version INTEGER NOT NULL, query, shown BLOB NOT NULL, "
    # `pair` is the upper rank of two that were exchanged with chance 1/2; `draft` has two versions,
    # four bytes each, and the rank of each hit in either's list, two bytes each. `refused` is 1 for
    # no answer and 0 for one; NULL where no confidence is calibrated.
    "pair INTEGER, draft BLOB, refused INTEGER)",
    # The hits that served, by rank; -1 says that none did.
    "CREATE TABLE IF NOT EXISTS uses (search INTEGER NOT NULL, rank INTEGER NOT NULL, "
    "value REAL NOT NULL, source TEXT, PRIMARY KEY (search, rank)) WITHOUT ROWID",
)


COLUMNS = (
    ("searches", "pair", "INTEGER"),
    ("searches", "draft", "BLOB"),
    ("searches", "refused", "INTEGER"),
    ("uses", "source", "TEXT"),
)
"""Columns that files of earlier versions do not have."""


class SearchEntry(NamedTuple):
    """A search of the log.

    Attributes:
        time: seconds since 1970.
        query: the text that was sent, or None for a vector or documents.
        rows: of the documents shown, best first.
        used: the value of each that served, by rank; None where nobody said anything.
        pair: the upper of two neighbouring ranks whose hits were exchanged with chance 1/2, as
            shown in `rows`; None where no hits took part.
        draft: by version, the rank of each hit of a page of two versions in that one's list, from
            1, or 0 where it was not listed; None for a page of a single version.
        source: who said what served, as its caller names it.
    """

    id: str
    time: float
    version: int
    query: str | None
    rows: Sequence[int]
    used: Mapping[int, float] | None
    pair: int | None = None
    draft: Mapping[int, Sequence[int]] | None = None
    source: str | None = None


class SearchLog:
    """The searches of one collection; any number of threads and processes write to it.

    Args:
        days: the time that searches are kept.
        most: bytes of the file, above which the oldest go.
        expired: called after searches went that were too old, or too many.
    """

    def __init__(
        self,
        folder: Path,
        *,
        read_only: bool,
        days: float,
        most: int,
        expired: Callable[[], None] = lambda: None,
    ) -> None:
        self.days, self.most, self._expired = days, most, expired
        self._connections = Connections(folder / FILE, read_only=read_only)
        self._lock = threading.Lock()
        self._waiting: list[tuple[int | str | bytes | None, ...]] = []
        self._count = random.getrandbits(_RANDOM_BITS)
        self._wake, self._closed = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._trimmed = -math.inf
        if not read_only:
            with self._connections.writing() as db:
                for statement in SCHEMA:
                    db.execute(statement)
                for table, column, kind in COLUMNS:
                    if column not in _columns(db, table):
                        db.execute(f"ALTER TABLE {table} ADD COLUMN {column} {kind}")
            self._wake.set()  # what is too old goes, also where nobody searches
            self._thread = threading.Thread(target=self._write_on, daemon=True)
            self._thread.start()

    def add(
        self,
        query: str | None,
        version: int,
        rows: Sequence[int],
        pair: int | None = None,
        draft: Mapping[int, Sequence[int]] | None = None,
        *,
        refused: bool | None = None,
    ) -> str:
        """Note what a search showed, and return its id; it is written by another thread."""
        with self._lock:
            self._count = (self._count + 1) % 2**_RANDOM_BITS
            id = (int(time.time() * 1000) << _RANDOM_BITS) + self._count
            packed = None
            if draft is not None:
                packed = array("I", draft).tobytes()
                packed += array("H", [rank for ranks in draft.values() for rank in ranks]).tobytes()
            self._waiting.append((id, version, query, _packed(rows), pair, packed, refused))
        self._wake.set()
        return f"{id:016x}"

    def use(
        self, search: str, rows: Mapping[int, float], source: str | None = None
    ) -> tuple[int, int]:
        """Store which documents of a search served, with a value each; none means that none did.

        An earlier report about the search is replaced, so that sending twice counts once.

        Returns: how many were stored, and how many had been before.

        Raises:
            InvalidRequest: no search has such an id, or it did not show one of the documents.
            NotFound: the search is not in the log, or no more.
        """
        id = _number(search)
        shown = self._shown(search, id)
        places = {row: rank for rank, row in enumerate(shown)}
        for row in rows:
            if row not in places:
                raise InvalidRequest(
                    f"The search {search!r} did not show one of these documents; send ids of its "
                    f"hits.",
                    field="ids",
                )
        values = [(id, places[row], value, source) for row, value in rows.items()]
        values = values or [(id, -1, 0.0, source)]
        with self._connections.writing() as db:
            before = db.execute("DELETE FROM uses WHERE search = ? AND rank >= 0", [id]).rowcount
            db.execute("DELETE FROM uses WHERE search = ?", [id])
            db.conn.executemany(
                "INSERT INTO uses (search, rank, value, source) VALUES (?, ?, ?, ?)", values
            )
        return len(rows), before

    def latest(
        self, limit: int, before: str | None = None, *, judged: bool = False
    ) -> list[SearchEntry]:
        """Return searches, the newest first.

        Args:
            judged: only those of which somebody said what served.
        """
        self.flush()
        last = 2**63 - 1 if before is None else _number(before)
        only = "AND id IN (SELECT search FROM uses) " if judged else ""
        with self._connections.reading() as db:
            is_old = "draft" not in _columns(db, "searches")  # a folder that is only read
            added = "NULL, NULL" if is_old else "pair, draft"
            who = "source" if "source" in _columns(db, "uses") else "NULL"
            rows = db.execute(
                f"SELECT id, version, query, shown, {added} FROM searches WHERE id < ? {only}"
                f"ORDER BY id DESC LIMIT ?", [last, limit],
            ).fetchall()  # fmt: skip
            results = []
            for id, version, query, shown, pair, draft in rows:
                uses = db.execute(
                    f"SELECT rank, value, {who} FROM uses WHERE search = ?", [id]
                ).fetchall()
                used = {rank: value for rank, value, _ in uses if rank >= 0} if uses else None
                moment = (id >> _RANDOM_BITS) / 1000
                ranked = None
                if draft is not None:
                    (first, second), ranks = array("I", draft[:8]), array("H", draft[8:]).tolist()
                    half = len(ranks) // 2
                    ranked = {first: ranks[:half], second: ranks[half:]}
                source = uses[0][2] if uses else None
                entry = moment, version, query, _unpacked(shown), used, pair, ranked, source
                results.append(SearchEntry(f"{id:016x}", *entry))
        return results

    def texts(
        self, limit: int, *, after: int = 0, before: float | None = None, newest: bool = False
    ) -> list[tuple[int, str, int | None]]:
        """Return the first or the newest searches with a text, in the order of their time: the
        number, the text, and 1 for a refusal, 0 for an answer, None where neither is known.

        Args:
            after: the number of a search.
            before: seconds since 1970; None for now.
        """
        self.flush()
        last = 2**63 - 1 if before is None else round(before * 1000) << _RANDOM_BITS
        with self._connections.reading() as db:
            rows = db.execute(
                "SELECT id, query, refused FROM searches WHERE id > ? AND id < ? AND query NOTNULL "
                f"ORDER BY id {'DESC' if newest else ''} LIMIT ?", [after, last, limit],
            ).fetchall()  # fmt: skip
        return rows[::-1] if newest else rows

    def of_texts(self, texts: Collection[str | None]) -> set[str]:
        """Return those of some texts, at most 10,000, that a search has."""
        self.flush()
        with self._connections.reading() as db:
            select = f"SELECT query FROM searches WHERE query IN ({', '.join('?' * len(texts))})"
            return {text for (text,) in db.execute(select, list(texts))}

    def counts(self) -> tuple[int, int]:
        """Return the numbers of searches, and of those of which somebody said what served."""
        self.flush()
        with self._connections.reading() as db:
            searches = db.execute("SELECT count(*) FROM searches").fetchone()[0]
            used = db.execute("SELECT count(DISTINCT search) FROM uses").fetchone()[0]
        return searches, used

    def last(self) -> float:
        """Return when the last search was logged, in seconds since 1970; 0 without any."""
        self.flush()
        with self._connections.reading() as db:
            id = db.execute("SELECT max(id) FROM searches").fetchone()[0]
        return ((id or 0) >> _RANDOM_BITS) / 1000

    def delete(self) -> int:
        """Delete all searches, and return their number."""
        self.flush()
        with self._connections.writing() as db:
            count = db.execute("SELECT count(*) FROM searches").fetchone()[0]
            db.execute("DELETE FROM uses")
            db.execute("DELETE FROM searches")
        return int(count)

    def take(self, other: SearchLog, rows: Mapping[int, int]) -> None:
        """Add the searches of another collection with the same documents, and what served.

        They have the version 0: numbers of versions mean others here. What is here already stays.

        Args:
            rows: of documents here, by their rows there. Others get a number that no row has.
        """
        other.flush()
        with other._connections.reading() as theirs, self._connections.writing() as db:
            searches = theirs.execute("SELECT id, shown, query, pair, refused FROM searches")
            db.conn.executemany(
                "INSERT OR IGNORE INTO searches (id, shown, version, query, pair, refused) "
                "VALUES (?, ?, 0, ?, ?, ?)",
                (
                    (id, _packed([rows.get(row, row | GONE) for row in _unpacked(shown)]), *rest)
                    for id, shown, *rest in searches
                ),
            )
            reported = {id for (id,) in db.execute("SELECT search FROM uses")}
            uses = theirs.execute("SELECT search, rank, value, source FROM uses")
            db.conn.executemany(
                "INSERT INTO uses (search, rank, value, source) VALUES (?, ?, ?, ?)",
                (use for use in uses if use[0] not in reported),
            )

    def flush(self) -> None:
        """Write what is not written yet."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        try:
            with self._connections.writing() as db:
                db.conn.executemany(
                    "INSERT OR IGNORE INTO searches (id, version, query, shown, pair, draft, "
                    "refused) VALUES (?, ?, ?, ?, ?, ?, ?)", waiting,
                )  # fmt: skip
        except AttendError as error:  # a search is answered all the same
            log.warning("%d searches were not logged: %s", len(waiting), error)

    def trim(self) -> None:
        """Delete searches that are too old, and the oldest tenth while there are too many."""
        with self._connections.writing() as db:
            oldest = int((time.time() - self.days * DAY) * 1000) << _RANDOM_BITS
            pages, free, size = (
                db.execute(f"PRAGMA {name}").fetchone()[0]
                for name in ("page_count", "freelist_count", "page_size")
            )
            if (pages - free) * size > self.most:
                count = db.execute("SELECT count(*) FROM searches").fetchone()[0]
                row = db.execute(
                    "SELECT id FROM searches ORDER BY id LIMIT 1 OFFSET ?", [count // 10]
                ).fetchone()
                oldest = max(oldest, row[0] if row else oldest)
            db.execute("DELETE FROM uses WHERE search < ?", [oldest])
            gone = db.execute("DELETE FROM searches WHERE id < ?", [oldest]).rowcount
        if gone:
            self._expired()

    def close(self) -> None:
        """Write what is not written yet, and close the file."""
        self._closed.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
        self.flush()
        self._connections.close()

    def _write_on(self) -> None:
        """Write what comes, until the log is closed."""
        while not self._closed.is_set():
            self._wake.wait(TRIMMED)
            self._wake.clear()
            self._closed.wait(PAUSE)
            self.flush()
            if time.monotonic() - self._trimmed > TRIMMED:
                self._trimmed = time.monotonic()
                try:
                    self.trim()
                except AttendError as error:
                    log.warning("The log of searches could not be trimmed: %s", error)

    def _shown(self, search: str, id: int) -> Sequence[int]:
        """Return the rows that a search showed, by rank."""
        self.flush()
        sent = (id >> _RANDOM_BITS) / 1000
        until = min(time.time(), sent) + GRACE  # another process may have answered it just now
        while True:
            statement = "SELECT shown FROM searches WHERE id = ?"
            row = self._connections.reader().execute(statement, [id]).fetchone()
            if row is not None:
                return _unpacked(row[0])
            if time.time() > until:
                break
            time.sleep(PAUSE / 2)
        if sent < time.time() - self.days * DAY:
            raise NotFound(
                f"The search {search!r} is older than {self.days:g} days, and is no longer in the "
                f"log.",
                field="search",
            )
        raise NotFound(
            f"The log has no search {search!r}; send the field 'search' of an answer.",
            field="search",
        )


def _columns(db: Database, table: str) -> set[str]:
    return {row[1] for row in db.execute(f"PRAGMA table_info({table})").fetchall()}


def _number(search: str) -> int:
    try:
        id = int(search, 16)
    except ValueError:
        id = -1
    if not 0 <= id < 2**63 or len(search) != 16:
        raise InvalidRequest(
            f"{search!r} is not the id of a search; send the field 'search' of an answer.",
            field="search",
        )
    return id


def _packed(rows: Sequence[int]) -> bytes:
    wide = any(row >= 2**32 for row in rows)
    return (b"Q" if wide else b"I") + array("Q" if wide else "I", rows).tobytes()


def _unpacked(shown: bytes) -> Sequence[int]:
    rows = array(shown[:1].decode())
    rows.frombytes(shown[1:])
    return rows.tolist()
