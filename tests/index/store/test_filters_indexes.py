"""Indexes of fields: chosen by use, built beside writes, used by SQLite, dropped when idle."""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest

from attend.store import compile_filter, selection
from attend.store.database import Store
from attend.store.filters import leaf_sql, leaves_of
from attend.store.selection import FieldIndexes
from tests.index.helpers import (
    drop_indexes,
    entry,
    finish_indexes,
    fresh_store,
    index_faults,
    index_fields,
)

FILTERS = [
    {"n": 3},
    {"n": {"gte": 2, "lt": 7}},
    {"tags": {"in": ["a", "c"]}},
    {"tags": {"all": ["a", "b"]}, "n": {"ne": 4}},
    {"$or": [{"tags": "c"}, {"n": {"exists": False}}]},
    {"$not": {"tags": {"prefix": "b"}}},
    {"word": "x", "n": {"lt": 5}},  # `word` has no index: what is left is read
]


def document(at: int, rng: random.Random):
    tags = rng.choice([[], ["a"], ["a", "b"], "c", None, ["b", "b", 1, None]])
    number = rng.choice([None, *range(10)])
    return entry(f"d{at}", payload={"n": number, "tags": tags, "word": rng.choice("xyz")})


def all_rows(store) -> list[list[int]]:
    with store.connections.reading() as db:
        return [store._selection.read(db, compile_filter(each)).tolist() for each in FILTERS]


@pytest.fixture
def store(tmp_path):
    opened = fresh_store(tmp_path / "documents.db")
    rng = random.Random(1)
    opened.write([document(at, rng) for at in range(2500)])
    yield opened
    opened.close()


def states(store) -> dict[str, str]:
    with store.connections.reading() as db:
        return dict(db.execute("SELECT name, state FROM indexed_fields"))


def age(store, day: str = "2000-01-01") -> None:
    with store.connections.writing() as db:
        db.execute("UPDATE indexed_fields SET used = ?", [day])


def test_an_index_of_old_documents_finds_what_a_scan_finds(store):
    scanned = all_rows(store)
    index_fields(store, ["n", "tags"])
    assert states(store) == {"n": "ready", "tags": "ready"}
    assert all_rows(store) == scanned
    assert not index_faults(store)


def test_writes_while_an_index_is_built_are_in_it(store, monkeypatch):
    monkeypatch.setattr(selection, "STEP_ROWS", 100)
    rng = random.Random(2)
    with store.connections.writing() as db:
        selection.choose_field(db, "tags")
    more = True
    while more:
        store.write([document(rng.randrange(2600), rng) for _ in range(5)])
        store.delete([f"d{rng.randrange(2600)}"])
        store.delete_matching(compile_filter({"@id": f"d{rng.randrange(2600)}"}))
        store.revise("d7", lambda old: old._replace(payload={"tags": ["b"]}), lambda *_: b"")
        with store.connections.writing() as db:
            more = selection.index_step(db)
    assert states(store) == {"tags": "ready"}
    assert not index_faults(store)
    indexed = all_rows(store)
    drop_indexes(store, ["tags"])
    finish_indexes(store)
    assert all_rows(store) == indexed


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ({"n": 3}, "USING PRIMARY KEY (field=? AND kind=? AND value=?)"),
        ({"n": {"in": [1, "x"]}}, "USING PRIMARY KEY (field=? AND kind=? AND value=?)"),
        ({"n": {"gte": 1, "lt": 3}}, "(field=? AND kind=? AND value>? AND value<?)"),
        ({"n": {"prefix": "ab"}}, "(field=? AND kind=? AND value>? AND value<?)"),
        ({"n": {"substring": "ab"}}, "USING PRIMARY KEY (field=? AND kind=?)"),
        ({"n": {"suffix": "ab"}}, "USING PRIMARY KEY (field=? AND kind=?)"),
        ({"n": {"date": {"gt": "2024-05-17"}}}, "USING PRIMARY KEY (field=? AND kind=?)"),
        ({"n": None}, "USING PRIMARY KEY (field=? AND kind=?)"),
        ({"@id": {"in": ["d1", "d2"]}}, "INDEX sqlite_autoindex_documents_1 (id=?)"),
        ({"@id": {"prefix": "d1"}}, "INDEX sqlite_autoindex_documents_1 (id>? AND id<?)"),
    ],
)
def test_sqlite_searches_the_index_and_reads_no_document(store, condition, expected):
    (leaf,) = leaves_of(compile_filter(condition).node)
    _, lookup, parameters = leaf_sql(leaf)
    lookup = lookup.replace("{source}", selection.source(leaf.field, 7))
    with store.reading() as db:
        plan = db.execute(f"EXPLAIN QUERY PLAN {lookup}", parameters).fetchall()
    assert any(expected in row[3] for row in plan), plan
    assert not any("SCAN documents" in row[3] or "SCAN field" in row[3] for row in plan)


