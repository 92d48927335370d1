"""Index files of a collection's versions: written from the database, read back, discarded."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from attend.errors import Damaged
from attend.keys import Delta, IndexOrigin, Progress, PublishedIndexes, Snapshot, Wanted
from attend.store import Store
from attend.types import OnStage
from attend.versions import Version

log = logging.getLogger("attend")

EXACT = Wanted(recall=1.0)
"""Target of an index that is searched by several heads."""

QUESTIONS = 256
"""Questions of the examples from which on an index is measured with them."""


class IndexFiles:
    """The published indexes of one collection; the database they are made of stays the truth."""

    def __init__(self, store: Store, folder: Path, encoder: str) -> None:
        self._store = store
        self._folder = folder
        self._encoder = encoder

    def of(self, version: Version) -> PublishedIndexes:
        """Return the files of a version's keys; versions of one layout share them."""
        origin = IndexOrigin(
            uuid=str(self._store.settings()["uuid"]),
            encoder=self._encoder,
            dimension=version.projection.d_in,
            layout=version.layout,
        )
        return PublishedIndexes(self._folder, origin)

    def write(
        self,
        version: Version,
        target: Wanted,
        on_stage: OnStage = lambda stage, done: None,
    ) -> None:
        """Write all keys of a version as a new generation of its index."""
        with self._store.all_keys(examples=version.examples) as (state, tables):
            manifest = self.of(version).publish(
                map(version.keys, tables),
                state.last_key,
                state.last_removal,
                self._store.record_publication,
                self._target(version, target),
                on_stage,
            )
        self._store.forget_removals(manifest.last_removal)
        log.info("published generation %d with %d keys", manifest.generation, manifest.keys)

    def load(self, version: Version) -> Snapshot:
        """Return the published keys; none where no index exists, or none that is sound.

        Raises:
            ManifestMismatch: the index belongs to something else.
        """
        try:
            loaded = self.of(version).load(self.progress)
        except Damaged as damage:
            log.warning("%s The index is built again from the database.", damage)
            if not self._store.connections.read_only:
                self.of(version).discard()
            loaded = None
        if loaded is not None and loaded[1].last_removal < self._store.forgotten():
            log.info("The index of version %d is too old, and is built again.", version.number)
            loaded = None
        if loaded is None:
            return Snapshot(Delta.empty(version.width), Delta.empty(version.width), 0, 0, 0)
        segment, manifest = loaded
        return Snapshot(
            segment,
            Delta.empty(version.width),
            manifest.last_key,
            manifest.last_removal,
            manifest.generation,
            manifest.index,
        )

    def progress(self) -> Progress:
        """Return how far the database is, which no sound index is beyond."""
        state = self._store.state()
        published = self._store.settings()["published"]
        return Progress(state.last_key, state.last_removal, published)

    def _target(self, version: Version, target: Wanted) -> Wanted:
        # The keys of several heads lie side by side: as one vector they are near to nothing.
        if version.key_heads > 1:
            return EXACT
        # Questions that are keys themselves would find themselves.
        questions = self._store.some_questions(0 if version.examples else QUESTIONS)
        if len(questions) < QUESTIONS:
            return target
        return replace(target, questions=version.projection.queries(questions)[:, 0])
