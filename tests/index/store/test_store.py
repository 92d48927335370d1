"""The store on a real database file: transactions, ids, readers beside writers."""

from __future__ import annotations

import resource
import sqlite3
import threading
import time
from contextlib import closing

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attend.core.deadline import until
from attend.core.errors import (
    CannotWrite,
    Conflict,
    Damaged,
    InvalidRequest,
    OverTime,
    UnknownProjection,
)
from attend.core.settings import Settings
from attend.core.types import Document
from attend.store import Entry, Hashes, Interaction, KeyRow, StaleEntries, connections, sql
from attend.store.database import Store
from attend.store.filters import compile_filter
from attend.store.words import register
from attend.write.ingest import Ingest, value_hash
from tests import warm
from tests.index.helpers import embeddings_of, entry, fresh_store, integrity, no_encoder


@pytest.fixture
def store(tmp_path):
    opened = fresh_store(tmp_path / "documents.db")
    yield opened
    opened.close()


def key_ids(store) -> list[int]:
    with store.all_keys() as (_, batches):
        return [id for batch in batches for id in batch.ids.tolist()]


def removed_keys(store) -> list[int]:
    return store.changes_since(0, 0).removed.tolist()


# -- writing ---------------------------------------------------------------------------------


def test_a_batch_lands_whole_or_not_at_all(store):
    store.write([entry("a")])
    before = store.state()
    broken = entry("c", payload={"x": float("nan")})
    with pytest.raises(ValueError, match="JSON"):
        store.write([entry("b"), broken])
    assert list(store.all_ids()) == ["a"]
    assert store.state() == before
    store.write([entry("b")])
    assert list(store.all_ids()) == ["a", "b"]


def test_a_failed_batch_does_not_leave_an_update_half_done(store):
    store.write([entry("a", [(1, 0), (0, 1)], value=1)])
    held = key_ids(store)
    with pytest.raises(ValueError, match="JSON"):
        store.write([entry("a", [(2, 2)], value=2), entry("b", value=float("inf"))])
    assert store.find(["a"])["a"].value == 1
    assert key_ids(store) == held
    assert removed_keys(store) == []


def test_ids_inside_are_never_given_out_twice(store):
    store.write([entry("a"), entry("b")])
    rows, keys = {d.row for d in store.find(["a", "b"]).values()}, set(key_ids(store))
    store.delete(["a", "b"])
    store.write([entry("a"), entry("b")])
    assert rows.isdisjoint(d.row for d in store.find(["a", "b"]).values())
    assert keys.isdisjoint(key_ids(store))


def test_an_update_keeps_the_row_and_changes_the_keys(store):
    store.write([entry("a", value=1)])
    row, keys = store.find(["a"])["a"].row, key_ids(store)
    store.write([entry("a", [(0, 1)], value=2)])
    assert store.find(["a"])["a"].row == row
    assert set(key_ids(store)).isdisjoint(keys)
    np.testing.assert_array_equal(embeddings_of(store, row), [[0, 1]])


def test_the_database_itself_logs_every_key_that_goes(store):
    store.write([entry("a", [(1, 0), (0, 1)]), entry("b"), entry("c")])
    keys = key_ids(store)
    store.write([entry("c", [(3, 3)])])
    store.delete(["a"])
    assert removed_keys(store) == [keys[3], keys[0], keys[1]]
    # Not by way of the store: the log is the schema's, so that no path forgets it.
    with sqlite3.connect(store.path) as other:
        register(other)
        other.execute("PRAGMA foreign_keys = ON")
        other.execute("DELETE FROM documents WHERE id = 'b'")
    other.close()
    assert removed_keys(store) == [keys[3], keys[0], keys[1], keys[2]]


