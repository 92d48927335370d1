"""What holds for every view: nothing jumps, nothing is cut, links hold no code, in every size."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.service.pages.conftest import IS_FIREFOX, VIEWS, Tab

WIDTHS = (360, 768, 1280)
ZOOMED = 640
"""Pixels that a window of 1,280 has at 200 %."""

SHIFTS = """() => {
  window.shifts = 0;
  new PerformanceObserver((list) => {
    for (const each of list.getEntries()) if (!each.hadRecentInput) window.shifts += each.value;
  }).observe({ type: "layout-shift", buffered: true });
}"""

CODE = re.compile(r"function|=>|undefined|null|\[object", re.IGNORECASE)


@pytest.mark.skipif(IS_FIREFOX, reason="Firefox does not measure layout shifts")
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("view", VIEWS)
def test_nothing_jumps_while_a_view_is_drawn(
    new_tab: Callable[..., Tab], view: str, width: int
) -> None:
    tab = new_tab(width=width)
    tab.page.add_init_script(f"({SHIFTS})()")
    tab.open(view)
    tab.page.wait_for_load_state("load" if view == "operate" else "networkidle")
    assert tab.in_page("() => window.shifts") <= 0.1


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_is_as_wide_as_its_window_and_its_links_hold_no_code(
    new_tab: Callable[..., Tab], view: str
) -> None:
    tab = new_tab(width=WIDTHS[0])
    tab.open(view)
    tab.page.wait_for_load_state("load" if view == "operate" else "networkidle")
    for width in (*WIDTHS, ZOOMED):
        tab.page.set_viewport_size({"width": width, "height": 800})
        assert tab.overflow() <= 0, width
    links = tab.in_page("() => [...document.querySelectorAll('main a')].map(each => each.href)")
    if view != "docs":  # which describes the API, where null is a word
        assert [link for link in links if CODE.search(link)] == []
        assert CODE.search(tab.text("main")) is None
    assert tab.errors == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", [view for view in VIEWS if view != "docs"])
def test_every_view_is_accessible_at_every_width(
    new_tab: Callable[..., Tab], view: str, scheme: str
) -> None:
    tab = new_tab(color_scheme=scheme).open(view)
    for width in (*WIDTHS, ZOOMED):
        tab.page.set_viewport_size({"width": width, "height": 800})
        assert tab.serious() == [], width
