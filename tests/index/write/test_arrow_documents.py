"""Documents in Arrow's format: data frames in Python, and streams that strangers send."""

from __future__ import annotations

import io

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import attend
from attend.api.arrow import MAX_CELLS, arrow_documents, stream_documents
from attend.core.errors import InvalidRequest
from tests.index.write.test_own_vectors import TOPICS, text_of, unit_vectors

WIDTH = 1536
COUNT = 500


@pytest.fixture(scope="module")
def books() -> pl.DataFrame:
    """Texts with embeddings of 1,536 numbers and length one, as OpenAI's models give them."""
    return pl.DataFrame(
        {
            "id": [f"book-{n}" for n in range(COUNT)],
            "text": [text_of(n) for n in range(COUNT)],
            "vector": unit_vectors(COUNT, WIDTH),
            "year": [1800 + n for n in range(COUNT)],
            "shelf": pl.Series([TOPICS[n % 12] for n in range(COUNT)], dtype=pl.Categorical),
        }
    )


def stream_of(table: pa.Table, **options: object) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return sink.getvalue()


def test_six_lines_take_a_frame_of_own_vectors(books, tmp_path):
    library = attend.open(tmp_path)
    collection = library.create("books", dimension=1536)
    collection.upsert(books)
    question = books["vector"][7].to_numpy()
    answer = collection.search("letter", vector=question, lexical=True, highlight=True)
    hit = answer.hits[0]
    assert (hit.id, hit.payload) == ("book-7", {"year": 1807, "shelf": "letter"})
    assert hit.weight > 0.99
    assert [text_of(7)[start:stop] for start, stop in hit.highlight.spans] == ["letter"]
    assert collection.info().scale == 20
    assert collection.upsert(books).unchanged == COUNT  # the same numbers as from lists
    plain = [
        {name: row[name] for name in ("id", "text", "vector")}
        | {"payload": {name: row[name] for name in ("year", "shelf")}}
        for row in books.head(3).to_dicts()
    ]
    assert collection.upsert(plain).unchanged == 3
    library.close()


def test_columns_have_the_names_of_the_fields():
    table = pa.table(
        {
            "id": pa.array([1, 2, 3]),
            "fields": [{"title": "One", "body": ""}, {"title": "Two", "body": "x"}, None],
            "vectors": pa.array([{"title": [[1.0, 2.0], [3, 4]]}, {"title": None}, None]),
            "value": [{"stars": 4}, None, {"stars": 5}],
            "payload": [{"year": 1}, {"year": 2}, None],
            "more": pa.array([1.5, None, float("nan")]),
        }
    )
    one, two, three = arrow_documents(table)
    assert (one.id, one.fields, one.value) == ("1", {"title": "One"}, {"stars": 4})
    assert (one.payload, two.payload) == ({"more": 1.5, "year": 1}, {"more": None, "year": 2})
    assert np.array(one.vectors["title"]).tolist() == [[1, 2], [3, 4]]
    assert (two.fields, two.vectors) == ({"title": "Two", "body": "x"}, {})
    assert (three.fields, three.vectors, three.payload) == ({}, {}, {"more": None})


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.float32()),
        pa.list_(pa.float32(), 2),
        pa.large_list(pa.float64()),
        pa.list_(pa.float16()),
        pa.list_(pa.int8()),
    ],
)
def test_vectors_are_of_any_type_of_list_and_may_be_missing(kind):
    column = pa.array([[9, 9], [1, 2], None, [3, 4]], type=kind).slice(1)
    documents = arrow_documents(pa.table({"id": ["a", "b", "c"], "vector": column}))
    assert [np.array(d.vectors.get("vector", [])).tolist() for d in documents] == [
        [1, 2],
        [],
        [3, 4],
    ]


