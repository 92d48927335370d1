"""Logs: one line for each request, without what was sent."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from attend import Data
from attend_service import logs
from attend_service.app import create_app
from attend_service.jobs import Jobs
from attend_service.settings import ServerSettings

SECRET = "a-secret-text"


@pytest.fixture(autouse=True)
def loggers() -> Iterator[None]:
    """The loggers as they were."""
    root, attend = logging.getLogger(), logging.getLogger("attend")
    before = root.handlers[:], root.level, attend.level
    yield
    root.handlers[:], root.level, attend.level = before
    logging.captureWarnings(False)


def record(message: str, **extra: Any) -> logging.LogRecord:
    return logging.getLogger("attend").makeRecord(
        "attend", logging.WARNING, "f", 1, message, (), None, extra=extra
    )


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def answered(client: FlaskClient, capsys: pytest.CaptureFixture[str], *args: Any, **kw: Any) -> Any:
    capsys.readouterr()
    client.open(*args, **kw)
    (line,) = lines(capsys.readouterr().err)
    return line


def test_a_request_is_one_line_by_its_route(
    books: FlaskClient, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.configure("json", "info")
    path = f"/v1/collections/books/documents/{SECRET}?x={SECRET}"
    line = answered(books, capsys, path, headers={"X-Request-Id": "abc", "X-Api-Key": SECRET})
    assert line["request"] == "abc"
    assert line["route"] == "/v1/collections/{collection}/documents/{id}"
    assert (line["method"], line["status"], line["level"]) == ("GET", 422, "info")
    assert 0 <= line["ms"] < 10_000
    assert line["logger"] == "attend.requests"
    assert SECRET not in json.dumps(line)


def test_what_was_sent_is_in_no_line(
    books: FlaskClient, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.configure("json", "debug")
    body = {"query": SECRET, "filter": {"x": SECRET}}
    for options in ({"json": body}, {"data": SECRET}, {"json": body | {"k": -1}}):
        books.post("/v1/collections/books/search", **options)
        books.get(f"/search?q={SECRET}&collection=books")
        books.get(f"/{SECRET}")
    assert SECRET not in capsys.readouterr().err


def test_texts_are_logged_when_asked_for(
    data: Data, jobs: Jobs, capsys: pytest.CaptureFixture[str]
) -> None:
    client = create_app(data, ServerSettings(log_texts=True), jobs=jobs).test_client()
    logs.configure("json", "info")
    body = {"query": SECRET}
    line = answered(client, capsys, "/v1/collections/x/search?a=b", method="POST", json=body)
    assert line["path"] == "/v1/collections/x/search?a=b"
    assert json.loads(line["body"]) == body


def test_a_level_above_leaves_requests_out(
    books: FlaskClient, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.configure("text", "warning")
    books.get("/healthz")
    assert capsys.readouterr().err == ""


def test_nothing_a_client_sends_begins_a_line_of_its_own() -> None:
    text = logs.TextLines().format(record("a\nb", fields={"route": 'x y="1"\n', "n": 3}))
    assert "\n" not in text
    assert text.endswith('WARNING attend: a\\nb route="x y=\\"1\\"\\n" n=3')
    assert json.loads(logs.JsonLines().format(record("a\nb")))["message"] == "a\nb"


def test_an_exception_comes_along() -> None:
    try:
        raise ValueError("why")
    except ValueError:
        failed = record("it failed")
        failed.exc_info = sys.exc_info()
    assert "ValueError: why" in json.loads(logs.JsonLines().format(failed))["exception"]
    assert logs.TextLines().format(failed).endswith("ValueError: why")


def test_warnings_of_the_index_go_the_same_way(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.configure("json", "info")
    data = Data(tmp_path)
    made = data.create("a", dimension=2)
    made.upsert([{"id": "x", "vector": [1, 0]}])
    made.publish()
    next(made.folder.glob("keys/raw/1/vectors.npy")).unlink()
    data.close()
    Data(tmp_path).collection("a").info()
    levels = {line["level"]: line for line in lines(capsys.readouterr().err)}
    assert "built again" in levels["warning"]["message"]
    assert "published generation 1" in levels["info"]["message"]
