"""Each long operation fails at some of its stages: the library is as before, or as after.

A few cells of the table of `tests.soak.faults`, drawn with a fixed seed; `make soak` runs all.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.places import ROOT
from tests.soak.acts import Act, available, marker, run

CELLS = 1
"""Of each operation."""


def test_operations_that_fail_leave_the_old_state_or_the_new(tmp_path: Path) -> None:
    if not available(tmp_path):
        pytest.skip("this system lets no process watch the calls of another")
    # A process of its own, which uses neither torch nor FAISS before it forks.
    command = [sys.executable, "-m", "tests.soak", "--faults", "--each", str(CELLS)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ", 0 wrong" in done.stdout


def test_an_act_that_is_no_act_of_the_folder_is_not_counted(tmp_path: Path) -> None:
    if not available(tmp_path):
        pytest.skip("this system lets no process watch the calls of another")
    root = tmp_path / "root"
    root.mkdir()

    def work() -> None:
        mark = marker(root)
        (tmp_path / "beside").write_text("x")
        (root / "a").write_text("x")
        mark("halfway")
        (root / "a").rename(root / "b")

    ended = run(work, tmp_path / "output.txt", root=root)
    acts = [Act("create", "a"), Act("write", "a"), Act("mark", "halfway"), Act("rename", "b")]
    assert (ended.status, ended.acts) == (0, acts)
