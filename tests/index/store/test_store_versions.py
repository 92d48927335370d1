"""Projection versions in the store: what belongs to one, activation and rollback, migration."""

from __future__ import annotations

import json
import sqlite3
import threading

import numpy as np
import pytest
from sqlite_utils import Database

from attend.core.errors import Conflict, InvalidRequest, UnknownProjection
from attend.core.settings import Settings
from attend.core.types import Document
from attend.projection import identity
from attend.store import Entry, NewExample, Question
from attend.store.database import Store
from attend.store.migrations import migrations
from attend.write.ingest import value_hash
from tests.index.helpers import entry, fresh_store, integrity, vector_data


@pytest.fixture
def store(tmp_path):
    opened = fresh_store(tmp_path / "documents.db")
    yield opened
    opened.close()


def add(store, **rest) -> int:
    return store.add_projection("given", b"weights", "print", {"n": 1}, **rest)


def keys_of(store, id) -> list[int]:
    row = store.find([id])[id].row
    with store.all_keys() as (_, batches):
        return [
            key
            for batch in batches
            for key, document in zip(batch.ids.tolist(), batch.documents.tolist(), strict=True)
            if document == row
        ]


def offsets_of(store, version) -> dict[int, list[float]]:
    keys, deltas = store.version(version).offsets
    assert (np.diff(keys) > 0).all()
    return dict(zip(keys.tolist(), deltas.tolist(), strict=True))


# -- what belongs to a version -------------------------------------------------------------------


def test_a_version_is_read_as_it_was_stored(store):
    store.write([entry("a", [(1, 0), (0, 1)]), entry("b")])
    keys = np.array([*keys_of(store, "b"), *keys_of(store, "a")])
    deltas = np.array([[0.5, -1], [2, 3], [4, 1e-9]])
    tuning, report = {"scale": [20.0], "threshold": None}, {"before": {"ndcg@10": 0.6}}
    version = add(store, tuning=tuning, report=report, offsets=(keys, deltas))
    found = store.version(version)
    assert (found.weights, found.tuning) == (b"weights", tuning)
    assert found.offsets[1].dtype == np.float32
    expected = zip(keys.tolist(), np.float32(deltas).tolist(), strict=True)
    assert offsets_of(store, version) == dict(expected)
    listed = store.projections()[-1]
    assert (listed.version, listed.kind, listed.fingerprint) == (version, "given", "print")
    assert (listed.tuning, listed.report, listed.note) == (tuning, report, {"n": 1})


def test_a_version_without_all_that_has_empty_parts(store):
    version = add(store)
    found = store.version(version)
    assert found.tuning == {}
    assert [part.shape for part in found.offsets] == [(0,), (0, 0)]
    assert store.projections()[-1].report == {}
    with pytest.raises(UnknownProjection, match=r"no projection 9 here; there are 1, 2\."):
        store.version(9)


@pytest.mark.parametrize(
    "deltas", [np.zeros((1, 3)), np.zeros((2, 2)), np.zeros(2), np.array([[0, np.nan]])]
)
def test_offsets_that_do_not_fit_leave_no_version_behind(store, deltas):
    store.write([entry("a")])
    before = store.state()
    with pytest.raises(InvalidRequest, match="one finite vector of 2 dimensions for each key"):
        add(store, offsets=(np.array(keys_of(store, "a")), deltas), activate=True)
    assert len(store.projections()) == 1
    assert store.state() == before


def test_numbers_that_json_cannot_say_leave_no_version_behind(store):
    with pytest.raises(ValueError, match="JSON"):
        add(store, tuning={"scale": float("nan")}, activate=True)
    assert (len(store.projections()), store.state().projection) == (1, 1)


def test_offsets_go_with_their_keys_and_only_with_them(store):
    store.write([entry("a"), entry("b", value=1), entry("c")])
    keys = [key for id in "abc" for key in keys_of(store, id)]
    one, two = (add(store, offsets=(np.array(keys), np.full((3, 2), n))) for n in (1.0, 2.0))
    store.write([entry("a", [(0, 1)])])  # other keys
    store.delete(["c"])
    store.revise("b", lambda stored: stored._replace(value=2), value_hash)
    kept = Entry(Document("b", value=3), store.hashes(["b"])["b"], None)
    store.write([kept])
    assert offsets_of(store, one) == {keys[1]: [1, 1]}
    assert offsets_of(store, two) == {keys[1]: [2, 2]}


