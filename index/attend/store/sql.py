"""Statements on one connection: settings, documents, keys, feedback and versions.

The schema does the rest. An example of positive weight is a key of its document, and goes with its
document; its key lies in the table without an embedding, as it has its question's. A question goes
with its last example. An interaction is the latest of its user and document, and goes with its
document; a user goes with their last interaction.
"""

from __future__ import annotations

import hashlib
import json
import math
import sqlite3
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from sqlite_utils import Database

from attend.core.arrays import KeyTable
from attend.core.deadline import count_read
from attend.core.errors import (
    InvalidRequest,
    Replaced,
    UnknownProjection,
)
from attend.core.liking import Liking, chosen_liking
from attend.core.types import MAX_ID, Float32, Int64, Json
from attend.store import (
    ROLES,
    Entry,
    Hashes,
    Interaction,
    KeyRow,
    Offsets,
    Question,
    Role,
    StaleEntries,
    State,
    StoredDocument,
    StoredUser,
    Terms,
    check_active,
    check_known,
    moved,
)
from attend.store.filters import plain

READ_BLOCK = 8192
"""Keys or interactions read at a time: 12 MB of embeddings at 384 dimensions."""

LONG = 1024
"""Bytes of a document that is counted while it is read; shorter ones count by their number."""

LATEST = 3
"""Documents that a list of users names of each."""

SAMPLE = 1000
"""Interactions that the threshold of likes is chosen from."""

LISTED = "IN (SELECT value FROM json_each(?))"
"""A column among the values of a parameter, which is a list in JSON."""

LIKED_FROM = "liked_from"

USER_ID = "(SELECT id FROM users WHERE name = CAST(? AS TEXT))"

ACTIVE = {role: "projection" if role == "search" else role for role in ROLES}
"""The setting that names the active version of a role."""

KeyRows = list[tuple[int, int, bytes, int]]
"""Of each key its id, document, embedding, and 1 for an example query."""

from_json = json.JSONDecoder().decode
"""As `json.loads`, which looks for other options at each call."""


# -- values -----------------------------------------------------------------------------------


def to_json(value: Json) -> str:
    """Return compact JSON, in ASCII: a lone surrogate is legal in JSON but not in UTF-8."""
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False, default=plain)
    except TypeError as error:
        raise InvalidRequest(f"{value!r:.80} is no JSON ({error}); send what JSON has.") from error


def value_json(value: Json) -> str | None:
    """Return JSON, and None (NULL in SQL) for no value."""
    return None if value is None else to_json(value)


def id_list(ids: Sequence[str]) -> str:
    """Return ids for SQLite's `json_each`, which cuts a text at NUL and finds another document.

    Raises:
        InvalidRequest: one text in the place of a list, or an id that is no text.
    """
    texts = [ids] if isinstance(ids, str) else list(ids)
    wrong = [id for id in texts if isinstance(ids, str) or not isinstance(id, str)]
    if wrong:
        raise InvalidRequest(
            f"A list of ids was expected, each a text, but {wrong[0]!r:.80} was given.", field="ids"
        )
    return json.dumps([id for id in texts if "\x00" not in id])


def stacked(blobs: Sequence[bytes]) -> Float32:
    """Return vectors of one width as a matrix (n, d); (0, 0) for none."""
    numbers = np.frombuffer(b"".join(blobs), dtype=np.float32)
    return numbers.reshape(len(blobs), -1) if blobs else numbers.reshape(0, 0)


def columns_of(rows: Sequence[Sequence[Any]], width: int) -> list[tuple[Any, ...]]:
    """Return the columns of rows; empty ones without rows."""
    return list(zip(*rows, strict=True)) if rows else [()] * width


