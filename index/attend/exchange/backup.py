"""Back up collections into one file, while others write, and restore them from one; and write
documents as JSON lines, which a build reads again.

A backup is hostile until its rows were checked. Sizes are compared before anything is written,
checksums while it is, and only the rows of its databases are taken (`attend.store.copying`). All of
it has to end within a time. Indexes are built again: FAISS trusts its files, and nobody can vouch
for those of a backup.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
import sqlite3
import tarfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Annotated, Any, BinaryIO, ClassVar, Literal

import numpy as np
import orjson
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from attend.api.base import NAME_PATTERN, check_name, invalid, parse
from attend.api.documents import CollectionSettings, SettingsChange
from attend.collection.collection import Collection
from attend.collection.data import MAX_ALIASES, Data
from attend.core.errors import (
    CannotWrite,
    CollectionExists,
    Conflict,
    Damaged,
    InvalidRequest,
    LimitExceeded,
)
from attend.core.settings import Settings
from attend.core.types import WHOLE, Float32, Json, OnStage
from attend.engines.local import version_problems
from attend.keys.files import scratch_beside, sync_file, sync_folder
from attend.store import StoredDocument, compile_filter
from attend.store.checks import printable
from attend.store.connections import connect_to_read
from attend.store.copying import copy_untrusted
from attend.store.database import Store
from attend.store.filters import by_value
from attend.values.kinds import parse_type

MANIFEST = "manifest.json"

PAGES = 2048
"""Pages of a database that are copied between two reports of progress: 8 MiB or more."""

Count = Annotated[int, Field(ge=0, lt=2**53)]
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Figures = Mapping[Literal["documents", "keys", "change"], Count]


@dataclass(frozen=True)
class BackupContents:
    """The contents of a backup, as its manifest lists them.

    Attributes:
        collections: the figures of each collection by its name.
        aliases: the collection of each alias.
        files: (size in bytes, SHA-256) of each file by its name.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    created: Annotated[str, Field(pattern="^[0-9T:+-]{1,40}$")]
    collections: Mapping[str, Figures]
    aliases: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, tuple[Count, Digest]] = field(default_factory=dict)
    format: Literal[1] = 1

    @property
    def size(self) -> int:
        """Return the bytes of all files together."""
        return sum(size for size, _ in self.files.values())

    def json(self) -> dict[str, Any]:
        """Return plain data without the files."""
        return {
            "created": self.created,
            "collections": dict(self.collections),
            "aliases": dict(self.aliases),
            "bytes": self.size,
        }


@contextmanager
def placed(target: Path, *, force: bool, folder: bool = False) -> Iterator[Path]:
    """Yield a path at which to write a file, or to fill a folder, and give it the target's name
    when the block ends without an error.

    Args:
        force: replace what has the name; an empty folder is replaced by a folder in any case.

    Raises:
        Conflict: the target exists, or another process makes it.
    """
    is_empty = folder and target.is_dir() and not any(target.iterdir())
    if os.path.lexists(target) and not is_empty and not force:
        advice = "choose another file, or add --force to replace it"
        if folder:
            advice = "choose another name, or replace it and all it holds with --force"
        raise Conflict(f"{target} exists; {advice}.")
    with scratch_beside(target) as staging:
        making, old = staging / "new", staging / "old"
        if folder:
            making.mkdir()
        yield making
        for path in sorted([making, *making.rglob("*")]):
            sync_folder(path) if path.is_dir() else sync_file(path)
        # A folder cannot take the name of another: the old one moves away first.
        if folder and os.path.lexists(target):
            target.rename(old)
        try:
            making.replace(target)
        except OSError:
            if os.path.lexists(old):
                old.rename(target)
            raise
    sync_folder(target.absolute().parent)


def database_of(name: str) -> str:
    """Return the name of a collection's database within a backup."""
    return f"collections/{name}/documents.db"


def save_backup(
    data: Data,
    target: Path,
    names: Sequence[str] | None = None,
    *,
    force: bool = False,
    on_progress: OnStage = lambda stage, share: None,
) -> BackupContents:
    """Write a backup of some collections (all of them, with the aliases, if None).

    Each is of one moment, while others write. It needs twice its size of room beside the target.

    Args:
        force: replace an existing file.

    Raises:
        UnknownCollection: a name is not that of a collection.
        Conflict: the target exists.
    """
    data.capabilities.check("snapshots")
    collections = data.names() if names is None else [data.resolve(name) for name in names]
    aliases = data.aliases().items() if names is None else ()
    for name in collections:
        data.collection(name)
    with placed(target, force=force) as archive:
        staging = archive.parent
        figures = {name: _copy(data, name, staging, on_progress) for name in collections}
        contents = BackupContents(
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            collections=figures,
            aliases={alias: name for alias, name in aliases if name in collections},
            files={name: _listed(staging / name) for name in map(database_of, collections)},
        )
        _pack(staging, archive, contents, on_progress)
        archive.chmod(0o600)  # it holds all documents
    return contents


