"""Words: the text that the index of words sees, and BM25 over it by SQLite's FTS5.

FTS5's unicode61 splits at blanks and signs. Chinese, Japanese, Thai, Lao, Khmer and Burmese write
words without blanks, and Korean writes particles onto them: a run of such letters is indexed as
its pairs of neighbours (`しりとり` as `しり`, `りと`, `とり`), and its last letter alone, so that
each letter begins a token. An identifier in camel case is indexed whole and by its parts. Other
text stays as it is.

A query is a bag of words, whatever its text holds: nothing in it is syntax. The score of a query
is the sum of its words' scores, so that the matches of single words are cached.
"""

from __future__ import annotations

import json
import math
import re
import sqlite3
import threading
import unicodedata
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from sqlite_utils import Database

from attend.core.types import Float32, Float64, Int64

SPLIT = "unicode61 remove_diacritics 2 categories 'L* N* Co Mn Mc'"
"""How FTS5 makes tokens of the text (sqlite.org/fts5.html#tokenizers). With the marks (Mn, Mc), or
it would split words of Hindi and Thai at each vowel sign. `porter` makes stems of the tokens."""

_MARKS = (
    "\u0e31\u0e34-\u0e3a\u0e47-\u0e4e"  # Thai
    "\u0eb1\u0eb4-\u0ebc\u0ec8-\u0ece"  # Lao
    "\u102b-\u103e\u1056-\u1059\u105e-\u1060\u1062-\u1064\u1067-\u106d\u1071-\u1074\u1082-\u108d"
    "\u17b4-\u17d3\u17dd"  # Khmer
)
_LETTERS = (
    "\u0e01-\u0e30\u0e32\u0e33\u0e40-\u0e46"  # Thai
    "\u0e81-\u0eb0\u0eb2\u0eb3\u0ebd-\u0ec6\u0edc-\u0edf"  # Lao
    "\u1000-\u102a\u103f\u1050-\u1055\u105a-\u105d\u1061\u1065\u1066\u106e-\u1070\u1075-\u1081"
    "\u1780-\u17b3\u17d7\u17dc"  # Khmer
    "\u1100-\u11ff\u3130-\u318f\uac00-\ud7a3"  # Korean
    "\u3005-\u3007\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff"  # Japanese
    "\u3105-\u312f\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003fffd"  # Chinese
)
_UNSPACED = re.compile(f"[{_LETTERS}][{_LETTERS}{_MARKS}]*")
_LETTER = re.compile(f"[{_LETTERS}][{_MARKS}]*")

_INNER = re.compile(
    r"[A-Z._](?:(?<=[a-z\d][A-Z])(?=[a-z])|(?<=[A-Z])(?=[A-Z][a-z]{2})"
    r"|(?<=[A-Za-z\d][._])(?=[A-Za-z\d]))"
)
"""Where an identifier may be split (`getHTTPResponse`, `os.path`, `snake_case`), but not within
`mRNA` or `DNAs`. It begins with few characters, which makes it several times as fast as a pattern
that begins with any letter: it reads every text."""

_IDENTIFIER = re.compile(r"[A-Za-z\d]+(?:[._][A-Za-z\d]+)*")
_PART = re.compile(r"[A-Z]+(?=[A-Z][a-z]{2})|[A-Z]*[a-z\d]+|[A-Z]+")

_FOREIGN = re.compile("[\u0590-\U0010ffff]")
"""What a text has that is folded or unspaced: a quick look before the slow ones."""

_FOLDED = re.compile(
    "[\u0610-\u061a\u0640\u064b-\u065f\u0670\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7]+"
    "|.[\u3099\u309a\uff9e\uff9f]|[\u1100-\u1112][\u1161-\u1175][\u11a8-\u11c2]?"
    "|[\ufb00-\ufb06\ufb1d-\ufdff\ufe70-\ufefc\uff01-\uff9d]"
)
"""Signs that people write in two ways: points of vowels (which are left out), kana and Korean
syllables in several characters, and forms of another width or for a place in a word."""


Piece = tuple[int, int, str | None]
"""A piece of an indexed text: what stands at (start, stop), or another text for it."""


def _joined(text: str, pieces: Sequence[Piece]) -> str:
    """Return pieces of a text as FTS5 sees them."""
    return " ".join(text[start:stop] if other is None else other for start, stop, other in pieces)


