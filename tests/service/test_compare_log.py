"""Versions compared by use: over HTTP, by the client and by the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from flask.testing import FlaskClient

from attend import Data
from attend.cli import main
from attend.connect.client import RemoteLibrary
from tests.service.test_server import running, wait_until_ready

QUERY = {"vector": [1.0, 0.2, 0.0]}
BOOKS = "/v1/collections/books"


def use(books: FlaskClient, data: Data) -> int:
    """Interleave two versions, say which hit of a search served, and return the second version."""
    collection = data.collection("books")
    version = collection.add_projection(collection.fit_projection("pca", 2))
    settings = {"log": True, "interleave": [1, version], "log_swaps": 0.1}
    assert books.patch(BOOKS, json=settings).status_code == 200
    answer = books.post(f"{BOOKS}/search", json={"query": QUERY, "k": 2}).get_json()
    body = {"search": answer["search"], "ids": [answer["hits"][0]["id"]]}
    assert books.post(f"{BOOKS}/used", json=body).status_code == 200
    return version


def test_two_versions_are_compared_by_the_log(books: FlaskClient, data: Data) -> None:
    version = use(books, data)
    body = {"before": 1, "after": version, "from_log": True}
    answer = books.post(f"{BOOKS}/compare", json=body).get_json()
    assert (answer["interleaved"], answer["better"]) == (1, None)
    assert (answer["before"]["projection"], answer["after"]["projection"]) == (1, version)
    assert answer["advantage"]["p"] == pytest.approx(1)
    assert answer["searches"] == 0  # vectors are not logged, and cannot be ranked again
    active = books.post(f"{BOOKS}/compare", json={"before": version, "from_log": True})
    assert active.get_json()["after"]["projection"] == 1


def test_what_does_not_go_together_is_refused_by_name(books: FlaskClient, data: Data) -> None:
    def refused(path: str, body: Any, method: str = "POST") -> str:
        reply = books.open(path, method=method, json=body)
        assert reply.status_code == 422, reply.get_data(as_text=True)
        return str(reply.get_json()["errors"][0]["field"])

    body = {"before": 1, "from_log": True}
    assert refused(f"{BOOKS}/compare", body) == "from_log"  # nothing was ever logged
    use(books, data)
    assert refused(f"{BOOKS}/compare", {**body, "by": "map@100"}) == "by"
    for settings in ({"interleave": [1]}, {"interleave": [1, 1]}, {"log_swaps": 1.5}):
        assert refused(BOOKS, settings, "PATCH").split(".")[0] == next(iter(settings))
    assert refused(BOOKS, {"log": False}, "PATCH") == "log"


def test_the_client_and_the_command_compare_by_the_log(tmp_path: Path) -> None:
    data = Data(tmp_path)
    points = data.create("points", dimension=2)
    points.upsert([{"id": str(n), "vector": [9 - n, n]} for n in range(9)])
    version = points.add_projection(points.fit_projection("pca", 1))
    points.configure(log=True)
    data.close()
    with running(tmp_path) as server:
        wait_until_ready(server)
        library = RemoteLibrary(f"http://{server.host}:{server.port}")
        remote = library.collection("points")
        remote.configure(interleave=[1, version])
        for n in range(3):
            answer = remote.search({"text": "a word", "vector": [1.0, n / 9]}, k=4, lexical=False)
            remote.used(str(answer.search), [answer.hits[n].id])
        report = remote.compare_from_log(1, version)
        assert report.interleaved == 3
        assert report.sentence.startswith("Not told apart by interleaved searches")
        library.close()
    command = ["compare", "1", str(version), "--from-log", "--data", str(tmp_path)]
    ran = CliRunner().invoke(main, [*command, "--collection", "points"])
    assert ran.exit_code == 0, ran.output
    assert ran.stdout.startswith(report.sentence)
    ran = CliRunner().invoke(main, [*command, "--collection", "points", "--json"])
    assert json.loads(ran.stdout)["interleaved"] == 3
