"""Versions of the projection: matrices, and the numbers, offsets and terms beside them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Unpack

import numpy as np
from sqlite_utils import Database

from attend.core.errors import Conflict, InvalidRequest, UnknownProjection
from attend.core.types import Json
from attend.store.connections import (
    DatabasePart,
    count_change,
    dimension,
    put_settings,
    read_state,
    stacked,
    to_json,
)
from attend.store.records import (
    Offsets,
    Role,
    StoredProjection,
    StoredVersion,
    Terms,
    VersionDetails,
)

_SETTING: Mapping[Role, str] = {
    "search": "projection",
    "recommend": "recommend",
    "predict": "predict",
}
"""The setting that names the active version of a role."""


class StoredVersions(DatabasePart):
    """Reads, stores and activates versions."""

    def add_projection(
        self,
        kind: str,
        weights: bytes,
        fingerprint: str,
        note: Mapping[str, Json],
        **details: Unpack[VersionDetails],
    ) -> int:
        notes = note, details.get("tuning"), details.get("report")
        with self.connections.writing() as db:
            version = insert_version(
                db, kind, weights, fingerprint, notes, details.get("role", "search")
            )
            if (offsets := details.get("offsets")) is not None:
                _insert_offsets(db, version, offsets)
            if (terms := details.get("terms")) is not None:
                _insert_terms(db, version, terms, details.get("last_key"))
            if details.get("activate"):
                _activate(db, version, None)
                count_change(db)
            return version

    def activate_projection(
        self,
        version: int,
        expected: int | None = None,
        report: Mapping[str, Json] | None = None,
    ) -> None:
        with self._changing() as db:
            _activate(db, version, expected)
            if report is not None:
                db.execute(
                    "UPDATE projections SET report = ? WHERE version = ?",
                    [to_json(report), version],
                )

    def rollback(self, role: Role = "search") -> int:
        with self._changing() as db:
            row = db.execute(
                "SELECT id, previous FROM activations WHERE role = ? ORDER BY id DESC LIMIT 1",
                [role],
            ).fetchone()
            if row is None:
                active = read_state(db).active(role)
                raise Conflict(
                    f"{f'Projection {active}' if active else 'The untrained version'} is active "
                    f"for {role}, and no version was active before it; activate a version by its "
                    f"number instead. There are {', '.join(_numbers(db))}.",
                    field="projection",
                )
            # Deleted: else a second rollback of two versions that were each activated after the
            # other would return to the first.
            db.execute("DELETE FROM activations WHERE id = ?", [row[0]])
            put_settings(db, {_SETTING[role]: row[1]})
            return int(row[1])

    def projections(self) -> list[StoredProjection]:
        rows = self._read().execute(
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
            for row in rows
        ]

    def version(self, version: int) -> StoredVersion:
        with self.connections.reading() as db:
            row = db.execute(
                "SELECT weights, fingerprint, tuning, role FROM projections WHERE version = ?",
                [version],
            ).fetchone()
            if row is None:
                raise _unknown(db, version)
            weights, fingerprint, tuning, role = row
            offsets = db.execute(
                "SELECT key, delta FROM offsets WHERE projection = ? ORDER BY key", [version]
            ).fetchall()
            return StoredVersion(
                weights=weights,
                tuning=json.loads(tuning),
                offsets=Offsets(
                    np.array([key for key, _ in offsets], dtype=np.int64),
                    stacked([delta for _, delta in offsets]),
                ),
                fingerprint=fingerprint,
                role=role,
                terms=_terms(db, version),
                last_key=read_state(db).last_key,
            )


def insert_version(
    db: Database,
    kind: str,
    weights: bytes,
    fingerprint: str,
    documents: tuple[Mapping[str, Json] | None, ...] = (None, None, None),
    role: Role = "search",
) -> int:
    """Insert a version and return its number. `documents` are its note, tuning and report."""
    created = datetime.now(UTC).isoformat(timespec="seconds")
    row = db.execute(
        "INSERT INTO projections (kind, weights, fingerprint, created, note, tuning, report, role) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?) RETURNING version",
        [
            kind,
            weights,
            fingerprint,
            created,
            *(to_json(document or {}) for document in documents),
            role,
        ],
    ).fetchone()
    return int(row[0])


def _insert_offsets(db: Database, version: int, offsets: Offsets) -> None:
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


def _insert_terms(
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


def _activate(db: Database, version: int, expected: int | None) -> None:
    """Activate a version in its role, and log the version before it."""
    role = _role_of(db, version)
    previous = read_state(db).active(role)
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
    put_settings(db, {_SETTING[role]: version})


def _role_of(db: Database, version: int) -> Role:
    row = db.execute("SELECT role FROM projections WHERE version = ?", [version]).fetchone()
    if row is None:
        raise _unknown(db, version)
    role: Role = row[0]
    return role


def _unknown(db: Database, version: int) -> UnknownProjection:
    return UnknownProjection(
        f"There is no projection {version} here; there are {', '.join(_numbers(db))}.",
        field="projection",
    )


def _numbers(db: Database) -> list[str]:
    return [str(version) for (version,) in db.execute("SELECT version FROM projections ORDER BY 1")]


def _terms(db: Database, version: int) -> dict[str, Terms]:
    by_name: dict[str, list[tuple[int, bytes]]] = {}
    for name, row, term in db.execute(
        "SELECT name, document, term FROM document_terms WHERE projection = ? "
        "ORDER BY name, document",
        [version],
    ):
        by_name.setdefault(name, []).append((row, term))
    return {
        name: Terms(
            np.array([row for row, _ in terms], dtype=np.int64), stacked([t for _, t in terms])
        )
        for name, terms in by_name.items()
    }
