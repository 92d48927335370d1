"""BM25 over the documents' texts, by SQLite's FTS5: documents that share words with a query.

A query is a bag of words, whatever its text holds: nothing in it is syntax. The score of a query
is the sum of its words' scores, so that the matches of single words are cached.
"""

from __future__ import annotations

import json
import math
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from sqlite_utils import Database

from attend.core.types import Float32, Float64, Int64
from attend.store.caching import LimitedCache
from attend.store.tokens import (
    SPLIT,
    indexed_text,
    phrases,
    quoted,
    readable,
    register,
)

MAX_STEMS = 1024
"""Distinct stems of a text that are used, the first ones: twice what most encoders read."""

K1 = 1.2
"""FTS5's k1 in bm25(); its b is 0.75 (sqlite.org/fts5.html#the_bm25_function)."""

LEAST_IDF = 1e-6
"""FTS5's idf of a term that half of the documents have, or more."""

MAX_TERMS = 64
"""Terms that a query is matched by, the rarest: those of a paragraph."""

FULL_DOCUMENTS = 100_000
"""Up to this number of documents every term counts. In a larger collection only the rarest terms
count, which together match at most this number: a query takes no longer than it takes here."""

FEW_DOCUMENTS = 50
"""Fewer do not show which words say nothing: in three texts about ships two have the word."""

MAX_SPAN = 4_000_000
"""Largest span of row numbers whose scores are summed in a table: 32 MB."""

CACHED_SCORES = 8_000_000
"""Scores in the cache, of the words used last: 64 MB. Queries share most of the words that many
documents have, and reading those takes most of the time."""

OVERHEAD = 50
"""Memory of a cached word beside its scores, in scores."""

MAX_COUNTS = 100_000
"""Words whose number of documents is cached: 10 MB."""


class Tokenizer:
    """Splits texts into words by SQLite itself, which also made the index. Threads may share it."""

    def __init__(self) -> None:
        self._local = threading.local()

    def words(self, text: str) -> dict[str, str]:
        """Return a text's distinct stems in the order they occur, each with a word that has it.

        The word is what a search must look for: the stem of 'databases' is 'databas', and the
        stem of that another.
        """
        return self._words(indexed_text(readable(text), query=True))

    def phrases(self, text: str) -> list[str]:
        """Return what a text must have that matches another: its words and unspaced runs.

        An identifier is one word here, and a run one phrase.
        """
        others, runs = phrases(readable(text))
        return [*self._words(others).values(), *dict.fromkeys(runs)]

    def _words(self, text: str) -> dict[str, str]:
        tables = self._tables()
        tables.execute("BEGIN")
        try:
            tables.execute("INSERT INTO words VALUES (?)", [text])
            tables.execute("INSERT INTO stems VALUES (?)", [text])
            places = dict(tables.execute("SELECT offset, term FROM word_places"))
            stems = tables.execute(
                "SELECT term, min(offset) AS first FROM stem_places GROUP BY term "
                "ORDER BY first LIMIT ?",
                [MAX_STEMS],
            )
            # Accents alone make an empty token.
            return {stem: places[first] for stem, first in stems if places[first]}
        finally:
            tables.execute("ROLLBACK")

    def holds(self, fields: str, name: str, query: str) -> bool:
        """Return whether a field of a document, as JSON, matches an FTS5 query."""
        text = json.loads(fields).get(name)
        if not isinstance(text, str):
            return False
        tables = self._tables()
        tables.execute("BEGIN")
        try:
            tables.execute("INSERT INTO stems VALUES (?)", [indexed_text(readable(text))])
            matches = tables.execute("SELECT 1 FROM stems WHERE stems MATCH ?", [query])
            return matches.fetchone() is not None
        finally:
            tables.execute("ROLLBACK")

    def _tables(self) -> sqlite3.Connection:
        """Return this thread's own tables, in memory, which are empty between two texts."""
        tables: sqlite3.Connection | None = getattr(self._local, "tables", None)
        if tables is None:
            tables = self._local.tables = sqlite3.connect(":memory:", isolation_level=None)
            for name, tokenize in (("word", SPLIT), ("stem", f"porter {SPLIT}")):
                tables.execute(
                    f"CREATE VIRTUAL TABLE {name}s USING fts5("
                    f"text, content = '', tokenize = \"{tokenize}\")"
                )
                tables.execute(
                    f"CREATE VIRTUAL TABLE {name}_places USING fts5vocab ({name}s, 'instance')"
                )
        return tables


TOKENIZER = Tokenizer()
"""Shared by all: it stores nothing."""


class WordMatch(NamedTuple):
    """The documents that have one word. Rows take as few bytes as they need."""

    rows: NDArray[np.unsignedinteger[Any]]  # (n,) ascending
    scores: Float32  # (n,) BM25 of this word alone, above 0

    @classmethod
    def of(cls, pairs: Sequence[tuple[int, float]]) -> WordMatch:
        rows = np.array([row for row, _ in pairs], dtype=np.int64)
        narrow = rows.astype(np.min_scalar_type(int(rows.max(initial=0))))
        return cls(narrow, np.array([score for _, score in pairs], dtype=np.float32))


