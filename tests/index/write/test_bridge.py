"""A new encoder answers by mapped keys while texts are encoded, and nothing of them remains."""

from __future__ import annotations

import json
import subprocess

import numpy as np
import pytest
from click.testing import CliRunner
from scipy import sparse

from attend import Data
from attend.cli import main
from attend.core.errors import Conflict
from attend.core.settings import UNFITTED
from attend.learning.encoders import FOLDS, RIDGE, SEED, fit_map, orthogonal_map
from attend.recommend.weights import ItemWeights
from attend.store.mapped import embedded_keys, mapped_ids
from attend.write import reindex as moves
from attend.write.build import WINDOW
from attend.write.reindex import reindex, rollback
from tests import warm
from tests.index.write.test_reindex import KILLER, contents, killed, learned, saved_model, teach

__all__ = ["killed"]  # a fixture, with the killer below

COUNT = 3 * WINDOW

SMALL = {"TEXTS": 400, "FEWEST_TEXTS": 300, "FEWEST_MAPPED": 500}
"""Collections that a test can encode are large enough for a map."""


class Stopped(Exception):
    """As a user presses Ctrl-C."""


def turned(folder, tokenizer, tiny_folder, noise):
    """A model with the space of the tiny one, turned and with some noise."""
    from sentence_transformers import SentenceTransformer

    before = SentenceTransformer(str(tiny_folder), device="cpu")[0].embedding.weight
    weights = before.detach().numpy()
    rng = np.random.default_rng(3)
    turn = np.linalg.qr(rng.standard_normal((weights.shape[1], weights.shape[1])))[0]
    moved = weights @ turn + noise * rng.standard_normal(weights.shape)
    return saved_model(folder, tokenizer, moved.astype(np.float32))


@pytest.fixture(scope="module")
def like(tmp_path_factory, tiny_tokenizer, tiny_encoder_folder):
    folder = tmp_path_factory.mktemp("like")
    return turned(folder, tiny_tokenizer, tiny_encoder_folder, noise=0.05)


@pytest.fixture(scope="module")
def unlike(tmp_path_factory, tiny_tokenizer):
    """A model that has nothing in common with the tiny one."""
    shape = (tiny_tokenizer.get_vocab_size(), 24)
    weights = np.random.default_rng(8).standard_normal(shape, dtype=np.float32)
    return saved_model(tmp_path_factory.mktemp("unlike"), tiny_tokenizer, weights)


@pytest.fixture(autouse=True)
def fewer(monkeypatch):
    for name, number in SMALL.items():
        monkeypatch.setattr(moves, name, number)


@pytest.fixture(scope="module")
def killer():
    lines = "".join(f"reindex.{name} = {number}\n" for name, number in SMALL.items())
    code = KILLER.replace("for line in sys.stdin:", f"{lines}for line in sys.stdin:")
    process = warm.start("-c", code, stdin=subprocess.PIPE, stderr=None)
    yield process
    process.stdin.close()
    process.wait(60)
    process.stdout.close()


WORDS = [f"{a}{b}{c}" for a in "bdgk" for b in "aeiou" for c in "lmnrst"]


def documents(count=COUNT):
    rng = np.random.default_rng(1)
    return [
        {"id": f"d{n}", "text": f"volume {n * 7919} {' '.join(rng.choice(WORDS, 6))}", "value": n}
        for n in range(count)
    ]


@pytest.fixture
def library(tmp_path, tiny_encoder_folder):
    data = Data(tmp_path / "library")
    data.create("books", encoder=str(tiny_encoder_folder)).upsert(documents())
    yield data
    data.close()


def keys(collection):
    """The bytes of all keys, by document."""
    stored = collection.page(limit=5000).documents
    rows = embedded_keys(collection.store, [document.row for document in stored])
    return {
        document.id: [(*key[:3], key.embedding.tobytes()) for key in rows[document.row]]
        for document in stored
    }


def plain(library, encoder, items=None):
    """The keys of a collection that never had another encoder."""
    collection = library.create("plain", encoder=encoder)
    collection.upsert(items or documents())
    built = keys(collection)
    library.drop("plain")
    return built


def stopping(stage, count=1, action=lambda: None):
    """A progress that stops at the nth report of a stage, after an action."""
    seen = []

    def on_stage(now, done):
        seen.append(now)
        if seen.count(stage) == count:
            action()
            raise Stopped

    return on_stage