def _copy(data: Data, name: str, staging: Path, on_progress: OnStage) -> Figures:
    """Copy the database of a collection as of this moment, and return its figures."""
    copy = staging / database_of(name)
    copy.parent.mkdir(parents=True)
    source = data.collection(name).folder / copy.name
    with closing(connect_to_read(source)) as reader, closing(sqlite3.connect(copy)) as db:
        reader.isolation_level = None
        # A transaction that has begun to read sees no later commit: without it, each commit of
        # another connection would restart the copy.
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM sqlite_master").fetchone()
        reader.backup(
            db,
            pages=PAGES,
            progress=lambda _, left, total: on_progress(f"copy {name}", 1 - left / max(total, 1)),
        )
        figures = read_figures(db)
        # One file: the log that opening it wrote beside it goes into it.
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return figures


def read_figures(db: sqlite3.Connection) -> Figures:
    documents, keys, change = db.execute(
        "SELECT (SELECT count(*) FROM documents), (SELECT count(*) FROM keys), "
        "(SELECT value FROM settings WHERE name = 'change')"
    ).fetchone()
    return {"documents": documents, "keys": keys, "change": int(change)}


def _listed(path: Path) -> tuple[int, str]:
    with open(path, "rb") as file:
        return path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest()


def _pack(staging: Path, target: Path, contents: BackupContents, on_progress: OnStage) -> None:
    manifest = staging / MANIFEST
    manifest.write_text(json.dumps(vars(contents), indent=1))
    written = 0
    # GNU's: sizes of any size, and no extended headers.
    with tarfile.open(target, "w", format=tarfile.GNU_FORMAT) as archive:
        archive.add(manifest, MANIFEST, filter=_anonymous)
        for name, (size, _) in contents.files.items():
            archive.add(staging / name, name, filter=_anonymous)
            written += size
            on_progress("write", written / max(contents.size, 1))


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Remove the owner and the mode of a file."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode = 0o600
    return member


# -- restore ---------------------------------------------------------------------------------

MAX_MANIFEST = 4 * 1024 * 1024

SECONDS = 60.0
"""The time in which a backup is restored, or a second for each MiB if that is more."""

BYTES_A_SECOND = 1024 * 1024

FULL = 1024 * 1024
"""Bytes that are left on a full disk, at most."""

_CONTENTS = TypeAdapter(BackupContents)


def restore_backup(
    source: IO[bytes],
    data: Data,
    names: Sequence[str] | None = None,
    *,
    into: str | None = None,
    limit: int | None = None,
    check_settings: Callable[[Settings], object] = lambda settings: None,
    on_progress: OnStage = lambda stage, share: None,
) -> BackupContents:
    """Restore the collections of a backup; existing collections stay as they are.

    Nothing of it is visible until everything was read and checked.

    Args:
        source: the backup, read from its current position to its end.
        names: the collections to restore; all of them, with the aliases, if None.
        into: another name for the only collection to restore.
        limit: the most bytes that its files may have together.
        check_settings: called with the settings of each collection; raises an error to refuse it.

    Raises:
        Damaged: it is not a backup, was changed, or takes too long to check.
        CollectionExists: a name is that of an existing collection or alias.
        InvalidRequest: it does not have a collection of a name.
    """
    data.capabilities.check("snapshots")
    data.check_writable()
    deadline = Deadline()
    making = data.folder / f"making-{secrets.token_hex(8)}"
    try:
        files = plain_files(source, deadline.check)
        contents = _read_manifest(files)
        if limit is not None and contents.size > limit:
            raise Damaged(
                f"The backup's files have {contents.size:,} bytes, but at most {limit:,} are "
                f"restored here. Restore it with 'attend import --snapshot'."
            )
        deadline.extend(contents.size)
        targets, aliases = _targets(data, contents, names, into)
        # Of their owner alone: whoever reads them reads every text.
        data.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in (making, making / "collections"):
            folder.mkdir(mode=0o700)
        places = {database_of(name): making / database_of(new) for name, new in targets.items()}
        _unpack(files, contents, places, making, on_progress)
        for name in targets:
            on_progress(f"check {name}", 0.0)
            figures = contents.collections[name]
            check_settings(_adopted(places[database_of(name)], figures, deadline))
        for alias, collection in aliases.items():
            (making / "collections" / alias).symlink_to(collection)
        _move(making, data.folder / "collections")
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return contents


