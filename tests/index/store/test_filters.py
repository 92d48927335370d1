"""Filters against a Python oracle, over documents and conditions that Hypothesis draws."""

from __future__ import annotations

import operator
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from attend.core.errors import InvalidRequest
from attend.store import compile_filter, selection
from attend.store.filters import MAX_CONDITIONS, MAX_DEPTH, MAX_LISTED, by_value
from tests.index.helpers import entry, fresh_store, index_faults, index_fields

NAMES = ["a", "b", "é", "it's", "back\\slash", "tab\t", "a b", "😀"]
MISSING = object()
SIGNS = {"gt": operator.gt, "gte": operator.ge, "lt": operator.lt, "lte": operator.le}

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-2, 2)
    | st.sampled_from([1.0, 0.5, -0.0, 2**53 + 1, 2**63 - 1, 10**30, 0.1 + 0.2, 1e-300])
    | st.sampled_from(["", "1", "true", "a", "é", "b'; DROP TABLE documents; --", "%", "😀"])
    | st.sampled_from(
        ["\ud83d", "\udfff", "\U0010ffff", "éa", "😀😀", "2000-01-31", "ab\U0010ffff"]
    )
    | st.sampled_from(
        ["2000-01-31T00:00:00Z", "2000-01-31T01:30:00+02:00", "31.01.2000", "20000201"]
    )
)
FIELDS = st.sampled_from(NAMES)
LEAVES = SCALARS | st.lists(SCALARS, max_size=3)
OBJECTS = st.dictionaries(FIELDS, LEAVES | st.dictionaries(FIELDS, LEAVES, max_size=2), max_size=4)
DOCUMENTS = st.lists(
    st.fixed_dictionaries({"payload": OBJECTS, "value": LEAVES | OBJECTS}), min_size=1, max_size=6
)
PATHS = FIELDS | st.tuples(FIELDS, FIELDS).map(".".join) | st.sampled_from(["@id", "@value"])
BOUNDS = st.integers(-2, 2) | st.sampled_from([0.5, 0.1 + 0.2, 2**63, -(10**30), "a", "1", "é"])
DATES = st.sampled_from(["2000-01-31", "2000-01-30T23:30:00Z", "2000-02-01T01:00:00+01:00"])
OPERATORS = st.one_of(
    st.tuples(st.sampled_from(["eq", "ne", "contains"]), SCALARS),
    st.tuples(st.sampled_from(["in", "nin", "any"]), st.lists(SCALARS, max_size=3)),
    st.tuples(st.just("all"), st.lists(SCALARS, min_size=1, max_size=3)),
    st.tuples(st.just("exists"), st.booleans()),
    st.tuples(st.just("prefix"), st.sampled_from(["", "a", "b'", "tr", "é", "😀", "\U0010ffff"])),
    st.tuples(
        st.sampled_from(["substring", "exact_substring"]),
        st.sampled_from(["", "A", "r", "É", "ß", "SS", "😀", "x"]),
    ),
    st.tuples(
        st.just("suffix"), st.sampled_from(["", "a", "é", "😀", "\udfff", "\U0010ffff", "-31"])
    ),
    st.tuples(st.just("empty"), st.booleans()),
    st.tuples(st.just("date"), st.dictionaries(st.sampled_from([*SIGNS]), DATES, min_size=1)),
    st.tuples(st.sampled_from(["gt", "gte", "lt", "lte"]), BOUNDS),
)
CONDITIONS = SCALARS | st.lists(OPERATORS, min_size=1, max_size=3).map(dict).filter(
    lambda asked: len({isinstance(asked[key], str) for key in asked if key in SIGNS}) < 2
)
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
    bounds = {key: value for key, value in asked.items() if key in SIGNS}
    others = {key: value for key, value in asked.items() if key not in SIGNS}
    in_range = any(
        all(_is_beyond(key, each, value) for key, value in bounds.items())
        for each in _elements(found)
    )
    return (not bounds or in_range) and all(_compare(*pair, found) for pair in others.items())


def _compare(word: str, operand: Any, found: Any) -> bool:
    if word == "exists":
        return (found is not None) == operand
    if word in ("eq", "contains", "in", "any"):
        return _among(found, operand if word in ("in", "any") else [operand])
    if word in ("ne", "nin"):
        return not _among(found, [operand] if word == "ne" else operand)
    if word == "all":
        return all(_among(found, [each]) for each in operand)
    if word == "empty":
        return (found is None or found == []) == operand
    texts = [each for each in _elements(found) if isinstance(each, str)]
    if word == "date":
        moments = [parsed for each in texts if (parsed := date(each)) is not None]
        return any(
            all(SIGNS[sign](each, date(bound)) for sign, bound in operand.items())
            for each in moments
        )
    if word == "suffix":
        return any(each.endswith(operand) for each in texts)
    if word == "substring":
        return any(operand.casefold() in each.casefold() for each in texts)
    if word == "exact_substring":
        return any(operand in text for text in texts)
    assert word == "prefix"
    return any(each.startswith(operand) for each in texts)


def date(text: str) -> np.datetime64 | None:
    """An ISO date in UTC, by regular expression and numpy; the code under test uses datetime."""
    whole = re.fullmatch(r"(\d{4})-?(\d\d)-?(\d\d)(T\d\d:\d\d:\d\d)?(?:Z|([+-]\d\d):(\d\d))?", text)
    if whole is None:
        return None
    year, month, day, time, hours, minutes = whole.groups()
    local = np.datetime64(f"{year}-{month}-{day}{time or ''}", "s")
    return local - np.timedelta64(int(hours or 0) * 60 + int(minutes or 0), "m")