def test_delete_counts_what_was_there(store):
    store.write([entry("a"), entry("b")])
    assert store.delete(["a", "nobody", "a"]) == 1
    assert store.delete(["a"]) == 0
    assert store.counts() == (1, 1)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("write"), st.lists(st.sampled_from("abcd"), min_size=1, unique=True)),
            st.tuples(st.just("delete"), st.lists(st.sampled_from("abcd"), min_size=1)),
        ),
        max_size=6,
    ),
    st.integers(0, 5),
)
def test_changes_since_any_moment_lead_to_the_same_keys(tmp_path_factory, steps, watch):
    """A reader that follows the changes holds what a reader of everything finds."""
    store = fresh_store(tmp_path_factory.mktemp("changes") / "documents.db")
    held: dict[int, int] = {}
    seen = (0, 0)
    for at, (action, ids) in enumerate([*steps, ("delete", ["nobody"])]):
        if action == "write":
            store.write([entry(id, [(at, n) for n in range(1 + at % 3)]) for id in ids])
        else:
            store.delete(ids)
        if at % (watch + 1) and at < len(steps):
            continue
        changes = store.changes_since(*seen)
        held = {key: row for key, row in held.items() if key not in changes.removed}
        held |= zip(changes.added.ids.tolist(), changes.added.documents.tolist(), strict=True)
        seen = changes.state.last_key, changes.state.last_removal
    with store.all_keys() as (state, batches):
        stored = {k: d for b in batches for k, d in zip(b.ids.tolist(), b.documents, strict=True)}
    assert held == stored
    assert seen == (state.last_key, state.last_removal)
    store.close()


# -- keys that are kept ------------------------------------------------------------------------


def test_an_entry_that_keeps_its_keys_needs_them_unchanged(store):
    first = entry("a", value=1)
    store.write([first])
    revised = Entry(Document("a", value=2), first.hashes._replace(value=b"2"), None)
    store.write([revised])
    assert (store.find(["a"])["a"].value, len(key_ids(store))) == (2, 1)
    store.write([entry("a", [(0, 1)], value=3)])  # someone else, with other keys
    with pytest.raises(StaleEntries, match="1 documents changed"):
        store.write([entry("b"), revised])
    assert store.find(["a", "b"])["a"].value == 3
    assert list(store.all_ids()) == ["a"]


def test_of_two_writers_the_one_whose_plan_is_stale_plans_again(store, monkeypatch):
    """B only revises the value, and A replaces the keys between B's plan and B's write."""
    plain = Settings(encoder=None, dimension=2)
    a, b = (Ingest(store, plain, lambda: no_encoder("")) for _ in range(2))
    a.write([Document("x", vectors={"v": [1, 0]}, value=1)])
    write, interfered = Store.write, []

    def interfere(self, entries):
        if not interfered:
            interfered.append(True)
            a.write([Document("x", vectors={"v": [0, 1]}, value=1)])
        write(self, entries)

    monkeypatch.setattr(Store, "write", interfere)
    done = b.write([Document("x", vectors={"v": [1, 0]}, value=2)])
    assert (done.updated, done.revised) == (1, 0)
    stored = store.find(["x"])["x"]
    assert stored.value == 2
    np.testing.assert_array_equal(embeddings_of(store, stored.row), [[1, 0]])


def test_a_writer_that_never_gets_a_fresh_plan_says_so(store, monkeypatch):
    ingest = Ingest(store, Settings(encoder=None, dimension=2), lambda: no_encoder(""))
    tries = []

    def stale(self, entries):
        tries.append(len(entries))
        raise StaleEntries("changed")

    monkeypatch.setattr(Store, "write", stale)
    with pytest.raises(Conflict):
        ingest.write([Document("x", vectors={"v": [1, 0]})])
    assert len(tries) == 5


def test_only_what_changed_is_written(store):
    ingest = Ingest(store, Settings(encoder=None, dimension=2), lambda: no_encoder(""))
    one = Document("x", vectors={"v": [1, 0]}, value={"a": 1, "b": 2}, payload={"p": [1]})
    assert ingest.write([one]).added == 1
    state = store.state()
    same = Document("x", vectors={"v": [1, 0]}, value={"b": 2, "a": 1}, payload={"p": [1]})
    assert ingest.write([same]).unchanged == 1
    assert store.state() == state
    revised = Document("x", vectors={"v": [1, 0]}, value=3, payload={"p": [1]})
    assert ingest.write([revised]).revised == 1
    assert (store.state().last_key, store.state().change) == (state.last_key, state.change + 1)
    moved = Document("x", vectors={"v": [1, 1]}, value=3, payload={"p": [1]})
    assert ingest.write([moved]).updated == 1
    assert store.state().last_key == state.last_key + 1


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (Document("x", vectors={"v": [1, 2, 3]}), "has 3 dimensions, but this collection's have 2"),
        (Document("x", vectors={"v": [1, float("nan")]}), "NaN"),
        (Document("x", vectors={"v": [1, 1e300]}), "beyond 1e"),
        (Document("x", vectors={"v": [0, 0]}), "document 'x' is all zeros"),
        (Document("x", vectors={"v": [[1, 0], [1]]}), "document 'x' are no list of vectors"),
        (Document("x", vectors={"v": [[1, 0], [1, 2, 3]]}), "are no list of vectors"),
        (Document("x", vectors={"v": []}), "has 0 dimensions"),
        (Document("x", fields={"t": "words"}), "'x' has text and no vector, but this collection"),
        (Document("x", fields={"t": "words"}, vectors={"t": [1]}), "'x' has 1 dimensions"),
        (Document("x", vectors={"v": [1, 0]}, value=float("nan")), "what JSON cannot say"),
    ],
)
def test_a_document_that_does_not_fit_is_refused_before_anything_is_written(store, document, said):
    ingest = Ingest(store, Settings(encoder=None, dimension=2), lambda: no_encoder(""))
    with pytest.raises(InvalidRequest) as refused:
        ingest.write([Document("fine", vectors={"v": [1, 0]}), document])
    assert said in str(refused.value)
    assert store.counts() == (0, 0)


