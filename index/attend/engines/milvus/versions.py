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
from typing import Unpack

from attend.engines.milvus import schema
from attend.engines.milvus.capabilities import CAPABILITIES
from attend.engines.milvus.graphs import Graphs
from attend.engines.milvus.key_tables import KeyTables
from attend.engines.milvus.registry import Known
from attend.engines.milvus.tables import Tables
from attend.errors import Conflict
from attend.store import NO_OFFSETS, StoredProjection, StoredVersion, VersionDetails
from attend.types import Json
from attend.versions import Version


class RemoteVersions:
    """The versions of one collection."""

    def __init__(self, tables: Tables, scorer: str) -> None:
        self._tables = tables
        self.layouts = KeyTables(tables)
        self.graphs = Graphs(tables, self.layouts)
        self._scorer = scorer
        self._made: dict[int, Version] = {}  # a version never changes
        self._lock = threading.Lock()

    def of(self, number: int) -> Version:
        """Return a version. Raise UnknownProjection for an unknown number."""
        if number not in self._made:
            self._made[number] = Version.of(number, self.stored(number), self._scorer)
        return self._made[number]

    def stored(self, number: int) -> StoredVersion:
        details, weights = self._tables.registry.version(self._tables.uuid, number)
        return StoredVersion(
            weights, details["tuning"], NO_OFFSETS, details["fingerprint"], "search", {}, 0
        )

    def listed(self) -> list[StoredProjection]:
        record = self._tables.known(fresh=True)
        return [
            StoredProjection(
                number,
                details["kind"],
                details["fingerprint"],
                details["created"],
                details["note"],
                details["tuning"],
                details["report"],
                _before(record, number),
                number == record.version,
            )
            for number, details in self._tables.registry.versions(self._tables.uuid).items()
        ]

    def add(
        self,
        kind: str,
        weights: bytes,
        fingerprint: str,
        note: Mapping[str, Json],
        **rest: Unpack[VersionDetails],
    ) -> int:
        """Store a projection. Returns its number; as `Store.add_projection`."""
        offsets, tuning = rest.get("offsets"), rest.get("tuning") or {}
        moved = offsets is not None and len(offsets[0]) > 0
        role = rest.get("role", "search")
        if moved or rest.get("terms") or role != "search" or tuning.get("examples"):
            raise CAPABILITIES.unsupported(
                "Versions that move single keys, or that answer anything but searches,",
                "store matrices and their tuning alone, or use a data folder",
            )
        details = {
            "kind": kind,
            "fingerprint": fingerprint,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "note": dict(note),
            "tuning": dict(tuning),
            "report": dict(rest.get("report") or {}),
        }
        with self._lock:
            taken = self._tables.registry.versions(self._tables.uuid)
            number = max(taken, default=0) + 1
            self._tables.registry.add_version(self._tables.uuid, number, details, weights)
        if rest.get("activate"):
            self.activate(number)
        return number

    def activate(self, number: int, expected: int | None = None) -> None:
        """Let a version answer, once its keys are there; as `Store.activate_projection`."""
        self.prepare(number)
        self.graphs.attempt(self.of(number))
        self._tables.change(partial(_activated, number=number, expected=expected))

    def rollback(self) -> int:
        """Undo the last activation. Returns the version that answers now."""
        before = _rolled_back(self._tables.known(fresh=True)).version
        self.prepare(before)
        self._tables.change(_rolled_back)
        return before

    # -- layouts ----------------------------------------------------------------------------

    def is_ready(self, version: Version, record: Known) -> bool:
        """Return whether the keys of a version can be searched."""
        return version.layout == schema.RAW or record.layouts.get(version.layout, (0, False))[1]

    def prepare(self, number: int) -> None:
        """Write the keys of a version, where they are others than those there are."""
        version = self.of(number)
        if version.layout != schema.RAW:
            self.layouts.fill(version.layout, version, partial(self._make, version.width))

    def _make(self, width: int, table: str) -> None:
        schema.make_keys(self._tables.client, table, width, self._tables.known().shards)


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
            f"Projection {record.version} is active, and none was before it that could be gone "
            f"back to; activate a version by its number instead.",
            field="projection",
        )
    return replace(record, active=record.active[:-1])


def _before(record: Known, number: int) -> int | None:
    """The version that answered before one was last activated."""
    position = [place for place, item in enumerate(record.active) if item == number]
    return record.active[position[-1] - 1] if position and position[-1] else None
