"""Examples on a Milvus server, and what is learned from them there."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from attend import Collection, Data
from attend.core.errors import UnknownDocument, Unsupported
from attend.learning import train
from attend.projection import Projection
from attend.write.feedback import add_feedback
from tests.milvus.server import MilvusServer

DIMENSION, DOCUMENTS, QUESTIONS = 16, 60, 80


@pytest.fixture(scope="module")
def collection(milvus_server: MilvusServer) -> Iterator[Collection]:
    data = Data(f"{milvus_server.engine}/examples?consistency=strong")
    made = data.create("examples", dimension=DIMENSION, normalize=True)
    keys = np.random.default_rng(1).standard_normal((DOCUMENTS, DIMENSION))
    made.upsert([{"id": f"d{at}", "vector": each.tolist()} for at, each in enumerate(keys)])
    yield made
    data.drop("examples")
    data.close()


@pytest.fixture
def empty(collection: Collection) -> Collection:
    collection.store.delete_examples()
    return collection


def vector(seed: int) -> list[float]:
    return np.random.default_rng(seed).standard_normal(DIMENSION).tolist()


def test_examples_are_stored_replaced_and_deleted(empty: Collection) -> None:
    store = empty.store
    assert store.example_count() == 0
    given = [{"query": {"vector": vector(at)}, "id": f"d{at}", "label": 1} for at in range(5)]
    taught = add_feedback(empty, [*given, {"query": {"vector": vector(0)}, "id": "d7", "label": 0}])
    assert (taught.added, taught.replaced, taught.examples) == (6, 0, 6)
    assert store.question_count() == 5
    again = add_feedback(empty, [{"query": {"vector": vector(0)}, "id": "d0", "label": 2}])
    assert (again.added, again.replaced, again.examples) == (0, 1, 6)
    latest = store.latest_examples(10)
    assert {each.document: each.label for each in latest} == {
        "d0": 2, "d1": 1, "d2": 1, "d3": 1, "d4": 1, "d7": 0,
    }  # fmt: skip
    learned = store.examples()
    assert learned.embeddings.shape == (5, DIMENSION)
    norms = np.linalg.norm(vector(0))
    at = int(learned.questions[learned.weights == 2][0])
    assert np.allclose(learned.embeddings[at], np.array(vector(0)) / norms, atol=1e-6)
    assert store.delete_examples(documents=["d1"]) == 1
    assert store.delete_examples(ids=[latest[0].id]) == 1
    with pytest.raises(UnknownDocument, match="none"):
        add_feedback(empty, [{"query": {"vector": vector(0)}, "id": "none"}])
    assert store.example_count() == 4


def test_what_was_taught_of_a_text_goes_with_it(empty: Collection) -> None:
    empty.upsert([{"id": "x", "vector": vector(50)}, {"id": "y", "vector": vector(51)}])
    add_feedback(empty, [{"query": {"vector": vector(9)}, "id": id} for id in ("x", "y", "d1")])
    empty.upsert([{"id": "x", "vector": vector(52)}])
    empty.delete(["y"])
    assert [each.document for each in empty.store.latest_examples(10)] == ["d1"]
    empty.upsert([{"id": "x", "vector": vector(50)}, {"id": "y", "vector": vector(51)}])
    assert [each.document for each in empty.store.latest_examples(10)] == ["d1"]
    empty.delete(["x", "y"])


def test_matrices_are_learned_where_examples_are(empty: Collection) -> None:
    """Questions are documents under a rotation that no cosine sees through."""
    random = np.random.default_rng(5)
    rotation = np.linalg.qr(random.standard_normal((DIMENSION, DIMENSION)))[0]
    with empty.store.all_keys() as (_, batches):
        found = next(batches)
    ids = {row: each.id for row, each in empty.store.documents(found.documents).items()}
    items = []
    for at in range(QUESTIONS * 2):
        place = at % len(found.documents)
        asked = rotation @ found.vectors[place] + 0.02 * random.standard_normal(DIMENSION)
        items.append({"query": {"vector": asked.tolist()}, "id": ids[int(found.documents[place])]})
    add_feedback(empty, items)
    result = train(empty, share_seen=1.0)
    assert result["promoted"], result["reason"]
    assert empty.search(items[0]["query"]).projection == result["version"]
    assert result["after"]["ndcg@10"] > result["before"]["ndcg@10"]

    learned = Projection.from_bytes(empty.store.version(result["version"]).weights)
    keys = learned.materialised().keys(found.vectors)[:, 0]
    for item in items[:5]:
        asked = np.array([item["query"]["vector"]])
        asked /= np.linalg.norm(asked)
        scores = keys @ learned.materialised().queries(asked.astype(np.float32))[0, 0]
        expected = [ids[int(found.documents[at])] for at in np.argsort(-scores)[:5]]
        assert [hit.id for hit in empty.search(item["query"], k=5).hits] == expected
    assert empty.rollback() == 1


def test_other_parts_are_refused(empty: Collection) -> None:
    with pytest.raises(Unsupported, match="anything but matrices"):
        train(empty, parts=["matrices", "words"])
    with pytest.raises(Unsupported, match="anything but matrices"):
        train(empty, objective="interactions")
