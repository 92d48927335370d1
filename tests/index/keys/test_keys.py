"""Segments and snapshots: what FAISS finds is what a matrix product finds, filtered too."""

from __future__ import annotations

import tracemalloc
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attend.core.arrays import KeyTable
from attend.keys import snapshot as snapshot_module
from attend.keys import vectors as vectors_module
from attend.keys.segment import BLOCK_KEYS, Delta, Segment
from attend.keys.snapshot import Snapshot
from attend.keys.vectors import FlatVectors


def flat(vectors) -> FlatVectors:
    return FlatVectors(np.ascontiguousarray(vectors))


def only(segment: Segment) -> Snapshot:
    """A snapshot without fresh keys."""
    return Snapshot(segment, Delta.empty(segment.table.vectors.shape[1]), 0, 0, 0)


NONE = np.empty(0, dtype=np.int64)


@dataclass
class Case:
    """Documents of one to four keys, some dead, spread over a published segment and a delta."""

    documents: int
    width: int
    selectivity: float
    dead: float
    fresh: float
    seed: int

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        counts = rng.integers(1, 5, self.documents)
        self.rows = np.sort(rng.permutation(10 * self.documents)[: self.documents]) + 1
        self.keys = rng.normal(size=(int(counts.sum()), self.width)).astype(np.float32)
        self.of = np.repeat(self.rows, counts)
        self.ids = rng.permutation(len(self.keys)) + 1
        self.in_delta = rng.random(self.documents) < self.fresh
        self.alive = rng.random(self.documents) >= self.dead
        self.chosen = rng.random(self.documents) < self.selectivity
        self.queries = rng.normal(size=(3, self.width)).astype(np.float32)

    def snapshot(self) -> Snapshot:
        published = self._table(~self.in_delta)
        segment = Segment.of(flat(published.vectors), published.ids, published.documents)
        # In the order in which they came, which is not that of their rows.
        fresh = self._table(self.in_delta)
        came = fresh.some(np.random.default_rng(self.seed).permutation(len(fresh)))
        dead = self.ids[np.isin(self.of, self.rows[~self.alive])]
        snapshot = Snapshot(segment, Delta.holding(came), 0, 0, 0)
        return snapshot.advanced(self._table(self.rows < 0), dead, 0, 0)

    def _table(self, part) -> KeyTable:
        member = np.isin(self.of, self.rows[part])
        return KeyTable.of_keys(self.keys[member], self.ids[member], self.of[member])

    def passing(self, filtered: bool):
        return self.alive & self.chosen if filtered else self.alive

    def best(self, query: int, filtered: bool, attend: int) -> list[int]:
        scores = {
            int(row): float((self.keys[self.of == row].astype(float) @ self.queries[query]).max())
            for row in self.rows[self.passing(filtered)]
        }
        return sorted(scores, key=lambda row: -scores[row])[:attend]


CASES = st.builds(
    Case,
    documents=st.integers(1, 120),
    width=st.integers(1, 9),
    selectivity=st.sampled_from([0.0, 0.02, 0.3, 0.9, 1.0]),
    dead=st.sampled_from([0.0, 0.3, 1.0]),
    fresh=st.sampled_from([0.0, 0.3, 1.0]),
    seed=st.integers(0, 2**32 - 1),
)


@settings(max_examples=300, deadline=None)
@given(CASES, st.integers(1, 150), st.booleans(), st.booleans())
def test_the_attended_documents_are_always_among_the_candidates(case, attend, filtered, fetched):
    with pytest.MonkeyPatch.context() as patch:
        if fetched:  # and scanned only where that found too few
            fetch_always(patch)
            patch.setattr(snapshot_module, "EXTRA", 0)
        check_candidates(case, attend, filtered)


