"""Learning from histories, against the definition in float64 and against what was planted."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

from attend.core.errors import Conflict, InvalidRequest
from attend.learning import next_items
from attend.learning.data import Memory, histories_of, lengths, without
from attend.learning.fit import Recipe
from attend.learning.interactions import HistoryFold, HistoryRanker, measure
from attend.learning.next_items import NextItemsModel, fit_next_items, pairs_of, untrained
from tests.index.drawn import communities, memory_of, sparse_of, unit

RATES = {"maps": 3e-3, "offsets": 2e-3, "gates": 1e-2}
USUAL = Recipe("usual", RATES, epochs=12, steps=(60, 400), drop=0.5)
STILL = replace(USUAL, drop=0.0, drop_offsets=0.0)


def model_of(memory, histories) -> NextItemsModel:
    return NextItemsModel(memory, histories, STILL, seed=0)


def met_of(dense) -> sparse.csr_array:
    return sparse_of(np.asarray(dense, dtype=np.float32))


def drawn_met(users: int, documents: int, seed: int, share: float = 0.3) -> sparse.csr_array:
    rng = np.random.default_rng(seed)
    dense = rng.random((users, documents)) < share
    dense[np.arange(users), rng.integers(0, documents, users)] = True
    return met_of(dense)


def oracle_loss(memory: Memory, met, scale: float, gates, offsets) -> float:
    """−log w(target), by loops: each source's softmax over all that is not in the history."""
    center = memory.vectors.astype(np.float64).mean(axis=0)
    moved = memory.vectors.astype(np.float64) + offsets
    ends = memory.starts[1:]
    keys, queries = [], []
    for begin, end in zip(memory.starts[:-1], ends, strict=True):
        own = memory.vectors[begin:end].astype(np.float64).mean(axis=0)
        own = unit(own) if memory.unit and end - begin > 1 else own
        query = own + offsets[begin:end].mean(axis=0) - center
        queries.append(unit(query) if memory.unit else query)
        key = moved[begin:end] - center
        keys.append(unit(key) if memory.unit else key)
    losses = []
    for row in met.toarray():
        history = np.flatnonzero(row)
        if len(history) < 2:
            continue
        for target in history:
            shares, total = 0.0, 0.0
            for source in history:
                if source == target:
                    continue
                z = [scale * max(key @ queries[source] for key in each) for each in keys]
                rivals = [d for d in range(len(keys)) if d not in history or d == target]
                norm = math.fsum(math.exp(z[d] - z[target]) for d in rivals)
                shares += gates[source] / norm
                total += gates[source]
            losses.append(-math.log(shares / total))
    return float(np.mean(losses))


@pytest.mark.parametrize("at_length_one", [True, False])
@pytest.mark.parametrize("counts", [[1] * 9, [2, 1, 3, 1, 1, 2, 1, 1, 2]])
def test_the_loss_is_that_of_the_definition(counts, at_length_one, monkeypatch):
    monkeypatch.setattr(next_items, "SCALE", 0.1)  # large logits have no digits in float32
    memory = memory_of(counts, 5, seed=3, at_length_one=at_length_one)
    met = drawn_met(12, len(counts), seed=4)
    taught = met[np.flatnonzero(lengths(met) >= 2)]
    run = model_of(memory, taught)
    rng = np.random.default_rng(5)
    gates = rng.uniform(0.5, 2, len(counts))
    offsets = np.zeros_like(memory.vectors, dtype=np.float64)
    offsets[run.maps.offset_keys] = rng.normal(size=(len(run.maps.offset_keys), 5)) * 0.3
    moves = offsets[run.maps.offset_keys] / run.length
    with run.maps.torch.no_grad():  # what is learned begins at nothing
        run.log_gates.copy_(run.maps.torch.from_numpy(np.log(gates)))
        run.maps.offsets.copy_(run.maps.torch.from_numpy(moves))
        found = float(run.loss(np.arange(taught.shape[0])))
    assert found == pytest.approx(
        oracle_loss(memory, met, next_items.SCALE * memory.scale, gates, offsets), rel=1e-4
    )


