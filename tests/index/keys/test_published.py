"""Published indexes: what is damaged is built again, what belongs elsewhere is refused."""

from __future__ import annotations

import json
import logging
import os
import shutil
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from attend.collection.collection import Collection
from attend.collection.data import Data
from attend.collection.verify import verify
from attend.core.arrays import KeyTable
from attend.core.errors import Damaged, ManifestMismatch
from attend.engines import snapshots as views_module
from attend.keys import files
from attend.keys.files import IndexOrigin, Progress, PublishedIndexes
from tests.index.helpers import (
    no_encoder,
    published,
    sealed,
    several_keys,
    vector_data,
    with_another_vector,
)

WIDTH = 8
FILES = ("vectors.npy", "keys.npy", "documents.npy", "manifest.json", "current")
QUERY = np.random.default_rng(1).normal(size=WIDTH).astype(np.float32)


@pytest.fixture
def folder(tmp_path) -> Path:
    """A data folder with a published collection of 60 documents, two keys each, and no reader."""
    data = vector_data(tmp_path)
    collection = data.create("default", dimension=WIDTH)
    rng = np.random.default_rng(0)
    collection.write([several_keys(f"d{n}", rng.normal(size=(2, WIDTH))) for n in range(60)])
    collection.publish()
    data.close()
    return tmp_path


def reopened(folder: Path) -> Collection:
    return vector_data(folder).collection()


def ranking(collection: Collection) -> list[tuple[str, float]]:
    answer = collection.search(QUERY, k=60)
    return [(hit.id, hit.score) for hit in answer.hits]


def place(folder: Path, file: str) -> Path:
    generation = published(reopened(folder))
    return (generation.parent if file == "current" else generation) / file


# -- damage ----------------------------------------------------------------------------------


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x81
    path.write_bytes(content)


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def empty(path: Path) -> None:
    path.write_bytes(b"")


CHANGES = [cut, flip, lengthen, empty, Path.unlink]
DAMAGE = [
    (file, change)
    for file in FILES
    for change in CHANGES
    # Without `current` nothing is published: what a first publication leaves when it is killed.
    if (file, change) != ("current", Path.unlink)
]


@pytest.mark.parametrize(("file", "change"), DAMAGE)
def test_a_damaged_index_is_built_again_with_a_warning(folder, caplog, file, change):
    expected = ranking(reopened(folder))
    change(place(folder, file))
    with caplog.at_level(logging.WARNING, logger="attend"):
        collection = reopened(folder)
        assert ranking(collection) == expected
    assert "The index is built again from the database." in caplog.text
    assert str(folder) in caplog.text
    collection.publish()
    caplog.clear()
    again = reopened(folder)
    assert ranking(again) == expected
    assert again.info().index["keys"] == 120
    assert caplog.text == ""


def test_a_folder_that_is_gone_is_built_again(folder):
    expected = ranking(reopened(folder))
    shutil.rmtree(folder / "collections" / "default" / "keys")
    assert ranking(reopened(folder)) == expected


def test_one_flipped_bit_of_a_manifest_never_changes_an_answer(folder):
    expected = ranking(reopened(folder))
    path = place(folder, "manifest.json")
    sound = path.read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(40):
        content = bytearray(sound)
        content[rng.integers(len(content))] ^= 1 << int(rng.integers(8))
        path.write_bytes(content)
        collection = reopened(folder)
        assert ranking(collection) == expected, content
        assert collection.views.damage is not None
        collection.publish()
        path = place(folder, "manifest.json")
        sound = path.read_bytes()


# -- a table of all kinds of damage --------------------------------------------------------------


