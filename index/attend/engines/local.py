"""The default engine: a folder of collections, each in a folder of its own; and its checks.

```
DIR/collections/NAME/documents.db    the truth
DIR/collections/NAME/keys/           published indexes, which can be built again
DIR/collections/ALIAS -> NAME        another name of a collection
```
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import re
import secrets
import shutil
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np

from attend.api.base import NAME_PATTERN
from attend.core.arrays import KeyTable, locate
from attend.core.errors import AttendError, Conflict, Damaged
from attend.core.settings import Settings, Tuning
from attend.core.types import Float32
from attend.engines.engine import Capabilities, Finding, OpenedCollection, name_taken
from attend.engines.snapshots import LocalView, Views
from attend.keys.files import sync_folder
from attend.projection import Projection, identity
from attend.recommend.predict import read_model
from attend.store import ROLES, Hashes, KeyRow, StoredDocument
from attend.store.checks import CHECKS, RESEND, RESTORE
from attend.store.database import Store
from attend.store.sql import count_change, own_key_rows
from attend.write.ingest import key_hash, value_hash

log = logging.getLogger("attend")

LEFT_BEHIND = re.compile(r"(making|dropped|restored)-[0-9a-f]{16}")
"""Folders on their way to a collection, or from one: there for a moment, unless it was killed."""

MAKING_SECONDS = 3600.0
"""After which nobody can still be making a collection, which takes a fraction of one second."""

CAPABILITIES = Capabilities("local")

HERE, EXCHANGE = -100, 2
"""AT_FDCWD and RENAME_EXCHANGE of renameat2(2)."""

CANNOT_EXCHANGE = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)
"""Errors of a kernel or a file system that does not exchange names."""


class Folder:
    """Collections in a folder, in SQLite and FAISS."""

    capabilities = CAPABILITIES

    def __init__(self, folder: Path, *, read_only: bool = False) -> None:
        self.folder = folder
        self._read_only = read_only
        self.aliases = Aliases(folder)
        if not read_only:
            _sweep(folder)

    def names(self) -> list[str]:
        """Return the collections, without aliases, in alphabetical order."""
        results = (self.folder / "collections").glob("*/documents.db")
        names = (path.parent.name for path in results)
        valid = (name for name in names if re.fullmatch(NAME_PATTERN, name))
        return sorted(name for name in valid if self.aliases.target(name) is None)

    def identity(self, name: str) -> object | None:
        """Return the database's inode: another process may have made one of the same name."""
        try:
            # As each search asks.
            path = os.path.join(self.folder, "collections", name, "documents.db")
            return os.stat(path).st_ino
        except FileNotFoundError:
            return None

    def open(self, name: str) -> OpenedCollection:
        folder = self._of(name)
        store = Store(folder / "documents.db", read_only=self._read_only)
        with ExitStack() as on_error:
            on_error.callback(store.close)
            settings = Settings.of(store.settings())
            on_error.pop_all()
        views = Views(store, folder / "keys", settings)
        checks = LocalChecks(store, views, settings)
        return OpenedCollection(
            folder, settings, store, views, CAPABILITIES, checks, read_only=self._read_only
        )

    def make(self, name: str, settings: Settings) -> None:
        """Make the folder under another name first: a killed creation leaves nothing behind."""
        folder = self._of(name)
        if (folder / "documents.db").exists():
            return
        making = self.folder / f"making-{secrets.token_hex(8)}"
        cosine_of_raw = settings.scorer == "cosine" and not settings.unit_embeddings
        projection = identity(settings.dimension, normalize=cosine_of_raw)
        first = projection.kind, projection.to_bytes(), projection.fingerprint
        # Of their owner alone: whoever reads them reads every text.
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            making.mkdir(mode=0o700)
            (making / "documents.db").touch(mode=0o600)
            with closing(Store(making / "documents.db", width=settings.dimension)) as store:
                store.initialise(settings.stored(), first)
            folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if folder.exists() and not (folder / "documents.db").exists():
                shutil.rmtree(folder)  # indexes without their database are of no use
            try:
                making.rename(folder)
            except OSError:
                if not (folder / "documents.db").exists():
                    raise
        finally:
            shutil.rmtree(making, ignore_errors=True)

    def drop(self, name: str) -> None:
        """Rename the folder first: a killed deletion leaves no half a collection."""
        doomed = self.folder / f"dropped-{secrets.token_hex(8)}"
        self._of(name).rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)

    def exchange(self, name: str, other: str) -> None:
        """Let two collections change their names: at no moment is one of them missing."""
        _exchange(self._of(name), self._of(other))
        sync_folder(self._of(name).parent)

    def close(self) -> None:
        """Nothing is held open."""

    def _of(self, name: str) -> Path:
        return self.folder / "collections" / name


