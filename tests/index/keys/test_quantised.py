"""Quantised indexes: the recall that is promised is found, filtered or not, whatever was written.

The oracle is a product of matrices in float64.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

from attend import Data
from attend.collection.verify import verify
from attend.core.arrays import KeyTable
from attend.core.errors import Damaged
from attend.core.types import Document
from attend.keys import vectors as vectors_module
from attend.keys.files import IndexOrigin, Progress, PublishedIndexes
from attend.keys.vectors import (
    FETCHED,
    MANY,
    MANY_FETCHED,
    IndexTarget,
    Point,
    QuantisedVectors,
)
from attend.store import NewExample, Question
from tests import warm
from tests.index.helpers import published, vector_data

KEYS, WIDTH, NEAREST = 12_000, 32, 10
FEW = 1500
"""Keys that are quantised again and again."""

SHORT = 0.01
"""What may be found less than was promised."""

FILES = ("vectors.npy", "lists.faiss", "codes.faiss", "keys.npy", "documents.npy")
DOTS = {"dimension": WIDTH, "scorer": "dot", "exact_below": 1}


def grown(count: int, seed: int) -> np.ndarray:
    """Clouds of keys on a sphere, and pairs of them mixed: as embeddings lie, in small."""
    centres = np.random.default_rng(7).normal(size=(300, WIDTH))
    rng = np.random.default_rng(seed)
    pairs = centres[rng.integers(300, size=(2, count))]
    share = rng.random((count, 1))
    mixed = share * pairs[0] + (1 - share) * pairs[1] + 0.3 * rng.normal(size=(count, WIDTH))
    return (mixed / np.linalg.norm(mixed, axis=1, keepdims=True)).astype(np.float32)


def truth(queries, vectors, allowed=None) -> np.ndarray:
    products = queries.astype(np.float64) @ vectors.astype(np.float64).T
    if allowed is not None:
        products[:, ~allowed] = -np.inf
    return np.argsort(-products, axis=1)[:, :NEAREST]


def found_share(found, true) -> float:
    return float(np.mean([np.isin(a, b).mean() for a, b in zip(true, found, strict=True)]))


@pytest.fixture(scope="module")
def vectors() -> np.ndarray:
    return grown(KEYS, 0)


@pytest.fixture(scope="module")
def queries() -> np.ndarray:
    return grown(200, 1)


def indexes(folder: Path) -> PublishedIndexes:
    return PublishedIndexes(folder, IndexOrigin("u", "none", WIDTH, "raw"))


def write(folder: Path, vectors: np.ndarray, wanted: IndexTarget) -> dict:
    ids = np.arange(len(vectors))
    tables = KeyTable.of_keys(vectors, ids, ids).blocks(5000)
    return indexes(folder).publish(tables, len(vectors), 0, KNOWN.append, wanted).index


KNOWN: list[str] = []


def load(folder: Path) -> QuantisedVectors:
    segment, _ = indexes(folder).load(lambda: Progress(10**6, 0, KNOWN))
    return segment.vectors


@pytest.fixture(scope="module")
def written(tmp_path_factory, vectors) -> Path:
    """A folder with an index of all vectors, which tests copy."""
    folder = tmp_path_factory.mktemp("made")
    write(folder, vectors, IndexTarget(exact_below=1))
    return folder


@pytest.fixture(scope="module")
def made(written) -> QuantisedVectors:
    return load(written)


# -- what is chosen ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "kind", "why"),
    [
        (IndexTarget(), "flat", "fewer than 20000 keys"),
        (IndexTarget(exact_below=KEYS + 1), "flat", "fewer than 12001 keys"),
        (IndexTarget(recall=1, exact_below=1), "flat", "all of the nearest"),
        (IndexTarget(exact_below=1), "IVF256,PQ16x4fs,Refine(SQ8)", "not fewer than 1 keys"),
    ],
)
def test_exact_search_where_it_is_asked_for_or_fast(tmp_path, vectors, wanted, kind, why):
    told = write(tmp_path, vectors, wanted)
    assert told["type"] == kind
    assert why in told["why"]
    assert load(tmp_path).promises(None) == (1.0 if kind == "flat" else 0.95)
    assert told["recall"] >= load(tmp_path).promises(None)


def test_what_cannot_be_promised_stays_exact(tmp_path, monkeypatch):
    """Noise has no clusters, and codes of it tell little; nobody is misled."""
    monkeypatch.setattr(vectors_module, "FACTORS", (2,))
    noise = np.random.default_rng(0).normal(size=(KEYS, WIDTH)).astype(np.float32)
    told = write(tmp_path, noise, IndexTarget(recall=0.9999, exact_below=1))
    assert told["type"] == "flat"
    assert "of the nearest are found, and not 0.9999" in told["why"]
    assert sorted(p.name for p in (tmp_path / "raw" / "1").iterdir()) == [
        "documents.npy", "keys.npy", "manifest.json", "vectors.npy",
    ]  # fmt: skip


def test_a_slow_exact_search_is_what_makes_the_difference(tmp_path, vectors, monkeypatch):
    monkeypatch.setattr(vectors_module, "FEW_KEYS", 0)
    monkeypatch.setattr(vectors_module, "exact_seconds", lambda keys: 0.011)
    assert write(tmp_path / "slow", vectors, IndexTarget())["type"].startswith("IVF256")
    monkeypatch.setattr(vectors_module, "exact_seconds", lambda keys: 0.0042)
    assert write(tmp_path / "fast", vectors, IndexTarget())["why"] == "an exact search takes 4.2 ms"


# -- recall promised and found ---------------------------------------------------------------------


@pytest.mark.parametrize("recall", [None, 0.5, 0.8, 0.9, 0.99, 1.0])
def test_what_is_promised_is_found(made, vectors, queries, recall):
    asked = made.target if recall is None else recall
    promised = made.promises(recall)
    assert promised in (asked, 1.0)
    found = made.search(queries, FETCHED, None, recall).positions
    assert found_share(found, truth(queries, vectors)) >= promised - SHORT


@pytest.mark.parametrize("recall", [None, 0.5, 0.9])
@pytest.mark.parametrize("share", [1.0, 0.5, 0.02])
def test_of_a_hundred_as_much_is_found(made, vectors, queries, recall, share):
    allowed = np.random.default_rng(3).random(KEYS) < share
    found = made.search(queries, MANY_FETCHED, None if share == 1 else allowed, recall).positions
    products = np.where(allowed, queries @ vectors.T, -np.inf)
    for nearest in (10, MANY):
        best = np.argsort(-products, axis=1)[:, :nearest]
        # What is measured with is harder to find ten for, but not a hundred of so few keys.
        short = SHORT if nearest == 10 else 2 * SHORT
        assert found_share(found, best) >= made.promises(recall) - short


def test_parameters_are_those_measured_with_at_most_as_many_keys(made):
    few, many = made.point(None), made.point(None, MANY_FETCHED)
    assert (few.fetched, many.fetched) == (FETCHED, MANY_FETCHED)
    assert made.point(None, MANY_FETCHED - 1) == made.point(None, 1) == few
    older = [list(point)[:4] for point in made.points if point.fetched == FETCHED]
    read = QuantisedVectors(
        made.lists, made.codes, made.vectors, [Point(*each) for each in older], made.target
    )
    assert read.point(None, MANY_FETCHED) == few
    deep = QuantisedVectors(made.lists, made.codes, made.vectors, [many], made.target)
    assert deep.point(None) is None


def test_less_is_faster_by_its_parameters(made):
    points = [made.point(recall) for recall in (0.5, 0.9, 0.95)]
    work = [point.probes * point.factor for point in points]
    assert work == sorted(work)
    assert work[0] < work[-1]


@pytest.mark.parametrize("share", [0.5, 0.1, 0.02, 0.005])
@pytest.mark.parametrize("kind", ["anywhere", "near", "far", "aside"])
def test_a_mask_keeps_the_recall(made, vectors, queries, share, kind):
    """Also where what it leaves lies all together, far from the query."""
    rng = np.random.default_rng(3)
    places = {"anywhere": 0, "near": vectors[0], "far": -vectors[0], "aside": vectors[1]}
    place = np.zeros(WIDTH) + places[kind]
    score = vectors @ place + rng.random(KEYS) * (kind == "anywhere")
    allowed = np.zeros(KEYS, dtype=bool)
    allowed[np.argsort(-score)[: int(KEYS * share)]] = True
    asked = queries if kind == "anywhere" else vectors[:1] + 0.3 * queries
    found = made.search(asked, FETCHED, allowed).positions
    assert allowed[found[found >= 0]].all()
    assert found_share(found, truth(asked, vectors, allowed)) >= made.promises(None) - SHORT


def test_parameters_travel_with_the_call(made, queries):
    """Two ways to search the same index take turns, and neither changes the other's answer."""
    few, many = made.point(0.5), made.point(0.95)
    alone = [made.search_at(point, queries, 20) for point in (few, many)]
    for _ in range(3):
        for point, expected in zip((few, many), alone, strict=True):
            found = made.search_at(point, queries, 20)
            np.testing.assert_array_equal(found.positions, expected.positions)
    assert not np.array_equal(alone[0].positions, alone[1].positions)


