"""The schema, as steps that are only appended to; each runs once, in a transaction."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable

from sqlite_utils import Database, Migrations

from attend.store.filters import kind_of
from attend.store.words import SPLIT, register

log = logging.getLogger("attend")

FILL_ROWS = 50_000
"""Documents whose words are indexed between two lines of the log: some seconds."""

# FTS5 takes a document out by the very text that was put in: both come from here, by the function
# that `attend.store.words.register` gives each connection.
_INDEXED_TEXT = "{row}.row, document_text({row}.fields)"

TEXTS = f"SELECT {_INDEXED_TEXT.format(row='documents')} FROM documents WHERE fields <> '{{}}'"
FILL_LEXICAL = f"INSERT INTO lexical (rowid, text) {TEXTS} ORDER BY row"

# Documents without any text (they bring vectors) are no part of the lexical collection.
_ADD_WORDS = f"""
    INSERT INTO lexical (rowid, text)
    SELECT {_INDEXED_TEXT.format(row="new")} WHERE new.fields <> '{{}}';
    UPDATE settings SET value = value + 1 WHERE name = 'texts' AND new.fields <> '{{}}';
"""
_REMOVE_WORDS = f"""
    INSERT INTO lexical (lexical, rowid, text)
    SELECT 'delete', {_INDEXED_TEXT.format(row="old")} WHERE old.fields <> '{{}}';
    UPDATE settings SET value = value + 1 WHERE name = 'texts' AND old.fields <> '{{}}';
"""

_WORDS = (
    # Of an index that split texts otherwise, as the second migration made it once. By `main`: a
    # database that is copied from may be attached.
    *(f"DROP TRIGGER IF EXISTS main.{n}" for n in ("index_text", "remove_text", "reindex_text")),
    "DROP TABLE IF EXISTS main.lexical",
    # Contentless: the texts are in `documents`. Before SQLite 3.43 such a table knows no DELETE
    # of its own, hence the command 'delete', which every version understands.
    f"""CREATE VIRTUAL TABLE lexical USING fts5(text, content = '', tokenize = "porter {SPLIT}")""",
    f"CREATE TRIGGER index_text AFTER INSERT ON documents BEGIN {_ADD_WORDS} END",
    f"CREATE TRIGGER remove_text AFTER DELETE ON documents BEGIN {_REMOVE_WORDS} END",
    # One trigger for both steps: the order in which several would fire is not defined.
    f"""
    CREATE TRIGGER reindex_text AFTER UPDATE OF row, fields ON documents
    WHEN old.fields <> new.fields OR old.row <> new.row BEGIN {_REMOVE_WORDS} {_ADD_WORDS} END
    """,
    "UPDATE settings SET value = value + 1 WHERE name = 'texts'",
)


def fill_words(db: Database) -> None:
    """Index the words of all documents, and log the progress where it takes a while."""
    register(db.conn)
    count = db.execute("SELECT count(*) FROM documents").fetchone()[0]
    block = "SELECT max(row) FROM (SELECT row FROM documents WHERE row > ? ORDER BY row LIMIT ?)"
    last = -(2**63)
    for done in range(0, count, FILL_ROWS):
        first, last = last, db.execute(block, [last, FILL_ROWS]).fetchone()[0]
        db.execute(
            f"INSERT INTO lexical (rowid, text) {TEXTS} AND row > ? AND row <= ? ORDER BY row",
            [first, last],
        )
        if count > FILL_ROWS:
            share = min(1, (done + FILL_ROWS) / count)
            log.warning("The index of words is made again, once: %d %%", round(100 * share))


_M001 = (
    "CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    # `row` is the id inside; `id` is the caller's. AUTOINCREMENT on both tables, because
    # a published index may still speak of a row or key that is gone: it must never meet
    # a new one under the old number.
    """CREATE TABLE documents (
        row INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, fields TEXT NOT NULL,
        value TEXT, payload TEXT NOT NULL, key_hash BLOB NOT NULL, value_hash BLOB NOT NULL
    )""",
    """CREATE TABLE keys (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        document INTEGER NOT NULL REFERENCES documents(row) ON DELETE CASCADE,
        field TEXT NOT NULL, start INTEGER NOT NULL, stop INTEGER NOT NULL,
        embedding BLOB NOT NULL
    )""",
    "CREATE INDEX keys_by_document ON keys (document)",
    # A log that readers follow to mask what they hold; a trigger, so that no path forgets it.
    "CREATE TABLE removals (id INTEGER PRIMARY KEY AUTOINCREMENT, document INTEGER NOT NULL, "
    "key INTEGER NOT NULL)",
    """CREATE TRIGGER log_removed_key AFTER DELETE ON keys BEGIN
        INSERT INTO removals (document, key) VALUES (old.document, old.id);
    END""",
    """CREATE TABLE projections (
        version INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, weights BLOB NOT NULL,
        fingerprint TEXT NOT NULL, created TEXT NOT NULL, note TEXT NOT NULL
    )""",
)

# Counts changes of texts, for those who keep what they have read of them.
_TEXTS = ("INSERT INTO settings (name, value) VALUES ('texts', '0')",)

_EXAMPLE_KEYS = """
    INSERT INTO keys (document, field, start, stop, embedding, example)
    SELECT document, '@example', 0, 0, x'', id FROM examples
