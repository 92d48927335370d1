"""Restore collections from a backup; nothing in it is trusted before it was checked."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
import sqlite3
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from attend.api.base import NAME_PATTERN
from attend.data import Data
from attend.errors import CollectionExists, Damaged, InvalidRequest
from attend.exchange.backup import DATABASE, FILE, FORMAT, MANIFEST, BackupContents, Progress
from attend.keys.files import sync_folder
from attend.store import Store
from attend.store.checks import schema_problems

MAX_MANIFEST = 16 * 1024 * 1024
BLOCK = 1 << 20


def restore_backup(
    source: IO[bytes],
    data: Data,
    names: Sequence[str] | None = None,
    *,
    into: str | None = None,
    indexes: bool = True,
    on_progress: Progress = lambda stage, share: None,
) -> BackupContents:
    """Restore the collections of a backup; existing collections stay as they are.

    Nothing of it is visible until everything was read and checked.

    Args:
        source: the backup, read from its current position to its end.
        names: the collections to restore; all of them, with the aliases, if None.
        into: another name for the only collection to restore.
        indexes: also restore the indexes; else they are built from the databases. FAISS trusts
            its files, and must not read those that a stranger sends.

    Raises:
        Damaged: it is not a backup, or was changed.
        CollectionExists: a name is that of an existing collection or alias.
        InvalidRequest: it does not have a collection of a name.
    """
    data.capabilities.check("snapshots")
    data.check_writable()
    making = data.folder / f"making-{secrets.token_hex(8)}"
    try:
        with _reading(source) as archive:
            contents = _read_manifest(archive)
            targets = _targets(contents, names, into)
            aliases = contents.aliases if names is None and into is None else {}
            _check_free(data, [*targets.values(), *aliases])
            making.mkdir(parents=True)
            files = _files(contents, set(targets), indexes)
            _unpack(archive, contents, files, making, on_progress)
        for name in targets:
            _check_collection(making / "collections" / name)
        _move(making, data, targets)
        for alias, collection in aliases.items():
            data.set_alias(alias, collection)
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return contents


@contextmanager
def _reading(source: IO[bytes]) -> Iterator[tarfile.TarFile]:
    try:
        # A stream, and never a compressed one: a small file must not become a large one on disk.
        with tarfile.open(fileobj=source, mode="r|") as archive:
            yield archive
    except (tarfile.TarError, EOFError) as error:
        raise Damaged(
            f"This is not a backup, or not all of one ({error}). Make one with 'attend "
            f"export --snapshot FILE'."
        ) from error


def _read_manifest(archive: tarfile.TarFile) -> BackupContents:
    first = archive.next()
    if first is None or first.name != MANIFEST or first.size > MAX_MANIFEST:
        raise Damaged(f"This is not a backup: it does not begin with {MANIFEST}.")
    file = archive.extractfile(first)
    try:
        manifest = json.loads(file.read() if file else b"")
        if manifest.pop("format") != FORMAT:
            raise Damaged(f"The backup has another format than {FORMAT}, the only one read here.")
        files = manifest.pop("files").items()
        manifest["files"] = {name: (int(size), str(digest)) for name, (size, digest) in files}
        contents = BackupContents(**manifest)
        _check_names(contents)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise Damaged(f"The backup's {MANIFEST} cannot be read ({error}).") from error
    return contents


def _check_names(contents: BackupContents) -> None:
    for name in contents.files:
        if not FILE.fullmatch(name):
            raise Damaged(f"The backup holds {name!r:.200}, which does not belong to a collection.")
    for name in [*contents.collections, *contents.aliases, *contents.aliases.values()]:
        if not re.fullmatch(NAME_PATTERN, name):
            raise Damaged(f"The backup names a collection {name!r:.200}, not a valid name.")
    for name in contents.collections:
        if f"collections/{name}/{DATABASE}" not in contents.files:
            raise Damaged(f"The backup lacks the database of the collection {name!r}.")


def _targets(
    contents: BackupContents, names: Sequence[str] | None, into: str | None
) -> dict[str, str]:
    """Return the new name of each collection to restore, by its name in the backup."""
    selected = list(contents.collections) if names is None else list(names)
    for name in selected:
        if name not in contents.collections:
            present = ", ".join(contents.collections) or "none"
            raise InvalidRequest(f"The backup has no collection {name!r}; it has {present}.")
    if into is None:
        return {name: name for name in selected}
    if len(selected) != 1:
        raise InvalidRequest(
            f"The backup has {len(selected)} collections, but one was expected; name one."
        )
    return {selected[0]: into}


def _check_free(data: Data, names: Iterable[str]) -> None:
    taken = {*data.names(), *data.aliases()}
    clashes = sorted(taken.intersection(names))
    if clashes:
        raise CollectionExists(
            f"A collection or an alias {clashes[0]!r} exists already, and nothing was restored. "
            f"Delete it, or restore into another folder.",
            field="collection",
        )


def _files(contents: BackupContents, names: Set[str], indexes: bool) -> set[str]:
    """Return the files of some collections."""
    files = {name for name in contents.files if name.split("/")[1] in names}
    return files if indexes else {name for name in files if name.endswith(f"/{DATABASE}")}


def _unpack(
    archive: tarfile.TarFile,
    contents: BackupContents,
    selected: Set[str],
    making: Path,
    on_progress: Progress,
) -> None:
    missing = dict(contents.files)
    read = 0
    # Iteration would begin with the manifest again.
    while (member := archive.next()) is not None:
        if member.name not in missing or not member.isreg():
            raise Damaged(f"The backup holds {member.name!r:.200} twice or unlisted.")
        size, digest = missing.pop(member.name)
        if member.name in selected:
            _extract(archive, member, making / member.name, size, digest)
            os.utime(making)  # it is in use: nothing removes it as left over
        read += size
        on_progress("read", read / max(contents.size, 1))
    if missing:
        raise Damaged(f"The backup ends without {len(missing)} of its files.")


def _extract(
    archive: tarfile.TarFile, member: tarfile.TarInfo, target: Path, size: int, digest: str
) -> None:
    computed = hashlib.sha256()
    file = archive.extractfile(member)
    if file is None or member.size != size:
        raise Damaged(
            f"{member.name} has {member.size} bytes in the backup, but its manifest says {size}."
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target, "xb") as written:
        while block := file.read(BLOCK):
            computed.update(block)
            written.write(block)
        written.flush()
        os.fsync(written.fileno())
    if computed.hexdigest() != digest:
        raise Damaged(f"{member.name} was changed since the backup: its checksum differs.")


def _check_collection(folder: Path) -> None:
    """Raise Damaged for a database that this program did not write."""
    try:
        store = Store(folder / DATABASE)
        try:
            strange = store.integrity() or schema_problems(store.connections.reader())
        finally:
            store.close()
    except sqlite3.DatabaseError as error:
        raise Damaged(f"The backup's database cannot be read ({error}).") from error
    if strange:
        raise Damaged(f"The backup's database is not that of a collection: {strange[0]}")


def _move(making: Path, data: Data, targets: Mapping[str, str]) -> None:
    (data.folder / "collections").mkdir(exist_ok=True)
    for name, target in targets.items():
        try:
            (making / "collections" / name).rename(data.folder / "collections" / target)
        except OSError as error:
            raise CollectionExists(
                f"The collection {target!r} was created meanwhile and stays as it is ({error}).",
                field="collection",
            ) from None
    sync_folder(data.folder / "collections")
