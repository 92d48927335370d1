"""Teaching in a browser: a judgement moves the list, and the way to a proved gain is seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.service.pages.conftest import Tab

BOOKS = "/v1/collections/books"
QUERY = "a white whale"
IDS = "[...document.querySelectorAll('#results .hits > li')].map(item => item.dataset.id)"


@pytest.fixture
def teacher(tab: Tab) -> Iterator[Tab]:
    """A tab whose feedback is deleted at the end."""
    yield tab
    tab.server.request("DELETE", f"{BOOKS}/feedback", {"all": True})


def ids(tab: Tab) -> list[str]:
    shown: list[str] = tab.in_page(f"() => {IDS}")
    return shown


def answer(tab: Tab, **more: Any) -> list[dict[str, Any]]:
    hits: list[dict[str, Any]] = tab.ask(f"{BOOKS}/search", {"query": QUERY, "k": 20, **more})[
        "hits"
    ]
    return hits


def item(id: str) -> str:
    return f"#results li[data-id='{id}']"


def teach(tab: Tab, count: int) -> None:
    hits = answer(tab)
    tab.ask(
        f"{BOOKS}/feedback",
        [{"query": f"{QUERY} number {n}", "id": hits[n % 5]["id"]} for n in range(count)],
    )


def test_a_judgement_moves_the_list_at_once_and_is_undone_by_the_same_button(
    teacher: Tab,
) -> None:
    teacher.open("teach")
    before = answer(teacher)
    assert ids(teacher) == [hit["id"] for hit in before[:5]]
    teacher.page.click("#wider")
    chosen = before[19]["id"]
    relevant = f"{item(chosen)} button:text-is('Relevant')"
    teacher.in_page(f"() => {{ window.kept = document.querySelector(`{item(chosen)}`) }}")
    slides = "window.slides = 0; const old = Element.prototype.animate;"
    slides += "Element.prototype.animate = function (...all) { window.slides += 1;"
    teacher.in_page(f"() => {{ {slides} return old.apply(this, all) }} }}")
    teacher.page.click(relevant)
    teacher.page.wait_for_selector(f"{item(chosen)} .moved:has-text('↑ by your judgement')")
    after = answer(teacher)
    place = [hit["id"] for hit in after].index(chosen)
    assert place < 19
    assert after[place]["weight"] > before[19]["weight"]
    assert ids(teacher) == [hit["id"] for hit in after]
    assert f"place 20 → {place + 1}" in teacher.text(f"{item(chosen)} .moved")
    assert f"It is at place {place + 1} and was at 20" in teacher.text("#said")
    assert teacher.in_page("() => window.slides") > 0
    # The item is the same element, and the focus stays on the button that was pressed.
    assert teacher.in_page(f"() => window.kept === document.querySelector(`{item(chosen)}`)")
    assert teacher.in_page("() => window.kept.contains(document.activeElement)")
    teacher.page.click(relevant)
    teacher.page.wait_for_selector(f"{item(chosen)} .moved", state="detached")
    assert ids(teacher) == [hit["id"] for hit in before]
    assert teacher.ask(f"{BOOKS}/feedback")["examples"] == 0


def test_three_judgements_in_two_clicks_of_the_page(teacher: Tab) -> None:
    teacher.open("teach")
    first = ids(teacher)
    assert teacher.page.is_hidden("#others")
    teacher.page.click(f"{item(first[4])} button:text-is('Relevant')")
    teacher.page.click("#others:has-text('The other 4 are not relevant')")
    teacher.page.wait_for_selector("#said:has-text('4 documents judged not relevant')")
    stored = teacher.ask(f"{BOOKS}/feedback?limit=10")["items"]
    labels = {example["document"]: example["label"] for example in stored}
    assert labels.pop(first[4]) == 1
    assert (len(labels), set(labels.values())) == (4, {0})
    teacher.page.wait_for_selector(f"{item(first[4])} .moved:has-text('by your judgement')")


def test_teaching_by_keyboard(teacher: Tab) -> None:
    teacher.open("teach")
    first, second = ids(teacher)[:2]
    teacher.page.focus("#results .hits > li")
    teacher.page.keyboard.press("y")
    teacher.page.wait_for_selector(f"{item(first)}[data-said='1']")
    # Here the query moves towards several documents, and the page says what is.
    weights = [answer(teacher, **more)[0]["weight"] for more in ({}, {"memory": 0})]
    now, before = (f"{100 * weight:.0f} %" for weight in weights)
    sentence = f"Its weight is {now} and was {before} without feedback"
    teacher.page.wait_for_selector(f"#said:has-text('{sentence}')")
    assert ids(teacher)[:2] == [first, second]
    teacher.page.keyboard.press("ArrowDown")
    teacher.page.keyboard.press("n")
    teacher.page.wait_for_selector(f"{item(second)}[data-said='0']")
    stored = teacher.ask(f"{BOOKS}/feedback?limit=10")
    assert [(each["document"], each["label"], each["position"]) for each in stored["items"]] == [
        (second, 0, 2),
        (first, 1, 1),
    ]
    teacher.page.wait_for_selector("#said:has-text('not relevant')")
    teacher.page.keyboard.press("n")  # again: it is taken back
    teacher.page.wait_for_selector(f"{item(second)}[data-said='']")
    assert teacher.in_page("() => document.activeElement.dataset.id") == second
    teacher.page.keyboard.press("k")
    assert teacher.in_page("() => document.activeElement.dataset.id") == first


def test_a_judgement_of_a_vector_is_undone_too(tab: Tab) -> None:
    spots = "/v1/collections/spots"
    try:
        tab.open("/teach?collection=spots&q=1+0+0")
        tab.page.wait_for_selector("#results li")
        tab.page.click("#results li:first-child button:text-is('Relevant')")
        tab.page.wait_for_selector("#results li[data-said='1']")
        assert tab.ask(f"{spots}/feedback")["examples"] == 1
        tab.page.click("#results li[data-said='1'] button:text-is('Relevant')")
        tab.page.wait_for_selector("#results li[data-said='1']", state="detached")
        assert tab.ask(f"{spots}/feedback")["examples"] == 0
    finally:
        tab.server.request("DELETE", f"{spots}/feedback", {"all": True})


def test_stored_judgements_are_in_a_fold_page_by_page(teacher: Tab) -> None:
    teach(teacher, 12)
    teacher.open("teach")
    teacher.page.wait_for_selector("#stored-count:has-text('(12)')")
    assert teacher.page.is_hidden("#examples")
    teacher.page.click("#stored-count")
    rows = "#examples tbody tr"
    teacher.page.wait_for_function(f"() => document.querySelectorAll('{rows}').length === 10")
    teacher.page.click("#older")
    teacher.page.wait_for_function(f"() => document.querySelectorAll('{rows}').length === 2")
    teacher.page.click("#newest")
    teacher.page.wait_for_function(f"() => document.querySelectorAll('{rows}').length === 10")
    teacher.page.click("#examples button:has-text('Delete') >> nth=0")
    teacher.page.wait_for_selector("#stored-count:has-text('(11)')")
    assert teacher.ask(f"{BOOKS}/feedback")["examples"] == 11


def test_the_bar_says_how_many_questions_are_missing(teacher: Tab) -> None:
    teach(teacher, 1)
    teacher.open("teach")
    teacher.page.wait_for_selector("#count:has-text('1 question of about 200')")
    assert "19 questions with a relevant document to go" in teacher.text("#missing")
    assert teacher.page.is_disabled("#train")
    assert teacher.page.get_attribute("#train", "class") in (None, "")
    teacher.page.click("#results li button:text-is('Relevant') >> nth=0")
    teacher.page.wait_for_selector("#count:has-text('2 questions of about 200')")
    assert teacher.page.get_attribute("#far", "aria-valuenow") == "2"


def test_the_bar_goes_by_the_estimate_of_the_server(teacher: Tab) -> None:
    teach(teacher, 2)
    listed = teacher.ask(f"{BOOKS}/projections")
    listed["projections"][-1]["evidence"] = {"questions": 80, "more": 140}
    teacher.page.route("**/projections", lambda route: route.fulfill(json=listed))
    teacher.open("teach")
    teacher.page.wait_for_selector("#count:has-text('2 questions of about 220 that would prove')")
    assert teacher.page.get_attribute("#far", "aria-valuemax") == "220"


def test_train_is_in_sight_and_the_page_is_short_on_a_telephone(
    new_tab: Callable[..., Tab], teacher: Tab
) -> None:
    teach(teacher, 20)
    small = new_tab(width=360).open("teach")
    small.page.wait_for_selector("#train:enabled")
    place = small.in_page("() => document.getElementById('train').getBoundingClientRect().toJSON()")
    assert 0 < place["top"] < place["bottom"] <= 900
    assert small.in_page("() => document.documentElement.scrollHeight") <= 3000
    assert small.overflow() <= 0
    assert small.serious() == []


def test_a_training_is_followed_to_its_end(teacher: Tab) -> None:
    teach(teacher, 20)
    versions = teacher.ask(f"{BOOKS}/projections")
    teacher.open("teach")
    teacher.page.wait_for_selector("#train.main:enabled")
    teacher.page.click("#train")
    teacher.page.wait_for_selector("#job [data-state=running], #job [data-state=done]")
    assert "Begins" not in teacher.text("#job")
    teacher.page.wait_for_selector("#job [data-state=done]")
    job = teacher.ask("/v1/jobs")["jobs"][0]["id"]
    reason = teacher.ask(f"/v1/jobs/{job}")["result"]["reason"]
    assert reason.split(" (")[0].rstrip(".") in teacher.text("#report")
    teacher.page.wait_for_selector("#train:enabled")
    teacher.page.click("#report button:has-text('Label more queries')")
    assert teacher.in_page("() => document.activeElement.name") == "q"
    assert teacher.ask(f"{BOOKS}/projections")["active"] == versions["active"]


def test_cancel_is_acknowledged_at_once_and_the_end_is_said(tab: Tab) -> None:
    job = {"id": 7, "collection": "books", "created": "2026-01-01T00:00:00Z", "started": None}
    states = [("running", "trying", 0.12), ("running", "trying", 0.12), ("cancelled", "", 0.12)]
    drawn = tab.open("search").in_page(
        """async ([job, states, base]) => {
          const path = document.querySelector('script[src*="search"]').src;
          const { drawJob } = await import(path.replace(/search[^/]*$/, 'jobs.js'));
          const asked = [];
          window.fetch = async (address, options) => {
            asked.push([options.method, address]);
            return new Response('{}', { status: 202 });
          };
          const texts = [];
          for (const [state, stage, fraction] of states) {
            const progress = { stage, fraction, message: 'Cancelled; nothing was changed.' };
            const element = drawJob({ ...job, state, progress }, () => {});
            texts.push(element.innerText || element.textContent);
            element.querySelector('button:enabled')?.click();
            texts.push(element.textContent);
          }
          return { texts, asked };
        }""",
        [job, states, tab.base],
    )
    running, pressed, again, _, stopped, _ = drawn["texts"]
    assert "Trying ways to answer · 12 % done" in running
    assert "Cancel" in running
    assert pressed.count("Stopping…") == 2
    assert "Cancel" not in pressed
    assert again.count("Stopping…") == 2
    assert "Stopped. Nothing was changed." in stopped
    assert drawn["asked"] == [["DELETE", "/v1/jobs/7"]]


def test_the_least_sure_question_is_next(teacher: Tab) -> None:
    queries = ["roses in the garden", "a ship", "night in the city"]
    teacher.ask(f"{BOOKS}/feedback", [{"query": text, "id": "space-1"} for text in queries])
    teacher.open("teach")
    teacher.page.wait_for_selector("#next:visible .unsure li")
    offered = "[...document.querySelectorAll('.unsure button')].map(each => each.innerText)"
    shown = teacher.in_page(f"() => {offered}")
    assert len(shown) == 3
    searches = [{"query": text, "k": 2} for text in shown]
    answers = teacher.ask(f"{BOOKS}/search/batch", {"searches": searches})["answers"]
    margins = [one["hits"][0]["weight"] - one["hits"][1]["weight"] for one in answers]
    assert margins == sorted(margins)
    for text in queries:  # of these none is surer than what is offered
        best = teacher.ask(f"{BOOKS}/search", {"query": text, "k": 2})["hits"]
        is_judged = best[0]["id"] == "space-1"
        assert text in shown or is_judged or best[0]["weight"] - best[1]["weight"] >= margins[-1]
    teacher.page.click(".unsure button >> nth=0")
    teacher.page.wait_for_function(
        "text => document.querySelector('[name=q]').value === text", arg=shown[0]
    )
    teacher.page.wait_for_function(f"text => !{offered}.includes(text)", arg=shown[0])
    teacher.page.wait_for_function("() => document.activeElement.matches('#results .hits > li')")


def test_queries_are_not_offered_to_who_may_not_read_them(teacher: Tab) -> None:
    """The page offers phrases of texts where the server keeps the feedback to itself."""
    secret = "roses in my own garden"
    teacher.ask(f"{BOOKS}/feedback", [{"query": secret, "id": "space-1"}])
    refused = {"status": 403, "json": {"detail": "This needs a key of the scope write."}}
    teacher.page.route("**/feedback?limit=1000", lambda route: route.fulfill(**refused))
    teacher.open("/teach?collection=books")
    teacher.page.wait_for_selector("#next:visible .unsure li")
    assert secret not in teacher.text("#unsure")


def test_promoting_and_rolling_back(tab: Tab) -> None:
    tab.open("teach")
    tab.page.click("#versions li:has-text('Version 2') button")
    tab.page.wait_for_selector("#versions li:has-text('Version 2') .chip")
    assert tab.ask(f"{BOOKS}/projections")["active"] == 2
    tab.page.click("#back")
    tab.page.wait_for_selector("#versions li:has-text('Version 1') .chip")
    assert tab.ask(f"{BOOKS}/projections")["active"] == 1


def test_nothing_jumps_while_the_page_loads(tab: Tab) -> None:
    tab.page.add_init_script(
        "window.shift = 0; new PerformanceObserver(list => list.getEntries().forEach("
        "each => { if (!each.hadRecentInput) window.shift += each.value }))"
        ".observe({ type: 'layout-shift', buffered: true })"
    )
    for width in (360, 768, 1280):
        tab.page.set_viewport_size({"width": width, "height": 900})
        tab.open("teach")
        tab.page.wait_for_selector("form:not([aria-busy])")
        tab.page.wait_for_load_state("networkidle")
        assert tab.in_page("() => window.shift") <= 0.1, width
