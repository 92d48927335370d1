"""The chip of every header and the view of Compare, on collections that really learned."""

from __future__ import annotations

import http.client
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attend import Collection, Data
from attend.projection import given
from tests.service.pages import proof
from tests.service.pages.conftest import BROWSER, VIEWS, Tab
from tests.service.test_server import Server, command, running, wait_until_ready

PAGES = [name for name in VIEWS if name != "docs"]
DOT = "#report svg circle"


@pytest.fixture(scope="module")
def learned(
    tmp_path_factory: pytest.TempPathFactory, tiny_encoder_folder: Path
) -> Iterator[Server]:
    if BROWSER is None:
        pytest.skip("The browser is not installed here")
    folder = tmp_path_factory.mktemp("proof")
    proof.build(folder, str(tiny_encoder_folder))
    with running(folder, "--allow-encoder", str(tiny_encoder_folder)) as server:
        wait_until_ready(server)
        yield server


@pytest.fixture
def new_page(browser: Any, learned: Server) -> Iterator[Callable[..., Tab]]:
    """Make a tab on these collections, in which nothing may go wrong."""
    tabs = []

    def make(width: int = 1280, **options: Any) -> Tab:
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        tabs.append((context, Tab(context.new_page(), learned)))
        return tabs[-1][1]

    yield make
    for context, tab in tabs:
        assert tab.errors == []
        context.close()


def active(tab: Tab, collection: str) -> Any:
    versions = tab.ask(f"/v1/collections/{collection}/projections")["projections"]
    return next(version for version in versions if version["active"])


def compare(tab: Tab, collection: str, **more: str) -> Tab:
    tab.open("/compare?collection={c}", collection, **more)
    tab.page.wait_for_selector("#report svg")
    return tab


def test_every_header_says_which_version_answers_and_what_was_proved(
    new_page: Callable[..., Tab],
) -> None:
    tab = new_page()
    for name in PAGES:
        if "{c}" not in VIEWS[name] and "collection=" in VIEWS[name]:
            continue  # it is about a collection that is not here
        for collection in ("proved", "unproved", "untaught"):
            path = VIEWS[name].format(c=collection).replace("sea-3", "cat harbour")
            if "collection=" not in path:
                path += f"{'&' if '?' in path else '?'}collection={collection}"
            tab.page.goto(tab.base + path, wait_until="domcontentloaded")
            evidence = active(tab, collection)["evidence"]
            assert tab.text("#evidence") == evidence["sentence"], path
            assert tab.page.get_attribute("#evidence", "data-state") == evidence["state"]
            link = tab.page.get_attribute("#evidence", "href")
            assert link == f"/compare?collection={collection}"
        tab.page.wait_for_load_state()
    tab.errors.clear()  # a page that was left while it loaded


def test_the_chip_follows_the_collection_and_the_version_in_use(
    new_page: Callable[..., Tab],
) -> None:
    tab = new_page().open("/teach?collection=untaught")
    assert tab.text("#evidence") == "Version 1 · as encoded"
    tab.page.select_option("[name=collection]", "proved")
    sentence = active(tab, "proved")["evidence"]["sentence"]
    assert re.fullmatch(r"Version 2 · ranking \(nDCG@10\) [\d.]+, before [\d.]+ · proved", sentence)
    tab.page.wait_for_selector(f"#evidence:text-is('{sentence}')")
    tab.page.wait_for_selector("#back:not([disabled])")
    tab.page.click("#back")
    tab.page.wait_for_selector("#evidence:text-is('Version 1 · as encoded')")
    tab.page.click("#versions button")
    tab.page.wait_for_selector(f"#evidence:text-is('{sentence}')")


def test_the_chip_needs_no_script(new_page: Callable[..., Tab]) -> None:
    tab = new_page(java_script_enabled=False)
    tab.page.goto(f"{tab.base}/search?q=mooing&collection=proved")
    assert tab.text("#evidence").endswith("· proved")


