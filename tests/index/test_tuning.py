"""Tunings: kept as plain data, and refused where they are unsound."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attend.errors import Damaged, InvalidRequest
from attend.tuning import Tuning

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
        ({"scale": (0.0,)}, "must be above 0"),
        ({"scale": ()}, "one number for each head"),
        ({"scale": 3.0}, "one number for each head"),
        ({"null": (float("nan"),)}, "null holds nan"),
        ({"null": ("a",)}, "null holds 'a'"),
        ({"lexical": -0.1}, "lexical is -0.1; send a number from 0 to 10"),
        ({"lexical": 11}, "from 0 to 10"),
        ({"lexical": True}, "lexical holds True"),
        ({"coverage": float("inf")}, "coverage holds inf"),
        ({"examples": -1}, "examples is -1"),
        ({"threshold": 1.5}, "threshold is 1.5; send a number from 0 to 1"),
        ({"error_rate": -0.5}, "error_rate"),
        ({"attend": 0}, "attend is 0"),
        ({"attend": "some"}, "attend is 'some'"),
        ({"pool": "mean"}, "pool 'mean'"),
        ({"scorer": 3}, "scorer 3"),
    ],
)
def test_an_unsound_tuning_is_refused(wrong, says):
    with pytest.raises(InvalidRequest, match=says):
        Tuning(**wrong)
    plain = {
        name: list(value) if isinstance(value, tuple) else value for name, value in wrong.items()
    }
    with pytest.raises(Damaged, match="tuned wrongly"):
        Tuning.of(plain)


def test_fields_of_a_later_program_are_named():
    with pytest.raises(Damaged, match="tuned by later, which this program does not know"):
        Tuning.of({"later": 1, "lexical": 0.2})
