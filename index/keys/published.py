"""Published indexes: folders that are written whole, checked, and then made current.

```
keys/<layout>/current            the name of the generation that answers
keys/<layout>/<generation>/      vectors.npy, keys.npy, documents.npy, manifest.json, and with
                                 a quantised index lists.faiss and codes.faiss
```

`layout` names how a projection lays out keys (see `Projection.key_fingerprint`): projections that
leave keys as they are share one. A generation is never changed after it became current. Keys and
codes are mapped, not read: several processes share them, and opening takes no longer for more.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from filelock import FileLock

from index.errors import Damaged, ManifestMismatch
from index.keys.choose import Wanted, choose, opened
from index.keys.files import (
    check_file,
    check_size,
    checksum,
    map_array,
    read_array,
    sync_file,
    sync_folder,
    write_array,
    write_rows,
    write_synced,
)
from index.keys.quantising import CODES, LISTS
from index.keys.segment import Segment
from index.types import Float32, Int64, Json

FORMAT = 2
VECTORS, KEYS, DOCUMENTS, MANIFEST = "vectors.npy", "keys.npy", "documents.npy", "manifest.json"
FILES = (VECTORS, KEYS, DOCUMENTS, MANIFEST, LISTS, CODES)
"""What a generation may consist of."""

CHECKED_BYTES = 64 << 20
"""Files up to this size have their checksum tested whenever they are opened; larger ones only
their size, and the checksum by `verify`: reading them would take longer than the answer."""


@dataclass(frozen=True)
class Manifest:
    """What a generation holds, and of which database it is the image.

    `index` says which kind of index was chosen and what was measured (`index.keys.choose`).
    `checksums` are those of the files and `sizes` their bytes, `seal` is that of all the rest.
    """

    format: int
    generation: int
    uuid: str
    encoder: str
    dimension: int
    layout: str
    keys: int
    last_key: int
    last_removal: int
    nonce: str
    checksums: dict[str, int]
    sizes: dict[str, int]
    index: dict[str, Json]
    seal: int = 0

    def expected_seal(self) -> int:
        """CRC-32 of all the rest."""
        return zlib.crc32(json.dumps(asdict(replace(self, seal=0)), sort_keys=True).encode())


@dataclass(frozen=True)
class Origin:
    """What a manifest must agree with."""

    uuid: str
    encoder: str
    dimension: int
    layout: str


class Progress(NamedTuple):
    """How far the database has come, and which publications it knows of."""

    last_key: int
    last_removal: int
    published: Sequence[str]


class PublishedIndexes:
    """The folder of one layout's generations."""

    def __init__(self, folder: Path, origin: Origin) -> None:
        self.folder = folder / origin.layout
        self.origin = origin

    def load(
        self, progress: Callable[[], Progress], *, whole: bool = False
    ) -> tuple[Segment, Manifest] | None:
        """The current generation, or None where none is published.

        Args:
            progress: of the database; a manifest beyond it, or one that it does not know of, is
                the image of another state. Asked once the manifest has been read, for
                others may write and publish meanwhile.
            whole: test the checksums of large files too.

        Raises:
            ManifestMismatch: the generation is the image of something else.
            Damaged: a file is missing, or is not what was written.
        """
        while (name := self._current()) is not None:
            try:
                return self._load(self.folder / Path(name).name, progress, whole)
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
        self, folder: Path, progress: Callable[[], Progress], whole: bool
    ) -> tuple[Segment, Manifest]:
        manifest = _read_manifest(folder)
        self._check_origin(manifest)
        self._check_progress(manifest, progress())
        if manifest.seal != manifest.expected_seal():
            raise Damaged(f"{folder / MANIFEST} is not what was written: its seal is broken.")
        for file, written in manifest.checksums.items():
            check_size(folder / file, manifest.sizes[file])
            if whole or manifest.sizes[file] <= CHECKED_BYTES:
                check_file(folder / file, written)
        vectors = map_array(folder / VECTORS)
        documents, key_ids = read_array(folder / DOCUMENTS), read_array(folder / KEYS)
        if not len(vectors) == len(documents) == len(key_ids) == manifest.keys:
            raise Damaged(
                f"{folder} holds {len(vectors)} vectors and {len(key_ids)} ids, but its manifest "
                f"says {manifest.keys}."
            )
        kind = opened(folder, vectors, manifest.index)
        return Segment.of(kind, key_ids, documents), manifest

    def publish(
        self,
        blocks: Iterable[tuple[Float32, Int64, Int64]],
        last_key: int,
        last_removal: int,
        record: Callable[[str], None],
        wanted: Wanted = Wanted(),  # noqa: B008 # frozen
    ) -> Manifest:
        """Write a new generation from (vectors, key ids, document rows) and make it current.

        `record` makes the database know of it, before anyone can load it. `wanted` is what the
        index must do. Of the keys only a block is in memory, and a sample where they are
        quantised; what is killed on the way leaves the generation before it.

        One process at a time publishes; readers are never blocked. The two newest generations
        stay, so that a reader that has just read `current` still finds its files.
        """
        # Not with all parents: a collection that was dropped meanwhile must not come back as an
        # empty shell.
        self.folder.parent.mkdir(exist_ok=True)
        self.folder.mkdir(exist_ok=True)
        with FileLock(self.folder / "lock"):
            generation = max(self._generations(), default=0) + 1
            writing = Path(tempfile.mkdtemp(prefix="writing-", dir=self.folder))
            try:
                keys = _write_keys(writing, blocks, self.origin.dimension)
                chosen = choose(writing, map_array(writing / VECTORS), wanted)
                files = (VECTORS, KEYS, DOCUMENTS, *chosen.files)
                for file in chosen.files:
                    sync_file(writing / file)
                manifest = Manifest(
                    FORMAT,
                    generation,
                    **asdict(self.origin),
                    keys=keys,
                    last_key=last_key,
                    last_removal=last_removal,
                    nonce=secrets.token_hex(8),
                    checksums={file: checksum(writing / file) for file in files},
                    sizes={file: (writing / file).stat().st_size for file in files},
                    index=chosen.told,
                )
                manifest = replace(manifest, seal=manifest.expected_seal())
                write_synced(writing / MANIFEST, json.dumps(asdict(manifest), indent=1).encode())
                record(manifest.nonce)
                os.replace(writing, self.folder / str(generation))
            except BaseException:
                shutil.rmtree(writing, ignore_errors=True)
                raise
            self._make_current(generation)
            self._sweep(keep=generation)
        return manifest

    def exists(self) -> bool:
        """Whether a generation was made current, whatever became of it."""
        return (self.folder / "current").exists()

    def discard(self) -> None:
        """Forget every generation; the next opening builds one from the database."""
        if not self.folder.exists():
            return
        # The lock stays: whoever waits for it must not end up with a file of its own.
        with FileLock(self.folder / "lock"):
            (self.folder / "current").unlink(missing_ok=True)
            for generation in self._generations():
                shutil.rmtree(self.folder / str(generation), ignore_errors=True)

    def _check_origin(self, manifest: Manifest) -> None:
        for name, expected in asdict(self.origin).items():
            found = getattr(manifest, name)
            if found != expected:
                raise ManifestMismatch(
                    f"The index in {self.folder} was built for {name} {found!r}, but the database "
                    f"says {expected!r}. If the database is the right one, run "
                    f"'python -m index verify --mend' to build the index from it again."
                )

    def _check_progress(self, manifest: Manifest, has: Progress) -> None:
        if manifest.last_key > has.last_key or manifest.last_removal > has.last_removal:
            raise ManifestMismatch(
                f"The index in {self.folder} has seen key {manifest.last_key} and removal "
                f"{manifest.last_removal}, but the database has come only to {has.last_key} and "
                f"{has.last_removal}: it is an older copy. Put the newer database back, or run "
                f"'python -m index verify --mend' to build the index from this one."
            )
        if manifest.nonce not in has.published:
            raise ManifestMismatch(
                f"The index in {self.folder} is publication {manifest.nonce}, of which the "
                f"database knows nothing: the database is another copy, and its keys may be "
                f"others under the same numbers. Put the other copy back, or run 'python -m index "
                f"verify --mend' to build the index from this one."
            )

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