"""

_EXAMPLES = (
    # `hash` tells questions apart: by their text, or by their embedding where they have none.
    """CREATE TABLE questions (
        id INTEGER PRIMARY KEY AUTOINCREMENT, hash BLOB NOT NULL UNIQUE, text TEXT,
        embedding BLOB NOT NULL
    )""",
    """CREATE TABLE examples (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        question INTEGER NOT NULL REFERENCES questions(id) ON DELETE CASCADE,
        document INTEGER NOT NULL REFERENCES documents(row) ON DELETE CASCADE,
        weight REAL NOT NULL, position INTEGER, source TEXT NOT NULL, created TEXT NOT NULL,
        UNIQUE (question, document)
    )""",
    "CREATE INDEX examples_by_document ON examples (document)",
    "ALTER TABLE keys ADD COLUMN example INTEGER REFERENCES examples(id) ON DELETE CASCADE",
    "CREATE INDEX keys_by_example ON keys (example) WHERE example IS NOT NULL",
    # An example that speaks for its document is a key of it, by triggers, so that no path
    # forgets it. Its embedding is the question's, which many examples share.
    f"""CREATE TRIGGER key_of_new_example AFTER INSERT ON examples WHEN new.weight > 0 BEGIN
        {_EXAMPLE_KEYS} WHERE id = new.id;
    END""",
    f"""CREATE TRIGGER key_of_weighed_example AFTER UPDATE OF weight ON examples
    WHEN (old.weight > 0) <> (new.weight > 0) BEGIN
        DELETE FROM keys WHERE example = new.id;
        {_EXAMPLE_KEYS} WHERE id = new.id AND weight > 0;
    END""",
    # A key of another embedding is another key: those who hold the old one must hear of it.
    f"""CREATE TRIGGER keys_of_moved_question AFTER UPDATE OF embedding ON questions BEGIN
        DELETE FROM keys WHERE example IN (SELECT id FROM examples WHERE question = new.id);
        {_EXAMPLE_KEYS} WHERE question = new.id AND weight > 0;
    END""",
    """CREATE TRIGGER remove_idle_question AFTER DELETE ON examples BEGIN
        DELETE FROM questions WHERE id = old.question
        AND NOT EXISTS (SELECT 1 FROM examples WHERE question = old.question);
    END""",
)

_VERSIONS = (
    "ALTER TABLE projections ADD COLUMN tuning TEXT NOT NULL DEFAULT '{}'",
    "ALTER TABLE projections ADD COLUMN report TEXT NOT NULL DEFAULT '{}'",
    # The version that answered before this one was activated.
    "ALTER TABLE projections ADD COLUMN parent INTEGER",
    """CREATE TABLE offsets (
        projection INTEGER NOT NULL REFERENCES projections(version) ON DELETE CASCADE,
        key INTEGER NOT NULL REFERENCES keys(id) ON DELETE CASCADE, delta BLOB NOT NULL,
        PRIMARY KEY (projection, key)
    ) WITHOUT ROWID""",
    # Without it, each key that goes would look through the offsets of all versions.
    "CREATE INDEX offsets_by_key ON offsets (key)",
)

# What a document has under each indexed field: its own scalar, or the scalars of a list; where
# the field is missing or null, one entry that says so.
VALUES_OF = f"""
    SELECT DISTINCT field.id AS field, {kind_of("element.type")} AS kind,
        coalesce(element.value, 0) AS value, {{row}}.row AS row
    FROM {{tables}} AS field, json_each(coalesce(
        {{row}}.value -> field.whole, {{row}}.value -> field.dotted,
        CASE WHEN field.name <> '@value' THEN {{row}}.payload -> field.whole END,
        CASE WHEN field.name <> '@value' THEN {{row}}.payload -> field.dotted END, 'null'
    )) AS element
    WHERE field.state <> 'dropping' AND typeof(element.key) <> 'text'
    AND element.type NOT IN ('array', 'object')
    AND (element.type <> 'null' OR element.key IS NULL)
"""
_ADD_VALUES = f"""
    INSERT INTO field_values (field, kind, value, row)
    {VALUES_OF.format(row="new", tables="indexed_fields")};
