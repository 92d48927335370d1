"""The site is built without a warning, and its reference has every command, path and setting."""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from tests.docs.blocks import DOCS, PAGES, read
from tests.index.helpers import commands_of
from tests.places import PACKAGES, ROOT

pytest.importorskip("sphinx", reason="docs/requirements.txt is not installed")

WORDS_A_MINUTE = 200


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "--quiet", str(DOCS)]
    done = subprocess.run(
        [*command, str(folder), "-d", str(folder / ".trees")],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, *PACKAGES)))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


def text_of(page: Path) -> str:
    """Return the text of a page without its tags."""
    return html.unescape(re.sub(r"<[^>]+>", "", page.read_text(encoding="utf-8")))


def test_every_command_and_option_is_in_the_reference(site: Path) -> None:
    from attend_service.cli import main

    text = text_of(site / "reference" / "commands.html")
    for path, command in commands_of(main):
        assert " ".join(["attend", *path]) in text
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not parameter.hidden:
                assert all(name in text for name in parameter.opts), (path, parameter.opts)


def test_every_path_of_the_api_is_in_the_reference(site: Path) -> None:
    from attend_service.routes import all_operations

    text = text_of(site / "reference" / "http.html")
    for operation in all_operations():
        assert f"{operation.method} {operation.path}" in text


def test_every_setting_is_in_the_reference(site: Path) -> None:
    from attend_service.settings import ServerSettings, flag_of, variable_of

    text = text_of(site / "reference" / "settings.html")
    for name in ServerSettings.model_fields:
        assert flag_of(name) in text
        assert variable_of(name) in text


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    import attend

    page = (site / "reference" / "python.html").read_text(encoding="utf-8")
    for name in attend.__all__:
        if not name.startswith("_") and name != "DEFAULT_COLLECTION":
            assert f'id="attend.{name}"' in page, name
    for method in ("search", "upsert", "recommend", "delete"):
        assert f'id="attend.Collection.{method}"' in page


def test_the_pages_load_nothing_from_other_hosts(site: Path) -> None:
    for page in site.rglob("*.html"):
        loaded = re.findall(r'<(?:script|img|link)[^>]* (?:src|href)="(https?:[^"]+)"', read(page))
        assert not loaded, (page, loaded)


def test_the_tutorial_is_read_in_a_quarter_of_an_hour() -> None:
    words = len(read(PAGES["docs/tutorial.md"]).split())
    assert words <= 15 * WORDS_A_MINUTE


def test_the_readme_is_short() -> None:
    assert read(PAGES["README.md"]).count("\n") <= 180
