"""Malformed sources: each is answered by a sentence that names its place or field, and a remedy."""

from __future__ import annotations

import gzip
import json
import re
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from attend.errors import SourceError
from attend.source import RowProblem, TableFormat, documents, guess, open_source, sample


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


def test_there_are_forty_kinds_of_malformed_sources():
    assert len(CASES) >= 40
    assert len({json.dumps([case.file, case.content.hex()]) for case in CASES.values()}) >= 40
