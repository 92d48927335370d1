"""Which parts of a passage are words of the query, as the lexical index has words."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Sequence
from typing import NamedTuple

from attend.store.words import SPLIT, TOKENIZER

BEGIN, END = "\ufdd0", "\ufdd1"
"""Marks that no text can hold on purpose: Unicode's noncharacters, which part words."""

_BLANK = str.maketrans({BEGIN: " ", END: " ", "\x00": " "})


class Span(NamedTuple):
    """`text[start:stop]`, in characters."""

    start: int
    stop: int


class Highlighter:
    """Finds the words of a query in texts, by their stems. Threads may share one."""

    def __init__(self) -> None:
        self._local = threading.local()

    def spans(self, query: Sequence[str], texts: Sequence[str]) -> list[list[Span]]:
        """For each text where words of the query stand in it, in order.

        >>> Highlighter().spans(["databases"], ["A database of Databases."])
        [[Span(start=2, stop=10), Span(start=14, stop=23)]]
        """
        words = {word for text in query for word in TOKENIZER.words(text).values()}
        if not words or not texts:
            return [[] for _ in texts]
        asked = " OR ".join('"' + word.replace('"', '""') + '"' for word in words)
        return [_spans(marked) for marked in self._marked(asked, texts)]

    def _marked(self, asked: str, texts: Sequence[str]) -> list[str]:
        """The texts with a mark before and after each match, but for that as long as they are."""
        tables = self._tables()
        tables.execute("BEGIN")
        try:
            # Half a surrogate pair is no UTF-8; as '?' it has the same length, and parts words.
            plain = [text.translate(_BLANK).encode("utf-8", "replace").decode() for text in texts]
            tables.executemany("INSERT INTO texts (rowid, text) VALUES (?, ?)", enumerate(plain))
            found = tables.execute(
                "SELECT rowid, highlight(texts, 0, ?, ?) FROM texts WHERE texts MATCH ?",
                [BEGIN, END, asked],
            )
            marked = dict(found.fetchall())
            return [marked.get(at, text) for at, text in enumerate(plain)]
        finally:
            tables.execute("ROLLBACK")

    def _tables(self) -> sqlite3.Connection:
        """This thread's own table, in memory, empty between two calls."""
        tables: sqlite3.Connection | None = getattr(self._local, "tables", None)
        if tables is None:
            tables = self._local.tables = sqlite3.connect(":memory:", isolation_level=None)
            tables.execute(
                f"CREATE VIRTUAL TABLE texts USING fts5(text, tokenize = 'porter {SPLIT}')"
            )
        return tables


HIGHLIGHTER = Highlighter()
"""One for all: it keeps nothing."""


def _spans(marked: str) -> list[Span]:
    """Where the marks stand, in the text without them."""
    spans = []
    before, *matches = marked.split(BEGIN)
    length = len(before)
    for match in matches:
        inside, after = match.split(END)
        spans.append(Span(length, length + len(inside)))
        length += len(inside) + len(after)
    return spans
