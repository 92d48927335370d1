"""Malformed sources: each is answered by a sentence that names its place or field, and a remedy."""

from __future__ import annotations

import gzip
import json
import re
import sqlite3
import time
from collections.abc import Mapping
from contextlib import closing
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from attend.cli import main
from attend.core.errors import SourceError
from attend.source import Row, RowProblem, TableFormat, documents, guess, open_source, sample


class Case(NamedTuple):
    """A file, and what the sentence about it names: a place or field, and a remedy."""

    file: str
    content: bytes
    place: str
    remedy: str
    choice: Mapping[str, object] = {}
    format: Mapping[str, object] = {}


def parquet(columns: Mapping[str, object]) -> bytes:
    stream = BytesIO()
    pq.write_table(pa.table(columns), stream)
    return stream.getvalue()


def database(*statements: str) -> bytes:
    with closing(sqlite3.connect(":memory:")) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()
        return connection.serialize()


BOOKS = database("CREATE TABLE books (id INTEGER, title TEXT)")
FULL = database(
    "CREATE TABLE books (id INTEGER, title TEXT)",
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000) "
    "INSERT INTO books SELECT i, 'a title' FROM n",
)
PARQUET = parquet({"id": [1, 2], "text": ["a", "b"]})
LATE = parquet({"id": [1, 2], "text": ["a", "b"], "on": pa.array([0, 2**30], pa.date32())})
NOWHERE = parquet({"id": [1], "text": ["a"], "at": pa.array([0], pa.timestamp("s", "No/Where"))})
LATIN = FULL.replace(b"title TEXT", b"t\xeftle TEXT")
UTF16 = "id,text\n1,whale\n2,ship\n".encode("utf-16-le")
LONG = b"x" * 1001
TEXT = {"text": ["text"]}
CASES = {
    # Binary files under a name of text.
    "NUL": Case("x.csv", b"id,text\n1,a\x00b\n", "line 2", "Export the data as CSV"),
    "controls": Case("x.csv", b"id,text\n" + b"\x01\x02\x03\x04" * 9, "line 2", "Export the data"),
    "zip": Case("x.csv", b"PK\x03\x04\x00\x00", "x.csv", "save the sheet as CSV"),
    "gzip": Case("x.jsonl", gzip.compress(b'{"text": "a"}'), "x.jsonl", "unpack it"),
    "parquet as csv": Case("x.csv", PARQUET, "x.csv", "the ending .parquet"),
    "sqlite as csv": Case("x.csv", BOOKS, "x.csv", "name a table: file.db:table"),
    "pdf as jsonl": Case("x.jsonl", b"%PDF-1.4\x00\x01", "x.jsonl", "the ending .pdf"),
    "binary json": Case("x.json", b"[\x00\x01]", "line 1", "Export the data"),
    # Encodings.
    "utf-16 without a mark": Case("x.csv", UTF16, "x.csv", "--encoding utf-16-le"),
    "wrong mark": Case(
        "x.csv", b"\xff\xfe" + b"\x00\xd8id,text", "byte 3", "Save the file as UTF-8"
    ),
    "wrong encoding": Case(
        "x.csv",
        b"id,text\n1,\xe9\xff\n",
        "utf-16",
        "Save the file as UTF-8",
        format={"encoding": "utf-16"},
    ),
    "latin cell": Case("x.csv", b"id,text\n1,caf\xe9\n", "x.csv:2", "--encoding", TEXT),
    "latin header": Case("x.csv", b"id,pr\xe9nom\n1,a\n", "header", "--encoding"),
    "latin json": Case("x.jsonl", b'{"text": "caf\xe9"}\n', "x.jsonl:1", "--encoding"),
    # Tables.
    "empty": Case("x.csv", b"", "x.csv", "Name the columns in its first line"),
    "header only": Case("x.csv", b"id,text\n", "x.csv", "Give a source with at least one"),
    "blank header": Case("x.csv", b"\nid,text\n", "x.csv", "Name the columns"),
    "duplicate headers": Case("x.csv", b"id,text,text\n1,a,b\n", "text", "its own name"),
    "no header": Case("x.csv", b"1,1\n2,2\n", "1", "--no-header"),
    "short row": Case("x.csv", b"id,text\n1\n2,a\n", "x.csv:2", "add the missing ones"),
    "long row": Case("x.csv", b"id,text\n1,a, b\n2,a\n", "x.csv:2", "Quote cells that contain ','"),
    "unclosed quote": Case("x.csv", b'id,text\n1,a\n2,"b\n3,c\n', "x.csv:3", "Close the quote"),
    "quote within a cell": Case("x.csv", b'id,text\n1,"a" b\n2,c\n', "x.csv:2", "twice"),
    "unclosed header": Case("x.csv", b'id,"text\n1,a\n', "first line of", "Close the quote"),
    "unknown delimiter": Case("x.csv", b"id;text\nno\nrow\nfits\n", "'id;text'", "--delimiter"),
    "huge cell": Case(
        "x.csv", b"id,text\n1," + b"x" * 1001 + b"\n2,a\n", "x.csv:2", "Close the quote"
    ),
    "no text": Case("x.csv", b"id,n\n1,2\n", "id, n", "--text F"),
    "unknown column": Case("x.csv", b"id,title\n1,a\n", "'text'", "They have id, title", TEXT),
    # JSON.
    "jsonl of arrays": Case("x.jsonl", b"[1, 2]\n[3]\n", "x.jsonl:1", 'such as {"text": "'),
    "jsonl of one list": Case("x.jsonl", b'[{"text": "a"}]\n', "x.jsonl:1", "an object of fields"),
    "pretty json": Case(
        "x.jsonl", b'{\n "text": "a"\n}\n', "x.jsonl:1", "one whole object in each line"
    ),
    "truncated json": Case("x.jsonl", b'{"text": "a"}\n{"text": ', "x.jsonl:2", "one whole object"),
    "NaN": Case("x.jsonl", b'{"text": "a", "n": NaN}\n', "x.jsonl:1", "write null"),
    "json of an object": Case("x.json", b'{"text": "a"}', "x.json", "Wrap the objects in [ ]"),
    "broken json": Case("x.json", b'[{"text": "a"}, ', "x.json", "one object a line"),
    # Rows.
    "no id": Case("x.jsonl", b'{"id": 1, "text": "a"}\n{"text": "b"}\n', "x.jsonl:2", "Give"),
    "repeated id": Case("x.csv", b"id,text\n1,a\n1,b\n", "x.csv:3", "Give each row its own"),
    "text is a number": Case("x.jsonl", b'{"text": "a"}\n{"text": 5}\n', "'text'", "is expected"),
    "empty text": Case("x.jsonl", b'{"text": "a"}\n{"text": " "}\n', "'text'", "Write"),
    "vector of texts": Case(
        "x.jsonl",
        b'{"vector": [1, 2]}\n{"vector": "north"}\n',
        "'vector'",
        "list of finite numbers",
    ),
    # Columnar files and databases.
    "truncated parquet": Case("x.parquet", PARQUET[:-9], "x.parquet", "Write the file again"),
    "a time beyond all years": Case(
        "x.parquet", LATE, "x.parquet:2", "between the years 1 and 9999"
    ),
    "no zone": Case("x.parquet", NOWHERE, "x.parquet:1", "in a zone that exists"),
    "latin name of a column": Case("x.db:books", LATIN, "'books'", "Give it another name"),
    "no parquet": Case("x.parquet", b"id,text\n", "x.parquet", "Write the file again"),
    "no database": Case("x.db", b"hello " * 500, "x.db", "Name a SQLite database"),
    "truncated database": Case("x.db:books", FULL[:5000], "x.db", "Name a SQLite database"),
    "missing table": Case("x.db:films", BOOKS, "'films'", "write x.db:TABLE"),
    "no table named": Case("x.db", BOOKS, "books", "write x.db:TABLE"),
    "empty table": Case("x.db:books", BOOKS, "x.db:books", "at least one"),
    # Kinds.
    "spreadsheet": Case("x.xlsx", b"PK\x03\x04", ".xlsx", "Readable are .jsonl"),
    "directory of nothing": Case("folder/x.png", b"x", "folder", "Name a data file in it"),
    "format of json": Case(
        "x.jsonl", b"{}", "x.jsonl", "Leave --delimiter", format={"header": False}
    ),
}


