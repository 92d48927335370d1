"""The README's examples, as written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def block(heading: str, language: str) -> str:
    """The first block of code in a language under a heading of the README."""
    text = (ROOT / "README.md").read_text()
    section = text.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    found = re.search(rf"```{language}\n(.*?)```", section, re.DOTALL)
    assert found, f"no {language} under {heading}"
    return found[1]


def test_the_command_line_example_runs(tmp_path: Path) -> None:
    commands = block("Command line", "sh").replace(". .venv/bin/activate\n", "")
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }
    ran = subprocess.run(
        ["bash", "-euc", commands],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    assert "3 added" in ran.stdout
    assert '"type": "number"' in ran.stdout
    # Of the three books, the one that plays on a ship comes first.
    assert re.search(r"^\s*1 .* 3  8\.5$", ran.stdout, re.MULTILINE), ran.stdout


def test_the_python_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(block("Python", "python"), "README.md", "exec"), {})
    distribution = eval(capsys.readouterr().out, {})
    assert list(distribution) == ["billing", "cards"]
    assert distribution["billing"] > 0.9