TWO = {"id": ["a", "b"], "vector": [[1.0, 0.0], [0.0, 1.0]]}


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (pa.table({"name": ["a"], "vector": [[1.0]]}), "columns name, vector, but a column 'id'"),
        (pa.table({"id": ["a"], "embedding": [[1.0]]}), "one of text, fields, vector, vectors"),
        (pa.table({"id": ["a", None], "text": ["b", "c"]}), r"documents.1 \(id None\): id: "),
        (pa.table({"id": ["a"], "text": [7]}), r"documents.0 \(id 'a'\): text: a text was"),
        (pa.table(TWO | {"vector": ["[1, 0]", "x"]}), "type string, but lists of numbers"),
        (pa.table(TWO | {"vector": [["a"], ["b"]]}), "but lists of numbers were expected"),
        (pa.table(TWO | {"vectors": [[[1.0]], [[1.0]]]}), "send one of them"),
        (pa.table(TWO | {"image": [b"1", b"2"]}), "'image' holds bytes"),
        (pa.table({"id": range(10_001), "text": ["x"] * 10_001}), "at most 10,000 are taken"),
        (pa.Table.from_arrays([pa.array(["a"])] * 2, ["id", "id"]), "'id' more than once"),
    ],
)
def test_a_wrong_table_is_refused_by_name(table, said):
    for read in (arrow_documents, lambda table: stream_documents(stream_of(table))):
        with pytest.raises(InvalidRequest, match=said):
            read(table)


def test_a_frame_with_a_wrong_vector_stores_nothing(books, tmp_path):
    library = attend.open(tmp_path)
    collection = library.create("books", dimension=WIDTH)
    table = pa.table({"id": ["a", "b"], "vector": [[1.0] * WIDTH, [0.0] * WIDTH]})
    with pytest.raises(InvalidRequest, match="The vector of the document 'b' is all zeros"):
        collection.upsert(table)
    assert collection.store.counts() == (0, 0)
    library.close()


# -- streams ---------------------------------------------------------------------------------------


def test_a_stream_gives_the_documents_of_its_table(books):
    sink = io.BytesIO()
    books.write_ipc_stream(sink)
    for body in (sink.getvalue(), stream_of(pa.table(books))):
        documents = stream_documents(body)
        assert [document.id for document in documents] == books["id"].to_list()
        np.testing.assert_array_equal(documents[9].vectors["vector"], books["vector"][9])
        assert documents[9].payload == {"year": 1809, "shelf": "desert"}


def bomb(kind: str) -> pa.Table:
    """A table that a small body makes, and that would take gigabytes."""
    ids = pa.array([str(n) for n in range(9000)])
    if kind == "dictionary":
        texts = pa.DictionaryArray.from_arrays(
            np.zeros(9000, dtype=np.int8), pa.array(["x" * 1_000_000])
        )
        return pa.table({"id": ids, "text": texts})
    if kind == "views":
        views = np.tile(np.array([1_000_000, 0x78787878, 0, 0], dtype=np.int32), 9000)
        buffers = [None, pa.py_buffer(views.tobytes()), pa.py_buffer(b"x" * 1_000_000)]
        return pa.table({"id": ids, "text": pa.Array.from_buffers(pa.string_view(), 9000, buffers)})
    if kind == "lists of nothing":
        nothing = pa.FixedSizeListArray.from_arrays(pa.nulls(9000 * 10_000), 10_000)
        return pa.table({"id": ids, "text": ids, "more": nothing})
    inner = pa.DictionaryArray.from_arrays(pa.array([0]), pa.array([["x"] * 10]))
    return pa.table({"id": ["a"], "text": ["b"], "more": inner})


@pytest.mark.parametrize("kind", ["dictionary", "views", "lists of nothing", "dictionary of lists"])
def test_a_small_stream_that_becomes_large_is_refused(kind):
    with pytest.raises(InvalidRequest, match=f"at most {MAX_CELLS:,}|are not read"):
        stream_documents(stream_of(bomb(kind)))


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_a_compressed_stream_is_refused(codec):
    table = pa.table({"id": ["a"] * 100, "text": ["x" * 100] * 100})
    with pytest.raises(InvalidRequest, match="is compressed; write it uncompressed"):
        stream_documents(stream_of(table, compression=codec))


def test_damaged_streams_are_refused():
    body = stream_of(pa.table({"id": ["a", "b"], "text": ["one", "two"], "n": [[1], [2, 3]]}))
    random = np.random.default_rng(0)
    for _ in range(300):
        damaged = bytearray(body)
        for place in random.integers(0, len(body), 3):
            damaged[place] = random.integers(0, 256)
        try:
            stream_documents(bytes(damaged[: random.integers(len(body) // 2, len(body) + 1)]))
        except InvalidRequest:
            continue
    with pytest.raises(InvalidRequest, match="no stream of Arrow's IPC format"):
        stream_documents(b"PAR1")
