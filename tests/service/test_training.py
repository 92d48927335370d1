"""Learning over HTTP: feedback, trainings, and the versions that come of them."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flask.testing import FlaskClient

from attend import Data
from attend.core.types import Float32
from attend.projection import pca
from attend_service.jobs import Jobs
from tests.service.conftest import LIMIT, SlowTrainer
from tests.service.test_api import get, post
from tests.service.test_jobs import reached
from tests.service.test_server import running, wait_until_ready
from tests.workers import kill_all

BOOKS = "/v1/collections/books"
FEEDBACK = f"{BOOKS}/feedback"
PROJECTIONS = f"{BOOKS}/projections"


def item(id: str = "whale", **fields: Any) -> dict[str, Any]:
    return {"query": {"vector": [1, 0, 0.5]}, "id": id, **fields}


def delete(client: FlaskClient, path: str, body: Any = None, status: int = 200) -> Any:
    response = client.delete(path, json=body)
    assert response.status_code == status, response.text
    return response.get_json()


# -- feedback -----------------------------------------------------------------------------------


def counts(relevant: int) -> dict[str, int]:
    """Return what is counted where each judgement is of a query of its own, and relevant."""
    return {"examples": relevant, "questions": relevant, "relevant": relevant, "needed": 20}


@pytest.mark.parametrize(
    "body",
    [item(label=1), [item(label=1)], {"items": [item(label=1)]}],
    ids=["one", "list", "items"],
)
def test_feedback_in_three_forms(books: FlaskClient, body: Any) -> None:
    assert get(books, FEEDBACK) == counts(0)
    assert post(books, FEEDBACK, body) == {"added": 1, "replaced": 0, "examples": 1}
    assert get(books, FEEDBACK) == counts(1)


def test_feedback_lands_in_the_table_of_examples(books: FlaskClient, data: Data) -> None:
    other = {"query": [0, 0, 1], "id": "emma", "label": -2.5, "source": "panel"}
    body = [
        item(label=True, position=3),
        item("emma", label=False),
        other,
    ]
    assert post(books, FEEDBACK, body) == {"added": 3, "replaced": 0, "examples": 3}
    learned = data.collection("books").store.examples()
    np.testing.assert_array_equal(learned.weights, [1, 0, -2.5])
    np.testing.assert_array_equal(learned.positions, [3, 0, 0])
    np.testing.assert_array_equal(learned.questions, [0, 0, 1])
    np.testing.assert_array_equal(learned.embeddings, [[1, 0, 0.5], [0, 0, 1]])
    again = [item(label=2), item("https://x.example//a/b", label=1)]
    assert post(books, FEEDBACK, again) == {"added": 1, "replaced": 1, "examples": 4}
    weights = data.collection("books").store.examples().weights
    assert sorted(weights) == [-2.5, 0, 1, 2]


def test_feedback_by_text(tiny_encoder_folder: Any, client: FlaskClient, data: Data) -> None:
    client.put("/v1/collections/texts", json={"encoder": str(tiny_encoder_folder)})
    documents = [{"id": "a", "text": "a white whale"}]
    post(client, "/v1/collections/texts/documents", documents)
    said = {"query": "moby dick", "id": "a", "label": 1}
    post(client, "/v1/collections/texts/feedback", said)
    learned = data.collection("texts").store.examples()
    assert learned.texts == ["moby dick"]
    assert learned.embeddings.shape == (1, 32)


WRONG: list[tuple[Any, int, list[str]]] = [
    ([item(label=1), item(label="good")], 422, ["items.1.label"]),
    ([item(label=1), item(label=None)], 422, ["items.1.label"]),
    ([{"id": "whale", "label": 1}], 422, ["items.0.query"]),
    ([item(label=1, position=0)], 422, ["items.0.position"]),
    ([item(label=1, colour="red")], 422, ["items.0.colour"]),
    ([item(label=1), {"query": [1, 0], "id": "emma", "label": 1}], 422, ["items.1.query"]),
    ([item(label=1), {"query": "words", "id": "emma", "label": 1}], 422, ["items.1.query"]),
    ([item(label=1), item("nobody", label=1), item("nil", label=0)], 404, ["items.1.id"]),
    ([item("nobody", label=1), item(label="good")], 422, ["items.1.label"]),
    ([{"query": {"id": "emma"}, "id": "whale"}], 422, ["items.0.query"]),
    ([{"query": " ", "id": "whale"}], 422, ["items.0.query"]),
    ({"items": 3}, 422, ["items"]),
    ({}, 422, ["items.0.query", "items.0.id"]),
    ([item(label=1)] * 10_001, 422, ["items"]),
]


@pytest.mark.parametrize(("body", "status", "fields"), WRONG, ids=[str(at) for at in range(14)])
def test_wrong_feedback_names_itself_and_nothing_is_taken(
    books: FlaskClient, data: Data, body: Any, status: int, fields: list[str]
) -> None:
    books.application.config["MAX_CONTENT_LENGTH"] = 2**26
    problem = post(books, FEEDBACK, body, status)
    found = [error["field"] for error in problem["errors"]]
    assert all(any(each.startswith(field) for each in found) for field in fields), found
    assert get(books, FEEDBACK)["examples"] == 0


def test_feedback_that_no_json_can_hold(books: FlaskClient) -> None:
    raw = json.dumps(item(label=float("nan")))
    assert books.post(FEEDBACK, data=raw, content_type="application/json").status_code == 400


def test_feedback_is_listed_page_by_page_the_newest_first(books: FlaskClient) -> None:
    said = [{"query": [0, 1, at], "id": "emma", "label": at, "position": 3} for at in range(5)]
    post(books, FEEDBACK, said)
    first = get(books, f"{FEEDBACK}?limit=3")
    assert [each["label"] for each in first["items"]] == [4, 3, 2]
    assert first["items"][0]["document"] == "emma"
    assert (first["items"][0]["query"], first["items"][0]["position"]) == (None, 3)
    rest = get(books, f"{FEEDBACK}?limit=3&before={first['next']}")
    assert [each["label"] for each in rest["items"]] == [1, 0]
    assert rest["next"] is None
    assert get(books, f"{FEEDBACK}?limit=2&before={rest['items'][0]['id'] + 1}")["next"] is None
    assert get(books, FEEDBACK).keys() == counts(0).keys()


def test_feedback_is_deleted_by_document_and_by_its_own_id(books: FlaskClient, data: Data) -> None:
    both = [item(label=1), item("emma", label=0), {"query": [0, 1, 1], "id": "emma", "label": 1}]
    post(books, FEEDBACK, both)
    assert delete(books, FEEDBACK, {"documents": ["whale", "nobody"]}) == {"deleted": 1}
    ids = data.collection("books").store.examples().ids
    assert delete(books, FEEDBACK, {"ids": [int(ids[0]), 99]}) == {"deleted": 1}
    assert get(books, FEEDBACK) == counts(1)
    for body in ({}, {"ids": [1], "documents": ["emma"]}, {"ids": ["x"]}, {"ids": [0]}):
        delete(books, FEEDBACK, body, 422)
    assert get(books, FEEDBACK)["examples"] == 1


def test_feedback_is_deleted_by_its_query(tiny_encoder_folder: Path, client: FlaskClient) -> None:
    assert client.put("/v1/collections/books", json={"encoder": str(tiny_encoder_folder)})
    documents = [{"id": "whale", "text": "a white whale"}, {"id": "emma", "text": "a village"}]
    client.post("/v1/collections/books/documents", json=documents)
    labels = [{"query": query, "id": id} for query in ("sea", "land") for id in ("whale", "emma")]
    post(client, FEEDBACK, labels)
    assert delete(client, FEEDBACK, {"queries": ["sea", "nothing"]}) == {"deleted": 2}
    assert [kept["query"] for kept in get(client, f"{FEEDBACK}?limit=9")["items"]] == ["land"] * 2
    delete(client, FEEDBACK, {"queries": ["land"], "documents": ["emma"]}, 422)


def test_all_feedback_goes_only_where_that_is_said(books: FlaskClient, data: Data) -> None:
    post(books, FEEDBACK, [item(label=1), item("emma", label=0)])
    nothing: list[Any] = [{}, {"ids": None, "documents": None}, {"all": False}]
    unclear = [{"all": True, "ids": [1]}, {"all": True, "documents": ["emma"]}]
    for body in (*nothing, *unclear):
        problem = delete(books, FEEDBACK, body, 422)
        assert '{"all": true} deletes all feedback' in problem["detail"]
    delete(books, FEEDBACK, {"all": "yes"}, 422)
    assert books.delete(FEEDBACK).status_code == 400
    assert delete(books, FEEDBACK, {"ids": []}) == {"deleted": 0}
    assert delete(books, FEEDBACK, {"documents": []}) == {"deleted": 0}
    assert get(books, FEEDBACK)["examples"] == 2
    assert delete(books, FEEDBACK, {"all": True}) == {"deleted": 2}
    assert get(books, FEEDBACK) == counts(0)
    assert data.collection("books").store.counts()[0] == 3


def test_a_collection_says_how_much_there_is_to_learn_from(books: FlaskClient) -> None:
    both = [item(label=1), item("emma", label=0), {"query": [0, 1, 1], "id": "emma"}]
    post(books, FEEDBACK, both)
    shown = get(books, BOOKS)
    assert (shown["examples"], shown["questions"]) == (3, 2)


def test_feedback_of_a_collection_that_is_not_there(client: FlaskClient) -> None:
    for call in (client.post, client.get, client.delete):
        sent = {} if call == client.get else {"json": {"documents": []}}
        response = call("/v1/collections/films/feedback", **sent)
        assert response.status_code in (404, 422)
    assert client.post("/v1/collections/films/feedback", json=[]).status_code == 404


# -- trainings ----------------------------------------------------------------------------------

ANSWERS = {"objective": "answers"}
"""A training that learns from documents, and needs no feedback."""

POINTS = [{"id": "x", "vector": [1, 0]}]


@pytest.mark.parametrize(
    ("objective", "material"),
    [
        ("ranking", "labels of documents, and none are stored. Add some with POST …/feedback"),
        ("interactions", "interactions of users, and none are stored"),
        ("ratings", "interactions of users, and none are stored"),
        ("answers", "documents, and none are stored"),
    ],
)
def test_a_training_needs_something_to_learn_from(
    client: FlaskClient, data: Data, objective: str, material: str
) -> None:
    data.create("empty", dimension=2)
    problem = post(client, "/v1/collections/empty/train", {"objective": objective}, 422)
    assert material in problem["detail"]
    assert get(client, "/v1/jobs") == {"jobs": []}


def test_a_training_is_a_job(books: FlaskClient, jobs: Jobs, trainer: SlowTrainer) -> None:
    accepted = books.post(f"{BOOKS}/train", json=ANSWERS)
    assert accepted.status_code == 202
    job = accepted.get_json()
    assert accepted.headers["Location"] == f"/v1/jobs/{job['id']}"
    assert (job["collection"], job["state"], job["result"]) == ("books", "queued", None)
    reached(jobs, job["id"], "running")
    assert get(books, "/v1/jobs")["jobs"][0]["state"] == "running"
    trainer.may_finish.set()
    reached(jobs, job["id"], "done")
    shown = get(books, accepted.headers["Location"])
    assert shown["result"]["reason"] == shown["progress"]["message"] == "Nothing was learned."
    assert shown["progress"]["fraction"] == 1
    assert "result" not in get(books, "/v1/jobs")["jobs"][0]


def test_what_was_asked_reaches_the_trainer(
    books: FlaskClient, jobs: Jobs, trainer: SlowTrainer
) -> None:
    trainer.may_finish.set()
    job = post(books, f"{BOOKS}/train", {**ANSWERS, "seed": 7}, 202)
    assert job["request"] == {**ANSWERS, "seed": 7}
    reached(jobs, job["id"], "done")
    assert trainer.fields == [{**ANSWERS, "seed": 7}]


def test_a_training_may_be_about_answers(
    books: FlaskClient, jobs: Jobs, trainer: SlowTrainer
) -> None:
    trainer.may_finish.set()
    asked = {"objective": "answers", "value": "price"}
    job = post(books, f"{BOOKS}/train", asked, 202)
    reached(jobs, job["id"], "done")
    assert trainer.fields == [asked] == [job["request"]]
    problem = post(books, f"{BOOKS}/train", {"objective": "fame"}, 422)
    assert problem["errors"][0]["field"] == "objective"


def test_a_second_training_names_the_first(books: FlaskClient) -> None:
    job = post(books, f"{BOOKS}/train", ANSWERS, 202)
    assert f"Job {job['id']}" in post(books, f"{BOOKS}/train", ANSWERS, 409)["detail"]


def test_a_full_queue_says_when_to_come_back(client: FlaskClient, data: Data, jobs: Jobs) -> None:
    for name in "abcd":
        data.create(name, dimension=2).upsert(POINTS)
    first = post(client, "/v1/collections/a/train", ANSWERS, 202)
    reached(jobs, first["id"], "running")
    for name in "bc":
        post(client, f"/v1/collections/{name}/train", ANSWERS, 202)
    refused = client.post("/v1/collections/d/train", json=ANSWERS)
    assert refused.status_code == 429
    assert int(refused.headers["Retry-After"]) > 0
    assert refused.content_type == "application/problem+json"
    assert "2 jobs wait" in refused.get_json()["detail"]
    assert refused.get_json()["type"] == "/docs#too-many-jobs"


def test_cancelling_over_http(books: FlaskClient, data: Data, jobs: Jobs) -> None:
    data.create("other", dimension=2).upsert(POINTS)
    first = post(books, f"{BOOKS}/train", ANSWERS, 202)["id"]
    reached(jobs, first, "running")
    second = post(books, "/v1/collections/other/train", ANSWERS, 202)["id"]
    assert delete(books, f"/v1/jobs/{second}")["state"] == "cancelled"
    asked = delete(books, f"/v1/jobs/{first}", status=202)
    assert asked["progress"]["message"] == "Stops at its next step."
    reached(jobs, first, "cancelled")
    for id in (first, second):
        assert delete(books, f"/v1/jobs/{id}", status=204) is None
        assert "/v1/jobs" in delete(books, f"/v1/jobs/{id}", status=404)["detail"]
    assert get(books, "/v1/jobs") == {"jobs": []}
    for id in ("0", str(10**30), "x"):
        assert books.get(f"/v1/jobs/{id}").status_code == 404


def test_a_wrong_training_is_refused_before_it_is_queued(books: FlaskClient) -> None:
    problem = post(books, f"{BOOKS}/train", {"colour": "red"}, 422)
    assert problem["errors"][0]["field"] == "colour"
    assert post(books, "/v1/collections/films/train", ANSWERS, 404)
    assert post(books, f"{BOOKS}/train", [1], 422)
    assert get(books, "/v1/jobs") == {"jobs": []}


def test_a_dropped_collection_takes_its_job_along(
    books: FlaskClient, jobs: Jobs, trainer: SlowTrainer
) -> None:
    id = post(books, f"{BOOKS}/train", ANSWERS, 202)["id"]
    reached(jobs, id, "running")
    assert books.delete(BOOKS).status_code == 204
    reached(jobs, id, "cancelled", "failed")
    assert books.delete(BOOKS).status_code == 404


def test_reading_and_writing_go_on_while_a_training_runs(books: FlaskClient, jobs: Jobs) -> None:
    reached(jobs, post(books, f"{BOOKS}/train", ANSWERS, 202)["id"], "running")
    post(books, f"{BOOKS}/documents", [{"id": "new", "vector": [0, 0, 9]}])
    found = post(books, f"{BOOKS}/search", {"query": [0, 0, 1], "k": 1})
    assert found["hits"][0]["id"] == "new"


# -- versions -----------------------------------------------------------------------------------

REPORT = {"promoted": True, "reason": "It is better.", "before": 0.5, "views": [{"n": 1}] * 3}


def add_version(data: Data, report: dict[str, Any] | None = None) -> int:
    embeddings: Float32 = np.eye(3, dtype=np.float32)
    projection = pca([embeddings], 2, normalize=False)
    return data.collection("books").store.add_projection(
        projection.kind,
        projection.to_bytes(),
        projection.fingerprint,
        {"by": "a test"},
        tuning={"scale": [3.0]},
        report=report or {},
    )


def test_versions_are_listed_with_the_head_of_their_report(books: FlaskClient, data: Data) -> None:
    version = add_version(data, REPORT)
    listed = get(books, PROJECTIONS)
    assert listed["active"] == 1
    assert [each["active"] for each in listed["projections"]] == [True, False]
    added = listed["projections"][1]
    assert added["report"] == {"promoted": True, "reason": "It is better.", "before": 0.5}
    assert added["tuning"] == {"scale": [3.0]}
    assert get(books, f"{PROJECTIONS}/{version}") == {**added, "report": REPORT}
    for unknown in ("0", "9", str(10**30)):
        assert "there are 1, 2" in get(books, f"{PROJECTIONS}/{unknown}", 404)["detail"]


def test_activation_and_rollback(books: FlaskClient, data: Data) -> None:
    two, three = add_version(data), add_version(data)
    post(books, f"{PROJECTIONS}/{two}/activate", None)
    post(books, f"{PROJECTIONS}/{three}/activate", None)
    assert get(books, f"{PROJECTIONS}/{three}")["parent"] == two
    search = {"query": [1, 0, 0], "k": 1}
    for expected in (two, 1):
        assert post(books, f"{PROJECTIONS}/rollback", None) == {"projection": expected}
        assert post(books, f"{BOOKS}/search", search)["projection"] == expected
    assert (
        "no version was active before it"
        in post(books, f"{PROJECTIONS}/rollback", None, 409)["detail"]
    )


def test_searches_are_answered_throughout_a_switch(books: FlaskClient, data: Data) -> None:
    version = add_version(data)
    versions: list[int] = []
    stop = threading.Event()

    def search() -> None:
        client = books.application.test_client()
        while not stop.is_set():
            answer = post(client, f"{BOOKS}/search", {"query": [1, 0, 0], "k": 1})
            versions.append(answer["projection"])

    threads = [threading.Thread(target=search) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        post(books, f"{PROJECTIONS}/{version}/activate", None)
        post(books, f"{PROJECTIONS}/rollback", None)
    stop.set()
    for thread in threads:
        thread.join(LIMIT)
    assert versions
    assert set(versions) <= {1, version}


# -- a real server ------------------------------------------------------------------------------


def test_feedback_over_a_socket_outlives_the_server(tmp_path: Any) -> None:
    data = Data(tmp_path)
    data.create("books", dimension=3).upsert([{"id": "whale", "vector": [1, 0, 0]}])
    data.close()
    with running(tmp_path) as server:
        wait_until_ready(server)
        said = server.request("POST", FEEDBACK, item(label=1))
        assert said == (200, {"added": 1, "replaced": 0, "examples": 1})
        kill_all(server.process)
    with running(tmp_path) as server:
        assert server.request("GET", FEEDBACK)[1] == counts(1)
        deleted = server.request("DELETE", FEEDBACK, {"documents": ["whale"]})
        assert deleted == (200, {"deleted": 1})
        assert server.stop() == 0