def test_no_key_is_allowed(made, queries):
    found = made.search(queries[:3], 5, np.zeros(KEYS, dtype=bool))
    assert (found.positions == -1).all()


@pytest.mark.parametrize("width", [1, 7, 10, 33])
def test_any_width_is_quantised(tmp_path, width):
    keys = np.random.default_rng(width).normal(size=(3000, width)).astype(np.float32)
    folder = PublishedIndexes(tmp_path, IndexOrigin("u", "none", width, "raw"))
    ids = np.arange(3000)
    wanted = IndexTarget(recall=0.5, exact_below=1)
    manifest = folder.publish([KeyTable.of_keys(keys, ids, ids)], 1, 0, KNOWN.append, wanted)
    segment, _ = folder.load(lambda: Progress(1, 0, KNOWN))
    found = segment.vectors.search(keys[:50], FETCHED, None).positions
    assert found_share(found, truth(keys[:50], keys)) >= manifest.index["recall"] - SHORT


def test_more_candidates_are_measured_where_fewer_find_too_little(tmp_path, vectors, monkeypatch):
    """The factors beyond the usual ones are tried by a target that these miss, and by no other."""
    monkeypatch.setattr(vectors_module, "FACTORS", (2, 4, 8, 16))
    monkeypatch.setattr(vectors_module, "USUAL", 2)

    def factors(recall: float) -> set[int]:
        folder = tmp_path / str(recall)
        ids = np.arange(KEYS)
        wanted = IndexTarget(recall=recall, exact_below=1)
        manifest = indexes(folder).publish(
            [KeyTable.of_keys(vectors, ids, ids)], 1, 0, KNOWN.append, wanted
        )
        return {point[1] for point in manifest.index["points"]}

    assert factors(0.5) == {2}
    assert max(factors(0.9)) > 2


