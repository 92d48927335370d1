"""`attend mcp` before it serves: what it refuses. The server itself is judged in tests/judges."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from attend.cli import main


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["mcp", *map(str, arguments)], prog_name="attend")


@pytest.mark.parametrize("arguments", [(), ("--data", "x", "--url", "http://127.0.0.1:1")])
def test_one_library_is_served(arguments: tuple[str, ...]) -> None:
    refused = invoke(*arguments)
    assert refused.exit_code == 2
    assert "Give either --data or --url: the library to serve." in refused.stderr


def test_a_folder_that_is_only_read_must_exist(tmp_path: Path) -> None:
    refused = invoke("--data", tmp_path / "libary")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "libary does not exist. Check --data, or add --write." in refused.stderr
    assert not (tmp_path / "libary").exists()


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "attend.connect.mcp", raising=False)
    for name in ("mcp", "mcp_types"):
        monkeypatch.setitem(sys.modules, name, None)
    refused = invoke("--data", tmp_path)
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "Run 'pip install attend-retrieval[mcp]'." in refused.stderr
