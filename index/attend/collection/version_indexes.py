"""The published indexes of a collection's versions: written from its database, and read."""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from pathlib import Path

from attend.collection.versions import Version
from attend.core.errors import Damaged
from attend.core.open_files import is_out_of_files, out_of_files
from attend.core.settings import Settings
from attend.core.types import OnStage
from attend.keys import Image, IndexOrigin, IndexTarget, Progress, PublishedIndexes, Snapshot
from attend.keys.choose import QUERIES
from attend.keys.published import unchecked
from attend.store import Store

log = logging.getLogger("attend")


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
        origin = IndexOrigin(
            uuid=str(self._store.settings()["uuid"]),
            encoder=self.settings.encoder or "none",
            dimension=version.projection.d_in,
            layout=version.layout,
        )
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

    def _discard(self, indexes: PublishedIndexes, damage: str) -> None:
        self.damage = damage
        log.warning("%s The index is built again from the database.", damage)
        if not self._store.connections.read_only:
            indexes.discard()

    def _target(self, version: Version) -> IndexTarget:
        # The keys of several heads lie side by side: as one vector they are near to nothing.
        if version.key_heads > 1:
            return IndexTarget(recall=1.0)
        target = IndexTarget(self.settings.recall, self.settings.exact_below)
        # Questions that are keys themselves would find themselves.
        questions = self._store.some_questions(0 if version.examples else QUERIES)
        if len(questions) < QUERIES:
            return target
        return replace(target, questions=version.projection.queries(questions)[:, 0])


def _check_files(indexes: PublishedIndexes, damage: Damaged) -> None:
    """Raise OutOfFiles where a sound index could not be opened for want of files."""
    if is_out_of_files(damage):
        raise out_of_files(str(indexes.folder)) from damage
