"""Searching in a browser: what is shown is what the API says, and sliders ask nobody."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.service.pages.conftest import IS_FIREFOX, Tab
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


def exact(tab: Tab) -> str:
    """The mean in large with all its digits, as it is told to who points at it."""
    return str(tab.page.get_attribute("#results .big", "title")).split(" ±")[0]


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
    assert "best document" in tab.text("#results .answer")
    assert len(tab.requests) == asked
    told = tab.ask(SEARCH, {"query": "a white whale", "temperature": 10, "value": "price"})
    assert exact(tab) == f"{told['answer']['mean']:g}"
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
    tab.page.wait_for_selector("#results .answer .big:not([title=''])")
    assert exact(tab) == f"{told['answer']['mean']:.6g}"


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
    assert exact(tab) == f"{told['answer']['mean']:.6g}"
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
        ("number", (".value .number", ".answer .strip .band")),
        ("labels", (".value .chips li", ".answer .big .share")),
        ("vector", (".value svg.spark polyline", ".answer svg.spark")),
        ("image", (".value img.thumb", ".value a[rel~=noreferrer]")),
        ("object", (".value dl.meta", ".answer .others li")),
        ("deep", (".value details.fold pre",)),
        ("text", (".value .said", ".answer .big .share")),
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
    assert tab.page.query_selector("#results .whole .none") is not None


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
    tab.page.keyboard.insert_text("roses")  # at once: no answer to "rose" comes in between
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
    second = "#results .hits li:nth-child(2) h3 a"
    tab.page.focus(first)
    tab.page.keyboard.press("ArrowDown")
    assert tab.in_page(f"() => document.querySelector('{second}') === document.activeElement")
    tab.page.keyboard.press("ArrowUp")
    tab.page.keyboard.press("ArrowUp")
    assert tab.in_page(active) == "q"
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


@pytest.mark.skipif(IS_FIREFOX, reason="WebDriver does not switch scripts off")
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


def test_a_confidence_is_a_mark_beside_its_threshold(tab: Tab) -> None:
    tab.open("search", projection="1")
    assert "Confidence not fitted yet" in tab.text("#results .answer")
    assert tab.page.query_selector("#results .likeness") is None
    tab.page.click("#results .answer a:has-text('Teach it')")
    tab.page.wait_for_url("**/teach?collection=books&q=a+white+whale**")
    tab.open("search", projection="4")
    threshold = box(tab, "#results .likeness .threshold")
    assert box(tab, "#results .likeness .mark") > threshold
    assert "sure" not in tab.text("#results .answer")
    slide(tab, "#heat", 0.5)
    assert "fitted for another focus" in tab.text("#results .answer")


def box(tab: Tab, selector: str) -> float:
    """The middle of an element, in pixels from the left."""
    found = tab.page.wait_for_selector(selector).bounding_box()
    return float(found["x"] + found["width"] / 2)


def test_what_nothing_answers_is_refused_without_a_number_and_folded(tab: Tab) -> None:
    tab.open("search", projection="4")
    tab.page.fill("#q", "zzz qqq xxx")
    tab.page.wait_for_selector("#results .answer.refused")
    mark = box(tab, "#results .likeness .mark")
    assert mark < box(tab, "#results .likeness .threshold")
    assert "Nearest all the same (80)" in tab.text("#results .nearest > summary")
    assert not tab.page.is_visible("#results .hit")
    tab.page.click("#results .nearest > summary")
    assert tab.page.is_visible("#results .hit >> nth=0")
    assert "%" not in tab.text("#results")
    assert tab.serious() == []


@pytest.mark.parametrize(("width", "most"), [(1280, 240), (360, 320)])
@pytest.mark.parametrize("value", ["books", *KINDS])
def test_the_card_is_low(new_tab: Callable[..., Tab], value: str, width: int, most: int) -> None:
    tab = new_tab(width=width)
    for more in (
        [{"projection": "4", "value": each} for each in ("", "price", "shelf", "@key")]
        if value == "books"
        else [{}]
    ):
        tab.open("search", value if value == "books" else f"of-{value}", **more)
        card = tab.page.query_selector("#results .answer").bounding_box()
        assert card["height"] <= most, more
        assert tab.overflow() <= 0
        assert not tab.errors


def test_a_document_has_one_weight_on_the_page(tab: Tab) -> None:
    """The bar of the card has the weights of the list, and with no answer it is whole."""
    tab.open("search", projection="4", value="shelf", k="100")
    answer = tab.ask(SEARCH, WHOLE | {"query": "a white whale", "projection": 4, "value": "shelf"})
    drawn = tab.in_page(
        """() => [...document.querySelectorAll("#results .whole li")]
             .map(each => [each.querySelector("button")?.ariaLabel ?? each.title,
                           Number(each.style.flexGrow)])"""
    )
    assert sum(share for _, share in drawn) == pytest.approx(1, abs=1e-6)
    for (label, share), hit in zip(drawn, answer["hits"][:3], strict=False):
        assert label.startswith(hit["payload"]["title"])
        assert share == pytest.approx(hit["weight"], abs=1e-4)
        assert label.split(", ")[-1] in tab.text(f"#results li[data-id={hit['id']}] .share")
    sea = sum(hit["weight"] for hit in answer["hits"] if hit["value"] == "sea")
    assert tab.text("#results .big").split() == ["sea", f"{100 * sea:.0f}", "%"]
    last = answer["hits"][2]["id"]
    tab.page.click("#results .whole li:nth-child(3) button")
    tab.page.wait_for_function(
        "id => document.activeElement.closest('li')?.dataset.id === id", arg=last
    )


def test_links_take_along_the_search_that_one_sees(tab: Tab) -> None:
    tab.open("/search?collection=books&q=roses+and+apples&projection=4&value=shelf")
    tab.page.click("#filters [aria-label=shelf] button:has-text('garden')")
    wait_for_titles(tab, "title => title.startsWith('Garden')")
    wanted = {
        "collection": ["books"],
        "q": ["roses and apples"],
        "filter": ['{"shelf":{"in":["garden"]}}'],
        "value": ["shelf"],
        "projection": ["4"],
    }
    tab.page.wait_for_selector("#results .next a")
    links = "#results .next a, .top nav a[href^='/map'], .top nav a[href^='/attention']"
    addresses = [each.get_attribute("href") for each in tab.page.query_selector_all(links)]
    assert len(addresses) == 5
    for address in addresses:
        assert parse_qs(urlsplit(address).query) == wanted, address
    assert "function" not in tab.page.content()


def test_a_search_is_copied_as_code_that_runs(tab: Tab) -> None:
    query = """it's a "white" whale, $HOME `id` \\"""
    tab.open("/search?collection=books&projection=4&value=price&k=3")
    tab.page.wait_for_selector("#filters button")
    tab.page.click("#filters [aria-label=shelf] button:has-text('sea')")
    tab.page.fill("#q", query)
    tab.page.wait_for_selector("#results .hits li")
    wanted = [
        str(each.get_attribute("data-id"))
        for each in tab.page.query_selector_all("#results li[data-id]")
    ]
    tab.page.click("#results .next button:text-is('Copy')")
    shown = {}
    for language in ("curl", "Python", "TypeScript"):
        tab.page.click(f"dialog.copy button:text-is('{language}')")
        shown[language] = tab.text("dialog.copy code")
    assert tab.serious() == []
    ran = subprocess.run(["bash", "-c", shown["curl"]], capture_output=True, check=True)
    told = json.loads(ran.stdout)
    assert [hit["id"] for hit in told["hits"]] == wanted
    scope: dict[str, Any] = {}
    exec(shown["Python"], scope)
    assert [hit.id for hit in scope["answer"].hits] == wanted
    assert scope["answer"].answer["mean"] == pytest.approx(told["answer"]["mean"])
    assert scope["answer"].projection == told["projection"] == 4
    scope["library"].close()
    assert 'new Attend("http://' in shown["TypeScript"]
    begin, end = 'attend.search("books", ', ");\nconsole"
    body = shown["TypeScript"].split(begin)[1].split(end)[0]
    assert json.loads(body)["filter"] == {"shelf": {"in": ["sea"]}}
    tab.page.click("dialog.copy button:text-is('Close')")
    tab.page.wait_for_selector("dialog", state="detached")


