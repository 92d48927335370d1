"""Collections by name: which there are, what they were made with, what a name may be."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from attend.data import Data
from attend.engines.local import MAKING_SECONDS
from attend.errors import CollectionExists, EncoderMismatch, InvalidRequest, UnknownCollection
from tests.index.helpers import vector_data
from tests.places import ROOT


def test_an_unknown_collection_is_told_with_the_known_ones(tmp_path):
    data = vector_data(tmp_path)
    with pytest.raises(UnknownCollection, match="no collections exist yet"):
        data.collection("books")
    data.create("films", dimension=2)
    data.create("art", dimension=2)
    with pytest.raises(
        UnknownCollection, match=r"no collection 'books'; the collections are art, films"
    ):
        data.collection("books")


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".", "a b", "-x", "x" * 64, "é", "a\n"])
def test_a_name_cannot_leave_the_folder(tmp_path, name):
    with pytest.raises(InvalidRequest, match="is no collection name"):
        vector_data(tmp_path / "data").create(name, dimension=2)
    assert not (tmp_path / "data").exists()


def test_settings_are_fixed_at_creation(tmp_path):
    data = vector_data(tmp_path)
    made = data.create("a", dimension=2, scorer="cosine")
    assert data.create("a", dimension=2, scorer="cosine") is made
    assert data.ensure("a") is made
    assert data.ensure("a", dimension=2) is made
    with pytest.raises(CollectionExists, match="dimension is 2, not 3"):
        data.create("a", dimension=3, scorer="cosine")
    with pytest.raises(CollectionExists, match="scorer is 'cosine', not 'dot'"):
        data.ensure("a", dimension=2, scorer="dot")
    with pytest.raises(InvalidRequest, match="both were given"):
        data.create("b", dimension=2, encoder="x")
    with pytest.raises(InvalidRequest, match="colour: unknown field"):
        data.create("b", dimension=2, colour="red")
    assert data.names() == ["a"]


def test_another_encoder_is_refused_by_both_names(tmp_path, tiny_encoder):
    data = Data(tmp_path, load_encoder=lambda name: _named(tiny_encoder, name))
    data.create("a", encoder="one")
    with pytest.raises(EncoderMismatch, match="built with the encoder 'one', not 'two'"):
        data.ensure("a", encoder="two")


def test_a_model_that_changed_its_width_is_refused(tmp_path, tiny_encoder):
    Data(tmp_path, load_encoder=lambda name: tiny_encoder).create("a", encoder="one")
    changed = Data(tmp_path, load_encoder=lambda name: _named(tiny_encoder, name, dimension=8))
    with pytest.raises(EncoderMismatch, match=r"gives 8 dimensions, but .* built with 32"):
        changed.collection("a").search("words")


def _named(encoder, name, dimension=32):
    """The same model under another name."""
    return type("Named", (), {"name": name, "dimension": dimension, "encoder": encoder})()


def test_a_dropped_collection_is_gone_for_every_process(tmp_path):
    mine, theirs = vector_data(tmp_path), vector_data(tmp_path)
    mine.create("a", dimension=2).upsert([{"id": "old", "vector": [1, 0]}])
    assert theirs.collection("a").search([1, 0]).attended == 1
    mine.drop("a")
    with pytest.raises(UnknownCollection):
        theirs.collection("a")
    assert [path.name for path in tmp_path.iterdir()] == ["collections"]
    mine.create("a", dimension=2)
    assert theirs.collection("a").search([1, 0]).attended == 0


def test_what_killed_processes_left_behind_goes_at_the_next_opening(tmp_path):
    vector_data(tmp_path).create("a", dimension=2)
    names = [f"{kind}-{'0f' * 8}" for kind in ("dropped", "making")]
    kept = [f"making-{'1f' * 8}", "dropped-notes", f"dropped-{'0f' * 9}"]
    for name in (*names, *kept):
        (tmp_path / name / "keys").mkdir(parents=True)
        (tmp_path / name / "documents.db").write_bytes(b"x")
    long_ago = time.time() - MAKING_SECONDS - 60
    os.utime(tmp_path / names[1], (long_ago, long_ago))
    assert vector_data(tmp_path).names() == ["a"]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*kept, "collections"])


def test_a_folder_that_is_not_there_is_not_made_by_looking(tmp_path):
    assert vector_data(tmp_path / "none").names() == []
    assert not (tmp_path / "none").exists()


CLOSED_UNDER_USE = """
import itertools, sys, threading
import numpy as np
from attend import Data
from attend.errors import AttendError

vectors = np.random.default_rng(0).normal(size=(2000, 8))
first = Data(sys.argv[1])
first.create("many", dimension=8).upsert(
    [{"id": str(at), "vector": each, "payload": {"n": at}} for at, each in enumerate(vectors)]
)
first.close()
errors = []
for _ in range(30):
    data = Data(sys.argv[1])
    collection = data.collection("many")
    begun = threading.Barrier(5)
    def work():
        begun.wait()
        try:
            for query in itertools.cycle(vectors):
                collection.search(query, mode="soft", filter={"n": {"gte": 3}})
        except AttendError as error:
            errors.append(str(error))
    threads = [threading.Thread(target=work) for _ in range(4)]
    for each in threads:
        each.start()
    begun.wait()
    collection.search(vectors[0])
    data.close()
    for each in threads:
        each.join()
assert len(errors) == 120, len(errors)
assert all("closed while it was in use" in each for each in errors), set(errors)
"""


def test_closing_takes_nothing_from_who_reads(tmp_path):
    """In a process of its own: what goes wrong here ends it."""
    done = subprocess.run(
        [sys.executable, "-c", CLOSED_UNDER_USE, str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
