"""The demo's collections, its server, and what a second run does after a stop at any point."""

from __future__ import annotations

import ast
import inspect
import json
import os
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from attend import DEFAULT_COLLECTION, Data
from attend.encoder import SentenceEncoder
from attend.learning import train
from attend.source import documents
from attend.write.feedback import add_feedback
from attend_service import demo
from attend_service.background import IDLE, work_on
from attend_service.demo import DemoCollection, build, parts, prepare, teach
from attend_service.docstrings import Docstring, StandardLibrary, standard_library
from tests import warm
from tests.places import ROOT
from tests.service.test_server import LIMIT, Server
from tests.workers import workers_of


@pytest.fixture(scope="module")
def library() -> list[Docstring]:
    return standard_library()


def test_it_finds_a_few_thousand_names_once_each(library: list[Docstring]) -> None:
    names = [docstring.name for docstring in library]
    assert 3000 < len(names) < 10_000
    assert len(names) == len(set(names))
    assert {docstring.kind for docstring in library} == {"module", "class", "function", "method"}
    assert not [name for name in names if any(part.startswith("_") for part in name.split("."))]


def test_every_docstring_is_a_document(library: list[Docstring]) -> None:
    read = list(documents(StandardLibrary(library), StandardLibrary.fields))
    assert [row.item.id for row in read] == [docstring.name for docstring in library]
    assert all(row.item.fields["summary"].strip() for row in read)
    document = next(row.item for row in read if row.item.id == "json.dumps")
    assert document.value == {"name": "json.dumps", "module": "json", "kind": "function"}
    assert document.payload.keys() == {"module", "kind", "line", "signature"}


@pytest.mark.parametrize(
    ("name", "module", "kind"),
    [
        ("zlib.compress", "zlib", "function"),
        ("json", "json", "module"),
        ("json.decoder.JSONDecoder", "json", "class"),
        ("builtins.str.join", "builtins", "method"),
        ("struct.pack", "struct", "function"),
        ("os.getcwd", "os", "function"),
        ("http.client.HTTPConnection.connect", "http", "method"),
    ],
)
def test_well_known_names(library: list[Docstring], name: str, module: str, kind: str) -> None:
    found = next(docstring for docstring in library if docstring.name == name)
    assert (found.module, found.kind) == (module, kind)


def test_texts_are_those_that_python_knows(library: list[Docstring]) -> None:
    texts = {docstring.name: docstring.text for docstring in library}
    assert texts["zlib.compress"] == inspect.getdoc(zlib.compress)
    lines = {docstring.name: docstring.line for docstring in library}
    source = Path(json.__file__).read_text().splitlines()
    assert source[(lines["json.dumps"] or 0) - 1].startswith("def dumps(")


def test_modules_are_parsed_and_not_imported() -> None:
    """Importing some does things: `this` prints, others open windows or warn of their removal."""
    code = (
        # Debian's Python has these two built in, and others have not.
        "import sys; sys.builtin_module_names += ('pyexpat', 'spwd'); "
        "from attend_service.docstrings import standard_library; found = standard_library(); "
        "assert not [each for each in found if each.module in ('pyexpat', 'spwd')]; "
        "never = ('this', 'antigravity', 'turtle', 'curses', 'spwd'); "
        "print([module for module in never if module in sys.modules])"
    )
    done = warm.run("-c", code)
    assert done.returncode == 0, done.stderr
    assert ast.literal_eval(done.stdout) == []


