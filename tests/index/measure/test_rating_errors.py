"""Errors of predictions against a plain loop over the API."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from attend.cli import main
from attend.collection.collection import Collection
from attend.measure.interactions import numbers_by_user, rating_errors
from attend.measure.statistics import by_group
from attend.store import Interaction
from tests.index.helpers import vector_data


@pytest.fixture
def collection(tmp_path: Path) -> Iterator[Collection]:
    data = vector_data(tmp_path / "library")
    made = data.create("default", dimension=4)
    vectors = np.random.default_rng(0).normal(size=(12, 4))
    made.upsert([{"id": f"m{at}", "vector": row.tolist()} for at, row in enumerate(vectors)])
    yield made
    data.close()


BEFORE = [
    *(Interaction("ann", f"m{at}", float(1 + at % 5)) for at in range(6)),
    *(Interaction("bob", f"m{at}", 3.0 + at % 2) for at in range(4)),
    Interaction("bob", "m9", "liked"),
    Interaction("cleo", "m1"),
]
LATER = [
    Interaction("ann", "m7", 4.0),
    Interaction("ann", "m8", 1.0),
    Interaction("bob", "m10", 5.0),
    Interaction("bob", "m11", "fine"),
    Interaction("cleo", "m2", 2.0),  # whose history has no number
    Interaction("dan", "m2", 2.0),  # who has none
]


def histories() -> dict[str, list[Interaction]]:
    found: dict[str, list[Interaction]] = {}
    for each in BEFORE:
        found.setdefault(each.user, []).append(each)
    return found


def test_errors_are_those_of_single_predictions(collection: Collection) -> None:
    done: list[int] = []
    found = rating_errors(collection, histories(), numbers_by_user(LATER), done.append)
    assert found is not None
    expected = []
    for user, document, truth in (("ann", "m7", 4), ("ann", "m8", 1), ("bob", "m10", 5)):
        history = [
            {"id": each.document, "value": each.value}
            for each in histories()[user]
            if isinstance(each.value, float)
        ]
        (told,) = collection.recommend(history=history, target=document).predictions
        expected.append(told["mean"] - truth)
    np.testing.assert_allclose(found.errors, expected)
    measures = found.intervals()
    assert measures["rmse"].mean == pytest.approx(math.sqrt(sum(each**2 for each in expected) / 3))
    assert measures["mae"].mean == pytest.approx(sum(map(abs, expected)) / 3)
    assert measures["rmse"].low <= measures["rmse"].mean <= measures["rmse"].high
    assert sum(done) == 4


def test_without_numbers_there_is_nothing_to_measure(collection: Collection) -> None:
    assert numbers_by_user([Interaction("ann", "m7")]) == {}
    assert rating_errors(collection, histories(), {}) is None
    assert rating_errors(collection, {}, numbers_by_user(LATER)) is None


def test_the_command_tells_errors_where_there_are_numbers(
    collection: Collection, tmp_path: Path
) -> None:
    for name, rows in (("train.tsv", BEFORE), ("test.tsv", LATER)):
        lines = [
            f"{each.user}\t{each.document}\t{each.value}"
            for each in rows
            if isinstance(each.value, float)
        ]
        (tmp_path / name).write_text("\n".join(["user\titem\trating", *lines]))
    arguments = ["evaluate", "--data", str(tmp_path / "library"), "--json"]
    files = ["--interactions", str(tmp_path / "test.tsv"), "--history", str(tmp_path / "train.tsv")]
    result = CliRunner().invoke(main, [*arguments, *files])
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    found = rating_errors(collection, histories(), numbers_by_user(LATER))
    assert found is not None
    assert told["rmse"] == pytest.approx(found.intervals()["rmse"].mean, abs=1e-5)
    assert told["mae"] == pytest.approx(found.intervals()["mae"].mean, abs=1e-5)
    assert told["ratings"] == 3
    assert "rmse" in told["intervals"]


def test_groups_keep_the_mean() -> None:
    rng = np.random.default_rng(0)
    values, groups = rng.random(50), rng.integers(0, 7, 50)
    found = by_group(values, groups)
    assert len(found) == 7
    assert found.mean() == pytest.approx(values.mean())
    np.testing.assert_allclose(found, [values[groups == each].sum() * 7 / 50 for each in range(7)])
