"""Statements over projection versions: matrices, the numbers and offsets beside them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TypeAlias

import numpy as np
from sqlite_utils import Database

from attend.errors import Conflict, InvalidRequest, UnknownProjection
from attend.store import statements
from attend.store.documents import Role, StoredProjection, StoredVersion, Terms
from attend.store.keys import stacked
from attend.types import Float32, Int64, Json

Offsets: TypeAlias = tuple[Int64, Float32]
"""Key ids (m,), and what is added to the embedding of each (m, d)."""

_SETTING: Mapping[Role, str] = {
    "search": "projection",
    "recommend": "recommend",
    "predict": "predict",
}
"""The setting that names the active version of a role."""


def insert(
    db: Database,
    kind: str,
    weights: bytes,
    fingerprint: str,
    note: Mapping[str, Json],
    tuning: Mapping[str, Json] | None = None,
    report: Mapping[str, Json] | None = None,
    role: Role = "search",
) -> int:
    created = datetime.now(UTC).isoformat(timespec="seconds")
    documents = [statements.to_json(each or {}) for each in (note, tuning, report)]
    row = db.execute(
        "INSERT INTO projections (kind, weights, fingerprint, created, note, tuning, report, role) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?) RETURNING version",
        [kind, weights, fingerprint, created, *documents, role],
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


def insert_terms(db: Database, version: int, terms: Terms, last_key: int | None = None) -> None:
    """Store what a version has learned about documents; those that went meanwhile are passed over.

    Args:
        last_key: the last key when it was learned; documents with later ones have another text
            by now, and are passed over too. If None, all are as they were.

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


def activate(db: Database, version: int, expected: int | None = None) -> None:
    """Let a version answer in its role, and log which one did before.

    Args:
        expected: the version that answers until now, where that matters; 0 for the untrained.

    Raises:
        Conflict: another than the expected one answers by now.
    """
    role = role_of(db, version)
    previous = statements.state(db).active(role)
    if expected is not None and previous != expected:
        raise Conflict(
            f"Projection {previous} is active by now, where {expected} was expected, so that "
            f"{version} was not activated; look at both, then activate one by its number.",
            field="projection",
        )
    if version == previous:
        return
    db.execute(
        "INSERT INTO activations (version, previous, role) VALUES (?, ?, ?)",
        [version, previous, role],
    )
    statements.put_settings(db, {_SETTING[role]: version})


def rollback(db: Database, role: Role = "search") -> int:
    """Undo the last activation in a role. Returns the version that answers now, 0 if untrained.

    Raises:
        Conflict: the active version was there first, or every activation is undone already.
    """
    row = db.execute(
        "SELECT id, previous FROM activations WHERE role = ? ORDER BY id DESC LIMIT 1", [role]
    ).fetchone()
    if row is None:
        active = statements.state(db).active(role)
        raise Conflict(
            f"{f'Projection {active}' if active else 'The untrained version'} is active for "
            f"{role}, and none was before it that could be gone back to; activate a version by its "
            f"number instead. There are {', '.join(_known(db))}.",
            field="projection",
        )
    # Undone is undone: else two versions that were each activated after the other would
    # be gone back to in turns, for ever.
    db.execute("DELETE FROM activations WHERE id = ?", [row[0]])
    statements.put_settings(db, {_SETTING[role]: row[1]})
    return int(row[1])


def weights(db: Database, version: int) -> bytes:
    row = db.execute("SELECT weights FROM projections WHERE version = ?", [version]).fetchone()
    if row is None:
        raise _unknown(db, version)
    return bytes(row[0])


def role_of(db: Database, version: int) -> Role:
    row = db.execute("SELECT role FROM projections WHERE version = ?", [version]).fetchone()
    if row is None:
        raise _unknown(db, version)
    role: Role = row[0]
    return role


def _unknown(db: Database, version: int) -> UnknownProjection:
    return UnknownProjection(
        f"There is no projection {version} here; there are {', '.join(_known(db))}.",
        field="projection",
    )


def read(db: Database, version: int) -> StoredVersion:
    """All that a version consists of; read it within one transaction."""
    matrices = weights(db, version)
    row = db.execute(
        "SELECT fingerprint, tuning, role FROM projections WHERE version = ?", [version]
    ).fetchone()
    found = db.execute(
        "SELECT key, delta FROM offsets WHERE projection = ? ORDER BY key", [version]
    ).fetchall()
    keys = np.array([key for key, _ in found], dtype=np.int64)
    deltas = stacked([each[1] for each in found])
    return StoredVersion(
        weights=matrices,
        tuning=json.loads(row[1]),
        offsets=(keys, deltas),
        fingerprint=row[0],
        role=row[2],
        terms=_terms(db, version),
        last_key=statements.state(db).last_key,
    )


def _terms(db: Database, version: int) -> Terms:
    found: dict[str, list[tuple[int, bytes]]] = {}
    for name, row, term in db.execute(
        "SELECT name, document, term FROM document_terms WHERE projection = ? "
        "ORDER BY name, document",
        [version],
    ):
        found.setdefault(name, []).append((row, term))
    return {
        name: (np.array([row for row, _ in each], dtype=np.int64), stacked([t for _, t in each]))
        for name, each in found.items()
    }


def listed(db: Database) -> list[StoredProjection]:
    found = db.execute(
        "SELECT version, kind, fingerprint, created, note, tuning, report, "
        "(SELECT previous FROM activations WHERE activations.version = projections.version "
        "ORDER BY id DESC LIMIT 1), "
        "version = (SELECT value FROM settings WHERE name = "
        "CASE role WHEN 'search' THEN 'projection' ELSE role END), role "
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
            role=row[9],
        )
        for row in found
    ]


def _known(db: Database) -> list[str]:
    return [str(version) for (version,) in db.execute("SELECT version FROM projections ORDER BY 1")]
