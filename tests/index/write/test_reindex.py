"""Another encoder for a collection in use: nothing is lost, and a rollback goes back."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from dataclasses import fields

import numpy as np
import pytest
from click.testing import CliRunner
from scipy import sparse

from attend import Data
from attend.cli import main
from attend.core.errors import CollectionExists, Conflict, InvalidRequest, Replaced
from attend.core.liking import Liking
from attend.core.settings import UNFITTED
from attend.projection import identity
from attend.recommend.weights import ItemWeights
from attend.store import Interaction, NewExample, Question
from attend.write.build import WINDOW
from attend.write.reindex import reindex, rollback
from tests import warm
from tests.index.helpers import vector_data

WIDTH = 16


def saved_model(folder, tokenizer, weights):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    model = SentenceTransformer(modules=[StaticEmbedding(tokenizer, weights)], device="cpu")
    model.save_pretrained(str(folder), create_model_card=False)
    return str(folder)


@pytest.fixture(scope="module")
def narrow(tmp_path_factory, tiny_tokenizer):
    """Another model, of another width."""
    shape = (tiny_tokenizer.get_vocab_size(), WIDTH)
    weights = np.random.default_rng(5).standard_normal(shape, dtype=np.float32)
    return saved_model(tmp_path_factory.mktemp("narrow"), tiny_tokenizer, weights)


@pytest.fixture(scope="module")
def blunt(tmp_path_factory, tiny_tokenizer):
    """A model that hardly tells one text from another."""
    shape = (tiny_tokenizer.get_vocab_size(), 2)
    weights = np.random.default_rng(6).uniform(0.9, 1.0, shape).astype(np.float32)
    return saved_model(tmp_path_factory.mktemp("blunt"), tiny_tokenizer, weights)


def documents(count=60):
    return [
        {"id": f"d{n}", "text": f"volume {n * 7919} at {n}", "value": n, "payload": {"n": n}}
        for n in range(count)
    ]


@pytest.fixture
def library(tmp_path, tiny_encoder_folder):
    data = Data(tmp_path / "library")
    collection = data.create("books", encoder=str(tiny_encoder_folder))
    collection.upsert(documents())
    collection.store.add_interactions(
        [Interaction("ann", "d3", 4.5, 10.0), Interaction("bob", "d7", None, None)]
    )
    yield data
    data.close()


def teach(collection, count):
    """Questions that name the number of a document."""
    texts = [f"volume {n * 7919}" for n in range(count)]
    embeddings = collection.encoder().encode_queries(texts)
    questions = [Question(*pair) for pair in zip(texts, embeddings, strict=True)]
    collection.store.add_examples(
        questions, [NewExample(n, f"d{n}", 1.0, None, "clicks") for n in range(count)]
    )


def contents(collection):
    """Everything that stays, by the callers' ids."""
    store = collection.store
    page = collection.page(limit=1000).documents
    examples = [tuple(vars_of(example)[1:]) for example in store.latest_examples(1000)]
    interactions = store.interaction_page((0, 0), 1000)[0]
    return [document[1:] for document in page], examples, sorted(map(repr, interactions))


def vars_of(example):
    return [getattr(example, field.name) for field in fields(example)]


def test_everything_stays_but_the_encoder(library, narrow, tiny_encoder_folder):
    before = library.collection("books")
    teach(before, 5)
    kept = contents(before)
    result = reindex(library, "books", narrow)
    after = library.collection("books")
    assert result.switched
    assert "20 are the fewest" in result.reason
    assert (result.documents, result.encoded, result.examples, result.interactions) == (
        60,
        60,
        5,
        2,
    )
    assert (after.settings.encoder, after.settings.dimension) == (narrow, WIDTH)
    assert contents(after) == kept
    assert after.search("volume 7919 at 1", k=1).hits[0].id == "d1"
    # The one before is there, and nobody writes to it by mistake.
    spare = library.collection(result.spare)
    assert spare.settings.encoder == str(tiny_encoder_folder)
    with pytest.raises(Conflict, match="replaced"):
        spare.upsert([{"id": "late", "text": "too late"}])
    # It comes back with what was written since, and goes again without an encoding.
    after.upsert([{"id": "new", "text": "a new text"}])
    after.delete(["d0"])
    after.revise("d1", {"value": "one"})
    written = contents(after)
    back = rollback(library, "books")
    assert (back.switched, back.encoded) == (True, 1)
    again = library.collection("books")
    assert again.settings.encoder == str(tiny_encoder_folder)
    assert contents(again) == written
    assert reindex(library, "books", narrow).encoded == 0
    assert contents(library.collection("books")) == written