def test_a_collection_that_a_key_does_not_open_has_no_chip(
    tmp_path: Path, tiny_encoder_folder: Path
) -> None:
    data = Data(tmp_path)
    for name in ("mine", "theirs"):
        data.create(name, dimension=2)
    data.close()
    arguments = ["keys", "add", "--data", str(tmp_path), "--scope", "read", "--collection", "mine"]
    added = subprocess.run(command(*arguments), capture_output=True, text=True, check=True)
    key = re.findall(r"attend_[0-9a-f]{12}_[\w-]{43}", added.stdout + added.stderr)[0]
    with running(tmp_path) as server:
        wait_until_ready(server)
        for name, is_shown in (("mine", True), ("theirs", False)):
            connection = http.client.HTTPConnection(server.host, server.port, timeout=60)
            headers = {"X-Api-Key": key, "Accept": "text/html"}
            connection.request("GET", f"/compare?collection={name}", headers=headers)
            text = connection.getresponse().read().decode()
            assert ("as encoded" in text) == is_shown, name
            connection.close()


@pytest.mark.parametrize("collection", ["proved", "unproved"])
def test_compare_begins_with_what_is_proved(new_page: Callable[..., Tab], collection: str) -> None:
    tab = compare(new_page(), collection)
    evidence = active(tab, collection)["evidence"]
    assert tab.text("#verdict") == evidence["verdict"]
    shown = tab.text("main")
    assert "Not promoted" not in shown
    assert shown.index(evidence["verdict"]) < shown.index("Gains on what was held out")
    start = {"proved": "Proved better: nDCG@10", "unproved": "In use for its confidence; its rank"}
    assert evidence["verdict"].startswith(start[collection])


@pytest.mark.parametrize("width", [1280, 360])
def test_each_gain_has_its_dot_and_interval_on_an_axis_with_zero(
    new_page: Callable[..., Tab], width: int
) -> None:
    tab = compare(new_page(width), "proved")
    views = active(tab, "proved")
    report = tab.ask(f"/v1/collections/proved/projections/{views['version']}")["report"]
    rows = tab.in_page(
        """() => [...document.querySelectorAll("#report svg > g")].map((row) => {
          const number = (text) => Number(text.replace("−", "-").replace("+", ""));
          const texts = [...row.querySelectorAll("text")];
          const lines = [...row.querySelectorAll("line")];
          const at = (line, name) => Number(line.getAttribute(name));
          const ticks = texts.slice(2).map((tick) => number(tick.textContent));
          const [axis] = lines;
          const span = lines.find((line) => line.getAttribute("stroke-linecap"));
          const [left, right] = [at(axis, "x1"), at(axis, "x2")];
          const span_of = ticks.at(-1) - ticks[0];
          const value = (x) => ticks[0] + ((x - left) / (right - left)) * span_of;
          return {
            label: texts[0].textContent, means: texts[1].textContent, ticks,
            gain: value(at(row.querySelector("circle"), "cx")),
            interval: [value(at(span, "x1")), value(at(span, "x2"))],
          };
        })"""
    )
    assert rows[0]["label"] == "Both, as in use"
    assert len(rows) == len(report["views"]) == 4
    by_means = {
        f"{each['before']:.3f} → {each['after']:.3f}": each for each in report["views"].values()
    }
    for row in rows:
        view = by_means[row["means"]]
        assert row["gain"] == pytest.approx(view["difference"], abs=1e-3)
        assert row["interval"] == pytest.approx(view["interval"], abs=1e-3)
        assert 0 in row["ticks"]
        assert row["ticks"][0] <= row["interval"][0] <= row["interval"][1] <= row["ticks"][-1]
    assert tab.overflow() <= 0
    assert tab.serious() == []


