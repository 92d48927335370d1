"""Statements over interactions: which user met which document, what they gave it, and when.

One for each user and document: the latest said replaces what was said before. The schema does the
rest: an interaction goes with its document, and a user with their last interaction.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence, Set
from typing import Any, NamedTuple

import numpy as np
from sqlite_utils import Database

from attend.api.base import MAX_USER
from attend.errors import InvalidRequest
from attend.store import statements
from attend.types import Bool, Float64, Int64, Json

READ_BLOCK = 8192
"""Interactions read at a time."""


class Interaction(NamedTuple):
    """A user met a document, by the callers' ids.

    Attributes:
        value: what they gave it (a rating, a label, …); None where nothing is known.
        time: seconds since 1970; None where not known.
    """

    user: str
    document: str
    value: Json = None
    time: float | None = None


class Interactions(NamedTuple):
    """All interactions of one moment, ordered by user and then by row."""

    ids: Int64  # (n,) in the order in which user and document first met
    users: list[str]  # u ids
    of: Int64  # (n,) places in `users`
    rows: Int64  # (n,) rows of documents
    values: Float64  # (n,) NaN where there is none, or none that is a number
    times: Float64  # (n,) seconds since 1970, NaN where not known
    liked: Bool  # (n,) whose value is neither a number of 0 or below nor false


class Met(NamedTuple):
    """What one user met, the latest last, and first what has no time."""

    rows: Int64  # (n,)
    documents: list[str]  # n ids
    values: list[Json]
    times: Float64  # (n,) NaN where not known


class InteractionPage(NamedTuple):
    """Some of the interactions; `next` is the place at which to go on, None at the end."""

    interactions: list[Interaction]
    next: tuple[int, int] | None


def add(db: Database, interactions: Sequence[Interaction], forget: bool) -> tuple[int, int]:
    """Store interactions. Returns how many were new, and how many replaced an earlier one.

    Args:
        forget: delete those stored before. What is said again keeps its id all the same: by that
            a training knows what it has learned from.

    Raises:
        InvalidRequest: a user, value or time that is none. UnknownDocument: an id that no
            document has.
    """
    for at, each in enumerate(interactions):
        reason = _wrong_in(each)
        if reason:
            raise InvalidRequest(f"Interaction {at} {reason}", field=f"interactions.{at}")
    rows = statements.known_rows(db, [each.document for each in interactions], "interactions")
    users = _user_ids(db, [each.user for each in interactions])
    before = 0 if forget else count(db)
    db.conn.executemany(
        "INSERT INTO interactions (user, document, value, time) VALUES (?, ?, ?, ?) "
        "ON CONFLICT (user, document) DO UPDATE SET value = excluded.value, time = excluded.time",
        [(users[e.user], rows[e.document], _stored(e.value), e.time) for e in interactions],
    )
    if forget:  # afterwards: a user goes with their last interaction
        _delete_all_but(db, {(users[e.user], rows[e.document]) for e in interactions})
    added = count(db) - before
    return added, len(interactions) - added


def delete(db: Database, user: str | None = None, documents: Sequence[str] | None = None) -> int:
    """Delete interactions: of a user, with documents, or of that user with these; else all.

    Returns: how many were there.
    """
    conditions: dict[str, bytes | str] = {}
    if user is not None:
        conditions["user = (SELECT id FROM users WHERE name = CAST(? AS TEXT))"] = _bytes(user)
    if documents is not None:
        conditions[
            "document IN (SELECT row FROM documents WHERE id IN (SELECT value FROM json_each(?)))"
        ] = statements.id_list(documents)
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    cursor = db.execute(f"DELETE FROM interactions{where}", list(conditions.values()))
    return int(cursor.rowcount)


def count(db: Database) -> int:
    return int(db.execute("SELECT count(*) FROM interactions").fetchone()[0])


def user_count(db: Database) -> int:
    return int(db.execute("SELECT count(*) FROM users").fetchone()[0])


def read(db: Database) -> Interactions:
    """Everything to learn from; read it within one transaction."""
    users = db.execute("SELECT id, name FROM users ORDER BY id").fetchall()
    ids = np.array([id for id, _ in users], dtype=np.int64)
    found = db.execute(
        "SELECT id, user, document, CASE WHEN typeof(value) IN ('integer', 'real') THEN value END, "
        "time, value IS NOT 'false' FROM interactions ORDER BY user, document"
    )
    # In blocks: as Python's own objects, millions would take six times the memory.
    blocks = [
        np.array(block, dtype=np.float64) for block in iter(lambda: found.fetchmany(READ_BLOCK), [])
    ]
    columns = np.concatenate([np.empty((0, 6)), *blocks]).T
    values = columns[3]
    return Interactions(
        ids=columns[0].astype(np.int64),
        users=[name for _, name in users],
        of=np.searchsorted(ids, columns[1].astype(np.int64)),
        rows=columns[2].astype(np.int64),
        values=values.copy(),
        times=columns[4].copy(),
        liked=(columns[5] > 0) & ~(values <= 0),
    )


def of_user(db: Database, user: str) -> Met:
    """What a user met; nothing for one that is not known."""
    found = db.execute(
        "SELECT documents.row, documents.id, interactions.value, time FROM interactions "
        "JOIN documents ON documents.row = interactions.document "
        "WHERE user = (SELECT id FROM users WHERE name = CAST(? AS TEXT)) "
        "ORDER BY time, documents.row",
        [_bytes(user)],
    ).fetchall()
    return Met(
        rows=np.array([row[0] for row in found], dtype=np.int64),
        documents=[row[1] for row in found],
        values=[_read(row[2]) for row in found],
        times=np.array([row[3] for row in found], dtype=np.float64),
    )


def page(
    db: Database, after: tuple[int, int], limit: int, user: str | None = None
) -> InteractionPage:
    """The next `limit` interactions after a place, of one user or of all."""
    # By the user's id: by the name, those of all others would be gone through.
    by_user = "interactions.user = (SELECT id FROM users WHERE name = CAST(? AS TEXT)) AND "
    found = db.execute(
        "SELECT interactions.user, interactions.document, users.name, documents.id, "
        "interactions.value, time FROM interactions "
        "JOIN users ON users.id = interactions.user "
        "JOIN documents ON documents.row = interactions.document "
        f"WHERE {'' if user is None else by_user}"
        "(interactions.user, interactions.document) > (?, ?) "
        "ORDER BY interactions.user, interactions.document LIMIT ?",
        [*([] if user is None else [_bytes(user)]), *after, limit + 1],
    ).fetchall()
    more = len(found) > limit > 0
    found = found[:limit]
    return InteractionPage(
        [Interaction(row[2], row[3], _read(row[4]), row[5]) for row in found],
        (found[-1][0], found[-1][1]) if more else None,
    )


def popularity(db: Database) -> tuple[Int64, Int64]:
    """Rows of the documents that anybody met, ascending, and how many users met each."""
    found = db.execute(
        "SELECT document, count(*) FROM interactions GROUP BY document ORDER BY document"
    ).fetchall()
    rows, counts = np.array(found, dtype=np.int64).reshape(-1, 2).T
    return rows, counts


def _delete_all_but(db: Database, kept: Set[tuple[int, int]]) -> None:
    """Delete interactions but for some pairs of a user's id and a document's row."""
    found = db.execute("SELECT id, user, document FROM interactions").fetchall()
    gone = [(id,) for id, *pair in found if tuple(pair) not in kept]
    db.conn.executemany("DELETE FROM interactions WHERE id = ?", gone)


def _wrong_in(given: Interaction) -> str | None:
    if not given.user or len(given.user) > MAX_USER:
        return f"has a user of {len(given.user)} characters; send 1 to {MAX_USER}."
    try:
        given.user.encode()
    except UnicodeEncodeError:
        return "has a user with half of a surrogate pair; send a text without."
    if given.time is not None and not math.isfinite(given.time):
        return f"has the time {given.time}; send seconds since 1970, or none."
    try:
        _stored(given.value)
    except ValueError:
        return "has a value that holds NaN or infinity; send finite numbers, or none."
    return None


def _user_ids(db: Database, users: Sequence[str]) -> dict[str, int]:
    """The ids of users by their names; those that are new are stored."""
    ids: dict[str, int] = {}
    for user in dict.fromkeys(users):
        row = db.execute(
            "SELECT id FROM users WHERE name = CAST(? AS TEXT)", [_bytes(user)]
        ).fetchone()
        if row is None:
            row = db.execute(
                "INSERT INTO users (name) VALUES (CAST(? AS TEXT)) RETURNING id", [_bytes(user)]
            ).fetchone()
        ids[user] = int(row[0])
    return ids


def _stored(value: Json) -> Any:
    """A number as it is; anything else as JSON; None as NULL."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(value)
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**63:
        return value
    return statements.value_json(value)


def _read(value: Any) -> Json:
    found: Json = json.loads(value) if isinstance(value, str) else value
    return found


def _bytes(user: str) -> bytes:
    # A text ends at NUL for some of SQLite's functions, and half a surrogate pair is no UTF-8.
    return user.encode("utf-8", "surrogatepass")
