"""Learning from end to end: a real server over a socket, real trainings, and what can stop them.

What is to be learned is planted: half of each embedding says what a document is about, the other
half is as loud and says nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from attend import Data
from attend.collection.verify import verify
from attend.write.feedback import add_feedback
from tests.service.test_server import LIMIT, Server, running, wait_until_ready
from tests.workers import kill_all

DOCUMENTS, QUESTIONS, HALF = 200, 110, 8
PATH = "/v1/collections/planted"
ACTIVE = ("queued", "running")


class Planted(NamedTuple):
    """Documents (n, 2 h), questions (q, 2 h), and which document answers each question (q)."""

    documents: np.ndarray
    questions: np.ndarray
    answers: np.ndarray

    def rows(self) -> list[dict[str, Any]]:
        return [
            {"id": str(at), "vector": vector} for at, vector in enumerate(self.documents.tolist())
        ]

    def items(self, which: slice) -> list[dict[str, Any]]:
        pairs = zip(self.questions[which].tolist(), self.answers[which].tolist(), strict=True)
        return [{"query": vector, "id": str(answer), "label": 1} for vector, answer in pairs]


TAUGHT, HELD = slice(0, QUESTIONS), slice(QUESTIONS, None)


@pytest.fixture(scope="module")
def planted() -> Planted:
    random = np.random.default_rng(20170612)
    answers = random.integers(0, DOCUMENTS, QUESTIONS + 60)
    noise = random.standard_normal((DOCUMENTS + len(answers), HALF))
    meaning = random.standard_normal((DOCUMENTS, HALF))
    asked = meaning[answers] + 0.1 * random.standard_normal((len(answers), HALF))
    documents = np.hstack([meaning, noise[:DOCUMENTS]])
    return Planted(documents, np.hstack([asked, noise[DOCUMENTS:]]), answers)


@pytest.fixture
def folder(tmp_path: Path, planted: Planted) -> Path:
    """A data folder with the collection and its examples, as an earlier process left it."""
    data = Data(tmp_path)
    collection = data.create("planted", dimension=2 * HALF, scorer="cosine")
    collection.upsert(planted.rows())
    add_feedback(collection, planted.items(TAUGHT))
    data.close()
    return tmp_path


@pytest.fixture
def server(folder: Path) -> Iterator[Server]:
    with running(folder) as found:
        wait_until_ready(found)
        yield found


def ask(server: Server, method: str, path: str, body: Any = None, status: int = 200) -> Any:
    found, content = server.request(method, path, body)
    assert found == status, content
    return content


def right(server: Server, planted: Planted) -> float:
    """The share of questions, none of them taught, whose answer comes first."""
    items = planted.items(HELD)
    searches = {"searches": [{"query": item["query"], "k": 1} for item in items]}
    answers = ask(server, "POST", f"{PATH}/search/batch", searches)["answers"]
    pairs = zip(answers, items, strict=True)
    return float(np.mean([answer["hits"][0]["id"] == item["id"] for answer, item in pairs]))


def follow(server: Server, id: int, until: Callable[[Any], bool]) -> list[Any]:
    """What a job shows, again and again, up to the moment that is waited for."""
    shown = [ask(server, "GET", f"/v1/jobs/{id}")]
    deadline = time.monotonic() + LIMIT
    while not until(shown[-1]):
        assert time.monotonic() < deadline, shown[-1]
        time.sleep(0.05)
        shown.append(ask(server, "GET", f"/v1/jobs/{id}"))
    return shown


def is_over(job: Any) -> bool:
    return job["state"] not in ACTIVE


def is_under_way(job: Any) -> bool:
    assert not is_over(job), job
    return bool(job["progress"]["stage"] == "trying" and job["progress"]["fraction"] > 0)


def train(server: Server) -> int:
    return int(ask(server, "POST", f"{PATH}/train", {}, 202)["id"])


def standing(server: Server) -> tuple[Any, ...]:
    """All that a training may change."""
    versions = ask(server, "GET", f"{PATH}/projections")
    search = {"query": [1.0] * 2 * HALF, "k": 5}
    hits = ask(server, "POST", f"{PATH}/search", search)["hits"]
    info = ask(server, "GET", PATH)
    return versions, hits, info["questions"], info["examples"], info["projection"]


def test_from_feedback_to_better_answers_and_back(tmp_path: Path, planted: Planted) -> None:
    with running(tmp_path) as server:
        wait_until_ready(server)
        settings = {"dimension": 2 * HALF, "scorer": "cosine"}
        ask(server, "PUT", PATH, settings, 201)
        assert ask(server, "POST", f"{PATH}/documents", planted.rows())["added"] == DOCUMENTS
        taught = ask(server, "POST", f"{PATH}/feedback", planted.items(TAUGHT))
        assert taught == {"added": QUESTIONS, "replaced": 0, "examples": QUESTIONS}
        info = ask(server, "GET", PATH)
        assert (info["examples"], info["questions"]) == (QUESTIONS, QUESTIONS)
        before, search_before = right(server, planted), standing(server)[1]

        shown = follow(server, train(server), is_over)
        assert shown[-1]["state"] == "done", shown[-1]
        report = shown[-1]["result"]
        assert report["promoted"], report["reason"]
        done = [each["progress"]["fraction"] for each in shown]
        assert done == sorted(done)
        assert len(set(done)) > 3
        assert done[-1] == 1
        assert {"trying", "fitting"} & {each["progress"]["stage"] for each in shown}
        assert shown[-1]["progress"]["message"] == report["reason"]

        versions = ask(server, "GET", f"{PATH}/projections")
        assert versions["active"] == report["version"] == 2
        learned = versions["projections"][1]
        assert (learned["active"], learned["parent"]) == (True, 1)
        assert learned["report"]["after"]["ndcg@10"] > learned["report"]["before"]["ndcg@10"]
        assert right(server, planted) > before + 0.1
        found = ask(server, "POST", f"{PATH}/search", {"query": [1.0] * 2 * HALF})
        assert (found["projection"], found["calibrated"]) == (2, "examples")

        assert ask(server, "POST", f"{PATH}/projections/rollback") == {"projection": 1}
        assert right(server, planted) == before
        assert standing(server)[1] == search_before
        ask(server, "POST", f"{PATH}/projections/rollback", None, 409)
        assert server.stop() == 0


def test_a_cancelled_training_changes_nothing(
    server: Server, folder: Path, planted: Planted
) -> None:
    before = standing(server)
    id = train(server)
    follow(server, id, is_under_way)
    asked = ask(server, "DELETE", f"/v1/jobs/{id}", None, 202)
    assert asked["state"] == "running"
    job = follow(server, id, is_over)[-1]
    assert (job["state"], job["result"], job["problem"]) == ("cancelled", None, None)
    assert job["progress"]["message"] == "Cancelled; nothing was changed."
    assert standing(server) == before
    # The next one is taken in, and the server stops although it runs.
    follow(server, train(server), is_under_way)
    assert server.stop() == 0
    assert not verify(Data(folder).collection("planted")).problems


def test_a_server_killed_while_it_trains_loses_nothing(folder: Path) -> None:
    with running(folder) as server:
        wait_until_ready(server)
        before = standing(server)
        id = train(server)
        follow(server, id, is_under_way)
        kill_all(server.process)
    with running(folder) as server:
        wait_until_ready(server)
        job = follow(server, id, is_over)[-1]
        assert (job["state"], job["problem"]["type"]) == ("failed", "/docs#interrupted")
        assert "The server ended while this job ran." in job["progress"]["message"]
        assert f"POST {PATH}/train" in job["problem"]["detail"]
        assert standing(server) == before
        assert follow(server, train(server), is_over)[-1]["state"] == "done"
        assert server.stop() == 0
