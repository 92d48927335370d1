"""SQLite tables and Parquet files."""

from __future__ import annotations

import hashlib
import sqlite3
from contextlib import closing
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal

import duckdb
import numpy as np
import pandas
import polars
import pytest

from attend.core.errors import SourceError
from attend.source import Row, RowProblem, describe, documents, guess, open_source, sample

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


# -- streams of Arrow, and vectors as bytes --------------------------------------------------------

COLUMNS = {
    "title": ["Emma", "Dune", None],
    "price": [7.5, None, 9.0],
    "embedding": [[0.5, 1.0], [1.0, 0.0], [0.0, -1.0]],
}
CELLS = [dict(zip(COLUMNS, cells, strict=True)) for cells in zip(*COLUMNS.values(), strict=True)]


def duck(columns: dict[str, list]) -> object:
    table = pa.table(columns)
    return duckdb.connect().from_arrow(table)


@pytest.mark.parametrize(
    "frame",
    [pandas.DataFrame, polars.DataFrame, duck, pa.table, lambda c: pa.table(c).to_reader(1)],
    ids=["pandas", "polars", "duckdb", "arrow", "reader"],
)
def test_whatever_streams_arrow_is_a_source(frame):
    source = open_source(frame(COLUMNS))
    rows = sample(source)
    assert [row.cells for row in rows] == CELLS
    assert rows[2].place == f"{source.name}:3"
    assert guess(rows, source=source).vector == "embedding"
    assert [row.cells for row in source.rows()] == CELLS


def test_a_stream_is_cut_into_short_batches(monkeypatch):
    monkeypatch.setattr("attend.source.tables.BATCH_ROWS", 3)
    frame = polars.DataFrame({"n": range(10), "raw": [b"x"] * 10})
    *rows, notice = open_source(frame).rows()
    assert [row.cells for row in rows] == [{"n": number} for number in range(10)]
    assert "'raw' holds bytes" in notice.reason


def test_a_reader_that_is_spent_and_a_mixed_frame_are_refused(monkeypatch):
    monkeypatch.setattr("attend.source.tables.LOOKAHEAD_BATCHES", 1)
    source = open_source(pa.table({"n": [1, 2, 3]}).to_reader(1))
    assert len(list(source.rows())) == 3
    with pytest.raises(SourceError, match="only once"):
        list(source.rows())
    with pytest.raises(SourceError, match=r"DataFrame cannot be read .* Give each column one type"):
        sample(open_source(pandas.DataFrame({"a": [1, "x"]})))


def vectors_db(path, rows, kind="<f4"):
    with closing(sqlite3.connect(path)) as connection, connection:
        # As `llm` writes it.
        connection.execute(
            "CREATE TABLE embeddings (collection_id INTEGER, id TEXT, embedding BLOB, content TEXT,"
            " content_hash BLOB, PRIMARY KEY (collection_id, id))"
        )
        for number, vector in enumerate(rows):
            blob = vector if isinstance(vector, bytes) else np.array(vector, kind).tobytes()
            digest = hashlib.md5(str(number).encode()).digest()
            entry = (1, f"d{number}", blob, f"text {number}", digest)
            connection.execute("INSERT INTO embeddings VALUES (?, ?, ?, ?, ?)", entry)
    return f"{path}:embeddings"


def test_bytes_of_float32_are_vectors(tmp_path):
    vectors = np.random.default_rng(1).normal(size=(20, 8)).astype(np.float32)
    source = open_source(vectors_db(tmp_path / "x.db", vectors))
    fields = guess(sample(source), source=source, vector="embedding")
    *found, notice = documents(source, fields)
    brought = [item.item.vectors["vector"] for item in found]
    np.testing.assert_array_equal(np.array(brought, np.float32), vectors)
    assert found[3].item.id == "d3"
    assert found[3].item.fields == {"content": "text 3"}
    assert found[3].item.payload == {"collection_id": 1}
    assert "'content_hash' holds bytes" in notice.reason
    assert "detected: embedding has 8 numbers (float32, little-endian)" in describe(
        fields, sample(source), source
    )


@pytest.mark.parametrize(
    ("kind", "reason"),
    [(">f4", "big-endian"), ("<f8", "float64"), ("u1", "do not read as float32")],
)
def test_other_bytes_are_refused_as_vectors_with_the_remedy(tmp_path, kind, reason):
    vectors = np.random.default_rng(1).normal(size=(9, 8)) * (60 if kind == "u1" else 1)
    if kind == "u1":
        vectors = np.abs(vectors)
    source = open_source(vectors_db(tmp_path / "x.db", vectors.tolist(), kind))
    with pytest.raises(SourceError, match=f"'embedding' holds .*{reason}.*little-endian"):
        guess(sample(source), source=source, vector="embedding")
    assert "embedding" not in sample(source)[0].cells


def test_a_vector_of_another_length_is_a_problem_of_its_row(tmp_path):
    vectors = [[1.0, 2.0, 3.0], [1.0, 2.0, 3.0], [1.0, 2.0], [0.5, 0.5, 0.5]]
    source = open_source(vectors_db(tmp_path / "x.db", vectors))
    first, _, problem, last, _ = source.rows()
    assert first.cells["embedding"] == [1.0, 2.0, 3.0]
    assert problem.place == "x.db:embeddings:3"
    assert "has 8 bytes here, but 12 are expected, for 3 float32 numbers" in problem.reason
    assert last.cells["id"] == "d3"


def test_a_vector_in_bytes_is_no_payload_of_a_document_with_texts(tmp_path):
    source = open_source(vectors_db(tmp_path / "x.db", [[1.0, 2.0], [2.0, 1.0]]))
    first, *_ = documents(source, guess(sample(source), source=source, text=["content"]))
    assert first.item.payload == {"collection_id": 1}
