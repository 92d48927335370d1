"""Many keys on a Milvus server are searched by HNSW: before, while and after it is made, with
writes going on, against a product with all keys."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attend import Collection, Data
from attend.api.answers import Answer
from attend.collection.verify import verify
from attend.projection import Projection
from attend_milvus.graphs import EfPoint, KeyGraph
from attend_milvus.tables import Known, Tables
from tests.milvus.server import MilvusServer, wait_until
from tests.soak.client import Client, Server

DIMENSION, DOCUMENTS, EXACT_BELOW = 24, 12_000, 10_000
MADE_SECONDS = 300.0
"""Not how long it takes, but when to give up on a busy machine."""

RNG = np.random.default_rng(11)
KEYS = RNG.standard_normal((DOCUMENTS, DIMENSION)).astype(np.float32)
KEYS /= np.linalg.norm(KEYS, axis=1, keepdims=True)
QUESTIONS = RNG.standard_normal((100, DIMENSION)).astype(np.float32)
QUESTIONS /= np.linalg.norm(QUESTIONS, axis=1, keepdims=True)
SCALE = 20.0
"""Of embeddings of length one."""

PARTS = 100


def document(at: int) -> dict[str, Any]:
    payload = {"part": at % PARTS, "half": at % 2}
    return {"id": f"d{at}", "vector": KEYS[at].tolist(), "payload": payload}


@pytest.fixture(scope="module")
def library(milvus_server: MilvusServer) -> Iterator[Data]:
    data = Data(f"{milvus_server.engine}/graphs")
    yield data
    for name in data.names():
        data.drop(name)
    data.close()


@pytest.fixture(scope="module")
def collection(library: Data) -> Collection:
    """As many documents as are searched exactly, and then more."""
    made = library.create("many", dimension=DIMENSION, normalize=True, exact_below=EXACT_BELOW)
    for at in range(0, DOCUMENTS, 2000):
        write(made, range(at, at + 2000))
    return made


def write(collection: Collection, places: range) -> None:
    """Without what follows a write: the tests say when a table is made."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(collection), "merge_if_due", lambda self: None)
        collection.upsert([document(at) for at in places])


def share(answer: Answer, question: np.ndarray, places: np.ndarray) -> float:
    """Of the ten nearest among some documents; every score is that of the product."""
    scores = KEYS[places].astype(np.float64) @ question
    true = {f"d{places[at]}" for at in np.argsort(-scores)[:10]}
    for hit in answer.hits:
        if hit.id.startswith("d"):
            expected = SCALE * float(KEYS[int(hit.id[1:])].astype(np.float64) @ question)
            assert hit.score == pytest.approx(expected, abs=1e-4)
    return len(true & {hit.id for hit in answer.hits}) / len(true)


def mean_share(collection: Collection, places: np.ndarray, **options: Any) -> float:
    shares = []
    for question in QUESTIONS:
        answer = collection.search(question.tolist(), k=10, attend=10, **options)
        shares.append(share(answer, question, places))
    return float(np.mean(shares))


EVERY = np.arange(DOCUMENTS)


class Rewriting:
    """Documents that are written anew and deleted, again and again, from entering until leaving."""

    def __init__(self, collection: Collection) -> None:
        self._collection = collection
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.failed: list[str] = []

    def __enter__(self) -> Rewriting:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        rng, ids = np.random.default_rng(5), [f"live{at}" for at in range(20)]
        try:
            while not self._stop.is_set():
                vectors = rng.standard_normal((len(ids), DIMENSION)).tolist()
                self._collection.upsert(
                    [{"id": id, "vector": each} for id, each in zip(ids, vectors, strict=True)]
                )
                self._collection.delete(ids[::2])
                self._stop.wait(0.3)  # old keys stay for half a minute, and searches read past them
        except Exception as error:
            self.failed.append(repr(error))
            raise


