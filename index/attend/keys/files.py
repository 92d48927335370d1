"""Published indexes: folders that are written whole, checked, and then made current.

```
keys/<layout>/current            the name of the generation that answers
keys/<layout>/<generation>/      vectors.npy, keys.npy, documents.npy, manifest.json, and with
                                 a quantised index lists.faiss and codes.faiss
```

`layout` names how a projection lays out keys (see `Projection.key_fingerprint`): projections that
leave keys as they are share one. A generation is never changed after it became current. Files are
synced to the disk, checked by checksums and described by a manifest. Keys and codes are mapped, not
read: several processes share them, and a larger index opens as fast.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from filelock import FileLock

from attend.core.arrays import KeyTable
from attend.core.errors import Conflict, Damaged, ManifestMismatch
from attend.core.types import Float32, Int64, Json, OnStage
from attend.keys.segment import Segment
from attend.keys.vectors import CODES, LISTS, IndexTarget, choose, open_index

READING = threading.Lock()

FORMAT = 2
VECTORS, KEYS, DOCUMENTS, MANIFEST = "vectors.npy", "keys.npy", "documents.npy", "manifest.json"
FILES = (VECTORS, KEYS, DOCUMENTS, MANIFEST, LISTS, CODES)
"""The files that a generation may consist of."""


def check_file(path: Path, size: int, crc: int | None = None) -> None:
    """Raise Damaged unless a file has its size in bytes, and its checksum if one is named."""
    try:
        actual = path.stat().st_size
        if actual != size:
            raise Damaged(f"{path} has {actual} bytes, but {size} were written.")
        if crc is not None and (actual := checksum(path)) != crc:
            raise Damaged(f"{path} has checksum {actual:08x}, but {crc:08x} was written.")
    except OSError as error:
        raise Damaged(f"{path} cannot be read ({error}).") from error


def checksum(path: Path) -> int:
    """Return the CRC-32: it finds accidents, at a gigabyte a second, but no attack."""
    crc = 0
    with open(path, "rb") as file:
        while block := file.read(1 << 22):
            crc = zlib.crc32(block, crc)
    return crc


@contextmanager
def synced(path: Path) -> Iterator[BinaryIO]:
    """Open a file to write to, which is on the disk when the block ends."""
    with open(path, "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def write_synced(path: Path, content: bytes) -> None:
    with synced(path) as file:
        file.write(content)


def sync_file(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def scratch_beside(target: Path) -> Iterator[Path]:
    """Yield a folder beside a target to make it in: a rename within one file system is one step.

    What a killed process left there goes with the next that makes the same target.

    Raises:
        Conflict: another process makes it at this moment.
    """
    folder = target.absolute().with_name(f".{target.name}.making")
    folder.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.path.samestat(os.fstat(descriptor), folder.stat()):
                raise BlockingIOError
        except (BlockingIOError, FileNotFoundError) as error:
            raise Conflict(
                f"Another process is writing {target}; wait for it, or choose another name."
            ) from error
        try:
            for path in folder.iterdir():
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(descriptor)


def write_keys(folder: Path, tables: Iterable[KeyTable], dimension: int) -> tuple[int, float]:
    """Write vectors as they come, and ids at the end.

    Args:
        tables: only one is in memory at a time.
        dimension: the width of the vectors where there are no tables.

    Returns: the number of keys, and the length of the longest.
    """
    ids: list[Int64] = [np.empty(0, dtype=np.int64)]
    rows: list[Int64] = [np.empty(0, dtype=np.int64)]
    every = iter(tables)
    first = list(islice(every, 1))
    width, longest = first[0].vectors.shape[1] if first else dimension, 0.0
    with synced(folder / VECTORS) as file:
        # NumPy's header leaves room for the number of rows to grow (numpy.lib.format, version
        # 1.0), so that it is written again once that is known.
        start = _write_header(file, 0, width)
        for table in chain(first, every):
            file.write(np.ascontiguousarray(table.vectors, dtype=np.float32).data)
            ids.append(table.ids)
            rows.append(table.documents)
            longest = max(longest, table.longest)
        keys = sum(map(len, ids))
        file.seek(0)
        if _write_header(file, keys, width) != start:
            raise AssertionError(f"the header of {folder / VECTORS} does not hold {keys} rows")
    for name, column in ((KEYS, ids), (DOCUMENTS, rows)):
        with synced(folder / name) as file:
            np.save(file, np.concatenate(column), allow_pickle=False)
    return keys, longest


def _write_header(file: BinaryIO, rows: int, width: int) -> int:
    """Write the header of an array (rows, width), and return where its numbers begin."""
    header = {"descr": "<f4", "fortran_order": False, "shape": (rows, width)}
    np.lib.format.write_array_header_1_0(file, header)
    return file.tell()


def map_array(path: Path) -> Float32:
    """Map the rows of a file: they are read when they are used, and processes share them.

    Raises:
        Damaged: the head of the file describes other numbers than the rest of it holds.
    """
    mapped = _load(path, "r")
    is_whole = mapped.offset + mapped.nbytes == path.stat().st_size
    if mapped.dtype != np.float32 or not (is_whole and mapped.flags.c_contiguous):
        raise Damaged(f"{path} does not hold the numbers that its head describes.")
    return np.asarray(mapped)


def read_array(path: Path) -> Int64:
    return np.asarray(_load(path, None))


def _load(path: Path, mode: Any) -> Any:
    # One thread at a time: numpy parses the header as Python, and CPython 3.11's parser fails
    # now and then where two threads are in it (github.com/python/cpython/issues/106905).
    with READING:
        try:
            return np.load(path, mmap_mode=mode, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise Damaged(f"{path} cannot be read as an array ({error}).") from error


@dataclass(frozen=True)
class IndexOrigin:
    """The database and the layout of keys that an index is made from."""

    uuid: str
    encoder: str
    dimension: int
    layout: str


class Progress(NamedTuple):
    """The last changes of the database, and the publications that it knows of."""

    last_key: int
    last_removal: int
    published: Sequence[str]


@dataclass(frozen=True)
class Manifest:
    """The contents of a generation, and the state of the database that it is the image of.

    `index` says which kind of index was chosen and what was measured (`attend.keys.vectors`).
    `checksums` are those of the files and `sizes` their bytes, `seal` is that of all the rest.
    `longest` is the length of the longest key, which earlier versions of this program left out.
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
    longest: float | None = None

    @classmethod
    def read(cls, path: Path) -> Manifest:
        """Read a manifest.

        Raises:
            Damaged: it cannot be read, is not what was written, or was written by an earlier
                version of this program.
            ManifestMismatch: a later version wrote it.
        """
        try:
            content = json.loads(path.read_bytes())
            if content.get("format") == 1:
                raise Damaged(f"{path} is of an earlier version of this program.")
            # Before anything that it says is believed.
            if content.get("seal") != _seal(content):
                raise Damaged(f"{path} is not what was written: its seal is broken.")
            if content.get("format") != FORMAT:
                raise ManifestMismatch(
                    f"{path} has format {content.get('format')!r}, but this program reads "
                    f"{FORMAT}. Run 'attend verify --repair' to write it again."
                )
            return cls(**content)
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise Damaged(f"{path} cannot be read ({error}).") from error

    def sealed(self) -> Manifest:
        """Return the manifest with its seal."""
        return replace(self, seal=_seal(asdict(self)))

    def check(self, origin: IndexOrigin, database: Progress, folder: Path) -> None:
        """Check that this is the image of a state of the database, as it was written.

        Raises:
            ManifestMismatch: it has another origin, is ahead of the database, or unknown to it.
        """
        for name, value in asdict(origin).items():
            actual = getattr(self, name)
            if actual != value:
                raise ManifestMismatch(
                    f"The index in {folder} was built for {name} {actual!r}, but the database "
                    f"says {value!r}. If the database is the right one, run "
                    f"'attend verify --repair' to build the index from it again."
                )
        if self.last_key > database.last_key or self.last_removal > database.last_removal:
            raise ManifestMismatch(
                f"The index in {folder} has seen key {self.last_key} and removal "
                f"{self.last_removal}, but the database has come only to {database.last_key} and "
                f"{database.last_removal}: it is an older copy. Put the newer database back, or "
                f"run 'attend verify --repair' to build the index from this one."
            )
        if self.nonce not in database.published:
            raise ManifestMismatch(
                f"The index in {folder} is publication {self.nonce}, of which the "
                f"database knows nothing: the database is another copy, and its keys may be "
                f"others under the same numbers. Put the other copy back, or run 'attend "
                f"verify --repair' to build the index from this one."
            )