def row_count(db: Database, table: str) -> int:
    return int(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


# -- settings and state ----------------------------------------------------------------------


def put_settings(db: Database, changes: Mapping[str, Json], *, soon: bool = False) -> None:
    """Store settings; `soon` lets every process that has the collection open look at them."""
    rows = [(name, to_json(value)) for name, value in changes.items()]
    db.conn.executemany("INSERT OR REPLACE INTO settings (name, value) VALUES (?, ?)", rows)
    if soon:
        count_up(db, "settings_change")


def count_up(db: Database | sqlite3.Connection, name: str) -> int:
    """Add one to a number among the settings, which is 0 where it is absent, and return it."""
    counted = db.execute(
        "INSERT INTO settings (name, value) VALUES (?, '1') "
        "ON CONFLICT (name) DO UPDATE SET value = value + 1 RETURNING value",
        [name],
    )
    return int(counted.fetchall()[0][0])


def dimension(db: Database) -> int:
    """Return the width of the collection's embeddings."""
    return int(db.execute("SELECT value FROM settings WHERE name = 'dimension'").fetchone()[0])


def read_state(db: Database) -> State:
    """Return the state in O(1): AUTOINCREMENT stores the last number of a table."""
    row = db.execute(
        "SELECT (SELECT value FROM settings WHERE name = 'change'), "
        "coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'keys'), 0), "
        "coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'removals'), 0), "
        "(SELECT value FROM settings WHERE name = 'projection'), "
        "(SELECT value FROM settings WHERE name = 'recommend'), "
        "(SELECT value FROM settings WHERE name = 'predict'), "
        # A stranger's may be no number.
        "coalesce((SELECT CAST(value AS INTEGER) FROM settings WHERE name = 'settings_change'), 0)"
    ).fetchone()
    return State(*map(int, row))


def count_change(db: Database | sqlite3.Connection) -> None:
    """Count a change of answers, unless another collection took this one's place.

    Raises:
        Replaced: it was; the transaction must not be committed.
    """
    # The mark names the folder that the collection has once it is replaced, and counts there alone:
    # it is written before the folders change their names.
    mark = db.execute(
        "SELECT settings.value, main.file FROM settings, pragma_database_list AS main "
        "WHERE settings.name = 'replaced' AND main.name = 'main'"
    ).fetchone()
    if mark is not None and json.loads(mark[0]) == Path(mark[1]).parent.name:
        raise Replaced(
            "The collection was replaced by one with another encoder, and nothing was written; "
            "open it again by its name, and write again. ('attend reindex --rollback' goes back.)"
        )
    db.execute("UPDATE settings SET value = value + 1 WHERE name = 'change'")


def decide(db: Database, settings: Mapping[str, Json]) -> None:
    """Store settings that were open; raises StaleEntries where they are decided otherwise."""
    stored = dict(db.execute("SELECT name, value FROM settings").fetchall())
    if any(json.loads(stored[name]) not in (None, value) for name, value in settings.items()):
        raise StaleEntries("Another writer has decided the settings meanwhile.")
    put_settings(db, settings, soon=True)


# -- documents and their keys ----------------------------------------------------------------


def known_rows(db: Database, ids: Sequence[str], subject: str) -> dict[str, int]:
    """Return the row of each document, by the caller's id; see `check_known`."""
    rows = rows_of(db, ids)
    check_known(rows, ids, subject)
    return rows


def parsed_documents(rows: Iterable[tuple[int, str, str, str | None, str]]) -> list[StoredDocument]:
    """Parse documents; many objects are empty, and parsing them would take a fifth of a search."""
    documents = []
    for row, id, fields, value, payload in rows:
        if len(fields) + len(payload) + (0 if value is None else len(value)) > LONG:
            # About the most bytes that JSON takes as text, parsed, and in an answer.
            texts = fields, value or "", payload
            count_read(sum(4 * len(text) + 64 * text.count(",") for text in texts))
        documents.append(
            StoredDocument(
                row,
                id,
                {} if fields == "{}" else from_json(fields),
                None if value is None else from_json(value),
                {} if payload == "{}" else from_json(payload),
            )
        )
    return documents


def documents_by_row(db: Database, rows: Int64, fields: str = "fields") -> list[StoredDocument]:
    """Read documents by row; `fields` is the SQL expression of their texts."""
    select = f"SELECT row, id, {fields}, value, payload FROM documents WHERE row {LISTED}"
    return parsed_documents(db.execute(f"{select} ORDER BY row", [json.dumps(rows.tolist())]))


def rows_of(db: Database, ids: Sequence[str]) -> dict[str, int]:
    select = f"SELECT id, row FROM documents WHERE id {LISTED}"
    return dict(db.execute(select, [id_list(list(dict.fromkeys(ids)))]).fetchall())


def hashes_of(db: Database, ids: Sequence[str]) -> dict[str, Hashes]:
    select = f"SELECT id, key_hash, value_hash FROM documents WHERE id {LISTED}"
    return {id: Hashes(*hashes) for id, *hashes in db.execute(select, [id_list(ids)])}


WRITTEN, LENGTH = 512, 16_384
"""Documents in one statement, where one counts once more for so many characters. Each step of a
statement gives the interpreter away and has to win it back: beside a dozen readers a document took
a third of a millisecond."""

_DOCUMENTS = """
    INSERT INTO documents (id, fields, value, payload, key_hash, value_hash)
    SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'),
        json_extract(value, '$[3]'),
        substr(:bytes, json_extract(value, '$[4]'), json_extract(value, '$[5]')),
        substr(:bytes, json_extract(value, '$[6]'), json_extract(value, '$[7]'))
    FROM json_each(:documents) WHERE true
    ON CONFLICT (id) DO UPDATE SET fields = excluded.fields, value = excluded.value,
        payload = excluded.payload, key_hash = excluded.key_hash, value_hash = excluded.value_hash
"""
_KEYED = "(SELECT row FROM documents WHERE id IN (SELECT value FROM json_each(:keyed)))"
_KEYS = """
    INSERT INTO keys (document, field, start, stop, embedding, format)
    SELECT row,
        CAST(substr(
            :bytes, json_extract(own.value, '$[3]'), json_extract(own.value, '$[4]')
        ) AS TEXT),
        json_extract(own.value, '$[1]'), json_extract(own.value, '$[2]'),
        substr(:bytes, json_extract(own.value, '$[5]'), json_extract(own.value, '$[6]')),
        json_extract(own.value, '$[7]')
    FROM json_each(:keys) AS own CROSS JOIN documents
    ON documents.id = json_extract(own.value, '$[0]')
"""


def upserts(entries: Sequence[Entry]) -> Iterator[dict[str, str | bytes]]:
    """Yield documents with their keys as parameters of `upsert`: lists in JSON, and their bytes."""
    documents = [entry.document for entry in entries]
    contents = [(to_json(d.fields), value_json(d.value), to_json(d.payload)) for d in documents]
    sizes = [1 + sum(len(text or "") for text in texts) // LENGTH for texts in contents]
    blocks = (np.cumsum(sizes) // WRITTEN).tolist()
    for _, group in groupby(zip(blocks, entries, contents, strict=True), key=itemgetter(0)):
        blob, rows, keys, keyed = bytearray(), [], [], []

        def place(part: bytes, blob: bytearray = blob) -> tuple[int, int]:
            blob.extend(part)
            return len(blob) - len(part) + 1, len(part)

        for _, entry, texts in group:
            id = entry.document.id
            rows.append([id, *texts, *place(entry.hashes.keys), *place(entry.hashes.value)])
            keyed += [] if entry.keys is None else [id]
            for field, start, stop, embedding, format in entry.keys or ():
                numbers = place(embedding.astype(np.float32).tobytes())
                keys.append([id, start, stop, *place(field.encode()), *numbers, format])
        lists = {"documents": rows, "keyed": keyed, "keys": keys}
        yield {name: json.dumps(items) for name, items in lists.items()} | {"bytes": bytes(blob)}


def upsert(db: Database, parameters: Mapping[str, str | bytes]) -> None:
    """Insert or replace documents; those with keys lose the ones that they had.

    Their examples belonged to another text, and go.
    """
    db.conn.execute(_DOCUMENTS, parameters)
    for table in ("examples", "keys"):
        db.conn.execute(f"DELETE FROM {table} WHERE document IN {_KEYED}", parameters)
    db.conn.execute(_KEYS, parameters)


def key_tables(blocks: Iterable[KeyRows]) -> Iterator[KeyTable]:
    """Yield rows as tables of whole documents: a full block may have cut its last one."""
    rest: KeyRows = []
    for block in blocks:
        rest += block
        is_full = len(block) == READ_BLOCK
        end = bisect_left(rest, rest[-1][1], key=itemgetter(1)) if is_full else len(rest)
        if end:
            yield key_table(rest[:end])
        rest = rest[end:]
    if rest:
        yield key_table(rest)


def key_table(rows: KeyRows) -> KeyTable:
    ids, documents, blobs, examples = columns_of(rows, 4)
    return KeyTable.of_keys(
        stacked(blobs),
        np.array(ids, dtype=np.int64),
        np.array(documents, dtype=np.int64),
        np.array(examples, dtype=np.bool_) if any(examples) else None,
    )


def forgotten(db: Database) -> int:
    row = db.execute("SELECT value FROM settings WHERE name = 'forgotten'").fetchone()
    return 0 if row is None else int(row[0])


def own_key_rows(db: Database, first: int, last: int) -> dict[int, list[KeyRow]]:
    """Return the documents' own keys by row, from one row to another, texts without embeddings."""
    keys: dict[int, list[KeyRow]] = {}
    for row, field, start, stop, blob in db.execute(
        "SELECT document, field, start, stop, CASE WHEN stop = 0 THEN embedding ELSE x'' END "
        "FROM keys WHERE example IS NULL AND document BETWEEN ? AND ? ORDER BY id",
        [first, last],
    ):
        embedding = np.frombuffer(blob, dtype=np.float32)
        keys.setdefault(row, []).append(KeyRow(field, start, stop, embedding))
    return keys


# -- feedback --------------------------------------------------------------------------------


def question_id(db: Database, question: Question) -> int:
    """Return the id of a question, which is stored if it is new."""
    embedding = np.asarray(question.embedding, dtype=np.float32)
    hash = question_hash(question.text, embedding)
    row = db.execute("SELECT id, embedding FROM questions WHERE hash = ?", [hash]).fetchone()
    if row is None:
        row = db.execute(
            "INSERT INTO questions (hash, text, embedding) VALUES (?, ?, ?) RETURNING id",
            [hash, question.text, embedding.tobytes()],
        ).fetchone()
    elif moved(np.frombuffer(row[1], dtype=np.float32), embedding):
        db.execute("UPDATE questions SET embedding = ? WHERE id = ?", [embedding.tobytes(), row[0]])
    return int(row[0])


def question_hash(text: str | None, embedding: Float32) -> bytes:
    """Return a hash of a question: of its text, or of its embedding if it has no text."""
    content = b"embedding " + embedding.tobytes() if text is None else b"text " + text.encode()
    return hashlib.blake2b(content, digest_size=16).digest()


def check_interactions(interactions: Sequence[Interaction]) -> None:
    """Raise InvalidRequest for a wrong user, value or time."""
    for place, (user, _, value, time) in enumerate(interactions):
        reason = None
        if not 1 <= len(user) <= MAX_ID:
            reason = f"a user of {len(user)} characters; send 1 to {MAX_ID}"
        elif any("\ud800" <= sign <= "\udfff" for sign in user):
            reason = "a user with half of a surrogate pair; send a text without"
        elif time is not None and not math.isfinite(time):
            reason = f"the time {time}; send seconds since 1970, or none"
        try:
            stored_value(value)
        except ValueError:
            reason = reason or "a value that holds NaN or infinity; send finite numbers, or none"
        if reason:
            raise InvalidRequest(
                f"Interaction {place} has {reason}.", field=f"interactions.{place}"
            )


def user_ids(db: Database, users: Sequence[str]) -> dict[str, int]:
    """Return the ids of users by their names; new users are stored."""
    ids: dict[str, int] = {}
    for user in dict.fromkeys(users):
        row = db.execute(
            f"SELECT id FROM users WHERE id = {USER_ID}", [name_bytes(user)]
        ).fetchone()
        if row is None:
            row = db.execute(
                "INSERT INTO users (name) VALUES (CAST(? AS TEXT)) RETURNING id", [name_bytes(user)]
            ).fetchone()
        ids[user] = int(row[0])
    return ids


def interaction_page(
    db: Database, after: tuple[int, int], limit: int, user: str | None
) -> tuple[list[Interaction], tuple[int, int] | None]:
    """Return interactions after a place, as `attend.store.CollectionStore` has it."""
    # By the user's id: a condition on the name would read the interactions of all others.
    by_user = "" if user is None else f"interactions.user = {USER_ID} AND "
    cursor = db.execute(
        "SELECT interactions.user, interactions.document, users.name, documents.id, "
        "interactions.value, time FROM interactions "
        "JOIN users ON users.id = interactions.user "
        "JOIN documents ON documents.row = interactions.document "
        f"WHERE {by_user}(interactions.user, interactions.document) > (?, ?) "
        "ORDER BY interactions.user, interactions.document LIMIT ?",
        [*([] if user is None else [name_bytes(user)]), *after, limit + 1],
    )
    rows = cursor.fetchall()
    page = rows[:limit]
    return (
        [Interaction(row[2], row[3], read_value(row[4]), row[5]) for row in page],
        (page[-1][0], page[-1][1]) if len(rows) > limit > 0 else None,
    )


def user_page(
    db: Database, after: tuple[int, int], limit: int, contains: str | None
) -> tuple[list[StoredUser], tuple[int, int] | None]:
    """Return users after a place, as `attend.store.CollectionStore` has it."""
    named = "" if contains is None else "WHERE instr(lower(name), lower(CAST(? AS TEXT))) "
    following = "" if after == (0, 0) else "HAVING (-count(*), users.id) > (-?, ?) "
    texts = [] if contains is None else [name_bytes(contains)]
    rows = db.execute(
        "SELECT users.id, name, count(*) FROM interactions "
        f"JOIN users ON users.id = interactions.user {named}"
        f"GROUP BY users.id {following}ORDER BY count(*) DESC, users.id LIMIT ?",
        [*texts, *(after if following else ()), limit + 1],
    ).fetchall()
    latest = (
        "SELECT documents.id FROM interactions "
        "JOIN documents ON documents.row = interactions.document "
        "WHERE user = ? ORDER BY time DESC, interactions.id DESC LIMIT ?"
    )
    users = [
        StoredUser(name, count, [id for (id,) in db.execute(latest, [user, LATEST])])
        for user, name, count in rows[:limit]
    ]
    return users, (rows[limit - 1][2], rows[limit - 1][0]) if len(rows) > limit > 0 else None


def stored_value(value: Json) -> Any:
    """Return a number as it is, anything else as JSON, and None as NULL."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(value)
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**63:
        return value
    return value_json(value)


def read_value(stored: Any) -> Json:
    value: Json = json.loads(stored) if isinstance(stored, str) else stored
    return value


def name_bytes(user: str) -> bytes:
    # A text ends at NUL for some of SQLite's functions, and half a surrogate pair is no UTF-8.
    return user.encode("utf-8", "surrogatepass")


def set_liking(db: Database, liking: Liking) -> None:
    liked_from = liking.liked_from
    if liked_from is not None and not math.isfinite(liked_from):
        raise InvalidRequest(
            f"liked_from is {liked_from}; send a finite number, or null to choose it from the "
            f"data.",
            field=LIKED_FROM,
        )
    put_settings(db, {LIKED_FROM: liked_from})


def read_liking(db: Database) -> Liking:
    """Return the threshold of likes that was set, or one chosen from a sample of interactions."""
    row = db.execute("SELECT value FROM settings WHERE name = ?", [LIKED_FROM]).fetchone()
    if row is not None and json.loads(row[0]) is not None:
        return Liking(float(json.loads(row[0])), "set")
    last = db.execute("SELECT coalesce(max(id), 0) FROM interactions").fetchone()[0]
    points = np.unique(np.linspace(1, max(last, 1), SAMPLE, dtype=np.int64))
    # By key, one by one, as documents are sampled.
    rows = db.execute(
        "SELECT value FROM interactions WHERE typeof(value) IN ('integer', 'real') AND id IN "
        "(SELECT (SELECT id FROM interactions WHERE id >= point.value ORDER BY id LIMIT 1) "
        "FROM json_each(?) AS point)",
        [json.dumps(points.tolist())],
    )
    return chosen_liking([float(value) for (value,) in rows])


# -- versions --------------------------------------------------------------------------------


def insert_version(
    db: Database,
    kind: str,
    weights: bytes,
    fingerprint: str,
    documents: tuple[Mapping[str, Json] | None, ...] = (None, None, None),
    role: Role = "search",
) -> int:
    """Insert a version and return its number. `documents` are its note, tuning and report."""
    created = datetime.now(UTC).isoformat(timespec="milliseconds")
    texts = [to_json(document or {}) for document in documents]
    row = db.execute(
        "INSERT INTO projections (kind, weights, fingerprint, created, note, tuning, report, role) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?) RETURNING version",
        [kind, weights, fingerprint, created, *texts, role],
    ).fetchone()
    return int(row[0])


def insert_offsets(db: Database, version: int, offsets: Offsets) -> None:
    """Store a version's offsets; those of keys that are gone are left out.

    Raises:
        InvalidRequest: not one finite vector for each key, or of another width than its
            embedding.
    """
    keys, deltas = offsets
    width = dimension(db)
    if deltas.shape != (len(keys), width) or not np.isfinite(deltas).all():
        raise InvalidRequest(
            f"Offsets of shape {deltas.shape} were given for {len(keys)} keys; send one finite "
            f"vector of {width} dimensions for each key.",
            field="offsets",
        )
    db.conn.executemany(
        "INSERT INTO offsets (projection, key, delta) SELECT ?, id, ? FROM keys WHERE id = ?",
        [
            (version, delta.tobytes(), key)
            for key, delta in zip(keys.tolist(), deltas.astype(np.float32), strict=True)
        ],
    )


def insert_terms(
    db: Database, version: int, terms: Mapping[str, Terms], last_key: int | None
) -> None:
    """Store a version's terms of documents; those of documents that are gone are left out.

    Args:
        last_key: the last key at the time of training; documents with later ones have another
            text by now, and are left out, too. None: all documents are unchanged.

    Raises:
        InvalidRequest: not one finite vector for each row.
    """
    for name, (rows, vectors) in terms.items():
        if vectors.ndim != 2 or len(vectors) != len(rows) or not np.isfinite(vectors).all():
            raise InvalidRequest(
                f"Terms {name!r} of shape {vectors.shape} were given for {len(rows)} documents; "
                f"send one finite vector for each.",
                field="terms",
            )
        db.conn.executemany(
            "INSERT INTO document_terms (projection, name, document, term) "
            "SELECT ?, ?, row, ? FROM documents WHERE row = ? AND (? IS NULL OR ? >= "
            "(SELECT max(id) FROM keys WHERE document = row AND example IS NULL))",
            [
                (version, name, vector.tobytes(), row, last_key, last_key)
                for row, vector in zip(rows.tolist(), vectors.astype(np.float32), strict=True)
            ],
        )


def activate(db: Database, version: int, expected: int | None) -> None:
    """Activate a version in its role, and log the version before it."""
    row = db.execute("SELECT role FROM projections WHERE version = ?", [version]).fetchone()
    if row is None:
        raise unknown_version(db, version)
    role: Role = row[0]
    previous = read_state(db).active(role)
    check_active(previous, expected, version)
    if version == previous:
        return
    db.execute(
        "INSERT INTO activations (version, previous, role) VALUES (?, ?, ?)",
        [version, previous, role],
    )
    put_settings(db, {ACTIVE[role]: version})


def put_report(db: Database, version: int, report: Mapping[str, Json]) -> None:
    update = "UPDATE projections SET report = ? WHERE version = ?"
    db.execute(update, [to_json(report), version])


def unknown_version(db: Database, version: int) -> UnknownProjection:
    return UnknownProjection(
        f"There is no projection {version} here; there are {', '.join(version_numbers(db))}.",
        field="projection",
    )


def version_numbers(db: Database) -> list[str]:
    return [str(version) for (version,) in db.execute("SELECT version FROM projections ORDER BY 1")]


def read_terms(db: Database, version: int) -> dict[str, Terms]:
    rows = db.execute(
        "SELECT name, document, term FROM document_terms WHERE projection = ? "
        "ORDER BY name, document",
        [version],
    )
    terms = {}
    for name, group in groupby(rows, itemgetter(0)):
        _, documents, vectors = columns_of(list(group), 3)
        terms[name] = Terms(np.array(documents, dtype=np.int64), stacked(vectors))
    return terms


def put_examples(db: Database, values: Sequence[tuple[Any, ...]], only: str | None = None) -> None:
    """Store examples: the question, the row of the document, weight, position and source of each.

    Args:
        only: the source of all, which take the place of no example of another.
    """
    created = datetime.now(UTC).isoformat(timespec="seconds")
    db.conn.executemany(
        "INSERT INTO examples (question, document, weight, position, source, created) "
        "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (question, document) DO UPDATE SET "
        "weight = excluded.weight, position = excluded.position, "
        "source = excluded.source, created = excluded.created "
        "WHERE ? IS NULL OR examples.source = excluded.source",
        [(*value, created, only) for value in values],
    )


def delete_examples_but(db: Database, source: str, pairs: Collection[tuple[int, int]]) -> None:
    """Delete the examples of a source, but those of some questions and documents."""
    stored = db.execute("SELECT id, question, document FROM examples WHERE source = ?", [source])
    gone = [id for id, *pair in stored.fetchall() if tuple(pair) not in pairs]
    db.execute(f"DELETE FROM examples WHERE id {LISTED}", [json.dumps(gone)])