def garble(path: Path) -> None:
    """Overwrite a quarter in the middle."""
    content = bytearray(path.read_bytes())
    length = max(1, len(content) // 4)
    content[length : 2 * length] = np.random.default_rng(0).bytes(length)
    path.write_bytes(content)


def behead(path: Path) -> None:
    """Flip a bit of every byte of the first forty, one at a time or together, as they come."""
    content = bytearray(path.read_bytes())
    for place in range(min(40, len(content))):
        content[place] ^= 1 << (place % 7)
    path.write_bytes(content)


def rename_shape(path: Path) -> None:
    """Let the head of an array describe another array of as many numbers."""
    content = path.read_bytes()
    if b"'fortran_order': False" in content:
        content = content.replace(b"'fortran_order': False", b"'fortran_order': True ")
    else:
        content = content[::-1]
    path.write_bytes(content)


def swapped(path: Path) -> None:
    """Put the file of another collection in its place."""
    shutil.copy(path.parents[4] / "other" / path.relative_to(path.parents[3]), path)


ARRAYS = ("vectors.npy", "keys.npy", "documents.npy", "lists.faiss", "codes.faiss")
KINDS = (*CHANGES, garble, behead, rename_shape, swapped)


@pytest.fixture(scope="module")
def quantised(tmp_path_factory) -> Path:
    """A data folder with two published, quantised collections of the same sizes."""
    path = tmp_path_factory.mktemp("quantised")
    data = vector_data(path)
    for seed, name in enumerate(("default", "other")):
        collection = data.create(name, dimension=WIDTH, exact_below=1000, recall=0.3)
        rng = np.random.default_rng(seed)
        collection.upsert([{"id": f"s{n}", "vector": np.ones(WIDTH)} for n in range(seed)])
        collection.delete([f"s{n}" for n in range(seed)])  # so that ids differ
        for n in range(3):  # the second generation is the current one
            vectors = rng.normal(size=(500, WIDTH)).astype(np.float32)
            collection.upsert(
                [{"id": f"d{n}-{at}", "vector": vector} for at, vector in enumerate(vectors)]
            )
            collection.publish()
        assert collection.info().index["type"] != "flat"
    data.close()
    return path


def best(collection: Collection) -> list[tuple[str, float]]:
    hits = collection.search(QUERY, k=20, recall=1).hits
    return [(hit.id, round(hit.score, 4)) for hit in hits]


def after_damage(folder: Path) -> tuple[list[tuple[str, float]], str | None]:
    """What answers once a library has opened a collection, and read all of its index."""
    data = vector_data(folder)
    collection = data.collection()
    collection.search(QUERY)
    for _ in range(2000):
        if collection.views.damage is not None:
            break
        time.sleep(0.005)
    found = best(collection), collection.views.damage
    assert data.rebuilt() == (["default"] if found[1] else [])
    data.close()
    return found


@pytest.mark.parametrize("checked", ["when opened", "behind"])
def test_no_damage_of_any_file_changes_an_answer(quantised, tmp_path, monkeypatch, checked):
    monkeypatch.setattr(files, "CHECKED_BYTES", 1 << 26 if checked != "behind" else 0)
    data = vector_data(quantised)
    expected = best(data.collection())
    data.close()
    cases = [(file, kind) for file in ARRAYS for kind in KINDS]
    cases += [("manifest.json", kind) for kind in (*CHANGES, garble, behead)]
    cases += [("current", kind) for kind in (flip, lengthen, empty)]
    for number, (file, kind) in enumerate(cases):
        copy = tmp_path / str(number)
        shutil.copytree(quantised, copy)
        layout = copy / "collections" / "default" / "keys" / "raw"
        generation = (layout / "current").read_text()
        kind(layout / file if file == "current" else layout / generation / file)
        answer, damage = after_damage(copy)
        assert answer == expected, (file, kind.__name__)
        assert damage is not None, (file, kind.__name__)
        shutil.rmtree(copy)
    assert len(cases) == 55


def test_no_changed_field_of_a_manifest_changes_an_answer(quantised, tmp_path):
    data = vector_data(quantised)
    expected = best(data.collection())
    manifest = json.loads((published(data.collection()) / "manifest.json").read_text())
    data.close()
    changes = {
        field: value + 1 if isinstance(value, int | float) else "x" if value == str(value) else {}
        for field, value in manifest.items()
    }
    assert len(changes) == 15
    for field, value in changes.items():
        copy = tmp_path / field
        shutil.copytree(quantised, copy)
        layout = copy / "collections" / "default" / "keys" / "raw"
        path = layout / (layout / "current").read_text() / "manifest.json"
        for changed in (manifest | {field: value}, {**manifest, field: None}):
            path.write_text(json.dumps(changed))
            answer, damage = after_damage(copy)
            assert (answer, damage is not None) == (expected, True), (field, changed[field])
            shutil.rmtree(copy)
            shutil.copytree(quantised, copy)
        shutil.rmtree(copy)


def test_another_generation_under_the_name_of_the_current_one_changes_no_answer(
    quantised, tmp_path
):
    copy, before = tmp_path / "copy", tmp_path / "before"
    shutil.copytree(quantised, copy)
    data = vector_data(copy)
    collection = data.collection()
    shutil.copytree(published(collection), before)
    collection.upsert([{"id": "new", "vector": QUERY}])
    collection.publish()
    generation, expected = published(collection), best(collection)
    data.close()
    shutil.rmtree(generation)
    shutil.copytree(before, generation)
    answer, damage = after_damage(copy)
    assert (answer, damage is not None) == (expected, True)


def overwritten(folder: Path, rows: dict[int, np.ndarray]) -> None:
    path = place(folder, "vectors.npy")
    vectors = np.load(path)
    for row, vector in rows.items():
        vectors[row] = vector
    with open(path, "r+b") as file:
        file.seek(-vectors.nbytes, os.SEEK_END)
        file.write(vectors.tobytes())


def test_no_score_beyond_what_a_key_can_have_is_ever_given_out(folder, monkeypatch, caplog):
    monkeypatch.setattr(files, "CHECKED_BYTES", 0)
    monkeypatch.setattr(PublishedIndexes, "check_mapped", lambda *_: None)  # not so soon
    expected = ranking(reopened(folder))
    overwritten(folder, {3: QUERY * 1e3, 8: QUERY * np.nan, 50: -QUERY * 1e30})
    for options in ({}, {"attend": "all"}, {"scale": 2.0}, {"attend": 5, "recall": 0.5}):
        collection = reopened(folder)
        for _ in range(2):
            hits = collection.search(QUERY, k=5, **options).hits
            assert [hit.id for hit in hits] == [id for id, _ in expected[:5]]
        if "scale" not in options:
            assert [hit.score for hit in hits] == [score for _, score in expected[:5]]
        assert "beyond what its length allows" in (collection.views.damage or "")
        collection.publish()
        overwritten(folder, {3: QUERY * 1e3})
    assert "The index is built again from the database." in caplog.text


def test_a_folder_that_cannot_be_written_to_is_answered_from_the_database(folder, monkeypatch):
    expected = ranking(reopened(folder))
    overwritten(folder, {3: QUERY, 8: -QUERY})
    path = place(folder, "vectors.npy")
    monkeypatch.setattr(files, "CHECKED_BYTES", 0)
    data = Data(folder, load_encoder=no_encoder, read_only=True)
    collection = data.collection()
    collection.search(QUERY)
    for _ in range(2000):
        if collection.views.damage is not None:
            break
        time.sleep(0.005)
    assert ranking(collection) == expected
    assert path.exists()
    data.close()


def test_two_processes_that_find_the_same_damage_both_answer_right(folder, monkeypatch):
    """The second may find the index of the first in its place, under the same number."""
    expected = ranking(reopened(folder))
    overwritten(folder, {3: QUERY, 8: -QUERY})
    monkeypatch.setattr(files, "CHECKED_BYTES", 0)
    monkeypatch.setattr(views_module, "MERGE_KEYS", 40)
    checking = threading.Event()
    check = PublishedIndexes.check_mapped
    monkeypatch.setattr(
        PublishedIndexes, "check_mapped", lambda *given: checking.wait(30) and check(*given)
    )
    both = [vector_data(folder) for _ in range(2)]
    for data in both:
        data.collection().search(QUERY)
    checking.set()
    for data in both:
        for _ in range(1000):
            if ranking(data.collection()) == expected:
                break
            time.sleep(0.01)
        assert ranking(data.collection()) == expected
    assert verify(both[0].collection()).problems == []
    for data in both:
        data.close()


def test_a_manifest_that_hides_the_last_writes_is_damage(folder, caplog):
    """Taken at its word it would show the last documents twice."""
    path = place(folder, "manifest.json")
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps(manifest | {"last_key": manifest["last_key"] - 4}))
    assert len(ranking(reopened(folder))) == 60
    assert "seal is broken" in caplog.text


