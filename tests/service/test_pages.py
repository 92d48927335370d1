"""The pages: readable without scripts, and nothing of what was stored is taken for HTML."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from attend_service.pages import VIEWS

BROWSER = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
EVIL = "<script>alert('&')</script>"


@pytest.fixture
def stored(tiny_encoder_folder: Path, client: FlaskClient) -> FlaskClient:
    """A client of a service whose default collection holds texts that look like HTML."""
    client.put("/v1/collections/default", json={"encoder": str(tiny_encoder_folder)})
    documents = [
        {
            "id": f"{EVIL}/{at}",
            "text": "a white whale",
            "value": {"label": EVIL, "n": at, "v": [1.0, at], "none": None, "yes": True},
            "payload": {EVIL: EVIL},
        }
        for at in range(12)
    ]
    written = client.post("/v1/collections/default/documents", json=documents)
    assert written.status_code == 200, written.text
    return client


def page(client: FlaskClient, path: str, status: int = 200) -> TestResponse:
    response = client.get(path, headers=BROWSER)
    assert response.status_code == status, response.text
    assert response.content_type == "text/html; charset=utf-8"
    policy = response.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "unsafe-inline" not in policy
    assert all(" src=" in tag for tag in re.findall(r"<script[^>]*>", response.text))
    assert " style=" not in response.text
    return response


PATHS = ["/search?q=whale&collection=default", "/docs", "/", *(view.path for view in VIEWS)]


@pytest.mark.parametrize("path", PATHS)
def test_pages_show(stored: FlaskClient, path: str) -> None:
    assert "Attend" in page(stored, path).text


@pytest.mark.parametrize("value", ["", "label", "n", "v", "yes", "none", "@id", "@key"])
@pytest.mark.parametrize("mode", ["hard", "soft"])
def test_search_page_shows_every_kind_of_answer(stored: FlaskClient, value: str, mode: str) -> None:
    response = stored.get(f"/search?q={EVIL}&value={value}&mode={mode}", headers=BROWSER)
    if value == "none":  # no document has one
        assert response.status_code == 422
        return
    shown = page(stored, f"/search?q={EVIL}&value={value}&mode={mode}").text
    assert "&lt;script&gt;" in shown
    assert shown.count("<tr>") > 10


def test_accept_decides_between_page_and_json(stored: FlaskClient) -> None:
    assert stored.get("/search?q=whale").is_json
    assert stored.get("/search?q=whale", headers={"Accept": "*/*"}).is_json
    assert not page(stored, "/search?q=whale").is_json
    assert "Accept" in stored.get("/search?q=whale").headers["Vary"]


def test_a_browser_gets_its_problems_as_a_page(stored: FlaskClient) -> None:
    assert "k" in page(stored, f"/search?q={EVIL}&k=0", 422).text
    assert "/docs" in page(stored, f"/{EVIL}", 404).text
    problem: Any = stored.get("/v1/nothing", headers=BROWSER)
    assert problem.content_type == "application/problem+json"


def test_a_filter_in_the_address_stays_within_its_attribute(stored: FlaskClient) -> None:
    given = json.dumps({"kind": {"ne": EVIL + '" autofocus onfocus="alert(1)'}})
    shown = page(stored, f"/search?q=whale&filter={quote(given)}").text
    parser = Attributes()
    parser.feed(shown)
    assert json.loads(parser.found["filter"]) == json.loads(given)
    assert "onfocus" not in parser.names


class Attributes(HTMLParser):
    """The values of fields by name, and all names of attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, str] = {}
        self.names: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.names |= set(given)
        if "name" in given:
            self.found[given["name"]] = given.get("value", "")


def test_home_of_an_empty_service_says_how_to_begin(client: FlaskClient) -> None:
    assert "attend build" in page(client, "/").text


def test_the_type_of_a_problem_leads_to_its_row(client: FlaskClient) -> None:
    slug = client.get("/nothing").get_json()["type"].split("#")[1]
    assert f'id="{slug}"' in page(client, "/docs").text


def test_what_people_search_and_label_is_offered_to_nobody_else(stored: FlaskClient) -> None:
    label = {"query": "what my doctor said", "id": f"{EVIL}/1", "label": 1}
    assert stored.post("/v1/collections/default/feedback", json=[label]).status_code == 200
    assert "my doctor" not in page(stored, "/").text
