"""Queries made of several, and of documents: against the arithmetic they stand for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attend.api.base import parse
from attend.api.search import SearchRequest
from attend.core.errors import InvalidRequest, UnknownDocument
from tests.index.helpers import brute_logits, vector_data
from tests.index.world import World

WIDTH = 3
KEYS = {
    "a": [1.0, 0.0, 0.0],
    "b": [0.5, 0.5, 0.0],
    "c": [0.0, 1.0, 0.5],
    "d": [0.25, 0.0, 1.0],
}


@pytest.fixture
def collection(tmp_path):
    made = vector_data(tmp_path).create(dimension=WIDTH, scale=1.0)
    made.upsert([{"id": id, "vector": key} for id, key in KEYS.items()])
    return made


def scores(answer) -> dict[str, float]:
    return {hit.id: hit.score for hit in answer.hits}


def test_a_blend_is_the_weighted_mean_of_its_parts(collection):
    blend = [[1.0, 2.0, 0.0], {"vector": [0.0, 1.0, 4.0], "weight": 3}, {"id": "a", "weight": -1}]
    mean = (np.array([1, 2, 0]) + 3 * np.array([0, 1, 4]) - np.array([1, 0, 0])) / 5
    found = collection.search({"blend": blend})
    expected = brute_logits(mean, {id: [key] for id, key in KEYS.items() if id != "a"})
    assert scores(found) == pytest.approx(expected, abs=1e-6)


def test_ids_are_a_blend_of_equal_weights(collection):
    equal = {"blend": [{"id": "a"}, {"id": "c"}]}
    assert scores(collection.search({"ids": ["a", "c"]})) == scores(collection.search(equal))
    alone = collection.search({"ids": ["a"]})
    assert scores(alone) == scores(collection.search({"id": "a"}))
    assert sorted(hit.id for hit in alone.hits) == ["b", "c", "d"]


def test_documents_that_ask_are_masked_unless_wanted(collection):
    assert sorted(scores(collection.search({"ids": ["a", "b"]}))) == ["c", "d"]
    assert len(collection.search({"id": "a"}, exclude_self=False).hits) == 4
    only = {"only": ["a", "b"]}
    assert sorted(scores(collection.search({"id": "a"}, mask=only))) == ["a", "b"]
    both = {"only": ["a", "b"], "exclude": ["a"]}
    assert list(scores(collection.search({"id": "a"}, mask=both))) == ["b"]
    filtered = collection.search({"id": "a"}, filter={"@id": {"in": ["a", "d"]}})
    assert list(scores(filtered)) == ["d"]


def test_each_of_a_batch_is_without_itself(collection):
    requests = [parse(SearchRequest, {"query": {"id": id}}) for id in KEYS]
    for id, answer in zip(KEYS, collection.search_many(requests), strict=True):
        assert sorted(scores(answer)) == sorted(set(KEYS) - {id})
        assert sum(hit.weight for hit in answer.hits) == pytest.approx(1)
    assert collection.matrix(requests).documents == list(KEYS)


@pytest.mark.parametrize(("count", "attend"), [(40, 100), (3000, 7), (3000, 100)])
def test_a_query_has_every_digit_of_its_scores_in_any_company(tmp_path, count, attend):
    """A page is followed by another that may be asked for beside others."""
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(count, 384)).astype(np.float32)
    many = vector_data(tmp_path).create(dimension=384)
    rows = np.concatenate([vectors, vectors[::2]])  # half of them twice
    many.upsert([{"id": str(at), "vector": each} for at, each in enumerate(rows)])
    requests = [
        {"query": each, "k": attend, "attend": attend} for each in rng.normal(size=(9, 384))
    ]
    alone = [many.search_many([each])[0] for each in requests]
    for several in (2, 4, 5, 9):
        for answer, one in zip(many.search_many(requests[:several]), alone, strict=False):
            assert list(scores(answer).items()) == list(scores(one).items())


def test_a_blend_at_length_one_where_embeddings_have_it(tmp_path):
    unit = vector_data(tmp_path).create(dimension=2, normalize=True, scale=1.0)
    unit.upsert([{"id": "x", "vector": [3, 0]}, {"id": "y", "vector": [0, 2]}])
    found = unit.search({"blend": [[1.0, 0.0], [0.0, 1.0]]})
    assert scores(found) == pytest.approx({"x": 0.5**0.5, "y": 0.5**0.5})
    opposed = {"blend": [[1.0, 0.0], {"vector": [1.0, 0.0], "weight": -1}]}
    with pytest.raises(InvalidRequest, match="cancel each other out"):
        unit.search(opposed)


@given(st.lists(st.floats(0.25, 4), min_size=1, max_size=4))
@settings(max_examples=10, deadline=None)
def test_the_scale_of_weights_does_not_matter(weights):
    query = {"blend": [{"text": str(at), "weight": each} for at, each in enumerate(weights)]}
    parts = parse(SearchRequest, {"query": query}).query.parts()
    assert [part.weight for part in parts] == pytest.approx(np.array(weights) / sum(weights))


@pytest.mark.parametrize(
    ("query", "error", "said"),
    [
        ({"ids": []}, InvalidRequest, "a list of 1 or more"),
        ({"ids": ["a", "z"]}, UnknownDocument, "'z'"),
        ({"id": "a", "ids": ["b"]}, InvalidRequest, "id and ids were given"),
        ({"blend": []}, InvalidRequest, "a list of 1 or more"),
        ({"blend": [{"id": "a", "weight": 0}]}, InvalidRequest, "every weight of the blend"),
        ({"blend": [{"weight": 1}]}, InvalidRequest, "a part of a blend has exactly one"),
        ({"blend": [{"id": "a", "weight": 1e9}]}, InvalidRequest, "or less"),
        ({"blend": ["text"]}, InvalidRequest, "made for vectors"),
    ],
)
def test_a_query_that_is_none_says_why(collection, query, error, said):
    with pytest.raises(error, match=said):
        collection.search(query)


def test_the_words_of_a_blend_add_up_by_their_weights(tmp_path, tiny_encoder):
    world = World(tmp_path, tiny_encoder)
    world.take("write", range(30))
    search = world.collection.search
    both = {"blend": ["gold", {"text": "rain island", "weight": 3}, {"text": "sea", "weight": -1}]}
    shares = {"gold": 1 / 5, "rain island": 3 / 5}
    by_text = {
        text: {
            hit.id: hit.explanation["lexical"]
            for hit in search(text, lexical=0.5, explain=True, k=100).hits
        }
        for text in shares
    }
    terms = {
        term
        for text in shares
        for hit in search(text, lexical=0.5, explain=True, k=1).hits
        for term in hit.explanation["terms"]
    }
    blended = search(both, lexical=0.5, explain=True, k=100).hits
    assert any(hit.explanation["lexical"] > 0 for hit in blended)
    for hit in blended:
        expected = sum(share * by_text[text][hit.id] for text, share in shares.items())
        assert hit.explanation["lexical"] == pytest.approx(expected)
        assert set(hit.explanation["terms"]) == terms