def answer(folder: Path, case: Case) -> str:
    """Return the first sentence that a build would print about the file."""
    file = folder / case.file.partition(":")[0]
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(case.content)
    spec = folder / (case.file if "/" not in case.file else case.file.partition("/")[0])
    try:
        source = open_source(spec, TableFormat(**case.format))
        fields = guess(sample(source), source=source, **case.choice)
        problems = [item for item in documents(source, fields) if isinstance(item, RowProblem)]
    except SourceError as error:
        return str(error)
    assert problems, "the file was read without a problem"
    return str(problems[0])


@pytest.mark.parametrize("name", CASES)
def test_a_malformed_source_is_answered_by_its_place_and_a_remedy(name, tmp_path, monkeypatch):
    monkeypatch.setattr("attend.source.files.MAX_CELL_CHARACTERS", 1000)
    case = CASES[name]
    sentence = answer(tmp_path, case).replace(str(tmp_path) + "/", "")
    assert case.place in sentence
    assert case.remedy in sentence
    assert sentence.endswith(".")
    assert not re.search(r"Traceback|Error\b|codec|Errno|0x|\bNone\b(?! of)", sentence)
    assert len(sentence) < 600


def test_rows_beside_one_that_cannot_be_read_are_read(tmp_path):
    days = pa.array([0, 1, 2**30, 2], pa.date32())
    path = tmp_path / "x.parquet"
    path.write_bytes(parquet({"id": [1, 2, 3, 4], "text": ["a", "b", "c", "d"], "on": days}))
    one, two, late, four = open_source(path).rows()
    assert [row.cells["on"] for row in (one, two, four)] == [
        "1970-01-01",
        "1970-01-02",
        "1970-01-03",
    ]
    assert (late.place, four.place) == ("x.parquet:3", "x.parquet:4")
    assert late.rejects


