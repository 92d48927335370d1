"""A second layer over the candidates, against the formula written out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attend.core.settings import DEFAULT_LAYER, UNFITTED_WORDS, Tuning
from attend.projection import identity
from attend.search.attend import BEST, SHARPNESS
from tests.index.helpers import vector_data
from tests.index.search.test_tokens import WIDTH
from tests.index.world import World

QUERY = "gold storm at sea"


@pytest.fixture
def world(tmp_path: Path, tiny_encoder: Any) -> Iterator[World]:
    world = World(tmp_path, tiny_encoder, seed=5)
    world.take("write", range(30))
    yield world
    world.data.close()


def once(world: World, **options: Any) -> list[Any]:
    """Search by keys and words alone."""
    fields = UNFITTED_WORDS.model_dump() | {"layer": 0.0}
    fitted = world.version(identity(WIDTH), Tuning(**fields))
    return world.collection.search(QUERY, projection=fitted.number, **options).hits


@pytest.mark.parametrize("attend", [100, 12, 3])
def test_a_query_takes_the_best_keys_less_the_mean_of_all(world: World, attend: int) -> None:
    options = {"attend": attend, "k": min(attend, 30), "explain": True}
    before, after = once(world, **options), world.collection.search(QUERY, **options).hits
    query = world.encoder.encode_queries([QUERY])[0].astype(float)
    table = world.store.own_keys(np.array([world.store.find([h.id])[h.id].row for h in before]))
    keys = dict(zip(table.rows.tolist(), np.split(table.vectors, table.starts[1:-1]), strict=True))
    best = np.array(
        [
            max(keys[world.store.find([hit.id])[hit.id].row], key=lambda k: k @ query)
            for hit in before
        ]
    )
    z = np.array([hit.score for hit in before]) / 20
    shares = np.exp(SHARPNESS * (z[:BEST] - z[0]))
    taken = shares / shares.sum() @ best[:BEST] - best.mean(axis=0)
    again = z + DEFAULT_LAYER * (best @ taken - best @ query)
    order = np.argsort(-again, kind="stable")
    assert [hit.id for hit in after] == [before[place].id for place in order]
    assert [hit.score for hit in after] == pytest.approx([hit.score for hit in before])
    for hit in after:
        parts = hit.explanation
        assert parts["dense"] + parts["lexical"] + parts["layer"] == pytest.approx(hit.score)


def test_example_keys_are_found_and_not_taken_up(world: World) -> None:
    """An example has the query's own words: q' is made of documents."""
    world.teach(QUERY, ["d3"])
    fields = UNFITTED_WORDS.model_dump() | {"examples": 0.9, "memory": 0.0}
    one, two = (
        world.version(identity(WIDTH), Tuning(**fields | {"layer": layer})).number
        for layer in (0.0, DEFAULT_LAYER)
    )
    before, after = (
        world.collection.search(QUERY, projection=version, k=30, explain=True).hits
        for version in (one, two)
    )
    (taught,) = (hit for hit in before if hit.id == "d3")
    assert taught.explanation["dense"] == pytest.approx(0.9 * 20)  # by its example
    query = world.encoder.encode_queries([QUERY])[0].astype(float)
    rows = {id: stored.row for id, stored in world.store.find([h.id for h in before]).items()}
    table = world.store.own_keys(np.array(list(rows.values())))
    keys = dict(zip(table.rows.tolist(), np.split(table.vectors, table.starts[1:-1]), strict=True))
    best = np.array([max(keys[rows[hit.id]], key=lambda k: k @ query) for hit in before])
    z = np.array([hit.score for hit in before]) / 20
    shares = np.exp(SHARPNESS * (z[:BEST] - z[0]))
    taken = shares / shares.sum() @ best[:BEST] - best.mean(axis=0)
    order = np.argsort(-(z + DEFAULT_LAYER * (best @ taken - best @ query)), kind="stable")
    assert [hit.id for hit in after] == [before[place].id for place in order]


def test_documents_that_only_examples_name_have_one_layer(world: World) -> None:
    """A document without text has no key of its own that could say it in other words."""
    world.collection.upsert([{"id": "bare", "value": 1, "payload": {"c": "bare"}}])
    world.teach(QUERY, ["bare"])
    fields = UNFITTED_WORDS.model_dump() | {"examples": 0.9, "memory": 0.0}
    version = world.version(identity(WIDTH), Tuning(**fields)).number
    for options in ({"filter": {"c": "bare"}}, {}):
        hits = world.collection.search(QUERY, projection=version, k=40, **options).hits
        assert "bare" in [hit.id for hit in hits]


def test_it_is_of_searches_by_text_with_the_words_of_the_version(
    world: World, tmp_path: Path
) -> None:
    vector = world.encoder.encode_queries([QUERY])[0].tolist()
    plain: list[dict[str, Any]] = [
        {"query": vector},
        {"query": {"id": "d3"}},
        {"query": {"mixture": [{"text": "gold"}, {"text": "rain"}]}},
        {"query": QUERY, "lexical": False},
        {"query": QUERY, "lexical": 0.2},
        {"query": QUERY, "pool": "sum"},
        {"query": QUERY, "scorer": "laplace"},
        {"query": QUERY, "attend": "all"},
    ]
    for fields in plain:
        hits = world.collection.search_many([fields | {"explain": True}])[0].hits
        assert [hit.explanation["layer"] for hit in hits] == [0.0] * 10
    vectors = vector_data(tmp_path / "vectors").create(dimension=2)
    vectors.upsert([{"id": "a", "vector": [1, 0], "text": "gold"}])
    request = {"text": "gold", "vector": [1.0, 0.5]}
    parts = vectors.search(request, explain=True).hits[0].explanation
    assert (parts["lexical"], parts["layer"]) == (0.0, 0.0)


def test_what_was_fitted_stays_as_it_was(world: World) -> None:
    fields = UNFITTED_WORDS.model_dump() | {"null": (9.0,)}
    fitted = [
        world.version(identity(WIDTH), Tuning(**fields | {"layer": layer})).number
        for layer in (0.0, DEFAULT_LAYER)
    ]
    first, second = (world.collection.search(QUERY, projection=n, k=30) for n in fitted)
    assert [hit.id for hit in first.hits] != [hit.id for hit in second.hits]
    assert first.confidence == pytest.approx(second.confidence)
    reranked = world.collection.search(QUERY, projection=fitted[1], k=30, rerank=8, explain=True)
    for hit in reranked.hits:
        parts = hit.explanation
        total = parts["dense"] + parts["lexical"] + parts["layer"] + parts["rerank"]
        assert total == pytest.approx(hit.score)
