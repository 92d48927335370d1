"""The model of the sizing, against simulations and counts done otherwise."""

from __future__ import annotations

import doctest
import math
import sys

import numpy as np
import pytest

from tests.places import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

import sizing
from sizing import GIB, Measured, Node, merged_recall, plan, slowest

K = 10
DRAWS = 20_000


def test_examples() -> None:
    assert doctest.testmod(sizing).failed == 0


FOUND = {
    "all": [1.0] * K,
    "two": [1.0, 1.0] + [0.0] * (K - 2),
    "fewer of the far": np.linspace(1.0, 0.8, K).tolist(),
    "alike": [0.95] * K,
}


@pytest.mark.parametrize("shards", [1, 2, 8, 40])
@pytest.mark.parametrize("by_rank", FOUND.values(), ids=FOUND)
def test_merged_recall_is_what_a_simulation_finds(shards: int, by_rank: list[float]) -> None:
    """Each of the ten nearest lies on a random shard, and is found there as often as its rank."""
    rng = np.random.default_rng(shards)
    of = rng.integers(shards, size=(DRAWS, K))
    ranks = np.array([(of[:, :g] == of[:, g : g + 1]).sum(axis=1) for g in range(K)]).T
    found = (rng.random((DRAWS, K)) < np.array(by_rank)[ranks]).mean(axis=1)
    error = 4 * found.std() / math.sqrt(DRAWS) + 1e-12
    assert merged_recall(by_rank, shards) == pytest.approx(found.mean(), abs=error)


def test_shards_that_list_k_lose_nothing() -> None:
    """Against a search of everything, with keys in place of the formula's coins."""
    rng = np.random.default_rng(4)
    keys, query = rng.normal(size=(500, 8)), rng.normal(size=8)
    scores, of = keys @ query, rng.integers(7, size=500)
    best = set(np.argsort(-scores)[:K].tolist())
    merged: list[int] = []
    for shard in range(7):
        own = np.flatnonzero(of == shard)
        merged += own[np.argsort(-scores[own])[:K]].tolist()
    assert set(sorted(merged, key=lambda at: -scores[at])[:K]) == best
    assert merged_recall(FOUND["all"], 7) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("shards", [1, 4, 25])
@pytest.mark.parametrize("quantile", [0.5, 0.95, 0.99])
def test_the_slowest_shard_is_what_a_simulation_finds(shards: int, quantile: float) -> None:
    rng = np.random.default_rng(6)
    latencies = rng.lognormal(size=4000)
    drawn = rng.choice(latencies, size=(DRAWS, shards)).max(axis=1)
    # A quantile's own error is one of ranks: compare how many lie below it.
    below = float((drawn <= slowest(latencies, shards, quantile)).mean())
    error = 4 * math.sqrt(quantile * (1 - quantile) / DRAWS) + 1e-3 * shards
    assert below == pytest.approx(quantile, abs=error)


MEASURED = Measured(
    memory_bytes=2000,
    disk_bytes=4000,
    segment_keys=250_000,
    search_seconds=0.002,
    store_seconds=500,
    encoded_a_second=1000,
)


@pytest.mark.parametrize("keys", [1_000_000, 10_000_000, 123_456_789, 1_000_000_000])
@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_a_plan_holds_its_keys_and_no_node_more_than_it_may(keys: int, replicas: int) -> None:
    node = Node()
    made = plan(keys, MEASURED, node, replicas)
    room = made.nodes_a_replica * node.memory * node.share
    assert keys * 2000 <= room
    assert made.nodes_a_replica == 1 or keys * 2000 > room - node.memory * node.share
    assert made.memory == replicas * keys * 2000
    assert made.shards * sizing.CHANNEL_KEYS >= keys
    # Processor seconds of all searches in a second: no more than there are.
    used = made.searches_a_second * math.ceil(keys / 250_000) * 0.002
    assert used == pytest.approx(replicas * made.nodes_a_replica * node.cores)


def test_a_plan_in_round_numbers() -> None:
    """One node with room for a million keys, worked out by hand."""
    node = Node(memory=4 * GIB, cores=10, share=0.5)
    made = plan(1_000_000, MEASURED, node, replicas=2)
    assert (made.nodes_a_replica, made.shards) == (1, 2)
    assert made.searches_a_second == pytest.approx(2 * 10 / (4 * 0.002))
    assert made.store_hours == pytest.approx(500 / 10 / 3600)
    assert made.encoding_hours == pytest.approx(1_000_000 / 1000 * 2 / 10 / 3600)
