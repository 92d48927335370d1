"""Rows out of JSONL, JSON, CSV, TSV and standard input, and a place for what fails."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attend.core.errors import SourceError
from attend.source import Row, RowProblem, open_source, sample
from attend.source import files as files_module
from attend.source import rows as rows_module
from attend.source.files import SAVE_AS, StandardInput, bounded_lines, json_rows
from attend.source.rows import LOOKAHEAD_ROWS, SAMPLE_ROWS

JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(), JSON_VALUES, max_size=4)


def read(spec: Path | str) -> list[Row | RowProblem]:
    return list(open_source(str(spec)).rows())


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@given(st.lists(OBJECTS, max_size=6), st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_jsonl_gives_back_what_the_json_module_wrote(objects, end, ascii_only):
    lines = "".join(json.dumps(item, ensure_ascii=ascii_only) + end for item in objects)
    rows = list(json_rows(io.BytesIO(lines.encode("utf-8", "surrogatepass")), "x"))
    assert [row.cells for row in rows if isinstance(row, Row)] == objects


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"a": 1', "broken at character 8"),
        (b"[1, 2]", "is a list, but an object"),
        (b"true", "is a boolean, but an object"),
        (b"null", "is null, but an object"),
        (b'{"a": "\xff"}', "Byte 8 of the line is not UTF-8"),
        (b'{"a": NaN}', "NaN is not a JSON number"),
        (b"[" * 100_000, "cannot be read"),
    ],
)
def test_a_broken_line_is_a_problem_of_its_place_and_the_next_one_is_read(tmp_path, line, reason):
    path = write(tmp_path / "x.jsonl", b'{"a": 0}\n\n' + line + b'\n{"a": 2}')
    first, problem, last = read(path)
    assert (first, last) == (Row("x.jsonl:1", {"a": 0}), Row("x.jsonl:4", {"a": 2}))
    assert isinstance(problem, RowProblem)
    assert problem.place == "x.jsonl:3"
    assert reason in problem.reason


def test_a_byte_order_mark_is_no_part_of_the_first_field(tmp_path):
    for name, text in {
        "x.ndjson": '{"id": "1"}',
        "x.csv": "id\n1\n",
        "x.json": '[{"id": "1"}]',
    }.items():
        (row,) = read(write(tmp_path / name, "\ufeff" + text))
        assert row.cells == {"id": "1"}


def test_a_line_without_end_is_skipped_without_being_held(tmp_path, monkeypatch):
    monkeypatch.setattr(files_module, "MAX_LINE_BYTES", 20)
    data = b'{"a": "' + b"x" * 100 + b'"}\n{"a": 2}\n' + b"y" * 50
    rows = list(json_rows(bounded_lines(io.BytesIO(data)), "x"))
    assert [row.place for row in rows] == ["x:1", "x:2", "x:3"]
    assert [isinstance(row, RowProblem) for row in rows] == [True, False, True]
    assert max(map(len, bounded_lines(io.BytesIO(data)))) == 21


def test_a_json_list_has_places_and_another_json_value_is_refused(tmp_path):
    first, second = read(write(tmp_path / "x.json", '[{"a": 1}, 2]'))
    assert first == Row("x.json:1", {"a": 1})
    assert second == RowProblem(
        "x.json:2",
        'The row is a number, but an object of fields is expected, such as {"text": "…"}.',
    )
    for text, reason in {'{"a": 1}': "holds an object", "[1": "cannot be read"}.items():
        with pytest.raises(SourceError, match=reason):
            read(write(tmp_path / "y.json", text))


def test_a_large_json_list_is_sent_to_jsonl(tmp_path, monkeypatch):
    monkeypatch.setattr(files_module, "MAX_ARRAY_BYTES", 5)
    with pytest.raises(SourceError, match="JSONL"):
        read(write(tmp_path / "x.json", '[{"a": 1}]'))


# A file with many control characters is binary.
CONTROLS = "".join(map(chr, {*range(32), 127} - {9, 10, 13}))
CELLS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=CONTROLS), max_size=6)


@given(st.lists(st.tuples(CELLS, CELLS), max_size=6), st.sampled_from([",", "\t"]))
def test_delimited_text_is_read_as_the_csv_module_wrote_it(tmp_path_factory, records, delimiter):
    path = tmp_path_factory.mktemp("csv") / ("x.csv" if delimiter == "," else "x.tsv")
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter=delimiter, quoting=csv.QUOTE_ALL)
        writer.writerows([("a", "b"), *records])
    assert [row.cells for row in read(path)] == [{"a": a, "b": b} for a, b in records]


def test_places_in_csv_are_the_line_where_a_record_begins(tmp_path):
    path = write(tmp_path / "x.csv", b'a,b\n1,"two\nlines"\n\n3\n4,5,6\n7,\xe9\n8,9\n')
    remedy = "Quote cells that contain ',', or add the missing ones."
    assert read(path) == [
        Row("x.csv:2", {"a": "1", "b": "two\nlines"}),
        RowProblem("x.csv:5", f"The row has 1 cells, but the header names 2 columns. {remedy}"),
        RowProblem("x.csv:6", f"The row has 3 cells, but the header names 2 columns. {remedy}"),
        RowProblem("x.csv:7", f"The row holds bytes that are not UTF-8. {SAVE_AS}"),
        Row("x.csv:8", {"a": "8", "b": "9"}),
    ]


def test_an_unclosed_quote_is_a_problem_and_not_a_cell_that_swallows_the_rest(tmp_path):
    rows = read(write(tmp_path / "x.csv", 'a,b\n1,2\n3,"open\n4,5\n'))
    assert rows[0] == Row("x.csv:2", {"a": "1", "b": "2"})
    assert isinstance(rows[1], RowProblem)
    assert rows[1].place == "x.csv:3"
    assert len(rows) == 2


def test_a_cell_may_be_larger_than_the_csv_modules_default(tmp_path):
    long = "x" * 200_000
    (row,) = read(write(tmp_path / "x.csv", f"a,b\n1,{long}\n"))
    assert row.cells["b"] == long
    assert csv.field_size_limit() == files_module.MAX_CELL_CHARACTERS


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "no header"),
        (b"a,a\n1,2\n", "several columns named a"),
        (b"a,\xff\n1,2\n", "not UTF-8"),
        (b'a,"b\n', "cannot be read"),
    ],
)
def test_a_header_that_names_no_columns_is_refused(tmp_path, data, reason):
    with pytest.raises(SourceError, match=reason):
        read(write(tmp_path / "x.csv", data))


def test_the_nameless_index_column_of_a_data_frame_gets_a_name(tmp_path):
    (row,) = read(write(tmp_path / "x.csv", ",title\n0,Emma\n"))
    assert row.cells == {"column_1": "0", "title": "Emma"}


@pytest.mark.parametrize("count", [0, 3, SAMPLE_ROWS, LOOKAHEAD_ROWS, LOOKAHEAD_ROWS + 7])
def test_a_sample_of_standard_input_consumes_nothing(monkeypatch, count):
    lines = "".join(f'{{"n": {n}}}\n' for n in range(count))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
    source = open_source("-")
    if count:
        assert len(sample(source)) == min(count, SAMPLE_ROWS)
    assert [row.cells["n"] for row in source.rows()] == list(range(count))
    if count <= LOOKAHEAD_ROWS:
        assert len(list(source.rows())) == count
    else:
        with pytest.raises(SourceError, match="only once"):
            list(source.rows())


def test_standard_input_is_streamed():
    class Endless(io.RawIOBase):
        def readline(self, size=-1):
            return b'{"n": 1}\n'

    rows = StandardInput(Endless()).rows()
    assert sum(next(rows).cells["n"] for _ in range(1000)) == 1000


def test_a_sample_without_rows_says_why(tmp_path):
    with pytest.raises(SourceError, match=r"x\.jsonl has no rows"):
        sample(open_source(str(write(tmp_path / "x.jsonl", ""))))
    with pytest.raises(SourceError, match=r"x\.jsonl:1: The JSON is broken"):
        sample(open_source(str(write(tmp_path / "x.jsonl", "{\n{\n"))))


def test_a_sample_passes_over_rows_that_cannot_be_used(tmp_path, monkeypatch):
    monkeypatch.setattr(rows_module, "LOOKAHEAD_ROWS", 500)
    good = "".join(f'{{"n": {n}}}\n' for n in range(SAMPLE_ROWS + 5))
    found = sample(open_source(str(write(tmp_path / "x.jsonl", "{\n" * 300 + good))))
    assert [row.cells["n"] for row in found] == list(range(SAMPLE_ROWS))
    last = sample(open_source(str(write(tmp_path / "y.jsonl", "{\n" * 499 + good))))
    assert [row.place for row in last] == ["y.jsonl:500"]
    with pytest.raises(SourceError, match=r"first 500 rows can be used\. z\.jsonl:1: The JSON"):
        sample(open_source(str(write(tmp_path / "z.jsonl", "{\n" * 500 + good))))


def test_looking_for_usable_rows_consumes_no_standard_input():
    source = StandardInput(io.BytesIO(b"{\n" * 300 + b'{"n": 1}\n' * 3))
    assert len(sample(source)) == 3
    assert len(list(source.rows())) == 303


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ("gone.csv", "'gone.csv'"),
        ("", "''"),
        ("gone.db:books", "gone.db:books"),
        ("a.xlsx", ".xlsx"),
    ],
)
def test_what_cannot_be_read_is_named_with_what_can(tmp_path, monkeypatch, spec, named):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a.xlsx", "")
    with pytest.raises(SourceError) as raised:
        open_source(spec)
    assert named in str(raised.value)
    assert ".parquet" in str(raised.value)


def test_a_vanished_file_is_a_source_error(tmp_path):
    for name in ("x.jsonl", "x.csv"):
        source = open_source(str(write(tmp_path / name, "")))
        (tmp_path / name).unlink()
        with pytest.raises(SourceError, match="cannot be read: No such file"):
            list(source.rows())


def test_numbers_survive_as_json_holds_them(tmp_path):
    (row,) = read(write(tmp_path / "x.jsonl", '{"a": 0.1, "b": 12345678901234567890}\n'))
    assert math.isclose(row.cells["a"], 0.1, rel_tol=0, abs_tol=0)
    assert row.cells["b"] == 12345678901234567890
