"""Blends against plain formulas: exact fractions, numpy.average, and loops."""

from __future__ import annotations

import json
import math
import time
from collections import defaultdict
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from attend.values.blends import LISTED, blend_for
from attend.values.kinds import ValueType, infer, parse_type

quick = settings(max_examples=60, deadline=None)

weights_ = st.one_of(st.just(0.0), st.floats(1e-6, 1e6))
numbers = st.floats(-1e6, 1e6)
SPEC = {"n": "number", "c": "category", "inner": {"v": "vector"}}
VALUES = {
    "number": st.one_of(numbers, st.integers(-1000, 1000), st.sampled_from([None, True, "1"])),
    "vector": st.one_of(
        st.lists(numbers, min_size=3, max_size=3),
        st.sampled_from([None, [], [1.0], [1.0, None, 2.0], [1.0, math.nan, 2.0], "abc"]),
    ),
    "boolean": st.sampled_from([True, False, None, 1, "true"]),
    "category": st.sampled_from(["red", "green", "blue", None, 3]),
    "labels": st.sampled_from([["a"], ["b", "a"], ["c", "b", "a"], ["a", "a", "b"], [], None, "a"]),
    "text": st.one_of(st.text(max_size=5), st.none()),
    "image": st.sampled_from(["a.png", "b.png", None, 1]),
    "mixed": st.sampled_from(["a", 1, None, [1, "x"], {"k": 2}, math.nan, {"k": math.inf}]),
}
VALUES["object"] = st.one_of(
    st.none(),
    st.fixed_dictionaries(
        {},
        optional={
            "n": VALUES["number"],
            "c": VALUES["category"],
            "inner": st.fixed_dictionaries({"v": VALUES["vector"]}),
            "other": st.none(),
        },
    ),
)


def type_of(kind):
    return parse_type(SPEC) if kind == "object" else ValueType(kind)


def blended(value_type, values, weights, ids=None):
    blend = blend_for(value_type)
    blend.add(ids or [f"d{i:04}" for i in range(len(values))], values, np.asarray(weights))
    return blend.answer()


def assert_close(got, expected):
    """Structures alike, in order too, and numbers to 1e-9 of their size."""
    assert type(got) is type(expected)
    if isinstance(expected, dict):
        assert list(got) == list(expected)
        for key in expected:
            assert_close(got[key], expected[key])
    elif isinstance(expected, list):
        assert len(got) == len(expected)
        for one, other in zip(got, expected, strict=True):
            assert_close(one, other)
    elif isinstance(expected, float):
        assert got == pytest.approx(expected, rel=1e-9, abs=1e-9)
    else:
        assert got == expected


@pytest.mark.parametrize("kind", list(VALUES))
@quick
@given(data=st.data())
def test_blocks_in_any_order_answer_as_one(kind, data):
    rows = data.draw(st.lists(st.tuples(VALUES[kind], weights_), max_size=25))
    documents = [(f"d{i:02}", value, weight) for i, (value, weight) in enumerate(rows)]
    whole, parts = blend_for(type_of(kind)), blend_for(type_of(kind))
    whole.add([d[0] for d in documents], [d[1] for d in documents], [d[2] for d in documents])
    left = data.draw(st.permutations(documents))
    while left:
        size = data.draw(st.integers(1, len(left)))
        block, left = left[:size], left[size:]
        parts.add([d[0] for d in block], [d[1] for d in block], [d[2] for d in block])
    assert_close(parts.answer(), whole.answer())
    json.dumps(parts.answer(), allow_nan=False)


@quick
@given(st.lists(st.tuples(st.floats(-1e9, 1e9), st.floats(1e-9, 1e9)), min_size=1, max_size=20))
def test_number_against_exact_fractions(rows):
    values, weights = [row[0] for row in rows], [row[1] for row in rows]
    x, w = [Fraction(v) for v in values], [Fraction(v) for v in weights]
    mean = sum(a * b for a, b in zip(x, w, strict=True)) / sum(w)
    variance = sum(b * (a - mean) ** 2 for a, b in zip(x, w, strict=True)) / sum(w)
    answer = blended(ValueType("number"), values, weights)
    size = max(1.0, *map(abs, values))
    assert answer["mean"] == pytest.approx(float(mean), rel=1e-12, abs=1e-12 * size)
    assert answer["std"] == pytest.approx(math.sqrt(variance), rel=1e-9, abs=1e-12 * size)
    assert answer["effective_sample_size"] == pytest.approx(
        float(sum(w) ** 2 / sum(v * v for v in w)), rel=1e-12
    )
    assert answer["coverage"] == 1.0


