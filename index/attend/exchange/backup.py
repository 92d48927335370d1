"""Back up collections into one file, while others write."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sqlite3
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from attend.api.base import NAME_PATTERN
from attend.data import Data
from attend.errors import Conflict
from attend.keys import FILES
from attend.keys.files import sync_file, sync_folder
from attend.store.connections import connect_to_read

FORMAT = 1
MANIFEST = "manifest.json"
DATABASE = "documents.db"
# An index of an earlier version had its vectors in vectors.faiss; it is built again.
_INDEX_FILES = "|".join(map(re.escape, (*FILES, "vectors.faiss")))
FILE = re.compile(
    rf"collections/({NAME_PATTERN.strip('^$')})/"
    rf"(documents\.db|keys/[0-9a-z]{{1,64}}/(current|\d{{1,18}}/({_INDEX_FILES})))"
)
"""Every name that a file in a backup can have."""

Progress = Callable[[str, float], None]
"""Called with the stage, and the share of it that is done, 0 to 1."""

PAGES = 2048
"""Pages of a database that are copied between two reports of progress: 8 MiB."""

ATTEMPTS = 3
"""Attempts to copy an index's files, which a merge may remove meanwhile."""


@dataclass(frozen=True)
class BackupContents:
    """The contents of a backup.

    Attributes:
        collections: the figures of each collection by its name: documents, keys, change.
        aliases: the collection of each alias.
        files: (size in bytes, SHA-256) of each file by its name.
    """

    created: str
    collections: Mapping[str, Mapping[str, int]]
    aliases: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, tuple[int, str]] = field(default_factory=dict)

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


def save_backup(
    data: Data,
    target: Path,
    names: Sequence[str] | None = None,
    *,
    indexes: bool = True,
    force: bool = False,
    on_progress: Progress = lambda stage, share: None,
) -> BackupContents:
    """Write a backup of some collections (all of them, with the aliases, if None).

    Each is of one moment, while others write. It needs twice its size of room beside the target.

    Args:
        indexes: include the indexes, which can also be built again from the databases.
        force: replace an existing file.

    Raises:
        UnknownCollection: a name is not that of a collection.
        Conflict: the target exists.
    """
    data.capabilities.check("snapshots")
    if target.exists() and not force:
        raise Conflict(f"{target} exists; choose another file, or add --force to replace it.")
    collections = data.names() if names is None else [data.resolve(name) for name in names]
    for name in collections:
        data.collection(name)
    # Beside the target: a rename within one file system is all or nothing.
    with tempfile.TemporaryDirectory(prefix=".backup-", dir=target.absolute().parent) as temporary:
        staging = Path(temporary)
        figures = {name: _take(data, name, staging, indexes, on_progress) for name in collections}
        contents = BackupContents(
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            collections=figures,
            aliases=_aliases(data, collections) if names is None else {},
            files=dict(_listed(staging, on_progress)),
        )
        archive = staging / "backup.tar"
        _pack(staging, archive, contents, on_progress)
        sync_file(archive)
        archive.chmod(0o600)  # it holds all documents
        os.replace(archive, target)
    sync_folder(target.absolute().parent)
    return contents


def _take(
    data: Data, name: str, staging: Path, indexes: bool, on_progress: Progress
) -> dict[str, int]:
    """Copy a collection and return its figures."""
    folder = data.collection(name).folder
    copy = staging / "collections" / name
    copy.mkdir(parents=True)
    # The index first: the database then knows of it, and has all that it has.
    for layout in sorted((folder / "keys").glob("*/current")) if indexes else []:
        _take_index(layout.parent, copy / "keys" / layout.parent.name)
    _back_up(folder / DATABASE, copy / DATABASE, lambda share: on_progress(f"copy {name}", share))
    with closing(sqlite3.connect(copy / DATABASE)) as db:
        documents, keys, change = db.execute(
            "SELECT (SELECT count(*) FROM documents), (SELECT count(*) FROM keys), "
            "(SELECT value FROM settings WHERE name = 'change')"
        ).fetchone()
        # One file: the log that opening it wrote beside it goes into it.
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return {"documents": documents, "keys": keys, "change": int(change)}


def _back_up(source: Path, target: Path, on_share: Callable[[float], None]) -> None:
    """Copy a database as of this moment, however long that takes, while others write."""

    def on_pages(_status: int, remaining: int, total: int) -> None:
        on_share(1 - remaining / max(total, 1))

    with closing(connect_to_read(source)) as reader, closing(sqlite3.connect(target)) as writer:
        reader.isolation_level = None
        # A transaction that has begun to read sees no later commit: without it, each commit of
        # another connection would restart the copy.
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM sqlite_master").fetchone()
        reader.backup(writer, pages=PAGES, progress=on_pages)


def _take_index(layout: Path, copy: Path) -> None:
    """Copy the current index of a layout; none where a merge removes it each time."""
    for _ in range(ATTEMPTS):
        try:
            name = Path((layout / "current").read_text().strip()).name
            for path in sorted((layout / name).iterdir()):
                _link(path, copy / name / path.name)
            (copy / "current").write_text(name)
            return
        except FileNotFoundError:
            shutil.rmtree(copy, ignore_errors=True)


def _link(path: Path, copy: Path) -> None:
    """Give a published file, which never changes, another name; copy it where that fails."""
    copy.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(path, copy)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copyfile(path, copy)


def _aliases(data: Data, names: Sequence[str]) -> dict[str, str]:
    return {alias: name for alias, name in data.aliases().items() if name in names}


def _listed(staging: Path, on_progress: Progress) -> Iterator[tuple[str, tuple[int, str]]]:
    paths = sorted(path for path in staging.rglob("*") if path.is_file())
    for number, path in enumerate(paths, start=1):
        name = path.relative_to(staging).as_posix()
        # Other files do not belong to a collection.
        if FILE.fullmatch(name):
            yield name, (path.stat().st_size, _digest(path))
        on_progress("check", number / len(paths))


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _pack(staging: Path, target: Path, contents: BackupContents, on_progress: Progress) -> None:
    manifest = staging / MANIFEST
    manifest.write_text(json.dumps({"format": FORMAT, **vars(contents)}, indent=1))
    written = 0
    with tarfile.open(target, "w", dereference=True) as archive:
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
