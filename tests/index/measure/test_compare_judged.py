"""Comparing on what is taught: the same as on files of queries and judgements."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from attend import Collection, Data
from attend.api.base import parse
from attend.api.feedback import FeedbackItem
from attend.core.errors import InvalidRequest, UnknownProjection
from attend.measure import rankings as comparing
from attend.measure.rankings import compare, compare_judged
from attend.projection import given
from attend.write.feedback import add_feedback

RANDOM = np.random.default_rng(2)


@pytest.fixture
def points(tmp_path: Path) -> Collection:
    made = Data(tmp_path).create("points", dimension=5)
    vectors = RANDOM.standard_normal((30, 5))
    made.upsert([{"id": str(at), "vector": list(each)} for at, each in enumerate(vectors)])
    made.add_projection(given(RANDOM.standard_normal((5, 5)), np.eye(5), kind="learned"))
    return made


def items(count: int) -> list[FeedbackItem]:
    asked = RANDOM.standard_normal((count, 5)).tolist()
    said = [(query, id, label) for query in asked for id, label in (("3", 1), ("7", 0), ("9", 2))]
    return [parse(FeedbackItem, {"query": q, "id": id, "label": label}) for q, id, label in said]


def test_it_is_the_comparison_of_queries_and_judgements(points: Collection) -> None:
    given = items(12)
    found = compare_judged(points, (1, 2), given, by="mrr@10")
    queries = {str(at): each.query.vector for at, each in enumerate(given[::3])}
    qrels = {id: {"3": 1.0, "7": 0.0, "9": 2.0} for id in queries}
    wanted = compare(points, {id: q or () for id, q in queries.items()}, qrels, (1, 2), by="mrr@10")
    one, other = found.json(), wanted.json()
    for side in ("before", "after"):
        assert one[side]["measures"] == other[side]["measures"]
    assert one["histogram"] == other["histogram"]
    assert one["differences"]["mrr@10"]["mean"] != 0


def test_without_items_the_stored_ones_are_taken(tmp_path: Path, tiny_encoder_folder: Path) -> None:
    made = Data(tmp_path).create("texts", encoder=str(tiny_encoder_folder))
    made.upsert([{"id": name, "text": name} for name in ("whale", "rose", "rocket")])
    made.add_projection(given(np.diag(np.arange(32) % 2), np.eye(32), kind="learned"))
    with pytest.raises(InvalidRequest, match="No judged query was given"):
        compare_judged(made, (1, 2))
    said = [("a whale", "whale"), ("a rose", "rose"), ("roses", "rose")]
    add_feedback(made, [{"query": query, "id": id} for query, id in said])
    found = compare_judged(made, (1, "active"))
    assert found.queries == 3
    assert found.after.projection == 1
    with pytest.raises(UnknownProjection):
        compare_judged(made, (1, 9))


def test_too_many_are_refused(points: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparing, "MAX_QUERIES", 3)
    with pytest.raises(InvalidRequest, match="4 queries were given, and at most 3"):
        compare_judged(points, (1, 2), items(4))