def test_a_header_of_many_columns_takes_linear_time(tmp_path):
    path = tmp_path / "x.csv"
    names = [f"c{number}" for number in range(60_000)]
    path.write_text(",".join(names) + "\n" + ",".join(names) + "\n")
    begun = time.monotonic()
    (row,) = open_source(path).rows()
    assert len(row.cells) == 60_000
    assert time.monotonic() - begun < 10  # quadratic, it would take minutes


def test_there_are_forty_kinds_of_malformed_sources():
    assert len(CASES) >= 40
    assert len({json.dumps([case.file, case.content.hex()]) for case in CASES.values()}) >= 40


# -- one bad file of a folder ---------------------------------------------------------------------


def front(lines: str) -> bytes:
    return f"---\n{lines}\n---\nA ship sails.\n".encode()


DIGITS = "9" * 5000
NOTICES = {
    # Front matter by what it makes the parser raise; the text stays a document.
    "no such day": (front("date: 2024-02-30"), "day is out of range"),
    "no such year": (front("date: 0000-01-01"), "year 0 is out of range"),
    "no such hour": (front("date: 2024-01-01T25:00:00Z"), "hour must be in"),
    "no such zone": (front("date: 2024-01-01 00:00:00 +99:99"), "offset must be"),
    "no time": (front("date: !!timestamp x"), "groupdict"),
    "no boolean": (front("a: !!bool x"), "'x'"),
    "no number": (front("a: !!int x"), "invalid literal"),
    "no float": (front("a: !!float x"), "could not convert"),
    "no bytes": (front("a: !!binary x!"), "base64"),
    "no character": (front('a: "\\UFFFFFFFF"'), "too large"),
    "many digits": (front(f"n: {DIGITS}"), "Exceeds the limit"),
    "many digits of base 60": (front(f"n: {'1:' * 400}1.5"), "too large"),
    "many digits of YAML": (front(f"%YAML {DIGITS}"), "Exceeds the limit"),
    "lists": (front("a: " + "[" * 9_000), "nested more than 50 deep"),
    "blocks": (front("- " * 9_000), "nested more than 50 deep"),
    "mappings": (front("{a: " * 9_000), "nested more than 50 deep"),
    "a list as a name": (front("? [1]\n: 2"), "unhashable"),
    "a control character": (front("a: \x07"), "special characters"),
    "an object": (front("a: !!python/object:os.system x"), "could not determine"),
    "an alias": (front("a: &x 1\nb: *x"), "alias"),
}
REJECTED = {
    # Values that no JSON has.
    "hex.md": (front(f"n: 0x{'f' * 5000}"), "cannot be written as JSON"),
    "infinite.md": (front("n: .inf"), "cannot be written as JSON"),
    "half.md": (front('a: "\\ud800"'), "not valid UTF-8"),
    # Encodings.
    "latin.txt": (b"one\ncaf\xe9", "The line is not UTF-8"),
    "surrogate.txt": (b"\xed\xa0\x80 a", "not UTF-8"),
    "nul.txt": (b"\0\1\2", "holds control characters"),
    "no mark.txt": ("a sentence of words".encode("utf-16-le"), "--encoding utf-16-le"),
    "half a mark.txt": (b"\xff\xfea", "byte order mark of UTF-16"),
    "empty.txt": (b"", "is empty"),
    "blank.md": (b"\n" * 1000, "is empty"),
    "large.txt": (b"a" * 1_000_001, "at most 1000000"),
    # Documents that are converted.
    "cut.pdf": (b"%PDF-1.7\n1 0 obj<</Type/Catalog/Pages 1 0 R>>", "cannot be read as .pdf"),
    "lists.pdf": (b"%PDF-1.4\n" + b"[" * 100_000, "cannot be read as .pdf"),
    "empty.pdf": (b"", "cannot be read as .pdf"),
    "cut.docx": (b"PK\x03\x04", "cannot be read as .docx"),
    "cut.msg": (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "cannot be read as .msg"),
    "digits.html": (f"&#{DIGITS};".encode(), "cannot be read as .html"),
    "empty.html": (b"", "has no text"),
    "charset.eml": (b"Content-Type: text/plain; charset=nope\n\na", "unknown encoding"),
    "nul.eml": (b'Content-Type: text/plain; charset="a\0"\n\na', "embedded null"),
    "brackets.eml": (b"From: " + b"(" * 1900 + b"\n\na", "recursion"),
    "parts.eml": (
        b"".join(
            b"Content-Type: multipart/mixed; boundary=%d\n\n--%d\n" % (n, n) for n in range(400)
        ),
        "has no text",
    ),
    "empty.eml": (b"", "has no text"),
}  # fmt: skip
READ = {
    "day.eml": b"Date: Fri, 30 Feb 2024 99:99:99 +9999\nSubject: x\n\na",
    "year.eml": b"Date: Mon, 1 Jan 99999 00:00:00 +0000\n\na",
    "digits.eml": f"Date: {DIGITS}\n\na".encode(),
    "bytes.eml": b"Subject: caf\xe9\nFrom: \xff <a@b>\n\ncaf\xe9",
    # Texts that a careless parser takes quadratic time for.
    "quotes.eml": b"Content-Type: text/plain; " + b'"\\"' * 30_000 + b"\n\na",
    "names.eml": b"To: " + b"a <a@b>, " * 10_000 + b"\n\na",
    "blanks.md": b"# a" + b" " * 100_000 + b"b",
    "signs.md": b"# " + b"# " * 10_000,
    "rules.md": b"---\n" + b"---  x\n" * 9_000,
    "rule.md": b"---\n---" + b" " * 100_000 + b"x\ntext",
    "line.md": b"a\n" + b"=" * 50_000 + b"x",
    "not front matter.md": b"---\n" + b"a: 1\n" * 20_000 + b"---\ntext",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("folder")
    contents = {f"{name}.md": content for name, (content, _) in NOTICES.items()}
    contents |= {name: content for name, (content, _) in REJECTED.items()} | READ
    for name, content in {**contents, "a.txt": b"a text", "z.md": b"# Title\nA text."}.items():
        (folder / name).write_bytes(content)
    return folder


def built_from(source, data, encoder, *options):
    arguments = ["build", source, "--data", data, "--encoder", encoder, *options]
    return CliRunner().invoke(main, list(map(str, arguments)), prog_name="attend")


def test_a_bad_file_of_a_folder_is_named_and_the_others_are_indexed(
    folder, tmp_path, tiny_encoder_folder
):
    result = built_from(folder, tmp_path, tiny_encoder_folder, "--json")
    assert result.exit_code == 3, result.stderr
    built = json.loads(result.stdout)
    assert built["refused"] == len(REJECTED)
    assert built["documents"] == len(NOTICES) + len(READ) + 2
    lines = result.stderr.splitlines()
    expected = {f"{name}.md": reason for name, (_, reason) in NOTICES.items()}
    expected |= {name: reason for name, (_, reason) in REJECTED.items()}
    for name, reason in expected.items():
        assert any(name in line and reason in line for line in lines), (name, lines)
    assert not re.search("Traceback|Errno", result.stderr)
    strict = built_from(folder, tmp_path, tiny_encoder_folder, "--strict")
    assert strict.exit_code == 1, strict.stderr
    assert "Stopped at " in strict.stderr


@pytest.mark.parametrize("name", NOTICES)
def test_front_matter_that_is_left_out_leaves_the_text(folder, name):
    notice, row = open_source(folder / f"{name}.md").rows()
    assert isinstance(notice, RowProblem)
    assert not notice.rejects
    assert len(notice.reason) < 350
    assert isinstance(row, Row)
    assert row.cells["text"] == "A ship sails.\n"


@pytest.mark.parametrize("name", REJECTED)
def test_a_bad_file_alone_is_one_sentence(folder, name, tmp_path, tiny_encoder_folder):
    result = built_from(folder / name, tmp_path, tiny_encoder_folder)
    assert result.exit_code == 1, result.output
    assert isinstance(result.exception, SystemExit)
    assert REJECTED[name][1] in result.stderr
    assert "Traceback" not in result.stderr