def test_the_steps_are_those_of_the_report(new_page: Callable[..., Tab]) -> None:
    tab = compare(new_page(), "proved")
    steps = tab.ask("/v1/collections/proved/projections/2")["report"]["steps"]
    names = {"encoded": "As encoded", "feedback": "With feedback", "trained": "Trained"}
    wanted = [[names[step["name"]], f"{step['means']['mix']:.3f}"] for step in steps]
    shown = tab.in_page(
        "() => [...document.querySelectorAll('.learned li')].map((row) => "
        "[row.querySelector('.name').innerText, row.querySelector('.number').innerText])"
    )
    assert shown == wanted
    assert len(shown) == 3
    # One number for one thing: "before" of the picture is the step that answered then.
    assert wanted[1][1] in str(tab.page.text_content("#report svg g"))
    assert "without its own feedback" in tab.text(".learned")


def test_changed_questions_name_a_right_and_a_wrong_document(new_page: Callable[..., Tab]) -> None:
    tab = compare(new_page(), "proved")
    told = tab.ask("/v1/collections/proved/projections/2/questions")
    tab.page.wait_for_selector("#held-out li")
    before, after = told["right_first"]
    assert f"right for {before} before and {after} after" in tab.text("#questions")
    assert tab.page.locator("#questions li").count() == len(told["items"]) > 8
    assert tab.page.locator("#questions > div > ol > li").count() == 8  # the rest is folded
    for row, item in zip(tab.page.locator("#questions li").all(), told["items"], strict=True):
        good, bad = row.locator("span.good"), row.locator("span.bad")
        assert (good.count(), bad.count()) == (1, 1)
        assert item["text"] in str(row.text_content())
    # They are the queries of the picture of ranks, where the address names none.
    assert tab.page.input_value("#q").split("\n")[0] == told["items"][0]["text"]


def test_before_stays_as_it_is_while_one_teaches(new_page: Callable[..., Tab]) -> None:
    tab = compare(new_page(), "proved", q="mooing+village")

    def ranks() -> str:
        tab.page.wait_for_selector("#picture circle, #picture line", state="attached")
        return str(tab.page.text_content("#picture svg"))

    first = ranks()
    assert "Without feedback" in tab.text("#moved")
    path = "/v1/collections/proved/feedback"
    items = [{"query": "mooing village", "id": id} for id in ("lion tower", "pig forest")]
    status, _ = tab.server.request("POST", path, {"items": items})
    assert status == 200
    tab.page.reload()
    assert ranks() == first
    tab.page.check("[name=feedback]")
    tab.page.wait_for_function(
        "text => document.querySelector('#picture svg')?.textContent !== text", arg=first
    )
    assert "Feedback moves the queries" in tab.text("#moved")
    assert "feedback=1" in tab.page.url
    stored = [each["id"] for each in tab.ask(f"{path}?limit=2")["items"]]
    tab.server.request("DELETE", path, {"ids": stored})


def test_the_fold_has_means_intervals_and_p_values(new_page: Callable[..., Tab]) -> None:
    tab = compare(new_page(360), "proved")
    tab.page.click("#report summary")
    views = tab.ask("/v1/collections/proved/projections/2")["report"]["views"]
    table = tab.text("#report table")
    for view in views.values():
        assert f"+{view['difference']:.3f}" in table
        assert f"{view['before']:.3f} → {view['after']:.3f}" in table
    assert "p < 0.001" in table
    right = tab.in_page(
        "() => [document.querySelector('#report table'), document.querySelector('#report')]"
        ".map((each) => each.getBoundingClientRect().right)"
    )
    assert right[0] <= right[1] + 1  # not cut
    assert tab.overflow() <= 0


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ("[0, 0.335, 0.277, 0.388]", [0, 0.1, 0.2, 0.3, 0.4]),
        ("[0, -0.012, 0.031]", [-0.02, 0, 0.02, 0.04]),
        ("[0, 0, 0]", [0, 0.005]),
        ("[0, -12, -30]", [-30, -20, -10, 0]),
    ],
)
def test_ticks_are_round_and_hold_all_values(
    new_page: Callable[..., Tab], values: str, ticks: list[float]
) -> None:
    tab = new_page().open("/search?collection=untaught")
    script = f"async () => (await import('/static/js/report.js')).ticksOf({values})"
    assert tab.in_page(script) == pytest.approx(ticks)


