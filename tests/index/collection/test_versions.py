"""Versions: offsets and example keys in the index, and opening one while others answer."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from attend.collection.data import Data
from attend.collection.verify import verify
from attend.collection.versions import Version
from attend.core.settings import Tuning
from attend.core.types import Document
from attend.engines import snapshots as views_module
from attend.keys.files import PublishedIndexes
from attend.projection import given as projection_given
from attend.projection import identity
from attend.store import Offsets
from attend.store.database import Store
from tests.index.helpers import with_another_vector
from tests.index.world import World, check_weights, expected

WIDTH = 32  # of the tiny encoder


@pytest.fixture
def world(tmp_path, tiny_encoder):
    world = World(tmp_path, tiny_encoder, 11)
    world.take("write", range(20))
    yield world
    world.data.close()


def turned(seed: int = 0):
    """A trained projection whose keys fold for the scorer dot."""
    rng = np.random.default_rng(seed)
    w = (np.eye(WIDTH) + rng.normal(scale=0.2, size=(2, WIDTH, WIDTH))).astype(np.float32)
    return projection_given(w[0], w[1])


def shifts(world, count: int) -> dict[int, np.ndarray]:
    rng = np.random.default_rng(5)
    return {id: rng.normal(size=WIDTH).astype(np.float32) for id in world.key_ids()[:count]}


def check(world, fitted, query: str = "gold rain island", collection=None) -> None:
    """A search under a version has the weights of the dense formula."""
    collection = collection or world.collection
    answer = collection.search(query, projection=fitted.number, k=100, scale=4.0)
    check_weights(answer, expected(world.logits(fitted, query, scale=[4.0]), 100)[0])


def reopened(world) -> Data:
    return Data(world.data.folder, load_encoder=lambda name: world.encoder)


# -- how keys are laid out ---------------------------------------------------------------------


def layout(number=2, projection=None, examples=0.0, keys=()) -> str:
    ids = np.array(keys, dtype=np.int64)
    offsets = Offsets(ids, np.ones((len(ids), WIDTH), dtype=np.float32))
    return Version(number, projection or identity(WIDTH), Tuning(examples=examples), offsets).layout


def test_a_version_that_moves_no_key_has_the_layout_it_always_had():
    assert layout() == layout(number=3) == "raw"
    whole = projection_given(None, np.eye(WIDTH), normalize_keys=True)
    assert layout(projection=whole) == whole.key_fingerprint[:16]
    assert layout(projection=turned().fold()) == "raw"


def test_layouts_differ_where_keys_do_and_only_there():
    layouts = [
        layout(),
        layout(examples=0.5),
        layout(examples=0.6),
        layout(keys=[3]),
        layout(keys=[3], number=3),
        layout(keys=[3], examples=0.5),
        layout(projection=turned(), keys=[3]),
        layout(projection=turned(), examples=0.5),
        layout(projection=turned(1), examples=0.5),
    ]
    assert len(set(layouts)) == len(layouts)
    assert layout(examples=0.5, number=7) == layouts[1]
    # Offsets go with their documents, and leave the keys of all others as they are.
    assert layout(keys=[3, 9]) == layouts[3]


def test_moved_keys_are_never_folded(world):
    folds = turned()
    plain = world.version(folds)
    moved = world.version(folds, Tuning(examples=0.5))
    views = world.collection.views
    assert views.current(plain.number).version.projection.folded
    assert not views.current(moved.number).version.projection.folded
    for fitted in (plain, moved, world.version(folds, offsets=shifts(world, 4))):
        check(world, fitted)


@pytest.mark.parametrize("scorer", ["laplace", "cosine"])
def test_other_scorers_compare_with_the_moved_keys(world, scorer):
    """The first document's keys are moved onto the query, where no other is."""
    query = world.encoder.encode_queries(["gold rain"])[0]
    first = world.store.find(["d0"])["d0"].row
    with world.store.all_keys() as (_, batches):
        batch = next(batches)
    mine = batch.documents == first
    deltas = query - batch.vectors[mine]
    offsets = dict(zip(batch.ids[mine].tolist(), deltas, strict=True))
    fitted = world.version(identity(WIDTH), offsets=offsets)
    best = world.collection.search("gold rain", projection=fitted.number, scorer=scorer).hits[0]
    assert best.id == "d0"
    assert best.score == pytest.approx(20.0 if scorer == "cosine" else 0.0, abs=1e-4)


# -- example keys come and go ------------------------------------------------------------------


