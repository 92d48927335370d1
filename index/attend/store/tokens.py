"""The text that the index of words sees: words of all scripts, and the parts of identifiers.

FTS5's unicode61 splits at blanks and signs. Chinese, Japanese, Thai, Lao, Khmer and Burmese write
words without blanks, and Korean writes particles onto them: a run of such letters is indexed as
its pairs of neighbours (`しりとり` as `しり`, `りと`, `とり`), and its last letter alone, so that
each letter begins a token. An identifier in camel case is indexed whole and by its parts. Other
text stays as it is.
"""

from __future__ import annotations

import json
import re
import sqlite3
import unicodedata
from collections.abc import Collection, Iterator
from itertools import pairwise
from typing import NamedTuple

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


class Piece(NamedTuple):
    """A piece of an indexed text: what stands at (start, stop), or another text for it."""

    start: int
    stop: int
    text: str | None = None

    def read(self, text: str) -> str:
        """Return the piece as FTS5 sees it."""
        return text[self.start : self.stop] if self.text is None else self.text


class IndexedText(NamedTuple):
    """A text as FTS5 sees it.

    Attributes:
        places: for each character its (start, stop) in the original; None if both are the same.
    """

    text: str
    places: list[tuple[int, int]] | None


def indexed_text(text: str, *, query: bool = False) -> str:
    """Return the text to index, or the words of a query in the same form.

    Args:
        query: leave out the last letters of runs, which stand for their pairs.

    >>> indexed_text("getHTTPResponse しりとり")
    'getHTTPResponse get HTTP Response しり りと とり り'
    """
    text = _folded(text)
    pieces = _pieces(text, query)
    return " ".join([piece.read(text) for piece in pieces]) if pieces else text


def traced_text(text: str) -> IndexedText:
    """Return the same for a document, with the places of its characters in the original."""
    text, places = _traced_fold(text)
    pieces = _pieces(text, False)
    if not pieces:
        return IndexedText(text, places)
    sources = places or [(place, place + 1) for place in range(len(text))]
    traced: list[tuple[int, int]] = []
    for start, stop, other in pieces:
        span = sources[start][0], sources[stop - 1][1]
        traced += sources[start:stop] if other is None else [span] * len(other)
        traced.append(span)  # the blank after it
    return IndexedText(" ".join([piece.read(text) for piece in pieces]), traced[:-1])


def phrases(text: str) -> tuple[str, list[str]]:
    """Split a text into its other words, as text, and its unspaced runs, each as a phrase.

    >>> phrases("文書 about しりとり")
    ('  about  ', ['文書', 'しり りと とり'])
    """
    text = _folded(text)
    runs = [" ".join([pair.read(text) for pair in pairs]) for pairs in _runs(text, True)]
    return _UNSPACED.sub(" ", text), runs


def is_letter(word: str) -> bool:
    """Return whether a word is one letter of an unspaced script, which begins longer tokens."""
    return _LETTER.fullmatch(word) is not None


def letter_spans(text: str, letters: Collection[str]) -> list[tuple[int, int]]:
    """Return where such letters stand in a text, also as the beginning of one with more marks.

    >>> letter_spans("กั ข", ["ก", "ข"])
    [(0, 1), (3, 4)]
    """
    # By a set: thousands of alternatives would be tried at each place.
    wanted, lengths = set(letters), sorted(set(map(len, letters)))
    return [
        (match.start(), match.start() + length)
        for match in (_LETTER.finditer(text) if wanted else ())
        for length in lengths
        if length <= len(match[0]) and match[0][:length] in wanted
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


def register(connection: sqlite3.Connection) -> None:
    """Give a connection the function that triggers index texts by."""
    connection.create_function("document_text", 1, document_text, deterministic=True)


def _pieces(text: str, query: bool) -> list[Piece]:
    """Return the pieces of a text that make its indexed form; none if it stays as it is."""
    special = [*_identifiers(text), *_runs(text, query)]
    special.sort(key=lambda parts: parts[0])
    pieces, done = [], 0
    for parts in special:
        start, stop = parts[0].start, max(part.stop for part in parts)
        if done < start:
            pieces.append(Piece(done, start))
        pieces += parts
        done = stop
    if special and done < len(text):
        pieces.append(Piece(done, len(text)))
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
        pieces = [Piece(start, done)]
        plain = name.replace(".", "").replace("_", "")
        if plain != name:
            pieces.append(Piece(start, done, plain))
        # A part between two signs is a token already, and one letter says nothing.
        pieces += [
            Piece(*part.span())
            for part in _PART.finditer(text, start, done)
            if len(part[0]) > 1 and _has_letters_beside(text, *part.span())
        ]
        yield pieces


def _has_letters_beside(text: str, start: int, stop: int) -> bool:
    beside = text[max(start - 1, 0) : start] + text[stop : stop + 1]
    return any(map(str.isalnum, beside))


def _runs(text: str, query: bool) -> Iterator[list[Piece]]:
    """Yield the pieces of each run without blanks."""
    if text.isascii() or not _FOREIGN.search(text):
        return
    for run in _UNSPACED.finditer(text):
        letters = [letter.span() for letter in _LETTER.finditer(text, *run.span())]
        pairs = [Piece(one[0], other[1]) for one, other in pairwise(letters)]
        if not pairs or not query:
            pairs.append(Piece(*letters[-1]))
        yield pairs


def _folded(text: str) -> str:
    """Write every sign in one way."""
    if text.isascii() or not _FOREIGN.search(text):
        return text
    return _FOLDED.sub(lambda match: _fold(match[0]), text)


def _traced_fold(text: str) -> IndexedText:
    """Do the same, with the places of the characters in the original."""
    if text.isascii() or not _FOLDED.search(text):
        return IndexedText(text, None)
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
    return IndexedText("".join([*parts, text[done:]]), places)


def _fold(text: str) -> str:
    normal = unicodedata.normalize("NFKC", text)
    return "" if unicodedata.category(normal[0]) == "Mn" or normal[0] == "\u0640" else normal
