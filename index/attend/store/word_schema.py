"""The tables and triggers of the index of words, as the migrations make them."""

from __future__ import annotations

import logging

from sqlite_utils import Database

from attend.store.tokens import SPLIT

log = logging.getLogger("attend")

FILL_ROWS = 50_000
"""Documents whose words are indexed between two lines of the log: some seconds."""

# FTS5 takes a document out by the very text that was put in: both come from here. ORDER BY:
# the same order each time. The replacement: json_each ends a text at NUL (and a blank of the
# same form keeps a backslash that is text valid JSON).
_PLAIN_TEXT = """
    {row}.row, coalesce((
        SELECT group_concat(value, char(10)) FROM (
            SELECT value FROM json_each(replace({row}.fields, '\\u0000', '\\u0020')) ORDER BY id
        )
    ), '')
"""
_INDEXED_TEXT = "{row}.row, document_text({row}.fields)"
"""By the function that `attend.store.tokens.register` gives each connection."""

TEXTS = f"SELECT {_INDEXED_TEXT.format(row='documents')} FROM documents WHERE fields <> '{{}}'"
FILL_LEXICAL = f"INSERT INTO lexical (rowid, text) {TEXTS} ORDER BY row"


def _word_triggers(indexed: str) -> tuple[str, str, str]:
    """Return triggers that keep the index of words in step with documents.

    Documents without any text (they bring vectors) are no part of the lexical collection.

    Args:
        indexed: SQL of the row and the indexed text of a `{row}`.
    """
    add = f"""
    INSERT INTO lexical (rowid, text)
    SELECT {indexed.format(row="new")} WHERE new.fields <> '{{}}';
    UPDATE settings SET value = value + 1 WHERE name = 'texts' AND new.fields <> '{{}}';
"""
    remove = f"""
    INSERT INTO lexical (lexical, rowid, text)
    SELECT 'delete', {indexed.format(row="old")} WHERE old.fields <> '{{}}';
    UPDATE settings SET value = value + 1 WHERE name = 'texts' AND old.fields <> '{{}}';
"""
    return (
        f"CREATE TRIGGER index_text AFTER INSERT ON documents BEGIN {add} END",
        f"CREATE TRIGGER remove_text AFTER DELETE ON documents BEGIN {remove} END",
        # One trigger for both steps: the order in which several would fire is not defined.
        f"""
    CREATE TRIGGER reindex_text AFTER UPDATE OF row, fields ON documents
    WHEN old.fields <> new.fields OR old.row <> new.row BEGIN {remove} {add} END
    """,
    )


LEXICAL = (
    # Contentless: the texts are in `documents`. Before SQLite 3.43 such a table knows no DELETE
    # of its own, hence the command 'delete', which every version understands.
    """
    CREATE VIRTUAL TABLE lexical USING fts5(
        text, content = '', tokenize = 'porter unicode61 remove_diacritics 2'
    )
    """,
    # Counts changes of texts, for those who keep what they have read of them.
    "INSERT INTO settings (name, value) VALUES ('texts', '0')",
    *_word_triggers(_PLAIN_TEXT),
    f"INSERT INTO lexical (rowid, text) SELECT {_PLAIN_TEXT.format(row='documents')} "
    "FROM documents WHERE fields <> '{}' ORDER BY row",
)

WORDS_OF_ALL_SCRIPTS = (
    *(f"DROP TRIGGER {name}" for name in ("index_text", "remove_text", "reindex_text")),
    "DROP TABLE lexical",
    f"""CREATE VIRTUAL TABLE lexical USING fts5(text, content = '', tokenize = "porter {SPLIT}")""",
    *_word_triggers(_INDEXED_TEXT),
    "UPDATE settings SET value = value + 1 WHERE name = 'texts'",
)


def fill_words(db: Database) -> None:
    """Index the words of all documents, and log the progress where it takes a while."""
    last = db.execute("SELECT coalesce(max(row), 0) FROM documents").fetchone()[0]
    for first in range(0, last, FILL_ROWS):
        db.execute(
            f"INSERT INTO lexical (rowid, text) {TEXTS} AND row > ? AND row <= ? ORDER BY row",
            [first, first + FILL_ROWS],
        )
        if last > FILL_ROWS:
            done = min(1, (first + FILL_ROWS) / last)
            log.warning("The index of words is made again, once: %d %%", round(100 * done))