def indexed_text(text: str, *, query: bool = False) -> str:
    """Return the text to index, or the words of a query in the same form.

    Args:
        query: leave out the last letters of runs, which stand for their pairs.

    >>> indexed_text("getHTTPResponse しりとり")
    'getHTTPResponse get HTTP Response しり りと とり り'
    """
    text = _folded(text)
    pieces = _pieces(text, query)
    return _joined(text, pieces) if pieces else text


def traced_text(text: str) -> tuple[str, list[tuple[int, int]] | None]:
    """Return the same for a document, and for each character its (start, stop) in the original.

    None stands for places that are the same.
    """
    text, places = _traced_fold(text)
    pieces = _pieces(text, False)
    if not pieces:
        return text, places
    sources = places or [(place, place + 1) for place in range(len(text))]
    traced: list[tuple[int, int]] = []
    for start, stop, other in pieces:
        span = sources[start][0], sources[stop - 1][1]
        traced += sources[start:stop] if other is None else [span] * len(other)
        traced.append(span)  # the blank after it
    return _joined(text, pieces), traced[:-1]


def phrases(text: str) -> tuple[str, list[str]]:
    """Split a text into its other words, as text, and its unspaced runs, each as a phrase.

    >>> phrases("文書 about しりとり")
    ('  about  ', ['文書', 'しり りと とり'])
    """
    text = _folded(text)
    return _UNSPACED.sub(" ", text), [_joined(text, pairs) for pairs in _runs(text, True)]


def is_letter(word: str) -> bool:
    """Return whether a word is one letter of an unspaced script, which begins longer tokens."""
    return _LETTER.fullmatch(word) is not None


def letter_spans(text: str, letters: Collection[str]) -> list[tuple[int, int]]:
    """Return where such letters stand in a text, also as the beginning of one with more marks.

    >>> letter_spans("กั ข", ["ก", "ข"])
    [(0, 1), (3, 4)]
    """
    # By a set: thousands of alternatives would be tried at each place.
    starts, lengths = set(letters), sorted(set(map(len, letters)))
    return [
        (match.start(), match.start() + length)
        for match in (_LETTER.finditer(text) if starts else ())
        for length in lengths
        if length <= len(match[0]) and match[0][:length] in starts
    ]


def quoted(word: str) -> str:
    """Quote a word or a phrase for FTS5, so that it is never syntax."""
    text = '"' + word.replace('"', '""') + '"'
    return f"{text}*" if is_letter(word) else text


def document_text(fields: str) -> str:
    """Return the text to index of a document, from its fields as JSON; "" for what has none."""
    try:
        texts = [text for text in json.loads(fields).values() if isinstance(text, str)]
    except (ValueError, AttributeError, RecursionError):
        return ""
    return indexed_text(readable("\n".join(texts)))


def readable(text: str) -> str:
    """Return a text that SQLite can hold.

    Half a surrogate pair is no UTF-8: as '?' it has the same length, and separates words. At NUL
    a text would end.
    """
    if not text.isascii():
        text = text.encode("utf-8", "replace").decode("utf-8")
    return text.replace("\x00", " ")


def folded(text: bytes | None) -> bytes | None:
    """Return a text in one case; bytes, for it may have half of a surrogate pair."""
    if text is None:
        return None
    return text.decode("utf-8", "surrogatepass").casefold().encode("utf-8", "surrogatepass")


def register(connection: sqlite3.Connection) -> None:
    """Give a connection the function that triggers index texts by."""
    connection.create_function("document_text", 1, document_text, deterministic=True)


def _pieces(text: str, query: bool) -> list[Piece]:
    """Return the pieces of a text that make its indexed form; none if it stays as it is."""
    special = [*_identifiers(text), *_runs(text, query)]
    special.sort(key=lambda parts: parts[0][:2])
    pieces: list[Piece] = []
    done = 0
    for parts in special:
        start, stop = parts[0][0], max(stop for _, stop, _ in parts)
        if done < start:
            pieces.append((done, start, None))
        pieces += parts
        done = stop
    if special and done < len(text):
        pieces.append((done, len(text), None))
    return pieces


def _identifiers(text: str) -> Iterator[list[Piece]]:
    """Yield the pieces of each identifier: itself, without its signs, and parts in camel case."""
    done = 0
    for inner in _INNER.finditer(text):
        start = inner.start()
        if start < done:
            continue
        while start > done and text[start - 1].isalnum() and text[start - 1].isascii():
            start -= 1
        match = _IDENTIFIER.match(text, start)
        assert match is not None  # a letter or a digit at least
        done, name = match.end(), match[0]
        if not any(map(str.isalpha, name)):
            continue  # 3.14
        pieces: list[Piece] = [(start, done, None)]
        plain = name.replace(".", "").replace("_", "")
        if plain != name:
            pieces.append((start, done, plain))
        # A part between two signs is a token already, and one letter says nothing.
        for part in _PART.finditer(text, start, done):
            first, last = part.span()
            beside = text[max(first - 1, 0) : first] + text[last : last + 1]
            if last - first > 1 and any(map(str.isalnum, beside)):
                pieces.append((first, last, None))
        yield pieces