def fetch_always(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(vectors_module, "CROWDED", 10**9)
    patch.setattr(vectors_module, "FETCH_SHARE", 0)
    patch.setattr(vectors_module, "SELECTED", 0)


def check_candidates(case: Case, attend: int, filtered: bool) -> None:
    snapshot = case.snapshot()
    rows = case.rows[case.chosen] if filtered else None
    for at, found in enumerate(snapshot.search(case.queries[:, None, :], rows, attend).rows):
        assert set(case.best(at, filtered, attend)) <= set(found.tolist())
        assert set(found) <= set(case.rows[case.passing(filtered)])
        assert len(np.unique(found)) == len(found)
        for block in snapshot.blocks(found):
            check_whole(case, block)


def check_whole(case: Case, found) -> None:
    """Each candidate stands there once, with all of its keys and their ids."""
    assert len(np.unique(found.rows)) == len(found)
    assert len(found.ids) == len(found.vectors) == found.starts[-1]
    for row, start, stop in zip(found.rows, found.starts, found.starts[1:], strict=False):
        member = case.of == row
        np.testing.assert_array_equal(found.vectors[start:stop], case.keys[member])
        np.testing.assert_array_equal(found.ids[start:stop], case.ids[member])


@settings(max_examples=80, deadline=None)
@given(CASES, st.booleans())
def test_reading_in_blocks_meets_each_living_document_once(case, filtered):
    rows = case.rows[case.chosen] if filtered else None
    blocks = list(case.snapshot().blocks(rows))
    met = [int(row) for block in blocks for row in block.rows]
    assert sorted(met) == case.rows[case.passing(filtered)].tolist()
    for block in blocks:
        check_whole(case, block)


@settings(max_examples=80, deadline=None)
@given(CASES)
def test_looking_up_rows_finds_the_living_among_them(case):
    wanted = np.append(case.rows[case.chosen], 10**9)
    found = case.snapshot().lookup(wanted)
    assert sorted(found.rows.tolist()) == case.rows[case.alive & case.chosen].tolist()
    check_whole(case, found)


@settings(max_examples=60, deadline=None)
@given(CASES)
def test_what_was_looked_up_together_is_divided_as_if_alone(case):
    rng, snapshot = np.random.default_rng(case.seed), case.snapshot()
    wanted = [case.rows[rng.random(case.documents) < share] for share in (0.2, 0.6, 0)]
    every = snapshot.lookup(np.unique(np.concatenate(wanted)))
    for rows, part in zip(wanted, every.split(wanted), strict=True):
        alone = snapshot.lookup(rows)
        for name in ("rows", "starts", "vectors", "ids"):
            np.testing.assert_array_equal(getattr(part, name), getattr(alone, name))


@settings(max_examples=150, deadline=None)
@given(
    st.integers(1, 300),
    st.integers(1, 40),
    st.sampled_from([None, 0.0, 0.01, 0.1, 0.5, 1.0]),
    st.integers(0, 2**32 - 1),
)
def test_keys_come_in_the_order_of_a_matrix_product(n, k, selectivity, seed):
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(n, 5)).astype(np.float32)
    queries = rng.normal(size=(4, 5)).astype(np.float32)
    allowed = None if selectivity is None else rng.random(n) < selectivity
    scores, positions = flat(vectors).search(queries, k, allowed)
    products = queries.astype(float) @ vectors.astype(float).T
    products[:, ~(np.ones(n, bool) if allowed is None else allowed)] = -np.inf
    for product, score, position in zip(products, scores, positions, strict=True):
        expected = [at for at in np.argsort(-product)[:k] if np.isfinite(product[at])]
        found = position[position >= 0]
        assert found.tolist() == expected
        np.testing.assert_allclose(score[: len(found)], product[found], atol=1e-5)
        assert (position[len(found) :] == -1).all()


def test_equal_keys_are_all_found():
    """A thousand equal scores: which of them come first is nobody's promise, but none is lost."""
    case = np.ones((1000, 4), dtype=np.float32)
    segment = Segment.of(flat(case), np.arange(1000), np.arange(1000))
    snapshot = only(segment)
    found = snapshot.search(case[:1, None], None, 1000).rows[0]
    assert found.tolist() == list(range(1000))


class Counted(FlatVectors):
    """An index that remembers how many queries it was asked, and for how many keys each."""

    def __init__(self, vectors) -> None:
        super().__init__(vectors)
        self.asked: list[tuple[int, int]] = []

    def search(self, queries, k, allowed=None, recall=None):
        self.asked.append((len(queries), k))
        return super().search(queries, k, allowed)