# -- a collection over it ----------------------------------------------------------------------


def documents(vectors, numbers) -> list[Document]:
    return [
        Document(f"d{at}", vectors={"v": vectors[at].tolist()}, payload={"rank": int(at)})
        for at in numbers
    ]


@pytest.fixture(scope="module")
def filled(tmp_path_factory, vectors):
    """Published and quantised, then changed, deleted and added to."""
    keys = np.concatenate([vectors, grown(300, 9)])
    data = vector_data(tmp_path_factory.mktemp("filled"))
    collection = data.create(**DOTS)
    for start in range(0, KEYS, 2000):
        collection.write(documents(keys, range(start, start + 2000)))
    collection.publish()
    changed, gone = np.arange(0, 900, 3), np.arange(1, 900, 3)
    keys[changed] = grown(len(changed), 10)
    collection.upsert(documents(keys, [*changed.tolist(), *range(KEYS, KEYS + 300)]))
    collection.delete([f"d{at}" for at in gone])
    yield collection, keys, np.isin(np.arange(len(keys)), gone, invert=True)
    data.close()


def check(collection, keys, allowed, queries, **options) -> None:
    """The best ten, as promised; scores are exact, and nothing else is listed."""
    shares = []
    for query, true in zip(queries, truth(queries, keys, allowed), strict=True):
        answer = collection.search(query.tolist(), scale=1, **options)
        found = [int(hit.id[1:]) for hit in answer.hits]
        assert allowed[found].all()
        exact = keys[found].astype(float) @ query.astype(float)
        np.testing.assert_allclose([hit.score for hit in answer.hits], exact, atol=1e-6)
        expected = true[allowed[true]]
        shares.append(np.isin(expected, found).mean() if len(expected) else 1.0)
        assert answer.exact == (answer.recall is None)
    promised = 1.0 if answer.exact else answer.recall
    assert promised >= collection.settings.recall
    assert np.mean(shares) >= promised - SHORT