class Deadline:
    """The end of the time in which a backup is restored."""

    def __init__(self) -> None:
        self._start, self._seconds = time.monotonic(), SECONDS

    def extend(self, size: int) -> None:
        """Give a large backup more time."""
        self._seconds = max(SECONDS, size / BYTES_A_SECOND)

    def is_over(self) -> bool:
        return time.monotonic() > self._start + self._seconds

    def check(self) -> None:
        if self.is_over():
            raise Damaged(
                f"The backup could not be checked within {self._seconds:.0f} s, and nothing was "
                f"restored. Try again when the machine is less busy, and only if you trust it."
            )


# -- the manifest ---------------------------------------------------------------------------


def _read_manifest(files: Iterator[PlainFile]) -> BackupContents:
    first = next(files, None)
    if first is None or first[0] != MANIFEST or first[1] > MAX_MANIFEST:
        raise Damaged(
            f"This is not a backup: it does not begin with {MANIFEST}. Make one with 'attend "
            f"export --snapshot FILE'."
        )
    try:
        contents = _CONTENTS.validate_json(b"".join(first[2]))
    except ValidationError as error:
        reason = printable(f"{invalid(error)}")
        raise Damaged(f"The backup's {MANIFEST} cannot be read ({reason}).") from error
    for name in contents.files.keys() - set(map(database_of, contents.collections)):
        raise Damaged(f"The backup holds {name!r:.200}, which does not belong to a collection.")
    for name in [*contents.collections, *contents.aliases]:
        if not re.fullmatch(NAME_PATTERN, name):
            raise Damaged(f"The backup names a collection {name!r:.200}, not a valid name.")
    for name in contents.collections:
        if database_of(name) not in contents.files:
            raise Damaged(f"The backup lacks the database of the collection {name!r}.")
    for alias, name in contents.aliases.items():
        if name not in contents.collections or alias in contents.collections:
            raise Damaged(f"The backup's alias {alias!r} stands for none of its collections.")
    return contents


def _targets(
    data: Data, contents: BackupContents, names: Sequence[str] | None, into: str | None
) -> tuple[dict[str, str], Mapping[str, str]]:
    """Return the new name of each collection to restore, by its name in the backup, and the
    aliases: all of them are free."""
    selected = list(contents.collections) if names is None else list(names)
    for name in selected:
        if name not in contents.collections:
            present = ", ".join(contents.collections) or "none"
            raise InvalidRequest(f"The backup has no collection {name!r}; it has {present}.")
    targets = {name: name for name in selected}
    if into is not None:
        check_name(into)
        if len(selected) != 1:
            raise InvalidRequest(
                f"The backup has {len(selected)} collections, but one was expected; name one."
            )
        targets = {selected[0]: into}
    aliases = contents.aliases if names is None and into is None else {}
    stored = data.aliases()
    clashes = sorted({*data.names(), *stored}.intersection([*targets.values(), *aliases]))
    if clashes:
        raise _taken(clashes[0])
    if len(stored) + len(aliases) > MAX_ALIASES:
        raise LimitExceeded(
            f"The backup has {len(aliases)} aliases, and with the {len(stored)} that exist they "
            f"are more than {MAX_ALIASES}. Delete some, or restore into another folder."
        )
    return targets, aliases


def _taken(name: str) -> CollectionExists:
    return CollectionExists(
        f"A collection or an alias {name!r} exists already, and nothing was restored. "
        f"Delete it, or restore into another folder.",
        field="collection",
    )


# -- the files ------------------------------------------------------------------------------


def _unpack(
    files: Iterator[PlainFile],
    contents: BackupContents,
    places: Mapping[str, Path],
    making: Path,
    on_progress: OnStage,
) -> None:
    missing = dict(contents.files)
    read = 0
    for name, size, content in files:
        if name not in missing:
            raise Damaged(f"The backup holds {name!r:.200} twice or unlisted.")
        listed, digest = missing.pop(name)
        if size != listed:
            raise Damaged(f"{name} has {size} bytes in the backup, but its manifest says {listed}.")
        if name in places and _extract(content, places[name]) != digest:
            raise Damaged(f"{name} was changed since the backup: its checksum differs.")
        os.utime(making)  # it is in use: nothing removes it as left over
        read += size
        on_progress("read", read / max(contents.size, 1))
    if missing:
        raise Damaged(f"The backup ends without {len(missing)} of its files.")


