"""Labels that tell nothing but "not this one" promote nothing, unless that is asked for."""

from __future__ import annotations

import numpy as np
import pytest

from attend.learning import train
from attend.learning.data import twins
from attend.learning.fit import unlearned
from attend.learning.ranking_model import (
    Candidates,
    find_candidates,
    question_folds,
    read_questions,
)
from attend.write.feedback import add_feedback
from tests.index.drawn import unit
from tests.index.helpers import vector_data

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


def test_the_gain_from_suppression_shows_as_none_among_new_documents(claimed):
    """A constant that is subtracted from every document with an example."""
    memory, questions, *_ = read_questions(claimed, -1, 0)
    fold = question_folds(questions, twins(questions.embeddings), 3, 0)[-1]
    assert fold.splits == ("unseen", "new")
    judges = fold.judging(questions)
    fitted = unlearned(memory, np.eye(WIDTH, dtype=np.float32))
    among = [fold.ranked(split) for split in fold.splits]
    unseen, new = find_candidates(memory, fitted, fold.training, judges, among)

    def gain(candidates: Candidates) -> float:
        labelled = ~fold.new_documents[candidates.documents]
        lower = candidates.dense - 0.3 * labelled.astype(np.float32)
        return float((candidates.ndcg(lower) - candidates.ndcg(candidates.dense)).mean())

    assert gain(unseen) > 0.03
    assert gain(new) == 0
