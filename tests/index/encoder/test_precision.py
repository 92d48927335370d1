"""The choice of a number format, with encoders that take their time and with the real one."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attend.collection.data import Data
from attend.collection.verify import verify
from attend.encoder import DEFAULT, RECORD, load, precision, precisions
from attend.encoder.precision import FORMATS
from attend.store.database import Store

TWO = {"float32", "bfloat16"}


@pytest.fixture(autouse=True)
def _unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(precision.ENVIRONMENT, raising=False)


@pytest.fixture
def multiplies(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the processor multiplied bfloat16, whatever it is, and nothing was measured yet."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": True, "avx2": True})
    monkeypatch.setattr(precision, "MEASURING_SECONDS", 0.0)
    monkeypatch.setattr(precision, "_measured", {})


@pytest.fixture
def record(tmp_path: Path) -> Path:
    return tmp_path / RECORD


def measured_in(record: Path) -> dict[str, Any]:
    kept: dict[str, Any] = json.loads(record.read_text())[DEFAULT]
    return kept


@pytest.mark.parametrize(
    ("features", "expected"),
    [
        ({"amx_bf16"}, TWO),
        ({"avx512_bf16", "avx2"}, TWO),
        ({"avx2"}, {"float32"}),
        ({"avx_vnni"}, {"float32", "int8"}),
        ({"avx512_bf16", "avx512_vnni"}, set(FORMATS)),
    ],
)
def test_auto_has_the_formats_that_the_processor_multiplies(
    monkeypatch: pytest.MonkeyPatch, features: set[str], expected: set[str]
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: dict.fromkeys(features, True))
    assert set(precision.usable_formats("auto", "cpu")) == expected
    assert precision.usable_formats("auto", "mps") == ("float32",)
    assert precision.usable_formats("float32", "cpu") == ("float32",)


class Paced:
    """An encoder that takes its time, longer for one of the uses."""

    def __init__(self, precision: str, document: float, query: float) -> None:
        self.precision = precision
        self.seconds = {"document": document, "query": query}

    def run(self, texts: list[str], task: str) -> None:
        until = time.thread_time() + self.seconds[task] * len(texts)
        while time.thread_time() < until:
            pass


def test_each_use_has_its_fastest_format() -> None:
    paced = [Paced("float32", 0.012, 0.0001), Paced("bfloat16", 0.001, 0.0024)]
    found = precision.measured(paced)
    assert {use: each["format"] for use, each in found.items()} == {
        "document": "bfloat16",
        "query": "float32",
    }
    assert found["document"]["milliseconds"]["float32"] >= 12


class Disturbed(Paced):
    """An encoder that a neighbour slows down in three turns, of two calls each for queries."""

    calls = 0

    def run(self, texts: list[str], task: str) -> None:
        self.calls += task == "query"
        super().run(texts if self.calls > 6 else 20 * texts, task)


def test_a_format_that_is_slow_in_its_first_turns_alone_is_chosen() -> None:
    paced = [Disturbed("bfloat16", 0.001, 0.0001), Paced("float32", 0.1, 0.001)]
    assert precision.measured(paced)["query"]["format"] == "bfloat16"


@pytest.mark.usefixtures("multiplies")
def test_what_was_measured_is_kept_for_every_process(
    monkeypatch: pytest.MonkeyPatch, record: Path
) -> None:
    first = load(record=record)
    kept = measured_in(record)
    assert kept["processor"] == precision.processor()
    assert first.precision == kept["document"]["format"]
    assert set(kept["query"]["milliseconds"]) == TWO
    assert precisions(record)[DEFAULT]["document"] == first.precision  # type: ignore[index, call-overload]

    monkeypatch.setattr(precision, "_measured", {})  # as in another process
    modified = record.stat().st_mtime_ns
    assert load(record=record).precision == first.precision
    assert record.stat().st_mtime_ns == modified


@pytest.mark.usefixtures("multiplies")
def test_documents_and_queries_find_each_other_in_two_formats(record: Path) -> None:
    load(record=record)
    kept = measured_in(record)
    kept["document"]["format"], kept["query"]["format"] = "float32", "bfloat16"
    record.write_text(json.dumps({DEFAULT: kept}))
    mixed, exact, rough = load(record=record), load(precision="float32"), load(precision="bfloat16")
    texts = ["The sea is calm.", "A ship sails at night."]
    assert np.array_equal(mixed.encode_documents(texts), exact.encode_documents(texts))
    assert np.array_equal(mixed.encode_queries(texts), rough.encode_queries(texts))
    assert not np.array_equal(mixed.encode_queries(texts), exact.encode_queries(texts))
    assert (mixed.encode_queries(texts) * exact.encode_documents(texts)).sum(axis=1).min() > 0.999


@pytest.mark.usefixtures("multiplies")
@pytest.mark.parametrize(
    "written",
    ["nonsense", "[]", '{"all-MiniLM-L6-v2": {"document": 5}}', '{"all-MiniLM-L6-v2": 1}'],
)
def test_a_record_of_another_processor_or_of_none_is_made_again(record: Path, written: str) -> None:
    load(record=record)
    other = json.dumps({DEFAULT: {**measured_in(record), "processor": "of elsewhere"}})
    for content in (written, other):
        record.write_text(content)
        assert precisions(record) == {}
        load(record=record)
        assert measured_in(record)["processor"] == precision.processor()


@pytest.mark.usefixtures("multiplies")
def test_a_record_that_cannot_be_written_keeps_no_encoder_from_loading(record: Path) -> None:
    record.with_name(f"{record.name}.new").mkdir()  # as if there was no room for the file
    assert load(record=record).precision in TWO
    assert not record.exists()


@pytest.mark.usefixtures("multiplies")
def test_a_model_of_look_ups_has_one_format(tiny_encoder_folder: Path, record: Path) -> None:
    assert load(str(tiny_encoder_folder), record=record).precision == "float32"
    kept = json.loads(record.read_text())[str(tiny_encoder_folder)]
    assert kept["document"] == kept["query"] == {"format": "float32", "milliseconds": {}}


STORIES = {
    "float32": ("The whale dives below the ice.", "Where does the whale dive?"),
    "bfloat16": ("A baker kneads dough before dawn.", "Who kneads the dough?"),
    "int8": ("The train to Lisbon leaves at noon.", "When does the train leave?"),
}
"""For each format a text that it encodes, and a query that the text answers."""


def test_documents_of_all_formats_are_counted_and_answer_queries_of_each(tmp_path: Path) -> None:
    for name in FORMATS:
        with closing(Data(tmp_path, precision=name)) as data:
            stories = data.ensure("stories")
            written = [{"id": name, "text": STORIES[name][0]}, {"id": f"{name}-2", "text": name}]
            stories.upsert(written)
            stories.upsert([{"id": "vector", "text": "Of mine.", "vector": [1.0] + [0.0] * 383}])
    for name in FORMATS:
        with closing(Data(tmp_path, precision=name)) as data:
            stories = data.collection("stories")
            assert stories.info().formats == dict.fromkeys(FORMATS, 2)
            queries = [query for _, query in STORIES.values()]
            hits = [stories.search(query, k=1, lexical=0).hits[0].id for query in queries]
            assert hits == list(STORIES)


def own_keys(data: Data) -> tuple[list[int], bytes]:
    """Return the ids of the keys of the collection, and the bytes of their embeddings."""
    store = data.collection("stories").store
    assert isinstance(store, Store)
    with store.all_keys() as (_, tables):
        table = next(tables)
        return table.ids.tolist(), table.vectors.tobytes()


def test_another_format_changes_the_keys_of_new_texts_alone(tmp_path: Path) -> None:
    """As where a library moves to a processor that has another format."""
    first, second, third = ({"id": name, "text": story} for name, (story, _) in STORIES.items())
    with closing(Data(tmp_path, precision="bfloat16")) as data:
        data.ensure("stories").upsert([first, second])
        before = own_keys(data)
    with closing(Data(tmp_path, precision="int8")) as data:
        stories = data.collection("stories")
        again = stories.upsert([first, {**second, "payload": {"page": 2}}])
        assert (again.unchanged, again.revised, again.encoded) == (1, 1, 0)
        assert own_keys(data) == before
        assert stories.info().formats == {"bfloat16": 2}
        assert stories.upsert([{**first, "text": third["text"]}]).encoded == 1
        assert stories.info().formats == {"bfloat16": 1, "int8": 1}
        assert sorted(own_keys(data)[0]) == [before[0][1], before[0][1] + 1]
        stories.delete(["bfloat16"])
        assert stories.info().formats == {"int8": 1}


def test_keys_of_an_older_database_are_of_an_unknown_format(tmp_path: Path) -> None:
    with closing(Data(tmp_path)) as data:
        data.ensure("stories").upsert([{"id": "a", "text": STORIES["int8"][0]}])
        data.collection("stories").upsert([{"id": "b", "vector": [1.0] + [0.0] * 383}])
        before = own_keys(data)
    path = tmp_path / "collections" / "stories" / "documents.db"
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("DROP INDEX keys_by_format")
        db.execute("ALTER TABLE keys DROP COLUMN format")
        db.execute("DELETE FROM _sqlite_migrations WHERE name = 'm007_formats'")
    with closing(Data(tmp_path, precision="float32")) as data:
        stories = data.collection("stories")
        assert stories.info().formats == {"unknown": 1}
        assert own_keys(data) == before
        stories.upsert([{"id": "c", "text": STORIES["float32"][0]}])
        assert stories.info().formats == {"float32": 1, "unknown": 1}
        assert verify(stories).problems == []


def test_a_precision_that_was_asked_for_is_not_measured(tmp_path: Path) -> None:
    with closing(Data(tmp_path, precision="float32")) as library:
        assert library.encoder(DEFAULT).precision == "float32"  # type: ignore[attr-defined]
        assert library.precisions() == {}
    assert not (tmp_path / RECORD).exists()


@pytest.mark.usefixtures("multiplies")
def test_a_library_keeps_what_was_measured_unless_it_only_reads(tmp_path: Path) -> None:
    with closing(Data(tmp_path)) as library:
        library.create("books", dimension=2)
    with closing(Data(tmp_path, read_only=True)) as reader:
        reader.encoder(DEFAULT)
        assert reader.precisions() == {}
    assert not (tmp_path / RECORD).exists()
    with closing(Data(tmp_path)) as library:
        library.encoder(DEFAULT)
        assert set(library.precisions()) == {DEFAULT}
    with closing(Data(tmp_path, read_only=True)) as reader:
        assert set(reader.precisions()) == {DEFAULT}


SLOW = """
import sys, torch
from pathlib import Path
from attend.encoder import load
torch.cpu.get_capabilities = lambda: {"avx512_bf16": True}
print(load(record=Path(sys.argv[1])).precision)
"""


def test_a_processor_on_which_bfloat16_is_slow_gets_float32(record: Path) -> None:
    """oneDNN is told to leave out what multiplies bfloat16, while the flags promise it."""
    slow = os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX2"}
    command = [sys.executable, "-c", SLOW, str(record)]
    done = subprocess.run(command, env=slow, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["float32"]
    assert measured_in(record)["query"]["format"] == "float32"


def test_a_variable_that_is_empty_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    usable = precision.usable_formats("auto", "cpu")
    monkeypatch.setenv(precision.ENVIRONMENT, "")
    assert precision.usable_formats("auto", "cpu") == usable
    monkeypatch.setenv(precision.ENVIRONMENT, "int8")
    assert precision.usable_formats("auto", "cpu") == ("int8",)
