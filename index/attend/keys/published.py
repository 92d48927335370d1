"""Published indexes: folders that are written whole, checked, and then made current.

```
keys/<layout>/current            the name of the generation that answers
keys/<layout>/<generation>/      vectors.npy, keys.npy, documents.npy, manifest.json, and with
                                 a quantised index lists.faiss and codes.faiss
```

`layout` names how a projection lays out keys (see `Projection.key_fingerprint`): projections that
leave keys as they are share one. A generation is never changed after it became current. Keys and
codes are mapped, not read: several processes share them, and a larger index opens as fast.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from filelock import FileLock

from attend.core.arrays import KeyTable
from attend.core.errors import Damaged, ManifestMismatch
from attend.core.types import OnStage
from attend.keys.choose import IndexTarget, choose, open_index
from attend.keys.files import (
    DOCUMENTS,
    FORMAT,
    KEYS,
    MANIFEST,
    VECTORS,
    IndexOrigin,
    Manifest,
    Progress,
    check_file,
    checksum,
    map_array,
    read_array,
    sync_file,
    sync_folder,
    write_keys,
    write_synced,
)
from attend.keys.quantised import CODES
from attend.keys.segment import Segment

CHECKED_BYTES = 64 << 20
"""Mapped files up to this size have their checksum tested when they are opened, as all those that
are read; larger ones by `check_mapped`: reading them would take longer than the first answer."""


class PublishedIndexes:
    """The folder of one layout's generations."""

    def __init__(self, folder: Path, origin: IndexOrigin) -> None:
        self.folder = folder / origin.layout
        self.origin = origin

    def load(
        self, progress: Callable[[], Progress], *, thorough: bool = False
    ) -> tuple[Segment, Manifest] | None:
        """Return the current generation, or None where nothing is published.

        Args:
            progress: of the database; a manifest ahead of it, or one that it does not know, is
                the image of another state. Called once the manifest has been read, for
                others may write and publish meanwhile.
            thorough: test the checksums of large files too.

        Raises:
            ManifestMismatch: the generation is the image of something else.
            Damaged: a file is missing, or is not what was written.
        """
        while (name := self._current()) is not None:
            try:
                return self._load(self.folder / Path(name).name, progress, thorough)
            except Damaged:
                # Where others have published twice meanwhile, this one was swept away.
                if self._current() == name:
                    raise
        return None

    def _current(self) -> str | None:
        try:
            return (self.folder / "current").read_bytes().decode(errors="replace").strip()
        except FileNotFoundError:
            return None

    def _load(
        self, folder: Path, progress: Callable[[], Progress], thorough: bool
    ) -> tuple[Segment, Manifest]:
        manifest = Manifest.read(folder / MANIFEST)
        manifest.check(self.origin, progress(), folder)
        if folder.name != str(manifest.generation):
            raise Damaged(f"{folder} holds generation {manifest.generation}, and not its own.")
        later = () if thorough else unchecked(manifest)
        for file, crc in manifest.checksums.items():
            check_file(folder / file, manifest.sizes[file], None if file in later else crc)
        vectors = map_array(folder / VECTORS)
        documents, key_ids = read_array(folder / DOCUMENTS), read_array(folder / KEYS)
        if not len(vectors) == len(documents) == len(key_ids) == manifest.keys:
            raise Damaged(
                f"{folder} holds {len(vectors)} vectors and {len(key_ids)} ids, but its manifest "
                f"says {manifest.keys}."
            )
        return Segment.of(open_index(folder, vectors, manifest.index), key_ids, documents), manifest

    def check_mapped(self, manifest: Manifest) -> None:
        """Test the checksums that `load` left out; reads these files.

        Raises:
            Damaged: a file is not what was written, or the generation has gone.
        """
        folder = self.folder / str(manifest.generation)
        for file in unchecked(manifest):
            check_file(folder / file, manifest.sizes[file], manifest.checksums[file])
        if self.current() != manifest.nonce:
            raise Damaged(f"{folder} is not the generation that answers any more.")

    def publish(
        self,
        tables: Iterable[KeyTable],
        last_key: int,
        last_removal: int,
        record: Callable[[str], None],
        target: IndexTarget = IndexTarget(),  # noqa: B008 # frozen
        on_stage: OnStage = lambda stage, done: None,
    ) -> Manifest:
        """Write a new generation of keys and make it current.

        Of the keys only a table is in memory, and a sample where they are quantised; a process
        that is killed on the way leaves the generation before. One process at a time publishes;
        readers are never blocked. The two newest generations stay, so that a reader that has
        just read `current` still finds its files.

        Args:
            record: makes the database know of the generation, before anyone can load it.
            target: the requirements on the index.
            on_stage: receives the progress of a quantised one.
        """
        # Not with all parents: a collection that was dropped meanwhile must not come back as an
        # empty shell.
        self.folder.parent.mkdir(exist_ok=True)
        self.folder.mkdir(exist_ok=True)
        with FileLock(self.folder / "lock"):
            generation = max(self._generations(), default=0) + 1
            with self._writing(generation) as folder:
                keys, longest = write_keys(folder, tables, self.origin.dimension)
                index = choose(folder, map_array(folder / VECTORS), target, on_stage)
                for file in index.files:
                    sync_file(folder / file)
                files = (VECTORS, KEYS, DOCUMENTS, *index.files)
                manifest = Manifest(
                    FORMAT,
                    generation,
                    **asdict(self.origin),
                    keys=keys,
                    last_key=last_key,
                    last_removal=last_removal,
                    nonce=secrets.token_hex(8),
                    checksums={file: checksum(folder / file) for file in files},
                    sizes={file: (folder / file).stat().st_size for file in files},
                    index=index.description,
                    longest=longest,
                ).sealed()
                content = json.dumps(asdict(manifest), indent=1)
                write_synced(folder / MANIFEST, content.encode())
                record(manifest.nonce)
            self._make_current(generation)
            self._sweep(keep=generation)
        return manifest

    @contextmanager
    def _writing(self, generation: int) -> Iterator[Path]:
        """A folder to write to, which becomes the generation, or goes where something fails."""
        folder = Path(tempfile.mkdtemp(prefix="writing-", dir=self.folder))
        try:
            yield folder
            os.replace(folder, self.folder / str(generation))
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def current(self) -> str | None:
        """Return the nonce of the current generation; None where none is, or none is sound."""
        name = self._current()
        try:
            return name and Manifest.read(self.folder / Path(name).name / MANIFEST).nonce
        except (Damaged, ManifestMismatch):
            return None

    def exists(self) -> bool:
        """Return whether a generation was ever made current, even if it is damaged now."""
        return (self.folder / "current").exists()

    def discard(self) -> None:
        """Remove every generation; the next opening builds one from the database."""
        if not self.folder.exists():
            return
        # The lock stays: whoever waits for it must not end up with a file of its own.
        with FileLock(self.folder / "lock"):
            (self.folder / "current").unlink(missing_ok=True)
            for generation in self._generations():
                shutil.rmtree(self.folder / str(generation), ignore_errors=True)

    def _generations(self) -> list[int]:
        return [int(path.name) for path in self.folder.iterdir() if path.name.isdigit()]

    def _make_current(self, generation: int) -> None:
        pointer = self.folder / "current.new"
        write_synced(pointer, str(generation).encode())
        os.replace(pointer, self.folder / "current")
        sync_folder(self.folder)

    def _sweep(self, keep: int) -> None:
        for path in self.folder.iterdir():
            outdated = path.name.isdigit() and int(path.name) < keep - 1
            # A killed process leaves its half-written folder; the lock says that nobody writes now.
            if outdated or path.name.startswith("writing-"):
                shutil.rmtree(path, ignore_errors=True)


def unchecked(manifest: Manifest) -> list[str]:
    """Return the files that are mapped, and too large to be read when they are opened."""
    return [file for file in (VECTORS, CODES) if manifest.sizes.get(file, 0) > CHECKED_BYTES]