def _is_beyond(sign: str, element: Any, bound: Any) -> bool:
    same_kind = _kind(element) == _kind(bound)
    return same_kind and SIGNS[sign](element, bound)


def _elements(found: Any) -> list[Any]:
    return found if isinstance(found, list) else [found]


def _among(found: Any, operands: list[Any]) -> bool:
    asked = [(_kind(each), each) for each in operands if each is not None]
    return (found is None and None in operands) or any(
        (_kind(each), each) in asked for each in _elements(found)
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


INDEXED = [*NAMES, "@value", "a.b", "b.a", "é.a", "a.é"]


@pytest.fixture(scope="module", params=["scanned", "indexed", "indexed, never few"])
def store(request, tmp_path_factory):
    """A store without indexes, and such in which triggers keep those of most fields."""
    opened = fresh_store(tmp_path_factory.mktemp("filters") / "documents.db")
    if request.param != "scanned":
        index_fields(opened, INDEXED)
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "indexed, never few":
            patch.setattr(selection, "FEW_ROWS", -1)
        yield opened
    opened.close()


def replace_all(store, documents: list[dict[str, Any]]) -> None:
    store.delete(list(store.all_ids()))
    store.write(
        [entry(each["id"], value=each["value"], payload=each["payload"]) for each in documents]
    )


def matching(store, condition: dict[str, Any]) -> list[str]:
    rows = store.matching(compile_filter(condition))
    found = store.documents(rows, texts=False)
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
    assert not index_faults(store)


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
        ({"a": {"like": "%"}}, "did you mean 'substring'"),
        ({"a": {}}, "is empty"),
        ({"a": {"in": "text"}}, '"text"'),
        ({"a": {"in": [[1]]}}, "text, numbers, booleans"),
        ({"a": [1, 2]}, "text, numbers, booleans"),
        ({"a": {"in": ["x\x00y"]}}, "NUL"),
        ({"a": {"gt": "x\x00y"}}, "NUL"),
        ({"a": {"all": []}}, "at least one value"),
        ({"a": {"any": 3}}, "list of values was expected for 'a', but 3"),
        ({"a": {"prefix": 1}}, "takes text"),
        ({"a": {"match": 1}}, "takes text"),
        ({"a": {"substring": ["x"]}}, "'substring' on 'a' takes text"),
        ({"a": {"substring": "x\x00y"}}, "NUL"),
        ({"a": {"suffix": 3}}, "'suffix' on 'a' takes text"),
        ({"a": {"endswith": "x"}}, "did you mean 'suffix'"),
        ({"a": {"empty": "yes"}}, "'empty' on 'a' takes true or false"),
        ({"a": {"date": "2024-05-17"}}, "takes an object of gt, gte, lt, lte"),
        ({"a": {"date": {"gt": "17.05.2024"}}}, "ISO dates such as 2024-05-17"),
        ({"a": {"date": {"since": "2024-05-17"}}}, "takes an object of gt"),
        ({"a": {"date": {"gt": 5}}}, "ISO dates such as 2024-05-17"),
        ({"a": {"gt": "17-05-2024"}}, "takes dates as 2024-05-17"),
        ({"a": {"exact_substring": 5}}, "'exact_substring' on 'a' takes text"),
        ({"a": {"match": "!? -"}}, "none"),
        ({"@text": {"match": " ".join(f"w{at}" for at in range(65))}}, "65"),
        ({"@text": "word"}, "takes match, substring and exact_substring"),
        ({"a": {"gt": 1, "lt": "z"}}, "a number and a text"),
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
    for leaf in ({"exists": True}, {"gt": 1, "ne": 2}, {"ne": None}, "x"):
        each = 2 if isinstance(leaf, dict) and len(leaf) == 2 else 1
        most = {f"f{at}": leaf for at in range(MAX_CONDITIONS // each)}
        store.matching(compile_filter(most))
        with pytest.raises(InvalidRequest, match=f"at most {MAX_CONDITIONS}"):
            compile_filter({**most, "one more": 1})
    listed = {"a": {"in": list(range(MAX_LISTED))}}
    store.matching(compile_filter(listed))
    with pytest.raises(InvalidRequest, match="100,001 values"):
        compile_filter({**listed, "$or": [{"b": {"in": ["one more"]}}]})


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


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"stars": 5}, {"@value": 5}),
        (
            {"stars": {"gte": 4}, "genre": "sea"},
            {"$and": [{"genre": "sea"}, {"@value": {"gte": 4}}]},
        ),
        ({"$or": [{"stars": 5}, {"genre": "sea"}]}, {"$or": [{"@value": 5}, {"genre": "sea"}]}),
        ({"$not": {"stars": None}}, {"$not": {"@value": None}}),
        ({"$and": [{"$not": {"stars": 1}}]}, {"$and": [{"$not": {"@value": 1}}]}),
        ({"stars": {"match": "five"}}, {"stars": {"match": "five"}}),  # words of a text
        ({"genre": {"stars": 5}}, {"genre": {"stars": 5}}),  # no name of a column, but an operand
    ],
)
def test_the_name_of_the_values_column_stands_for_the_value_however_deep(given, expected):
    assert by_value(given, "stars") == expected
    assert by_value(given, None) == given
