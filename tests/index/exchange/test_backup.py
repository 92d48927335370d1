"""Snapshots: what is restored answers as what was saved did at one moment.

Nothing else gets in.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import sqlite3
import tarfile
import tempfile
import threading
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from sqlite_utils import Database

from attend.cli import main
from attend.collection.verify import verify
from attend.core.errors import (
    CollectionExists,
    Conflict,
    Damaged,
    InvalidRequest,
    LimitExceeded,
    UnknownCollection,
)
from attend.exchange import backup
from attend.exchange.backup import restore_backup, save_backup
from attend.keys.files import scratch_beside
from attend.store.checks import TABLES
from attend.store.migrations import migrations
from tests.index.helpers import vector_data

QUERY = [1.0, 0.5, 0.25, 0.0]


def documents(count, first=0):
    rng = np.random.default_rng(first)
    return [
        {"id": f"d{n}", "vector": rng.normal(size=4).tolist(), "value": n, "payload": {"n": n}}
        for n in range(first, first + count)
    ]


@pytest.fixture
def data(tmp_path):
    found = vector_data(tmp_path / "data")
    for name in ("films", "books"):
        made = found.create(name, dimension=4)
        made.upsert(documents(50))
        made.publish()
        made.upsert(documents(10, 50))
        made.delete(["d3"])
    found.set_alias("novels", "books")
    yield found
    found.close()


def answers(collection):
    found = collection.search(QUERY, k=60, attend="all", mode="soft")
    return [(hit.id, hit.score, hit.value) for hit in found.hits], found.answer


def restored(source, folder, names=None, **options):
    other = vector_data(folder)
    with open(source, "rb") as file:
        contents = restore_backup(file, other, names, **options)
    return other, contents


def test_everything_is_there_again(data, tmp_path):
    told = []
    target = tmp_path / "all.tar"
    saved = save_backup(data, target, on_progress=lambda *each: told.append(each))
    other, contents = restored(target, tmp_path / "other")
    assert contents == saved
    assert other.names() == ["books", "films"]
    assert other.aliases() == {"novels": "books"}
    for name in ("books", "films"):
        for collection in (other.collection(name), data.collection(name)):
            collection.publish()  # an index made again sums in another order
        assert answers(other.collection(name)) == answers(data.collection(name))
        assert verify(other.collection(name)).problems == []
    assert target.stat().st_mode & 0o777 == 0o600
    assert {stage for stage, _ in told} == {"copy books", "copy films", "write"}
    assert all(0 <= share <= 1 for _, share in told)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all.tar", "data", "other"]


def test_a_restored_database_has_pages_of_the_same_size(tmp_path):
    data = vector_data(tmp_path / "data")
    data.create(dimension=384).upsert([{"id": "a", "vector": [0.5] * 384}])
    save_backup(data, tmp_path / "all.tar")
    other, _ = restored(tmp_path / "all.tar", tmp_path / "other")
    for collection in (data.collection(), other.collection()):
        with collection.store.reading() as db:
            assert db.execute("PRAGMA page_size").fetchone()[0] == 8192
    data.close()


def test_one_collection_without_its_index_under_another_name(data, tmp_path):
    target = tmp_path / "one.tar"
    saved = save_backup(data, target, ["novels"])
    assert list(saved.files) == ["collections/books/documents.db"]
    assert saved.aliases == {}
    with open(target, "rb") as file:
        restore_backup(file, data, into="copy")
    assert data.names() == ["books", "copy", "films"]
    assert answers(data.collection("copy"))[0] == answers(data.collection("books"))[0]
    data.collection("copy").upsert(documents(1, 99))
    assert len(data.collection("books").ids()) == 59


def test_it_is_of_one_moment_while_others_write(data, tmp_path, monkeypatch):
    """A writer adds documents in pairs; a snapshot never has one without the other."""
    monkeypatch.setattr(backup, "PAGES", 1)
    books, stop = data.collection("books"), threading.Event()

    def write():
        n = 1000
        while not stop.is_set():
            books.upsert(documents(2, n))
            n += 2
            if n % 20 == 0:
                books.publish()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for at in range(8):
            save_backup(data, tmp_path / f"{at}.tar", ["books"])
            other, contents = restored(tmp_path / f"{at}.tar", tmp_path / f"other{at}")
            collection = other.collection("books")
            ids = collection.ids()
            assert contents.collections["books"]["documents"] == len(ids)
            assert all(f"d{int(id[1:]) ^ 1}" in ids for id in ids if int(id[1:]) >= 1000)
            assert verify(collection).problems == []
    finally:
        stop.set()
        writer.join()
    assert len(ids) > 60


def test_nothing_is_overwritten(data, tmp_path):
    target = tmp_path / "all.tar"
    save_backup(data, target)
    before = target.read_bytes()
    with pytest.raises(Conflict, match="add --force"):
        save_backup(data, target)
    assert target.read_bytes() == before
    with (
        open(target, "rb") as file,
        pytest.raises(CollectionExists, match="'books' exists already"),
    ):
        restore_backup(file, data)
    with (
        open(target, "rb") as file,
        pytest.raises(CollectionExists, match="'novels' exists already"),
    ):
        restore_backup(file, data, ["films"], into="novels")
    with pytest.raises(UnknownCollection):
        save_backup(data, tmp_path / "none.tar", ["nothing"])
    assert not (tmp_path / "none.tar").exists()
    save_backup(data, target, force=True)


@pytest.mark.parametrize("taken", ["films", "novels"])
def test_all_of_a_backup_is_restored_or_nothing(data, tmp_path, taken):
    """A name that is taken while the backup is read, after others could have been moved."""
    save_backup(data, tmp_path / "all.tar")
    other = vector_data(tmp_path / "other")
    other.create("here", dimension=4)

    def take(stage, share):
        if stage.startswith("check") and taken not in {*other.names(), *other.aliases()}:
            if taken == "films":
                other.create("films", dimension=2)
            else:
                other.set_alias("novels", "here")

    for on_progress in (take, lambda stage, share: None):
        with (
            open(tmp_path / "all.tar", "rb") as file,
            pytest.raises(CollectionExists, match=f"'{taken}' exists already, and nothing was"),
        ):
            restore_backup(file, other, on_progress=on_progress)
        assert set(other.names()) == {"here"} | ({taken} & {"films"})
        assert other.aliases() == ({"novels": "here"} if taken == "novels" else {})
        assert [path.name for path in other.folder.iterdir()] == ["collections"]
    other.drop_alias("novels") if taken == "novels" else other.drop("films")
    with open(tmp_path / "all.tar", "rb") as file:
        restore_backup(file, other)
    assert other.names() == ["books", "films", "here"]
    assert other.aliases() == {"novels": "books"}
    assert other.collection("novels").info().documents == 59
    other.close()


def test_more_aliases_than_are_allowed_restore_nothing(data, tmp_path, monkeypatch):
    save_backup(data, tmp_path / "all.tar")
    monkeypatch.setattr("attend.exchange.backup.MAX_ALIASES", 1)
    other = vector_data(tmp_path / "other")
    other.set_alias("here", other.create("mine", dimension=2).name)
    with (
        open(tmp_path / "all.tar", "rb") as file,
        pytest.raises(LimitExceeded, match="1 aliases, and with the 1 that exist"),
    ):
        restore_backup(file, other)
    assert other.names() == ["mine"]
    other.close()


@pytest.mark.parametrize("exists", [False, True])
def test_only_the_owner_reads_what_was_restored(data, tmp_path, exists):
    save_backup(data, tmp_path / "all.tar")
    folder = tmp_path / "other"
    before = os.umask(0o022)
    try:
        if exists:
            folder.mkdir()
        other, _ = restored(tmp_path / "all.tar", folder)
        other.close()
    finally:
        os.umask(before)
    modes = {path: path.lstat().st_mode & 0o077 for path in folder.rglob("*")}
    assert not any(mode for path, mode in modes.items() if not path.is_symlink()), modes
    assert exists or folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("into", ["../books", "", "a/b"])
def test_a_collection_is_restored_under_a_valid_name(data, tmp_path, into):
    save_backup(data, tmp_path / "all.tar", ["books"])
    with (
        open(tmp_path / "all.tar", "rb") as file,
        pytest.raises(InvalidRequest, match="is no collection name"),
    ):
        restore_backup(file, data, into=into)


@pytest.mark.parametrize(
    ("names", "into", "said"),
    [(["x"], None, "has no collection 'x'; it has books, films"), (None, "y", "has 2 collections")],
)
def test_what_is_not_in_it_is_told(data, tmp_path, names, into, said):
    save_backup(data, tmp_path / "all.tar")
    with pytest.raises(InvalidRequest, match=said):
        restored(tmp_path / "all.tar", tmp_path / "other", names, into=into)


def rewritten(source, target, change):
    """A snapshot with its members changed, as `change(members)` says: [name, content, type]."""
    with tarfile.open(source) as archive:
        members = [[m.name, archive.extractfile(m).read(), m.type] for m in archive]
    change(members)
    with tarfile.open(target, "w") as archive:
        for name, content, kind in members:
            info = tarfile.TarInfo(name)
            info.size, info.type = len(content), kind
            if kind != tarfile.REGTYPE:
                info.size, info.linkname = 0, "/etc/passwd"
            archive.addfile(info, io.BytesIO(content))


def manifest(members, **changes):
    given = json.loads(members[0][1])
    for name, change in changes.items():
        given[name] = change(given[name])
    members[0][1] = json.dumps(given).encode()


BOOKS = "collections/books/documents.db"
ESCAPE = "collections/../../evil"


def flip(members):
    content = bytearray(members[1][1])
    content[5000] ^= 1
    members[1][1] = bytes(content)


def with_trigger(members):
    """A database that does more than it should, with a manifest that is right about it."""
    at = next(n for n, each in enumerate(members) if each[0] == BOOKS)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trigger.db"
        path.write_bytes(members[at][1])
        db = sqlite3.connect(path)
        db.execute("CREATE TRIGGER evil AFTER INSERT ON documents BEGIN DELETE FROM keys; END")
        db.commit()
        db.execute("PRAGMA journal_mode = DELETE")
        db.close()
        replaced(members, at, path.read_bytes())


def replaced(members, at, content):
    members[at][1] = content
    sums = [len(content), hashlib.sha256(content).hexdigest()]
    manifest(members, files=lambda files: files | {members[at][0]: sums})


def no_database(members):
    at = next(n for n, each in enumerate(members) if each[0] == BOOKS)
    replaced(members, at, b"x" * 8192)


HOSTILE = {
    "a flipped bit": (flip, "its checksum differs"),
    "a missing file": (lambda m: m.pop(), "ends without 1 of its files"),
    "an unannounced file": (lambda m: m.append(["x", b"", tarfile.REGTYPE]), "unlisted"),
    "a file twice": (lambda m: m.append(list(m[-1])), "twice or unlisted"),
    "a link": (lambda m: m[-1].__setitem__(2, tarfile.SYMTYPE), "not a plain file"),
    "a hard link": (lambda m: m[-1].__setitem__(2, tarfile.LNKTYPE), "not a plain file"),
    "a device": (lambda m: m[-1].__setitem__(2, tarfile.CHRTYPE), "not a plain file"),
    "a shorter file": (lambda m: m[-1].__setitem__(1, m[-1][1][:-1]), "bytes in the backup, but"),
    "a way out": (
        lambda m: manifest(m, files=lambda files: files | {ESCAPE: [0, "0" * 64]}),
        "which does not belong to a collection",
    ),
    "an absolute path": (
        lambda m: manifest(m, files=lambda files: files | {"/etc/x": [0, "0" * 64]}),
        "which does not belong to a collection",
    ),
    "a name that is a path": (
        lambda m: manifest(m, collections=lambda c: c | {"../x": {}}),
        "not a valid name",
    ),
    "an alias that is a path": (
        lambda m: manifest(m, aliases=lambda a: {"a": "../../etc"}),
        "stands for none of its collections",
    ),
    "no database": (
        lambda m: manifest(m, collections=lambda c: c | {"x": {}}),
        "lacks the database",
    ),
    "another format": (lambda m: manifest(m, format=lambda f: 9), "format: 1 was expected"),
    "an unknown word": (lambda m: m[0].__setitem__(1, b'{"format": 1, "x": 2}'), "cannot be read"),
    "no JSON": (lambda m: m[0].__setitem__(1, b"{"), "cannot be read"),
    "no manifest": (lambda m: m.pop(0), "does not begin with"),
    "no SQLite": (no_database, "file is not a database"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_what_is_not_as_it_was_saved_is_refused_whole(data, tmp_path, case):
    change, said = HOSTILE[case]
    save_backup(data, tmp_path / "all.tar")
    rewritten(tmp_path / "all.tar", tmp_path / "bad.tar", change)
    with pytest.raises(Damaged, match=said):
        restored(tmp_path / "bad.tar", tmp_path / "other")
    assert not list((tmp_path / "other").glob("*"))


def test_a_trigger_of_its_own_stays_behind(data, tmp_path):
    save_backup(data, tmp_path / "all.tar", ["books"])
    rewritten(tmp_path / "all.tar", tmp_path / "evil.tar", with_trigger)
    other, _ = restored(tmp_path / "evil.tar", tmp_path / "other")
    assert answers(other.collection("books"))[0] == answers(data.collection("books"))[0]
    assert verify(other.collection("books")).problems == []


LATER = [migration.name for migration in migrations.pending(Database(memory=True))][1:]


@pytest.mark.parametrize("missing", LATER)
def test_a_backup_of_an_older_schema_is_brought_up_to_date(data, tmp_path, missing):
    def older(members):
        (tmp_path / "new.db").write_bytes(members[1][1])
        with closing(sqlite3.connect(tmp_path / "old.db")) as connection:
            db = Database(connection, execute_plugins=False)
            migrations.apply(db, stop_before=missing)
            db.execute("ATTACH ? AS new", [str(tmp_path / "new.db")])
            for table in TABLES:
                info = "SELECT name FROM pragma_table_info(?, ?)"
                rows = db.execute(f"{info} INTERSECT {info}", [table, "main", table, "new"])
                if columns := ", ".join(name for (name,) in rows):
                    db.execute(
                        f"INSERT OR REPLACE INTO main.{table} ({columns}) "
                        f"SELECT {columns} FROM new.{table}"
                    )
            later = (
                ["texts", "recommend", "predict"][missing > "m003" :] if missing < "m006" else []
            )
            for name in later:  # a later migration writes them
                db.execute("DELETE FROM main.settings WHERE name = ?", [name])
            connection.commit()
        replaced(members, 1, (tmp_path / "old.db").read_bytes())

    save_backup(data, tmp_path / "all.tar", ["books"])
    rewritten(tmp_path / "all.tar", tmp_path / "older.tar", older)
    other, _ = restored(tmp_path / "older.tar", tmp_path / "other")
    assert answers(other.collection("books"))[0] == answers(data.collection("books"))[0]
    assert verify(other.collection("books")).problems == []


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9])
def test_half_of_a_snapshot_is_refused(data, tmp_path, share):
    save_backup(data, tmp_path / "all.tar")
    content = (tmp_path / "all.tar").read_bytes()
    half = tmp_path / "half.tar"
    half.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(Damaged):
        restored(half, tmp_path / "other")
    assert vector_data(tmp_path / "other").names() == []


def test_compressed_archives_are_not_read(data, tmp_path):
    import gzip

    save_backup(data, tmp_path / "all.tar")
    (tmp_path / "all.tgz").write_bytes(gzip.compress((tmp_path / "all.tar").read_bytes()))
    with pytest.raises(Damaged, match="not a backup"):
        restored(tmp_path / "all.tgz", tmp_path / "other")


def test_the_commands(data, tmp_path):
    def invoke(*arguments):
        return CliRunner().invoke(main, list(map(str, arguments)))

    folder, target, other = tmp_path / "data", tmp_path / "s.tar", tmp_path / "other"
    done = invoke("export", "--data", folder, "--snapshot", target, "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert list(told["collections"]) == ["books", "films"]
    assert told["aliases"] == {"novels": "books"}
    assert invoke("export", "--data", folder, "--snapshot", target).exit_code == 1
    one = invoke("import", "--data", other, "--snapshot", target, "--collection", "films", "--json")
    assert list(json.loads(one.stdout)["collections"]) == ["films"]
    assert vector_data(other).names() == ["films"]
    clash = invoke("import", "--data", other, "--snapshot", target)
    assert clash.exit_code == 1
    assert "'films' exists already, and nothing was restored" in clash.stderr
    assert vector_data(other).names() == ["films"]
    assert invoke("import", "--data", other).exit_code == 2
    both = invoke("export", "--data", folder, "--snapshot", target, "--safetensors", "x")
    assert both.exit_code == 2


def test_what_a_killed_export_left_goes_with_the_next_one(data, tmp_path):
    target = tmp_path / "all.tar"
    left = tmp_path / ".all.tar.making" / "collections"
    left.mkdir(parents=True)
    (left / "documents.db").write_bytes(b"a copy of everything")
    with scratch_beside(target) as staging:
        assert list(staging.iterdir()) == []
        with pytest.raises(Conflict, match="Another process is writing"):
            save_backup(data, target)
        assert staging.exists()
    save_backup(data, target)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all.tar", "data"]


def test_an_index_that_the_disk_does_not_take_fails_no_restore(data, tmp_path, monkeypatch):
    target = tmp_path / "all.tar"
    save_backup(data, target)

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("attend.keys.files.write_keys", full)
    command = ["import", "--data", str(tmp_path / "other"), "--snapshot", str(target)]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 0
    assert "books: the first search writes the index" in done.stderr
    assert vector_data(tmp_path / "other").names() == ["books", "films"]


def test_a_killed_restore_is_completed_by_whoever_opens_the_library(data, tmp_path, monkeypatch):
    target, other = tmp_path / "all.tar", tmp_path / "other"
    save_backup(data, target)
    with closing(vector_data(other)) as library:
        library.create("poems", dimension=2)

    def killed(making, collections):
        (making / "books").rename(collections / "books")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("attend.exchange.backup._move_each", killed)
        patch.setattr("attend.exchange.backup.shutil.rmtree", lambda *_, **__: None)
        with pytest.raises(KeyboardInterrupt):
            restored(target, other)
    with closing(vector_data(other)) as library:
        assert library.names() == ["books", "films", "poems"]
        assert library.aliases() == {"novels": "books"}
        assert answers(library.collection("films"))[0] == answers(data.collection("films"))[0]
    assert [path.name for path in other.iterdir()] == ["collections"]