def test_offsets_of_keys_that_went_meanwhile_are_left_out(store):
    store.write([entry("a"), entry("b")])
    keys = np.array([*keys_of(store, "a"), *keys_of(store, "b"), 10**6])
    store.delete(["a"])
    version = add(store, offsets=(keys, np.ones((3, 2))))
    assert offsets_of(store, version) == {keys[1]: [1, 1]}


# -- activation and rollback -----------------------------------------------------------------------


def active(store) -> int:
    (version,) = [each.version for each in store.projections() if each.active]
    assert version == store.state().projection
    return version


def test_rollback_undoes_each_activation_in_turn(store):
    add(store), add(store)
    store.activate_projection(2)
    store.activate_projection(3)
    assert [each.parent for each in store.projections()] == [None, 1, 2]
    change = store.state().change
    for expected in (2, 1):
        assert store.rollback() == expected
        assert active(store) == expected
    assert store.state().change == change + 2
    with pytest.raises(
        Conflict, match=r"Projection 1 is active for search, and no version .* There are 1, 2, 3\."
    ):
        store.rollback()
    assert (active(store), store.state().change) == (1, change + 2)
    store.activate_projection(3)
    assert store.rollback() == 1


def test_a_version_is_stored_and_activated_in_one_step(store):
    change = store.state().change
    assert add(store, activate=True) == active(store) == 2
    assert store.state().change == change + 1
    assert store.rollback() == 1


def test_activating_what_is_active_is_nothing_to_undo(store):
    add(store, activate=True)
    store.activate_projection(2)
    assert store.rollback() == 1
    with pytest.raises(Conflict):
        store.rollback()


def test_going_to_and_fro_by_number_is_undone_and_comes_to_an_end(store):
    add(store)
    for version in (2, 1):
        store.activate_projection(version)
    assert [store.rollback(), store.rollback()] == [2, 1]
    with pytest.raises(Conflict):
        store.rollback()


def test_rollback_goes_back_all_the_way_whatever_came_twice(store):
    add(store), add(store)
    history = [1, 2, 3, 2, 1, 3, 2]
    for version in history[1:]:
        store.activate_projection(version)
    while len(history) > 1:
        (answers,) = [each for each in store.projections() if each.active]
        assert (answers.version, answers.parent) == (history.pop(), history[-1])
        assert store.rollback() == active(store) == history[-1]
    assert [each.parent for each in store.projections()] == [None] * 3
    with pytest.raises(Conflict, match="no version was active before it"):
        store.rollback()


def test_a_version_is_activated_only_in_place_of_the_expected_one(store):
    add(store), add(store)
    store.activate_projection(2, expected=1)
    before = store.state()
    with pytest.raises(Conflict, match=r"Projection 2 is active by now, where 1 was expected") as e:
        store.activate_projection(3, expected=1)
    assert e.value.field == "projection"
    assert store.state() == before
    with pytest.raises(Conflict):
        store.activate_projection(2, expected=1)
    store.activate_projection(2, expected=2)  # nothing to do, and nothing to undo
    store.activate_projection(3, expected=2)
    assert [store.rollback(), store.rollback()] == [2, 1]


def test_of_two_that_take_the_place_of_one_version_the_later_is_told(tmp_path):
    collection = vector_data(tmp_path).create(dimension=2)
    two, three = (collection.add_projection(identity(2, normalize=True)) for _ in range(2))
    collection.activate(two, expected=1)
    with pytest.raises(Conflict, match="Projection 2 is active by now, where 1 was expected"):
        collection.activate(three, 1)
    assert collection.search([1, 0]).projection == two


def test_an_unknown_version_changes_nothing(store):
    before = store.state()
    with pytest.raises(UnknownProjection):
        store.activate_projection(2)
    assert store.state() == before


# -- migration -------------------------------------------------------------------------------------


def first_schema(path, documents) -> None:
    """A database as it was before examples, with keys [n, 1] and a projection."""
    connection = sqlite3.connect(path)
    db = Database(connection, execute_plugins=False)
    migrations.apply(db, stop_before="m002_lexical_examples_versions")
    settings = {**Settings(encoder=None, dimension=2).stored(), "uuid": "u", "published": []}
    settings |= {"projection": 1, "change": len(documents)}
    rows = [(name, json.dumps(value)) for name, value in settings.items()]
    connection.executemany("INSERT INTO settings VALUES (?, ?)", rows)
    connection.execute("INSERT INTO projections VALUES (1, 'identity', x'01', 'f', 'now', '{}')")
    for at, (id, fields) in enumerate(documents.items()):
        row = (id, json.dumps(fields), None, "{}", b"k", b"v")
        connection.execute("INSERT INTO documents VALUES (NULL, ?, ?, ?, ?, ?, ?)", row)
        embedding = np.array([at, 1], dtype=np.float32).tobytes()
        connection.execute(
            "INSERT INTO keys VALUES (NULL, last_insert_rowid(), 't', 0, 0, ?)", [embedding]
        )
    connection.commit()
    connection.close()


