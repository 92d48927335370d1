"""Views: immutable snapshots of versions for searches, kept in step with the database.

A search takes one view at its start, and later writes do not disturb it. `Views` follows the
database by SQLite's `data_version` and swaps in the next.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from attend.errors import CannotWrite, Conflict, InvalidRequest
from attend.index_files import IndexFiles
from attend.keys import Segment, Snapshot, Wanted
from attend.projection import RAW_KEYS, identity
from attend.store import ROLES, Role, State, Store, TooFarBehind
from attend.types import Float32, OnStage
from attend.versions import Version
from attend.view import View

log = logging.getLogger("attend")

MERGE_KEYS = 10_000
"""Fresh keys that are searched as a plain matrix before they are merged into the index."""

DEAD_SHARE = 2
"""Living keys for each masked one, below which a published segment is written again: a masked
key still costs a search its product, and the disk its place."""

KEPT_VIEWS = 3
"""Versions held in memory at once: the active one, and some that requests name."""

UNTRAINED = 0
"""The number of the version that is made in memory, in roles that have no other yet."""

NEVER = -1
"""The change of a view of a published index alone."""


@dataclass(frozen=True)
class LocalView(View):
    """A view of a data folder: segments of keys."""

    keys: Snapshot


class _Centre(NamedTuple):
    """The untrained version that recommends, and the number of documents of its mean."""

    version: Version
    documents: int


class _Slot:
    """The place of one version's view; `lock` is held by whoever makes the next one."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.view: LocalView | None = None