def test_a_second_run_encodes_nothing_and_goes_on_where_the_first_stopped(
    library: list[Docstring],
    tmp_path: Path,
    tiny_encoder: SentenceEncoder,
) -> None:
    some = library[:300]
    data = Data(tmp_path, load_encoder=lambda _: tiny_encoder)
    collection = data.create(values=demo.VALUES)
    assert build(collection, some[:100]).added == 100
    lines: list[str] = []
    rest = build(collection, some, lambda message, _: lines.append(message))
    assert (rest.added, rest.unchanged) == (200, 100)
    # Every field is a key at least; long ones are several.
    read = documents(StandardLibrary(some[100:]), StandardLibrary.fields)
    assert rest.encoded >= sum(len(row.item.fields) for row in read)
    data.close()
    assert lines[0] == "Indexing 300 documents of default"
    assert lines[-1].startswith("300 of 300 documents of default are indexed")

    def refuse(name: str) -> SentenceEncoder:
        raise AssertionError(f"{name} was loaded, and nothing had changed")

    data = Data(tmp_path, load_encoder=refuse)
    collection = data.collection()
    assert (build(collection, some).unchanged, build(collection, some).encoded) == (300, 0)
    fewer = build(collection, some[:250])
    assert (fewer.unchanged, fewer.removed, fewer.encoded) == (250, 50, 0)
    assert collection.info().documents == 250
    data.close()


def test_modules_that_answer_the_start_page_are_indexed_first(library: list[Docstring]) -> None:
    early = [docstring for docstring in library if docstring.module in demo.EARLY]
    assert {docstring.module for docstring in early} == demo.EARLY
    assert len(early) < 512  # two windows of a build


def test_the_questions_name_what_the_library_documents(library: list[Docstring]) -> None:
    names = {docstring.name for docstring in library}
    lines = demo.QUESTIONS.read_text().splitlines()
    questions = [line.split("\t")[0] for line in lines]
    assert len(set(questions)) == len(questions) > 250
    assert all(names.intersection(line.split("\t")[1].split()) for line in lines)
    # What is tried on the start page was not taught.
    assert not {question.query for question in demo.START} & set(questions)
    assert not {question.query for question in demo.DESK_START} & set(texts_of(demo.INTENTS))


def texts_of(path: Path) -> list[str]:
    return [line.split(",")[1] for line in path.read_text().splitlines()]


def answers_only(library: list[Docstring]) -> list[Docstring]:
    """The documents that the demo's questions name: few, and enough to train on."""
    answers = {name for line in demo.QUESTIONS.read_text().splitlines() for name in line.split()}
    return [docstring for docstring in library if docstring.name in answers]


def test_the_demo_is_taught_once_and_its_confidence_is_fitted(
    library: list[Docstring], tmp_path: Path, tiny_encoder: SentenceEncoder
) -> None:
    some = answers_only(library)
    data = Data(tmp_path, load_encoder=lambda _: tiny_encoder)
    default = part_of(DEFAULT_COLLECTION, some)
    prepared = prepare(data, default)
    assert prepared is not None
    assert prepared[0].added == len(some)
    assert prepared[1]["chosen"]["parts"] != list(demo.ONLY_CALIBRATED)  # of everything
    collection = data.collection()
    answers = collection.search("compress a file")
    assert answers.calibrated
    assert f"Version {answers.projection} answers" in demo.described(prepared, len(some))
    stored = collection.store.settings()["questions"]
    assert [each["query"] for each in stored] == [each.query for each in demo.START]
    assert teach(collection) == {}
    # A later start reads no source of the library, unless something is missing.
    assert prepare(data, parts(refuse_to_read)[-1]) is None
    assert demo.described(None, 1234) == "1,234 documents, unchanged."
    collection.delete([some[0].name])
    repaired = prepare(data, default)
    assert repaired is not None
    assert (repaired[0].added, repaired[1]) == (1, {})
    data.close()


def test_a_training_that_was_not_promoted_is_not_repeated_after_a_stop(
    library: list[Docstring], tmp_path: Path, tiny_encoder: SentenceEncoder
) -> None:
    """A stop between the two trainings once left the demo without a confidence for good."""
    some = answers_only(library)[:150]
    data = Data(tmp_path, load_encoder=lambda _: tiny_encoder)
    collection = data.create(values=demo.VALUES)
    build(collection, some)
    add_feedback(
        collection, [{"query": f"question {n}", "id": some[n % 7].name} for n in range(40)]
    )
    first = train(collection)
    if first["promoted"]:
        pytest.skip("these questions were learned")
    steps: list[str] = []
    report = teach(collection, lambda message, _: steps.append(message))
    assert set(steps) == {"Fitting the confidence of default"}
    assert report["reason"] == first["reason"]
    assert collection.search("compress a file").projection == report["version"] != 1
    data.close()


