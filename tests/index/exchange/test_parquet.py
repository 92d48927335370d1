"""Export to Parquet: read by others, and built again into the same collection."""

from __future__ import annotations

import json
import stat

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from attend.collection.data import Data
from attend.core.errors import Conflict
from attend.core.frames import Cells, arrow_type, decode, encode
from attend.exchange import parquet
from attend.exchange.parquet import export_parquet
from tests.index.cli.test_cli import invoke
from tests.index.helpers import vector_data

ROWS = [
    {
        "id": "é",
        "fields": {"title": "Ωmega", "text": "a b"},
        "value": {"price": 3, "tags": ["x"]},
        "payload": {"year": None, "author": {"name": "Ann", "born": 1900}, "odd": 1, "n": 2**70},
    },
    {
        "id": "2",
        "text": "c",
        "value": {"price": 4.5, "tags": []},
        "payload": {"year": 5, "text": "other", "odd": "x", "list": [{"a": 1}, {"b": None}]},
    },
    {"id": "3", "text": "d", "payload": {"fields": {"a": [1]}, "odd": None, "half": "\ud800"}},
]


def contents(collection):
    return [document[1:] for document in collection.page(limit=100).documents]


def test_texts_values_and_payloads_are_built_again_as_they_were(tmp_path, tiny_encoder):
    data = Data(tmp_path / "data", load_encoder=lambda name: tiny_encoder)
    notes = data.create("notes")
    notes.upsert(ROWS)
    file = tmp_path / "notes.parquet"
    stages = []
    assert export_parquet(notes, file, on_progress=lambda *stage: stages.append(stage)) == 3
    assert stages[-1] == ("write", 1.0)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    other = Data(tmp_path / "other", load_encoder=lambda name: tiny_encoder).create("copy")
    from attend.write.build import Mapped, build

    built = build(other, [Mapped.of(file)])
    assert (built.added, built.refused) == (3, 0)
    assert contents(other) == contents(notes)
    assert other.search("a b").hits == notes.search("a b").hits
    assert build(notes, [Mapped.of(file)]).unchanged == 3


def test_types_are_those_of_the_cells_where_they_have_one(tmp_path):
    rows = [
        {"id": "1", "vector": [1, 0], "value": 3, "payload": {"year": 1851, "tags": ["a"]}},
        {"id": "2", "vector": [0, 1], "value": 4.5, "payload": {"year": None, "tags": []}},
    ]
    collection = vector_data(tmp_path / "data").create(dimension=2)
    collection.upsert(rows)
    file = tmp_path / "x.parquet"
    export_parquet(collection, file, embeddings=True)
    table = pq.read_table(file)
    assert table.column_names == ["id", "fields", "value", "payload", "vector", "embeddings"]
    assert table["value"].to_pylist() == [3.0, 4.5]
    assert table["payload"].type == pa.struct({"year": pa.int64(), "tags": pa.list_(pa.string())})
    assert table["vector"].to_pylist() == [[1, 0], [0, 1]]
    assert table["embeddings"].to_pylist() == [[[1, 0]], [[0, 1]]]


def test_the_command_writes_and_a_build_reads(tmp_path):
    rows = [
        {"id": "1", "text": "a whale", "vectors": [[1, 0], [0, 1]]},
        {"id": "2", "fields": {"title": "b", "body": "c"}, "vectors": {"title": [1, 2]}},
        {"id": "3", "payload": {"year": 5}},
    ]
    collection = vector_data(tmp_path / "data").create(dimension=2)
    collection.upsert(rows)
    on, file = ["--data", tmp_path / "data"], tmp_path / "all.parquet"
    written = invoke("export", *on, "--parquet", file, "--embeddings", "--json")
    assert json.loads(written.stdout)["documents"] == 3
    again = invoke("export", *on, "--parquet", file)
    assert again.exit_code == 1
    assert "exists; choose another file, or add --force" in again.stderr
    assert "3 unchanged" in invoke("build", file, *on).stdout
    built = invoke("build", file, "--data", tmp_path / "other")
    assert built.exit_code == 0, built.output
    other = vector_data(tmp_path / "other").collection()
    assert contents(other) == contents(collection)
    assert other.search([0, 1]).hits == collection.search([0, 1]).hits
    some = tmp_path / "some.parquet"
    invoke("export", *on, "--parquet", some, "--filter", '{"year": 5}')
    assert pq.read_table(some)["id"].to_pylist() == ["3"]
    empty = tmp_path / "empty.parquet"
    invoke("export", *on, "--parquet", empty, "--filter", '{"year": 6}')
    assert pq.read_table(empty).num_rows == 0


def test_a_failed_export_leaves_no_file(tmp_path, monkeypatch):
    collection = vector_data(tmp_path / "data").create(dimension=2)
    collection.upsert([{"id": "1", "vector": [1, 0]}])
    file = tmp_path / "x.parquet"
    with monkeypatch.context() as patch:
        patch.setattr(parquet, "encode", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            export_parquet(collection, file)
    assert not file.exists()
    assert not list(tmp_path.glob(".*"))
    file.touch()
    with pytest.raises(Conflict):
        export_parquet(collection, file)


def test_a_column_that_was_added_since_is_not_lost(tmp_path):
    """Such as pyarrow adds one, which keeps the metadata."""
    collection = vector_data(tmp_path / "data").create(dimension=2)
    collection.upsert([{"id": "1", "vector": [1, 0], "payload": {"year": 5}}])
    file = tmp_path / "x.parquet"
    export_parquet(collection, file)
    table = pq.read_table(file).append_column("rating", pa.array([4]))
    pq.write_table(table, file)
    built = invoke("build", file, "--data", tmp_path / "other", "--vector", "vector")
    assert built.exit_code == 0, built.output
    (document,) = vector_data(tmp_path / "other").collection().page().documents
    assert document.payload["rating"] == 4


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=12,
)


def typed(value):
    """The same with types, as 1 == True == 1.0; but whole numbers may become floats."""
    if isinstance(value, dict):
        return {name: typed(member) for name, member in value.items()}
    if isinstance(value, list):
        return [typed(item) for item in value]
    return float(value) if type(value) is int and abs(value) <= 2**53 else (type(value), value)


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=300)
@given(st.lists(JSON, max_size=5))
def test_any_json_comes_back_as_it_was(cells):
    every = Cells(exact=True)
    for cell in cells:
        every.add(cell)
    kind = json.loads(json.dumps(every.kind()))
    array = pa.array([encode(cell, kind) for cell in cells], arrow_type(kind))
    back = [decode(cell, kind) for cell in array.to_pylist()]
    same = [typed(a) == typed(b) or a == b for a, b in zip(cells, back, strict=True)]
    assert all(same), (cells, back)