def test_what_is_scanned_for_often_gets_an_index(store, monkeypatch):
    monkeypatch.setattr(selection, "COUNTED_SECONDS", 0.0)
    monkeypatch.setattr(selection, "BUILD_AFTER_SECONDS", 0.02)
    expected = store.matching(compile_filter({"tags": "a"})).tolist()
    for at in range(200):
        store.matching(compile_filter({"tags": "a", "n": {"ne": at}, "@id": {"ne": "d1"}}))
        store._indexes.wait()
        if len(states(store)) == 2:
            break
    assert states(store) == {"tags": "ready", "n": "ready"}
    assert store.matching(compile_filter({"tags": "a"})).tolist() == expected
    assert not index_faults(store)


def test_one_opening_goes_on_where_another_stopped(store, tmp_path, monkeypatch):
    monkeypatch.setattr(selection, "STEP_ROWS", 500)
    with store.connections.writing() as db:
        selection.choose_field(db, "n")
        selection.index_step(db)
    scanned = all_rows(store)
    other = Store(tmp_path / "documents.db")
    other._indexes._start()
    other._indexes.wait()
    other.close()
    assert states(store) == {"n": "ready"}
    assert all_rows(store) == scanned


def test_closing_in_the_middle_of_a_build_is_quiet(store, monkeypatch):
    monkeypatch.setattr(selection, "STEP_ROWS", 1)
    with store.connections.writing() as db:
        selection.choose_field(db, "n")
    store._indexes._start()
    store.close()
    assert not store._indexes._worker.is_alive()


def test_only_so_many_fields_have_indexes_and_the_idle_make_room(store, monkeypatch):
    monkeypatch.setattr(selection, "MAX_FIELDS", 2)
    index_fields(store, ["n", "tags"])
    with store.connections.writing() as db:
        assert not selection.choose_field(db, "word")
        assert selection.choose_field(db, "n")
    scanned = all_rows(store)
    age(store, selection.day(ago=1))
    with store.connections.writing() as db:
        selection.touch_fields(db, {"n"})
    index_fields(store, ["word"])
    assert states(store) == {"n": "ready", "word": "ready"}
    assert all_rows(store) == scanned
    assert not index_faults(store)
    left = store._read().execute("SELECT count(DISTINCT field) FROM field_values").fetchone()
    assert left[0] == 2


def test_an_index_in_use_stays_and_an_idle_one_goes(store):
    index_fields(store, ["n", "tags"])
    age(store)
    store.matching(compile_filter({"n": 3}))
    store._indexes.wait()
    assert states(store) == {"n": "ready"}


def test_an_index_that_is_being_dropped_can_be_chosen_again(store, monkeypatch):
    monkeypatch.setattr(selection, "STEP_ROWS", 500)
    index_fields(store, ["n"])
    with store.connections.writing() as db:
        selection.drop_indexes(db, {"n"})
        selection.index_step(db)
    store.write([entry("d3", payload={"n": 77}), entry("new", payload={"n": 77})])
    index_fields(store, ["n"])
    assert states(store) == {"n": "ready"}
    assert len(store.matching(compile_filter({"n": 77}))) == 2
    assert not index_faults(store)


def test_dropping_an_index_goes_on_where_it_was(store, monkeypatch):
    monkeypatch.setattr(selection, "STEP_ROWS", 500)
    index_fields(store, ["n"])
    with store.connections.writing() as db:
        selection.drop_indexes(db, {"n"})
        selection.index_step(db)
    age(store)
    with store.connections.writing() as db:
        selection.touch_fields(db, set())
        selection.drop_indexes(db, {"n"})
        assert db.execute("SELECT built FROM indexed_fields").fetchone()[0] > 0


def test_a_field_that_gets_no_index_is_not_tried_again_that_day(tmp_path, monkeypatch):
    monkeypatch.setattr(selection, "COUNTED_SECONDS", 0.0)
    monkeypatch.setattr(selection, "BUILD_AFTER_SECONDS", 0.0)
    tried, is_short = [], selection.is_short
    monkeypatch.setattr(
        selection, "is_short", lambda db, name: tried.append(name) or is_short(db, name)
    )
    store = fresh_store(tmp_path / "documents.db")
    store.write([entry("a", payload={"one": "x" * 300, "two": "x" * 300})])
    for number, name in enumerate(["one", "two", "one", "two"]):
        store.count(compile_filter({name: str(number)}))
        store._indexes.wait()
    assert tried == ["one", "two"]
    store.close()