def _runs(text: str, query: bool) -> Iterator[list[Piece]]:
    """Yield the pieces of each run without blanks."""
    if text.isascii() or not _FOREIGN.search(text):
        return
    for run in _UNSPACED.finditer(text):
        letters = [letter.span() for letter in _LETTER.finditer(text, *run.span())]
        pairs: list[Piece] = [(one[0], other[1], None) for one, other in pairwise(letters)]
        if not pairs or not query:
            pairs.append((*letters[-1], None))
        yield pairs


def _folded(text: str) -> str:
    """Write every sign in one way."""
    if text.isascii() or not _FOREIGN.search(text):
        return text
    return _FOLDED.sub(lambda match: _fold(match[0]), text)


def _traced_fold(text: str) -> tuple[str, list[tuple[int, int]] | None]:
    """Do the same, with the places of the characters in the original."""
    if text.isascii() or not _FOLDED.search(text):
        return text, None
    parts: list[str] = []
    places: list[tuple[int, int]] = []
    done = 0
    for match in _FOLDED.finditer(text):
        fold = _fold(match[0])
        parts += [text[done : match.start()], fold]
        places += [(place, place + 1) for place in range(done, match.start())]
        places += [match.span()] * len(fold)
        done = match.end()
    places += [(place, place + 1) for place in range(done, len(text))]
    return "".join([*parts, text[done:]]), places


def _fold(text: str) -> str:
    normal = unicodedata.normalize("NFKC", text)
    return "" if unicodedata.category(normal[0]) == "Mn" or normal[0] == "\u0640" else normal


# -- BM25 ------------------------------------------------------------------------------------

MAX_STEMS = 1024
"""Distinct stems of a text that are used, the first ones: twice what most encoders read."""

K1, B = 1.2, 0.75
"""FTS5's k1 and b in bm25() (sqlite.org/fts5.html#the_bm25_function)."""

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

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class LimitedCache(Generic[Key, Value]):
    """Keeps the values used last. Threads may share one.

    Args:
        limit: the total size of the values.
        size: returns the size of a value.
    """

    def __init__(self, limit: int, size: Callable[[Value], int]) -> None:
        self._limit = limit
        self._size_of = size
        self._size = 0
        self._values: dict[Key, Value] = {}
        self._lock = threading.Lock()

    def get(self, key: Key) -> Value | None:
        with self._lock:
            value = self._values.pop(key, None)
            if value is not None:
                self._values[key] = value  # last again: the first ones go first
            return value

    def read(self, key: Key, read: Callable[[], Value]) -> Value:
        """Return a value that is kept, or read it and keep it."""
        value = self.get(key)
        return self.put(key, read()) if value is None else value

    def put(self, key: Key, value: Value) -> Value:
        """Keep a value, and drop those that were used longest ago. Return the value."""
        with self._lock:
            if key not in self._values:
                self._values[key] = value
                self._size += self._size_of(value)
                while self._size > self._limit and len(self._values) > 1:
                    first = next(iter(self._values))
                    self._size -= self._size_of(self._values.pop(first))
        return value


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
        with self._filled(text, "words", "stems") as tables:
            places = dict(tables.execute("SELECT offset, term FROM word_places"))
            stems = tables.execute(
                "SELECT term, min(offset) AS first FROM stem_places GROUP BY term "
                "ORDER BY first LIMIT ?",
                [MAX_STEMS],
            )
            # Accents alone make an empty token.
            return {stem: places[first] for stem, first in stems if places[first]}

    def counts(self, text: str) -> dict[str, int]:
        """Return how often a text has each of its stems, as the index counts them."""
        with self._filled(indexed_text(readable(text)), "stems") as tables:
            select = "SELECT term, count(*) FROM stem_places GROUP BY term"
            return dict(tables.execute(select).fetchall())

    def holds(self, fields: str, name: str, query: str) -> bool:
        """Return whether a field of a document, as JSON, matches an FTS5 query."""
        text = json.loads(fields).get(name)
        if not isinstance(text, str):
            return False
        with self._filled(indexed_text(readable(text)), "stems") as tables:
            matches = tables.execute("SELECT 1 FROM stems WHERE stems MATCH ?", [query])
            return matches.fetchone() is not None

    @contextmanager
    def _filled(self, text: str, *names: str) -> Iterator[sqlite3.Connection]:
        """Yield this thread's own tables, in memory, some of which have a text within the block."""
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
        tables.execute("BEGIN")
        try:
            for name in names:
                tables.execute(f"INSERT INTO {name} VALUES (?)", [text])
            yield tables
        finally:
            tables.execute("ROLLBACK")


