"""Filters on either engine, against the same oracle in Python that the filters have alone."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from attend.collection.collection import Collection
from attend.connect.client import RemoteCollection
from attend.core.errors import InvalidRequest, Unsupported
from tests.index.store.test_filters import FILTERS, NAMES, passes
from tests.milvus.contract import WIDTH

SCALARS: list[Any] = [
    None, True, False, -2, 0, 1, 2, 1.0, 0.5, 0.1 + 0.2, 2**53 + 1, 10**30, 1e-300,
    "", "1", "true", "a", "é", "%", "b'; DROP TABLE documents; --", "éa", "😀", "2000-01-31",
]  # fmt: skip


def leaf(rng: random.Random) -> Any:
    if rng.random() < 0.3:
        return rng.choices(SCALARS, k=rng.randint(0, 3))
    return rng.choice(SCALARS)


def tree(rng: random.Random, deep: bool = True) -> dict[str, Any]:
    names = rng.sample(NAMES, rng.randint(0, 4))
    return {name: tree(rng, False) if deep and rng.random() < 0.2 else leaf(rng) for name in names}


@pytest.fixture(scope="module")
def documents(vectors: Collection) -> Mapping[str, dict[str, Any]]:
    """Sixty documents with fields of all kinds, in the shared collection, and nothing else."""
    rng = random.Random(5)
    made = {
        f"d{at}": {"value": leaf(rng) if rng.random() < 0.5 else tree(rng), "payload": tree(rng)}
        for at in range(60)
    }
    vectors.delete(sorted(vectors.ids()))
    unit = [1.0] + [0.0] * (WIDTH - 1)
    vectors.upsert([{"id": id, "vector": unit, **each} for id, each in made.items()])
    return {id: {"id": id, **each} for id, each in made.items()}


@settings(
    max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], database=None
)
@given(asked=FILTERS)
def test_a_filter_lets_pass_what_the_oracle_does(
    vectors: Collection, documents: Mapping[str, dict[str, Any]], asked: dict[str, Any]
) -> None:
    try:
        page = vectors.page(asked, limit=100)
    except Unsupported:
        assert vectors.info().capabilities["engine"] != "local"  # declared, and no wrong answer
        return
    except InvalidRequest:  # half a surrogate pair, which a body of UTF-8 cannot hold
        assert isinstance(vectors, RemoteCollection)
        assert "\\ud" in json.dumps(asked)
        return
    wanted = {id for id, each in documents.items() if passes(each, asked)}
    assert {each.id for each in page.documents} == wanted
    assert page.total == len(wanted)


HANDPICKED: list[dict[str, Any]] = [
    {"a": None},
    {"@id": {"in": ["d1", "d2", "none"]}},
    {"@id": {"prefix": "d1"}},
    {"a": {"exists": True}},
    {"$not": {"a": {"gte": 0, "lt": 2}}},
]


@pytest.mark.parametrize("asked", HANDPICKED)
def test_a_search_attends_to_what_its_filter_lets_pass(
    vectors: Collection, documents: Mapping[str, dict[str, Any]], asked: dict[str, Any]
) -> None:
    wanted = {id for id, each in documents.items() if passes(each, asked)}
    assert 0 < len(wanted) < len(documents)
    found = vectors.search([1.0] * WIDTH, filter=asked, k=100)
    assert {hit.id for hit in found.hits} == wanted


@pytest.mark.parametrize(
    "asked",
    [{"a": {"near": 3}}, {"$or": []}, {"a": {"in": 3}}, {"a": {"gt": 1, "lt": "b"}}],
)
def test_what_is_no_filter_is_refused(vectors: Collection, asked: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as error:
        vectors.page(asked)
    assert not isinstance(error.value, Unsupported)