@pytest.mark.parametrize("offset", [0.0, 1e9, -1e15])
def test_std_survives_a_large_offset_in_a_stream(offset):
    rng = np.random.default_rng(0)
    values, weights = offset + rng.normal(size=5000), rng.random(5000)
    blend = blend_for(ValueType("number"))
    for start in range(0, 5000, 7):
        rows = slice(start, start + 7)
        blend.add(["d"] * len(values[rows]), values[rows].tolist(), weights[rows])
    exact = values - offset  # what float64 kept of the spread
    mean = np.average(exact, weights=weights)
    std = math.sqrt(np.average((exact - mean) ** 2, weights=weights))
    assert blend.answer()["std"] == pytest.approx(std, rel=1e-12)
    assert blend.answer()["mean"] == pytest.approx(offset + mean, rel=1e-15)


@quick
@given(
    st.lists(st.tuples(st.floats(allow_nan=False), st.floats(0, 1e300)), min_size=1, max_size=10)
)
def test_number_is_finite_and_within_range_at_any_scale(rows):
    values, weights = [row[0] for row in rows], [row[1] for row in rows]
    answer = blended(ValueType("number"), values, weights)
    json.dumps(answer, allow_nan=False)
    used = [v for v, w in rows if w > 0 and math.isfinite(v)]
    assume(used)
    slack = 1e-12 * max(map(abs, used))
    assert min(used) - slack <= answer["mean"] <= max(used) + slack
    assert 0 <= answer["std"] <= max(map(abs, used)) * (1 + 1e-12)
    assert 1 - 1e-12 <= answer["effective_sample_size"] <= len(used) * (1 + 1e-12)


