"""Roles: versions that search, recommend and predict are active beside each other."""

from __future__ import annotations

import numpy as np
import pytest

from attend.collection.data import Data
from attend.collection.verify import verify
from attend.core.errors import Conflict, InvalidRequest, UnknownProjection
from attend.projection import Projection, identity
from tests.index.helpers import entry, fresh_store, no_encoder, vector_data


@pytest.fixture
def store(tmp_path):
    opened = fresh_store(tmp_path / "documents.db")
    yield opened
    opened.close()


def add(store, **rest) -> int:
    return store.add_projection("given", b"weights", "print", {"n": 1}, **rest)


def active(store) -> list[int]:
    state = store.state()
    return [state.projection, state.recommend, state.predict]


def test_each_role_has_an_active_version_and_a_history_of_its_own(store):
    search, first, second = add(store), *(add(store, role="recommend") for _ in range(2))
    predict = add(store, role="predict")
    assert active(store) == [1, 0, 0]
    for version in (first, search, second, predict):
        store.activate_projection(version)
    assert active(store) == [search, second, predict]
    assert [each.version for each in store.projections() if each.active] == active(store)
    assert store.active("recommend").parent == first
    assert store.rollback() == 1
    assert store.rollback("recommend") == first
    assert active(store) == [1, first, predict]
    assert store.rollback("recommend") == 0
    assert store.active("recommend") is None
    with pytest.raises(Conflict, match="The untrained version is active for recommend"):
        store.rollback("recommend")
    assert active(store) == [1, 0, predict]


def test_activation_expects_what_was_active_in_the_same_role(store):
    one, two = (add(store, role="recommend") for _ in range(2))
    with pytest.raises(Conflict, match=f"0 is active by now, where 1 was expected, so that {one}"):
        store.activate_projection(one, expected=1)
    store.activate_projection(one, expected=0)
    with pytest.raises(Conflict):
        store.activate_projection(two, expected=0)
    with pytest.raises(UnknownProjection, match="no projection 9"):
        store.version(9)


def test_terms_go_with_their_documents_and_their_texts(store):
    store.write([entry(id) for id in "abc"])
    rows = store.rows_of(["a", "b", "c"])
    at = np.array([*rows.values(), 10**6])
    bias, gate = np.arange(4.0)[:, None], np.arange(8.0).reshape(4, 2)
    version = add(store, role="recommend", terms={"bias": (at, bias), "gate": (at, gate)})
    store.write([entry("a", [(0, 1)])])  # another text
    store.delete(["c"])
    found = store.version(version)
    assert found.role == "recommend"
    assert {name: rows.tolist() for name, (rows, _) in found.terms.items()} == {
        "bias": [rows["b"]],
        "gate": [rows["b"]],
    }
    assert found.terms["gate"][1].tolist() == [[2, 3]]
    assert found.last_key == store.state().last_key == 4


def test_terms_of_a_text_that_changed_while_they_were_learned_are_not_stored(store):
    store.write([entry(id) for id in "abc"])
    rows, last = store.rows_of(["a", "b", "c"]), store.state().last_key
    store.write([entry("a", [(0, 1)]), entry("c", [])])  # another text, and none
    at, gate = np.array([*rows.values()]), np.ones((3, 1))
    version = add(store, role="recommend", terms={"gate": (at, gate)}, last_key=last)
    assert store.version(version).terms["gate"][0].tolist() == [rows["b"]]


@pytest.mark.parametrize("wrong", [np.zeros((2, 1)), np.zeros(1), np.array([[np.nan]])])
def test_terms_that_do_not_fit_leave_no_version_behind(store, wrong):
    store.write([entry("a")])
    with pytest.raises(InvalidRequest, match="send one finite vector for each"):
        add(store, terms={"bias": (np.array([1]), wrong)})
    assert len(store.projections()) == 1


# -- what answers ----------------------------------------------------------------------------------


@pytest.fixture
def collection(tmp_path):
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(30, 4)) + np.array([3, 0, 0, 0])
    data = vector_data(tmp_path / "data")
    made = data.create("default", dimension=4, normalize=True)
    made.upsert([{"id": f"d{at}", "vector": v.tolist()} for at, v in enumerate(vectors)])
    yield made
    data.close()


def embeddings(collection) -> np.ndarray:
    with collection.store.all_keys() as (_, batches):
        return np.concatenate([each.vectors for each in batches]).astype(np.float64)


def test_untrained_recommendations_meet_centred_queries(collection):
    view = collection.views.current(role="recommend")
    stored = embeddings(collection)
    assert view.version.number == 0
    heads, shift = view.version.projection.project(stored.astype(np.float32))
    expected = stored - stored.mean(axis=0)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    logits = heads[:, 0] @ stored.T + shift
    np.testing.assert_allclose(logits, expected @ (stored - stored.mean(axis=0)).T, atol=1e-5)
    # One memory of keys, where searching has them already.
    assert view.keys is collection.views.current().keys