@pytest.mark.parametrize("published", [False, True])
def test_an_example_is_a_key_from_the_next_search_on_and_goes_as_it_came(world, published):
    fitted = world.version(turned(), Tuning(examples=0.9), activate=True)
    if published:
        world.collection.publish()
    check(world, fitted)
    before = world.collection.search("who hid the doubloons", k=20).hits
    world.teach("who hid the doubloons", ["d4", "d9"])
    check(world, fitted, "who hid the doubloons")
    best = world.collection.search("who hid the doubloons", explain=True).hits[:2]
    assert {hit.id for hit in best} == {"d4", "d9"}
    assert {hit.explanation["question"] for hit in best} == {"who hid the doubloons"}
    if published:
        world.collection.publish()
        check(world, fitted, "who hid the doubloons")
    world.store.delete_examples(documents=["d4"])
    check(world, fitted, "who hid the doubloons")
    world.store.delete_examples()
    after = world.collection.search("who hid the doubloons", k=20).hits
    assert [hit.id for hit in after] == [hit.id for hit in before]
    assert [hit.score for hit in after] == pytest.approx([hit.score for hit in before], rel=1e-12)
    assert world.collection.views.current().keys.documents == 20


def test_examples_of_no_weight_are_no_keys_and_plain_versions_have_none(world):
    fitted = world.version(identity(WIDTH), Tuning(examples=1.0))
    plain = world.version(identity(WIDTH), Tuning(memory=0.0))
    world.teach("who hid the doubloons", ["d4"], weight=-1.0)
    world.teach("who hid the doubloons", ["d5"], weight=0.0)
    check(world, fitted, "who hid the doubloons")
    world.teach("who hid the doubloons", ["d6"], weight=2.0)
    check(world, fitted, "who hid the doubloons")
    check(world, plain, "who hid the doubloons")


def test_what_is_published_is_what_is_opened_again(world):
    fitted = world.version(turned(), Tuning(examples=0.7), shifts(world, 9), activate=True)
    world.teach("gold at night", ["d1", "d2", "d3"])
    world.collection.publish()
    world.teach("rain at the door", ["d3", "d4"])
    world.take("write", [2, 3, 40])  # their offsets and examples go
    world.take("delete", [5])
    left = remaining(world, fitted)
    assert 0 < len(left.offsets) < 9
    fitted = left
    for collection in (world.collection, reopened(world).collection()):
        for query in ("gold at night", "rain at the door", "map"):
            check(world, fitted, query, collection)
        assert verify(collection).problems == []
        assert collection.views.current().keys.generation == 1
    world.collection.publish()
    check(world, fitted, "gold at night", reopened(world).collection())


def remaining(world, fitted):
    """The version with the offsets of keys that are still there."""
    keys, deltas = world.store.version(fitted.number).offsets
    return replace(fitted, offsets=dict(zip(keys.tolist(), deltas, strict=True)))


def test_verification_tells_moved_keys_from_others(world):
    world.teach("gold at night", ["d1"])
    world.version(identity(WIDTH), Tuning(examples=0.7), shifts(world, 3), activate=True)
    world.collection.publish()
    assert verify(world.collection).problems == []
    segment = world.collection.views.current().keys.segments[0]
    example = int(np.argmax(segment.table.ids))
    layout = world.collection.folder / "keys" / world.collection.views.current().version.layout
    with_another_vector(layout / (layout / "current").read_text().strip(), example)
    again = Data(world.data.folder, load_encoder=lambda name: world.encoder).collection()
    wrong = f"1 keys have other vectors in the index, key {segment.table.ids[example]} first."
    assert verify(again).problems == [wrong]
    assert verify(again, mend=True).mended


# -- opening -----------------------------------------------------------------------------------


class Slowly:
    """Opening one version waits in the middle until it is let go on."""

    def __init__(self, monkeypatch, number: int) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        make = Version.keys

        def slowly(made, batch):
            if made.number == number and len(batch.ids):
                self.begun.set()
                assert self.go_on.wait(30)
            return make(made, batch)

        monkeypatch.setattr(Version, "keys", slowly)


@pytest.mark.parametrize("merge_at", [8, 10_000])
def test_searches_and_writes_go_on_while_another_version_is_opened(world, monkeypatch, merge_at):
    monkeypatch.setattr(views_module, "MERGE_KEYS", merge_at)
    world.collection.publish()
    assert world.collection.search("gold").projection == 1
    fitted = world.version(turned(), Tuning(examples=0.5), shifts(world, 3))
    slowly = Slowly(monkeypatch, fitted.number)
    failed: list[BaseException] = []

    def activate() -> None:
        try:
            world.collection.activate(fitted.number)
        except BaseException as error:
            failed.append(error)

    opening = threading.Thread(target=activate)
    opening.start()
    assert slowly.begun.wait(30)
    for at in range(3):  # by this thread, and by ones that never searched before
        world.take("write", [30 + at, at])
        world.teach("who hid the doubloons", [f"d{30 + at}"])
        with ThreadPoolExecutor(1) as newcomer:
            other = newcomer.submit(world.collection.search, "gold", k=50).result(20)
        for answer in (world.collection.search("gold", k=50), other):
            assert answer.projection == 1
            assert {hit.id for hit in answer.hits} == world.collection.ids()
    assert opening.is_alive()
    slowly.go_on.set()
    opening.join(30)
    assert (opening.is_alive(), failed) == (False, [])
    assert world.collection.search("gold").projection == fitted.number
    check(world, remaining(world, fitted), "who hid the doubloons")


