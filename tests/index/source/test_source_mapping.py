"""Guesses, types of CSV cells, and rows → documents."""

from __future__ import annotations

import json
import math
import sqlite3
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from contextlib import closing, nullcontext
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attend.api.base import parse
from attend.api.documents import DocumentRequest
from attend.core.errors import InvalidRequest, SourceError
from attend.source import FieldMap, Row, RowProblem, describe, documents, guess, open_source, sample
from attend.source.rows import SAMPLE_ROWS, Unusable, as_vector, document_id, scalar
from tests.places import DATA


def rows(*cells: Mapping[str, object]) -> list[Row]:
    return [Row(f"x:{number}", item) for number, item in enumerate(cells, start=1)]


def from_json(path: Path, objects: Sequence[object], map: FieldMap) -> list:
    path.write_text("".join(json.dumps(item) + "\n" for item in objects), encoding="utf-8")
    return list(documents(open_source(str(path)), map))


def from_csv(path: Path, content: str, **choice: object) -> list:
    path.write_text(content, encoding="utf-8")
    source = open_source(str(path))
    return list(documents(source, guess(sample(source), source=source, **choice)))


TEXT = FieldMap("id", ("text",), None, ())


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ({"_id": "1", "title": "a", "text": "b"}, FieldMap("_id", ("title", "text"), None, ())),
        ({"text": "a", "category": "b"}, FieldMap(None, ("text",), None, ("category",))),
        ({"ID": 1, "Name": "a", "Label": "x"}, FieldMap("ID", ("Name",), None, ("Label",))),
        ({"uuid": "u", "id": "1", "body": "b"}, FieldMap("id", ("body",), None, ())),
        ({"text": "a", "embedding": [1, 2.5]}, FieldMap(None, ("text",), "embedding", ())),
        ({"kind": "a", "embedding": [1, 2.5]}, FieldMap(None, (), "embedding", ())),
        ({"text": "a", "vector": "north"}, FieldMap(None, ("text",), None, ())),
        ({"question": "q", "answer": "a"}, FieldMap(None, ("question",), None, ("answer",))),
        ({"label": 1, "value": 2, "name": "n"}, FieldMap(None, ("name",), None, ("value",))),
        ({"name": "https://a.example/b", "notes": "a b"}, FieldMap(None, ("notes",), None, ())),
        ({"short": "ab", "long": "abcd", "n": "123456"}, FieldMap(None, ("long",), None, ())),
        ({"title": "a", "year": 1999, "tags": ["t"]}, FieldMap(None, ("title",), None, ())),
        ({"title": 7, "blurb": "words"}, FieldMap(None, ("blurb",), None, ())),
        ({"answer": "only"}, FieldMap(None, ("answer",), None, ())),
    ],
)
def test_guesses(cells, expected):
    assert guess(rows(cells)) == expected


def test_what_is_given_is_kept_and_only_the_rest_is_guessed():
    table = rows({"id": "1", "title": "t", "text": "u", "embedding": [1.0], "label": "x"})
    assert guess(table, text=["text", "text"]) == FieldMap("id", ("text",), None, ("label",))
    assert guess(table, value=["title"]).vector == "embedding"
    assert guess(table, vector="embedding", value=["text", "label"], id="title") == FieldMap(
        "title", (), "embedding", ("text", "label")
    )


def test_a_field_that_is_returned_is_searched_only_where_there_is_no_other():
    words = rows({"en": "dog", "fr": "le chien"})
    assert guess(words, value=["fr"]).text == ("en",)
    assert guess(rows({"text": "dog"}), value=["text"]).text == ("text",)


def test_impossible_choices_name_the_fields_there_are():
    table = rows({"n": 1, "title": "t"}, {"late": 2, "v": [1.0]})
    for choice in ({"id": "x"}, {"text": ["x"]}, {"vector": "x"}, {"value": ["n", "x"]}):
        with pytest.raises(SourceError, match=r"has no column 'x' .* n, title, late, v"):
            guess(table, **choice)
    with pytest.raises(SourceError, match="Choose with --text F or --vector F among n"):
        guess(rows({"n": 1}))