class Views:
    """The views of one collection, by version.

    Each version is opened and kept up to date under a lock of its own, and a view that is
    up to date is read under none: searches go on while another version is opened.
    """

    def __init__(
        self,
        store: Store,
        folder: Path,
        *,
        scorer: str,
        encoder: str,
        unit: bool,
        wanted: Wanted = Wanted(),  # noqa: B008 # frozen
    ) -> None:
        """
        Args:
            wanted: the index target; another may be set at any time.
        """
        self.wanted = wanted
        self._store = store
        self._scorer = scorer
        self._files = IndexFiles(store, folder, encoder)
        self._unit = unit
        self._centre: _Centre | None = None
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
        if view is None or view.change < state.change:
            return self._brought_up(number, state.change)
        return view

    def mean(self) -> Float32:
        """Return the mean of all keys' embeddings (d,), of when the collection was last half this
        size or half as large again."""
        center = self._untrained(self._state()).projection.center
        assert center is not None  # that is what the untrained version is made of
        return center.astype(np.float32, copy=False)

    def publish(self, on_stage: OnStage = lambda stage, done: None) -> LocalView:
        """Write the active version's keys as a new generation, and use it from now on."""
        self._store.connections.check_writable()
        with self._publishing:
            return self._publish(self._store.state().projection, on_stage)

    def merge_if_due(self) -> None:
        """Publish when fresh keys, or those masked, are too many to be searched as they are."""
        if self._read_only:
            return
        for version in self._answering():
            if not self._is_due(version):
                continue
            with self._publishing:
                if self._is_due(version):  # no other thread has done it meanwhile
                    self._publish(version)

    def has_fresh(self) -> bool:
        """Return whether the active version's keys differ from those last published."""
        keys = self.current().keys
        return bool(keys.delta.living or keys.published.removed)

    def discard(self, version: int | None = None) -> None:
        """Forget the published index of a version (the active one if None)."""
        self._files.of(self._version(version or self._store.state().projection)).discard()
        with self._lock:
            self._slots = {}

    def is_published(self, version: int) -> bool:
        """Return whether a version has an index on disk, sound or not."""
        return self._files.of(self._version(version)).exists()

    def check(self, version: int) -> None:
        """Read the published index of a version and forget it again.

        Raises:
            ManifestMismatch: it belongs to something else.
            Damaged: it is not what was written.
        """
        self._files.of(self._version(version)).load(self._files.progress, whole=True)

    @property
    def _read_only(self) -> bool:
        return self._store.connections.read_only

    def _state(self) -> State:
        """Return the state of the database; read only after another connection has committed."""
        latest = self._store.connections.data_version()
        if getattr(self._seen, "data_version", None) != latest:
            self._seen.state = self._store.state()
            self._seen.data_version = latest
        state: State = self._seen.state
        return state

    def _brought_up(self, version: int, change: int) -> LocalView:
        """Return a version's view, opened or advanced at least to a change."""
        slot = self._slot(version)
        with slot.lock:
            if slot.view is not None and slot.view.change >= change:
                return slot.view
            if slot.view is not None:
                try:
                    view = slot.view = self._advance(slot.view)
                    return view
                except TooFarBehind:
                    log.info("version %d is opened again, as much was removed since", version)
            try:
                view = slot.view = self._load(self._version(version))
            except BaseException:
                self._drop(version)
                raise
        self._keep(version)
        return view

    def _untrained(self, state: State) -> LocalView:
        """Return embeddings as keys, under queries less the mean of all keys.

        Nothing of it is stored: where the version that searches has embeddings as keys, its view
        serves. The mean is computed again once documents are half as many again, or half as many.
        """
        raw = self.current(state.projection)
        if raw.made.layout != RAW_KEYS:
            raw = self._brought_up(UNTRAINED, state.change)
        with self._centring:
            centre, living = self._centre, raw.keys.documents
            if centre is None or not centre.documents <= living * 2 <= centre.documents * 3:
                version = Version.centred(_mean(raw), unit=self._unit, scorer=self._scorer)
                centre = self._centre = _Centre(version, living)
        return replace(raw, made=centre.version)

    def _slot(self, version: int) -> _Slot:
        with self._lock:
            return self._slots.setdefault(version, _Slot())

    def _drop(self, version: int) -> None:
        with self._lock:
            self._slots.pop(version, None)

    def _keep(self, version: int) -> None:
        """Drop versions that were opened long ago, but for the active one and this."""
        state = self._store.state()
        needed = {version, *map(state.active, ROLES)}
        with self._lock:
            spare = [n for n in self._slots if n not in needed and self._slots[n].view]
            for number in spare[: max(0, len(spare) - (KEPT_VIEWS - 2))]:
                del self._slots[number]

    def _load(self, version: Version) -> LocalView:
        base = self._files.load(version)
        fresh = self._store.state().last_key - base.last_key
        if fresh > _bearable(base.published) and not self._read_only:
            # In blocks on its way to the disk: as fresh keys it would be in memory at once.
            try:
                self._files.write(version, self.wanted)
            # A full disk does not prevent an answer.
            except (CannotWrite, Conflict, OSError) as error:
                log.warning("The index was not written, and is held in memory: %s", error)
            base = self._files.load(version)
        try:
            return self._opened(version, base)
        except TooFarBehind:  # a newer index was written since
            return self._opened(version, self._files.load(version))

    def _opened(self, version: Version, base: Snapshot) -> LocalView:
        """Return a version over published keys, with everything that was committed since."""
        if version.terms and version.last_key < base.last_key:
            # Some of these keys may be of other texts than those that terms were learned of.
            version = self._stored(version.number)
        return self._advance(LocalView(version, base, NEVER))

    def _answering(self) -> list[int]:
        """Return the version that searches, up to date, and those that recommend."""
        searching = self.current().version
        return [searching, *({UNTRAINED, self._store.state().recommend} - {searching})]

    def _is_due(self, version: int) -> bool:
        slot = self._slots.get(version)
        view = None if slot is None else slot.view
        if view is None:
            return False  # it is written when it is opened
        keys = view.keys
        coming = self._store.state().last_key - keys.last_key
        fresh = keys.delta.living_keys + coming
        return fresh > _bearable(keys.published) or _is_hollow(keys.published)

    def _publish(self, number: int, on_stage: OnStage = lambda stage, done: None) -> LocalView:
        version = self._version(number)
        self._files.write(version, self.wanted, on_stage)
        fresh = self._opened(version, self._files.load(version))
        slot = self._slot(version.number)
        with slot.lock:
            view = slot.view = self._advance(fresh)
        self._keep(version.number)
        return view

    def _advance(self, view: LocalView) -> LocalView:
        """Return the view with everything that was committed since it was made."""
        keys = view.keys
        changes = self._store.changes_since(
            keys.last_key, keys.last_removal, examples=view.made.examples
        )
        state, version = changes.state, view.made.without(changes.added)
        if state.change == view.change:
            return view
        advanced = keys.advanced(
            version.keys(changes.added), changes.removed, state.last_key, state.last_removal
        )
        return LocalView(version, advanced, state.change)

    def _version(self, number: int) -> Version:
        slot = self._slots.get(number)
        if slot is not None and slot.view is not None:
            return slot.view.made
        return self._stored(number)

    def _stored(self, number: int) -> Version:
        if number == UNTRAINED:
            return Version(number, identity(int(self._store.settings()["dimension"])).fold())
        stored = self._store.version(number)
        if stored.role == "predict":
            raise InvalidRequest(
                f"Version {number} predicts what users think of items and has no keys to search; "
                f"name another.",
                field="projection",
            )
        return Version.of(number, stored, self._scorer)


def _mean(view: LocalView) -> Float32:
    """Return the mean of all living keys, (d,)."""
    total, count = np.zeros(view.keys.width), 0
    for block in view.keys.blocks(None):
        total += block.vectors.sum(axis=0, dtype=np.float64)
        count += len(block.ids)
    return (total / max(count, 1)).astype(np.float32)


def _bearable(base: Segment) -> int:
    """Return how many fresh keys may be searched beside a published segment."""
    return max(MERGE_KEYS, base.keys // 10)


def _is_hollow(base: Segment) -> bool:
    """Return whether too many keys are removed to be worth their place."""
    return base.removed_keys > max(MERGE_KEYS, base.living_keys // DEAD_SHARE)