def part_of(name: str, docstrings: list[Docstring] | None = None) -> DemoCollection:
    """A collection of the demo, with these docstrings for those of the whole library."""
    return next(part for part in parts(lambda: docstrings or []) if part.name == name)


def refuse_to_read() -> list[Docstring]:
    raise AssertionError("the library was read, and nothing had changed")


# -- the small collections ------------------------------------------------------------------------


def test_the_desk_learns_from_its_own_answers(
    tmp_path: Path, tiny_encoder: SentenceEncoder
) -> None:
    data = Data(tmp_path, load_encoder=lambda _: tiny_encoder)
    prepared = prepare(data, part_of("desk"))
    assert prepared is not None
    assert prepared[0].added == len(texts_of(demo.INTENTS)) - 1
    assert prepared[1]["chosen"]["objective"] == "answers"
    answer: Any = data.collection("desk").search("my parcel is late", mode="soft").answer
    assert answer["type"] == "category"
    assert prepare(data, part_of("desk")) is None
    data.close()


def test_the_shop_recommends_by_what_a_user_bought(
    tmp_path: Path, tiny_encoder: SentenceEncoder
) -> None:
    data = Data(tmp_path, load_encoder=lambda _: tiny_encoder)
    prepared = prepare(data, part_of("shop"))
    assert prepared is not None
    shop = data.collection("shop")
    assert prepared[0].added == prepared[0].documents > 100  # it recognises foreign queries
    interactions, users = shop.store.interaction_counts()
    assert (users, interactions > 100) == (20, True)
    values = shop.search("boots", k=1).hits[0].value
    assert isinstance(values, dict)
    assert values.keys() == {"price", "rating", "category"}
    bought = {line.split("\t")[1] for line in of_user("Ann")}
    listed = shop.recommend(user="Ann", k=10).hits
    assert not bought & {hit.id for hit in listed}
    assert [hit.id for hit in listed] != [hit.id for hit in shop.recommend(user="Finn", k=10).hits]
    assert prepare(data, part_of("shop")) is None
    data.close()


def of_user(name: str) -> list[str]:
    lines = demo.PURCHASES.read_text().splitlines()
    return [line for line in lines if line.startswith(f"{name}\t")]


# -- the command ----------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, tiny_encoder_folder: Path) -> Path:
    """A data folder whose collections are there, empty, with a small encoder."""
    data = Data(tmp_path)
    for part in parts():
        data.create(part.name, encoder=str(tiny_encoder_folder), values=part.values)
    data.close()
    return tmp_path


@contextmanager
def served(folder: Path) -> Iterator[Server]:
    """The demo as a person starts it; its output is in files beside the folder."""
    arguments = ["-m", "attend_service.demo", "--data", str(folder), "--port", "0"]
    with folder.with_suffix(".err").open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": "index:service"},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("Serving on "), errors_of(folder)
            address = urlsplit(line.split()[-1])
            yield Server(process, str(address.hostname), int(address.port or 0))
        finally:
            process.kill()
            process.communicate()


def errors_of(folder: Path) -> str:
    return folder.with_suffix(".err").read_text()