# -- of something else -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"uuid": "another"}, ["uuid 'another'", "database says '"]),
        ({"encoder": "other-model"}, ["encoder 'other-model'", "database says 'none'"]),
        ({"dimension": 99}, ["dimension 99", "database says 8"]),
        ({"layout": "abc"}, ["layout 'abc'", "database says 'raw'"]),
        ({"last_key": 500}, ["has seen key 500 and removal 0", "come only to 120 and 0"]),
        ({"last_removal": 9}, ["has seen key 120 and removal 9", "come only to 120 and 0"]),
        ({"format": 7}, ["format 7", "this program reads 2"]),
    ],
)
def test_an_index_of_something_else_is_refused_by_both_names(folder, changes, said):
    expected = ranking(reopened(folder))
    sealed(place(folder, "manifest.json"), **changes)
    collection = reopened(folder)
    with pytest.raises(ManifestMismatch) as refused:
        collection.search(QUERY)
    assert all(words in str(refused.value) for words in said)
    assert "verify --repair" in str(refused.value)
    found = verify(collection)
    assert (found.problems, found.mended) == ([str(refused.value)], False)
    assert verify(collection, mend=True).mended
    assert verify(collection).problems == []
    assert ranking(collection) == ranking(reopened(folder)) == expected


def test_the_index_of_another_collection_is_refused(folder):
    data = vector_data(folder)
    other = data.create("other", dimension=WIDTH)
    other.write([several_keys("x", [QUERY])])
    other.publish()
    mine = folder / "collections" / "default" / "keys"
    shutil.rmtree(mine)
    shutil.copytree(other.folder / "keys", mine)
    with pytest.raises(ManifestMismatch, match="was built for uuid"):
        reopened(folder).search(QUERY)