DOCUMENTS = {
    "a": {"t": "old text"},
    "b": {"t": "other\0words", "u": "too"},
    "c": {},
    "d": {"t": "d"},
}


def test_a_database_of_before_is_brought_up_to_date(tmp_path):
    path = tmp_path / "documents.db"
    first_schema(path, DOCUMENTS)
    store = Store(path)
    rows = {id: document.row for id, document in store.find(list(DOCUMENTS)).items()}
    assert store.counts() == (4, 4)
    for query, id in (("old", "a"), ("words", "b"), ("too", "b"), ("d", "d")):
        assert store.lexical(query).rows.tolist() == [rows[id]]
    with store.all_keys(examples=True) as (state, batches):
        (batch,) = batches
    assert batch.vectors.tolist() == [[n, 1] for n in range(4)]
    assert (batch.examples, state.change) == (None, 4)
    assert store.version(1)[:2] == (b"\1", {})
    store.write([entry("a", fields={"t": "new"})])
    store.delete(["b"])
    assert [store.lexical(query).rows.size for query in ("old", "words", "new")] == [0, 0, 1]
    store.add_examples([Question("q", np.ones(2, np.float32))], [NewExample(0, "d", 1)])
    assert store.example_count() == 1
    store.activate_projection(add(store))
    assert store.rollback() == 1
    assert integrity(store) == []
    store.close()


@pytest.mark.parametrize(
    ("parents", "undone"),
    [
        ({}, []),
        ({3: 2, 2: 1}, [2, 1]),
        ({3: 2, 2: 3}, [2, 3]),  # 2, 3, 2, 3: the first activations were forgotten
        ({3: 1, 1: 2, 2: 1}, [1, 2, 1]),
        ({2: 1}, []),  # 3 is active, and came first or was undone
    ],
)
def test_versions_that_knew_one_parent_each_are_rolled_back_as_before(tmp_path, parents, undone):
    path = tmp_path / "documents.db"
    connection = sqlite3.connect(path)
    migrations.apply(Database(connection, execute_plugins=False), stop_before="m004_activations")
    settings = {**Settings(encoder=None, dimension=2).stored(), "uuid": "u", "published": []}
    settings |= {"projection": 3, "change": 0}
    rows = [(name, json.dumps(value)) for name, value in settings.items()]
    connection.executemany("INSERT INTO settings VALUES (?, ?)", rows)
    connection.executemany(
        "INSERT INTO projections (kind, weights, fingerprint, created, note, parent) "
        "VALUES ('identity', x'01', 'f', 'now', '{}', ?)",
        [(parents.get(version),) for version in (1, 2, 3)],
    )
    connection.commit()
    connection.close()
    store = Store(path)
    assert [each.parent for each in store.projections()][2] == parents.get(3)
    assert [store.rollback() for _ in undone] == undone
    with pytest.raises(Conflict):
        store.rollback()
    assert integrity(store) == []
    store.close()


def test_several_that_open_a_database_of_before_at_once_all_get_it(tmp_path):
    path = tmp_path / "documents.db"
    first_schema(path, DOCUMENTS)
    opened, failed = [], []

    def open_store():
        try:
            opened.append(Store(path))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=open_store) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert [store.lexical("old").rows.size for store in opened] == [1] * 4
    for store in opened:
        store.close()


def test_a_migration_that_fails_leaves_the_database_of_before(tmp_path):
    path = tmp_path / "documents.db"
    first_schema(path, DOCUMENTS)
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE offsets (another)")
    with pytest.raises(sqlite3.OperationalError, match="offsets already exists"):
        Store(path)
    tables = {name for (name,) in other.execute("SELECT name FROM sqlite_master")}
    assert {"documents", "keys"} <= tables
    assert tables.isdisjoint({"lexical", "lexical_data", "examples", "questions"})
    other.execute("DROP TABLE offsets")
    other.execute("""UPDATE documents SET fields = '{"t": "mended"}' WHERE id = 'd'""")
    other.commit()
    other.close()
    store = Store(path)
    assert store.lexical("mended").rows.size == 1
    store.close()