@pytest.mark.parametrize("then", ["delta", "merged", "reopened"])
def test_writes_deletions_and_merges_over_a_quantised_index(filled, queries, then):
    collection, keys, there = filled
    if then == "merged":
        collection.publish()
    if then == "reopened":
        collection = vector_data(collection.folder.parent.parent).collection()
    base, delta = collection.views.current().keys.segments
    assert isinstance(base.vectors, QuantisedVectors)
    assert (delta.keys > 0) == (then == "delta")
    check(collection, keys, there, queries[:80])
    assert verify(collection).problems == []


@pytest.mark.parametrize("share", [0.5, 0.1, 0.01, 0.001, 0.0001])
def test_a_filtered_search_over_a_quantised_index(filled, queries, share):
    collection, keys, there = filled
    limit = int(len(keys) * share)
    allowed = there & (np.arange(len(keys)) < limit)
    check(collection, keys, allowed, queries[:60], filter={"rank": {"lt": limit}})


def test_the_recall_asked_for_travels_with_the_search(filled, queries):
    collection, keys, there = filled
    usual = collection.search(queries[0].tolist())
    assert (usual.exact, usual.recall) == (False, 0.95)
    assert usual.json()["recall"] == usual.recall
    more = collection.search(queries[0].tolist(), recall=0.99)
    assert more.exact or more.recall == 0.99
    check(collection, keys, there, queries[:40], recall=1)
    exact = collection.search(queries[0].tolist(), recall=1)
    assert (exact.exact, "recall" in exact.json()) == (True, False)
    assert collection.search(queries[0].tolist(), attend="all").exact


def test_info_says_what_was_chosen_and_why(filled):
    told = filled[0].info().index
    assert told["type"].startswith("IVF256,PQ16x4fs")
    assert told["exact"] is False
    assert told["recall"] >= told["target"] == 0.95
    assert 32 + 8 + 8 <= told["bytes_per_key"] < 64  # bytes, codes, positions, and the centroids
    assert told["measured_on"] == "keys"


def test_another_recall_is_set_for_what_is_published_next(tmp_path, vectors):
    data = vector_data(tmp_path)
    collection = data.create(**DOTS)
    collection.write(documents(vectors, range(4000)))
    assert collection.configure(recall=0.8)
    assert not collection.configure(recall=0.8)
    collection.publish()
    assert collection.info().index["target"] == 0.8
    data.close()
    again = vector_data(tmp_path).collection()
    assert again.settings.recall == 0.8
    assert again.configure(exact_below=10_000)
    again.publish()
    assert again.info().index["type"] == "flat"


def test_questions_that_were_asked_are_what_is_measured_with(tmp_path, vectors, queries):
    collection = vector_data(tmp_path).create(**DOTS)
    collection.write(documents(vectors, range(4000)))
    asked = [Question(None, embedding) for embedding in grown(256, 4)]
    answers = [NewExample(at, f"d{at}", 1.0) for at in range(256)]
    collection.store.add_examples(asked, answers)
    collection.publish()
    assert collection.info().index["measured_on"] == "questions"
    there = np.arange(len(vectors)) < 4000
    check(collection, vectors, there, queries[:80], memory=0)


