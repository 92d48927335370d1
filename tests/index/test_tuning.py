"""Tunings: kept as plain data, and refused where they are unsound."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from attend.core.errors import Damaged
from attend.core.settings import Tuning

NUMBERS = st.floats(-1e6, 1e6)
TUNINGS = st.builds(
    Tuning,
    scale=st.none() | st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=4).map(tuple),
    null=st.none() | st.lists(NUMBERS, min_size=1, max_size=4).map(tuple),
    lexical=st.floats(0, 10),
    coverage=st.floats(0, 5),
    examples=st.floats(0, 2),
    attend=st.none() | st.just("all") | st.integers(1, 1000),
    scorer=st.none() | st.sampled_from(["dot", "cosine"]),
    pool=st.sampled_from(["max", "sum"]),
    threshold=st.none() | st.floats(0, 1),
    error_rate=st.none() | st.floats(0, 1),
)


@given(TUNINGS)
def test_what_is_stored_comes_back(tuning):
    assert Tuning.of(json.loads(json.dumps(tuning.stored()))) == tuning


def test_an_untuned_version_stores_nothing():
    assert Tuning().stored() == {}
    assert Tuning(lexical=0.2, scale=(3,)).stored() == {"lexical": 0.2, "scale": [3.0]}


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"scale": [0.0]}, "scale is 0.0 .*greater than 0"),
        ({"scale": []}, "scale is .*at least 1 item"),
        ({"scale": 3.0}, "scale is 3.0"),
        ({"null": [float("nan")]}, "null is nan .*finite"),
        ({"null": ["a"]}, "null is 'a' .*number"),
        ({"lexical": -0.1}, "lexical is -0.1 .*greater than or equal to 0"),
        ({"lexical": 11}, "lexical is 11 .*less than or equal to 10"),
        ({"lexical": True}, "lexical is True"),
        ({"coverage": float("inf")}, "coverage is inf .*finite"),
        ({"examples": -1}, "examples is -1"),
        ({"temperature": 0}, "temperature is 0 .*greater than 0"),
        ({"threshold": 1.5}, "threshold is 1.5 .*less than or equal to 1"),
        ({"error_rate": -0.5}, "error_rate"),
        ({"attend": 0}, "attend is 0"),
        ({"attend": "some"}, "attend is 'some'"),
        ({"pool": "mean"}, "pool is 'mean' .*'max' or 'sum'"),
        ({"scorer": 3}, "scorer is 3 .*string"),
    ],
)
def test_an_unsound_tuning_is_refused(wrong, says):
    with pytest.raises(Damaged, match=f"tuned wrongly: {says}"):
        Tuning.of(wrong)
    with pytest.raises(ValidationError):
        Tuning(**wrong)


def test_fields_of_a_later_program_are_named():
    with pytest.raises(Damaged, match="tuned by later, which this program does not know"):
        Tuning.of({"later": 1, "lexical": 0.2})