def test_a_fold_and_the_focus_survive_sliders(tab: Tab) -> None:
    tab.open("search")
    tab.page.click("#results li:first-child .why")
    tab.page.wait_for_selector("#results .why[aria-expanded=true]")
    tab.page.focus("#results li:nth-child(2) h3 a")
    slide(tab, "#heat", 0.3)
    slide(tab, "#k", 20)
    assert tab.page.query_selector("#results .why[aria-expanded=true]") is not None
    assert tab.in_page("() => document.activeElement.matches('#results h3 a')")


def test_feedback_is_marked_where_it_moved_a_hit(still: Tab) -> None:
    hits = [("a", 3.0, 0.0), ("b", 2.9, 0.5), ("c", 1.0, 0.4)]
    answer: dict[str, list[dict[str, Any]]] = {
        "hits": [
            {"id": name, "score": score, "explanation": {"memory": moved}}
            for name, score, moved in hits
        ]
    }
    risen = """async (answer) => {
      const { risenBy } = await import("/static/js/weigh.js");
      return [...risenBy(answer)];
    }"""
    assert still.in_page(risen, answer) == []
    answer["hits"][0]["explanation"] = {"memory": 0.2}
    answer["hits"][1]["explanation"] = {"memory": 0.0}
    assert still.in_page(risen, answer) == ["a"]


def test_the_query_goes_along_to_other_views(tab: Tab) -> None:
    tab.open("search")
    for view in ("attention", "map", "compare", "teach"):
        assert "q=a+white+whale" in str(tab.page.get_attribute(f"nav a[href^='/{view}']", "href"))
    tab.page.click("#results .next a:has-text('Map')")
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
    tab.page.wait_for_selector("#results .answer .big .share")