def until(holds: Callable[[], Any]) -> Any:
    """Wait until something holds; return it."""
    deadline = time.monotonic() + LIMIT
    while not (result := holds()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return result


def progress_of(server: Server) -> dict[str, Any]:
    status, work = server.request("GET", "/v1/progress")
    assert status == 200
    return dict(work)


def test_it_serves_while_it_builds_and_goes_on_after_any_stop(
    folder: Path, library: list[Docstring]
) -> None:
    with served(folder) as server:
        status, page = server.get_text("/")
        assert (status, 'id="progress"' in page) == (200, True)
        until(lambda: progress_of(server).get("collection") == DEFAULT_COLLECTION)
        until(lambda: "documents of default are indexed" in progress_of(server)["message"])
        search = "/v1/collections/{}/search"
        for name, query in (("shop", "boots"), ("desk", "parcel"), (DEFAULT_COLLECTION, "gzip")):
            status, answer = server.request("POST", search.format(name), {"query": query})
            assert (status, bool(answer["hits"])) == (200, True)
        # As Ctrl-C does in a terminal: to every process of its group.
        os.killpg(server.process.pid, signal.SIGINT)
        assert server.process.wait(LIMIT) == 130
    assert errors_of(folder).endswith("Stopped. The next run goes on from here.\n")
    assert "Traceback" not in errors_of(folder)
    assert work_on(folder) == IDLE
    with served(folder) as server:
        until(lambda: "documents of default are indexed" in progress_of(server)["message"])
        (builder,) = set(workers_of(server.process)) & set(sessions())
        server.process.kill()
        until(lambda: builder not in sessions())  # it ends with the server
    assert work_on(folder) == IDLE
    data = Data(folder)
    assert [part.is_done(data) for part in parts()] == [True, True, False]
    before = set(data.collection().store.all_ids())
    some = answers_only(library)
    rest = build(data.collection(), some)
    assert rest.unchanged == len(before & {docstring.name for docstring in some}) > 0
    finish(data)
    with served(folder) as server:
        assert progress_of(server)["state"] == "idle"
        assert 'id="progress"' not in server.get_text("/")[1]
        assert not set(workers_of(server.process)) & set(sessions())
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(LIMIT) == 0
    done = warm.run("-m", "attend_service.demo", "--data", folder, "--no-serve", "--json")
    assert json.loads(done.stdout)[DEFAULT_COLLECTION] == {"documents": len(some)}
    done = warm.run("-m", "attend_service.demo", "--data", folder, "--no-serve")
    assert f"default: {len(some)} documents, unchanged.\n" in done.stderr


def finish(data: Data) -> None:
    """Store that the default collection is done, without the minute of its training."""
    collection = data.collection()
    default = part_of(DEFAULT_COLLECTION)
    collection.store.put_settings({demo.SETTING: default.state(collection)})
    data.close()


def sessions() -> list[int]:
    """The processes that lead a session of their own."""
    listed = subprocess.run(["ps", "-eo", "pid=,sid="], capture_output=True, text=True, check=True)
    pairs = (line.split() for line in listed.stdout.splitlines())
    return [int(pid) for pid, session in pairs if pid == session]


def test_errors_in_the_background_are_shown(folder: Path) -> None:
    data = Data(folder)
    data.drop("shop")
    data.create("shop", dimension=3)  # another's collection, which takes no texts
    data.close()
    with served(folder) as server:
        until(lambda: progress_of(server)["state"] == "failed")
        message = progress_of(server)["message"]
        assert message.startswith("The demo is not complete: ")
        assert "goes on from here" in message
        assert message in errors_of(folder)
        assert 'data-state="failed"' in server.get_text("/teach")[1]
        assert server.request("GET", "/v1/collections")[0] == 200
        second = warm.run("-m", "attend_service.demo", "--data", folder, "--no-serve")
        assert (second.returncode, "Another process builds" in second.stderr) == (1, True)
    data = Data(folder)
    data.drop("shop")
    data.close()
    with served(folder) as server:
        (builder,) = until(lambda: set(workers_of(server.process)) & set(sessions()))
        os.kill(builder, signal.SIGKILL)
        until(lambda: progress_of(server)["state"] == "failed")
        server.process.terminate()
        assert server.process.wait(LIMIT) == 0
