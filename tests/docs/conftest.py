"""What the tests of the pages share: a warm process, and the library of the tutorial."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.blocks import PAGES, blocks, read
from tests.docs.session import Session
from tests.warm import address

BUILDS = "attend build books.jsonl"


@pytest.fixture(scope="session")
def warm() -> Path:
    """The address of the process that runs the commands of the pages."""
    return address()


@pytest.fixture(scope="session")
def books(warm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the tutorial has after its first build: books.jsonl and library/."""
    folder = tmp_path_factory.mktemp("books")
    session = Session(folder, warm)
    try:
        for block in blocks(read(PAGES["docs/tutorial.md"])):
            if block.runs:
                session.run(block)
            if BUILDS in block.code:
                break
    finally:
        session.close()
    return folder
