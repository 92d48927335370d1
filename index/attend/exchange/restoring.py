"""From a snapshot to collections: nothing in it is trusted before it was checked."""

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
from typing import BinaryIO

from attend.api.base import NAME_PATTERN
from attend.data import Data
from attend.errors import CollectionExists, Damaged, InvalidRequest
from attend.exchange.contents import DATABASE, FILE, FORMAT, MANIFEST, Contents, Progress
from attend.keys.files import sync_folder
from attend.store import Store
from attend.store.checks import strangers

MAX_MANIFEST = 16 * 1024 * 1024
BLOCK = 1 << 20


def restore(
    source: BinaryIO,
    data: Data,
    names: Sequence[str] | None = None,
    *,
    into: str | None = None,
    indexes: bool = True,
    on_progress: Progress = lambda stage, share: None,
) -> Contents:
    """Make collections of a snapshot; none that exists is touched.

    Nothing is to be seen of it until everything was read and checked.

    Args:
        source: the snapshot, read from where it stands to its end.
        names: those of its collections that are wanted; all of them, with its aliases, if None.
        into: the name for the only one that is wanted.
        indexes: whether to take its indexes along; else they are made of the databases. What a
            stranger sends is not for FAISS to read, which trusts its files.

    Raises:
        Damaged: it is no snapshot, or not what was written.
        CollectionExists: a collection or an alias has a name that is wanted.
        InvalidRequest: it does not hold what is wanted.
    """
    data.capabilities.check("snapshots")
    data.check_writable()
    making = data.folder / f"making-{secrets.token_hex(8)}"
    try:
        with _reading(source) as archive:
            contents = _read_manifest(archive)
            wanted = _wanted(contents, names, into)
            aliases = contents.aliases if names is None and into is None else {}
            _check_free(data, [*wanted.values(), *aliases])
            making.mkdir(parents=True)
            files = _files(contents, set(wanted), indexes)
            _unpack(archive, contents, files, making, on_progress)
        for name in wanted:
            _check_collection(making / "collections" / name)
        _move(making, data, wanted)
        for alias, collection in aliases.items():
            data.set_alias(alias, collection)
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return contents


@contextmanager
def _reading(source: BinaryIO) -> Iterator[tarfile.TarFile]:
    try:
        # A stream, and never a compressed one: what is small here would be small on disk.
        with tarfile.open(fileobj=source, mode="r|") as archive:
            yield archive
    except (tarfile.TarError, EOFError) as error:
        raise Damaged(
            f"This is no snapshot, or not all of one ({error}). Take one with 'attend "
            f"export --snapshot FILE'."
        ) from error


def _read_manifest(archive: tarfile.TarFile) -> Contents:
    first = archive.next()
    if first is None or first.name != MANIFEST or first.size > MAX_MANIFEST:
        raise Damaged(f"This is no snapshot: it does not begin with {MANIFEST}.")
    file = archive.extractfile(first)
    try:
        given = json.loads(file.read() if file else b"")
        if given.pop("format") != FORMAT:
            raise Damaged(f"The snapshot has another format than {FORMAT}, which is read here.")
        given["files"] = {name: (int(n), str(sum)) for name, (n, sum) in given["files"].items()}
        contents = Contents(**given)
        _check_names(contents)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise Damaged(f"The snapshot's {MANIFEST} cannot be read ({error}).") from error
    return contents


def _check_names(contents: Contents) -> None:
    for name in contents.files:
        if not FILE.fullmatch(name):
            raise Damaged(f"The snapshot holds {name!r:.200}, which no collection has.")
    for name in [*contents.collections, *contents.aliases, *contents.aliases.values()]:
        if not re.fullmatch(NAME_PATTERN, name):
            raise Damaged(f"The snapshot names a collection {name!r:.200}, which none can be.")
    for name in contents.collections:
        if f"collections/{name}/{DATABASE}" not in contents.files:
            raise Damaged(f"The snapshot lacks the database of the collection {name!r}.")


def _wanted(contents: Contents, names: Sequence[str] | None, into: str | None) -> dict[str, str]:
    """The names that its collections get, by those that they had."""
    chosen = list(contents.collections) if names is None else list(names)
    for name in chosen:
        if name not in contents.collections:
            known = ", ".join(contents.collections) or "none"
            raise InvalidRequest(f"The snapshot has no collection {name!r}; it has {known}.")
    if into is None:
        return {name: name for name in chosen}
    if len(chosen) != 1:
        raise InvalidRequest(
            f"The snapshot has {len(chosen)} collections, but one was expected; name one."
        )
    return {chosen[0]: into}


def _check_free(data: Data, names: Iterable[str]) -> None:
    taken = {*data.names(), *data.aliases()}
    clashes = sorted(taken.intersection(names))
    if clashes:
        raise CollectionExists(
            f"There is a collection or an alias {clashes[0]!r} already, and nothing was restored. "
            f"Delete it, or restore into another folder.",
            field="collection",
        )


def _files(contents: Contents, names: Set[str], indexes: bool) -> set[str]:
    """Those that some collections are made of."""
    own = {name for name in contents.files if name.split("/")[1] in names}
    return own if indexes else {name for name in own if name.endswith(f"/{DATABASE}")}


def _unpack(
    archive: tarfile.TarFile,
    contents: Contents,
    wanted: Set[str],
    making: Path,
    on_progress: Progress,
) -> None:
    missing = dict(contents.files)
    read = 0
    # Not by iteration, which would begin with the manifest again.
    while (member := archive.next()) is not None:
        if member.name not in missing or not member.isreg():
            raise Damaged(f"The snapshot holds {member.name!r:.200} unannounced or twice.")
        size, digest = missing.pop(member.name)
        if member.name in wanted:
            _extract(archive, member, making / member.name, size, digest)
            os.utime(making)  # it is in use, and no leftover
        read += size
        on_progress("read", read / max(contents.size, 1))
    if missing:
        raise Damaged(f"The snapshot ends without {len(missing)} of its files.")


def _extract(
    archive: tarfile.TarFile, member: tarfile.TarInfo, target: Path, size: int, digest: str
) -> None:
    found = hashlib.sha256()
    file = archive.extractfile(member)
    if file is None or member.size != size:
        raise Damaged(
            f"{member.name} has {member.size} bytes in the snapshot, but {size} were put in."
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target, "xb") as written:
        while block := file.read(BLOCK):
            found.update(block)
            written.write(block)
        written.flush()
        os.fsync(written.fileno())
    if found.hexdigest() != digest:
        raise Damaged(f"{member.name} is not what was put into the snapshot: its checksum differs.")


def _check_collection(folder: Path) -> None:
    """Raises Damaged for a database that this program did not write."""
    try:
        store = Store(folder / DATABASE)
        try:
            strange = store.integrity() or strangers(store.connections.reader())
        finally:
            store.close()
    except sqlite3.DatabaseError as error:
        raise Damaged(f"The snapshot's database cannot be read ({error}).") from error
    if strange:
        raise Damaged(f"The snapshot's database is not one of a collection: {strange[0]}")


def _move(making: Path, data: Data, wanted: Mapping[str, str]) -> None:
    (data.folder / "collections").mkdir(exist_ok=True)
    for name, given in wanted.items():
        try:
            (making / "collections" / name).rename(data.folder / "collections" / given)
        except OSError as error:
            raise CollectionExists(
                f"The collection {given!r} was made meanwhile, and was left as it is ({error}).",
                field="collection",
            ) from None
    sync_folder(data.folder / "collections")