TOKENIZER = Tokenizer()
"""Shared by all: it stores nothing."""


WordMatch = tuple[NDArray[np.unsignedinteger[Any]], Float32]
"""The rows of documents that have one word (n,), ascending, in as few bytes as they need; and the
BM25 of this word alone, above 0 (n,)."""


class WordCache:
    """Caches what was read of words, by the state of the texts. Threads may share one."""

    def __init__(self) -> None:
        self.matches = LimitedCache[tuple[int, str], WordMatch](
            CACHED_SCORES, lambda match: len(match[0]) + OVERHEAD
        )
        self.counts = LimitedCache[tuple[int, str, int | None], int](MAX_COUNTS, lambda count: 1)


class WordReader:
    """Reads words within one read transaction."""

    def __init__(self, db: Database, cache: WordCache) -> None:
        self._db = db
        self._cache = cache
        row = db.execute("SELECT value FROM settings WHERE name = 'texts'").fetchone()
        self._texts = int(row[0])

    def size(self) -> int:
        """Return the number of documents that have texts."""
        return self._counted("", None, "SELECT count(*) FROM lexical_docsize", [])

    def mean_length(self) -> float:
        """Return the mean number of tokens of a document that has texts; 1 without any.

        FTS5 keeps both sums as two numbers of seven bits a byte, the highest first.
        """
        block = self._db.execute("SELECT block FROM lexical_data WHERE id = 1").fetchone()[0]
        numbers = [0]
        for byte in block:
            numbers[-1] = numbers[-1] << 7 | byte & 0x7F
            if byte < 0x80:
                numbers.append(0)
        return numbers[1] / numbers[0] if numbers[0] else 1.0

    def count(self, stem: str, word: str, most: int) -> int:
        """Return the number of documents that have a word, or `most` + 1 if there are more."""
        select = "SELECT count(*) FROM (SELECT 1 FROM lexical WHERE lexical MATCH ? LIMIT ?)"
        return self._counted(stem, most, select, [quoted(word), most + 1])

    def _counted(self, stem: str, most: int | None, select: str, parameters: Sequence[Any]) -> int:
        return self._cache.counts.read(
            (self._texts, stem, most),
            lambda: int(self._db.execute(select, parameters).fetchone()[0]),
        )

    def match(self, stem: str, word: str) -> WordMatch:
        """Return the documents that have a word."""
        match = self._cache.matches.get((self._texts, stem))
        if match is not None:
            return match
        pairs = self._db.execute(
            "SELECT rowid, -bm25(lexical) FROM lexical WHERE lexical MATCH ?", [quoted(word)]
        ).fetchall()
        rows = np.array([row for row, _ in pairs], dtype=np.int64)
        narrow = rows.astype(np.min_scalar_type(int(rows.max(initial=0))))
        scores = np.array([score for _, score in pairs], dtype=np.float32)
        return self._cache.matches.put((self._texts, stem), (narrow, scores))


