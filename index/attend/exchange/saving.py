"""From collections to a snapshot, while others write."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from attend.data import Data
from attend.errors import Conflict
from attend.exchange.contents import DATABASE, FILE, FORMAT, MANIFEST, Contents, Progress
from attend.keys.files import sync_file, sync_folder
from attend.store.connections import connect_to_read

PAGES = 2048
"""Of a database, copied at a time: 8 MiB, between two reports of progress."""

ATTEMPTS = 3
"""To take an index's files, which a merge may sweep away meanwhile."""


def save(
    data: Data,
    target: Path,
    names: Sequence[str] | None = None,
    *,
    indexes: bool = True,
    force: bool = False,
    on_progress: Progress = lambda stage, share: None,
) -> Contents:
    """Write a snapshot of some collections (all of them, with the aliases, if None).

    Each is of one moment, while others write. Needs room for it twice over beside the target.

    Args:
        indexes: whether to take the indexes along, which can be made again from the databases.
        force: replace a file that is there.

    Raises:
        UnknownCollection: there is none of a name.
        Conflict: the target exists.
    """
    data.capabilities.check("snapshots")
    if target.exists() and not force:
        raise Conflict(f"{target} exists; choose another file, or add --force to replace it.")
    chosen = data.names() if names is None else [data.resolve(name) for name in names]
    for name in chosen:
        data.collection(name)
    # Beside the target: a rename within one file system is all or nothing.
    with tempfile.TemporaryDirectory(prefix=".snapshot-", dir=target.absolute().parent) as made:
        staging = Path(made)
        figures = {name: _take(data, name, staging, indexes, on_progress) for name in chosen}
        contents = Contents(
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            collections=figures,
            aliases=_aliases(data, chosen) if names is None else {},
            files=dict(_listed(staging, on_progress)),
        )
        whole = staging / "whole.tar"
        _pack(staging, whole, contents, on_progress)
        sync_file(whole)
        whole.chmod(0o600)  # it holds all there is to read
        os.replace(whole, target)
    sync_folder(target.absolute().parent)
    return contents


def _take(
    data: Data, name: str, staging: Path, indexes: bool, on_progress: Progress
) -> dict[str, int]:
    """Copy a collection; its figures."""
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
        # One file: what opening it wrote beside it goes into it.
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return {"documents": documents, "keys": keys, "change": int(change)}


def _back_up(source: Path, target: Path, told: Callable[[float], None]) -> None:
    """Copy a database as it is at this moment, however long that takes and whoever writes."""

    def on_pages(_status: int, remaining: int, total: int) -> None:
        told(1 - remaining / max(total, 1))

    with closing(connect_to_read(source)) as reader, closing(sqlite3.connect(target)) as writer:
        reader.isolation_level = None
        # A transaction that has begun to read sees no later commit: without it, each commit of
        # another connection would begin the copy anew.
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM sqlite_master").fetchone()
        reader.backup(writer, pages=PAGES, progress=on_pages)


def _take_index(layout: Path, copy: Path) -> None:
    """The current generation of a layout; none where there is none to be had."""
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
    """A published file never changes, so that another name for it is as good as a copy."""
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
    for at, path in enumerate(paths):
        name = path.relative_to(staging).as_posix()
        # What lies beside the known files is nobody's.
        if FILE.fullmatch(name):
            yield name, (path.stat().st_size, _digest(path))
        on_progress("check", (at + 1) / len(paths))


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _pack(staging: Path, whole: Path, contents: Contents, on_progress: Progress) -> None:
    manifest = staging / MANIFEST
    manifest.write_text(json.dumps({"format": FORMAT, **vars(contents)}, indent=1))
    written = 0
    with tarfile.open(whole, "w", dereference=True) as archive:
        archive.add(manifest, MANIFEST, filter=_anonymous)
        for name, (size, _) in contents.files.items():
            archive.add(staging / name, name, filter=_anonymous)
            written += size
            on_progress("write", written / max(contents.size, 1))


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Without who wrote it where: that is nobody's business elsewhere."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode = 0o600
    return member
