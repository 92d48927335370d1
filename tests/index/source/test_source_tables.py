"""SQLite tables and Parquet files."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal

import pytest

from attend.errors import SourceError
from attend.source import Row, RowProblem, documents, guess, open_source, sample

pa = pytest.importorskip("pyarrow", reason="Parquet is read with pyarrow, which is not installed")
pq = pytest.importorskip("pyarrow.parquet")


@pytest.fixture
def database(tmp_path):
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(
            """
            CREATE TABLE books (isbn TEXT PRIMARY KEY, title TEXT, price REAL, cover BLOB);
            INSERT INTO books VALUES ('b', 'Emma', 7.5, NULL), ('a', 'Ulysses', 9.0, x'00ff'),
                                     ('c', 'Dune', NULL, x'01');
            CREATE TABLE "my ""odd"" : table" (title TEXT);
            INSERT INTO "my ""odd"" : table" VALUES ('x'), ('y'), ('z');
            DELETE FROM "my ""odd"" : table" WHERE title = 'y';
            CREATE TABLE named (id INTEGER, title TEXT);
            INSERT INTO named VALUES (5, 'five');
            CREATE TABLE pairs (a TEXT, b TEXT, PRIMARY KEY (a, b)) WITHOUT ROWID;
            INSERT INTO pairs VALUES ('dog', 'chien');
            CREATE VIEW cheap AS SELECT title FROM books WHERE price < 8;
            """
        )
    return path


def read(spec: object) -> list[Row | RowProblem]:
    return list(open_source(str(spec)).rows())


def test_a_table_is_read_with_its_types_and_its_primary_key(database):
    source = open_source(f"{database}:books")
    *rows, report = source.rows()
    assert {row.cells["isbn"]: row.cells for row in rows} == {
        "b": {"isbn": "b", "title": "Emma", "price": 7.5, "cover": None},
        "a": {"isbn": "a", "title": "Ulysses", "price": 9.0},
        "c": {"isbn": "c", "title": "Dune", "price": None},
    }
    assert isinstance(report, RowProblem)
    assert "'cover' holds bytes" in report.reason
    assert not report.rejects
    assert (source.natural_id, source.name) == ("isbn", "shop.db:books")


@pytest.mark.parametrize(
    ("table", "natural_id", "ids"),
    [
        ('my "odd" : table', "rowid", ["1", "3"]),  # a number of the row would have moved
        ("named", None, ["5"]),
        ("pairs", None, ["1"]),
        ("cheap", None, ["1"]),
    ],
)
def test_ids_of_tables_without_a_key(database, table, natural_id, ids):
    source = open_source(f"{database}:{table}")
    fields = guess(sample(source), source=source)
    assert source.natural_id == natural_id
    assert [item.item.id for item in documents(source, fields)] == ids


def test_an_unknown_table_is_refused_with_those_there_are(database):
    with pytest.raises(SourceError, match=r"no table 'films'.*books, cheap"):
        open_source(f"{database}:films")
    with pytest.raises(SourceError, match=r"needs the name of a table.*books.*shop\.db:TABLE"):
        open_source(str(database))


def test_an_injected_name_is_only_a_name(database):
    with pytest.raises(SourceError, match="no table"):
        open_source(f'{database}:books"; DROP TABLE books; --')
    assert len(read(f"{database}:books")) == 4


def test_a_source_database_is_never_written(database, tmp_path):
    before = database.read_bytes()
    read(f"{database}:books")
    assert database.read_bytes() == before
    with pytest.raises(SourceError):
        open_source(f"{tmp_path / 'absent.db'}:t")
    assert not (tmp_path / "absent.db").exists()


def test_a_file_that_is_no_database_is_refused(tmp_path):
    path = tmp_path / "x.sqlite"
    path.write_text("hello " * 500)
    with pytest.raises(SourceError, match="not a database"):
        open_source(f"{path}:t")


def test_text_that_is_not_utf8_is_a_problem_of_its_row(tmp_path):
    path = tmp_path / "x.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, text TEXT)")
        connection.execute("INSERT INTO t VALUES (1, CAST(x'66ff' AS TEXT)), (2, 'good')")
    source = open_source(f"{path}:t")
    bad, good = documents(source, guess(sample(source), source=source))
    assert bad == RowProblem("x.db:t:1", "The row holds text that is not valid UTF-8.")
    assert good.item.id == "2"


def parquet(path, columns, schema=None):
    pq.write_table(pa.table(columns, schema=schema), path, row_group_size=2)
    return path


def test_parquet_cells_become_json(tmp_path):
    moment = datetime(2024, 2, 29, 12, 30, 0, 250_000, tzinfo=UTC)
    columns = {
        "id": pa.array([1, 2, None]),
        "tags": pa.array([["a", "b"], [], None]),
        "about": pa.array([{"on": date(2024, 2, 29), "n": 1}, None, {"on": None, "n": None}]),
        "at": pa.array([moment, None, moment], pa.timestamp("us", tz="UTC")),
        "nanos": pa.array([1, 1_000, 10**9 + 1], pa.timestamp("ns")),
        "took": pa.array([timedelta(seconds=1.5), None, None], pa.duration("ns")),
        "hour": pa.array([time(1, 2, 3), None, None]),
        "price": pa.array([Decimal("1.25"), None, Decimal("3.00")]),
        "rate": pa.array([0.5, float("nan"), None]),
        "kind": pa.array(["x", "y", "x"]).dictionary_encode(),
        "map": pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int64())),
        "raw": pa.array([b"1", b"2", b"3"]),
        "image": pa.array([{"bytes": b"1"}, None, None]),
    }
    *rows, raw, image = read(parquet(tmp_path / "x.parquet", columns))
    assert [row.place for row in rows] == ["x.parquet:1", "x.parquet:2", "x.parquet:3"]
    assert rows[0].cells == {
        "id": 1,
        "tags": ["a", "b"],
        "about": {"on": "2024-02-29", "n": 1},
        "at": "2024-02-29T12:30:00.250000+00:00",
        "nanos": "1970-01-01T00:00:00",
        "took": 1.5,
        "hour": "01:02:03",
        "price": 1.25,
        "rate": 0.5,
        "kind": "x",
        "map": [["k", 1]],
    }
    assert rows[1].cells["rate"] is None
    assert rows[2].cells["nanos"] == "1970-01-01T00:00:01"
    assert "'raw' holds bytes" in raw.reason
    assert "'image' holds bytes" in image.reason
    assert [raw.rejects, image.rejects] == [False, False]


def test_a_file_of_bytes_alone_has_no_rows_and_says_why(tmp_path):
    source = open_source(str(parquet(tmp_path / "x.parquet", {"raw": pa.array([b"1", b"2"])})))
    with pytest.raises(SourceError, match=r"x\.parquet has no rows\..*'raw' holds bytes"):
        sample(source)


@pytest.mark.parametrize("kind", [pa.list_(pa.float32()), pa.list_(pa.float16(), 3)])
def test_parquet_vectors_of_many_batches(tmp_path, kind, monkeypatch):
    monkeypatch.setattr("attend.source.tables.BATCH_ROWS", 3)
    vectors = [[float(i), 0.5, -1.0] for i in range(8)]
    path = parquet(tmp_path / "x.parquet", {"embedding": pa.array(vectors, kind)})
    source = open_source(str(path))
    found = list(documents(source, guess(sample(source), source=source)))
    assert [item.item.vectors for item in found] == [{"vector": v} for v in vectors]
    assert [item.item.id for item in found] == [str(i) for i in range(1, 9)]


def test_a_parquet_file_that_is_none_or_is_ambiguous_is_refused(tmp_path):
    (tmp_path / "x.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(SourceError, match="cannot be read"):
        read(tmp_path / "x.parquet")
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    pq.write_table(twice, tmp_path / "y.parquet")
    with pytest.raises(SourceError, match="several columns named a"):
        read(tmp_path / "y.parquet")


def test_an_infinite_number_is_a_problem(tmp_path):
    columns = {"text": ["a", "b"], "rate": [float("inf"), 1.0]}
    source = open_source(str(parquet(tmp_path / "x.parquet", columns)))
    bad, good = documents(source, guess(sample(source), source=source))
    assert isinstance(bad, RowProblem)
    assert good.item.payload == {"rate": 1.0}