class WordCache:
    """Caches what was read of words, by the state of the texts. Threads may share one."""

    def __init__(self) -> None:
        self.matches = LimitedCache[tuple[int, str], WordMatch](
            CACHED_SCORES, lambda match: len(match.rows) + OVERHEAD
        )
        self.counts = LimitedCache[tuple[int, str, int], int](MAX_COUNTS, lambda count: 1)
        self.sizes = LimitedCache[int, int](1, lambda size: 1)


class WordReader:
    """Reads words within one read transaction."""

    def __init__(self, db: Database, cache: WordCache) -> None:
        self._db = db
        self._cache = cache
        row = db.execute("SELECT value FROM settings WHERE name = 'texts'").fetchone()
        self._texts = int(row[0])

    def size(self) -> int:
        """Return the number of documents that have texts."""
        size = self._cache.sizes.get(self._texts)
        if size is not None:
            return size
        row = self._db.execute("SELECT count(*) FROM lexical_docsize").fetchone()
        return self._cache.sizes.put(self._texts, int(row[0]))

    def having_texts(self, rows: Int64) -> int:
        """Return the number of some documents that have texts."""
        sql = "SELECT count(*) FROM lexical_docsize WHERE id IN (SELECT value FROM json_each(?))"
        return int(self._db.execute(sql, [json.dumps(rows.tolist())]).fetchone()[0])

    def count(self, stem: str, word: str, most: int) -> int:
        """Return the number of documents that have a word, or `most` + 1 if there are more."""
        key = self._texts, stem, most
        count = self._cache.counts.get(key)
        if count is not None:
            return count
        row = self._db.execute(
            "SELECT count(*) FROM (SELECT 1 FROM lexical WHERE lexical MATCH ? LIMIT ?)",
            [quoted(word), most + 1],
        ).fetchone()
        return self._cache.counts.put(key, int(row[0]))

    def match(self, stem: str, word: str) -> WordMatch:
        """Return the documents that have a word."""
        match = self._cache.matches.get((self._texts, stem))
        if match is not None:
            return match
        pairs = self._db.execute(
            "SELECT rowid, -bm25(lexical) FROM lexical WHERE lexical MATCH ?", [quoted(word)]
        ).fetchall()
        return self._cache.matches.put((self._texts, stem), WordMatch.of(pairs))


