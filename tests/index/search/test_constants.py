"""Constants of a version and of a collection's values: computed once, and not kept without end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from attend import Collection
from attend.search.scoring import MAX_PLANS, AttentionOptions, plan_of
from attend.search.values import MAX_PATHS, ValueTypes
from tests.index.helpers import vector_data


@pytest.fixture
def numbers(tmp_path: Path) -> Collection:
    collection = vector_data(tmp_path).create(dimension=2)
    collection.upsert({"id": str(n), "vector": [1, n], "value": n} for n in range(20))
    return collection


def test_a_scoring_plan_is_made_once_for_a_version_and_its_options(numbers: Collection) -> None:
    version = numbers.views.current().version
    plans = [
        plan_of(version, numbers.settings, AttentionOptions(temperature=t), words=False)
        for t in (1.0, 2.0, 1.0)
    ]
    assert plans[0] is plans[2]
    assert plans[0] is not plans[1]
    for n in range(3 * MAX_PLANS):
        plan_of(version, numbers.settings, AttentionOptions(temperature=1.0 + n), words=False)
    assert len(version.plans) <= MAX_PLANS


def sampled(collection: Collection, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the samples that are read from now on."""
    sizes: list[int] = []
    sample = collection.store.sample

    def counted(size: int) -> Any:
        sizes.append(size)
        return sample(size)

    monkeypatch.setattr(collection.store, "sample", counted)
    return sizes


def test_writes_do_not_infer_the_type_of_values_again(numbers, monkeypatch) -> None:
    query = [1.0, 0.0]
    assert numbers.search(query, mode="soft").answer["type"] == "number"
    sizes = sampled(numbers, monkeypatch)
    for n in range(5):
        numbers.upsert([{"id": f"new{n}", "vector": [1, n], "value": 0.5}])
        assert numbers.search(query, mode="soft").answer["type"] == "number"
        assert numbers.search(query).answer["type"] == "number"
    assert sizes == []


def test_a_value_that_does_not_fit_the_type_changes_it(numbers, monkeypatch) -> None:
    query = [1.0, 0.0]
    assert numbers.search(query, mode="soft").answer["type"] == "number"
    sizes = sampled(numbers, monkeypatch)
    numbers.upsert([{"id": "text", "vector": [50, 0], "value": "a text"}])
    assert numbers.search(query, mode="soft").answer["type"] == "mixed"
    assert numbers.search(query, mode="soft").answer["type"] == "mixed"
    assert len(sizes) == 1


def test_a_collection_that_grew_is_sampled_again(numbers, monkeypatch) -> None:
    numbers.search([1.0, 0.0])
    sizes = sampled(numbers, monkeypatch)
    numbers.upsert({"id": f"more{n}", "vector": [1, n], "value": n} for n in range(20))
    numbers.search([1.0, 0.0])
    assert len(sizes) == 1


def test_types_of_few_paths_are_remembered(numbers: Collection) -> None:
    types = ValueTypes(numbers.store, numbers.settings)
    view = numbers.views.current()
    for n in range(2 * MAX_PATHS):
        types.of(f"path{n}", view, [])
    assert len(types._inferred) <= MAX_PATHS