def _seal(content: Mapping[str, Any]) -> int:
    """Return the CRC-32 of all of a manifest but the seal itself."""
    return zlib.crc32(json.dumps({**content, "seal": 0}, sort_keys=True).encode())


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
            except (Damaged, FileNotFoundError):
                # Where others have published meanwhile, this one was swept away.
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
        readers are never blocked. The generation before goes: who has opened its files keeps them,
        and a reader that has only read `current` by then reads it again (`load`).

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
            generations = [int(p.name) for p in self.folder.iterdir() if p.name.isdigit()]
            generation = max(generations, default=0) + 1
            with self._writing(generation) as folder:
                keys, longest = write_keys(folder, tables, self.origin.dimension)
                vectors = map_array(folder / VECTORS)
                index, index_files = choose(folder, vectors, target, on_stage)
                for file in index_files:
                    sync_file(folder / file)
                files = (VECTORS, KEYS, DOCUMENTS, *index_files)
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
                    index=index,
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

    def _make_current(self, generation: int) -> None:
        pointer = self.folder / "current.new"
        write_synced(pointer, str(generation).encode())
        os.replace(pointer, self.folder / "current")
        sync_folder(self.folder)

    def _sweep(self, keep: int) -> None:
        for path in self.folder.iterdir():
            outdated = path.name.isdigit() and int(path.name) < keep
            # A killed process leaves its half-written folder; the lock says that nobody writes now.
            if outdated or path.name.startswith("writing-"):
                shutil.rmtree(path, ignore_errors=True)


def discard(layout: Path) -> None:
    """Remove every generation of a layout; the next opening builds one from the database."""
    if not layout.exists():
        return
    # The lock stays: whoever waits for it must not end up with a file of its own.
    with FileLock(layout / "lock"):
        (layout / "current").unlink(missing_ok=True)
        for path in filter(Path.is_dir, layout.iterdir()):
            shutil.rmtree(path, ignore_errors=True)


def unchecked(manifest: Manifest) -> list[str]:
    """Return the files that are mapped, and too large to be read when they are opened."""
    return [file for file in (VECTORS, CODES) if manifest.sizes.get(file, 0) > CHECKED_BYTES]