def reads_its_writes(collection: Collection, question: np.ndarray) -> Answer:
    """A document nearer than all others is found from its writing until its deletion."""
    probe = {"id": "probe", "vector": question.tolist()}
    collection.upsert([probe])
    answer = collection.search(question.tolist(), k=40, attend=40)
    assert answer.hits[0].id == "probe"
    assert answer.hits[0].score == pytest.approx(SCALE, abs=1e-3)
    collection.delete(["probe"])
    after = collection.search(question.tolist(), k=40, attend=40)
    assert "probe" not in {hit.id for hit in after.hits}
    return after


class Interrupted(Exception):
    pass


def test_a_table_that_was_filled_in_part_answers_nothing(collection: Collection) -> None:
    views: Any = collection.views
    assert collection.info().index["kind"] == "flat"
    assert views.has_fresh()  # a build that ends here makes it

    def interrupt(stage: str, done: float) -> None:
        if stage == "keys" and done > 0.3:
            raise Interrupted

    with pytest.raises(Interrupted):
        views.publish(interrupt)
    asked = tables(collection)
    assert asked.known(fresh=True).layouts == {"raw_hnsw": (1, False)}
    assert 0 < asked.keys("raw_hnsw").count() < DOCUMENTS
    assert collection.search(QUESTIONS[0].tolist()).exact
    assert mean_share(collection, EVERY) == 1


def test_searches_are_right_while_the_table_is_made(collection: Collection) -> None:
    shares: list[float] = []
    with Rewriting(collection) as rewriting:

        def switched() -> bool:
            question = QUESTIONS[len(shares) % len(QUESTIONS)]
            answer = reads_its_writes(collection, question)
            shares.append(share(answer, question, EVERY))
            return not answer.exact or bool(rewriting.failed)

        made = wait_until(switched, MADE_SECONDS)
        assert rewriting.failed == []
        assert made
        for _ in range(30):
            assert switched()
    assert rewriting.failed == []
    assert all(each == 1 for each in shares[:-31])  # by the exact table
    assert np.mean(shares[-31:]) > 0.94
    collection.delete([f"live{at}" for at in range(20)])


def test_the_table_finds_what_it_promises(collection: Collection) -> None:
    told = collection.info().index
    assert (told["kind"], told["type"], told["target"]) == ("hnsw", "HNSW16", 0.95)
    assert told["exact"] is False
    assert told["measured_on"] == "keys"
    answer = collection.search(QUESTIONS[0].tolist(), k=10)
    assert (answer.exact, answer.recall) == (False, 0.95)
    assert mean_share(collection, EVERY) > 0.94
    assert mean_share(collection, EVERY, recall=0.99) > 0.98


def test_exact_is_to_be_had(collection: Collection) -> None:
    answer = collection.search(QUESTIONS[0].tolist(), k=10, recall=1)
    assert (answer.exact, answer.recall) == (True, None)
    assert mean_share(collection, EVERY, recall=1) == 1


def test_what_is_masked_is_not_found_and_the_recall_stays(collection: Collection) -> None:
    """Of a few that are masked HNSW finds what it finds of all."""
    first = collection.search(QUESTIONS[0].tolist(), k=10)
    masked = [hit.id for hit in first.hits[:3]]
    answer = collection.search(QUESTIONS[0].tolist(), k=10, mask={"exclude": masked})
    assert answer.exact is False
    found = [hit.id for hit in answer.hits]
    assert not set(found) & set(masked)
    assert len(set(found) & {hit.id for hit in first.hits[3:]}) >= 5


@pytest.mark.parametrize(("filter", "places"), [
    ({"part": 7}, EVERY[7::PARTS]),
    ({"part": {"lt": 10}}, EVERY[EVERY % PARTS < 10]),
    ({"half": 1}, EVERY[1::2]),
])  # fmt: skip
def test_behind_a_filter_all_is_found(
    collection: Collection, filter: dict[str, Any], places: np.ndarray
) -> None:
    assert mean_share(collection, places, filter=filter) == 1
    answer = collection.search(QUESTIONS[1].tolist(), k=10, filter=filter)
    assert (answer.exact, answer.recall) == (True, None)
    assert {int(hit.id[1:]) for hit in answer.hits} <= set(places.tolist())


