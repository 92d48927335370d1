"""Recommending over HTTP: interactions in, what comes next and what is thought of it out."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from attend import Data
from tests.service.test_api import get, post
from tests.service.test_server import running, wait_until_ready
from tests.service.test_training import delete

BOOKS = "/v1/collections/books"
RECOMMEND, INTERACTIONS = f"{BOOKS}/recommend", f"{BOOKS}/interactions"
USERS = f"{BOOKS}/users"

FAR = "https://x.example//a/b"
MET: list[dict[str, Any]] = [
    {"user": "ann", "id": "whale", "value": 5, "time": "1970-01-02"},
    {"user": "ann", "id": "emma", "value": 1},
    {"user": 7, "id": "emma", "value": {"mood": "good"}},
]


@pytest.mark.parametrize("body", [MET[0], [MET[0]], {"items": [MET[0]]}])
def test_interactions_in_three_forms(books: FlaskClient, body: Any) -> None:
    told = {"added": 1, "replaced": 0, "interactions": 1, "users": 1, "liked_from": 5.0}
    assert post(books, INTERACTIONS, body) == told
    assert post(books, INTERACTIONS, body) == told | {"added": 0, "replaced": 1}
    assert get(books, INTERACTIONS) == {
        "items": [{"user": "ann", "id": "whale", "value": 5, "time": 86400.0}],
        "next": None,
        "interactions": 1,
        "users": 1,
        "liked_from": 5.0,
    }
    shown = get(books, BOOKS)
    assert (shown["interactions"], shown["users"]) == (1, 1)


def test_interactions_are_listed_page_by_page_and_deleted(books: FlaskClient) -> None:
    post(books, INTERACTIONS, MET)
    first = get(books, f"{INTERACTIONS}?limit=2")
    rest = get(books, f"{INTERACTIONS}?limit=2&cursor={first['next']}")
    assert [(each["user"], each["id"]) for each in first["items"] + rest["items"]] == [
        ("ann", "whale"),
        ("ann", "emma"),
        ("7", "emma"),
    ]
    assert rest["next"] is None
    assert len(get(books, f"{INTERACTIONS}?user=7")["items"]) == 1
    assert books.get(f"{INTERACTIONS}?user=").status_code == 422  # nobody, and not everybody
    assert get(books, f"{INTERACTIONS}?limit=0")["interactions"] == 3
    other = books.get(f"{INTERACTIONS}?user=7&cursor={first['next']}")
    assert (other.status_code, "cursor" in other.text) == (422, True)
    both = {"user": "ann", "documents": ["emma", "nobody"]}
    assert delete(books, INTERACTIONS, both) == {"deleted": 1}
    assert delete(books, INTERACTIONS, {"documents": ["emma"]}) == {"deleted": 1}
    assert delete(books, INTERACTIONS, {"all": True}) == {"deleted": 1}
    for wrong in ({}, {"all": True, "user": "ann"}):
        problem = delete(books, INTERACTIONS, wrong, 422)
        assert "send user, documents or both" in problem["detail"]


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({"user": "ann", "id": "gone"}, 404, "interactions"),
        ({"user": "", "id": "emma"}, 422, "items.0.user"),
        ({"id": "emma"}, 422, "items.0.user"),
        ({"user": "ann", "id": "emma", "time": "soon"}, 422, "items.0.time"),
        ({"user": "ann", "id": "emma", "rating": 3}, 422, "items.0.rating"),
    ],
)
def test_wrong_interactions_name_themselves(
    books: FlaskClient, body: Any, status: int, field: str
) -> None:
    problem = post(books, INTERACTIONS, body, status)
    assert problem["errors"][0]["field"].startswith(field)
    assert get(books, INTERACTIONS)["interactions"] == 0


def test_a_history_a_user_or_examples_are_recommended_by(books: FlaskClient) -> None:
    post(books, INTERACTIONS, MET)
    found = post(books, RECOMMEND, {"history": [{"id": "whale", "weight": 2}], "explain": True})
    assert {hit["id"] for hit in found["hits"]} == {"emma", FAR}
    assert sum(hit["weight"] for hit in found["hits"]) == pytest.approx(1)
    assert found["hits"][0]["because"] == [{"id": "whale", "weight": 1.0}]
    assert (found["history"], found["missing"], found["projection"]) == (
        {"given": 1, "used": 1},
        [],
        0,
    )
    assert [hit["id"] for hit in post(books, RECOMMEND, {"user": "ann"})["hits"]] == [FAR]
    near = {"positive": [{"vector": [0, 1, 0.2]}], "negative": ["whale"], "k": 1}
    assert [hit["id"] for hit in post(books, RECOMMEND, near)["hits"]] == ["emma"]
    assert "because" not in post(books, RECOMMEND, near)["hits"][0]


@pytest.mark.parametrize("force", [1.0, 3.0])
def test_what_speaks_against_a_hit_and_for_it_makes_its_score(
    books: FlaskClient, force: float
) -> None:
    negative = [{"id": "whale", "weight": force}, {"vector": [0.6, 0.5, 0], "weight": force}]
    asked = {"positive": [{"vector": [0, 1, 0.2]}, "emma"], "negative": negative, "explain": True}
    hits = post(books, RECOMMEND, {**asked, "exclude_seen": False})["hits"]
    assert len(hits) == 3
    for hit in hits:
        assert sum(each["weight"] for each in hit["because"]) == pytest.approx(1)
        against = [each["weight"] for each in hit["against"]]
        assert against == sorted(against, reverse=True)
        assert {each.get("id") for each in hit["against"]} == {"whale", None}
        assert hit["score"] == pytest.approx(math.log(hit["weight"] * (1 - sum(against))))
    most = max(hits, key=lambda hit: sum(each["weight"] for each in hit["against"]))
    assert (most["id"], most["against"][0]["id"]) == ("whale", "whale")
    liked = post(books, RECOMMEND, {"positive": ["emma"], "explain": True})
    assert "against" not in liked["hits"][0]


def test_users_are_listed_with_what_they_did_last(books: FlaskClient) -> None:
    assert get(books, USERS) == {"items": [], "next": None, "users": 0}
    post(books, INTERACTIONS, [*MET, {"user": "Anna", "id": FAR, "time": 5}])
    everyone = get(books, USERS)
    named = [(each["user"], each["interactions"]) for each in everyone["items"]]
    assert (named, everyone["users"], everyone["next"]) == (
        [("ann", 2), ("7", 1), ("Anna", 1)],
        3,
        None,
    )
    latest = everyone["items"][0]["latest"]
    assert [each["id"] for each in latest] == ["whale", "emma"]  # the one without a time is last
    asked = {"query": [1, 1, 1], "k": 3, "title": True}
    titles = {hit["id"]: hit["title"] for hit in post(books, f"{BOOKS}/search", asked)["hits"]}
    assert [each["title"] for each in latest] == [titles["whale"], titles["emma"]]
    assert [each["user"] for each in get(books, f"{USERS}?contains=NN")["items"]] == ["ann", "Anna"]
    pages, address = [], f"{USERS}?limit=1"
    while address:
        page = get(books, address)
        pages += [each["user"] for each in page["items"]]
        address = page["next"] and f"{USERS}?limit=1&cursor={page['next']}"
    assert pages == ["ann", "7", "Anna"]
    assert books.get(f"{USERS}?contains=").status_code == 422
    assert get(books, f"{USERS}?limit=0") == {"items": [], "next": None, "users": 3}


def test_what_a_user_would_think_comes_with_its_spread_and_why(books: FlaskClient) -> None:
    post(books, INTERACTIONS, MET)
    asked = {"user": "ann", "target": [FAR, {"vector": [0.9, 0.1, 0]}], "explain": True}
    found = post(books, RECOMMEND, asked)
    far, near = found["predictions"]
    assert (far["id"], far["type"]) == (FAR, "number")
    assert 1 <= far["mean"] <= near["mean"] <= 5
    for each in found["predictions"]:
        assert each["std"] >= 0
        assert sum(why["weight"] for why in each["because"]) + each["null"] == pytest.approx(1)
        assert {why["id"]: why["value"] for why in each["because"]} == {"whale": 5, "emma": 1}
    one = post(books, RECOMMEND, {"user": "7", "target": "whale"})
    assert "mood" in one["predictions"][0]["fields"]


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({}, 422, "Nothing is known of the user"),
        ({"user": "nobody"}, 422, "No interactions of the user 'nobody'"),
        ({"history": ["gone"]}, 404, "'gone'"),
        ({"history": ["whale"], "target": ["gone"]}, 404, "'gone'"),
        ({"history": ["whale"], "target": []}, 422, "1 or more"),
        ({"user": "ann", "target": ["emma"], "filter": {"a": 1}}, 422, "Leave filter or target"),
        ({"history": ["whale"], "target": ["emma"]}, 422, "has a value"),
        ({"history": [{"id": "whale", "value": "x"}], "target": ["emma"], "k": 0}, 422, "k"),
        ({"history": ["whale"], "negative": "emma"}, 422, "list"),
        ({"negative": ["emma"]}, 422, "Only negative examples"),
    ],
)
def test_what_cannot_be_recommended_says_why(
    books: FlaskClient, body: Any, status: int, said: str
) -> None:
    assert said in post(books, RECOMMEND, body, status)["detail"]


def test_rolling_back_in_a_role(books: FlaskClient, data: Data) -> None:
    store = data.collection("books").store
    first = store.active()
    assert first is not None
    version = store.add_projection(
        first.kind, store.version(1).weights, first.fingerprint, {}, role="recommend"
    )
    assert post(books, f"{BOOKS}/projections/{version}/activate", None) == {"active": version}
    listed = get(books, f"{BOOKS}/projections")
    assert (listed["active"], listed["roles"]) == (1, {"search": 1, "recommend": version})
    assert [each["role"] for each in listed["projections"]] == ["search", "recommend"]
    assert post(books, RECOMMEND, {"history": ["emma"]})["projection"] == version
    assert post(books, f"{BOOKS}/projections/rollback", None, 409)["status"] == 409
    assert post(books, f"{BOOKS}/projections/rollback?role=recommend", None) == {"projection": 0}
    assert post(books, RECOMMEND, {"history": ["emma"]})["projection"] == 0


def test_through_a_server_and_another_process(tmp_path: Path) -> None:
    data = Data(tmp_path)
    made = data.create("books", dimension=2)
    made.upsert([{"id": f"b{at}", "vector": [at % 7 + 1, at % 3]} for at in range(30)])
    data.close()
    with running(tmp_path) as server:
        wait_until_ready(server)
        status, told = server.request("POST", INTERACTIONS, [{"user": "u", "id": "b1"}])
        assert (status, told["added"]) == (200, 1)
        other = Data(tmp_path)  # a write of another process is seen by the next request
        other.collection("books").store.delete_interactions("u")
        other.close()
        assert server.request("POST", RECOMMEND, {"user": "u"})[0] == 422
        status, found = server.request("POST", RECOMMEND, {"history": ["b1", "b2"], "k": 4})
        assert (status, len(found["hits"])) == (200, 4)
        assert server.stop() == 0
