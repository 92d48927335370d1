"""The command line: what it prints where, and with which exit status."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time

import numpy as np
import pytest
from click.testing import CliRunner

from attend.cli import main
from attend.cli.common import REJECTED
from tests import warm
from tests.index.helpers import commands_of, published, run_index, sealed, vector_data, write_jsonl

WORDS = ["whale", "ship", "bread", "sea", "flour"]


def invoke(*arguments: object):
    return CliRunner().invoke(main, [str(each) for each in arguments], prog_name="attend")


@pytest.fixture(scope="module")
def library(tmp_path_factory, tiny_encoder_folder):
    """A data folder with one collection of texts, and one of vectors."""
    folder = tmp_path_factory.mktemp("library")
    rows = [{"id": f"d{n}", "text": word, "value": n} for n, word in enumerate(WORDS)]
    path = write_jsonl(folder / "rows.jsonl", rows)
    built = invoke("build", path, "--data", folder, "--encoder", tiny_encoder_folder)
    assert built.exit_code == 0, built.stderr
    vectors = [{"id": n, "vector": [1.0, n]} for n in range(4)]
    built = invoke(
        "build",
        write_jsonl(folder / "v.jsonl", vectors),
        "--data",
        folder,
        "--collection",
        "vectors",
    )
    assert built.exit_code == 0, built.stderr
    return folder


def one_object(result, status: int = 0) -> dict:
    """Stdout holds one JSON object and not a character more."""
    assert result.exit_code == status, result.stderr
    assert result.stdout.endswith("}\n")
    assert result.stdout.count("\n") == 1
    found = json.loads(result.stdout)
    assert isinstance(found, dict)
    return found


# -- help ----------------------------------------------------------------------------------------


COMMANDS = dict(commands_of(main))


@pytest.mark.parametrize("command", [(), *COMMANDS], ids=" ".join)
def test_every_command_has_help_with_an_example(command):
    shown = invoke(*command, "--help")  # of the commands of a group, too, without its --data
    assert shown.exit_code == 0, shown.stderr
    assert shown.stdout.startswith(" ".join(["Usage: attend", *command]) + " [")
    assert "Example" in shown.stdout


def test_the_list_of_commands_imports_none_of_them():
    """So it is there at once; each that it names is there when it is called."""
    listing = (
        "import sys\n"
        "from attend_service import main\n"
        "main(['--help'], standalone_mode=False)\n"
        "assert not {'numpy', 'pydantic', 'flask', 'faiss'} & sys.modules.keys()\n"
    )
    shown = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    for name in main.later:
        assert re.search(rf"^  {name} +[A-Z].*\.$", shown.stdout, re.MULTILINE), name


def prints_itself(command: tuple[str, ...]) -> bool:
    """Whether a command does something without a command of its own, and prints what comes of it.

    `mcp` speaks a protocol on stdout.
    """
    alone = len(command) == 1 and command != ("mcp",)
    return alone and getattr(COMMANDS[command], "invoke_without_command", True)


@pytest.mark.parametrize("command", [*filter(prints_itself, COMMANDS)], ids=" ".join)
def test_every_command_says_json(command):
    assert "--json" in invoke(*command, "--help").stdout


# -- what goes to stdout ---------------------------------------------------------------------------


def test_each_command_gives_one_json_object(library, tmp_path, tiny_encoder_folder):
    rows = write_jsonl(tmp_path / "rows.jsonl", [{"id": 1, "text": "words"}, {"id": 1}])
    at = ["--data", tmp_path / "data", "--json"]
    built = one_object(invoke("build", rows, *at, "--encoder", tiny_encoder_folder), REJECTED)
    assert (built["added"], built["refused"], built["collection"]) == (1, 1, "default")
    assert (built["documents"], built["keys"], built["encoded"]) == (1, 1, 1)

    found = one_object(invoke("search", "whale", "--data", library, "--json", "-k", 2))
    assert found["hits"][0]["id"] == "d0"
    assert len(found["hits"]) == 2
    recommended = invoke("recommend", "d0", "--data", library, "-k", 1).stdout.splitlines()
    assert recommended[0] == "rank  weight  id  value"
    assert recommended[2].strip() in WORDS
    assert one_object(invoke("info", "--data", library, "--json"))["documents"] == 5
    assert one_object(invoke("verify", "--data", library, "--json"))["problems"] == []
    listed = one_object(invoke("projections", "--data", library, "--json"))["projections"]
    assert [each["active"] for each in listed] == [True]
    activated = invoke("projections", "--data", library, "--json", "activate", 1)
    assert one_object(activated) == {"projection": 1, "active": True}
    fit = ["fit", "pca", "--dimensions", 2]
    fitted = invoke("projections", "--data", library, "--json", *fit)
    assert one_object(fitted) == {"projection": 2, "active": False}

    queries = write_jsonl(tmp_path / "q.jsonl", [{"_id": "q", "text": "whale"}])
    qrels = tmp_path / "qrels.tsv"
    qrels.write_text("q\td0\t1\nq\tgone\t1\n")
    measured = invoke(
        "evaluate", "--data", library, "--json", "--queries", queries, "--qrels", qrels
    )
    assert one_object(measured)["recall@100"] == 0.5
    assert "1 relevant documents are not in the collection" in measured.stderr


@pytest.mark.parametrize(("count", "told"), [(120, "a build or publish makes it"), (20, None)])
def test_a_search_tells_that_the_test_of_foreign_queries_is_missing(
    tmp_path, tiny_encoder_folder, count, told
):
    model = shutil.copytree(tiny_encoder_folder, tmp_path / "model")
    rows = [{"id": str(number), "text": f"words of number {number}"} for number in range(count)]
    data = tmp_path / "d"
    invoke("build", write_jsonl(tmp_path / "rows.jsonl", rows), "--data", data, "--encoder", model)
    assert ("foreign.passages" in invoke("info", "--data", data).stdout) == (count == 120)
    with sqlite3.connect(data / "collections/default/documents.db") as db:
        db.execute("DELETE FROM settings WHERE name = 'foreign'")
    width = one_object(invoke("info", "--data", data, "--json"))["dimension"]
    shutil.rmtree(model)  # no search can make the test meanwhile
    searched = invoke("search", "--vector", json.dumps([1.0] * width), "--data", data)
    assert "is unknown" in invoke("info", "--data", data).stdout
    assert ("is unknown" in searched.stdout) == (told is not None)
    assert told is None or told in invoke("verify", "--data", data).stdout


def test_results_go_to_stdout_and_the_rest_to_stderr(tmp_path, tiny_encoder_folder):
    rows = [{"id": "a", "text": "words", "value": 3}, {"text": "no id"}]
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    built = invoke("build", path, "--data", tmp_path / "d", "--encoder", tiny_encoder_folder)
    assert built.exit_code == REJECTED
    assert built.stdout.startswith("default: 1 added, 0 updated")
    assert "1 rejected" in built.stdout
    assert "id: id · text: text · value: value" in built.stderr
    assert "guessed: id, text, value" in built.stderr
    assert "rows.jsonl:2: The row has no id" in built.stderr
    assert "1 row could not be used." in built.stderr
    searched = invoke("search", "words", "--data", tmp_path / "d", "--mode", "soft")
    assert searched.stdout.splitlines()[:3] == [
        "rank  weight  id  value",
        "   1   1.000  a   3",
        "              words",
    ]
    assert '"mean": 3.0' in searched.stdout


def test_many_bad_rows_are_counted_and_not_all_told(tmp_path, tiny_encoder_folder):
    rows = [{"id": "a", "text": "words"}, *({"text": f"no id {n}"} for n in range(50))]
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    built = invoke("build", path, "--data", tmp_path / "d", "--encoder", tiny_encoder_folder)
    assert built.stderr.count("has no id") == 20
    assert "50 rows could not be used." in built.stderr


def test_standard_input_and_a_real_process(tmp_path, tiny_encoder_folder):
    lines = "".join(json.dumps({"id": n, "text": word}) + "\n" for n, word in enumerate(WORDS))
    at = ["--data", tmp_path, "--json"]
    built = run_index("build", "-", *at, "--encoder", tiny_encoder_folder, stdin=lines)
    assert built.returncode == 0, built.stderr
    assert json.loads(built.stdout)["added"] == 5
    assert "default: 5 documents\n" in built.stderr
    missing = run_index("search", "x", "--data", tmp_path, "--collection", "books")
    assert missing.returncode == 1
    assert missing.stdout == ""
    assert missing.stderr.startswith("Error: There is no collection 'books'")
    assert "Traceback" not in missing.stderr


# -- how it fails ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["build"],
        ["build", "x.jsonl"],
        ["search", "--data", "d"],
        ["search", "q", "--data", "d", "-k", "many"],
        ["search", "q", "--data", "d", "--mode", "medium"],
        ["search", "q", "--data", "d", "--scorer", "euclid"],
        ["search", "q", "--data", "d", "--colour", "red"],
        ["build", "x", "--data", "d", "--overlap", "-1"],
        ["evaluate", "--data", "d"],
        ["evaluate", "--data", "d", "--queries", "not there", "--qrels", "not there"],
        ["fly", "--data", "d"],
    ],
    ids=" ".join,
)
def test_a_wrong_call_exits_with_2(arguments):
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert result.stdout == "" or not arguments
    assert "Usage:" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["search", "q", "--collection", "books"], "no collection 'books'.*default, vectors"),
        (["search", "q", "--collection", "../x"], "'../x' is no collection name"),
        (["search", "q", "-k", "0"], "k: .* 0 was given"),
        (["search", "q", "-k", "1000000"], "k: .* 1000000 was given"),
        (["search", "q", "-k", "50", "--attend", "20"], "k \\+ offset is 50"),
        (["search", "q", "--attend", "-5"], "attend.*'-5' was given"),
        (["search", "q", "--attend", "most"], "attend.*'most' was given"),
        (["search", "q", "--temperature", "-2"], "temperature: .* -2.0 was given"),
        (["search", "q", "--temperature", "nan"], "temperature: .* nan was given"),
        (["search", "q", "--value", "prize"], "'prize'"),
        (["search", "q", "--projection", "7"], "no projection 7 here; there are 1"),
        (["search", "q", "--filter", '{"a": {"near": 1}}'], "near"),
        (["search", ""], "query"),
        (["search", "q", "--collection", "vectors"], "made for vectors of 2 dimensions.*--vector"),
        (["search", "1", "--collection", "vectors"], "but QUERY is '1'; give a JSON list of 2 num"),
        (["search", "--vector", "[1, 2, 3]", "--collection", "vectors"], "has 3 dim.* have 2"),
        (["search", "[1, 2, 3]", "--collection", "vectors"], "has 3 dimensions.* have 2"),
        (["search", "[1, NaN]", "--collection", "vectors"], r"QUERY is '\[1, NaN\]'; give a JSON"),
        (["search", "x" * 1_000_001], "at most 1000000 characters"),
        (["projections", "activate", "9"], "no projection 9 here; there are 1"),
        (["verify", "--collection", "books"], "no collection 'books'"),
        (["build", "nothing.jsonl"], "no file or folder 'nothing.jsonl'"),
    ],
    ids=lambda each: " ".join(each)[:60] if isinstance(each, list) else "",
)
def test_what_cannot_be_done_exits_with_1_and_a_sentence(library, arguments, said):
    command, *rest = arguments
    at = ["--data", library]
    result = invoke(command, *at, *rest) if command == "projections" else invoke(*arguments, *at)
    assert result.exit_code == 1, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("Error: ")
    assert re.search(said, result.stderr), result.stderr


def test_a_vector_is_asked_as_query_as_option_and_from_a_file(library, tmp_path):
    file = tmp_path / "query.json"
    file.write_text("\ufeff [1.0, -0.5]\n", encoding="utf-8")
    at = ["--data", library, "--collection", "vectors", "--json"]
    asked = (["[1.0, -0.5]"], ["--vector", "[1.0, -0.5]"], ["--vector", file])
    found = [one_object(invoke("search", *each, *at))["hits"] for each in asked]
    assert [hit["id"] for hit in found[0]] == ["0", "1", "2", "3"]  # 1 - n / 2, the largest first
    assert found[0] == found[1] == found[2]
    blended = one_object(invoke("search", "--vector", file, "--like", "3", *at))["hits"]
    assert [hit["id"] for hit in blended] == ["2", "1", "0"]  # (1, 1.25), without the document
    texts = invoke("search", "--vector", json.dumps([0.5] * 32), "--data", library, "--json")
    assert len(one_object(texts)["hits"]) == 5


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            ["--vector", "[1, NaN]"],
            "--vector is '[1, nan]', but a list of finite numbers is expected",
        ),
        (
            ["--vector", "nothing.json"],
            "'nothing.json' is not valid JSON, and no file that holds it",
        ),
        (["--vector", "{folder}/v.jsonl"], "is not valid JSON, and no file that holds it"),
        (["q", "--vector", "{{}}"], "holds no JSON list"),
    ],
)
def test_a_wrong_vector_is_told_with_the_usage(library, given, said):
    rest = [each.format(folder=library) for each in given]
    result = invoke("search", *rest, "--data", library, "--collection", "vectors")
    assert result.exit_code == 2
    assert said in result.stderr


def test_a_list_of_numbers_is_text_where_there_is_an_encoder(library):
    result = invoke("search", "[1984]", "--data", library, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["attended"] > 0


def test_fewer_are_listed_where_fewer_are_attended(library):
    result = invoke("search", "q", "--data", library, "--attend", "1", "--json")
    assert result.exit_code == 0, result.output
    assert len(json.loads(result.stdout)["hits"]) == 1


def test_a_filter_that_is_no_json_is_a_wrong_call(library):
    result = invoke("search", "q", "--data", library, "--filter", "{year: 2000}")
    assert result.exit_code == 2
    assert "'--filter': '{year: 2000}' is not valid JSON" in result.stderr


@pytest.mark.parametrize(
    ("rows", "options", "said"),
    [
        ([{"id": 1, "text": ""}], ["--text", "text"], "has no usable row"),
        ([{"id": 1, "text": "a"}, {"id": 2}], ["--strict"], "Stopped at rows.jsonl:2"),
        ([{"id": 1, "text": "a"}], ["--text", "body"], "no column 'body'.*id, text"),
        ([{"id": 1, "text": "a"}], ["--id", "key"], "no column 'key'"),
        ([{"id": 1, "v": [1, "x"]}], ["--vector", "v"], "has no usable row"),
        ([{"id": 1, "text": "a"}], ["--encoder", "no/such-model"], "'no/such-model'"),
        ([], [], "has no rows"),
    ],
)
def test_a_build_that_fails_exits_with_1(tmp_path, tiny_encoder_folder, rows, options, said):
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    encoder = [] if "--encoder" in options or "--vector" in options else [tiny_encoder_folder]
    named = [word for each in encoder for word in ("--encoder", each)]
    result = invoke("build", path, "--data", tmp_path / "d", *named, *options)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert re.search(said, result.stderr), result.stderr


def test_a_build_must_agree_with_the_collection(library, tmp_path, tiny_encoder_folder):
    rows = write_jsonl(tmp_path / "rows.jsonl", [{"id": 1, "vector": [1, 2, 3]}])
    wide = invoke("build", rows, "--data", library, "--collection", "vectors")
    assert wide.exit_code == 1
    assert "dimension is 2, not 3" in wide.stderr
    texts = write_jsonl(tmp_path / "texts.jsonl", [{"id": 1, "text": "x"}])
    other = invoke("build", texts, "--data", library, "--encoder", "all-MiniLM-L6-v2")
    assert other.exit_code == 1
    assert f"was built with the encoder '{tiny_encoder_folder}', not" in other.stderr


def test_sync_with_an_unreadable_row_says_that_it_deleted_nothing(library, tmp_path):
    folder = tmp_path / "d"
    rows = [{"id": n, "vector": [1.0, n]} for n in range(4)]
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    assert invoke("build", path, "--data", folder).exit_code == 0
    write_jsonl(path, [rows[0], {"id": 9, "vector": "none"}])
    synced = invoke("build", path, "--data", folder, "--sync", "--vector", "vector", "--json")
    assert "Nothing was deleted" in synced.stderr
    counts = one_object(synced, REJECTED)
    assert (counts["removed"], counts["documents"]) == (0, 4)


def test_verify_exits_with_1_until_it_is_mended(tmp_path):
    data = vector_data(tmp_path)
    collection = data.create(dimension=2)
    collection.upsert([{"id": "a", "vector": [1, 0]}])
    collection.publish()
    manifest = published(collection) / "manifest.json"
    sealed(manifest, uuid="another")
    found = invoke("verify", "--data", tmp_path, "--json")
    assert found.exit_code == 1
    assert "was built for uuid 'another'" in json.loads(found.stdout)["problems"][0]
    searched = invoke("search", "[1, 0]", "--data", tmp_path)
    assert searched.exit_code == 1
    assert "verify --repair" in searched.stderr
    mended = invoke("verify", "--data", tmp_path, "--mend")
    assert (mended.exit_code, mended.stdout.splitlines()[-1]) == (0, "The index was built again.")
    assert invoke("search", "[1, 0]", "--data", tmp_path).exit_code == 0


def test_verify_looks_at_every_collection(tmp_path):
    data = vector_data(tmp_path)
    for name in ("books", "films"):
        data.create(name, dimension=2).upsert([{"id": "a", "vector": [1, 0]}])
    with data.collection("films").store.connections.writing() as db:
        db.execute("CREATE TRIGGER _sqlite_evil AFTER INSERT ON keys BEGIN SELECT 1; END")
    told = invoke("verify", "--data", tmp_path)
    sentence = "trigger _sqlite_evil is nothing that this program makes."
    assert told.exit_code == 1
    assert "books: 1 keys: database and index agree." in told.stdout
    assert f"films: schema: {sentence}" in told.stdout
    assert invoke("verify", "--data", tmp_path, "--collection", "books").exit_code == 0
    both = json.loads(invoke("verify", "--data", tmp_path, "--json").stdout)
    assert both["problems"] == both["left"] == [f"films: {sentence}"]
    assert both["collections"]["films"]["problems"] == [sentence]
    assert both["keys"] == 2
    mended = json.loads(invoke("verify", "--data", tmp_path, "--repair", "--json").stdout)
    assert mended["mended"]
    assert invoke("verify", "--data", tmp_path).exit_code == 0


def test_an_interrupted_build_says_so_and_goes_on(tmp_path, tiny_encoder_folder):
    rows = [{"id": n, "text": f"document number {n} " * 20} for n in range(40_000)]
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    arguments = ["build", path, "--data", tmp_path / "d", "--encoder", tiny_encoder_folder]
    with warm.start("-m", "index", *arguments) as process:
        wait_for_documents(tmp_path / "d", process)
        os.kill(process.pid, signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert stdout == ""
    stored = vector_data(tmp_path / "d").collection().store.counts()[0]
    assert 0 < stored < len(rows)
    assert f"Interrupted: {stored} documents are stored. Run the same command to go on." in stderr


def wait_for_documents(folder, process) -> None:
    path = folder / "collections" / "default" / "documents.db"
    started = time.monotonic()
    while not path.exists() or vector_data(folder).collection().store.counts()[0] == 0:
        assert process.poll() is None
        assert time.monotonic() - started < 120
        time.sleep(0.05)


# -- searches ------------------------------------------------------------------------------------


def test_a_search_by_document_with_facets_groups_and_marks(library):
    at = ["search", "--data", library]
    like = one_object(invoke(*at, "--like", "d0", "--json"))
    assert "d0" not in [hit["id"] for hit in like["hits"]]
    both = one_object(invoke(*at, "whale", "--like", "d1", "--like", "d2", "--json", "-k", 9))
    assert {hit["id"] for hit in both["hits"]} == {"d0", "d3", "d4"}
    options = ["--facet", "@value", "--group-by", "@id", "--highlight", "-k", 2]
    told = invoke(*at, "a whale", *options).stdout
    assert "[whale]" in told
    assert '(1 in "d0")' in told
    assert "@value: 0 1, 1 1, 2 1, 3 1, 4 1 (5 values)" in told
    first = one_object(invoke(*at, "whale", "-k", 3, "--json"))
    rest = one_object(invoke(*at, "whale", "--cursor", first["next"], "--json"))
    assert [len(first["hits"]), len(rest["hits"]), rest["next"]] == [3, 2, None]
    cut = one_object(invoke(*at, "whale", "--min-score", first["hits"][0]["score"], "--json"))
    assert [hit["id"] for hit in cut["hits"]] == ["d0"]
    assert invoke(*at).exit_code == 2


def test_a_build_tells_how_far_a_quantised_index_is(tmp_path):
    rows = np.random.default_rng(0).normal(size=(1200, 8)).round(3).tolist()
    path = write_jsonl(tmp_path / "v.jsonl", [{"id": at, "v": row} for at, row in enumerate(rows)])
    said = invoke("build", path, "--vector", "v", "--data", tmp_path / "d", "--exact-below", 1)
    assert said.exit_code == 0, said.stderr
    for stage in ("training lists", "quantising", "measuring"):
        assert stage in said.stderr
    exact = invoke("build", path, "--vector", "v", "--data", tmp_path / "e", "--json")
    assert "quantising" not in exact.stderr
