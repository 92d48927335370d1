"""Views: every committed write is in the next search, whoever wrote it."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from attend.core.errors import UnknownProjection
from attend.engines import snapshots as views_module
from attend.projection import given
from attend.store import database
from tests import warm
from tests.index.helpers import several_keys, vector_data


@pytest.fixture
def collection(tmp_path):
    data = vector_data(tmp_path)
    yield data.create("default", dimension=2)
    data.close()


def found(collection, **options) -> list[str]:
    return sorted(hit.id for hit in collection.search([1, 1], **options).hits)


def test_what_was_written_is_in_the_next_search(collection):
    assert found(collection) == []
    collection.upsert([{"id": "a", "vector": [1, 0]}, {"id": "b", "vector": [0, 1]}])
    assert found(collection) == ["a", "b"]
    collection.publish()
    collection.delete(["a"])
    assert found(collection) == ["b"]
    collection.upsert([{"id": "a", "vector": [3, 0]}, {"id": "b", "vector": [9, 9]}])
    assert [(h.id, h.score) for h in collection.search([1, 1], scale=1).hits] == [
        ("b", 18.0),
        ("a", 3.0),
    ]


ELSEWHERE = """
import sys
from tests.index.helpers import vector_data
collection = vector_data(sys.argv[1]).collection()
collection.delete(["a"])
collection.upsert([{"id": "new", "vector": [5, 5]}])
if sys.argv[2] == "publish":
    collection.publish()
