"""Back up collections into one file, while others write."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import tarfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field

from attend.collection.data import Data
from attend.core.errors import Conflict
from attend.core.types import OnStage
from attend.keys.files import scratch_beside, sync_file, sync_folder
from attend.store.connections import connect_to_read

MANIFEST = "manifest.json"

PAGES = 2048
"""Pages of a database that are copied between two reports of progress: 8 MiB."""

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
    if target.exists() and not force:
        raise Conflict(f"{target} exists; choose another file, or add --force to replace it.")
    collections = data.names() if names is None else [data.resolve(name) for name in names]
    aliases = data.aliases().items() if names is None else ()
    for name in collections:
        data.collection(name)
    with scratch_beside(target) as staging:
        figures = {name: _copy(data, name, staging, on_progress) for name in collections}
        contents = BackupContents(
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            collections=figures,
            aliases={alias: name for alias, name in aliases if name in collections},
            files={name: _listed(staging / name) for name in map(database_of, collections)},
        )
        archive = staging / "backup.tar"
        _pack(staging, archive, contents, on_progress)
        sync_file(archive)
        archive.chmod(0o600)  # it holds all documents
        os.replace(archive, target)
    sync_folder(target.absolute().parent)
    return contents


def _copy(data: Data, name: str, staging: Path, on_progress: OnStage) -> Figures:
    """Copy the database of a collection, and return its figures."""
    copy = staging / database_of(name)
    copy.parent.mkdir(parents=True)
    source = data.collection(name).folder / copy.name
    _back_up(source, copy, lambda share: on_progress(f"copy {name}", share))
    with closing(sqlite3.connect(copy)) as db:
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


def _back_up(source: Path, target: Path, on_share: Callable[[float], object]) -> None:
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