def test_one_batch_has_each_id_once(store):
    ingest = Ingest(store, Settings(encoder=None, dimension=2), lambda: no_encoder(""))
    twice = [Document("x", vectors={"v": [1, n]}) for n in (0, 1)]
    with pytest.raises(InvalidRequest, match="'x' occurs more than once"):
        ingest.write(twice)


def test_normalised_vectors_have_length_one_and_need_a_direction(store):
    scaled = Settings(encoder=None, dimension=2, normalize=True)
    ingest = Ingest(store, scaled, lambda: no_encoder(""))
    ingest.write([Document("x", vectors={"v": [3, 4]})])
    np.testing.assert_allclose(embeddings_of(store, store.find(["x"])["x"].row), [[0.6, 0.8]])
    with pytest.raises(InvalidRequest, match="all zeros"):
        ingest.write([Document("y", vectors={"v": [0, 0]})])


# -- revising ------------------------------------------------------------------------------------


def test_a_revision_changes_value_and_payload_and_nothing_else(store):
    store.write([entry("a", [(1, 2)], fields={"t": "text"}, value=1, payload={"x": 1})])
    store.write([entry("b", value=7)])
    before, keys, hashes = store.state(), key_ids(store), store.hashes(["a", "b"])
    payload = {"x": 1, "y": "\ud800"}
    answered = store.revise("a", lambda d: d._replace(value=[2], payload=payload), value_hash)
    assert answered == store.find(["a"])["a"]
    assert answered[1:] == ("a", {"t": "text"}, [2], payload)
    assert store.find(["b"])["b"].value == 7
    assert key_ids(store) == keys
    assert store.state() == before._replace(change=before.change + 1)
    now = store.hashes(["a", "b"])
    assert now["b"] == hashes["b"]
    assert now["a"] == (hashes["a"].keys, value_hash([2], payload))


@pytest.mark.parametrize("id", ["nobody", "a\0b", "\ud800", ""])
def test_revising_what_is_not_there_changes_nothing(store, id):
    store.write([entry("a", value=1)])
    before = store.state()
    assert store.revise(id, lambda stored: stored._replace(value=2), value_hash) is None
    assert (store.state(), store.find(["a"])["a"].value) == (before, 1)


def test_a_revision_that_json_cannot_say_leaves_the_document_as_it_was(store):
    store.write([entry("a", value=1, payload={"x": 1})])
    before, hashes = store.state(), store.hashes(["a"])
    for broken in ({"value": float("inf")}, {"payload": {"x": [float("nan")]}}):
        with pytest.raises(InvalidRequest, match="finite numbers"):
            store.revise("a", lambda stored, broken=broken: stored._replace(**broken), value_hash)
    assert (store.state(), store.hashes(["a"])) == (before, hashes)
    assert store.find(["a"])["a"].payload == {"x": 1}