def test_keys_of_several_heads_stay_exact(tmp_path, vectors):
    from attend.projection import given

    collection = vector_data(tmp_path).create(**DOTS)
    collection.write(documents(vectors, range(3000)))
    heads = np.random.default_rng(0).normal(size=(2, 8, WIDTH)).astype(np.float32)
    version = collection.add_projection(given(heads, heads, normalize_keys=True))
    collection.activate(version)
    collection.publish()
    assert collection.info().index["why"] == "all of the nearest are to be found"


# -- damage, killing, starting ----------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory, vectors) -> Path:
    """A data folder with a published index, which tests copy."""
    folder = tmp_path_factory.mktemp("whole")
    data = vector_data(folder)
    collection = data.create(**DOTS)
    collection.write(documents(vectors, range(FEW)))
    collection.publish()
    data.close()
    return folder


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("kind", ["cut", "flipped", "gone"])
def test_a_damaged_quantised_index_is_built_again(
    tmp_path, whole, vectors, queries, caplog, file, kind
):
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    data = vector_data(tmp_path)
    path = published(data.collection()) / file
    data.close()
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    if kind == "gone":
        path.unlink()
    else:
        path.write_bytes(content[: len(content) // 2] if kind == "cut" else content)
    with caplog.at_level(logging.WARNING, logger="attend"):
        again = vector_data(tmp_path).collection()
        check(again, vectors, np.arange(KEYS) < FEW, queries[:20])
    assert "The index is built again from the database." in caplog.text
    again.publish()
    assert verify(again).problems == []


def test_large_files_are_checked_by_verify_and_their_size_at_once(
    tmp_path, written, monkeypatch, caplog
):
    from attend.keys import files as module

    monkeypatch.setattr(module, "CHECKED_BYTES", 1000)
    shutil.copytree(written, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "raw" / "1" / "codes.faiss"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)
    assert load(tmp_path).vectors.shape == (KEYS, WIDTH)
    with pytest.raises(Damaged, match=r"codes\.faiss has checksum"):
        indexes(tmp_path).load(lambda: Progress(10**6, 0, KNOWN), thorough=True)
    path.write_bytes(content[:-1])
    with pytest.raises(Damaged, match=r"codes\.faiss has \d+ bytes, but \d+ were written"):
        load(tmp_path)


KILLED = """
import os, signal, sys
from pathlib import Path
from attend.keys import vectors
from tests.index.keys import test_quantised as tests
def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)
module, name = sys.argv[2:]
__import__(module)
setattr(sys.modules[module], name, die)
tests.write(Path(sys.argv[1]), tests.grown(5000, 2), tests.IndexTarget(exact_below=1))
"""


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("attend.keys.vectors", "train_lists"),
        ("attend.keys.vectors", "write_codes"),
        ("faiss", "write_index"),
        ("attend.keys.vectors", "tune"),
        ("attend.keys.files", "checksum"),
        ("os", "replace"),
    ],
)
def test_a_killed_build_leaves_the_index_before_it(
    tmp_path, written, vectors, queries, module, name
):
    shutil.copytree(written, tmp_path, dirs_exist_ok=True)
    before = load(tmp_path).search(queries, 10, None)
    killed = warm.run("-c", KILLED, tmp_path, module, name)
    assert killed.returncode == -signal.SIGKILL
    np.testing.assert_array_equal(load(tmp_path).search(queries, 10, None)[1], before[1])
    write(tmp_path, vectors[:4000], IndexTarget(exact_below=1))
    assert len(load(tmp_path).vectors) == 4000
    assert not list((tmp_path / "raw").glob("writing-*"))


STARTED = """
import json, os, sys
from pathlib import Path
from tests.index.keys import test_quantised as tests
def resident():
    lines = open("/proc/self/smaps").read().split("VmFlags")
    return {f: sum(int(l.split()[1]) for m in lines if f in m for l in m.split("\\n")
                   if l.startswith("Rss:")) for f in ("vectors.npy", "codes.faiss")}
tests.KNOWN.extend(json.loads(sys.argv[2]))
from attend.keys import files
files.CHECKED_BYTES = 1000
opened = tests.load(Path(sys.argv[1]))
before = resident()
opened.search(tests.grown(3, 1), 10, None)
print(json.dumps([before, resident()]))
"""


