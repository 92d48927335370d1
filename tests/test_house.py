"""The shape of the code: sizes, names, and each mechanism written once.

Limits go down, not up: whoever makes the code smaller lowers them in the same commit.
"""

from __future__ import annotations

import pytest

from tests.house import PATTERNS, shape

TOPS = ("index", "service")


@pytest.mark.parametrize(
    ("top", "files", "lines"), [("index", 217, 29_460), ("service", 43, 4_860)]
)
def test_the_packages_stay_small(top: str, files: int, lines: int) -> None:
    assert shape(top).files <= files
    assert shape(top).code_lines <= lines


@pytest.mark.parametrize("top", TOPS)
def test_modules_and_functions_stay_short(top: str) -> None:
    assert shape(top).long_modules == []
    assert shape(top).long_functions == []


def test_few_functions_take_more_than_seven_parameters() -> None:
    signatures = [name for top in TOPS for name in shape(top).long_signatures]
    assert len(signatures) <= 1, signatures


def test_a_class_name_stands_once() -> None:
    modules = {name: [] for top in TOPS for name in shape(top).classes}
    for top in TOPS:
        for name, places in shape(top).classes.items():
            modules[name] += places
    assert {name: places for name, places in modules.items() if len(places) > 1} == {}


@pytest.mark.parametrize("top", TOPS)
def test_a_docstring_begins_with_a_verb_or_a_noun(top: str) -> None:
    assert shape(top).poor_docstrings == []


def test_few_names_are_vague() -> None:
    vague = shape("index").vague + shape("service").vague
    assert vague.total() <= 10, vague


@pytest.mark.parametrize(
    ("mechanism", "files"),
    [
        ("top-k", 2),
        ("best key", 2),
        ("unit length", 1),
        ("training loop", 1),
        ("optimiser", 1),
        ("softmax", 2),
        ("cast", 0),
    ],
)
def test_a_mechanism_is_written_once(mechanism: str, files: int) -> None:
    assert mechanism in PATTERNS
    places = [name for top in TOPS for name in shape(top).places[mechanism]]
    assert len(places) <= files, places