def test_a_version_is_opened_once_however_many_wait_for_it(world, monkeypatch):
    fitted = world.version(turned())
    loads, load = [], views_module.Views._load

    def counted(views, made):
        loads.append(made.number)
        time.sleep(0.1)
        return load(views, made)

    monkeypatch.setattr(views_module.Views, "_load", counted)
    threads = [
        threading.Thread(target=lambda: world.collection.views.current(fitted.number))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert loads == [fitted.number]


def test_a_version_that_cannot_be_opened_leaves_nothing_behind(world, monkeypatch):
    fitted = world.version(turned())
    with monkeypatch.context() as patch:
        patch.setattr(Version, "keys", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            world.collection.activate(fitted.number)
    assert world.collection.search("gold").projection == 1
    world.collection.activate(fitted.number)
    check(world, fitted)


def test_an_activated_version_of_many_keys_was_published_before(world, monkeypatch):
    """What answers at once after a restart was not built by the first search."""
    monkeypatch.setattr(views_module, "MERGE_KEYS", 8)
    fitted = world.version(turned(), offsets=shifts(world, 3))
    read = Store.changes_since

    def never_many(store, *asked, **options):
        changes = read(store, *asked, **options)
        assert len(changes.added.ids) <= 8, "keys were read at once, and not in blocks"
        return changes

    monkeypatch.setattr(Store, "changes_since", never_many)
    world.collection.activate(fitted.number)
    info = world.collection.info().index
    assert (info["published"], info["fresh"], info["keys"]) == (1, 0, len(world.key_ids()))
    monkeypatch.setattr(PublishedIndexes, "publish", lambda *_: 1 / 0)
    check(world, fitted, collection=reopened(world).collection())


def test_the_index_of_a_version_goes_an_hour_after_nobody_searches_it(world, monkeypatch):
    monkeypatch.setattr(views_module, "MERGE_KEYS", 8)
    world.collection.publish()
    fitted = [world.version(turned(seed), Tuning(examples=0.5)) for seed in range(4)]
    layouts = []
    for version in fitted:
        world.collection.activate(version.number)
        layouts.append(world.collection.views.current().version.layout)
    keys = world.collection.folder / "keys"

    def left() -> set[str]:
        return {pointer.parent.name for pointer in keys.glob("*/current")}

    world.collection.publish()
    assert left() == {"raw", *layouts}
    for pointer in keys.glob("*/current"):
        os.utime(pointer, (time.time() - views_module.SPARE_SECONDS - 1,) * 2)
    world.collection.publish()
    assert left() == {"raw", *layouts[2:]}  # of the untrained, the version before, and this
    assert [path.name for path in (keys / layouts[0]).iterdir()] == ["lock"]
    for version in (fitted[2], fitted[1]):  # the last one is written again
        assert world.collection.rollback() == version.number
        check(world, version)
        check(world, version, collection=reopened(world).collection())
    assert left() == {"raw", *layouts[1:]}
    check(world, fitted[0])
    assert verify(world.collection).problems == []


def test_a_version_that_cannot_be_read_keeps_the_indexes(world, monkeypatch):
    monkeypatch.setattr(views_module, "MERGE_KEYS", 8)
    monkeypatch.setattr(views_module, "SPARE_SECONDS", -1.0)
    fitted = [world.version(turned(seed), Tuning(examples=0.5)) for seed in range(3)]
    for version in fitted:
        world.collection.activate(version.number)
    with world.store.connections.writing() as db:
        db.execute("UPDATE projections SET weights = x'00' WHERE version = ?", [fitted[1].number])
    collection = reopened(world).collection()
    collection.publish()
    assert len(list((collection.folder / "keys").glob("*/current"))) == 3
    check(world, fitted[2], collection=collection)


def test_a_merge_that_two_writers_find_due_is_done_once(world, monkeypatch):
    monkeypatch.setattr(views_module, "MERGE_KEYS", 8)
    world.collection.publish()
    writes, publish = [], PublishedIndexes.publish

    def counted(indexes, *arguments):
        writes.append(indexes.origin.layout)
        time.sleep(0.1)
        return publish(indexes, *arguments)

    monkeypatch.setattr(PublishedIndexes, "publish", counted)
    world.collection.write([Document(f"n{at}", {"text": f"gold {at}"}) for at in range(20)])
    threads = [threading.Thread(target=world.collection.views.merge_if_due) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert writes == ["raw"]
    assert world.collection.info().index["fresh"] == 0