def _extract(content: Iterator[bytes], target: Path) -> str:
    """Write a file, and return its checksum."""
    computed = hashlib.sha256()
    try:
        target.parent.mkdir(mode=0o700)
        target.touch(mode=0o600, exist_ok=False)
        with open(target, "wb") as written:
            for chunk in content:
                computed.update(chunk)
                written.write(chunk)
    except OSError as error:
        raise CannotWrite(
            f"{target} cannot be written ({error}); make room on the disk."
        ) from error
    return computed.hexdigest()


def _adopted(path: Path, figures: Figures, deadline: Deadline) -> Settings:
    """Prove that a database is that of a sound collection, and return the collection's settings."""
    try:
        received = path.rename(path.with_name("received.db"))
        settings = Settings.of(copy_untrusted(received, path, deadline.is_over))
        received.unlink()
        # Checked as those of a request, which names one of the two: the other follows from it.
        stored: dict[str, Any] = settings.stored()
        parse(SettingsChange, {"interleave": stored.pop("interleave", None)})
        parse(CollectionSettings, {"dimension": settings.dimension}, strict=True)
        del stored["encoder" if settings.encoder is None else "dimension"]
        parse(CollectionSettings, stored, strict=True)
        if settings.values is not None:
            parse_type(settings.values, field="values")
        with closing(Store(path, read_only=True)) as store:
            problems = [*version_problems(store, settings)]
            actual = read_figures(store.connections.reader().conn)
        if actual != figures:
            problems.append(f"it has {actual}, but the manifest says {figures}.")
        if problems:
            raise Damaged(problems[0])
        sync_file(path)
    except CannotWrite:
        raise
    # Whatever a stranger's rows bring about, the reason lies in them.
    except Exception as error:
        deadline.check()
        if shutil.disk_usage(path.parent).free < FULL:
            raise CannotWrite(f"{path} cannot be written; make room on the disk.") from error
        reason = printable(f"{error}")
        raise Damaged(f"The backup's database cannot be read as a collection: {reason}") from error
    return settings


def _move(making: Path, collections: Path) -> None:
    """Move all collections and aliases of one folder into another, or none.

    Raises:
        CollectionExists: a name was taken meanwhile.
        CannotWrite: the disk does not take them.
    """
    collections.mkdir(mode=0o700, exist_ok=True)
    # By this name, whoever opens the library after a kill moves the rest.
    restored = making.with_name(making.name.replace("making", "restored", 1))
    making.rename(restored)
    sync_folder(restored.parent)
    try:
        _move_each(restored / "collections", collections)
    finally:
        shutil.rmtree(restored, ignore_errors=True)
    sync_folder(collections)
    sync_folder(collections.parent)


def _move_each(making: Path, collections: Path) -> None:
    moved: list[Path] = []
    # An alias after the collection that it leads to.
    for path in sorted(making.iterdir(), key=Path.is_symlink):
        target = collections / path.name
        try:
            if path.is_symlink():  # renamed, it would replace another one
                target.symlink_to(path.readlink())
            else:
                path.rename(target)
        except BaseException as error:
            is_taken = os.path.lexists(target)
            if isinstance(error, FileNotFoundError) and is_taken:
                continue  # whoever has opened the library meanwhile has moved it
            for done in reversed(moved):
                done.unlink() if done.is_symlink() else done.rename(making / done.name)
            if not isinstance(error, OSError):
                raise
            if not is_taken:
                raise CannotWrite(f"{target} cannot be written ({error}).") from error
            raise _taken(target.name) from None
        moved.append(target)


# -- tar ------------------------------------------------------------------------------------

BLOCK = 512
CHUNK = 1 << 20

_PLAIN = (tarfile.REGTYPE, tarfile.AREGTYPE)

PlainFile = tuple[str, int, Iterator[bytes]]
"""Name, size and content of a file in a tar; the content is there until the next file is read."""


