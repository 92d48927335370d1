"""Checks of a collection in a folder: its database, and the indexes made of it."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator, Sequence

import numpy as np

from attend.collection.views import LocalView, Views
from attend.core.arrays import KeyTable, locate
from attend.core.errors import AttendError, Conflict, Damaged
from attend.core.settings import Settings, Tuning
from attend.core.types import Float32, Int64
from attend.engines.engine import Finding
from attend.projection import Projection
from attend.recommend.predictor import read_model
from attend.store import ROLES, Hashes, KeyRow, Store, StoredDocument
from attend.store.checks import CHECKS, RESEND, RESTORE, Check
from attend.store.sql import count_change, own_key_rows
from attend.write.ingest import key_hash, value_hash

log = logging.getLogger("attend")

TOLERANCE = 1e-6

PAGE = 1000
"""Documents read at a time."""

INDEX, DOCUMENTS, PROJECTIONS = "index", "documents", "projections"

REBUILT = "The index was built again."


class LocalChecks:
    """As `attend.engines.engine.Checks`, of a collection in a folder."""

    def __init__(self, store: Store, views: Views, settings: Settings) -> None:
        self._store = store
        self._views = views
        self._settings = settings

    def find(self) -> list[Finding]:
        """Return the problems in an order in which each check relies on those before it."""
        findings: list[Finding] = []
        for check in CHECKS:
            findings += self._database_findings(check)
            if {finding.check for finding in findings} & {"file", "settings"}:
                break
        if {finding.check for finding in findings} & {"file", "settings", "json", "embeddings"}:
            return findings
        try:
            findings += [Finding(DOCUMENTS, item, False, RESEND) for item in self._documents()]
            versions = version_problems(self._store, self._settings)
            findings += [Finding(PROJECTIONS, item, False, RESTORE) for item in versions]
            findings += [Finding(INDEX, item, True, REBUILT) for item in self._indexes()]
        except sqlite3.DatabaseError as error:
            findings.append(_unreadable("file", error))
        return findings

    def repair(self, names: set[str]) -> None:
        for check in CHECKS:
            if check.name in names and check.repair is not None:
                try:
                    with self._store.connections.writing() as db:
                        check.repair(db)
                        count_change(db)
                except (Damaged, sqlite3.DatabaseError) as error:
                    log.warning("%s could not be repaired (%s)", check.name, error)
        # A repair may have changed keys, and an index is made again in seconds.
        try:
            for projection in self._store.projections():
                if (
                    projection.role != "predict"
                    and self._views.indexes(projection.version).exists()
                ):
                    self._views.discard(projection.version)
            self._views.publish()
        except (AttendError, sqlite3.DatabaseError) as error:
            log.warning("The index could not be built again (%s)", error)

    def _database_findings(self, check: Check) -> list[Finding]:
        try:
            with self._store.connections.reading() as db:
                problems = list(check.find(db))
        except sqlite3.DatabaseError as error:
            return [_unreadable(check.name, error)]
        return [
            Finding(check.name, problem, check.repair is not None, check.advice)
            for problem in problems
        ]

    def _documents(self) -> Iterator[str]:
        """Find documents whose text, value or keys are not those that were written."""
        wrong: dict[str, list[str]] = {}
        settings = Settings.of(self._store.settings())
        after: int | None = 0
        while after is not None:
            # A page of one moment: a write between two pages is no fault.
            with self._store.connections.reading() as db:
                page = self._store.scroll(after, PAGE)
                after = page[-1].row if page else None
                keys = own_key_rows(db, page[0].row, page[-1].row) if page else {}
                hashes = self._store.hashes([document.id for document in page])
            for document in page:
                stored = hashes.get(document.id)
                for fault in _faults(document, keys.get(document.row, []), stored, settings):
                    wrong.setdefault(fault, []).append(document.id)
        for fault, ids in wrong.items():
            yield f"{len(ids)} documents have {fault}, {ids[0]!r} first."

    def _indexes(self) -> Iterator[str]:
        for projection in self._store.projections():
            if projection.role == "predict":
                continue  # it has no keys
            indexes = self._views.indexes(projection.version)
            if not projection.active and not indexes.exists():
                continue
            try:
                # Before a view is made, which would replace a damaged index by another.
                indexes.load(self._views.progress, thorough=True)
                yield from self._index(projection.version)
            except Conflict as error:
                yield str(error)
            except Damaged as error:
                yield f"{error} 'attend verify --repair' builds it again, as does whoever opens it."

    def _index(self, version: int) -> Iterator[str]:
        """Find keys of the database that the index lacks or has otherwise, and the reverse."""
        examples = self._views.current(version).version.examples
        stored = 0
        with self._store.all_keys(examples=examples) as (_, tables):
            # Inside the transaction, so that both are of one moment while others write.
            view = self._views.current(version)
            for table in tables:
                stored += len(table.ids)
                yield from _differences(view, table)
        indexed = sum(segment.living_keys for segment in view.keys.segments)
        if stored < indexed:
            yield f"The index holds {indexed} living keys, but the database {stored}."


def version_problems(store: Store, settings: Settings) -> Iterator[str]:
    """Find versions that cannot answer, and roles without the version that should."""
    state, projections = store.state(), store.projections()
    roles = {projection.version: projection.role for projection in projections}
    for role in ROLES:
        active = state.active(role)
        if roles.get(active) != role and (active or role == "search"):
            yield f"Projection {active} is active for {role}, but no such one is stored."
    for stored in projections:
        try:
            if stored.role == "predict":
                read_model(store, stored.version)
                continue
            projection = Projection.from_bytes(store.version(stored.version).weights)
            Tuning.of(stored.tuning)
        except AttendError as error:
            yield f"Projection {stored.version}: {error}"
            continue
        if projection.fingerprint != stored.fingerprint:
            yield f"Projection {stored.version} has other matrices than were stored."
        if projection.d_in != settings.dimension:
            yield (f"Projection {stored.version} takes embeddings of {projection.d_in} dimensions.")


def _unreadable(check: str, error: sqlite3.DatabaseError) -> Finding:
    return Finding(check, f"It cannot be read: {error}.", False, RESTORE)


def _faults(
    document: StoredDocument, keys: Sequence[KeyRow], stored: Hashes | None, settings: Settings
) -> Iterator[str]:
    if not all(_is_within(key.start, key.stop, document.fields.get(key.field)) for key in keys):
        yield "keys of parts that their texts do not have"
    rows: dict[str, list[Float32]] = {}
    for key in keys:
        if not key.stop:  # a vector that the document brought, and no part of a text
            rows.setdefault(key.field, []).append(key.embedding)
    vectors = {name: np.stack(embeddings) for name, embeddings in rows.items()}
    if stored is None or stored.keys != key_hash(document.fields, vectors, settings):
        yield "another text or vector than was written"
    if stored is None or stored.value != value_hash(document.value, document.payload):
        yield "another value or payload than was written"


def _is_within(start: int, stop: int, text: str | None) -> bool:
    return 0 <= start <= stop <= len(text or "")


def _differences(view: LocalView, stored: KeyTable) -> Iterator[str]:
    indexed = view.keys.lookup(stored.rows)
    order = np.argsort(indexed.ids)
    places, is_indexed = locate(indexed.ids[order], stored.ids)
    if not is_indexed.all():
        missing = stored.ids[~is_indexed]
        yield f"{len(missing)} keys are not in the index, key {missing[0]} first."
        return
    expected = view.version.keys(stored).vectors
    differences = np.abs(expected - indexed.vectors[order[places]]).max(axis=1)
    yield from _wrong(stored.ids[differences > TOLERANCE])


def _wrong(keys: Int64) -> Iterator[str]:
    if len(keys):
        yield f"{len(keys)} keys have other vectors in the index, key {keys[0]} first."
