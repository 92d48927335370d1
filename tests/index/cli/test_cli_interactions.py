"""`train --interactions` and `evaluate --interactions`."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

from attend.cli import main
from attend.learning.data import without
from attend.measure.interactions import evaluate, protocol_of
from attend.store import Interaction
from tests.index.drawn import communities
from tests.index.helpers import vector_data, write_jsonl


def invoke(*arguments: object):
    return CliRunner().invoke(main, [str(each) for each in arguments], prog_name="attend")


def one_object(result) -> dict:
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """Planted groups: vectors, and files of what users met before and later."""
    folder = tmp_path_factory.mktemp("library")
    rng = np.random.default_rng(0)
    memory, met, _ = communities(rng)
    rows = [{"id": f"d{at}", "vector": each.tolist()} for at, each in enumerate(memory.vectors)]
    built = invoke("build", write_jsonl(folder / "rows.jsonl", rows), "--data", folder)
    assert built.exit_code == 0, built.stderr
    later = rng.random(met.nnz) < 0.25
    for name, part in (("train", without(met, later)), ("test", without(met, ~later))):
        lines = [f"u{user}\td{document}" for user, document in zip(*part.nonzero(), strict=True)]
        (folder / f"{name}.tsv").write_text("\n".join(["reader\tbook", *lines]) + "\n")
    return folder


def interactions_of(path) -> list[Interaction]:
    return [Interaction(*line.split("\t")) for line in path.read_text().splitlines()[1:]]


def test_trained_and_evaluated(library):
    files = ["--interactions", library / "test.tsv", "--history", library / "train.tsv"]
    columns = ["--user", "reader", "--item", "book"]
    before = one_object(invoke("evaluate", "--data", library, *files, *columns, "--json"))
    report = one_object(
        invoke("train", "--data", library, "--interactions", library / "train.tsv", "--json")
    )
    assert report["promoted"], report["reason"]
    assert report["taught"]["added"] == len(interactions_of(library / "train.tsv"))
    assert report["chosen"]["objective"] == "interactions"
    found = one_object(invoke("evaluate", "--data", library, *files, "--json"))
    assert found["ndcg@10"] > before["ndcg@10"] + 0.1
    # What the command tells is what asking for each user gives.
    collection = vector_data(library).collection("default")

    def recommend(user, met):
        return [hit.id for hit in collection.recommend(history=[m.document for m in met]).hits]

    test, train = (interactions_of(library / f"{name}.tsv") for name in ("test", "train"))
    expected = evaluate(protocol_of(test, train), recommend, 60)
    for name, value in expected.measures.items():
        assert found[name] == pytest.approx(value, abs=1e-5)
    assert found["coverage"] == pytest.approx(expected.coverage, abs=1e-5)
    assert found["novelty"] == pytest.approx(expected.novelty, abs=1e-5)
    # The history that is stored is the same one.
    stored = one_object(invoke("evaluate", "--data", library, *files[:2], "--json"))
    assert stored == found


def test_withheld_documents_alone(library, tmp_path):
    cold = tmp_path / "cold.txt"
    cold.write_text("".join(f"d{at}\n" for at in range(0, 60, 5)) + "nobody\n")
    files = ["--interactions", library / "test.tsv", "--history", library / "train.tsv"]
    ran = invoke("evaluate", "--data", library, *files, "--cold", cold, "--json")
    found = one_object(ran)
    assert "1 ids of" in ran.stderr
    assert "predicting" not in ran.stderr  # nobody gave a number
    assert 0 < found["coverage"] <= 1
    text = invoke("evaluate", "--data", library, *files, "--cold", cold)
    assert "ndcg@10" in text.stdout
    assert "users without history" in text.stdout


def test_ratings_are_predicted_where_there_are_any(library, tmp_path):
    for name in ("train", "test"):
        rows = (library / f"{name}.tsv").read_text().splitlines()
        rated = [f"{row}\t{1 + at % 5}" for at, row in enumerate(rows[1:400])]
        (tmp_path / f"{name}.tsv").write_text("\n".join(["reader\tbook\tstars", *rated]) + "\n")
    files = ["--interactions", tmp_path / "test.tsv", "--history", tmp_path / "train.tsv"]
    found = one_object(invoke("evaluate", "--data", library, *files, "--json"))
    assert 0 < found["mae"] <= found["rmse"] < 4
    assert found["ratings"] > 100


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["evaluate"], "Give --queries with --qrels, or --interactions."),
        (["evaluate", "--history", "x.tsv"], "go with --interactions"),
        (["evaluate", "--user", "reader"], "Give --interactions with --user, or leave that out."),
        (["evaluate", "--interactions", "x.tsv", "--lexical", "on"], "only --projection applies"),
        (
            ["evaluate", "--interactions", "x.tsv", "--compare", "1", "2"],
            "only --projection applies",
        ),
        (
            ["teach", "--interactions", "x.tsv", "--negatives"],
            "Give --clicks with --negatives, or leave that out.",
        ),
        (["train", "--value", "stars"], "value is for the objective answers"),
        (
            ["train", "--interactions", "x.tsv", "--answers"],
            "the objectives interactions and ratings alone",
        ),
        (["train", "--interactions", "x.tsv", "--clicks", "y.csv"], "teach different things"),
    ],
)
def test_calls_that_make_no_sense(library, arguments, said):
    command, *rest = arguments
    ran = invoke(command, "--data", library, *rest)
    assert ran.exit_code == 2
    assert said in ran.stderr


def test_a_file_without_the_columns(library):
    ran = invoke(
        "train", "--data", library, "--interactions", library / "rows.jsonl", "--user", "reader"
    )
    assert ran.exit_code == 1
    assert "has no column 'reader'" in ran.stderr
