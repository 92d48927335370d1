"""Collections by name: which there are, what they were made with, what a name may be."""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

import attend
from attend.collection import data as data_module
from attend.collection.data import Data
from attend.core import deadline
from attend.core.deadline import until
from attend.core.errors import (
    AttendError,
    CollectionExists,
    Conflict,
    EncoderMismatch,
    InvalidRequest,
    Opening,
    UnknownCollection,
)
from attend.engines.local import MAKING_SECONDS
from attend.store.database import Store
from tests import warm
from tests.index.helpers import vector_data


def test_an_unknown_collection_is_told_with_the_known_ones(tmp_path):
    data = vector_data(tmp_path)
    with pytest.raises(UnknownCollection, match="no collections exist yet"):
        data.collection("books")
    data.create("films", dimension=2)
    data.create("art", dimension=2)
    with pytest.raises(
        UnknownCollection, match=r"no collection 'books'; the collections are art, films"
    ):
        data.collection("books")


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".", "a b", "-x", "x" * 64, "é", "a\n"])
def test_a_name_cannot_leave_the_folder(tmp_path, name):
    with pytest.raises(InvalidRequest, match="is no collection name"):
        vector_data(tmp_path / "data").create(name, dimension=2)
    assert not (tmp_path / "data").exists()


def test_settings_are_fixed_at_creation(tmp_path):
    data = vector_data(tmp_path)
    made = data.create("a", dimension=2, scorer="cosine")
    assert data.create("a", dimension=2, scorer="cosine") is made
    assert data.ensure("a") is made
    assert data.ensure("a", dimension=2) is made
    with pytest.raises(CollectionExists, match="dimension is 2, not 3"):
        data.create("a", dimension=3, scorer="cosine")
    with pytest.raises(CollectionExists, match="scorer is 'cosine', not 'dot'"):
        data.ensure("a", dimension=2, scorer="dot")
    with pytest.raises(InvalidRequest, match="both were given"):
        data.create("b", dimension=2, encoder="x")
    with pytest.raises(InvalidRequest, match="colour: unknown field"):
        data.create("b", dimension=2, colour="red")
    assert data.names() == ["a"]


def test_another_encoder_is_refused_by_both_names(tmp_path, tiny_encoder):
    data = Data(tmp_path, load_encoder=lambda name: _named(tiny_encoder, name))
    data.create("a", encoder="one")
    with pytest.raises(EncoderMismatch, match="built with the encoder 'one', not 'two'"):
        data.ensure("a", encoder="two")


def test_a_model_that_changed_its_width_is_refused(tmp_path, tiny_encoder):
    Data(tmp_path, load_encoder=lambda name: tiny_encoder).create("a", encoder="one")
    changed = Data(tmp_path, load_encoder=lambda name: _named(tiny_encoder, name, dimension=8))
    with pytest.raises(EncoderMismatch, match=r"gives 8 dimensions, but .* built with 32"):
        changed.collection("a").search("words")


def _named(encoder, name, dimension=32):
    """The same model under another name."""
    return type("Named", (), {"name": name, "dimension": dimension, "encoder": encoder})()


def test_a_dropped_collection_is_gone_for_every_process(tmp_path):
    mine, theirs = vector_data(tmp_path), vector_data(tmp_path)
    mine.create("a", dimension=2).upsert([{"id": "old", "vector": [1, 0]}])
    assert theirs.collection("a").search([1, 0]).attended == 1
    mine.drop("a")
    with pytest.raises(UnknownCollection):
        theirs.collection("a")
    assert [path.name for path in tmp_path.iterdir()] == ["collections"]
    mine.create("a", dimension=2)
    assert theirs.collection("a").search([1, 0]).attended == 0


def test_what_killed_processes_left_behind_goes_at_the_next_opening(tmp_path):
    vector_data(tmp_path).create("a", dimension=2)
    names = [f"{kind}-{'0f' * 8}" for kind in ("dropped", "making")]
    kept = [f"making-{'1f' * 8}", "dropped-notes", f"dropped-{'0f' * 9}"]
    for name in (*names, *kept):
        (tmp_path / name / "keys").mkdir(parents=True)
        (tmp_path / name / "documents.db").write_bytes(b"x")
    long_ago = time.time() - MAKING_SECONDS - 60
    os.utime(tmp_path / names[1], (long_ago, long_ago))
    assert vector_data(tmp_path).names() == ["a"]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*kept, "collections"])


