"""The example that asks as Dify and clients of Qdrant do, and what a browser gets as ever."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from contextlib import closing
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from attend import Data
from attend_service.keys import KeyFile
from tests.index.search.test_foreign import OWN, sentences
from tests.places import ROOT
from tests.service.test_server import running, wait_until_ready

PASSING = {"$or": [{"genre": "sea"}, {"year": {"gte": 1900}}]}
GENRES = ["sea", "essay", "gothic"]


@pytest.mark.skipif(shutil.which("curl") is None, reason="the example is of curl")
def test_the_example_runs(tmp_path: Path, tiny_encoder_folder: Path) -> None:
    with closing(Data(tmp_path)) as data:
        library = data.create(encoder=str(tiny_encoder_folder))
        library.upsert(
            [
                {"id": str(n), "text": text, "payload": {"genre": GENRES[n % 3], "year": 1790 + n}}
                for n, text in enumerate(sentences(1, 120))
            ]
        )
        library.publish()
        expected = [hit.id for hit in library.search(OWN, filter=PASSING, k=2).hits]
    script = ROOT / "examples" / "front_ends.sh"
    key = KeyFile(tmp_path).add(scope="read")[1]
    with running(tmp_path) as server:
        wait_until_ready(server)
        done = subprocess.run(
            ["sh", str(script), f"http://{server.host}:{server.port}", "default", OWN],
            env={**os.environ, "ATTEND_KEY": key, "NO_PROXY": "*"},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    probe, records, nothing, collections, page, points = answers
    assert probe == nothing == {"records": []}
    assert [record["metadata"]["_id"] for record in records["records"]] == expected
    assert collections["result"] == {"collections": [{"name": "default"}]}
    # After 1800, and neither an essay nor gothic.
    assert [point["id"] for point in page["result"]["points"]] == [12, 15]
    found = points["result"]["points"]
    assert [point["payload"].keys() for point in found] == [{"_id", "genre"}] * 2
    assert 3 not in [point["id"] for point in found]


def test_the_root_is_a_page_but_for_clients_of_qdrant(books: FlaskClient) -> None:
    for agent in ("Mozilla/5.0", "curl/8.5.0", "python-httpx/0.28.1"):
        page = books.get("/", headers={"User-Agent": agent})
        assert page.mimetype == "text/html"
    for agent in ("python-client/1.20.0 python/3.11.2", "qdrant-js/1.15.0"):
        version = books.get("/", headers={"User-Agent": agent})
        assert version.get_json() == {"title": "Attend, by Qdrant's API", "version": "1.20.0"}


@pytest.mark.parametrize(
    ("method", "path", "status", "sentence"),
    [
        ("PUT", "/collections/books", 405, "read-only"),
        ("PUT", "/collections/books/points", 405, "read-only"),
        ("POST", "/collections/books/points/delete", 404, "read-only"),
        ("GET", "/collections/nothing", 404, "'nothing'"),
        ("POST", "/collections/books/points/query", 400, "body is empty"),
    ],
)
def test_errors_have_the_form_of_qdrant(
    books: FlaskClient, method: str, path: str, status: int, sentence: str
) -> None:
    refused = books.open(path, method=method)
    body = refused.get_json()
    assert (refused.status_code, refused.mimetype) == (status, "application/json")
    assert body.keys() == {"status", "time"}
    assert sentence in body["status"]["error"]


def test_what_only_begins_alike_has_the_usual_errors(books: FlaskClient) -> None:
    refused = books.get("/collectionsx")
    assert (refused.status_code, refused.mimetype) == (404, "application/problem+json")


@pytest.mark.parametrize(
    ("sent", "sentence"),
    [
        ({"query": [1, 0, 0], "filter": {"musst": []}}, "A filter of must, should and must_not"),
        ({"query": [1, 0, 0], "filter": {"must": ["x"]}}, "A filter, has_id, or a key with"),
        ({"query": [1, 0, 0], "filter": {"must": {"has_id": "whale"}}}, "A list of ids"),
        ({"query": {"recommend": {"positive": [1]}}}, "A vector, a point's id"),
        ({"query": [1, 0, 0], "vector": [1]}, "unknown field"),
        ({"query": [1, 0, 0], "filter": {"must": {"key": "a", "range": {"from": 1}}}}, "A range"),
        (
            {"query": [1, 0, 0], "filter": {"must": {"key": "a", "match": {"except": [None]}}}},
            "A list of texts or numbers",
        ),
    ],
)
def test_what_is_unknown_is_refused_by_name(
    books: FlaskClient, sent: dict[str, object], sentence: str
) -> None:
    refused = books.post("/collections/books/points/query", json=sent)
    assert refused.status_code == 422
    assert sentence in refused.get_json()["status"]["error"]