def _write_keys(
    folder: Path, blocks: Iterable[tuple[Float32, Int64, Int64]], dimension: int
) -> int:
    """Write vectors as they come, and ids at the end; returns how many keys there are."""
    ids: list[Int64] = [np.empty(0, dtype=np.int64)]
    rows: list[Int64] = [np.empty(0, dtype=np.int64)]

    def vectors() -> Iterator[Float32]:
        for block, key_ids, documents in blocks:
            ids.append(key_ids)
            rows.append(documents)
            yield block

    keys = write_rows(folder / VECTORS, vectors(), dimension)
    write_array(folder / KEYS, np.concatenate(ids))
    write_array(folder / DOCUMENTS, np.concatenate(rows))
    return keys


def _read_manifest(folder: Path) -> Manifest:
    try:
        given = json.loads((folder / MANIFEST).read_bytes())
        if given.get("format") == 1:
            raise Damaged(f"{folder / MANIFEST} is of an earlier version of this program.")
        if given.get("format") != FORMAT:
            raise ManifestMismatch(
                f"{folder / MANIFEST} has format {given.get('format')!r}, but this program reads "
                f"{FORMAT}. Run 'python -m index verify --mend' to write it anew."
            )
        return Manifest(**given)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise Damaged(f"{folder / MANIFEST} cannot be read ({error}).") from error
