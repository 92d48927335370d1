"""Delimiters, encodings, headers and types of tables: detected, named, or refused with advice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from attend.core.errors import InvalidRequest, SourceError
from attend.source import (
    Row,
    RowProblem,
    Source,
    TableFormat,
    describe,
    documents,
    guess,
    open_source,
    sample,
)
from attend.source.columns import guess_columns, with_format
from attend.source.files import encoding_of
from attend.source.rows import SAMPLE_ROWS
from attend.write.labels import INTERACTIONS, read_interactions

GERMAN = (
    "id;title;price\n1;Größe und Länge für alle Bücher;1.203,50\n"
    "2;Müller, der Jäger, hört nachts süße Töne;4\n3;Die Straße führt über die Brücke;0,5\n"
)
RATINGS = "196\t242\t3\t881250949\n186\t302\t3\t891717742\n"


def table(path: Path, content: str | bytes, **format: object) -> Source:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return open_source(str(path), TableFormat(**format))


def described(source: Source, **choice: object) -> str:
    rows = sample(source)
    return describe(guess(rows, source=source, **choice), rows, source)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp1252", "utf-16", "utf-32"])
def test_a_table_from_european_excel_is_read_with_its_numbers(tmp_path, encoding):
    source = table(tmp_path / "books.csv", GERMAN.encode(encoding))
    first, second, _ = documents(source, guess(sample(source), source=source, value=["price"]))
    assert first.item.fields == {"title": "Größe und Länge für alle Bücher"}
    assert (first.item.value, second.item.value) == (1203.5, 4)
    lines = described(source, value=["price"]).splitlines()
    assert lines[0] == "id: id · text: title · value: price (number)"
    guessed = "read as cp1252 (say --encoding to choose), " if encoding == "cp1252" else ""
    assert lines[-1] == (
        f"detected: {guessed}cells are separated by ';' (say --delimiter to choose), numbers have "
        f"a decimal comma (price)"
    )


@pytest.mark.parametrize(
    ("text", "delimiter"),
    [
        ("id,text\n1,a; b; c\n2,d; e; f\n", ","),
        ("id|title|year\n1|Toy, the|1995\n2|Heat|1996\n", "|"),
        ("id\ttitle\n1\tEmma, a novel\n2\tDune\n", "\t"),
        ("id;title, subtitle;price\n1;Emma, a novel;3\n2;Dune, sand;4\n", ";"),
        ("id;title;x\n1;Emma\n2;Dune;y\n3;Ulysses;z\n", ";"),
        ('id,meta\n1,"{""a"": 1; ""b"": 2}"\n2,"{""a"": 3}"\n', ","),
        ('id;text\n1;"line, one\nline; two"\n2;"x, y"\n', ";"),
        ("id,url\n1,http://a.b/?x=1;y=2\n2,http://a.b/?x=3;y=4\n", ","),
    ],
)
def test_the_delimiter_is_the_one_that_fits_header_and_rows(tmp_path, text, delimiter):
    for name in ("x.csv", "x.tsv"):
        rows = [row for row in table(tmp_path / name, text).rows() if isinstance(row, Row)]
        explicit = table(tmp_path / name, text, delimiter=delimiter)
        assert rows == [row for row in explicit.rows() if isinstance(row, Row)]
        assert len(rows) >= 2
        assert all(len(row.cells) >= 2 for row in rows)


@pytest.mark.parametrize(
    "text", ["text\nhello, world\nthis is, a line\nno\n", "text\na; b\nc\nd; e; f\n"]
)
def test_prose_in_one_column_is_not_split(tmp_path, text):
    source = table(tmp_path / "x.csv", text)
    assert source.delimiter == ","
    assert source.detected() == ""


def test_a_header_that_only_another_delimiter_splits_is_refused_with_advice(tmp_path):
    source = table(tmp_path / "x.csv", "id;title\nno\nfitting\nrow\n")
    with pytest.raises(SourceError, match=r"'id;title'.* separated by ';'.*--delimiter"):
        sample(source)


def test_films_without_a_header_are_read_whatever_the_ending(tmp_path):
    films = "1|Les Misérables (1995)|01-Jan-1995||http://a.b|0\n2|Heat (1995)|||http://a.c|1\n"
    options = {"header": False, "encoding": "latin-1"}
    source = table(tmp_path / "u.item", films.encode("latin-1"), **options)
    rows = sample(source)
    assert rows[0].place == "u.item:1"
    assert rows[0].cells["column_2"] == "Les Misérables (1995)"
    first, _ = documents(source, guess(rows, id="column_1", text=["column_2"], source=source))
    assert (first.item.id, first.item.fields) == ("1", {"column_2": "Les Misérables (1995)"})
    ratings = table(
        tmp_path / "u.data", "196\t242\t3\t881250949\n186\t302\t3\t891717742\n", header=False
    )
    named = dict(zip(("user", "item", "value", "time"), ratings_columns(4), strict=True))
    columns = guess_columns(ratings, INTERACTIONS, **named)
    first, _ = read_interactions(ratings, columns)
    assert tuple(first.item) == ("196", "242", 3, 881250949.0)
    assert "separated by '\\t'" in with_format(columns.describe(), ratings)


def ratings_columns(count: int) -> list[str]:
    return [f"column_{number}" for number in range(1, count + 1)]


def test_a_table_that_seems_to_have_no_header_is_refused_with_advice(tmp_path):
    source = table(tmp_path / "u.tsv", "196\t242\t3\n186\t302\t3\n")
    with pytest.raises(SourceError, match=r"looks like the user.*--no-header"):
        guess_columns(source, INTERACTIONS)
    with pytest.raises(SourceError, match=r"several columns named 3.*--no-header"):
        sample(table(tmp_path / "v.tsv", "3\t3\n1\t2\n"))


def test_an_unknown_ending_is_a_table_only_if_the_caller_says_so(tmp_path):
    with pytest.raises(SourceError, match=r"ending in .data .* give --delimiter or --no-header"):
        table(tmp_path / "u.data", "a;b\n1;2\n")
    assert sample(table(tmp_path / "u.data", "a;b\n1;2\n", delimiter=";"))[0].cells == {
        "a": "1",
        "b": "2",
    }
    with pytest.raises(SourceError, match=r"neither a delimiter nor a header"):
        table(tmp_path / "x.jsonl", '{"a": 1}\n', header=False)


def test_a_few_accents_are_no_ground_for_a_guess(tmp_path):
    source = table(tmp_path / "x.csv", "id,title\n1,Müller\n2,Jäger\n3,Emma\n".encode("cp1252"))
    *bad, good = source.rows()
    assert all("not UTF-8" in problem.reason for problem in bad)
    assert all("--encoding (Excel's is often cp1252)" in problem.reason for problem in bad)
    assert good.cells["title"] == "Emma"
    named = table(tmp_path / "y.csv", "id,title\n1,Müller\n".encode("cp1252"), encoding="cp1252")
    assert sample(named)[0].cells["title"] == "Müller"


def test_json_lines_in_utf16_are_read(tmp_path):
    source = table(tmp_path / "x.jsonl", '{"a": "é"}\n{"a": "字"}\n'.encode("utf-16"))
    assert [row.cells["a"] for row in source.rows()] == ["é", "字"]
    source = table(tmp_path / "x.json", '[{"a": "字"}]'.encode("utf-16"))
    assert [row.cells["a"] for row in source.rows()] == ["字"]


@pytest.mark.parametrize(
    "options", [{"delimiter": ";;"}, {"delimiter": '"'}, {"encoding": "utf-9"}]
)
def test_a_format_that_does_not_exist_is_refused(options):
    with pytest.raises(InvalidRequest, match=r"expected|not known; use a name"):
        TableFormat(**options)
    with pytest.raises(ValueError, match=r"not known"):
        encoding_of("base64")


def test_a_column_that_is_not_all_numbers_is_told_with_its_line(tmp_path):
    text = "title,price,year,n\n" + "".join(f"book,{n},{n},x\n" for n in range(5))
    source = table(tmp_path / "x.csv", text + "book,abc,unknown,7\n")
    assert described(source, value=["price"]).splitlines()[0] == (
        "id: the row number · text: title · value: price (text, because of 'abc' in line 7) · "
        "payload: year (text, because of 'unknown' in line 7), n"
    )
    lines = '{"title": "a", "price": 3}\n{"title": "b", "price": "4 €"}\n'
    source = table(tmp_path / "x.jsonl", lines)
    assert "value: price (mixed, because of '4 €' in row 2)" in described(source, value=["price"])


def test_a_late_text_in_a_column_of_numbers_is_told_at_the_end(tmp_path):
    lines = [f"book {number},{number}\n" for number in range(SAMPLE_ROWS + 9)]
    lines[SAMPLE_ROWS + 2] = lines[SAMPLE_ROWS + 5] = "odd,n/a\n"
    source = table(tmp_path / "x.csv", "title,price\n" + "".join(lines))
    *rows, notice = documents(source, guess(sample(source), source=source, value=["price"]))
    assert [item.item.value for item in rows[SAMPLE_ROWS : SAMPLE_ROWS + 4]] == [
        100,
        101,
        "n/a",
        103,
    ]
    assert notice == RowProblem(
        "x.csv:104",
        "The column 'price' has numbers, but 'n/a' here and 1 more cells, which stay text. Write "
        "numbers, or leave the cells empty.",
        rejects=False,
    )


def test_a_bad_row_among_the_first_does_not_make_guessing_fail(tmp_path):
    lines = '{"id": 1, "text": 5}\n{"id": 2, "text": "a whale"}\n{"id": 3, "text": "b"}\n'
    source = table(tmp_path / "x.jsonl", lines)
    fields = guess(sample(source), source=source)
    assert fields.text == ("text",)
    bad, *good = documents(source, fields)
    assert isinstance(bad, RowProblem)
    assert [item.item.id for item in good] == ["2", "3"]


def test_the_line_of_a_beir_folder_tells_that_title_and_text_are_joined(tmp_path):
    (tmp_path / "corpus.jsonl").write_text('{"_id": "1", "title": "T", "text": "words"}\n')
    source = open_source(str(tmp_path))
    assert described(source) == "id: _id · text: text (title and text joined) · payload: title"


@pytest.mark.parametrize(
    ("cells", "stored"),
    [
        (["02.03.1999", "17.05.2024 9:30"], ["1999-03-02", "2024-05-17T09:30"]),
        (["1.2.2020", "3.4.2021"], ["2020-02-01", "2021-04-03"]),  # no month before a point
        (["01/02/2020", "31/12/2020"], ["2020-02-01", "2020-12-31"]),
        (["01/02/2020", "12/31/2020"], ["2020-01-02", "2020-12-31"]),
        (["2020/1/2", "2020/12/31"], ["2020-01-02", "2020-12-31"]),
        (["01/02/2020", "03/04/2020"], ["01/02/2020", "03/04/2020"]),  # either day
        (["31/12/2020", "12/31/2020"], ["31/12/2020", "12/31/2020"]),  # neither order
        (["2020-01-02", "2020-12-31"], ["2020-01-02", "2020-12-31"]),
        (["192.168.100.200", "10.0.0.1"], ["192.168.100.200", "10.0.0.1"]),
        (["1.2.3", "2.10.4"], ["1.2.3", "2.10.4"]),
        (["101,202,303", "404,505"], ["101,202,303", "404,505"]),  # lists, as likely as numbers
        (["1,234,567", "12,345"], [1234567, 12345]),
        (["1\u202f299,00", "15,5"], [1299.0, 15.5]),
        (["1'299,00", "15"], [1299.0, 15]),
    ],
)
def test_dates_and_numbers_are_read_where_a_cell_proves_their_order(tmp_path, cells, stored):
    lines = [f'book {n};"{cell}"\n' for n, cell in enumerate(cells)]
    for delimiter in ";\t":
        text = "title;on\n" + "".join(lines)
        source = table(tmp_path / "x.tsv", text.replace(";", delimiter), delimiter=delimiter)
        rows = documents(source, guess(sample(source), source=source, text=["title"]))
        if delimiter == "\t":
            assert [row.item.payload["on"] for row in rows] == stored


def test_what_was_read_of_dates_is_told_and_what_was_not(tmp_path):
    text = "title,on,due\nEmma,02.03.1999,01/02/2020\nDune,17.05.2024,03/04/2020\n"
    assert described(table(tmp_path / "x.csv", text)).splitlines()[-1] == (
        "detected: dates are day, month, year, and stored as 1999-03-02 (on), dates are text, as "
        "01/02/2020 may be either day: write 2024-05-17 (due)"
    )


def test_a_foreign_header_is_no_ground_to_search_file_names(tmp_path):
    prose = "legt eine Liste der Dateien in einem Verzeichnis an"
    rows = "".join(f"cmd{n};kurz {n};{prose} {n};Befehle\n" for n in range(9))
    source = table(tmp_path / "man.csv", "Name;Kurztext;Beschreibung;Kapitel\n" + rows)
    assert guess(sample(source), source=source).text == ("Name", "Beschreibung")
    columns = [{"titre": f"Emma {n}", "resume": f"{prose} {n}", "rayon": prose} for n in range(9)]
    lines = "".join(json.dumps(row) + "\n" for row in columns)
    assert guess(sample(table(tmp_path / "y.jsonl", lines))).text == ("resume",)
