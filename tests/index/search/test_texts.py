"""Texts that are no documents: scored as if they were, and embedded as the collection does."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit

from attend.core.errors import InvalidRequest
from attend.core.settings import Tuning
from attend.projection import given as projection_given
from attend.projection import identity
from attend.search.texts import cosine_scores, embeddings_of
from tests.index.world import World

WIDTH = 32
QUERY = "gold rain island"
TUNING = {"scale": (6.0,), "null": (3.0,), "attend": 100, "scorer": "dot"}


@pytest.fixture
def world(tmp_path, tiny_encoder):
    world = World(tmp_path, tiny_encoder, 3)
    world.take("write", range(30))
    yield world
    world.data.close()


def activate(world, projection, tuning):
    world.collection.activate(world.version(projection, tuning).number, force=True)


def stored_texts(world, ids):
    """Texts of documents that have one field."""
    documents = world.store.find(ids)
    return {
        id: text
        for id in ids
        if len(documents[id].fields) == 1
        for text in documents[id].fields.values()
    }


def rotation(seed):
    rng = np.random.default_rng(seed)
    return np.linalg.qr(rng.standard_normal((WIDTH, WIDTH)))[0].astype(np.float32)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"lexical": 0.3, "coverage": 0.5},
        {"levels": (0.2, 0.1)},
        {"temperature": 2.0},
        {"lexical": 0.3, "coverage": 0.5, "layer": 0.4},
    ],
)
def test_documents_sent_as_texts_score_as_the_search_weighs_them(world, more):
    """The search's own logits and no-answer score say what each weighs alone."""
    tuning = Tuning(**TUNING, **more)
    activate(world, projection_given(w_q=rotation(1), w_k=rotation(2)), tuning)
    texts = stored_texts(world, [f"d{n}" for n in range(30)])
    assert len(texts) >= 5
    options = {"mask": {"only": list(texts)}, "k": 100, "explain": True, "min_confidence": 0}
    answer = world.collection.search(QUERY, **options)
    t = answer.weighing.temperature
    expected = {hit.id: expit((hit.score - answer.weighing.null[0]) / t) for hit in answer.hits}
    scores = world.collection.readers.texts.scores(QUERY, list(texts.values()))
    for id, score in zip(texts, scores, strict=True):
        # FTS5 keeps scores of words as float32.
        assert score == pytest.approx(expected[id], abs=1e-5)
    assert np.ptp(scores) > 0.01


def test_words_that_no_document_has_count_in_texts(world):
    activate(world, identity(WIDTH), Tuning(**TUNING, lexical=0.5, coverage=1.0))
    plain, named = world.collection.readers.texts.scores(
        "rain zyx", ["rain on a roof", "rain on a roof zyx"]
    )
    assert named > plain


def test_more_texts_than_are_attended_are_all_scored(world):
    activate(world, identity(WIDTH), Tuning(**TUNING))
    texts = [f"{word} {n}" for n in range(60) for word in ("gold", "lamp", "sea")]
    scores = world.collection.readers.texts.scores("gold rain", texts)
    q = world.encoder.encode_queries(["gold rain"])[0].astype(np.float64)
    z = 6.0 * world.encoder.encode_documents(texts).astype(np.float64) @ q
    assert scores == pytest.approx(expit(z - 3.0), abs=1e-5)


def test_several_heads_are_mixed_by_their_gates(world):
    w_q = np.stack([rotation(1), rotation(2)])
    projection = projection_given(w_q, None, gates=[0.3, 0.7])
    activate(world, projection, Tuning(**TUNING | {"scale": (6.0, 4.0), "null": (1.0, 0.5)}))
    texts = ["gold on an island", "a lamp"]
    queries = projection.queries(world.encoder.encode_queries([QUERY]).astype(np.float64))[0]
    keys = world.encoder.encode_documents(texts).astype(np.float64)
    z = np.array([[6.0], [4.0]]) * (queries @ keys.T)  # (H, n)
    expected = np.array([0.3, 0.7]) @ expit(z - np.array([[1.0], [0.5]]))
    scores = world.collection.readers.texts.scores(QUERY, texts)
    assert scores == pytest.approx(expected, abs=1e-5)


def test_without_a_no_answer_score_it_is_the_cosine(world):
    texts = ["gold rain island", "a lamp in the night", " "]
    q = world.encoder.encode_queries([QUERY])[0]
    expected = (1 + world.encoder.encode_documents(texts) @ q) / 2
    assert cosine_scores(world.encoder, QUERY, texts) == pytest.approx(expected, abs=1e-5)
    scores = world.collection.readers.texts.scores(QUERY, texts)
    assert scores == pytest.approx(expected, abs=1e-5)
    assert scores[0] == pytest.approx(1)


def test_an_empty_collection_scores_too(tmp_path, tiny_encoder):
    world = World(tmp_path, tiny_encoder)
    scores = world.collection.readers.texts.scores("gold", ["gold", "lamp"])
    assert scores[0] > scores[1]
    activate(world, identity(WIDTH), Tuning(**TUNING, lexical=0.5))
    assert np.isfinite(world.collection.readers.texts.scores("gold", ["gold", "lamp"])).all()
    world.data.close()


def test_a_long_text_has_the_mean_of_its_passages(world, tiny_encoder):
    long = "gold rain island. " * 400
    [spans] = tiny_encoder.passages([long], 0)
    assert len(spans) > 1
    rows = tiny_encoder.encode_documents([long[start:end] for start, end in spans])
    mean = rows.mean(axis=0) / np.linalg.norm(rows.mean(axis=0))
    vectors = embeddings_of(tiny_encoder, ["a lamp", long, " "])
    assert vectors[1] == pytest.approx(mean, abs=1e-5)
    assert vectors[0] == pytest.approx(tiny_encoder.encode_documents(["a lamp"])[0], abs=1e-6)


def test_embeddings_of_a_collection_multiply_to_its_scores(world):
    activate(world, projection_given(w_q=rotation(1), w_k=rotation(2)), Tuning(**TUNING))
    texts = stored_texts(world, ["d1", "d2", "d3", "d4", "d5"])
    readers = world.collection.readers
    keys = readers.texts.embeddings(list(texts.values()))
    [query] = readers.texts.embeddings([QUERY], queries=True)
    hits = world.collection.search(QUERY, mask={"only": list(texts)}, min_confidence=0).hits
    scores = {hit.id: hit.score for hit in hits}
    assert 6.0 * keys @ query == pytest.approx([scores[id] for id in texts], abs=1e-4)


def test_no_vector_stands_for_several_heads(world):
    projection = projection_given(np.stack([rotation(1), rotation(2)]), None)
    activate(world, projection, Tuning())
    with pytest.raises(InvalidRequest, match="2 heads"):
        world.collection.readers.texts.embeddings(["a"])