@pytest.mark.parametrize("n", [20, 40, 42])
def test_rounding_does_not_carry_the_largest_numbers_to_infinity(n):
    largest = float(np.finfo(np.float64).max)
    answer = blended(ValueType("number"), [largest, -largest] * (n // 2), np.ones(n))
    assert answer["std"] == pytest.approx(largest, rel=1e-12)
    json.dumps(answer, allow_nan=False)


@quick
@given(st.integers(1, 40), st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_vector_against_average(n, width, seed):
    rng = np.random.default_rng(seed)
    matrix, weights = rng.normal(size=(n, width)), rng.random(n)
    answer = blended(ValueType("vector"), matrix.tolist(), weights)
    expected = np.average(matrix, axis=0, weights=weights)
    np.testing.assert_allclose(answer["vector"], expected, rtol=1e-12, atol=1e-14)
    assert answer["coverage"] == 1.0


def test_the_heaviest_width_is_the_vectors():
    values = [[1, 2, 3], [4, 5], [6, 7], 10**400, [10**400, 1]]
    answer = blended(ValueType("vector"), values, [0.3, 0.2, 0.2, 0.2, 0.1])
    assert answer["vector"] == [5.0, 6.0]
    assert answer["coverage"] == pytest.approx(0.4)
    tie = blended(ValueType("vector"), [[1, 2, 3], [4, 5]], [0.5, 0.5])
    assert tie["vector"] == [4.0, 5.0]


@quick
@given(st.lists(st.tuples(VALUES["labels"], weights_), max_size=20))
def test_labels_against_a_loop(rows):
    shares, covered = defaultdict(Fraction), Fraction(0)
    for value, weight in rows:
        if isinstance(value, list) and value and weight:
            covered += Fraction(weight)
            for label in set(value):
                shares[label] += Fraction(weight) / len(set(value))
    answer = blended(ValueType("labels"), [r[0] for r in rows], [r[1] for r in rows])
    if not covered:
        assert answer == {"type": "labels", "value": None, "distribution": None, "coverage": 0.0}
        return
    expected = {label: float(share / covered) for label, share in shares.items()}
    assert answer["distribution"] == pytest.approx(expected, rel=1e-12)
    assert sum(answer["distribution"].values()) == pytest.approx(1.0, rel=1e-12)
    assert answer["value"] == next(iter(answer["distribution"]))
    assert answer["coverage"] == pytest.approx(
        float(covered / sum(Fraction(r[1]) for r in rows)), rel=1e-12
    )


def test_category_in_descending_order_with_ties_by_label():
    values = ["pear", "fig", "apple", "kiwi", None]
    answer = blended(ValueType("category"), values, [0.2, 0.2, 0.1, 0.3, 0.2])
    assert list(answer["distribution"]) == ["kiwi", "fig", "pear", "apple"]
    assert list(answer["distribution"].values()) == pytest.approx([0.375, 0.25, 0.25, 0.125])
    assert answer["value"] == "kiwi"
    assert answer["coverage"] == pytest.approx(0.8)


def test_a_tie_does_not_depend_on_the_order_of_its_sums():
    values = ["b", "b", "b", "a"]
    assert 0.1 + 0.2 + 0.3 != 0.6
    assert blended(ValueType("category"), values, [0.1, 0.2, 0.3, 0.6])["value"] == "a"
    assert blended(ValueType("category"), values, [0.3, 0.2, 0.1, 0.6])["value"] == "a"


def test_boolean():
    answer = blended(ValueType("boolean"), [True, False, 1, None], [3.0, 1.0, 2.0, 2.0])
    assert answer == {
        "type": "boolean",
        "value": True,
        "probability": 0.75,
        "distribution": {"true": 0.75, "false": 0.25},
        "coverage": 0.5,
    }
    assert list(answer["distribution"]) == ["true", "false"]
    certain = blended(ValueType("boolean"), [False], [0.3])
    assert certain["distribution"] == {"false": 1.0, "true": 0.0}
    assert certain["probability"] == 0.0
    assert blended(ValueType("boolean"), [True, False], [1, 1])["value"] is False


def test_object_field_by_field():
    values = [{"n": 1, "c": "x"}, {"n": 3, "z": 1}, {"c": "y"}, "no object"]
    answer = blended(parse_type(SPEC), values, [0.1, 0.3, 0.4, 0.2])
    assert answer["type"] == "object"
    assert answer["coverage"] == pytest.approx(0.8)
    assert list(answer["fields"]) == list(SPEC)
    assert answer["fields"]["n"]["mean"] == pytest.approx(2.5)
    assert answer["fields"]["n"]["coverage"] == pytest.approx(0.4)
    assert answer["fields"]["c"]["distribution"] == pytest.approx({"y": 0.8, "x": 0.2})
    assert answer["fields"]["inner"] == {
        "type": "object",
        "fields": {"v": {"type": "vector", "vector": None, "coverage": 0.0}},
        "coverage": 0.0,
    }


@pytest.mark.parametrize("kind", ["text", "image", "mixed"])
def test_the_heaviest_are_listed(kind):
    rng = np.random.default_rng(1)
    values = [None if i % 5 == 0 else f"value {i}" for i in range(300)]
    weights = rng.integers(0, 30, size=300) / 7  # with ties
    ids = [f"d{i:03}" for i in rng.permutation(300)]
    order = sorted((i for i in range(300) if values[i]), key=lambda i: (-weights[i], ids[i]))
    covered = sum(weights[i] for i in order)
    answer = blended(ValueType(kind), values, weights, ids)
    assert [item["id"] for item in answer["values"]] == [ids[i] for i in order[:LISTED]]
    assert [item["value"] for item in answer["values"]] == [values[i] for i in order[:LISTED]]
    assert [item["weight"] for item in answer["values"]] == pytest.approx(
        [weights[i] / covered for i in order[:LISTED]]
    )
    assert answer["value"] == values[order[0]]
    assert answer["coverage"] == pytest.approx(covered / weights.sum())


ONE = {
    "number": 0.1,
    "vector": [0.1, -1e308, 5e-324],
    "boolean": True,
    "category": "red",
    "labels": ["red"],
    "text": "the text",
    "image": "a.png",
    "mixed": {"any": [1, "x"]},
}


@pytest.mark.parametrize("kind", list(ONE))
@pytest.mark.parametrize("weight", [1.0, 0.3, 1e-300, 1e300])
@pytest.mark.parametrize("split", [True, False])
def test_one_hot_weights_give_the_one_value(kind, weight, split):
    blend = blend_for(ValueType(kind))
    others = {"number": 1e9, "vector": [1e9, 1.0, 7.0]}
    values = [others.get(kind, ONE[kind]), ONE[kind], others.get(kind)]
    weights = np.array([0.0, weight, 0.0])
    for rows in [slice(0, 1), slice(1, 2), slice(2, 3)] if split else [slice(0, 3)]:
        blend.add(["a", "b", "c"][rows], values[rows], weights[rows])
    answer = blend.answer()
    assert answer["coverage"] == 1.0
    if kind == "number":
        assert (answer["mean"], answer["std"]) == (0.1, 0.0)
        assert answer["effective_sample_size"] == 1.0
    elif kind == "vector":
        assert answer["vector"] == ONE["vector"]
    elif kind == "labels":
        assert answer["distribution"] == {"red": 1.0}
    else:
        assert answer["value"] == ONE[kind]
    if kind == "category":
        assert answer["distribution"] == {"red": 1.0}
    if kind in ("text", "image", "mixed"):
        assert answer["values"] == [{"id": "b", "value": ONE[kind], "weight": 1.0}]


@quick
@given(st.floats(allow_nan=False, allow_infinity=False), st.floats(5e-324, 1e308))
def test_any_one_number_comes_back_bit_for_bit(value, weight):
    answer = blended(ValueType("number"), [5.0, value], [0.0, weight])
    assert answer["mean"] == value
    assert (answer["std"], answer["effective_sample_size"], answer["coverage"]) == (0.0, 1.0, 1.0)


BLANKS = {
    "number": {"mean": None, "std": None, "effective_sample_size": None},
    "vector": {"vector": None},
    "boolean": {"value": None, "probability": None, "distribution": None},
    "category": {"value": None, "distribution": None},
    "labels": {"value": None, "distribution": None},
    "text": {"value": None, "values": None},
    "image": {"value": None, "values": None},
    "mixed": {"value": None, "values": None},
}


@pytest.mark.parametrize("kind", list(BLANKS))
def test_without_a_covered_value_nothing_is_guessed(kind):
    expected = {"type": kind, **BLANKS[kind], "coverage": 0.0}
    assert blend_for(ValueType(kind)).answer() == expected
    assert blended(ValueType(kind), [None, math.nan], [1.0, 2.0]) == expected
    assert blended(ValueType(kind), [ONE[kind]], [0.0]) == expected
    assert blended(ValueType(kind), [], []) == expected


def test_an_object_without_coverage_keeps_its_fields():
    assert blended(parse_type({"n": "number"}), ["x"], [1.0]) == {
        "type": "object",
        "fields": {"n": {"type": "number", **BLANKS["number"], "coverage": 0.0}},
        "coverage": 0.0,
    }


@pytest.mark.parametrize("kind", list(BLANKS))
@pytest.mark.parametrize("scale", [1e-290, 1e290])
def test_the_scale_of_the_weights_does_not_matter(kind, scale):
    values, weights = [ONE[kind], None, ONE[kind], ONE[kind]], np.array([3.0, 5.0, 0.0, 2.0])
    expected = blended(ValueType(kind), values, weights)
    assert expected["coverage"] == pytest.approx(0.5)
    assert_close(blended(ValueType(kind), values, weights * scale), expected)


def test_the_inferred_type_covers_the_sample_it_was_inferred_from():
    samples = [[True], [1, 2.5], [[1, 2]], ["a", "a"], [["a"]], [{"a": 1}], ["a b"], ["a.png"]]
    for values in [*samples, [1, "a"]]:
        assert blended(infer(values), values, [1.0] * len(values))["coverage"] == 1.0


def test_a_million_numbers_stream_quickly():
    values, weights = np.random.default_rng(0).random((2, 1_000_000))
    listed, ids = values.tolist(), ["d"] * 4096
    blend = blend_for(ValueType("number"))
    start = time.process_time()
    for at in range(0, 1_000_000, 4096):
        rows = slice(at, at + 4096)
        blend.add(ids[: len(listed[rows])], listed[rows], weights[rows])
    took = time.process_time() - start
    assert blend.answer()["mean"] == pytest.approx(np.average(values, weights=weights), rel=1e-12)
    assert took < 5.0  # it takes 0.3 s: ten times slower would be a loop per number
