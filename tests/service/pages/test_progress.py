"""The strip of progress below the header, while another process works on the data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from attend_service.background import announced
from tests.service.pages.conftest import Tab
from tests.service.test_server import running, wait_until_ready

HEARD = (
    "() => { window.heard = [];"
    " addEventListener('attend-progress', (e) => window.heard.push(e.detail.state)); }"
)


@pytest.fixture
def empty(browser: Any, tmp_path: Path) -> Iterator[Tab]:
    """A tab on a server without collections."""
    with running(tmp_path) as server:
        wait_until_ready(server)
        context = browser.new_context(viewport={"width": 360, "height": 800})
        yield Tab(context.new_page(), server)
        context.close()


def test_the_strip_follows_the_work_and_moves_nothing(empty: Tab, tmp_path: Path) -> None:
    page = empty.page
    with announced(tmp_path) as report:
        report("Indexing 4,974 documents of default", 0.0, "default")
        empty.open("/teach")
        assert empty.text("#progress-message") == "Indexing 4,974 documents of default"
        empty.in_page(HEARD)
        top = empty.in_page("() => document.getElementById('main').getBoundingClientRect().top")
        sentence = "2,816 of 4,974 documents of default are indexed; searches answer already"
        while empty.text("#progress-message") != sentence:
            report(sentence, 0.566, "default")
            page.wait_for_timeout(100)
        assert page.get_attribute("#progress progress", "value") == "0.566"
        assert empty.overflow() <= 0
        assert empty.serious() == []
    page.wait_for_selector("#progress[data-state='done']")
    assert empty.text("#progress-message") == "Everything is indexed and trained."
    assert empty.in_page("() => window.heard") == ["running", "idle"]
    page.wait_for_selector("#progress[data-state='over']", state="hidden")
    after = empty.in_page("() => document.getElementById('main').getBoundingClientRect().top")
    assert after == top
    assert empty.open("/teach").page.query_selector("#progress") is None
    assert empty.errors == []


def test_an_error_stays_in_sight_as_text(empty: Tab, tmp_path: Path) -> None:
    with announced(tmp_path) as report:
        report("Reading", 0.0)
        empty.open("/add")
        report.fail("The <img src=x onerror=alert(1)> is full.")
        empty.page.wait_for_selector("#progress[data-state='failed']")
        assert empty.text("#progress-message") == "The <img src=x onerror=alert(1)> is full."
        assert empty.serious() == []
        assert empty.errors == []
