"""The demo's documents, and what a second run of it does."""

from __future__ import annotations

import ast
import inspect
import json
import zlib
from pathlib import Path

import pytest

from attend import Data
from attend.encoder import SentenceEncoder
from attend.source import documents
from attend_service import demo
from attend_service.demo import build, prepare, teach
from attend_service.docstrings import Docstring, StandardLibrary, standard_library
from tests import warm


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
    capfd: pytest.CaptureFixture[str],
) -> None:
    some = library[:300]
    data = Data(tmp_path, load_encoder=lambda _: tiny_encoder)
    assert build(data, some[:100]).added == 100
    rest = build(data, some)
    assert (rest.added, rest.unchanged) == (200, 100)
    # Every field is a key at least; long ones are several.
    read = documents(StandardLibrary(some[100:]), StandardLibrary.fields)
    assert rest.encoded >= sum(len(row.item.fields) for row in read)
    data.close()
    assert "Indexing: 300 documents\n" in capfd.readouterr().err

    def refuse(name: str) -> SentenceEncoder:
        raise AssertionError(f"{name} was loaded, and nothing had changed")

    data = Data(tmp_path, load_encoder=refuse)
    assert (build(data, some).unchanged, build(data, some).encoded) == (300, 0)
    fewer = build(data, some[:250])
    assert (fewer.unchanged, fewer.removed, fewer.encoded) == (250, 50, 0)
    assert data.collection().info().documents == 250
    data.close()


def test_the_questions_name_what_the_library_documents(library: list[Docstring]) -> None:
    names = {docstring.name for docstring in library}
    lines = demo.QUESTIONS.read_text().splitlines()
    questions = [line.split("\t")[0] for line in lines]
    assert len(set(questions)) == len(questions) > 250
    assert all(names.intersection(line.split("\t")[1].split()) for line in lines)
    # What is tried on the start page was not taught.
    assert not {question.query for question in demo.START} & set(questions)


def test_the_demo_is_taught_once_and_its_confidence_is_fitted(
    library: list[Docstring], tmp_path: Path, tiny_encoder: SentenceEncoder
) -> None:
    answers = {name for line in demo.QUESTIONS.read_text().splitlines() for name in line.split()}
    some = [docstring for docstring in library if docstring.name in answers]
    data = Data(tmp_path, load_encoder=lambda _: tiny_encoder)
    build(data, some)
    report = teach(data.collection())
    assert report is not None
    assert report["chosen"]["parts"] != list(demo.ONLY_CALIBRATED)  # of the training of everything
    assert data.collection().search("compress a file").calibrated
    stored = data.collection().store.settings()["questions"]
    assert [each["query"] for each in stored] == [each.query for each in demo.START]
    assert teach(data.collection()) is None
    # A later start reads no source of the library, unless something is missing.
    assert prepare(data, lambda: some) is not None
    assert prepare(data, refuse_to_read) is None
    data.collection().delete([some[0].name])
    repaired = prepare(data, lambda: some)
    assert repaired is not None
    assert (repaired[0].added, repaired[1]) == (1, {})
    data.close()


def refuse_to_read() -> list[Docstring]:
    raise AssertionError("the library was read, and nothing had changed")
