"""Filters on a Milvus server let pass what they do in a data folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from attend import Collection, Data
from attend.core.errors import Unsupported
from attend.store import compile_filter
from attend_milvus.filters import expression, filter_fields
from tests.milvus.server import MilvusServer

VALUES: list[Any] = [
    None,
    True,
    False,
    0,
    1,
    1.0,
    1.5,
    -3,
    2**53 + 1,
    1e300,
    "",
    "a",
    "b",
    "ab",
    "é",
    "1",
    'quo"te\\',
    [],
    ["a", "b"],
    [1, 5],
    [None, "a", True],
    {"deep": 1},
    {"deep": {"er": ["a", 2]}},
    {"deep": None},
]

FILTERS: list[dict[str, Any]] = [
    {},
    {"f": 1},
    {"f": True},
    {"f": False},
    {"f": None},
    {"f": "a"},
    {"f": {"ne": 1}},
    {"f": {"in": [1, "a", None, True]}},
    {"f": {"in": []}},
    {"f": {"nin": ["a", 1]}},
    {"f": {"gt": 0}},
    {"f": {"gte": 1, "lt": 2}},
    {"f": {"gt": 1, "lt": 5}},
    {"f": {"lte": -1}},
    {"f": {"gt": "a"}},
    {"f": {"gte": "a", "lte": "b"}},
    {"f": {"prefix": "a"}},
    {"f": {"prefix": ""}},
    {"f": {"prefix": "é"}},
    {"f": {"exists": True}},
    {"f": {"exists": False}},
    {"f": {"contains": "b"}},
    {"f": {"any": ["b", 5]}},
    {"f": {"all": ["a", "b"]}},
    {"f": 'quo"te\\'},
    {"f": 1e300},
    {"f.deep": 1},
    {"f.deep.er": "a"},
    {"f.deep": {"exists": True}},
    {"f.deep.er": {"gte": 1}},
    {"g": 1},
    {"@id": "d3"},
    {"@id": {"in": ["d3", "d4", "none"]}},
    {"@id": {"prefix": "d1"}},
    {"@id": {"exists": True}},
    {"@id": {"gt": 3}},
    {"@value": 1},
    {"@value": {"gte": 3}},
    {"$or": [{"f": 1}, {"f": "a"}]},
    {"$and": [{"f": {"gte": 0}}, {"$not": {"f": 1}}]},
    {"$not": {"$or": [{"f": {"exists": True}}, {"@id": "d0"}]}},
    {"f": {"gte": 0}, "odd": True},
    {"odd": True, "side": "payload"},
    {"side": "value"},
    {"a.b": 1},
    {"x.y.z": 1},
]


def documents() -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    for value in VALUES:
        at = len(made)
        payload = {"f": value, "odd": at % 2 == 1, "side": "payload"}
        given: Any = {"side": "value"} if at % 3 == 0 else at if at % 3 == 1 else None
        made.append({"id": f"d{at}", "value": given, "payload": payload})
    # Names with dots come before the ways that dots lead, and values before payloads.
    made.append({"id": "e1", "value": {"a.b": 1, "a": {"b": 2}}})
    made.append({"id": "e2", "value": {"a": {"b": 2}}, "payload": {"a.b": 1}})
    made.append({"id": "e3", "payload": {"x.y": {"z": 1}}})
    made.append({"id": "e4", "payload": {"x": {"y": {"z": 1}}}})
    made.append({"id": "e5", "value": {"f": None}, "payload": {"f": 1}})
    for at, each in enumerate(made):
        each["vector"] = np.random.default_rng(at).standard_normal(4).tolist()
    return made


@pytest.fixture(scope="module")
def remote(milvus_server: MilvusServer) -> Iterator[Collection]:
    data = Data(f"{milvus_server.engine}/filters?consistency=strong")
    made = data.create("filters", dimension=4)
    made.upsert(documents())
    yield made
    data.drop("filters")
    data.close()


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collection]:
    data = Data(tmp_path_factory.mktemp("filters"))
    made = data.create("filters", dimension=4)
    made.upsert(documents())
    yield made
    data.close()


@pytest.mark.parametrize("filter", FILTERS, ids=json.dumps)
def test_a_filter_lets_the_same_pass(
    remote: Collection, local: Collection, filter: dict[str, Any]
) -> None:
    there, here = remote.page(filter), local.page(filter)
    assert {each.id for each in there.documents} == {each.id for each in here.documents}
    assert there.total == here.total
    query = [0.5, -1.0, 0.25, 2.0]
    found, expected = (each.search(query, k=100, filter=filter) for each in (remote, local))
    assert [hit.id for hit in found.hits] == [hit.id for hit in expected.hits]
    assert np.allclose(
        [hit.weight for hit in found.hits], [hit.weight for hit in expected.hits], atol=1e-6
    )


def test_masks_hold_besides_filters(remote: Collection, local: Collection) -> None:
    for mask in (
        {"exclude": ["d1", "d2"]},
        {"only": ["d3", "d4", "d5"]},
        {"exclude": ["d4"], "only": ["d3", "d4"]},
        {"only": []},
    ):
        for filter in ({}, {"odd": True}):
            asked = {"k": 100, "mask": mask, "filter": filter}
            found = remote.search({"id": "d5"}, **asked)
            expected = local.search({"id": "d5"}, **asked)
            assert [hit.id for hit in found.hits] == [hit.id for hit in expected.hits]


def test_ranges_over_long_lists_are_refused(remote: Collection) -> None:
    remote.upsert([{"id": "long", "vector": [1.0] * 4, "payload": {"many": list(range(9))}}])
    assert [each.id for each in remote.page({"many": 8}).documents] == ["long"]
    with pytest.raises(Unsupported, match="a list of more than 8"):
        remote.page({"many": {"gt": 7}})
    remote.delete(["long"])


@pytest.mark.parametrize(
    "condition",
    [{"suffix": "x"}, {"substring": "x"}, {"empty": True}, {"date": {"gt": "2024-05-17"}}],
)
def test_what_milvus_has_no_expression_for_is_refused(condition: dict[str, Any]) -> None:
    with pytest.raises(Unsupported, match="use a data folder"):
        expression(compile_filter({"f": condition}))


def test_facts_are_fields_by_the_names_that_filters_give_them() -> None:
    assert filter_fields(
        {"a": {"b": 1.0}, "n": None}, {"n": 1, "a.b": 5, "t": ["x", None, [1]]}
    ) == {
        "@value": [],
        "a": [],
        "a.b": [1],
        "t": ["x"],
    }