def test_maps_are_those_of_linear_algebra():
    rng = np.random.default_rng(0)
    before = rng.standard_normal((600, 16))
    before /= np.linalg.norm(before, axis=1, keepdims=True)
    turn = np.linalg.qr(rng.standard_normal((16, 16)))[0]
    after = before @ turn
    np.testing.assert_allclose(orthogonal_map(before, after).matrix, turn, atol=1e-6)
    bent = after * np.linspace(0.2, 2.0, 16) + 0.2 + 0.5 * after**2
    bent /= np.linalg.norm(bent, axis=1, keepdims=True)
    for target, kind in ((after, "orthogonal"), (bent, "kernel")):
        best, recalls = fit_map(before.astype(np.float32), target.astype(np.float32), target[:100])
        assert best.kind == kind
    assert recalls["kernel"] > recalls["orthogonal"] + 0.05
    # The recall is that of brute force on keys that the map was not fitted on.
    mapped = np.empty_like(bent)
    folds = np.random.default_rng(SEED).permutation(600) % FOLDS
    for fold in range(FOLDS):
        train, out = folds != fold, folds == fold
        left, _, right = np.linalg.svd(before[train].T @ bent[train])
        turned = before @ (left @ right)
        kernel = np.exp(before @ before[train].T - 1)
        regularised = kernel[train] + RIDGE * np.eye(train.sum())
        correction = kernel @ np.linalg.inv(regularised) @ (bent - turned)[train]
        mapped[out] = (turned + correction)[out]
    mapped /= np.linalg.norm(mapped, axis=1, keepdims=True)
    hits = [
        len(set(np.argsort(-(keys @ query))[:10]) & set(np.argsort(-(bent @ query))[:10]))
        for keys, query in ((mapped, query) for query in bent[:100])
    ]
    assert abs(recalls["kernel"] - np.mean(hits) / 10) < 0.005
    # A text that it was fitted on has its own key again, but for the ridge.
    assert np.sum(best(before.astype(np.float32)) * bent, axis=1).min() > 0.999


def test_the_new_encoder_answers_before_the_texts_are_encoded(library, like, tiny_encoder_folder):
    books = library.collection("books")
    teach(books, 5)
    contents_before = contents(books)
    seen = {}

    def look():
        now = library.collection("books")
        seen["info"] = now.info()
        seen["hit"] = now.search("volume 7919 ", k=1).hits[0].id
        seen["contents"] = contents(now)
        texts = [" ".join(item["text"].split()[2:6]) for item in documents()[::20]]
        exact = plain(library, like)
        vectors = np.stack([np.frombuffer(own[0][3], np.float32) for own in exact.values()])
        recalls = []
        for query in now.encoder().encode_queries(texts):
            best = {list(exact)[place] for place in np.argsort(-(vectors @ query))[:10]}
            hits = now.search(query.tolist(), k=10, lexical=False).hits
            recalls.append(len(best & {hit.id for hit in hits}) / 10)
        seen["recall"] = np.mean(recalls)

    with pytest.raises(Stopped):
        reindex(library, "books", like, on_stage=stopping("encoding", action=look))
    info = seen["info"]
    assert info.encoder == like
    assert info.index["why"] == "all of the nearest are to be found"
    assert (info.bridge["pending"], info.bridge["answers"]) == (COUNT - WINDOW, True)
    assert info.bridge["encoder"] == str(tiny_encoder_folder)
    assert seen["hit"] == "d1"
    # A third of the texts is encoded, for all others the map has the recall that is reported.
    assert seen["recall"] > info.bridge["recall"] - 0.05
    assert seen["contents"] == contents_before
    result = reindex(library, "books", like)
    assert (result.switched, result.encoded) == (True, COUNT - WINDOW)
    assert result.bridge["answers"]
    assert result.bridge["seconds"] > 0
    after = library.collection("books")
    assert contents(after) == contents_before
    # At the end nothing of the bridge remains, and the keys are those of a plain build.
    assert after.info().bridge is None
    assert "bridge" not in after.store.settings()
    assert after.info().index["why"].startswith("fewer than")
    assert keys(after) == plain(library, like)
    assert rollback(library, "books").switched
    assert library.collection("books").settings.encoder == str(tiny_encoder_folder)


