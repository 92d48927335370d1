"""A training judges feedback as it would a version: without the questions that judge."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attend import Collection
from attend.core.arrays import unit
from attend.core.settings import UNTRAINED_MEMORY, Tuning
from attend.projection import identity
from tests.index.helpers import vector_data

WIDTH, DOCUMENTS, QUESTIONS = 16, 120, 60


@pytest.fixture
def collection(tmp_path: Path) -> Iterator[Collection]:
    rng = np.random.default_rng(1)
    data = vector_data(tmp_path)
    collection = data.create(dimension=WIDTH, normalize=True)
    vectors = unit(rng.normal(size=(DOCUMENTS, WIDTH)))
    collection.upsert(
        [{"id": f"d{place}", "vector": row.tolist()} for place, row in enumerate(vectors)]
    )
    yield collection
    data.close()


def trained(collection: Collection, questions: np.ndarray) -> dict[str, Any]:
    """Teach that document n answers question n, and train without a promotion."""
    items = [{"query": row.tolist(), "id": f"d{place}"} for place, row in enumerate(questions)]
    collection.teach(items)
    return collection.train(promote=False)


def first(collection: Collection, questions: np.ndarray, **options: Any) -> float:
    """Return the share of questions whose document comes first."""
    answers = [collection.search(row.tolist(), k=1, **options) for row in questions]
    return float(np.mean([answer.hits[0].id == f"d{n}" for n, answer in enumerate(answers)]))


def test_a_question_has_no_part_in_its_own_memory(collection: Collection) -> None:
    questions = unit(np.random.default_rng(2).normal(size=(QUESTIONS, WIDTH)))
    report = trained(collection, questions)
    assert first(collection, questions) > 2 * first(collection, questions, memory=0)
    assert report["views"]["random"]["before"] < 0.2  # nothing can be learned from the others


def test_what_answers_now_is_judged_as_it_answers_and_feedback_can_be_chosen(
    collection: Collection,
) -> None:
    rng = np.random.default_rng(3)
    rows = [collection.store.rows_of([f"d{n}"])[f"d{n}"] for n in range(QUESTIONS)]
    vectors = collection.store.own_keys(np.array(rows)).vectors
    questions = unit(vectors + 1.5 * unit(rng.normal(size=WIDTH)))  # all ask from the same side
    with_feedback = trained(collection, questions)["views"]["random"]["before"]
    plain = identity(WIDTH)
    version = collection.store.add_projection(
        *(plain.kind, plain.to_bytes(), plain.fingerprint, {}), tuning=Tuning(memory=0.0).stored()
    )
    collection.activate(version)
    report = collection.train(parts=["words"], tolerance=0.5)
    assert with_feedback > report["views"]["random"]["before"] + 0.1
    assert report["promoted"], report["reason"]
    assert report["chosen"]["memory"] == collection.info().memory == UNTRAINED_MEMORY