class Aliases:
    """Other names of the collections of a data folder, switched in one step while searches run.

    An alias is a symbolic link beside the collections: so the file system itself keeps a name
    from being both, in every process; a rename switches it; and a restart finds it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._names = folder / "collections"

    def all(self) -> dict[str, str]:
        """Return the collection of each alias, in alphabetical order."""
        try:
            links = sorted(entry.name for entry in os.scandir(self._names) if entry.is_symlink())
        except FileNotFoundError:
            return {}
        targets = {name: self.target(name) for name in links}
        return {name: target for name, target in targets.items() if target is not None}

    def target(self, name: str) -> str | None:
        """Return the collection that an alias leads to, if it exists or not; None for no alias.

        A link to another place is a collection that somebody keeps there.
        """
        try:
            link = os.readlink(os.path.join(self._names, name))  # in each search
        except OSError:
            return None
        return link if re.fullmatch(NAME_PATTERN, link) else None

    def put(self, name: str, collection: str) -> None:
        """Let an alias lead to a collection. Raise CollectionExists where one has its name."""
        # Made where leftovers of killed processes are removed, then renamed.
        making = self._folder / f"making-{secrets.token_hex(8)}"
        try:
            making.mkdir()
            link = making / "alias"
            link.symlink_to(collection)
            link.rename(self._names / name)
        except IsADirectoryError:
            raise name_taken(name) from None
        finally:
            shutil.rmtree(making, ignore_errors=True)
        sync_folder(self._names)  # the answer holds through a power cut

    def remove(self, name: str) -> bool:
        """Remove an alias, and return whether there was one; its collection stays."""
        if self.target(name) is None:
            return False
        (self._names / name).unlink(missing_ok=True)
        sync_folder(self._names)
        return True


def _exchange(one: Path, other: Path) -> None:
    """Let two folders change their names in one step, where the system can do that."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is not None:
        paths = (os.fsencode(one), HERE, os.fsencode(other))
        if rename(HERE, *paths, EXCHANGE) == 0:
            return
        error = ctypes.get_errno()
        if error not in CANNOT_EXCHANGE:
            raise OSError(error, os.strerror(error), str(one), None, str(other))
    # Elsewhere a name is missing for a moment; the third name says what is to be done if the
    # process is killed in it.
    beside = one.with_name(f"{one.name}.{other.name}")
    one.rename(beside)
    try:
        other.rename(one)
    finally:
        _finish_exchange(beside)


def _finish_exchange(beside: Path) -> None:
    """Rename the folder that an exchange left beside the two names: to the one that is free."""
    for name in beside.name.split("."):
        if not beside.with_name(name).exists():
            beside.rename(beside.with_name(name))
            return


def _sweep(folder: Path) -> None:
    """Remove what killed creations and deletions left behind, and go on with killed restores.

    A dropped folder is nobody's, whoever drops it; one that is being made may be another
    process's, and is left alone until it is old.
    """
    for path in (folder / "collections").glob("*.*"):
        if path.name.count(".") == 1 and (path / "documents.db").exists():
            _finish_exchange(path)
    made_before = time.time() - MAKING_SECONDS
    for path in folder.glob("*-*"):
        results = LEFT_BEHIND.fullmatch(path.name)
        if results and path.is_dir() and not path.is_symlink():
            if results[1] == "making" and path.stat().st_mtime > made_before:
                continue
            if results[1] == "restored" and not _moved(path / "collections", folder):
                continue
            shutil.rmtree(path, ignore_errors=True)


def _moved(restored: Path, folder: Path) -> bool:
    """Move what a killed restore has not moved yet: all of it was checked."""
    try:
        for path in sorted(restored.glob("*"), key=Path.is_symlink):  # an alias at the end
            if not os.path.lexists(folder / "collections" / path.name):
                path.rename(folder / "collections" / path.name)
    except OSError:  # another process goes on with it, or the next opening does
        return False
    return True


# -- checks ---------------------------------------------------------------------------------

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
            try:
                with self._store.connections.reading() as db:
                    problems = list(check.find(db))
            except sqlite3.DatabaseError as error:
                findings.append(_unreadable(check.name, error))
            else:
                can_mend = check.repair is not None
                findings += [
                    Finding(check.name, problem, can_mend, check.advice) for problem in problems
                ]
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
            self._views.discard()
            self._views.publish()
        except (AttendError, sqlite3.DatabaseError) as error:
            log.warning("The index could not be built again (%s)", error)

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
            indexes = self._views.published(projection.version)
            if not projection.active and not indexes.exists():
                continue
            try:
                # Before a view is made, which would replace a damaged index by another.
                indexes.load(self._views.indexes.progress, thorough=True)
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
    if not all(
        0 <= key.start <= key.stop <= len(document.fields.get(key.field) or "") for key in keys
    ):
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
    wrong = stored.ids[differences > TOLERANCE]
    if len(wrong):
        yield f"{len(wrong)} keys have other vectors in the index, key {wrong[0]} first."