def test_a_given_field_may_come_only_after_the_sample(tmp_path):
    path = tmp_path / "x.jsonl"
    early = "".join(json.dumps({"id": n, "text": "t"}) + "\n" for n in range(SAMPLE_ROWS + 50))
    path.write_text(early + json.dumps({"id": "l", "text": "t", "late": 1, "v": [1]}) + "\n")
    source = open_source(str(path))
    table = sample(source)
    assert guess(table, source=source, value=["late"]).value == ("late",)
    assert guess(table, source=source, text=["late"]).text == ("late",)
    assert guess(table, source=source, id="late").id == "late"
    assert guess(table, source=source, vector="v").vector == "v"
    with pytest.raises(
        SourceError, match=r"no column 'x' in its first 151 rows. .* id, text, late"
    ):
        guess(table, source=source, value=["late", "x"])
    (*_, last) = documents(source, guess(table, source=source, value=["late"]))
    assert last.item.value == 1


def test_a_given_field_is_not_looked_for_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[guess.__module__], "LOOKAHEAD_ROWS", 120)
    for at, refused in ((119, False), (120, True)):
        objects = [{"text": "t", **({"late": 1} if n == at else {})} for n in range(200)]
        (tmp_path / "x.jsonl").write_text("".join(json.dumps(item) + "\n" for item in objects))
        source = open_source(str(tmp_path / "x.jsonl"))
        with pytest.raises(SourceError, match="first 120") if refused else nullcontext():
            guess(sample(source), source=source, value=["late"])


@pytest.mark.parametrize(("name", "good", "bad"), [("text", "words", 5), ("vector", [1.0], "no")])
def test_a_tenth_of_mistyped_cells_does_not_change_what_a_column_is(name, good, bad):
    def table(wrong: int) -> list[Row]:
        cells = [*([bad] * wrong), *([good] * (30 - wrong)), None, ""]
        return rows(*({"other": "more", name: cell} for cell in cells))

    for wrong in (0, 1, 3):
        found = guess(table(wrong))
        assert (name in found.text, found.vector == name) == (name == "text", name == "vector")
    assert guess(table(4)).text == ("other",)
    assert guess(table(4)).vector is None


def test_a_mistyped_text_in_the_sample_is_a_problem_of_its_row(tmp_path):
    objects = [{"id": n, "text": 5 if n == 40 else "words"} for n in range(100)]
    path = tmp_path / "x.jsonl"
    path.write_text("".join(json.dumps(item) + "\n" for item in objects))
    source = open_source(str(path))
    found = list(documents(source, guess(sample(source), source=source)))
    (problem,) = [item for item in found if isinstance(item, RowProblem)]
    assert len(found) == 100
    assert problem.place == "x.jsonl:41"
    assert "'text' holds a number" in problem.reason


def test_the_description_says_what_was_guessed_and_how_to_choose():
    table = rows({"_id": 1, "title": "t", "text": "u", "category": "c", "year": 1, "tags": []})
    assert describe(guess(table), table) == (
        "id: _id · text: title, text · value: category · payload: year, tags\n"
        "guessed: id, text, value (say --id/--text/--value to choose)"
    )
    assert describe(guess(table, id="_id", text=["text"], value=["category"]), table) == (
        "id: _id · text: text · value: category · payload: title, year, tags"
    )
    assert describe(guess(rows({"text": "a"})), rows({"text": "a"})).startswith(
        "id: the row number"
    )


def test_a_row_becomes_a_document(tmp_path):
    row = {"id": 7, "title": "T", "text": " ", "tags": ["a", "b"], "v": 1.5, "w": None, "p": None}
    map = FieldMap("id", ("title", "text", "tags", "absent"), None, ("v", "w"))
    (found,) = from_json(tmp_path / "x.jsonl", [row], map)
    assert found.place == "x.jsonl:1"
    assert found.item.id == "7"
    assert found.item.fields == {"title": "T", "tags": "a, b"}
    assert found.item.value == {"v": 1.5, "w": None}
    assert found.item.payload == {"p": None}


def test_requests_take_the_texts_that_files_may_have():
    request = parse(DocumentRequest, {"id": "1", "text": ["crime", "classics"]})
    assert request.document().fields == {"text": "crime, classics"}
    request = parse(DocumentRequest, {"id": "1", "fields": {"tags": ["a", "b"], "title": "T"}})
    assert request.document().fields == {"tags": "a, b", "title": "T"}
    for text in ([], [""], ["a", 5]):
        with pytest.raises(InvalidRequest, match="text"):
            parse(DocumentRequest, {"id": "1", "text": text})


