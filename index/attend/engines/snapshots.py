"""Views of a data folder, kept in step with its database.

A search takes one view at its start, and later writes do not disturb it. `Views` follows the
database by SQLite's `data_version` and swaps in the next. A view begins with the published index
of its version, which is written from the database; the database stays the truth.
"""

from __future__ import annotations

import logging
import math
import sqlite3
import threading
import time
from collections.abc import Container, Hashable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from attend.api.search import SearchOptions
from attend.collection.versions import UNTRAINED, Version, View
from attend.core.deadline import NO_DEADLINE, SlowLock, until
from attend.core.errors import (
    AttendError,
    CannotWrite,
    Conflict,
    Damaged,
    InvalidRequest,
    is_out_of_files,
    out_of_files,
)
from attend.core.settings import Settings
from attend.core.types import Float32, OnStage
from attend.engines.engine import OnSettings, Selected, masked
from attend.keys.files import IndexOrigin, Progress, PublishedIndexes, discard, unchecked
from attend.keys.snapshot import Image, Snapshot
from attend.keys.vectors import QUERIES, IndexTarget
from attend.projection import RAW_KEYS, identity
from attend.store import ROLES, Role, State, TooFarBehind, compile_filter
from attend.store.database import Store
from attend.store.mapped import SETTING, with_terms

log = logging.getLogger("attend")

MERGE_KEYS = 10_000
"""Fresh keys that are searched as a plain matrix before they are merged into the index."""

DEAD_SHARE = 2
"""Living keys for each masked one, below which a published segment is written again: a masked
key still costs a search its product, and the disk its place."""

KEPT_VIEWS = 3
"""Versions held in memory at once: the active one, and some that requests name."""

SPARE_SECONDS = 3600.0
"""How long the index of a version that does not answer stays: one is written before its version is
activated, and perhaps by another process."""

NEVER = -1
"""The change of a view of a published index alone."""

WRITTEN = "The index of the collection is being written"

EXACT_MOVING = 500_000
"""The most keys that are searched exactly while some are mapped: a tenth of a second each time."""

UNREAD = -1
"""The number of changes of the settings before they were looked at."""


@dataclass(frozen=True)
class LocalView(View):
    keys: Snapshot

    def give_up(self, damage: str) -> None:
        self.keys.image.damage = damage


@dataclass(slots=True)
class _Slot:
    """The place of one version's view; `lock` is held by whoever makes the next one."""

    lock: SlowLock = field(default_factory=SlowLock)
    view: LocalView | None = None