@pytest.mark.parametrize("fetched", [True, False])
def test_of_equal_documents_the_first_are_found(monkeypatch, fetched):
    """One question taught for 60 documents: whichever way they are found, they are the same."""
    if fetched:
        fetch_always(monkeypatch)
    monkeypatch.setattr(snapshot_module, "EXTRA", 0)
    of = np.repeat(np.random.default_rng(2).permutation(200), 1 + np.arange(200) % 2)
    keys = np.random.default_rng(3).normal(size=(len(of), 6)).astype(np.float32)
    keys /= np.linalg.norm(keys, axis=1, keepdims=True)
    order = np.argsort(of, kind="stable")
    taught = of[order] % 3 == 1
    keys[taught] = [2, 0, 0, 0, 0, 0]
    snapshot = only(Segment.of(flat(keys), np.arange(len(of)), of[order]))
    query = np.eye(6, dtype=np.float32)[:1, None]
    for wanted in (1, 7, 30, 66):
        assert snapshot.search(query, None, wanted).rows[0].tolist() == list(
            range(1, 3 * wanted, 3)
        )


@pytest.mark.parametrize("fetched", [True, False])
def test_a_document_of_many_near_keys_does_not_hide_the_others(monkeypatch, fetched):
    """A fetch meets one document only, for one of three queries; that one alone is scanned."""
    if fetched:
        fetch_always(monkeypatch)
    monkeypatch.setattr(snapshot_module, "EXTRA", 0)
    keys = np.concatenate([np.full((500, 2), 9.0), np.eye(2), -np.eye(2)]).astype(np.float32)
    of = np.array([1] * 500 + [2, 3, 4, 5])
    vectors = Counted(keys)
    snapshot = only(Segment.of(vectors, np.arange(504), of))
    queries = np.array([[[-1, -2]], [[1, 0.5]], [[-2, -1]]], dtype=np.float32)
    found = snapshot.search(queries, None, 2).rows
    assert [each.tolist() for each in found] == [[4, 5], [1, 2], [4, 5]]
    chosen = snapshot.search(queries, np.array([1, 3]), 2).rows
    assert [each.tolist() for each in chosen] == [[1, 3]] * 3
    assert vectors.asked == ([(3, 253)] * 2 if fetched else [])


@pytest.mark.parametrize("fetched", [True, False])
def test_no_more_documents_are_candidates_than_were_asked_for(monkeypatch, fetched):
    """Forty keys a document, in a cloud of its own."""
    if fetched:
        fetch_always(monkeypatch)
    rng = np.random.default_rng(4)
    centres, documents, each = rng.normal(size=(2000, 8)), 2000, 40
    keys = np.repeat(centres, each, axis=0) + rng.normal(scale=0.3, size=(documents * each, 8))
    keys = keys.astype(np.float32)
    vectors = Counted(keys)
    of = np.repeat(np.arange(documents), each)
    snapshot = only(Segment.of(vectors, np.arange(len(of)), of))
    queries = rng.normal(size=(100, 1, 8)).astype(np.float32)
    for query, found in zip(queries, snapshot.search(queries, None, 50).rows, strict=True):
        products = (keys.astype(float) @ query[0]).reshape(documents, each).max(axis=1)
        assert set(np.argsort(-products)[:50]) <= set(found.tolist())
        assert len(found) == 50 + snapshot_module.EXTRA
    # In blocks of queries, and never again for more.
    assert [count for count, _ in vectors.asked] == ([64, 36] if fetched else [])


def test_equal_in_rounding_are_candidates_too():
    """Float32 takes the best two for equal: both are candidates, for who scores them again."""
    keys = np.array([[1, 0], [1, 2e-8], [0.5, 0]] + [[0, 0]] * 97, dtype=np.float32)
    of = np.arange(100)
    snapshot = only(Segment.of(flat(keys), of, of))
    found = snapshot.search(np.array([[[1, 1]]], dtype=np.float32), None, 1).rows[0]
    assert {0, 1, 2} <= set(found.tolist())


@pytest.mark.parametrize("fetched", [True, False])
def test_the_memory_of_a_search_is_bounded_whatever_the_batch(monkeypatch, fetched):
    """Three hundred documents of two hundred keys; every query fetches or scans many."""
    if fetched:
        fetch_always(monkeypatch)
    rng = np.random.default_rng(4)
    of = np.repeat(np.arange(300), 200)
    keys = rng.normal(size=(len(of), 4)).astype(np.float32)
    snapshot = only(Segment.of(flat(keys), np.arange(len(of)), of))

    def peak(count: int) -> int:
        queries = rng.normal(size=(count, 1, 4)).astype(np.float32)
        tracemalloc.start()
        try:
            assert len(snapshot.search(queries, None, 100).rows) == count
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(1)  # the ordinals of keys are made once
    assert peak(512) < 1.3 * peak(64) + 512 * 2000


