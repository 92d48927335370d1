"""Rankings of what comes next, and what is withheld to judge them."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pytest

from attend.learning import data, interactions
from attend.learning.data import lengths
from attend.learning.interactions import (
    HistoryFold,
    HistoryRanker,
    history_folds,
    history_weights,
    measure,
)
from tests.index.drawn import memory_of, sparse_of


class Asking(NamedTuple):
    """Documents as queries (n, d) and as keys (m, d)."""

    queries: np.ndarray
    keys: np.ndarray
    scale: float
    gates: np.ndarray

    def recommender(self, memory) -> HistoryRanker:
        def logits(documents, candidates):
            keys = self.keys[memory.positions(candidates)]
            counts = memory.counts[candidates]
            scores = self.scale * (self.queries[documents] @ keys.T)
            return np.maximum.reduceat(scores, np.cumsum(counts) - counts, axis=1)

        return HistoryRanker(logits, self.gates)


def drawn(seed: int, counts: list[int], users: int = 9):
    rng = np.random.default_rng(seed)
    n = len(counts)
    memory = memory_of(counts, 4, seed)
    asking = Asking(
        rng.normal(size=(n, 3)).astype(np.float32),
        rng.normal(size=(sum(counts), 3)).astype(np.float32),
        1.7,
        rng.uniform(0.2, 2, n).astype(np.float32),
    )
    kind = rng.integers(0, 3, (users, n))
    kind[:, 0], kind[:, 1] = 1, 2
    return memory, asking, sparse_of(kind == 1), sparse_of(kind == 2)


def oracle_weights(memory, asking, history, ranked) -> dict[int, float]:
    ends = memory.starts[1:]
    rivals = [d for d in ranked if d not in history]
    found = dict.fromkeys(rivals, 0.0)
    total = math.fsum(float(asking.gates[j]) for j in history)
    for j in history:
        query = asking.queries[j].astype(np.float64)
        z = {
            d: asking.scale
            * max(float(key @ query) for key in asking.keys[memory.starts[d] : ends[d]])
            for d in rivals
        }
        norm = math.fsum(math.exp(each) for each in z.values())
        for d in rivals:
            found[d] += float(asking.gates[j]) / total * math.exp(z[d]) / norm
    return found


@pytest.mark.parametrize("counts", [[1] * 14, [1, 3, 2, 1, 1, 2, 1, 1, 1, 4, 1, 1, 1, 2]])
@pytest.mark.parametrize("some", [False, True])
def test_weights_and_measures_against_a_plain_loop(counts, some, monkeypatch):
    monkeypatch.setattr(data, "BLOCK", 300)  # several blocks
    memory, asking, given, asked = drawn(3, counts)
    candidates = None
    if some:
        candidates = np.arange(len(counts)) % 3 != 0
        kept = asked.toarray() * candidates
        kept[:, 1] = 1
        asked = sparse_of(kept)
    mask = np.ones(len(counts), dtype=bool) if candidates is None else candidates
    ranked, recommender = np.flatnonzero(mask), asking.recommender(memory)
    w = history_weights(recommender, given, mask)
    users = np.arange(given.shape[0])
    found = measure(recommender, HistoryFold("random", given, users, given, asked, candidates))
    for user in range(given.shape[0]):
        history = np.flatnonzero(given.toarray()[user])
        expected = oracle_weights(memory, asking, history, ranked.tolist())
        for column, document in enumerate(ranked.tolist()):
            if document in expected:
                assert w[user, column] == pytest.approx(expected[document], rel=1e-4)
            else:
                assert w[user, column] == -1
        right = set(np.flatnonzero(asked.toarray()[user]).tolist())
        best = sorted(expected, key=lambda d: -expected[d])[:10]
        gained = sum(1 / math.log2(at + 2) for at, d in enumerate(best) if d in right)
        ideal = sum(1 / math.log2(at + 2) for at in range(min(10, len(right))))
        assert found[0][user] == pytest.approx(gained / ideal)
        assert found[1][user] == pytest.approx(len(right & set(best)) / len(right))


def histories(users: int, documents: int, seed: int = 0):
    rng = np.random.default_rng(seed)
    return sparse_of(rng.random((users, documents)) < 0.15)


@pytest.mark.parametrize("users", [20, 300, 1500])
def test_views_divide_what_was_met(users):
    met = histories(users, 40)
    random, new = history_folds(met, seed=0)
    assert (random.split, new.split) == ("random", "new")
    dense = met.toarray()
    judged = dense[random.users]
    np.testing.assert_array_equal(random.history.toarray() + random.target.toarray(), judged)
    np.testing.assert_array_equal(random.training.toarray()[random.users], random.history.toarray())
    others = np.setdiff1d(np.arange(users), random.users)
    np.testing.assert_array_equal(random.training.toarray()[others], dense[others])
    assert lengths(random.target).min() >= 1
    assert lengths(random.history).min() >= 1
    assert lengths(random.target).sum() == pytest.approx(0.2 * judged.sum(), rel=0.35)
    withheld = new.candidates
    assert withheld.sum() == round(0.2 * len(np.unique(met.indices)))
    assert not new.training.toarray()[:, withheld].any()
    np.testing.assert_array_equal(new.training.toarray()[:, ~withheld], dense[:, ~withheld])
    np.testing.assert_array_equal(new.target.toarray(), dense[new.users] * withheld)
    assert lengths(new.history).min() >= 1


@pytest.mark.parametrize("users", [40, 300, 2000])
def test_where_interactions_have_times_nothing_is_learned_from_later_ones(users):
    met = histories(users, 40)
    times = np.random.default_rng(1).permutation(met.nnz).astype(np.float64)
    times[np.argmax(times)] = np.nan  # one without a time counts as the earliest
    latest, *others = history_folds(met, seed=0, times=times)
    assert [fold.split for fold in (latest, *others)] == ["latest", "random", "new"]
    late = np.nan_to_num(times, nan=-1.0) > latest.after
    assert late.mean() == pytest.approx(0.1 if users == 2000 else 0.2, abs=0.01)
    rows = np.repeat(np.arange(users), lengths(met))
    before, after = np.zeros(met.shape), np.zeros(met.shape)
    before[rows[~late], met.indices[~late]] = 1
    after[rows[late], met.indices[late]] = 1
    np.testing.assert_array_equal(latest.training.toarray(), before)
    judges = np.flatnonzero(before.any(axis=1) & after.any(axis=1))
    np.testing.assert_array_equal(latest.users, judges)
    np.testing.assert_array_equal(latest.history.toarray(), before[judges])
    np.testing.assert_array_equal(latest.target.toarray(), after[judges])
    assert latest.figures == {
        "users": len(judges), "interactions": after[judges].sum(), "after": latest.after
    }  # fmt: skip


def test_where_users_come_one_after_another_their_latest_interactions_are_withheld():
    met = histories(300, 40)
    rows = np.repeat(np.arange(300), lengths(met))
    times = rows + np.random.default_rng(1).random(met.nnz) / 2
    latest, *_ = history_folds(met, seed=0, times=times)
    assert (latest.split, latest.after) == ("latest", None)
    assert len(latest.users) > 250
    by_place = {(r, d): t for r, d, t in zip(rows, met.indices, times, strict=True)}
    for place, user in enumerate(latest.users):
        withheld = [by_place[user, d] for d in latest.target[[place]].indices]
        left = [by_place[user, d] for d in latest.training[[user]].indices]
        assert min(withheld) > max(left)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_without_times_that_tell_anything_interactions_are_withheld_at_random(share):
    """Where half have none, and where all have the same."""
    met = histories(100, 40)
    times = np.full(met.nnz, 7.0)
    times[: int((1 - share) * met.nnz)] = np.nan
    if share == 0.5:
        times[-1] = 8.0
    plain, timed = (history_folds(met, 0, given)[0] for given in (None, times))
    assert timed.split == "random"
    assert (plain.target != timed.target).nnz == 0


def test_in_large_catalogues_fewer_users_judge(monkeypatch):
    monkeypatch.setattr(interactions, "MOST_CELLS", 250 * 40)
    assert [len(view.users) for view in history_folds(histories(1500, 40), seed=0)] == [250, 250]
    monkeypatch.setattr(interactions, "MOST_CELLS", 40)
    assert [len(view.users) for view in history_folds(histories(1500, 40), seed=0)] == [200, 200]


def test_another_seed_withholds_something_else():
    met = histories(200, 40)
    first, again, other = (history_folds(met, seed)[0] for seed in (0, 0, 1))
    assert (first.target != again.target).nnz == 0
    assert first.target.shape != other.target.shape or (first.target != other.target).nnz


def test_where_nobody_met_two_documents_there_is_no_view():
    assert history_folds(sparse_of(np.eye(30)), seed=0) == []
