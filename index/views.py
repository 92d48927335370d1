"""Views: what a search looks at, kept in step with the database.

A view is immutable: a search takes one at its start and is not disturbed by what happens
meanwhile. `Views` follows the database by SQLite's `data_version` and swaps in the next.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from index.errors import Damaged
from index.keys import DenseVectors, Origin, Progress, PublishedIndexes, Segment, Snapshot
from index.projection import Projection
from index.store import KeyBatch, Store
from index.types import Float32, Int64

log = logging.getLogger("attend")

MERGE_KEYS = 10_000
"""Fresh keys that are searched as a plain matrix before they are merged into the index."""

KEPT_VIEWS = 3
"""Versions held in memory at once: the active one, and some that requests name."""


@dataclass(frozen=True)
class View:
    """One projection version over one state of the database.

    Attributes:
        version: the projection's version in the store.
        projection: in the form (folded or materialised) in which `keys` were made.
        keys: segments of keys of width Hk * d.
        change: which state of the database this is.
    """

    version: int
    projection: Projection
    keys: Snapshot
    change: int


class Views:
    """The views of one collection, by projection version."""

    def __init__(self, store: Store, folder: Path, *, scorer: str, encoder: str) -> None:
        self._store = store
        self._folder = folder
        self._scorer = scorer
        self._encoder = encoder
        self._views: dict[int, View] = {}
        self._active = 0
        self._seen = threading.local()
        self._lock = threading.RLock()

    def current(self, version: int | None = None) -> View:
        """The view of a version (the active one if None), with every committed write in it.

        Raises:
            UnknownProjection: there is no such version.
            ManifestMismatch: the published index belongs to something else.
        """
        seen = self._store.connections.data_version()
        if getattr(self._seen, "data_version", None) != seen:
            self._refresh()
            self._seen.data_version = seen
        wanted = version or self._active
        view = self._views.get(wanted)
        return view if view is not None else self._open(wanted)

    def publish(self) -> View:
        """Write the active version's keys as a new generation, and use it from now on."""
        version = self._store.state().projection
        projection = self._projection(version)
        with self._store.all_keys() as (state, batches):
            manifest = self._published(projection).publish(
                (_projected(projection, batch) for batch in batches),
                state.last_key,
                state.last_removal,
                self._store.record_publication,
            )
        log.info("published generation %d with %d keys", manifest.generation, manifest.keys)
        with self._lock:
            self._views.pop(version, None)
            return self._open(version)

    def merge_if_due(self) -> None:
        """Publish when the fresh keys have become too many to be searched as they are."""
        base, delta = self.current().keys.segments
        if delta.keys > max(MERGE_KEYS, base.keys // 10):
            self.publish()

    def discard(self) -> None:
        """Forget the published index of the active version, so that it is built again."""
        with self._lock:
            self._published(self._projection(self._store.state().projection)).discard()
            self._views.clear()

    def _refresh(self) -> None:
        with self._lock:
            self._active = self._store.state().projection
            self._views = {version: self._advance(view) for version, view in self._views.items()}

    def _open(self, version: int) -> View:
        with self._lock:
            if version in self._views:
                return self._views[version]
            view = self._load(version)
            kept = [key for key in self._views if key == self._active]
            recent = [key for key in self._views if key != self._active][-(KEPT_VIEWS - 2) :]
            self._views = {key: self._views[key] for key in (*kept, *recent)} | {version: view}
            return view

    def _load(self, version: int) -> View:
        projection = self._projection(version)
        base = self._load_published(projection)
        if base is None:
            base = Snapshot((_empty(projection), _empty(projection)), 0, 0, 0)
        view = self._advance(View(version, projection, base, 0))
        if view.keys.segments[1].keys > MERGE_KEYS and version == self._store.state().projection:
            return self.publish()
        return view

    def _load_published(self, projection: Projection) -> Snapshot | None:
        try:
            loaded = self._published(projection).load(self._progress)
        except Damaged as damage:
            log.warning("%s The index is built again from the database.", damage)
            self._published(projection).discard()
            return None
        if loaded is None:
            return None
        segment, manifest = loaded
        return Snapshot(
            (segment, _empty(projection)),
            manifest.last_key,
            manifest.last_removal,
            manifest.generation,
        )

    def _progress(self) -> Progress:
        state = self._store.state()
        published = self._store.settings()["published"]
        return Progress(state.last_key, state.last_removal, published)

    def _advance(self, view: View) -> View:
        """The view with everything that was committed since it was made."""
        keys = view.keys
        changes = self._store.changes_since(keys.last_key, keys.last_removal)
        state = changes.state
        if state.change == view.change:
            return view
        base, delta = keys.segments
        if len(changes.removed):
            base, delta = base.without(changes.removed), delta.without(changes.removed)
        if len(changes.added.ids):
            delta = _extended(delta, view.projection, changes.added)
        segments = Snapshot((base, delta), state.last_key, state.last_removal, keys.generation)
        return replace(view, keys=segments, change=state.change)

    def _projection(self, version: int) -> Projection:
        stored = Projection.from_bytes(self._store.projection_weights(version))
        return stored.form_for(self._scorer)

    def _published(self, projection: Projection) -> PublishedIndexes:
        origin = Origin(
            uuid=str(self._store.settings()["uuid"]),
            encoder=self._encoder,
            dimension=projection.d_in,
            layout=projection.key_fingerprint[:16],
        )
        return PublishedIndexes(self._folder, origin)


def _projected(projection: Projection, batch: KeyBatch) -> tuple[Float32, Int64, Int64]:
    keys = projection.keys(batch.embeddings)  # (m, Hk, d)
    return keys.reshape(len(keys), -1).astype(np.float32, copy=False), batch.ids, batch.documents


def _empty(projection: Projection) -> Segment:
    none = np.empty(0, dtype=np.int64)
    probe = projection.keys(np.empty((0, projection.d_in), dtype=np.float32))  # (0, Hk, d)
    width = probe.shape[1] * probe.shape[2]
    return Segment.of(DenseVectors(np.empty((0, width), dtype=np.float32)), none, none)


def _extended(delta: Segment, projection: Projection, added: KeyBatch) -> Segment:
    """The delta with new keys, and without the documents that have gone from it."""
    vectors, ids, documents = _projected(projection, added)
    kept = delta.alive[delta.ordinals]
    vectors = np.concatenate([delta.vectors.all()[kept], vectors])
    ids = np.concatenate([delta.key_ids[kept], ids])
    documents = np.concatenate([delta.rows[delta.ordinals[kept]], documents])
    order = np.lexsort((ids, documents))
    return Segment.of(DenseVectors(vectors[order]), ids[order], documents[order])