def test_both_tables_have_the_same_keys(collection: Collection) -> None:
    """But for those before, which go later."""
    collection.publish(only_fresh=True)
    asked = tables(collection)
    raw, graph = (
        {row["key"] for row in table.query("key > 0", ["key"], 16_000, "strong")}
        for table in asked.of_keys(complete=True)
    )
    assert raw == graph
    assert len(raw) == DOCUMENTS
    assert verify(collection).problems == []


def test_another_target_is_measured_anew(collection: Collection) -> None:
    before = collection.info().index
    collection.configure(recall=0.999)
    assert collection.search(QUESTIONS[0].tolist()).recall in (None, 0.999)
    collection.publish(only_fresh=True)
    told = collection.info().index
    assert told["target"] == 0.999
    assert int(str(told["ef"])) > int(str(before["ef"]))
    assert mean_share(collection, EVERY) > 0.989
    collection.configure(recall=1.0)
    assert collection.search(QUESTIONS[0].tolist()).exact
    collection.configure(recall=0.95)
    collection.publish(only_fresh=True)
    assert collection.search(QUESTIONS[0].tolist()).recall == 0.95


def test_a_promotion_that_folds_is_measured_and_moves_no_key(collection: Collection) -> None:
    w_q, w_k = np.random.default_rng(4).standard_normal((2, 1, 12, DIMENSION))
    made = Projection(kind="given", d_in=DIMENSION, gates=np.ones(1), w_q=w_q, w_k=w_k)
    before = tables(collection).of_keys()
    version = collection.add_projection(made)
    collection.activate(version)
    assert tables(collection).of_keys() == before
    found = []
    for question in QUESTIONS:
        answer = collection.search(question.tolist(), k=10, attend=10)
        assert (answer.exact, answer.projection) == (False, version)
        scores = KEYS @ w_k[0].T @ (w_q[0] @ question)
        true = {f"d{at}" for at in np.argsort(-scores)[:10]}
        found.append(len(true & {hit.id for hit in answer.hits}) / 10)
    assert np.mean(found) > 0.94
    assert collection.rollback() == 1
    assert collection.search(QUESTIONS[0].tolist()).recall == 0.95


def test_other_processes_and_later_ones_search_by_it(
    collection: Collection, milvus_server: MilvusServer, tmp_path: Path
) -> None:
    """Services that are killed and started again."""
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        engine = f"{milvus_server.engine}/graphs"
        server = Server(folder, folder / "log", "service", "--engine", engine)
        try:
            with closing(Client(server.address)) as client:
                told = client.ask("GET", "/v1/collections/many")["index"]
                assert (told["kind"], told["exact"]) == ("hnsw", False)
                asked = {"query": QUESTIONS[0].tolist(), "k": 10}
                answer = client.ask("POST", "/v1/collections/many/search", asked)
                assert (answer["exact"], answer["recall"]) == (False, 0.95)
                exact = client.ask("POST", "/v1/collections/many/search", {**asked, "recall": 1})
                assert exact["exact"]
        finally:
            server.kill()


def test_a_search_takes_the_least_ef_that_found_enough() -> None:
    points = (EfPoint(24, 0.9), EfPoint(32, 0.96), EfPoint(64, 0.99), EfPoint(96, 1.0))
    graph = KeyGraph("raw_hnsw", points, 0.95, {})
    assert graph.point() == points[1]
    assert graph.point(0.9) == points[0]
    assert graph.point(0.97) == points[2]
    assert graph.point(0.999) == points[3]
    assert graph.point(1.0) is None  # a sample that found all is no proof
    assert KeyGraph("raw_hnsw", points[:3], 0.95, {}).point(0.999) is None
    assert [graph.promises(each) for each in (None, 0.9, 0.97, 1.0)] == [0.95, 0.9, 0.97, 1.0]


def test_collections_of_before_have_no_graphs() -> None:
    known = Known(
        "c", "u", {}, (1,), {"raw_hnsw": (1, True)}, 2, {"1": {"points": [[24, 0.9, 0.8]]}}
    )
    assert Known.of(known.body()) == known
    body = json.loads(known.body())
    del body["graphs"]
    assert Known.of(json.dumps(body)).graphs == {}


def tables(collection: Collection) -> Tables:
    return collection.store._tables  # type: ignore[attr-defined,no-any-return]
