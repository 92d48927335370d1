"""Back and forward: what was finished is an entry, what was only typed on the way is not."""

from __future__ import annotations

import pytest

from tests.service.pages.conftest import Tab

FIRST = "document.querySelector('#results .hit h3')?.innerText"
QUERY = "document.querySelector('[name=q]')?.value"
ENTRIES = "() => history.length"


def go(tab: Tab, way: str) -> None:
    """As the browser's button; the page opens anew, and what is looked at next waits for that."""
    tab.in_page(f"() => void setTimeout(() => history.{way}(), 0)")


def wait_for(tab: Tab, said: str, is_: str) -> None:
    tab.page.wait_for_function(f"is => {said} === is", arg=is_)


def best(tab: Tab, query: str) -> str:
    found = tab.ask("/v1/collections/books/search", {"query": query, "title": True})
    return str(found["hits"][0]["title"])


def test_queries_are_gone_back_to(tab: Tab) -> None:
    tab.open("/search?collection=books")
    entries = tab.in_page(ENTRIES)
    for query in ("a white whale", "roses", "a rocket"):
        tab.page.fill("#q", "")
        tab.page.type("#q", query)
        tab.page.keyboard.press("Enter")
        wait_for(tab, FIRST, best(tab, query))
    assert tab.in_page(ENTRIES) == entries + 3  # and not one for each letter
    for query in ("roses", "a white whale"):
        go(tab, "back")
        wait_for(tab, QUERY, query)
        wait_for(tab, FIRST, best(tab, query))
    go(tab, "forward")
    wait_for(tab, QUERY, "roses")
    wait_for(tab, FIRST, best(tab, "roses"))


def test_what_was_found_stays_behind_what_is_typed_over_it(tab: Tab) -> None:
    tab.open("/search?q=a+white+whale&collection=books&mode=soft")
    wait_for(tab, FIRST, best(tab, "a white whale"))
    tab.page.fill("#q", "")
    tab.page.type("#q", "roses")
    wait_for(tab, FIRST, best(tab, "roses"))
    go(tab, "back")
    wait_for(tab, QUERY, "a white whale")
    wait_for(tab, FIRST, best(tab, "a white whale"))


def test_the_start_is_gone_back_to(tab: Tab) -> None:
    tab.open("/")
    tab.page.type("#q", "whale")
    tab.page.wait_for_selector("#results .hits li")
    go(tab, "back")
    tab.page.wait_for_selector("#start")
    wait_for(tab, "location.pathname", "/")
    wait_for(tab, QUERY, "")


def test_choices_are_entries_and_a_slide_is_one(tab: Tab) -> None:
    tab.open("search")
    entries = tab.in_page(ENTRIES)
    tab.page.focus("#heat")
    for _ in range(6):
        tab.page.keyboard.press("ArrowRight")
    tab.page.click("label:has-text('Best')")
    tab.page.click("#filters button:has-text('garden')")
    tab.page.wait_for_function("() => new URLSearchParams(location.search).has('filter')")
    assert tab.in_page(ENTRIES) == entries + 3
    go(tab, "back")
    tab.page.wait_for_function("() => !new URLSearchParams(location.search).has('filter')")
    tab.page.wait_for_selector("#search [name=mode][value=hard]:checked", state="attached")
    wait_for(tab, FIRST, best(tab, "a white whale"))


@pytest.mark.parametrize(
    ("view", "choose", "chosen"),
    [
        ("attention", ("as", "lines"), "[data-row] path"),
        ("map", ("projection", "3"), "[name=projection] option[value='3']:checked"),
        ("compare", ("after", "3"), "option[value='3']:checked"),
    ],
)
def test_a_view_is_gone_back_to_as_it_was(
    tab: Tab, view: str, choose: tuple[str, str], chosen: str
) -> None:
    tab.open(view)
    tab.page.wait_for_load_state("networkidle")
    entries, address = tab.in_page(ENTRIES), tab.page.url
    name, value = choose
    if view == "attention":
        tab.page.click("text=Lines")
    else:
        tab.page.select_option(f"[name={name}]", value)
    tab.page.wait_for_selector(chosen, state="attached")
    tab.page.wait_for_url(f"**{name}={value}**")
    assert tab.in_page(ENTRIES) == entries + 1
    go(tab, "back")
    tab.page.wait_for_url(address)
    drawn = f"form:not(:has({chosen})) #picture :is(svg, canvas[data-drawn])"
    tab.page.wait_for_selector(drawn, state="attached")
    go(tab, "forward")
    tab.page.wait_for_selector(chosen, state="attached")
