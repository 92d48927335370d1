"""Interactions in the store: what is kept, replaced and goes with what."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from attend.core.errors import InvalidRequest, UnknownDocument
from attend.core.liking import Liking
from attend.core.types import Document
from attend.store import Entry, Interaction
from attend.store.database import Store
from tests.index.helpers import entry, fresh_store, integrity


@pytest.fixture
def store(tmp_path):
    opened = fresh_store(tmp_path / "documents.db")
    opened.write([entry(id) for id in "abc"])
    yield opened
    opened.close()


def rows_of(store, *ids) -> list[int]:
    rows = store.rows_of(ids)
    return [rows[id] for id in ids]


def test_interactions_are_read_as_arrays_by_user_and_row(store):
    given = [
        Interaction("zoe", "c", 4.5, 100.0),
        Interaction("ann", "b", 2),
        Interaction("zoe", "a", "liked", 50.0),
        Interaction("ann", "a", None, 7.0),
    ]
    assert store.add_interactions(given) == (4, 0)
    found = store.interactions()
    a, b, c = rows_of(store, "a", "b", "c")
    assert found.users == ["zoe", "ann"]
    assert found.user_indices.tolist() == [0, 0, 1, 1]
    assert found.rows.tolist() == [a, c, a, b]
    np.testing.assert_array_equal(found.values, [np.nan, 4.5, np.nan, 2])
    np.testing.assert_array_equal(found.times, [50, 100, 7, np.nan])
    assert store.interaction_counts() == (4, 2)
    rows, counts = store.popularity()
    assert dict(zip(rows.tolist(), counts.tolist(), strict=True)) == {a: 2, b: 1, c: 1}


def test_what_a_user_met_comes_with_values_of_any_type_the_latest_last(store):
    values = [{"stars": [1, 2]}, True, 2**70]
    for id, time, value in zip("abc", (9.0, None, 3.0), values, strict=True):
        store.add_interactions([Interaction("u\0ser", id, value, time)])
    met = store.interactions_of("u\0ser")
    assert met.documents == ["b", "c", "a"]
    assert met.values == [True, 2**70, {"stars": [1, 2]}]
    np.testing.assert_array_equal(met.times, [np.nan, 3, 9])
    assert store.interactions_of("u").documents == []


def test_what_is_said_again_replaces_and_forgetting_is_one_step(store):
    store.add_interactions([Interaction("u", "a", 1.0), Interaction("u", "b", 2.0)])
    assert store.add_interactions([Interaction("u", "a", 5.0), Interaction("v", "a")]) == (1, 1)
    assert store.interactions_of("u").values == [5.0, 2.0]
    with pytest.raises(UnknownDocument, match="'gone', and no document"):
        store.add_interactions([Interaction("w", "gone")], forget=True)
    assert store.interaction_counts() == (3, 2)
    assert store.add_interactions([Interaction("w", "c")], forget=True) == (1, 0)
    assert store.interactions().users == ["w"]


def test_what_is_said_again_keeps_its_id_though_all_else_is_forgotten(store):
    given = [Interaction("u", "a", 1.0), Interaction("u", "b", 2.0), Interaction("v", "a")]
    store.add_interactions(given)
    ids = store.interactions().ids
    again = [Interaction("u", "b", 3.0), Interaction("v", "a"), Interaction("w", "c")]
    assert store.add_interactions(again, forget=True) == (3, 0)
    found = store.interactions()
    assert found.ids[:2].tolist() == ids[1:].tolist()
    assert found.ids[2] > ids.max()
    np.testing.assert_array_equal(found.values, [3, np.nan, np.nan])
    store.add_interactions([Interaction("w", "b")], forget=True)
    assert store.interactions_of("w").documents == ["b"]
    assert store.interaction_counts() == (1, 1)


def test_reading_many_takes_little_more_memory_than_what_is_read(store):
    store.write([entry(f"d{at}") for at in range(200)])
    many = [Interaction(f"u{user}", f"d{at}", 1.5) for user in range(200) for at in range(200)]
    store.add_interactions(many)
    tracemalloc.start()
    try:
        found = store.interactions()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(found.ids) == len(many)
    assert peak < 200 * len(many)


def test_a_users_page_reads_no_others(store):
    store.write([entry(f"d{at}") for at in range(100)])
    everybody = [Interaction(f"u{user}", f"d{at}") for user in range(50) for at in range(100)]
    store.add_interactions(everybody)
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    reader = store.connections.reader().conn
    reader.set_progress_handler(count, 100)
    page, _ = store.interaction_page((0, 0), 1000, "u49")
    reader.set_progress_handler(None, 0)
    assert [each.document for each in page] == [f"d{at}" for at in range(100)]
    assert steps < 100


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (Interaction("", "a"), "user of 0 characters"),
        (Interaction("u" * 513, "a"), "user of 513 characters"),
        (Interaction("\ud800", "a"), "surrogate"),
        (Interaction("u", "a", float("nan")), "NaN or infinity"),
        (Interaction("u", "a", [1.0, float("inf")]), "NaN or infinity"),
        (Interaction("u", "a", 1.0, float("inf")), "seconds since 1970"),
    ],
)
def test_what_cannot_be_kept_leaves_nothing_behind(store, wrong, sentence):
    with pytest.raises(InvalidRequest, match=sentence):
        store.add_interactions([Interaction("u", "a"), wrong])
    assert store.interaction_counts() == (0, 0)


def test_interactions_go_with_their_document_and_outlive_its_text(store):
    store.add_interactions([Interaction("u", id) for id in "abc"] + [Interaction("v", "c")])
    store.write([entry("a", [(0, 1)])])  # another text
    store.write([Entry(Document("b", value=3), store.hashes(["b"])["b"], None)])
    store.delete(["c"])
    assert store.interactions_of("u").documents == ["a", "b"]
    assert store.interactions().users == ["u"]
    assert integrity(store) == []


@pytest.mark.parametrize(
    ("chosen", "left"),
    [
        ({"user": "u"}, [("v", "a")]),
        ({"documents": ["a", "gone"]}, [("u", "b")]),
        ({"user": "u", "documents": ["a"]}, [("u", "b"), ("v", "a")]),
        ({"user": "nobody"}, [("u", "a"), ("u", "b"), ("v", "a")]),
        ({}, []),
    ],
)
def test_deleting_takes_what_is_named_both_ways(store, chosen, left):
    given = [Interaction(*pair) for pair in (("u", "a"), ("u", "b"), ("v", "a"))]
    store.add_interactions(given)
    assert store.delete_interactions(**chosen) == 3 - len(left)
    page, _ = store.interaction_page((0, 0), 10)
    assert [each[:2] for each in page] == left


def test_pages_follow_each_other_whatever_is_deleted_between(store):
    given = [Interaction(user, id, n) for n, user in enumerate("uvw") for id in "abc"]
    store.add_interactions(given)
    first, following = store.interaction_page((0, 0), 4)
    assert first == given[:4]
    store.delete_interactions("u")
    assert following is not None
    assert store.interaction_page(following, 10) == (given[4:], None)
    of_w = store.interaction_page((0, 0), 3, "w")
    assert of_w == (given[6:], None)


def test_likes_are_those_of_the_moment_of_the_interactions(store, monkeypatch):
    store.write([entry("a"), entry("b")])
    store.add_interactions([Interaction("ann", "a", 3.0), Interaction("ann", "b", 4.0)])
    store.add_interactions([], liking=Liking(4.0))
    other, liking = Store(store.path), store.liking

    def later():
        other.add_interactions([], liking=Liking(5.0))
        return liking()

    monkeypatch.setattr(store, "liking", later)
    assert store.interactions().liked.tolist() == [False, True]
    assert store.interactions().liked.tolist() == [False, False]
    other.close()
