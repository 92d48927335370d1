"""Every view on the demo and on SciFact: thousands of documents, as people have them."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.service.pages.conftest import Tab
from tests.service.pages.libraries import SCIFACT

QUERIES = {
    "default": ["compress a file", "parse a date", "sort a list"],
    "scifact": [
        "Vitamin D deficiency raises the risk of disease",
        "stem cells in the brain",
        "aspirin lowers the risk of cancer",
    ],
}
COLLECTIONS = [*QUERIES]
TITLES = "[...document.querySelectorAll('#results .hit h3')].map(each => each.innerText)"


def address(view: str, collection: str, **more: object) -> str:
    lines = quote("\n".join(QUERIES[collection]))
    return f"/{view}?collection={collection}&q={lines}" + "".join(
        f"&{name}={quote(str(value))}" for name, value in more.items()
    )


def found(tab: Tab, collection: str, query: Any, **more: Any) -> list[dict[str, Any]]:
    body = {"query": query, "title": True, **more}
    hits: list[dict[str, Any]] = tab.ask(f"/v1/collections/{collection}/search", body)["hits"]
    return hits


def wait_for_titles(tab: Tab, hits: list[dict[str, Any]]) -> None:
    wanted = "|".join(" ".join(hit["title"].split()) for hit in hits)
    tab.page.wait_for_function(f"wanted => {TITLES}.join('|') === wanted", arg=wanted)


def sound(tab: Tab) -> None:
    """For everyone, and within a small window too."""
    tab.page.set_viewport_size({"width": 360, "height": 800})
    assert tab.overflow() <= 0
    assert tab.serious() == []
    tab.page.set_viewport_size({"width": 1280, "height": 900})


@pytest.mark.parametrize("collection", COLLECTIONS)
def test_search(reader: Tab, collection: str) -> None:
    reader.open(f"/search?collection={collection}")
    for query in QUERIES[collection]:
        reader.page.fill("#q", query)
        hits = found(reader, collection, query)
        wait_for_titles(reader, hits)
        assert reader.page.query_selector("#results .passage mark") is not None
        share = reader.text("#results .share span")
        assert abs(float(share.strip("< %")) / 100 - hits[0]["weight"]) < 0.006
    asked = len(reader.requests)
    reader.page.focus("#k")
    reader.page.keyboard.press("ArrowRight")
    reader.page.focus("#heat")
    reader.page.keyboard.press("ArrowLeft")
    assert reader.in_page(f"() => {TITLES}.length") == 11
    assert len(reader.requests) == asked
    reader.page.select_option("#attend", "all")
    total = reader.ask(f"/v1/collections/{collection}")["documents"]
    reader.page.wait_for_selector(f"#status:has-text('{total:,} of {total:,} documents weighed')")
    sound(reader)


def test_values_and_filters_of_the_demo(reader: Tab) -> None:
    query = QUERIES["default"][0]
    reader.open(f"/search?collection=default&q={quote(query)}&mode=soft&value=module")
    reader.page.wait_for_selector("#results .answer .big .share")
    reader.page.click("#filters button:has-text('class')")
    hits = found(reader, "default", query, filter={"kind": {"in": ["class"]}})
    wait_for_titles(reader, hits)


@pytest.mark.parametrize("collection", COLLECTIONS)
def test_attention(reader: Tab, collection: str) -> None:
    reader.open(address("attention", collection))
    reader.page.wait_for_selector("#picture [data-row='2']")
    best = found(reader, collection, QUERIES[collection][0])[0]
    reader.page.hover("[data-row='0'][data-column='0']")
    assert reader.text("#readout").startswith(f"{QUERIES[collection][0]} → {best['title']}")
    sound(reader)
    reader.page.click("text=Lines")
    reader.page.wait_for_selector("#picture [data-row] path", state="attached")
    ids = [hit["id"] for hit in found(reader, collection, QUERIES[collection][1], k=3)]
    path = f"/attention?collection={collection}&of=documents&q={quote(chr(10).join(ids))}"
    reader.open(path)
    reader.page.wait_for_selector("#picture [data-row='2']")
    with reader.page.expect_download() as waited:
        reader.page.click("#svg")
    assert waited.value.suggested_filename == "attention.svg"


@pytest.mark.parametrize("collection", COLLECTIONS)
def test_compare(reader: Tab, collection: str) -> None:
    reader.open(address("compare", collection, before=1, after=2))
    reader.page.wait_for_selector("#picture circle", state="attached")
    assert len(reader.page.query_selector_all("#set tbody tr")) == 3
    items = [
        f"{query} => {found(reader, collection, query, projection=2)[0]['id']}"
        for query in QUERIES[collection]
    ]
    reader.page.fill("#q", "\n".join(items))
    reader.page.click("#own summary")
    reader.page.click("#measure")
    reader.page.wait_for_selector("#gains table")
    sound(reader)


@pytest.mark.parametrize("collection", COLLECTIONS)
def test_teach(reader: Tab, collection: str) -> None:
    query = QUERIES[collection][0]
    reader.open(f"/teach?collection={collection}&q={quote(query)}")
    reader.page.wait_for_selector("#results .hits li")
    reader.page.focus("#results .hits > li")
    first = found(reader, collection, query, k=1)[0]["id"]
    reader.page.keyboard.press("y")
    reader.page.wait_for_selector("#said:has-text('relevant')")
    second = found(reader, collection, query, k=2)[1]["id"]
    reader.page.keyboard.press("j")
    reader.page.keyboard.press("n")
    reader.page.wait_for_selector("#results li[data-said='0']")
    stored = reader.ask(f"/v1/collections/{collection}/feedback?limit=2")["items"]
    assert [(each["document"], each["label"]) for each in stored] == [(second, 0), (first, 1)]
    sound(reader)


def test_scifact_is_trained_promoted_and_rolled_back(reader: Tab) -> None:
    """Judgements of its train split: whether the gate lets the version pass is not the page's."""
    path = "/v1/collections/scifact"
    reader.ask(f"{path}/feedback", {"items": judgements(60)})
    reader.open("/teach?collection=scifact")
    reader.page.click("#train")
    reader.page.wait_for_selector("#job [data-state=done]")
    job = reader.ask("/v1/jobs")["jobs"][0]["id"]
    report = reader.ask(f"/v1/jobs/{job}")["result"]
    reader.page.wait_for_selector("#report table", state="attached")
    assert report["reason"].split(" (")[0] in str(reader.page.text_content("#report"))
    version = max(each["version"] for each in reader.ask(f"{path}/projections")["projections"])
    mine = f"#versions li:has(strong:text-is('Version {version}'))"
    if reader.page.query_selector(f"{mine} button"):
        reader.page.click(f"{mine} button")
    reader.page.wait_for_selector(f"{mine} .chip")
    assert reader.ask(f"{path}/projections")["active"] == version
    sound(reader)
    reader.page.click("#back")
    reader.page.wait_for_selector("#versions li:has(strong:text-is('Version 1')) .chip")
    assert reader.ask(f"{path}/projections")["active"] == 1
    # The version has its report with pictures in Compare as well.
    reader.open(f"/compare?collection=scifact&before=1&after={version}")
    reader.page.wait_for_selector("#report svg")


