"""Indexed fields and their values, as tables: chosen, filled in steps, checked and dropped.

An index is an inverted list, so that any element of a list leads to its document. Triggers keep
it true from the moment a field is chosen; steps fill it for the documents that were there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from sqlite_utils import Database

from attend.store.conditions import ID, WORDS, located, paths
from attend.store.migrations import VALUES_OF

MAX_FIELDS = 16
"""Fields indexed at once: each makes writing a document some 10 microseconds slower."""

UNUSED_DAYS = 30
"""Days without use after which an index is dropped; after one, for another in its place."""

MAX_TEXT = 200
"""Mean length above which texts are not indexed: they are not what filters compare."""

STEP_ROWS = 1000
"""Documents, or entries to drop, in one transaction: some 10 ms."""

_ALL_VALUES = VALUES_OF.format(row="documents", tables="documents, indexed_fields")


class Field(NamedTuple):
    """An indexed field as its row in `indexed_fields` says."""

    id: int
    name: str
    state: str
    used: str


def source(name: str, index: int | None) -> str:
    """SQL of a table of (row, kind, value) that an index serves: SQLite's own for ids."""
    if name == ID:
        return f"(SELECT row, {WORDS} AS kind, id AS value FROM documents)"
    return f"(SELECT row, kind, value FROM field_values WHERE field = {index})"


def fields(db: Database) -> list[Field]:
    rows = db.execute("SELECT id, name, state, used FROM indexed_fields ORDER BY used, id")
    return [Field(*row) for row in rows]


def is_short(db: Database, name: str) -> bool:
    """Whether a field's values, by those of the first documents, are short enough to index."""
    length = db.execute(
        f"SELECT avg(length({located(name)})) FROM (SELECT * FROM documents LIMIT 1000) documents"
    ).fetchone()[0]
    return length is not None and length <= MAX_TEXT


def choose(db: Database, name: str) -> bool:
    """Begin the index of a field. Returns false where there is no room for it."""
    there = [each for each in fields(db) if each.state != "dropping"]
    if any(each.name == name for each in there):
        return True
    if len(there) >= MAX_FIELDS:
        if there[0].used >= day():
            return False
        _drop(db, there[0])
    whole, dotted = ("$", "$") if name == "@value" else paths(name)
    db.execute(
        "INSERT OR IGNORE INTO indexed_fields (name, whole, dotted, used) VALUES (?, ?, ?, ?)",
        [name, whole, dotted, day()],
    )
    return True


def touch(db: Database, names: Collection[str]) -> None:
    """Note that fields were used today, and drop those that were not for long."""
    for each in fields(db):
        if each.name in names:
            db.execute("UPDATE indexed_fields SET used = ? WHERE id = ?", [day(), each.id])
        elif each.used < day(UNUSED_DAYS):
            _drop(db, each)


def step(db: Database) -> bool:
    """One short piece of what is to be built or dropped. Returns whether there was any."""
    for each in fields(db):
        if each.state == "building":
            _build(db, each)
            return True
        if each.state == "dropping":
            _take_out(db, each)
            return True
    return False


def check(db: Database) -> Mapping[str, int]:
    """How many documents each ready index has wrong entries for; a reading of everything."""
    wrong = db.execute(
        f"WITH expected (field, kind, value, row) AS ({_ALL_VALUES}), "
        f"actual AS (SELECT field, kind, value, row FROM field_values), "
        f"wrong AS (SELECT * FROM (SELECT * FROM expected EXCEPT SELECT * FROM actual) "
        f"UNION ALL SELECT * FROM (SELECT * FROM actual EXCEPT SELECT * FROM expected)) "
        f"SELECT name, count(DISTINCT row) FROM wrong JOIN indexed_fields ON id = wrong.field "
        f"WHERE state = 'ready' GROUP BY name"
    )
    return {str(name): int(count) for name, count in wrong}


def drop(db: Database, names: Collection[str]) -> None:
    """Let go of indexes; they are built anew where filters ask for it."""
    for each in fields(db):
        if each.name in names:
            _drop(db, each)


def _drop(db: Database, field: Field) -> None:
    _set_state(db, field, "dropping")


def _set_state(db: Database, field: Field, state: str) -> None:
    db.execute("UPDATE indexed_fields SET state = ?, built = 0 WHERE id = ?", [state, field.id])


def _next_rows(db: Database, field: Field) -> tuple[int, int] | None:
    """The documents of the next step, (after, last); None where all are done."""
    after = db.execute("SELECT built FROM indexed_fields WHERE id = ?", [field.id]).fetchone()[0]
    last = db.execute(
        "SELECT max(row) FROM (SELECT row FROM documents WHERE row > ? ORDER BY row LIMIT ?)",
        [after, STEP_ROWS],
    ).fetchone()[0]
    if last is None:
        return None
    db.execute("UPDATE indexed_fields SET built = ? WHERE id = ?", [last, field.id])
    return after, last


def _build(db: Database, field: Field) -> None:
    rows = _next_rows(db, field)
    if rows is None:
        _set_state(db, field, "ready")
        return
    # What was written since the field was chosen is in already, by the triggers.
    db.execute(
        f"INSERT OR IGNORE INTO field_values (field, kind, value, row) {_ALL_VALUES} "
        f"AND field.id = ? AND documents.row > ? AND documents.row <= ?",
        [field.id, *rows],
    )


def _take_out(db: Database, field: Field) -> None:
    rows = _next_rows(db, field)
    if rows is None:
        db.execute("DELETE FROM indexed_fields WHERE id = ?", [field.id])
        return
    # The plus sign: by the index of rows, and not through all entries of the field.
    db.execute(
        "DELETE FROM field_values WHERE +field = ? AND row > ? AND row <= ?", [field.id, *rows]
    )


def day(ago: int = 0) -> str:
    return (datetime.now(UTC) - timedelta(days=ago)).date().isoformat()
