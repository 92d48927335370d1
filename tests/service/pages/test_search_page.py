"""Searching in a browser: what is shown is what the API says, and sliders ask nobody."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.service.pages.conftest import Tab
from tests.service.pages.world import KINDS

SEARCH = "/v1/collections/books/search"
WHOLE = {"k": 100, "explain": True, "mode": "soft", "min_confidence": 0}
WEIGH = """async ([answer, temperature]) => {
  const { weigh } = await import("/static/js/weigh.js");
  const { weights, nothing, order } = weigh(answer, temperature);
  return { weights: [...weights], nothing, order };
}"""
BLEND = """async ([answer, temperature]) => {
  const { weigh } = await import("/static/js/weigh.js");
  const { blend } = await import("/static/js/blend.js");
  const { weights } = weigh(answer, temperature);
  const ids = answer.hits.map((hit) => hit.id);
  return blend(answer.answer, answer.hits.map((hit) => hit.value), [...weights], ids);
}"""


def titles(tab: Tab) -> list[str]:
    return [each.inner_text() for each in tab.page.query_selector_all("#results .hit h3")]


def parameters(tab: Tab) -> dict[str, str]:
    return {name: each[0] for name, each in parse_qs(urlsplit(tab.page.url).query).items()}


def wait_for_titles(tab: Tab, test: str) -> None:
    """Until a test holds for the title of every hit."""
    found = "[...document.querySelectorAll('#results .hit h3')].map(each => each.innerText)"
    tab.page.wait_for_function(f"() => {found}.every({test})")


def slide(tab: Tab, selector: str, value: float) -> None:
    tab.page.eval_on_selector(
        selector,
        "(each, value) => { each.value = value; each.dispatchEvent(new Event('input')); }",
        value,
    )


def test_results_come_as_one_types(tab: Tab) -> None:
    tab.open("/search?collection=books")
    for letters in ("a whi", "te wh", "ale"):
        tab.page.type("#q", letters)
    found = tab.ask(SEARCH, {"query": "a white whale", "k": 10})
    wanted = [hit["payload"]["title"] for hit in found["hits"]]
    shown = "[...document.querySelectorAll('#results .hit h3')].map(each => each.innerText)"
    tab.page.wait_for_function(f"wanted => {shown}.join() === wanted", arg=",".join(wanted))
    marks = {each.inner_text() for each in tab.page.query_selector_all("#results mark")}
    assert {"white", "whale"} <= marks
    share = tab.text("#results .share span")
    assert abs(float(share.split()[0]) / 100 - found["hits"][0]["weight"]) < 0.006
    assert parameters(tab)["q"] == "a white whale"


@pytest.mark.parametrize("projection", [1, 3, 4], ids=["one head", "two heads", "with a null key"])
@pytest.mark.parametrize("temperature", [0.2, 1.0, 6.0])
def test_the_page_weighs_as_the_server_does(
    still: Tab, projection: int, temperature: float
) -> None:
    asked = WHOLE | {"query": "roses by the sea", "projection": projection}
    found = still.in_page(WEIGH, [still.ask(SEARCH, asked), temperature])
    told = still.ask(SEARCH, asked | {"temperature": temperature})
    weights = [told["hits"][at]["weight"] for at in range(len(told["hits"]))]
    assert [found["weights"][at] for at in found["order"]] == pytest.approx(weights, abs=1e-9)
    sure = 1.0 if told["confidence"] is None else told["confidence"]
    assert found["nothing"] == pytest.approx(1 - sure, abs=1e-9)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "image"])
def test_the_page_blends_as_the_server_does(still: Tab, kind: str) -> None:
    path = f"/v1/collections/of-{kind}/search"
    asked = WHOLE | {"query": "a ship at night"}
    own = still.in_page(BLEND, [still.ask(path, asked), 3.0])
    told = still.ask(path, asked | {"temperature": 3.0})["answer"]
    assert_near(own, told)


def assert_near(own: Any, told: Any) -> None:
    """Everything that the server says, the page says too, to nine digits."""
    if isinstance(told, dict):
        for name, each in told.items():
            assert_near(own.get(name) if each is None else own[name], each)
    elif isinstance(told, list):
        assert len(own) == len(told)
        for one, other in zip(own, told, strict=True):
            assert_near(one, other)
    elif isinstance(told, float):
        assert own == pytest.approx(told, rel=1e-9, abs=1e-9)
    else:
        assert own == told


def test_sliders_repaint_without_a_request(tab: Tab) -> None:
    tab.open("search", value="price")
    before, mean = tab.text("#results .share span"), tab.text("#results .big")
    tab.page.wait_for_selector("#filters button")
    asked = len(tab.requests)
    slide(tab, "#heat", 1.0)
    slide(tab, "#k", 25)
    assert len(titles(tab)) == 25
    assert tab.text("#results .share span") != before
    assert tab.text("#results .big") != mean
    tab.page.click("label:has-text('Best')")
    assert "best document" in tab.text("#results .answer h2")
    assert len(tab.requests) == asked
    told = tab.ask(SEARCH, {"query": "a white whale", "temperature": 10, "value": "price"})
    assert tab.text("#results .big") == f"{told['answer']['mean']:g}"
    assert parameters(tab)["temperature"] == "10"
    assert parameters(tab)["k"] == "25"


def test_sliders_weigh_all_documents_where_all_are_attended(tab: Tab) -> None:
    query = "a captain sails a ship over the sea to hunt a white whale"
    address = f"/search?collection=many&mode=soft&q={query.replace(' ', '+')}"
    tab.open(address, value="n", attend="all", k="5")
    tab.page.wait_for_selector("#status:has-text('150 of 150 documents weighed')")
    asked = {"query": query, "attend": "all", "value": "n", "mode": "soft", "k": 5}
    requests = len(tab.requests)
    slide(tab, "#heat", 1.0)
    told = tab.ask("/v1/collections/many/search", asked | {"temperature": 10})
    rest = 1 - sum(hit["weight"] for hit in told["hits"])
    assert f"145 more, {100 * rest:.0f} % together" in tab.text("#results .tail")
    assert "when the slider rests" in tab.text("#results .answer")
    assert len(tab.requests) == requests
    tab.page.eval_on_selector("#heat", "each => each.dispatchEvent(new Event('change'))")
    tab.page.wait_for_selector("#results .answer .big")
    assert tab.text("#results .big").split(" ±")[0] == f"{told['answer']['mean']:.4g}"


def test_vectors_are_asked_for_by_numbers_or_by_a_document(tab: Tab) -> None:
    tab.open("/search?collection=spots&mode=soft")
    tab.page.wait_for_selector("#q[placeholder^='3 numbers, as in 1 0 0']")
    tab.page.fill("#q", "[0, 1, 0]")
    found = tab.ask("/v1/collections/spots/search", {"query": [0, 1, 0]})
    tab.page.wait_for_selector(f"#results .hit h3:has-text('{found['hits'][0]['id']}')")
    tab.page.fill("#q", "p2")
    tab.page.wait_for_selector("#results li:first-child h3:has-text('p5')")
    tab.page.fill("#q", "nobody")
    tab.page.wait_for_selector("#status:has-text('nobody')")
    tab.page.fill("#q", "1 0")
    tab.page.wait_for_selector("#status:has-text('3')")
    for view, drawn in (
        ("attention", "[data-row]"),
        ("map", "#attended li"),
        ("teach", ".hits li"),
    ):
        tab.open(f"/{view}?collection=spots&q=0+1+0")
        tab.page.wait_for_selector(drawn, state="attached")


def test_the_address_restores_what_it_shows(tab: Tab, new_tab: Callable[..., Tab]) -> None:
    tab.open("search", value="price")
    tab.page.click("#filters button:has-text('sea')")
    slide(tab, "#heat", -0.5)
    slide(tab, "#k", 7)
    tab.page.wait_for_function("() => new URLSearchParams(location.search).has('filter')")
    tab.page.wait_for_function("() => document.querySelectorAll('#results .hit h3').length === 7")
    again = new_tab().open(tab.page.url.removeprefix(tab.base))
    again.page.wait_for_selector("#results .hits li")
    again.page.wait_for_selector("#filters button[aria-pressed=true]")
    assert titles(again) == titles(tab)
    assert again.text("#results .answer") == tab.text("#results .answer")
    assert again.text("#temperature-said") == tab.text("#temperature-said") == "sharp, × 0.32"


def test_a_temperature_of_the_address_is_taken_as_it_is(tab: Tab) -> None:
    tab.open("search", value="price", temperature="1.7")
    told = tab.ask(SEARCH, WHOLE | {"query": "a white whale", "value": "price", "temperature": 1.7})
    assert tab.text("#results .big").split(" ±")[0] == f"{told['answer']['mean']:.4g}"
    assert parameters(tab)["temperature"] == "1.7"


def test_filters_are_of_the_payload(tab: Tab) -> None:
    tab.open("search")
    tab.page.click("#filters button:has-text('garden')")
    wait_for_titles(tab, "title => title.startsWith('Garden')")
    asked = {"query": "a white whale", "k": 10, "filter": {"shelf": {"in": ["garden"]}}}
    wanted = [hit["payload"]["title"] for hit in tab.ask(SEARCH, asked)["hits"]]
    assert titles(tab) == wanted
    tab.page.fill("[aria-label='year from']", "1950")
    wait_for_titles(tab, "title => Number(title.split(' ').at(-1)) >= 17")
    assert '"gte":1950' in parameters(tab)["filter"]


@pytest.mark.parametrize(
    ("kind", "selectors"),
    [
        ("number", (".value .number", ".answer svg.scale")),
        ("labels", (".value .chips li", ".answer .shares .bar")),
        ("vector", (".value svg.spark polyline", ".answer svg.spark")),
        ("image", (".value img.thumb", ".value a[rel~=noreferrer]")),
        ("object", (".value dl.meta", ".answer dl dd .big")),
        ("deep", (".value details.fold pre",)),
        ("text", (".value .said", ".answer .shares .bar")),
    ],
)
def test_values_are_shown_by_their_type(tab: Tab, kind: str, selectors: tuple[str, ...]) -> None:
    tab.open("search", f"of-{kind}")
    for selector in selectors:
        assert tab.page.query_selector(f"#results {selector}") is not None, selector


def test_nothing_here_answers_that(tab: Tab) -> None:
    tab.open("search", projection="4")
    asked = {"query": "a white whale", "projection": 4, "mode": "soft"}
    assert tab.ask(SEARCH, asked)["answered"]
    assert "Nothing here answers" not in tab.text("#results .answer")
    tab.page.fill("#q", "zzz qqq xxx")
    assert not tab.ask(SEARCH, asked | {"query": "zzz qqq xxx"})["answered"]
    tab.page.wait_for_selector("#results .answer:has-text('Nothing here answers that.')")
    assert tab.page.query_selector("#results .bar.null") is not None


def test_an_error_is_a_sentence(tab: Tab) -> None:
    tab.open("search")
    tab.page.wait_for_selector("#filters button")
    tab.in_page(
        """() => {
          const select = document.getElementById("value");
          select.append(new Option("prize", "prize"));
          select.value = "prize";
          select.dispatchEvent(new Event("change"));
        }"""
    )
    tab.page.wait_for_selector("#status.problem")
    assert "prize" in tab.text("#status")
    assert "price" in tab.text("#status")


def test_searching_by_keyboard_alone(tab: Tab) -> None:
    active = "() => document.activeElement.id || document.activeElement.name"
    tab.open("/")
    assert tab.in_page(active) == "q"
    tab.page.keyboard.type("roses")
    tab.page.wait_for_selector("#results .hits li")
    tab.page.keyboard.press("ArrowDown")
    first = "#results .hits li:first-child h3 a"
    assert tab.in_page(f"() => document.querySelector('{first}') === document.activeElement")
    wanted, seen = {"collection", "mode", "value", "heat", "k"}, set()
    for _ in range(100):  # more than there are on the page: links of hits come between
        tab.page.keyboard.press("Tab")
        seen.add(tab.in_page(active))
        if wanted <= seen:
            break
    assert wanted <= seen
    tab.page.focus("#heat")
    before = tab.text("#results .share span")
    for _ in range(8):
        tab.page.keyboard.press("ArrowRight")
    assert tab.text("#results .share span") != before
    tab.page.focus(first)
    tab.page.keyboard.press("/")
    assert tab.in_page(active) == "q"
    assert tab.page.input_value("#q") == "roses"
    tab.page.focus(first)
    tab.page.keyboard.press("Enter")
    tab.page.wait_for_url("**/document?**")


def test_searching_without_scripts(new_tab: Callable[..., Tab]) -> None:
    tab = new_tab(java_script_enabled=False)
    tab.page.goto(f"{tab.base}/search?collection=books")
    tab.page.fill("#q", "a white whale")
    tab.page.click("text=Search >> nth=-1")
    tab.page.wait_for_selector("#results .scroll table")
    found = tab.ask(SEARCH, {"query": "a white whale"})
    assert found["hits"][0]["id"] in tab.text("#results .scroll table")


def test_the_theme_stays_chosen(tab: Tab) -> None:
    paper = "() => getComputedStyle(document.documentElement).backgroundColor"
    tab.open("/search")
    shown = {}
    for _ in range(3):
        tab.page.click("#theme")
        shown[tab.text("#theme")] = tab.in_page(paper)
    assert shown["Theme: light"] != shown["Theme: dark"]
    tab.page.click("#theme")
    tab.page.click("#theme")
    assert tab.text("#theme") == "Theme: dark"
    tab.open("/operate")
    assert tab.in_page(paper) == shown["Theme: dark"]


# -- what a reader sees first ---------------------------------------------------------------------


def test_a_confidence_that_was_not_fitted_is_not_a_number(tab: Tab) -> None:
    tab.open("search", projection="1")
    assert "Confidence not fitted yet" in tab.text("#results .answer")
    assert "confidence 1" not in tab.text("#results .answer").lower()
    tab.page.click("#results .answer a:has-text('Teach it')")
    tab.page.wait_for_url("**/teach?collection=books&q=a+white+whale")
    tab.open("search", projection="4")
    told = tab.ask(SEARCH, {"query": "a white whale", "projection": 4})
    assert told["calibrated"]
    sure = f"{100 * told['confidence']:.0f} % sure that something here answers"
    assert sure in tab.text("#results .answer")


def test_what_nothing_answers_shows_no_answer_first_and_what_was_needed(tab: Tab) -> None:
    tab.open("search", projection="4")
    tab.page.fill("#q", "zzz qqq xxx")
    tab.page.wait_for_selector("#results .answer:has-text('60 % needed')")
    first = "() => document.querySelector('#results .hits > li').className"
    assert tab.in_page(first) == "null"
    assert "Nearest all the same" in tab.text("#results")


def test_a_document_has_one_weight_on_the_page(tab: Tab) -> None:
    """Of a category the card has the shares of the list, no answer taken into account."""
    tab.open("search", projection="4", value="shelf")
    answer = tab.ask(SEARCH, WHOLE | {"query": "a white whale", "projection": 4, "value": "shelf"})
    shares: dict[str, float] = {}
    for hit in answer["hits"]:
        shares[hit["value"]] = shares.get(hit["value"], 0) + hit["weight"]
    drawn = tab.in_page(
        """() => Object.fromEntries([...document.querySelectorAll("#results .answer .shares li")]
             .map(each => [each.querySelector(".name").innerText,
                           each.querySelector(".bar i").style.getPropertyValue("--share")]))"""
    )
    assert {name: float(share) for name, share in drawn.items()} == pytest.approx(shares)
    assert sum(shares.values()) == pytest.approx(answer["confidence"])


def test_the_query_goes_along_to_other_views(tab: Tab) -> None:
    tab.open("search")
    for view in ("attention", "map", "compare", "teach"):
        assert "q=a+white+whale" in str(tab.page.get_attribute(f"nav a[href^='/{view}']", "href"))
    tab.page.click("#results .next a:has-text('On the map')")
    tab.page.wait_for_selector("#attended li")
    assert tab.page.input_value("[name=q]") == "a white whale"


def test_facets_count_what_the_other_filters_let_pass(tab: Tab) -> None:
    tab.open("search")
    tab.page.click("#filters [aria-label=shelf] button:has-text('garden')")
    tab.page.wait_for_selector("#filtered button:has-text('shelf: garden')")
    total = tab.ask(
        "/v1/collections/books/documents/facets",
        {"fields": ["tags"], "filter": {"shelf": {"in": ["garden"]}}},
    )["facets"]["tags"]["values"]
    counts = {each["value"]: each["documents"] for each in total}
    told = "#filters [aria-label=tags] button:has-text('garden') .count"
    tab.page.wait_for_selector(f"{told}:text-is('{counts['garden']}')", state="attached")
    # Other values of the same field are counted without its own filter.
    sea = "#filters [aria-label=shelf] button:has-text('sea') .count"
    tab.page.wait_for_selector(f"{sea}:text-is('20')")
    tab.page.fill("[aria-label='year from']", "2100")
    tab.page.wait_for_selector("#results .answer:has-text('No document passes these filters')")
    tab.page.click("#results button:has-text('Clear them')")
    tab.page.wait_for_function("() => !new URLSearchParams(location.search).has('filter')")
    tab.page.wait_for_selector("#results .hits li")
    assert tab.page.query_selector("#filtered button") is None


def test_an_answer_that_is_late_is_dimmed(tab: Tab) -> None:
    tab.open("search")
    tab.page.route("**/search", lambda route: None)  # it never comes
    tab.page.fill("#q", "roses")
    tab.page.wait_for_selector("#results.late[aria-busy=true]")
    tab.page.unroute("**/search")
    tab.page.route("**/search", lambda route: route.abort())
    tab.page.reload()
    tab.page.wait_for_selector("#status.problem")
    tab.errors.clear()  # the browser reports the request that was cut


def test_an_address_without_a_mode_is_a_blend(tab: Tab) -> None:
    tab.open("/search?collection=books&q=a+white+whale")
    tab.page.wait_for_selector("#results .answer h2:has-text('blended from')")


def test_the_start_page_offers_questions_and_answers_the_first(tab: Tab) -> None:
    tab.open("/?collection=books")
    links = tab.page.query_selector_all("#questions a")
    assert len(links) >= 2
    tab.page.wait_for_selector("#example .answer")
    first = links[0].inner_text()
    assert first in tab.text("#example h2")
    links[0].click()
    tab.page.wait_for_selector("#results .hits li")
    assert tab.page.input_value("#q") == first
