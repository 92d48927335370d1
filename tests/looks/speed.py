"""How fast the pages are: figures, printed and never asserted."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

LOADS = 11
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
  seen.observe(place, { childList: true });
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
