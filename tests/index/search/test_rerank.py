"""Late interaction: the best documents scored once more, against loops over their tokens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attend.core.errors import InvalidRequest
from attend.encoder.tokens import EmbeddingCache, TokenStates, UnitTokens
from attend.search.tokens import SHARE
from tests.index.helpers import vector_data
from tests.index.search.test_tokens import WIDTH, activate, token_rows
from tests.index.world import World

QUERY = "gold storm at sea"


@pytest.fixture
def world(tmp_path: Path, tiny_encoder: Any) -> Iterator[World]:
    world = World(tmp_path, tiny_encoder, seed=5)
    world.take("write", range(30))
    yield world
    world.data.close()


def max_sim(world: World, passage: str, left: np.ndarray, right: np.ndarray) -> float:
    """Compare tokens one by one: the mean of each query token's best."""
    query, words = token_rows(world.encoder, QUERY), token_rows(world.encoder, passage)
    best = [
        max(float((left @ q) @ (right @ (w / np.linalg.norm(w)))) for w in words)
        for q in query / np.linalg.norm(query, axis=1, keepdims=True)
    ]
    return float(np.mean(best))


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize(("lexical", "memory"), [(0.0, 0.0), (0.3, 0.0), (0.3, 0.7)])
def test_a_score_is_a_mean_of_both_scores_on_one_scale(
    world: World, trained: bool, lexical: float, memory: float
) -> None:
    world.teach("storm at sea", ["d3", "d5"])  # it moves the query, and not its tokens
    left = right = np.eye(WIDTH)
    if trained:
        p = activate(world, np.random.default_rng(1))
        left, right = p.w_q[0].astype(float), p.w_k[0].astype(float)
    options = {"lexical": lexical, "memory": memory, "explain": True, "k": 30}
    first = world.collection.search(QUERY, **options).hits
    second = world.collection.search(QUERY, rerank=8, **options).hits
    by_id = {hit.id: hit for hit in first}
    assert {hit.id for hit in second[:8]} == {hit.id for hit in first[:8]}
    assert [hit.id for hit in second[8:]] == [hit.id for hit in first[8:]]
    expected = {}
    for hit in first[:8]:
        word_part = hit.explanation["lexical"]
        sim = 20.0 * max_sim(world, hit.explanation["passage"], left, right)
        expected[hit.id] = (1 - SHARE) * (hit.score - word_part) + SHARE * sim + word_part
    shift = np.logaddexp.reduce([hit.score for hit in first[:8]]) - np.logaddexp.reduce(
        list(expected.values())
    )
    beyond = first[8].score
    for hit in second[:8]:
        assert hit.score == pytest.approx(max(expected[hit.id] + shift, beyond), abs=0.02)
        assert hit.score > beyond
        parts = hit.explanation
        assert parts["dense"] + parts["lexical"] + parts["rerank"] == pytest.approx(hit.score)
        assert parts["rank_before_rerank"] == by_id[hit.id].explanation["rank"]
    assert sum(hit.weight for hit in second) == pytest.approx(1)


def test_the_reranked_weigh_together_what_they_weighed(world: World) -> None:
    first = world.collection.search(QUERY, k=30, temperature=0.5).hits
    second = world.collection.search(QUERY, k=30, temperature=0.5, rerank=30).hits
    assert [hit.id for hit in first] != [hit.id for hit in second]
    totals = [np.logaddexp.reduce([2 * hit.score for hit in hits]) for hits in (first, second)]
    assert totals[0] == pytest.approx(totals[1])
    assert world.collection.search(QUERY, k=30, temperature=0.5, rerank=0).hits == first


@pytest.mark.parametrize("heads", [1, 3])
def test_pages_filters_and_batches_see_one_order(world: World, heads: int) -> None:
    activate(world, np.random.default_rng(2), heads=heads)
    options: dict[str, Any] = {"rerank": 6, "filter": {"c": "blue"}, "query": QUERY}
    every = world.collection.search_many([options | {"k": 15}])[0].hits
    assert [hit.score for hit in every] == sorted((hit.score for hit in every), reverse=True)
    assert {hit.payload["c"] for hit in every} == {"blue"}
    pages, cursor = [], None
    while len(pages) < len(every):
        page = world.collection.search_many([options | {"k": 4, "cursor": cursor}])[0]
        pages, cursor = [*pages, *page.hits], page.next
    assert [hit.id for hit in pages[: len(every)]] == [hit.id for hit in every]
    both = world.collection.search_many([options | {"k": 15}, options | {"query": "night lamp"}])
    assert [hit.id for hit in both[0].hits] == [hit.id for hit in every]


def test_a_document_without_text_keeps_its_distance_to_the_mean(world: World) -> None:
    vector = world.encoder.encode_queries([QUERY])[0].tolist()
    world.collection.upsert([{"id": "own", "vector": vector}])
    hits = world.collection.search(QUERY, rerank=10, k=10, explain=True).hits
    added = {hit.id: hit.explanation["rerank"] for hit in hits}
    assert min(added.values()) < added["own"] < max(added.values())


def test_what_has_no_tokens_is_refused_with_a_sentence(world: World, tmp_path: Path) -> None:
    for query in ([1.0] * WIDTH, {"id": "d1"}, {"mixture": [{"text": "gold"}, {"text": "rain"}]}):
        with pytest.raises(InvalidRequest, match="the query is no single text"):
            world.collection.search(query, rerank=5)
    with pytest.raises(InvalidRequest, match="the scorer is laplace"):
        world.collection.search(QUERY, rerank=5, scorer="laplace")
    for options in ({"attend": "all"}, {"attend": 20}):
        with pytest.raises(InvalidRequest, match="give an attend that is a number"):
            world.collection.search(QUERY, rerank=30, **options)
    with pytest.raises(InvalidRequest, match="100"):
        world.collection.search(QUERY, rerank=101)
    vectors = vector_data(tmp_path / "vectors").create(dimension=2)
    vectors.upsert([{"id": "a", "vector": [1, 0]}])
    with pytest.raises(InvalidRequest, match="made for vectors and has no encoder"):
        vectors.search({"text": "gold", "vector": [1, 0]}, rerank=5)


def test_an_encoder_that_pools_otherwise_says_so(world: World) -> None:
    world.encoder.__dict__["_read_tokens"] = None
    try:
        with pytest.raises(InvalidRequest, match="does not pool its tokens by the mean"):
            world.collection.search("never asked before", rerank=5)
    finally:
        del world.encoder.__dict__["_read_tokens"]


def test_tokens_are_read_once_and_the_cache_stays_bounded() -> None:
    calls: list[str] = []

    def read(texts: Any, task: str) -> list[TokenStates]:
        calls.extend(texts)
        special = np.array([True, *[False] * 8])
        rows = np.random.default_rng(len(texts[0])).standard_normal((9, 32)).astype(np.float32)
        return [TokenStates(rows, np.zeros((9, 2), np.int64), special) for _ in texts]

    tokens = UnitTokens(read, "tiny", limit=5000)
    one, same = tokens(["a", "a"], "document")
    assert one.shape == (8, 32)
    assert (one == same).all()
    assert calls == ["a"]
    np.testing.assert_allclose(np.linalg.norm(one.astype(float), axis=1), 1, atol=2e-3)
    tokens(["a"], "document")
    assert calls == ["a"]
    tokens([f"text {number}" for number in range(100)], "document")
    assert isinstance(tokens.cache, EmbeddingCache)
    assert 0 < tokens.cache.usage().size <= 5000
