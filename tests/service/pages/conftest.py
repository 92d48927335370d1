"""A real server over a socket, and Debian's Chromium to look at it with, or its Firefox.

`make test-firefox` runs the same tests in Firefox, by WebDriver BiDi.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.service.pages import libraries, world
from tests.service.test_server import Server, running, wait_until_ready

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed here")

IS_FIREFOX = os.environ.get("ATTEND_TEST_BROWSER") == "firefox"
BROWSER = next(
    filter(
        None, map(shutil.which, ["firefox-esr"] if IS_FIREFOX else ["chromium", "chromium-browser"])
    ),
    None,
)
PATIENCE = 300_000
"""Milliseconds that anything here may take on a busy machine."""

VIEWS = {
    "start": "/",
    "search": "/search?q=a+white+whale&collection={c}&mode=soft",
    "attention": "/attention?q=a+white+whale%0Aroses&collection={c}",
    "compare": "/compare?q=a+white+whale%0Aroses&collection={c}&before=1&after=2",
    "recommend": "/recommend?collection={c}&like=%5B%22sea-3%22%5D",
    "teach": "/teach?q=a+white+whale&collection={c}",
    "map": "/map?q=a+white+whale&collection={c}&before=1&projection=2&method=pca",
    "document": "/document?collection={c}&id=sea-3",
    "collection": "/collection?collection={c}",
    "user": "/user?collection=rated&user=ann",
    "add": "/add",
    "operate": "/operate",
    "docs": "/docs",
}
READY = {
    "search": "#results .hits li",
    "attention": "#picture [data-row]",
    "compare": "#picture circle",
    "recommend": "#results > *",
    "teach": "#results .hits li",
    "map": "#picture canvas[data-drawn]",
    "document": "#document > *",
    "collection": "#documents li",
    "user": "#history tr",
    "operate": "#collections tr",
}
"""What is there once a view is drawn."""


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory, tiny_encoder_folder: Path) -> Iterator[Server]:
    if BROWSER is None:
        pytest.skip("The browser is not installed here")
    folder = tmp_path_factory.mktemp("pages")
    world.build(folder, str(tiny_encoder_folder))
    with running(folder, "--allow-encoder", str(tiny_encoder_folder)) as server:
        wait_until_ready(server)
        yield server


@pytest.fixture(scope="package")
def library(
    tmp_path_factory: pytest.TempPathFactory, tiny_encoder_folder: Path
) -> Iterator[Server]:
    """A server of the demo's collection and SciFact."""
    if BROWSER is None:
        pytest.skip("The browser is not installed here")
    if not libraries.SCIFACT.is_dir():
        pytest.skip("SciFact is not beside this project")
    folder = tmp_path_factory.mktemp("library")
    libraries.build(folder, str(tiny_encoder_folder))
    with running(folder, "--allow-encoder", str(tiny_encoder_folder)) as server:
        wait_until_ready(server)
        yield server


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    if BROWSER is None:
        pytest.skip("The browser is not installed here")
    with playwright.sync_playwright() as started:
        if IS_FIREFOX:
            browser = started.firefox.launch(channel="moz-firefox", executable_path=BROWSER)
        else:
            options = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
            browser = started.chromium.launch(executable_path=BROWSER, args=options)
        yield browser
        browser.close()


class Tab:
    """A page of the browser, and what it did: requests, errors, dialogs."""

    def __init__(self, page: Any, server: Server) -> None:
        self.page = page
        self.server = server
        self.base = f"http://{server.host}:{server.port}"
        self.requests: list[str] = []
        self.errors: list[str] = []
        page.set_default_timeout(PATIENCE)
        page.on("request", lambda each: self.requests.append(each.url))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", self._on_console)
        page.on("dialog", self._on_dialog)

    def open(self, view: str, collection: str = "books", **more: str) -> Tab:
        path = VIEWS.get(view, view).format(c=collection)
        path += "".join(f"&{name}={value}" for name, value in more.items())
        self.page.goto(self.base + path)
        if view in READY:
            self.page.wait_for_selector(READY[view], state="attached")
        return self

    def ask(self, path: str, body: Any = None) -> Any:
        """The API's own answer, past the page."""
        status, content = self.server.request("GET" if body is None else "POST", path, body)
        assert status == 200, content
        return content

    def text(self, selector: str) -> str:
        return str(self.page.inner_text(selector))

    def overflow(self) -> int:
        """Pixels by which the page is wider than its window."""
        whole = "document.documentElement"
        return int(self.in_page(f"() => {whole}.scrollWidth - {whole}.clientWidth"))

    def serious(self) -> list[tuple[str, Any]]:
        """What axe-core finds to be serious or critical; WCAG 2.2 AA and its own best practice."""
        axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
        return [
            (each["id"], [node["target"] for node in each["nodes"]][:3])
            for each in axe.run(self.page).response["violations"]
            if each["impact"] in ("serious", "critical")
        ]

    def in_page(self, script: str, given: Any = None) -> Any:
        return self.page.evaluate(script, given)

    def _on_console(self, message: Any) -> None:
        # A refusal of the server that the page shows as a sentence is an error to the browser.
        if message.type == "error" and "status of 4" not in message.text:
            self.errors.append(message.text)

    def _on_dialog(self, dialog: Any) -> None:
        self.errors.append(f"dialog: {dialog.message}")
        dialog.dismiss()


@pytest.fixture
def new_tab(browser: Any, server: Server) -> Iterator[Callable[..., Tab]]:
    """Make a tab; the options are those of a context, such as color_scheme."""
    contexts = []

    def make(**options: Any) -> Tab:
        size = {"width": options.pop("width", 1280), "height": 900}
        context = browser.new_context(viewport=size, **options)
        contexts.append(context)
        return Tab(context.new_page(), server)

    yield make
    for context in contexts:
        context.close()


@pytest.fixture
def tab(new_tab: Callable[..., Tab]) -> Iterator[Tab]:
    """A tab in which nothing may go wrong."""
    tab = new_tab()
    yield tab
    assert tab.errors == []


@pytest.fixture
def reader(browser: Any, library: Server) -> Iterator[Tab]:
    """A tab on the demo's collection and SciFact, in which nothing may go wrong or go elsewhere."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    tab = Tab(context.new_page(), library)
    yield tab
    assert tab.errors == []
    assert [url for url in tab.requests if not url.startswith((tab.base, "data:", "blob:"))] == []
    context.close()


@pytest.fixture(scope="package")
def still(browser: Any, server: Server) -> Iterator[Tab]:
    """A tab in which only the page's modules are asked, and nothing is clicked."""
    context = browser.new_context()
    yield Tab(context.new_page(), server).open("/search")
    context.close()