def test_the_mean_is_that_of_the_published_keys_while_most_are_published(collection):
    def center() -> np.ndarray:
        return collection.views.current(role="recommend").version.projection.center

    def check_mean_of_all() -> None:
        np.testing.assert_allclose(center(), embeddings(collection).mean(axis=0), atol=1e-6)

    far = [{"id": f"e{at}", "vector": [0, 0, 0, 1]} for at in range(26)]
    check_mean_of_all()  # nothing is published
    collection.upsert(far[:1])
    check_mean_of_all()
    collection.publish()
    published = center()
    check_mean_of_all()
    collection.upsert(far[1:])
    collection.delete([f"d{at}" for at in range(5)])
    collection.upsert([{"id": "e0", "vector": [0, 0, 0, 1], "payload": {"same": "vector"}}])
    assert (center() == published).all()  # 26 published keys are left, and 25 are fresh
    collection.delete(["d5"])
    assert (center() == published).all()
    collection.delete(["d6"])
    check_mean_of_all()
    collection.publish()
    check_mean_of_all()


def test_where_searching_has_other_keys_the_untrained_version_keeps_the_embeddings(collection):
    moved = Projection("given", 4, np.ones(1), w_k=np.eye(4)[None] * 2, normalize_keys=True)
    collection.activate(collection.add_projection(moved))
    view = collection.views.current(role="recommend")
    held = np.concatenate([each.vectors for each in view.keys.blocks(None)])
    np.testing.assert_allclose(held, embeddings(collection))
    collection.upsert([{"id": "new", "vector": [0, 1, 0, 0]}])
    assert collection.views.current(role="recommend").keys.documents == 31


@pytest.mark.parametrize("trained", [False, True])
def test_many_fresh_keys_are_merged_into_what_recommends_too(collection, trained, monkeypatch):
    moved = Projection("given", 4, np.ones(1), w_k=np.eye(4)[None] * 2, normalize_keys=True)
    if trained:
        rows = np.sort([*collection.store.rows_of(["d1", "d2"]).values()])
        version = collection.store.add_projection(
            moved.kind,
            moved.to_bytes(),
            moved.fingerprint,
            {},
            terms={"gate": (rows, np.full((2, 1), 3.0))},
            role="recommend",
        )
        collection.activate(version)
    else:
        collection.activate(collection.add_projection(moved))
    collection.recommend(history=["d1"])
    monkeypatch.setattr("attend.engines.snapshots.MERGE_KEYS", 8)
    fresh = [{"id": f"e{at}", "vector": [1, 1, 1, at + 1]} for at in range(20)]
    collection.upsert([*fresh, {"id": "d1", "vector": [0, 0, 0, 1]}])  # another text
    view = collection.views.current(role="recommend")
    base, delta = view.keys.segments
    assert (base.living, delta.keys, view.keys.documents) == (50, 0, 50)
    assert "e3" in [hit.id for hit in collection.recommend(history=["d1"], k=49).hits]
    if trained:  # of which nothing is known any more
        rows = collection.store.rows_of(["d1", "d2"])
        assert view.version.gates(np.array([rows["d1"], rows["d2"]])).tolist() == [1, 3]


def test_a_version_recommends_once_it_is_active_and_searches_when_named(collection):
    trained = identity(4, normalize=True)
    version = collection.store.add_projection(
        trained.kind, trained.to_bytes(), trained.fingerprint, {}, role="recommend"
    )
    collection.activate(version)
    assert collection.views.current(role="recommend").version.number == version
    assert collection.search([1, 0, 0, 0]).projection == 1
    assert collection.search([1, 0, 0, 0], projection=version).projection == version
    assert verify(collection).problems == []
    assert collection.rollback("recommend") == 0
    assert collection.views.current(role="recommend").version.number == 0


def test_versions_that_predict_have_no_keys_to_search(collection):
    version = collection.store.add_projection("ratings", b"arrays", "print", {}, role="predict")
    collection.activate(version)
    assert collection.store.state().predict == version
    with pytest.raises(InvalidRequest, match=f"Version {version} predicts"):
        collection.search([1, 0, 0, 0], projection=version)


def test_an_empty_collection_recommends_nothing_without_failing(tmp_path):
    made = vector_data(tmp_path).create("empty", dimension=3)
    assert made.views.current(role="recommend").keys.documents == 0


def test_where_nothing_may_be_written_it_recommends_all_the_same(collection, tmp_path):
    found = collection.recommend(history=["d1", "d2"])
    opened = Data(tmp_path / "data", load_encoder=no_encoder, read_only=True)
    again = opened.collection("default").recommend(history=["d1", "d2"])
    assert again.hits == found.hits
    opened.close()
