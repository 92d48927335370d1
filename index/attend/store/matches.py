"""What single words match, as FTS5 scores it: BM25 of a query is their sum."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sqlite_utils import Database

from attend.types import Float32

KEPT = 8_000_000
"""Scores kept in memory, of the words asked for last: 64 MB. Queries share most of the words
that many documents have, and reading those is what takes time."""

OVERHEAD = 50
"""Scores whose memory a word takes beside its scores."""

MAX_COUNTS = 100_000
"""Words whose documents' number is kept: 10 MB."""


class Match(NamedTuple):
    """The documents that have one word. Kept narrow: rows in as few bytes as they need."""

    rows: NDArray[np.unsignedinteger[Any]]  # (n,) ascending
    scores: Float32  # (n,) BM25 of this word alone, above 0

    @classmethod
    def of(cls, found: Sequence[tuple[int, float]]) -> Match:
        rows = np.array([row for row, _ in found], dtype=np.int64)
        narrow = rows.astype(np.min_scalar_type(int(rows.max(initial=0))))
        return cls(narrow, np.array([score for _, score in found], dtype=np.float32))


class Matches:
    """Matches of words, kept as long as no text changes. Threads may share one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept = _Kept(-1)

    def of(self, db: Database) -> ReadMatches:
        """For one read transaction."""
        texts = int(db.execute("SELECT value FROM settings WHERE name = 'texts'").fetchone()[0])
        with self._lock:
            if self._kept.texts < texts:
                self._kept = _Kept(texts)
            # A reader of an earlier state reads for itself.
            kept = self._kept if self._kept.texts == texts else _Kept(texts)
        return ReadMatches(db, kept)


class ReadMatches:
    """Matches in the state of one read transaction."""

    def __init__(self, db: Database, kept: _Kept) -> None:
        self._db = db
        self._kept = kept

    @property
    def size(self) -> int:
        """How many documents have texts."""
        if self._kept.size is None:
            row = self._db.execute("SELECT count(*) FROM lexical_docsize").fetchone()
            self._kept.size = int(row[0])
        return self._kept.size

    def count(self, stem: str, word: str, most: int) -> int:
        """How many documents have a word; of more than `most`, only that there are more."""
        known = self._kept.counts.get(stem)
        if known is not None:
            return known
        row = self._db.execute(
            "SELECT count(*) FROM (SELECT 1 FROM lexical WHERE lexical MATCH ? LIMIT ?)",
            [_quoted(word), most + 1],
        ).fetchone()
        if len(self._kept.counts) >= MAX_COUNTS:
            self._kept.counts.clear()
        self._kept.counts[stem] = int(row[0])
        return int(row[0])

    def match(self, stem: str, word: str) -> Match:
        known = self._kept.take(stem)
        if known is not None:
            return known
        found = self._db.execute(
            "SELECT rowid, -bm25(lexical) FROM lexical WHERE lexical MATCH ?", [_quoted(word)]
        ).fetchall()
        read = Match.of(found)
        self._kept.put(stem, read)
        return read


class _Kept:
    """What has been read in one state of the texts."""

    def __init__(self, texts: int) -> None:
        self.texts = texts
        self.size: int | None = None
        self.counts: dict[str, int] = {}
        self._matches: dict[str, Match] = {}
        self._scores = 0
        self._lock = threading.Lock()

    def take(self, stem: str) -> Match | None:
        with self._lock:
            found = self._matches.pop(stem, None)
            if found is not None:
                self._matches[stem] = found  # last again: the first ones go first
            return found

    def put(self, stem: str, match: Match) -> None:
        with self._lock:
            if stem in self._matches:
                return
            self._matches[stem] = match
            self._scores += len(match.rows) + OVERHEAD
            while self._scores > KEPT and len(self._matches) > 1:
                first = next(iter(self._matches))
                self._scores -= len(self._matches.pop(first).rows) + OVERHEAD


def _quoted(word: str) -> str:
    """A word to look for, and never syntax."""
    return '"' + word.replace('"', '""') + '"'
