"""Mutated snapshots: each is refused with a sentence, or restored and equal to what was sent.

The mutations are drawn by seed: each run draws the same ones, and the nightly one 2,000.
"""

from __future__ import annotations

import io
import json
import random
import sqlite3
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from attend.collection.data import Data
from attend.collection.verify import verify
from attend.core.errors import CannotWrite, Damaged, InvalidRequest
from attend.exchange import backup
from attend.exchange.backup import restore_backup, save_backup
from tests.index.helpers import vector_data
from tests.many import some
from tests.snapshots import BOOKS, OFFSETS, Member, changed, fill, packed, repacked, rows, unpacked

COUNT = some(2000)
BATCHES = 8
NASTY = (
    None, 0, -1, 1, 2**31, 2**53, 2**63 - 1, -(2**63), 1e308, 9e999, 0.5, "", "x", "-1", "[]", "{}",
    "null", "true", "1e999", "[" * 5000, '{"a":' * 3000, "NaN", "\x00", "é" * 99, b"", b"\xff" * 16,
    b"\x00" * 15, '{"a":1}', "9" * 400, "a/../../b", "[" * 300 + '"' + '\\"' * 9000,
    '{"a": "' * 300, '["\\', "[" * 300 + "\\" * 9001,
)  # fmt: skip
NASTY_BYTES = (
    b"", b"0", b"-1", b"00000000000", b"77777777777", b"\x80" + b"\xff" * 11, b"\xff" * 12,
    b"\x00" * 12, b"../../etc/passwd", b"/etc/passwd", b"\xc3\x28", b"x" * 155, b"ustar\x0000",
    b"ustar  \x00", *(bytes([kind]) for kind in b"01234567DKLSVXgx~"),
)  # fmt: skip
PAX = (
    b"30 mtime=1234567890.123456789\n", b"19 path=a/long/one\n", b"22 GNU.sparse.major=1\n",
    b"28 GNU.sparse.size=99999999\n", b"9" * 3000, b"21 hdrcharset=BINARY\n", b"0 path=x\n",
    b"11 size=1\n\n", b"999999999999999999999999 path=x\n", b"7 path=", b"\xff" * 512,
)  # fmt: skip
NAMES = (
    "evil",
    "_sqlite_evil",
    "sqlite_evil",
    "_sqlite_migrations_2",
    "lexical_evil",
    "keys",
    "EVIL ",
)
LIMIT = 1 << 20


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("original")
    data = vector_data(folder / "data")
    fill(data.create("books", dimension=4))
    save_backup(data, folder / "books.tar")
    data.close()
    return (folder / "books.tar").read_bytes()


def members_of(snapshot: bytes) -> list[Member]:
    manifest, files = unpacked(snapshot)
    contents = {"manifest.json": json.dumps(manifest).encode(), **files}
    return [Member(name, content) for name, content in contents.items()]


# -- mutations of the tar -------------------------------------------------------------------


def flipped(snapshot: bytes, rng: random.Random, _: Path) -> bytes:
    content = bytearray(snapshot)
    end = rng.choice([512, 2048, len(content)])
    for _ in range(rng.choice([1, 1, 2, 8])):
        content[rng.randrange(end)] = rng.randrange(256)
    return bytes(content)


def cut(snapshot: bytes, rng: random.Random, _: Path) -> bytes:
    start = rng.randrange(len(snapshot))
    filler = rng.randbytes(rng.choice([0, 1, 511, 512, 4096]))
    return snapshot[:start] + filler + snapshot[start + rng.choice([0, 1, 512, len(snapshot)]) :]


def wrong_header(snapshot: bytes, rng: random.Random, _: Path) -> bytes:
    members = members_of(snapshot)
    place = rng.randrange(len(members))
    fields = {
        rng.choice(list(OFFSETS)): rng.choice(NASTY_BYTES) for _ in range(rng.choice([1, 1, 2]))
    }
    members[place] = members[place]._replace(fields=fields)
    return packed(members)


def other_members(snapshot: bytes, rng: random.Random, _: Path) -> bytes:
    members = members_of(snapshot)
    kind = rng.choice([b"x", b"g", b"L", b"K", b"S", b"1", b"2", b"5", b"7", b"0"])
    extra = Member(rng.choice(["x", BOOKS, "../x"]), rng.choice(PAX), {"type": kind})
    for _ in range(rng.choice([1, 1, 2, 300])):
        members.insert(rng.randrange(len(members) + 1), extra)
    if rng.random() < 0.3:
        rng.shuffle(members)
    if rng.random() < 0.2:
        members.pop(rng.randrange(len(members)))
    return packed(members)