def test_what_searches_need_is_encoded_first(
    library, tmp_path, tiny_tokenizer, tiny_encoder_folder, monkeypatch
):
    monkeypatch.setattr(moves, "LEAST_RECALL", 0.1)
    other = turned(tmp_path / "other", tiny_tokenizer, tiny_encoder_folder, noise=0.6)
    books = library.collection("books")
    books.configure(log=True)
    rng = np.random.default_rng(2)
    texts = [" ".join(words) for words in rng.choice(WORDS, (15, 4))]
    shown = {hit.id for text in texts[:5] for hit in books.search(text).hits}
    exact = plain(library, other)
    vectors = np.stack([np.frombuffer(own[0][3], np.float32) for own in exact.values()])
    recalls, pending = [], []

    def look():
        now = library.collection("books")
        state = now.store.settings()["bridge"]
        pending.extend(mapped_ids(now.store, (state["after"], state["until"])))
        for query in now.encoder().encode_queries(texts):
            best = {list(exact)[place] for place in np.argsort(-(vectors @ query))[:10]}
            hits = now.search(query.tolist(), k=10, lexical=False).hits
            recalls.append(len(best & {hit.id for hit in hits}) / 10)
        logged = {search.query for search in now.log.latest(100)} - {None}
        assert logged == set(texts[:5])  # what is searched again is not logged

    with pytest.raises(Stopped):
        reindex(library, "books", other, on_stage=stopping("encoding", action=look))
    assert len(shown) > 20
    assert len(pending) == COUNT - WINDOW
    assert not shown & set(pending)
    assert np.mean(recalls[:5]) == 1.0
    assert np.mean(recalls[5:]) < 0.95


def test_a_map_that_misses_too_much_does_not_answer(library, unlike):
    seen = []

    def on_stage(stage, done):
        seen.append((stage, library.collection("books").settings.encoder))

    result = reindex(library, "books", unlike, on_stage=on_stage)
    assert result.switched
    assert not result.bridge["answers"]
    assert "below 0.7" in result.bridge["reason"]
    assert unlike not in {encoder for stage, encoder in seen if stage == "encoding"}
    assert keys(library.collection("books")) == plain(library, unlike)


def test_without_a_bridge_it_switches_at_the_end(library, like):
    seen = []
    result = reindex(
        library,
        "books",
        like,
        bridge=False,
        on_stage=lambda stage, done: seen.append(library.collection("books").settings.encoder),
    )
    assert (result.switched, result.bridge, result.encoded) == (True, None, COUNT)
    assert like not in seen[:-1]


def test_a_worse_encoder_does_not_answer_by_its_map(
    library, tmp_path, tiny_tokenizer, tiny_encoder_folder, monkeypatch
):
    monkeypatch.setattr("attend.collection.versions.UNFITTED_WORDS", UNFITTED)
    monkeypatch.setattr(moves, "LEAST_RECALL", 0.1)
    worse = turned(tmp_path / "worse", tiny_tokenizer, tiny_encoder_folder, noise=2.0)
    teach(library.collection("books"), 60)
    encoders = set()
    result = reindex(
        library,
        "books",
        worse,
        on_stage=lambda *_: encoders.add(library.collection("books").settings.encoder),
    )
    assert not result.switched
    assert not result.bridge["answers"]
    assert "60 held-out questions" in result.bridge["reason"]
    assert encoders == {str(tiny_encoder_folder)}
    spare = library.collection(result.spare)
    assert spare.info().bridge is None
    assert keys(spare) == plain(library, worse)


def test_what_is_proved_meanwhile_decides_at_the_end(
    library, tmp_path, tiny_tokenizer, tiny_encoder_folder, monkeypatch
):
    monkeypatch.setattr("attend.collection.versions.UNFITTED_WORDS", UNFITTED)
    monkeypatch.setattr(moves, "LEAST_RECALL", 0.1)
    worse = turned(tmp_path / "worse", tiny_tokenizer, tiny_encoder_folder, noise=2.0)
    stop = stopping("encoding", 2, lambda: teach(library.collection("books"), 60))
    with pytest.raises(Stopped):  # nothing could be compared when mapped keys began to answer
        reindex(library, "books", worse, on_stage=stop)
    books = library.collection("books")
    assert books.settings.encoder == worse
    books.upsert([{"id": "late", "text": "a late text"}])
    written = contents(books)
    result = reindex(library, "books", worse)
    assert not result.switched
    assert result.bridge["answers"]
    assert "60 held-out questions" in result.reason
    books = library.collection("books")
    assert books.settings.encoder == str(tiny_encoder_folder)
    assert contents(books) == written
    assert library.collection(result.spare).info().bridge is None