"""

_FIELD_VALUES = (
    # First 'building', then 'ready', at last 'dropping'; `built` is the last document for which
    # what the state says is done. `used` is a day.
    """CREATE TABLE indexed_fields (
        id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, whole TEXT NOT NULL,
        dotted TEXT NOT NULL, state TEXT NOT NULL DEFAULT 'building',
        built INTEGER NOT NULL DEFAULT 0, used TEXT NOT NULL
    )""",
    # `value` has no type, so that SQLite converts nothing.
    """CREATE TABLE field_values (
        field INTEGER NOT NULL, kind INTEGER NOT NULL, value NOT NULL, row INTEGER NOT NULL,
        PRIMARY KEY (field, kind, value, row)
    ) WITHOUT ROWID""",
    # To take a document out without asking what it was: another SQLite may read it otherwise.
    "CREATE INDEX field_values_by_row ON field_values (row)",
    f"""CREATE TRIGGER index_values AFTER INSERT ON documents
    WHEN EXISTS (SELECT 1 FROM indexed_fields) BEGIN {_ADD_VALUES} END""",
    """CREATE TRIGGER remove_values AFTER DELETE ON documents
    WHEN EXISTS (SELECT 1 FROM indexed_fields) BEGIN
        DELETE FROM field_values WHERE row = old.row;
    END""",
    f"""CREATE TRIGGER reindex_values AFTER UPDATE OF row, value, payload ON documents
    WHEN EXISTS (SELECT 1 FROM indexed_fields) AND (
        old.row <> new.row OR old.value IS NOT new.value OR old.payload <> new.payload
    ) BEGIN
        DELETE FROM field_values WHERE row = old.row;
        {_ADD_VALUES}
    END""",
)


def _log_activations(db: Database) -> None:
    """Write the activations as rollback went back while each version knew one parent alone."""
    parents = dict(db.execute("SELECT version, parent FROM projections WHERE parent NOTNULL"))
    row = db.execute("SELECT value FROM settings WHERE name = 'projection'").fetchone()
    version = None if row is None else json.loads(row[0])
    undone: list[tuple[int, int]] = []
    while version is not None and version in parents:
        undone.append((version, parents.pop(version)))  # pop: parents may lead in a circle
        version = undone[-1][1]
    insert = "INSERT INTO activations (version, previous) VALUES (?, ?)"
    db.conn.executemany(insert, reversed(undone))


_ROLES = (
    "ALTER TABLE projections ADD COLUMN role TEXT NOT NULL DEFAULT 'search'",
    "ALTER TABLE activations ADD COLUMN role TEXT NOT NULL DEFAULT 'search'",
    # As the setting `projection` is for search: the version that answers, 0 for none yet.
    "INSERT INTO settings (name, value) VALUES ('recommend', '0'), ('predict', '0')",
)

_INTERACTIONS = (
    "CREATE TABLE users (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE)",
    # `value` has no type: a number is stored as one, anything else as JSON text. `time` is in
    # seconds since 1970. By `id` a training knows which it has learned from.
    """CREATE TABLE interactions (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        user INTEGER NOT NULL REFERENCES users(id) ON DELETE CASCADE,
        document INTEGER NOT NULL REFERENCES documents(row) ON DELETE CASCADE, value, time REAL,
        UNIQUE (user, document)
    )""",
    "CREATE INDEX interactions_by_document ON interactions (document)",
    """CREATE TRIGGER remove_idle_user AFTER DELETE ON interactions BEGIN
        DELETE FROM users WHERE id = old.user
        AND NOT EXISTS (SELECT 1 FROM interactions WHERE user = old.user);
    END""",
)

_TERMS = (
    # What a version has learned about single documents, by name: vectors of float32.
    """CREATE TABLE document_terms (
        projection INTEGER NOT NULL REFERENCES projections(version) ON DELETE CASCADE,
        name TEXT NOT NULL, document INTEGER NOT NULL REFERENCES documents(row) ON DELETE CASCADE,
        term BLOB NOT NULL, PRIMARY KEY (projection, name, document)
    ) WITHOUT ROWID""",
    "CREATE INDEX document_terms_by_document ON document_terms (document)",
    # A document whose own keys go has another text now, or none.
    """CREATE TRIGGER remove_terms AFTER DELETE ON keys WHEN old.example IS NULL BEGIN
        DELETE FROM document_terms WHERE document = old.document;
    END""",
)


_FORMATS = (
    # The number format that a key's text was encoded in; null of those that were there before, and
    # of vectors of the caller's own.
    "ALTER TABLE keys ADD COLUMN format TEXT",
    # To be counted by: the table itself is all embeddings.
    "CREATE INDEX keys_by_format ON keys (format) WHERE stop > 0",
)

_ACTIVATIONS = (
    # A log from which rollback takes the last: its ids may come again.
    "CREATE TABLE activations "
    "(id INTEGER PRIMARY KEY, version INTEGER NOT NULL, previous INTEGER NOT NULL)",
    _log_activations,
    "ALTER TABLE projections DROP COLUMN parent",
)

migrations = Migrations("attend")


def _add(name: str, *steps: str | Callable[[Database], None]) -> None:
    """Add a migration, which runs once."""

    def migrate(db: Database) -> None:
        for step in steps:
            if callable(step):
                step(db)
            else:
                db.execute(step)

    migrations(name=name)(migrate)


_add("m001_documents_keys_projections", *_M001)
_add("m002_lexical_examples_versions", *_TEXTS, *_EXAMPLES, *_VERSIONS)
_add("m003_field_values", *_FIELD_VALUES)
_add("m004_activations", *_ACTIVATIONS)
_add("m005_roles_interactions_terms", *_ROLES, *_INTERACTIONS, *_TERMS)
_add("m006_words_of_all_scripts", *_WORDS, fill_words)
_add("m007_formats", *_FORMATS)
