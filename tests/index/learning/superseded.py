"""A made collection in which later documents supersede earlier ones, by a known half-life.

Each fact stands in two versions with nearly the same vector. A question is near its fact; the
document that answers it is drawn from the softmax that attention itself has, with a known scale and
half-life: a version that is h half-lives older is 2^-h as likely, all else equal.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np

from attend.api.base import parse
from attend.api.search import SearchRequest
from attend.collection.collection import Collection
from attend.write.feedback import add_feedback

WIDTH, SCALE, HALF_LIFE = 32, 20.0, 30.0
NOW = 1_750_000_000.0
DAY = 86_400.0


class Superseded(NamedTuple):
    """Documents (n, d) with ages in days (n,), and questions (q, d) with their answers (q,)."""

    documents: np.ndarray
    ages: np.ndarray
    questions: np.ndarray
    answers: np.ndarray
    best: np.ndarray


def unit(vectors: np.ndarray) -> np.ndarray:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=-1, keepdims=True))


def superseded(facts: int, questions: int, seed: int, *, noise: bool = False) -> Superseded:
    """Make facts in two versions, of which the older one is 60 to 300 days older.

    Args:
        noise: the time of a document says nothing.
    """
    rng = np.random.default_rng(seed)
    topics = unit(rng.standard_normal((facts, WIDTH)))
    newer = rng.uniform(0, 240, facts)
    ages = np.stack([newer, newer + rng.uniform(60, 300, facts)], axis=1)
    ages = np.where(rng.random((facts, 1)) < 0.5, ages, ages[:, ::-1]).ravel()
    documents = unit(np.repeat(topics, 2, axis=0) + 0.02 * rng.standard_normal((2 * facts, WIDTH)))
    asked = unit(
        topics[rng.integers(facts, size=questions)] + 0.05 * rng.standard_normal((questions, WIDTH))
    )
    logits = SCALE * asked @ documents.T
    if not noise:
        logits = logits - np.log(2) * ages / HALF_LIFE
    answers = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    if noise:
        ages = rng.permutation(ages)
    return Superseded(documents, ages, asked, answers, logits.argmax(axis=1))


def stored(collection: Collection, made: Superseded, learned: int) -> None:
    """Store documents, of which every other has its time as a date, and the first questions."""
    seconds = NOW - made.ages * DAY
    times: list[Any] = [
        second if row % 2 else datetime.fromtimestamp(second, UTC).isoformat()
        for row, second in enumerate(seconds.tolist())
    ]
    collection.upsert(
        [
            {"id": f"d{row}", "vector": vector.tolist(), "payload": {"day": times[row]}}
            for row, vector in enumerate(made.documents)
        ]
    )
    pairs = zip(made.questions[:learned].tolist(), made.answers[:learned].tolist(), strict=True)
    add_feedback(collection, [{"query": query, "id": f"d{row}"} for query, row in pairs])


def right_at_first(collection: Collection, made: Superseded, learned: int, **options: Any) -> float:
    """Return the share of the other questions whose best document is their answer."""
    searches = [
        parse(SearchRequest, {"query": query.tolist(), "k": 1, "now": NOW, **options})
        for query in made.questions[learned:]
    ]
    firsts = [
        answered.answer.hits[0].id
        for start in range(0, len(searches), 200)
        for answered in collection.answered(searches[start : start + 200])
    ]
    truth = [f"d{row}" for row in made.answers[learned:].tolist()]
    return float(np.mean([first == right for first, right in zip(firsts, truth, strict=True)]))
