"""A filtered search against exact search among the matching documents, however few they are."""

from __future__ import annotations

import numpy as np
import pytest

from attend.core.types import Document
from tests.index.helpers import index_fields, vector_data

DOCUMENTS, WIDTH, K = 10_000, 16, 20
SELECTIVITIES = [0.5, 0.1, 0.01, 0.001, 0.0001]


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """Documents published, then some changed (a delta), some deleted (a mask)."""
    rng = np.random.default_rng(5)
    vectors = rng.normal(size=(DOCUMENTS, WIDTH)).astype(np.float32)
    order = rng.permutation(DOCUMENTS)
    collection = vector_data(tmp_path_factory.mktemp("recall")).create(
        dimension=WIDTH, scorer="dot"
    )

    def documents(numbers):
        return [
            Document(
                f"d{at}",
                vectors={"vector": vectors[at].tolist()},
                payload={"rank": int(order[at]), "tags": ["all", f"t{order[at] % 10}"]},
            )
            for at in numbers
        ]

    for start in range(0, DOCUMENTS, 1000):
        collection.write(documents(range(start, start + 1000)))
    collection.publish()
    changed, gone = np.arange(0, 900, 3), np.arange(1, 900, 3)
    vectors[changed] = rng.normal(size=(len(changed), WIDTH))
    collection.upsert(documents(changed.tolist()))
    collection.delete([f"d{at}" for at in gone])
    there = np.setdiff1d(np.arange(DOCUMENTS), gone)
    yield collection, vectors, order, there
    collection.close()


def exact(query, vectors, allowed) -> list[str]:
    scores = vectors[allowed].astype(np.float64) @ query.astype(np.float64)
    return [f"d{at}" for at in allowed[np.argsort(-scores)][:K]]


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("attend", [K, 100])
@pytest.mark.parametrize("share", SELECTIVITIES)
def test_a_filtered_search_finds_what_exact_search_finds(filled, share, attend, indexed):
    collection, vectors, order, there = filled
    if indexed:
        index_fields(collection.store, ["rank"])
        collection.store._selection._change = -1
    passing = there[order[there] < DOCUMENTS * share]
    queries = np.random.default_rng(int(share * 1e4)).normal(size=(5, WIDTH)).astype(np.float32)
    for query in queries:
        found = collection.search(
            query.tolist(), k=K, attend=attend, filter={"rank": {"lt": DOCUMENTS * share}}
        )
        assert [hit.id for hit in found.hits] == exact(query, vectors, passing)
        assert found.exact


def test_elements_of_lists_filter_as_exactly(filled):
    collection, vectors, order, there = filled
    query = np.ones(WIDTH, dtype=np.float32)
    found = collection.search(
        query.tolist(), k=K, attend=K, filter={"tags": {"all": ["t3", "all"]}}
    )
    passing = there[order[there] % 10 == 3]
    assert [hit.id for hit in found.hits] == exact(query, vectors, passing)