def test_revisions_at_once_all_survive(store):
    """Each of several writers, some with connections of their own, counts in its own member."""
    store.write([entry("a", payload={"untouched": True})])
    stores = [store, store, Store(store.path), Store(store.path)]
    failed = []

    def count(mine, name):
        try:
            for _ in range(10):
                mine.revise(
                    "a",
                    lambda stored: stored._replace(
                        payload={**stored.payload, name: stored.payload.get(name, 0) + 1}
                    ),
                    value_hash,
                )
        except BaseException as error:
            failed.append(error)

    threads = [
        threading.Thread(target=count, args=(mine, f"n{at}")) for at, mine in enumerate(stores)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for other in stores[2:]:
        other.close()
    assert failed == []
    assert store.find(["a"])["a"].payload == {"untouched": True, **{f"n{n}": 10 for n in range(4)}}


def test_the_source_stays_the_truth_of_a_revised_document(store):
    ingest = Ingest(store, Settings(encoder=None, dimension=2), lambda: no_encoder(""))
    source = Document("x", vectors={"v": [1, 0]}, value=1, payload={"p": 1})
    ingest.write([source])
    last_key = store.state().last_key
    store.revise("x", lambda stored: stored._replace(value=2), value_hash)
    assert ingest.write([source]).revised == 1
    assert (store.find(["x"])["x"].value, store.state().last_key) == (1, last_key)
    assert ingest.write([source]).unchanged == 1


# -- reading beside writing ----------------------------------------------------------------------


def test_many_threads_read_whole_states_while_one_writes(store):
    """Every batch writes all four documents with one number: no reader may see two numbers."""
    ids = ["a", "b", "c", "d"]
    store.write([entry(id, [(0, 0)], value=0) for id in ids])
    stop, seen, failed = threading.Event(), set(), []

    def read():
        try:
            while not stop.is_set():
                numbers = {document.value for document in store.find(ids).values()}
                with store.all_keys() as (_, batches):
                    numbers_of_keys = {x for b in batches for x in b.vectors[:, 0].tolist()}
                assert len(numbers) == 1
                assert len(numbers_of_keys) == 1
                seen.update(numbers)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(1, 60):
        store.write([entry(id, [(number, 0)], value=number) for id in ids])
    stop.set()
    for thread in threads:
        thread.join()
    assert failed == []
    assert len(seen) > 1


WRITE_FROM_ELSEWHERE = """
import sys
from pathlib import Path
from attend.store.database import Store
from tests.index.helpers import entry
store = Store(Path(sys.argv[1]))
store.write([entry("elsewhere", value=7)])
store.close()
"""


def test_another_process_writes_and_the_data_version_says_so(store):
    before = store.connections.data_version()
    assert store.connections.data_version() == before
    warm.run("-c", WRITE_FROM_ELSEWHERE, store.path).check_returncode()
    assert store.connections.data_version() != before
    assert store.find(["elsewhere"])["elsewhere"].value == 7


def test_a_writer_that_waits_in_vain_names_the_file(store, monkeypatch, tmp_path):
    monkeypatch.setattr(connections, "BUSY_SECONDS", 0.05)
    other = Store(store.path)
    with (
        store.connections.writing(),
        pytest.raises(Conflict, match=r"documents\.db could not be locked .* try again"),
    ):
        other.write([entry("a")])
    other.write([entry("a")])
    other.close()


def test_a_write_that_changes_nothing_counts_for_nothing(store):
    store.write([entry("a", value=1, payload={"n": 1})])
    store.add_interactions([Interaction("ann", "a")])
    store.revise("a", lambda stored: stored, value_hash)  # the helper's hash is none of these
    before, cached = store.state(), store.matching(compile_filter({"n": 1}))
    assert store.delete([]) == store.delete(["nobody"]) == 0
    assert store.delete_matching(compile_filter({"n": 2})) == 0
    assert store.delete_examples(ids=[99]) == store.delete_interactions("bob") == 0
    store.revise("a", lambda stored: stored, value_hash)
    store.write([])
    assert store.state() == before
    assert store.matching(compile_filter({"n": 1})) is cached
    # Equal to Python, and another value in JSON.
    assert store.revise("a", lambda stored: stored._replace(value=True), value_hash).value is True
    assert store.find(["a"])["a"].value is True
    assert store.state().change == before.change + 1


def test_a_write_waits_no_longer_than_its_deadline(store):
    other = Store(store.path)
    begun, done = threading.Event(), threading.Event()

    def hold():
        with store.connections.writing():
            begun.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    begun.wait()
    try:
        for waiting in (store, other):  # for a thread of this store, and for another connection
            started = time.monotonic()
            with pytest.raises(OverTime), until(started + 0.1):
                waiting.write([entry("a")])
            assert time.monotonic() - started < 20
    finally:
        done.set()
        thread.join()
    other.write([entry("a")])
    other.close()


def test_what_reads_cannot_write(store):
    store.write([entry("a")])
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        store.connections.reader().execute("DELETE FROM documents")
    assert store.counts()[0] == 1


def test_an_error_of_the_disk_says_that_nothing_was_stored(store, tmp_path):
    writer = store.connections._writer
    writer.execute("PRAGMA query_only = ON")
    with pytest.raises(CannotWrite, match="nothing of it was stored"):
        store.write([entry("a")])
    writer.execute("PRAGMA query_only = OFF")
    pages = writer.execute("PRAGMA page_count").fetchone()[0]
    writer.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(CannotWrite, match="full"):
        store.write([entry("a", fields={"t": "long " * 10_000})])
    writer.execute("PRAGMA max_page_count = 1000000")
    store.write([entry("a")])
    assert list(store.all_ids()) == ["a"]


def test_a_disk_that_takes_nothing_is_no_damage(store):
    store.close()  # and with it the files beside the database
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with pytest.raises(CannotWrite, match=r"documents\.db cannot be written to"):
            Store(store.path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    Store(store.path).close()


def test_a_mistake_of_this_program_is_no_other_process(store):
    writing = store.connections.writing
    with (
        pytest.raises(sqlite3.OperationalError, match="within a transaction"),
        writing(),
        writing(),
    ):
        pass
    store.write([entry("a")])
    store.close()
    with pytest.raises(Conflict, match="was closed while it was in use"):
        store.write([entry("b")])


def test_a_text_that_is_not_utf_8_keeps_its_error(store):
    store.write([entry("a")])
    with store.connections.writing() as db:
        db.execute("UPDATE documents SET payload = CAST(x'7b22ff' AS TEXT)")
    with (
        pytest.raises(sqlite3.OperationalError, match="UTF-8") as raised,
        until(time.monotonic() + 60),
    ):
        store.find(["a"])
    assert isinstance(connections.database_error(raised.value, store.path), Damaged)


def test_a_file_that_is_no_database_is_named(tmp_path):
    path = tmp_path / "documents.db"
    path.write_bytes(b"something else entirely " * 100)
    with pytest.raises(Damaged, match=r"documents\.db cannot be read as a database"):
        Store(path)


def test_opening_again_finds_everything_and_migrates_nothing(store):
    store.write([entry("a", [(1, 2)], fields={"t": "text \ud800"}, payload={"é": ["x", None]})])
    store.close()
    again = Store(store.path)
    found = again.find(["a"])["a"]
    assert (found.fields, found.payload) == ({"t": "text \ud800"}, {"é": ["x", None]})
    np.testing.assert_array_equal(embeddings_of(again, found.row), [[1, 2]])
    assert integrity(again) == []
    again.close()


# -- what is read --------------------------------------------------------------------------------


def test_embeddings_come_in_the_order_asked_for(store):
    store.write([entry("a", [(n, 0) for n in range(5)])])
    keys = key_ids(store)
    wanted = [keys[3], keys[0], 10**9, keys[3]]
    assert [e.tolist() for e in store.embeddings(wanted)] == [[3, 0], [0, 0], [3, 0]]


def test_scrolling_meets_every_document_once(store):
    store.write([entry(str(n), payload={"even": n % 2 == 0}) for n in range(25)])
    after, met = 0, []
    while block := store.scroll(after, 10):
        met += [document.id for document in block]
        after = block[-1].row
    assert met == [str(n) for n in range(25)]


@pytest.mark.parametrize("survivors", [lambda n: (n + 1) % 5, lambda n: n < 40, lambda n: n > 150])
def test_a_sample_is_of_those_that_are_there(store, survivors):
    store.write([entry(str(n), value=n) for n in range(300)])
    store.delete([str(n) for n in range(300) if not survivors(n)])
    sample = store.sample(50)
    assert sample
    assert all(survivors(document.value) for document in sample)


def test_an_unknown_projection_is_named_with_the_known_ones(store):
    with pytest.raises(UnknownProjection, match=r"no projection 9 here; there are 1\."):
        store.activate_projection(9)
    assert store.state().projection == 1


def test_an_id_with_a_nul_names_no_other_document(store):
    """SQLite's json_each ends a text at NUL; "4" must not answer for "4\\0b"."""
    store.write([entry("4")])
    assert store.find(["4\x00b"]) == {}
    assert store.delete(["4\x00b"]) == 0
    assert list(store.all_ids()) == ["4"]


def test_opening_never_waits_for_a_writer(store):
    """Another process in the middle of a write must not keep a reader out."""
    store.write([entry("a")])
    other = sqlite3.connect(store.path)
    other.execute("BEGIN IMMEDIATE")
    try:
        opened: list[list[str]] = []
        reader = threading.Thread(target=lambda: opened.append(list(Store(store.path).all_ids())))
        reader.start()
        reader.join(timeout=10)
        assert opened == [["a"]]
    finally:
        other.close()


def test_a_document_is_never_cut_between_two_tables(store, monkeypatch):
    monkeypatch.setattr(sql, "READ_BLOCK", 3)
    counts = [1, 4, 2, 3, 1, 7, 1, 1]
    for number, count in enumerate(counts):
        store.write([entry(str(number), [(number, place) for place in range(count)])])
    with store.all_keys() as (_, tables):
        read = list(tables)
    assert [count for table in read for count in table.counts.tolist()] == counts
    assert len(read) > 1
    assert np.diff([row for table in read for row in table.rows.tolist()]).min() > 0


@pytest.mark.parametrize("kind", ["absent", "folder", "damaged"])
def test_what_cannot_be_read_is_an_error_of_sqlite(tmp_path, kind):
    path = tmp_path / "documents.db"
    if kind == "folder":
        path.mkdir()
    if kind == "damaged":
        path.write_bytes(b"no database" * 1000)
    with pytest.raises(sqlite3.DatabaseError):
        connections.connect_to_read(path)


def test_a_large_write_takes_few_statements(store, monkeypatch):
    """Each step of one gives the interpreter away, which beside readers is slow to come back."""
    blocks = []
    upsert = sql.upsert
    monkeypatch.setattr(sql, "upsert", lambda db, block: (blocks.append(block), upsert(db, block)))
    store.write([entry(f"d{at}", keys=[(at, 1.0), (1.0, at)]) for at in range(1100)])
    assert len(blocks) == 3
    assert list(store.all_ids()) == [f"d{at}" for at in range(1100)]
    assert len(key_ids(store)) == 2200


def test_documents_of_all_sizes_are_written_as_they_came(store):
    texts = ["short", "x" * 40_000, "a\x00b", "\ud800 alone", "é" * 20_000, ""] * 40
    entries = [
        entry(f"d{at}", keys=[(at, 1.0)], fields={"text": text}, value=text, payload={"n": at})
        for at, text in enumerate(texts)
    ]
    store.write(entries)
    stored = store.find([f"d{at}" for at in range(len(texts))])
    assert [stored[f"d{at}"].fields["text"] for at in range(len(texts))] == texts
    assert [stored[f"d{at}"].value for at in range(len(texts))] == texts
    rows = [stored[f"d{at}"].row for at in range(len(texts))]
    assert rows == sorted(rows)
    assert store.own_keys(np.array(rows)).vectors[:, 0].tolist() == list(range(len(texts)))


# -- the file --------------------------------------------------------------------------------


def page_size(store: Store) -> int:
    return int(store.connections.reader().execute("PRAGMA page_size").fetchone()[0])


@pytest.mark.parametrize(
    ("width", "expected"),
    [(2, 4096), (32, 4096), (256, 8192), (384, 8192), (512, 16384), (768, 16384), (1024, 4096)],
)
def test_rows_of_keys_fill_the_pages_of_a_new_file(tmp_path, width, expected):
    path = tmp_path / "documents.db"
    fresh_store(path, width).close()
    empty = path.stat().st_size
    with closing(Store(path, width=2)) as store:  # a file keeps its size
        assert page_size(store) == expected
        vectors = np.random.default_rng(0).normal(size=(800, width)).astype(np.float32)
        hashes = Hashes(bytes(16), bytes(16))
        store.write(
            [
                Entry(Document(str(n)), hashes, [KeyRow("vector", 0, 0, vector)])
                for n, vector in enumerate(vectors)
            ]
        )
    grown = path.stat().st_size - empty
    assert grown < 1.25 * (vectors.nbytes + 800 * 150)  # beside embeddings, documents and indexes


def test_the_log_of_a_large_write_is_cut_back(tmp_path):
    path = tmp_path / "documents.db"
    with closing(fresh_store(path, 384)) as store:
        vectors = np.random.default_rng(0).normal(size=(4000, 384))
        store.write([entry(str(n), [vector]) for n, vector in enumerate(vectors)])
        log = path.with_name("documents.db-wal")
        assert log.stat().st_size > connections.LOG_BYTES
        store.write([entry("a", [vectors[0]])])
        assert log.stat().st_size <= connections.LOG_BYTES
        assert store.counts() == (4001, 4001)