def test_long_texts_get_no_index(tmp_path):
    store = fresh_store(tmp_path / "documents.db")
    store.write([entry("a", payload={"short": "x", "long": "x" * 300})])
    db = store._read()
    short = [name for name in ("short", "long", "nowhere") if selection.is_short(db, name)]
    assert short == ["short"]
    store.close()


def test_where_nothing_can_be_written_filters_go_on(store, monkeypatch, caplog):
    monkeypatch.setattr(selection, "COUNTED_SECONDS", 0.0)
    monkeypatch.setattr(selection, "BUILD_AFTER_SECONDS", 0.0)
    store.connections._writer.execute("PRAGMA query_only = ON")
    for _ in range(3):
        assert len(store.matching(compile_filter({"n": 3})))
        store._selection._change = -1
        store._indexes.wait()
    assert caplog.text.count("stay as they are") == 1


def test_results_are_kept_until_a_document_changes(store, monkeypatch):
    reads = []
    read = store._selection.read
    monkeypatch.setattr(store._selection, "read", lambda *args: reads.append(1) or read(*args))
    one = store.matching(compile_filter({"n": {"gte": 2, "lt": 4}, "word": "x"}))
    same = store.matching(compile_filter({"word": "x", "n": {"lt": 4, "gte": 2}}))
    assert (len(reads), one is same) == (1, True)
    with pytest.raises(ValueError, match="read-only"):
        one[0] = 7
    store.write([entry("new", payload={"n": 3, "word": "x"})])
    assert len(store.matching(compile_filter({"n": {"gte": 2, "lt": 4}, "word": "x"}))) == (
        len(one) + 1
    )


def test_threads_that_read_write_and_index_agree(store, monkeypatch):
    """`n` and `copy` are always equal: whatever the state, filters on either find the same."""
    monkeypatch.setattr(selection, "STEP_ROWS", 50)
    store.write([entry(f"t{at}", payload={"p": at % 5, "copy": at % 5}) for at in range(300)])
    with store.connections.writing() as db:
        selection.choose_field(db, "p")
    done, wrong = threading.Event(), []

    def read() -> None:
        while not done.is_set():
            with store.connections.reading():
                one, other = (
                    store.matching(compile_filter({name: {"in": [1, 2]}})) for name in ("p", "copy")
                )
            if not np.array_equal(one, other):
                wrong.append((one, other))

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    store._indexes._start()
    for at in range(60):
        changed = [entry(f"t{at * 7 % 400}", payload={"p": at % 3, "copy": at % 3})]
        store.write(changed)
        store.delete([f"t{at * 11 % 300}"])
    store._indexes.wait()
    done.set()
    for reader in readers:
        reader.join()
    assert not wrong
    assert states(store) == {"p": "ready"}
    assert not index_faults(store)


def test_deleting_by_filter_takes_the_matching_and_no_other(store):
    index_fields(store, ["n"])
    before = store.counts()[0]
    doomed = store.count(compile_filter({"n": 3, "word": "x"}))
    assert store.delete_matching(compile_filter({"n": 3, "word": "x"})) == doomed > 0
    assert store.counts()[0] == before - doomed
    assert store.count(compile_filter({"n": 3, "word": "x"})) == 0
    assert not index_faults(store)


def test_faults_are_found_and_mended_by_dropping(store):
    index_fields(store, ["n"])
    with store.connections.writing() as db:
        db.execute("DELETE FROM field_values WHERE row IN (5, 6)")
        db.execute("INSERT INTO field_values SELECT field, 2, 77, 8 FROM field_values LIMIT 1")
    assert index_faults(store) == {"n": 3}
    drop_indexes(store, ["n"])
    finish_indexes(store)
    assert not index_faults(store)


def test_refusals_are_remembered(store, monkeypatch):
    monkeypatch.setattr(selection, "MAX_FIELDS", 1)
    index_fields(store, ["tags"])
    fields = FieldIndexes(store.connections)
    fields.scanned(["n"], 10.0)
    fields.wait()
    first = fields._worker
    fields.scanned(["n"], 10.0)
    assert fields._worker is first
    fields.close()