def test_an_alias_leads_on(library, narrow):
    library.set_alias("live", "books")
    reindex(library, "live", narrow)
    assert library.aliases() == {"live": "books"}
    assert library.collection("live").settings.encoder == narrow


def test_the_promotion_test_decides(library, blunt, tiny_encoder_folder, monkeypatch):
    # Words alone would answer every question.
    monkeypatch.setattr("attend.collection.versions.UNFITTED_WORDS", UNFITTED)
    teach(library.collection("books"), 40)
    worse = reindex(library, "books", blunt)
    assert not worse.switched
    assert "loses on" in worse.reason
    assert worse.comparison["mix"]["after"] < worse.comparison["mix"]["before"]
    assert library.collection("books").settings.encoder == str(tiny_encoder_folder)
    with pytest.raises(Conflict, match="no encoder to go back to"):
        rollback(library, "books")
    forced = reindex(library, "books", blunt, force=True)
    assert (forced.switched, forced.encoded) == (True, 0)
    assert library.collection("books").settings.encoder == blunt
    better = reindex(library, "books", str(tiny_encoder_folder))
    # To the blunt model all questions are one.
    assert (better.switched, better.encoded) == (True, 0)
    assert "could not be compared" in better.reason


def test_writes_and_searches_go_on_while_it_runs(library, narrow):
    stop, failures, written = threading.Event(), [], []

    def write():
        number = 0
        while not stop.is_set():
            number += 1
            try:
                library.collection("books").upsert([{"id": f"w{number}", "text": f"text {number}"}])
                written.append(f"w{number}")
            except Conflict:  # at the switch: its sentence says to write again
                number -= 1
            except Exception as error:
                failures.append(error)

    def search():
        while not stop.is_set():
            try:
                assert library.collection("books").search("volume 7919 at 1", k=3).hits
            except Replaced:
                pass  # between the name and the search; a server asks again by the name
            except Exception as error:
                failures.append(error)

    threads = [threading.Thread(target=target) for target in (write, search)]
    for thread in threads:
        thread.start()
    try:
        reindex(library, "books", narrow)
        rollback(library, "books")
        reindex(library, "books", narrow)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert failures == []
    after = library.collection("books")
    assert after.settings.encoder == narrow
    lost = set(written) - after.ids()
    assert written
    assert not lost


