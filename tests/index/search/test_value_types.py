"""The type of a soft answer follows the values that are stored now, in every process."""

from __future__ import annotations

from typing import Any

import pytest

from attend import Collection
from tests.index.helpers import vector_data

COUNT = 6


@pytest.fixture
def collection(tmp_path) -> Collection:
    return vector_data(tmp_path).create(dimension=2)


def write(collection: Collection, values: list[Any]) -> None:
    collection.upsert(
        [{"id": f"d{at}", "vector": [1, at], "value": value} for at, value in enumerate(values)]
    )


def answer_type(collection: Collection) -> str:
    return collection.search([1, 0], mode="soft").answer["type"]


def test_other_values_in_the_place_of_mixed_ones(collection):
    write(collection, ["red", 1, {"a": 2}, True, None, 3])
    assert answer_type(collection) == "mixed"
    collection.delete(sorted(collection.ids()))
    write(collection, [1, 2.5, 3, 4, 5, 6])
    assert answer_type(collection) == "number"


def test_the_first_answer_has_the_type_of_all_values_and_not_of_those_it_blends(collection):
    write(collection, ["red", 1, {"a": 2}, True, None, 3])
    first = collection.search([1, 0], mode="soft", attend=1).answer
    assert (first["type"], first["value"]) == ("mixed", "red")


def test_other_values_in_the_place_of_one_kind(collection):
    write(collection, [1.0] * COUNT)
    assert answer_type(collection) == "number"
    write(collection, ["red", "blue", "red", "blue", "red", "blue"])
    assert answer_type(collection) == "category"


def test_strings_of_another_kind_count_after_a_hundred_writes(collection):
    """Names and prose are both strings: no single answer tells which the collection holds."""
    write(collection, ["red", "blue", "red", "blue", "red", "blue"])
    assert answer_type(collection) == "category"
    for at in range(100):
        prose = f"A sentence of prose, number {at}, which is longer than any name would be." * 2
        collection.upsert([{"id": f"d{at % COUNT}", "vector": [1, at], "value": prose}])
    assert answer_type(collection) == "text"
