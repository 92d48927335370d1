"""`python -m tests.looks`: a picture of every view, light and dark, wide and narrow, and figures.

Needs Chromium, and some minutes for the library of its first run. Nothing is asserted: pictures
are for eyes, and figures are those of this machine as busy as it is.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import click

from tests.looks.animation import animation
from tests.looks.library import prepare
from tests.looks.selection import selection
from tests.looks.speed import make_large, map_measured, measured
from tests.looks.views import HEIGHT, pictures
from tests.service.test_server import running


@click.command()
@click.option("--data", default=Path("looks/data"), type=click.Path(path_type=Path))
@click.option("--out", default=Path("looks"), show_default=True, type=click.Path(path_type=Path))
@click.option("--only", default="", help="Only views whose name has this in it.")
@click.option("--select", type=click.Path(path_type=Path), help="Where small ones for a page go.")
@click.option("--speed/--no-speed", default=True, help="Measure as well.")
def main(data: Path, out: Path, only: str, select: Path | None, speed: bool) -> None:
    """Draw every view in Chromium, and measure how fast the pages are."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        raise click.ClickException("Chromium is not installed here; install the package chromium.")
    prepare(data)
    if speed:
        make_large(data)
    out.mkdir(parents=True, exist_ok=True)
    with running(data) as server, sync_playwright() as started:
        while server.request("GET", "/readyz")[0] != 200:
            time.sleep(0.2)
        base = f"http://{server.host}:{server.port}"
        options = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        browser = started.chromium.launch(executable_path=chromium, args=options)
        for path in pictures(browser, base, out, only):
            click.echo(path)
        page = browser.new_page(viewport={"width": 1280, "height": HEIGHT})
        if not only:
            click.echo(animation(browser, base, out / "learning.webp"))
        if select is not None:
            for path in selection(page, out, select):
                click.echo(path)
        if speed:
            for name, value in measured(page, base):
                click.echo(f"{name:55} {value}")
            for name, value in map_measured(browser, base):
                click.echo(f"{name:55} {value}")
        browser.close()


if __name__ == "__main__":
    main()
