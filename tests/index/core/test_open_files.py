"""The process has as many open files as the system allows, as each library says it."""

from __future__ import annotations

import os
import resource
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import faiss
import pytest

from attend.core.errors import Damaged, OutOfFiles, is_out_of_files
from attend.keys.files import checksum, read_array
from attend.store.database import Store
from tests.index.helpers import published, vector_data

FAILURES = (OSError, RuntimeError, sqlite3.Error, Damaged)


@contextmanager
def few_files(free: int) -> Iterator[None]:
    """Allow this process so many more files, whatever their numbers, for a block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held: list[int] = []
    numbers = max(map(int, os.listdir("/dev/fd")))  # other tests may have left some open
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(256, numbers + 64), hard))
    try:
        with suppress(OSError):
            while True:
                held.append(os.dup(0))
        for _ in range(free):
            os.close(held.pop())
        yield
    finally:
        for number in held:
            os.close(number)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def query(path: Path) -> None:
    sqlite3.connect(path).execute("SELECT count(*) FROM sqlite_master")


def index(path: Path) -> None:
    faiss.read_index(str(path))


@pytest.mark.parametrize("read", [query, index, read_array, checksum])
def test_no_file_is_free_however_it_is_said(tmp_path: Path, read: Callable[[Path], object]) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"something")
    with pytest.raises(FAILURES) as raised, few_files(0):
        read(path)
    with few_files(0):
        assert is_out_of_files(raised.value)


def test_what_is_missing_or_damaged_is_no_want_of_files(tmp_path: Path) -> None:
    for read in (query, index, read_array, checksum):
        with pytest.raises(FAILURES) as raised:
            read(tmp_path / "nowhere" / "file")
        assert not is_out_of_files(raised.value)


def test_a_store_leaves_files_to_connections(tmp_path: Path) -> None:
    with few_files(20), pytest.raises(OutOfFiles, match=r"documents\.db .*LimitNOFILE"):
        Store(tmp_path / "documents.db")
    Store(tmp_path / "documents.db").close()


def test_causes_that_lead_back_to_themselves_end() -> None:
    first, second = RuntimeError("the connection is lost"), ValueError("it is tried again")
    first.__context__, second.__context__ = second, first
    assert not is_out_of_files(first)


def test_a_sound_index_is_not_removed_for_want_of_files(tmp_path: Path) -> None:
    with closing(vector_data(tmp_path)) as data:
        books = data.create("books", dimension=2)
        books.upsert([{"id": "a", "vector": [1.0, 0.0]}, {"id": "b", "vector": [0.0, 1.0]}])
        books.publish()
        current = published(books)
    with closing(vector_data(tmp_path)) as data:
        books = data.collection("books")
        books.store.state()  # its connections are open
        with few_files(1), pytest.raises(OutOfFiles):
            books.search([1.0, 0.0])
        assert published(books) == current
        assert (current / "manifest.json").exists()
        assert books.search([1.0, 0.0], k=1).hits[0].id == "a"
