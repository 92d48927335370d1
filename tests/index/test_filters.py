"""Filters against a Python oracle, over documents and conditions that Hypothesis draws."""

from __future__ import annotations

import operator
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from index.errors import InvalidRequest
from index.store import compile_filter
from index.store.filters import MAX_CONDITIONS, MAX_DEPTH
from tests.index.helpers import entry, fresh_store

NAMES = ["a", "b", "é", "it's", "back\\slash", "tab\t", "a b", "😀"]
MISSING = object()

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-2, 2)
    | st.sampled_from([1.0, 0.5, -0.0, 2**53 + 1, 2**63 - 1, 10**30, 0.1 + 0.2, 1e-300])
    | st.sampled_from(["", "1", "true", "a", "é", "b'; DROP TABLE documents; --", "%", "😀"])
)
FIELDS = st.sampled_from(NAMES)
LEAVES = SCALARS | st.lists(SCALARS, max_size=3)
OBJECTS = st.dictionaries(FIELDS, LEAVES | st.dictionaries(FIELDS, LEAVES, max_size=2), max_size=4)
DOCUMENTS = st.lists(
    st.fixed_dictionaries({"payload": OBJECTS, "value": LEAVES | OBJECTS}), min_size=1, max_size=6
)
PATHS = FIELDS | st.tuples(FIELDS, FIELDS).map(".".join) | st.sampled_from(["@id", "@value"])
BOUNDS = st.integers(-2, 2) | st.sampled_from([0.5, 0.1 + 0.2, 2**63, -(10**30), "a", "1", "é"])
OPERATORS = st.one_of(
    st.tuples(st.sampled_from(["eq", "ne"]), SCALARS),
    st.tuples(st.sampled_from(["in", "nin"]), st.lists(SCALARS, max_size=3)),
    st.tuples(st.just("exists"), st.booleans()),
    st.tuples(st.sampled_from(["gt", "gte", "lt", "lte"]), BOUNDS),
)
CONDITIONS = SCALARS | st.lists(OPERATORS, min_size=1, max_size=2).map(dict)
FILTERS = st.recursive(
    st.dictionaries(PATHS, CONDITIONS, max_size=2),
    lambda inner: st.one_of(
        st.fixed_dictionaries({"$and": st.lists(inner, min_size=1, max_size=2)}),
        st.fixed_dictionaries({"$or": st.lists(inner, min_size=1, max_size=3)}),
        st.fixed_dictionaries({"$not": inner}),
    ),
    max_leaves=4,
)


def passes(document: dict[str, Any], condition: dict[str, Any]) -> bool:
    return all(_holds(document, name, operand) for name, operand in condition.items())


def _holds(document: dict[str, Any], name: str, operand: Any) -> bool:
    if name == "$and":
        return all(passes(document, each) for each in operand)
    if name == "$or":
        return any(passes(document, each) for each in operand)
    if name == "$not":
        return not passes(document, operand)
    found = _field(document, name)
    asked = operand if isinstance(operand, dict) else {"eq": operand}
    return all(_compare(sign, found, value) for sign, value in asked.items())


def _compare(sign: str, found: Any, operand: Any) -> bool:
    if sign == "exists":
        return (found is not None) == operand
    if sign in ("eq", "in"):
        return _among(found, [operand] if sign == "eq" else operand)
    if sign in ("ne", "nin"):
        return not _among(found, [operand] if sign == "ne" else operand)
    same_kind = _kind(found) == _kind(operand) and _kind(found) in ("number", "text")
    signs = {"gt": operator.gt, "gte": operator.ge, "lt": operator.lt, "lte": operator.le}
    return same_kind and signs[sign](found, operand)


def _among(found: Any, operands: list[Any]) -> bool:
    elements = found if isinstance(found, list) else [found]
    asked = [(_kind(each), each) for each in operands if each is not None]
    return (found is None and None in operands) or any(
        (_kind(each), each) in asked for each in elements
    )


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    return "text" if isinstance(value, str) else type(value).__name__


def _field(document: dict[str, Any], name: str) -> Any:
    if name in ("@id", "@value"):
        return document[name[1:]]
    for tree in (document["value"], document["payload"]):
        for way in ([name], name.split(".")):
            found = tree
            for part in way:
                found = found.get(part, MISSING) if isinstance(found, dict) else MISSING
            if found is not MISSING:
                return found
    return None


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    opened = fresh_store(tmp_path_factory.mktemp("filters") / "documents.db")
    yield opened
    opened.close()