def plain_files(source: IO[bytes], check: Callable[[], None]) -> Iterator[PlainFile]:
    """Read the plain files of a tar, once, from its beginning to its end.

    Python's `tarfile` also follows links, fills the holes of sparse files and reads extended
    headers of any size, some in quadratic time. A backup has none of that.

    Args:
        check: called before each read; raises an error to stop.

    Raises:
        Damaged: it is not a tar, ends early, or holds something other than files.
    """
    # A block of zeros, or nothing, is the end.
    while (block := _read(source, BLOCK, check)).strip(b"\0"):
        try:
            header = tarfile.TarInfo.frombuf(block, "utf-8", "replace")
        except (tarfile.TarError, ValueError) as error:
            raise Damaged(f"This is not a backup, or not all of it is ({error}).") from error
        if header.size < 0:
            raise Damaged(f"{header.name!r:.200} has {header.size} bytes in the backup.")
        if header.type not in _PLAIN:
            raise Damaged(f"The backup holds {header.name!r:.200}, which is not a plain file.")
        content = _content(source, header.size, check)
        yield header.name, header.size, content
        deque(content, maxlen=0)


def _content(source: IO[bytes], size: int, check: Callable[[], None]) -> Iterator[bytes]:
    """Yield the bytes of a file in chunks, and skip what fills its last block."""
    left = size
    while left:
        chunk = _read(source, min(left, CHUNK), check)
        if not chunk:
            raise Damaged("The backup ends within a file; get the rest of it.")
        left -= len(chunk)
        yield chunk
    _read(source, -size % BLOCK, check)


def _read(source: IO[bytes], size: int, check: Callable[[], None]) -> bytes:
    """Read `size` bytes, fewer only at the end: a network delivers them in pieces."""
    pieces: list[bytes] = []
    while size > 0:
        check()
        piece = source.read(size)
        if not piece:
            break
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


# -- documents as JSON lines ------------------------------------------------------------------

PAGE = 1000
"""Documents that are read at a time."""


def export_documents(
    collection: Collection,
    target: Path,
    filter: Mapping[str, Json] | None = None,
    *,
    force: bool = False,
    on_progress: OnStage = lambda stage, share: None,
) -> int:
    """Write the documents that pass a filter as JSON lines, and return their number.

    The file is of one moment, while others write, and appears once it is whole.

    Args:
        force: replace an existing file.

    Raises:
        Conflict: the target exists.
        InvalidRequest: a wrong filter.
    """
    with placed(target, force=force) as path:
        with open(path, "wb") as file:
            count = write_documents(collection, file, filter, on_progress)
        path.chmod(0o600)  # it holds all documents
    return count


def write_documents(
    collection: Collection,
    file: BinaryIO,
    filter: Mapping[str, Json] | None = None,
    on_progress: OnStage = lambda stage, share: None,
) -> int:
    """Write the documents that pass a filter to an open file, and return their number.

    A line has `id`, `fields` (the texts by name), `value` and `payload`; and `vector`, or `vectors`
    by name, if the document brought its own.
    """
    count = 0
    with collection.store.reading():
        total = collection.page(filter, limit=0).total
        for page, vectors in document_pages(collection, filter):
            for document in page:
                file.write(_line(document, vectors.get(document.row, {})))
            count += len(page)
            on_progress("write", count / max(total, 1))
    return count


def document_pages(
    collection: Collection, filter: Mapping[str, Json] | None = None
) -> Iterator[tuple[list[StoredDocument], dict[int, dict[str, list[Float32]]]]]:
    """Yield the documents that pass a filter, with the vectors that they brought, by row and name.

    >>> [len(page) for page, vectors in document_pages(books)]
    [3]
    """
    filter = by_value(filter, collection.settings.value_name)
    predicate, last, store = compile_filter(filter) if filter else None, 0, collection.store
    while page := store.scroll(last, PAGE, predicate):
        keys = store.own_keys(np.array([document.row for document in page], dtype=np.int64))
        sources = store.keys_of(keys.ids)
        brought: dict[int, dict[str, list[Float32]]] = {}
        for id, vector in zip(keys.ids.tolist(), keys.vectors, strict=True):
            source = sources[id]
            if source.stop == 0:  # the key of a text has the part that it was made of
                brought.setdefault(source.document, {}).setdefault(source.field, []).append(vector)
        yield page, brought
        last = page[-1].row


def _line(document: StoredDocument, vectors: Mapping[str, list[Float32]]) -> bytes:
    row: dict[str, Any] = {"id": document.id}
    if document.fields:
        row["fields"] = document.fields
    if vectors.keys() == {WHOLE}:
        several = vectors[WHOLE]
        row |= {"vector": several[0]} if len(several) == 1 else {"vectors": several}
    elif vectors:
        row["vectors"] = vectors
    row |= {"value": document.value, "payload": document.payload}
    try:
        options = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE
        return orjson.dumps(row, option=options)
    except TypeError:  # whole numbers beyond 64 bits, and halves of surrogate pairs
        return json.dumps(row, default=np.ndarray.tolist).encode() + b"\n"