def test_values_none_one_and_several(tmp_path):
    objects = [{"text": "t", "a": 1, "b": 2}, {"text": "t"}]
    for value, expected in {
        (): [None, None],
        ("a",): [1, None],
        ("a", "b"): [{"a": 1, "b": 2}, None],
    }.items():
        found = from_json(tmp_path / "x.jsonl", objects, FieldMap(None, ("text",), None, value))
        assert [item.item.value for item in found] == expected


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"text": "t"}, "no id: its field 'id' is missing"),
        ({"id": "", "text": "t"}, "no id"),
        ({"id": 1.5, "text": "t"}, "'id' is a number, but a string or a whole number"),
        ({"id": True, "text": "t"}, "'id' is a boolean"),
        ({"id": [1], "text": "t"}, "'id' is a list"),
        ({"id": "x" * 513, "text": "t"}, "513 characters; at most 512"),
        ({"id": "first", "text": "t"}, "The id 'first' was used before, at x.jsonl:1."),
        ({"id": "n"}, "no text: 'text' is empty"),
        ({"id": "n", "text": " \n"}, "no text"),
        ({"id": "n", "text": []}, "no text"),
        ({"id": "n", "text": 5}, "'text' holds a number"),
        ({"id": "n", "text": False}, "'text' holds a boolean"),
        ({"id": "n", "text": {"en": "t"}}, "'text' holds an object"),
        ({"id": "n", "text": ["t", 5]}, "'text' holds a list"),
        ({"id": "n", "text": "\ud800"}, "not valid UTF-8"),
        ({"id": "\udc00", "text": "t"}, "'id' holds half of a surrogate pair"),
        ({"id": "fir\x00st", "text": "t"}, "'id' holds the control character U+0000"),
        ({"id": "tab\t", "text": "t"}, "control character U+0009"),
        ({"id": "\x85", "text": "t"}, "control character U+0085"),
        ({"id": "n", "text": "t", "p": [{"\ud800": 1}]}, "not valid UTF-8"),
    ],
)
def test_an_unusable_row_is_a_problem_and_the_next_is_read(tmp_path, row, reason):
    objects = [{"id": "first", "text": "t"}, row, {"id": "last", "text": "t"}]
    first, problem, last = from_json(tmp_path / "x.jsonl", objects, TEXT)
    assert isinstance(problem, RowProblem)
    assert problem.place == "x.jsonl:2"
    assert reason in problem.reason
    assert (first.item.id, last.item.id) == ("first", "last")


@given(st.text(st.characters(), min_size=1, max_size=5))
def test_an_id_is_refused_exactly_where_json_each_or_utf8_would_change_it(text):
    expected = not any(unicodedata.category(character) in ("Cc", "Cs") for character in text)
    try:
        accepted = document_id(text, "id") == text
    except Unusable:
        accepted = False
    assert accepted == expected
    if accepted:
        with closing(sqlite3.connect(":memory:")) as database:
            query = "SELECT value FROM json_each(?)"
            assert database.execute(query, (json.dumps([text]),)).fetchall() == [(text,)]


def test_infinity_in_a_payload_is_a_problem(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"id": 1, "text": "t", "p": 1e999}\n')
    (problem,) = documents(open_source(str(tmp_path / "x.jsonl")), TEXT)
    assert "cannot be written as JSON" in problem.reason


def test_the_id_of_an_unusable_row_is_free_for_the_next(tmp_path):
    objects = [{"id": 1, "text": ""}, {"id": "1", "text": "t"}, {"id": 1, "text": "u"}]
    first, second, third = from_json(tmp_path / "x.jsonl", objects, TEXT)
    assert isinstance(first, RowProblem)
    assert second.item.fields == {"text": "t"}
    assert third == RowProblem(
        "x.jsonl:3", "The id '1' was used before, at x.jsonl:2. Give each row its own."
    )


def test_row_numbers_count_broken_rows_too_so_that_mending_one_moves_no_other(tmp_path):
    map = FieldMap(None, ("text",), None, ())
    before = from_json(tmp_path / "x.jsonl", [{"text": "a"}, 5, {"text": "c"}], map)
    after = from_json(tmp_path / "x.jsonl", [{"text": "a"}, {"text": "b"}, {"text": "c"}], map)
    assert before[2].item.id == after[2].item.id == "3"


@pytest.mark.parametrize(
    "cell",
    [None, [], "north", 5, [1, "2"], [1, True], [1, None], [[1]], [1e39], [-1e39], {"x": 1}, "[1"],
)
def test_what_is_no_vector(cell):
    assert as_vector(cell) is None
    assert as_vector([1.0, math.nan]) is None
    assert as_vector([math.inf]) is None


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1))
def test_vectors_pass_unchanged_as_lists_and_as_text(vector):
    assert as_vector(vector) == vector
    assert as_vector(json.dumps(vector)) == vector


