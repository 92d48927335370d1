"""Feedback moves queries at once: against a loop of the formula, and gone when it is deleted."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from attend import Collection, Data
from attend.api.learning import TrainRequest
from attend.cli import main
from attend.core.errors import InvalidRequest
from attend.core.settings import UNTRAINED_MEMORY, Tuning
from attend.learning.data import active_version
from attend.learning.task import Task
from attend.projection import identity
from attend.search import feedback as memories
from tests import warm
from tests.index.helpers import several_keys, vector_data

WIDTH, DOCUMENTS, QUESTIONS = 8, 40, 90


def unit(vector: Any) -> np.ndarray:
    vector = np.asarray(vector, dtype=np.float64)
    return vector / np.linalg.norm(vector)


@pytest.fixture
def collection(tmp_path: Path) -> Iterator[Collection]:
    """Documents of one to three keys of length one, and no feedback."""
    rng = np.random.default_rng(3)
    data = vector_data(tmp_path)
    collection = data.create(dimension=WIDTH, normalize=True)
    collection.write(
        [
            several_keys(f"d{place}", rng.normal(size=(1 + place % 3, WIDTH)).tolist())
            for place in range(DOCUMENTS)
        ]
    )
    yield collection
    data.close()


def feedback(seed: int = 5, count: int = QUESTIONS) -> list[dict[str, Any]]:
    """Questions with one to three relevant documents of several labels, and one that is not."""
    rng = np.random.default_rng(seed)
    items = []
    for _ in range(count):
        query = rng.normal(size=WIDTH).tolist()
        ids = rng.choice(DOCUMENTS, 4, replace=False).tolist()
        labels = [*rng.integers(1, 4, rng.integers(1, 4)).tolist(), 0]
        items += [
            {"query": query, "id": f"d{id}", "label": float(label)}
            for id, label in zip(ids, labels, strict=False)
        ]
    return items


def keys_by_id(collection: Collection) -> dict[str, np.ndarray]:
    rows = collection.store.rows_of(sorted(collection.ids()))
    return {
        id: collection.store.own_keys(np.array([row])).vectors.astype(np.float64)
        for id, row in rows.items()
    }


def moved(
    collection: Collection, query: Sequence[float], items: Sequence[dict[str, Any]], alpha: float
) -> tuple[np.ndarray, list[float]]:
    """The moved query, and the shares of the questions in their order, by plain loops."""
    q, keys = unit(query), keys_by_id(collection)
    questions: dict[tuple[float, ...], list[dict[str, Any]]] = {}
    for item in items:
        questions.setdefault(tuple(item["query"]), []).append(item)
    cosines, moves = [], []
    for question, labels in questions.items():
        asked = unit(question)
        total, weight = np.zeros(WIDTH), 0.0
        for item in labels:
            if item["label"] > 0:
                best = max((unit(key) for key in keys[item["id"]]), key=lambda key: key @ asked)
                total, weight = total + item["label"] * best, weight + item["label"]
        cosines.append(float(q @ asked))
        moves.append(total / weight - asked)
    near = max(memories.LEAST_COSINE, sorted(cosines, reverse=True)[: memories.NEAREST][-1])
    logits = [memories.SCALE * cosine if cosine >= near else -np.inf for cosine in cosines]
    total = np.exp(memories.SCALE * memories.NULL_COSINE) + np.exp(logits).sum()
    shares = [float(np.exp(logit) / total) for logit in logits]
    towards = q + alpha * sum(share * move for share, move in zip(shares, moves, strict=True))
    return unit(towards) * np.linalg.norm(query), shares


def scores(collection: Collection, query: Any, **options: Any) -> dict[str, float]:
    answer = collection.search(query, k=DOCUMENTS, **options)
    return {hit.id: hit.score for hit in answer.hits}


def expected(collection: Collection, query: np.ndarray, scale: float = 20.0) -> dict[str, float]:
    return {id: scale * (keys @ query).max() for id, keys in keys_by_id(collection).items()}


@pytest.mark.parametrize("alpha", [None, 0.0, 0.3, 1.0])
def test_a_query_moves_as_the_formula_says(collection: Collection, alpha: float | None) -> None:
    items = feedback()
    collection.teach(items)
    query = unit(np.random.default_rng(7).normal(size=WIDTH)).tolist()
    strength = UNTRAINED_MEMORY if alpha is None else alpha
    towards, shares = moved(collection, query, items, strength)
    options = {} if alpha is None else {"memory": alpha}
    assert scores(collection, query, **options) == pytest.approx(
        expected(collection, towards), abs=1e-4
    )
    answer = collection.search(query, explain=True, **options)
    if not strength:
        assert answer.memory == []
        return
    assert answer.memory is not None
    named = [share.share for share in answer.memory]
    assert named == pytest.approx(sorted(shares, reverse=True)[: memories.SHOWN], abs=1e-5)


def test_an_explanation_takes_the_score_apart(collection: Collection) -> None:
    query = np.random.default_rng(9).normal(size=WIDTH).tolist()
    before = scores(collection, query)
    collection.teach(feedback())
    answer = collection.search(query, k=DOCUMENTS, explain=True)
    for hit in answer.hits:
        assert hit.explanation is not None
        apart = hit.explanation["dense"] + hit.explanation["lexical"]
        assert hit.score == pytest.approx(apart, abs=1e-9)
        unmoved = hit.explanation["dense"] - hit.explanation["memory"]
        assert unmoved == pytest.approx(before[hit.id], abs=1e-4)
    assert any(abs(hit.explanation["memory"]) > 0.1 for hit in answer.hits if hit.explanation)


def test_each_of_a_batch_is_told_what_moved_it_alone(collection: Collection) -> None:
    collection.teach(feedback())
    rng = np.random.default_rng(12)
    queries = [rng.normal(size=WIDTH).tolist() for _ in range(3)]
    many = collection.search_many([{"query": query, "explain": True} for query in queries])
    for query, answer in zip(queries, many, strict=True):
        told, alone = answer.memory, collection.search(query, explain=True).memory
        assert told is not None
        assert alone is not None
        assert [share.documents for share in told] == [share.documents for share in alone]
        shares = [share.share for share in alone]
        assert [share.share for share in told] == pytest.approx(shares, abs=1e-5)


def test_a_repeated_question_leads_to_its_answer(collection: Collection) -> None:
    query = unit(np.random.default_rng(11).normal(size=WIDTH)).tolist()
    ranks = list(scores(collection, query))
    last = ranks[-1]
    collection.teach([{"query": query, "id": last}])
    assert list(scores(collection, query)).index(last) < len(ranks) - 5
    answer = collection.search(query, explain=True)
    assert answer.memory is not None
    assert [(share.documents, share.query) for share in answer.memory] == [([last], None)]
    assert answer.memory[0].share == pytest.approx(1 / (1 + np.exp(-5)), abs=1e-5)


def test_what_is_taught_relabelled_and_deleted_counts_at_the_next_search(
    collection: Collection,
) -> None:
    query = unit(np.random.default_rng(13).normal(size=WIDTH)).tolist()
    seen = [scores(collection, query)]
    for items in (
        [{"query": query, "id": "d1"}],
        [{"query": query, "id": "d2"}],
        [{"query": query, "id": "d2", "label": 5}],  # the same examples, another label
        [{"query": query, "id": "d1", "label": -1}],
    ):
        collection.teach(items)
        after = scores(collection, query)
        assert after not in seen
        seen.append(after)
    collection.upsert([{"id": "d2", "vector": np.eye(WIDTH)[0].tolist()}])  # its example goes
    vanished = scores(collection, query)
    assert {id: score for id, score in vanished.items() if id != "d2"} == {
        id: score for id, score in seen[0].items() if id != "d2"
    }
    collection.teach([{"query": query, "id": "d3"}])
    assert scores(collection, query) != vanished
    collection.delete(["d3"])
    left = scores(collection, query)
    assert left == {id: score for id, score in vanished.items() if id != "d3"}
    collection.teach([{"query": query, "id": "d4"}])
    assert scores(collection, query) != left
    collection.store.delete_examples()
    assert scores(collection, query) == left


def test_a_query_that_is_like_no_question_stays(collection: Collection) -> None:
    around = np.eye(WIDTH)[0]
    rng = np.random.default_rng(15)
    items = [
        {"query": unit(around + 0.1 * rng.normal(size=WIDTH)).tolist(), "id": f"d{place}"}
        for place in range(20)
    ]
    query = (-around).tolist()
    before = scores(collection, query)
    collection.teach(items)
    assert scores(collection, query) == before
    assert collection.search(query, explain=True).memory == []
    assert scores(collection, around.tolist()) != pytest.approx(before, abs=1.0)


def test_documents_and_recommendations_are_not_moved(collection: Collection) -> None:
    mixture = {"mixture": [{"id": "d1"}, {"id": "d2"}]}
    queries = ({"id": "d1"}, {"ids": ["d1", "d2"]}, mixture)
    before = [scores(collection, query) for query in queries]
    recommended = collection.recommend(history=["d1"], k=5).json()["hits"]
    collection.teach(feedback())
    assert [scores(collection, query) for query in queries] == before
    assert collection.recommend(history=["d1"], k=5).json()["hits"] == recommended


def test_a_matrix_and_a_batch_have_the_scores_of_single_searches(collection: Collection) -> None:
    collection.teach(feedback())
    rng = np.random.default_rng(17)
    queries = [rng.normal(size=WIDTH).tolist(), {"id": "d3"}, rng.normal(size=WIDTH).tolist()]
    searches = [{"query": query, "k": DOCUMENTS, "exclude_self": False} for query in queries]
    single = [scores(collection, query, exclude_self=False) for query in queries]
    batch = [{hit.id: hit.score for hit in each.hits} for each in collection.search_many(searches)]
    matrix = collection.matrix(searches)
    for number in range(len(queries)):
        assert batch[number] == pytest.approx(single[number], abs=1e-4)
        row = dict(zip(matrix.documents, matrix.logits[number][0], strict=True))
        assert row == pytest.approx(single[number], abs=1e-4)


def test_a_trained_version_follows_its_own_tuning(collection: Collection) -> None:
    plain = identity(WIDTH)
    for tuning in (Tuning(scale=(20.0,)), Tuning(scale=(20.0,), memory=0.5)):
        collection.store.add_projection(
            plain.kind, plain.to_bytes(), plain.fingerprint, {}, tuning=tuning.stored()
        )
    query = np.random.default_rng(19).normal(size=WIDTH).tolist()
    before = scores(collection, query)
    collection.teach(feedback())
    assert collection.info().memory == UNTRAINED_MEMORY
    assert scores(collection, query, projection=2) == pytest.approx(before)
    moved_scores = scores(collection, query, projection=1)
    assert moved_scores != pytest.approx(before)
    assert scores(collection, query, projection=3) == pytest.approx(moved_scores)
    assert scores(collection, query, projection=2, memory=0.5) == pytest.approx(moved_scores)
    collection.activate(2)
    assert collection.info().memory == 0


@pytest.fixture
def popular(tmp_path: Path) -> Iterator[tuple[Collection, list[dict[str, Any]]]]:
    """Questions near their answers, each off in one direction; every second one asks for d0."""
    rng = np.random.default_rng(29)
    documents = np.hstack([np.zeros((DOCUMENTS, 1)), rng.normal(size=(DOCUMENTS, WIDTH - 1))])
    documents /= np.linalg.norm(documents, axis=1, keepdims=True)
    answers = np.arange(320) % DOCUMENTS * (np.arange(320) % 2)
    queries = documents[answers] + 3 * np.eye(WIDTH)[0] + 0.1 * rng.normal(size=(320, WIDTH))
    data = vector_data(tmp_path)
    collection = data.create(dimension=WIDTH, normalize=True)
    entries = [{"id": f"d{n}", "vector": vector} for n, vector in enumerate(documents.tolist())]
    collection.upsert(entries)
    pairs = zip(queries.tolist(), answers.tolist(), strict=True)
    yield collection, [{"query": query, "id": f"d{answer}"} for query, answer in pairs]
    data.close()


def test_feedback_that_harms_its_own_questions_moves_none(
    popular: tuple[Collection, list[dict[str, Any]]],
) -> None:
    collection, items = popular
    query = np.random.default_rng(31).normal(size=WIDTH).tolist()
    query[0] = 3.0
    before = scores(collection, query)
    collection.teach(items)
    assert scores(collection, query) == before
    assert collection.search(query, explain=True).memory == []
    info = collection.info()
    assert info.memory == 0
    assert info.hints is not None
    assert "Feedback moves no query" in info.hints[-1]
    task = Task(collection, TrainRequest())
    assert active_version(task).memory == 0  # what a training compares with
    # Who asks for it has it, and a version whose training has tested it.
    assert scores(collection, query, memory=0.5) != before
    plain, tuning = identity(WIDTH), Tuning(scale=(20.0,), memory=0.5)
    collection.store.add_projection(
        plain.kind, plain.to_bytes(), plain.fingerprint, {}, tuning=tuning.stored()
    )
    assert scores(collection, query, projection=2) != before
    collection.store.delete_examples()
    collection.teach(items[:90])  # too few to tell
    assert collection.info().memory == UNTRAINED_MEMORY
    assert scores(collection, query) != before


def test_feedback_that_helps_moves_queries(
    popular: tuple[Collection, list[dict[str, Any]]],
) -> None:
    collection, _ = popular
    rng = np.random.default_rng(33)
    for id, keys in keys_by_id(collection).items():
        queries = (np.roll(keys, 1) + 0.2 * rng.normal(size=(8, WIDTH))).tolist()
        collection.teach([{"query": query, "id": id} for query in queries])
    memory = memories.FeedbackMemory.of(collection.store)
    assert memory is not None
    assert memory.help is not None
    assert memory.help.mean() > 0.02
    assert memory.helps
    assert collection.info().memory == UNTRAINED_MEMORY
    assert collection.info().hints is None


def test_only_the_latest_questions_are_remembered(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memories, "MOST_QUESTIONS", 30)
    items = feedback()
    collection.teach(items)
    queries = list(dict.fromkeys(tuple(item["query"]) for item in items))
    latest = [item for item in items if tuple(item["query"]) in set(queries[-30:])]
    query = unit(np.random.default_rng(21).normal(size=WIDTH)).tolist()
    towards, _ = moved(collection, query, latest, UNTRAINED_MEMORY)
    assert scores(collection, query) == pytest.approx(expected(collection, towards), abs=1e-4)


def test_another_process_and_a_restart_have_it(collection: Collection, tmp_path: Path) -> None:
    query = unit(np.random.default_rng(23).normal(size=WIDTH)).tolist()
    before = scores(collection, query)
    script = (
        "import json, sys; from attend import Data; data = Data(sys.argv[1]); "
        "collection = data.collection(); collection.teach(json.loads(sys.argv[2])); data.close()"
    )
    items = [{"query": query, "id": "d7"}]
    warm.run("-c", script, tmp_path, json.dumps(items)).check_returncode()
    after = scores(collection, query)
    assert after != pytest.approx(before)
    again = Data(tmp_path)
    assert scores(again.collection(), query) == pytest.approx(after)
    again.close()


def test_the_command_line_names_what_moved_a_query_and_turns_it_off(
    collection: Collection, tmp_path: Path
) -> None:
    query = unit(np.random.default_rng(27).normal(size=WIDTH)).tolist()
    collection.teach([{"query": query, "id": "d7"}, {"query": query, "id": "d8"}])

    def searched(*options: str) -> str:
        arguments = ["search", json.dumps(query), "--data", str(tmp_path), *options]
        result = CliRunner().invoke(main, arguments, prog_name="attend")
        assert result.exit_code == 0, result.output
        return result.stdout

    assert searched().splitlines()[-1] == "moved by feedback: 0.993 a vector (d7, d8)"
    assert "moved" not in searched("--memory", "0")
    hits = json.loads(searched("--memory", "0.25", "--json"))["hits"]
    by_id = {hit["id"]: hit["score"] for hit in hits}
    assert by_id == pytest.approx({id: scores(collection, query, memory=0.25)[id] for id in by_id})


def test_a_strength_beyond_the_range_is_refused(collection: Collection) -> None:
    with pytest.raises(InvalidRequest, match="memory"):
        collection.search(np.eye(WIDTH)[0].tolist(), memory=1.5)


def test_questions_and_keys_of_other_lengths_move_the_direction_alone(tmp_path: Path) -> None:
    rng = np.random.default_rng(25)
    data = vector_data(tmp_path)
    collection = data.create(dimension=WIDTH, normalize=False)
    collection.write(
        [
            several_keys(f"d{place}", (3 * rng.normal(size=(2, WIDTH))).tolist())
            for place in range(DOCUMENTS)
        ]
    )
    items = feedback()
    collection.teach(items)
    query = (5 * rng.normal(size=WIDTH)).tolist()
    towards, _ = moved(collection, query, items, UNTRAINED_MEMORY)
    scale = collection.info().scale
    assert scores(collection, query) == pytest.approx(
        expected(collection, towards, scale), rel=1e-4, abs=1e-3
    )
    data.close()
