"""Attention between tokens: the pairs of tokens in a score, against loops and the library."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attend.collection.data import Data
from attend.core.errors import InvalidRequest, LimitExceeded
from attend.core.settings import Tuning
from attend.encoder import DEFAULT, load
from attend.encoder.loading import find
from attend.projection import Projection
from tests.index.helpers import vector_data
from tests.index.world import World

WIDTH = 32


@pytest.fixture
def world(tmp_path: Path, tiny_encoder: Any) -> Iterator[World]:
    world = World(tmp_path, tiny_encoder, seed=5)
    world.take("write", range(12))
    yield world
    world.data.close()


def activate(world: World, rng: np.random.Generator, **settings: Any) -> Projection:
    """Answer by random matrices near the identity, with all that an affine projection has."""
    heads = settings.pop("heads", 1)
    near = np.eye(WIDTH) + 0.2 * rng.standard_normal((2, heads, WIDTH, WIDTH))
    projection = Projection(
        kind="given",
        d_in=WIDTH,
        gates=np.full(heads, 1 / heads),
        w_q=near[0],
        w_k=near[1],
        b_q=0.1 * rng.standard_normal((heads, WIDTH)),
        b_k=0.1 * rng.standard_normal((heads, WIDTH)),
        center=0.05 * rng.standard_normal(WIDTH),
        **settings,
    )
    offsets = {id: 0.1 * rng.standard_normal(WIDTH) for id in world.key_ids()[::2]}
    world.version(projection, Tuning(scale=(20.0,) * heads), offsets, activate=True)
    return projection


def token_rows(encoder: Any, text: str) -> np.ndarray:
    """Read the vectors of a text's tokens from the tiny model's table."""
    module = next(iter(encoder._model))
    ids = module.tokenizer.encode(text, add_special_tokens=False).ids
    return module.embedding.weight.detach().numpy()[ids].astype(np.float64)


def total(explanation: dict[str, Any]) -> float:
    tokens = explanation["tokens"]
    return float(np.sum(tokens["shares"])) + tokens["rest"]


@pytest.mark.parametrize(
    "settings",
    [None, {}, {"heads": 3}, {"normalize_queries": True, "normalize_keys": True}],
    ids=["untrained", "matrices", "heads", "normalised"],
)
def test_the_shares_of_pairs_are_products_of_projected_tokens(
    world: World, settings: dict[str, Any] | None
) -> None:
    rng = np.random.default_rng(1)
    p = None if settings is None else activate(world, rng, **settings)
    hits = world.collection.search("gold storm at sea", explain="tokens", k=5, lexical=False).hits
    asked = token_rows(world.encoder, "gold storm at sea")
    for hit in hits:
        explanation = hit.explanation
        passage = token_rows(world.encoder, explanation["passage"])
        a, b = (rows / np.linalg.norm(rows.sum(axis=0)) for rows in (asked, passage))
        expected = np.zeros((len(a), len(b)))
        for head in range(1 if p is None else p.heads):
            gate = 1.0 if p is None else p.gates[head]
            left = np.eye(WIDTH) if p is None else p.w_q[head].astype(float)
            right = np.eye(WIDTH) if p is None else p.w_k[head].astype(float)
            lengths = 1.0
            if p is not None and p.normalize_keys:
                moved = b.sum(axis=0) + offset_of(world, explanation, hit.id)
                query = left @ (a.sum(axis=0) - p.center) + p.b_q[head]
                key = right @ (moved - p.center) + p.b_k[head]
                lengths = np.linalg.norm(query) * np.linalg.norm(key)
            for i, word in enumerate(a):
                for j, other in enumerate(b):
                    expected[i, j] += gate * 20.0 * (left @ word) @ (right @ other) / lengths
        np.testing.assert_allclose(explanation["tokens"]["shares"], expected, atol=1e-4)
        assert total(explanation) == pytest.approx(explanation["dense"], abs=1e-6)
        if p is None or p.heads == 1:
            assert total(explanation) == pytest.approx(hit.score, abs=1e-4)
        if p is None:  # a table of vectors has neither special tokens nor biases
            assert explanation["tokens"]["rest"] == pytest.approx(0, abs=1e-4)


def offset_of(world: World, explanation: dict[str, Any], id: str) -> np.ndarray:
    """Read the learned offset of the key that matched."""
    store = world.store
    keys = store.own_keys(np.array([store.find([id])[id].row]))
    fields = {key.field: key.id for key in store.keys_of(keys.ids).values()}
    offsets = world.collection.views.current().version.offsets
    place = np.flatnonzero(offsets.keys == fields[explanation["field"]])
    return offsets.deltas[place[0]] if len(place) else np.zeros(WIDTH)


@pytest.mark.parametrize("trained", [False, True])
def test_the_pairs_are_those_of_the_query_before_feedback_moved_it(
    world: World, trained: bool
) -> None:
    if trained:
        activate(world, np.random.default_rng(3), normalize_queries=True, normalize_keys=True)
    query, options = "gold storm at sea", {"explain": "tokens", "k": 12, "lexical": False}
    before = {hit.id: hit for hit in world.collection.search(query, **options).hits}
    world.teach("storm at sea", ["d3", "d5"])
    moved = world.collection.search(query, memory=0.7, **options).hits
    for hit in moved:
        plain, parts = before[hit.id].explanation, hit.explanation
        assert total(parts) == pytest.approx(hit.score, abs=1e-4)
        assert parts["dense"] - parts["memory"] == pytest.approx(plain["dense"], abs=1e-4)
        if parts["field"] == plain["field"]:
            assert parts["tokens"]["shares"] == plain["tokens"]["shares"]
            expected = plain["tokens"]["rest"] + parts["memory"]
            assert parts["tokens"]["rest"] == pytest.approx(expected, abs=1e-4)
    assert any(abs(hit.explanation["memory"]) > 0.1 for hit in moved)


def test_words_and_places_of_tokens(world: World) -> None:
    hit = world.collection.search("gold rain", explain="tokens", lexical=1.0, k=1).hits[0]
    tokens = hit.explanation["tokens"]
    assert "".join(word["text"] for word in tokens["query"]) == "gold rain"
    passage = hit.explanation["passage"]
    assert [passage[word["start"] : word["stop"]] for word in tokens["passage"]] == [
        word["text"] for word in tokens["passage"]
    ]
    assert np.shape(tokens["shares"]) == (len(tokens["query"]), len(tokens["passage"]))
    assert total(hit.explanation) + hit.explanation["lexical"] == pytest.approx(hit.score)
    plain = world.collection.search("gold rain", explain=True, k=1).hits[0]
    assert "tokens" not in plain.explanation


def test_a_key_that_is_no_text_has_no_tokens(world: World) -> None:
    world.collection.upsert([{"id": "own", "text": "gold rain", "vector": [1.0] * WIDTH}])
    hits = world.collection.search("gold rain", explain="tokens", k=20).hits
    without = [hit.id for hit in hits if hit.explanation["tokens"] is None]
    assert without == ["own"]
    laplace = world.collection.search("gold rain", explain="tokens", scorer="laplace", k=2).hits
    assert [hit.explanation["tokens"] for hit in laplace] == [None, None]


def test_what_has_no_tokens_is_refused_with_a_sentence(world: World, tmp_path: Path) -> None:
    for query in ([1.0] * WIDTH, {"id": "d1"}, {"blend": [{"text": "gold"}, {"text": "rain"}]}):
        with pytest.raises(InvalidRequest, match="the query is no single text"):
            world.collection.search(query, explain="tokens")
    vectors = vector_data(tmp_path / "vectors").create(dimension=2)
    vectors.upsert([{"id": "a", "vector": [1, 0]}])
    with pytest.raises(InvalidRequest, match="the query is no single text"):
        vectors.search([1, 0], explain="tokens")
    with pytest.raises(InvalidRequest, match="made for vectors and has no encoder"):
        vectors.search({"text": "gold", "vector": [1, 0]}, explain="tokens")


def test_no_more_shares_are_sent_than_elsewhere(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attend.search.pairs.MAX_SHARES", 30)
    with pytest.raises(LimitExceeded, match="lower k"):
        world.collection.search("gold storm at sea", explain="tokens", k=10)


@pytest.fixture(scope="module")
def exact() -> Any:
    return load(DEFAULT, precision="float32")


def test_tokens_are_those_of_sentence_transformers(exact: Any, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    texts = ["A white whale, hunted by a captain.", "Zürich in snow ❄ is quiet", "ice " * 300]
    data = Data(tmp_path, load_encoder=lambda name: exact)
    collection = data.create("c", encoder=DEFAULT, passages=False)
    collection.upsert([{"id": str(n), "text": text} for n, text in enumerate(texts)])
    hits = collection.search("who catches a whale?", explain="tokens", k=3, lexical=False).hits
    model = SentenceTransformer(find(DEFAULT).place, device="cpu")
    read = model.encode(
        ["who catches a whale?", *texts], output_value="token_embeddings", show_progress_bar=False
    )
    query, *passages = [rows.numpy().astype(np.float64) for rows in read]
    unit = [rows / np.linalg.norm(rows.sum(axis=0)) for rows in (query, *passages)]
    for hit in hits:
        pairs = 20.0 * unit[0] @ unit[1 + int(hit.id)].T
        tokens = hit.explanation["tokens"]
        np.testing.assert_allclose(tokens["shares"], pairs[1:-1, 1:-1], atol=1e-5)
        rest = pairs.sum() - pairs[1:-1, 1:-1].sum()
        assert tokens["rest"] == pytest.approx(rest, abs=1e-4)
        assert total(hit.explanation) == pytest.approx(hit.score, abs=1e-4)
    data.close()
