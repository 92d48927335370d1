"""One short animation: a question under the version before and after a training."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image

SIZE = {"width": 860, "height": 640}
STILL, MOVING = 1400, 60
"""Milliseconds that a picture stands, before and after the move and in it."""

FRAMES = 8
"""Pictures of the move."""


def animation(browser: Any, base: str, path: Path) -> Path:
    """Draw the story of what was learned, again and again, as an animated WebP."""
    context = browser.new_context(viewport=SIZE, device_scale_factor=1)
    page = context.new_page()
    page.goto(base)
    page.click("a[data-story='learned']")
    page.wait_for_selector("#stage button[aria-pressed=true]:has-text('After')")
    stage = page.locator("#stage")
    pictures, milliseconds = [], []
    for word in ("Before", "After"):
        page.click(f"#stage button:has-text('{word}')")
        for _ in range(FRAMES):
            pictures.append(Image.open(BytesIO(stage.screenshot(animations="allow"))))
            milliseconds.append(MOVING)
        page.wait_for_timeout(400)
        pictures.append(Image.open(BytesIO(stage.screenshot())))
        milliseconds.append(STILL)
    size = pictures[-1].size
    first, *others = [picture.convert("RGB").resize(size) for picture in pictures]
    options: dict[str, Any] = {"duration": milliseconds, "loop": 0, "quality": 80, "method": 6}
    first.save(path, save_all=True, append_images=others, **options)
    context.close()
    return path
