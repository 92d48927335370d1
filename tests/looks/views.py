"""Each view with something to see in it, as pictures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

WIDTHS = (360, 1280)
HEIGHT = 900
THEMES = ("light", "dark")
PATIENCE = 120_000
"""Milliseconds."""

LINES = quote("compress a file\nparse a date\nrun something later\nread a table of text")
LIKED = quote('["zlib.compress", "gzip.open", "bz2.BZ2File"]')
ASKED = quote("Return the time of day\nParse a document\nOpen a network connection")


class Look(NamedTuple):
    """A view at an address, what is there once it is drawn, and what is clicked before."""

    name: str
    path: str
    ready: str
    click: str | None = None


LOOKS = (
    Look("start", "/", "#stage .hits"),
    Look(
        "search", f"/search?q={quote('compress a file')}&mode=soft&value=module", "#filters button"
    ),
    Look("search-hard", f"/search?q={quote('parse a date')}&mode=hard", "#filters button"),
    Look(
        "tokens",
        f"/search?q={quote('how do I compress a large file')}&k=3",
        "#results .pairs table",
        "#results .pairs summary >> nth=2",
    ),
    Look("attention", f"/attention?q={LINES}", "#picture [data-row]"),
    Look("lines", f"/attention?q={LINES}&as=lines&n=3", "#picture [data-row]"),
    Look("compare", f"/compare?collection=modules&before=1&after=2&q={ASKED}", "#picture circle"),
    Look("recommend", f"/recommend?like={LIKED}", "#results .reasons"),
    Look("teach", f"/teach?collection=modules&q={quote('Open a network connection')}", ".hits li"),
    Look(
        "map",
        f"/map?collection=modules&q={quote('Parse a document')}&before=1&projection=2&colour=size",
        "#attended li",
    ),
    Look("tsne", f"/map?q={quote('compress a file')}", "#attended li"),
    Look("document", "/document?collection=default&id=gzip.compress", "#document > *"),
    Look("nothing", f"/search?q={quote('who won the world cup in 1998')}", "#filters button"),
    Look("add", "/add", "#drop"),
    Look("operate", "/operate", "#collections tr"),
    Look("docs", "/docs", "h1"),
)

CSV = """title,author,year,price,description
Moby-Dick,Herman Melville,1851,9.5,A captain hunts a white whale.
Dracula,Bram Stoker,1897,7,A count leaves his castle for London.
The Sea-Wolf,Jack London,1904,8.5,A castaway on a sealing ship.
"""


def pictures(browser: Any, base: str, out: Path, only: str = "") -> Iterator[Path]:
    """Draw each view at each width in each theme; yields the files."""
    for theme in THEMES:
        for width in WIDTHS:
            size = {"width": width, "height": HEIGHT}
            context = browser.new_context(viewport=size, color_scheme=theme)
            page = context.new_page()
            page.set_default_timeout(PATIENCE)
            for look in LOOKS:
                if only in look.name:
                    _open(page, base, look)
                    path = out / f"{look.name}-{theme}-{width}.png"
                    page.screenshot(path=path, full_page=look.name != "docs")
                    yield path
            context.close()


def _open(page: Any, base: str, look: Look) -> None:
    page.goto(base + look.path)
    if look.click is not None:
        page.click(look.click)
    page.wait_for_selector(look.ready, state="attached")
    if look.name == "add":
        file = {"name": "books.csv", "mimeType": "text/csv", "buffer": CSV.encode()}
        page.set_input_files("#file", file)
        page.wait_for_selector("#preview:not([hidden])")
    page.wait_for_load_state("networkidle" if look.name != "operate" else "load")
    page.evaluate("() => document.fonts.ready")
