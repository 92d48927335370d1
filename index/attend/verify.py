"""Verification: the database is sound, and the index says what it says."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attend.collection import Collection
from attend.engines.capabilities import REFUSALS, unsupported
from attend.engines.checks import Finding
from attend.errors import AttendError, Conflict, Damaged
from attend.ingest import key_hash, value_hash
from attend.projection import Projection
from attend.recommend.trained import read as read_model
from attend.settings import Settings
from attend.store import ROLES, Hashes, KeyBatch, KeyRow, Store, StoredDocument
from attend.store.checks import CHECKS, RESTORE, Check, own_keys
from attend.store.connections import count_change
from attend.tuning import Tuning
from attend.types import Int64
from attend.views import View

log = logging.getLogger("attend")

TOLERANCE = 1e-6

PAGE = 1000
"""Documents read at a time."""

ROUNDS = 3
"""Of mending: what is mended lets be seen what lay behind it."""


@dataclass(frozen=True)
class Verified:
    """What was found wrong.

    Attributes:
        problems: as sentences.
        mended: whether there were any, and after mending there are none.
        findings: the problems with the invariants that they break.
        left: the problems that are still there after mending.
    """

    problems: list[str]
    keys: int
    mended: bool
    findings: list[Finding]
    left: list[str]

    def json(self) -> dict[str, Any]:
        return {**vars(self), "findings": [each._asdict() for each in self.findings]}


INDEX = "index"
DOCUMENTS = "documents"
PROJECTIONS = "projections"

REBUILT = "The index was built again."
RESEND = "Send the documents again, or restore a snapshot."


def verify(collection: Collection, *, mend: bool = False) -> Verified:
    """Check everything that must be true of a collection, and compare every key of the indexes
    with the database.

    Args:
        mend: put right what can be made anew from the database.
    """
    checks = collection.checks or _Files(collection)
    found = left = checks.find()
    for _ in range(ROUNDS if mend else 0):
        names = {each.check for each in left if each.can_mend}
        if not names:
            break
        checks.mend(names)
        left = checks.find()
    return Verified(
        problems=[each.problem for each in found],
        keys=_key_count(collection),
        mended=bool(found) and not left,
        findings=found,
        left=[each.problem for each in left],
    )


class _Files:
    """The checks of a database and its indexes."""

    def __init__(self, collection: Collection) -> None:
        self._collection = collection

    def find(self) -> list[Finding]:
        return list(_findings(self._collection))

    def mend(self, names: set[str]) -> None:
        _mend(self._collection, names)


def _database(collection: Collection) -> Store:
    """Raises Unsupported for a collection that is in none."""
    store = collection.store
    if not isinstance(store, Store):
        raise unsupported(collection.capabilities.engine, *REFUSALS["snapshots"])
    return store


def unopened(error: Damaged) -> Verified:
    """What to say of a collection that cannot even be opened."""
    found = Finding("file", str(error), False, RESTORE)
    return Verified([found.problem], 0, False, [found], [found.problem])


def _key_count(collection: Collection) -> int:
    try:
        return collection.store.counts()[1]
    except sqlite3.DatabaseError:
        return 0


def _findings(collection: Collection) -> Iterator[Finding]:
    """In the order of what relies on what: after damage, little else can be said for certain."""
    broken: list[Finding] = []
    for check in CHECKS:
        broken += _broken(check, collection)
        if {each.check for each in broken} & {"file", "settings"}:
            break
    yield from broken
    if {each.check for each in broken} & {"file", "settings", "json", "embeddings"}:
        return
    try:
        yield from _beyond(collection)
    except sqlite3.DatabaseError as error:
        yield Finding("file", f"It cannot be read: {error}.", False, RESTORE)


def _beyond(collection: Collection) -> Iterator[Finding]:
    """What SQL alone does not tell."""
    yield from (Finding(DOCUMENTS, each, False, RESEND) for each in _other_documents(collection))
    yield from (Finding(PROJECTIONS, each, False, RESTORE) for each in _versions(collection))
    yield from (Finding(INDEX, each, True, REBUILT) for each in _indexes(collection))


def _broken(check: Check, collection: Collection) -> list[Finding]:
    try:
        with _database(collection).connections.reading() as db:
            found = list(check.find(db))
    except sqlite3.DatabaseError as error:
        return [Finding(check.name, f"It cannot be read: {error}.", False, RESTORE)]
    return [Finding(check.name, each, check.mend is not None, check.done) for each in found]


def _mend(collection: Collection, names: set[str]) -> None:
    for check in CHECKS:
        if check.name in names and check.mend is not None:
            try:
                with _database(collection).connections.writing() as db:
                    check.mend(db)
                    count_change(db)
            except sqlite3.DatabaseError as error:
                log.warning("%s could not be mended (%s)", check.name, error)
    # Whatever was mended may have changed keys, and an index is made again in seconds.
    try:
        _rebuild(collection)
    except (AttendError, sqlite3.DatabaseError) as error:
        log.warning("The index could not be built again (%s)", error)


def _rebuild(collection: Collection) -> None:
    for projection in collection.projections():
        if projection.role != "predict" and collection.views.is_published(projection.version):
            collection.views.discard(projection.version)
    collection.publish()


# -- documents ------------------------------------------------------------------------------


def _other_documents(collection: Collection) -> Iterator[str]:
    """Documents whose text, value or keys are not those that were written."""
    wrong: dict[str, list[str]] = {}
    after: int | None = 0
    while after is not None:
        # A page of one moment: what is written between two pages is no fault.
        with _database(collection).connections.reading() as db:
            page = collection.store.scroll(after, PAGE)
            after = page[-1].row if page else None
            keys = own_keys(db, page[0].row, page[-1].row) if page else {}
            hashes = collection.store.hashes([each.id for each in page])
        for document in page:
            own = keys.get(document.row, [])
            for what in _faults(document, own, hashes.get(document.id), collection.settings):
                wrong.setdefault(what, []).append(document.id)
    for what, ids in wrong.items():
        yield f"{len(ids)} documents have {what}, {ids[0]!r} first."


def _faults(
    document: StoredDocument, keys: Sequence[KeyRow], stored: Hashes | None, settings: Settings
) -> Iterator[str]:
    if not all(_is_within(key.start, key.stop, document.fields.get(key.field)) for key in keys):
        yield "keys of parts that their texts do not have"
    brought = {key.field: key.embedding for key in keys if key.field not in document.fields}
    if stored is None or stored.keys != key_hash(document.fields, brought, settings):
        yield "another text or vector than was written"
    if stored is None or stored.value != value_hash(document.value, document.payload):
        yield "another value or payload than was written"


def _is_within(start: int, stop: int, text: str | None) -> bool:
    return 0 <= start <= stop <= len(text or "")


# -- versions -------------------------------------------------------------------------------


def _versions(collection: Collection) -> Iterator[str]:
    store = collection.store
    known = store.projections()
    state, roles = store.state(), {each.version: each.role for each in known}
    for role in ROLES:
        active = state.active(role)
        if roles.get(active) != role and (active or role == "search"):
            yield f"Projection {active} is active for {role}, but no such one is stored."
    for each in known:
        try:
            if each.role == "predict":
                read_model(store, each.version)
                continue
            projection = Projection.from_bytes(store.projection_weights(each.version))
            Tuning.of(each.tuning)
        except AttendError as error:
            yield f"Projection {each.version}: {error}"
            continue
        if projection.fingerprint != each.fingerprint:
            yield f"Projection {each.version} has other matrices than were stored."
        if projection.d_in != collection.settings.dimension:
            yield f"Projection {each.version} takes embeddings of {projection.d_in} dimensions."


# -- indexes --------------------------------------------------------------------------------


def _indexes(collection: Collection) -> Iterator[str]:
    views = collection.views
    for projection in collection.projections():
        if projection.role == "predict":
            continue  # it has no keys
        if not projection.active and not views.is_published(projection.version):
            continue
        try:
            # Before a view is made, which would pass over a damaged index and build another.
            views.check(projection.version)
            yield from _other_keys(collection, projection.version)
        except Conflict as error:
            yield str(error)
        except Damaged as error:
            yield f"{error} 'attend verify --mend' builds it again, and so does a search."


def _other_keys(collection: Collection, version: int) -> Iterator[str]:
    """Keys of the database that the index has not, or has otherwise, and the reverse."""
    examples = collection.views.current(version).made.examples
    stored = 0
    with collection.store.all_keys(examples=examples) as (_, batches):
        # Inside the transaction, so that both are of one moment while others write.
        view = collection.views.current(version)
        for batch in batches:
            stored += len(batch.ids)
            yield from _differences(view, batch)
    held = sum(segment.living_keys for segment in view.keys.segments)
    if stored < held:
        yield f"The index holds {held} living keys, but the database {stored}."


def _differences(view: View, batch: KeyBatch) -> Iterator[str]:
    found = view.keys.lookup(np.unique(batch.documents))
    order = np.argsort(found.ids)
    at = np.searchsorted(found.ids, batch.ids, sorter=order)
    at = order[np.minimum(at, len(order) - 1)] if len(order) else np.zeros(0, dtype=np.int64)
    is_there = found.ids[at] == batch.ids if len(order) else np.zeros(len(batch.ids), bool)
    if not is_there.all():
        missing = batch.ids[~is_there]
        yield f"{len(missing)} keys are not in the index, key {missing[0]} first."
        return
    expected = view.made.keys(batch).vectors
    yield from _wrong(batch.ids[np.abs(expected - found.vectors[at]).max(axis=1) > TOLERANCE])


def _wrong(keys: Int64) -> Iterator[str]:
    if len(keys):
        yield f"{len(keys)} keys have other vectors in the index, key {keys[0]} first."