def test_a_folder_that_is_not_there_is_not_made_by_looking(tmp_path):
    assert vector_data(tmp_path / "none").names() == []
    assert not (tmp_path / "none").exists()


def open_databases(folder: Path, ending: str = "") -> int:
    """The files of databases in a folder, deleted ones too, that this process has open."""
    links = [os.path.join("/proc/self/fd", number) for number in os.listdir("/proc/self/fd")]
    targets = [os.readlink(link) for link in links if os.path.lexists(link)]
    mine = [target for target in targets if str(folder) in target and "documents.db" in target]
    return sum(target.endswith(ending) for target in mine)


def with_migration_due(path: Path) -> None:
    """Make a database one whose last migration is to be applied when it is opened."""
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("DELETE FROM _sqlite_migrations WHERE name LIKE 'm006%'")


def test_a_collection_that_opens_slowly_stalls_no_other(tmp_path, monkeypatch):
    monkeypatch.setattr(deadline, "PATIENT", 0)
    first = vector_data(tmp_path)
    for name in ("old", "other", "third"):
        first.create(name, dimension=2).upsert([{"id": name, "vector": [1, 0]}])
    first.close()
    path = tmp_path / "collections" / "old" / "documents.db"
    with_migration_due(path)
    data = vector_data(tmp_path)
    data.collection("other")
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")  # the migration waits for it
        opening = threading.Thread(target=data.collection, args=["old"])
        opening.start()
        while "old" not in data._opening:
            time.sleep(0.001)
        time.sleep(0.1)
        with until(time.monotonic() + 10):
            for name in ("other", "third", "other"):
                assert data.collection(name).search([1, 0]).hits[0].id == name
            data.create("fourth", dimension=2)
            data.drop("third")
            with pytest.raises(Opening, match="'old' is being opened, which takes a while"):
                data.collection("old")
        assert opening.is_alive()
        writer.execute("ROLLBACK")
    opening.join()
    assert data.collection("old").search([1, 0]).hits[0].id == "old"
    data.close()


def test_an_encoder_that_loads_slowly_stalls_no_other(tmp_path, tiny_encoder, monkeypatch):
    monkeypatch.setattr(deadline, "PATIENT", 0)
    loading, loaded = threading.Event(), threading.Event()

    def load(name):
        if name == "slow":
            loading.set()
            assert loaded.wait(30)
        return tiny_encoder

    data = Data(tmp_path, load_encoder=load)
    data.encoder("fast")
    thread = threading.Thread(target=data.encoder, args=["slow"])
    thread.start()
    assert loading.wait(30)
    with until(time.monotonic() + 10):
        assert data.encoder("fast") is tiny_encoder
        with pytest.raises(Opening, match="'slow', or another, is being loaded"):
            data.encoder("slow")
    loaded.set()
    thread.join()
    assert data.encoder("slow") is tiny_encoder


def test_few_wait_for_an_encoder_that_loads(tmp_path, tiny_encoder):
    loading, loaded = threading.Event(), threading.Event()

    def load(name):
        loading.set()
        assert loaded.wait(30)
        return tiny_encoder

    def ask():
        with until(time.monotonic() + 30):
            try:
                return data.encoder("slow")
            except Opening:
                return None

    data = Data(tmp_path, load_encoder=load)
    with ThreadPoolExecutor(deadline.PATIENT + 3) as pool:
        asked = [pool.submit(data.encoder, "slow")]
        assert loading.wait(30)
        asked += [pool.submit(ask) for _ in range(deadline.PATIENT + 2)]
        while sum(future.done() for future in asked) < 2:  # those who get no place
            time.sleep(0.001)
        loaded.set()
        results = [future.result(30) for future in asked]
    assert results.count(None) == 2
    assert results.count(tiny_encoder) == deadline.PATIENT + 1


