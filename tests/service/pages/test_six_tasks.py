"""The point, within three clicks of the start page, on the small collections of the demo."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from attend import Data
from attend_service import demo
from tests.service.pages.conftest import BROWSER, Tab
from tests.service.test_server import Server, running, wait_until_ready

FEW = 3
"""Clicks that each task may take."""


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of the shop and its help desk, as `make demo` builds them first, in that order."""
    if BROWSER is None:
        pytest.skip("The browser is not installed here")
    folder: Path = tmp_path_factory.mktemp("demo")
    data = Data(folder)
    for part in demo.parts(read=list):
        if part.name in ("shop", "desk"):
            demo.prepare(data, part)
    data.close()
    with running(folder) as server:
        wait_until_ready(server)
        yield server


class Visitor:
    """Somebody new on the start page, whose clicks are counted."""

    def __init__(self, tab: Tab) -> None:
        self.tab, self.page, self.clicks = tab, tab.page, 0
        tab.open("/")
        tab.page.wait_for_selector("#stage .answer")

    def click(self, selector: str) -> None:
        self.clicks += 1
        assert self.clicks <= FEW
        self.page.click(selector)

    def story(self, kind: str) -> None:
        self.click(f"a[data-story='{kind}'] >> nth=0")


@pytest.fixture
def visitor(browser: Any, shop: Server) -> Iterator[Visitor]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    tab = Tab(context.new_page(), shop)
    yield Visitor(tab)
    assert tab.errors == []
    context.close()


def test_an_answer_with_its_weights_is_there_at_once(visitor: Visitor) -> None:
    page = visitor.page
    assert page.inner_text("#stage .answer .big").strip()
    shares = "[...document.querySelectorAll('#stage .hits .share span:first-child')]"
    weights = page.evaluate(f"() => {shares}.map(each => parseFloat(each.innerText))")
    assert len(weights) == 3
    assert weights == sorted(weights, reverse=True)
    assert visitor.clicks == 0


def test_a_question_that_nothing_answers(visitor: Visitor) -> None:
    visitor.story("unanswered")
    visitor.page.wait_for_selector("#stage .answer:has-text('Nothing here answers that')")
    assert "%" not in visitor.page.inner_text("#stage .answer")


def test_why_in_words(visitor: Visitor) -> None:
    visitor.click("#stage .hits li:first-child .why")
    visitor.page.wait_for_selector("#stage .waterfall")
    visitor.page.wait_for_selector("#stage .texts .word")
    weight = visitor.page.inner_text("#stage .hits li:first-child .share span:first-child")
    assert weight in visitor.page.inner_text("#stage .waterfall")


def test_the_proof_that_learning_helped(visitor: Visitor) -> None:
    visitor.story("learned")
    visitor.page.wait_for_selector("#stage .proof:has-text('Proved better')")
    visitor.page.wait_for_selector("#stage button[aria-pressed=true]:has-text('After')")
    [best] = visitor.tab.ask(
        "/v1/collections/desk/search", {"query": "they took the money twice", "k": 1, "title": True}
    )["hits"]
    assert visitor.page.inner_text("#stage .changes li:first-child a").startswith(
        best["title"][:40]
    )


def test_three_judgements_whose_effect_is_seen(visitor: Visitor) -> None:
    page = visitor.page
    collection = page.inner_text("#stage h2").split(":")[0]
    feedback = f"/v1/collections/{collection}/feedback"
    try:
        for at in range(FEW):
            ids = "[...document.querySelectorAll('#stage .hits li')].map(each => each.dataset.id)"
            last = page.evaluate(f"() => {ids}")[-1 if at == 0 else at]
            visitor.click(f"#stage .hits li[data-id='{last}'] button:text-is('Relevant')")
            page.wait_for_function(
                "id => document.querySelector(`#stage .hits li[data-id='${id}'] "
                "button[aria-pressed=true]`) !== null || "
                "document.querySelector(`#stage .hits li[data-id='${id}']`) === null",
                arg=last,
            )
        assert visitor.tab.ask(f"{feedback}?limit=0")["examples"] == FEW
        page.wait_for_selector("#stage .chip.moved:has-text('by your judgement')")
    finally:
        visitor.tab.server.request("DELETE", feedback, {"all": True})


def test_recommendations_for_a_person(visitor: Visitor) -> None:
    visitor.story("recommend")
    visitor.page.wait_for_selector("#stage .recommended li:has-text('because of')")
    name = visitor.page.inner_text("#stage h2 a").removeprefix("for ")
    asked = {"user": name, "k": 4, "title": True}
    hits = visitor.tab.ask("/v1/collections/shop/recommend", asked)["hits"]
    links = "[...document.querySelectorAll('#stage .recommended a')].map(each => each.innerText)"
    assert visitor.page.evaluate(f"() => {links}") == [hit["title"] for hit in hits]