class FewerWords:
    """Reads words as if some documents were not there: each word's matches are counted again.

    Scores have the inverse document frequencies of the documents that are left. The mean length of
    texts, which a few documents hardly change, stays that of the whole collection.
    """

    def __init__(self, reader: WordReader, rows: Int64) -> None:
        """
        Args:
            rows: of the documents that count as absent, ascending.
        """
        self._reader, self._rows = reader, rows
        # The limit of a search of the whole collection, by which counts are cached.
        self._most = min(reader.size() // 2, FULL_DOCUMENTS)
        self._size = reader.size() - reader.having_texts(rows)

    def size(self) -> int:
        """Return the number of documents that are left and have texts."""
        return self._size

    def count(self, stem: str, word: str, most: int) -> int:
        """Return the number of documents left that have a word, or more than `most`.

        A word that more than half of the whole collection has counts as one that half of what is
        left have.
        """
        count = self._whole_count(stem, word)
        return count - len(self._absent(stem, word)) if 0 < count <= self._most else count

    def match(self, stem: str, word: str) -> WordMatch:
        """Return the documents left that have a word."""
        match, absent = self._reader.match(stem, word), self._absent(stem, word)
        left = WordMatch(np.delete(match.rows, absent), np.delete(match.scores, absent))
        before = idf(self._whole_count(stem, word), self._reader.size())
        factor = idf(len(left.rows), self._size) / before
        return left._replace(scores=left.scores * np.float32(factor))

    def _whole_count(self, stem: str, word: str) -> int:
        return self._reader.count(stem, word, self._most)

    def _absent(self, stem: str, word: str) -> Int64:
        """Return the places of absent documents among those that have a word."""
        rows = self._reader.match(stem, word).rows
        places = np.minimum(np.searchsorted(rows, self._rows), len(rows) - 1)
        return np.asarray(places[rows[places] == self._rows], dtype=np.int64)


class Reader(Protocol):
    """Reads the words of a collection, or of a part of it."""

    def size(self) -> int: ...

    def count(self, stem: str, word: str, most: int) -> int: ...

    def match(self, stem: str, word: str) -> WordMatch: ...


class Lexical(NamedTuple):
    """The documents that have words of a query.

    Attributes:
        rows: rows of documents (n,), ascending.
        scores: BM25 of each (n,), above 0.
        maximum: the best score in the whole collection; 0 without a match.
        ideal: about the score of a perfect match: the sum of idf * (k1 + 1) over the terms of
            the search, and over those that no document has.
        terms: the stems of the search, the rarest first.
    """

    rows: Int64
    scores: Float64
    maximum: float
    ideal: float
    terms: tuple[str, ...]


class _Term(NamedTuple):
    stem: str
    word: str
    documents: int


def search(reader: Reader, words: Mapping[str, str], limit: int | None = None) -> Lexical:
    """Find the documents that have any of the words (by stem): all of them, or the best.

    Words that more than half of the documents have are left out: each would add at most
    LEAST_IDF * (K1 + 1) to a score, and nearly every document to the result.
    """
    size = reader.size()
    most = min(size // 2, FULL_DOCUMENTS)
    terms = [_Term(stem, word, reader.count(stem, word, most)) for stem, word in words.items()]
    used = _rarest([term for term in terms if 0 < term.documents <= most], size)
    absent = [term for term in terms if not term.documents]
    ideal = (K1 + 1) * sum(idf(term.documents, size) for term in (*used, *absent))
    rows, scores = _summed([reader.match(term.stem, term.word) for term in used])
    maximum = float(scores.max(initial=0.0))
    if limit is not None and limit < len(rows):
        best = np.sort(np.lexsort((rows, -scores))[:limit])
        rows, scores = rows[best], scores[best]
    return Lexical(rows, scores, maximum, ideal, tuple(term.stem for term in used))


def common(reader: WordReader, words: Mapping[str, str]) -> list[str]:
    """Return the stems that more than half of the documents have; none of a small collection."""
    size = reader.size()
    if size < FEW_DOCUMENTS:
        return []
    return [stem for stem, word in words.items() if reader.count(stem, word, size // 2) > size // 2]


def idf(documents: int, size: int) -> float:
    """Return the inverse document frequency of a term by FTS5's formula."""
    return max(math.log((size - documents + 0.5) / (documents + 0.5)), LEAST_IDF)


def _rarest(terms: Sequence[_Term], size: int) -> list[_Term]:
    rarest = sorted(terms, key=lambda term: term.documents)[:MAX_TERMS]
    if size <= FULL_DOCUMENTS:
        return rarest
    matches = np.cumsum([term.documents for term in rarest])
    return rarest[: int((matches <= FULL_DOCUMENTS).sum())]


def _summed(matches: Sequence[WordMatch]) -> tuple[Int64, Float64]:
    """Return the rows of the documents of several matches, and the sum of the scores of each."""
    if not matches:
        return np.empty(0, dtype=np.int64), np.empty(0)
    rows = np.concatenate([match.rows for match in matches]).astype(np.int64)
    scores = np.concatenate([match.scores for match in matches])
    first, last = int(rows.min()), int(rows.max())
    if last - first > MAX_SPAN:
        rows, places = np.unique(rows, return_inverse=True)
        return rows, np.bincount(places, weights=scores).astype(np.float64, copy=False)
    # By row, which is several times as fast as sorting: rows are numbered without many gaps.
    sums = np.bincount(rows - first, weights=scores).astype(np.float64, copy=False)
    positions: Int64 = np.flatnonzero(sums).astype(np.int64)
    return positions + first, sums[positions]


def index_problems(db: Database, texts: str) -> Iterator[str]:
    """Compare the index of words with a fresh one of the same texts, in a file of its own.

    Args:
        texts: SQL of the row and text of each document.
    """
    path = Path(
        db.execute("SELECT file FROM pragma_database_list WHERE name = 'main'").fetchone()[0]
    )
    fresh = sqlite3.connect("", uri=True)
    try:
        register(fresh)
        fresh.execute("ATTACH ? AS stored", [f"{path.as_uri()}?mode=ro"])
        yield from _differences(fresh, texts)
    except sqlite3.DatabaseError as error:
        yield f"The index of words cannot be read ({error})."
    finally:
        fresh.close()


def _differences(fresh: sqlite3.Connection, texts: str) -> Iterator[str]:
    sql = fresh.execute("SELECT sql FROM stored.sqlite_master WHERE name = 'lexical'").fetchone()
    fresh.execute(sql[0])
    fresh.execute(
        "INSERT INTO main.lexical (rowid, text) " + texts.replace("documents", "stored.documents")
    )
    for name in ("main", "stored"):
        fresh.execute(
            f"CREATE VIRTUAL TABLE temp.of_{name} USING fts5vocab('{name}', 'lexical', 'row')"
        )
    lengths = _difference(fresh, "id, sz", "{}.lexical_docsize")
    if lengths:
        yield f"The index of words has other texts for {lengths} documents."
    terms = _difference(fresh, "term, doc, cnt", "temp.of_{}")
    if terms:
        yield f"The index of words counts {terms} words otherwise than the texts do."


def _difference(db: sqlite3.Connection, columns: str, table: str) -> int:
    """Count the rows, by their first column, that only the fresh or only the stored table has."""
    one, other = (f"SELECT {columns} FROM {table.format(name)}" for name in ("main", "stored"))
    key = columns.split(",")[0]
    row = db.execute(
        f"SELECT count(DISTINCT {key}) FROM (SELECT * FROM ({one} EXCEPT {other}) "
        f"UNION ALL SELECT * FROM ({other} EXCEPT {one}))"
    ).fetchone()
    return int(row[0])