@pytest.mark.parametrize(
    ("stage", "count"), [("mapping", 1), ("mapping", 3), ("switching", 1), ("encoding", 2)]
)
def test_it_goes_on_wherever_it_stopped(library, like, stage, count):
    teach(library.collection("books"), 5)
    with pytest.raises(Stopped):
        reindex(library, "books", like, on_stage=stopping(stage, count))
    books = library.collection("books")
    # Writes between the two runs: new, changed, gone, and the same once more.
    items = documents()
    items[7] = {**items[7], "text": "quite another text"}
    items.append({"id": "new", "text": "a new text"})
    del items[9]
    books.upsert([items[7], items[-1], items[100]])
    books.delete(["d9"])
    written = contents(books)
    assert len(written[1]) == 5
    result = reindex(library, "books", like)
    assert result.switched
    after = library.collection("books")
    assert contents(after) == written
    assert keys(after) == plain(library, like, items)
    assert after.info().bridge is None


def test_a_killed_run_loses_nothing(library, like, killed):
    teach(library.collection("books"), 5)
    kept = contents(library.collection("books"))
    for moment in ("before", "after", 2):
        killed(like, moment)
        assert contents(library.collection("books")) == kept
    assert library.collection("books").settings.encoder == like
    result = reindex(library, "books", like)
    assert (result.switched, result.encoded) == (True, COUNT - 2 * WINDOW)
    assert contents(library.collection("books")) == kept
    assert keys(library.collection("books")) == plain(library, like)


def test_a_rollback_goes_back_in_the_middle(library, like, unlike, tiny_encoder_folder):
    with pytest.raises(Stopped):
        reindex(library, "books", like, on_stage=stopping("encoding"))
    books = library.collection("books")
    with pytest.raises(Conflict, match="on its way to"):
        reindex(library, "books", unlike)
    books.upsert([{"id": "new", "text": "a new text"}])
    written = contents(books)
    assert rollback(library, "books").switched
    books = library.collection("books")
    assert books.settings.encoder == str(tiny_encoder_folder)
    assert contents(books) == written
    # Forward again: what was encoded is not encoded again.
    result = reindex(library, "books", like)
    assert (result.switched, result.encoded) == (True, COUNT - WINDOW)
    after = library.collection("books")
    assert keys(after) == plain(library, like, [*documents(), {"id": "new", "text": "a new text"}])


def test_weights_between_documents_stay_while_texts_are_encoded(library, like):
    books = library.collection("books")
    order = sorted(books.store.rows_of([f"d{n}" for n in range(COUNT)]).values())
    weights = sparse.csr_array(([0.9, 0.5], ([5, 5], [9, 2])), shape=(COUNT, COUNT))
    items = ItemWeights.of(np.array(order), weights).packed()
    learned(books, "recommend", "interactions", {"items": items})
    best = []

    def on_stage(stage, done):
        now = library.collection("books")
        best.append([hit.id for hit in now.recommend(history=["d5"], k=2).hits])

    assert reindex(library, "books", like, on_stage=on_stage).switched
    on_stage("", 1)
    assert {tuple(ids) for ids in best} == {("d9", "d2")}


def test_what_was_learned_answers_until_the_end(library, like, tiny_encoder_folder):
    learned(library.collection("books"), "predict", "ratings")
    encoders = set()
    result = reindex(
        library,
        "books",
        like,
        on_stage=lambda stage, done: encoders.add(
            (stage, library.collection("books").settings.encoder)
        ),
    )
    assert result.switched
    assert not result.bridge["answers"]
    assert "What was learned answers until the end" in result.bridge["reason"]
    assert ("encoding", str(tiny_encoder_folder)) in encoders
    assert ("encoding", like) not in encoders
    assert len(result.left) == 1


def test_the_command_tells_of_the_map(library, like):
    def run(*arguments):
        command = ["reindex", "--data", str(library.folder), "--collection", "books", *arguments]
        return CliRunner().invoke(main, command, prog_name="attend")

    text = run("--encoder", like)
    assert text.exit_code == 0, text.stderr
    assert "Mapped keys answered after" in text.stdout
    assert "map, fitted on 400 texts" in text.stdout
    assert run("--rollback").exit_code == 0
    again = run("--encoder", like, "--no-bridge", "--json")
    assert json.loads(again.stdout)["bridge"] is None
