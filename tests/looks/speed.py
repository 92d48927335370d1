"""How fast the pages are: figures, printed and never asserted."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from attend import Data
from attend.measure.layouts import fit_layout, version_of

LOADS = 11

LARGE, MANY, WIDTH, GROUPS = "hundred-thousand", 100_000, 64, 40
"""The collection of the large map: its name, documents, numbers in a key, and groups."""

FRAME, CATEGORIES = "MainFrame.Draw", ["-*", "cc", "benchmark", "viz"]
"""The event of Chromium's trace for a frame that was drawn, and the categories that have it."""
TYPED = (
    "how do I compress a file",
    "parse the date of an email",
    "run a function in another process",
    "sort a list by a key",
)

SHOWN = """text => new Promise(done => {
  const q = document.getElementById("q"), place = document.getElementById("results");
  const began = performance.now();
  const seen = new MutationObserver(() => {
    seen.disconnect();
    requestAnimationFrame(() => done(performance.now() - began));
  });
  seen.observe(place, { childList: true, subtree: true, characterData: true, attributes: true });
  q.value = text;
  q.dispatchEvent(new Event("input", { bubbles: true }));
})"""
SLID = """heat => {
  const slider = document.getElementById("heat");
  const began = performance.now();
  slider.value = heat;
  slider.dispatchEvent(new Event("input", { bubbles: true }));
  document.body.getBoundingClientRect();
  return performance.now() - began;
}"""
READY = "() => performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd"
BYTES = """() => ['navigation', 'resource'].flatMap(type => performance.getEntriesByType(type))
  .filter(each => !each.name.includes('/v1/')).reduce((sum, each) => sum + each.transferSize, 0)"""


def measured(page: Any, base: str) -> Iterator[tuple[str, str]]:
    """What is measured, with its figure; `page` is of a fresh context."""
    page.goto(f"{base}/search?mode=soft")
    page.wait_for_load_state("networkidle")
    yield "first load of the search page, besides data", f"{page.evaluate(BYTES) / 1000:.0f} kB"
    ready = [_loaded(page, base) for _ in range(LOADS)]
    yield f"page interactive, median of {LOADS}", f"{statistics.median(ready):.0f} ms"
    page.evaluate(SHOWN, "warm up")
    typed = sorted(
        page.evaluate(SHOWN, text[: at + 1]) for text in TYPED for at in range(len(text))
    )
    yield f"keystroke to results on the demo, p50 of {len(typed)}", _p(typed, 0.5)
    yield f"keystroke to results on the demo, p95 of {len(typed)}", _p(typed, 0.95)
    asked: list[str] = []
    page.on("request", lambda each: asked.append(each.url))
    slid = sorted(page.evaluate(SLID, at / 20) for at in range(-20, 21))
    yield f"a step of the slider repaints, p50 of {len(slid)}", _p(slid, 0.5)
    yield "requests by those steps", str(len(asked))


def _loaded(page: Any, base: str) -> float:
    page.goto(f"{base}/search?mode=soft")
    return float(page.evaluate(READY))


def _p(values: list[float], share: float) -> str:
    return f"{values[int(share * (len(values) - 1))]:.0f} ms"


def make_large(folder: Path) -> None:
    """Make the collection of the large map with its layout, unless it is there; some minutes."""
    with Data(folder) as data:
        if LARGE in data.names():
            return
        random = np.random.default_rng(0)
        centers = random.normal(size=(GROUPS, WIDTH))
        collection = data.create(LARGE, dimension=WIDTH)
        for start in range(0, MANY, 5000):
            groups = random.integers(0, GROUPS, size=5000)
            vectors = centers[groups] + 0.7 * random.normal(size=(5000, WIDTH))
            collection.upsert(
                [
                    {"id": f"d{start + n}", "vector": vector.tolist(), "value": f"group {group}"}
                    for n, (vector, group) in enumerate(zip(vectors, groups, strict=True))
                ]
            )
        collection.publish()
        fit_layout(collection, version_of(collection, 1), "tsne")


def map_measured(browser: Any, base: str) -> Iterator[tuple[str, str]]:
    """Measure how fast the large map opens, is moved and is zoomed, by Chromium's trace."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    drawn = f"#picture canvas[data-drawn='{MANY}']"
    opened = []
    for _ in range(5):
        began = time.monotonic()
        page.goto(f"{base}/map?collection={LARGE}")
        page.wait_for_selector(drawn)
        opened.append(time.monotonic() - began)
    yield f"map of {MANY:,} opened, median of 5", f"{statistics.median(opened):.2f} s"
    box = page.locator("#picture").bounding_box()
    middle = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(*middle)

    def pan() -> None:
        page.mouse.down()
        for step in range(180):
            angle = step / 12
            page.mouse.move(middle[0] + 200 * np.sin(angle), middle[1] + 120 * np.cos(angle))
        page.mouse.up()

    def zoom() -> None:
        # The browser itself turns the wheel: a command for each turn would wait for its answer.
        session = page.context.new_cdp_session(page)
        for distance in (300, -300, 300, -300):
            wheel = {"x": middle[0], "y": middle[1], "yDistance": distance, "speed": 300}
            session.send("Input.synthesizeScrollGesture", wheel | {"gestureSourceType": "mouse"})

    for name, gesture in (("pan", pan), ("zoom", zoom)):
        browser.start_tracing(page=page, categories=CATEGORIES)
        gesture()
        frames = _frames(json.loads(browser.stop_tracing()))
        gaps = sorted(np.diff(frames))
        rate = (len(frames) - 1) / (frames[-1] - frames[0])
        yield (
            f"map of {MANY:,}, {name}",
            f"{rate:.0f} frames/s, p95 {1000 * _at(gaps, 0.95):.0f} ms",
        )
    page.close()


def _frames(trace: dict[str, Any]) -> list[float]:
    """Return the seconds at which frames were drawn."""
    events = trace["traceEvents"]
    return sorted(event["ts"] / 1e6 for event in events if event["name"] == FRAME)


def _at(values: list[float], share: float) -> float:
    return values[int(share * (len(values) - 1))]
