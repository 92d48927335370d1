"""Settings that are changed without a source, and who sees them."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from attend.cli import main
from tests.index.helpers import run_index, vector_data
from tests.places import ROOT

VALUES = ["12", "7", "12", "7"]


def invoke(*arguments: object):
    return CliRunner().invoke(main, [str(part) for part in arguments], prog_name="attend")


@pytest.fixture
def library(tmp_path):
    """A data folder with one collection of four vectors."""
    data = vector_data(tmp_path / "data")
    data.create(dimension=2).upsert(
        [{"id": str(n), "vector": [1.0, n], "value": value} for n, value in enumerate(VALUES)]
    )
    data.close()
    return tmp_path / "data"


def test_settings_change_without_a_source(library):
    options = ["--recall", 0.99, "--exact-below", 77, "--scale", 3, "--value-type", "text"]
    told = invoke("configure", "--data", library, *options)
    assert told.exit_code == 0, told.output
    assert told.stdout.splitlines() == [
        "recall: 0.99 (was 0.95)",
        "exact_below: 77 (was -)",
        "scale: 3.0 (was -)",
        "values: text (was -)",
    ]
    assert "fewer than 1,000 keys are always searched exactly" in told.stderr
    again = invoke("configure", "--data", library, "--recall", 0.99, "--json")
    result = json.loads(again.stdout)
    assert result["changed"] is False
    stored = vector_data(library).collection().settings
    assert (stored.recall, stored.exact_below, stored.scale) == (0.99, 77, 3.0)
    assert result["settings"] == stored.stored()
    assert "always searched exactly" in " ".join(invoke("configure", "--help").stdout.split())


def test_other_processes_see_settings_and_index_at_their_next_request(library):
    watching = vector_data(library).collection()
    watching.publish()
    before = watching.search([1.0, 0.0], mode="soft")
    assert before.answer["type"] == "category"
    options = ["--recall", 0.8, "--exact-below", 5000, "--scale", 9, "--value-type", "text"]
    ran = run_index("configure", "--data", library, *map(str, options))
    assert ran.returncode == 0, ran.stderr
    after = watching.search([1.0, 0.0], mode="soft")
    assert after.answer["type"] == "text"
    assert after.hits[0].score == pytest.approx(9.0)  # scale · 1 · 1
    assert before.hits[0].score == pytest.approx(2**-0.5)
    assert (watching.settings.recall, watching.settings.exact_below) == (0.8, 5000)
    info = watching.info()
    assert info.settings["recall"] == 0.8
    assert info.index["why"] == "fewer than 5000 keys"


def test_what_a_collection_holds_is_told_by_builds_and_configure(tmp_path, library):
    table = tmp_path / "rows.csv"
    table.write_text('id,vector\n9,"[0, 1]"\n')
    texts = ["--about", "title=Rows", "--about", "licence=CC0 = free"]
    built = invoke("build", table, "--data", library, *texts)
    assert built.exit_code == 0, built.output
    about = {"title": "Rows", "licence": "CC0 = free"}
    assert vector_data(library).collection().settings.about == about
    again = invoke("build", table, "--data", library)
    assert again.exit_code == 0, again.output
    assert vector_data(library).collection().settings.about == about
    assert invoke("configure", "--data", library, "--about", "source=here").exit_code == 0
    assert vector_data(library).collection().settings.about == {"source": "here"}


def test_a_setting_may_go_back_to_its_default(library):
    collection = vector_data(library).collection()
    assert collection.configure(scale=2.0, values="number")
    assert collection.configure(scale=None)
    assert invoke("configure", "--data", library, "--value-type", "auto").exit_code == 0
    assert (collection.info().settings["scale"], collection.settings.values) == (None, None)


@pytest.mark.parametrize(
    ("options", "status", "sentence"),
    [
        ([], 2, "Give a setting to change: --recall"),
        (["--recall", 2], 2, "2.0 is not in the range"),
        (["--value-type", "nmber"], 1, "'nmber' is not a value type. Give one of boolean, number"),
        (["--value-type", "text", "--value-type", "a=number"], 2, "either one type is expected"),
        (["--about", "Books"], 2, "a name and a text are expected"),
        (["--about", "subtitle=Books"], 1, "'title', 'description', 'licence' or 'source'"),
        (["--collection", "films", "--scale", 2], 1, "no collection 'films'; the collections are"),
    ],
)
def test_a_wrong_setting_changes_nothing(library, options, status, sentence):
    told = invoke("configure", "--data", library, *options)
    assert told.exit_code == status
    assert sentence in told.stderr
    assert vector_data(library).collection().settings.stored()["recall"] == 0.95


def test_types_of_values_are_declared_by_a_build(tmp_path, library):
    table = tmp_path / "rows.csv"
    table.write_text('id,vector,value,pages\n9,"[0, 1]",12,3\n')
    on = ["--data", library, "--value", "value", "--value", "pages"]
    declared = ["--value-type", "value=text", "--value-type", "pages=number"]
    built = invoke("build", table, *on, *declared)
    assert built.exit_code == 0, built.output
    assert vector_data(library).collection().settings.values == {"value": "text", "pages": "number"}
    assert vector_data(library).collection().document("9").value == {"value": "12", "pages": 3}


def test_a_missing_folder_is_told_with_advice_for_the_command_line(tmp_path):
    told = invoke("search", "x", "--data", tmp_path / "libary", "--collection", "books")
    assert told.exit_code == 1
    assert "no collections exist yet" in told.stderr
    assert f"The folder {tmp_path / 'libary'} does not exist." in told.stderr
    build = f"attend build SOURCE --data {tmp_path / 'libary'} --collection books"
    assert build in told.stderr
    assert "PUT" not in told.stderr
    assert not (tmp_path / "libary").exists()


def test_an_address_is_no_data_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = invoke("build", ROOT / "examples/intents.csv", "--data", "http://localhost:8000")
    assert told.exit_code == 1
    assert "attend.open('http://HOST:PORT') opens the library of an Attend server" in told.stderr
    assert not (tmp_path / "http:").exists()


def test_info_is_written_for_people(library):
    told = invoke("info", "--data", library).stdout
    assert not {"None", "True", "False", "(", "'"} & set(told.replace("(", " ( ").split())
    assert "capabilities.engine" not in told
    every = invoke("info", "--data", library, "--all").stdout
    assert set(told.split()) <= set(every.split())
    assert "settings.values " in every
    assert "capabilities.engine " in every


def test_aliases_are_listed_under_a_header(library):
    assert invoke("alias", "--data", library).stdout == "There are no aliases.\n"
    told = invoke("alias", "live", "default", "--data", library).stdout
    assert told.splitlines() == ["alias  collection", "live   default"]
