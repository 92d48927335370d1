"""What the tests of the pages share: a warm process, and the library of the tutorial."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.blocks import PAGES, blocks, read
from tests.docs.session import Session
from tests.places import PACKAGES, ROOT

BUILDS = "attend build books.jsonl"


@pytest.fixture(scope="session")
def warm() -> Iterator[Path]:
    """The address of the process that runs the commands of the pages."""
    # Short: the address of a socket has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="docs-") as folder:
        path = Path(folder, "warm")
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.docs.warm", str(path)],
            cwd=ROOT,
            env=os.environ
            | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, *PACKAGES))), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield path
        finally:
            process.kill()
            process.communicate()


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