def test_its_slopes_are_those_of_the_loss(monkeypatch):
    monkeypatch.setattr(next_items, "SCALE", 0.1)
    memory, met = memory_of([1, 2, 1, 1, 1], 4, seed=1), drawn_met(8, 5, seed=2, share=0.6)
    run = model_of(memory, met[np.flatnonzero(lengths(met) >= 2)])
    users = np.arange(run.histories.shape[0])
    run.loss(users).backward()
    for parameter in (
        run.maps.delta_q,
        run.maps.delta_k,
        run.maps.offsets,
        run.log_gates,
        run.maps.log_scale,
    ):
        flat, slope = parameter.detach().view(-1), parameter.grad.view(-1)
        at, step = len(flat) // 2, 1e-2
        sides = []
        for sign in (1, -1):
            flat[at] += sign * step
            sides.append(run.loss(users).item())
            flat[at] -= sign * step
        assert float(slope[at]) == pytest.approx((sides[0] - sides[1]) / (2 * step), abs=2e-3)


@pytest.mark.parametrize("seed", range(5))
def test_pairs_are_all_of_a_users(seed):
    met = drawn_met(7, 6, seed, share=0.4)
    documents, target, source = pairs_of(met, 50, np.random.default_rng(0))
    found = [(int(documents[t]), int(documents[s])) for t, s in zip(target, source, strict=True)]
    expected = [
        (int(t), int(s))
        for row in met.toarray()
        for t in np.flatnonzero(row)
        for s in np.flatnonzero(row)
    ]
    assert found == expected


def test_of_long_histories_some_are_drawn():
    met = met_of([[1] * 30, [1, 1] + [0] * 28])
    documents, target, _ = pairs_of(met, 10, np.random.default_rng(0))
    assert len(documents) == 12
    assert len(set(documents[:10].tolist())) == 10
    assert documents[10:].tolist() == [0, 1]
    assert len(target) == 10 * 10 + 2 * 2
    again, *_ = pairs_of(met, 10, np.random.default_rng(1))
    assert again[:10].tolist() != documents[:10].tolist()


def test_histories_without_some_and_with_repetitions():
    met = histories_of(np.array([0, 0, 0, 1]), np.array([2, 2, 1, 0]), (2, 3))
    assert met.toarray().tolist() == [[0, 1, 1], [1, 0, 0]]
    left = without(met, np.array([True, False, True]))
    assert left.toarray().tolist() == [[0, 0, 1], [0, 0, 0]]


def test_in_large_catalogues_a_sample_stands_for_the_rest(monkeypatch):
    monkeypatch.setattr(next_items, "MOST_WHOLE", 40)
    monkeypatch.setattr(next_items, "SAMPLED", 16)
    memory, met = memory_of([1] * 60, 4), drawn_met(20, 60, seed=0, share=0.1)
    run = model_of(memory, met[np.flatnonzero(lengths(met) >= 2)])
    known = np.unique(met.indices)
    own = known[[3, 7, -1]]
    candidates, log_counts = run.candidates(own)
    assert len(candidates) == 19
    assert np.isin(own, candidates).all()
    # All but those that nobody met, of whose texts a training says nothing.
    assert np.exp(log_counts).sum() == pytest.approx(len(known), rel=1e-5)
    assert len(known) < 60
    assert np.isin(candidates, known).all()
    assert not log_counts[np.isin(candidates, own)].any()


def test_a_sampled_softmax_is_right_on_average(monkeypatch):
    memory, met = memory_of([1] * 60, 4), drawn_met(30, 60, seed=0, share=0.1)
    taught = met[np.flatnonzero(lengths(met) >= 2)]
    users = np.arange(3)
    whole = model_of(memory, taught).loss(users).item()
    monkeypatch.setattr(next_items, "MOST_WHOLE", 10)
    monkeypatch.setattr(next_items, "SAMPLED", 30)
    run = model_of(memory, taught)
    sampled = np.mean([run.loss(users).item() for _ in range(200)])
    assert sampled == pytest.approx(whole, rel=0.05)


def test_of_very_many_documents_those_met_most_are_moved(monkeypatch):
    monkeypatch.setattr(next_items, "MOST_OFFSETS", 3)
    met = met_of([[1, 1, 0, 0, 1], [1, 0, 0, 1, 1], [1, 0, 0, 1, 1]])
    run = model_of(memory_of([1] * 5, 4), met)
    assert run.maps.offset_keys.tolist() == [0, 3, 4]


