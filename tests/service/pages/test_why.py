"""Why a document has its weight: parts that add up, words with lines, versions, the table."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.service.pages.conftest import Tab

SEARCH = "/v1/collections/books/search"
QUERY = "a white whale"
LONG = "a white whale and a captain of a ship near the harbour with roses and a rocket to the moon"
FIRST = "#results .hits > li:first-child"
ROWS = """() => Object.fromEntries([...document.querySelectorAll(".waterfall tbody tr")].map(row =>
  [row.querySelector("th").firstChild.textContent,
  [...row.querySelectorAll("td")].map(cell => cell.textContent)]))"""
LINES = "() => document.querySelectorAll('.texts .lines path').length"


def opened(tab: Tab, query: str = QUERY, collection: str = "books") -> dict[str, Any]:
    """Open the explanation of the first hit; return what the API says of its words."""
    tab.open(f"/search?collection={collection}&q={query.replace(' ', '+')}")
    tab.page.click(f"{FIRST} .why")
    tab.page.wait_for_selector(".strongest li")
    hit = tab.ask(
        f"/v1/collections/{collection}/search", {"query": query, "k": 1, "explain": "tokens"}
    )["hits"][0]
    assert hit["id"] == tab.page.get_attribute(FIRST, "data-id")
    explanation: dict[str, Any] = hit["explanation"]
    return explanation


def value(text: str) -> float:
    return float(text.replace("−", "-"))


def pairs(words: dict[str, Any]) -> list[tuple[float, str, str]]:
    """Return all pairs of words that tell something, the strongest first."""
    every = [
        (share, left["text"], right["text"])
        for left, line in zip(words["query"], words["shares"], strict=True)
        for right, share in zip(words["passage"], line, strict=True)
        if not left["stop_word"] and not right["stop_word"]
    ]
    return sorted(every, key=lambda pair: -abs(pair[0]))


def test_the_parts_that_are_written_add_up_to_the_score_and_to_the_list_s_weight(tab: Tab) -> None:
    opened(tab)
    rows = tab.in_page(ROWS)
    hits = tab.ask(SEARCH, {"query": QUERY, "k": 2, "explain": True})["hits"]
    for column, hit in enumerate(hits):
        written = [value(cells[column]) for name, cells in rows.items() if name != "Weight"]
        assert sum(written[:-1]) == pytest.approx(written[-1], abs=1e-9)
        assert written[-1] == pytest.approx(hit["score"], abs=0.005001)
        assert value(rows["Words"][column]) == pytest.approx(
            hit["explanation"]["lexical"], abs=0.011
        )
    listed = [
        each.inner_text()
        for each in tab.page.query_selector_all(".weight .share > span:first-child")
    ]
    assert rows["Weight"] == listed[:2]
    assert tab.text(f"{FIRST} .why") == f"Why {listed[0]}?"
    assert "It matches by its text." in tab.text(".reasons")


def test_every_weight_follows_the_focus(tab: Tab) -> None:
    opened(tab)
    before = tab.text(f"{FIRST} .why")
    asked = len(tab.requests)
    tab.page.eval_on_selector(
        "#heat", "each => { each.value = 0.5; each.dispatchEvent(new Event('input')); }"
    )
    tab.page.wait_for_function(
        f"was => document.querySelector('{FIRST} .why').textContent !== was", arg=before
    )
    shown = tab.text(f"{FIRST} .weight .share > span:first-child")
    assert tab.text(f"{FIRST} .why") == f"Why {shown}?"
    tab.page.wait_for_function(
        "shown => document.querySelector('.waterfall .weighs').textContent === shown", arg=shown
    )
    assert len(tab.requests) == asked


def test_ten_lines_join_the_strongest_words_and_are_a_list_too(tab: Tab) -> None:
    explanation = opened(tab)
    words = explanation["words"]
    listed = [each.inner_text() for each in tab.page.query_selector_all(".strongest li")]
    assert len(listed) == tab.in_page(LINES) == 10
    for text, (share, left, right) in zip(listed, pairs(words), strict=False):
        assert text.startswith(f"“{left}” – “{right}” ")
        assert value(text.rsplit(" ", 1)[1]) == pytest.approx(share, abs=0.0051)
    assert tab.text(".texts .above") == QUERY
    assert tab.text(".texts .below") == explanation["passage"]
    doubled = "() => [...document.querySelectorAll('.texts .above .bm25')].map(e => e.textContent)"
    assert tab.in_page(doubled) == [word["text"] for word in words["query"] if word["lexical"]]
    assert tab.text(".texts .above .weak") == "a"
    own, common, rest, total = (
        value(number)
        for number in re.findall(
            r"[−+]?\d+\.\d\d\b", tab.text(".reasons .quiet:has-text('pairs of words')")
        )
    )
    assert own + common + rest == pytest.approx(total, abs=1e-9)
    assert total == pytest.approx(
        sum(explanation["parts"][name] for name in ("meaning", "learned")), abs=0.0051
    )


def test_hovering_or_focusing_a_word_keeps_its_lines_only(tab: Tab) -> None:
    opened(tab)
    tab.page.hover(".texts .above button:has-text('whale')")
    told = tab.text(".reasons [role=status]")
    assert told.startswith("“whale” – “whale” +")
    assert told.count("“whale” – ") == tab.in_page(LINES) == 5
    tab.page.mouse.move(0, 0)
    tab.page.wait_for_function(
        "() => document.querySelectorAll('.texts .lines path').length === 10"
    )
    tab.page.focus(".texts .above button:has-text('white')")
    assert tab.text(".reasons [role=status]").startswith("“white” – “")
    tab.page.keyboard.press("Tab")
    assert tab.text(".reasons [role=status]").startswith("“whale” – “")


def test_another_version_is_asked_the_same(tab: Tab) -> None:
    opened(tab)
    plain = tab.text(".strongest")
    assert "Learned" not in tab.in_page(ROWS)
    tab.page.click(".reasons .switch label:has-text('Version 2')")
    tab.page.wait_for_function(
        "was => document.querySelector('.strongest').innerText !== was", arg=plain
    )
    rows = tab.in_page(ROWS)
    answer = tab.ask(SEARCH, {"query": QUERY, "k": 100, "explain": True, "projection": 2})
    id = tab.page.get_attribute(FIRST, "data-id")
    [hit] = [hit for hit in answer["hits"] if hit["id"] == id]
    written = [value(cells[0]) for name, cells in rows.items() if name != "Weight"]
    assert sum(written[:-1]) == pytest.approx(written[-1], abs=1e-9)
    assert value(rows["Learned"][0]) == pytest.approx(
        hit["explanation"]["parts"]["learned"], abs=0.011
    )
    tab.page.click(".reasons .switch label:has-text('Version 3')")  # of two heads
    tab.page.wait_for_selector(".reasons .quiet:has-text('a mean over 2 heads')")
    written = [value(cells[0]) for name, cells in tab.in_page(ROWS).items() if name != "Weight"]
    assert sum(written[:-1]) == pytest.approx(written[-1], abs=1e-9)
    assert written[-1] < 0  # the log of a weight


def test_the_table_of_all_pairs_is_a_fold_and_has_the_shares_of_the_api(tab: Tab) -> None:
    words = opened(tab, LONG)["words"]
    assert tab.page.query_selector(".matrix[open]") is None
    tab.page.click(".matrix summary")
    rows = tab.page.query_selector_all(".matrix tbody tr")
    assert len(rows) == 16
    assert f"16 of {len(words['query'])} words of the question" in tab.text(".matrix")
    cells = [value(cell.inner_text()) for row in rows for cell in row.query_selector_all("td")]
    largest = max(abs(share) for line in words["shares"] for share in line)
    assert max(map(abs, cells)) == pytest.approx(largest, abs=0.06 * largest)


def test_it_stays_open_when_a_slider_moves_and_asks_nobody(tab: Tab) -> None:
    opened(tab)
    asked = len(tab.requests)
    tab.page.eval_on_selector(
        "#k", "each => { each.value = 3; each.dispatchEvent(new Event('input')); }"
    )
    tab.page.wait_for_function(
        "() => document.querySelectorAll('#results .hits > li').length === 3"
    )
    assert tab.page.is_visible(f"{FIRST} .strongest")
    assert len(tab.requests) == asked
    tab.page.click(f"{FIRST} .why")
    assert tab.page.get_attribute(f"{FIRST} .why", "aria-expanded") == "false"
    assert not tab.page.is_visible(f"{FIRST} .strongest")


def test_vectors_have_parts_and_no_words(tab: Tab) -> None:
    tab.open("/search?collection=spots")
    tab.page.fill("#q", "1 0 0")
    tab.page.wait_for_selector("#results .hits li")
    tab.page.click(f"{FIRST} .why")
    tab.page.wait_for_selector(".waterfall")
    assert "Meaning" in tab.in_page(ROWS)
    assert tab.page.query_selector(".texts") is None


def test_texts_that_are_markup_stay_texts(tab: Tab) -> None:
    tab.open("/search?collection=hostile&q=script+alert+image")
    tab.page.wait_for_selector("#results .why")
    for at in range(len(tab.page.query_selector_all("#results .why"))):
        tab.page.click(f"#results .why >> nth={at}")
    tab.page.wait_for_selector(".texts")
    assert tab.page.query_selector(".reasons script, .reasons img, .reasons iframe") is None


def test_the_server_s_refusal_is_a_sentence(tab: Tab) -> None:
    tab.page.route(
        "**/search",
        lambda route: (
            route.abort()
            if '"explain":"tokens"' in str(route.request.post_data)
            else route.continue_()
        ),
    )
    tab.open("/search?collection=books&q=roses")
    tab.page.click(f"{FIRST} .why")
    tab.page.wait_for_selector(".reasons .problem:has-text('cannot be reached')")
    assert tab.page.is_visible(".waterfall")
    tab.errors.clear()  # the browser reports the request that was cut


def test_numbers_are_rounded_so_that_they_add_up(still: Tab) -> None:
    told = still.in_page(
        """async () => {
          const { rounded, signed } = await import("/static/js/waterfall.js");
          const sums = [rounded([1.004, 1.004, 1.004], 3.012), rounded([0.333, -0.336, 0], -0.003)];
          return [...sums, signed(-0.5), signed(0.001)];
        }"""
    )
    assert told == [[1.01, 1, 1, 3.01], [0.33, -0.33, 0, 0], "−0.50", "0.00"]


@pytest.mark.parametrize("width", [360, 1280])
def test_it_is_for_everyone(new_tab: Callable[..., Tab], width: int) -> None:
    tab = new_tab(color_scheme="light", width=width, reduced_motion="reduce")
    opened(tab, LONG)
    tab.page.click(".matrix summary")
    assert tab.serious() == []
    tab.page.emulate_media(color_scheme="dark")
    assert tab.serious() == []
    assert tab.overflow() <= 0
