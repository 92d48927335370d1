"""Every code block of README.md and docs/ runs, in order, and prints what the page shows."""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path

import pytest

from tests.docs.blocks import (
    OUTPUTS,
    PAGES,
    PYTHON,
    SHELL,
    TYPESCRIPT,
    blocks,
    difference,
    read,
    uses_library,
)
from tests.docs.session import Session
from tests.places import ROOT
from tests.warm import write_programs

RUN = [name for name, path in PAGES.items() if any(block.runs for block in blocks(read(path)))]


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The folder that the blocks of a page begin in."""
    name = request.getfixturevalue("name")
    page = tmp_path / "page"
    if name == "README.md":
        prepare_checkout(page, request.getfixturevalue("warm"))
    elif uses_library(read(PAGES[name])):
        shutil.copytree(request.getfixturevalue("books"), page)
    else:
        page.mkdir()
    return page


def prepare_checkout(folder: Path, warm: Path) -> None:
    """Write what the README needs of a checkout in which `make install` has run before."""
    shutil.copytree(ROOT / "examples", folder / "examples")
    for name in ("Makefile", "requirements.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    write_programs(folder / ".venv" / "bin", warm)
    (folder / ".venv" / "bin" / "activate").write_text('PATH="$PWD/.venv/bin:$PATH"\n')
    (folder / ".venv" / "installed").touch()


@pytest.mark.parametrize("name", RUN)
def test_a_page_prints_what_it_shows(name: str, folder: Path, warm: Path) -> None:
    session = Session(folder, warm)
    try:
        for block in blocks(read(PAGES[name])):
            if not block.runs:
                continue
            printed = session.run(block)
            if block.output is not None:
                found = difference(block.output, printed, block.tolerance)
                assert found is None, f"{name}, line {block.line}: {found}"
    finally:
        session.close()


@pytest.mark.parametrize("name", PAGES)
def test_a_block_says_what_it_is_and_why_it_is_not_run(name: str) -> None:
    for block in blocks(read(PAGES[name])):
        where = f"{name}, line {block.line}"
        if block.language == "json":
            json.loads(block.code)
        elif block.language == "toml":
            tomllib.loads(block.code)
        elif not block.language.startswith("{"):
            assert block.language in (SHELL, PYTHON, TYPESCRIPT, *OUTPUTS), where
        assert block.reason is None or len(block.reason.split()) > 2, where


@pytest.mark.parametrize(
    ("page", "printed", "same"),
    [
        ("weight 0.93", "weight 0.94", True),
        ("weight 0.93", "weight 0.99", False),
        ("3 added", "4 added", False),
        ("a\n…\nz", "a\nb\nc\nz", True),
        ("took …s, 12.5 MB", "took 3.1s, 12.6 MB", True),
        ("  1   two", " 1 two ", True),
        ("one", "one\ntwo", False),
    ],
)
def test_an_output_differs_only_in_small_numbers(page: str, printed: str, same: bool) -> None:
    assert (difference(page, printed) is None) == same