def judgements(most: int) -> list[dict[str, Any]]:
    texts = {}
    for line in (SCIFACT / "queries.jsonl").read_text().splitlines():
        query = json.loads(line)
        texts[query["_id"]] = query["text"]
    with (SCIFACT / "qrels" / "train.tsv").open() as file:
        rows = list(csv.DictReader(file, delimiter="\t"))[:most]
    return [
        {"query": texts[row["query-id"]], "id": row["corpus-id"], "label": float(row["score"])}
        for row in rows
    ]


@pytest.mark.parametrize("collection", COLLECTIONS)
def test_map(reader: Tab, collection: str) -> None:
    query = QUERIES[collection][0]
    reader.open(f"/map?collection={collection}&q={quote(query)}&before=1&projection=2&method=pca")
    reader.page.wait_for_selector("#attended li")
    best = found(reader, collection, query, projection=2)[0]
    name = reader.text("#attended li:first-child .name")
    assert best["title"].startswith(name.rstrip("…"))
    total = reader.ask(f"/v1/collections/{collection}")["documents"]
    assert f"of {total:,};" in reader.text("#said")
    sound(reader)


@pytest.mark.parametrize("collection", COLLECTIONS)
def test_recommend(reader: Tab, collection: str) -> None:
    reader.open(f"/recommend?collection={collection}")
    liked = []
    for at, query in enumerate(QUERIES[collection][:2]):
        reader.page.fill("[name=q]", query)
        best = found(reader, collection, query)[0]
        name = best["title"][:20].replace("'", "\\'")
        reader.page.wait_for_selector(f"#found li:first-child:has-text('{name}')")
        reader.page.click("#found li:first-child button >> nth=0")
        liked.append(best["id"])
        reader.page.wait_for_selector(f"#liked li:nth-child({at + 1}) button")
    body = {"positive": liked, "title": True}
    hits = reader.ask(f"/v1/collections/{collection}/recommend", body)["hits"]
    wait_for_titles(reader, hits)
    assert len(reader.page.query_selector_all("#results .pulls")) == 10
    sound(reader)


def test_bring_your_own(reader: Tab, tmp_path: Path) -> None:
    """A part of SciFact's own file, as one would drop it."""
    with (SCIFACT / "corpus.jsonl").open() as file:
        lines = [next(file) for _ in range(150)]
    (tmp_path / "abstracts.jsonl").write_text("".join(lines))
    reader.open("/add")
    reader.page.set_input_files("#file", tmp_path / "abstracts.jsonl")
    reader.page.wait_for_selector("#preview:not([hidden])")
    assert reader.page.input_value("select[aria-label='Part of _id']") == "id"
    assert reader.page.input_value("select[aria-label='Part of text']") == "text"
    sound(reader)
    reader.page.fill("#encoder", reader.ask("/v1/collections/scifact")["encoder"])
    reader.page.click("#build")
    reader.page.wait_for_selector("#built a")
    assert "150 documents in abstracts" in reader.text("#built")
    reader.page.click("#built a")
    reader.page.fill("#q", "stem cells")
    reader.page.wait_for_selector("#results .hits li")
    reader.server.request("DELETE", "/v1/collections/abstracts")


def test_operate(reader: Tab) -> None:
    reader.ask("/v1/collections/default/search", {"query": "a file"})
    reader.open("/operate")
    for collection in COLLECTIONS:
        info = reader.ask(f"/v1/collections/{collection}")
        row = f"#collections tr:has-text('{collection}'):has-text('{info['documents']:,}')"
        reader.page.wait_for_selector(row)
    reader.page.wait_for_selector("#stages th:has-text('attend')")
    sound(reader)
