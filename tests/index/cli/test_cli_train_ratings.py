"""`train --interactions` with numbers learns what comes next and what users would give."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from attend.cli import main
from attend.learning.rating_net import RECIPES, Shape
from tests.index.helpers import vector_data
from tests.index.learning.rated import planted

SMALL = replace(RECIPES["usual"], steps=(120, 120))
SHAPE = Shape(heads=2, width=4, factors=3, directions=8, scale=2.0)


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A collection of vectors, and a file of ratings beside it."""
    monkeypatch.setattr("attend.learning.ratings.RECIPES", {"usual": SMALL})
    monkeypatch.setattr("attend.learning.ratings.SHAPE", SHAPE)
    ratings, embeddings = planted(users=80)
    data = vector_data(tmp_path / "library")
    data.create("default", dimension=16).upsert(
        [{"id": f"m{at}", "vector": vector.tolist()} for at, vector in enumerate(embeddings)]
    )
    data.close()
    rows = zip(ratings.users.tolist(), ratings.items.tolist(), ratings.values, strict=True)
    lines = [f"u{user}\tm{item}\t{value:g}" for user, item, value in rows]
    (tmp_path / "ratings.tsv").write_text("\n".join(["user\titem\trating", *lines]))
    return tmp_path


def trained(folder: Path, *arguments: str) -> Any:
    file = ["--interactions", str(folder / "ratings.tsv")]
    result = CliRunner().invoke(
        main, ["train", "--data", str(folder / "library"), *file, *arguments]
    )
    assert result.exit_code == 0, result.output
    return result.stdout


def test_ratings_alone_where_that_is_the_objective(library: Path) -> None:
    report = json.loads(trained(library, "--objective", "ratings", "--json"))
    assert report["promoted"], report["reason"]
    assert report["chosen"]["objective"] == "ratings"
    assert report["after"]["rmse"] < report["before"]["rmse"]


def test_both_where_none_is_named(library: Path) -> None:
    said = trained(library)
    next_items, ratings = said.split("Ratings of documents by users:\n")
    assert "ndcg@10" in next_items
    assert "answers from now on" in ratings
    assert "rmse" in ratings
    collection = vector_data(library / "library").collection()
    assert collection.store.active("predict") is not None


def test_what_comes_next_alone_where_that_is_the_objective(library: Path) -> None:
    report = json.loads(trained(library, "--objective", "interactions", "--json"))
    assert "ratings" not in report
    assert vector_data(library / "library").collection().store.active("predict") is None
