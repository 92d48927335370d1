"""The progress of another process's work: who sees it, and what becomes of leftovers."""

from __future__ import annotations

from pathlib import Path

import pytest
from flask.testing import FlaskClient

from attend import Data
from attend.core.errors import Conflict
from attend_service.background import FILE, IDLE, announced, work_on
from attend_service.keys import KeyFile

PROGRESS = "/v1/progress"


def test_work_is_shown_while_it_is_done(client: FlaskClient, data: Data) -> None:
    assert client.get(PROGRESS).get_json() == {"state": "idle", "message": ""}
    with announced(data.folder) as report:
        report("Reading", 0.0, "books")
        report("Half", 0.5, "books")  # too soon after the first to be worth a write
        shown = {"state": "running", "collection": "books", "message": "Reading", "fraction": 0.0}
        assert client.get(PROGRESS).get_json() == shown
        report("Done", 1.0, "books")
        assert client.get(PROGRESS).get_json()["message"] == "Done"
        assert 'id="progress"' in client.get("/").get_data(as_text=True)
        assert 'id="progress"' in client.get("/docs", headers={"Accept": "text/html"}).text
        report.fail("The <b>disk</b> is full.")
        assert report.has_failed()
        page = client.get("/teach").get_data(as_text=True)
        assert "The &lt;b&gt;disk&lt;/b&gt; is full." in page
    assert client.get(PROGRESS).get_json()["state"] == "idle"
    assert 'id="progress"' not in client.get("/").get_data(as_text=True)


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with announced(tmp_path), pytest.raises(Conflict, match="Another process"):
        announced(tmp_path).__enter__()
    with announced(tmp_path):
        pass


@pytest.mark.parametrize("content", ['{"state": "running", "message": "50 %"}', "[1", ""])
def test_leftovers_are_not_shown(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE).write_text(content)
    assert work_on(tmp_path) == IDLE


def test_a_key_sees_the_work_on_its_collections(client: FlaskClient, data: Data) -> None:
    file = KeyFile(data.folder)
    headers = {}
    for name in ("books", "films"):
        _, key = file.add(name, collections=[name])
        headers[name] = {"Authorization": f"Bearer {key}"}
    with announced(data.folder) as report:
        report("Indexing", 0.0, "books")
        states = [client.get(PROGRESS, headers=headers[name]).get_json() for name in headers]
        assert [state["state"] for state in states] == ["running", "idle"]
        report.fail("An error that may name anything.")
        states = [client.get(PROGRESS, headers=headers[name]).get_json() for name in headers]
        assert [state["state"] for state in states] == ["idle", "idle"]
    assert client.get(PROGRESS).status_code == 401