"""


@pytest.mark.parametrize("then", ["publish", "no more"])
def test_what_another_process_wrote_is_in_the_next_search(collection, tmp_path, then):
    collection.upsert([{"id": "a", "vector": [1, 0]}, {"id": "b", "vector": [0, 1]}])
    assert found(collection) == ["a", "b"]
    warm.run("-c", ELSEWHERE, tmp_path, then).check_returncode()
    assert found(collection) == ["b", "new"]
    assert found(vector_data(tmp_path).collection()) == ["b", "new"]


def test_a_projection_activated_elsewhere_answers_the_next_search(collection, tmp_path):
    collection.upsert([{"id": "a", "vector": [1, 0]}])
    assert collection.search([1, 0], scale=1).hits[0].score == 1.0
    other = vector_data(tmp_path).collection()
    version = other.add_projection(given(np.diag([3.0, 1]), None))
    assert collection.search([1, 0]).projection == 1
    other.activate(version)
    answer = collection.search([1, 0], scale=1)
    assert (answer.projection, answer.hits[0].score) == (version, 3.0)
    assert collection.search([1, 0], scale=1, projection=1).hits[0].score == 1.0
    with pytest.raises(UnknownProjection, match="no projection 9 here; there are 1, 2"):
        collection.search([1, 0], projection=9)


def test_writes_during_a_version_are_in_all_versions(collection):
    turned = collection.add_projection(
        given(None, np.array([[0.0, 1], [1, 0]]), normalize_keys=True)
    )
    collection.upsert([{"id": "a", "vector": [1, 0]}])
    assert found(collection, projection=turned) == ["a"]
    collection.publish()
    collection.upsert([{"id": "b", "vector": [0, 2]}])
    collection.delete(["a"])
    for version in (1, turned, None):
        assert found(collection, projection=version) == ["b"]
    collection.activate(turned)
    collection.publish()
    assert found(collection) == ["b"]
    answer = collection.search([2, 0], scale=1)
    assert answer.hits[0].score == pytest.approx(2.0)  # (2, 0) against (0, 2) turned, length one


def test_an_empty_index_of_a_narrower_projection_grows(collection, tmp_path):
    narrow = collection.add_projection(given([[1.0, 0]], [[1.0, 1]], normalize_keys=True))
    collection.publish()
    collection.activate(narrow)
    collection.publish()
    collection.upsert([{"id": "a", "vector": [1, 3]}])
    for opened in (collection, vector_data(tmp_path).collection()):
        assert opened.search([1, 1]).attended == 1


def test_few_versions_are_held_at_once(collection):
    collection.upsert([{"id": "a", "vector": [1, 0]}])
    versions = [collection.add_projection(given(np.eye(2) * n, None)) for n in range(1, 7)]
    for version in (*versions, *reversed(versions)):
        score = collection.search([1, 0], projection=version, scale=1).hits[0].score
        assert score == version - 1
        assert len(collection.views._slots) <= views_module.KEPT_VIEWS


def test_many_fresh_keys_are_merged_into_the_index(collection, monkeypatch, tmp_path):
    monkeypatch.setattr(views_module, "MERGE_KEYS", 40)
    for at in range(0, 100, 10):
        collection.upsert([several_keys(f"d{at + n}", [[1, at + n]]) for n in range(10)])
        info = collection.info()
        assert (info.index["keys"] + info.index["fresh"], info.documents) == (at + 10, at + 10)
        assert info.index["fresh"] <= 50
    assert info.index["published"] == 2
    assert len(found(collection, k=100)) == 100
    assert len(found(vector_data(tmp_path).collection(), k=100)) == 100


def test_many_keys_that_were_never_published_are_published_on_opening(
    collection, monkeypatch, tmp_path
):
    collection.write([several_keys(f"d{n}", [[1, n]]) for n in range(60)])
    monkeypatch.setattr(views_module, "MERGE_KEYS", 40)
    opened = vector_data(tmp_path).collection()
    assert len(found(opened, k=60)) == 60
    assert opened.info().index == {
        "type": "flat", "recall": 1.0, "why": "fewer than 20000 keys", "bytes_per_key": 8,
        "exact": True, "published": 1, "keys": 60, "fresh": 0,
    }  # fmt: skip


def test_searches_in_many_threads_see_whole_batches(collection, monkeypatch):
    """Each batch moves all documents together: no search may find two places at once."""
    monkeypatch.setattr(views_module, "MERGE_KEYS", 25)
    ids = [f"d{n}" for n in range(8)]

    def move(to: int) -> None:
        collection.upsert([{"id": id, "vector": [to, 0], "value": to} for id in ids])

    move(1)
    stop, seen, failed = threading.Event(), set(), []

    def search():
        try:
            while not stop.is_set():
                hits = collection.search([1, 0], scale=1).hits
                assert sorted(hit.id for hit in hits) == ids
                scores = {hit.score for hit in hits}
                assert len(scores) == 1
                seen.update(scores)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=search) for _ in range(4)]
    for thread in threads:
        thread.start()
    for to in range(2, 60):
        move(to)
    stop.set()
    for thread in threads:
        thread.join()
    assert failed == []
    assert len(seen) > 1
    assert collection.search([1, 0], scale=1).hits[0].score == 59.0


def test_a_search_keeps_the_view_that_it_began_with(collection):
    collection.upsert([{"id": "a", "vector": [1, 0]}])
    view = collection.views.current()
    collection.upsert([{"id": "b", "vector": [0, 1]}])
    collection.delete(["a"])
    collection.publish()
    assert view.keys.documents == 1
    assert [len(block) for block in view.keys.blocks(None)] == [1]
    assert collection.views.current().change > view.change


def test_masked_keys_are_merged_away_when_they_outnumber_a_share_of_the_living(
    collection, monkeypatch
):
    monkeypatch.setattr(views_module, "MERGE_KEYS", 10)
    collection.upsert([several_keys(f"d{n}", [[1, n], [n, 1]]) for n in range(60)])
    collection.publish()
    first = collection.views.current().keys.generation

    def after_deleting(ids) -> tuple[int, int]:
        collection.delete([f"d{n}" for n in ids])
        collection.merge_if_due()
        keys = collection.views.current().keys
        assert len(found(collection, k=100)) == keys.documents
        return keys.generation - first, keys.keys

    assert after_deleting(range(20)) == (0, 120)  # 40 of 120 keys: half of those that live
    assert after_deleting([20]) == (1, 78)
    assert after_deleting(range(21, 60)) == (2, 0)


def test_few_masked_keys_are_borne(collection, monkeypatch):
    monkeypatch.setattr(views_module, "MERGE_KEYS", 10)
    collection.upsert([several_keys(f"d{n}", [[1, n]]) for n in range(11)])
    collection.publish()
    generation = collection.views.current().keys.generation
    for n in range(10):
        collection.delete([f"d{n}"])
        collection.merge_if_due()
    assert collection.views.current().keys.generation == generation
    assert found(collection) == ["d10"]


def removals(collection) -> int:
    return (
        collection.store.connections.reader().execute("SELECT count(*) FROM removals").fetchone()[0]
    )


def test_removals_are_forgotten_once_an_index_is_without_them(collection, tmp_path, monkeypatch):
    """Who is behind them opens anew: another process, and an older index of another version."""
    monkeypatch.setattr(database, "REMEMBERED_REMOVALS", 10)
    vectors = {f"d{at}": [1, at] for at in range(40)}
    collection.upsert([{"id": id, "vector": vector} for id, vector in vectors.items()])
    swap = np.array([[0.0, 1], [1, 0]])
    turned = collection.add_projection(given(swap, swap, normalize_keys=True))
    collection.activate(turned)
    collection.publish()
    collection.rollback()
    other = vector_data(tmp_path).collection()
    everything = {"k": 40, "attend": "all"}
    assert found(other, **everything) == found(collection, **everything) == sorted(vectors)

    collection.delete([f"d{at}" for at in range(5)])
    collection.publish()
    assert removals(collection) == 5  # few are told of still
    collection.delete([f"d{at}" for at in range(5, 20)])
    collection.upsert([{"id": "d30", "vector": [7, 7]}])
    collection.publish()
    assert removals(collection) == 0
    collection.delete(["d20"])
    left = sorted([f"d{at}" for at in range(21, 40)])
    for each in (collection, other, vector_data(tmp_path).collection()):
        for version in (None, turned):
            assert found(each, projection=version, **everything) == left
        best = each.search([7, 7], k=40, attend="all", scale=1.0).hits
        assert {hit.id: hit.score for hit in best}["d30"] == 98.0
    assert removals(collection) == 1


def test_every_process_recommends_by_the_same_mean_whenever_it_first_looked(tmp_path):
    rng = np.random.default_rng(0)

    def vectors(first: int, count: int) -> list[dict]:
        drawn = rng.normal(size=(count, 4)) + first / 50
        return [{"id": f"d{first + at}", "vector": vector} for at, vector in enumerate(drawn)]

    early = vector_data(tmp_path).create("default", dimension=4)

    def agreed() -> list[float]:
        late = vector_data(tmp_path).collection()
        scores = [
            [(hit.id, hit.score) for hit in opened.recommend(history=["d1", "d3"], k=9).hits]
            for opened in (early, late)
        ]
        assert scores[0] == scores[1]
        np.testing.assert_allclose(early.views.mean(), late.views.mean(), rtol=1e-6)
        return early.views.mean().tolist()

    early.upsert(vectors(0, 60))
    means = [agreed()]
    early.upsert(vectors(60, 20))  # a third more: few enough to go on with a mean as it was
    means.append(agreed())
    vector_data(tmp_path).collection().publish()
    means.append(agreed())
    early.upsert(vectors(80, 30))
    early.delete([f"d{at}" for at in range(10, 20)])
    assert agreed() == means[-1]  # most keys are published, and the mean is theirs
    early.upsert(vectors(110, 90))
    means.append(agreed())
    early.publish()
    agreed()
    assert len(set(map(tuple, means))) == 3