@pytest.mark.parametrize("keys_each", [1, 3, 5000, BLOCK_KEYS + 1])
def test_blocks_are_of_bounded_size_and_cut_no_document(keys_each):
    documents = max(2, 30_000 // keys_each)
    of = np.repeat(np.arange(documents), keys_each)
    vectors = np.arange(len(of), dtype=np.float32)[:, None]
    segment = Segment.of(flat(vectors), np.arange(len(of)), of)
    blocks = list(only(segment).blocks(None))
    assert sum(len(block) for block in blocks) == documents
    assert all(len(block.ids) < BLOCK_KEYS + 2 * keys_each for block in blocks)
    for block in blocks:
        assert np.shares_memory(block.vectors, vectors)
        assert (block.counts == keys_each).all()


def test_each_head_finds_its_own_best():
    keys = np.array([[9, 0], [0, 9], [5, 5], [1, 1]], dtype=np.float32)
    snapshot = only(Segment.of(flat(keys), np.arange(4), np.arange(4)))
    heads = np.array([[[1, 0], [0, 1]]], dtype=np.float32)  # (1, 2, 2)
    assert {0, 1} <= set(snapshot.search(heads, None, 1).rows[0].tolist())


def test_what_was_read_outlives_the_snapshot():
    """FAISS's memory must not be freed under a reader whose snapshot was swapped out."""
    keys = np.random.default_rng(0).normal(size=(5000, 32)).astype(np.float32)
    of = np.arange(5000)
    blocks = [next(only(Segment.of(flat(keys), of, of)).blocks(None)).vectors]
    blocks += [next(only(Segment.of(flat(-keys), of, of)).blocks(None)).vectors]
    np.testing.assert_array_equal(blocks[0], keys)
    np.testing.assert_array_equal(blocks[1], -keys)


# -- changes ---------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(st.sets(st.integers(0, 80)), st.lists(st.integers(1, 12), max_size=8)),
        max_size=6,
    ),
    st.integers(0, 2**32 - 1),
)
def test_a_snapshot_follows_keys_that_come_and_go_one_by_one(steps, seed):
    """Each step takes some keys away and gives documents, old and new, some more."""
    rng = np.random.default_rng(seed)
    held = {id: (id % 7 + 1, rng.normal(size=3).astype(np.float32)) for id in range(1, 30)}
    snapshot = Snapshot(segment_of(held), Delta.empty(3), 0, 0, 4)
    last = 30
    for at, (gone, documents) in enumerate(steps):
        removed = np.array(sorted(gone), dtype=np.int64)  # some of them were never here
        fresh = {last + n: (row, rng.normal(size=3).astype(np.float32)) for n, row in
                 enumerate(documents)}  # fmt: skip
        last += len(fresh)
        held = {id: key for id, key in held.items() if id not in gone} | fresh
        # What came and went in between is not among what is added: the store reads both at once.
        snapshot = snapshot.advanced(keys_of(fresh), removed, last, at)
        assert (snapshot.last_key, snapshot.last_removal, snapshot.generation) == (last, at, 4)
        assert found_in(snapshot) == {
            id: (row, vector.tolist()) for id, (row, vector) in held.items()
        }
        assert snapshot.documents == len({row for row, _ in held.values()})


def keys_of(held) -> KeyTable:
    order = sorted(held, key=lambda id: (held[id][0], id))
    vectors = np.array([held[id][1] for id in order], dtype=np.float32).reshape(-1, 3)
    return KeyTable.of_keys(vectors, np.array(order, dtype=np.int64),
                np.array([held[id][0] for id in order], dtype=np.int64))  # fmt: skip


def segment_of(held) -> Segment:
    keys = keys_of(held)
    return Segment.of(flat(keys.vectors), keys.ids, keys.documents)


def found_in(snapshot: Snapshot) -> dict[int, tuple[int, list[float]]]:
    """Each living key's document and vector, by id; a document must not lie in two blocks."""
    found: dict[int, tuple[int, list[float]]] = {}
    met: list[int] = []
    for block in snapshot.blocks(None):
        met += block.rows.tolist()
        for id, row, vector in zip(block.ids, block.documents, block.vectors, strict=True):
            found[int(id)] = int(row), vector.tolist()
    assert len(met) == len(set(met))
    return found


