"""The start page in a browser: stories that play in place, of whatever collections there are."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attend import Collection, Data
from attend.core.settings import Tuning
from attend.core.types import Json
from attend.projection import given, identity
from attend_service.pages import FOREIGN, StartQuestion, store_questions
from tests.service.pages import world
from tests.service.pages.conftest import BROWSER, IS_FIREFOX, Tab
from tests.service.test_server import Server, running, wait_until_ready

SHIFT = """() => new Promise((resolve) => {
  let sum = 0;
  new PerformanceObserver((list) => {
    for (const each of list.getEntries()) if (!each.hadRecentInput) sum += each.value;
  }).observe({ type: "layout-shift", buffered: true });
  setTimeout(() => resolve(sum), 1500);
})"""
USERS = ("Ann", "Ben", "Cleo")
PROOF: dict[str, Json] = {
    "promoted": True,
    "previous": 1,
    "reason": "The gain is significant.",
    "views": {"mix": {"queries": 120, "before": 0.77, "after": 0.83, "p": 0.004}},
}


def stories(folder: Path, encoder: str) -> None:
    """A collection of each kind of story."""
    data = Data(folder)
    empty = data.create("attic", encoder=encoder)
    assert empty.store.counts()[0] == 0
    desk(data.create("desk", encoder=encoder))
    books(data.create("library", encoder=encoder))
    shop(data.create("shop", encoder=encoder))
    world.points(data.create("spots", dimension=3))
    data.close()


def books(made: Collection) -> None:
    """Texts that suggest questions; a calibrated version, which refuses what is foreign."""
    world.books(made)
    plain = identity(made.settings.dimension)
    tuning = Tuning(scale=(20.0,), null=(12.0,), threshold=0.6, attend=100, scorer="dot")
    version = made.store.add_projection(
        plain.kind, plain.to_bytes(), plain.fingerprint, {}, tuning=tuning.stored()
    )
    made.activate(version, force=True)
    store_questions(made, [StartQuestion(query="zzz qqq xxx", kind="unanswered")])


def desk(made: Collection) -> None:
    """A version that proved itself, and stored questions."""
    made.upsert(
        [{"id": f"d{at}", "text": text} for at, text in enumerate(world.TOPICS.values())]
        + [{"id": "d9", "text": "a ship in the garden of a castle"}]
    )
    width = made.settings.dimension
    moved = np.eye(width) + 0.3 * np.random.default_rng(3).standard_normal((width, width))
    learned = given(moved, np.eye(width), kind="learned")
    version = made.store.add_projection(
        learned.kind, learned.to_bytes(), learned.fingerprint, {}, report=PROOF
    )
    made.activate(version, force=True, report=PROOF)
    store_questions(
        made,
        [
            StartQuestion(query="a garden with a ship", kind="learned"),
            StartQuestion(query="ship garden", remark="Both ship and garden"),
            StartQuestion(query="who flies to the moon"),
        ],
    )


def shop(made: Collection) -> None:
    """Items that users interacted with."""
    topics = list(world.TOPICS.values())
    made.upsert(
        [
            {"id": f"i{at}", "text": f"{topics[at % 4]} item {at}", "payload": {"title": f"I {at}"}}
            for at in range(40)
        ]
    )
    made.add_interactions(
        [
            {"user": user, "id": f"i{4 * step + at}", "value": 5}
            for at, user in enumerate(USERS)
            for step in range(6 - at)
        ]
    )


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, tiny_encoder_folder: Path) -> Iterator[Server]:
    if BROWSER is None:
        pytest.skip("The browser is not installed here")
    folder = tmp_path_factory.mktemp("stories")
    stories(folder, str(tiny_encoder_folder))
    with running(folder, "--allow-encoder", str(tiny_encoder_folder)) as server:
        wait_until_ready(server)
        yield server


@pytest.fixture
def visit(browser: Any, served: Server) -> Iterator[Callable[..., Tab]]:
    """Make a tab on the stories, in which nothing may go wrong."""
    contexts, tabs = [], []

    def make(width: int = 1280, **options: Any) -> Tab:
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        tabs.append(Tab(context.new_page(), served))
        return tabs[-1]

    yield make
    for context in contexts:
        context.close()
    assert [tab.errors for tab in tabs if tab.errors] == []


def story(tab: Tab, kind: str) -> None:
    tab.page.wait_for_selector("#stage > *")  # before that a click follows the link
    tab.page.click(f"[data-story={kind}]")


def test_four_stories_play_in_place(visit: Callable[..., Tab]) -> None:
    tab = visit().open("/")
    kinds = [each.get_attribute("data-story") for each in tab.page.query_selector_all("#stories a")]
    assert kinds == ["ask", "unanswered", "learned", "recommend"]
    tab.page.wait_for_selector("#stage .answer:not(.refused)")  # the first by itself
    assert "ship garden" in tab.text("#stage h2")
    assert tab.page.query_selector("#stories a:has-text('Ask desk')") is not None
    story(tab, "unanswered")
    tab.page.wait_for_selector("#stage .answer.refused:has-text('Nothing here answers that.')")
    story(tab, "recommend")
    tab.page.wait_for_selector("#stage .recommended li:has-text('because of')")
    assert "Ann" in tab.text("#stage h2")
    tab.page.select_option("#stage select", "Cleo")
    tab.page.wait_for_selector("#stage h2:has-text('Cleo')")
    assert tab.in_page("() => location.pathname") == "/"


def test_what_was_learned_plays_before_and_after(visit: Callable[..., Tab]) -> None:
    tab = visit().open("/")
    story(tab, "learned")
    tab.page.wait_for_selector("#stage [aria-pressed=true]:text-is('After')")
    query, path = "a garden with a ship", "/v1/collections/desk/search"
    body = {"query": query, "k": 100, "min_confidence": 0}
    before, after = (
        {hit["id"]: hit["weight"] for hit in tab.ask(path, body | {"projection": at})["hits"]}
        for at in (1, 2)
    )
    order = "() => [...document.querySelectorAll('#stage li')].map((each) => each.dataset.id)"
    assert tab.in_page(order) == sorted(after, key=lambda each: -after[each])
    first = max(after, key=lambda each: after[each])
    line = tab.text(f"#stage li[data-id={first}] .number")
    shares = [float(each) / 100 for each in re.findall(r"([\d.]+) %", line)]
    assert shares == pytest.approx([before[first], after[first]], abs=0.006)
    tab.page.click("#stage button:text-is('Before')")
    assert tab.in_page(order) == sorted(before, key=lambda each: -before[each])
    assert "Proved better: score 0.770 → 0.830" in tab.text("#stage .proof")
    tab.page.click("#stage .proof a")
    tab.page.wait_for_url("**/compare?collection=desk&q=a+garden+with+a+ship&before=1&after=2")


def test_questions_are_parts_of_texts_and_nobodys_feedback(visit: Callable[..., Tab]) -> None:
    tab = visit().open("/?collection=library")
    # Stored questions of another collection come before suggested ones.
    assert "Ask desk" in tab.text("#stories")
    assert "doctor" not in tab.text("body")


def test_what_is_dropped_and_empty_says_what_to_do(visit: Callable[..., Tab]) -> None:
    tab = visit()
    tab.open("/search?collection=attic")
    tab.page.wait_for_selector("#results .notice a:text-is('Add data')")
    assert "/add?collection=attic" in str(tab.page.get_attribute("#results .notice a", "href"))
    tab.open("/search?collection=spots")
    tab.page.click("#results .unasked a:text-is('nearest to it') >> nth=0")
    tab.page.wait_for_selector("#results .hits li")
    tab.open("/search?collection=library")
    tab.page.wait_for_selector("#results .unasked li a[href^='/document?collection=library']")


@pytest.mark.parametrize("width", [360, 768, 1280])
@pytest.mark.parametrize("path", ["/", "/search?collection=library&q=a+white+whale", "/search"])
def test_pages_stand_still_while_they_load(
    visit: Callable[..., Tab], path: str, width: int
) -> None:
    tab = visit(width=width).open(path)
    assert tab.in_page(SHIFT) <= 0.1
    assert tab.overflow() <= 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_every_story_can_be_read_by_all(visit: Callable[..., Tab], width: int, scheme: str) -> None:
    tab = visit(width=width, color_scheme=scheme).open("/")
    for kind, drawn in (
        ("ask", ".answer"),
        ("unanswered", ".refused"),
        ("learned", ".changes"),
        ("recommend", ".recommended li"),
    ):
        story(tab, kind)
        tab.page.wait_for_selector(f"#stage {drawn}")
        assert tab.serious() == [], kind
        assert tab.overflow() <= 0, kind
        assert not re.search(r"\b(null|undefined|NaN|function)\b", tab.text("body")), kind


@pytest.mark.skipif(IS_FIREFOX, reason="Firefox does not tell the sizes that were sent")
def test_search_is_small_to_load(visit: Callable[..., Tab]) -> None:
    """Page, styles and scripts, as they come over the wire."""
    tab = visit()
    sizes: dict[str, int] = {}
    urls: dict[str, str] = {}
    session = tab.page.context.new_cdp_session(tab.page)
    session.send("Network.enable")
    session.on(
        "Network.responseReceived", lambda e: urls.update({e["requestId"]: e["response"]["url"]})
    )
    session.on(
        "Network.loadingFinished", lambda e: sizes.update({e["requestId"]: e["encodedDataLength"]})
    )
    tab.open("/search?collection=library&q=a+white+whale")
    tab.page.wait_for_selector("#results .hits li")
    loaded = {urls[each]: size for each, size in sizes.items() if each in urls}
    assert sum(size for url, size in loaded.items() if "/v1/" not in url) <= 100_000, loaded


def test_suggestions_and_stories_of_one_collection(
    browser: Any, tmp_path: Path, tiny_encoder_folder: Path
) -> None:
    data = Data(tmp_path)
    made = data.create("books", encoder=str(tiny_encoder_folder))
    world.books(made)
    made.teach([{"query": "what my doctor said", "id": "sea-1", "label": 1}])
    documents = made.store.sample(100)
    world.points(data.create("spots", dimension=3))
    data.close()
    with running(tmp_path, "--allow-encoder", str(tiny_encoder_folder)) as server:
        wait_until_ready(server)
        context = browser.new_context(java_script_enabled=False)
        tab = Tab(context.new_page(), server).open("/")
        assert "Ask books" in tab.text("#stories")
        assert "my doctor" not in tab.page.content()
        asks = [each.inner_text() for each in tab.page.query_selector_all("#questions a")]
        asks.append(tab.text("[data-story=ask] .quiet"))
        for phrase in asks:
            assert 2 <= len(phrase.split()) <= 4
            assert any(phrase in text for one in documents for text in one.fields.values())
            assert all(phrase != one.payload["title"] for one in documents)
        assert FOREIGN in tab.text("[data-story=unanswered]")
        assert tab.page.query_selector("[data-story=learned], [data-story=recommend]") is None
        tab.page.click("[data-story=ask]")  # a link like others
        tab.page.wait_for_selector("#results .scroll table")
        context.close()
