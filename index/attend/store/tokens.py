"""A query's words, as the index of texts has them."""

from __future__ import annotations

import sqlite3
import threading

SPLIT = "unicode61 remove_diacritics 2"
"""How a text becomes words (sqlite.org/fts5.html#tokenizers); `porter` makes stems of these."""

MAX_STEMS = 1024
"""Distinct stems of a text that are looked at, the first: twice what most encoders read."""


class Tokenizer:
    """Texts to words by SQLite itself, which also made the index. Threads may share one."""

    def __init__(self) -> None:
        self._local = threading.local()

    def words(self, text: str) -> dict[str, str]:
        """A text's distinct stems in the order they occur, each with a word that has it.

        It is the word that must be looked for: the stem of 'databases' is 'databas', and the
        stem of that another.
        """
        tables = self._tables()
        # Half a surrogate pair is no UTF-8; as '?' it parts words, as it does in the index.
        given = text.encode("utf-8", "replace").decode("utf-8")
        tables.execute("BEGIN")
        try:
            tables.execute("INSERT INTO words VALUES (?)", [given])
            tables.execute("INSERT INTO stems VALUES (?)", [given])
            places = dict(tables.execute("SELECT offset, term FROM word_places"))
            stems = tables.execute(
                "SELECT term, min(offset) AS first FROM stem_places GROUP BY term "
                "ORDER BY first LIMIT ?",
                [MAX_STEMS],
            )
            return {stem: places[first] for stem, first in stems}
        finally:
            tables.execute("ROLLBACK")

    def holds(self, text: str, query: str) -> bool:
        """Whether a text matches an FTS5 query, as the index would have it."""
        tables = self._tables()
        tables.execute("BEGIN")
        try:
            tables.execute("INSERT INTO stems VALUES (?)", [text])
            found = tables.execute("SELECT 1 FROM stems WHERE stems MATCH ?", [query])
            return found.fetchone() is not None
        finally:
            tables.execute("ROLLBACK")

    def _tables(self) -> sqlite3.Connection:
        """This thread's own tables, in memory, each empty between two texts."""
        tables: sqlite3.Connection | None = getattr(self._local, "tables", None)
        if tables is None:
            tables = self._local.tables = sqlite3.connect(":memory:", isolation_level=None)
            for name, tokenize in (("word", SPLIT), ("stem", f"porter {SPLIT}")):
                tables.execute(
                    f"CREATE VIRTUAL TABLE {name}s USING fts5("
                    f"text, content = '', tokenize = '{tokenize}')"
                )
                tables.execute(
                    f"CREATE VIRTUAL TABLE {name}_places USING fts5vocab ({name}s, 'instance')"
                )
        return tables


TOKENIZER = Tokenizer()
"""One for all: it keeps nothing."""
