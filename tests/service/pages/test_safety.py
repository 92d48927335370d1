"""Hostile documents stay text, nothing leaves this server, and every view is for everyone."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from attend import Data
from attend_service.keys import KeyFile
from tests.service.pages.conftest import READY, VIEWS, Tab
from tests.service.pages.world import IMAGE, LONG, RIGHT_TO_LEFT, SCRIPT
from tests.service.test_server import running, wait_until_ready

MAX_BYTES = 330_000
NO_VALUE = re.compile(r"\b(null|undefined|NaN)\b|\[object ")


def harmless(tab: Tab) -> None:
    assert tab.in_page("() => window.harmed") is None
    assert tab.errors == []
    foreign = [url for url in tab.requests if not url.startswith((tab.base, "data:", "blob:"))]
    assert foreign == []


@pytest.mark.parametrize("view", VIEWS)
def test_hostile_documents_are_text(new_tab: Callable[..., Tab], view: str) -> None:
    tab = new_tab(width=360)
    path = VIEWS[view].format(c="hostile").replace("&before=1&after=2", "")
    path = path.replace("&before=1&projection=2", "").replace("&like=%5B%22sea-3%22%5D", "")
    path = path.replace("id=sea-3", f"id={quote(f'{SCRIPT}#0')}")
    path = path.replace("collection=rated&user=ann", f"collection=hostile&user={quote(SCRIPT)}")
    tab.open(path)
    if view in READY:
        tab.page.wait_for_selector(READY[view], state="attached")
    assert tab.overflow() <= 0
    harmless(tab)


@pytest.mark.parametrize("view", [view for view in VIEWS if view != "docs"])
def test_no_view_prints_a_missing_value(tab: Tab, view: str) -> None:
    tab.open(view)
    tab.page.wait_for_load_state("load" if view == "operate" else "networkidle")
    assert NO_VALUE.search(tab.text("body")) is None


@pytest.mark.parametrize("query", [SCRIPT, IMAGE, RIGHT_TO_LEFT, LONG])
def test_hostile_queries_are_text(new_tab: Callable[..., Tab], query: str) -> None:
    tab = new_tab(width=360)
    tab.open("/search?collection=hostile")
    tab.page.fill("#q", query)
    tab.page.wait_for_selector("#results .hits li")
    assert tab.overflow() <= 0
    for view in ("/attention", "/teach", "/map"):
        tab.open(f"{view}?collection=hostile")
        tab.page.fill("[name=q]", query)
        tab.page.wait_for_selector(READY[view[1:]], state="attached")
        assert tab.overflow() <= 0
    harmless(tab)


def test_a_hostile_file_is_text(new_tab: Callable[..., Tab]) -> None:
    tab = new_tab(width=360)
    tab.open("add")
    content = f'"{SCRIPT}",text\n"{IMAGE}",{LONG}\n'.encode()
    file: Any = {"name": f"{SCRIPT}.csv", "mimeType": "text/csv", "buffer": content}
    tab.page.set_input_files("#file", file)
    tab.page.wait_for_selector("#preview:not([hidden])")
    assert tab.overflow() <= 0
    harmless(tab)


@pytest.mark.parametrize("view", VIEWS)
def test_no_script_or_style_within_a_page(new_tab: Callable[..., Tab], view: str) -> None:
    tab = new_tab()
    sizes: dict[str, int] = {}
    tab.page.on("response", lambda each: sizes.update({each.url: len(each.body())}))
    response = tab.page.goto(tab.base + VIEWS[view].format(c="books"))
    tab.page.wait_for_load_state("networkidle")
    source = response.text()
    assert all("src=" in tag for tag in re.findall(r"<script[^>]*>", source))
    assert re.search(r"<style|\sstyle=|\son\w+=|javascript:", source) is None
    policy = response.headers["content-security-policy"]
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    first_load = sum(size for url, size in sizes.items() if "/v1/" not in url)
    assert first_load < MAX_BYTES
    harmless(tab)


def test_a_script_that_came_in_would_not_run(tab: Tab) -> None:
    tab.open("/search")
    tab.in_page(
        """() => {
          const script = document.createElement("script");
          script.textContent = "window.harmed = 1";
          document.body.append(script);
        }"""
    )
    assert tab.in_page("() => window.harmed") is None
    assert any("Content Security Policy" in error for error in tab.errors)
    tab.errors.clear()


def test_the_check_of_accessibility_can_fail(new_tab: Callable[..., Tab]) -> None:
    tab = new_tab().open("operate")
    tab.in_page(
        """() => {
          const image = document.createElement("img");
          image.src = "/static/attend.svg";
          const text = document.createElement("p");
          text.textContent = "pale";
          text.style.color = "#bbb";
          text.style.background = "#ccc";
          document.querySelector("main").append(image, text);
        }"""
    )
    assert {name for name, _ in tab.serious()} == {"image-alt", "color-contrast"}


def test_a_part_of_a_page_clears_its_own_error_alone(tab: Tab) -> None:
    tab.open("/operate")
    shown = tab.in_page(
        """async () => {
          const { tell } = await import("/static/js/dom.js");
          const place = document.createElement("p");
          const told = (...given) => { tell(place, ...given); return place.textContent; };
          return [
            told(new Error("cancel"), null), told(null, "look"), told(null),
            told(new Error("look"), "look"), told(null, "ask"), told(null, "look"),
          ];
        }"""
    )
    assert shown == ["cancel", "cancel", "", "look", "look", ""]


def test_a_page_works_with_the_key_that_the_browser_was_asked_for(
    browser: Any, tmp_path: Path
) -> None:
    Data(tmp_path).create("points", dimension=2).upsert([{"id": "a", "vector": [1, 0]}])
    key = KeyFile(tmp_path).add(scope="read")[1]
    with running(tmp_path) as server:
        wait_until_ready(server)
        credentials = {"username": "me", "password": key}
        context = browser.new_context(http_credentials=credentials)
        tab = Tab(context.new_page(), server).open("/map?collection=points")
        tab.page.wait_for_selector("#picture canvas[data-drawn]")
        # The key reads; what it may not do is told in a sentence, and what the page reads beside
        # it takes the sentence away no more.
        waiting: list[Any] = []
        tab.page.route("**/projections", lambda each: waiting.append(each))
        tab.open("/teach?collection=points&q=1+0")
        tab.page.click("#results button:has-text('Relevant') >> nth=0")
        refused = "#status:has-text('This needs a key of the scope write')"
        tab.page.wait_for_selector(refused)
        for each in waiting:
            each.continue_()
        tab.page.wait_for_selector("#versions li")
        assert tab.page.is_visible(refused)
        context.close()
