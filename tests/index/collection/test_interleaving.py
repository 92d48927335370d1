"""Pages that are changed so that their use says more: swapped neighbours, drafted lists."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from attend import Collection, Data
from attend.collection.feedback import team_draft
from attend.core.errors import InvalidRequest, UnknownProjection
from attend.projection import Projection
from attend.store.searches import FILE, SearchEntry, SearchLog

DOCUMENTS = 12


@pytest.fixture
def collection(tmp_path: Path) -> Iterator[Collection]:
    """Two versions: 1 ranks by the first of two numbers, 2 by the second."""
    data = Data(tmp_path)
    made = data.create("points", dimension=2, normalize=False)
    rng = np.random.default_rng(1)
    made.upsert([{"id": str(n), "vector": rng.random(2).tolist()} for n in range(DOCUMENTS)])
    made.configure(log=True)
    weights = np.diag([1.0, 100.0])[None].astype(np.float32)
    made.add_projection(Projection("learned", 2, np.ones(1), w_q=weights))
    yield made
    data.close()


def entries(collection: Collection) -> list[SearchEntry]:
    assert collection.log is not None
    return collection.log.latest(10_000)


def listed(collection: Collection, version: int, k: int = 5) -> list[str]:
    return [hit.id for hit in collection.search([1.0, 0.05], k=k, projection=version).hits]


def test_swaps_exchange_every_pair_half_of_the_time_and_are_logged(collection: Collection) -> None:
    usual = listed(collection, 1)
    collection.configure(log_swaps=1.0)
    counts = Counter[tuple[int, bool]]()
    for _ in range(600):
        answer = collection.search([1.0, 0.05], k=5)
        ids = [hit.id for hit in answer.hits]
        pair = entries(collection)[0].pair
        assert pair is not None
        exchanged = usual.copy()
        exchanged[pair : pair + 2] = usual[pair + 1], usual[pair]
        assert ids in (usual, exchanged)
        counts[pair, ids == exchanged] += 1
        assert (
            sorted(hit.score for hit in answer.hits)[::-1][0]
            == answer.hits[ids.index(usual[0])].score
        )
        assert answer.answer["value"] is None
    assert len(counts) == 8
    assert all(45 <= count <= 110 for count in counts.values())  # 75 of 600, four deviations
    [shown, *_] = collection.searches(1).items
    assert [hit.id for hit in shown.hits] == ids
    assert (shown.pair, shown.interleaved) == (pair + 1, None)


def test_only_plain_first_pages_are_changed(collection: Collection) -> None:
    usual = listed(collection, 1, k=4)
    collection.configure(log_swaps=1.0, interleave=[1, 2])
    for options in ({"projection": 1}, {"offset": 1}, {"group_by": "@id"}, {"diversity": 0.1}):
        collection.search([1.0, 0.05], k=4, **options)
        entry = entries(collection)[0]
        assert (entry.pair, entry.draft) == (None, None)
    assert listed(collection, 1, k=4) == usual
    collection.configure(interleave=None, log_swaps=0.0)
    collection.search([1.0, 0.05])
    assert (entries(collection)[0].pair, entries(collection)[0].draft) == (None, None)


def test_lists_of_two_versions_are_drafted_and_logged(collection: Collection) -> None:
    lists = [listed(collection, version) for version in (1, 2)]
    assert lists[0] != lists[1]
    plain = collection.search([1.0, 0.05], k=5, mode="soft", projection=1)
    collection.configure(interleave=[2, 1])
    firsts = Counter[str]()
    for _ in range(200):
        answer = collection.search([1.0, 0.05], k=5, mode="soft")
        ids = [hit.id for hit in answer.hits]
        firsts[ids[0]] += 1
        draft = entries(collection)[0].draft
        assert draft is not None
        assert list(draft) == [1, 2]
        places = [[row.index(id) + 1 if id in row else 0 for row in lists] for id in ids]
        assert [list(pair) for pair in zip(*draft.values(), strict=True)] == places
        for team in (0, 1):  # of the lists, beginnings alone are on the page
            drafted = sorted(place[team] for place in places if place[team])
            own = [rank for rank in drafted if rank <= 2]
            assert own[:2] == [1, 2]
        assert answer.answer == plain.answer
        assert collection.searches(1).items[0].interleaved == [1, 2]
        assert (answer.projection, answer.attended) == (1, plain.attended)
    assert set(firsts) == {lists[0][0], lists[1][0]}
    assert min(firsts.values()) > 65  # of 200, five deviations


def test_no_document_is_missing_on_the_pages_of_an_interleaved_list(collection: Collection) -> None:
    collection.configure(interleave=[1, 2])
    for _ in range(20):
        answer = collection.search([1.0, 0.05], k=4)
        ids = [hit.id for hit in answer.hits]
        while answer.next:
            answer = collection.search([1.0, 0.05], k=4, cursor=answer.next)
            ids += [hit.id for hit in answer.hits]
        assert set(ids) == {str(n) for n in range(DOCUMENTS)}


def test_interleaving_rests_while_another_version_is_active(collection: Collection) -> None:
    collection.configure(interleave=[1, 2])
    collection.add_projection(Projection("identity", 2, np.ones(1)))
    collection.activate(3)
    collection.search([1.0, 0.05])
    assert entries(collection)[0].draft is None
    collection.activate(2)
    collection.search([1.0, 0.05])
    draft = entries(collection)[0].draft
    assert draft is not None
    assert list(draft) == [2, 1]


def test_what_cannot_be_interleaved_is_refused_by_name(collection: Collection) -> None:
    with pytest.raises(InvalidRequest, match="twice"):
        collection.configure(interleave=[1, 1])
    with pytest.raises(UnknownProjection):
        collection.configure(interleave=[1, 9])
    with pytest.raises(InvalidRequest, match="set log to true"):
        collection.configure(interleave=[1, 2], log=False)
    collection.configure(interleave=[1, 2])
    with pytest.raises(InvalidRequest, match="interleave to null"):
        collection.configure(log=False)
    assert collection.configure(log=False, interleave=None)


def test_both_teams_draft_as_often_at_every_rank() -> None:
    pages = np.array([team_draft(range(10), range(100, 110), size=9) for _ in range(2000)])
    shares = (pages < 100).mean(axis=0)
    assert np.abs(shares - 0.5).max() < 0.06
    assert np.abs((pages < 100).sum(axis=1) - 4.5).max() == 0.5


def test_a_log_of_an_earlier_program_is_read_and_written(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / FILE) as db:
        db.execute(
            "CREATE TABLE searches (id INTEGER PRIMARY KEY, version INTEGER NOT NULL, query, "
            "shown BLOB NOT NULL)"
        )
        db.execute(
            "CREATE TABLE uses (search INTEGER NOT NULL, rank INTEGER NOT NULL, value REAL NOT "
            "NULL, PRIMARY KEY (search, rank)) WITHOUT ROWID"
        )
        db.execute("INSERT INTO searches VALUES (1, 1, 'old', ?)", [b"I" + bytes(4)])
    reader = SearchLog(tmp_path, read_only=True, days=90, most=2**40)
    assert [entry.query for entry in reader.latest(9)] == ["old"]
    reader.close()
    log = SearchLog(tmp_path, read_only=False, days=90, most=2**40)
    log.add("new", 1, [1, 2, 3], 1)
    assert [(entry.query, entry.pair) for entry in log.latest(9)] == [("new", 1), ("old", None)]
    log.close()
