"""Value types: what a sample says, what a caller declares, and which value is wanted."""

from __future__ import annotations

import doctest
import importlib
import json
import math
import pkgutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import attend.values
from attend.core.errors import InvalidRequest, LimitExceeded
from attend.values.kinds import DEEPEST, LONGEST_CATEGORY, MOST_FIELDS, infer, parse_type
from attend.values.select import select


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], "text"),
        ([None, None], "text"),
        ([True, False, None], "boolean"),
        ([True, 1], "mixed"),
        ([1, 2.5, None, math.nan], "number"),
        ([0, 1, 1, 0], "number"),
        ([10**400, 1], "number"),
        ([[1, 2.5], [3, 4], None, []], "vector"),
        ([[1], [2]], "vector"),
        ([[1], [2, 3]], "mixed"),
        ([[1, math.inf], [2, 3]], "vector"),
        ([[1, math.inf], [2, 3, 4]], "vector"),
        ([[1, True], [2, 3]], "mixed"),
        ([[1, None], [2, 3]], "mixed"),
        ([["a"], ["b", "c"], []], "labels"),
        ([["a"], ["b", 1]], "mixed"),
        ([["a"], [1, 2]], "mixed"),
        (["a", "a"], "category"),
        (["a"], "text"),
        (["a", "b", "b"], "text"),
        (["a", "b", "a", "b"], "category"),
        (["a", "b", "a", "b", None, None], "category"),
        (["a\nb", "a\nb"], "text"),
        (["x" * LONGEST_CATEGORY] * 2, "category"),
        (["x" * (LONGEST_CATEGORY + 1)] * 2, "text"),
        (["a", 1], "mixed"),
        ([{"a": 1}, 1], "mixed"),
        (["https://h/a.png", "https://h/a.png"], "image"),
        (["covers/A.JPG?x=1"], "text"),
        (["https://h/b.JPG?x=1.txt", "covers/c.webp", "data:image/png;base64,AA=="], "image"),
        (["https://h/a.png"] * 9 + ["https://h/a"], "image"),
        ([f"https://h/{i}.png" for i in range(8)] + ["https://h/a", "https://h/b"], "text"),
        (["https://h/page?next=a.png"], "text"),
    ],
)
def test_infer(values, expected):
    assert infer(values).kind == expected


def test_an_object_is_typed_field_by_field():
    sample = [
        {"module": "cards", "score": 1, "place": {"at": [1, 2]}},
        {"module": "cards", "tags": ["a"], "score": None},
        {"module": "loans", "score": 2.5},
        {"module": "loans", "late": None},
        None,
    ]
    assert infer(sample).to_json() == {
        "module": "category",
        "score": "number",
        "place": {"at": "vector"},
        "tags": "labels",
        "late": "text",
    }


def test_objects_too_deep_or_too_wide_are_returned_whole():
    deep: object = 1
    for _ in range(DEEPEST + 1):
        deep = {"in": deep}
    found = infer([deep])
    for _ in range(DEEPEST):
        found = found.fields["in"]
    assert found.kind == "mixed"
    assert infer([{str(i): 1 for i in range(MOST_FIELDS)}]).kind == "object"
    assert infer([{str(i): 1 for i in range(MOST_FIELDS + 1)}]).kind == "mixed"


kinds = st.sampled_from(
    ["boolean", "number", "vector", "category", "labels", "text", "image", "mixed"]
)
specs = st.recursive(kinds, lambda inner: st.dictionaries(st.text(max_size=3), inner, max_size=3))


@settings(max_examples=50, deadline=None)
@given(specs.filter(lambda spec: json.dumps(spec).count("{") <= DEEPEST))
def test_a_declared_type_comes_back_as_it_was_declared(spec):
    assert parse_type(spec).to_json() == spec


@pytest.mark.parametrize("spec", ["numbr", "object", None, 3, ["number"], True])
def test_an_unknown_type_is_refused_by_name(spec):
    with pytest.raises(InvalidRequest, match="is not a value type") as caught:
        parse_type(spec)
    assert repr(spec) in str(caught.value)
    assert caught.value.field == "value_type"


def test_an_unknown_type_inside_an_object_names_its_place():
    with pytest.raises(InvalidRequest) as caught:
        parse_type({"a": {"b": "nope"}}, field="type")
    assert caught.value.field == "type.a.b"


def test_a_declared_object_has_limits():
    deep: object = "number"
    for _ in range(DEEPEST + 1):
        deep = {"in": deep}
    with pytest.raises(LimitExceeded, match="deep"):
        parse_type(deep)
    with pytest.raises(LimitExceeded, match=f"{MOST_FIELDS + 1} fields"):
        parse_type({str(i): "number" for i in range(MOST_FIELDS + 1)})


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (None, {"price": 3, "at": {"x": 1}, "null": None}),
        ("@id", "d1"),
        ("price", 3),
        ("at.x", 1),
        ("at.y", None),
        ("price.x", None),
        ("shop", "corner"),
        ("null", "from payload"),
        ("flag", False),
        ("a.b", "dotted"),
        ("c.d.e", 5),
        ("title", "A title"),
        ("nothing", None),
    ],
)
def test_select(path, expected):
    value = {"price": 3, "at": {"x": 1}, "null": None}
    payload = {
        "price": 4,
        "shop": "corner",
        "null": "from payload",
        "flag": False,
        "a.b": "dotted",
        "c": {"d.e": 5},
        "@id": "not this",
    }
    fields = {"title": "A title", "shop": "not this", "flag": "not this"}
    assert select(path, "d1", value, payload, fields) == expected


def test_select_from_a_value_that_is_no_object():
    assert select("upper", "d1", "text", {}, {}) is None
    assert select("a", "d1", [1], {"a": 2}, {}) == 2


@pytest.mark.parametrize("name", [m.name for m in pkgutil.iter_modules(attend.values.__path__)])
def test_examples_in_docstrings(name):
    module = importlib.import_module(f"attend.values.{name}")
    assert doctest.testmod(module).failed == 0


def test_the_example_of_the_package():
    found = doctest.testmod(attend.values)
    assert found.attempted > 0
    assert found.failed == 0
