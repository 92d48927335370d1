"""Deleting collections and documents, and exporting documents to build them again."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from attend.cli import main
from attend.collection.data import Data
from attend.exchange.backup import export_documents
from tests.index.helpers import vector_data

YEARS = [1815, 1851, 1897]


def invoke(*arguments: object, input: str | None = None):
    words = [str(part) for part in arguments]
    return CliRunner().invoke(main, words, prog_name="attend", input=input)


@pytest.fixture
def library(tmp_path):
    """A data folder with a collection of three vectors, and an empty one."""
    data = vector_data(tmp_path / "data")
    data.create("films", dimension=2)
    data.create("books", dimension=2).upsert(
        [
            {"id": f"b{n}", "vector": [0.1, n], "value": n / 3, "payload": {"year": year}}
            for n, year in enumerate(YEARS)
        ]
    )
    data.close()
    return tmp_path / "data"


def ids(folder) -> set[str]:
    return vector_data(folder).collection("books").ids()


# -- drop and delete -------------------------------------------------------------------------------


def test_a_collection_is_dropped_after_a_question(library):
    asked = invoke("drop", "books", "--data", library, input="n\n")
    assert (asked.exit_code, asked.stdout) == (1, "")
    assert "Delete the collection 'books' with 3 documents? [y/N]" in asked.stderr
    assert "Nothing was deleted. Add --yes" in asked.stderr
    assert invoke("drop", "books", "--data", library).exit_code == 1  # nobody answers
    assert vector_data(library).names() == ["books", "films"]
    dropped = invoke("drop", "books", "--data", library, "--yes", "--json")
    assert json.loads(dropped.stdout) == {"collection": "books", "documents": 3, "dropped": True}
    assert vector_data(library).names() == ["films"]
    assert invoke("drop", "films", "--data", library, input="y\n").exit_code == 0
    missing = invoke("drop", "books", "--data", library, "--yes")
    assert missing.exit_code == 1
    assert "There is no collection 'books'; no collections exist yet" in missing.stderr


def test_the_target_of_an_alias_is_not_dropped(library):
    vector_data(library).set_alias("live", "books")
    for name in ("live", "books"):
        assert "live" in invoke("drop", name, "--data", library, "--yes").stderr
    assert vector_data(library).names() == ["books", "films"]


def test_documents_are_deleted_by_id_and_by_filter(library):
    on = ["--data", library, "--collection", "books"]
    asked = invoke("delete", *on, "--id", "b0", "--id", "none", input="n\n")
    assert asked.exit_code == 1
    assert "Delete 1 document of the collection 'books'?" in asked.stderr
    assert len(ids(library)) == 3
    by_id = invoke("delete", *on, "--id", "b0", "--id", "none", "--yes", "--json")
    assert json.loads(by_id.stdout) == {"collection": "books", "deleted": 1, "documents": 2}
    by_filter = invoke("delete", *on, "--filter", '{"year": {"lt": 1860}}', "--yes")
    assert by_filter.stdout == "books: 1 document deleted, 1 left.\n"
    assert ids(library) == {"b2"}
    nothing = invoke("delete", *on, "--filter", '{"year": 1}')
    assert nothing.stdout == "books: 0 documents deleted, 1 left.\n"
    unknown = invoke("delete", *on, "--filter", '{"yaer": 1}')
    assert "has the field 'yaer' of the filter; did you mean 'year'?" in unknown.stderr


@pytest.mark.parametrize(
    ("options", "status", "sentence"),
    [
        ([], 2, "Give either --id or --filter"),
        (["--id", "b0", "--filter", "{}"], 2, "Give either --id or --filter"),
        (["--filter", "{}"], 1, "An empty filter would delete every document"),
        (["--filter", "year > 3"], 2, "is not valid JSON"),
        (["--filter", '{"year": {"near": 3}}'], 1, "near"),
    ],
)
def test_a_wrong_deletion_deletes_nothing(library, options, status, sentence):
    told = invoke("delete", "--data", library, "--collection", "books", *options, "--yes")
    assert told.exit_code == status
    assert sentence in told.stderr
    assert len(ids(library)) == 3


# -- export ----------------------------------------------------------------------------------------


def test_vectors_are_exported_and_built_again(library, tmp_path):
    file = tmp_path / "books.jsonl"
    on = ["--data", library, "--collection", "books"]
    told = invoke("export", *on, "--jsonl", file, "--json")
    assert json.loads(told.stdout) == {"jsonl": str(file), "collection": "books", "documents": 3}
    again = invoke("export", *on, "--jsonl", file)
    assert again.exit_code == 1
    assert "exists; choose another file, or add --force" in again.stderr
    assert invoke("build", file, *on).stdout.startswith(
        "books: 0 added, 0 updated, 0 revised, 3 un"
    )
    other = ["--data", tmp_path / "other", "--collection", "copy"]
    built = invoke("build", file, *other)
    assert built.exit_code == 0, built.output
    assert "books.jsonl: documents with id, vector, value, payload" in built.stderr
    here, there = vector_data(library), vector_data(tmp_path / "other")
    rows = [data.collection(name) for data, name in ((here, "books"), (there, "copy"))]
    assert rows[0].document("b2")[1:] == rows[1].document("b2")[1:]
    assert rows[0].search([1, 2]).hits == rows[1].search([1, 2]).hits
    assert not list(tmp_path.glob(".*"))


def test_texts_are_exported_with_a_filter_and_to_stdout(tmp_path, tiny_encoder):
    data = Data(tmp_path / "data", load_encoder=lambda name: tiny_encoder)
    collection = data.create("notes")
    rows = [
        {"id": "é", "fields": {"title": "Ωmega", "text": "a b"}, "value": None},
        {"id": "2", "text": "c", "value": {"n": 2**70}, "payload": {"year": 5, "text": "other"}},
        {"id": "3", "text": "d", "value": [1.5, "x"], "payload": {"fields": {"a": [1]}}},
    ]
    collection.upsert(rows)
    on = ["--data", tmp_path / "data", "--collection", "notes"]
    some = invoke("export", *on, "--jsonl", "-", "--filter", '{"year": 5}')
    exported = {**rows[1], "fields": {"text": "c"}}
    del exported["text"]
    assert json.loads(some.stdout) == exported
    file = tmp_path / "all.jsonl"
    stages: list[float] = []
    assert export_documents(collection, file, on_progress=lambda _, at: stages.append(at)) == 3
    assert stages[-1] == 1.0
    other = Data(tmp_path / "other", load_encoder=lambda name: tiny_encoder).create("copy")
    for line in file.read_text().splitlines():
        other.upsert([json.loads(line)])
    assert [other.document(row["id"])[1:] for row in rows] == [
        collection.document(row["id"])[1:] for row in rows
    ]


def test_several_vectors_and_those_of_fields_are_exported(tmp_path):
    rows = [
        {"id": "1", "text": "a whale", "vectors": [[1, 0], [0, 1]]},
        {"id": "2", "fields": {"title": "b", "body": "c"}, "vectors": {"title": [1, 2]}},
        {"id": "3", "payload": {"year": 5}},
    ]
    collection = vector_data(tmp_path / "data").create(dimension=2)
    collection.upsert(rows)
    file = tmp_path / "all.jsonl"
    assert invoke("export", "--data", tmp_path / "data", "--jsonl", file).exit_code == 0
    again = invoke("build", file, "--data", tmp_path / "data")
    assert "3 unchanged" in again.stdout, again.output
    built = invoke("build", file, "--data", tmp_path / "other")
    assert built.exit_code == 0, built.output
    other = vector_data(tmp_path / "other").collection()
    assert other.search([0, 1]).hits == collection.search([0, 1]).hits


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--jsonl", "-", "--json"], "--json and --jsonl - would both write to stdout"),
        (["--snapshot", "x.tar", "--filter", '{"a": 1}'], "give it with --jsonl"),
        ([], "Give one of --sentence-transformers, --safetensors, --snapshot, --jsonl"),
    ],
)
def test_a_wrong_export_is_told_with_the_usage(library, options, sentence):
    told = invoke("export", "--data", library, "--collection", "books", *options)
    assert told.exit_code == 2
    assert sentence in told.stderr
