"""What README.md and docs/ say of the code's parts; tests/docs runs their blocks of code."""

from __future__ import annotations

import re

from tests.docs.blocks import PAGES, read
from tests.places import ROOT

TEXT = "\n".join(map(read, PAGES.values()))


def test_the_architecture_names_the_folders_there_are() -> None:
    page = read(PAGES["docs/explanation/architecture.md"])
    listing = re.search(r"```text\n(index/attend/ .*?)```", page, re.DOTALL)
    assert listing
    for package, lines in re.findall(
        r"^(index/attend|service/attend_service)/ (.*?)(?=^\w)", listing[1], re.S | re.M
    ):
        named = set(re.findall(r"^  (\w+)/", lines, re.MULTILINE))
        parts = (path for path in (ROOT / package).iterdir() if (path / "__init__.py").exists())
        assert named == {path.name for path in parts}
        for file in re.findall(r"(\w+\.py)", lines):
            assert (ROOT / package / file).is_file(), file


def test_every_command_of_the_pages_exists() -> None:
    from attend_service.cli import main

    used = re.findall(r"^(?:\w+=\$\()?attend (\w+)", TEXT, re.MULTILINE)
    assert set(used) <= {*main.later}


def test_links_lead_to_pages_and_headings() -> None:
    for name, path in PAGES.items():
        for target in re.findall(r"\]\(([^):]+)\)", read(path)):
            file, _, heading = target.partition("#")
            page = path.parent / file if file else path
            assert page.exists(), f"{name}: {target}"
            assert not heading or heading in headings(read(page)), f"{name}: {target}"


def headings(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and MyST write them."""
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\s-]", "", title.lower()).replace(" ", "-") for title in titles}