def test_an_older_copy_of_the_database_is_refused(folder, tmp_path):
    database = folder / "collections" / "default" / "documents.db"
    copy = tmp_path / "copy.db"
    shutil.copy(database, copy)
    collection = reopened(folder)
    collection.upsert([several_keys("new", [QUERY * 9])])
    collection.publish()
    collection.close()
    for leftover in database.parent.glob("documents.db-*"):
        leftover.unlink()
    shutil.copy(copy, database)
    with pytest.raises(ManifestMismatch, match="it is an older copy"):
        reopened(folder).search(QUERY)
    opened = reopened(folder)
    assert verify(opened, mend=True).mended
    assert "new" not in dict(ranking(opened))


def test_verify_names_keys_whose_vectors_differ(folder):
    with_another_vector(published(reopened(folder)), 17)
    collection = reopened(folder)
    assert verify(collection).problems == ["1 keys have other vectors in the index, key 18 first."]
    mended = verify(collection, mend=True)
    assert (mended.mended, mended.keys) == (True, 120)
    assert verify(collection).problems == []


def test_verify_names_keys_that_only_one_side_has(folder):
    collection = reopened(folder)
    collection.search(QUERY)
    with collection.store.connections.writing() as db:  # without a word to the followers
        db.execute("DROP TRIGGER log_removed_key")
        db.execute("DELETE FROM keys WHERE id IN (1, 2, 59)")
    assert "The index holds 120 living keys, but the database 117." in verify(collection).problems
    with collection.store.connections.writing() as db:
        db.execute("UPDATE keys SET id = 4000 WHERE id = 61")
    assert "1 keys are not in the index, key 4000 first." in verify(collection).problems
    left = verify(collection, mend=True).left  # what the deleted keys were is not known
    assert left == ["2 documents have another text or vector than was written, 'd0' first."]


# -- publishing while others read, and being killed at it ----------------------------------------


def test_publishing_between_a_readers_two_looks_is_no_mismatch(folder, monkeypatch):
    """What the reader reads of the manifest may be newer than what it knows of the database."""
    collection = reopened(folder)
    writer = reopened(folder)
    load, written = PublishedIndexes.load, []

    def written_meanwhile(self, *progress, **rest):
        if not written:
            written.append(True)
            writer.upsert([several_keys("new", [QUERY * 9])])
            writer.publish()
        return load(self, *progress, **rest)

    monkeypatch.setattr(PublishedIndexes, "load", written_meanwhile)
    assert ranking(collection)[0][0] == "new"


