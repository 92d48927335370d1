"""Snapshots for tests: taken apart, changed, and packed again with a manifest that fits.

The tar is written by hand: Python's own writer makes no header that is wrong.
"""

from __future__ import annotations

import hashlib
import io
import json
import sqlite3
import tarfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from attend.collection.collection import Collection
from attend.store import Interaction, NewExample, Question
from attend.store.checks import TABLES
from attend.store.words import register

BOOKS = "collections/books/documents.db"


class Member(NamedTuple):
    """A file in a tar, with the fields of its header that differ from the usual ones."""

    name: str
    content: bytes
    fields: Mapping[str, bytes] = {}
    """The raw bytes of header fields by name: see `OFFSETS`."""


OFFSETS = {
    "name": (0, 100), "mode": (100, 8), "uid": (108, 8), "gid": (116, 8), "size": (124, 12),
    "mtime": (136, 12), "chksum": (148, 8), "type": (156, 1), "linkname": (157, 100),
    "magic": (257, 8), "uname": (265, 32), "gname": (297, 32), "prefix": (345, 155),
}  # fmt: skip
"""The offset and the length of each field of a header."""


def header(name: str, size: int, fields: Mapping[str, bytes] = {}) -> bytes:
    """Make the header of a file, its checksum right unless `fields` has one."""
    info = tarfile.TarInfo(name)
    info.size = size
    block = bytearray(info.tobuf(tarfile.GNU_FORMAT)[-512:])
    for field, value in fields.items():
        start, length = OFFSETS[field]
        block[start : start + length] = value[:length].ljust(length, b"\0")
    if "chksum" not in fields:
        block[148:156] = b" " * 8
        block[148:156] = f"{sum(block):06o}\0 ".encode()
    return bytes(block)


def packed(members: Iterable[Member]) -> bytes:
    pieces = []
    for name, content, fields in members:
        pieces += [header(name, len(content), fields), content, b"\0" * (-len(content) % 512)]
    return b"".join(pieces) + b"\0" * 1024


def unpacked(snapshot: bytes) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return the manifest and the contents of the files."""
    with tarfile.open(fileobj=io.BytesIO(snapshot)) as archive:
        files = {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]
    return json.loads(files.pop("manifest.json")), files


def repacked(snapshot: bytes, content: bytes, name: str = BOOKS) -> bytes:
    """Return a snapshot with another database, with its size and sum in the manifest."""
    manifest, files = unpacked(snapshot)
    files[name] = content
    manifest["files"][name] = [len(content), hashlib.sha256(content).hexdigest()]
    return packed(
        [
            Member("manifest.json", json.dumps(manifest).encode()),
            *map(Member, files, files.values()),
        ]
    )


def changed(snapshot: bytes, folder: Path, change: Callable[[sqlite3.Connection], object]) -> bytes:
    """Return the database of a snapshot, changed by SQL."""
    path = folder / "changed.db"
    path.unlink(missing_ok=True)
    path.write_bytes(unpacked(snapshot)[1][BOOKS])
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = MEMORY")
        db.execute("PRAGMA synchronous = OFF")
        register(db)
        change(db)
    return path.read_bytes()


def run(*statements: str) -> Callable[[sqlite3.Connection], object]:
    def change(db: sqlite3.Connection) -> None:
        for sql in statements:
            db.execute(sql)

    return change


def rows(database: bytes | Path, folder: Path) -> dict[str, Sequence[Any]]:
    """Return the rows of all tables that hold what was written, as SQLite stores them."""
    path = folder / "rows.db"
    path.write_bytes(database if isinstance(database, bytes) else database.read_bytes())
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as db:
        db.text_factory = bytes
        return {
            table: db.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall() for table in TABLES
        }


def fill(collection: Collection) -> None:
    """Write a little of everything that a collection of four dimensions can hold."""
    rng = np.random.default_rng(7)
    collection.upsert(
        {
            "id": f"d{n}",
            "vector": rng.normal(size=4).tolist(),
            "value": n,
            "payload": {"n": [n, "x"]},
        }
        for n in range(12)
    )
    collection.delete(["d3"])
    question = Question("which", rng.normal(size=4).astype(np.float32))
    collection.store.add_examples([question], [NewExample(0, "d1", 1.0), NewExample(0, "d2", -1.0)])
    collection.store.add_interactions([Interaction("ann", "d4", 3, 1.5), Interaction("bob", "d5")])