def test_a_change_that_touches_nothing_here_keeps_the_segments():
    held = {id: (id, np.ones(3, dtype=np.float32)) for id in range(1, 5)}
    snapshot = Snapshot(segment_of(held), Delta.empty(3), 0, 0, 0)
    after = snapshot.advanced(keys_of({}), np.array([99]), 7, 8)
    assert after.segments == snapshot.segments
    assert (after.last_key, after.last_removal) == (7, 8)


def test_the_width_of_keys_is_known_where_the_published_ones_are_none():
    none = Segment.of(flat(np.empty((0, 9), dtype=np.float32)), NONE, NONE)
    held = {1: (1, np.ones(3, dtype=np.float32))}
    assert Snapshot(none, Delta.holding(keys_of(held)), 0, 0, 0).width == 3
    assert Snapshot(none, Delta.empty(9), 0, 0, 0).width == 9


# -- the delta -------------------------------------------------------------------------------


def one(row: int, id: int) -> KeyTable:
    return keys_of({id: (row, np.full(3, id, dtype=np.float32))})


def test_a_write_beside_fresh_keys_copies_none_of_them():
    """Its keys are written behind those that are there, in the same memory."""
    held = {id: (id, np.ones(3, dtype=np.float32)) for id in range(1, 5)}
    snapshot = Snapshot(segment_of(held), Delta.empty(3), 0, 0, 0)
    moved = 0
    for id in range(5, 1005):  # one in ten replaces an earlier one
        row, removed = (id - 3, [id - 3]) if id % 10 == 0 else (id, [])
        after = snapshot.advanced(one(row, id), np.array(removed, dtype=np.int64), id, id)
        before = snapshot.delta.table
        for name in ("rows", "starts", "vectors", "ids"):
            mine, theirs = getattr(after.delta.table, name), getattr(before, name)
            if name == "vectors" and not np.shares_memory(mine, theirs):
                moved += len(theirs)
        assert np.shares_memory(after.published.table.vectors, snapshot.published.table.vectors)
        snapshot = after
    # A buffer of twice the size is taken now and then: each key is copied once or twice in all.
    assert moved <= 2 * 1000
    assert snapshot.documents == 4 + 900


def test_the_readers_of_an_older_state_are_undisturbed():
    held = {id: (id, np.ones(3, dtype=np.float32)) for id in range(1, 5)}
    states = [Snapshot(segment_of(held), Delta.empty(3), 0, 0, 0)]
    seen = [found_in(states[0])]
    for id in range(5, 40):
        removed = np.array([id - 4], dtype=np.int64)
        states.append(states[-1].advanced(one(1 + id % 7, id), removed, id, id))
        seen.append(found_in(states[-1]))
    for then, past in zip(seen, states, strict=True):
        # Without what the state remembers of the reading before.
        now = replace(past, published=replace(past.published), delta=replace(past.delta))
        assert found_in(now) == then
        for row in {row for row, _ in then.values()}:
            assert now.lookup(np.array([row])).rows.tolist() == [row]


def test_two_states_after_one_know_nothing_of_each_other():
    held = {id: (id, np.ones(3, dtype=np.float32)) for id in range(1, 5)}
    start = Snapshot(segment_of(held), Delta.empty(3), 0, 0, 0).advanced(one(9, 9), NONE, 9, 0)
    first = start.advanced(one(1, 11), np.array([1]), 11, 1)
    second = start.advanced(one(2, 12), np.array([2, 9]), 12, 1)
    assert sorted(found_in(start)) == [1, 2, 3, 4, 9]
    assert sorted(found_in(first)) == [2, 3, 4, 9, 11]
    assert sorted(found_in(second)) == [1, 3, 4, 12]


def test_a_document_that_is_written_again_and_again_does_not_fill_the_delta():
    snapshot = only(segment_of({1: (1, np.ones(3, dtype=np.float32))}))
    for id in range(2, 10_000):
        snapshot = snapshot.advanced(one(1, id), np.array([id - 1]), id, id)
    assert snapshot.delta.keys < 3000
    assert snapshot.delta.living_keys == 1
    assert found_in(snapshot) == {9999: (1, [9999.0] * 3)}