def test_a_generation_swept_away_under_a_reader_is_looked_up_again(folder, monkeypatch, caplog):
    collection, writer = reopened(folder), reopened(folder)
    read, swept = PublishedIndexes._load, []

    def swept_meanwhile(self, generation, progress, whole):
        if not swept:
            swept.append(generation)
            for _ in range(3):
                writer.publish()
        return read(self, generation, progress, whole)

    monkeypatch.setattr(PublishedIndexes, "_load", swept_meanwhile)
    assert len(ranking(collection)) == 60
    assert not swept[0].exists()
    assert caplog.text == ""
    assert collection.views.current().keys.generation == 4


def test_readers_answer_while_others_publish(folder):
    expected = ranking(reopened(folder))
    stop, failed = threading.Event(), []

    def read():
        try:
            while not stop.is_set():
                assert ranking(reopened(folder)) == expected
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    writer = reopened(folder)
    for _ in range(15):
        writer.publish()
    stop.set()
    for thread in threads:
        thread.join()
    assert failed == []
    generations = [p.name for p in published(writer).parent.iterdir() if p.name.isdigit()]
    assert generations == ["16"]


def test_a_publication_that_fails_leaves_nothing_behind(tmp_path):
    indexes = PublishedIndexes(tmp_path, IndexOrigin("u", "none", 2, "raw"))

    def failing():
        yield KeyTable.of_keys(np.ones((1, 2), np.float32), np.array([1]), np.array([1]))
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        indexes.publish(failing(), 1, 0, lambda nonce: None)
    assert indexes.load(lambda: Progress(1, 0, [])) is None
    assert [path.name for path in indexes.folder.iterdir()] == ["lock"]


def test_an_index_without_keys_can_be_published_and_grows_again(folder):
    collection = reopened(folder)
    collection.delete([f"d{n}" for n in range(60)])
    collection.publish()
    for opened in (collection, reopened(folder)):
        assert opened.search(QUERY).attended == 0
        assert opened.search(QUERY, attend="all").hits == []
    collection.upsert([several_keys("new", [QUERY])])
    assert [id for id, _ in ranking(collection)] == ["new"]
    assert [id for id, _ in ranking(reopened(folder))] == ["new"]


def test_numbers_of_files_and_manifest_must_agree(tmp_path):
    indexes = PublishedIndexes(tmp_path, IndexOrigin("u", "none", 2, "raw"))
    known: list[str] = []
    ids = np.arange(2)
    table = KeyTable.of_keys(np.zeros((2, 2), np.float32), ids, ids)
    indexes.publish([table], 2, 0, known.append)
    sealed(indexes.folder / "1" / "manifest.json", keys=3)
    with pytest.raises(Damaged, match="2 vectors and 2 ids, but its manifest says 3"):
        indexes.load(lambda: Progress(2, 0, known))


def test_an_older_copy_of_the_database_is_told_before_and_after_it_has_caught_up(folder):
    """A copy that is put back hands out the same key ids for other keys."""
    path = folder / "collections" / "default"
    collection = reopened(folder)
    shutil.copytree(path, folder / "copy")
    collection.upsert([several_keys("later", [QUERY])])
    collection.publish()
    collection.close()
    for file in path.glob("documents.db*"):
        file.unlink()
    for file in (folder / "copy").glob("documents.db*"):
        shutil.copy(file, path / file.name)
    again = reopened(folder)
    with pytest.raises(ManifestMismatch, match="older copy"):
        again.upsert([several_keys("other", [QUERY])])
    assert "other" not in again.ids()
    again.write([several_keys(f"other{n}", [QUERY]) for n in range(5)])  # past the later one's ids
    with pytest.raises(ManifestMismatch, match="knows nothing"):
        again.search(QUERY)
    assert verify(again, mend=True).mended
    assert "other0" in [id for id, _ in ranking(again)]