def replace_all(store, documents: list[dict[str, Any]]) -> None:
    store.delete(list(store.all_ids()))
    store.write(
        [entry(each["id"], value=each["value"], payload=each["payload"]) for each in documents]
    )


def matching(store, condition: dict[str, Any]) -> list[str]:
    rows = store.matching(compile_filter(condition))
    found = store.values(rows)
    return sorted(found[row].id for row in rows.tolist())


@settings(max_examples=300, deadline=None)
@given(DOCUMENTS, FILTERS)
@example([{"payload": {"a": {"b": "x"}}, "value": None}], {"a": "x"})
@example([{"payload": {"é": 1}, "value": None}], {"é": 1})
@example([{"payload": {"a": None}, "value": {"a": 1}}], {"a": 1})
def test_a_filter_lets_pass_what_the_oracle_lets_pass(store, documents, condition):
    named = [{"id": "ab1é"[at % 4] * (1 + at // 4), **each} for at, each in enumerate(documents)]
    replace_all(store, named)
    expected = sorted(each["id"] for each in named if passes(each, condition))
    assert matching(store, condition) == expected


@settings(max_examples=200, deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**63), 2**63 - 1))
def test_any_number_meets_its_own_bounds(store, number):
    replace_all(store, [{"id": "x", "value": number, "payload": {}}])
    assert matching(store, {"@value": {"gte": number, "lte": number, "eq": number}}) == ["x"]
    assert matching(store, {"@value": {"gt": number}}) == []


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        ({'a"b': 1}, "quotation marks"),
        ({"a..b": 1}, "empty parts"),
        ({"": 1}, "empty parts"),
        ({"a\x00": 1}, "quotation marks"),
        ({"$nor": []}, "'$nor'"),
        ({"a": {"like": "%"}}, "like"),
        ({"a": {}}, "(none)"),
        ({"a": {"in": "text"}}, '"text"'),
        ({"a": {"in": [[1]]}}, "text, numbers, booleans"),
        ({"a": [1, 2]}, "text, numbers, booleans"),
        ({"a": {"gt": True}}, "True"),
        ({"a": {"gt": None}}, "None"),
        ({"a": {"lt": float("nan")}}, "nan"),
        ({"a": float("inf")}, "inf"),
        ({"a": {"in": [float("-inf")]}}, "-inf"),
        ({"a": {"exists": 1}}, "1 was given"),
        ({"$or": []}, "$or takes a list"),
        ({"$and": {"a": 1}}, "$and takes a list"),
        ({"$not": [1]}, "[1]"),
    ],
)
def test_a_filter_that_means_nothing_is_refused_by_name(condition, said):
    with pytest.raises(InvalidRequest) as refused:
        compile_filter(condition)
    assert said in str(refused.value)
    assert refused.value.field == "filter"


def test_depth_and_length_have_limits_within_which_sqlite_copes(store):
    deep: dict[str, Any] = {"a": 1}
    for _ in range(MAX_DEPTH - 1):
        deep = {"$not": deep}
    store.matching(compile_filter(deep))
    with pytest.raises(InvalidRequest, match=f"more than {MAX_DEPTH} deep"):
        compile_filter({"$not": deep})
    for leaf in ({"exists": True}, {"gt": 1, "lt": 2}, {"ne": None}, "x"):
        each = 2 if isinstance(leaf, dict) and len(leaf) == 2 else 1
        most = {f"f{at}": leaf for at in range(MAX_CONDITIONS // each)}
        store.matching(compile_filter(most))
        with pytest.raises(InvalidRequest, match=f"at most {MAX_CONDITIONS}"):
            compile_filter({**most, "one more": 1})
    store.matching(compile_filter({"a": {"in": list(range(20_000))}}))


def test_text_in_a_filter_is_never_sql(store):
    attacks = [
        "' OR 1=1 --",
        "'; DROP TABLE documents; --",
        "x') OR ('1'='1",
        "?",
        "$.a",
        "a' || 'b",
    ]
    replace_all(
        store,
        [
            {"id": f"d{at}", "value": None, "payload": {"a": text}}
            for at, text in enumerate(attacks)
        ],
    )
    for at, text in enumerate(attacks):
        assert matching(store, {"a": text}) == [f"d{at}"]
        assert matching(store, {"x" + text.replace(".", ""): {"exists": True}}) == []
        assert matching(store, {"@id": text}) == []
    assert store.counts()[0] == len(attacks)
