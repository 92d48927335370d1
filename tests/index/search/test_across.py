"""Searches over several collections: merged as one collection would answer, or not at all."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attend.core.errors import InvalidRequest, UnknownCollection
from attend.projection import identity
from attend.search.across import UNDECIDED, LogitScale, shares_of
from tests.index.helpers import vector_data

WIDTH = 3


def documents(rng, prefix: str, count: int) -> list[dict]:
    return [
        {"id": f"{prefix}{at}", "vector": rng.normal(size=WIDTH).tolist(), "value": at}
        for at in range(count)
    ]


@pytest.fixture
def data(tmp_path):
    """Two collections, and one that holds what both do."""
    rng = np.random.default_rng(5)
    made = vector_data(tmp_path)
    parts = {"a": documents(rng, "a", 9), "b": documents(rng, "b", 14)}
    parts["both"] = parts["a"] + parts["b"]
    for name, part in parts.items():
        made.create(name, dimension=WIDTH).upsert(part)
    return made


QUERY = [0.5, -1.0, 2.0]


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 0.5}, {"scorer": "cosine"}, {"attend": 50}]
)
def test_merged_they_answer_as_one_collection(data, options):
    found = data.search(QUERY, ["a", "b"], k=7, offset=2, **options)
    whole = data.collection("both").search(QUERY, k=7, offset=2, **options)
    assert found.merged
    assert [each.id for each in found.hits] == [hit.id for hit in whole.hits]
    assert [each.collection for each in found.hits] == [hit.id[0] for hit in whole.hits]
    weights = [each.weight for each in found.hits]
    assert weights == pytest.approx([hit.weight for hit in whole.hits], abs=1e-9)
    everyone = data.collection("both").search(QUERY, k=23, **options).hits
    for name in "ab":
        share = sum(hit.weight for hit in everyone if hit.id[0] == name)
        assert found.shares[name] == pytest.approx(share)
    assert sum(found.shares.values()) == pytest.approx(1)
    assert found.confidence is None  # none was fitted


@pytest.mark.parametrize("options", [{"k": 3}, {"k": 2, "offset": 2}, {"k": 30, "attend": 30}])
def test_groups_are_those_of_one_collection(data, options):
    """Of values that are in both, in one, or missing."""
    labels = ["x", "y", None, 1, True, {"n": 1}, "z"]
    for name in ("a", "b"):
        ids = [each.id for each in data.collection(name).page(limit=100).documents]
        for at, id in enumerate(ids):
            for made in (data.collection(name), data.collection("both")):
                made.revise(id, {"payload": {"g": labels[at * (2 + (name == "b")) % 7]}})
    found = data.search(QUERY, ["a", "b"], group_by="g", **options)
    whole = data.collection("both").search(QUERY, group_by="g", **options)
    for far, hit in zip(found.hits, whole.hits, strict=True):
        assert (far.id, far.group, far.group_size) == (
            hit.id, hit.group, hit.group_size,
        )  # fmt: skip
        weights = (far.weight, far.group_weight)
        assert weights == pytest.approx((hit.weight, hit.group_weight), abs=1e-9)
    assert len(found.answers["a"].hits) <= options["k"]


def test_each_answers_for_itself_too(data):
    found = data.search(QUERY, ["b", "a"], k=3, mode="soft")
    for name in ("a", "b"):
        alone = data.collection(name).search(QUERY, k=3, mode="soft")
        assert list(found.answers) == ["b", "a"]
        assert found.answers[name].hits == alone.hits
        assert found.answers[name].answer == alone.answer


def test_other_scales_are_not_merged(data):
    b = data.collection("b")
    b.activate(b.add_projection(identity(WIDTH, normalize=True)))
    found = data.search(QUERY, ["a", "b"])
    assert (found.merged, found.hits, found.shares, found.confidence) == (False, [], None, None)
    assert {name: len(answer.hits) for name, answer in found.answers.items()} == {"a": 9, "b": 10}
    assert data.search(QUERY, ["a", "both"]).merged


def test_nothing_attended_has_no_share(data):
    data.create("none", dimension=WIDTH)
    found = data.search(QUERY, ["none", "a"], k=3)
    assert found.shares == pytest.approx({"none": 0, "a": 1})
    empty = data.search(QUERY, ["none"])
    assert (empty.hits, empty.shares, empty.confidence) == ([], {"none": 0.0}, None)


def test_an_alias_is_its_collection_and_counts_once(data):
    data.set_alias("live", "a")
    found = data.search(QUERY, ["live", "a"], k=3)
    assert list(found.answers) == ["a"]
    assert found.shares == pytest.approx({"a": 1})


@pytest.mark.parametrize(
    ("names", "options", "error", "said"),
    [
        ([], {}, InvalidRequest, "collections"),
        (["a", "x"], {}, UnknownCollection, "'x'"),
        (["a/b"], {}, InvalidRequest, "collections.0"),
        (["a"], {"group_by": "x", "attend": "all"}, InvalidRequest, "attend that is a number"),
        (["a"], {"cursor": "x"}, InvalidRequest, "cursor is for one collection"),
        (["a"], {"k": 90, "offset": 20}, InvalidRequest, r"k \+ offset is 110"),
    ],
)
def test_what_cannot_be_asked_of_several(data, names, options, error, said):
    with pytest.raises(error, match=said):
        data.search(QUERY, names, **options)


@given(
    st.lists(st.floats(-50, 50) | st.just(-np.inf), min_size=1, max_size=5),
    st.none() | st.floats(-50, 50),
)
@settings(deadline=None)
def test_shares_are_one_softmax_with_one_null(masses, null):
    shares = shares_of([LogitScale("same", mass, null) for mass in masses])
    parts = np.exp(np.array([*masses, -np.inf if null is None else null], dtype=np.longdouble))
    expected = parts / parts.sum() if parts.sum() else parts
    assert shares == pytest.approx(expected[:-1].astype(float).tolist())
    assert sum(shares) == pytest.approx(float(expected[:-1].sum()))
    assert shares_of([LogitScale("same", 0.0, null), LogitScale("other", 0.0, null)]) is None
    if null is not None:  # that of the collection that scores the query highest
        lower = [LogitScale("same", mass, null - place) for place, mass in enumerate(masses)]
        assert shares_of(lower) == shares
    assert shares_of([LogitScale(None, 0.0, null)] * 2) is None
    empty = LogitScale(UNDECIDED, -np.inf, None)
    assert shares_of([LogitScale("same", 0.0, null), LogitScale("other", 0.0, null), empty]) is None


def test_a_collection_without_vectors_leaves_the_others_merged(data):
    data.create("empty", dimension=WIDTH)
    found, whole = (data.search(QUERY, names, k=9) for names in (["a", "b", "empty"], ["a", "b"]))
    assert found.merged
    assert [(hit.id, hit.weight) for hit in found.hits] == [
        (hit.id, hit.weight) for hit in whole.hits
    ]
    assert found.shares == whole.shares | {"empty": 0.0}
