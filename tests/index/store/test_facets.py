"""Counts and facets against a Python oracle, with and without indexes."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attend.api.answers import Facet, FacetValue
from attend.core.errors import InvalidRequest
from attend.store import compile_filter, selection
from tests.index.helpers import entry, finish_indexes, fresh_store, index_fields

SCALARS = (
    st.none()
    | st.booleans()
    | st.sampled_from([0, 1, 2, 1.0, 0.5, -(2**63), "1", "true", "", "é", "😀", "\ud83d"])
)
LEAVES = SCALARS | st.lists(SCALARS | st.just([1]), max_size=4) | st.just({"deep": 1})
DOCUMENTS = st.lists(
    st.dictionaries(st.sampled_from(["a", "b.c"]), LEAVES) | st.just({"b": {"c": 1}}),
    min_size=1,
    max_size=8,
)


@pytest.fixture(scope="module", params=["scanned", "indexed"])
def store(request, tmp_path_factory):
    opened = fresh_store(tmp_path_factory.mktemp("facets") / "documents.db")
    if request.param == "indexed":
        index_fields(opened, ["a", "b.c"])
    yield opened
    opened.close()


def counted(payloads: list[dict[str, Any]], name: str) -> tuple[Counter[Any], int]:
    """How many payloads have each (kind, value), and how many have none."""
    counts: Counter[Any] = Counter()
    missing = 0
    for payload in payloads:
        found = payload.get(name, payload["b"]["c"] if name == "b.c" and "b" in payload else None)
        missing += found is None
        elements = found if isinstance(found, list) else [found]
        scalars = [each for each in elements if isinstance(each, bool | int | float | str)]
        counts.update({(kind(each), each) for each in scalars})
    return counts, missing


def kind(value: Any) -> int:
    return 1 if isinstance(value, bool) else 3 if isinstance(value, str) else 2


def replace_all(store, payloads: list[dict[str, Any]]) -> None:
    store.delete(list(store.all_ids()))
    store.write([entry(f"d{at}", payload=payload) for at, payload in enumerate(payloads)])


def check(facet: Facet, payloads: list[dict[str, Any]], name: str, limit: int) -> None:
    counts, missing = counted(payloads, name)
    pairs = [(entry.value, entry.documents) for entry in facet.values]
    listed = {(kind(value), value): count for value, count in pairs}
    assert (facet.distinct, facet.missing) == (len(counts), missing)
    assert len(listed) == len(facet.values) == min(limit, len(counts))
    assert listed.items() <= counts.items()
    expected = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:limit]
    assert [count for _, count in pairs] == [count for _, count in expected]
    assert [(kind(value), value) for value, _ in pairs] == [pair for pair, _ in expected]


@settings(max_examples=150, deadline=None)
@given(DOCUMENTS, st.integers(1, 6), st.sampled_from([None, 0, 1, 99]))
def test_facets_are_what_the_oracle_counts(store, payloads, limit, only):
    replace_all(store, payloads)
    chosen = payloads if only is None else payloads[only : only + 1]
    predicate = None if only is None else compile_filter({"@id": f"d{only}"})
    found = store.facets(["a", "b.c"], predicate, limit)
    for name in ("a", "b.c"):
        check(found[name], chosen, name, limit)
    assert store.count(predicate or compile_filter({})) == len(chosen)


def test_few_and_many_of_many_documents_count_alike(tmp_path):
    store = fresh_store(tmp_path / "documents.db")
    payloads = [{"a": [at % 7, "x"], "n": at} for at in range(500)]
    replace_all(store, payloads)
    for _ in ("scanned", "indexed"):
        for bound in (0, 3, 40, 60, 500):
            found = store.facets(["a"], compile_filter({"n": {"lt": bound}}), 10)
            check(found["a"], payloads[:bound], "a", 10)
        index_fields(store, ["a"])
        finish_indexes(store)
    store.close()


def test_the_value_of_documents_has_facets(tmp_path):
    store = fresh_store(tmp_path / "documents.db")
    store.write([entry(f"d{at}", value=value) for at, value in enumerate(["x", "y", "x", None])])
    for _ in range(2):
        assert store.facets(["@value"]) == {
            "@value": Facet(values=[FacetValue("x", 2), FacetValue("y", 1)], distinct=2, missing=1)
        }
        index_fields(store, ["@value"])
    store.close()


@pytest.mark.parametrize(
    ("fields", "limit", "said"),
    [
        ([], 5, "1 to 32 fields"),
        ([f"f{at}" for at in range(selection.MAX_FACETS + 1)], 5, "1 to 32"),
        (["a"], 0, "limit is 0"),
        (["a"], 1001, "1 to 1000"),
        (["a..b"], 5, "empty parts"),
        (["@id"], 5, "'@id' has no values"),
        (["@text"], 5, "'@text' has no values"),
    ],
)
def test_facets_that_cannot_be_are_refused(store, fields, limit, said):
    with pytest.raises(InvalidRequest, match=said):
        store.facets(fields, None, limit)


def test_a_facet_that_is_often_asked_for_gets_an_index(tmp_path, monkeypatch):

    monkeypatch.setattr(selection, "COUNTED_SECONDS", 0.0)
    monkeypatch.setattr(selection, "BUILD_AFTER_SECONDS", 0.0)
    store = fresh_store(tmp_path / "documents.db")
    replace_all(store, [{"a": at % 3} for at in range(30)])
    first = store.facets(["a"])
    store._indexes.wait()
    seen = defaultdict(int, store._indexes.ready(store._read(), {"a"}))
    assert seen["a"] > 0
    assert store.facets(["a"]) == first
    store.close()
