"""The pages of a collection, a document and a user, the menu, the API's page, and problems."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import pytest

from attend import Data
from attend_service.keys import KeyFile
from tests.service.pages.conftest import Tab
from tests.service.test_server import running, wait_until_ready

BOOKS = "/v1/collections/books"


def titles(tab: Tab, selector: str = "#documents h3") -> list[str]:
    return [each.inner_text() for each in tab.page.query_selector_all(selector)]


# -- collection ---------------------------------------------------------------------------------


def test_a_collection_is_read_page_by_page(tab: Tab) -> None:
    tab.open("collection")
    first = tab.ask(f"{BOOKS}/documents?limit=20&title=true")
    assert titles(tab) == [each["title"] for each in first["documents"]]
    assert tab.text("#listed") == "80 documents"
    tab.page.click("text=Next page")
    second = tab.ask(f"{BOOKS}/documents?limit=20&title=true&cursor={quote(first['next'])}")
    expected = [each["title"] for each in second["documents"]]
    tab.page.wait_for_selector("#pages:has-text('Page 2 of 4')")
    assert titles(tab) == expected
    tab.page.reload()  # the address has the page
    tab.page.wait_for_selector("#pages:has-text('Page 2 of 4')")
    assert titles(tab) == expected
    tab.page.click("text=First page")
    tab.page.wait_for_selector("#pages:has-text('Page 1 of 4')")
    tab.page.click("#documents h3 a >> nth=0")
    tab.page.wait_for_selector("#document .prose")


def test_a_filter_narrows_the_list_and_is_in_the_address(tab: Tab) -> None:
    tab.open("collection")
    tab.page.click("#filters button:has-text('garden') >> nth=0")
    tab.page.wait_for_selector("#listed:has-text('20 documents with this filter')")
    assert set(titles(tab)) == {each for each in titles(tab) if each.startswith("Garden")}
    chosen = json.loads(parse_qs(urlsplit(tab.page.url).query)["filter"][0])
    assert chosen == {"shelf": {"in": ["garden"]}}
    tab.page.reload()
    tab.page.wait_for_selector("#listed:has-text('20 documents with this filter')")


def test_fields_have_kinds_and_frequent_values(tab: Tab) -> None:
    tab.open("collection")
    tab.page.wait_for_selector("#fields tr")
    rows = {
        each.inner_text().split()[0]: each.inner_text()
        for each in tab.page.query_selector_all("#fields tr")
    }
    assert set(rows) == {"text", "title", "shelf", "year", "tags", "price"}
    assert "searched text" in rows["text"]
    assert "80 different values" in rows["title"]
    assert "garden\n20" in rows["shelf"].replace("garden20", "garden\n20")
    tab.page.click("#fields a:has-text('space') >> nth=0")
    tab.page.wait_for_selector("#listed:has-text('20 documents with this filter')")


def test_a_collection_says_what_it_is_and_where_to_go(tab: Tab) -> None:
    tab.open("collection", collection="rated")
    assert tab.text("h1") == "Rated tales"
    assert tab.text("#described") == "Tales with ratings of two users."
    facts = tab.text("#facts")
    for part in ("rated", "24", "Version 1", "CC0", "https://example.org/tales"):
        assert part in facts
    links = {each.inner_text() for each in tab.page.query_selector_all("#actions a")}
    assert links == {"Search", "Map", "Teach", "Recommend"}
    assert f"{tab.base}/v1/collections/rated/documents" in tab.text("#curl")


def test_an_empty_and_a_vector_collection_say_what_to_do_next(tab: Tab) -> None:
    tab.open("/collection?collection=empty")
    tab.page.wait_for_selector("#next:has-text('no documents yet')")
    assert '"vector":[1,0,0]' in tab.text("#curl")
    tab.page.click("#next a")
    tab.page.wait_for_url("**/add?to=empty")
    assert tab.page.input_value("#name") == "empty"
    tab.open("collection", collection="spots")
    assert "Search with 3 numbers or with the id of a document" in tab.text("#next")
    tab.open("/collection?collection=nil")
    tab.page.wait_for_selector("#status.problem:has-text('no collection “nil”')")


def test_the_request_shown_adds_a_document(tab: Tab) -> None:
    tab.open("collection", collection="spots")
    command = tab.text("#curl")
    body = json.loads(command.split("-d '")[1].removesuffix("'"))
    written = tab.ask("/v1/collections/spots/documents", body)
    assert written["added"] == 1
    tab.server.request("DELETE", "/v1/collections/spots/documents/new-1")


def test_a_file_is_added_to_a_collection_that_exists(tab: Tab, tmp_path: Path) -> None:
    file = tmp_path / "more.csv"
    file.write_text("id,text\nm-1,a ship far out\n")
    tab.open("/add?to=rated")
    tab.page.set_input_files("#file", file)
    tab.page.click("#build")
    tab.page.wait_for_selector("#built a")
    assert tab.ask("/v1/collections/rated/documents/m-1")["fields"] == {"text": "a ship far out"}
    tab.server.request("DELETE", "/v1/collections/rated/documents/m-1")


# -- document -----------------------------------------------------------------------------------


def test_a_document_shows_what_attends_to_it(tab: Tab) -> None:
    items = [
        {"query": "a white whale near the tower", "id": "sea-3", "label": 1},
        {"query": "roses in the garden", "id": "sea-3", "label": 0},
        {"query": "a rocket", "id": "space-1", "label": 1},
    ]
    tab.ask(f"{BOOKS}/feedback", items)
    try:
        tab.open("document")
        tab.page.wait_for_selector("#judged li")
        shown = [each.inner_text() for each in tab.page.query_selector_all("#judged .name")]
        assert [each.split() for each in shown] == [
            ["roses", "in", "the", "garden", "not", "relevant"],
            ["a", "white", "whale", "near", "the", "tower", "relevant"],
        ]
        near = tab.ask(f"{BOOKS}/search", {"query": {"id": "sea-3"}, "k": 24})["hits"]
        attending = []
        for hit in near:
            back = tab.ask(f"{BOOKS}/search", {"query": {"id": hit["id"]}, "k": 8})["hits"]
            attending += [hit["payload"]["title"] for each in back if each["id"] == "sea-3"]
        assert sorted(titles(tab, "#neighbours .name")) == sorted(attending)
    finally:
        tab.server.request("DELETE", f"{BOOKS}/feedback", {"documents": ["sea-3", "space-1"]})


# -- user ---------------------------------------------------------------------------------------


def test_a_user_has_a_history_and_recommendations_with_reasons(tab: Tab) -> None:
    tab.open("user")
    rows = [each.inner_text().split() for each in tab.page.query_selector_all("#history tr")]
    assert len(rows) == 6
    assert {(row[-2], row[-1]) for row in rows} >= {("5", "2024-05-01"), ("1", "2024-05-03")}
    asked = {"user": "ann", "k": 10, "title": True, "explain": True}
    hits = tab.ask("/v1/collections/rated/recommend", asked)["hits"]
    assert titles(tab, "#results .hit h3") == [each["title"] for each in hits]
    reasons = tab.page.query_selector_all("#results li[data-id] >> nth=0 >> .because .name")
    assert len(reasons) == min(3, len(hits[0]["because"]))
    tab.open("/user?collection=rated&user=nobody")
    tab.page.wait_for_selector(".lead:has-text('No interactions of this user')")
    assert tab.page.is_hidden("#loaded")


def test_a_key_that_may_not_read_interactions_sees_no_user(browser: Any, tmp_path: Path) -> None:
    made = Data(tmp_path).create("points", dimension=2)
    made.upsert([{"id": "a", "vector": [1, 0]}, {"id": "b", "vector": [0, 1]}])
    key = KeyFile(tmp_path).add(scope="read")[1]
    with running(tmp_path) as server:
        wait_until_ready(server)
        context = browser.new_context(http_credentials={"username": "me", "password": key})
        tab = Tab(context.new_page(), server).open("/user?collection=points&user=ann")
        tab.page.wait_for_selector("#status:has-text('This needs a key of the scope write')")
        assert tab.page.is_hidden("#loaded")
        assert not [url for url in tab.requests if "recommend" in url.split("/")[-1]]
        tab.open("/collection?collection=points")
        tab.page.wait_for_selector("#documents li")
        context.close()


# -- the menu -----------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_nothing_of_the_menu_is_cut(new_tab: Callable[..., Tab], width: int) -> None:
    tab = new_tab(width=width).open("/operate")
    names = ["Search", "Browse", "Recommend", "Teach"]
    others = ["Attention", "Compare", "Map", "Add data", "Operate", "API"]
    links = ".top nav a"
    shown = [each for each in tab.page.query_selector_all(links) if each.is_visible()]
    assert [each.inner_text() for each in shown] == names + (others if width == 1280 else [])
    for each in shown:
        box = each.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
    if width < 1280:
        tab.page.click("text=More")
        tab.page.click("#others a:has-text('Compare')")
        tab.page.wait_for_url("**/compare?collection=books")
        tab.page.keyboard.press("Escape")
    else:
        assert tab.page.is_hidden(".top button.others")


# -- the API ------------------------------------------------------------------------------------


def test_an_address_opens_its_place_on_the_page_of_the_api(new_tab: Callable[..., Tab]) -> None:
    tab = new_tab(width=360).open("docs")
    assert tab.in_page("() => document.documentElement.scrollHeight") < 3000
    assert tab.page.is_hidden("#search")
    assert tab.in_page("() => [...document.querySelectorAll('th')].every((e) => e.textContent)")
    tab.open("/docs#not-found")
    assert tab.page.is_visible("#not-found")
    tab.page.goto(f"{tab.base}/docs#search")
    tab.page.wait_for_selector("#search pre")
    tab.page.click("#search a:has-text('SearchRequest')")
    tab.page.wait_for_selector("#schema-SearchRequest td")
    tab.page.fill("#find", "rollback")
    entries = [each for each in tab.page.query_selector_all(".entry") if each.is_visible()]
    assert [each.get_attribute("id") for each in entries] == [
        "roll_back_projection",
        "schema-RollbackRequest",
    ]


# -- hits and numbers ---------------------------------------------------------------------------


def test_an_address_in_a_payload_is_a_link_and_a_minus_is_a_minus(tab: Tab) -> None:
    document = {
        "id": "linked-1",
        "text": "a clock that strikes thirteen",
        "value": -2.5,
        "payload": {"cover": "https://covers.example/books/13?size=large"},
    }
    tab.ask("/v1/collections/of-number/documents", [document])
    try:
        tab.open("/search?collection=of-number&q=a+clock+that+strikes+thirteen")
        hit = tab.page.wait_for_selector("#results li[data-id='linked-1']")
        assert "−2.5" in hit.inner_text()
        assert "linked-1" not in hit.inner_text()  # the page of the document has the id
        link = hit.query_selector("dd a")
        assert link.inner_text() == "covers.example ↗"
        assert link.get_attribute("href") == document["payload"]["cover"]
    finally:
        tab.server.request("DELETE", "/v1/collections/of-number/documents/linked-1")


# -- problems -----------------------------------------------------------------------------------


def test_a_problem_is_one_sentence_for_people(new_tab: Callable[..., Tab]) -> None:
    tab = new_tab().open("/search?collection=nope&q=x")
    said = tab.text("main")
    assert said.count("There is no collection of this name here.") == 1
    for word in ("404", "PUT", "attend build", "not-found"):
        assert word not in said
    tab.page.click("main a:text-is('books')")
    tab.page.wait_for_selector("#documents li")
    tab.open("/search?collection=books&q=x&k=0")
    assert tab.page.query_selector("main table") is None


# -- all ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", ["number", "labels", "boolean", "vector", "text", "image", "deep", "mixed"]
)
def test_every_kind_of_value_is_browsed(tab: Tab, kind: str) -> None:
    tab.open("collection", collection=f"of-{kind}")
    assert len(titles(tab)) == 6
    tab.open(f"/document?collection=of-{kind}&id={kind}-0")
    tab.page.wait_for_selector("#document > *")
    assert "Value" in tab.text("#document") or kind == "text"
