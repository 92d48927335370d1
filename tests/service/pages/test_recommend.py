"""Recommending in a browser: for whom, and what speaks for and against each suggestion."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.service.pages.conftest import Tab

BOOKS = "/v1/collections/books"
SHOWN = "[...document.querySelectorAll('#results .hit h3 a')].map(each => each.innerText)"
MET: list[tuple[str, str, Any]] = [
    ("ann", "garden-3", 5),
    ("ann", "garden-7", 4),
    ("ann", "horror-1", 1),
    ("bob", "space-1", 3),
]


@pytest.fixture
def users(tab: Tab) -> Iterator[Tab]:
    """A tab on books with two users, of whom one disliked a book."""
    items = [{"user": user, "id": id, "value": value} for user, id, value in MET]
    tab.ask(f"{BOOKS}/interactions", {"items": items})
    yield tab
    tab.server.request("DELETE", f"{BOOKS}/interactions", {"all": True})


def wait_for_hits(tab: Tab, hits: list[dict[str, Any]]) -> None:
    titles = ",".join(hit["payload"]["title"] for hit in hits)
    tab.page.wait_for_function(f"titles => {SHOWN}.join() === titles", arg=titles)


def title(tab: Tab, id: str) -> str:
    return str(tab.ask(f"{BOOKS}/documents/{id}")["payload"]["title"])


def test_recommended_is_what_the_api_recommends_and_why(tab: Tab) -> None:
    tab.open("/recommend?collection=books")
    tab.page.fill("[name=q]", "roses")
    tab.page.wait_for_selector("#found li:has-text('Garden')")
    tab.page.click("#found li:first-child button:has-text('Like') >> nth=0")
    tab.page.fill("[name=q]", "a rocket to the moon")
    tab.page.wait_for_selector("#found li:has-text('Space')")
    tab.page.click("#found li:first-child button:has-text('Like') >> nth=0")
    tab.page.click("#found li:nth-child(2) button:has-text('Dislike')")
    tab.page.wait_for_function("() => new URLSearchParams(location.search).has('dislike')")
    address = parse_qs(urlsplit(tab.page.url).query)
    liked, disliked = (json.loads(address[name][0]) for name in ("like", "dislike"))
    assert (len(liked), len(disliked)) == (2, 1)
    body = {"positive": liked, "negative": disliked, "k": 10, "explain": True}
    hits = tab.ask(f"{BOOKS}/recommend", body)["hits"]
    wait_for_hits(tab, hits)
    again = tab.text("#results")
    tab.open(tab.page.url.removeprefix(tab.base))
    wait_for_hits(tab, hits)
    assert tab.text("#results") == again
    tab.page.click("#disliked button")
    tab.page.wait_for_function("() => !new URLSearchParams(location.search).has('dislike')")
    wait_for_hits(tab, tab.ask(f"{BOOKS}/recommend", {"positive": liked})["hits"])


def test_what_was_disliked_pulls_down_by_the_share_of_the_api(tab: Tab) -> None:
    body = {"positive": ["space-3", "garden-1"], "negative": ["space-7"], "k": 10, "explain": True}
    hits = tab.ask(f"{BOOKS}/recommend", body)["hits"]
    like, dislike = json.dumps(body["positive"]), json.dumps(body["negative"])
    tab.open(f"/recommend?collection=books&like={like}&dislike={dislike}")
    wait_for_hits(tab, hits)
    name = title(tab, "space-7")
    drawn = tab.in_page(
        "() => [...document.querySelectorAll('.suggestions > li')].map(each => "
        "[...each.querySelectorAll('.pulls li')].map(row => [row.querySelector('.name').title, "
        "row.querySelector('.number').innerText, row.querySelector('.pull').matches('[data-down]'),"
        "Number(row.querySelector('i').style.getPropertyValue('--share'))]))"
    )
    shares = []
    for hit, rows in zip(hits, drawn, strict=True):
        [against] = hit["against"]
        down = [row for row in rows if row[2]]
        assert [row[0] for row in down] == ([name] if against["weight"] >= 0.005 else [])
        assert all(row[1].startswith("−") for row in down)
        kept = 1 - against["weight"]
        expected = [part["weight"] * kept for part in hit["because"]]
        shares += [
            (row[3], share)
            for row, share in zip(rows, [s for s in expected if s >= 0.005], strict=False)
        ]
    longest = max(share for _, share in shares)
    assert [drawn for drawn, _ in shares] == pytest.approx(
        [share / longest for _, share in shares], abs=1e-6
    )
    assert any(row[2] for rows in drawn for row in rows)
    assert "to the left down" in tab.text("#reading")


def test_a_user_is_chosen_from_a_list_and_has_a_history(users: Tab) -> None:
    users.open("/recommend?collection=books")
    users.page.wait_for_selector("#users li:nth-child(2)")
    first = users.text("#users li:first-child")
    assert "ann" in first
    assert "3 interactions" in first
    assert title(users, "horror-1") in first
    users.page.fill("[name=who]", "BO")
    users.page.wait_for_selector("#users li:first-child:has-text('bob')")
    users.page.fill("[name=who]", "")
    users.page.click("#users button:has-text('ann')")
    users.page.wait_for_selector("#history li:nth-child(3)")
    history = users.text("#history")
    assert all((title(users, id) in history) == (user == "ann") for user, id, _ in MET)
    assert "not liked" in users.text(f"#history li:has-text('{title(users, 'horror-1')}')")
    assert "1 document not liked" in users.text("#liking")
    wait_for_hits(users, users.ask(f"{BOOKS}/recommend", {"user": "ann", "k": 10})["hits"])
    assert users.in_page("() => new URLSearchParams(location.search).get('user')") == "ann"
    users.page.click("#another")
    users.page.wait_for_selector("#examples li")
    assert users.page.is_visible("#users")


def test_without_one_of_the_history_the_list_moves(users: Tab) -> None:
    users.open("/recommend?collection=books&user=ann")
    before = users.ask(f"{BOOKS}/recommend", {"user": "ann", "k": 10})["hits"]
    wait_for_hits(users, before)
    name = title(users, "garden-3")
    users.page.click(f"#results button[aria-label='Without {name}'] >> nth=0")
    excluded = [{"id": "garden-3", "weight": 0}]
    after = users.ask(f"{BOOKS}/recommend", {"user": "ann", "history": excluded, "k": 10})["hits"]
    wait_for_hits(users, after)
    places = [hit["id"] for hit in before]
    assert places != [hit["id"] for hit in after]
    fresh = [hit["id"] for hit in after if hit["id"] not in places]
    marks = users.in_page(
        "() => [...document.querySelectorAll('.suggestions > li')].map("
        "each => each.querySelector('.moved')?.innerText ?? '')"
    )
    expected = []
    for rank, hit in enumerate(after):
        was = places.index(hit["id"]) if hit["id"] in places else None
        arrow = "" if was is None else "↑" if was > rank else "↓"
        expected.append("new" if was is None else "" if was == rank else f"{arrow} was {was + 1}")
    assert marks == expected
    if fresh:
        assert f"{len(fresh)} of 10 are new" in users.text("#left-out")
    assert name not in users.text("#results .pulls >> nth=0")
    again = users.page.url.removeprefix(users.base)
    users.open(again)  # the address has it
    wait_for_hits(users, after)
    users.page.click("#history button:has-text('Without') >> nth=0")  # garden-7: nothing remains
    users.page.wait_for_selector("#left-out:has-text('nothing that was liked is left')")
    users.page.click(f"#left-out button[aria-label='Bring back {name}']")
    users.page.wait_for_function("() => document.querySelectorAll('#left-out li').length === 1")
    users.page.click("#left-out button")
    wait_for_hits(users, before)


def test_a_suggestion_is_low_and_its_reason_comes_before_its_fields(users: Tab) -> None:
    users.open("/recommend?collection=books&user=ann")
    users.page.wait_for_selector(".suggestions > li")
    first = ".suggestions > li:first-child"
    assert users.page.query_selector(first).bounding_box()["height"] <= 160
    assert users.page.is_visible(f"{first} .pulls")
    assert users.page.is_hidden(f"{first} .meta")
    users.page.click(f"{first} summary")
    assert users.page.is_visible(f"{first} .meta")


def test_with_nothing_chosen_examples_are_liked_by_a_click(tab: Tab) -> None:
    tab.open("/recommend?collection=books")
    tab.page.wait_for_selector("#examples li:nth-child(6)")
    assert tab.page.is_hidden("#as-user")  # nobody is stored
    tab.page.click("#examples button:has-text('Like') >> nth=0")
    liked = tab.ask(f"{BOOKS}/documents?limit=1")["documents"][0]["id"]
    wait_for_hits(tab, tab.ask(f"{BOOKS}/recommend", {"positive": [liked]})["hits"])
    assert tab.page.query_selector("#examples li") is None
    assert tab.serious() == []


def test_users_are_not_shown_where_the_server_keeps_them(users: Tab) -> None:
    refused = {"status": 403, "json": {"detail": "This needs a key of the scope write."}}
    users.page.route("**/users?*", lambda route: route.fulfill(**refused))
    users.open("/recommend?collection=books")
    users.page.wait_for_selector("#examples li")
    assert users.page.is_hidden("#as-user")
    assert "ann" not in users.text("main")


def test_a_title_that_is_searched_is_a_title_too(tab: Tab) -> None:
    titled = [{"id": str(n), "fields": {"title": f"Tale {n}"}} for n in range(4)]
    tab.server.request("PUT", "/v1/collections/titled", {})
    status, content = tab.server.request("POST", "/v1/collections/titled/documents", titled)
    assert status == 200, content
    try:
        tab.open('/recommend?collection=titled&like=["1"]')
        tab.page.wait_for_selector("#results .hit h3")
        assert sorted(tab.in_page(f"() => {SHOWN}")) == ["Tale 0", "Tale 2", "Tale 3"]
    finally:
        tab.server.request("DELETE", "/v1/collections/titled")


def test_nothing_jumps_while_the_users_are_listed(users: Tab) -> None:
    users.page.add_init_script(
        "window.shift = 0; new PerformanceObserver(list => list.getEntries().forEach("
        "each => { if (!each.hadRecentInput) window.shift += each.value }))"
        ".observe({ type: 'layout-shift', buffered: true })"
    )
    for width in (360, 768, 1280):
        users.page.set_viewport_size({"width": width, "height": 900})
        for more in ("", "&user=ann"):
            users.open(f"/recommend?collection=books{more}")
            users.page.wait_for_selector("form:not([aria-busy])")
            users.page.wait_for_load_state("networkidle")
            assert users.in_page("() => window.shift") <= 0.1, (more, width)
