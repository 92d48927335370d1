"""Versions of a collection's projection: stored, made active, and their keys rewritten.

Where W_K folds into the query, keys stay the embeddings as they are and a promotion moves none.
Otherwise all keys are written again into a key table of the version:
what is written meanwhile enters both; the version answers once the table is complete.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Unpack

from attend.collection.versions import Version
from attend.core.errors import Conflict
from attend.core.types import Json
from attend.store import NO_OFFSETS, Role, StoredProjection, StoredVersion, VersionDetails
from attend_milvus import schema
from attend_milvus.graphs import Graphs
from attend_milvus.key_tables import fill
from attend_milvus.registry import Known
from attend_milvus.server import CAPABILITIES
from attend_milvus.tables import Tables


class RemoteVersions:
    """The versions of one collection."""

    _tables: Tables
    _scorer: str

    def __init__(self) -> None:
        self.graphs = Graphs(self._tables)
        self._versions: dict[int, Version] = {}  # a version never changes
        self._adding = threading.Lock()

    def version_of(self, number: int) -> Version:
        """Return a version. Raise UnknownProjection for an unknown number."""
        if number not in self._versions:
            self._versions[number] = Version.of(number, self.version(number), self._scorer)
        return self._versions[number]

    def version(self, version: int) -> StoredVersion:
        details, weights = self._tables.registry.version(self._tables.uuid, version)
        return StoredVersion(
            weights, details["tuning"], NO_OFFSETS, details["fingerprint"], "search", {}, 0
        )

    def projections(self) -> list[StoredProjection]:
        record = self._tables.known(fresh=True)
        return [
            StoredProjection(
                version=number,
                parent=_before(record, number),
                active=number == record.version,
                **{name: value for name, value in details.items() if name != "parts"},
            )
            for number, details in self._tables.registry.versions(self._tables.uuid).items()
        ]

    def add_projection(
        self,
        kind: str,
        weights: bytes,
        fingerprint: str,
        note: Mapping[str, Json],
        **details: Unpack[VersionDetails],
    ) -> int:
        offsets, tuning = details.get("offsets"), details.get("tuning") or {}
        moved = offsets is not None and len(offsets.keys) > 0
        role = details.get("role", "search")
        if moved or details.get("terms") or role != "search" or tuning.get("examples"):
            raise CAPABILITIES.unsupported(
                "Versions that move single keys, or that answer anything but searches,",
                "store matrices and their tuning alone, or use a data folder",
            )
        registry, uuid = self._tables.registry, self._tables.uuid
        with self._adding:
            number = max(registry.versions(uuid), default=0) + 1
            body = version_body(kind, fingerprint, note, tuning, details.get("report") or {})
            registry.add_version(uuid, number, body, weights)
        if details.get("activate"):
            self.activate_projection(number)
        return number

    def activate_projection(
        self,
        version: int,
        expected: int | None = None,
        report: Mapping[str, Json] | None = None,
    ) -> None:
        self.prepare(version)
        self.graphs.attempt(self.version_of(version))
        self._tables.change(partial(_activated, number=version, expected=expected))
        if report is not None:  # afterwards: no report says of a version that it was not activated
            self._tables.registry.put_report(self._tables.uuid, version, report)

    def rollback(self, role: Role = "search") -> int:
        before = _rolled_back(self._tables.known(fresh=True)).version
        self.prepare(before)
        self._tables.change(_rolled_back)
        return before

    def prepare(self, number: int) -> None:
        """Write the keys of a version, where they are others than those there are."""
        version, tables = self.version_of(number), self._tables
        fields = schema.key_fields(version.width)

        def make(name: str) -> None:
            schema.make_table(tables.client, name, fields, tables.known().shards)

        fill(tables, version.layout, version, make)


def version_body(
    kind: str,
    fingerprint: str,
    note: Mapping[str, Json],
    tuning: Mapping[str, Json],
    report: Mapping[str, Json],
) -> dict[str, Any]:
    """Return the record of a new version."""
    return {
        "kind": kind,
        "fingerprint": fingerprint,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "note": dict(note),
        "tuning": dict(tuning),
        "report": dict(report),
    }


def _activated(record: Known, number: int, expected: int | None) -> Known:
    if expected is not None and record.version != expected:
        raise Conflict(
            f"Projection {record.version} is active by now, where {expected} was expected, so "
            f"that {number} was not activated; look at both, then activate one by its number.",
            field="projection",
        )
    return record if number == record.version else replace(record, active=(*record.active, number))


def _rolled_back(record: Known) -> Known:
    if len(record.active) < 2:
        raise Conflict(
            f"Projection {record.version} is active, and no version was active before it; "
            f"activate a version by its number instead.",
            field="projection",
        )
    return replace(record, active=record.active[:-1])


def _before(record: Known, number: int) -> int | None:
    """Return the version that answered before one was last activated."""
    position = [place for place, item in enumerate(record.active) if item == number]
    return record.active[position[-1] - 1] if position and position[-1] else None
