"""Token by token: the table under a hit has the shares that the API explains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.service.pages.conftest import Tab

SEARCH = "/v1/collections/books/search"
LONG = "a white whale and a captain of a ship near the harbour with roses and a rocket to the moon"
NUMBERS = """() => [...document.querySelectorAll(".pairs tbody tr")].map(row =>
  [...row.querySelectorAll("td")].map(cell => Number(cell.textContent.replace("−", "-"))))"""


def opened(tab: Tab, query: str = "a white whale") -> dict[str, Any]:
    """Open the table of the first hit; return what the API says of its tokens."""
    tab.open(f"/search?collection=books&q={query.replace(' ', '+')}")
    tab.page.click("#results .pairs summary >> nth=0")
    tab.page.wait_for_selector(".pairs table")
    hit = tab.ask(SEARCH, {"query": query, "k": 1, "explain": "tokens"})["hits"][0]
    assert hit["id"] == tab.page.get_attribute("#results .hits li", "data-id")
    tokens: dict[str, Any] = hit["explanation"]["tokens"]
    return tokens


def headings(tab: Tab, scope: str) -> list[str]:
    return [each.inner_text() for each in tab.page.query_selector_all(f".pairs th[scope={scope}]")]


def strongest(lines: list[Any], most: int) -> list[int]:
    """Return the places of the lines with the largest shares, in their order."""
    best = sorted(range(len(lines)), key=lambda at: -max(map(abs, lines[at])))
    return sorted(best[:most])


def test_the_table_has_the_shares_of_the_api(tab: Tab) -> None:
    tokens = opened(tab)
    assert headings(tab, "row") == [word["text"].strip() for word in tokens["query"]]
    columns = strongest(list(zip(*tokens["shares"], strict=True)), 18)
    assert headings(tab, "col") == [tokens["passage"][at]["text"].strip() for at in columns]
    most = max(abs(share) for line in tokens["shares"] for share in line)
    rounding = 0.051 * most  # the largest has two digits
    for line, shares in zip(tab.in_page(NUMBERS), tokens["shares"], strict=True):
        assert line == pytest.approx([shares[at] for at in columns], abs=rounding)
    written = tab.page.query_selector_all(".pairs tbody td:not(:has(.hidden))")
    numbers = [abs(float(each.inner_text().replace("−", "-"))) for each in written]
    assert len(numbers) == 8  # readable without colour
    assert max(numbers) == pytest.approx(most, abs=rounding)
    left = f"18 of {len(tokens['passage'])} tokens of the passage"
    assert left in tab.text(".pairs figure")
    assert "Strongest: “" in tab.text(".pairs .readout")


def test_a_long_query_is_cut_to_its_strongest_tokens(tab: Tab) -> None:
    tokens = opened(tab, LONG)
    words = [word["text"].strip() for word in tokens["query"]]
    assert len(words) > 16
    assert headings(tab, "row") == [words[row] for row in strongest(tokens["shares"], 16)]
    assert f"16 of {len(words)} tokens of the query" in tab.text(".pairs figure")
    assert "all other pairs" in tab.text(".pairs figure")


def test_hovering_and_arrow_keys_tell_the_number_of_a_pair(tab: Tab) -> None:
    tokens = opened(tab)
    first = tokens["query"][0]["text"].strip()
    tab.page.focus(".pairs .scroll")
    tab.page.keyboard.press("ArrowRight")
    begun = tab.text(".pairs .readout")
    assert begun.startswith(f"“{first}” with “")
    tab.page.keyboard.press("ArrowDown")
    assert tab.text(".pairs .readout").startswith(f"“{tokens['query'][1]['text'].strip()}” with “")
    tab.page.hover(".pairs tbody tr:first-child td >> nth=0")
    assert tab.text(".pairs .readout") == begun
    assert tab.in_page("() => document.querySelectorAll('.pairs .at').length") == 1


def test_a_table_stays_open_when_a_slider_moves_and_asks_nobody(tab: Tab) -> None:
    opened(tab)
    asked = len(tab.requests)
    tab.page.eval_on_selector(
        "#k", "each => { each.value = 3; each.dispatchEvent(new Event('input')); }"
    )
    tab.page.wait_for_function(
        "() => document.querySelectorAll('#results .hits > li').length === 3"
    )
    tab.page.wait_for_selector("#results li:first-child .pairs[open] table")
    assert len(tab.requests) == asked


def test_vectors_have_no_tokens(tab: Tab) -> None:
    tab.open("/search?collection=spots")
    tab.page.fill("#q", "1 0 0")
    tab.page.wait_for_selector("#results .hits li")
    assert tab.page.query_selector(".pairs") is None


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
    tab.page.click("#results .pairs summary >> nth=0")
    tab.page.wait_for_selector(".pairs .problem:has-text('cannot be reached')")
    tab.errors.clear()  # the browser reports the request that was cut


def test_a_document_without_tokens_says_why(tab: Tab) -> None:
    answer = {"dense": 1.0, "tokens": None}
    tab.open("search")
    told = tab.in_page(
        """async (answer) => {
          const { tokenPairs } = await import("/static/js/pairs.js");
          const details = tokenPairs({ open: true }, async () => answer);
          await new Promise(done => setTimeout(done));
          return details.textContent;
        }""",
        answer,
    )
    assert "do not make up its match" in told


def test_the_table_is_for_everyone(new_tab: Callable[..., Tab]) -> None:
    tab = new_tab(color_scheme="light")
    opened(tab, LONG)
    assert tab.serious() == []
    tab.page.emulate_media(color_scheme="dark")
    tab.page.set_viewport_size({"width": 360, "height": 800})
    assert tab.serious() == []
    assert tab.overflow() <= 0
    wide = "document.querySelector('.pairs .scroll')"
    assert tab.in_page(f"() => {wide}.scrollWidth > {wide}.clientWidth")