@pytest.mark.parametrize("room", [290, 640, 900])
def test_long_titles_leave_room_for_the_lines(new_page: Callable[..., Tab], room: int) -> None:
    tab = new_page().open("/search?collection=untaught")
    width, lines = tab.in_page(
        """async (room) => {
          const { slopes } = await import("/static/js/slope.js");
          const title = "a very long title ".repeat(9);
          const list = ["1", "2", "3"].map((id) => ({ id, title: `${id} ${title}`, weight: 0.3 }));
          const svg = slopes(list, [...list].reverse(), ["Version 1", "Version 2"], room);
          const line = svg.querySelector("line");
          return [svg.width.baseVal.value, line.x2.baseVal.value - line.x1.baseVal.value];
        }""",
        room,
    )
    assert width <= room + 1
    assert lines >= 0.25 * room


def used_collection(folder: Path, name: str, encoder: str) -> Collection:
    """A collection that logs its searches, and interleaves two versions, of which the active one
    lists everything reversed."""
    made = Data(folder).create(name, encoder=encoder)
    made.upsert([{"id": str(n), "text": f"w{n} w{n + 1} w{n + 2}"} for n in range(60)])
    made.configure(log=True)
    width = made.settings.dimension
    turned = given(-np.eye(width), np.eye(width), kind="learned")
    made.activate(
        made.add_projection(turned),
        force=True,
        report={"promoted": True, "reason": "Because.", "used": {"relevant": 1}},
    )
    made.configure(interleave=[1, 2])
    return made


def test_a_version_that_use_has_sent_back_is_marked_and_the_story_of_versions_told(
    browser: Any, tmp_path: Path, tiny_encoder_folder: Path
) -> None:
    made = used_collection(tmp_path, "worn", str(tiny_encoder_folder))
    for number in range(200):
        answer = made.search(f"w{number % 60} w{number % 60 + 1}", lexical=False)
        made.used(
            answer.search or "", [hit.id for hit in answer.hits if hit.id == str(number % 60)]
        )
    result = made.review()
    assert result is not None
    assert result.event == "rolled_back"
    used_collection(tmp_path, "fresh", str(tiny_encoder_folder)).rollback()
    sentence = f"{made.learned().sentence}."
    assert sentence.startswith("Learned from use: 1 promotion, 1 rollback, ")
    made.close()
    with running(tmp_path, "--allow-encoder", str(tiny_encoder_folder)) as server:
        wait_until_ready(server)
        tab = Tab(browser.new_context().new_page(), server)
        tab.open("/compare?collection=worn&before=1&after=2")
        tab.page.wait_for_selector("#learned:not(:empty)")
        assert tab.text("#learned") == sentence
        names = [each.strip() for each in tab.page.locator("[name=after] option").all_inner_texts()]
        assert names == [
            "Version 1, as encoded, in use",
            "Version 2, learned (proved), sent back by use",
        ]
        tab.page.wait_for_selector("#verdict:has-text('Sent back by use: Version ')")
        versions = tab.ask("/v1/collections/worn/projections")["projections"]
        assert [version["evidence"]["rolled_back"] for version in versions] == [False, True]
        tab.open("/teach?collection=worn")
        tab.page.wait_for_selector("#versions li:has-text('sent back by use')")
        assert tab.page.locator("#versions li:has-text('sent back by use')").count() == 1
        tab.open("operate")
        tab.page.wait_for_selector("#learned:has-text('Learned from use')")
        assert tab.text("#learned") == f"worn: {sentence}"
        tab.page.click("#learned a")
        tab.page.wait_for_url("**/compare?collection=worn")
        assert tab.errors == []