def test_who_has_no_deadline_waits_for_an_opening_and_gets_the_same(tmp_path):
    vector_data(tmp_path).create("a", dimension=2)
    data, opened = vector_data(tmp_path), []
    threads = [
        threading.Thread(target=lambda: opened.append(data.collection("a"))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(opened) == 8
    assert len(set(map(id, opened))) == 1


def test_a_dropped_collection_leaves_no_file_open(tmp_path):
    data = vector_data(tmp_path)
    before = data.create("a", dimension=2)
    before.search([1, 0])
    assert open_databases(tmp_path) > 0
    data.drop("a")
    assert open_databases(tmp_path) == 0
    with pytest.raises(UnknownCollection, match="was deleted while it was open"):
        before.search([1, 0])


def test_a_replaced_collection_is_closed_once_its_searches_have_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(data_module, "RETIRED_SECONDS", 0.5)
    data, elsewhere = vector_data(tmp_path), vector_data(tmp_path)
    replaced = data.create("a", dimension=2)
    replaced.search([1, 0])
    elsewhere.drop("a")
    elsewhere.create("a", dimension=2)
    elsewhere.close()
    assert data.collection("a") is not replaced
    assert replaced.search([1, 0]).hits == []  # as a search that began before
    for _ in range(1000):
        try:
            replaced.search([1, 0])
        except AttendError as error:
            assert "was replaced while it was open" in str(error)  # noqa: PT017
            break
        time.sleep(0.01)
    data.close()
    assert open_databases(tmp_path, "(deleted)") > 0  # this thread's
    data.collection("a").search([1, 0])
    assert open_databases(tmp_path, "(deleted)") == 0
    data.close()
    assert open_databases(tmp_path) == 0


def test_what_cannot_be_opened_leaves_no_file_open(tmp_path, monkeypatch):
    data, errors = vector_data(tmp_path), []

    def failing(call, *arguments, **rest):
        with pytest.raises((AttendError, sqlite3.Error, OSError, TypeError)) as failed:
            call(*arguments, **rest)
        errors.append(failed)  # with the frames that it came through

    data.create("a", dimension=2)
    data.close()
    path = tmp_path / "collections" / "a" / "documents.db"
    sound = path.read_bytes()
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("DELETE FROM settings WHERE name = 'dimension'")
    failing(data.collection, "a")
    path.write_bytes(sound)
    with_migration_due(path)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("ALTER TABLE documents RENAME TO others")
    failing(data.collection, "a")
    monkeypatch.setattr(Store, "initialise", lambda *_: (_ for _ in ()).throw(OSError("full")))
    failing(data.create, "new", dimension=2)
    assert open_databases(tmp_path) == 0
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["collections"]


def test_a_thread_that_comes_after_a_collection_was_replaced_leaves_no_file_open(tmp_path):
    data, elsewhere, errors = vector_data(tmp_path), vector_data(tmp_path), []
    collection = data.create("a", dimension=2)
    elsewhere.drop("a")
    elsewhere.create("a", dimension=2)
    elsewhere.close()
    before = open_databases(tmp_path)

    def search():
        try:
            collection.search([1, 0])
        except AttendError as error:
            errors.append(error)

    thread = threading.Thread(target=search)
    thread.start()
    thread.join()
    assert "was replaced while it was open" in str(errors[0])
    assert open_databases(tmp_path) == before
    data.close()


KILLED_IN_EXCHANGE = """
import ctypes, os, pathlib, signal, sys
from attend import Data
from attend.engines import local

class Old:  # a system that cannot exchange names
    def __init__(self, *arguments, **options): pass
local.ctypes.CDLL = Old
renamed, rename = [], pathlib.Path.rename
def renaming(path, target):
    if len(renamed) == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    renamed.append(target)
    return rename(path, target)
pathlib.Path.rename = renaming
Data(sys.argv[1])._engine.exchange("a", "b")
"""


@pytest.mark.parametrize(("renames", "after"), [(0, "ab"), (1, "ab"), (2, "ba"), (3, "ba")])
def test_an_exchange_that_was_killed_is_undone_or_finished(tmp_path, renames, after):
    data = vector_data(tmp_path)
    for name in "ab":
        data.create(name, dimension=2).upsert([{"id": name, "vector": [1, 0]}])
    data.close()
    killed = warm.run("-c", KILLED_IN_EXCHANGE, tmp_path, renames)
    assert killed.returncode == (0 if renames == 3 else -9)
    assert all("." not in name for name in data.names())
    data = vector_data(tmp_path)
    assert data.names() == ["a", "b"]
    found = [data.collection(name).search([1, 0]).hits[0].id for name in "ab"]
    assert "".join(found) == after
    data.close()


CLOSED_UNDER_USE = """
import itertools, sys, threading
import numpy as np
from attend import Data
from attend.core.errors import AttendError

vectors = np.random.default_rng(0).normal(size=(2000, 8))
first = Data(sys.argv[1])
first.create("many", dimension=8).upsert(
    [{"id": str(at), "vector": each, "payload": {"n": at}} for at, each in enumerate(vectors)]
)
first.close()
errors = []
for _ in range(30):
    data = Data(sys.argv[1])
    collection = data.collection("many")
    begun = threading.Barrier(5)
    def work():
        begun.wait()
        try:
            for query in itertools.cycle(vectors):
                collection.search(query, mode="soft", filter={"n": {"gte": 3}})
        except AttendError as error:
            errors.append(str(error))
    threads = [threading.Thread(target=work) for _ in range(4)]
    for each in threads:
        each.start()
    begun.wait()
    collection.search(vectors[0])
    data.close()
    for each in threads:
        each.join()
assert len(errors) == 120, len(errors)
assert all("closed while it was in use" in each for each in errors), set(errors)
"""


@pytest.mark.parametrize("where", ["shelf://localhost:8000", "FTP://x.org/a", "file:///tmp/a"])
def test_an_address_is_no_folder(tmp_path, monkeypatch, where):
    monkeypatch.chdir(tmp_path)
    for named in (where, Path(where)):
        with pytest.raises(InvalidRequest, match=r"is an address, but a data folder is expected"):
            attend.open(named)
    assert not list(tmp_path.iterdir())
    attend.open("a:b").close()


def test_an_installed_distribution_brings_an_engine(tmp_path, monkeypatch):
    """As `attend.engines` describes it: an entry point, named as the scheme."""
    (tmp_path / "attend_shelf.py").write_text(
        "from pathlib import Path\n"
        "from attend.engines.local import Folder\n"
        "def shelf(address):\n"
        "    return Folder(Path(address.removeprefix('shelf:/')), read_only=False)\n"
    )
    metadata = tmp_path / "attend_shelf-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: attend-shelf\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[attend.engines]\nshelf = attend_shelf:shelf\n")
    monkeypatch.syspath_prepend(tmp_path)
    library = attend.open(f"shelf:/{tmp_path}/library")
    library.create("points", dimension=2).upsert([{"id": "north", "vector": [0, 1]}])
    library.close()
    assert attend.open(tmp_path / "library").collection("points").search([0, 1]).hits[0].id == (
        "north"
    )


def test_an_engine_says_what_it_lacks(monkeypatch):
    monkeypatch.setitem(sys.modules, "pymilvus", None)
    for name in [name for name in sys.modules if name.startswith("attend_milvus")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(InvalidRequest, match=r"pip install attend-retrieval\[milvus\]"):
        attend.open("milvus://127.0.0.1:1/nothing")


def test_a_thread_that_opened_its_files_while_they_were_closed_reads_once_at_most(tmp_path):
    data = vector_data(tmp_path)
    collection = data.create("a", dimension=2)
    collection.upsert([{"id": "d", "vector": [1, 0]}])
    connections = collection.store.connections
    check = connections.check_there

    def closing() -> None:  # between a thread's look whether it is open and its first read
        connections.check_there = check
        data.close()

    def search() -> list[str]:
        connections.check_there = closing
        errors = []
        for _ in range(3):
            try:
                collection.search([1, 0])
            except Conflict as error:
                errors.append(str(error))
        return errors

    with ThreadPoolExecutor(1) as pool:
        errors = pool.submit(search).result()
    assert len(errors) >= 2
    assert all("closed while it was in use" in each for each in errors)


def test_closing_takes_nothing_from_who_reads(tmp_path):
    """In a process of its own: what goes wrong here ends it."""
    done = warm.run("-c", CLOSED_UNDER_USE, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
