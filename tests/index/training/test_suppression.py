"""Labels that tell nothing but "not this one" promote nothing, unless that is asked for."""

from __future__ import annotations

import numpy as np
import pytest

from attend.feedback import add_feedback
from attend.training import train
from tests.index.helpers import vector_data
from tests.index.learning import unit

WIDTH, DOCUMENTS, TAUGHT = 12, 160, 110


@pytest.fixture
def claimed(tmp_path):
    """Every document answers one query, which is the document with noise in all directions alike:
    no W_Q and W_K find documents better than the embeddings do."""
    rng = np.random.default_rng(5)
    documents = unit(rng.normal(size=(DOCUMENTS, WIDTH)))
    collection = vector_data(tmp_path).create(dimension=WIDTH, normalize=True)
    collection.upsert(
        [{"id": f"d{index}", "vector": row.tolist()} for index, row in enumerate(documents)]
    )
    queries = unit(documents + 0.3 * rng.normal(size=documents.shape))[:TAUGHT]
    add_feedback(
        collection,
        [{"query": row.tolist(), "id": f"d{index}"} for index, row in enumerate(queries)],
    )
    return collection


def test_labels_that_tell_only_what_not_to_answer_promote_nothing(claimed):
    report = train(claimed)
    assert not report["promoted"], report["reason"]
    assert report["version"] is None


def test_the_gain_from_suppression_shows_as_none_among_new_documents(claimed):
    """With learned key offsets, the labelled documents give way to all others."""
    report = train(claimed, parts=["matrices", "offsets"], promote=False)
    views = report["views"]
    assert views["unseen"]["difference"] > 0.03
    assert views["unseen"]["p"] < 0.01
    assert views["new"]["difference"] < 0.01
    assert "key offsets" in report["reason"]
