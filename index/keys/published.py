"""Published indexes: folders that are written whole, checked, and then made current.

```
keys/<layout>/current            the name of the generation that answers
keys/<layout>/<generation>/      vectors.faiss, keys.npy, documents.npy, manifest.json
```

`layout` names how a projection lays out keys (see `Projection.key_fingerprint`): projections that
leave keys as they are share one. A generation is never changed after it became current.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import faiss
import numpy as np
from filelock import FileLock

from index.errors import Damaged, ManifestMismatch
from index.keys.files import check_file, checksum, sync_file, sync_folder, write_synced
from index.keys.segment import FlatVectors, Segment
from index.types import Float32, Int64

FORMAT = 1
READING = threading.Lock()
VECTORS, KEYS, DOCUMENTS, MANIFEST = "vectors.faiss", "keys.npy", "documents.npy", "manifest.json"


@dataclass(frozen=True)
class Manifest:
    """What a generation holds, and of which database it is the image.

    `checksums` are those of the files, `seal` that of everything else said here.
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

    def load(self, progress: Callable[[], Progress]) -> tuple[Segment, Manifest] | None:
        """The current generation, or None where none is published.

        Args:
            progress: of the database; a manifest beyond it, or one that it does not know of, is
                the image of another state. Asked once the manifest has been read, for
                others may write and publish meanwhile.

        Raises:
            ManifestMismatch: the generation is the image of something else.
            Damaged: a file is missing, or is not what was written.
        """
        while (name := self._current()) is not None:
            try:
                return self._load(self.folder / Path(name).name, progress)
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

    def _load(self, folder: Path, progress: Callable[[], Progress]) -> tuple[Segment, Manifest]:
        manifest = _read_manifest(folder)
        self._check_origin(manifest)
        self._check_progress(manifest, progress())
        if manifest.seal != manifest.expected_seal():
            raise Damaged(f"{folder / MANIFEST} is not what was written: its seal is broken.")
        for file, written in manifest.checksums.items():
            check_file(folder / file, written)
        index = _read_index(folder / VECTORS)
        documents, key_ids = _read_ids(folder / DOCUMENTS), _read_ids(folder / KEYS)
        if not index.ntotal == len(documents) == len(key_ids) == manifest.keys:
            raise Damaged(
                f"{folder} holds {index.ntotal} vectors and {len(key_ids)} ids, but its manifest "
                f"says {manifest.keys}."
            )
        return Segment.of(FlatVectors(index), key_ids, documents), manifest

    def publish(
        self,
        blocks: Iterable[tuple[Float32, Int64, Int64]],
        last_key: int,
        last_removal: int,
        record: Callable[[str], None],
        expected: int = 0,
    ) -> Manifest:
        """Write a new generation from (vectors, key ids, document rows) and make it current.

        `record` makes the database know of it, before anyone can load it. `expected` is about
        how many keys there are: memory for them is taken once, and not doubled on the way.

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
                keys = _write_index(writing, blocks, self.origin.dimension, expected)
                manifest = Manifest(
                    FORMAT,
                    generation,
                    **asdict(self.origin),
                    keys=keys,
                    last_key=last_key,
                    last_removal=last_removal,
                    nonce=secrets.token_hex(8),
                    checksums={f: checksum(writing / f) for f in (VECTORS, KEYS, DOCUMENTS)},
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


def _write_index(
    folder: Path, blocks: Iterable[tuple[Float32, Int64, Int64]], dimension: int, expected: int
) -> int:
    index: faiss.IndexFlatIP | None = None
    key_ids: list[Int64] = []
    documents: list[Int64] = []
    for vectors, ids, rows in blocks:
        index = index or _roomy(vectors.shape[1], expected)
        index.add(np.ascontiguousarray(vectors, dtype=np.float32))
        key_ids.append(ids)
        documents.append(rows)
    index = index or faiss.IndexFlatIP(dimension)
    try:
        faiss.write_index(index, str(folder / VECTORS))
    except RuntimeError as error:
        raise OSError(f"{folder / VECTORS} cannot be written ({error}).") from error
    sync_file(folder / VECTORS)
    empty = [np.empty(0, dtype=np.int64)]
    for name, parts in ((KEYS, key_ids), (DOCUMENTS, documents)):
        with open(folder / name, "wb") as file:
            np.save(file, np.concatenate(parts or empty), allow_pickle=False)
            file.flush()
            os.fsync(file.fileno())
    return int(index.ntotal)


def _roomy(width: int, keys: int) -> faiss.IndexFlatIP:
    """An empty index with room for so many keys."""
    index = faiss.IndexFlatIP(width)
    index.codes.resize(keys * width * np.dtype(np.float32).itemsize)
    index.codes.resize(0)  # a vector that shrinks keeps its memory
    return index


def _read_manifest(folder: Path) -> Manifest:
    try:
        given = json.loads((folder / MANIFEST).read_bytes())
        if given.get("format") != FORMAT:
            raise ManifestMismatch(
                f"{folder / MANIFEST} has format {given.get('format')!r}, but this program reads "
                f"{FORMAT}. Run 'python -m index verify --mend' to write it anew."
            )
        return Manifest(**given)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise Damaged(f"{folder / MANIFEST} cannot be read ({error}).") from error


def _read_ids(path: Path) -> Int64:
    # One thread at a time: numpy parses the header as Python, and CPython 3.11's parser fails
    # now and then where two threads are in it (github.com/python/cpython/issues/106905).
    with READING:
        ids: Int64 = np.load(path, allow_pickle=False)
    return ids


def _read_index(path: Path) -> Any:
    try:
        return faiss.read_index(str(path))
    except RuntimeError as error:
        raise Damaged(f"{path} cannot be read as an index ({error}).") from error