class FewerWords(WordReader):
    """Reads words as if some documents were not there: each word's matches are counted again.

    Scores have the inverse document frequencies of the documents that are left. The mean length of
    texts, which a few documents hardly change, stays that of the whole collection.

    Args:
        absent: rows of the documents that count as absent, ascending.
    """

    def __init__(self, db: Database, cache: WordCache, absent: Int64) -> None:
        super().__init__(db, cache)
        self._rows = absent
        self._whole = super().size()
        # The limit of a search of the whole collection, by which counts are cached.
        self._most = min(self._whole // 2, FULL_DOCUMENTS)
        select = "SELECT count(*) FROM lexical_docsize WHERE id IN (SELECT value FROM json_each(?))"
        self._left = self._whole - int(
            db.execute(select, [json.dumps(absent.tolist())]).fetchone()[0]
        )

    def size(self) -> int:
        """Return the number of documents that are left and have texts."""
        return self._left

    def count(self, stem: str, word: str, most: int) -> int:
        """Return the number of documents left that have a word, or more than `most`.

        A word that more than half of the whole collection has counts as one that half of what is
        left have.
        """
        count = super().count(stem, word, self._most)
        return count - len(self._absent(stem, word)) if 0 < count <= self._most else count

    def match(self, stem: str, word: str) -> WordMatch:
        """Return the documents left that have a word."""
        (rows, scores), absent = super().match(stem, word), self._absent(stem, word)
        left = np.delete(rows, absent)
        before = idf(super().count(stem, word, self._most), self._whole)
        factor = np.float32(idf(len(left), self._left) / before)
        return left, np.delete(scores, absent) * factor

    def _absent(self, stem: str, word: str) -> Int64:
        """Return the places of absent documents among those that have a word."""
        rows, _ = super().match(stem, word)
        places = np.minimum(np.searchsorted(rows, self._rows), len(rows) - 1)
        return np.asarray(places[rows[places] == self._rows], dtype=np.int64)


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


def search(reader: WordReader, words: Mapping[str, str], limit: int | None = None) -> Lexical:
    """Find the documents that have any of the words (by stem): all of them, or the best.

    Words that more than half of the documents have are left out: each would add at most
    LEAST_IDF * (K1 + 1) to a score, and nearly every document to the result.
    """
    size = reader.size()
    most = min(size // 2, FULL_DOCUMENTS)
    counts = {stem: reader.count(stem, word, most) for stem, word in words.items()}
    matching = [stem for stem, count in counts.items() if 0 < count <= most]
    used = sorted(matching, key=counts.__getitem__)[:MAX_TERMS]  # the rarest
    if size > FULL_DOCUMENTS:
        totals = np.cumsum([counts[stem] for stem in used])
        used = used[: int((totals <= FULL_DOCUMENTS).sum())]
    absent = [stem for stem, count in counts.items() if not count]
    ideal = (K1 + 1) * sum(idf(counts[stem], size) for stem in (*used, *absent))
    rows, scores = _summed([reader.match(stem, words[stem]) for stem in used])
    maximum = float(scores.max(initial=0.0))
    if limit is not None and limit < len(rows):
        best = np.sort(np.lexsort((rows, -scores))[:limit])
        rows, scores = rows[best], scores[best]
    return Lexical(rows, scores, maximum, ideal, tuple(used))


def score_texts(reader: WordReader, words: Mapping[str, str], texts: Sequence[str]) -> Lexical:
    """Score texts by the words of a query, as if they stood among the documents.

    Returns: the positions of the texts that share a word, in the place of rows; frequencies and
        the mean length are those of the documents.
    """
    here, size, mean = search(reader, words), reader.size(), reader.mean_length()
    most = min(size // 2, FULL_DOCUMENTS)
    counts = {stem: reader.count(stem, word, most) for stem, word in words.items()}
    rarest = sorted(counts, key=counts.__getitem__)[:MAX_TERMS]
    weights = {stem: idf(counts[stem], size) for stem in rarest if counts[stem] <= most}
    scores = np.zeros(len(texts))
    for place, text in enumerate(texts):
        occurrences = TOKENIZER.counts(text)
        longer = K1 * (1 - B + B * sum(occurrences.values()) / mean)
        shared = weights.keys() & occurrences.keys()
        scores[place] = sum(
            weights[stem] * occurrences[stem] * (K1 + 1) / (occurrences[stem] + longer)
            for stem in shared
        )
    rows = np.flatnonzero(scores)
    maximum = max(here.maximum, float(scores.max(initial=0.0)))
    return Lexical(rows, scores[rows], maximum, here.ideal, here.terms)


def common(reader: WordReader, words: Mapping[str, str]) -> list[str]:
    """Return the stems that more than half of the documents have; none of a small collection."""
    size = reader.size()
    if size < FEW_DOCUMENTS:
        return []
    return [stem for stem, word in words.items() if reader.count(stem, word, size // 2) > size // 2]


def idf(documents: int, size: int) -> float:
    """Return the inverse document frequency of a term by FTS5's formula."""
    return max(math.log((size - documents + 0.5) / (documents + 0.5)), LEAST_IDF)


def _summed(matches: Sequence[WordMatch]) -> tuple[Int64, Float64]:
    """Return the rows of the documents of several matches, and the sum of the scores of each."""
    if not matches:
        return np.empty(0, dtype=np.int64), np.empty(0)
    rows = np.concatenate([rows for rows, _ in matches]).astype(np.int64)
    scores = np.concatenate([scores for _, scores in matches])
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
