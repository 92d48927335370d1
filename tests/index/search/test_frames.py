"""Answers, listings and matrices as tables of Arrow."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from attend.api.feedback import FeedbackPage, InteractionEntry, InteractionsAnswer
from tests.index.helpers import vector_data
from tests.places import PACKAGES


@pytest.fixture(scope="module")
def books(tmp_path_factory):
    collection = vector_data(tmp_path_factory.mktemp("frames")).create("books", dimension=2)
    collection.upsert(
        [
            {"id": "whale", "text": "a", "vector": [1, 0], "value": 4, "payload": {"year": 1851}},
            {"id": "emma", "vector": [0, 1], "value": 4.5, "payload": {"year": None, "mix": 1}},
            {"id": "ship", "vector": [1, 1], "payload": {"mix": "x", "tags": ["sea"]}},
        ]
    )
    return collection


def test_hits_are_rows(books):
    answer = books.search([1.0, 0.1], include=["text"], explain=True)
    table = pa.table(answer)
    assert table.column_names[:5] == ["id", "score", "weight", "value", "payload"]
    assert {"text", "explanation"} <= set(table.column_names)
    assert "title" not in table.column_names
    assert table["weight"].to_pylist() == [hit.weight for hit in answer.hits]
    assert table.schema.field("value").type == pa.float64()
    payload = dict(zip(table["id"].to_pylist(), table["payload"].to_pylist(), strict=True))
    assert payload["whale"] == {"year": 1851, "mix": None, "tags": None}
    assert payload["ship"] == {"year": None, "mix": '"x"', "tags": ["sea"]}


def test_pandas_and_polars_read_each_of_them_in_one_line(books):
    answer = books.search([1.0, 0.1], k=2)
    everything = {
        "answer": (answer, 2),
        "no hits": (books.search([1.0, 0.1], filter={"year": 5}), 0),
        "page": (books.page(), 3),
        "empty page": (books.page({"year": 5}), 0),
        "facet": (books.facets(["year"])["year"], 1),
        "recommended": (books.recommend(history=["whale"]), 2),
        "predicted": (books.recommend(history=[{"id": "whale", "value": 5}], target="ship"), 1),
        "matrix": (books.matrix([{"query": {"id": "whale"}}, {"query": {"id": "emma"}}]), 6),
        "no feedback": (FeedbackPage(0, 0, 0, 20), 0),
        "interactions": (
            InteractionsAnswer([InteractionEntry("ann", "whale", 5, None)], None, 1, 1, None),
            1,
        ),
    }
    for name, (rows, count) in everything.items():
        assert len(pd.DataFrame.from_arrow(rows)) == count, name
        assert pl.DataFrame(rows).height == count, name
    frame = pd.DataFrame.from_arrow(answer)
    assert frame.id.tolist() == [hit.id for hit in answer.hits]
    assert pl.DataFrame(everything["page"][0])["payload"].struct.field("year").to_list()[0] == 1851


def test_columns_have_types_also_without_rows(books):
    schema = pa.table(books.search([1.0, 0.1], filter={"year": 5})).schema
    assert schema.field("id").type == pa.string()
    assert schema.field("weight").type == pa.float64()
    assert pa.table(books.page({"year": 5})).schema.field("id").type == pa.string()


def test_a_matrix_is_long(books):
    matrix = books.matrix([{"query": {"id": "whale"}}, {"query": {"id": "emma"}}])
    frame = pd.DataFrame.from_arrow(matrix)
    wide = frame.pivot(index="query", columns="id", values="weight")[[*matrix.documents]]
    assert np.array_equal(wide, matrix.weights)
    logits = np.stack(frame.logits).reshape(2, 3, 1).transpose(0, 2, 1)  # (q, n, H) -> (q, H, n)
    assert np.array_equal(logits, matrix.logits)


def test_a_requested_schema_is_passed_on(books):
    capsule = books.search([1.0, 0.1]).__arrow_c_stream__()
    assert pa.RecordBatchReader._import_from_c_capsule(capsule).read_all().num_rows == 3


def test_pyarrow_is_imported_when_a_table_is_made():
    code = "import attend.core.frames, sys; assert not {'pyarrow', 'pandas'} & {*sys.modules}"
    env = {"PYTHONPATH": ":".join(map(str, PACKAGES))}
    subprocess.run([sys.executable, "-c", code], env=env, check=True)