def test_a_document_of_a_vector_has_no_texts(tmp_path):
    objects = [{"v": "no"}, {"v": [1, 2, 3]}, {}, {"v": [4, 5, 6], "text": "p"}]
    found = from_json(tmp_path / "x.jsonl", objects, FieldMap(None, (), "v", ()))
    assert [isinstance(item, RowProblem) for item in found] == [True, False, True, False]
    assert found[3].item.vectors == {"vector": [4.0, 5.0, 6.0]}
    assert found[3].item.fields == {}
    assert found[3].item.payload == {"text": "p"}


def test_a_document_has_its_texts_beside_its_vector(tmp_path):
    objects = [{"id": 1, "text": "a whale", "embedding": [1, 2]}, {"id": 2, "embedding": [3, 4]}]
    table = rows(*objects)
    assert describe(guess(table), table).startswith("id: id · text: text · vector: embedding")
    first, second = from_json(tmp_path / "x.jsonl", objects, guess(table))
    assert first.item.fields == {"text": "a whale"}
    assert first.item.vectors == {"vector": [1.0, 2.0]}
    assert (second.item.fields, second.item.payload) == ({}, {})
    # Whoever names the texts alone wants them to be encoded.
    assert guess(table, text=["text"]) == FieldMap("id", ("text",), None, ())


@given(
    st.one_of(
        st.integers(-(10**17) + 1, 10**17 - 1), st.floats(allow_nan=False, allow_infinity=False)
    )
)
def test_every_json_number_is_read_back(number):
    found = scalar(json.dumps(number))
    assert found == number
    assert type(found) is type(number)


@given(st.text("0123456789+-.eE_ naNifyTtrue٣", max_size=6))
def test_only_what_json_would_parse_is_a_number(text):
    found = scalar(text)
    try:
        expected = json.loads(text) if text == text.strip() else None
    except ValueError:
        expected = {"true": True}.get(text.lower())
    if isinstance(expected, float) and not math.isfinite(expected):
        expected = None  # Python's parser takes NaN and 1e999, JSON has neither
    assert found == expected


def test_csv_columns_get_types_only_where_every_sampled_cell_has_one(tmp_path):
    first, second, third = from_csv(
        tmp_path / "x.csv",
        "id,title,year,zip,phone,open,mixed,none\n"
        "01,1984,1949,75001,007,True,1,\n"
        "02,Emma,1815,01234,42,false,one,\n"
        "03,Dune,,69001,43,,,\n",
        text=["title"],
        value=["year"],
    )
    assert [item.item.id for item in (first, second, third)] == ["01", "02", "03"]
    assert first.item.fields == {"title": "1984"}
    assert [item.item.value for item in (first, second, third)] == [1949, 1815, None]
    assert first.item.payload == {
        "zip": "75001",
        "phone": "007",
        "open": True,
        "mixed": "1",
        "none": None,
    }
    assert second.item.payload["zip"] == "01234"
    assert third.item.payload["open"] is None


def test_numeric_ids_and_texts_of_csv_stay_text(tmp_path):
    found = from_csv(tmp_path / "x.csv", "id,code\n1,10\n2,20\n", id="id", text=["code"])
    assert [(item.item.id, item.item.fields) for item in found] == [
        ("1", {"code": "10"}),
        ("2", {"code": "20"}),
    ]


def test_a_cell_beyond_the_sample_that_is_no_number_stays_text(tmp_path):
    body = "".join(f"t{i},{i}\n" for i in range(120))
    *found, notice = from_csv(tmp_path / "x.csv", f"text,n\n{body}late,n/a\n")
    assert not notice.rejects
    assert [item.item.payload["n"] for item in found] == [*range(120), "n/a"]


def test_a_csv_may_hold_vectors_as_json(tmp_path):
    found = from_csv(tmp_path / "x.csv", 'id,vector\na,"[1, 2]"\nb,"[3, 4]"\n')
    assert [item.item.vectors["vector"] for item in found] == [[1.0, 2.0], [3.0, 4.0]]


def test_banking77_is_read_whole():
    path = DATA / "banking77" / "train.csv"
    if not path.is_file():
        pytest.skip("the Banking77 data set is not beside the repository, in ../shared/data")
    source = open_source(str(path))
    table = sample(source)
    found = list(documents(source, guess(table, source=source)))
    assert len(found) == 10_003
    assert len({item.item.value for item in found}) == 77
    assert "guessed: text, value" in describe(guess(table, source=source), table)
