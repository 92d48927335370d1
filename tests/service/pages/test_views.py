"""Every other view in a browser: what it draws is what the API says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.service.pages.conftest import Tab

BOOKS = "/v1/collections/books"
SHOWN = {"attention": "#picture svg", "compare": "#picture svg"}


def count(tab: Tab, selector: str) -> int:
    return len(tab.page.query_selector_all(selector))


# -- attention --------------------------------------------------------------------------------


def test_cells_are_the_matrix(tab: Tab) -> None:
    tab.open("attention")
    answers = attention(tab, 1)
    only = list(dict.fromkeys(hit["id"] for answer in answers for hit in answer["hits"][:5]))
    assert count(tab, "#picture [data-row]") == 2 * (len(only) + 1)
    for row, answer in enumerate(answers):
        weights = {hit["id"]: hit["weight"] for hit in answer["hits"]}
        expected = [weights.get(id, 0.0) for id in only]
        expected.append(1 - sum(expected))  # "others"
        assert drawn(tab, row, len(expected)) == pytest.approx(expected, abs=1e-3)


def test_a_row_has_the_weights_of_a_search_and_that_of_no_answer(tab: Tab) -> None:
    tab.ask(f"{BOOKS}/projections/4/activate", {})
    try:
        tab.open("/attention?collection=books&q=a+white+whale%0Azzz+qqq+xxx")
        tab.page.wait_for_selector("#picture [data-row='1']")
        answer, nothing = attention(tab, 4, "zzz qqq xxx")
        columns = count(tab, "#picture [data-row='0']")
        weights = drawn(tab, 0, columns)
        assert weights[0] == pytest.approx(answer["hits"][0]["weight"], abs=1e-3)
        assert weights[-1] == pytest.approx(1 - answer["confidence"], abs=1e-3)
        assert sum(weights) == pytest.approx(1, abs=5e-3)
        assert drawn(tab, 1, columns)[-1] == pytest.approx(1 - nothing["confidence"], abs=1e-3)
        assert not nothing["answered"]
        tab.page.click("summary:has-text('As a table')")
        assert "zzz qqq xxx (no answer)" in tab.text("#table")
        heads = [each.inner_text() for each in tab.page.query_selector_all("#table thead th")]
        assert heads[-2:] == ["others", "no answer"]
    finally:
        tab.ask(f"{BOOKS}/projections/1/activate", {})


def attention(tab: Tab, version: int, other: str = "roses") -> list[dict[str, Any]]:
    """The answers of the API to two queries, with all that they attend to."""
    asked = {"k": 100, "projection": version, "mode": "soft"}
    searches = [{"query": query, **asked} for query in ("a white whale", other)]
    answers: list[dict[str, Any]] = tab.ask(f"{BOOKS}/search/batch", {"searches": searches})[
        "answers"
    ]
    return answers


def drawn(tab: Tab, row: int, columns: int) -> list[float]:
    """The weights of a row of cells, from their shades."""
    shades = [
        tab.page.get_attribute(
            f"[data-row='{row}'][data-column='{column}'] rect >> nth=1", "fill-opacity"
        )
        for column in range(columns)
    ]
    return [float(shade or 0) ** 2 for shade in shades]


def test_arrow_keys_go_from_cell_to_cell(tab: Tab) -> None:
    tab.open("attention")
    tab.page.focus("#picture")
    assert "arrow keys" in tab.text("#readout")  # nothing is selected yet
    tab.page.keyboard.press("ArrowRight")
    first = tab.text("#readout")
    assert first.startswith("a white whale →")
    assert "match" in first
    tab.page.keyboard.press("ArrowDown")
    assert tab.text("#readout").startswith("roses →")
    tab.page.keyboard.press("ArrowRight")
    tab.page.keyboard.press("ArrowUp")
    assert tab.text("#readout") != first
    tab.page.hover("[data-row='0'][data-column='0']")
    assert tab.text("#readout") == first


def test_lines_and_cells_have_the_same_weights(tab: Tab) -> None:
    tab.open("attention")
    cells = count(tab, "#picture [data-row]")
    tab.page.click("text=Lines")
    assert count(tab, "#picture [data-row] path") == cells
    assert "as=lines" in tab.page.url
    assert tab.page.query_selector("#head-field").is_hidden()


def test_heads_one_by_one_and_together(tab: Tab) -> None:
    active = f"{BOOKS}/projections/3/activate"
    tab.ask(active, {})
    try:
        tab.open("attention")
        together = tab.page.inner_html("#picture")
        options = tab.page.query_selector_all("#head-field option")
        assert [each.inner_text() for each in options] == ["All heads", "Head 1", "Head 2"]
        tab.page.select_option("[name=head]", "1")
        assert tab.page.inner_html("#picture") != together
        url = tab.page.url.removeprefix(tab.base)
        alone = tab.page.inner_html("#picture")
        tab.page.hover("[data-row='0'][data-column='0']")
        assert "head 2: match" in tab.text("#readout")
        tab.open(url)
        tab.page.wait_for_selector("#picture [data-row]")
        assert tab.page.inner_html("#picture") == alone
    finally:
        tab.ask(f"{BOOKS}/projections/1/activate", {})


def test_a_document_attends_to_its_neighbours_and_they_to_it(tab: Tab) -> None:
    tab.open("/attention?collection=books&of=documents&q=sea-3")
    tab.page.wait_for_selector("#picture [data-row]")
    assert count(tab, "#picture [data-row]") == 5 * 6
    tab.page.hover("[data-row='0'][data-column='0']")
    assert "Sea" in tab.text("#readout")


def test_an_id_that_nothing_has_is_told_as_a_sentence(tab: Tab) -> None:
    tab.open("/attention?collection=books&of=documents&q=sea-3%0Asea-nil")
    tab.page.wait_for_selector("#status:has-text('“sea-nil” is not an id; its best document is')")
    tab.open('/recommend?collection=books&like=["sea-3","sea-nil"]')
    tab.page.wait_for_selector("#status.problem")
    assert "“sea-nil”: no document has this id" in tab.text("#status")
    assert count(tab, "#results .hit h3") == 10


@pytest.mark.parametrize("view", SHOWN)
def test_a_picture_is_saved_as_svg_and_png(tab: Tab, view: str, tmp_path: Path) -> None:
    tab.open(view)
    for name in ("svg", "png"):
        with tab.page.expect_download() as waited:
            tab.page.click(f"#{name}")
        waited.value.save_as(tmp_path / name)
    drawn = ElementTree.parse(tmp_path / "svg").getroot()
    assert drawn.tag == "{http://www.w3.org/2000/svg}svg"
    assert "var(" not in (tmp_path / "svg").read_text()
    content = (tmp_path / "png").read_bytes()
    assert content.startswith(b"\x89PNG")
    width = int.from_bytes(content[16:20], "big")
    assert (
        width == 2 * round(float(drawn.attrib["width"]))
        or abs(width - 2 * float(drawn.attrib["width"])) < 2
    )


# -- compare ----------------------------------------------------------------------------------


def test_ranks_are_those_of_both_versions(tab: Tab) -> None:
    tab.open("compare")
    sides = []
    for version in (1, 2):
        asked = {"query": "a white whale", "k": 10, "projection": version}
        sides.append([hit["id"] for hit in tab.ask(f"{BOOKS}/search", asked)["hits"]])
    both = len(set(sides[0]) | set(sides[1]))
    assert count(tab, "#picture line") == both
    gone = set(sides[0]) ^ set(sides[1])
    assert count(tab, "#picture line[stroke-dasharray]") == len(gone)
    assert gone  # the versions differ, or the test says nothing
    rose = sum(rank < (sides[0] + [id]).index(id) for rank, id in enumerate(sides[1]))
    assert tab.text("#set tbody tr td:nth-of-type(2)") == str(rose)
    tab.page.click("#set button:has-text('roses')")
    assert "roses" in tab.text("#which")
    tab.page.click("#swap")
    tab.page.wait_for_function("() => location.search.includes('before=2')")


def test_gains_are_those_of_the_comparison(tab: Tab) -> None:
    tab.open("compare")
    items = []
    for place, query in enumerate(("a white whale", "roses", "a rocket", "count", "moon crew")):
        asked = {"query": query, "k": 3, "memory": 0}
        hits = [
            tab.ask(f"{BOOKS}/search", asked | {"projection": version})["hits"]
            for version in (1, 2)
        ]
        # What only the later version has first, or else in the third place.
        is_other = hits[0][0]["id"] != hits[1][0]["id"] and place != 1
        items.append({"query": query, "id": hits[1][0 if is_other else 2]["id"]})
    tab.page.fill("#q", "\n".join(f"{each['query']} => {each['id']}" for each in items))
    tab.page.click("#own summary")
    tab.page.click("#measure")
    tab.page.wait_for_selector("#gains table")
    told = tab.ask(f"{BOOKS}/compare", {"before": 1, "after": 2, "items": items})
    row = tab.text("#gains tr:has-text('ndcg@10')")
    before, after = (f"{told[side]['measures']['ndcg@10']:.3f}" for side in ("before", "after"))
    assert f"{before} → {after}" in row
    assert f"{told['gained']} gained, {told['lost']} lost" in tab.text("#gains")
    assert "Measured now on the 5 judgements in the list" in tab.text("#source")
    assert "Feedback moves no query here" in tab.text("#source")
    changed = {each["text"]: each for each in (*told["most_gained"], *told["most_lost"])}
    first = {
        text: [side[0]["grade"] for side in (each["documents_before"], each["documents_after"])]
        for text, each in changed.items()
    }
    shown = [
        text for text, grades in first.items() if len({(grade or 0) > 0 for grade in grades}) == 2
    ]
    assert shown
    assert count(tab, "#gains li") == len(shown)
    assert all(text in tab.text("#gains ol") for text in shown)


def test_the_gate_is_told(tab: Tab) -> None:
    tab.open("compare")
    tab.page.wait_for_selector("#report:has-text('was not trained')")
    assert "added, not measured" in tab.text("#verdict")
    interval = {"before": 0.4, "after": 0.5, "difference": 0.1, "interval": [0.05, 0.15], "p": 0.01}
    view = interval | {"queries": 40, "groups": 38}
    calibration = {"ece_before": 0.2, "ece_after": 0.05, "threshold": 0.6, "error_rate": 0.05}
    report = {
        "promoted": True,
        "reason": "The gain is significant.",
        "views": {"random": view, "mix": view | {"after": 0.3, "difference": -0.1}},
        "calibration": calibration | {"questions": 40, "note": None},
    }
    tab.in_page(
        """async (report) => {
          const { drawReport } = await import("/static/js/report.js");
          document.getElementById("report").replaceChildren(drawReport({ version: 2, report }));
        }""",
        report,
    )
    tab.page.click("#report summary")
    told = tab.page.text_content("#report")
    assert "Promoted. The gain is significant." in told
    parts = ("Questions not trained on", "0.400 → 0.300", "+0.100", "−0.100", "+0.050 to +0.150")
    for part in (*parts, "p 0.010", "by 5 percentage points with the fitted one"):
        assert part in told


def test_one_version_leads_to_teach_and_not_to_empty_panels(tab: Tab) -> None:
    tab.open("/compare?collection=of-number")
    tab.page.wait_for_selector("#alone:has-text('nothing to compare')")
    assert tab.page.is_hidden("#measure")
    assert tab.page.is_hidden("#picture")
    tab.page.click("#alone a")
    tab.page.wait_for_url("**/teach?collection=of-number")


# -- document ---------------------------------------------------------------------------------


def test_a_hit_leads_to_a_page_of_its_document(tab: Tab) -> None:
    tab.open("search")
    hit = tab.ask(f"{BOOKS}/search", {"query": "a white whale"})["hits"][0]
    tab.page.click("#results .hit h3 a >> nth=0")
    tab.page.wait_for_selector("#document .prose")
    stored = tab.ask(f"{BOOKS}/documents/{hit['id']}")
    assert tab.text("h1") == stored["payload"]["title"]
    assert tab.text("#document .prose") == stored["fields"]["text"]
    for part in (stored["id"], "year", str(stored["payload"]["year"]), stored["value"]["shelf"]):
        assert part in tab.text("#document")
    alike = tab.ask(f"{BOOKS}/search", {"query": {"id": hit["id"]}, "k": 8})["hits"]
    shown = [each.inner_text() for each in tab.page.query_selector_all("#results .hit h3")]
    assert shown == [each["payload"]["title"] for each in alike]
    links = {each.inner_text(): each for each in tab.page.query_selector_all("#document .row a")}
    assert {"Attend from here", "Recommend from this", "Teach", "JSON"} == set(links)
    links["Attend from here"].click()
    tab.page.wait_for_selector("#picture [data-row]")
    tab.open("/document?collection=books&id=sea-nil")
    tab.page.wait_for_selector("#status:has-text('has no document “sea-nil”')")


# -- add --------------------------------------------------------------------------------------

CSV = '''id,headline,price,"kind, of"
1,"A ship, ""at sea""",3.5,x
2,Roses in
the garden,4,y
3,"Roses in
the garden",4.25,y
4,,7,z
'''


def test_a_dropped_file_is_searched(tab: Tab, tmp_path: Path) -> None:
    file = tmp_path / "my things.csv"
    file.write_text(CSV)
    tab.open("add")
    tab.page.set_input_files("#file", file)
    tab.page.wait_for_selector("#preview:not([hidden])")
    assert "3 rows; 2 cannot be read" in tab.text("#status")
    assert "Row 3 has 2 cells, but there are 4 columns." in tab.text("#noted")
    assert tab.page.input_value("#name") == "my-things"
    parts = {
        name: tab.page.input_value(f"select[aria-label='Part of {name}']")
        for name in ("id", "headline", "price", "kind, of")
    }
    assert parts == {"id": "id", "headline": "text", "price": "payload", "kind, of": "payload"}
    tab.page.select_option("select[aria-label='Part of headline']", "payload")
    assert tab.page.is_disabled("#build")
    assert "Choose at least one column as text." in tab.text("#wrong")
    tab.page.select_option("select[aria-label='Part of headline']", "text")
    tab.page.select_option("select[aria-label='Part of price']", "value")
    encoder = tab.ask(BOOKS)["encoder"]
    tab.page.fill("#encoder", encoder)
    tab.page.click("#build")
    tab.page.wait_for_selector("#built a")
    assert "2 documents in my-things" in tab.text("#built")
    assert "of 5 rows" in tab.text("#built")
    assert "3 left out: row 3, 4, 6" in tab.text("#built")
    for reason in ("Row 3 has 2 cells", "Row 4 has 3 cells", "Row 6 has no text."):
        assert reason in tab.text("#built")
    stored = tab.ask("/v1/collections/my-things/documents")["documents"]
    assert [(each["id"], each["value"]) for each in stored] == [("1", 3.5), ("3", 4.25)]
    assert stored[0]["fields"] == {"headline": 'A ship, "at sea"'}
    tab.page.keyboard.press("Enter")  # the link has the focus
    tab.page.wait_for_url("**/search?collection=my-things")
    tab.page.fill("#q", "ship")
    tab.page.wait_for_selector("#results .hits li")


def test_lines_of_json_with_vectors(tab: Tab, tmp_path: Path) -> None:
    file = tmp_path / "points.jsonl"
    rows: list[Any] = [{"_id": "a", "vector": [1, 0], "label": "x"}, {"_id": "b", "vector": [0, 1]}]
    file.write_text("\n".join([*map(json.dumps, rows), "[1]", "{"]))
    tab.open("add")
    tab.page.set_input_files("#file", file)
    tab.page.click("#build")
    tab.page.wait_for_selector("#built a")
    assert "2 documents in points of 4 rows" in tab.text("#built")
    assert "Line 3 is no object." in tab.text("#built")
    assert "Line 4 is not JSON." in tab.text("#built")
    found = tab.ask("/v1/collections/points/search", {"query": [1, 0]})["hits"][0]
    assert (found["id"], found["value"]) == ("a", "x")


def test_an_id_that_repeats_is_told_and_becomes_a_column(tab: Tab, tmp_path: Path) -> None:
    file = tmp_path / "messy.csv"
    file.write_text("id,text\n1,a ship\n1,a rose\n,a rocket\n")
    tab.open("add")
    tab.page.set_input_files("#file", file)
    tab.page.wait_for_selector("#preview:not([hidden])")
    sentence = "The column id repeats (“1” more than once) and is empty in 1 of 3 rows, so rows are"
    assert sentence in tab.text("#noted")
    tab.page.fill("#encoder", tab.ask(BOOKS)["encoder"])
    tab.page.click("#build")
    tab.page.wait_for_selector("#built a")
    assert sentence in tab.text("#built")
    tab.open("/search?collection=messy&q=a+ship")
    tab.page.wait_for_selector("#results .hit dt:text-is('id (column)')")
    tab.server.request("DELETE", "/v1/collections/messy")


def test_a_file_that_is_no_text_is_refused(tab: Tab, tmp_path: Path) -> None:
    file = tmp_path / "picture.csv"
    file.write_bytes(bytes(range(256)) * 20)
    tab.open("add")
    tab.page.set_input_files("#file", file)
    tab.page.wait_for_selector("#status:has-text('picture.csv is not a text file')")
    assert tab.page.is_hidden("#preview")


# -- operate ----------------------------------------------------------------------------------


def test_what_the_server_holds_and_does(tab: Tab) -> None:
    tab.ask(f"{BOOKS}/search", {"query": "a white whale"})
    tab.open("operate")
    row = tab.text("#collections tr:has-text('books')").split()
    info = tab.ask(BOOKS)
    assert row[:3] == ["books", str(info["documents"]), str(info["keys"])]
    assert "exact" in row
    stages = {each.inner_text().split()[0] for each in tab.page.query_selector_all("#stages th")}
    assert {"search", "attend", "fetch"} <= stages
    assert "Since the server started" in tab.text("#since")
    for _ in range(3):
        tab.ask(f"{BOOKS}/search", {"query": "a white whale"})
    tab.page.wait_for_selector("#since:has-text('In the last minute.')")
    assert int(tab.text("#figures div:has-text('Collections') dd")) >= 9


def test_quantiles_are_as_prometheus_has_them(still: Tab) -> None:
    text = "\n".join(
        f'x_bucket{{le="{bound}",stage="a"}} {count}'
        for bound, count in (("0.1", 2), ("0.5", 6), ("1.0", 8), ("+Inf", 10))
    )
    found = still.in_page(
        """async (text) => {
          const { parse, quantiles } = await import("/static/js/prometheus.js");
          return quantiles(parse(text), "x", "stage", [0.5, 0.7, 0.95]);
        }""",
        text,
    )
    # By hand: rank 5 of 10 is three quarters of the way through the second bucket.
    assert found[0]["quantiles"] == pytest.approx([0.1 + 0.4 * 3 / 4, 0.75, 1.0])