def halves(met, rng):
    """Of each history a part that is given, and the rest that is asked for."""
    out = rng.random(met.nnz) < 0.3
    given, asked = without(met, out), without(met, ~out)
    users = np.flatnonzero((lengths(given) >= 2) & (lengths(asked) > 0))
    return given[users], asked[users]


def ndcg_of(found, memory, given, asked, candidates=None) -> float:
    users = np.arange(given.shape[0])
    fold = HistoryFold("random", given, users, given, asked, candidates)
    return float(measure(HistoryRanker.of(found, memory), fold)[0].mean())


@pytest.mark.parametrize("told", [True, False])
def test_what_users_have_in_common_is_learned(told):
    """With texts that tell it by W, and by offsets where texts tell nothing."""
    rng = np.random.default_rng(0)
    memory, met, _ = communities(rng, told=told)
    given, asked = halves(met, rng)
    recipe = replace(USUAL, rates={**RATES, "maps": 1e-2, "offsets": 1e-2})
    learned = ndcg_of(fit_next_items(memory, given, recipe), memory, given, asked)
    assert learned > ndcg_of(untrained(memory), memory, given, asked) + 0.15


def test_documents_nobody_met_are_found_by_what_texts_tell():
    rng = np.random.default_rng(1)
    memory, met, _ = communities(rng)
    new = np.arange(len(memory)) >= 40
    of_new = new[met.indices]
    given, asked = without(met, of_new), without(met, ~of_new)
    users = np.flatnonzero((lengths(given) >= 2) & (lengths(asked) > 0))
    found = fit_next_items(memory, given, replace(USUAL, rates={**RATES, "maps": 1e-2}))
    before = ndcg_of(untrained(memory), memory, given[users], asked[users], new)
    assert ndcg_of(found, memory, given[users], asked[users], new) > before + 0.1
    assert not np.isin(found.offset_keys, np.flatnonzero(new)).any()


def test_one_seed_gives_one_fit_and_another_another():
    memory, met = memory_of([1, 2] * 10, 6), drawn_met(40, 20, seed=0, share=0.2)
    first, again, other = (fit_next_items(memory, met, USUAL, seed=seed) for seed in (1, 1, 2))
    for one, two in zip(first, again, strict=True):
        np.testing.assert_array_equal(one, two)
    assert not np.array_equal(first.w_q, other.w_q)


def test_part_of_the_way_and_without_offsets():
    memory, met = memory_of([1] * 20, 6), drawn_met(40, 20, seed=0, share=0.2)
    found = fit_next_items(memory, met, USUAL)
    start, eye = untrained(memory), np.eye(6, dtype=np.float32)
    np.testing.assert_array_equal(found.mixed(eye, 1.0).w_q, found.w_q)
    np.testing.assert_allclose(
        found.mixed(eye, 0.0).document_queries(memory), start.document_queries(memory), atol=1e-6
    )
    np.testing.assert_allclose(found.mixed(eye, 0.0).gates, 1.0)
    half = found.mixed(eye, 0.5)
    np.testing.assert_allclose(half.w_k, (np.eye(6) + found.w_k) / 2, atol=1e-6)
    np.testing.assert_allclose(half.offsets, found.offsets / 2)
    assert not found.without_offsets().document_moves(memory).any()
    assert found.document_moves(memory).any()


def test_whoever_watches_may_stop_it():
    class Stop(Exception):
        pass

    def watch(done: float) -> None:
        if done > 0.1:
            raise Stop

    with pytest.raises(Stop):
        fit_next_items(memory_of([1] * 9, 5), drawn_met(12, 9, seed=4), STILL, watch=watch)


def test_without_two_documents_of_anybody_there_is_nothing_to_learn():
    with pytest.raises(InvalidRequest, match="No user has two documents"):
        fit_next_items(memory_of([1] * 3, 5), met_of([[1, 0, 0], [0, 0, 1]]), STILL)


def test_numbers_without_bounds_stop_with_a_sentence():
    memory = memory_of([1] * 6, 4, at_length_one=False)
    with pytest.raises(Conflict, match="not finite"):
        fit_next_items(
            memory,
            drawn_met(9, 6, seed=1, share=0.6),
            replace(USUAL, rates={**RATES, "maps": 1e30}),
        )
