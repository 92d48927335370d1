"""The view of several queries: what a search brings along, and lines that are no ids."""

from __future__ import annotations

from urllib.parse import quote

from tests.service.pages.conftest import Tab


def test_a_line_that_is_no_id_stands_for_its_best_document(tab: Tab) -> None:
    tab.open("/attention?collection=books&of=documents&q=" + quote("roses and apples\nsea-3"))
    tab.page.wait_for_selector("#picture [data-row]")
    best = tab.ask(
        "/v1/collections/books/search", {"query": "roses and apples", "k": 1, "title": True}
    )["hits"][0]
    assert tab.text("#status") == (
        f"“roses and apples” is not an id; its best document is {best['title']}."
    )
    tab.page.hover("[data-row='0'][data-column='0']")
    assert tab.text("#readout").startswith(f"{best['title']} →")


def test_the_filter_and_the_version_of_a_search_go_along_until_they_are_cleared(tab: Tab) -> None:
    narrow = quote('{"shelf": "garden"}')
    tab.open(f"/attention?collection=books&q=a+white+whale&filter={narrow}&projection=1")
    tab.page.wait_for_selector("#picture [data-row]")
    names = "[...document.querySelectorAll('#table thead th')].map(each => each.textContent)"
    shown = [name for name in tab.in_page(names) if name not in ("others", "no answer")]
    assert shown
    assert all(name.startswith("Garden") for name in shown)
    links = "[...document.querySelectorAll('.top nav a')].map(each => each.href)"
    search = next(link for link in tab.in_page(links) if "/search" in link)
    assert "filter=" in search
    assert "projection=1" in search
    tab.page.click("text=Show all")
    tab.page.wait_for_function(f"() => {names}.some(name => name.startsWith('Sea'))")
    assert "filter" not in tab.page.url
