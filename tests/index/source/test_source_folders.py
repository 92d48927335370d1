"""Folders of text, and folders in BEIR layout."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from attend.core.errors import SourceError
from attend.source import Row, RowProblem, describe, documents, guess, open_source, sample
from attend.source.files import SAVE_AS
from attend.source.opening import heading
from tests.places import DATA


def write(root: Path, files: dict[str, str | bytes]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return root


def test_every_text_file_is_a_row_with_its_path_as_id(tmp_path):
    files = {
        "b.txt": "plain",
        "sub/a.md": "intro\n\n# The Title #\nbody",
        "sub/c.RST": "Chapter\n=======\nbody",
        "d.markdown": "no heading",
        ".git/x.md": "hidden",
        "sub/.draft.md": "hidden",
        "data.bin": "not text",
    }
    source = open_source(str(write(tmp_path, files)))
    rows = {row.place: row.cells for row in source.rows() if isinstance(row, Row)}
    assert {place: cells["title"] for place, cells in rows.items()} == {
        "b.txt": "b",
        "d.markdown": "d",
        "sub/a.md": "The Title",
        "sub/c.RST": "Chapter",
    }
    assert all(cells["id"] == place for place, cells in rows.items())
    assert rows["sub/a.md"]["text"] == files["sub/a.md"]


def test_a_folder_needs_no_guess(tmp_path):
    source = open_source(str(write(tmp_path, {"a.md": "# T\nwords"})))
    rows = sample(source)
    fields = guess(rows, source=source)
    assert describe(fields, rows) == "id: id · text: title, text"
    (found,) = documents(source, fields)
    assert found.item.fields == {"title": "T", "text": "# T\nwords"}
    assert found.item.payload == {}


def test_unreadable_files_are_problems(tmp_path):
    source = open_source(
        str(write(tmp_path, {"a.txt": b"one\ntwo \xff\n", "b.txt": " \n", "c.txt": "c"}))
    )
    broken, empty, good = source.rows()
    assert broken == RowProblem("a.txt:2", f"The line is not UTF-8. {SAVE_AS}", skips=True)
    assert empty == RowProblem(
        "b.txt", "The file is empty. Write a text into it, or remove it.", skips=True
    )
    assert isinstance(good, Row)


def test_a_file_over_the_limit_is_a_problem(tmp_path, monkeypatch):
    monkeypatch.setattr("attend.source.opening.MAX_FILE_BYTES", 4)
    first, second = open_source(str(write(tmp_path, {"a.txt": "12345", "b.txt": "1234"}))).rows()
    assert isinstance(first, RowProblem)
    assert isinstance(second, Row)


def test_an_empty_folder_is_refused_when_it_is_opened(tmp_path):
    with pytest.raises(SourceError, match=r"neither corpus\.jsonl nor a text file \(\.markdown"):
        open_source(str(write(tmp_path, {"image.png": b""})))


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("# One\n# Two", "One"),
        ("#no space\n## Yes", "Yes"),
        ("#\n### Third ###", "Third"),
        ("~~~\n# code\n~~~", None),
        ("a\n===\n# B", "a"),
        ("---\ntitle: x\n---\n# Real", "Real"),
        ("    # indented code", None),
        ("\n===\n", None),
        ("C# is a language", None),
        ("# C#", "C#"),
    ],
)
def test_the_first_heading(text, title):
    assert heading(text) == title


BEIR = [
    {"_id": "1", "title": "Title", "text": "Text", "metadata": {"year": 1999}},
    {"_id": "2", "title": "", "text": " only text "},
    {"_id": "3", "title": "only title"},
    {"_id": "4", "title": None, "text": "t"},
    {"_id": "5", "title": "", "text": ""},
    {"_id": "6", "title": 7, "text": "t"},
    {"_id": "7", "title": "x", "text": 7},
]


@pytest.fixture
def beir(tmp_path):
    corpus = "".join(json.dumps(item) + "\n" for item in BEIR)
    return write(tmp_path / "set", {"corpus.jsonl": corpus, "readme.md": "# not a document"})


def test_beir_joins_title_and_text_into_one_field(beir):
    source = open_source(str(beir))
    found = list(documents(source, guess(sample(source), source=source)))
    texts = [item.item.fields for item in found if not isinstance(item, RowProblem)]
    assert texts == [
        {"text": "Title Text"},
        {"text": "only text"},
        {"text": "only title"},
        {"text": "t"},
        {"text": "t"},
    ]
    assert found[0].item.payload == {"title": "Title", "metadata": {"year": 1999}}
    assert found[0].item.value is None
    assert [item.place for item in found if isinstance(item, RowProblem)] == [
        "set/corpus.jsonl:5",
        "set/corpus.jsonl:7",
    ]


def test_beir_honours_what_is_asked_for_and_guesses_nothing_else(beir):
    source = open_source(str(beir))
    rows = sample(source)
    fields = guess(rows, text=["title"], value=["metadata"], source=source)
    assert describe(fields, rows) == "id: _id · text: title · value: metadata · payload: text"
    first = next(documents(source, fields)).item
    assert (first.fields, first.value) == ({"title": "Title"}, {"year": 1999})
    assert guess(rows, source=source).guessed == ()


def test_scifact_is_read_as_beir_defines_it():
    folder = DATA / "scifact"
    if not folder.is_dir():
        pytest.skip("the SciFact data set is not beside the repository, in ../shared/data")
    source = open_source(str(folder))
    found = list(documents(source, guess(sample(source), source=source)))
    with (folder / "corpus.jsonl").open(encoding="utf-8") as file:
        expected = [json.loads(line) for line in file]
    assert [item.item.id for item in found] == [item["_id"] for item in expected]
    assert [item.item.fields["text"] for item in found] == [
        (item["title"] + " " + item["text"]).strip() for item in expected
    ]
