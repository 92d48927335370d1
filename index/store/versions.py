"""Statements over projection versions: matrices, the numbers and offsets beside them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TypeAlias

import numpy as np
from sqlite_utils import Database

from index.errors import Conflict, InvalidRequest, UnknownProjection
from index.store import statements
from index.store.documents import StoredProjection, StoredVersion
from index.store.keys import stacked
from index.types import Float32, Int64, Json

Offsets: TypeAlias = tuple[Int64, Float32]
"""Key ids (m,), and what is added to the embedding of each (m, d)."""


def insert(
    db: Database,
    kind: str,
    weights: bytes,
    fingerprint: str,
    note: Mapping[str, Json],
    tuning: Mapping[str, Json] | None = None,
    report: Mapping[str, Json] | None = None,
) -> int:
    created = datetime.now(UTC).isoformat(timespec="seconds")
    documents = [statements.to_json(each or {}) for each in (note, tuning, report)]
    row = db.execute(
        "INSERT INTO projections (kind, weights, fingerprint, created, note, tuning, report) "
        "VALUES (?, ?, ?, ?, ?, ?, ?) RETURNING version",
        [kind, weights, fingerprint, created, *documents],
    ).fetchone()
    return int(row[0])


def insert_offsets(db: Database, version: int, offsets: Offsets) -> None:
    """Store a version's offsets. Keys that went while it was learned are passed over.

    Raises:
        InvalidRequest: not one finite vector for each key, or of another width than its
            embedding.
    """
    keys, deltas = offsets
    width = statements.dimension(db)
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


def activate(db: Database, version: int, expected: int | None = None) -> None:
    """Let a version answer, and log which one did before.

    Args:
        expected: the version that answers until now, where that matters.

    Raises:
        Conflict: another than the expected one answers by now.
    """
    weights(db, version)
    previous = statements.state(db).projection
    if expected is not None and previous != expected:
        raise Conflict(
            f"Projection {previous} is active by now, where {expected} was expected, so that "
            f"{version} was not activated; look at both, then activate one by its number.",
            field="projection",
        )
    if version == previous:
        return
    db.execute("INSERT INTO activations (version, previous) VALUES (?, ?)", [version, previous])
    statements.put_settings(db, {"projection": version})


def rollback(db: Database) -> int:
    """Undo the last activation. Returns the version that answers now.

    Raises:
        Conflict: the active version was there first, or every activation is undone already.
    """
    row = db.execute("SELECT id, previous FROM activations ORDER BY id DESC LIMIT 1").fetchone()
    if row is None:
        raise Conflict(
            f"Projection {statements.state(db).projection} is active, and none was before it that "
            f"could be gone back to; activate a version by its number instead. There are "
            f"{', '.join(_known(db))}.",
            field="projection",
        )
    # Undone is undone: else two versions that were each activated after the other would
    # be gone back to in turns, for ever.
    db.execute("DELETE FROM activations WHERE id = ?", [row[0]])
    statements.put_settings(db, {"projection": row[1]})
    return int(row[1])


def weights(db: Database, version: int) -> bytes:
    row = db.execute("SELECT weights FROM projections WHERE version = ?", [version]).fetchone()
    if row is None:
        raise UnknownProjection(
            f"There is no projection {version} here; there are {', '.join(_known(db))}.",
            field="projection",
        )
    return bytes(row[0])


def read(db: Database, version: int) -> StoredVersion:
    """All that a version consists of; read it within one transaction."""
    matrices = weights(db, version)
    row = db.execute(
        "SELECT fingerprint, tuning FROM projections WHERE version = ?", [version]
    ).fetchone()
    found = db.execute(
        "SELECT key, delta FROM offsets WHERE projection = ? ORDER BY key", [version]
    ).fetchall()
    keys = np.array([key for key, _ in found], dtype=np.int64)
    deltas = stacked([each[1] for each in found])
    return StoredVersion(matrices, json.loads(row[1]), (keys, deltas), row[0])


def listed(db: Database) -> list[StoredProjection]:
    found = db.execute(
        "SELECT version, kind, fingerprint, created, note, tuning, report, "
        "(SELECT previous FROM activations WHERE activations.version = projections.version "
        "ORDER BY id DESC LIMIT 1), "
        "version = (SELECT value FROM settings WHERE name = 'projection') "
        "FROM projections ORDER BY version"
    )
    return [
        StoredProjection(
            version=row[0],
            kind=row[1],
            fingerprint=row[2],
            created=row[3],
            note=json.loads(row[4]),
            tuning=json.loads(row[5]),
            report=json.loads(row[6]),
            parent=row[7],
            active=bool(row[8]),
        )
        for row in found
    ]


def _known(db: Database) -> list[str]:
    return [str(version) for (version,) in db.execute("SELECT version FROM projections ORDER BY 1")]