class Views:
    """The views of one collection, by version, and their published indexes.

    Each version is opened and kept up to date under a lock of its own, and a view that is
    up to date is read under none: searches go on while another version is opened.

    Attributes:
        indexes: the published indexes, by version.
        on_settings: called with the settings once another process, or this one, changed them.
    """

    def __init__(self, store: Store, folder: Path, settings: Settings) -> None:
        self.on_settings: OnSettings = lambda settings: None
        self._store = store
        self.indexes = VersionIndexes(store, folder, settings)
        self._settings_change = UNREAD
        # The untrained version that recommends, and the keys that its mean is of.
        self._centre: tuple[Version, Hashable] | None = None
        self._centring = threading.Lock()
        self._slots: dict[int, _Slot] = {}
        self._seen = threading.local()
        self._lock = threading.Lock()  # of `_slots`; never held while anything is read
        self._publishing = threading.Lock()

    def current(self, version: int | None = None, role: Role = "search") -> LocalView:
        """Return the view of a version, with every committed write in it.

        Args:
            version: the active one of `role` if None (or 0). Without any, that is the untrained
                one: embeddings as they are, queries centred.

        Raises:
            UnknownProjection: no such version exists.
            InvalidRequest: the version answers no searches.
            ManifestMismatch: the published index belongs to something else.
        """
        state = self._state()
        number = version or state.active(role)
        if number == UNTRAINED:
            return self._untrained(state)
        slot = self._slots.get(number)
        view = None if slot is None else slot.view
        if view is not None and view.change >= state.change and not view.keys.image.damage:
            return view
        return self._brought_up(number, state.change)

    def select(self, options: SearchOptions, query_rows: tuple[int, ...]) -> Selected:
        """Return the snapshot of one search; see `SnapshotSource`."""
        view = self.current(options.projection)
        if not (options.filter or options.mask) and (options.attend != "all" or not query_rows):
            return view, None, np.array(query_rows, dtype=np.int64)
        excluded, only = masked(self._store, options, query_rows)
        rows = None if only is None else np.unique(np.array(only, dtype=np.int64))
        if options.filter or (excluded and rows is None):
            passing = self._store.matching(compile_filter(options.filter or {}))
            rows = passing if rows is None else np.intersect1d(passing, rows)
        if excluded and rows is not None:
            rows = np.setdiff1d(rows, list(excluded), assume_unique=True)
        return view, rows, np.array((), dtype=np.int64)

    @property
    def damage(self) -> str | None:
        """The last damage of an index that was found since it was opened, and repaired."""
        return self.indexes.damage

    def mean(self) -> Float32:
        """Return the mean of keys' embeddings (d,) that queries are centred by."""
        center = self._untrained(self._state()).version.projection.center
        assert center is not None  # that is what the untrained version is made of
        return center.astype(np.float32, copy=False)

    @until(NO_DEADLINE)
    def publish(self, on_stage: OnStage = lambda stage, done: None) -> LocalView:
        """Write the active version's keys as a new generation, and use it from now on."""
        self._store.connections.check_writable()
        with self._publishing:
            return self._publish(self._store.state().projection, on_stage)

    @until(NO_DEADLINE)
    def merge_if_due(self) -> None:
        """Publish when fresh keys, or those masked, are too many to be searched as they are."""
        if self._store.connections.read_only:
            return
        for number in {self.current().version.number, UNTRAINED, self._store.state().recommend}:
            # Where another thread is at it, this one need not wait.
            if self._is_due(number) and self._publishing.acquire(blocking=False):
                try:
                    if self._is_due(number):
                        self._publish(number)
                finally:
                    self._publishing.release()

    def has_fresh(self) -> bool:
        """Return whether the active version's keys differ from those last published."""
        keys = self.current().keys
        return bool(keys.delta.living or keys.published.removed)

    def discard(self) -> None:
        """Remove all published indexes."""
        self.indexes.sweep(())
        with self._lock:
            self._slots = {}

    def published(self, number: int) -> PublishedIndexes:
        """Return the index files of a version's keys, sound or not."""
        return self.indexes.of(self._version(number))

    def _state(self) -> State:
        """Return the state of the database; read only after another connection has committed."""
        latest = self._store.connections.data_version()
        if getattr(self._seen, "data_version", None) != latest:
            self._seen.state = self._store.state()
            self._seen.data_version = latest
        state: State = self._seen.state
        if state.settings != self._settings_change:
            self._read_settings(state.settings)
        return state

    def refresh(self) -> None:
        """Look whether settings were changed."""
        self._state()

    def _read_settings(self, change: int) -> None:
        """Take the settings and indexes that another process, or this one, has written."""
        settings = Settings.of(self._store.settings())
        is_changed = settings != self.indexes.settings
        with self._lock:
            views = {number: slot.view for number, slot in self._slots.items() if slot.view}
        for number, view in views.items():
            manifest = view.keys.image.manifest
            nonce = None if manifest is None else manifest.nonce
            # Another process may have published keys of a version since.
            if self.indexes.of(view.version).current() not in (None, nonce):
                with self._lock:
                    self._slots.pop(number, None)
        self.indexes.settings = settings
        self._settings_change = change
        if is_changed:
            self.on_settings(settings)

    def _brought_up(self, number: int, change: int) -> LocalView:
        """Return a version's view, opened or advanced at least to a change."""
        with self._lock:
            slot = self._slots.setdefault(number, _Slot())
        with slot.lock.held(WRITTEN), until(NO_DEADLINE):
            if slot.view is not None and slot.view.keys.image.damage:
                self.indexes.give_up(slot.view.version, slot.view.keys.image)
            elif slot.view is not None:
                if slot.view.change >= change:
                    return slot.view
                try:
                    slot.view = self._advance(slot.view)
                    return slot.view
                except TooFarBehind:
                    log.info("version %d is opened again: too many keys were removed", number)
            try:
                version = self._version(number)
                view = slot.view = self._load(version)
            except BaseException:
                with self._lock:
                    self._slots.pop(number, None)
                raise
        self._keep(number)
        if not (image := view.keys.image).is_checked:
            threading.Thread(target=self._check, args=[version, image], daemon=True).start()
        return view

    def _check(self, version: Version, image: Image) -> None:
        """Read all of an index that was opened, and make another at once if it is damaged."""
        try:
            self.indexes.check(version, image)
            if image.damage:
                self._brought_up(version.number, NEVER)
        except (AttendError, OSError, sqlite3.Error) as error:  # the next search may have more luck
            log.info("The index of version %d was not checked: %s", version.number, error)

    def _untrained(self, state: State) -> LocalView:
        """Return embeddings as keys, under queries less their mean.

        Nothing of it is stored: where the version that searches has embeddings as keys, its view
        serves. The mean is of the published keys, which are the same in every process, whenever
        it looks; of all keys in their present state while most of them are not published.
        """
        raw = self.current(state.projection)
        if raw.version.layout != RAW_KEYS:
            raw = self._brought_up(UNTRAINED, state.change)
        most = raw.keys.published.living_keys >= raw.keys.fresh
        keys = raw.keys.image if most else raw.change
        with self._centring:
            if self._centre is None or self._centre[1] != keys:
                now = Settings.of(self._store.settings())  # the first write decides some
                mean = raw.keys.mean(published=most)
                version = Version.centred(mean, unit=now.unit_embeddings, scorer=now.scorer)
                self._centre = version, keys
            return replace(raw, version=self._centre[0])

    def _keep(self, number: int) -> None:
        """Drop versions that were opened long ago, but for the active ones and this."""
        needed = {number, *map(self._store.state().active, ROLES)}
        with self._lock:
            spare = [n for n in self._slots if n not in needed and self._slots[n].view]
            for outdated in spare[: max(0, len(spare) - (KEPT_VIEWS - 2))]:
                del self._slots[outdated]

    def _load(self, version: Version) -> LocalView:
        base = self.indexes.read(version)
        fresh = self._store.state().last_key - base.last_key
        if fresh > _bearable(base.published.keys) and not self._store.connections.read_only:
            # In blocks on its way to the disk: as fresh keys it would be in memory at once.
            try:
                self._write(version)
            # A full disk does not prevent an answer.
            except (CannotWrite, Conflict, OSError) as error:
                log.warning("The index was not written, and is held in memory: %s", error)
            base = self.indexes.read(version)
        try:
            return self._opened(version, base)
        except TooFarBehind:  # a newer index was written since
            return self._opened(version, self.indexes.read(version))

    def _opened(self, version: Version, base: Snapshot) -> LocalView:
        """Return a version over published keys, with everything that was committed since."""
        if version.terms and version.last_key < base.last_key:
            # Some of these keys may be of other texts than those that terms were learned of.
            version = self._stored(version.number)
        return self._advance(LocalView(version, base, NEVER))

    def _is_due(self, number: int) -> bool:
        slot = self._slots.get(number)
        if slot is None or slot.view is None:
            return False  # it is written when it is opened
        keys = slot.view.keys
        coming = self._store.state().last_key - keys.last_key
        hollow = max(MERGE_KEYS, keys.published.living_keys // DEAD_SHARE)
        removed = keys.published.removed_keys
        return keys.fresh + coming > _bearable(keys.published.keys) or removed > hollow

    def _write(self, version: Version, on_stage: OnStage = lambda stage, done: None) -> None:
        """Write the index of a version, and remove those that nobody is about to search.

        Left are those of the versions that answer, and of those that a rollback returns to; any
        other is written again when its version is opened.
        """
        self.indexes.write(version, on_stage)
        needed = {version.number, UNTRAINED}
        for stored in self._store.projections():
            if stored.active and stored.role != "predict":
                needed |= {stored.version, stored.parent or UNTRAINED}
        # Of a version that cannot be read the layout is not known; others sweep, too.
        with suppress(AttendError, FileNotFoundError):
            layouts = {self._version(number).layout for number in needed}
            self.indexes.sweep(layouts, time.time() - SPARE_SECONDS)

    def _publish(self, number: int, on_stage: OnStage = lambda stage, done: None) -> LocalView:
        version = self._version(number)
        self._write(version, on_stage)
        fresh = self._opened(version, self.indexes.read(version))
        with self._lock:
            slot = self._slots.setdefault(number, _Slot())
        with slot.lock.held(WRITTEN):
            view = slot.view = self._advance(fresh)
        self._keep(number)
        return view

    def _advance(self, view: LocalView) -> LocalView:
        """Return the view with everything that was committed since it was made."""
        keys = view.keys
        state, added, removed = self._store.changes_since(
            keys.last_key, keys.last_removal, examples=view.version.examples
        )
        version = view.version
        if version.terms:
            version = version.without(
                added, with_terms(self._store, version.number, added.documents)
            )
        if state.change == view.change:
            return view
        advanced = keys.advanced(version.keys(added), removed, state.last_key, state.last_removal)
        return LocalView(version, advanced, state.change)

    def _version(self, number: int) -> Version:
        slot = self._slots.get(number)
        if slot is not None and slot.view is not None:
            return slot.view.version
        return self._stored(number)

    def _stored(self, number: int) -> Version:
        if number == UNTRAINED:
            return Version(number, identity(self.indexes.settings.dimension).fold())
        stored = self._store.version(number)
        if stored.role == "predict":
            raise InvalidRequest(
                f"Version {number} predicts ratings and has no keys to search; name another.",
                field="projection",
            )
        settings = self.indexes.settings
        return Version.of(number, stored, settings.scorer, words=settings.encoder is not None)


class VersionIndexes:
    """Writes and reads the index files of one collection, by version.

    Attributes:
        settings: the settings whose recall the next index has; others may be set at any time.
        damage: the last damage of an index that was found, and is repaired.
    """

    damage: str | None = None

    def __init__(self, store: Store, folder: Path, settings: Settings) -> None:
        self.settings = settings
        self._given_up: set[str] = set()
        self._store = store
        self._folder = folder

    def of(self, version: Version) -> PublishedIndexes:
        """Return the index files of a version's keys, sound or not."""
        self._store.connections.check_there()  # files here may be those of another collection
        uuid, encoder = str(self._store.settings()["uuid"]), self.settings.encoder or "none"
        origin = IndexOrigin(uuid, encoder, version.projection.d_in, version.layout)
        return PublishedIndexes(self._folder, origin)

    def progress(self) -> Progress:
        """Return the state of the database, which no sound index is ahead of."""
        state = self._store.state()
        return Progress(state.last_key, state.last_removal, self._store.settings()["published"])

    def write(self, version: Version, on_stage: OnStage = lambda stage, done: None) -> None:
        """Write all keys of a version as a new generation of its index."""
        with self._store.all_keys(examples=version.examples) as (state, tables):
            manifest = self.of(version).publish(
                map(version.keys, tables),
                state.last_key,
                state.last_removal,
                self._store.record_publication,
                self._target(version),
                on_stage,
            )
        self._store.forget_removals(manifest.last_removal)
        self._store.put_settings({})  # other processes look at the index again
        log.info("published generation %d with %d keys", manifest.generation, manifest.keys)

    def read(self, version: Version) -> Snapshot:
        """Return the published keys; none where no index exists, or none that is sound.

        Raises:
            ManifestMismatch: the index belongs to something else.
            OutOfFiles: no file can be opened, and nothing is known of the index.
        """
        indexes, empty = self.of(version), Snapshot.empty(version.width)
        loaded = None
        try:
            loaded = indexes.load(self.progress)
        except Damaged as damage:
            _check_files(indexes, damage)
            self._discard(indexes, str(damage))
        if loaded is None or loaded[1].last_removal < self._store.forgotten():
            return empty
        segment, manifest = loaded
        if manifest.nonce in self._given_up:  # of a folder that cannot be written to
            return empty
        return replace(
            empty,
            published=segment,
            last_key=manifest.last_key,
            last_removal=manifest.last_removal,
            generation=manifest.generation,
            index=manifest.index,
            longest=math.inf if manifest.longest is None else manifest.longest,
            image=Image(manifest, not unchecked(manifest)),
        )

    def check(self, version: Version, image: Image) -> None:
        """Read the files that were only mapped, and note in the image what is wrong with them."""
        try:
            if image.manifest is not None:
                self.of(version).check_mapped(image.manifest)
        except Damaged as damage:
            _check_files(self.of(version), damage)
            image.damage = str(damage)

    def give_up(self, version: Version, image: Image) -> None:
        """Remove a damaged index, unless another one has taken its place."""
        indexes, manifest = self.of(version), image.manifest
        if manifest is not None and indexes.current() == manifest.nonce:
            self._given_up.add(manifest.nonce)
            self._discard(indexes, str(image.damage))

    def sweep(self, layouts: Container[str], before: float = math.inf) -> None:
        """Remove the indexes of all other layouts that were written before a time."""
        for pointer in self._folder.glob("*/current"):
            if pointer.parent.name not in layouts and pointer.stat().st_mtime < before:
                discard(pointer.parent)

    def _discard(self, indexes: PublishedIndexes, damage: str) -> None:
        self.damage = damage
        log.warning("%s The index is built again from the database.", damage)
        if not self._store.connections.read_only:
            discard(indexes.folder)

    def _target(self, version: Version) -> IndexTarget:
        # The keys of several heads lie side by side: as one vector they are near to nothing.
        # Mapped keys are on their way to others: quantising them takes longer than it is of use.
        if version.key_heads > 1 or (
            SETTING in self._store.settings() and self._store.counts()[1] <= EXACT_MOVING
        ):
            return IndexTarget(recall=1.0)
        target = IndexTarget(self.settings.recall, self.settings.exact_below)
        # Questions that are keys themselves would find themselves.
        questions = self._store.some_questions(0 if version.examples else QUERIES)
        if len(questions) < QUERIES:
            return target
        return replace(target, questions=version.projection.queries(questions)[:, 0])


def _bearable(published: int) -> int:
    """Return how many fresh keys may be searched beside published ones."""
    return max(MERGE_KEYS, published // 10)


def _check_files(indexes: PublishedIndexes, damage: Damaged) -> None:
    """Raise OutOfFiles where a sound index could not be opened for want of files."""
    if is_out_of_files(damage):
        raise out_of_files(str(indexes.folder)) from damage
