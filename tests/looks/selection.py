"""A small picture for each view: wide and light, with the narrow and dark one beside it."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

VIEWS = ("search", "attention", "compare", "recommend", "teach", "map", "add", "operate")

DRAW = """async ([wide, narrow]) => {
  const [scale, tall, gap] = [0.625, 900, 16];
  const canvas = document.createElement("canvas");
  const context = canvas.getContext("2d");
  const images = await Promise.all([wide, narrow].map(async (source) => {
    const image = new Image();
    image.src = `data:image/png;base64,${source}`;
    await image.decode();
    return image;
  }));
  canvas.width = images.reduce((sum, each) => sum + each.width * scale, gap);
  canvas.height = tall * scale;
  context.imageSmoothingQuality = "high";
  let at = 0;
  for (const image of images) {
    const height = Math.min(tall, image.height);
    context.drawImage(image, 0, 0, image.width, height, at, 0, image.width * scale, height * scale);
    at += image.width * scale + gap;
  }
  return canvas.toDataURL("image/webp", 0.82).split(",")[1];
}"""


def selection(page: Any, drawn: Path, out: Path) -> Iterator[Path]:
    """From the pictures of `tests.looks.views` in a folder; the browser draws them together."""
    out.mkdir(parents=True, exist_ok=True)
    for view in VIEWS:
        pair = [drawn / f"{view}-light-1280.png", drawn / f"{view}-dark-360.png"]
        sources = [base64.b64encode(each.read_bytes()).decode() for each in pair]
        path = out / f"{view}.webp"
        path.write_bytes(base64.b64decode(page.evaluate(DRAW, sources)))
        yield path
