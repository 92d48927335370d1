"""A training may make late interaction a part of its version, and refuses it where it loses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attend import Collection
from attend.data import Data
from attend.errors import InvalidRequest
from attend.learn.ranking import find_candidates
from attend.measure.rankings import evaluate
from attend.projection import given
from attend.settings import Tuning
from attend.training.material import read_questions
from attend.training.reranking import RERANKED, Ranked, RerankTrial, fitted_of
from attend.versions import Version
from tests.index.helpers import vector_data
from tests.index.world import World

QUESTIONS, FILLERS, WIDTH = 40, 8, 32


def words(rng: np.random.Generator, count: int) -> list[str]:
    return ["".join(rng.choice(list("abcdefghijklmnopqrstuvwxyz"), 5)) for _ in range(count)]


def collection_of(folder: Path, encoder: Any, answer: str) -> Collection:
    """Each question has two words. One document has both among many others, where the mean of its
    tokens is far from the question; two have one of them three times.

    Args:
        answer: `both` or `one`, of the documents that answers.
    """
    rng = np.random.default_rng(4)
    collection = Data(folder, load_encoder=lambda name: encoder).create()
    items, feedback = [], []
    for number in range(QUESTIONS):
        first, second = words(rng, 2)
        texts = {
            "both": " ".join([first, second, *words(rng, FILLERS)]),
            "one": " ".join([first] * 3 + words(rng, 1)),
            "other": " ".join([second] * 3 + words(rng, 1)),
        }
        items += [{"id": f"{kind}{number}", "text": text} for kind, text in texts.items()]
        feedback.append({"query": f"{first} {second}", "id": f"{answer}{number}"})
    collection.upsert(items)
    collection.teach(feedback)
    return collection


def ids(collection: Collection, query: Any, **options: Any) -> list[str]:
    return [hit.id for hit in collection.search(query, k=5, memory=0, **options).hits]


def test_a_training_makes_it_a_part_where_it_gains(tmp_path: Path, tiny_encoder: Any) -> None:
    collection = collection_of(tmp_path, tiny_encoder, "both")
    query = str(collection.store.examples().texts[0])
    assert not collection.train(parts=["examples"])["promoted"]
    plain = ids(collection, query)
    assert plain == ids(collection, query, rerank=0)
    report = collection.train(parts=["examples"], rerank=True)
    assert report["promoted"], report["reason"]
    assert "20 best documents are scored once more" in report["reason"]
    assert report["chosen"]["rerank"] == collection.info().rerank == RERANKED
    assert report["rerank"]["mix"]["difference"] > 0.2
    assert ids(collection, query) == ids(collection, query, rerank=RERANKED) != plain
    assert ids(collection, query, rerank=0) == plain
    assert ids(collection, query, attend=5) == ids(collection, query, attend=5, rerank=5)
    vector = tiny_encoder.encode_queries([query])[0].tolist()
    mixture = {"mixture": [{"text": query}, {"text": "another"}]}
    for other in (vector, mixture, {"id": "both0"}):  # nothing to compare by tokens
        assert ids(collection, other) == ids(collection, other, rerank=0)
    assert ids(collection, query, scorer="laplace")
    assert ids(collection, query, attend="all") == plain
    again = collection.train(parts=["examples"], promote=False)
    assert again["chosen"]["rerank"] == RERANKED  # it answers now, and is tried again
    assert again["before"] == again["after"]


def test_a_training_refuses_it_where_it_loses(tmp_path: Path, tiny_encoder: Any) -> None:
    collection = collection_of(tmp_path, tiny_encoder, "one")
    report = collection.train(parts=["examples"], rerank=True, promote=False)
    assert report["chosen"]["rerank"] == 0
    assert not report["rerank"]["chosen"]
    assert report["rerank"]["mix"]["difference"] < 0
    assert collection.projections()[-1].tuning.get("rerank") is None


def test_what_has_no_tokens_cannot_be_tried(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    collection = vector_data(tmp_path).create(dimension=4)
    vectors = rng.normal(size=(30, 4)).tolist()
    collection.upsert([{"id": f"d{n}", "vector": vector} for n, vector in enumerate(vectors)])
    collection.teach([{"query": vector, "id": f"d{n}"} for n, vector in enumerate(vectors)])
    with pytest.raises(InvalidRequest, match="made for vectors and has no encoder"):
        collection.train(rerank=True)
    with pytest.raises(InvalidRequest, match="tried for the objective ranking"):
        collection.train(objective="answers", rerank=True)


@pytest.fixture
def world(tmp_path: Path, tiny_encoder: Any) -> Iterator[World]:
    world = World(tmp_path, tiny_encoder, seed=6)
    world.take("write", range(60))
    yield world
    world.data.close()


@pytest.mark.parametrize("factor", [0.0, 0.4])
def test_the_trial_ranks_as_a_search_does(world: World, factor: float) -> None:
    rng, strength = np.random.default_rng(2), (0.3, 1.0)
    for number in range(25):
        text = " ".join(rng.choice(["whale", "storm", "gold", "map", "rain", "lamp"], 3))
        world.teach(f"{text} {number}", [f"d{place}" for place in rng.integers(0, 60, 3)])
    near = (np.eye(WIDTH) + 0.2 * rng.standard_normal((2, WIDTH, WIDTH))).astype(np.float32)
    projection = given(*near, normalize_queries=True, normalize_keys=True)
    offsets = {id: 0.1 * rng.standard_normal(WIDTH) for id in world.key_ids()[::2]}
    tuning = Tuning(lexical=strength[0], coverage=strength[1], examples=factor, memory=0.0)
    number = world.version(projection, tuning, offsets, activate=True).number
    version = Version.of(number, world.store.version(number), "cosine")
    material = read_questions(world.collection, -1, 0)
    memory, questions = material.memory, material.questions
    fitted, everything = fitted_of(version, memory), np.arange(questions.count)
    (candidates,) = find_candidates(memory, fitted, questions, questions)
    ranked = Ranked.of(fitted, everything, questions.embeddings, candidates, (factor, *strength))
    (values,) = RerankTrial(world.collection, material).values([ranked], lambda done: None)
    queries = {str(place): str(text) for place, text in enumerate(material.texts)}
    documents = world.store.documents(memory.rows, texts=False)
    names = [documents[row].id for row in memory.rows.tolist()]
    relevant = questions.relevant.tocoo()
    qrels: dict[str, dict[str, float]] = {name: {} for name in queries}
    for row, column in zip(relevant.row.tolist(), relevant.col.tolist(), strict=True):
        qrels[str(row)][names[column]] = 1.0
    expected, plain = (
        [
            row["ndcg@10"]
            for row in evaluate(world.collection, queries, qrels, rerank=n).by_query.values()
        ]
        for n in (RERANKED, 0)
    )
    np.testing.assert_allclose(values, expected, atol=1e-5)
    assert not np.allclose(plain, expected)