def other_manifest(snapshot: bytes, rng: random.Random, _: Path) -> bytes:
    members = members_of(snapshot)
    manifest = json.loads(members[0].content)
    place: Any = manifest
    while isinstance(place, dict) and place:
        key = rng.choice(list(place))
        if not isinstance(place[key], dict) or not place[key] or rng.random() < 0.4:
            break
        place = place[key]
    value = rng.choice([n for n in NASTY if not isinstance(n, bytes)])
    match rng.randrange(4):
        case 0:
            del place[key]
        case 1:
            place[str(value)] = place[key]
        case 2:
            place[key] = [value] * rng.choice([0, 1, 2, 1000])
        case _:
            place[key] = value
    content = json.dumps(manifest).encode()
    if rng.random() < 0.1:
        content = b"[" * 100_000
    return packed([Member("manifest.json", content), *members[1:]])


# -- mutations of the database --------------------------------------------------------------


def flipped_database(snapshot: bytes, rng: random.Random, _: Path) -> bytes:
    content = bytearray(unpacked(snapshot)[1][BOOKS])
    page = 4096 * rng.randrange(len(content) // 4096)
    # The heads of pages say where all else lies.
    end = rng.choice([8, 100, 4096])
    for _ in range(rng.choice([1, 1, 2, 16])):
        content[page + rng.randrange(end)] = rng.randrange(256)
    return bytes(content)


def moved_pages(snapshot: bytes, rng: random.Random, _: Path) -> bytes:
    content = unpacked(snapshot)[1][BOOKS]
    pages = [content[start : start + 4096] for start in range(0, len(content), 4096)]
    one, other = rng.randrange(len(pages)), rng.randrange(len(pages))
    match rng.randrange(5):
        case 0:
            pages[one], pages[other] = pages[other], pages[one]
        case 1:
            pages[one] = pages[other]
        case 2:
            pages[one] = rng.choice([b"\0", b"\xff"]) * 4096
        case 3:
            pages = pages[:one]
        case _:
            pages += [rng.randbytes(4096)] * rng.choice([1, 100])
    return b"".join(pages)


def other_rows(snapshot: bytes, rng: random.Random, folder: Path) -> bytes:
    def change(db: sqlite3.Connection) -> None:
        for _ in range(rng.choice([1, 1, 2])):
            found = db.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
            table = rng.choice([name for (name,) in found if name != "lexical"])
            column = rng.choice([row[1] for row in db.execute(f"PRAGMA table_info({table})")])
            value = rng.choice(NASTY)
            try:
                match rng.randrange(4):
                    case 0:
                        db.execute(f"DELETE FROM {table}")
                    case 1:
                        db.execute(f"UPDATE {table} SET \"{column}\" = CAST(x'C328' AS TEXT)")
                    case _:
                        db.execute(f'UPDATE OR REPLACE {table} SET "{column}" = ?', [value])
            except sqlite3.Error:  # what SQLite does not take cannot be sent
                continue

    return changed(snapshot, folder, change)


def other_schema(snapshot: bytes, rng: random.Random, folder: Path) -> bytes:
    name = rng.choice(NAMES)
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
    on = rng.choice(["documents", "keys", "settings", "_sqlite_migrations", "examples"])
    made = (
        ("trigger", on, f'CREATE TRIGGER "{name}" AFTER INSERT ON {on} BEGIN {endless}; END'),
        (
            "trigger",
            on,
            f'CREATE TRIGGER "{name}" BEFORE UPDATE ON {on} BEGIN DELETE FROM keys; END',
        ),
        ("view", name, f'CREATE VIEW "{name}" AS {endless}'),
        ("table", name, f'CREATE TABLE "{name}" (a)'),
        ("table", name, f'CREATE VIRTUAL TABLE "{name}" USING fts5(a)'),
        ("index", on, f'CREATE INDEX "{name}" ON {on} (rowid + 1)'),
    )

    def change(db: sqlite3.Connection) -> None:
        kind, table, sql = rng.choice(made)
        db.execute("PRAGMA writable_schema = ON")
        old = rng.choice(
            db.execute("SELECT rowid, name FROM sqlite_master ORDER BY rowid").fetchall()
        )
        match rng.randrange(5):
            case 0:
                db.execute("DELETE FROM sqlite_master WHERE rowid = ?", old[:1])
            case 1:
                column = rng.choice(["type", "name", "tbl_name", "rootpage", "sql"])
                value = rng.choice([*NASTY, sql, table, 2, 3])
                db.execute(
                    f"UPDATE sqlite_master SET {column} = ? WHERE rowid = ?", [value, old[0]]
                )
            case _:
                root = rng.choice([0, 0, 1, 2, 5])
                db.execute(
                    "INSERT INTO sqlite_master VALUES (?, ?, ?, ?, ?)",
                    [kind, name, table, root, sql],
                )

    return changed(snapshot, folder, change)


Mutation = Callable[[bytes, random.Random, Path], bytes]
OF_TARS: tuple[Mutation, ...] = (flipped, cut, wrong_header, other_members, other_manifest)
OF_DATABASES: tuple[Mutation, ...] = (flipped_database, moved_pages, other_rows, other_schema)
MUTATIONS = (*OF_TARS, *OF_DATABASES, flipped_database, other_rows)


def mutated(snapshot: bytes, number: int, scratch: Path) -> tuple[bytes, bytes]:
    """Return a mutated snapshot, and the database that it would restore."""
    mutate = MUTATIONS[number // BATCHES % len(MUTATIONS)]
    result = mutate(snapshot, random.Random(number), scratch)
    if mutate in OF_DATABASES:
        return repacked(snapshot, result), result
    return result, unpacked(snapshot)[1][BOOKS]


def files_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def restored(data: Data, sent: bytes) -> bool:
    """Restore a snapshot as the service does; false where it is refused with a sentence."""
    sizes = []
    try:
        restore_backup(
            io.BytesIO(sent), data, into="copy", limit=LIMIT,
            on_progress=lambda *_: sizes.append(size_of(data.folder)),
        )  # fmt: skip
    except (Damaged, InvalidRequest) as error:
        sentence = str(error)
    else:
        sentence = ""
    assert max(sizes, default=0) <= 2 * LIMIT
    assert len(sentence) < 2000
    assert "could not be checked within" not in sentence
    return not sentence


@pytest.mark.parametrize("batch", range(BATCHES))
def test_mutated_snapshots_are_refused_or_equal(
    snapshot: bytes, tmp_path: Path, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backup, "SECONDS", 10.0)
    data = vector_data(tmp_path / "data")
    data.folder.mkdir()
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    outcomes = {True: 0, False: 0}
    for number in range(batch, COUNT, BATCHES):
        sent, database = mutated(snapshot, number, scratch)
        was_restored = restored(data, sent)
        outcomes[was_restored] += 1
        if was_restored:
            copy = data.folder / "collections" / "copy"
            assert files_in(copy) == ["documents.db"], number
            assert rows(copy / "documents.db", scratch) == rows(database, scratch)
            verify(data.collection("copy"))
            assert data.collection("copy").search([1, 0, 0, 0], k=3).hits is not None
            data.drop("copy")
        assert files_in(data.folder) == [], number
    data.close()
    assert min(outcomes.values()) > 5, outcomes


@pytest.mark.parametrize("table", ["settings", "documents", "interactions", "projections"])
def test_texts_without_an_end_hold_nobody_up(snapshot: bytes, tmp_path: Path, table: str) -> None:
    """Texts in JSON that never end, and look as if they might at each of 60,000 quotes."""
    data = vector_data(tmp_path / "data")
    data.folder.mkdir()
    evil = "[" * 300 + '"' + '\\"' * 60_000
    sql = {
        "settings": "INSERT INTO settings VALUES ('any', ?)",
        "documents": "UPDATE documents SET payload = ?",
        "interactions": "UPDATE interactions SET value = ?",
        "projections": "UPDATE projections SET note = ?",
    }[table]
    content = changed(snapshot, tmp_path, lambda db: db.execute(sql, [evil]))
    sent = repacked(snapshot, content)
    begun = time.monotonic()
    with pytest.raises(Damaged, match=f"rows of {table} have no JSON"):
        restore_backup(io.BytesIO(sent), data, into="copy")
    assert time.monotonic() - begun < 20  # quadratic, it would take a minute and more
    assert files_in(data.folder) == []
    data.close()


@pytest.mark.parametrize(
    ("payload", "is_deep"),
    [
        ('{"a":' + "[" * 199 + "]" * 199 + "}", False),
        ('{"a":' + "[" * 200 + "]" * 200 + "}", True),
        ('{"a": "' + "[" * 500 + '\\"' + "[" * 500 + '\\\\"}', False),
        ('{"a": "\\\\", "b":' + "[" * 200 + "]" * 200 + "}", True),
        ('{"a": [' + "[1, {}], " * 500 + "0]}", False),
    ],
)
def test_brackets_are_deep_outside_texts_only(
    snapshot: bytes, tmp_path: Path, payload: str, is_deep: bool
) -> None:
    data = vector_data(tmp_path / "data")
    content = changed(
        snapshot, tmp_path, lambda db: db.execute("UPDATE documents SET payload = ?", [payload])
    )
    problem = pytest.raises(Damaged, match="nested more than 200 deep")
    with problem if is_deep else nullcontext():
        restore_backup(io.BytesIO(repacked(snapshot, content)), data, into="copy")
    data.close()


def test_the_snapshot_itself_is_restored(snapshot: bytes, tmp_path: Path) -> None:
    data = vector_data(tmp_path / "data")
    assert restored(data, packed(members_of(snapshot)))
    copy = data.folder / "collections" / "copy" / "documents.db"
    assert rows(copy, tmp_path) == rows(unpacked(snapshot)[1][BOOKS], tmp_path)
    assert verify(data.collection("copy")).problems == []
    data.close()


def test_a_full_disk_is_no_fault_of_the_snapshot(
    snapshot: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = vector_data(tmp_path / "data")
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(CannotWrite, match="make room"):
            restored(data, snapshot)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert files_in(data.folder) == []
    data.close()