def test_a_start_reads_neither_keys_nor_bytes(tmp_path, vectors):
    """Of what is mapped nothing is in memory before it is used, and no copy is made of it."""
    many = np.tile(vectors, (8, 1))  # 12 MB
    write(tmp_path, many, IndexTarget(recall=0.5, exact_below=1))
    found = warm.run("-c", STARTED, tmp_path, json.dumps(KNOWN))
    before, after = json.loads(found.stdout)
    whole = os.path.getsize(tmp_path / "raw" / "1" / "vectors.npy") / 1024
    assert before["vectors.npy"] < 0.1 * whole
    assert after["codes.faiss"] > 0
    assert after["vectors.npy"] < 0.1 * whole


# -- words, and what is told on the way ---------------------------------------------------------


SUBJECTS = ("whale", "castle", "engine", "garden", "violin", "desert", "comet", "harbour")


@pytest.fixture(scope="module")
def texts(tmp_path_factory, tiny_encoder):
    """Texts over a quantised index: a subject and a number, so that words tell what keys blur."""
    data = Data(tmp_path_factory.mktemp("texts"), load_encoder=lambda name: tiny_encoder)
    collection = data.create(exact_below=1)
    rng = np.random.default_rng(5)
    chosen = rng.integers(len(SUBJECTS), size=(1500, 3))
    collection.write(
        [
            Document(f"d{at}", {"text": " ".join(SUBJECTS[each] for each in row) + f" n{at % 90}"})
            for at, row in enumerate(chosen)
        ]
    )
    collection.publish()
    yield collection
    data.close()


@pytest.mark.parametrize("lexical", [0.5, 2.0])
@pytest.mark.parametrize("filtered", [False, True])
def test_words_over_a_quantised_index_add_to_what_it_finds(texts, lexical, filtered):
    assert texts.info().index["type"].startswith("IVF")
    options = {"lexical": lexical, "k": NEAREST, "attend": NEAREST}
    if filtered:
        options["filter"] = {"@text": {"match": "whale"}}
    shares = []
    for at in range(40):
        asked = f"{SUBJECTS[at % 8]} {SUBJECTS[at * 3 % 8]} n{at * 7 % 90}"
        exact = texts.search(asked, recall=1, **options)
        found = texts.search(asked, **options)
        scores = {hit.id: hit.score for hit in exact.hits}
        # Equals of the last one change places with it.
        enough = [hit for hit in found.hits if hit.score >= min(scores.values()) - 1e-5]
        shares.append(len(enough) / len(exact.hits))
        for hit in found.hits:
            assert hit.score == pytest.approx(scores.get(hit.id, hit.score), abs=1e-5)
    assert np.mean(shares) >= texts.settings.recall - SHORT


def test_a_publication_tells_how_far_it_is(tmp_path, vectors):
    collection = vector_data(tmp_path).create(**DOTS)
    collection.write(documents(vectors, range(3000)))
    told: list[tuple[str, float]] = []
    collection.publish(lambda stage, done: told.append((stage, done)))
    assert list(dict.fromkeys(stage for stage, _ in told)) == [
        "training lists", "quantising", "measuring",
    ]  # fmt: skip
    shares = [done for stage, done in told if stage == "quantising"]
    assert shares == sorted(shares)
    assert shares[-1] == 1


@pytest.mark.parametrize("stage", ["training lists", "quantising", "measuring"])
def test_an_interrupted_publication_leaves_the_index_before_it(tmp_path, vectors, queries, stage):
    collection = vector_data(tmp_path).create(**DOTS)
    collection.write(documents(vectors, range(3000)))
    collection.publish()
    collection.write(documents(vectors, range(3000, 4000)))
    before = collection.views.current().keys.generation

    def interrupt(at: str, done: float) -> None:
        if at == stage:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        collection.publish(interrupt)
    assert collection.views.current().keys.generation == before
    assert not list((collection.folder / "keys").glob("*/writing-*"))
    check(collection, vectors, np.arange(KEYS) < 4000, queries[:20])
    collection.publish()
    assert collection.views.current().keys.published.keys == 4000