KILLER = """
import os, signal, sys
import sentence_transformers.sentence_transformer.modules
from attend import Data
from attend.write import reindex
def kill(*_):
    os.kill(os.getpid(), signal.SIGKILL)
def move(folder, encoder, moment):
    windows = []
    def on_stage(stage, done):
        windows.extend([done] * (stage == "encoding"))
        if moment == str(len(windows)):
            kill()
    exchange = Data.exchange
    if moment == "before":
        Data.exchange = kill
    if moment == "after":
        Data.exchange = lambda *names: kill(exchange(*names))
    if encoder == "back":
        reindex.rollback(Data(folder), "books", on_stage=on_stage)
    else:
        reindex.reindex(Data(folder), "books", encoder, on_stage=on_stage)
for line in sys.stdin:
    child = os.fork()  # nothing was computed here: the imports alone are shared
    if not child:
        move(*line.split())
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def killer():
    process = warm.start("-c", KILLER, stdin=subprocess.PIPE, stderr=None)
    yield process
    process.stdin.close()
    process.wait(60)
    process.stdout.close()


@pytest.fixture
def killed(killer, library):
    """Kill a move to an encoder, or "back": after some windows of documents, before the folders
    change their names, or after."""

    def run(encoder, moment):
        library.close_collections()
        print(library.folder, encoder, moment, file=killer.stdin, flush=True)
        assert int(killer.stdout.readline()) == -signal.SIGKILL

    return run


def test_a_killed_run_goes_on_where_it_stopped(library, narrow, killed, tiny_encoder_folder):
    collection = library.collection("books")
    count = 3 * WINDOW
    collection.upsert(documents(count))
    kept = contents(collection)
    killed(narrow, 2)
    assert contents(library.collection("books")) == kept
    result = reindex(library, "books", narrow)
    assert result.encoded == count - 2 * WINDOW
    assert result.switched
    after = library.collection("books")
    assert contents(after) == kept
    # The way back as well.
    after.upsert([{"id": f"new{n}", "text": f"new {n}"} for n in range(3 * WINDOW)])
    kept = contents(after)
    killed("back", 5)
    assert library.collection("books").settings.encoder == narrow
    assert contents(library.collection("books")) == kept
    result = rollback(library, "books")
    assert result.encoded == WINDOW
    assert library.collection("books").settings.encoder == str(tiny_encoder_folder)
    assert contents(library.collection("books")) == kept


def test_a_switch_that_is_killed_is_made_or_not(library, narrow, killed, tiny_encoder_folder):
    kept = contents(library.collection("books"))
    killed(narrow, "before")
    books = library.collection("books")
    assert books.settings.encoder == str(tiny_encoder_folder)
    books.upsert([{"id": "late", "text": "late"}])
    books.delete(["late"])
    killed(narrow, "after")
    assert library.collection("books").settings.encoder == narrow
    assert contents(library.collection("books")) == kept
    with pytest.raises(Replaced):
        library.collection("books-spare").upsert([{"id": "late", "text": "too late"}])
    killed("back", "after")
    assert library.collection("books").settings.encoder == str(tiny_encoder_folder)
    assert contents(library.collection("books")) == kept
    with pytest.raises(Replaced):
        library.collection("books-spare").upsert([{"id": "late", "text": "too late"}])


class Stopped(Exception):
    """As an encoder fails, or the user presses Ctrl-C."""


def test_a_rollback_can_be_repeated_wherever_it_stopped(library, narrow, tiny_encoder_folder):
    reindex(library, "books", narrow)
    library.collection("books").upsert(documents(70))
    kept = contents(library.collection("books"))
    for stage in ("encoding", "switching"):

        def stop(now, done, stage=stage):
            if now == stage:
                raise Stopped

        with pytest.raises(Stopped):
            rollback(library, "books", on_stage=stop)
        assert contents(library.collection("books")) == kept
        if stage == "encoding":
            assert library.collection("books").settings.encoder == narrow
            assert rollback(library, "books").switched
        assert library.collection("books").settings.encoder == str(tiny_encoder_folder)
        reindex(library, "books", narrow)


def test_an_empty_collection_of_that_name_becomes_the_spare_one(library, narrow):
    library.create("books-spare", encoder=narrow)  # as a run leaves it that was killed so early

    def stop(stage, done):
        raise Stopped

    with pytest.raises(Stopped):
        reindex(library, "books", narrow, on_stage=stop)
    assert reindex(library, "books", narrow).switched


def test_settings_stay_and_come_back(library, narrow):
    books = library.collection("books")
    books.store.add_interactions([], liking=Liking(4.5))
    books.configure(recall=0.9, values="number")
    books.store.put_settings({"mapping": ["a", "b"]})
    books.publish()
    reindex(library, "books", narrow)
    after = library.collection("books")
    assert after.store.liking() == Liking(4.5, "set")
    assert after.store.settings()["mapping"] == ["a", "b"]
    assert (after.settings.recall, after.settings.values) == (0.9, "number")
    assert after.settings.dimension == WIDTH
    after.store.add_interactions([], liking=Liking())
    after.configure(recall=0.8)
    rollback(library, "books")
    again = library.collection("books")
    assert again.store.liking().source == "data"
    assert (again.settings.recall, again.settings.values) == (0.8, "number")
    assert again.store.settings()["uuid"] != after.store.settings()["uuid"]
    assert again.search("volume 7919 at 1", k=1).hits[0].id == "d1"


def test_the_log_of_searches_goes_along_and_comes_back(library, narrow):
    books = library.collection("books")
    books.configure(log=True)
    books.delete(["d0"])
    books.upsert([{"id": "d0", "text": "volume 0 at 0"}])  # rows are others in the new collection
    shown = [books.search(f"volume {n * 7919} at {n}", k=3) for n in range(4)]
    hits = [hit.id for hit in shown[0].hits]
    books.used(shown[0].search, hits[:1], source="ann")
    reindex(library, "books", narrow)
    after = library.collection("books")
    after.used(shown[1].search, [shown[1].hits[2].id])
    assert (after.info().searches, after.info().used) == (4, 2)
    first = after.searches().items[-1]
    assert (first.search, first.projection) == (shown[0].search, 0)
    assert [hit.id for hit in first.hits] == hits
    assert [hit.used for hit in first.hits] == [1.0, None, None]
    assert after.log.latest(9, judged=True)[-1].source == "ann"
    assert library.collection("books-spare").searches().items == []  # each is kept once
    later = after.search("volume", k=2)
    after.delete([hits[1]])
    rollback(library, "books")
    again = library.collection("books")
    again.used(later.search, [later.hits[0].id])
    again.used(shown[2].search, [])
    assert (again.info().searches, again.info().used) == (5, 4)
    first = again.searches().items[-1]
    assert [hit.id for hit in first.hits] == [hits[0], hits[2]]
    assert [hit.rank for hit in first.hits] == [1, 3]
    assert library.collection("books-spare").searches().items == []


def test_a_log_moves_after_it_was_switched_off_and_versions_are_not_mistaken(library, narrow):
    books = library.collection("books")
    books.configure(log=True)
    number = learned(books, "search", "ranking")
    books.configure(interleave=[1, number])
    answer = books.search("volume", k=2)
    books.configure(interleave=None)
    books.configure(log=False)
    books.store.put_settings({"rolled_back": {"1": "Worse."}})
    reindex(library, "books", narrow, force=True)
    after = library.collection("books")
    assert after.used(answer.search, [answer.hits[0].id]).used == 1
    assert after.searches().items[0].interleaved is None
    assert not after.projections()[0].evidence.rolled_back


def learned(collection, role, objective, terms=None):
    """Store and activate a version as a training would; return its number."""
    projection = identity(collection.settings.dimension)
    number = collection.store.add_projection(
        projection.kind,
        projection.to_bytes(),
        projection.fingerprint,
        {"learned": True},
        tuning={"scale": [0.01]},
        report={"chosen": {"objective": objective, "recipe": "none"}},
        terms=terms,
        role=role,
    )
    collection.activate(number)
    return number


def test_versions_of_an_encoder_are_left_by_name_and_weights_between_documents_stay(
    library, narrow, tiny_encoder_folder
):
    reindex(library, "books", narrow)
    rollback(library, "books")
    books = library.collection("books")
    books.delete(["d5"])
    books.upsert([documents()[5]])  # its row is the last one here, and another there
    rows = books.store.rows_of([f"d{n}" for n in range(60)])
    order = sorted(rows.values())
    said = {("d5", "d9"): 0.9, ("d5", "d2"): 0.5, ("d9", "d5"): 0.7}
    cells = np.array([[order.index(rows[id]) for id in pair] for pair in said]).T
    weights = sparse.csr_array((list(said.values()), cells), shape=(60, 60))
    items = ItemWeights.of(np.array(order), weights).packed()
    learned(books, "recommend", "interactions", {"items": items})
    learned(books, "search", "ranking")
    number = learned(books, "predict", "ratings")
    best = books.recommend(history=["d5"], k=2).hits
    assert [hit.id for hit in best] == ["d9", "d2"]
    result = reindex(library, "books", narrow)
    after = library.collection("books")
    assert [hit.id for hit in after.recommend(history=["d5"], k=2).hits] == ["d9", "d2"]
    assert after.recommend(history=["d9"], k=1).hits[0].id == "d5"
    assert len(result.left) == 2
    assert (
        f"Version {number} (predict) is for embeddings of {tiny_encoder_folder}" in result.left[1]
    )
    assert "'attend train --objective ranking' learns it again" in result.left[0]
    # Back again all of them answer, and none is carried a second time.
    rollback(library, "books")
    books = library.collection("books")
    assert books.store.active("predict").version == number
    versions = len(after.projections())
    reindex(library, "books", narrow)
    assert len(library.collection("books").projections()) == versions


def test_what_cannot_be_encoded_is_refused(tmp_path, library, narrow, tiny_encoder_folder):
    with pytest.raises(InvalidRequest, match="already"):
        reindex(library, "books", str(tiny_encoder_folder))
    vectors = vector_data(tmp_path / "vectors")
    vectors.create("points", dimension=2)
    with pytest.raises(InvalidRequest, match="vectors of its own"):
        reindex(vectors, "points", narrow)
    library.create("books-spare", encoder=narrow).upsert(documents(1))
    with pytest.raises(CollectionExists, match="its name is needed"):
        reindex(library, "books", narrow)
    books = library.collection("books")
    books.upsert([{"id": "own", "text": "x", "vector": [1.0] * books.settings.dimension}])
    with pytest.raises(InvalidRequest, match="1 documents of 'books' bring vectors"):
        reindex(library, "books", narrow)


def test_the_command_switches_and_goes_back(library, blunt, narrow):
    def run(*arguments):
        command = ["reindex", "--data", str(library.folder), "--collection", "books", *arguments]
        return CliRunner().invoke(main, command, prog_name="attend")

    teach(library.collection("books"), 40)
    refused = run("--encoder", blunt)
    assert refused.exit_code == 1
    assert "still answers with" in refused.stdout
    forced = run("--encoder", blunt, "--force", "--json")
    assert forced.exit_code == 0, forced.stderr
    assert json.loads(forced.stdout)["switched"] is True
    back = run("--rollback")
    assert back.exit_code == 0, back.stderr
    assert "goes back" in back.stdout
    for wrong in ((), ("--rollback", "--encoder", narrow), ("--rollback", "--force")):
        assert run(*wrong).exit_code == 2
