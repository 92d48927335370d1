"""The map: points on a canvas, the drawer, the lasso, and the movement between versions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

import numpy as np
import pytest

from attend import Data
from attend.projection import given
from tests.service.pages.conftest import Tab
from tests.service.test_server import Server, running, wait_until_ready

BOOKS = "/v1/collections/books"
POINTS = "/v1/collections/points"
DRAWN = "#picture canvas[data-drawn]"
WHALE = "/map?collection=books&q=a+white+whale&projection=2&method=pca"
LEGEND = """() => [...document.querySelectorAll('#key .key li:has(i)')]
  .map(item => [item.querySelector('span').innerText, item.firstChild.style.background])"""
FRAMES = """() => new Promise(done =>
  requestAnimationFrame(() => requestAnimationFrame(() => requestAnimationFrame(done))))"""
COLOURS = """() => {
  const canvas = document.querySelector('#picture canvas');
  const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  return [...new Set(new Uint32Array(data.buffer))].length;
}"""


@pytest.fixture
def whale(tab: Tab) -> Tab:
    """The map of all books with a query whose best document is marked."""
    tab.open(WHALE)
    tab.page.wait_for_selector("#attended li")
    tab.page.focus("#picture")
    tab.page.keyboard.press("ArrowRight")
    tab.page.wait_for_selector("#here", state="visible")
    return tab


@pytest.fixture(scope="module")
def points_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Two groups of points with a second version that moves them."""
    folder = tmp_path_factory.mktemp("points")
    random = np.random.default_rng(0)
    vectors = np.repeat(np.eye(4)[:2], 6, axis=0) + 0.05 * random.normal(size=(12, 4))
    with Data(folder) as data:
        points = data.create("points", dimension=4)
        points.upsert(
            [{"id": f"p{n}", "vector": v.tolist(), "value": n // 6} for n, v in enumerate(vectors)]
        )
        moved = np.diag([1.0, 0.2, 3.0, 1.0])
        points.add_projection(given(np.eye(4), moved, kind="learned"))
    with running(folder) as server:
        wait_until_ready(server)
        yield server


@pytest.fixture
def points(points_server: Server, browser: Any) -> Iterator[Tab]:
    """A tab on that server, in which nothing may go wrong."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    tab = Tab(context.new_page(), points_server)
    yield tab
    assert tab.errors == []
    context.close()


def best(tab: Tab) -> Any:
    body = {"query": "a white whale", "projection": 2, "title": True}
    return tab.ask(f"{BOOKS}/search", body)["hits"][0]


def mark(tab: Tab) -> tuple[float, float]:
    """The middle of the mark within the map, once it is drawn: the page may be scrolled."""
    tab.in_page(FRAMES)
    box, around = (tab.page.locator(each).bounding_box() for each in ("#here", "#picture"))
    return box["x"] + box["width"] / 2 - around["x"], box["y"] + box["height"] / 2 - around["y"]


def lasso(tab: Tab, left: float, top: float, right: float, bottom: float) -> None:
    """Draw a rectangle around shares of the map."""
    box = tab.page.locator("#picture").bounding_box()
    corners = [(left, bottom), (right, bottom), (right, top), (left, top)]
    points = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in corners]
    tab.page.click("#lasso")
    tab.page.mouse.move(*points[0])
    tab.page.mouse.down()
    for point in points[1:]:
        tab.page.mouse.move(*point, steps=3)
    tab.page.mouse.up()
    tab.page.wait_for_selector("#drawer h2:has-text('selected')")


def test_the_map_has_every_document_and_what_the_query_attends_to(whale: Tab) -> None:
    assert whale.page.get_attribute(DRAWN, "data-drawn") == "80"
    assert "80 documents of 80" in whale.text("#said")
    hit = best(whale)
    assert whale.text("#attended li:first-child .name") == hit["title"]
    assert whale.text("#readout").startswith(hit["title"])
    shelf = whale.ask(f"{BOOKS}/documents/{hit['id']}")["value"]["shelf"]
    assert f"shelf: {shelf}" in whale.text("#readout")
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft", "ArrowLeft"):
        whale.page.keyboard.press(key)
    assert whale.text("#readout").startswith(hit["title"])


def test_a_document_is_opened_by_a_click_or_by_enter_with_its_neighbours(whale: Tab) -> None:
    hit = best(whale)
    neighbours = whale.ask(
        f"{BOOKS}/search", {"query": {"id": hit["id"]}, "projection": 2, "k": 8, "title": True}
    )["hits"]
    whale.page.keyboard.press("Enter")
    whale.page.wait_for_selector("#drawer .map-neighbours li")
    assert whale.text("#drawer h2") == hit["title"]
    shown = whale.page.locator("#drawer .map-neighbours button").all_inner_texts()
    assert shown == [other["title"] for other in neighbours]
    href = whale.page.get_attribute("#drawer a:has-text('Open the document')", "href")
    assert parse_qs(urlparse(href).query) == {"collection": ["books"], "id": [hit["id"]]}
    whale.page.click("#drawer .map-neighbours button >> nth=0")
    whale.page.wait_for_selector(f"#drawer h2:has-text('{neighbours[0]['title']}')")
    whale.page.keyboard.press("Escape")
    assert whale.page.is_hidden("#drawer")
    x, y = mark(whale)
    whale.page.click("#picture", position={"x": x, "y": y})
    whale.page.wait_for_selector("#drawer .map-neighbours li")
    assert whale.text("#drawer h2") in whale.text("#readout")


def test_the_map_is_zoomed_and_moved(whale: Tab) -> None:
    before = mark(whale)
    box = whale.page.locator("#picture").bounding_box()
    middle = box["width"] / 2, box["height"] / 2
    whale.page.click("#farther")
    nearer = mark(whale)
    whale.page.click("#whole")
    assert mark(whale) == pytest.approx(before, abs=1)
    assert np.hypot(*np.subtract(nearer, middle)) < np.hypot(*np.subtract(before, middle))
    corner = box["x"] + 30, box["y"] + box["height"] - 30
    whale.page.mouse.move(*corner)
    whale.page.mouse.down()
    whale.page.mouse.move(corner[0] + 40, corner[1] - 25, steps=4)
    whale.page.mouse.up()
    assert mark(whale) == pytest.approx((before[0] + 40, before[1] - 25), abs=1.5)
    whale.page.focus("#picture")
    whale.page.keyboard.press("0")
    assert mark(whale) == pytest.approx(before, abs=1)


def test_a_movement_is_shown_where_keys_moved(points: Tab) -> None:
    points.open("/map?collection=points&projection=2&method=pca")
    points.page.wait_for_selector(DRAWN)
    columns = points.ask(f"{POINTS}/map/columns", {"projection": 2, "before": 1, "method": "pca"})
    assert columns["moved"]
    x, y, was_x, was_y = (np.array(columns[name]) for name in ("x", "y", "was_x", "was_y"))
    place = int(np.argmax(np.hypot(was_x - x, was_y - y)))
    points.page.focus("#picture")
    for _ in range(place + 1):
        points.page.keyboard.press("ArrowRight")
    points.page.wait_for_selector("#here", state="visible")
    assert points.text("#readout").startswith(columns["ids"][place])
    after = mark(points)
    points.page.locator("#time input").fill("0")
    moved = np.subtract(mark(points), after)
    expected = np.array([was_x[place] - x[place], y[place] - was_y[place]])
    assert np.hypot(*moved) > 1
    assert moved / np.hypot(*moved) == pytest.approx(expected / np.hypot(*expected), abs=0.1)
    points.page.click("#time button")
    points.page.wait_for_function("() => document.querySelector('#time input').value === '1'")
    assert mark(points) == pytest.approx(after, abs=1)


@pytest.mark.parametrize(
    ("version", "difference"),
    [("4", "only words and confidence differ"), ("2", "only queries lie elsewhere")],
)
def test_where_documents_stay_the_map_says_so(tab: Tab, version: str, difference: str) -> None:
    tab.open(f"/map?collection=books&before=1&projection={version}")
    said = f"Versions 1 and {version} place documents alike: {difference}."
    tab.page.wait_for_selector(f"#said:has-text('{said}')")
    assert tab.page.is_hidden("#time")


def test_the_map_opens_coloured_by_the_value_and_a_value_keeps_its_colour(tab: Tab) -> None:
    tab.open("/map?collection=books")
    tab.page.wait_for_selector("#key li")
    assert tab.page.input_value("[name=colour]") == "shelf"
    assert tab.page.input_value("[name=method]") == "tsne"
    before = tab.in_page(LEGEND)
    assert {name.split()[0] for name, _ in before} == {"sea", "horror", "garden", "space"}
    tab.page.fill("[name=q]", "roses")
    tab.page.wait_for_selector("#attended li")
    assert tab.in_page(LEGEND) == before
    tab.page.select_option("[name=colour]", "price")
    tab.page.wait_for_selector("#key .strip")
    ticks = [float(tick) for tick in tab.page.locator("#key .ticks span").all_inner_texts()]
    assert ticks == sorted(ticks)
    assert tab.in_page(COLOURS) > 10


def test_numbers_and_names_that_are_the_value_colour_the_map(tab: Tab) -> None:
    tab.open("/map?collection=of-category")
    tab.page.wait_for_selector("#key li")
    assert tab.page.input_value("[name=colour]") == "@value"
    assert tab.page.input_value("[name=method]") == "pca"  # there are only a few documents
    tab.page.select_option("[name=method]", "tsne")
    tab.page.wait_for_selector("#status:has-text('it takes at least 8')")


def test_the_lasso_searches_among_documents_and_keeps_them_on_the_map(whale: Tab) -> None:
    lasso(whale, 0.01, 0.02, 0.5, 0.98)
    many = int(whale.text("#drawer h2").split()[0])
    assert 0 < many < 80
    href = whale.page.get_attribute("#drawer a:has-text('Search among these')", "href")
    sent = {name: values[0] for name, values in parse_qs(urlparse(href).query).items()}
    assert (sent["collection"], sent["q"], sent["projection"]) == ("books", "a white whale", "2")
    body = {"query": sent["q"], "filter": json.loads(sent["filter"]), "k": 100, "attend": 100}
    assert len(whale.ask(f"{BOOKS}/search", body)["hits"]) == many
    whale.page.click("#drawer button:has-text('Show only these')")
    whale.page.wait_for_selector(f"#picture canvas[data-drawn='{many}']")
    assert "only documents that pass" in whale.text("#narrowed")
    whale.page.click("#narrowed button")
    whale.page.wait_for_selector("#picture canvas[data-drawn='80']")


def test_the_lasso_teaches(points: Tab) -> None:
    points.open("/map?collection=points&q=1+0+0+0&projection=1&method=pca")
    points.page.wait_for_selector("#attended li")
    lasso(points, 0.01, 0.02, 0.5, 0.98)
    assert points.text("#drawer h2") == "6 documents selected"
    points.page.click("#drawer button:text-is('Relevant')")
    points.page.wait_for_selector("#drawer [role=status]:has-text('marked as relevant')")
    stored = points.ask(f"{POINTS}/feedback?limit=100")["items"]
    assert {item["label"] for item in stored} == {1.0}
    assert len({item["document"] for item in stored}) == 6


def test_neighbourhoods_come_while_one_looks_at_the_axes(points: Tab) -> None:
    rows = np.random.default_rng(0).normal(size=(600, 8)).tolist()
    documents = [{"id": str(n), "vector": row} for n, row in enumerate(rows)]
    assert points.server.request("PUT", "/v1/collections/many", {"dimension": 8})[0] == 201
    points.ask("/v1/collections/many/documents", {"documents": documents})
    points.open("/map?collection=many")
    points.page.wait_for_selector(DRAWN)
    points.page.wait_for_selector("#said:has-text('flat view')")
    points.page.wait_for_selector("#status:has-text('Neighbourhoods are being computed')")
    points.page.wait_for_selector("#said:has-text('lie together')")
    assert points.text("#status") == ""
    columns = points.ask("/v1/collections/many/map/columns", {})
    assert (columns["method"], columns["pending"]) == ("tsne", None)


def test_the_map_is_saved_as_a_picture(whale: Tab, tmp_path: Path) -> None:
    with whale.page.expect_download() as waited:
        whale.page.click("#png")
    waited.value.save_as(tmp_path / "map.png")
    content = (tmp_path / "map.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    width = int.from_bytes(content[16:20], "big")
    assert width == pytest.approx(whale.page.locator("#picture").bounding_box()["width"], abs=3)


def test_groups_have_words_and_a_table(tab: Tab) -> None:
    tab.open("/map?collection=books")
    tab.page.wait_for_selector("#groups summary")
    tab.page.click("#groups summary")
    words = {
        word
        for row in tab.page.locator("#groups tbody th").all_inner_texts()
        for word in row.split(", ")
    }
    assert {"garden", "crew", "castle"} <= words
